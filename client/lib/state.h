/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving and loading a job's state: gw_state_save_sync and gw_state_load_sync, by parts.
 *
 *   state_json.c    a scanner for JSON
 *   state_header.c  text of safetensors headers and of the index, written and read
 *   state_list.c    the tensors of a job, their names, and how they are cut into files
 *   state_find.c    files that are there, matched with the list; differences
 *   state_file.c    descriptors: making, writing, reading, renaming
 *   state_move.c    what this rank owns, between its shard and the files
 *   state.c         the calls, and the agreement of all ranks between their phases
 *
 * One call is one thread with a struct state of its own on the heap; nothing is shared but the job.
 */
#ifndef GW_CLIENT_STATE_H
#define GW_CLIENT_STATE_H

#include "client/lib/zero.h"

#define STATE_NAME_MAX (GW_NAME_MAX + GW_LABEL_MAX + 1u) /* "array.parameter" */
#define STATE_ID_CHARS 16u                               /* that files of one save have in common */
#define STATE_HEADER_MAX 100000000u                      /* bytes: the format's own limit */
#define STATE_FILES_MAX 99999u
#define STATE_NOT_FOUND UINT32_MAX

struct state_tensor {
    char *name;
    uint32_t param;
    uint32_t array; /* index in the options' list; UINT32_MAX: the parameter itself */
    uint32_t file;  /* load: STATE_NOT_FOUND until found */
    uint64_t numel;
    uint64_t begin; /* byte in the file's data */
    uint32_t dtype; /* enum gw_dtype in the file */
};

struct state_file {
    char *path, *partial;  /* save: partial is where it is written */
    char *header;          /* save; on rank 0 the one that is written */
    uint64_t header_bytes; /* with its length: where data begins */
    uint64_t data_bytes;
    uint32_t first, count; /* save: run of tensors */
    bool made;             /* a partial of ours is there */
    int fd;                /* -1: not open */
};

struct state {
    gw_job *job;
    struct zero *zero;
    struct gw_state_options options;
    const char *path;
    int64_t deadline;
    bool saving;
    struct state_tensor *tensors;
    uint32_t count;
    struct state_file *files;
    uint32_t file_count;
    struct state_file index; /* path NULL: one file */
    char id[STATE_ID_CHARS + 1];
    uint32_t open;  /* file; STATE_NOT_FOUND: none */
    struct state_array {
        void *values;
        uint32_t dtype;
        bool known; /* its dtype: it was there, or the files have told */
    } *arrays; /* of options.arrays */
    gw_buffer *board;  /* the ranks' outcomes */
    bool board_in_use; /* maybe still: it goes with the job then */
    uint64_t digest;
    uint32_t differences;
    char first_difference[400];
};

/* ---- text of headers */
struct state_text {
    char *bytes;
    size_t used, room;
    bool failed; /* no memory */
};
void state_text_add(struct state_text *text, const char *bytes, size_t count);
void state_text_string(struct state_text *text, const char *string); /* quoted */
/* Of file `index`, length and padding included: *ret_header is allocated. */
int state_header_write(const struct state *s, uint32_t file, char **ret_header,
                       uint64_t *ret_bytes);
int state_index_write(const struct state *s, char **ret_text, uint64_t *ret_bytes);

struct state_entry { /* a tensor as a header tells it */
    char name[STATE_NAME_MAX + 1];
    bool long_name; /* cut: none of ours */
    char dtype[16];
    uint32_t dims; /* may be more than extents has */
    uint64_t extents[GW_SHAPE_DIMS_MAX];
    bool numel_fits; /* numel is what the extents say */
    uint64_t numel;
    uint64_t begin, end;
};
/* `take` for each tensor; ret_id: of the save, or "". GW_E_INVALID with text "byte N: ...". */
int state_header_read(const char *text, size_t bytes, char ret_id[STATE_ID_CHARS + 1],
                      int (*take)(void *arg, const struct state_entry *entry), void *arg);
/* `take` for each file name of an index's weight_map, as often as it comes. */
int state_index_read(const char *text, size_t bytes, char ret_id[STATE_ID_CHARS + 1],
                     int (*take)(void *arg, const char *file), void *arg);

/* ---- list, files, values */
int state_list(struct state *s);
/* Save: cuts the list into files, names them, and writes their headers' text. */
int state_cut(struct state *s);
/* Load: reads headers, finds every tensor of the list; GW_E_MISMATCH after telling differences. */
int state_find(struct state *s);

/* Save, rank 0: room on the disk, headers and index written under temporary names. */
int state_files_make(struct state *s);
/* Save, rank 0: renames, the index last, and removes what `path` named in the other form. */
int state_files_name(struct state *s);
/* Temporary files that are still there. */
void state_files_remove(struct state *s);
/* The one file that is open; -1 none. `use` opens another one, whose fd is then its own. */
int state_file_use(struct state *s, uint32_t file);
/* Save: what this rank wrote is on the disk. */
int state_file_done(struct state *s);
int state_file_write(const struct state_file *file, uint64_t at, const void *bytes, size_t count);
int state_file_read(const struct state_file *file, uint64_t at, void *bytes, size_t count);
/* The whole file, or its header: allocated. *ret_size: of the file. */
int state_file_text(const char *path, bool header, char **ret_text, uint64_t *ret_bytes,
                    uint64_t *ret_size);

/* "F32", "F16", "BF16". */
const char *state_dtype_name(uint32_t dtype);
/* False: none that is known here. */
bool state_dtype_find(const char *name, uint32_t *ret_dtype);

/* Own values, between the shard and the files. */
int state_move(struct state *s);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What job.c, build.c, launch.c and requests.c share: the one struct of a job. Loop thread. */
#ifndef GW_ENGINE_JOB_INTERNAL_H
#define GW_ENGINE_JOB_INTERNAL_H

#include "daemon/engine/arenas.h"
#include "daemon/engine/job.h"

struct job {
    struct job_config config;
    struct core *core;
    struct fabric *fabric;
    struct arenas *arenas;
    struct job_port ports[GW_RANKS_MAX]; /* engine NULL: nobody attached */

    /* build.c */
    struct device_memory *boards[GW_RANKS_MAX];
    struct device_memory *board_waits[GW_RANKS_MAX]; /* jobs on GPUs */
    struct device_memory *layout_page;
    uint64_t layout_bytes;
    uint8_t layout_hash[32];
    bool built; /* once: arenas hold shards that survive */

    /* job.c: ops launched and not yet told done, ascending */
    uint64_t *unfinished;
    uint32_t unfinished_count, unfinished_room;
    uint64_t last_op;
    uint32_t generation; /* whose ops the device runs */
    bool formed;         /* the fabric, for this generation */
    bool lost;           /* the device or the fabric: never used again */
    char lost_text[GW_TEXT_MAX + 1];
    struct ranks placed; /* those with a place: */
    struct device_place places[GW_RANKS_MAX];
    bool failed; /* this generation has */
    int fail_code;
    char fail_text[GW_TEXT_MAX + 1];

    /* Several nodes (span.c) */
    bool has_formed;
    char node_lost[GW_TEXT_MAX + 1]; /* "": none is */
    struct ranks detached;           /* ranks here whose client is gone, as the log will say */
    uint32_t origin;                 /* node of the event that is handled, */
    uint64_t cookie;                 /* and its connection */
    struct span *span;

    bool copies_told; /* requests.c */

    /* The request that the core is handling: its reply may need what the request said. */
    uint32_t request_rank;
    const struct wire_msg *request;

    /* launch.c: scratch of one launch */
    struct scratch {
        const void **in;
        void **out;
        struct fabric_segment *segments;
        struct device_wait *waits;
        struct device_signal *signals;
        struct gw_shm_board *boards[GW_RANKS_MAX];
        void *verdicts[GW_RANKS_MAX];
        uint32_t segments_room, waits_room, signals_room;
    } scratch;
};

/* job.c */
void job_reply(struct job *job, uint32_t rank, const struct wire_msg *msg, const int *fds,
               unsigned fd_count);
void job_reply_done(struct job *job, uint32_t rank, uint32_t request, int code, const char *format,
                    ...) __attribute__((format(printf, 5, 6)));
/* 0 when no op is under way: then things may be freed at once. */
uint64_t job_last_unfinished(const struct job *job);

/* Its memory and its client are on this node. */
bool job_here(const struct job *job, uint32_t rank);
/* What the job itself has to tell the core. */
int job_tell(struct job *job, uint64_t now_ns, const struct core_event *event);

/* span.c: what only jobs on several nodes need. */
int span_new(struct job *job);
void span_free(struct job *job);
/* A new generation, or a failure: no request is under way any more. */
void span_reset(struct job *job);
/* An op's times here, for when it is done everywhere. */
void span_note(struct job *job, const struct device_done *done);
void span_times(const struct job *job, struct core_event *event);
/* Its client goes; ops of it may still be on their way through the log. */
void span_keep_words(struct job *job, uint32_t rank);
/* Until the log says that it has gone, else NULL. */
const _Atomic uint64_t *span_kept_word(const struct job *job, uint32_t rank, uint32_t timeline);
/* A PARAM_IO of a rank here goes to the log: its values go first. */
int span_param_io(struct job *job, uint32_t rank, const struct wire_msg *msg);
/* Values written by a rank elsewhere; NULL: they have not come. */
float *span_written(struct job *job, uint32_t rank, uint32_t request, uint64_t bytes);
/* The rank's node hears that this one has taken them, or that there is nothing to take. */
int span_taken(struct job *job, uint32_t rank, uint32_t request);
/* Nodes but this one. */
uint64_t span_others(const struct job *job);
/* The reply to a PARAM_IO, once all that lies elsewhere has come: `elsewhere` bytes, or, of a
 * write, nodes that have taken it. So a rank that writes faster than the star carries is held. */
void span_reply(struct job *job, const struct core_effect *effect, uint64_t elsewhere);

/* build.c: 0, or why not, with text. */
int build_all(struct job *job, char text[GW_TEXT_MAX + 1]);
/* The core knows whether all nodes could: what it has no layout for is dropped here too. */
void build_told(struct job *job);
void build_free(struct job *job);
/* Nothing will be raised any more: no stream of a client may wait for it. */
void build_release_waits(struct job *job);
/* Adds hash, sizes and descriptors. */
void build_reply_sealed(struct job *job, const struct core_effect *effect);

/* launch.c */
int launch_op(struct job *job, const struct core_op *op);
int launch_signal(struct job *job, const struct core_signal *signal, uint64_t after_op);
/* What the core has to tell clients by the way, into their boards. After its effects, and before an
 * answer that a client may act upon. */
void launch_grants(struct job *job);
int launch_new(struct job *job);
void launch_free(struct job *job);

/* requests.c: false: the core's to handle. *ret_r: as job_request. */
bool request_own(struct job *job, uint64_t now_ns, uint32_t rank, const struct wire_msg *msg,
                 int *ret_r);
int request_param_io(struct job *job, struct core_effect *effect);
/* "12345678 bytes cannot be had: ..." */
void request_memory_text(const struct job *job, uint64_t bytes, int code, char *text,
                         size_t text_bytes);

#endif

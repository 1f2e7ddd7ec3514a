/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Load: which files there are, and where in them the job's tensors lie. Their text is any program's
 * and is not trusted: sizes are checked against the file's, names are escaped when told.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/err.h"
#include "client/lib/state.h"
#include "daemon/base/escape.h"
#include "daemon/base/hash.h"
#include "daemon/base/text.h"

#define INDEX_SUFFIX ".index.json"

struct finder {
    struct state *s;
    struct state_tensor **sorted; /* by name */
    uint32_t file;                /* whose header is read */
    char **names;                 /* of the index */
    uint32_t count, room;
};

/* ---- differences ----------------------------------------------------------------------------- */

static void differ(struct state *s, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void differ(struct state *s, const char *name, const char *format, ...)
{
    char safe[ESCAPE_BYTES(STATE_NAME_MAX)], line[ESCAPE_BYTES(STATE_NAME_MAX) + 512];
    struct text text = TEXT(line);
    va_list list;

    text_add(&text, "tensor %s ", escape_string(name, safe, sizeof(safe)));
    va_start(list, format);
    text_addv(&text, format, list);
    va_end(list);
    if (s->differences++ == 0) {
        text_start(&text, s->first_difference, sizeof(s->first_difference));
        text_add(&text, "%s", line); /* cut where it is too long */
    }
    if (s->options.difference)
        s->options.difference(s->options.arg, line);
}

static void add_extents(struct text *text, uint32_t dims, const uint64_t *extents)
{
    text_add(text, "[");
    for (uint32_t d = 0; d < dims && d < GW_SHAPE_DIMS_MAX; d++)
        text_add(text, "%s%llu", d ? "," : "", (unsigned long long)extents[d]);
    text_add(text, "%s]", dims > GW_SHAPE_DIMS_MAX ? ",..." : "");
}

static void differ_shape(struct state *s, const struct state_tensor *tensor,
                         const struct state_entry *entry)
{
    char there_text[200], here_text[200];
    struct text there = TEXT(there_text), here = TEXT(here_text);

    add_extents(&there, entry->dims, entry->extents);
    if (s->options.shapes)
        add_extents(&here, s->options.shapes[tensor->param].dims,
                    s->options.shapes[tensor->param].extents);
    else
        text_add(&here, "%llu elements", (unsigned long long)tensor->numel);
    differ(s, entry->name, "has shape %s in the file, %s here", there_text, here_text);
}

static bool same_shape(const struct state *s, const struct state_tensor *tensor,
                       const struct state_entry *entry)
{
    const struct gw_shape *shape = s->options.shapes ? &s->options.shapes[tensor->param] : NULL;

    if (!entry->numel_fits || entry->numel != tensor->numel)
        return false;
    return !shape ||
           (shape->dims == entry->dims &&
            memcmp(shape->extents, entry->extents, shape->dims * sizeof(shape->extents[0])) == 0);
}

/* ---- headers --------------------------------------------------------------------------------- */

static int compare_tensors(const void *a, const void *b)
{
    const struct state_tensor *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

static struct state_tensor *look_up(struct finder *finder, const char *name)
{
    struct state_tensor key = {.name = (char *)(uintptr_t)name};
    const struct state_tensor *of_key = &key;
    struct state_tensor **found = bsearch(&of_key, finder->sorted, finder->s->count,
                                          sizeof(struct state_tensor *), compare_tensors);

    return found ? *found : NULL;
}

/* An array that is not there yet has that of its first tensor in the files. */
static void learn_dtype(struct state *s, struct state_tensor *tensor, uint32_t of_file)
{
    struct state_array *array = &s->arrays[tensor->array];

    if (!array->known)
        array->dtype = of_file;
    array->known = true;
    tensor->dtype = array->dtype;
}

static int take_entry(void *arg, const struct state_entry *entry)
{
    struct finder *finder = arg;
    struct state *s = finder->s;
    struct state_file *file = &s->files[finder->file];
    struct state_tensor *tensor = entry->long_name ? NULL : look_up(finder, entry->name);
    char dtype[ESCAPE_BYTES(sizeof(entry->dtype))];
    uint32_t of_file = GW_DTYPE_FP32;
    bool known;

    if (!tensor) {
        if (!s->options.allow_other)
            differ(s, entry->name, "is in the file, but not asked for");
        return 0;
    }
    if (tensor->file != STATE_NOT_FOUND) {
        differ(s, entry->name, "comes twice");
        return 0;
    }
    tensor->file = finder->file;
    tensor->begin = entry->begin;
    /* Any parameter is read into its fp32 master; an array is what it is. */
    known = state_dtype_find(entry->dtype, &of_file);
    if (known && tensor->array != UINT32_MAX)
        learn_dtype(s, tensor, of_file);
    if (!known || (tensor->array != UINT32_MAX && of_file != tensor->dtype))
        differ(s, entry->name, "has dtype %s in the file, %s here",
               escape_string(entry->dtype, dtype, sizeof(dtype)), state_dtype_name(tensor->dtype));
    else if (!same_shape(s, tensor, entry))
        differ_shape(s, tensor, entry);
    else if (entry->end - entry->begin != tensor->numel * gw_dtype_bytes(of_file) ||
             entry->end > file->data_bytes)
        differ(s, entry->name,
               "lies at bytes %llu to %llu, but has %llu elements, and the file "
               "%llu bytes of data: it is damaged or cut",
               (unsigned long long)entry->begin, (unsigned long long)entry->end,
               (unsigned long long)tensor->numel, (unsigned long long)file->data_bytes);
    tensor->dtype = of_file;
    return 0;
}

/* All files, and the index if there is one, of one save. */
static int check_id(struct state *s, const char *path, const char *id)
{
    if (s->id[0] == '\0')
        memcpy(s->id, id, sizeof(s->id));
    else if (id[0] != '\0' && strcmp(s->id, id) != 0)
        return err_set(GW_E_MISMATCH,
                       "%.200s is of another save than the files beside it: a save was cut off; "
                       "load an older state",
                       path);
    return 0;
}

static int read_header(struct finder *finder, uint32_t index)
{
    struct state *s = finder->s;
    struct state_file *file = &s->files[index];
    char id[STATE_ID_CHARS + 1] = "";
    uint64_t bytes = 0, size = 0;
    char *text = NULL;
    int r = state_file_text(file->path, true, &text, &bytes, &size);

    if (r < 0)
        return r;
    file->header_bytes = bytes + sizeof(uint64_t);
    file->data_bytes = size - file->header_bytes;
    finder->file = index;
    r = state_header_read(text, (size_t)bytes, id, take_entry, finder);
    free(text);
    if (r < 0)
        return err_prefix(r, "the header of %.200s", file->path);
    return check_id(s, file->path, id);
}

/* ---- which files ----------------------------------------------------------------------------- */

static int take_name(void *arg, const char *name)
{
    struct finder *finder = arg;
    char **names = finder->names;
    uint32_t room = finder->room ? finder->room * 2 : 64;

    if (strchr(name, '/') || strcmp(name, "..") == 0 || strcmp(name, ".") == 0)
        return err_set(GW_E_INVALID, "weight_map names a file in another directory");
    if (finder->count > 0 && strcmp(names[finder->count - 1], name) == 0)
        return 0; /* as most are */
    if (finder->count == finder->room) {
        names = realloc(names, room * sizeof(*names));
        if (!names)
            return err_set(GW_E_NOMEM, "no memory for the names of files");
        finder->names = names;
        finder->room = room;
    }
    names[finder->count] = strdup(name);
    if (!names[finder->count])
        return err_set(GW_E_NOMEM, "no memory for the names of files");
    finder->count++;
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    char *const *x = a, *const *y = b;

    return strcmp(*x, *y);
}

static int add_file(struct state *s, const char *directory, size_t bytes, const char *name)
{
    struct state_file *file = &s->files[s->file_count];

    *file = (struct state_file){.fd = -1};
    if (asprintf(&file->path, "%.*s%s", (int)bytes, directory, name) < 0) {
        file->path = NULL;
        return err_set(GW_E_NOMEM, "no memory for the names of files");
    }
    s->file_count++;
    return 0;
}

/* Each file once, beside the index. */
static int list_files(struct finder *finder, const char *index)
{
    struct state *s = finder->s;
    const char *slash = strrchr(index, '/');
    size_t directory = slash ? (size_t)(slash - index) + 1 : 0;
    int r = 0;

    if (finder->count > 0)
        qsort(finder->names, finder->count, sizeof(*finder->names), compare_names);
    s->files = calloc(finder->count + 1u, sizeof(*s->files));
    if (!s->files)
        return err_set(GW_E_NOMEM, "no memory for the list of files");
    for (uint32_t i = 0; i < finder->count && r == 0; i++) {
        if (i == 0 || strcmp(finder->names[i - 1], finder->names[i]) != 0)
            r = add_file(s, index, directory, finder->names[i]);
    }
    return r;
}

static int read_index(struct finder *finder, const char *path)
{
    struct state *s = finder->s;
    char id[STATE_ID_CHARS + 1] = "";
    uint64_t bytes = 0, size = 0;
    char *text = NULL;
    int r = state_file_text(path, false, &text, &bytes, &size);

    if (r < 0)
        return r;
    r = state_index_read(text, (size_t)bytes, id, take_name, finder);
    free(text);
    if (r < 0)
        return err_prefix(r, "the index %.200s", path);
    r = check_id(s, path, id);
    return r < 0 ? r : list_files(finder, path);
}

static bool ends_with(const char *text, const char *suffix)
{
    size_t bytes = strlen(text), of_suffix = strlen(suffix);

    return bytes >= of_suffix && strcmp(text + bytes - of_suffix, suffix) == 0;
}

static int one_file(struct finder *finder)
{
    struct state *s = finder->s;

    s->files = calloc(1, sizeof(*s->files));
    if (!s->files)
        return err_set(GW_E_NOMEM, "no memory for the list of files");
    return add_file(s, s->path, strlen(s->path), "");
}

static int find_files(struct finder *finder)
{
    const char *path = finder->s->path;
    bool single = access(path, F_OK) == 0;
    char *index = NULL;
    int r;

    if (ends_with(path, INDEX_SUFFIX))
        return read_index(finder, path);
    if (asprintf(&index, "%s%s", path, INDEX_SUFFIX) < 0)
        return err_set(GW_E_NOMEM, "no memory for the names of files");
    if (access(index, F_OK) != 0)
        r = one_file(finder); /* if that is not there, opening it says so */
    else if (single)
        r = err_set(GW_E_INVALID,
                    "%.200s is there as one file and with an index beside it; name "
                    "the index (%s) to load that, or remove one",
                    path, INDEX_SUFFIX);
    else
        r = read_index(finder, index);
    free(index);
    return r;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int find(struct finder *finder)
{
    struct state *s = finder->s;
    int r = find_files(finder);

    for (uint32_t f = 0; f < s->file_count && r == 0; f++)
        r = read_header(finder, f);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->tensors[i].file == STATE_NOT_FOUND)
            differ(s, s->tensors[i].name, "is not in the file%s", s->file_count > 1 ? "s" : "");
        s->digest = hash_add(s->digest, s->tensors[i].name, strlen(s->tensors[i].name) + 1);
        s->digest = hash_add_u64(s->digest, s->tensors[i].begin);
    }
    s->digest = hash_add(s->digest, s->id, strlen(s->id));
    if (s->differences == 0)
        return 0;
    return err_set(GW_E_MISMATCH, "%.200s: %u difference%s from the job, first: %s", s->path,
                   s->differences, s->differences == 1 ? "" : "s", s->first_difference);
}

int state_find(struct state *s)
{
    struct finder finder = {.s = s};
    int r;

    finder.sorted = malloc((s->count + 1u) * sizeof(struct state_tensor *));
    if (!finder.sorted)
        return err_set(GW_E_NOMEM, "no memory for the list of tensors");
    for (uint32_t i = 0; i < s->count; i++)
        finder.sorted[i] = &s->tensors[i];
    qsort(finder.sorted, s->count, sizeof(struct state_tensor *), compare_tensors);
    s->id[0] = '\0';
    r = find(&finder);
    for (uint32_t i = 0; i < finder.count; i++)
        free(finder.names[i]);
    free(finder.names);
    free(finder.sorted);
    return r;
}

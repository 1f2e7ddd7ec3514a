/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a job's state, and how they are cut into files. No file is touched here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/err.h"
#include "client/lib/state.h"
#include "daemon/base/hash.h"

#define SUFFIX ".safetensors"

/* ---- names ----------------------------------------------------------------------------------- */

/* JSON is UTF-8; a name of other bytes could not be written so that others read it back. */
static bool is_utf8(const char *name)
{
    const unsigned char *c = (const unsigned char *)name;

    while (*c) {
        unsigned more = *c < 0x80 ? 0 : *c < 0xc2 ? 9 : *c < 0xe0 ? 1 : *c < 0xf0 ? 2 : 3;
        unsigned char second = more ? c[1] : 0;

        if (more == 9 || *c > 0xf4 || (*c == 0xe0 && second < 0xa0) ||
            (*c == 0xed && second > 0x9f) || (*c == 0xf0 && second < 0x90) ||
            (*c == 0xf4 && second > 0x8f))
            return false;
        c++;
        for (; more > 0; more--, c++) {
            if (*c < 0x80 || *c > 0xbf)
                return false;
        }
    }
    return true;
}

static int add_tensor(struct state *s, uint32_t param, uint32_t array)
{
    const char *of = zero_param_name(s->zero, param);
    const char *prefix = array == UINT32_MAX ? "" : s->options.arrays[array];
    char name[STATE_NAME_MAX + 2];
    int n = snprintf(name, sizeof(name), "%s%s%s", prefix, *prefix ? "." : "", of);

    if (n < 0 || (size_t)n > STATE_NAME_MAX)
        return err_set(GW_E_INVALID, "the name %.60s... is too long", name);
    if (!is_utf8(name) || strcmp(name, "__metadata__") == 0)
        return err_set(GW_E_INVALID, "parameter %u has a name that a safetensors file cannot hold",
                       param);
    s->tensors[s->count] = (struct state_tensor){
        .name = strdup(name),
        .param = param,
        .array = array,
        .file = STATE_NOT_FOUND,
        .numel = s->zero->view.params[param].numel,
    };
    if (!s->tensors[s->count].name)
        return err_set(GW_E_NOMEM, "no memory for the list of tensors");
    s->count++;
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;

    return strcmp(*x, *y);
}

/* A parameter may be called exp_avg.x, and an array exp_avg. */
static int check_twice(const struct state *s)
{
    const char **names = malloc((s->count + 1u) * sizeof(*names));
    int r = 0;

    if (!names)
        return err_set(GW_E_NOMEM, "no memory for the list of tensors");
    for (uint32_t i = 0; i < s->count; i++)
        names[i] = s->tensors[i].name;
    qsort(names, s->count, sizeof(*names), compare_names);
    for (uint32_t i = 1; i < s->count && r == 0; i++) {
        if (strcmp(names[i - 1], names[i]) == 0)
            r = err_set(GW_E_DUPLICATE, "two tensors would be called %s; rename one", names[i]);
    }
    free(names);
    return r;
}

static int check_shape(const struct state *s, uint32_t param)
{
    const struct gw_shape *shape = &s->options.shapes[param];
    uint64_t numel = 1;
    bool fits = shape->dims <= GW_SHAPE_DIMS_MAX;

    for (uint32_t d = 0; fits && d < shape->dims; d++)
        fits = !__builtin_mul_overflow(numel, shape->extents[d], &numel);
    if (fits && numel == s->zero->view.params[param].numel)
        return 0;
    return err_set(GW_E_INVALID,
                   "parameter %s has %llu elements; its shape has %u dimensions (at most %u) and "
                   "another number of elements",
                   zero_param_name(s->zero, param),
                   (unsigned long long)s->zero->view.params[param].numel, shape->dims,
                   GW_SHAPE_DIMS_MAX);
}

static int check_options(const struct state *s)
{
    const struct gw_state_options *o = &s->options;
    int r = 0;

    if ((o->array_count > 0 && !o->arrays) || o->array_count > GW_NAME_MAX)
        return err_set(GW_E_INVALID, "arrays is NULL or lists more than %u names", GW_NAME_MAX);
    if (o->params_off && o->array_count == 0)
        return err_set(GW_E_INVALID, "params_off without arrays: there is nothing to move");
    for (size_t i = 0; i < o->array_count; i++) {
        if (!o->arrays[i] || !o->arrays[i][0] || strlen(o->arrays[i]) > GW_LABEL_MAX)
            return err_set(GW_E_INVALID, "arrays: a shard array's name has 1 to %u bytes",
                           GW_LABEL_MAX);
    }
    if ((o->shape_count != 0 || o->shapes) && o->shape_count != s->zero->page->params)
        return err_set(GW_E_INVALID, "shapes has %zu entries; the job has %u parameters",
                       o->shape_count, s->zero->page->params);
    for (uint32_t p = 0; o->shapes && p < s->zero->page->params && r == 0; p++)
        r = check_shape(s, p);
    return r;
}

/* Parameters in order, then each array's. */
int state_list(struct state *s)
{
    uint32_t params = s->zero->page->params, lists;
    int r = check_options(s);

    if (r < 0)
        return r;
    lists = (uint32_t)s->options.array_count + (s->options.params_off ? 0 : 1);
    s->tensors = calloc((size_t)params * lists + 1, sizeof(*s->tensors));
    if (!s->tensors)
        return err_set(GW_E_NOMEM, "no memory for the list of tensors");
    for (uint32_t p = 0; !s->options.params_off && p < params && r == 0; p++)
        r = add_tensor(s, p, UINT32_MAX);
    for (uint32_t a = 0; a < s->options.array_count && r == 0; a++) {
        for (uint32_t p = 0; p < params && r == 0; p++)
            r = add_tensor(s, p, a);
    }
    return r < 0 ? r : check_twice(s);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* fp32 first: readers want tensors to begin at multiples of their elements, without gaps. */
static int sort_by_size(struct state *s)
{
    struct state_tensor *sorted = calloc((size_t)s->count + 1, sizeof(*sorted));
    uint32_t count = 0;

    if (!sorted)
        return err_set(GW_E_NOMEM, "no memory for the list of tensors");
    for (uint32_t bytes = 4; bytes >= 2; bytes -= 2) {
        for (uint32_t i = 0; i < s->count; i++) {
            if (gw_dtype_bytes(s->tensors[i].dtype) == bytes)
                sorted[count++] = s->tensors[i];
        }
    }
    free(s->tensors);
    s->tensors = sorted;
    return 0;
}

/* Runs of tensors: a file ends where the next tensor would not fit. */
static int cut(struct state *s)
{
    uint64_t most = s->options.file_bytes ? s->options.file_bytes : UINT64_MAX;
    struct state_file *file = NULL;
    uint32_t room = s->options.file_bytes ? s->count : 1;
    int r = sort_by_size(s);

    if (r < 0)
        return r;
    s->files = calloc(room + 1u, sizeof(*s->files));
    if (!s->files)
        return err_set(GW_E_NOMEM, "no memory for the list of files");
    for (uint32_t i = 0; i < s->count; i++) {
        struct state_tensor *tensor = &s->tensors[i];
        uint64_t bytes = tensor->numel * gw_dtype_bytes(tensor->dtype); /* numel is below 2^58 */

        if (!file ||
            (file->count > 0 && (file->data_bytes > most || bytes > most - file->data_bytes))) {
            file = &s->files[s->file_count++];
            *file = (struct state_file){.first = i, .fd = -1};
        }
        tensor->file = s->file_count - 1;
        tensor->begin = file->data_bytes;
        file->data_bytes += bytes;
        file->count++;
    }
    if (s->file_count == 0)
        s->files[s->file_count++].fd = -1; /* a job without parameters */
    return s->file_count <= STATE_FILES_MAX
               ? 0
               : err_set(GW_E_LIMIT, "%u files of %llu bytes; at most %u: use a larger file_bytes",
                         s->file_count, (unsigned long long)most, STATE_FILES_MAX);
}

/* model.safetensors: model-00001-of-00003.safetensors. */
static char *name_of(const struct state *s, uint32_t file)
{
    size_t stem = strlen(s->path), suffix = strlen(SUFFIX);
    char *name = NULL;
    bool usual = stem > suffix && strcmp(s->path + stem - suffix, SUFFIX) == 0;

    if (s->file_count == 1)
        return strdup(s->path);
    stem -= usual ? suffix : 0;
    if (asprintf(&name, "%.*s-%05u-of-%05u%s", (int)stem, s->path, file + 1, s->file_count,
                 usual ? SUFFIX : "") < 0)
        return NULL;
    return name;
}

static int name_file(struct state *s, struct state_file *file, char *path)
{
    file->path = path;
    if (path && asprintf(&file->partial, "%s.%s.partial", path, s->job->tag) < 0)
        file->partial = NULL;
    return path && file->partial ? 0 : err_set(GW_E_NOMEM, "no memory for the names of files");
}

static int index_name(struct state *s)
{
    char *name = NULL;

    if (s->file_count == 1)
        return 0;
    if (asprintf(&name, "%s.index.json", s->path) < 0)
        name = NULL;
    return name_file(s, &s->index, name);
}

/* Ranks that differ in anything write other headers; the save's id is put in by rank 0 alone. */
int state_cut(struct state *s)
{
    int r = cut(s);

    for (uint32_t f = 0; f < s->file_count && r == 0; f++) {
        struct state_file *file = &s->files[f];

        r = name_file(s, file, name_of(s, f));
        if (r == 0)
            r = state_header_write(s, f, &file->header, &file->header_bytes);
        if (r == 0)
            s->digest = hash_add(s->digest, file->header, (size_t)file->header_bytes);
    }
    return r < 0 ? r : index_name(s);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Headers of safetensors files and their index, written and read. Pure but for memory; any thread.
 *
 *   8 bytes little-endian: length of the header | header, JSON, spaces up to a multiple of 8 | data
 *   {"__metadata__":{...},"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},...}
 *
 * (github.com/huggingface/safetensors, README: format.) "format":"pt" is what readers of other
 * projects ask for. "gradwire_save" is the same in all files of one save and in its index, so that
 * files of two saves, left by a crash between two renames, are never taken for one.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/err.h"
#include "client/lib/state.h"
#include "client/lib/state_json.h"

#define LENGTH_BYTES 8u
#define SAVE_KEY "gradwire_save"

/* ---- writing --------------------------------------------------------------------------------- */

void state_text_add(struct state_text *text, const char *bytes, size_t count)
{
    size_t room = text->room ? text->room : 4096;
    char *larger;

    while (room - text->used < count)
        room *= 2;
    if (room > text->room && !text->failed) {
        larger = realloc(text->bytes, room);
        text->failed = !larger;
        if (larger) {
            text->bytes = larger;
            text->room = room;
        }
    }
    if (text->failed)
        return;
    memcpy(text->bytes + text->used, bytes, count);
    text->used += count;
}

static void add(struct state_text *text, const char *string)
{
    state_text_add(text, string, strlen(string));
}

/* UTF-8 stays as it is; names were checked to be that. */
void state_text_string(struct state_text *text, const char *string)
{
    char escape[8];

    add(text, "\"");
    for (const char *c = string; *c; c++) {
        if (*c == '"' || *c == '\\')
            add(text, "\\");
        if ((unsigned char)*c >= 0x20) {
            state_text_add(text, c, 1);
            continue;
        }
        (void)snprintf(escape, sizeof(escape), "\\u%04x", (unsigned)*c);
        add(text, escape);
    }
    add(text, "\"");
}

static void add_number(struct state_text *text, uint64_t number)
{
    char digits[24];

    (void)snprintf(digits, sizeof(digits), "%" PRIu64, number);
    add(text, digits);
}

static const char *const dtype_names[GW_DTYPES] = {"F32", "F16", "BF16"};

const char *state_dtype_name(uint32_t dtype)
{
    return dtype_names[dtype];
}

bool state_dtype_find(const char *name, uint32_t *ret_dtype)
{
    for (uint32_t i = 0; i < GW_DTYPES; i++) {
        if (strcmp(dtype_names[i], name) == 0) {
            *ret_dtype = i;
            return true;
        }
    }
    return false;
}

static void add_tensor(struct state_text *text, const struct state *s,
                       const struct state_tensor *tensor)
{
    const struct gw_shape *shape = s->options.shapes ? &s->options.shapes[tensor->param] : NULL;
    uint32_t dims = shape ? shape->dims : 1;

    add(text, ",");
    state_text_string(text, tensor->name);
    add(text, ":{\"dtype\":\"");
    add(text, state_dtype_name(tensor->dtype));
    add(text, "\",\"shape\":[");
    for (uint32_t d = 0; d < dims; d++) {
        add(text, d ? "," : "");
        add_number(text, shape ? shape->extents[d] : tensor->numel);
    }
    add(text, "],\"data_offsets\":[");
    add_number(text, tensor->begin);
    add(text, ",");
    add_number(text, tensor->begin + tensor->numel * gw_dtype_bytes(tensor->dtype));
    add(text, "]}");
}

static int finish(struct state_text *text, const char *what, char **ret_text, uint64_t *ret_bytes)
{
    if (text->failed || text->used > STATE_HEADER_MAX) {
        free(text->bytes);
        return text->failed ? err_set(GW_E_NOMEM, "no memory for %s", what)
                            : err_set(GW_E_LIMIT,
                                      "%s would have more than %u bytes; use a smaller file_bytes",
                                      what, STATE_HEADER_MAX);
    }
    *ret_text = text->bytes;
    *ret_bytes = text->used;
    return 0;
}

int state_header_write(const struct state *s, uint32_t file, char **ret_header, uint64_t *ret_bytes)
{
    const struct state_file *f = &s->files[file];
    struct state_text text = {0};
    uint64_t length;

    state_text_add(&text, "\0\0\0\0\0\0\0", LENGTH_BYTES);
    add(&text, "{\"__metadata__\":{\"format\":\"pt\",\"" SAVE_KEY "\":\"");
    add(&text, s->id);
    add(&text, "\"}");
    for (uint32_t i = 0; i < f->count; i++)
        add_tensor(&text, s, &s->tensors[f->first + i]);
    add(&text, "}");
    while (!text.failed && text.used % 8 != 0)
        add(&text, " ");
    for (unsigned i = 0; !text.failed && i < LENGTH_BYTES; i++) {
        length = (uint64_t)text.used - LENGTH_BYTES;
        text.bytes[i] = (char)(length >> (8 * i) & 0xff);
    }
    return finish(&text, "the header of a safetensors file", ret_header, ret_bytes);
}

int state_index_write(const struct state *s, char **ret_text, uint64_t *ret_bytes)
{
    struct state_text text = {0};
    uint64_t total = 0;

    for (uint32_t f = 0; f < s->file_count; f++)
        total += s->files[f].data_bytes;
    add(&text, "{\"metadata\":{\"total_size\":");
    add_number(&text, total);
    add(&text, ",\"" SAVE_KEY "\":\"");
    add(&text, s->id);
    add(&text, "\"},\n\"weight_map\":{");
    for (uint32_t i = 0; i < s->count; i++) {
        const char *path = s->files[s->tensors[i].file].path, *slash = strrchr(path, '/');

        add(&text, i ? ",\n" : "\n");
        state_text_string(&text, s->tensors[i].name);
        add(&text, ":");
        state_text_string(&text, slash ? slash + 1 : path);
    }
    add(&text, "\n}}\n");
    return finish(&text, "the index", ret_text, ret_bytes);
}

/* ---- reading --------------------------------------------------------------------------------- */

struct reader {
    struct scan scan;
    const char *start;
    char *id;
    int (*take_entry)(void *arg, const struct state_entry *entry);
    int (*take_file)(void *arg, const char *file);
    void *arg;
};

static int wrong(const struct reader *reader, const char *what)
{
    return err_set(GW_E_INVALID, "byte %td: %s", reader->scan.at - reader->start, what);
}

/* Members of an object, each by `member`. */
static int read_object(struct reader *reader, int (*member)(struct reader *, const char *, void *),
                       void *arg)
{
    char key[STATE_NAME_MAX + 2];
    size_t bytes;
    bool more = false;
    int r;

    if (!scan_mark(&reader->scan, '{'))
        return wrong(reader, "an object was expected");
    while (!scan_mark(&reader->scan, '}')) {
        if (more && !scan_mark(&reader->scan, ','))
            return wrong(reader, "a comma or } was expected");
        if (!scan_string(&reader->scan, key, sizeof(key), &bytes) || !scan_mark(&reader->scan, ':'))
            return wrong(reader, "a name and : were expected");
        r = member(reader, key, arg);
        if (r < 0)
            return r;
        more = true;
    }
    return 0;
}

static int skip(struct reader *reader)
{
    return scan_skip(&reader->scan) ? 0 : wrong(reader, "this is not JSON");
}

static int metadata(struct reader *reader, const char *key, void *arg)
{
    size_t bytes = 0;

    (void)arg;
    if (strcmp(key, SAVE_KEY) != 0)
        return skip(reader);
    if (!scan_string(&reader->scan, reader->id, STATE_ID_CHARS + 1, &bytes) ||
        bytes != STATE_ID_CHARS)
        return wrong(reader, SAVE_KEY " must be a text of 16 characters");
    return 0;
}

/* List of numbers; *ret_count may be more than there is room. */
static int numbers(struct reader *reader, uint64_t *list, uint32_t room, uint64_t *product,
                   bool *fits, uint32_t *ret_count)
{
    uint32_t count = 0;
    uint64_t number = 0;

    *product = 1;
    *fits = true;
    if (!scan_mark(&reader->scan, '['))
        return wrong(reader, "a list of numbers was expected");
    while (!scan_mark(&reader->scan, ']')) {
        if ((count > 0 && !scan_mark(&reader->scan, ',')) || !scan_number(&reader->scan, &number))
            return wrong(reader, "a whole number from 0 was expected");
        if (count < room)
            list[count] = number;
        if (__builtin_mul_overflow(*product, number, product))
            *fits = false;
        if (count < UINT32_MAX)
            count++;
    }
    *ret_count = count;
    return 0;
}

enum { SAW_DTYPE = 1, SAW_SHAPE = 2, SAW_OFFSETS = 4, SAW_ALL = 7 };
struct tensor_reader {
    struct state_entry entry;
    unsigned saw;
};

static int tensor_member(struct reader *reader, const char *key, void *arg)
{
    struct tensor_reader *t = arg;
    uint64_t offsets[2] = {0}, product;
    uint32_t count = 0;
    size_t bytes;
    bool fits;
    int r;

    if (strcmp(key, "dtype") == 0) {
        t->saw |= SAW_DTYPE;
        return scan_string(&reader->scan, t->entry.dtype, sizeof(t->entry.dtype), &bytes)
                   ? 0
                   : wrong(reader, "dtype must be a text");
    }
    if (strcmp(key, "shape") == 0) {
        t->saw |= SAW_SHAPE;
        return numbers(reader, t->entry.extents, GW_SHAPE_DIMS_MAX, &t->entry.numel,
                       &t->entry.numel_fits, &t->entry.dims);
    }
    if (strcmp(key, "data_offsets") != 0)
        return skip(reader);
    t->saw |= SAW_OFFSETS;
    r = numbers(reader, offsets, 2, &product, &fits, &count);
    if (r == 0 && (count != 2 || offsets[1] < offsets[0]))
        r = wrong(reader, "data_offsets must be two rising numbers");
    t->entry.begin = offsets[0];
    t->entry.end = offsets[1];
    return r;
}

static int header_member(struct reader *reader, const char *key, void *arg)
{
    struct tensor_reader t = {0};
    size_t bytes = strlen(key);
    int r;

    (void)arg;
    if (strcmp(key, "__metadata__") == 0)
        return read_object(reader, metadata, NULL);
    t.entry.long_name = bytes > STATE_NAME_MAX;
    memcpy(t.entry.name, key, bytes < STATE_NAME_MAX ? bytes : STATE_NAME_MAX);
    r = read_object(reader, tensor_member, &t);
    if (r == 0 && t.saw != SAW_ALL)
        r = wrong(reader, "a tensor needs dtype, shape and data_offsets");
    return r < 0 ? r : reader->take_entry(reader->arg, &t.entry);
}

static int map_member(struct reader *reader, const char *key, void *arg)
{
    char file[256];
    size_t bytes = 0;

    (void)key;
    (void)arg;
    if (!scan_string(&reader->scan, file, sizeof(file), &bytes) || bytes == 0 ||
        bytes >= sizeof(file))
        return wrong(reader, "weight_map: the name of a file was expected");
    return reader->take_file(reader->arg, file);
}

static int index_member(struct reader *reader, const char *key, void *arg)
{
    (void)arg;
    if (strcmp(key, "metadata") == 0)
        return read_object(reader, metadata, NULL);
    return strcmp(key, "weight_map") == 0 ? read_object(reader, map_member, NULL) : skip(reader);
}

static int read_all(struct reader *reader, int (*member)(struct reader *, const char *, void *))
{
    int r;

    reader->id[0] = '\0';
    r = read_object(reader, member, NULL);
    if (r == 0 && !scan_end(&reader->scan))
        r = wrong(reader, "something comes after the end");
    return r;
}

int state_header_read(const char *text, size_t bytes, char ret_id[STATE_ID_CHARS + 1],
                      int (*take)(void *arg, const struct state_entry *entry), void *arg)
{
    struct reader reader = {
        .scan = {text, text + bytes}, .start = text, .id = ret_id, .take_entry = take, .arg = arg};

    return read_all(&reader, header_member);
}

int state_index_read(const char *text, size_t bytes, char ret_id[STATE_ID_CHARS + 1],
                     int (*take)(void *arg, const char *file), void *arg)
{
    struct reader reader = {
        .scan = {text, text + bytes}, .start = text, .id = ret_id, .take_file = take, .arg = arg};

    return read_all(&reader, index_member);
}

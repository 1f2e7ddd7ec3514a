/* SPDX-License-Identifier: Apache-2.0 */
/* A model's list from the header of a safetensors file. See model.h. Pure; any thread. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/escape.h"
#include "daemon/conf/json.h"
#include "daemon/conf/model.h"
#include "gradwire/errors.h"

#define LENGTH_BYTES 8u

struct dtype {
    const char *name;
    uint32_t bytes; /* of an element */
    bool ours;
    uint8_t dtype; /* enum gw_dtype */
};

/* Of the format, as of its version 0.6; others have no size that we could check. */
static const struct dtype dtypes[] = {
    {"F32", 4, true, GW_DTYPE_FP32},
    {"BF16", 2, true, GW_DTYPE_BF16},
    {"F16", 2, true, GW_DTYPE_FP16},
    {"F64", 8, false, 0},
    {"F8_E4M3", 1, false, 0},
    {"F8_E5M2", 1, false, 0},
    {"BOOL", 1, false, 0},
    {"U8", 1, false, 0},
    {"I8", 1, false, 0},
    {"I16", 2, false, 0},
    {"U16", 2, false, 0},
    {"I32", 4, false, 0},
    {"U32", 4, false, 0},
    {"I64", 8, false, 0},
    {"U64", 8, false, 0},
};

struct parser {
    struct model *model;
    const char *file;
    char *error;
    size_t error_bytes;
};

bool model_is_safetensors(const uint8_t *data, size_t bytes, uint64_t *ret_header_bytes)
{
    uint64_t header_bytes = 0;

    if (bytes <= LENGTH_BYTES || data[LENGTH_BYTES] != '{')
        return false;
    for (unsigned i = 0; i < LENGTH_BYTES; i++)
        header_bytes |= (uint64_t)data[i] << (8 * i);
    if (header_bytes > MODEL_HEADER_MAX)
        return false;
    *ret_header_bytes = header_bytes;
    return true;
}

static int wrong(const struct parser *parser, const char *tensor, const char *what)
{
    char safe[ESCAPE_BYTES(64)];

    (void)escape_text(tensor, strnlen(tensor, 64), safe, sizeof(safe));
    (void)snprintf(parser->error, parser->error_bytes, "%s: header: %s%s%s", parser->file, safe,
                   *safe ? ": " : "", what);
    return GW_E_INVALID;
}

/* ---- units ----------------------------------------------------------------------------------- */

static bool all_digits(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
    }
    return bytes > 0;
}

/* Bytes of a name that are its unit's. */
static size_t unit_bytes_of(const char *name)
{
    const char *last = strrchr(name, '.'), *part = name, *dot;

    for (;; part = dot + 1) {
        dot = strchr(part, '.');
        if (dot == NULL) /* no number before the last part */
            return last == NULL ? strlen(name) : (size_t)(last - name);
        if (all_digits(part, (size_t)(dot - part)))
            return (size_t)(dot - name);
    }
}

/* layer.2 before layer.10; what is equal by number (a1, a01) is told apart by text. */
static int compare_names(const char *a, const char *b)
{
    const char *x = a, *y = b;

    while (*x && *y) {
        size_t m = strspn(x, "0123456789"), n = strspn(y, "0123456789");

        if (m == 0 || n == 0) {
            if (*x != *y)
                return (unsigned char)*x < (unsigned char)*y ? -1 : 1;
            x++, y++;
            continue;
        }
        for (; *x == '0' && m > 1; m--)
            x++;
        for (; *y == '0' && n > 1; n--)
            y++;
        if (m != n || memcmp(x, y, m) != 0)
            return m != n ? (m < n ? -1 : 1) : memcmp(x, y, m);
        x += m, y += n;
    }
    return *x || *y ? (*x ? 1 : -1) : strcmp(a, b);
}

static int compare_params(const void *left, const void *right)
{
    const struct model_param *a = left, *b = right;
    int r = compare_names(a->unit, b->unit);

    if (r == 0 && a->order != b->order)
        r = a->order < b->order ? -1 : 1;
    return r ? r : strcmp(a->name, b->name);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static int numel_of(const struct parser *parser, const char *name, const json_t *shape,
                    uint64_t *ret_numel)
{
    uint64_t numel = 1;
    const json_t *extent;
    size_t i;

    if (!json_is_array(shape))
        return wrong(parser, name, "\"shape\" must be a list of numbers");
    json_array_foreach(shape, i, extent)
    {
        if (!json_is_integer(extent) || json_integer_value(extent) < 0)
            return wrong(parser, name, "\"shape\" must be a list of numbers from 0");
        if (__builtin_mul_overflow(numel, (uint64_t)json_integer_value(extent), &numel))
            return wrong(parser, name, "\"shape\" is too large");
    }
    *ret_numel = numel;
    return 0;
}

static const struct dtype *find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (strcmp(name, dtypes[i].name) == 0)
            return &dtypes[i];
    }
    return NULL;
}

/* Where the data lies must fit the shape: who can read the one wrongly may read the other so. */
static int check_offsets(const struct parser *parser, const char *name, const json_t *tensor,
                         uint64_t numel, uint64_t *ret_begin, uint8_t *ret_dtype)
{
    const char *text = json_string_value(json_object_get(tensor, "dtype"));
    const struct dtype *dtype = text ? find_dtype(text) : NULL;
    uint64_t want;
    const json_t *offsets = json_object_get(tensor, "data_offsets");
    json_int_t begin = json_integer_value(json_array_get(offsets, 0));
    json_int_t end = json_integer_value(json_array_get(offsets, 1));

    if (text == NULL)
        return wrong(parser, name, "\"dtype\" is missing");
    if (json_array_size(offsets) != 2 || !json_is_integer(json_array_get(offsets, 0)) ||
        !json_is_integer(json_array_get(offsets, 1)) || begin < 0 || end < begin)
        return wrong(parser, name, "\"data_offsets\" must be two rising numbers");
    if (dtype && (__builtin_mul_overflow(numel, dtype->bytes, &want) ||
                  want != (uint64_t)(end - begin)))
        return wrong(parser, name, "\"data_offsets\" do not fit dtype and shape");
    if (!dtype || !dtype->ours)
        parser->model->other_dtypes = true;
    *ret_begin = (uint64_t)begin;
    *ret_dtype = dtype ? dtype->dtype : GW_DTYPE_FP32;
    return 0;
}

static int add_tensor(struct parser *parser, const char *name, const json_t *tensor)
{
    size_t bytes = strlen(name);
    uint64_t numel = 0, begin = 0;
    struct model_param *added;
    uint8_t dtype = 0;
    int r;

    if (!json_is_object(tensor))
        return wrong(parser, name, "not an object of dtype, shape and data_offsets");
    if (bytes == 0 || bytes > MODEL_NAME_MAX)
        return wrong(parser, name, "a name has 1 to 255 bytes");
    r = numel_of(parser, name, json_object_get(tensor, "shape"), &numel);
    if (r == 0)
        r = check_offsets(parser, name, tensor, numel, &begin, &dtype);
    if (r == 0)
        r = model_add(parser->model, name, bytes, name, unit_bytes_of(name), numel, 0);
    if (r == GW_E_LIMIT)
        return wrong(parser, name, "more than 1048576 tensors");
    if (r < 0)
        return r;
    added = &parser->model->params[parser->model->count - 1];
    added->order = begin;
    added->dtype = dtype;
    return 0;
}

static int add_tensors(struct parser *parser, json_t *header)
{
    const char *name;
    json_t *tensor;
    int r;

    json_object_foreach(header, name, tensor)
    {
        r = strcmp(name, "__metadata__") == 0 ? 0 : add_tensor(parser, name, tensor);
        if (r < 0)
            return r;
    }
    if (parser->model->count == 0)
        return wrong(parser, "", "no tensor in it");
    qsort(parser->model->params, parser->model->count, sizeof(struct model_param), compare_params);
    return 0;
}

int model_parse_safetensors(const uint8_t *data, size_t bytes, const char *file,
                            struct model **ret_model, char *error, size_t error_bytes)
{
    struct parser parser = {.file = file, .error = error, .error_bytes = error_bytes};
    json_t *header = NULL;
    uint64_t header_bytes;
    int r;

    if (!model_is_safetensors(data, bytes, &header_bytes))
        return wrong(&parser, "", "this is no safetensors file (8 bytes length, then JSON)");
    if (header_bytes > bytes - LENGTH_BYTES)
        return wrong(&parser, "", "the file ends inside it");
    /* It begins as an object does, so it is one or no JSON. */
    r = json_read((const char *)data + LENGTH_BYTES, (size_t)header_bytes, file, &header, error,
                  error_bytes);
    if (r == 0) {
        parser.model = calloc(1, sizeof(*parser.model));
        r = parser.model == NULL ? GW_E_NOMEM : add_tensors(&parser, header);
    }
    json_decref(header);
    if (r < 0) {
        (void)model_free(parser.model);
        return r;
    }
    parser.model->units_guessed = true;
    *ret_model = parser.model;
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A model's list in text form, and what both forms share. See model.h. Pure; any thread. */
#include "daemon/conf/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/escape.h"
#include "gradwire/errors.h"

struct line {
    const char *at;
    const char *start, *end;
    const char *file;
    uint32_t number;
    char *error;
    size_t error_bytes;
};

struct field {
    const char *at;
    size_t bytes;
};

/* ---- list ------------------------------------------------------------------------------------ */

static char *copy(const char *text, size_t bytes)
{
    char *new = malloc(bytes + 1);

    if (new == NULL)
        return NULL;
    memcpy(new, text, bytes);
    new[bytes] = '\0';
    return new;
}

static int make_room(struct model *model)
{
    uint32_t room = model->room ? model->room * 2 : 64;
    struct model_param *params;

    if (model->count < model->room)
        return 0;
    if (model->count >= MODEL_PARAMS_MAX)
        return GW_E_LIMIT;
    params = realloc(model->params, room * sizeof(*params));
    if (params == NULL)
        return GW_E_NOMEM;
    model->params = params;
    model->room = room;
    return 0;
}

int model_add(struct model *model, const char *name, size_t name_bytes, const char *unit,
              size_t unit_bytes, uint64_t numel, uint32_t line)
{
    struct model_param param = {.numel = numel, .line = line, .order = model->count};
    int r;

    r = make_room(model);
    if (r < 0)
        return r;
    param.name = copy(name, name_bytes);
    param.unit = copy(unit, unit_bytes);
    if (param.name == NULL || param.unit == NULL) {
        free(param.name);
        free(param.unit);
        return GW_E_NOMEM;
    }
    model->params[model->count++] = param;
    return 0;
}

struct model *model_free(struct model *model)
{
    if (model == NULL)
        return NULL;
    for (uint32_t i = 0; i < model->count; i++) {
        free(model->params[i].name);
        free(model->params[i].unit);
    }
    free(model->params);
    free(model);
    return NULL;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Columns count bytes from 1. */
static int wrong(struct line *line, const char *at, const char *what, struct field shown)
{
    char safe[ESCAPE_BYTES(64)];

    (void)escape_text(shown.at, shown.bytes < 64 ? shown.bytes : 64, safe, sizeof(safe));
    (void)snprintf(line->error, line->error_bytes, "%s:%u:%zu: %s%s%s", line->file, line->number,
                   (size_t)(at - line->start) + 1, what, shown.bytes ? ": " : "", safe);
    return GW_E_INVALID;
}

static struct field next_field(struct line *line)
{
    const char *tab = memchr(line->at, '\t', (size_t)(line->end - line->at));
    struct field field = {line->at, (size_t)((tab ? tab : line->end) - line->at)};

    line->at = tab ? tab + 1 : line->end;
    return field;
}

static int parse_shape(struct line *line, struct field field, uint64_t *ret_numel)
{
    const char *end = field.at + field.bytes;
    uint64_t numel = 1, extent;

    for (const char *at = field.at; at <= end; at++) {
        const char *digits = at;

        for (extent = 0; at < end && *at >= '0' && *at <= '9'; at++) {
            if (__builtin_mul_overflow(extent, 10, &extent) ||
                __builtin_add_overflow(extent, (uint64_t)(*at - '0'), &extent))
                return wrong(line, digits, "the shape is too large", field);
        }
        if (at == digits || (at < end && *at != 'x'))
            return wrong(line, at, "a shape is numbers with x between, as 1024x3072, not", field);
        if (__builtin_mul_overflow(numel, extent, &numel))
            return wrong(line, digits, "the shape is too large", field);
    }
    *ret_numel = numel;
    return 0;
}

static int parse_line(struct line *line, struct model *model)
{
    struct field name = next_field(line), shape, unit;
    const char *third;
    uint64_t numel;
    int r;

    if (line->at == line->end)
        return wrong(line, line->end, "expected name<TAB>shape<TAB>unit", name);
    shape = next_field(line);
    third = line->at;
    unit = next_field(line);
    if (name.bytes == 0 || name.bytes > MODEL_NAME_MAX)
        return wrong(line, name.at, "a name has 1 to 255 bytes", name);
    if (unit.bytes > MODEL_NAME_MAX)
        return wrong(line, third, "a unit's name has at most 255 bytes", unit);
    if (line->at != line->end)
        return wrong(line, line->at, "more than name<TAB>shape<TAB>unit", name);
    r = parse_shape(line, shape, &numel);
    if (r == 0)
        r = model_add(model, name.at, name.bytes, unit.at, unit.bytes, numel, line->number);
    if (r == GW_E_LIMIT)
        return wrong(line, line->start, "more than 1048576 parameters", name);
    return r;
}

int model_parse_text(const char *text, size_t bytes, const char *file, struct model **ret_model,
                     char *error, size_t error_bytes)
{
    struct line line = {.file = file, .error = error, .error_bytes = error_bytes};
    struct model *model = calloc(1, sizeof(*model));
    const char *at = text, *end = text + bytes, *newline, *zero;
    int r = model == NULL ? GW_E_NOMEM : 0;

    while (r == 0 && at < end) {
        newline = memchr(at, '\n', (size_t)(end - at));
        line.number++;
        line.start = line.at = at;
        line.end = newline ? newline : end;
        zero = memchr(at, '\0', (size_t)(line.end - at));
        at = newline ? newline + 1 : end;
        if (line.end > line.start && line.end[-1] == '\r')
            line.end--;
        if (zero)
            r = wrong(&line, zero, "a NUL byte; this is not a text file", (struct field){"", 0});
        else if (line.end > line.start && *line.start != '#')
            r = parse_line(&line, model);
    }
    if (r == 0 && model->count == 0) {
        line.start = line.at = "";
        r = wrong(&line, line.start, "no parameter in the list", (struct field){"", 0});
    }
    if (r < 0) {
        (void)model_free(model);
        return r;
    }
    *ret_model = model;
    return 0;
}

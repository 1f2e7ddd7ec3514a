/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of a model's parameters, as `gwctl plan` reads them. Pure (bytes in, list out; no files);
 * any thread; holds nothing between calls.
 *
 *  - text: lines of name<TAB>shape<TAB>unit; shape as 1024x3072, extents may be 0; without a unit a
 *    parameter is a unit of its own; lines that begin with # are comments;
 *  - safetensors: 8 bytes little-endian length, then a JSON header. It knows no units: they are
 *    guessed, as the name up to its first numeric part (h.0.attn.weight: h.0), or else without its
 *    last part; parameters are ordered by unit, numbers counting as numbers, then as in the file.
 *    Dtypes are the file's where they are ours (F32, F16, BF16), else fp32, as in a text list.
 */
#ifndef GW_CONF_MODEL_H
#define GW_CONF_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gradwire/gradwire.h"

#define MODEL_NAME_MAX 255u         /* bytes of a name: limits.h's GW_NAME_MAX */
#define MODEL_PARAMS_MAX (1u << 20) /* limits.h's GW_PARAMS_MAX */
#define MODEL_HEADER_MAX 100000000u /* bytes of a safetensors header: the format's own limit */
#define MODEL_ERROR_BYTES 512u

struct model_param {
    char *name;
    char *unit; /* "": its own */
    uint64_t numel;
    uint32_t line;  /* of a text list; else 0 */
    uint64_t order; /* place in the file */
    uint8_t dtype;  /* enum gw_dtype */
};

struct model {
    struct model_param *params;
    uint32_t count, room;
    bool units_guessed;
    bool other_dtypes; /* safetensors: some are none of ours */
};

/* Both: 0, GW_E_NOMEM, or GW_E_INVALID with `error` = "file:line:column: what is wrong". */
int model_parse_text(const char *text, size_t bytes, const char *file, struct model **ret_model,
                     char *error, size_t error_bytes);
/* `data`: the file's start, header included (at least; what follows is not read). */
int model_parse_safetensors(const uint8_t *data, size_t bytes, const char *file,
                            struct model **ret_model, char *error, size_t error_bytes);
struct model *model_free(struct model *model);

/* True when 8 + *ret_header_bytes bytes are what model_parse_safetensors needs: the file begins as
 * such files do. bytes >= 9 suffice. */
bool model_is_safetensors(const uint8_t *data, size_t bytes, uint64_t *ret_header_bytes);

/* For the parsers: appends a copy. GW_E_NOMEM; GW_E_LIMIT: too many. */
int model_add(struct model *model, const char *name, size_t name_bytes, const char *unit,
              size_t unit_bytes, uint64_t numel, uint32_t line);

#endif

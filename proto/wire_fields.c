/* SPDX-License-Identifier: Apache-2.0 */
/* What packing and unpacking of fields share. Pure; any thread. */
#include "proto/wire_fields.h"

#include <math.h>
#include <string.h>

bool wire_copy_scalar(const struct wire_field *field, const uint8_t *from, uint8_t *to)
{
    const bool narrow = field->kind == WIRE_F_U32 || field->kind == WIRE_F_S32;
    union {
        uint32_t u32;
        int32_t s32;
        uint64_t u64;
        int64_t s64;
        double f64;
    } v;
    bool good;

    memcpy(&v, from, narrow ? 4 : 8);
    switch (field->kind) {
    case WIRE_F_U32:
        good = v.u32 >= (uint64_t)field->min && v.u32 <= field->max;
        break;
    case WIRE_F_S32:
        good = v.s32 >= field->min && v.s32 <= (int64_t)field->max;
        break;
    case WIRE_F_S64:
        good = v.s64 >= field->min && v.s64 <= (int64_t)field->max;
        break;
    case WIRE_F_DOUBLE:
        good = isfinite(v.f64);
        break;
    default:
        good = v.u64 <= field->max;
        break;
    }
    if (good)
        memcpy(to, &v, narrow ? 4 : 8);
    return good;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this rank owns, between its shard and the files, a piece at a time through one buffer.
 *
 * Of every bucket of its groups the rank's slice: in stages 1 to 3 that is its shard; in stage 0,
 * where all members hold all, it is its share of the work. Under hybrid sharding the first run of
 * members moves parameters, and saves. Parameters go by gw_param_*_sync, which writes all copies;
 * arrays are this rank's alone, so in stage 0 each rank loads all of them. Parameters are fp32
 * here; from files they come in any dtype.
 */
#include <stdlib.h>
#include <string.h>

#include "client/lib/clock.h"
#include "client/lib/err.h"
#include "client/lib/state.h"

#define BUFFER_NUMEL (GW_STAGING_BYTES / sizeof(float))

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors is little-endian");

/* Elements of a tensor that lie together in the tensor and in the shard array. */
struct part {
    const struct state_tensor *tensor;
    uint64_t tensor_offset, shard_offset, numel;
};

static int64_t left(const struct state *s)
{
    int64_t now = clock_now();

    if (s->deadline == INT64_MAX)
        return GW_FOREVER;
    return s->deadline > now ? s->deadline - now : 0;
}

/* ---- halves ---------------------------------------------------------------------------------- */

static float from_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits; every value of it is an fp32 value. */
static float from_fp16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31u;
    uint32_t fraction = half & 1023u, bits;
    float value;

    if (exponent == 0) {
        value = (float)fraction * 0x1p-24f;
        return sign ? -value : value;
    }
    bits = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* In place, from the end, for the result is the longer one. */
static void widen(float *buffer, uint64_t count, uint32_t dtype)
{
    const uint16_t *halves = (const uint16_t *)(const void *)buffer;

    for (uint64_t i = count; i-- > 0;) {
        uint16_t half;

        memcpy(&half, halves + i, sizeof(half));
        buffer[i] = dtype == GW_DTYPE_BF16 ? from_bf16(half) : from_fp16(half);
    }
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* Between the buffer and the job. */
static int move_values(struct state *s, const struct part *part, float *buffer)
{
    const struct state_tensor *tensor = part->tensor;
    const struct order_ops *ops = s->job->order.ops;
    size_t size = gw_dtype_bytes(tensor->dtype), bytes = (size_t)part->numel * size;
    char *array;
    int r;

    if (tensor->array == UINT32_MAX) {
        if (!s->saving && tensor->dtype != GW_DTYPE_FP32)
            widen(buffer, part->numel, tensor->dtype);
        return s->saving ? gw_param_read_sync(s->job, tensor->param, part->tensor_offset,
                                              part->numel, buffer, left(s))
                         : gw_param_write_sync(s->job, tensor->param, part->tensor_offset,
                                               part->numel, buffer, left(s));
    }
    array = (char *)s->arrays[tensor->array].values + part->shard_offset * size;
    r = s->saving ? ops->copy_out(s->job, buffer, array, bytes, s->deadline)
                  : ops->copy_in(s->job, array, buffer, bytes, s->deadline);
    return job_deadline_passed(s->job, &r)
               ? err_set(r, "the job's stream was not done before the deadline")
               : r;
}

static int move_part(struct state *s, const struct part *part, float *buffer)
{
    const struct state_file *file = &s->files[part->tensor->file];
    size_t size = gw_dtype_bytes(part->tensor->dtype), bytes = (size_t)part->numel * size;
    uint64_t at = file->header_bytes + part->tensor->begin + part->tensor_offset * size;
    int r;

    r = state_file_use(s, part->tensor->file);
    if (r == 0 && !s->saving)
        r = state_file_read(file, at, buffer, bytes);
    if (r == 0)
        r = move_values(s, part, buffer);
    if (r == 0 && s->saving)
        r = state_file_write(file, at, buffer, bytes);
    return r;
}

/* [from, to) of the bucket: what this rank moves of it. */
static void own_range(const struct state *s, const struct state_tensor *tensor,
                      const struct gw_span *span, uint64_t *ret_from, uint64_t *ret_to)
{
    uint32_t group = s->zero->view.buckets[span->bucket].group;
    uint32_t shard_ranks = layout_page_groups(s->zero->page)[group].shard_ranks;
    uint32_t position = layout_page_position(s->zero->page, group, s->job->rank);
    uint64_t slice = place_slice_numel(s->zero->place, span->bucket);

    if (tensor->array != UINT32_MAX && !s->saving) {
        *ret_from = span->bucket_offset;
        *ret_to = span->bucket_offset + span->numel;
        return;
    }
    *ret_from = slice * (position % shard_ranks);
    *ret_to = position < shard_ranks ? *ret_from + slice : *ret_from;
}

static int move_piece(struct state *s, const struct state_tensor *tensor,
                      const struct gw_piece_info *piece, float *buffer)
{
    const struct gw_span *span = zero_span(s->zero, piece->bucket);
    uint64_t from = 0, to = 0, end = piece->bucket_offset + piece->numel;
    struct part part = {.tensor = tensor};
    int r = 0;

    if (!span)
        return 0;
    own_range(s, tensor, span, &from, &to);
    from = from > piece->bucket_offset ? from : piece->bucket_offset;
    to = to < end ? to : end;
    for (; from < to && r == 0; from += part.numel) {
        part.numel = to - from < BUFFER_NUMEL ? to - from : BUFFER_NUMEL;
        part.tensor_offset = piece->param_offset + (from - piece->bucket_offset);
        part.shard_offset = span->shard_offset + (from - span->bucket_offset);
        r = move_part(s, &part, buffer);
    }
    return r;
}

static int move_tensor(struct state *s, const struct state_tensor *tensor, float *buffer)
{
    struct gw_piece_info piece;
    uint32_t count = 0;
    int r = gw_param_pieces(s->job, tensor->param, &count);

    for (uint32_t k = 0; k < count && r == 0; k++) {
        r = gw_param_piece(s->job, tensor->param, k, &piece);
        if (r == 0)
            r = move_piece(s, tensor, &piece, buffer);
    }
    return r;
}

int state_move(struct state *s)
{
    float *buffer = malloc(BUFFER_NUMEL * sizeof(float));
    int done;
    int r = buffer ? 0 : err_set(GW_E_NOMEM, "no memory for a buffer");

    for (uint32_t i = 0; i < s->count && r == 0; i++)
        r = move_tensor(s, &s->tensors[i], buffer);
    free(buffer);
    if (r < 0)
        return r; /* what is open is closed with the rest */
    done = state_file_done(s);
    if (done == 0 && !s->saving) {
        r = s->job->order.ops->settle(s->job, s->deadline);
        if (job_deadline_passed(s->job, &r))
            r = err_set(r, "the job's stream was not done before the deadline");
    }
    return done < 0 ? done : r;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this rank owns, between its shard and the files, a piece at a time through one buffer.
 *
 * Of every bucket the rank's n-th slice: in stages 1 to 3 that is its shard; in stage 0, where all
 * ranks hold all, it is its share of the work. Parameters go by gw_param_*_sync, which writes all
 * replicas; arrays are this rank's alone, so in stage 0 each rank loads all of them.
 */
#include <stdlib.h>

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

/* Between the buffer and the job. */
static int move_values(struct state *s, const struct part *part, float *buffer)
{
    const struct state_tensor *tensor = part->tensor;
    size_t bytes = (size_t)part->numel * sizeof(float);
    const struct order_ops *ops = s->job->order.ops;
    float *array;
    int r;

    if (tensor->array == UINT32_MAX) {
        return s->saving ? gw_param_read_sync(s->job, tensor->param, part->tensor_offset,
                                              part->numel, buffer, left(s))
                         : gw_param_write_sync(s->job, tensor->param, part->tensor_offset,
                                               part->numel, buffer, left(s));
    }
    array = s->arrays[tensor->array] + part->shard_offset;
    r = s->saving ? ops->copy_out(s->job, buffer, array, bytes, s->deadline)
                  : ops->copy_in(s->job, array, buffer, bytes, s->deadline);
    return job_deadline_passed(s->job, &r)
               ? err_set(r, "the job's stream was not done before the deadline")
               : r;
}

static int move_part(struct state *s, const struct part *part, float *buffer)
{
    const struct state_file *file = &s->files[part->tensor->file];
    uint64_t at = file->header_bytes + part->tensor->begin + part->tensor_offset * sizeof(float);
    size_t bytes = (size_t)part->numel * sizeof(float);
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
static void own_range(const struct state *s, const struct state_tensor *tensor, uint32_t bucket,
                      uint64_t *ret_from, uint64_t *ret_to)
{
    const struct gw_span *span = &s->spans[bucket];
    uint64_t slice = s->zero->view.buckets[bucket].padded_numel / s->job->world;

    *ret_from = slice * s->job->rank;
    *ret_to = *ret_from + slice;
    if (tensor->array != UINT32_MAX && !s->saving) {
        *ret_from = span->bucket_offset;
        *ret_to = span->bucket_offset + span->numel;
    }
}

static int move_piece(struct state *s, const struct state_tensor *tensor,
                      const struct gw_piece_info *piece, float *buffer)
{
    const struct gw_span *span = &s->spans[piece->bucket];
    uint64_t from = 0, to = 0, end = piece->bucket_offset + piece->numel;
    struct part part = {.tensor = tensor};
    int r = 0;

    own_range(s, tensor, piece->bucket, &from, &to);
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

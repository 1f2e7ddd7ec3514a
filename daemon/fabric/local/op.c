/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of ops for the streams, and the step's partials. Loop thread; owns the copies until the
 * device releases them.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/fabric/local/local.h"

/* Hands out parts of one block; with block NULL it only adds up. */
struct carver {
    char *block;
    size_t used;
};

static void *carve_room(struct carver *carver, size_t bytes)
{
    size_t at = carver->used;

    carver->used = (at + bytes + 15) & ~(size_t)15;
    return carver->block ? carver->block + at : NULL;
}

static void *carve(struct carver *carver, const void *from, size_t bytes)
{
    char *part = carve_room(carver, bytes);

    if (!part || !from)
        return NULL;
    return bytes ? memcpy(part, from, bytes) : part;
}

static void carve_all(struct carver *carver, const struct fabric_op *from, uint32_t ranks,
                      struct local_op *op)
{
    const struct core_op *what = from->op;
    bool verdict = what->kind == CORE_OP_VERDICT;
    bool single = what->kind == CORE_OP_LOCAL_ADD || what->kind == CORE_OP_ZERO;
    size_t outs = single ? 1 : what->world;
    size_t ins = what->kind == CORE_OP_BROADCAST ? 1 : outs;

    (void)carve(carver, op, sizeof(*op));
    op->op.members = carve(carver, what->members, what->world * sizeof(*what->members));
    op->in = carve(carver, from->in, ins * sizeof(*from->in));
    op->out = carve(carver, from->out, outs * sizeof(*from->out));
    op->read = carve_room(carver, ranks * sizeof(*op->read));
    op->segments = carve_room(carver, from->segment_count * sizeof(*op->segments));
    if (!verdict)
        return;
    op->op.used_bits = carve(carver, what->used_bits, (from->params + 7) / 8);
    op->boards = carve(carver, from->boards, what->world * sizeof(*from->boards));
    op->op.used_buckets = NULL;
}

/* Blocks of a copy are bytes; those of a cast whole chunks of elements. */
static void fill_segments(struct local_op *op, const struct fabric_op *from)
{
    uint64_t block = op->op.kind == CORE_OP_CAST
                         ? op->fabric->blocks.numel * gw_dtype_bytes(op->op.out_dtype)
                         : op->fabric->blocks.copy_bytes;

    op->segment_count = from->segment_count;
    for (uint32_t i = 0; i < from->segment_count; i++) {
        op->segments[i] = (struct local_segment){from->segments[i], op->segment_blocks};
        op->segment_blocks += (from->segments[i].bytes + block - 1) / block;
        op->segment_bytes += from->segments[i].bytes;
    }
}

struct local_partials *local_partials_unref(struct local_partials *partials)
{
    if (partials && --partials->references == 0)
        free(partials);
    return NULL;
}

static int partials_room(struct local_fabric *fabric, uint32_t buckets)
{
    struct local_partials **grown;

    if (buckets <= fabric->partial_room)
        return 0;
    grown = realloc(fabric->partials, buckets * sizeof(*grown));
    if (!grown)
        return GW_E_NOMEM;
    memset(grown + fabric->partial_room, 0, (buckets - fabric->partial_room) * sizeof(*grown));
    fabric->partials = grown;
    fabric->partial_room = buckets;
    return 0;
}

/* The bucket's partials of this step: made by its first reduction that leaves some, overwritten by
 * later ones of the same slices (the last has the final values). */
static int partials_get(struct local_fabric *fabric, const struct core_op *what,
                        struct local_partials **ret_partials)
{
    uint64_t chunks = kernel_chunks(what->numel) * what->slices;
    struct local_partials *partials;

    if (what->slice_first > what->slices || what->world > what->slices - what->slice_first)
        return GW_E_INTERNAL;
    if (partials_room(fabric, what->bucket + 1) < 0)
        return GW_E_NOMEM;
    partials = fabric->partials[what->bucket];
    if (!partials) {
        partials = calloc(1, sizeof(*partials) + chunks * sizeof(partials->at[0]) +
                                 what->slices * sizeof(*partials->rank_of));
        if (!partials)
            return GW_E_NOMEM;
        partials->rank_of = (uint16_t *)&partials->at[chunks];
        for (uint32_t i = 0; i < what->slices; i++)
            partials->rank_of[i] = GW_RANKS_MAX;
        partials->references = 1;
        partials->numel = what->numel;
        partials->slices = what->slices;
        fabric->partials[what->bucket] = partials;
    } else if (partials->numel != what->numel || partials->slices != what->slices) {
        return GW_E_INTERNAL;
    }
    for (uint32_t i = 0; i < what->world; i++)
        partials->rank_of[what->slice_first + i] = (uint16_t)what->members[i];
    partials->references++;
    *ret_partials = partials;
    return 0;
}

/* The verdict takes over what the step left; the next step starts with none. */
static int partials_take(struct local_fabric *fabric, const struct fabric_op *from,
                         struct local_op *op)
{
    op->verdict = calloc(from->buckets ? from->buckets : 1, sizeof(*op->verdict));
    if (!op->verdict)
        return GW_E_NOMEM;
    op->buckets = from->buckets;
    op->params = from->params;
    for (uint32_t b = 0; b < fabric->partial_room; b++) {
        if (b < from->buckets && from->op->used_buckets[b])
            op->verdict[b] = fabric->partials[b];
        else
            local_partials_unref(fabric->partials[b]);
        fabric->partials[b] = NULL;
    }
    return 0;
}

int local_op_new(struct local_fabric *fabric, const struct fabric_op *from,
                 struct local_op **ret_op)
{
    struct local_op measure = {.op = *from->op}, *op;
    struct carver carver = {NULL, 0};
    int r = 0;

    carve_all(&carver, from, fabric->config.world, &measure);
    op = calloc(1, carver.used);
    if (!op)
        return GW_E_NOMEM;
    carver = (struct carver){(char *)op, 0};
    op->op = *from->op;
    carve_all(&carver, from, fabric->config.world, op);
    op->fabric = fabric;
    fill_segments(op, from);
    op->op.in = op->op.out = NULL;
    op->op.waits = NULL;
    op->op.wait_ops = NULL;
    op->op.signals = NULL;
    op->ring_bytes = figures_ring_bytes(from->op);
    op->hold_ns = figures_hold_ns(from, op->ring_bytes, fabric->config.link_bytes_per_s);
    if (op->op.partials && op->op.numel > 0)
        r = partials_get(fabric, from->op, &op->partials);
    else if (op->op.kind == CORE_OP_VERDICT)
        r = partials_take(fabric, from, op);
    if (r < 0) {
        local_op_free(op);
        return r;
    }
    *ret_op = op;
    return 0;
}

void local_op_free(void *arg)
{
    struct local_op *op = (struct local_op *)arg;

    local_partials_unref(op->partials);
    for (uint32_t b = 0; op->verdict && b < op->buckets; b++)
        local_partials_unref(op->verdict[b]);
    free(op->verdict);
    free(op);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of the cuda device (daemon/device/cuda/kernels.h) read and write, so that
 * accesses which nothing orders are seen when they are made by kernels too. Words, stamps and slots
 * are left out: they are made to be touched by several at once. Lock held.
 */
#include <string.h>

#include "daemon/device/cuda/kernels.h"
#include "tests/fakegpu/kernels_test.h"
#include "tests/fakegpu/server_internal.h"

static void reads(struct server *s, struct op *op, const void *from, uint64_t bytes)
{
    if (from && bytes)
        access_note(s, op, (uint64_t)(uintptr_t)from, bytes, false);
}

static void writes(struct server *s, struct op *op, const void *to, uint64_t bytes)
{
    if (to && bytes)
        access_note(s, op, (uint64_t)(uintptr_t)to, bytes, true);
}

static uint64_t size_of(uint32_t type)
{
    return type == GW_K_FP32 ? 4 : 2;
}

static void reduce(struct server *s, struct op *op, const void *argument)
{
    const struct gw_k_reduce *arg = argument;
    uint64_t in = size_of(arg->in_type), out = size_of(arg->out_type);

    for (uint32_t i = 0; i < arg->n && i < GW_K_INPUTS; i++)
        if (arg->in[i])
            reads(s, op, (const char *)arg->in[i] + arg->first * in, arg->count * in);
    for (uint32_t i = 0; i < arg->outs && i < GW_K_INPUTS; i++)
        if (arg->out[i])
            writes(s, op, (const char *)arg->out[i] + arg->first * out, arg->count * out);
    writes(s, op, arg->lanes,
           gw_k_chunks(arg->count) * GW_K_LANES * sizeof(struct gw_k_partial));
}

static void partials(struct server *s, struct op *op, const void *argument)
{
    const struct gw_k_partials *arg = argument;

    reads(s, op, arg->lanes, arg->chunks * GW_K_LANES * sizeof(struct gw_k_partial));
    writes(s, op, arg->partials, arg->chunks * sizeof(struct gw_k_partial));
}

static void fill(struct server *s, struct op *op, const void *argument)
{
    const struct gw_k_fill *arg = argument;

    writes(s, op, arg->to, arg->bytes);
}

static void cast(struct server *s, struct op *op, const void *argument)
{
    const struct gw_k_cast *arg = argument;

    reads(s, op, arg->in, arg->count * size_of(arg->in_type));
    writes(s, op, arg->out, arg->count * size_of(arg->out_type));
}

/* The list of buckets is memory of the process too. */
static void verdict(struct server *s, struct op *op, const void *argument)
{
    const struct gw_k_verdict *arg = argument;
    uint64_t list = (uint64_t)(uintptr_t)arg->buckets;
    const struct map *map = map_find(s, op->stream->process, list,
                                     arg->bucket_count * sizeof(struct gw_k_bucket), false);

    if (!map || !arg->bucket_count || map->kind == MAP_VMM)
        return;
    reads(s, op, arg->buckets, arg->bucket_count * sizeof(struct gw_k_bucket));
    for (uint32_t i = 0; i < arg->bucket_count; i++)
        reads(s, op, arg->buckets[i].partials,
              arg->buckets[i].chunks * sizeof(struct gw_k_partial));
}

static void test_fill(struct server *s, struct op *op, const void *argument)
{
    const struct gw_k_test_fill *arg = argument;

    writes(s, op, arg->to, arg->count * sizeof(float));
}

void kernel_ranges(struct server *s, struct op *op)
{
    static const struct {
        const char *name;
        uint64_t bytes;
        void (*note)(struct server *s, struct op *op, const void *argument);
    } known[] = {
        {"gw_k_reduce", sizeof(struct gw_k_reduce), reduce},
        {"gw_k_partials", sizeof(struct gw_k_partials), partials},
        {"gw_k_fill", sizeof(struct gw_k_fill), fill},
        {"gw_k_cast", sizeof(struct gw_k_cast), cast},
        {"gw_k_verdict", sizeof(struct gw_k_verdict), verdict},
        {"gw_k_test_fill", sizeof(struct gw_k_test_fill), test_fill},
    };
    const struct kernel *kernel = op->u.launch.kernel;

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (!strcmp(known[i].name, kernel->name) && known[i].bytes == kernel->argument_bytes)
            known[i].note(s, op, op->u.launch.argument);
}

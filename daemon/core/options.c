/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of a seal: one table of their names, limits and defaults; checks and comparison follow
 * it. Pure; any thread. Decides nothing about ranks.
 */
#include "daemon/core/core_internal.h"

#include <math.h>
#include <stddef.h>

#define FLOAT_BYTES 4u /* of the largest dtype */
#define ALIGN_DEFAULT 64u
#define RING_DEFAULT 3u
#define MICRO_STEPS_MAX 1024u
#define LARGEST_UNITS 3u /* gathered at once by default: the present, the next, the last one */

enum option_type { OPTION_U32, OPTION_U64, OPTION_DOUBLE };

static const struct option {
    const char *name;
    size_t offset;
    enum option_type type;
    uint32_t min, max; /* OPTION_U32, after the defaults */
    uint32_t standard; /* in place of 0 */
} options[] = {
#define OPTION(member, type, min, max, standard)                                                   \
    {#member, offsetof(struct wire_seal, member), type, min, max, standard}
    OPTION(stage, OPTION_U32, 0, 3, 0),
    OPTION(accumulate, OPTION_U32, GW_ACCUMULATE_AUTO, GW_ACCUMULATE_SHARD, 0),
    OPTION(gather, OPTION_U32, GW_GATHER_PRIVATE, GW_GATHER_MAPPED, 0),
    OPTION(unused, OPTION_U32, GW_UNUSED_ZERO, GW_UNUSED_ERROR, 0),
    OPTION(overlap_off, OPTION_U32, 0, 1, 0),
    OPTION(ring_slots, OPTION_U32, 1, GW_RING_SLOTS_MAX, RING_DEFAULT),
    OPTION(micro_steps, OPTION_U32, 1, MICRO_STEPS_MAX, 1),
    OPTION(shard_align_bytes, OPTION_U32, FLOAT_BYTES, 4096, ALIGN_DEFAULT),
    OPTION(bucket_bytes, OPTION_U64, 0, 0, 0),
    OPTION(scale, OPTION_DOUBLE, 0, 0, 0),
    OPTION(clip_norm, OPTION_DOUBLE, 0, 0, 0),
    OPTION(gather_bytes, OPTION_U64, 0, 0, 0),
    OPTION(prefetch_bytes, OPTION_U64, 0, 0, 0),
    OPTION(order, OPTION_U32, GW_ORDER_EXACT, GW_ORDER_FABRIC, 0),
    OPTION(norm, OPTION_U32, GW_NORM_2, GW_NORM_MAX, 0),
    OPTION(pre_scale, OPTION_DOUBLE, 0, 0, 0),
    OPTION(reduce_dtype, OPTION_U32, GW_DTYPE_FP32, GW_DTYPES - 1, 0),
    OPTION(accum_as_grads, OPTION_U32, 0, 1, 0),
    OPTION(shard_ranks, OPTION_U32, 0, GW_RANKS_MAX, 0),
    OPTION(persist_bytes, OPTION_U64, 0, 0, 0),
    OPTION(reuse_bytes, OPTION_U64, 0, 0, 0),
    OPTION(secondary_ranks, OPTION_U32, 0, GW_RANKS_MAX, 0),
    OPTION(all_reduce, OPTION_U32, 0, 1, 0),
#undef OPTION
};
#define OPTIONS (sizeof(options) / sizeof(options[0]))

static uint32_t *option_u32(struct wire_seal *seal, const struct option *option)
{
    return (uint32_t *)(void *)((char *)seal + option->offset);
}

static const void *option_at(const struct wire_seal *seal, const struct option *option)
{
    return (const char *)seal + option->offset;
}

/* ---- one rank's ------------------------------------------------------------------------------ */

static int check_ranges(struct wire_seal *seal, struct text *text)
{
    for (size_t i = 0; i < OPTIONS; i++) {
        const struct option *option = &options[i];
        uint32_t *value;

        if (option->type != OPTION_U32)
            continue;
        value = option_u32(seal, option);
        if (*value == 0)
            *value = option->standard;
        if (*value < option->min || *value > option->max) {
            text_add(text, "%s is %u, but must be %u to %u", option->name, *value, option->min,
                     option->max);
            return GW_E_INVALID;
        }
    }
    return 0;
}

static int check_sizes(const struct wire_seal *seal, struct text *text)
{
    uint32_t align = seal->shard_align_bytes;

    if (align & (align - 1)) {
        text_add(text, "shard_align_bytes is %u, but must be a power of 2", align);
    } else if (seal->bucket_bytes == 0) {
        text_add(text, "bucket_bytes is 0: say how large a bucket shall be (there is no default)");
    } else if (seal->bucket_bytes % FLOAT_BYTES) {
        text_add(text, "bucket_bytes is %llu, but must be a multiple of %u (fp32)",
                 (unsigned long long)seal->bucket_bytes, FLOAT_BYTES);
    } else if (seal->gather == GW_GATHER_MAPPED && seal->stage != 3) {
        text_add(text, "gather mapped is for stage 3, but stage is %u: use private", seal->stage);
    } else if (seal->persist_bytes > 0 && seal->stage != 3) {
        text_add(text, "persist_bytes is for stage 3, but stage is %u, where all parameters stay: "
                 "use 0", seal->stage);
    } else {
        return 0;
    }
    return GW_E_INVALID;
}

/* scale 0 is a mean: of how many is known per group. */
static int check_factors(const struct wire_seal *seal, struct text *text)
{
    double scale = seal->scale != 0 ? seal->scale : 1;

    if (!isfinite(seal->scale) || !isfinite((float)seal->scale))
        text_add(text, "scale is %g, but must be a finite fp32 value", seal->scale);
    else if (!isfinite((float)(scale * seal->pre_scale)))
        text_add(text, "scale times pre_scale is %g times %g, but must be a finite fp32 value",
                 scale, seal->pre_scale);
    else if (!isfinite(seal->clip_norm) || seal->clip_norm < 0)
        text_add(text, "clip_norm is %g, but must be positive, or 0 for none", seal->clip_norm);
    else
        return 0;
    return GW_E_INVALID;
}

int options_check_runs(const struct wire_seal *seal, uint32_t shard_ranks, uint32_t members,
                       const char *whose, struct text *text)
{
    if (shard_ranks == 0)
        return 0;
    if (members % shard_ranks != 0)
        text_add(text, "%sshard_ranks is %u, but must divide the %u ranks", whose, shard_ranks,
                 members);
    else if (shard_ranks < members && seal->stage == 0)
        text_add(text, "%sshard_ranks is %u, but in stage 0 nothing is sharded: use 0, or stages 1 "
                 "to 3", whose, shard_ranks);
    else if (shard_ranks < members && seal->gather == GW_GATHER_MAPPED)
        text_add(text, "%sshard_ranks is %u, but with gather mapped there is one copy of the "
                 "shards: use 0, or gather private", whose, shard_ranks);
    else
        return 0;
    return GW_E_INVALID;
}

static int check_blocks(const struct wire_seal *seal, uint32_t world, struct text *text)
{
    uint32_t ranks = seal->secondary_ranks;

    if (ranks == 0)
        return 0;
    if (seal->stage != 3)
        text_add(text, "secondary_ranks is for stage 3, but stage is %u, where parameters are not "
                 "gathered twice: use 0", seal->stage);
    else if (seal->gather == GW_GATHER_MAPPED)
        text_add(text, "secondary_ranks is %u, but with gather mapped all read the one copy of the "
                 "shards: use 0, or gather private", ranks);
    else if (world % ranks != 0)
        text_add(text, "secondary_ranks is %u, but must divide the %u ranks", ranks, world);
    else if (seal->shard_ranks > 0 && seal->shard_ranks < world)
        text_add(text, "secondary_ranks is %u and shard_ranks %u, but a run of shard_ranks holds a "
                 "whole copy of the shards already: use one of them", ranks, seal->shard_ranks);
    else
        return 0;
    return GW_E_INVALID;
}

/* What only some devices and nodes can do. */
static int check_place(const struct wire_seal *seal, uint32_t device, bool spans,
                       struct text *text)
{
    if (seal->gather == GW_GATHER_MAPPED && spans)
        text_add(text, "gather mapped is for one node, but the job spans several: use private");
    else if (seal->order == GW_ORDER_FABRIC && device == GW_DEVICE_HOST)
        text_add(text, "order is fabric, but the job is in host memory, where sums are always "
                 "exact: use exact, or attach GPUs");
    else if (seal->gather == GW_GATHER_MAPPED && device != GW_DEVICE_HOST)
        text_add(text, "gather mapped is for host memory, but the job is on GPUs: use private");
    else
        return 0;
    return GW_E_INVALID;
}

int options_check(struct wire_seal *seal, uint32_t world, uint32_t device, bool spans,
                  struct text *text)
{
    int r;

    r = check_ranges(seal, text);
    if (r == 0)
        r = check_sizes(seal, text);
    if (r == 0)
        r = check_place(seal, device, spans, text);
    if (r == 0)
        r = check_factors(seal, text);
    if (r == 0)
        r = options_check_runs(seal, seal->shard_ranks, world, "", text);
    if (r == 0)
        r = check_blocks(seal, world, text);
    if (r < 0)
        return r;
    if (seal->secondary_ranks == world) /* the shards themselves */
        seal->secondary_ranks = 0;
    if (seal->stage == 0) /* its reductions are all-reduces anyway */
        seal->all_reduce = 0;
    if (seal->accumulate == GW_ACCUMULATE_AUTO)
        seal->accumulate = seal->stage >= 2 ? GW_ACCUMULATE_SHARD : GW_ACCUMULATE_LOCAL;
    if (seal->pre_scale == 0)
        seal->pre_scale = 1;
    return 0;
}

/* Of a rank's gathered fetch units: the largest, and the sum of the largest three. */
static void largest_units(const struct gw_layout_page *page, const struct place *place,
                          uint64_t *largest_bytes, uint64_t *sum_bytes)
{
    uint64_t largest[LARGEST_UNITS] = {0}; /* descending */
    uint64_t sum = 0;

    for (uint32_t f = page->persistent; f < page->fetch_units; f++) {
        uint64_t bytes = place_fetch_bytes(place, f);

        for (uint32_t i = 0; i < LARGEST_UNITS; i++) {
            if (bytes > largest[i]) {
                uint64_t smaller = largest[i];
                largest[i] = bytes;
                bytes = smaller;
            }
        }
    }
    for (uint32_t i = 0; i < LARGEST_UNITS; i++)
        sum += largest[i];
    if (largest[0] > *largest_bytes)
        *largest_bytes = largest[0];
    if (sum > *sum_bytes)
        *sum_bytes = sum;
}

int options_complete(struct wire_seal *seal, const struct layout *layout)
{
    const struct gw_layout_page *page = layout_page(layout);
    uint64_t largest_bytes = 0, sum_bytes = 0, last = 0;

    seal->ring_slots = layout_ring_slots(page, seal->ring_slots, seal->micro_steps);
    /* A plan may have more ranks, but no groups other than the world. */
    for (uint32_t rank = 0; rank < page->world && rank < GW_RANKS_MAX && page->stage == 3; rank++) {
        uint64_t groups = place_groups_of(page, rank);
        struct place *place;

        if (groups == last)
            continue;
        last = groups;
        if (place_new(page, seal, groups, &place) < 0)
            return GW_E_NOMEM;
        largest_units(page, place, &largest_bytes, &sum_bytes);
        (void)place_free(place);
    }
    if (seal->gather_bytes == 0)
        seal->gather_bytes = sum_bytes;
    if (seal->prefetch_bytes == 0)
        seal->prefetch_bytes = largest_bytes;
    return 0;
}

/* ---- two ranks' ------------------------------------------------------------------------------ */

static bool option_equal(const struct wire_seal *a, const struct wire_seal *b,
                         const struct option *option)
{
    const void *x = option_at(a, option), *y = option_at(b, option);

    switch (option->type) {
    case OPTION_U32:
        return *(const uint32_t *)x == *(const uint32_t *)y;
    case OPTION_U64:
        return *(const uint64_t *)x == *(const uint64_t *)y;
    case OPTION_DOUBLE:
        break;
    }
    return !(*(const double *)x < *(const double *)y) && !(*(const double *)x > *(const double *)y);
}

static void say_option(const struct wire_seal *seal, const struct option *option, const char *side,
                       struct text *text)
{
    const void *value = option_at(seal, option);

    text_add(text, "%s says ", side);
    switch (option->type) {
    case OPTION_U32:
        text_add(text, "%u", *(const uint32_t *)value);
        break;
    case OPTION_U64:
        text_add(text, "%llu", (unsigned long long)*(const uint64_t *)value);
        break;
    case OPTION_DOUBLE:
        text_add(text, "%.17g", *(const double *)value);
        break;
    }
}

bool options_equal(const struct wire_seal *a, const struct wire_seal *b, const char *a_side,
                   const char *b_side, struct text *text)
{
    for (size_t i = 0; i < OPTIONS; i++) {
        if (option_equal(a, b, &options[i]))
            continue;
        text_add(text, "option %s: ", options[i].name);
        say_option(a, &options[i], a_side, text);
        text_add(text, ", ");
        say_option(b, &options[i], b_side, text);
        return false;
    }
    return true;
}

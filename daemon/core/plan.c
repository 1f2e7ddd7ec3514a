/* SPDX-License-Identifier: Apache-2.0 */
/* The figures of a plan; plan.h says what they mean. Pure; any thread. Sizes and places come from
 * layout and place alone; here they are only counted. */
#include "daemon/core/plan.h"

#include <stdlib.h>

#include "daemon/core/core_internal.h"
#include "daemon/core/memory.h"
#include "daemon/core/plan_internal.h"

#define PADDED_MAX ((uint64_t)1 << 48) /* elements; the largest figure stays below 2^63 */

/* A plan in the making: one group's part in one rank's figures after another. */
struct maker {
    const struct plan_request *request;
    struct plan *plan;
    const struct gw_layout_page *page;
    const struct gw_layout_bucket *buckets;
    struct plan_level levels[PLAN_LEVELS]; /* the group's */
    uint32_t group;
    struct plan_group *out; /* the group's */
    uint64_t mask;          /* groups of the rank that place and times are of; 0: of none yet */
    struct place *place;
    uint64_t *times; /* stage 3: gathers of each fetch unit, per step */
};

/* One collective over whole buckets of a group. */
struct part {
    const struct plan_level *level;
    enum gw_kind which;
    uint64_t times; /* per step */
    uint64_t payload_bytes, padding_bytes, in_node_bytes;
    uint64_t total_bytes; /* payload of what is like it on other ranks, on average */
};

/* ---- shares ---------------------------------------------------------------------------------- */

/* bytes * part / whole, rounded down, without overflow. */
static uint64_t share(uint64_t bytes, uint64_t part, uint32_t whole)
{
    return bytes / whole * part + bytes % whole * part / whole;
}

uint64_t plan_ring_bytes(enum gw_kind kind, uint64_t payload_bytes, uint32_t world)
{
    if (world < 2)
        return 0;
    switch (kind) {
    case GW_KIND_BROADCAST:
        return payload_bytes;
    case GW_KIND_ALL_REDUCE:
    case GW_KIND_CONTROL:
        return share(payload_bytes, 2 * (uint64_t)(world - 1), world);
    default:
        return share(payload_bytes, world - 1, world);
    }
}

static uint64_t cross_node_bytes(const struct part *part)
{
    uint64_t parts = part->which == GW_KIND_ALL_REDUCE       ? part->level->both
                     : part->which == GW_KIND_REDUCE_SCATTER ? part->level->reduced
                                                             : part->level->gathered;

    return share(part->total_bytes, parts, part->level->members);
}

/* ---- traffic --------------------------------------------------------------------------------- */

static void add(struct maker *maker, const struct part *part)
{
    struct plan_kind *kind = &maker->out->kinds[part->which];

    kind->calls += part->times;
    kind->payload_bytes += part->times * part->payload_bytes;
    kind->padding_bytes += part->times * part->padding_bytes;
    kind->ring_bytes += part->times * plan_ring_bytes(part->which, part->payload_bytes,
                                                      part->level->members);
    kind->in_node_bytes += part->times * part->in_node_bytes;
    kind->cross_node_bytes += part->times * cross_node_bytes(part);
}

static bool is_its(const struct maker *maker, uint32_t bucket)
{
    return maker->buckets[bucket].group == maker->group;
}

/* Every input is read for the rank's share of it; an all-reduce writes the result in full, to
 * shards over what was read. */
static void add_reduction(struct maker *maker, uint32_t b)
{
    const struct gw_layout_bucket *bucket = &maker->buckets[b];
    bool full = maker->page->stage == 0, local = place_local(maker->place);
    bool all = full || maker->plan->options.all_reduce;
    uint64_t grad = gw_dtype_bytes(bucket->grad_dtype), accum = gw_dtype_bytes(bucket->accum_dtype);
    uint64_t read = local && place_sums(maker->place, b) ? accum : grad;
    uint64_t written = full ? accum : all ? read : 0;
    struct part part = {
        .level = &maker->levels[PLAN_WITHIN],
        .which = all ? GW_KIND_ALL_REDUCE : GW_KIND_REDUCE_SCATTER,
        .times = local ? 1 : maker->plan->options.micro_steps,
        .payload_bytes = bucket->numel * grad,
        .padding_bytes = (bucket->padded_numel - bucket->numel) * grad,
        .in_node_bytes = bucket->padded_numel * (read + written),
    };

    part.total_bytes = part.payload_bytes;
    add(maker, &part);
}

/* Hybrid: the rank's slice, read for its share and written, once a step. */
static void add_replicas(struct maker *maker, uint32_t b)
{
    const struct gw_layout_bucket *bucket = &maker->buckets[b];
    uint32_t shard_ranks = layout_page_groups(maker->page)[bucket->group].shard_ranks;
    uint32_t position = layout_page_position(maker->page, bucket->group, maker->out->rank);
    uint64_t accum = gw_dtype_bytes(bucket->accum_dtype), offset, numel, valid;
    struct part part = {
        .level = &maker->levels[PLAN_BETWEEN],
        .which = GW_KIND_ALL_REDUCE,
        .times = 1,
        .total_bytes = bucket->numel * accum / shard_ranks,
    };

    if (part.level->members < 2)
        return;
    layout_slice(maker->plan->layout, b, position % shard_ranks, &offset, &numel, &valid);
    part.payload_bytes = valid * accum;
    part.padding_bytes = (numel - valid) * accum;
    part.in_node_bytes = 2 * numel * accum;
    add(maker, &part);
}

/* Of what comes from secondary shards, a block's first gather comes from all owners and fills them.
 * Whichever rank makes it: a rank's share of what it costs more. */
static void add_fill(struct maker *maker, const struct part *part)
{
    struct plan_kind *kind = &maker->out->kinds[part->which];
    struct part first = *part;
    uint32_t ranks = part->level->members;

    first.level = &maker->levels[PLAN_WITHIN];
    kind->ring_bytes += (plan_ring_bytes(part->which, part->payload_bytes, first.level->members) -
                         plan_ring_bytes(part->which, part->payload_bytes, ranks)) /
                        ranks;
    kind->cross_node_bytes += cross_node_bytes(&first);
    kind->in_node_bytes += (part->payload_bytes + part->padding_bytes) / ranks;
}

/* Buckets of one group, gathered together. skip: elements that are in place already. */
static void add_gather(struct maker *maker, uint32_t first, uint32_t count, uint64_t times,
                       uint64_t skip)
{
    bool second = place_secondary(maker->place, first).kind != GW_ARENA_NONE;
    struct part part = {
        .level = &maker->levels[second ? PLAN_BLOCKS : PLAN_WITHIN],
        .which = GW_KIND_ALL_GATHER,
        .times = times,
    };

    for (uint32_t b = first; b < first + count; b++) {
        const struct gw_layout_bucket *bucket = &maker->buckets[b];
        uint64_t bytes = gw_dtype_bytes(bucket->dtype);

        part.payload_bytes += bucket->numel * bytes;
        part.padding_bytes += (bucket->padded_numel - bucket->numel) * bytes;
        if (!place_mapped(maker->place))
            part.in_node_bytes += (bucket->padded_numel - skip) * bytes;
    }
    part.total_bytes = part.payload_bytes;
    add(maker, &part);
    if (second)
        add_fill(maker, &part);
}

/* One gather for all of the group's buckets, which lie side by side. */
static void add_fetch_unit(struct maker *maker, uint32_t f, uint64_t times)
{
    const struct gw_layout_fetch_unit *fetch = &layout_fetch_units(maker->plan->layout)[f];
    uint32_t first = fetch->first_bucket, end = first + fetch->buckets, count = 0;

    while (first < end && !is_its(maker, first))
        first++;
    while (first + count < end && is_its(maker, first + count))
        count++;
    if (count > 0)
        add_gather(maker, first, count, times, 0);
}

static void add_traffic(struct maker *maker)
{
    const struct gw_layout_page *page = maker->page;

    for (uint32_t b = 0; b < page->buckets; b++) {
        if (!is_its(maker, b))
            continue;
        add_reduction(maker, b);
        add_replicas(maker, b);
        if (page->stage == 1 || page->stage == 2)
            add_gather(maker, b, 1, 1, place_slice_numel(maker->place, b));
    }
    for (uint32_t f = 0; page->stage == 3 && f < page->fetch_units; f++)
        add_fetch_unit(maker, f, maker->times[f]);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void add_memory(const struct gw_layout_page *page, const struct place *place,
                       uint64_t memory_bytes[GW_MEMORIES])
{
    for (unsigned k = GW_ARENA_NONE + 1; k < GW_ARENA_KINDS; k++) {
        enum gw_arena_kind kind = (enum gw_arena_kind)k;
        enum gw_memory use = memory_use(kind);
        uint64_t bytes = place_arena_bytes(place, kind);

        if (use == GW_MEMORIES || kind == GW_ARENA_OVERFLOW) /* overflow slots are not planned */
            continue;
        if (kind == GW_ARENA_ARRAY) /* of fp32 */
            bytes *= PLAN_OPTIMIZER_ARRAYS * gw_dtype_bytes(GW_DTYPE_FP32);
        if (kind == GW_ARENA_SHARED_PARAMS)
            bytes /= page->world;
        memory_bytes[use] += bytes;
    }
}

/* As if its members were in no other group. Of the shared parameters, which are there for all
 * groups at once, its own. */
static int add_group_memory(struct maker *maker)
{
    uint64_t *memory_bytes = maker->out->memory_bytes, shared = 0;
    struct place *alone;
    int r;

    r = place_new(maker->page, &maker->plan->options, (uint64_t)1 << maker->group, &alone);
    if (r < 0)
        return r;
    add_memory(maker->page, alone, memory_bytes);
    memory_bytes[GW_MEMORY_BUCKETS] = memory_bytes[GW_MEMORY_GATHERED] = 0;
    for (uint32_t b = 0; b < maker->page->buckets && place_mapped(alone); b++) {
        if (is_its(maker, b))
            shared += maker->buckets[b].padded_numel * gw_dtype_bytes(maker->buckets[b].dtype);
    }
    if (place_mapped(alone))
        memory_bytes[GW_MEMORY_PARAMS] = shared / maker->page->world;
    (void)place_free(alone);
    return 0;
}

/* ---- the plan -------------------------------------------------------------------------------- */

static int check(const struct plan_request *request, struct wire_seal *options, struct text *text)
{
    text_add(text, "%s", "");
    if (request->world == 0 || request->world > PLAN_WORLD_MAX) {
        text_add(text, "%u ranks, but a plan is for 1 to %u", request->world, PLAN_WORLD_MAX);
        return GW_E_INVALID;
    }
    if (request->nodes == 0 || request->nodes > request->world) {
        text_add(text, "%u ranks on %u nodes: a node has at least one rank", request->world,
                 request->nodes);
        return GW_E_INVALID;
    }
    if (request->rank >= request->world) {
        text_add(text, "rank %u of %u", request->rank, request->world);
        return GW_E_INVALID;
    }
    if (options->stage < 3) {
        options->gather = GW_GATHER_PRIVATE;
        options->persist_bytes = options->reuse_bytes = 0;
        options->secondary_ranks = 0;
    }
    if (options->stage == 0)
        options->shard_ranks = 0;
    /* A plan knows no devices: one that can do what is asked. */
    return options_check(options, request->world,
                         options->order == GW_ORDER_FABRIC ? GW_DEVICE_CUDA : GW_DEVICE_HOST,
                         request->nodes > 1, text);
}

/* As registry and seal would. */
static int check_groups(const struct plan_request *request, const struct wire_seal *options,
                        struct text *text)
{
    int r = 0;

    for (uint32_t g = 0; g < request->group_count && options->stage > 0 && r == 0; g++) {
        char whose[24];
        struct text name = TEXT(whose);

        text_add(&name, "group %u's ", g + 1);
        r = options_check_runs(options, request->groups[g].shard_ranks, request->groups[g].count,
                               whose, text);
    }
    return r;
}

static int make_layout(const struct plan_request *request, struct plan *plan, struct text *text,
                       uint32_t *ret_param)
{
    struct layout_options options = {
        .stage = plan->options.stage,
        .world = request->world,
        .bucket_bytes = plan->options.bucket_bytes,
        .align_bytes = plan->options.shard_align_bytes,
        .accum_as_grads = plan->options.accum_as_grads,
        .persist_bytes = plan->options.persist_bytes,
        .shard_ranks = plan->options.shard_ranks,
        .groups = request->groups,
        .group_count = request->group_count,
    };
    int r;

    r = layout_new(&options, request->params, request->param_count, &plan->layout, ret_param);
    if (r == GW_E_INVALID)
        text_add(text, "the list of parameters makes no layout");
    if (r == GW_E_LIMIT)
        text_add(text, "more than %u buckets: use larger bucket_bytes", GW_BUCKETS_MAX);
    if (r == 0 && layout_page(plan->layout)->padded_numel > PADDED_MAX) {
        text_add(text, "%llu elements with padding, but a plan is for at most %llu",
                 (unsigned long long)layout_page(plan->layout)->padded_numel,
                 (unsigned long long)PADDED_MAX);
        r = GW_E_INVALID;
    }
    return r;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static void drop_view(struct maker *maker)
{
    maker->place = place_free(maker->place);
    free(maker->times);
    maker->times = NULL;
}

/* Ranks in the same groups have the same places, and gather alike. */
static int view_as(struct maker *maker, uint32_t rank)
{
    uint64_t mask = place_groups_of(maker->page, rank);
    int r;

    if (maker->mask == mask)
        return 0;
    drop_view(maker);
    maker->mask = mask;
    r = place_new(maker->page, &maker->plan->options, mask, &maker->place);
    if (r == 0 && maker->page->stage == 3)
        r = plan_fetches(maker->plan->layout, maker->place, &maker->plan->options, &maker->times);
    if (r == 0 && maker->page->persistent)
        maker->times[0] = 1;
    return r;
}

static int make_group(struct maker *maker, uint32_t g)
{
    uint32_t rank = maker->request->rank;
    int r;

    maker->group = g;
    maker->out = &maker->plan->groups[g];
    maker->out->rank = layout_page_position(maker->page, g, rank) != UINT32_MAX
                           ? rank
                           : layout_page_members(maker->page, g)[0];
    for (uint32_t b = 0; b < maker->page->buckets; b++) {
        const struct gw_layout_bucket *bucket = &maker->buckets[b];

        if (!is_its(maker, b))
            continue;
        maker->out->buckets++;
        maker->out->padding_bytes +=
            (bucket->padded_numel - bucket->numel) * gw_dtype_bytes(bucket->grad_dtype);
    }
    r = plan_levels(maker->request, maker->page, g,
                    g == 0 ? maker->plan->options.secondary_ranks : 0, maker->levels);
    if (r == 0)
        r = view_as(maker, maker->out->rank);
    if (r < 0)
        return r;
    add_traffic(maker);
    return add_group_memory(maker);
}

static void add_kinds(struct plan_kind *to, const struct plan_kind *of)
{
    for (unsigned k = 0; k < GW_KINDS; k++) {
        to[k].calls += of[k].calls;
        to[k].payload_bytes += of[k].payload_bytes;
        to[k].padding_bytes += of[k].padding_bytes;
        to[k].ring_bytes += of[k].ring_bytes;
        to[k].in_node_bytes += of[k].in_node_bytes;
        to[k].cross_node_bytes += of[k].cross_node_bytes;
    }
}

static int make(struct maker *maker)
{
    struct plan *plan = maker->plan;
    uint32_t groups = maker->page->groups;
    int r;

    plan->groups = calloc(groups, sizeof(*plan->groups));
    r = plan->groups ? options_complete(&plan->options, plan->layout) : GW_E_NOMEM;
    for (uint32_t g = 0; g < groups && r == 0; g++)
        r = make_group(maker, g);
    if (r == 0)
        r = view_as(maker, maker->request->rank);
    if (r == 0) {
        plan->kinds[GW_KIND_CONTROL].calls = 1; /* the verdict */
        for (uint32_t g = 0; g < groups; g++) {
            if (maker->mask >> g & 1)
                add_kinds(plan->kinds, plan->groups[g].kinds);
        }
        add_memory(maker->page, maker->place, plan->memory_bytes);
    }
    drop_view(maker);
    return r;
}

int plan_new(const struct plan_request *request, struct plan **ret_plan, struct text *text,
             uint32_t *ret_param)
{
    struct maker maker = {.request = request, .plan = calloc(1, sizeof(*maker.plan))};
    int r;

    *ret_param = UINT32_MAX;
    if (!maker.plan)
        return GW_E_NOMEM;
    maker.plan->options = request->options;
    r = check(request, &maker.plan->options, text);
    if (r == 0)
        r = check_groups(request, &maker.plan->options, text);
    if (r == 0)
        r = make_layout(request, maker.plan, text, ret_param);
    if (r == 0) {
        maker.page = layout_page(maker.plan->layout);
        maker.buckets = layout_buckets(maker.plan->layout);
        r = make(&maker);
    }
    if (r < 0) {
        plan_free(maker.plan);
        return r;
    }
    *ret_plan = maker.plan;
    return 0;
}

struct plan *plan_free(struct plan *plan)
{
    if (plan) {
        (void)layout_free(plan->layout);
        free(plan->groups);
    }
    free(plan);
    return NULL;
}

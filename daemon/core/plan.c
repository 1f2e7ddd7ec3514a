/* SPDX-License-Identifier: Apache-2.0 */
/* The figures of a plan; plan.h says what they mean. Pure; any thread. Sizes and places come from
 * layout and memory alone; here they are only counted. */
#include "daemon/core/plan.h"

#include <stdlib.h>

#include "daemon/core/core_internal.h"
#include "daemon/core/memory.h"

#define FETCHES_PER_MICRO_STEP 2u      /* forward and backward */
#define PADDED_MAX ((uint64_t)1 << 48) /* elements; the largest figure stays below 2^63 */

struct node_size {
    uint32_t ranks, partials; /* of the larger nodes, and of the others; 0: there are none */
};

struct placement {
    uint32_t nodes;
    struct node_size sizes[2];
};

/* The sum of one kind over collectives of one sort. */
struct sum {
    const struct placement *placement;
    struct plan_kind *kind;
    uint32_t world;
    enum gw_kind which;
    uint64_t times; /* each collective, per step */
};

/* ---- shares ---------------------------------------------------------------------------------- */

/* bytes * part / whole, rounded down, without overflow. */
static uint64_t share(uint64_t bytes, uint32_t part, uint32_t whole)
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
        return share(payload_bytes, 2 * (world - 1), world);
    default:
        return share(payload_bytes, world - 1, world);
    }
}

void plan_node(uint32_t world, uint32_t nodes, uint32_t node, uint32_t *ret_first,
               uint32_t *ret_count)
{
    uint32_t each = world / nodes, larger = world % nodes;

    *ret_first = node * each + (node < larger ? node : larger);
    *ret_count = each + (node < larger ? 1 : 0);
}

/* A subtree of height h begins at a multiple of 2^h; the last ones end where the ranks end. */
uint32_t plan_partials(uint32_t world, uint32_t first, uint32_t count)
{
    uint64_t end = (uint64_t)first + count;
    uint32_t partials = 0;

    for (uint64_t at = first; at < end; partials++) {
        uint64_t height = 0;

        while (at % (2ull << height) == 0 && (1ull << height) < world &&
               (at + (2ull << height) <= end || end == world))
            height++;
        at += 1ull << height;
    }
    return partials;
}

/* Nodes are of two sizes at most; of each the one with the most partial sums. */
static struct placement place(const struct plan_request *request)
{
    struct placement placement = {.nodes = request->nodes};

    for (uint32_t node = 0; node < request->nodes; node++) {
        uint32_t first, count, partials;
        struct node_size *size = &placement.sizes[node >= request->world % request->nodes];

        plan_node(request->world, request->nodes, node, &first, &count);
        partials = plan_partials(request->world, first, count);
        size->ranks = count;
        size->partials = partials > size->partials ? partials : size->partials;
    }
    return placement;
}

/* What a node sends of a collective whose slices are payload / world. */
static uint64_t node_sends(const struct placement *placement, const struct node_size *size,
                           enum gw_kind kind, uint64_t payload_bytes, uint32_t world)
{
    uint64_t reduced = share(payload_bytes, world - size->ranks, world) * size->partials;
    uint64_t gathered = share(payload_bytes, size->ranks, world) * (placement->nodes - 1);

    switch (kind) {
    case GW_KIND_ALL_REDUCE:
        return reduced + gathered;
    case GW_KIND_REDUCE_SCATTER:
        return reduced;
    case GW_KIND_ALL_GATHER:
        return gathered;
    default:
        return 0;
    }
}

static uint64_t cross_node_bytes(const struct placement *placement, enum gw_kind kind,
                                 uint64_t payload_bytes, uint32_t world)
{
    uint64_t a = node_sends(placement, &placement->sizes[0], kind, payload_bytes, world);
    uint64_t b = node_sends(placement, &placement->sizes[1], kind, payload_bytes, world);

    return placement->nodes < 2 ? 0 : a > b ? a : b;
}

/* ---- traffic --------------------------------------------------------------------------------- */

static void add_collective(const struct sum *sum, uint64_t numel, uint64_t padded_numel,
                           uint64_t in_node_bytes)
{
    uint64_t payload = numel * MEMORY_FLOAT;

    sum->kind->calls += sum->times;
    sum->kind->payload_bytes += sum->times * payload;
    sum->kind->padding_bytes += sum->times * (padded_numel - numel) * MEMORY_FLOAT;
    sum->kind->ring_bytes += sum->times * plan_ring_bytes(sum->which, payload, sum->world);
    sum->kind->in_node_bytes += sum->times * in_node_bytes;
    sum->kind->cross_node_bytes +=
        sum->times * cross_node_bytes(sum->placement, sum->which, payload, sum->world);
}

/* All-reduce: every input is read for the rank's share of it, and the result written in full. */
static void add_reductions(const struct placement *placement, const struct memory *memory,
                           struct plan *plan)
{
    bool full = memory->stage == 0;
    enum gw_kind which = full ? GW_KIND_ALL_REDUCE : GW_KIND_REDUCE_SCATTER;
    struct sum sum = {placement, &plan->kinds[which], memory->world, which,
                      memory->local ? 1 : memory->micro_steps};

    for (uint32_t b = 0; b < memory->page->buckets; b++) {
        const struct gw_layout_bucket *bucket = &memory->buckets[b];
        uint64_t bytes = bucket->padded_numel * MEMORY_FLOAT;

        add_collective(&sum, bucket->numel, bucket->padded_numel, full ? 2 * bytes : bytes);
    }
}

/* Stages 1-2: each bucket once, the rank's own slice being there; stage 3: each fetch unit. */
static void add_gathers(const struct placement *placement, const struct memory *memory,
                        struct plan *plan)
{
    const struct gw_layout_fetch_unit *units = layout_fetch_units(memory->layout);
    struct sum sum = {placement, &plan->kinds[GW_KIND_ALL_GATHER], memory->world,
                      GW_KIND_ALL_GATHER, 1};

    if (memory->stage == 0)
        return;
    for (uint32_t b = 0; b < memory->page->buckets && memory->stage < 3; b++) {
        const struct gw_layout_bucket *bucket = &memory->buckets[b];
        uint64_t others = bucket->padded_numel - memory_slice_numel(memory, b);

        add_collective(&sum, bucket->numel, bucket->padded_numel, others * MEMORY_FLOAT);
    }
    sum.times = FETCHES_PER_MICRO_STEP * memory->micro_steps;
    for (uint32_t f = 0; f < memory->page->fetch_units && memory->stage == 3; f++) {
        if (units[f].buckets > 0)
            add_collective(&sum, units[f].numel, units[f].padded_numel,
                           memory->mapped ? 0 : units[f].padded_numel * MEMORY_FLOAT);
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void add_memory(const struct memory *memory, struct plan *plan)
{
    for (unsigned k = GW_ARENA_NONE + 1; k < GW_ARENA_KINDS; k++) {
        enum gw_arena_kind kind = (enum gw_arena_kind)k;
        enum gw_memory use = memory_use(kind);
        uint64_t copies = kind == GW_ARENA_ARRAY ? PLAN_OPTIMIZER_ARRAYS : 1;

        if (use == GW_MEMORIES || kind == GW_ARENA_OVERFLOW) /* overflow slots are not planned */
            continue;
        plan->memory_bytes[use] += copies * memory_arena_bytes(memory, kind, 0) +
                                   memory_arena_bytes(memory, kind, -1) / memory->world;
    }
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
    if (options->stage < 3)
        options->gather = GW_GATHER_PRIVATE;
    if (options->gather == GW_GATHER_MAPPED && request->nodes > 1) {
        text_add(text, "gather mapped is for one node, but there are %u: use private",
                 request->nodes);
        return GW_E_INVALID;
    }
    /* A plan knows no devices: one that can do what is asked. */
    return options_check(options, request->world,
                         options->order == GW_ORDER_FABRIC ? GW_DEVICE_CUDA : GW_DEVICE_HOST, text);
}

static int make_layout(const struct plan_request *request, struct plan *plan, struct text *text,
                       uint32_t *ret_param)
{
    struct layout_options options = {
        .stage = plan->options.stage,
        .world = request->world,
        .bucket_numel = plan->options.bucket_bytes / MEMORY_FLOAT,
        .align_numel = plan->options.shard_align_bytes / MEMORY_FLOAT,
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

int plan_new(const struct plan_request *request, struct plan **ret_plan, struct text *text,
             uint32_t *ret_param)
{
    struct plan *plan = calloc(1, sizeof(*plan));
    struct placement placement;
    struct memory memory;
    int r;

    *ret_param = UINT32_MAX;
    if (!plan)
        return GW_E_NOMEM;
    plan->options = request->options;
    r = check(request, &plan->options, text);
    if (r == 0)
        r = make_layout(request, plan, text, ret_param);
    if (r < 0) {
        plan_free(plan);
        return r;
    }
    options_complete(&plan->options, plan->layout);
    memory_init(&memory, plan->layout, &plan->options, request->world);
    placement = place(request);
    add_reductions(&placement, &memory, plan);
    add_gathers(&placement, &memory, plan);
    plan->kinds[GW_KIND_CONTROL].calls = 1; /* the verdict */
    add_memory(&memory, plan);
    *ret_plan = plan;
    return 0;
}

struct plan *plan_free(struct plan *plan)
{
    if (plan)
        (void)layout_free(plan->layout);
    free(plan);
    return NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fetch and release of registered units. Declarations are counted at once; what they ask for is
 * served in the rank's order, each when the parameters of its step are there. Stage 0: the rank's
 * own replica; stages 1-2: the gathers after the update; stage 3: the rank's plan (prefetch.c).
 * Pure; one thread. Other ranks' fetches are never an input.
 */
#include "daemon/core/zero_internal.h"

static uint64_t *unit_fetches(const struct zero *z, uint32_t rank, uint32_t unit)
{
    return &z->unit_fetches[(size_t)rank * z->units + unit];
}

static uint32_t *unit_held(const struct zero *z, uint32_t rank, uint32_t unit)
{
    return &z->unit_held[(size_t)rank * z->units + unit];
}

static uint64_t *unit_gather(const struct zero *z, uint32_t rank, uint32_t fetch_unit)
{
    return &z->unit_gather[(size_t)rank * z->fetch_units + fetch_unit];
}

/* ---- declarations ---------------------------------------------------------------------------- */

static int enqueue(struct zero *z, uint32_t rank, uint16_t type, uint32_t unit,
                   const struct wire_after *after)
{
    struct zero_late late = {.now_ns = z->now_ns,
                             .step = z->ranks[rank].ended + 1,
                             .type = type,
                             .unit = unit,
                             .after = *after};

    return zero_queue_put(z, &z->ranks[rank].fetches, rank, &late, NULL);
}

static int fail_unit(struct zero *z, int code, uint32_t rank, uint32_t unit, const char *what)
{
    struct text text;
    int r;

    r = zero_fail_start(z, code, rank, &text);
    text_add(&text, "rank %u %s unit '", rank, what);
    text_add_escaped(&text, zero_unit_name(z, unit));
    text_add(&text, "'");
    return r;
}

int fetch_declare(struct zero *z, uint32_t rank, uint32_t unit)
{
    static const struct wire_after none;

    if (unit >= z->units)
        return zero_fail(z, GW_E_INVALID, rank, "rank %u fetched unit %u of %u", rank, unit,
                         z->units);
    z->ranks[rank].held++;
    ++*unit_held(z, rank, unit);
    return enqueue(z, rank, WIRE_FETCH, unit, &none);
}

int fetch_release(struct zero *z, uint32_t rank, uint32_t unit, const struct wire_after *after)
{
    if (unit >= z->units)
        return zero_fail(z, GW_E_INVALID, rank, "rank %u released unit %u of %u", rank, unit,
                         z->units);
    if (*unit_held(z, rank, unit) == 0)
        return fail_unit(z, GW_E_STATE, rank, unit, "released, more often than it fetched it,");
    z->ranks[rank].held--;
    --*unit_held(z, rank, unit);
    if (z->memory.stage != 3)
        return 0;
    return enqueue(z, rank, WIRE_RELEASE, unit, after);
}

const char *fetch_held_name(const struct zero *z, uint32_t rank)
{
    for (uint32_t u = 0; u < z->units; u++) {
        if (*unit_held(z, rank, u))
            return zero_unit_name(z, u);
    }
    return "";
}

/* Before the rank's step counts as ended: its views end with it. */
int fetch_step_end(struct zero *z, uint32_t rank)
{
    static const struct wire_after none;
    uint32_t unit = 0;

    if (z->ranks[rank].held) {
        while (unit + 1 < z->units && *unit_held(z, rank, unit) == 0)
            unit++;
        return fail_unit(z, GW_E_STATE, rank, unit, "ended its step before it released");
    }
    if (z->memory.stage != 3)
        return 0;
    return enqueue(z, rank, WIRE_STEP_END, 0, &none);
}

/* ---- serving --------------------------------------------------------------------------------- */

struct core_op *fetch_gather_op(struct zero *z, uint32_t rank, uint32_t fetch_unit,
                                uint64_t offset_bytes, enum flight_kind flight)
{
    const struct gw_layout_fetch_unit *unit = &layout_fetch_units(z->layout)[fetch_unit];
    struct core_op *op = ops_new(z, CORE_OP_GATHER, CORE_STREAM_GATHER, GW_KIND_ALL_GATHER, flight);
    struct zero_flight *at = ops_flight(z, op->id);
    struct core_ref *out = ops_refs(z, 1);

    ops_payload(z, op, unit->first_bucket, unit->buckets);
    op->rank = rank;
    tokens_gather(z, op, rank);
    op->out = out;
    if (at)
        at->rank = rank;
    /* Mapped: the parameters are where they are read; the op counts and orders, moves nothing. */
    if (out && !z->memory.mapped)
        *out = (struct core_ref){.kind = GW_ARENA_POOL,
                                 .rank = (int16_t)rank,
                                 .offset_bytes = offset_bytes};
    return op;
}

static struct core_signal served(struct zero *z, uint32_t rank, uint32_t unit, uint64_t offset)
{
    return (struct core_signal){.rank = rank,
                                .timeline = GW_TIMELINE(GW_TL_UNIT, unit),
                                .value = ++*unit_fetches(z, rank, unit),
                                .offset = z->memory.mapped ? 0 : offset};
}

/* step: the rank's step that it is fetched for. */
static struct core_op *launch_gather(struct zero *z, uint32_t rank,
                                     const struct prefetch_gather *gather, uint64_t step,
                                     bool ahead)
{
    struct core_op *op =
        fetch_gather_op(z, rank, gather->fetch_unit, gather->offset_bytes, FLIGHT_GATHER);
    struct zero_flight *flight = ops_flight(z, op->id);

    op->step = step;
    if (flight) {
        flight->step = step;
        flight->index = gather->fetch_unit;
    }
    grant_launched(z, rank, gather->fetch_unit, ahead);
    *unit_gather(z, rank, gather->fetch_unit) = z->ranks[rank].gather_op = op->id;
    return op;
}

static void gather_ahead(struct zero *z, uint32_t rank, uint64_t step)
{
    struct prefetch_gather gather;

    while (prefetch_ahead(z->ranks[rank].plan, &gather))
        (void)launch_gather(z, rank, &gather, step, true);
}

static int fail_budget(struct zero *z, uint32_t rank, uint32_t unit)
{
    const struct gw_layout_fetch_unit *fetch =
        &layout_fetch_units(z->layout)[layout_units(z->layout)[unit].fetch_unit];
    struct prefetch_figures figures = prefetch_figures(z->ranks[rank].plan);
    struct text text;
    int r;

    r = zero_fail_start(z, GW_E_BUDGET, rank, &text);
    text_add(&text, "rank %u fetched unit '", rank);
    text_add_escaped(&text, zero_unit_name(z, unit));
    text_add(&text, "' of %llu bytes, but holds %llu bytes of other units with a gather budget of "
             "%llu: release units earlier, or raise gather_bytes",
             (unsigned long long)(fetch->padded_numel * MEMORY_FLOAT),
             (unsigned long long)figures.bytes_now, (unsigned long long)z->memory.gather_bytes);
    return r;
}

static int serve_planned(struct zero *z, uint32_t rank, const struct zero_late *what)
{
    struct prefetch_gather gather;
    struct core_signal *signals;
    struct core_op *op;
    int r;

    r = prefetch_fetch(z->ranks[rank].plan, what->unit, &gather);
    if (r < 0)
        return fail_budget(z, rank, what->unit);
    if (r == 0) {
        ops_signal(z, served(z, rank, what->unit, gather.offset_bytes),
                   *unit_gather(z, rank, gather.fetch_unit));
    } else {
        op = launch_gather(z, rank, &gather, what->step, false);
        signals = ops_signals(z, op, 1);
        if (signals)
            *signals = served(z, rank, what->unit, gather.offset_bytes);
    }
    gather_ahead(z, rank, what->step);
    return 0;
}

/* Stages 1-2: once the gathers of the unit's buckets are done; overlap off: of all. Stage 0: once
 * the rank's own update is made. */
static uint64_t replica_gather(const struct zero *z, uint32_t rank, uint32_t unit)
{
    const struct gw_layout_unit *at = &layout_units(z->layout)[unit];
    uint32_t end = z->options.overlap_off ? z->buckets : at->first_bucket + at->buckets;

    if (z->memory.stage == 0)
        return z->ranks[rank].commit_op;
    if (at->buckets == 0)
        return 0;
    return zero_entry(z, rank, end - 1)->gather_op;
}

static int serve(struct zero *z, uint32_t rank, const struct zero_late *what)
{
    bool planned;

    if (what->type == WIRE_STEP_END) { /* of no unit: there may be none at all */
        prefetch_step_end(z->ranks[rank].plan);
        return 0;
    }
    planned = z->memory.stage == 3 && layout_units(z->layout)[what->unit].buckets > 0;
    if (what->type == WIRE_FETCH && !planned) {
        ops_signal(z, served(z, rank, what->unit, 0),
                   z->memory.stage == 3 ? 0 : replica_gather(z, rank, what->unit));
    } else if (what->type == WIRE_FETCH) {
        return serve_planned(z, rank, what);
    } else if (planned) {
        tokens_release(z, rank, &what->after);
        prefetch_release(z->ranks[rank].plan, what->unit);
        gather_ahead(z, rank, what->step);
    }
    return 0;
}

/* The parameters of the step are there, or on their way on the rank's stream. */
static bool version_ready(const struct zero *z, uint32_t rank, uint64_t step)
{
    uint64_t there = z->memory.stage == 0 ? z->ranks[rank].resolved : z->gate;

    return there + 1 >= step || (z->memory.stage > 0 && !zero_edge(z, EDGE_VERSION));
}

int fetch_pump(struct zero *z)
{
    for (uint32_t r = 0; r < z->world; r++) {
        struct zero_queue *queue = &z->ranks[r].fetches;

        while (queue->head && version_ready(z, r, queue->head->step)) {
            int code;

            z->ranks[r].served += queue->head->type != WIRE_RELEASE;
            code = serve(z, r, queue->head);
            grant_served(z, r);
            zero_queue_drop(queue);
            if (code < 0)
                return code;
        }
    }
    return 0;
}

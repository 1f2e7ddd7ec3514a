/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fetch and release of registered units. Declarations are counted at once; what they ask for is
 * served in the rank's order, each when the parameters of its step are there. Stage 0: the rank's
 * own replica; stages 1-2: the gathers after the update; stage 3: the rank's plan (prefetch.c), and
 * for persistent parameters the gather after the update.
 * Pure; one thread. Other ranks' fetches are never an input.
 */
#include "daemon/core/zero_internal.h"

static unsigned long long number(uint64_t value)
{
    return (unsigned long long)value;
}

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
    if (z->stage != 3)
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
    if (z->stage != 3)
        return 0;
    return enqueue(z, rank, WIRE_STEP_END, 0, &none);
}

/* ---- serving --------------------------------------------------------------------------------- */

/* Mapped: the parameters are where they are read; the op counts and orders, moves nothing. */
struct core_ref fetch_place(const struct zero *z, uint32_t rank, uint32_t bucket,
                            uint64_t offset_bytes)
{
    if (z->mapped)
        return (struct core_ref){.kind = GW_ARENA_NONE};
    if (z->stage < 3)
        return place_of_params(z, bucket, rank);
    return (struct core_ref){
        .kind = GW_ARENA_POOL,
        .rank = (int16_t)rank,
        .offset_bytes = offset_bytes + place_gathered(z->ranks[rank].place, bucket),
    };
}

struct core_op *fetch_part_op(struct zero *z, uint32_t rank, uint32_t part, uint64_t offset_bytes,
                              enum flight_kind flight)
{
    const struct zero_part *at = &z->parts[part];
    const struct zero_group *group = &z->groups[at->group];
    struct core_op *op = ops_new(z, CORE_OP_GATHER, CORE_STREAM_GATHER, GW_KIND_ALL_GATHER, flight);
    struct zero_flight *flying = ops_flight(z, op->id);
    struct core_ref *out = ops_refs(z, 1);

    ops_members(z, op, &group->ranks[groups_run(z, at->group, rank)], group->shard_ranks);
    ops_payload(z, op, OPS_OF_PARAMS, at->first_bucket, at->buckets);
    op->rank = rank;
    op->in_place_skip = z->stage < 3;
    op->version = zero_version(z, group);
    if (flight == FLIGHT_GATHER && secondary_holds(z, rank, part))
        secondary_read(z, op, part);
    tokens_gather(z, op, at->group);
    if (flight == FLIGHT_GATHER)
        *zero_gather_op(z, rank, at->group) = op->id;
    op->out = out;
    if (out)
        *out = fetch_place(z, rank, at->first_bucket, offset_bytes);
    if (flying)
        flying->ranks = ranks_one(rank);
    return op;
}

uint64_t fetch_persistent_bytes(const struct zero *z, uint32_t rank)
{
    return z->persistent_parts > 0 ? place_fetch_bytes(z->ranks[rank].place, 0) : 0;
}

void fetch_forget(struct zero *z)
{
    for (uint32_t r = 0; r < z->world && z->stage == 3 && !z->mapped; r++) {
        prefetch_empty(z->ranks[r].plan);
        grant_served(z, r);
    }
}

static void set_gather(struct zero *z, struct core_op *op, uint64_t step, uint32_t fetch_unit)
{
    struct zero_flight *flight = ops_flight(z, op->id);

    op->step = step;
    if (!flight)
        return;
    flight->step = step;
    flight->index = fetch_unit;
}

void fetch_persistent(struct zero *z, uint32_t rank, uint32_t group, uint64_t step, bool counted)
{
    for (uint32_t part = 0; part < z->persistent_parts; part++) {
        struct core_op *op;

        if (z->parts[part].group != group)
            continue;
        op = fetch_part_op(z, rank, part, 0, FLIGHT_GATHER);
        set_gather(z, op, step, 0);
        op->measure = !counted;
        z->ranks[rank].persist_op = op->id;
    }
    ranks_add(&z->groups[group].fresh, rank);
}

/* Where no update has brought them: at first, and after they were written. */
static void refresh_persistent(struct zero *z, uint32_t rank, uint64_t step)
{
    for (uint32_t g = 0; g < z->group_count && z->persistent_parts; g++) {
        if (zero_in(z, g, rank) && !ranks_has(&z->groups[g].fresh, rank))
            fetch_persistent(z, rank, g, step - 1, false);
    }
}

static struct core_signal served(struct zero *z, uint32_t rank, uint32_t unit, uint64_t offset)
{
    return (struct core_signal){.rank = rank,
                                .timeline = GW_TIMELINE(GW_TL_UNIT, unit),
                                .value = ++*unit_fetches(z, rank, unit),
                                .offset = z->mapped ? 0 : offset};
}

/* One gather for each of the rank's groups; the last op. step: the rank's step that the unit is
 * fetched for. */
static struct core_op *launch_gather(struct zero *z, uint32_t rank,
                                     const struct prefetch_gather *gather, uint64_t step,
                                     bool ahead)
{
    struct core_op *op = NULL;

    for (uint32_t part = z->unit_parts[gather->fetch_unit];
         part < z->unit_parts[gather->fetch_unit + 1]; part++) {
        if (!zero_in(z, z->parts[part].group, rank))
            continue;
        op = fetch_part_op(z, rank, part, gather->offset_bytes, FLIGHT_GATHER);
        set_gather(z, op, step, gather->fetch_unit);
        *unit_gather(z, rank, gather->fetch_unit) = op->id;
    }
    if (op)
        grant_launched(z, rank, gather->fetch_unit, ahead);
    return op;
}

static void gather_ahead(struct zero *z, uint32_t rank, uint64_t step)
{
    struct prefetch_gather gather;

    while (prefetch_ahead(z->ranks[rank].plan, &gather)) {
        (void)launch_gather(z, rank, &gather, step, true);
        secondary_fill(z, rank, &gather);
    }
}

/* Bytes enough may be free, but in pieces: units held cannot move. */
static int fail_budget(struct zero *z, uint32_t rank, uint32_t unit)
{
    uint32_t fetch_unit = layout_units(z->layout)[unit].fetch_unit;
    uint64_t bytes = place_fetch_bytes(z->ranks[rank].place, fetch_unit);
    uint64_t held = prefetch_figures(z->ranks[rank].plan).bytes_now;
    struct pool_room room = prefetch_room(z->ranks[rank].plan);
    struct text text;
    int r;

    r = zero_fail_start(z, GW_E_BUDGET, rank, &text);
    text_add(&text, "rank %u fetched unit '", rank);
    text_add_escaped(&text, zero_unit_name(z, unit));
    text_add(&text, "' of %llu bytes, but holds %llu bytes of other units with a gather budget of "
             "%llu: ", number(bytes), number(held), number(z->options.gather_bytes));
    if (room.free_bytes >= bytes)
        text_add(&text, "of its pool %llu bytes are free, but at most %llu in one piece, between "
                 "units held: release the oldest first, ", number(room.free_bytes),
                 number(room.gap_bytes));
    else
        text_add(&text, "release units earlier, ");
    text_add(&text, "or raise gather_bytes");
    return r;
}

/* The unit's gather, and that of persistent parameters: whichever comes last in the stream. */
static uint64_t resident_op(const struct zero *z, uint32_t rank, uint32_t unit)
{
    const struct gw_layout_unit *at = &layout_units(z->layout)[unit];
    uint64_t op = at->persistent ? z->ranks[rank].persist_op : 0;

    if (at->fetch_unit != UINT32_MAX && *unit_gather(z, rank, at->fetch_unit) > op)
        op = *unit_gather(z, rank, at->fetch_unit);
    return op;
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
    op = r > 0 ? launch_gather(z, rank, &gather, what->step, false) : NULL;
    if (!op) {
        ops_signal(z, served(z, rank, what->unit, gather.offset_bytes),
                   resident_op(z, rank, what->unit));
    } else {
        signals = ops_signals(z, op, 1);
        if (signals)
            *signals = served(z, rank, what->unit, gather.offset_bytes);
        secondary_fill(z, rank, &gather);
    }
    gather_ahead(z, rank, what->step);
    return 0;
}

/* Of the unit's buckets that the rank has (overlap off: of all), the last gather. */
static uint64_t last_gather(const struct zero *z, uint32_t rank, const struct gw_layout_unit *unit)
{
    uint32_t first = z->options.overlap_off ? 0 : unit->first_bucket;
    uint32_t end = z->options.overlap_off ? z->buckets : unit->first_bucket + unit->buckets;
    uint64_t last = 0;

    for (uint32_t b = first; b < end; b++) {
        if (zero_member(z, b, rank) && zero_entry(z, rank, b)->gather_op > last)
            last = zero_entry(z, rank, b)->gather_op;
    }
    return last;
}

/* Stages 1-2: once the gathers of the unit's buckets are done. Stage 0: once the rank's own update
 * is made, and rounded. */
static uint64_t replica_gather(const struct zero *z, uint32_t rank, uint32_t unit)
{
    const struct gw_layout_unit *at = &layout_units(z->layout)[unit];
    const struct zero_rank *mine = &z->ranks[rank];

    if (z->stage > 0)
        return at->buckets == 0 ? 0 : last_gather(z, rank, at);
    /* A cast is the later one: of the commit, or of what was committed before the job formed anew.
     * */
    if (mine->cast_op >= mine->commit_op)
        return zero_edge(z, EDGE_ROUNDED) ? mine->cast_op : 0;
    return mine->commit_op;
}

/* Some of the unit is gathered when it is fetched. */
static bool is_planned(const struct zero *z, uint32_t rank, uint32_t unit)
{
    uint32_t fetch_unit = layout_units(z->layout)[unit].fetch_unit;

    return z->stage == 3 && fetch_unit != UINT32_MAX &&
           place_fetch_bytes(z->ranks[rank].place, fetch_unit) > 0;
}

static int serve(struct zero *z, uint32_t rank, const struct zero_late *what)
{
    if (what->type == WIRE_STEP_END) { /* of no unit: there may be none at all */
        prefetch_step_end(z->ranks[rank].plan);
        return 0;
    }
    if (what->type == WIRE_FETCH && z->stage == 3 &&
        layout_units(z->layout)[what->unit].persistent)
        refresh_persistent(z, rank, what->step);
    if (what->type == WIRE_FETCH && is_planned(z, rank, what->unit))
        return serve_planned(z, rank, what);
    if (what->type == WIRE_FETCH) {
        ops_signal(z, served(z, rank, what->unit, 0),
                   z->stage == 3 ? resident_op(z, rank, what->unit)
                                 : replica_gather(z, rank, what->unit));
    } else {
        tokens_release(z, rank, &what->after);
        if (!is_planned(z, rank, what->unit))
            return 0;
        prefetch_release(z->ranks[rank].plan, what->unit);
        gather_ahead(z, rank, what->step);
    }
    return 0;
}

/* The parameters of the step are there, or on their way on the rank's stream. That may wait for the
 * last verdict first, even where nobody updates: nothing for it is launched before (zero.h). */
static bool version_ready(const struct zero *z, uint32_t rank, uint64_t step)
{
    uint64_t there = z->stage == 0 ? z->ranks[rank].resolved : groups_rank_gate(z, rank);

    if (z->ordered && step > z->step + 1)
        return false;
    return there + 1 >= step || (z->stage > 0 && !zero_edge(z, EDGE_VERSION));
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MEASURE: how long each communication of a step takes while no rank computes. Every rank asks and
 * then waits, so nothing else is launched. Three passes; in each first the reductions, then the
 * gathers, so that the two kinds do not slow each other. Values do not matter: reductions go to
 * where gradients will be overwritten, gathers bring what is there already. Pure; one thread.
 *
 * comm_alone of a rank: for one step, the median of each of its ops, as often as a step runs it
 * (reductions once per micro-step under accumulate=shard, but for those between runs; a fetch
 * unit's gather twice in stage 3, persistent parameters' once).
 */
#include "daemon/core/zero_internal.h"

#include <stdlib.h>

#define FETCHES_PER_STEP 2u /* forward and backward */

/* ---- one pass -------------------------------------------------------------------------------- */

/* Ops of one bucket's reduction: one per run, and for each slice one between the runs. */
static uint32_t runs_of(const struct zero_group *group)
{
    return group->count / group->shard_ranks;
}

static uint32_t reductions_of(const struct zero_group *group)
{
    return zero_hybrid(group) ? runs_of(group) + group->shard_ranks : 1;
}

static uint32_t reductions(const struct zero *z)
{
    uint32_t count = 0;

    for (uint32_t b = 0; b < z->buckets; b++)
        count += reductions_of(zero_group_of(z, b));
    return count;
}

static void sent(struct zero *z, struct core_op *op, uint32_t index)
{
    struct zero_flight *flight = ops_flight(z, op->id);

    op->measure = 1;
    if (!flight)
        return;
    flight->index = index;
    z->measure.in_flight++;
}

static struct core_ref contribution(const struct zero *z, const struct core_op *op, uint32_t rank)
{
    if (z->ring)
        return place_of_slot(z, op->bucket % z->ring_slots, rank);
    return op->in_dtype == z->bucket_table[op->bucket].grad_dtype
               ? place_of_grads(z, op->bucket, rank)
               : place_of_acc(z, op->bucket, rank);
}

static void fill_reduction(struct zero *z, struct core_op *op, bool within)
{
    struct core_ref *in = ops_refs(z, op->world), *out = ops_refs(z, op->world);

    for (uint32_t i = 0; i < op->world && in && out; i++) {
        out[i] = place_of_reduced(z, op->bucket, op->members[i]);
        in[i] = within ? contribution(z, op, op->members[i]) : out[i];
    }
    op->in = in;
    op->out = out;
}

static void measure_reduction(struct zero *z, uint32_t bucket, uint32_t index)
{
    const struct zero_group *group = zero_group_of(z, bucket);
    struct core_op *op;

    for (uint32_t first = 0; first < group->count; first += group->shard_ranks) {
        op = reduce_within_op(z, bucket, first, FLIGHT_MEASURE);
        fill_reduction(z, op, true);
        sent(z, op, index++);
    }
    for (uint32_t i = 0; i < group->shard_ranks && zero_hybrid(group); i++) {
        op = reduce_between_op(z, bucket, i, FLIGHT_MEASURE);
        fill_reduction(z, op, false);
        sent(z, op, index++);
    }
}

static void measure_gathers(struct zero *z, uint32_t rank)
{
    uint32_t index = z->measure.reductions + rank * z->part_count;

    for (uint32_t part = 0; part < z->part_count; part++, index++) {
        bool persistent = part < z->persistent_parts;
        uint64_t offset = persistent ? 0 : fetch_persistent_bytes(z, rank);

        if (zero_in(z, z->parts[part].group, rank))
            sent(z, fetch_part_op(z, rank, part, offset, FLIGHT_MEASURE), index);
    }
}

static void launch_half(struct zero *z)
{
    uint32_t index = 0;

    for (uint32_t b = 0; b < z->buckets && !z->measure.gathers; b++) {
        measure_reduction(z, b, index);
        index += reductions_of(zero_group_of(z, b));
    }
    for (uint32_t r = 0; r < z->world && z->measure.gathers; r++)
        measure_gathers(z, r);
}

/* ---- result ---------------------------------------------------------------------------------- */

static uint64_t median(const uint64_t of[ZERO_PASSES])
{
    uint64_t low = of[0] < of[1] ? of[0] : of[1], high = of[0] < of[1] ? of[1] : of[0];

    return of[2] < low ? low : of[2] > high ? high : of[2];
}

static uint64_t median_of(const struct zero *z, uint32_t index)
{
    return median(&z->measure.durations_ns[(size_t)index * ZERO_PASSES]);
}

/* The rank's reductions of one step. */
static uint64_t reduce_ns(const struct zero *z, uint32_t rank)
{
    uint64_t sum = 0;
    uint32_t index = 0;

    for (uint32_t b = 0; b < z->buckets; b++) {
        const struct zero_group *group = zero_group_of(z, b);
        uint32_t position = zero_position(z, z->bucket_table[b].group, rank);

        if (position != UINT32_MAX) {
            sum += median_of(z, index + position / group->shard_ranks) *
                   (z->local ? 1 : z->micro_steps);
            if (zero_hybrid(group))
                sum += median_of(z, index + runs_of(group) + position % group->shard_ranks);
        }
        index += reductions_of(group);
    }
    return sum;
}

static uint64_t gather_ns(const struct zero *z, uint32_t rank)
{
    uint32_t first = z->measure.reductions + rank * z->part_count;
    uint64_t sum = 0;

    for (uint32_t part = 0; part < z->part_count; part++)
        sum += median_of(z, first + part) *
               (z->stage == 3 && part >= z->persistent_parts ? FETCHES_PER_STEP : 1);
    return sum;
}

static void answer_all(struct zero *z, int code, const char *text)
{
    for (uint32_t r = 0; r < z->world; r++) {
        struct zero_ask *ask = &z->ranks[r].measure;

        if (!ask->waiting)
            continue;
        ask->waiting = false;
        zero_reply(z, r, ask->request, code, "%s", text);
    }
}

static void finish(struct zero *z)
{
    for (uint32_t r = 0; r < z->world; r++)
        z->ranks[r].comm_alone_ns = reduce_ns(z, r) + gather_ns(z, r);
    measure_reset(z);
    answer_all(z, 0, "");
}

/* ---- running it ------------------------------------------------------------------------------ */

void measure_request(struct zero *z, uint32_t rank, uint32_t request)
{
    struct zero_ask *ask = &z->ranks[rank].measure;

    if (ask->waiting) {
        zero_reply(z, rank, request, GW_E_BUSY, "rank %u measures already", rank);
        return;
    }
    z->unheard++;
    *ask = (struct zero_ask){.waiting = true, .request = request, .since_ns = z->now_ns};
}

void measure_reset(struct zero *z)
{
    free(z->measure.durations_ns);
    z->measure = (struct zero_measure){0};
}

static bool begin(struct zero *z)
{
    uint64_t ops = reductions(z) + (uint64_t)z->world * z->part_count;

    z->measure.durations_ns = calloc(ops * ZERO_PASSES + 1, sizeof(uint64_t));
    if (!z->measure.durations_ns) {
        answer_all(z, GW_E_NOMEM, "no memory for the times of a measurement");
        return false;
    }
    z->measure.running = true;
    z->measure.reductions = reductions(z);
    fetch_forget(z); /* its gathers go where units may lie that were gathered ahead */
    launch_half(z);
    return true;
}

/* All asked: 1; not yet: 0; < 0: cannot be, all who asked are told. */
static int all_asked(struct zero *z)
{
    char line[GW_TEXT_MAX + 1] = "";
    struct text why = TEXT(line);
    bool some = false, all = true;
    struct ranks busy;

    for (uint32_t r = 0; r < z->world; r++) {
        some |= z->ranks[r].measure.waiting;
        all &= z->ranks[r].measure.waiting;
    }
    if (!some)
        return 0;
    busy = zero_busy(z, &why);
    if (!ranks_any(&busy)) {
        for (uint32_t r = 0; r < z->world && !*line; r++) {
            if (z->ranks[r].update != UPDATE_NONE)
                text_add(&why, "rank %u has ended step %llu and neither updated nor gone on", r,
                         (unsigned long long)z->ranks[r].ended);
        }
        if (!*line)
            return all;
    }
    text_add(&why, ": measure before the first step");
    answer_all(z, GW_E_STATE, line);
    return GW_E_STATE;
}

void measure_pump(struct zero *z)
{
    struct zero_measure *measure = &z->measure;

    if (!measure->running &&
        (z->unheard || all_asked(z) <= 0 || !tokens_quiet(z) || z->flight_count || !begin(z)))
        return;
    while (measure->in_flight == 0) {
        if (measure->gathers)
            measure->pass++;
        measure->gathers = !measure->gathers;
        if (measure->pass == ZERO_PASSES) {
            finish(z);
            return;
        }
        launch_half(z);
    }
}

void measure_op_done(struct zero *z, const struct zero_flight *flight, uint64_t duration_ns)
{
    if (!z->measure.running)
        return;
    z->measure.in_flight--;
    z->measure.durations_ns[(size_t)flight->index * ZERO_PASSES + z->measure.pass] = duration_ns;
}

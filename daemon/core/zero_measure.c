/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MEASURE: how long each communication of a step takes while no rank computes. Every rank asks and
 * then waits, so nothing else is launched. Three passes; in each first the reductions, then the
 * gathers, so that the two kinds do not slow each other. Values do not matter: reductions go to
 * where gradients will be overwritten, gathers bring what is there already. Pure; one thread.
 *
 * comm_alone of a rank: for one step, the median of each of its ops, as often as a step runs it
 * (reductions once per micro-step under accumulate=shard; a fetch unit's gather twice in stage 3).
 */
#include "daemon/core/zero_internal.h"

#include <stdlib.h>

#define FETCHES_PER_STEP 2u /* forward and backward */

/* ---- one pass -------------------------------------------------------------------------------- */

static uint32_t gathers_per_rank(const struct zero *z)
{
    return z->memory.stage == 0 ? 0 : z->memory.stage == 3 ? z->fetch_units : z->buckets;
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

static void measure_reduction(struct zero *z, uint32_t bucket)
{
    bool full = z->memory.stage == 0;
    struct core_op *op = ops_new(z, full ? CORE_OP_ALL_REDUCE : CORE_OP_REDUCE_SCATTER,
                                 CORE_STREAM_REDUCE,
                                 full ? GW_KIND_ALL_REDUCE : GW_KIND_REDUCE_SCATTER,
                                 FLIGHT_MEASURE);
    struct core_ref *in = ops_refs(z, z->world), *out = ops_refs(z, z->world);

    ops_payload(z, op, bucket, 1);
    op->scale = z->scale;
    op->order = (uint8_t)z->options.order;
    for (uint32_t r = 0; r < z->world && in && out; r++) {
        in[r] = z->memory.ring ? memory_slot(&z->memory, bucket % z->memory.ring_slots, r)
                               : memory_flat(&z->memory, GW_ARENA_GRADS, bucket, r);
        out[r] = memory_reduced(&z->memory, bucket, r);
    }
    op->in = in;
    op->out = out;
    sent(z, op, bucket);
}

static void measure_gather(struct zero *z, uint32_t rank, uint32_t i, uint32_t index)
{
    struct core_ref *out;
    struct core_op *op;

    if (z->memory.stage == 3) {
        if (layout_fetch_units(z->layout)[i].buckets)
            sent(z, fetch_gather_op(z, rank, i, 0, FLIGHT_MEASURE), index);
        return;
    }
    op = ops_new(z, CORE_OP_GATHER, CORE_STREAM_GATHER, GW_KIND_ALL_GATHER, FLIGHT_MEASURE);
    out = ops_refs(z, 1);
    ops_payload(z, op, i, 1);
    op->rank = rank;
    op->in_place_skip = 1;
    op->out = out;
    if (out)
        *out = memory_flat(&z->memory, GW_ARENA_PARAMS, i, rank);
    sent(z, op, index);
}

static void launch_half(struct zero *z)
{
    uint32_t each = gathers_per_rank(z);

    for (uint32_t b = 0; b < z->buckets && !z->measure.gathers; b++)
        measure_reduction(z, b);
    for (uint32_t r = 0; r < z->world && z->measure.gathers; r++) {
        for (uint32_t i = 0; i < each; i++)
            measure_gather(z, r, i, z->measure.reductions + r * each + i);
    }
}

/* ---- result ---------------------------------------------------------------------------------- */

static uint64_t median(const uint64_t of[ZERO_PASSES])
{
    uint64_t low = of[0] < of[1] ? of[0] : of[1], high = of[0] < of[1] ? of[1] : of[0];

    return of[2] < low ? low : of[2] > high ? high : of[2];
}

static uint64_t sum_of_medians(const struct zero *z, uint32_t first, uint32_t count)
{
    uint64_t sum = 0;

    for (uint32_t i = first; i < first + count; i++)
        sum += median(&z->measure.durations_ns[(size_t)i * ZERO_PASSES]);
    return sum;
}

static void answer_all(struct zero *z, int code, const char *text)
{
    for (uint32_t r = 0; r < z->world; r++) {
        if (!z->ranks[r].measure)
            continue;
        z->ranks[r].measure = false;
        zero_reply(z, r, z->ranks[r].measure_request, code, "%s", text);
    }
}

static void finish(struct zero *z)
{
    uint32_t each = gathers_per_rank(z), reductions = z->measure.reductions;
    uint64_t reduce = sum_of_medians(z, 0, reductions);

    if (!z->memory.local)
        reduce *= z->memory.micro_steps;
    for (uint32_t r = 0; r < z->world; r++) {
        uint64_t gather = sum_of_medians(z, reductions + r * each, each);
        z->ranks[r].comm_alone_ns =
            reduce + gather * (z->memory.stage == 3 ? FETCHES_PER_STEP : 1);
    }
    measure_reset(z);
    answer_all(z, 0, "");
}

/* ---- running it ------------------------------------------------------------------------------ */

void measure_request(struct zero *z, uint32_t rank, uint32_t request)
{
    struct zero_rank *mine = &z->ranks[rank];

    if (mine->measure) {
        zero_reply(z, rank, request, GW_E_BUSY, "rank %u measures already", rank);
        return;
    }
    mine->measure = true;
    mine->measure_request = request;
    mine->measure_ns = z->now_ns;
}

void measure_reset(struct zero *z)
{
    free(z->measure.durations_ns);
    z->measure = (struct zero_measure){0};
}

static bool begin(struct zero *z)
{
    uint64_t ops = z->buckets + (uint64_t)z->world * gathers_per_rank(z);

    z->measure.durations_ns = calloc(ops * ZERO_PASSES + 1, sizeof(uint64_t));
    if (!z->measure.durations_ns) {
        answer_all(z, GW_E_NOMEM, "no memory for the times of a measurement");
        return false;
    }
    z->measure.running = true;
    z->measure.reductions = z->buckets;
    launch_half(z);
    return true;
}

/* All asked: 1; not yet: 0; < 0: cannot be, all who asked are told. */
static int all_asked(struct zero *z)
{
    char line[GW_TEXT_MAX + 1] = "";
    struct text why = TEXT(line);
    bool some = false, all = true;

    for (uint32_t r = 0; r < z->world; r++) {
        some |= z->ranks[r].measure;
        all &= z->ranks[r].measure;
    }
    if (!some)
        return 0;
    if (!zero_busy(z, &why)) {
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
        (all_asked(z) <= 0 || !tokens_quiet(z) || z->flight_count || !begin(z)))
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

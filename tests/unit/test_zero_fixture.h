/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the ZeRO layer share: a layer over a small layout, messages to it, and its
 * effects as lines of text, so that an expectation can be written down by hand:
 *
 *   RS b1 n2 acc [R0:0 -] -> [S0:2 S1:2] wait 0.3=7 sig b1@0=2 b1@1=2
 *
 * is a reduce-scatter of bucket 1, slices of 2 elements, adding; rank 0's input starts at element 0
 * of its RING, rank 1 gives nothing; outputs at element 2 of their SHARD_GRADS; waits for rank 0's
 * timeline 3 to be 7; raises the words of bucket 1 of ranks 0 and 1 to 2.
 *   arenas: P params, G grads, A acc, R ring, S shard grads, L pool, O overflow (index.offset);
 *           offsets in elements of the op's dtype; of gathers in bytes / 4
 *   ops:    RS AR GA (gather, for its rank; "second": from secondary shards) FI (fill of these,
 *           from its rank's POOL) LA (local add) ZE (zero) CA (cast, of its rank) VE
 *           (verdict) BA (only waits and signals)
 *   shown where it is not what fp32 and one flat group have: "r0,2" members, "fp16>fp32" dtypes,
 *           "x0.25" scale, "s2/4" first slice of partials and all of them
 *   others: SIG ... (a signal alone; "<n" after op n), ACQ@r slot, OVF@r index, DONE@r code,
 *           IO@r
 * Ids are shown where an op waits for another ("<7"); all_done() completes what was launched.
 */
#ifndef GW_TEST_ZERO_FIXTURE_H
#define GW_TEST_ZERO_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/text.h"
#include "daemon/core/edges.h"
#include "daemon/core/zero.h"

#define FX_PARAMS 32u
#define FX_GROUPS 4u
#define FX_LINES 4096u
#define FX_LINE 512u

struct fx {
    struct layout *layout;
    struct effects *effects;
    struct zero *zero;
    struct wire_seal options;
    struct layout_group groups[FX_GROUPS]; /* from group 1 on */
    uint32_t group_count;
    uint32_t world;
    bool ordered;
    uint64_t now_ns;
    uint32_t request;
    struct core_fault fault;
    /* effects since fx_lines was asked last */
    char lines[FX_LINES][FX_LINE];
    uint32_t count;
    char text[FX_LINES * 64];
    char last_text[GW_TEXT_MAX + 1]; /* of the last failed reply */
    /* ops not yet said to be done */
    uint64_t open[FX_LINES];
    uint32_t open_count;
    uint32_t launched[CORE_OP_VERDICT + 1]; /* by kind, in all */
};

struct fx_unit {
    const char *unit;
    uint64_t numel;
    uint32_t group;
    uint8_t dtype, grad_dtype;
};

/* ---- life ------------------------------------------------------------------------------------ */

static inline void fx_open_layout(struct fx *fx, const struct fx_unit *params, uint32_t count,
                                  uint64_t drop)
{
    static char names[FX_PARAMS][16];
    struct layout_param list[FX_PARAMS];
    struct layout_options options = {.stage = fx->options.stage,
                                     .world = fx->world,
                                     .bucket_bytes = fx->options.bucket_bytes,
                                     .align_bytes = fx->options.shard_align_bytes,
                                     .accum_as_grads = fx->options.accum_as_grads,
                                     .persist_bytes = fx->options.persist_bytes,
                                     .shard_ranks = fx->options.shard_ranks,
                                     .groups = fx->groups,
                                     .group_count = fx->group_count};
    uint32_t wrong;

    assert_true(count <= FX_PARAMS);
    for (uint32_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof(names[i]), "p%u", i);
        list[i] = (struct layout_param){.name = names[i],
                                        .unit = params[i].unit ? params[i].unit : "",
                                        .numel = params[i].numel,
                                        .group = params[i].group,
                                        .dtype = params[i].dtype,
                                        .grad_dtype = params[i].grad_dtype};
    }
    assert_int_equal(layout_new(&options, list, count, &fx->layout, &wrong), 0);
    assert_int_equal(effects_new(&fx->effects), 0);
    assert_int_equal(zero_new(fx->layout, &fx->options, fx->world, fx->ordered, drop, fx->effects,
                              &fx->zero),
                     0);
}

/* Parameters given by numel, each a unit of its own; bucket and align in elements. */
static inline struct fx *fx_new(uint32_t stage, uint32_t world, uint64_t bucket, uint32_t align)
{
    struct fx *fx = calloc(1, sizeof(*fx));

    assert_non_null(fx);
    fx->world = world;
    fx->options = (struct wire_seal){.stage = stage,
                                     .accumulate = stage < 2 ? GW_ACCUMULATE_LOCAL
                                                             : GW_ACCUMULATE_SHARD,
                                     .ring_slots = 3,
                                     .micro_steps = 1,
                                     .shard_align_bytes = align * 4,
                                     .bucket_bytes = bucket * 4,
                                     .scale = 1.0 / world};
    return fx;
}

#define fx_open(fx, drop, ...)                                                                     \
    do {                                                                                           \
        static const uint64_t numels_[] = {__VA_ARGS__};                                           \
        struct fx_unit params_[FX_PARAMS] = {{.unit = NULL}};                                      \
        for (size_t i_ = 0; i_ < sizeof(numels_) / sizeof(numels_[0]); i_++)                       \
            params_[i_].numel = numels_[i_];                                                       \
        fx_open_layout(fx, params_, sizeof(numels_) / sizeof(numels_[0]), drop);                   \
    } while (0)

static inline void fx_free(struct fx *fx)
{
    assert_false(effects_failed(fx->effects));
    zero_free(fx->zero);
    layout_free(fx->layout);
    effects_free(fx->effects);
    free(fx);
}

/* ---- effects as text ------------------------------------------------------------------------- */

static inline void fx_ref(struct text *text, const struct core_ref *ref, uint32_t dtype)
{
    static const char letters[GW_ARENA_KINDS] = {'-', 'P', 'G', 'A', 'R', 'S', 'L', 'O'};
    uint32_t bytes = gw_dtype_bytes(dtype);

    if (ref->kind == GW_ARENA_NONE)
        text_add(text, "-");
    else if (ref->kind == GW_ARENA_OVERFLOW)
        text_add(text, "O%d:%u.%llu", ref->rank, ref->index,
                 (unsigned long long)ref->offset_bytes / bytes);
    else
        text_add(text, "%c%d:%llu", letters[ref->kind], ref->rank,
                 (unsigned long long)ref->offset_bytes / bytes);
}

static inline void fx_refs(struct text *text, const struct core_ref *refs, uint32_t count,
                           uint32_t dtype)
{
    text_add(text, "[");
    for (uint32_t i = 0; i < count; i++) {
        text_add(text, "%s", i ? " " : "");
        fx_ref(text, &refs[i], dtype);
    }
    text_add(text, "]");
}

static inline void fx_signal(struct text *text, const struct core_signal *signal)
{
    static const char *const names[] = {"", "op", "b", "u", "step", "update"};
    uint32_t class = GW_TIMELINE_CLASS(signal->timeline);

    text_add(text, " %s", names[class]);
    if (class == GW_TL_BUCKET || class == GW_TL_UNIT)
        text_add(text, "%u", GW_TIMELINE_INDEX(signal->timeline));
    text_add(text, "@%u=%llu", signal->rank, (unsigned long long)signal->value);
    if (signal->offset)
        text_add(text, "+%llu", (unsigned long long)signal->offset / 4);
}

/* What is not as in a job of fp32 and one flat group of all ranks. */
static inline void fx_special(struct text *text, const struct fx *fx, const struct core_op *op)
{
    static const char *const dtypes[] = {"fp32", "fp16", "bf16"};
    bool sums = op->kind == CORE_OP_REDUCE_SCATTER || op->kind == CORE_OP_ALL_REDUCE;
    float mean = (float)(1.0 / fx->world);

    if (op->secondary)
        text_add(text, " second");
    if ((sums || op->kind == CORE_OP_GATHER || op->kind == CORE_OP_FILL) &&
        op->world != fx->world) {
        for (uint32_t i = 0; i < op->world; i++)
            text_add(text, i ? ",%u" : " r%u", op->members[i]);
    }
    if (op->in_dtype || op->out_dtype)
        text_add(text, " %s>%s", dtypes[op->in_dtype], dtypes[op->out_dtype]);
    if (op->round_dtype)
        text_add(text, " by %s", dtypes[op->round_dtype]);
    if (sums && (op->scale < mean || op->scale > mean))
        text_add(text, " x%g", (double)op->scale);
    if (sums && op->partials && (op->slice_first || op->slices != fx->world))
        text_add(text, " s%u/%u", op->slice_first, op->slices);
    if (sums && op->norm)
        text_add(text, " max");
}

static inline void fx_op(struct text *text, const struct fx *fx, const struct core_op *op)
{
    static const char *const names[] = {"RS", "AR", "AG", "GA", "FI", "BC",
                                        "BA", "LA", "ZE", "CA", "VE"};
    bool fill = op->kind == CORE_OP_FILL;
    bool one = op->kind == CORE_OP_LOCAL_ADD || op->kind == CORE_OP_ZERO || fill;

    text_add(text, "%s", names[op->kind]);
    if (op->kind == CORE_OP_VERDICT) {
        text_add(text, " step %llu used %u", (unsigned long long)op->step, op->used_params);
    } else if (op->kind == CORE_OP_CAST) {
        text_add(text, "@%u", op->rank);
    } else if (op->kind != CORE_OP_BARRIER) {
        if (op->kind == CORE_OP_GATHER || one)
            text_add(text, "@%u", op->rank);
        text_add(text, " b%u", op->bucket);
        if (op->bucket_count > 1)
            text_add(text, "+%u", op->bucket_count);
        text_add(text, " n%llu", (unsigned long long)op->numel);
    }
    text_add(text, "%s%s", op->accumulate ? " acc" : "", op->measure ? " measure" : "");
    fx_special(text, fx, op);
    if (op->in) {
        text_add(text, " ");
        fx_refs(text, op->in, one ? 1 : op->world, op->in_dtype);
        text_add(text, fill ? "" : " ->");
    }
    if (op->out) {
        text_add(text, " ");
        fx_refs(text, op->out, one || op->kind == CORE_OP_GATHER ? 1 : op->world,
                op->out_dtype);
    }
    for (uint32_t i = 0; i < op->wait_count; i++)
        text_add(text, "%s %u.%u=%llu", i ? "" : " wait", op->waits[i].rank, op->waits[i].index,
                 (unsigned long long)op->waits[i].value);
    for (uint32_t i = 0; i < op->signal_count; i++) {
        text_add(text, "%s", i ? "" : " sig");
        fx_signal(text, &op->signals[i]);
    }
    for (uint32_t i = 0; i < op->wait_op_count; i++)
        text_add(text, " <%llu", (unsigned long long)op->wait_ops[i]);
}

static inline void fx_launched(struct fx *fx, const struct core_op *op)
{
    assert_true(fx->open_count < FX_LINES);
    fx->open[fx->open_count++] = op->id;
    fx->launched[op->kind]++;
}

static inline void fx_line(struct fx *fx, const struct core_effect *effect)
{
    struct text text;

    assert_true(fx->count < FX_LINES);
    text_start(&text, fx->lines[fx->count++], FX_LINE);
    switch (effect->kind) {
    case CORE_EFF_LAUNCH:
        fx_op(&text, fx, &effect->op);
        fx_launched(fx, &effect->op);
        break;
    case CORE_EFF_SIGNAL:
        text_add(&text, "SIG");
        fx_signal(&text, &effect->signal);
        if (effect->after_op)
            text_add(&text, " <%llu", (unsigned long long)effect->after_op);
        break;
    case CORE_EFF_REPLY:
        if (effect->reply.type == WIRE_ACQUIRED) {
            text_add(&text, "ACQ@%u %d%s", effect->rank, (int)effect->reply.u.acquired.slot,
                     effect->reply.u.acquired.launched ? " launched" : "");
        } else {
            text_add(&text, "DONE@%u %d", effect->rank, effect->reply.u.done.code);
            snprintf(fx->last_text, sizeof(fx->last_text), "%s", effect->reply.u.done.text);
        }
        break;
    case CORE_EFF_OVERFLOW:
        text_add(&text, "OVF@%u %u", effect->rank, effect->index);
        break;
    case CORE_EFF_PARAM_IO:
        text_add(&text, "IO@%u %s p%u %llu+%llu", effect->rank, effect->io.write ? "w" : "r",
                 effect->io.param, (unsigned long long)effect->io.offset,
                 (unsigned long long)effect->io.count);
        break;
    default:
        text_add(&text, "effect %d", (int)effect->kind);
    }
    assert_false(text.cut);
}

static inline void fx_take(struct fx *fx)
{
    struct core_effect effect;

    while (effects_take(fx->effects, &effect))
        fx_line(fx, &effect);
}

/* All lines since the last call, each with a newline. */
static inline const char *fx_lines(struct fx *fx)
{
    struct text text = TEXT(fx->text);

    text_add(&text, "%s", "");
    for (uint32_t i = 0; i < fx->count; i++)
        text_add(&text, "%s\n", fx->lines[i]);
    assert_false(text.cut);
    fx->count = 0;
    return fx->text;
}

#define fx_expect(fx, expected) assert_string_equal(fx_lines(fx), expected)

/* How many lines since the last call start with `start`; forgets them. */
static inline uint32_t fx_count(struct fx *fx, const char *start)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < fx->count; i++)
        count += !strncmp(fx->lines[i], start, strlen(start));
    fx->count = 0;
    return count;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* What others had sent before it may still come. */
static inline int fx_send_early(struct fx *fx, uint32_t rank, struct wire_msg *msg)
{
    struct core_event event = {.kind = CORE_EV_REQUEST, .rank = rank, .msg = msg};
    int r;

    event.request = msg->request;
    fx->now_ns += 10;
    r = zero_event(fx->zero, fx->now_ns, &event, &fx->fault);
    fx_take(fx);
    return r;
}

static inline int fx_heard(struct fx *fx)
{
    struct core_event event = {.kind = CORE_EV_HEARD};
    int r;

    r = zero_event(fx->zero, fx->now_ns, &event, &fx->fault);
    fx_take(fx);
    return r;
}

/* Nothing else was sent before it. */
static inline int fx_send(struct fx *fx, uint32_t rank, struct wire_msg *msg)
{
    uint32_t before = zero_unheard(fx->zero);
    int r = fx_send_early(fx, rank, msg);

    return r == 0 && zero_unheard(fx->zero) > before ? fx_heard(fx) : r;
}

static inline int fx_bare(struct fx *fx, uint32_t rank, uint16_t type)
{
    struct wire_msg msg = {.type = type};

    return fx_send(fx, rank, &msg);
}

static inline struct wire_after fx_token(uint32_t timeline, uint64_t value)
{
    return (struct wire_after){.tokens = 1, .timeline = {timeline}, .value = {value}};
}

/* MICRO_END, STEP_END or UPDATE_COMMIT with a token of timeline 0. */
static inline int fx_after(struct fx *fx, uint32_t rank, uint16_t type, uint64_t value)
{
    struct wire_msg msg = {.type = type, .u.after = fx_token(0, value)};

    return fx_send(fx, rank, &msg);
}

static inline int fx_ready_one(struct fx *fx, uint32_t rank, struct wire_ready_entry entry)
{
    struct wire_msg msg = {.type = WIRE_READY};

    msg.u.ready.count = 1;
    msg.u.ready.entries = &entry;
    return fx_send(fx, rank, &msg);
}

/* The whole parameter, all its pieces in one message. */
static inline int fx_ready(struct fx *fx, uint32_t rank, uint32_t param, uint32_t flags,
                           uint32_t slot)
{
    struct wire_ready_entry entries[64] = {{0}};
    struct wire_msg msg = {.type = WIRE_READY};

    msg.u.ready.count = layout_params(fx->layout)[param].pieces;
    msg.u.ready.entries = entries;
    assert_true(msg.u.ready.count <= 64);
    for (uint32_t i = 0; i < msg.u.ready.count; i++) {
        entries[i].param = param;
        entries[i].piece = i;
        entries[i].flags = flags;
        entries[i].slot = slot;
    }
    return fx_send(fx, rank, &msg);
}

static inline int fx_unit(struct fx *fx, uint32_t rank, uint16_t type, uint32_t unit)
{
    struct wire_msg msg = {.type = type};

    msg.u.unit.unit = unit;
    return fx_send(fx, rank, &msg);
}

static inline int fx_unit_after(struct fx *fx, uint32_t rank, uint16_t type, uint32_t unit,
                                uint64_t value)
{
    struct wire_msg msg = {.type = type};

    msg.u.unit.unit = unit;
    msg.u.unit.after = fx_token(0, value);
    return fx_send(fx, rank, &msg);
}

/* A parameter of one piece, with a token of timeline 0. */
static inline int fx_ready_after(struct fx *fx, uint32_t rank, uint32_t param, uint32_t flags,
                                 uint32_t slot, uint64_t value)
{
    struct wire_ready_entry entry = {.param = param, .flags = flags, .slot = slot, .tokens = 1,
                                     .timeline = {0}, .value = {value}};

    return fx_ready_one(fx, rank, entry);
}

static inline int fx_request(struct fx *fx, uint32_t rank, uint16_t type)
{
    struct wire_msg msg = {.type = type, .request = ++fx->request};

    return fx_send(fx, rank, &msg);
}

static inline int fx_acquire(struct fx *fx, uint32_t rank, uint32_t bucket)
{
    struct wire_msg msg = {.type = WIRE_ACQUIRE, .request = ++fx->request};

    msg.u.acquire.bucket = bucket;
    return fx_send(fx, rank, &msg);
}

/* The client's stream will wait. */
static inline int fx_acquire_ordered(struct fx *fx, uint32_t rank, uint32_t bucket)
{
    struct wire_msg msg = {.type = WIRE_ACQUIRE, .request = ++fx->request};

    msg.u.acquire.bucket = bucket;
    msg.u.acquire.ordered = 1;
    return fx_send(fx, rank, &msg);
}

static inline struct wire_msg fx_io_msg(struct fx *fx, uint32_t write, uint32_t param,
                                        uint64_t offset, uint64_t count)
{
    struct wire_msg msg = {.type = WIRE_PARAM_IO, .request = ++fx->request};

    msg.u.param_io.write = write;
    msg.u.param_io.param = param;
    msg.u.param_io.offset = offset;
    msg.u.param_io.count = count;
    return msg;
}

static inline int fx_io(struct fx *fx, uint32_t rank, uint32_t write, uint32_t param,
                        uint64_t offset, uint64_t count)
{
    struct wire_msg msg = fx_io_msg(fx, write, param, offset, count);

    return fx_send(fx, rank, &msg);
}

/* The job forms again. Nothing is launched before its memory is there. */
static inline int fx_reattach(struct fx *fx)
{
    uint32_t lines = fx->count;
    int r;

    r = zero_reattach(fx->zero, &fx->fault);
    fx_take(fx);
    assert_int_equal(fx->count, lines);
    if (r == 0)
        zero_renew(fx->zero, fx->now_ns);
    fx_take(fx);
    return r;
}

static inline int fx_overflow(struct fx *fx, uint32_t rank, int code)
{
    struct core_event event = {.kind = CORE_EV_OVERFLOW, .rank = rank, .code = code};
    int r;

    r = zero_event(fx->zero, fx->now_ns, &event, &fx->fault);
    fx_take(fx);
    return r;
}

#define fx_all(fx, type)                                                                           \
    do {                                                                                           \
        for (uint32_t r_ = 0; r_ < (fx)->world; r_++)                                              \
            assert_int_equal(fx_bare(fx, r_, type), 0);                                            \
    } while (0)

/* Op `id` ran from started to done. */
static inline void fx_done(struct fx *fx, uint64_t id, uint64_t started_ns, uint64_t done_ns)
{
    for (uint32_t i = 0; i < fx->open_count; i++) {
        if (fx->open[i] == id)
            fx->open[i] = fx->open[--fx->open_count];
    }
    zero_op_done(fx->zero, fx->now_ns, id, started_ns, done_ns);
    fx_take(fx);
}

/* Everything launched so far, and what that leads to, is done. */
static inline void fx_all_done(struct fx *fx)
{
    while (fx->open_count) {
        uint32_t oldest = 0;

        for (uint32_t i = 1; i < fx->open_count; i++) {
            if (fx->open[i] < fx->open[oldest])
                oldest = i;
        }
        fx->now_ns += 10;
        fx_done(fx, fx->open[oldest], fx->now_ns - 5, fx->now_ns);
    }
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of the core without its ZeRO layer: a job in virtual time whose effects are kept in
 * order, and a ZeRO layer that only does what the test told it to. Included once per program.
 */
#ifndef GW_TESTS_TEST_CORE_KIT_H
#define GW_TESTS_TEST_CORE_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/core.h"
#include "daemon/core/zero.h"

#define S 1000000000ull
#define KIT_EFFECTS 256u

/* ---- a ZeRO layer that does as it is told ---------------------------------------------------- */

static struct {
    uint32_t made, freed, reattached, renewed, ops_done, late_begins, late_commits;
    uint16_t last_type; /* of the last message */
    uint32_t last_rank;
    int result, reattach_result; /* with `fault` */
    struct core_fault fault;
    uint64_t needs; /* a bit per rank */
    uint32_t unheard;
    uint64_t unsettled; /* a bit per rank */
    uint32_t ops_launched, resumes;
    bool waits;
    struct core_wait wait;
    uint64_t steps;
    struct effects *effects;
    bool launches; /* each event launches a reduction that waits for a token of rank 1 */
    uint64_t last_op;
} fake;

struct zero {
    uint32_t world;
};

int zero_new(const struct layout *layout, const struct wire_seal *options, uint32_t world,
             bool ordered, uint64_t drop_edges, struct effects *effects, struct zero **ret_zero)
{
    struct zero *zero = calloc(1, sizeof(*zero));

    (void)layout;
    (void)options;
    (void)ordered;
    (void)drop_edges;
    if (!zero)
        return GW_E_NOMEM;
    fake.made++;
    fake.effects = effects;
    zero->world = world;
    *ret_zero = zero;
    return 0;
}

uint64_t zero_op_submitted(struct zero *zero, uint32_t rank)
{
    (void)zero;
    (void)rank;
    return 0;
}

bool zero_settled(const struct zero *zero, uint32_t rank, uint64_t mark)
{
    (void)zero;
    (void)mark;
    return !(fake.unsettled >> rank & 1u);
}

void zero_op_launched(struct zero *zero, uint32_t rank)
{
    (void)zero;
    (void)rank;
    fake.ops_launched++;
}

int zero_resume(struct zero *zero, uint64_t now_ns, struct core_fault *ret_fault)
{
    (void)zero;
    (void)now_ns;
    (void)ret_fault;
    fake.resumes++;
    return 0;
}

struct zero *zero_free(struct zero *zero)
{
    fake.freed += zero != NULL;
    free(zero);
    return NULL;
}

static void fake_launch(void)
{
    struct core_op *op = &effects_add(fake.effects, CORE_EFF_LAUNCH)->op;
    struct core_token *waits = effects_alloc(fake.effects, sizeof(*waits));

    assert_non_null(waits);
    *waits = (struct core_token){.rank = 1, .index = 5, .value = 9};
    op->id = fake.last_op = effects_next_op(fake.effects);
    op->kind = CORE_OP_REDUCE_SCATTER;
    op->bucket = 3;
    op->step = 12;
    op->waits = waits;
    op->wait_count = 1;
}

int zero_event(struct zero *zero, uint64_t now_ns, const struct core_event *event,
               struct core_fault *ret_fault)
{
    (void)zero;
    (void)now_ns;
    fake.last_type = event->kind == CORE_EV_REQUEST ? event->msg->type : 0;
    fake.last_rank = event->rank;
    if (fake.launches)
        fake_launch();
    if (fake.result < 0)
        *ret_fault = fake.fault;
    return fake.result;
}

uint32_t zero_unheard(const struct zero *zero)
{
    (void)zero;
    return fake.unheard;
}

void zero_op_done(struct zero *zero, uint64_t now_ns, uint64_t op, uint64_t started_ns,
                  uint64_t done_ns)
{
    (void)zero;
    (void)now_ns;
    (void)op;
    (void)started_ns;
    (void)done_ns;
    fake.ops_done++;
}

bool zero_needs(const struct zero *zero, uint32_t rank)
{
    (void)zero;
    return fake.needs >> rank & 1u;
}

void zero_late_update(struct zero *zero, uint32_t rank, bool commit)
{
    (void)zero;
    fake.last_rank = rank;
    fake.late_begins += !commit;
    fake.late_commits += commit;
}

bool zero_oldest_wait(const struct zero *zero, struct core_wait *ret_wait)
{
    (void)zero;
    if (fake.waits)
        *ret_wait = fake.wait;
    return fake.waits;
}

int zero_reattach(struct zero *zero, struct core_fault *ret_fault)
{
    (void)zero;
    fake.reattached++;
    if (fake.reattach_result < 0)
        *ret_fault = fake.fault;
    return fake.reattach_result;
}

void zero_renew(struct zero *zero, uint64_t now_ns)
{
    (void)zero;
    (void)now_ns;
    fake.renewed++;
}

uint64_t zero_steps(const struct zero *zero)
{
    (void)zero;
    return fake.steps;
}

uint64_t zero_arena_bytes(const struct zero *zero, enum gw_arena_kind kind, int rank)
{
    (void)zero;
    (void)kind;
    (void)rank;
    return 4096;
}

struct core_ref zero_param_slice(const struct zero *zero, uint32_t bucket, uint32_t rank)
{
    (void)zero;
    return (struct core_ref){.kind = GW_ARENA_PARAMS, .rank = (int16_t)rank, .index = bucket};
}

struct core_ref zero_master_slice(const struct zero *zero, uint32_t bucket, uint32_t rank)
{
    (void)zero;
    return (struct core_ref){.kind = GW_ARENA_MASTER, .rank = (int16_t)rank, .index = bucket};
}

struct core_ref zero_secondary_slice(const struct zero *zero, uint32_t bucket, uint32_t rank)
{
    (void)zero;
    return (struct core_ref){.kind = GW_ARENA_SECONDARY, .rank = (int16_t)rank, .index = bucket};
}

struct core_ref zero_param_ref(const struct zero *zero, uint32_t param, uint64_t offset,
                               uint32_t rank, uint64_t *ret_count)
{
    (void)zero;
    *ret_count = 1;
    return (struct core_ref){.kind = GW_ARENA_PARAMS, .rank = (int16_t)rank, .index = param,
                             .offset_bytes = offset};
}

struct core_ref zero_master_ref(const struct zero *zero, uint32_t param, uint64_t offset,
                                uint32_t rank, uint64_t *ret_count)
{
    (void)zero;
    *ret_count = 2;
    return (struct core_ref){.kind = GW_ARENA_MASTER, .rank = (int16_t)rank, .index = param,
                             .offset_bytes = offset};
}

uint64_t zero_gathered(const struct zero *zero, uint32_t bucket, uint32_t rank)
{
    (void)zero;
    return 100 * bucket + rank;
}

void zero_stats(const struct zero *zero, uint32_t rank, struct wire_msg *msg)
{
    (void)zero;
    (void)rank;
    msg->u.stats.steps = fake.steps;
}

/* ---- a job in virtual time ------------------------------------------------------------------- */

/* What a launched op said, copied before its arrays die. */
struct kit_op {
    struct core_op op;
    struct core_ref in[GW_RANKS_MAX], out[GW_RANKS_MAX];
    struct core_signal signals[GW_RANKS_MAX];
    struct core_token waits[GW_RANKS_MAX * GW_READY_TOKENS];
    uint32_t members[GW_RANKS_MAX];
};

static struct {
    struct core *core;
    uint64_t now_ns;
    struct core_effect effects[KIT_EFFECTS];
    struct kit_op ops[KIT_EFFECTS]; /* beside the effects */
    uint32_t count, read;
    uint32_t request; /* last number given */
} kit;

static uint32_t kit_device; /* of the jobs that start */

static const char *const kit_names[] = {"REPLY", "LAUNCH", "SIGNAL",   "BUILD",  "OVERFLOW", "FAIL",
                                        "DROP",  "PARAM_IO", "REPORT", "END"};

static void kit_keep_op(const struct core_op *op, struct kit_op *kept)
{
    kept->op = *op;
    if (op->members)
        memcpy(kept->members, op->members, op->world * sizeof(kept->members[0]));
    if (op->in)
        memcpy(kept->in, op->in,
               (op->kind == CORE_OP_BROADCAST ? 1 : op->world) * sizeof(kept->in[0]));
    if (op->out)
        memcpy(kept->out, op->out, op->world * sizeof(kept->out[0]));
    if (op->waits)
        memcpy(kept->waits, op->waits, op->wait_count * sizeof(kept->waits[0]));
    if (op->signals)
        memcpy(kept->signals, op->signals, op->signal_count * sizeof(kept->signals[0]));
}

static void kit_drain(void)
{
    while (core_next_effect(kit.core, &kit.effects[kit.count])) {
        if (kit.effects[kit.count].kind == CORE_EFF_LAUNCH)
            kit_keep_op(&kit.effects[kit.count].op, &kit.ops[kit.count]);
        kit.count++;
        assert_true(kit.count < KIT_EFFECTS);
    }
}

static void kit_event(const struct core_event *event)
{
    if (kit.read == kit.count)
        kit.read = kit.count = 0;
    assert_int_equal(core_handle(kit.core, kit.now_ns, event), 0);
    kit_drain();
}

/* stall_report 10 s, join and op deadlines as given in s. */
static inline void kit_start(uint32_t world, uint64_t join_s, uint64_t op_s)
{
    struct core_config config = {.world = world, .join_timeout_ns = join_s * S,
                                 .op_timeout_ns = op_s * S, .stall_report_ns = 10 * S,
                                 .device = kit_device};

    memset(&kit, 0, sizeof(kit));
    memset(&fake, 0, sizeof(fake));
    kit.now_ns = 100 * S;
    assert_int_equal(core_new(&config, &kit.core), 0);
}

static inline int kit_stop(void **state)
{
    (void)state;
    kit.core = core_free(kit.core);
    return 0;
}

/* The next effect, which must be of this kind. */
static struct core_effect *kit_next(enum core_effect_kind kind)
{
    struct core_effect *effect = &kit.effects[kit.read];

    if (kit.read == kit.count)
        fail_msg("expected effect %s, but there is none", kit_names[kind]);
    if (effect->kind != kind)
        fail_msg("expected effect %s, got %s of rank %u: '%s'", kit_names[kind],
                 kit_names[effect->kind], effect->rank,
                 effect->kind == CORE_EFF_REPLY && effect->reply.type == WIRE_DONE
                     ? effect->reply.u.done.text : effect->text);
    kit.read++;
    return effect;
}

static inline void kit_none(void)
{
    if (kit.read != kit.count)
        fail_msg("expected no effect, got %s of rank %u: '%s'",
                 kit_names[kit.effects[kit.read].kind], kit.effects[kit.read].rank,
                 kit.effects[kit.read].text);
}

static void kit_has(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("expected a text with \"%s\", got \"%s\"", part, text);
}

/* A reply without content, or an error whose text holds `part`. */
static inline void kit_done(uint32_t rank, uint32_t request, int code, const char *part)
{
    struct core_effect *effect = kit_next(CORE_EFF_REPLY);

    if (effect->reply.type != WIRE_DONE || effect->reply.u.done.code != code)
        fail_msg("expected DONE %d \"%s\", got type %u code %d \"%s\"", code, part,
                 effect->reply.type, effect->reply.u.done.code, effect->reply.u.done.text);
    assert_int_equal(effect->rank, rank);
    assert_int_equal(effect->reply.request, request);
    kit_has(effect->reply.u.done.text, part);
}

static inline struct core_effect *kit_reply(uint32_t rank, uint32_t request, uint16_t type)
{
    struct core_effect *effect = kit_next(CORE_EFF_REPLY);

    if (effect->reply.type != type)
        fail_msg("expected a reply of type %u, got %u: \"%s\"", type, effect->reply.type,
                 effect->reply.u.done.text);
    assert_int_equal(effect->rank, rank);
    assert_int_equal(effect->reply.request, request);
    return effect;
}

static inline const char *kit_fail(int code, uint32_t rank)
{
    struct core_effect *effect = kit_next(CORE_EFF_FAIL);

    if (effect->code != code || effect->rank != rank)
        fail_msg("expected failure %d by rank %d, got %d by rank %d: \"%s\"", code, (int)rank,
                 effect->code, (int)effect->rank, effect->text);
    return effect->text;
}

static inline void kit_tick(uint64_t now_ns)
{
    struct core_event event = {.kind = CORE_EV_TICK};

    kit.now_ns = now_ns;
    kit_event(&event);
}

static inline void kit_join_world(uint32_t rank, uint32_t world)
{
    struct core_event event = {.kind = CORE_EV_JOIN, .rank = rank, .world = world};

    event.request = ++kit.request;
    kit_event(&event);
}

static inline void kit_joined(uint32_t rank, uint32_t generation)
{
    struct core_effect *effect = kit_reply(rank, kit.request, WIRE_JOINED);

    assert_int_equal(effect->reply.u.joined.generation, generation);
    assert_int_equal(effect->index, 1);
}

/* All ranks of a job of `world` join; effects are checked and gone. */
static inline void kit_join_all(uint32_t world, uint32_t generation)
{
    for (uint32_t rank = 0; rank < world; rank++) {
        kit_join_world(rank, world);
        kit_joined(rank, generation);
    }
    kit_none();
}

static inline void kit_gone(enum core_event_kind kind, uint32_t rank, const char *how)
{
    struct core_event event = {.kind = kind, .rank = rank, .text = how};

    kit_event(&event);
}

/* Sends a message as it is. */
static void kit_send(uint32_t rank, struct wire_msg *msg)
{
    struct core_event event = {.kind = CORE_EV_REQUEST, .rank = rank, .msg = msg};

    event.request = msg->request;
    kit_event(&event);
}

/* Sends a request; its number. */
static inline uint32_t kit_ask(uint32_t rank, struct wire_msg *msg, uint16_t type)
{
    msg->type = type;
    msg->request = ++kit.request;
    kit_send(rank, msg);
    return msg->request;
}

static inline uint32_t kit_ask_empty(uint32_t rank, uint16_t type)
{
    struct wire_msg msg = {0};

    return kit_ask(rank, &msg, type);
}

static inline void kit_tell(uint32_t rank, uint16_t type)
{
    struct wire_msg msg = {.type = type};

    kit_send(rank, &msg);
}

/* ---- seals ----------------------------------------------------------------------------------- */

struct kit_param {
    const char *name, *unit;
    uint64_t numel;
};

/* The whole list in one page. */
static inline uint32_t kit_register_page(uint32_t rank, struct wire_param *page, uint32_t count)
{
    struct wire_msg msg = {0};

    msg.u.reg.total = msg.u.reg.count = count;
    msg.u.reg.params = page;
    return kit_ask(rank, &msg, WIRE_REGISTER);
}

/* ... its reply is checked. */
static inline void kit_register(uint32_t rank, const struct kit_param *params, uint32_t count)
{
    struct wire_param page[GW_PARAMS_PER_FRAME];

    for (uint32_t i = 0; i < count; i++)
        page[i] = (struct wire_param){
            .name = params[i].name, .unit = params[i].unit, .numel = params[i].numel};
    kit_done(rank, kit_register_page(rank, page, count), 0, "");
}

static inline uint32_t kit_seal(uint32_t rank, const struct wire_seal *seal)
{
    struct wire_msg msg = {.u.seal = *seal};

    return kit_ask(rank, &msg, WIRE_SEAL);
}

static inline void kit_built(int code, const char *text)
{
    struct core_event event = {.kind = CORE_EV_BUILT, .code = code, .text = text};

    kit_event(&event);
}

/* A sealed job of `world` ranks with one parameter of 8 elements. */
static inline void kit_seal_all(uint32_t world)
{
    const struct kit_param param = {"w", "", 8};
    const struct wire_seal seal = {.stage = 2, .bucket_bytes = 64};
    uint32_t requests[GW_RANKS_MAX];

    for (uint32_t rank = 0; rank < world; rank++) {
        kit_register(rank, &param, 1);
        requests[rank] = kit_seal(rank, &seal);
    }
    kit_next(CORE_EFF_BUILD);
    kit_built(0, NULL);
    for (uint32_t rank = 0; rank < world; rank++)
        kit_reply(rank, requests[rank], WIRE_SEALED);
    kit_none();
}

#endif

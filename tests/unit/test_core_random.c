/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seeded random events, sound and unsound, against one core. Whatever comes: it returns 0, every
 * request of a client that stays has exactly one reply, failures and generations alternate,
 * deadlines lie ahead, ops are numbered in order and name only attached ranks.
 */
#include "tests/unit/test_core_kit.h"

#define SEEDS 60u
#define EVENTS 600u
#define WORLD 3u
#define OPEN_MAX 4096u

static uint64_t random_state;

static uint32_t pick(uint32_t below)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 33) % below;
}

/* What the outside knows. */
static struct {
    bool attached[WORLD];
    bool open[WORLD][OPEN_MAX]; /* by request number */
    uint32_t requests[WORLD];
    uint64_t sequence[WORLD];
    uint64_t flying[OPEN_MAX];
    uint32_t flights, builds;
    uint64_t last_op;
    bool broken, ended;
} seen;

static void forget(uint32_t rank)
{
    seen.attached[rank] = false;
    memset(seen.open[rank], 0, sizeof(seen.open[rank]));
    seen.sequence[rank] = 0;
}

static void see_reply(const struct core_effect *effect, const struct core_event *cause)
{
    uint32_t rank = effect->rank, request = effect->reply.request;

    if (effect->index == 1) {
        assert_int_equal(cause->kind, CORE_EV_JOIN);
        assert_int_equal(request, cause->request);
        if (effect->reply.type == WIRE_JOINED) {
            assert_false(seen.attached[rank]);
            seen.attached[rank] = true;
            seen.broken = false;
        }
        return;
    }
    assert_true(seen.attached[rank]);
    if (!seen.open[rank][request])
        fail_msg("request %u of rank %u was answered though it does not wait", request, rank);
    seen.open[rank][request] = false;
}

static void see_effects(const struct core_event *cause)
{
    for (; kit.read < kit.count; kit.read++) {
        const struct core_effect *effect = &kit.effects[kit.read];

        switch (effect->kind) {
        case CORE_EFF_REPLY:
            see_reply(effect, cause);
            break;
        case CORE_EFF_DROP:
            assert_true(seen.attached[effect->rank]);
            forget(effect->rank);
            break;
        case CORE_EFF_FAIL:
            assert_false(seen.broken);
            assert_true(effect->code < 0 && effect->text[0]);
            seen.broken = true;
            break;
        case CORE_EFF_BUILD:
            seen.builds++;
            break;
        case CORE_EFF_LAUNCH:
            assert_int_equal(effect->op.id, seen.last_op + 1);
            seen.last_op = effect->op.id;
            assert_false(seen.broken);
            for (uint32_t i = 0; i < effect->op.world; i++)
                assert_true(seen.attached[kit.ops[kit.read].members[i]]);
            if (seen.flights < OPEN_MAX)
                seen.flying[seen.flights++] = effect->op.id;
            break;
        case CORE_EFF_END:
            seen.ended = true;
            break;
        default:
            break;
        }
    }
}

static void event(const struct core_event *event)
{
    kit_event(event);
    see_effects(event);
    if (core_deadline_ns(kit.core) <= kit.now_ns)
        fail_msg("deadline %llu is not after %llu",
                 (unsigned long long)core_deadline_ns(kit.core), (unsigned long long)kit.now_ns);
}

static const struct wire_seal seal = {.stage = 1, .bucket_bytes = 64};

static void fill_message(struct wire_msg *msg, uint32_t rank)
{
    static const uint16_t types[] = {
        WIRE_WAIT_READY,  WIRE_GROUP_NEW, WIRE_REGISTER, WIRE_SEAL, WIRE_BUFFER_FREE, WIRE_OP,
        WIRE_PARAM_GROUP, WIRE_OP,        WIRE_REGISTER, WIRE_SEAL, WIRE_ARENA_GET,   WIRE_STEP_END,
        WIRE_READY,       WIRE_ACQUIRE,   WIRE_LEAVE,    WIRE_JOIN};
    static struct wire_param param = {.name = "w", .unit = "", .numel = 8};
    static uint32_t ranks[2];
    /* The last four end something: rare. */
    uint32_t most = sizeof(types) / sizeof(types[0]) - (pick(20) ? 5 : 0);

    memset(msg, 0, sizeof(*msg));
    msg->type = types[pick(most)];
    switch (msg->type) {
    case WIRE_GROUP_NEW:
        msg->u.group_new.count = 1 + pick(2);
        ranks[0] = pick(6) ? rank : pick(WORLD + 1);
        ranks[1] = pick(WORLD);
        msg->u.group_new.ranks = ranks;
        break;
    case WIRE_PARAM_GROUP:
        msg->u.param_group.count = 1;
        ranks[0] = pick(8) ? 0 : pick(WORLD + 1);
        msg->u.param_group.ranks = ranks;
        break;
    case WIRE_REGISTER:
        param.group = pick(8) ? 0 : pick(3);
        param.numel = pick(30) ? 8 : 9;
        msg->u.reg.total = msg->u.reg.count = 1;
        msg->u.reg.params = &param;
        break;
    case WIRE_SEAL:
        msg->u.seal = seal;
        msg->u.seal.stage = pick(30) ? 1 : 4;
        break;
    case WIRE_BUFFER_FREE:
        msg->u.buffer_free.buffer = pick(3);
        break;
    case WIRE_OP:
        msg->u.op.kind = pick(60) ? WIRE_OP_BARRIER : 1 + pick(4);
        msg->u.op.group = pick(60) ? 0 : pick(3);
        msg->u.op.count = pick(6) ? 2 : pick(40);
        msg->u.op.send_buffer = pick(10) ? 1 : 2;
        msg->u.op.recv_buffer = 1;
        msg->u.op.sequence = ++seen.sequence[rank] + !pick(200);
        break;
    default:
        break;
    }
}

static bool one_way(uint16_t type)
{
    return type == WIRE_OP || type == WIRE_STEP_END || type == WIRE_READY || type == WIRE_LEAVE;
}

static void message(uint32_t rank)
{
    struct wire_msg msg;
    struct core_event ev = {.kind = CORE_EV_REQUEST, .rank = rank, .msg = &msg};

    if (!seen.attached[rank])
        return;
    fill_message(&msg, rank);
    if (!one_way(msg.type)) {
        msg.request = ++seen.requests[rank];
        assert_true(msg.request < OPEN_MAX);
        seen.open[rank][msg.request] = true;
    }
    ev.request = msg.request;
    event(&ev);
    if (msg.type == WIRE_LEAVE)
        forget(rank);
}

static void step(void)
{
    struct core_event ev = {.rank = pick(WORLD), .world = WORLD};

    switch (pick(16)) {
    case 0:
    case 1:
    case 2:
        ev.kind = CORE_EV_JOIN;
        ev.request = 9999;
        event(&ev);
        return;
    case 3:
        if (pick(12) || !seen.attached[ev.rank])
            return;
        ev.kind = pick(2) ? CORE_EV_LOST : CORE_EV_LEAVE;
        ev.text = "gone";
        forget(ev.rank); /* the engine sends a dead client nothing */
        break;
    case 4:
        if (!seen.builds)
            return;
        ev.kind = CORE_EV_BUILT;
        ev.code = pick(5) ? 0 : GW_E_NOMEM;
        seen.builds--;
        break;
    case 5:
        if (!seen.attached[ev.rank])
            return;
        ev.kind = CORE_EV_BUFFER;
        ev.index = 1;
        ev.size_bytes = 64;
        break;
    case 6:
        if (!seen.flights)
            return;
        ev.kind = CORE_EV_OP_DONE;
        ev.op = seen.flying[--seen.flights];
        break;
    case 7:
        ev.kind = CORE_EV_TICK;
        kit.now_ns += pick(8) ? S : 20 * S;
        break;
    default:
        message(ev.rank);
        return;
    }
    event(&ev);
}

/* A failure answers all that waits; so after everybody is gone nothing may be left open. */
static void check_open(void)
{
    for (uint32_t rank = 0; rank < WORLD && seen.broken; rank++) {
        for (uint32_t i = 0; i < OPEN_MAX; i++) {
            if (seen.open[rank][i])
                fail_msg("request %u of rank %u has no reply though the job failed", i, rank);
        }
    }
}

static void test_random_events(void **state)
{
    uint64_t launched = 0, sealed = 0;
    uint32_t generations = 0;

    (void)state;
    for (uint32_t seed = 1; seed <= SEEDS; seed++) {
        random_state = seed;
        memset(&seen, 0, sizeof(seen));
        kit_start(WORLD, 100, 60);
        for (uint32_t i = 0; i < EVENTS && !seen.ended; i++) {
            step();
            check_open();
            sealed += core_state(kit.core) == GW_JOB_SEALED;
        }
        launched += seen.last_op;
        generations += core_generation(kit.core);
        kit.core = core_free(kit.core);
    }
    print_message("%u seeds: %u generations, %llu ops, %llu events while sealed\n", SEEDS,
                  generations, (unsigned long long)launched, (unsigned long long)sealed);
    /* The run must have been worth something. */
    assert_true(generations > SEEDS);
    assert_true(launched > SEEDS);
    assert_true(sealed > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_random_events, kit_stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

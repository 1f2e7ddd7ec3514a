/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core's outside: events in, effects out, and what the engine may ask. Sends each event to the
 * part that owns it (membership, registry and seal, groups and lanes, ZeRO) and keeps the list of
 * requests that wait for their reply, so that none stays unanswered when the job fails.
 * Pure; one thread. Must not decide anything that a part owns.
 */
#include "daemon/core/core_internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define JOIN_TIMEOUT_NS 300000000000ull
#define OP_TIMEOUT_NS 1800000000000ull
#define STALL_REPORT_NS 10000000000ull
#define NAME_SHOWN 48u /* bytes of a name in an error text; two must fit beside what happened */

/* ---- life ---------------------------------------------------------------------------------------- */

int core_new(const struct core_config *config, struct core **ret_core)
{
    struct core *core = NULL;
    int r;

    if (config->world == 0 || config->world > GW_RANKS_MAX)
        return GW_E_INVALID;
    core = calloc(1, sizeof(*core));
    if (!core)
        return GW_E_NOMEM;
    core->config = *config;
    if (core->config.join_timeout_ns == 0)
        core->config.join_timeout_ns = JOIN_TIMEOUT_NS;
    if (core->config.op_timeout_ns == 0)
        core->config.op_timeout_ns = OP_TIMEOUT_NS;
    if (core->config.stall_report_ns == 0)
        core->config.stall_report_ns = STALL_REPORT_NS;
    core->everyone = UINT64_MAX >> (64 - config->world);
    core->deadline_ns = UINT64_MAX;
    core->flights_end = &core->flights;
    core->ranks = calloc(config->world, sizeof(*core->ranks));
    r = core->ranks ? effects_new(&core->effects) : GW_E_NOMEM;
    if (r < 0) {
        core_free(core);
        return r;
    }
    group_reset(core);
    *ret_core = core;
    return 0;
}

struct core *core_free(struct core *core)
{
    if (!core)
        return NULL;
    if (core->ranks) {
        lane_reset(core);
        seal_reset(core);
    }
    reg_list_clear(&core->kept_list);
    zero_free(core->zero);
    layout_free(core->layout);
    effects_free(core->effects);
    free(core->ranks);
    free(core);
    return NULL;
}

/* ---- requests that wait ---------------------------------------------------------------------------- */

static bool open_find(const struct core *core, uint32_t rank, uint32_t request, uint32_t *ret_at)
{
    const struct core_rank *mine = &core->ranks[rank];

    for (uint32_t i = 0; i < mine->open_count; i++) {
        if (mine->open[i].id == request) {
            *ret_at = i;
            return true;
        }
    }
    return false;
}

static void open_close(struct core *core, uint32_t rank, uint32_t request)
{
    struct core_rank *mine = &core->ranks[rank];
    uint32_t at;

    if (!open_find(core, rank, request, &at))
        return;
    mine->open_count--;
    memmove(&mine->open[at], &mine->open[at + 1],
            (mine->open_count - at) * sizeof(mine->open[0]));
}

struct core_effect *core_reply(struct core *core, uint32_t rank, uint32_t request, uint16_t type)
{
    struct core_effect *effect = effects_add(core->effects, CORE_EFF_REPLY);

    effect->rank = rank;
    effect->reply.type = type;
    effect->reply.request = request;
    open_close(core, rank, request);
    return effect;
}

void core_reply_done(struct core *core, uint32_t rank, uint32_t request, int code,
                     const char *format, ...)
{
    struct core_effect *effect = core_reply(core, rank, request, WIRE_DONE);
    struct text text = TEXT(effect->reply.u.done.text);
    va_list arguments;

    effect->code = code;
    effect->reply.u.done.code = code;
    va_start(arguments, format);
    text_addv(&text, format, arguments);
    va_end(arguments);
}

void core_reply_all(struct core *core, uint16_t type)
{
    for (uint32_t rank = 0; rank < core->config.world; rank++) {
        struct core_rank *mine = &core->ranks[rank];

        for (uint32_t i = mine->open_count; i-- > 0;) {
            if (mine->open[i].type == type)
                core_reply_done(core, rank, mine->open[i].id, 0, "%s", "");
        }
    }
}

/* Whoever waits for a reply learns why it does not come. */
static void open_fail(struct core *core, int code, const char *text)
{
    for (uint32_t rank = 0; rank < core->config.world; rank++) {
        while (core->ranks[rank].open_count > 0)
            core_reply_done(core, rank, core->ranks[rank].open[0].id, code, "%s", text);
    }
}

/* ---- failure --------------------------------------------------------------------------------------- */

static void fail_now(struct core *core)
{
    struct core_effect *effect = effects_add(core->effects, CORE_EFF_FAIL);

    core->broken = true;
    core->broken_ns = core->now_ns;
    effect->rank = core->failure.rank;
    effect->code = core->failure.code;
    memcpy(effect->text, core->failure.text, sizeof(effect->text));
}

void core_fail(struct core *core, int code, uint32_t rank, const char *format, ...)
{
    struct text text = TEXT(core->failure.text);
    va_list arguments;

    if (core->broken || core->ended)
        return;
    core->failure.code = code;
    core->failure.rank = rank;
    va_start(arguments, format);
    text_addv(&text, format, arguments);
    va_end(arguments);
    fail_now(core);
}

void core_fail_fault(struct core *core, const struct core_fault *fault, int r)
{
    if (fault->code < 0)
        core_fail(core, fault->code, fault->rank, "%s", fault->text);
    else
        core_fail(core, r, CORE_NO_RANK, "the ZeRO layer failed with error %d", r);
}

void core_add_name(struct text *text, const char *name)
{
    char shown[NAME_SHOWN + 1];
    size_t bytes = strnlen(name, NAME_SHOWN + 1);
    bool cut = bytes > NAME_SHOWN;

    bytes = cut ? NAME_SHOWN : bytes;
    memcpy(shown, name, bytes);
    shown[bytes] = 0;
    text_add(text, "'");
    text_add_escaped(text, shown);
    text_add(text, cut ? "...'" : "'");
}

/* ---- requests -------------------------------------------------------------------------------------- */

/* (wire_type_name would tie the core to the protobuf library.) */
static const char *type_name(uint16_t type)
{
    switch (type) {
#define TYPE_NAME(name, value, member, message, lower)                                             \
    case WIRE_##name:                                                                              \
        return #name;
        WIRE_TYPE_MAP(TYPE_NAME)
#undef TYPE_NAME
    default:
        return "?";
    }
}

static void request_leave(struct core *core, uint32_t rank, const struct wire_msg *msg)
{
    (void)msg;
    member_leave(core, rank);
}

/* Messages that only the engine can answer; here they say so should it forward them. */
static void request_engine(struct core *core, uint32_t rank, const struct wire_msg *msg)
{
    core_reply_done(core, rank, msg->request, GW_E_UNIMPLEMENTED,
                    "%s is not answered by the core", type_name(msg->type));
}

static void request_zero(struct core *core, uint32_t rank, const struct wire_msg *msg)
{
    struct core_event event = {.kind = CORE_EV_REQUEST, .rank = rank, .msg = msg};
    struct core_fault fault = {.rank = CORE_NO_RANK};
    int r;

    if (!core->sealed) {
        if (msg->request)
            core_reply_done(core, rank, msg->request, GW_E_STATE,
                            "%s before the seal: call gw_seal first", type_name(msg->type));
        else
            core_fail(core, GW_E_STATE, rank, "rank %u sent %s before the seal: call gw_seal first",
                      rank, type_name(msg->type));
        return;
    }
    event.request = msg->request;
    if (msg->type != WIRE_PARAM_IO && msg->type != WIRE_MEASURE)
        core->running = true;
    r = zero_event(core->zero, core->now_ns, &event, &fault);
    if (r < 0)
        core_fail_fault(core, &fault, r);
    else
        member_check_left(core);
}

static const struct request_row {
    uint16_t type;
    bool one_way;
    void (*handle)(struct core *core, uint32_t rank, const struct wire_msg *msg);
} request_rows[] = {
    {WIRE_WAIT_READY, false, member_wait_ready},
    {WIRE_LEAVE, true, request_leave},
    {WIRE_GROUP_NEW, false, group_request},
    {WIRE_REGISTER, false, registry_register},
    {WIRE_SEAL, false, seal_request},
    {WIRE_ARENA_GET, false, request_engine},
    {WIRE_BUFFER_NEW, false, request_engine},
    {WIRE_BUFFER_FREE, false, lane_buffer_free},
    {WIRE_OP, true, lane_submit},
    {WIRE_READY, true, request_zero},
    {WIRE_ACQUIRE, false, request_zero},
    {WIRE_MICRO_END, true, request_zero},
    {WIRE_STEP_END, true, request_zero},
    {WIRE_UPDATE_BEGIN, true, request_zero},
    {WIRE_UPDATE_COMMIT, true, request_zero},
    {WIRE_FETCH, true, request_zero},
    {WIRE_RELEASE, true, request_zero},
    {WIRE_PARAM_IO, false, request_zero},
    {WIRE_ARRAY_GET, false, request_engine},
    {WIRE_MEASURE, false, request_zero},
    {WIRE_STATS_GET, false, request_engine},
};

static const struct request_row *request_row(uint16_t type)
{
    for (size_t i = 0; i < sizeof(request_rows) / sizeof(request_rows[0]); i++) {
        if (request_rows[i].type == type)
            return &request_rows[i];
    }
    return NULL;
}

/* False: the client broke the protocol and was dropped. */
static bool request_sound(struct core *core, uint32_t rank, const struct wire_msg *msg,
                          const struct request_row *row)
{
    uint32_t at;

    if (!row)
        member_drop(core, rank, "a client may not send %s (type %u)", type_name(msg->type),
                    msg->type);
    else if (row->one_way && msg->request != 0)
        member_drop(core, rank, "%s is one-way but came as request %u", type_name(msg->type),
                    msg->request);
    else if (!row->one_way && msg->request == 0)
        member_drop(core, rank, "%s came without a request number", type_name(msg->type));
    else if (!row->one_way && open_find(core, rank, msg->request, &at))
        member_drop(core, rank, "%s came as request %u, which still waits for its reply",
                    type_name(msg->type), msg->request);
    else
        return true;
    return false;
}

/* The rank's generation has failed: the answer to everything is why. */
static void request_broken(struct core *core, uint32_t rank, const struct wire_msg *msg,
                           const struct request_row *row)
{
    if (msg->type == WIRE_LEAVE)
        member_leave(core, rank);
    else if (!row->one_way)
        core_reply_done(core, rank, msg->request, core->failure.code, "%s", core->failure.text);
}

static void handle_request(struct core *core, uint32_t rank, const struct wire_msg *msg)
{
    const struct request_row *row = request_row(msg->type);
    struct core_rank *mine = &core->ranks[rank];

    if (!((core->present | core->old) & CORE_BIT(rank)) || !request_sound(core, rank, msg, row))
        return;
    if (core->broken || core->old & CORE_BIT(rank)) {
        request_broken(core, rank, msg, row);
        return;
    }
    if (!row->one_way) {
        if (mine->open_count >= CORE_OPEN_MAX) {
            core_reply_done(core, rank, msg->request, GW_E_LIMIT,
                            "%u requests of rank %u wait for their reply already: wait for one",
                            mine->open_count, rank);
            return;
        }
        mine->open[mine->open_count].id = msg->request;
        mine->open[mine->open_count].type = msg->type;
        mine->open_count++;
    }
    row->handle(core, rank, msg);
}

/* ---- events ---------------------------------------------------------------------------------------- */

static void handle_overflow(struct core *core, const struct core_event *event)
{
    struct core_fault fault = {.rank = CORE_NO_RANK};
    int r;

    if (!core->sealed || core->broken || event->rank >= core->config.world)
        return;
    r = zero_event(core->zero, core->now_ns, event, &fault);
    if (r < 0)
        core_fail_fault(core, &fault, r);
}

static void handle_op_done(struct core *core, const struct core_event *event)
{
    if (core->broken)
        return;
    lane_op_done(core, event);
    if (core->sealed)
        zero_op_done(core->zero, core->now_ns, event->op, event->started_ns, event->done_ns);
}

static void handle_arena_lost(struct core *core, const struct core_event *event)
{
    core_fail(core, event->code, CORE_NO_RANK, "%s", event->text ? event->text : "memory is lost");
    core->ended = true;
    effects_add(core->effects, CORE_EFF_END);
}

static void handle_event(struct core *core, const struct core_event *event)
{
    bool known = event->rank < core->config.world;

    switch (event->kind) {
    case CORE_EV_JOIN:
        member_join(core, event);
        break;
    case CORE_EV_LEAVE:
        if (known)
            member_leave(core, event->rank);
        break;
    case CORE_EV_LOST:
        if (known)
            member_lost(core, event->rank, event->text);
        break;
    case CORE_EV_REQUEST:
        if (known && event->msg)
            handle_request(core, event->rank, event->msg);
        break;
    case CORE_EV_BUILT:
        seal_built(core, event);
        break;
    case CORE_EV_OVERFLOW:
        handle_overflow(core, event);
        break;
    case CORE_EV_BUFFER:
        if (known)
            lane_buffer(core, event);
        break;
    case CORE_EV_OP_DONE:
        handle_op_done(core, event);
        break;
    case CORE_EV_TICK:
        break;
    case CORE_EV_ARENA_LOST:
        handle_arena_lost(core, event);
        break;
    }
}

int core_handle(struct core *core, uint64_t now_ns, const struct core_event *event)
{
    if (now_ns > core->now_ns)
        core->now_ns = now_ns;
    if (!core->ended || event->kind == CORE_EV_JOIN)
        handle_event(core, event);
    wait_update(core);
    if (core->broken) {
        seal_reset(core);
        group_reset(core);
        lane_reset(core);
    }
    return core->nomem || effects_failed(core->effects) ? GW_E_NOMEM : 0;
}

bool core_next_effect(struct core *core, struct core_effect *ret_effect)
{
    if (!effects_take(core->effects, ret_effect))
        return false;
    if (ret_effect->kind == CORE_EFF_REPLY || ret_effect->kind == CORE_EFF_PARAM_IO) {
        /* The reply to a refused join has nothing to do with the rank's client. */
        if (ret_effect->index != 1 && ret_effect->rank < core->config.world)
            open_close(core, ret_effect->rank, ret_effect->reply.request);
    } else if (ret_effect->kind == CORE_EFF_FAIL) {
        open_fail(core, ret_effect->code, ret_effect->text);
    }
    return true;
}

uint64_t core_deadline_ns(const struct core *core)
{
    return core->deadline_ns;
}

/* ---- what the engine may ask ------------------------------------------------------------------------- */

enum gw_job_state core_state(const struct core *core)
{
    if (core->generation > 0 && !core->present && !core->old)
        return GW_JOB_LINGERING;
    if (core->broken)
        return GW_JOB_BROKEN;
    if (core->running)
        return GW_JOB_RUNNING;
    return core->sealed ? GW_JOB_SEALED : GW_JOB_FORMING;
}

uint32_t core_generation(const struct core *core)
{
    return core->generation;
}

uint64_t core_present(const struct core *core)
{
    return core->present;
}

uint64_t core_steps(const struct core *core)
{
    return core->zero ? zero_steps(core->zero) : 0;
}

const struct layout *core_layout(const struct core *core)
{
    return core->layout;
}

const struct wire_seal *core_options(const struct core *core)
{
    return &core->options;
}

uint64_t core_arena_bytes(const struct core *core, enum gw_arena_kind kind, int rank)
{
    return core->zero ? zero_arena_bytes(core->zero, kind, rank) : 0;
}

struct core_ref core_param_slice(const struct core *core, uint32_t bucket, uint32_t rank)
{
    struct core_ref none = {.kind = GW_ARENA_NONE};

    return core->zero ? zero_param_slice(core->zero, bucket, rank) : none;
}

struct core_ref core_param_ref(const struct core *core, uint32_t param, uint64_t offset,
                               uint32_t *ret_owner, uint64_t *ret_count)
{
    struct core_ref none = {.kind = GW_ARENA_NONE};

    if (core->zero)
        return zero_param_ref(core->zero, param, offset, ret_owner, ret_count);
    *ret_owner = 0;
    *ret_count = 0;
    return none;
}

void core_stats(const struct core *core, uint32_t rank, struct wire_msg *msg)
{
    if (core->zero)
        zero_stats(core->zero, rank, msg);
    else
        msg->u.stats.comm_ns = core->lane_comm_ns;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of clients: one table says which may come, whether they want a reply, and who handles
 * them. Keeps each rank's requests that wait for their reply, so that none stays unanswered when
 * the job fails. Pure; the core's thread. Must not look into messages beyond type and number.
 */
#include "daemon/core/core_internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- requests that wait ---------------------------------------------------------------------- */

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

void request_close(struct core *core, uint32_t rank, uint32_t request)
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
    request_close(core, rank, request);
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

void request_fail_all(struct core *core, int code, const char *text)
{
    for (uint32_t rank = 0; rank < core->config.world; rank++) {
        while (core->ranks[rank].open_count > 0)
            core_reply_done(core, rank, core->ranks[rank].open[0].id, code, "%s", text);
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

static void request_leave(struct core *core, uint32_t rank, const struct wire_msg *msg)
{
    (void)msg;
    member_leave(core, rank);
}

/* Messages that only the engine can answer; here they say so should it forward them. */
static void request_engine(struct core *core, uint32_t rank, const struct wire_msg *msg)
{
    core_reply_done(core, rank, msg->request, GW_E_UNIMPLEMENTED,
                    "%s is not answered by the core", wire_type_name(msg->type));
}

static void request_zero(struct core *core, uint32_t rank, const struct wire_msg *msg)
{
    struct core_event event = {.kind = CORE_EV_REQUEST, .rank = rank, .msg = msg};
    struct core_fault fault = {.rank = CORE_NO_RANK};
    int r;

    if (!core->sealed) {
        if (msg->request)
            core_reply_done(core, rank, msg->request, GW_E_STATE,
                            "%s before the seal: call gw_seal first", wire_type_name(msg->type));
        else
            core_fail(core, GW_E_STATE, rank, "rank %u sent %s before the seal: call gw_seal first",
                      rank, wire_type_name(msg->type));
        return;
    }
    event.request = msg->request;
    if (msg->type != WIRE_PARAM_IO && msg->type != WIRE_MEASURE && msg->type != WIRE_FREEZE)
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
    {WIRE_PARAM_GROUP, false, registry_group},
    {WIRE_REGISTER, false, registry_register},
    {WIRE_SEAL, false, seal_request},
    {WIRE_ARENA_GET, false, request_engine},
    {WIRE_BUFFER_NEW, false, request_engine},
    {WIRE_BUFFER_IMPORT, false, request_engine},
    {WIRE_TIMELINE_EVENTS, false, request_engine},
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
    {WIRE_FREEZE, false, request_zero},
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
        member_drop(core, rank, "a client may not send %s (type %u)", wire_type_name(msg->type),
                    msg->type);
    else if (row->one_way && msg->request != 0)
        member_drop(core, rank, "%s is one-way but came as request %u", wire_type_name(msg->type),
                    msg->request);
    else if (!row->one_way && msg->request == 0)
        member_drop(core, rank, "%s came without a request number", wire_type_name(msg->type));
    else if (!row->one_way && open_find(core, rank, msg->request, &at))
        member_drop(core, rank, "%s came as request %u, which still waits for its reply",
                    wire_type_name(msg->type), msg->request);
    else
        return true;
    return false;
}

/* The rank's generation has failed: the answer to everything is why. But what a client did to its
 * shard before it knew must be known when shards are used again. */
static void request_broken(struct core *core, uint32_t rank, const struct wire_msg *msg,
                           const struct request_row *row)
{
    bool update = msg->type == WIRE_UPDATE_BEGIN || msg->type == WIRE_UPDATE_COMMIT;

    if (msg->type == WIRE_LEAVE)
        member_leave(core, rank);
    else if (update && core->kept)
        zero_late_update(core->zero, rank, msg->type == WIRE_UPDATE_COMMIT);
    else if (!row->one_way)
        core_reply_done(core, rank, msg->request, core->failure.code, "%s", core->failure.text);
}

/* Few ranks have more than some requests open at a time. */
static bool open_grow(struct core_rank *mine)
{
    uint32_t room = mine->open_room ? mine->open_room * 2 : 4;
    struct open_request *open = realloc(mine->open, room * sizeof(*open));

    if (!open)
        return false;
    mine->open = open;
    mine->open_room = room;
    return true;
}

void request_handle(struct core *core, uint32_t rank, const struct wire_msg *msg)
{
    const struct request_row *row = request_row(msg->type);
    struct core_rank *mine = &core->ranks[rank];

    if ((!ranks_has(&core->present, rank) && !ranks_has(&core->old, rank)) ||
        !request_sound(core, rank, msg, row))
        return;
    if (core->broken || ranks_has(&core->old, rank)) {
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
        if (mine->open_count == mine->open_room && !open_grow(mine)) {
            core->nomem = true;
            return;
        }
        mine->open[mine->open_count].id = msg->request;
        mine->open[mine->open_count].type = msg->type;
        mine->open_count++;
    }
    row->handle(core, rank, msg);
}

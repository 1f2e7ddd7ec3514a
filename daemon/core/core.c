/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core's outside: events in, effects out, and what the engine may ask. Sends each event to the
 * part that owns it (membership, requests, registry and seal, groups and lanes, ZeRO), and keeps
 * the failure that ended a generation. Pure; one thread. Must not decide anything that a part owns.
 */
#include "daemon/core/core_internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define JOIN_TIMEOUT_NS 300000000000ull
#define OP_TIMEOUT_NS 1800000000000ull
#define STALL_REPORT_NS 10000000000ull
#define NAME_SHOWN 48u /* bytes of a name in an error text; two must fit beside what happened */

/* ---- life ------------------------------------------------------------------------------------ */

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
    core->everyone = ranks_below(config->world);
    core->deadline_ns = UINT64_MAX;
    core->flights_end = &core->flights;
    core->ranks = calloc(config->world, sizeof(*core->ranks));
    r = core->ranks ? effects_new(&core->effects) : GW_E_NOMEM;
    if (r < 0) {
        core_free(core);
        return r;
    }
    group_reset(core);
    if (core->nomem) {
        core_free(core);
        return GW_E_NOMEM;
    }
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
        for (uint32_t rank = 0; rank < core->config.world; rank++) {
            free(core->ranks[rank].open);
            free(core->ranks[rank].group.ranks);
        }
    }
    for (uint32_t group = 0; group < GW_GROUPS_MAX; group++)
        free(core->groups[group].ranks);
    free(core->flying.at);
    reg_list_clear(&core->kept_list);
    zero_free(core->zero);
    layout_free(core->layout);
    effects_free(core->effects);
    free(core->ranks);
    free(core);
    return NULL;
}

/* ---- failure --------------------------------------------------------------------------------- */

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

const char *core_dtype_name(uint32_t dtype)
{
    static const char *const names[GW_DTYPES] = {"fp32", "fp16", "bf16"};

    return dtype < GW_DTYPES ? names[dtype] : "no dtype";
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

/* ---- events ---------------------------------------------------------------------------------- */

static void handle_zero(struct core *core, const struct core_event *event)
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
    flight_done(core, event->op);
    lane_op_done(core, event);
    if (core->sealed)
        zero_op_done(core->zero, core->now_ns, event->op, event->started_ns, event->done_ns);
}

static void handle_device_lost(struct core *core, const struct core_event *event)
{
    core_fail(core, event->code < 0 ? event->code : GW_E_DEVICE, CORE_NO_RANK, "%s",
              event->text && *event->text ? event->text : "a device failed");
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
            member_lost(core, event->rank, event->text, event->code < 0);
        break;
    case CORE_EV_REQUEST:
        if (known && event->msg)
            request_handle(core, event->rank, event->msg);
        break;
    case CORE_EV_BUILT:
        seal_built(core, event);
        break;
    case CORE_EV_HEARD:
    case CORE_EV_OVERFLOW:
        handle_zero(core, event);
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
    case CORE_EV_DEVICE_LOST:
        handle_device_lost(core, event);
        break;
    }
}

int core_handle(struct core *core, uint64_t now_ns, const struct core_event *event)
{
    const struct core_op *op;

    if (now_ns > core->now_ns)
        core->now_ns = now_ns;
    if (!core->ended || event->kind == CORE_EV_JOIN)
        handle_event(core, event);
    lane_settle(core);
    while ((op = effects_next_launch(core->effects)) != NULL)
        flight_launched(core, op);
    wait_update(core);
    if (core->broken) {
        seal_reset(core);
        group_reset(core);
        lane_reset(core);
        flight_reset(core);
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
            request_close(core, ret_effect->rank, ret_effect->reply.request);
    } else if (ret_effect->kind == CORE_EFF_FAIL) {
        request_fail_all(core, ret_effect->code, ret_effect->text);
    }
    return true;
}

uint64_t core_deadline_ns(const struct core *core)
{
    return core->deadline_ns;
}

uint32_t core_unheard(const struct core *core)
{
    return core->sealed ? zero_unheard(core->zero) : 0;
}

/* ---- what the engine may ask ----------------------------------------------------------------- */

enum gw_job_state core_state(const struct core *core)
{
    if (core->generation > 0 && !ranks_any(&core->present) && !ranks_any(&core->old))
        return GW_JOB_LINGERING;
    if (core->broken)
        return GW_JOB_BROKEN;
    if (core->running)
        return GW_JOB_RUNNING;
    return core->sealed ? GW_JOB_SEALED : GW_JOB_FORMING;
}

bool core_over(const struct core *core)
{
    return core_state(core) == GW_JOB_LINGERING && !core->broken;
}

uint32_t core_generation(const struct core *core)
{
    return core->generation;
}

const struct ranks *core_present(const struct core *core)
{
    return &core->present;
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
    bool verdict = kind == GW_ARENA_VERDICT && core->config.device != GW_DEVICE_HOST;

    if (!core->zero)
        return 0;
    if (verdict && rank >= 0 && (uint32_t)rank < core->config.world)
        /* Once more, where kernels read it, and its bits. */
        return sizeof(struct gw_shm_verdict) + (layout_page(core->layout)->params + 7) / 8;
    return zero_arena_bytes(core->zero, kind, rank);
}

static const struct core_ref nowhere = {.kind = GW_ARENA_NONE};

struct core_ref core_param_slice(const struct core *core, uint32_t bucket, uint32_t rank)
{
    return core->zero ? zero_param_slice(core->zero, bucket, rank) : nowhere;
}

struct core_ref core_master_slice(const struct core *core, uint32_t bucket, uint32_t rank)
{
    return core->zero ? zero_master_slice(core->zero, bucket, rank) : nowhere;
}

struct core_ref core_secondary_slice(const struct core *core, uint32_t bucket, uint32_t rank)
{
    return core->zero ? zero_secondary_slice(core->zero, bucket, rank) : nowhere;
}

struct core_ref core_param_ref(const struct core *core, uint32_t param, uint64_t offset,
                               uint32_t rank, uint64_t *ret_count)
{
    *ret_count = 0;
    return core->zero ? zero_param_ref(core->zero, param, offset, rank, ret_count) : nowhere;
}

struct core_ref core_master_ref(const struct core *core, uint32_t param, uint64_t offset,
                                uint32_t rank, uint64_t *ret_count)
{
    *ret_count = 0;
    return core->zero ? zero_master_ref(core->zero, param, offset, rank, ret_count) : nowhere;
}

uint64_t core_gathered(const struct core *core, uint32_t bucket, uint32_t rank)
{
    return core->zero ? zero_gathered(core->zero, bucket, rank) : 0;
}

bool core_next_grant(struct core *core, struct core_grant *ret_grant)
{
    return core->zero && grant_next(core->zero, ret_grant);
}

bool core_progress(struct core *core, uint32_t rank, struct core_progress *ret_progress)
{
    return core->zero && grant_progress(core->zero, rank, ret_progress);
}

void core_stats(const struct core *core, uint32_t rank, struct wire_msg *msg)
{
    if (core->zero)
        zero_stats(core->zero, rank, msg);
    else
        msg->u.stats.comm_ns = core->lane_comm_ns;
}

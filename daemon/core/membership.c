/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Membership: who belongs to the job's present generation, and when a generation begins and ends.
 *
 *   (nobody) --first JOIN--> forming --all joined--> complete --failure--> broken
 *                               ^                        \--all left--> (nobody)    |
 *                               '---------------- JOIN: generation + 1 -------------'
 *
 * A client belongs to the generation it joined; clients of a broken one stay attached (`old`) until
 * they leave or their rank joins again. Pure; the core's thread. Must not touch what other parts
 * keep per rank except through their detach functions.
 */
#include "daemon/core/core_internal.h"

#include <string.h>

static bool attached(const struct core *core, uint32_t rank)
{
    return ranks_has(&core->present, rank) || ranks_has(&core->old, rank);
}

/* Forgets a rank's client. */
static void detach(struct core *core, uint32_t rank)
{
    ranks_drop(&core->present, rank);
    ranks_drop(&core->old, rank);
    core->ranks[rank].open_count = 0;
    seal_detach(core, rank);
    group_detach(core, rank);
    lane_detach(core, rank);
}

static void generation_begin(struct core *core)
{
    core->generation++;
    core->old = ranks_or(&core->old, &core->present);
    core->present = core->left = (struct ranks){{0}};
    core->complete = false;
    core->broken = false;
    core->running = false;
    core->first_join_ns = core->now_ns;
    seal_reset(core);
    group_reset(core);
    lane_reset(core);
    flight_reset(core);
}

static void join_refuse(struct core *core, const struct core_event *event, int code,
                        const char *text)
{
    struct core_effect *effect = effects_add(core->effects, CORE_EFF_REPLY);

    effect->rank = event->rank;
    effect->index = 1;
    effect->code = code;
    effect->reply.type = WIRE_DONE;
    effect->reply.request = event->request;
    effect->reply.u.done.code = code;
    memcpy(effect->reply.u.done.text, text, strnlen(text, GW_TEXT_MAX));
}

/* 0, or why this rank cannot join now. */
static int join_check(const struct core *core, const struct core_event *event, struct text *text)
{
    uint32_t world = core->config.world, rank = event->rank;

    if (core->ended) {
        text_add(text, "the job has ended: start a new one");
        return GW_E_STATE;
    }
    if (event->world != world) {
        text_add(text, "this client says the job has %u ranks, but its creator said %u: give all "
                 "ranks the same world", event->world, world);
        return GW_E_INVALID;
    }
    if (rank >= world) {
        text_add(text, "rank %u does not exist in a job of %u ranks: give 0 to %u", rank, world,
                 world - 1);
        return GW_E_INVALID;
    }
    if (!core->broken && ranks_has(&core->present, rank)) {
        text_add(text, "rank %u is taken in generation %u of the job: give each process its own "
                 "rank", rank, core->generation);
        return GW_E_DUPLICATE;
    }
    if (!core->broken && core->complete && ranks_any(&core->present)) {
        text_add(text, "rank %u has left generation %u of the job, which still runs: join again "
                 "when all have left", rank, core->generation);
        return GW_E_STATE;
    }
    return 0;
}

static void drop_effect(struct core *core, uint32_t rank, int code, const char *text)
{
    struct core_effect *effect = effects_add(core->effects, CORE_EFF_DROP);

    effect->rank = rank;
    effect->code = code;
    memcpy(effect->text, text, strnlen(text, GW_TEXT_MAX));
}

static void all_joined(struct core *core)
{
    core->complete = true;
    core->complete_ns = core->now_ns;
    core_reply_all(core, WIRE_WAIT_READY);
    group_kick(core);
    lane_kick_all(core);
}

void member_join(struct core *core, const struct core_event *event)
{
    char line[GW_TEXT_MAX + 1];
    struct text text = TEXT(line);
    uint32_t rank = event->rank;
    struct core_effect *effect;
    int r;

    r = join_check(core, event, &text);
    if (r < 0) {
        join_refuse(core, event, r, line);
        return;
    }
    if (core->generation == 0 || core->broken || !ranks_any(&core->present))
        generation_begin(core);
    if (attached(core, rank)) {
        text_start(&text, line, sizeof(line));
        text_add(&text, "rank %u has joined generation %u with a new client", rank,
                 core->generation);
        drop_effect(core, rank, core->failure.code, line);
    }
    detach(core, rank);
    ranks_add(&core->present, rank);
    effect = effects_add(core->effects, CORE_EFF_REPLY);
    effect->rank = rank;
    effect->index = 1;
    effect->reply.type = WIRE_JOINED;
    effect->reply.request = event->request;
    effect->reply.u.joined.generation = core->generation;
    effect->reply.u.joined.device = core->config.device;
    if (ranks_equal(&core->present, &core->everyone))
        all_joined(core);
}

void member_wait_ready(struct core *core, uint32_t rank, const struct wire_msg *msg)
{
    if (core->complete)
        core_reply_done(core, rank, msg->request, 0, "%s", "");
}

/* What the others still want from a rank, or NULL. */
static const char *needed_for(const struct core *core, uint32_t rank)
{
    if (seal_pending(core))
        return "the seal";
    if (group_needs(core, rank))
        return "a new group";
    if (lane_needs(core, rank))
        return "a collective";
    if (core->sealed && zero_needs(core->zero, rank))
        return "the present step";
    return NULL;
}

void member_leave(struct core *core, uint32_t rank)
{
    const char *what;

    if (!ranks_has(&core->present, rank) || core->broken || !core->complete) {
        detach(core, rank);
        return;
    }
    detach(core, rank);
    ranks_add(&core->left, rank);
    what = ranks_any(&core->present) ? needed_for(core, rank) : NULL;
    if (what)
        core_fail(core, GW_E_PEER_LOST, rank,
                  "rank %u has left the job, but others wait for it in %s: leave only after the "
                  "last common call", rank, what);
}

void member_check_left(struct core *core)
{
    for (uint32_t rank = ranks_first(&core->left); rank < GW_RANKS_MAX && !core->broken;
         rank = ranks_next(&core->left, rank + 1)) {
        if (core->sealed && zero_needs(core->zero, rank))
            core_fail(core, GW_E_PEER_LOST, rank,
                      "rank %u has left the job after %llu steps, but the others go on: leave only "
                      "after the last common step", rank,
                      (unsigned long long)zero_steps(core->zero));
    }
}

void member_lost(struct core *core, uint32_t rank, const char *how, bool with_shards)
{
    bool present = ranks_has(&core->present, rank);

    if (!attached(core, rank))
        return;
    detach(core, rank);
    if (present && !core->broken)
        core_fail(core, GW_E_PEER_LOST, rank, "rank %u is gone (%s): %s", rank,
                  how && *how ? how : "its connection closed",
                  with_shards ? "its shards are lost with it; start a new job"
                              : "all ranks may join again, shards are kept");
}

void member_drop(struct core *core, uint32_t rank, const char *format, ...)
{
    char line[GW_TEXT_MAX + 1];
    struct text text = TEXT(line);
    bool present = ranks_has(&core->present, rank);
    va_list arguments;

    va_start(arguments, format);
    text_addv(&text, format, arguments);
    va_end(arguments);
    drop_effect(core, rank, GW_E_PROTOCOL, line);
    detach(core, rank);
    if (present && !core->broken)
        core_fail(core, GW_E_PEER_LOST, rank,
                  "rank %u is gone (its client broke the protocol: %s): all ranks may join again, "
                  "shards are kept", rank, line);
}

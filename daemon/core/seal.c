/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seal: all ranks say what they train and how; if they agree, the layout is made, the engine is
 * told to make memory, and the ZeRO layer begins. What was sealed once outlives generations: ranks
 * that join again must seal the same.
 *
 *   SEAL of each rank -> compare -> layout and zero, or zero again -> BUILD ... BUILT -> SEALED
 *
 * BUILD is said with no op in flight: collectives that were launched before are finished first, and
 * those that come meanwhile wait until the seal is answered.
 *
 * Pure; the core's thread. Owns layout, zero and options; must not look into zero.
 */
#include "daemon/core/core_internal.h"

#include <stdlib.h>
#include <string.h>

bool seal_pending(const struct core *core)
{
    return ranks_any(&core->sealed_ranks) && !core->sealed;
}

void seal_detach(struct core *core, uint32_t rank)
{
    reg_list_clear(&core->ranks[rank].list);
    core->ranks[rank].seal_request = 0;
    if (!core->sealed)
        ranks_drop(&core->sealed_ranks, rank);
}

void seal_reset(struct core *core)
{
    for (uint32_t rank = 0; rank < core->config.world; rank++) {
        reg_list_clear(&core->ranks[rank].list);
        core->ranks[rank].seal_request = 0;
    }
    core->sealed_ranks = (struct ranks){{0}};
    core->sealed = false;
}

/* Layout and zero of a seal that did not come about. */
static void forget(struct core *core)
{
    if (core->kept)
        return;
    core->zero = zero_free(core->zero);
    core->layout = layout_free(core->layout);
}

/* The same answer to every rank; they may correct what was wrong and seal again. */
static void refuse_all(struct core *core, int code, const char *text)
{
    forget(core);
    for (uint32_t rank = 0; rank < core->config.world; rank++) {
        uint32_t request = core->ranks[rank].seal_request;

        core->ranks[rank].seal_request = 0;
        if (request)
            core_reply_done(core, rank, request, code, "%s", text);
    }
    core->sealed_ranks = (struct ranks){{0}};
    lane_kick_all(core);
}

/* ---- agreement ------------------------------------------------------------------------------- */

static bool agree(struct core *core, uint32_t rank)
{
    const struct core_rank *first = &core->ranks[0], *mine = &core->ranks[rank];
    char side[24], line[GW_TEXT_MAX + 1];
    struct text name = TEXT(side), text = TEXT(line);

    text_add(&name, "rank %u", rank);
    /* Lists first: a mean is another number where there are groups. */
    if (reg_list_equal(&first->list, &mine->list, "rank 0", side, &text) &&
        options_equal(&first->seal, &mine->seal, "rank 0", side, &text))
        return true;
    core_fail(core, GW_E_MISMATCH, rank, "the ranks seal different models: %s", line);
    return false;
}

static bool agree_with_kept(struct core *core)
{
    const struct core_rank *first = &core->ranks[0];
    char line[GW_TEXT_MAX + 1];
    struct text text = TEXT(line);

    if (reg_list_equal(&core->kept_list, &first->list, "the job", "rank 0", &text) &&
        options_equal(&core->kept_seal, &first->seal, "the job", "rank 0", &text))
        return true;
    core_fail(core, GW_E_MISMATCH, CORE_NO_RANK,
              "the ranks joined again with another model than the job keeps: %s", line);
    return false;
}

/* ---- the layout ------------------------------------------------------------------------------ */

static void say_no_layout(const struct core *core, const struct reg_list *list, int code,
                          uint32_t bad, struct text *text)
{
    unsigned long long bytes = (unsigned long long)core->options.bucket_bytes;

    if (code == GW_E_LIMIT) {
        text_add(text, "the model makes more than %u buckets of %llu bytes: seal with larger "
                 "bucket_bytes", GW_BUCKETS_MAX, bytes);
    } else if (code == GW_E_INVALID && bad < list->count) {
        text_add(text, "parameter %u, ", bad);
        core_add_name(text, reg_name(list, bad));
        text_add(text, ", cannot be laid out: its name was given before, its unit came back after "
                 "another unit, or the sizes overflow");
    } else if (code < 0) {
        text_add(text, "no layout of %u parameters in stage %u with buckets of %llu bytes for %u "
                 "ranks can be made", list->count, core->options.stage, bytes, core->config.world);
    }
}

static int make_layout(struct core *core, const struct reg_list *list, struct text *text)
{
    struct layout_options options = {
        .stage = core->options.stage,
        .world = core->config.world,
        .bucket_bytes = core->options.bucket_bytes,
        .align_bytes = core->options.shard_align_bytes,
        .accum_as_grads = core->options.accum_as_grads,
        .persist_bytes = core->options.persist_bytes,
        .shard_ranks = core->options.shard_ranks,
        .group_count = list->group_count,
    };
    struct layout_param *params = calloc((size_t)list->count + 1, sizeof(*params));
    struct layout_group *groups = calloc((size_t)list->group_count + 1, sizeof(*groups));
    uint32_t bad = UINT32_MAX;
    int r = GW_E_NOMEM;

    for (uint32_t i = 0; params && i < list->count; i++) {
        const struct reg_param *of = &list->params[i];

        params[i] = (struct layout_param){reg_name(list, i), reg_unit(list, i), of->numel,
                                          of->flags, of->group, of->dtype, of->grad_dtype};
    }
    for (uint32_t g = 0; groups && g < list->group_count; g++)
        groups[g] = (struct layout_group){list->groups[g].ranks, list->groups[g].count,
                                          list->groups[g].shard_ranks};
    options.groups = groups;
    if (params && groups)
        r = layout_new(&options, params, list->count, &core->layout, &bad);
    free(params);
    free(groups);
    if (r < 0 && r != GW_E_NOMEM)
        say_no_layout(core, list, r, bad, text);
    return r;
}

/* First seal of the job: layout and ZeRO layer as rank 0 (like all) described them. */
static int make(struct core *core, struct text *text)
{
    int r;

    core->options = core->ranks[0].seal;
    r = make_layout(core, &core->ranks[0].list, text);
    if (r < 0)
        return r;
    r = options_complete(&core->options, core->layout);
    if (r < 0)
        return r;
    return zero_new(core->layout, &core->options, core->config.world,
                    core->config.device != GW_DEVICE_HOST, core->config.drop_edges, core->effects,
                    &core->zero);
}

static void seal_all(struct core *core)
{
    char line[GW_TEXT_MAX + 1];
    struct text text = TEXT(line);
    struct core_fault fault = {.rank = CORE_NO_RANK};
    int r;

    text_add(&text, "%s", "");
    for (uint32_t rank = 1; rank < core->config.world; rank++) {
        if (!agree(core, rank))
            return;
    }
    if (core->kept && !agree_with_kept(core))
        return;
    /* Before the engine makes new boards: they begin at the steps that are left. */
    r = core->kept ? zero_reattach(core->zero, &fault) : 0;
    if (r < 0) {
        core_fail_fault(core, &fault, r);
        return;
    }
    r = core->kept ? 0 : make(core, &text);
    if (r < 0) {
        refuse_all(core, r, *line ? line : "no memory for the layout");
        return;
    }
    core->building = true;
    core->build_generation = core->generation;
    effects_add(core->effects, CORE_EFF_BUILD);
}

static bool all_sealed(const struct core *core)
{
    return ranks_equal(&core->sealed_ranks, &core->everyone) && !core->sealed;
}

bool seal_holds(const struct core *core)
{
    return core->building || all_sealed(core);
}

void seal_kick(struct core *core)
{
    if (all_sealed(core) && !core->building && !core->broken && !core->flights)
        seal_all(core);
}

/* ---- messages and events --------------------------------------------------------------------- */

static int seal_check(const struct core *core, uint32_t rank, struct wire_seal *seal,
                      struct text *text)
{
    const struct core_rank *mine = &core->ranks[rank];
    int r;

    if (core->sealed || (core->building && core->build_generation == core->generation)) {
        text_add(text, "the job is sealed already");
        return GW_E_STATE;
    }
    if (mine->list.count < mine->list.total) {
        text_add(text, "rank %u seals after %u of %u parameters: register all of them first", rank,
                 mine->list.count, mine->list.total);
        return GW_E_STATE;
    }
    r = options_check(seal, core->config.world, core->config.device, core->config.spans, text);
    if (seal->scale == 0 && mine->list.group_count == 0)
        seal->scale = 1.0 / core->config.world; /* else each group has its own mean */
    for (uint32_t g = 0; g < mine->list.group_count && r == 0; g++) {
        const struct reg_group *group = &mine->list.groups[g];
        char whose[24];
        struct text name = TEXT(whose);

        text_add(&name, "group %u's ", g + 1);
        r = options_check_runs(seal, group->shard_ranks, group->count, whose, text);
    }
    return r;
}

void seal_request(struct core *core, uint32_t rank, const struct wire_msg *msg)
{
    struct core_rank *mine = &core->ranks[rank];
    struct wire_seal seal = msg->u.seal;
    char line[GW_TEXT_MAX + 1];
    struct text text = TEXT(line);
    int r;

    r = seal_check(core, rank, &seal, &text);
    if (r < 0) {
        core_reply_done(core, rank, msg->request, r, "%s", line);
        return;
    }
    if (ranks_any(&core->left)) {
        text_add_ranks(&text, &core->left);
        core_fail(core, GW_E_PEER_LOST, ranks_first(&core->left),
                  "rank %u seals, but ranks %s have left the job: leave only after the last common "
                  "call", rank, line);
        return;
    }
    if (mine->seal_request) /* its caller gave up waiting and calls again */
        core_reply_done(core, rank, mine->seal_request, GW_E_AGAIN,
                        "a later seal of rank %u took this one's place", rank);
    if (!ranks_any(&core->sealed_ranks))
        core->seal_since_ns = core->now_ns;
    mine->seal = seal;
    mine->seal_request = msg->request;
    ranks_add(&core->sealed_ranks, rank);
    seal_kick(core);
}

static void sealed_now(struct core *core)
{
    core->sealed = true;
    if (core->kept) {
        zero_renew(core->zero, core->now_ns);
    } else {
        core->kept = true;
        core->kept_seal = core->ranks[0].seal;
        core->kept_list = core->ranks[0].list;
        memset(&core->ranks[0].list, 0, sizeof(core->ranks[0].list));
    }
    for (uint32_t rank = 0; rank < core->config.world; rank++) {
        struct core_rank *mine = &core->ranks[rank];
        struct core_effect *effect = core_reply(core, rank, mine->seal_request, WIRE_SEALED);

        effect->reply.u.sealed.steps = zero_steps(core->zero);
        mine->seal_request = 0;
        reg_list_clear(&mine->list);
    }
    lane_kick_all(core);
}

void seal_built(struct core *core, const struct core_event *event)
{
    if (!core->building)
        return;
    core->building = false;
    if (core->broken || core->build_generation != core->generation) {
        /* The generation that asked is gone; the next may have sealed meanwhile. */
        forget(core);
        seal_kick(core);
        return;
    }
    if (event->code < 0)
        refuse_all(core, event->code, event->text ? event->text : "memory cannot be had");
    else
        sealed_now(core);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PARAM_IO: values into and out of parameters between steps. Pure; one thread. Here only the when;
 * the copy itself is an effect.
 */
#include "daemon/core/zero_internal.h"

/* Something of a step waits behind others; the end of an update may, too. */
static bool has_begun(const struct zero *z, uint32_t rank)
{
    const struct zero_late *late = z->ranks[rank].backlog.head;

    while (late && (late->type == WIRE_UPDATE_BEGIN || late->type == WIRE_UPDATE_COMMIT))
        late = late->next;
    return late != NULL;
}

struct ranks zero_busy(const struct zero *z, struct text *why)
{
    struct ranks busy = {{0}};

    for (uint32_t r = 0; r < z->world; r++) {
        const struct zero_rank *rank = &z->ranks[r];
        bool declared = ranks_has(&z->declared, r) || has_begun(z, r);
        bool first = !ranks_any(&busy);

        if (!declared && !rank->held && !rank->fetches.count)
            continue;
        if (first && rank->held) {
            text_add(why, "rank %u has fetched unit '", r);
            text_add_escaped(why, fetch_held_name(z, r));
            text_add(why, "'");
        } else if (first) {
            text_add(why, "rank %u is in step %llu already%s", r,
                     (unsigned long long)z->step + 1, declared ? " (gradients declared)" : "");
        }
        ranks_add(&busy, r);
    }
    return busy;
}

/* Some rank is writing its shard, or some shards are a version ahead of others. */
static bool updates_open(const struct zero *z)
{
    for (uint32_t r = 0; r < z->world; r++) {
        if (z->ranks[r].update == UPDATE_BEGUN)
            return true;
    }
    return z->committed > step_resolved(z);
}

static bool sound(const struct zero *z, const struct wire_msg *msg)
{
    uint64_t numel, offset = msg->u.param_io.offset, count = msg->u.param_io.count;

    if (msg->u.param_io.param >= z->params)
        return false;
    numel = layout_params(z->layout)[msg->u.param_io.param].numel;
    return offset <= numel && count <= numel - offset &&
           count <= gw_staging_bytes(z->world) / sizeof(float);
}

/* 0: now; 1: later; < 0: refused, why is in *why. */
static int allowed(struct zero *z, uint32_t rank, struct text *why)
{
    struct ranks busy;

    if (z->ranks[rank].backlog.count)
        return 1;
    if (z->ranks[rank].update == UPDATE_BEGUN) {
        text_add(why, "rank %u is inside its update of step %llu: commit it first", rank,
                 (unsigned long long)z->ranks[rank].ended);
        return GW_E_STATE;
    }
    busy = zero_busy(z, why);
    if (ranks_any(&busy)) {
        text_add(why, ": parameters are written and read between steps only, with no unit fetched");
        return GW_E_STATE;
    }
    return updates_open(z) || z->moves_in_flight || z->measure.running || !tokens_quiet(z);
}

/* What is gathered of the parameter, ahead of its next fetch or for good, does not hold what is
 * written now. */
static void note_write(struct zero *z, uint32_t param)
{
    const struct gw_layout_param *at = &layout_params(z->layout)[param];

    if (at->persistent)
        z->groups[at->group].fresh = (struct ranks){{0}};
    else
        fetch_forget(z);
}

/* True: served or refused. */
static bool try_rank(struct zero *z, uint32_t rank)
{
    struct zero_rank *mine = &z->ranks[rank];
    char line[GW_TEXT_MAX + 1] = "";
    struct text why = TEXT(line);
    struct core_effect *effect;
    int r;

    r = allowed(z, rank, &why);
    if (r > 0)
        return false;
    mine->io.waiting = false;
    if (r < 0) {
        zero_reply(z, rank, mine->io.request, r, "%s", line);
        return true;
    }
    if (mine->io.write)
        note_write(z, mine->io.param);
    z->writes += mine->io.write;
    effect = effects_add(z->effects, CORE_EFF_PARAM_IO);
    effect->rank = rank;
    effect->io.write = mine->io.write;
    effect->io.param = mine->io.param;
    effect->io.offset = mine->io.offset;
    effect->io.count = mine->io.count;
    effect->reply.type = WIRE_DONE;
    effect->reply.request = mine->io.request;
    return true;
}

void io_request(struct zero *z, uint32_t rank, const struct wire_msg *msg)
{
    struct zero_rank *mine = &z->ranks[rank];

    if (!sound(z, msg)) {
        zero_reply(z, rank, msg->request, GW_E_INVALID,
                   "elements %llu to %llu of parameter %u: no such part, or more than %u bytes",
                   (unsigned long long)msg->u.param_io.offset,
                   (unsigned long long)(msg->u.param_io.offset + msg->u.param_io.count),
                   msg->u.param_io.param, gw_staging_bytes(z->world));
        return;
    }
    if (mine->io.waiting) {
        zero_reply(z, rank, msg->request, GW_E_BUSY,
                   "rank %u has another parameter read or write in its staging memory", rank);
        return;
    }
    z->unheard++;
    mine->io.waiting = true;
    mine->io.request = msg->request;
    mine->io.write = msg->u.param_io.write;
    mine->io.param = msg->u.param_io.param;
    mine->io.offset = msg->u.param_io.offset;
    mine->io.count = msg->u.param_io.count;
    mine->io.since_ns = z->now_ns;
}

void io_pump(struct zero *z)
{
    for (uint32_t r = 0; r < z->world && !z->unheard; r++) {
        if (z->ranks[r].io.waiting)
            (void)try_rank(z, r);
    }
}

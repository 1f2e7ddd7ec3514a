/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The canonical dump: a hash of all that decides how a simulated job goes on and what has come of
 * it so far. Two histories that lead to the same dump are one state (explore.c checks that). It can
 * be taken as if the ranks had other names (symmetry.h).
 *
 * Left out is what no decision hangs on: times (explore.c holds the clock), request numbers, and
 * ids of ops. An op is named by what it does, and 0 once the core knows it as done: then it treats
 * it like no op at all. A rank's plan of gathers follows from its calls and how many of them are
 * served. Reads the core's insides, and changes nothing. One thread.
 */
#include "daemon/core/core_internal.h"
#include "daemon/core/zero_internal.h"
#include "tests/sim/world/explore.h"
#include "tests/sim/world/internal.h"
#include "tests/sim/world/symmetry.h"

#define OPS_MAX 512u

struct dump {
    const struct sim *sim;
    const struct symmetry *symmetry;
    const struct renaming *as;
    uint64_t hash;
    uint32_t ops;
    uint64_t ids[OPS_MAX], names[OPS_MAX]; /* of all that are queued, or done and not reported */
};

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    return hash ^ (hash >> 29);
}

static void add(struct dump *dump, uint64_t value)
{
    dump->hash = mix(dump->hash, value);
}

static uint64_t mix_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    uint64_t word;

    for (; bytes >= sizeof(word); bytes -= sizeof(word), at += sizeof(word)) {
        __builtin_memcpy(&word, at, sizeof(word));
        hash = mix(hash, word);
    }
    while (bytes-- > 0)
        hash = mix(hash, *at++);
    return hash;
}

static void add_bytes(struct dump *dump, const void *data, size_t bytes)
{
    dump->hash = mix_bytes(dump->hash, data, bytes);
}

/* ---- names ----------------------------------------------------------------------------------- */

static uint64_t name_rank(const struct dump *dump, int rank)
{
    return rank < 0 ? UINT64_MAX : dump->as->to[rank];
}

static void add_ranks(struct dump *dump, const struct ranks *ranks)
{
    for (uint32_t i = 0; i < dump->sim->plan->world; i++)
        add(dump, ranks_has(ranks, dump->as->from[i]));
}

/* A table with so many bytes for each rank. */
static void add_by_rank(struct dump *dump, const void *table, size_t bytes)
{
    for (uint32_t i = 0; i < dump->sim->plan->world; i++)
        add_bytes(dump, (const char *)table + dump->as->from[i] * bytes, bytes);
}

/* Elements of whole buckets lie there, all of fp32 where ranks may be renamed. */
static bool is_whole(const struct dump *dump, uint32_t kind)
{
    return kind != GW_ARENA_SHARD_GRADS &&
           !(kind == GW_ARENA_PARAMS && dump->sim->plan->seal.stage == 3);
}

static uint64_t name_place(const struct dump *dump, uint32_t kind, uint64_t bytes)
{
    if (!dump->symmetry->names || !is_whole(dump, kind))
        return bytes;
    return symmetry_place(dump->symmetry, dump->as, bytes / sizeof(float)) * sizeof(float);
}

/* ---- ops ------------------------------------------------------------------------------------- */

static uint64_t ref_name(const struct dump *dump, uint64_t hash, const struct core_ref *ref)
{
    hash = mix(hash, ref->kind);
    hash = mix(hash, name_rank(dump, ref->rank));
    return mix(mix(hash, ref->index), name_place(dump, ref->kind, ref->offset_bytes));
}

static uint64_t signal_name(const struct dump *dump, const struct core_signal *signal)
{
    return mix(mix(mix(4, name_rank(dump, (int)signal->rank)), signal->timeline), signal->value);
}

/* A rank's part in an op; the parts have no order. */
static uint64_t part_name(const struct dump *dump, const struct core_op *op, uint32_t member,
                          bool in, bool out)
{
    uint64_t hash = mix(1, name_rank(dump, (int)op->members[member]));

    if (in)
        hash = ref_name(dump, hash, &op->in[member]);
    return out ? ref_name(dump, mix(hash, 2), &op->out[member]) : hash;
}

static uint64_t op_name(const struct dump *dump, const struct core_op *op)
{
    bool one_in = op->kind == CORE_OP_LOCAL_ADD || op->kind == CORE_OP_FILL;
    bool one_out = op->kind == CORE_OP_LOCAL_ADD || op->kind == CORE_OP_ZERO ||
                   op->kind == CORE_OP_GATHER;
    /* `rank` is the first of its members then, and nobody looks at it. */
    bool of_many = op->kind == CORE_OP_BARRIER && op->stream != CORE_STREAM_GATHER;
    uint64_t hash = mix(mix(op->kind, op->stream), of_many ? 0 : name_rank(dump, (int)op->rank));
    uint64_t set = 0;

    hash = mix(mix(mix(hash, op->bucket), op->bucket_count), op->step);
    hash = mix(mix(mix(hash, op->accumulate | op->secondary << 1), op->measure), op->numel);
    if (op->in && one_in)
        hash = ref_name(dump, hash, op->in);
    if (op->out && one_out)
        hash = ref_name(dump, mix(hash, 2), op->out);
    for (uint32_t i = 0; i < op->world; i++)
        set += part_name(dump, op, i, op->in && !one_in, op->out && !one_out);
    for (uint32_t i = 0; i < op->wait_count; i++)
        set += mix(mix(mix(3, name_rank(dump, (int)op->waits[i].rank)), op->waits[i].index),
                   op->waits[i].value);
    for (uint32_t i = 0; i < op->signal_count; i++)
        set += signal_name(dump, &op->signals[i]);
    return mix(mix(hash, set), op->used_params);
}

static void name_ops(struct dump *dump, const struct sim_op *op)
{
    for (; op && dump->ops < OPS_MAX; op = op->next) {
        dump->ids[dump->ops] = op->op.id;
        dump->names[dump->ops++] = op_name(dump, &op->op);
    }
}

static uint64_t name_of(const struct dump *dump, uint64_t id)
{
    for (uint32_t i = 0; i < dump->ops; i++) {
        if (dump->ids[i] == id)
            return dump->names[i];
    }
    return 0;
}

static void add_op(struct dump *dump, uint64_t id)
{
    add(dump, name_of(dump, id));
}

/* ---- device and memory ----------------------------------------------------------------------- */

static void add_stream(struct dump *dump, const struct sim_stream *stream)
{
    const struct sim *sim = dump->sim;

    for (const struct sim_op *op = stream->head; op; op = op->next) {
        uint64_t set = 0; /* what it waits for has no order */

        add_op(dump, op->op.id);
        for (uint32_t i = 0; i < op->op.wait_op_count; i++)
            set += sim->executed[op->op.wait_ops[i]] ? 0 : name_of(dump, op->op.wait_ops[i]);
        add(dump, set);
        add_op(dump, sim->plan->narrow ? op->op.id - 1 : 0); /* which it stands behind */
    }
}

static void add_device(struct dump *dump)
{
    const struct sim *sim = dump->sim;
    uint64_t set = 0;

    for (uint32_t s = 0; s < SIM_STREAMS; s++) {
        add(dump, s);
        if (s < CORE_STREAM_GATHER)
            add_stream(dump, &sim->streams[s]);
        else
            add_stream(dump, &sim->streams[CORE_STREAM_GATHER +
                                           dump->as->from[s - CORE_STREAM_GATHER]]);
    }
    for (const struct sim_op *op = sim->done; op; op = op->next)
        add_op(dump, op->op.id);
    for (const struct sim_signal *at = sim->signals; at; at = at->next)
        set += mix(name_of(dump, at->after_op), signal_name(dump, &at->signal));
    add(dump, set);
    add_bytes(dump, sim->launches, SIM_ORDER_GATHER(0, 0) * sizeof(sim->launches[0]));
    add_by_rank(dump, &sim->launches[SIM_ORDER_GATHER(0, 0)],
                SIM_GROUPS_MAX * sizeof(sim->launches[0]));
}

/* What its floats stand for, each at its place. */
static uint64_t mix_floats(const struct dump *dump, uint64_t hash, const struct sim_arena *arena)
{
    uint64_t set = 0;

    for (uint64_t i = 0; i < arena->bytes; i += sizeof(uint32_t)) {
        uint32_t bits;

        __builtin_memcpy(&bits, (const char *)arena->data + i, sizeof(bits));
        set += mix(mix(1, name_place(dump, arena->kind, i)),
                   symmetry_value(dump->symmetry, dump->as, bits));
    }
    return mix(hash, set);
}

static void add_arenas(struct dump *dump)
{
    uint64_t all = 0;

    for (const struct sim_arena *arena = dump->sim->arenas; arena; arena = arena->next) {
        uint64_t hash = mix(mix(arena->kind, name_rank(dump, arena->rank)), arena->index);
        bool floats = dump->symmetry->names && arena->kind != GW_ARENA_VERDICT;

        if (arena->kind == GW_ARENA_STAGING)
            continue;
        all += floats ? mix_floats(dump, hash, arena) /* the list has no order */
                      : mix_bytes(hash, arena->data, arena->bytes);
    }
    add(dump, all);
}

/* Slices are renamed like their owners: with names, there is one for each rank. */
static void add_partials(struct dump *dump)
{
    const struct sim *sim = dump->sim;

    for (uint32_t b = 0; b < layout_page(core_layout(sim->core))->buckets; b++) {
        for (uint32_t i = 0; i < SIM_RANKS_MAX; i++) {
            uint32_t at = b * SIM_RANKS_MAX + dump->as->from[i];
            uint64_t bits;

            __builtin_memcpy(&bits, &sim->partials[at], sizeof(bits));
            add(dump, symmetry_value(dump->symmetry, dump->as, bits));
            add(dump, sim->nonfinite[at]);
        }
    }
}

static void add_memory(struct dump *dump)
{
    const struct sim *sim = dump->sim;
    const struct gw_layout_page *page = layout_page(core_layout(sim->core));

    add_arenas(dump);
    add_partials(dump);
    for (uint32_t i = 0; i < sim->plan->world; i++) {
        const struct sim_board *board = &sim->boards[dump->as->from[i]];

        add_bytes(dump, board->buckets, page->buckets * sizeof(*board->buckets));
        add_bytes(dump, board->units, page->units * sizeof(*board->units));
        add_bytes(dump, &board->step, sizeof(board->step));
        add_bytes(dump, &board->update, sizeof(board->update));
        add_bytes(dump, board->ops, sizeof(board->ops));
        add_bytes(dump, board->used, page->params / 8 + 1);
        add(dump, board->verdict.step);
        add_bytes(dump, &board->verdict.norm, sizeof(board->verdict.norm));
    }
}

/* ---- clients --------------------------------------------------------------------------------- */

static void add_gradients(struct dump *dump, const struct sim_client *client)
{
    const struct gw_layout_page *page = layout_page(core_layout(dump->sim->core));

    for (uint32_t b = 0; b < page->buckets; b++) {
        const struct sim_bucket *mine = &client->buckets[b];

        add(dump, mine->closed);
        add(dump, mine->open | mine->slot << 1);
        add(dump, mine->declared | (uint64_t)mine->outstanding << 32);
        add(dump, mine->final);
    }
    for (uint32_t s = 0; s < client->slot_count; s++) {
        const struct sim_ring_slot *slot = &client->slots[s];

        add(dump, slot->taken | (uint64_t)slot->bucket << 1 | (uint64_t)slot->after_bucket << 32);
        add(dump, slot->count);
        add(dump, slot->after_count);
        add(dump, client->asked_slot && slot->serial > client->slot_serial);
    }
    add(dump, client->slot_count);
    add(dump, client->asked_slot ? 1 + client->slot_bucket : 0);
    add_bytes(dump, client->fetches, page->units * sizeof(*client->fetches));
}

static void add_queues(struct dump *dump, const struct sim_client *client)
{
    for (uint32_t q = 0; q < SIM_QUEUES; q++) {
        add(dump, q);
        for (const struct sim_item *item = client->queues[q].head; item; item = item->next) {
            add(dump, item->kind | (uint64_t)item->step << 8 | (uint64_t)item->a << 32);
            add(dump, item->timeline);
            add(dump, item->value);
            add(dump, item->write.param | (uint64_t)item->write.micro << 32);
        }
    }
    add_bytes(dump, client->timelines, sizeof(client->timelines));
    add_bytes(dump, client->promised, sizeof(client->promised));
    add_bytes(dump, client->heard, sizeof(client->heard));
}

static void add_client(struct dump *dump, const struct sim_client *client)
{
    add(dump, client->gone | client->finished << 1 | client->in_update << 2 | client->wrote << 3 |
                  client->set_up << 4 | client->early << 5);
    add(dump, client->at | (uint64_t)client->step << 32);
    add(dump, client->grad_step | (uint64_t)client->micro << 32);
    add(dump, client->commits | (uint64_t)client->ended << 32);
    add(dump, client->begun | (uint64_t)client->ops << 32);
    add(dump, client->awaited != 0);
    for (const struct sim_posted *at = client->out; at; at = at->next)
        add(dump, at->msg.type);
    add_gradients(dump, client);
    add_queues(dump, client);
}

/* ---- the core -------------------------------------------------------------------------------- */

static void add_after(struct dump *dump, const struct wire_after *after)
{
    add(dump, after->tokens);
    for (uint32_t i = 0; i < after->tokens; i++) {
        add(dump, after->timeline[i]);
        add(dump, after->value[i]);
    }
}

static void add_late(struct dump *dump, const struct zero_queue *queue)
{
    add(dump, queue->count);
    for (const struct zero_late *late = queue->head; late; late = late->next) {
        add(dump, late->type | (uint64_t)late->unit << 32);
        add(dump, late->step);
        add(dump, late->behind);
        add_after(dump, &late->after);
        add_bytes(dump, late->entries, late->count * sizeof(late->entries[0]));
    }
}

static void add_zero_rank(struct dump *dump, const struct zero *z, const struct zero_rank *mine)
{
    add(dump, mine->ended | mine->resolved << 32);
    add(dump, mine->update | (uint64_t)mine->update_told << 8);
    add(dump, mine->skipped | mine->slot_news << 1 | mine->overflow_pending << 2 |
                  mine->late_update << 3 | mine->io.waiting << 4 | mine->measure.waiting << 5);
    add(dump, mine->micro | (uint64_t)mine->open_buckets << 32);
    add(dump, mine->undone_buckets | (uint64_t)mine->held << 32);
    add(dump, mine->overflows);
    add_late(dump, &mine->backlog);
    add_late(dump, &mine->fetches);
    add(dump, mine->taken | mine->handled << 32);
    add(dump, mine->ops_submitted | mine->ops_launched << 32);
    for (uint32_t i = 0; i < mine->acquire_count; i++)
        add(dump, 1 + mine->acquires[i].bucket + (mine->acquires[i].ordered ? 1u << 16 : 0));
    for (uint32_t i = 0; i < 2; i++) {
        add_after(dump, &mine->ended_after[i]);
        add_after(dump, &mine->resolved_after[i]);
    }
    add_after(dump, &mine->committed_after);
    add_bytes(dump, mine->released, SIM_TIMELINES * sizeof(uint64_t));
    add_bytes(dump, mine->gather_waits, SIM_TIMELINES * sizeof(uint64_t));
    add_bytes(dump, mine->said, SIM_TIMELINES * sizeof(uint64_t));
    add_op(dump, mine->commit_op);
    add_op(dump, mine->cast_op);
    add_op(dump, mine->persist_op);
    add_op(dump, mine->reduce_op);
    add(dump, mine->shards_waited);
    add(dump, mine->verdict_seen == z->verdict_op);
    if (mine->plan) {
        struct prefetch_figures figures = prefetch_figures(mine->plan);

        add_bytes(dump, &figures, sizeof(figures));
    }
    for (uint32_t s = 0; s < z->ring_slots + mine->overflows && z->ring; s++) {
        const struct zero_slot *slot = zero_slot(z, (uint32_t)(mine - z->ranks), s);

        add(dump, (uint32_t)slot->held | (uint32_t)slot->used << 1 |
                      (uint32_t)slot->promised << 2 | slot->bucket << 3);
        add_op(dump, slot->op);
    }
}

static void add_entries(struct dump *dump, const struct zero *z)
{
    for (uint32_t i = 0; i < z->world * z->buckets; i++) {
        const struct zero_entry *at = &z->entries[dump->as->from[i / z->buckets] * z->buckets +
                                                  i % z->buckets];

        add(dump, at->left | (uint64_t)at->finals << 32);
        add(dump, at->closed | (uint64_t)at->slot << 32);
        add(dump, at->filled | at->closed_now << 1 | at->done << 2 | at->ever << 3 |
                      at->acc_valid << 4 | at->overflow << 5 | at->style << 6);
        add(dump, at->consumed);
        add_op(dump, at->last_op);
        add_op(dump, at->gather_op);
    }
    for (uint32_t i = 0; i < z->world * z->token_keys; i++) {
        const struct zero_tokens *at =
            zero_tokens(z, dump->as->from[i / z->token_keys], i % z->token_keys);

        for (uint32_t t = 0; t < at->count; t++)
            add(dump, at->timeline[t] | at->value[t] << 8);
        add(dump, i);
    }
    for (uint32_t i = 0; i < z->buckets * z->depth; i++) {
        struct ranks due = ranks_of_row(zero_due_row(z, i / z->depth, i % z->depth), z->words);

        add_ranks(dump, &due);
    }
}

static void add_group(struct dump *dump, const struct zero_group *group)
{
    add(dump, group->pos_m | (uint64_t)group->pos_i << 32);
    add(dump, group->finals | (uint64_t)group->micro_max << 32);
    add(dump, group->digest);
    add(dump, group->gate | group->committed << 32);
    add(dump, group->commits | group->gathered << 32);
    add_ranks(dump, &group->fresh);
    add_bytes(dump, group->order, group->buckets * sizeof(*group->order));
    add_bytes(dump, group->recorded, group->recorded_count * sizeof(*group->recorded));
}

static void add_ops_by_rank(struct dump *dump, const uint64_t *ops, uint32_t count)
{
    for (uint32_t i = 0; i < dump->sim->plan->world * count; i++)
        add_op(dump, ops[dump->as->from[i / count] * count + i % count]);
}

static void add_zero(struct dump *dump, const struct zero *z)
{
    add(dump, z->step);
    add_ranks(dump, &z->declared);
    add_op(dump, z->verdict_op);
    add_op(dump, z->quiet_op);
    add(dump, z->update_open | z->committed << 32);
    add(dump, z->loud);
    for (uint32_t g = 0; g < z->group_count; g++)
        add_group(dump, &z->groups[g]);
    add_ops_by_rank(dump, z->gather_ops, z->group_count);
    add_by_rank(dump, z->gather_commits, z->group_count * sizeof(*z->gather_commits));
    for (uint32_t b = 0; b < z->buckets; b++) {
        struct ranks done = ranks_of_row(zero_done_row(z, b), z->words);

        add_ranks(dump, &done);
    }
    add_bytes(dump, z->launched, z->buckets * sizeof(*z->launched));
    add_bytes(dump, z->valid, z->buckets);
    add_bytes(dump, z->zeroed, z->buckets);
    add_bytes(dump, z->used_bits, (z->params + 7) / 8);
    add_by_rank(dump, z->piece_bits, z->pieces);
    add_by_rank(dump, z->contributions,
                (size_t)z->buckets * z->depth * sizeof(*z->contributions));
    add_by_rank(dump, z->unit_fetches, z->units * sizeof(*z->unit_fetches));
    add_by_rank(dump, z->unit_held, z->units * sizeof(*z->unit_held));
    add_ops_by_rank(dump, z->unit_gather, z->fetch_units);
    for (uint32_t i = 0; z->secondaries && i < z->part_count * z->world / z->secondary_ranks; i++) {
        add(dump, z->secondaries[i].version);
        add_op(dump, z->secondaries[i].op);
    }
    add_entries(dump, z);
    for (uint32_t i = 0; i < z->world; i++)
        add_zero_rank(dump, z, &z->ranks[dump->as->from[i]]);
}

static void add_core(struct dump *dump, const struct core *core)
{
    add(dump, core->generation | (uint64_t)core->broken << 32 | (uint64_t)core->ended << 33);
    add_ranks(dump, &core->present);
    add_ranks(dump, &core->left);
    add_ranks(dump, &core->old);
    for (uint32_t r = 0; r < core->config.world; r++) {
        const struct lane_rank *lane = &core->ranks[dump->as->from[r]].lane;

        add(dump, lane->sequence);
        add(dump, lane->pending_count);
        add(dump, lane->in_flight);
        for (uint32_t i = 0; i < lane->pending_count; i++)
            add(dump, lane->pending[i].mark);
    }
    add(dump, core->groups[0].launched);
    add_zero(dump, core->zero);
}

uint64_t sim_dump(const struct sim *sim, const struct symmetry *symmetry, uint32_t renaming)
{
    struct dump dump = {
        .sim = sim, .symmetry = symmetry, .as = &symmetry->renamings[renaming], .hash = 1};

    for (uint32_t s = 0; s < SIM_STREAMS; s++)
        name_ops(&dump, sim->streams[s].head);
    name_ops(&dump, sim->done);
    add_device(&dump);
    add_memory(&dump);
    for (uint32_t i = 0; i < sim->plan->world; i++)
        add_client(&dump, &sim->clients[dump.as->from[i]]);
    add_core(&dump, sim->core);
    return dump.hash;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ZeRO layer: set-up, the way of an event through its parts, the backlog of ranks that run
 * ahead, and re-attaching after a loss. Pure; one thread. zero_internal.h has the map.
 */
#include "daemon/core/zero_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- texts and replies ----------------------------------------------------------------------- */

int zero_fail_start(struct zero *z, int code, uint32_t rank, struct text *ret_text)
{
    z->fault.code = code;
    z->fault.rank = rank;
    text_start(ret_text, z->fault.text, sizeof(z->fault.text));
    return code;
}

int zero_fail(struct zero *z, int code, uint32_t rank, const char *format, ...)
{
    struct text text;
    va_list arguments;

    (void)zero_fail_start(z, code, rank, &text);
    va_start(arguments, format);
    text_addv(&text, format, arguments);
    va_end(arguments);
    return code;
}

void zero_reply(struct zero *z, uint32_t rank, uint32_t request, int code, const char *format, ...)
{
    struct core_effect *effect = effects_add(z->effects, CORE_EFF_REPLY);
    struct text text = TEXT(effect->reply.u.done.text);
    va_list arguments;

    effect->rank = rank;
    effect->reply.type = WIRE_DONE;
    effect->reply.request = request;
    effect->reply.u.done.code = code;
    va_start(arguments, format);
    text_addv(&text, format, arguments);
    va_end(arguments);
}

const char *zero_param_name(const struct zero *z, uint32_t param)
{
    return layout_name(z->layout, layout_params(z->layout)[param].name_at);
}

const char *zero_unit_name(const struct zero *z, uint32_t unit)
{
    return layout_name(z->layout, layout_units(z->layout)[unit].name_at);
}

/* ---- set-up ---------------------------------------------------------------------------------- */

/* calloc of a product, at least one element, so that NULL means lack of memory only. */
static void *table(uint64_t a, uint64_t b, uint64_t c, size_t element)
{
    uint64_t count;

    if (__builtin_mul_overflow(a, b, &count) || __builtin_mul_overflow(count, c, &count) ||
        count > SIZE_MAX / element)
        return NULL;
    return calloc(count ? count : 1, element);
}

static int allocate(struct zero *z)
{
    uint64_t n = z->world, b = z->buckets;

    z->members = table(n, 1, 1, sizeof(*z->members));
    z->ranks = table(n, 1, 1, sizeof(*z->ranks));
    z->timelines = table(n, 3, GW_TIMELINES_MAX, sizeof(*z->timelines));
    z->acquires = table(n, ZERO_ACQUIRES, 1, sizeof(*z->acquires));
    z->piece_bits = table(n, z->pieces, 1, sizeof(*z->piece_bits));
    z->entries = table(n, b, 1, sizeof(*z->entries));
    z->contributions = table(n, b, z->depth, sizeof(*z->contributions));
    z->tokens = table(n, z->token_keys, 1, sizeof(*z->tokens));
    z->slot_table = table(n, z->slots, 1, sizeof(*z->slot_table));
    z->due = table(b, z->depth, 1, sizeof(*z->due));
    z->due_ranks = table(b, z->depth, z->words, sizeof(*z->due_ranks));
    z->done = table(b, z->words, 1, sizeof(*z->done));
    z->launched = table(b, 1, 1, sizeof(*z->launched));
    z->valid = table(b, 1, 1, 1);
    z->zeroed = table(b, 1, 1, 1);
    z->used_bits = table(((uint64_t)z->params + 7) / 8, 1, 1, 1);
    z->freeze_wanted = table(((uint64_t)z->params + 7) / 8, 1, 1, 1);
    z->frozen = table(z->pieces, 1, 1, 1);
    z->frozen_pieces = table(b, 1, 1, sizeof(*z->frozen_pieces));
    z->unit_fetches = table(n, z->units, 1, sizeof(*z->unit_fetches));
    z->unit_held = table(n, z->units, 1, sizeof(*z->unit_held));
    z->unit_gather = table(n, z->fetch_units, 1, sizeof(*z->unit_gather));
    if (!z->members || !z->ranks || !z->timelines || !z->acquires || !z->piece_bits ||
        !z->entries || !z->contributions || !z->tokens || !z->slot_table || !z->due ||
        !z->due_ranks || !z->done || !z->launched || !z->valid || !z->zeroed || !z->used_bits ||
        !z->unit_fetches || !z->unit_held || !z->unit_gather || !z->freeze_wanted || !z->frozen ||
        !z->frozen_pieces)
        return GW_E_NOMEM;
    for (uint32_t rank = 0; rank < z->world; rank++) {
        uint64_t *timelines = &z->timelines[(size_t)rank * 3 * GW_TIMELINES_MAX];
        struct zero_rank *mine = &z->ranks[rank];

        z->members[rank] = rank;
        mine->acquires = &z->acquires[(size_t)rank * ZERO_ACQUIRES];
        mine->released = timelines;
        mine->gather_waits = timelines + GW_TIMELINES_MAX;
        mine->said = timelines + 2 * GW_TIMELINES_MAX;
    }
    return ops_init(z);
}

static int make_plans(struct zero *z)
{
    struct prefetch_config config = {
        .budget_bytes = z->options.gather_bytes,
        .ahead_bytes = z->options.overlap_off ? 0 : z->options.prefetch_bytes,
        .reuse_bytes = z->options.reuse_bytes,
        .no_pool_free = !zero_edge(z, EDGE_POOL_FREE),
    };
    int r;

    for (uint32_t rank = 0; rank < z->world && z->stage == 3; rank++) {
        r = prefetch_new(z->layout, z->ranks[rank].place, &config, &z->ranks[rank].plan);
        if (r < 0)
            return r;
    }
    return 0;
}

static void fill(struct zero *z, const struct layout *layout, const struct wire_seal *options,
                 uint32_t world, uint64_t drop_edges)
{
    const struct gw_layout_page *page = layout_page(layout);

    z->layout = layout;
    z->options = *options;
    z->world = world;
    z->everyone = ranks_below(world);
    z->words = ranks_words(world);
    z->drop = drop_edges;
    z->stage = options->stage;
    z->micro_steps = options->micro_steps;
    z->ring_slots = options->ring_slots;
    z->local = options->accumulate == GW_ACCUMULATE_LOCAL;
    z->ring = z->stage >= 2 && !z->local;
    z->mapped = z->stage == 3 && options->gather == GW_GATHER_MAPPED;
    z->secondary_ranks = options->secondary_ranks;
    z->bucket_table = layout_buckets(layout);
    z->group_count = page->groups;
    z->buckets = page->buckets;
    z->pieces = page->pieces;
    z->params = page->params;
    z->units = page->units;
    z->fetch_units = page->fetch_units;
    z->depth = z->local ? 1 : z->micro_steps;
    z->slots = page->buckets < GW_OVERFLOW_MAX ? page->buckets : GW_OVERFLOW_MAX;
    z->slots = z->ring ? z->ring_slots + z->slots : 0;
    z->token_keys = z->ring ? z->slots : z->buckets;
}

int zero_new(const struct layout *layout, const struct wire_seal *options, uint32_t world,
             bool ordered, uint64_t drop_edges, struct effects *effects, struct zero **ret_zero)
{
    struct zero *z;
    int r;

    if (world == 0 || world > GW_RANKS_MAX)
        return GW_E_INVALID;
    z = calloc(1, sizeof(*z));
    if (!z)
        return GW_E_NOMEM;
    z->effects = effects;
    z->ordered = ordered;
    fill(z, layout, options, world, drop_edges);
    r = allocate(z);
    if (r == 0)
        r = groups_init(z);
    if (r == 0)
        r = secondary_init(z);
    if (r == 0)
        r = make_plans(z);
    if (r == 0)
        r = grant_init(z);
    if (r < 0) {
        zero_free(z);
        return r;
    }
    grad_reset_step(z);
    *ret_zero = z;
    return 0;
}

static void queue_clear(struct zero_queue *queue)
{
    while (queue->head)
        zero_queue_drop(queue);
}

struct zero *zero_free(struct zero *z)
{
    if (!z)
        return NULL;
    ops_free(z);
    measure_reset(z);
    for (uint32_t r = 0; z->ranks && r < z->world; r++) {
        queue_clear(&z->ranks[r].backlog);
        queue_clear(&z->ranks[r].fetches);
        prefetch_free(z->ranks[r].plan);
    }
    groups_free(z);
    free(z->members);
    free(z->ranks);
    free(z->timelines);
    free(z->acquires);
    free(z->piece_bits);
    free(z->entries);
    free(z->contributions);
    free(z->tokens);
    free(z->slot_table);
    free(z->due);
    free(z->due_ranks);
    free(z->done);
    free(z->launched);
    free(z->valid);
    free(z->zeroed);
    free(z->used_bits);
    free(z->freeze_wanted);
    free(z->frozen);
    free(z->frozen_pieces);
    free(z->unit_fetches);
    free(z->unit_held);
    free(z->unit_gather);
    grant_free(z);
    secondary_free(z);
    free(z);
    return NULL;
}

/* ---- queues ---------------------------------------------------------------------------------- */

int zero_queue_put(struct zero *z, struct zero_queue *queue, uint32_t rank,
                   const struct zero_late *what, const struct wire_ready_entry *entries)
{
    size_t bytes = what->count * sizeof(*entries);
    struct zero_late *late;

    if (queue->count == ZERO_BACKLOG)
        return zero_fail(z, GW_E_LIMIT, rank,
                         "rank %u is more than %u messages ahead of the others", rank,
                         ZERO_BACKLOG);
    late = malloc(sizeof(*late) + bytes);
    if (!late)
        return zero_fail(z, GW_E_NOMEM, rank, "no memory to keep a message of rank %u", rank);
    *late = *what;
    late->next = NULL;
    if (bytes)
        memcpy(late->entries, entries, bytes);
    if (queue->tail)
        queue->tail->next = late;
    else
        queue->head = late;
    queue->tail = late;
    queue->count++;
    return 0;
}

void zero_queue_drop(struct zero_queue *queue)
{
    struct zero_late *late = queue->head;

    queue->head = late->next;
    if (!queue->head)
        queue->tail = NULL;
    queue->count--;
    free(late);
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool goes_on(uint16_t type)
{
    return type == WIRE_READY || type == WIRE_MICRO_END || type == WIRE_STEP_END ||
           type == WIRE_FETCH;
}

/* A client's streams may wait for what the client declared before they do what it declares next: a
 * verdict, an update window, a fetch. True: all that is launched. (In its window nothing can wait
 * for fetches, for they come after its commit.) */
static bool caught_up(const struct zero *z, const struct zero_rank *mine)
{
    if (mine->ended > z->step)
        return false;
    return mine->update == UPDATE_BEGUN ? mine->update_told >= mine->ended
                                        : mine->fetches.count == 0;
}

/* For the ledger's step; a rank that has ended it must wait. */
static bool is_ledger(uint16_t type)
{
    return type == WIRE_READY || type == WIRE_MICRO_END || type == WIRE_STEP_END;
}

/* Ops that wait for the message's tokens come after what the rank's streams wait for. */
static bool must_wait(const struct zero *z, uint32_t rank, uint16_t type)
{
    const struct zero_rank *mine = &z->ranks[rank];

    return is_ledger(type) && (z->ordered ? !caught_up(z, mine) : mine->ended > z->step);
}

static int end_step(struct zero *z, uint32_t rank, const struct wire_after *after)
{
    int r;

    if (z->ranks[rank].update == UPDATE_BEGUN)
        return zero_fail(z, GW_E_STATE, rank,
                         "rank %u ended step %llu inside its update of step %llu: commit it first",
                         rank, (unsigned long long)z->ranks[rank].ended + 1,
                         (unsigned long long)z->ranks[rank].ended);
    r = fetch_step_end(z, rank);
    if (r == 0)
        r = grad_step_end(z, rank);
    if (r < 0)
        return r;
    z->ranks[rank].ended_after[z->ranks[rank].ended & 1] = *after;
    z->ranks[rank].skipped = false;
    return 0;
}

static int dispatch(struct zero *z, uint32_t rank, const struct zero_late *what,
                    const struct wire_ready_entry *entries)
{
    if (z->measure.running && what->type != WIRE_RELEASE)
        return zero_fail(z, GW_E_STATE, rank, "rank %u sent %s while it measures", rank,
                         wire_type_name(what->type));
    tokens_note(z, rank, &what->after);
    if (goes_on(what->type))
        step_touch(z, rank, &what->after);
    if (must_wait(z, rank, what->type))
        return 1;
    switch (what->type) {
    case WIRE_READY:
        return grad_ready(z, rank, entries, what->count);
    case WIRE_MICRO_END:
        return grad_micro_end(z, rank);
    case WIRE_STEP_END:
        return end_step(z, rank, &what->after);
    case WIRE_UPDATE_BEGIN:
        return step_update_begin(z, rank);
    case WIRE_UPDATE_COMMIT:
        return step_update_commit(z, rank, &what->after);
    case WIRE_FETCH:
        return fetch_declare(z, rank, what->unit);
    case WIRE_RELEASE:
        return fetch_release(z, rank, what->unit, &what->after);
    default:
        return zero_fail(z, GW_E_INTERNAL, rank, "the ZeRO layer was given a message %s",
                         wire_type_name(what->type));
    }
}

/* One message in the rank's order. 1: not yet. */
static int handle(struct zero *z, uint32_t rank, const struct zero_late *what,
                  const struct wire_ready_entry *entries)
{
    int r;

    z->closing = &what->after;
    r = dispatch(z, rank, what, entries);
    z->closing = NULL;
    return r;
}

/* The wire has checked both; whoever else hands messages in must not break the tables. */
static bool tokens_sound(const struct wire_after *after)
{
    for (uint32_t i = 0; i < after->tokens && i < GW_READY_TOKENS; i++) {
        if (after->timeline[i] >= GW_TIMELINES_MAX)
            return false;
    }
    return after->tokens <= GW_READY_TOKENS;
}

/* Those of the first gradient: by then the last step's gradients are done with. */
static struct wire_after first_tokens(const struct wire_msg *msg)
{
    const struct wire_after none = {0};
    struct wire_after after = {0};
    const struct wire_ready_entry *first = msg->u.ready.entries;

    if (msg->u.ready.count == 0)
        return none;
    after.tokens = first->tokens;
    memcpy(after.timeline, first->timeline, sizeof(after.timeline));
    memcpy(after.value, first->value, sizeof(after.value));
    return tokens_sound(&after) ? after : none; /* refused later */
}

/* Messages of a rank are handled in order, so what follows one that must wait waits too. */
static int in_order(struct zero *z, uint32_t rank, const struct wire_msg *msg)
{
    struct zero_late late = {.now_ns = z->now_ns, .type = msg->type};
    struct zero_rank *mine = &z->ranks[rank];
    const struct wire_ready_entry *entries = NULL;
    int r = 1;

    if (msg->type == WIRE_READY) {
        late.count = msg->u.ready.count;
        entries = msg->u.ready.entries;
        late.after = first_tokens(msg);
    } else if (msg->type == WIRE_FETCH || msg->type == WIRE_RELEASE) {
        late.unit = msg->u.unit.unit;
        late.after = msg->u.unit.after;
    } else if (msg->type != WIRE_UPDATE_BEGIN) {
        late.after = msg->u.after;
    }
    if (!tokens_sound(&late.after))
        return zero_fail(z, GW_E_INVALID, rank, "rank %u sent %s with tokens that no client has",
                         rank, wire_type_name(msg->type));
    mine->taken++;
    late.behind = mine->ops_submitted;
    if (!mine->backlog.count && mine->ops_launched >= late.behind)
        r = handle(z, rank, &late, entries);
    if (r == 1)
        return zero_queue_put(z, &mine->backlog, rank, &late, entries);
    mine->handled++;
    return r;
}

static int replay(struct zero *z, uint32_t rank, bool *ret_some)
{
    struct zero_queue *queue = &z->ranks[rank].backlog;
    uint64_t now_ns = z->now_ns;
    int r = 0;

    while (queue->head && r == 0 && z->ranks[rank].ops_launched >= queue->head->behind) {
        z->now_ns = queue->head->now_ns; /* it was declared then, not now */
        r = handle(z, rank, queue->head, queue->head->entries);
        if (r == 1)
            break;
        zero_queue_drop(queue);
        z->ranks[rank].handled++;
        *ret_some = true;
    }
    z->now_ns = now_ns;
    return r == 1 ? 0 : r;
}

int zero_pump(struct zero *z)
{
    bool some = true;
    int r;

    while (some) {
        some = step_gate(z);
        r = fetch_pump(z);
        if (r < 0)
            return r;
        some |= launch_reductions(z);
        some |= step_close(z);
        some |= step_open_updates(z);
        for (uint32_t rank = 0; rank < z->world; rank++) {
            r = replay(z, rank, &some);
            if (r < 0)
                return r;
        }
    }
    slot_pump(z);
    measure_pump(z);
    freeze_pump(z);
    io_pump(z);
    return z->no_memory ? zero_fail(z, GW_E_NOMEM, UINT32_MAX, "no memory in the engine") : 0;
}

static int request(struct zero *z, uint32_t rank, const struct wire_msg *msg)
{
    switch (msg->type) {
    case WIRE_ACQUIRE:
        return slot_acquire(z, rank, msg);
    case WIRE_PARAM_IO:
        io_request(z, rank, msg);
        return 0;
    case WIRE_MEASURE:
        measure_request(z, rank, msg->request);
        return 0;
    case WIRE_FREEZE:
        return freeze_request(z, rank, msg);
    default:
        return in_order(z, rank, msg);
    }
}

int zero_event(struct zero *z, uint64_t now_ns, const struct core_event *event,
               struct core_fault *ret_fault)
{
    int r = 0;

    z->now_ns = now_ns;
    if (event->rank >= z->world)
        r = zero_fail(z, GW_E_INTERNAL, UINT32_MAX, "an event of rank %u of %u", event->rank,
                      z->world);
    else if (event->kind == CORE_EV_OVERFLOW)
        slot_overflow(z, event->rank, event->code);
    else if (event->kind == CORE_EV_HEARD)
        z->unheard = 0;
    else
        r = request(z, event->rank, event->msg);
    if (r == 0)
        r = zero_pump(z);
    if (r < 0)
        *ret_fault = z->fault;
    return r;
}

uint32_t zero_unheard(const struct zero *z)
{
    return z->unheard;
}

/* ---- order with collectives ------------------------------------------------------------------ */

uint64_t zero_op_submitted(struct zero *z, uint32_t rank)
{
    z->ranks[rank].ops_submitted++;
    return z->ranks[rank].taken;
}

void zero_op_launched(struct zero *z, uint32_t rank)
{
    z->ranks[rank].ops_launched++;
}

/* A stream may also wait for a full buffer's last contribution, when it writes the next, so in a
 * later micro-step. For a ring slot only if that is launched. */
bool zero_settled(const struct zero *z, uint32_t rank, uint64_t mark)
{
    const struct zero_rank *mine = &z->ranks[rank];

    if (mine->handled < mark || !caught_up(z, mine))
        return false;
    for (uint32_t b = 0; b < z->buckets && !z->ring && !z->local; b++) {
        if (zero_member(z, b, rank) && grad_unlaunched(z, rank, b, true))
            return false;
    }
    return true;
}

int zero_resume(struct zero *z, uint64_t now_ns, struct core_fault *ret_fault)
{
    int r;

    z->now_ns = now_ns;
    r = zero_pump(z);
    if (r < 0)
        *ret_fault = z->fault;
    return r;
}

/* ---- re-attaching ---------------------------------------------------------------------------- */

/* When a job breaks, nothing holds its clients' streams back any more: they run through whatever
 * was enqueued. */
static bool may_still_write(const struct zero *z, const struct zero_rank *rank)
{
    const struct zero_late *late = rank->backlog.head;

    while (late && late->type != WIRE_UPDATE_BEGIN)
        late = late->next;
    return late || rank->update == UPDATE_BEGUN || rank->late_update ||
           ops_flight(z, rank->commit_op);
}

/* Shards must hold the same version everywhere: nobody inside an open window, and of the last step
 * either all updates or none. */
static int check_torn(struct zero *z)
{
    for (uint32_t r = 0; r < z->world; r++) {
        const struct zero_rank *rank = &z->ranks[r];

        if (z->ordered && may_still_write(z, rank))
            return zero_fail(z, GW_E_TORN, r,
                             "the streams of rank %u were given an update of its shard to make, "
                             "and had not reported its end: start the job anew", r);
        if (rank->update == UPDATE_BEGUN && rank->update_told >= rank->ended)
            return zero_fail(z, GW_E_TORN, r,
                             "the shard of rank %u was left inside its update of step %llu: start "
                             "the job anew", r, (unsigned long long)rank->ended);
        if (rank->resolved < z->committed)
            return zero_fail(z, GW_E_TORN, r,
                             "the shard of rank %u lacks the update of step %llu, which other "
                             "ranks have made: start the job anew", r,
                             (unsigned long long)z->committed);
    }
    return 0;
}

static void reset_rank(struct zero *z, uint32_t rank)
{
    struct zero_rank *mine = &z->ranks[rank];

    queue_clear(&mine->backlog);
    queue_clear(&mine->fetches);
    mine->taken = mine->handled = mine->ops_submitted = mine->ops_launched = 0;
    mine->ended = mine->resolved = mine->update_told = z->step;
    mine->update = UPDATE_NONE;
    mine->skipped = false;
    mine->held = mine->acquire_count = mine->overflows = 0;
    mine->slot_news = mine->overflow_pending = mine->measure.waiting = mine->io.waiting = false;
    for (uint32_t b = 0; b < z->buckets; b++)
        *zero_entry(z, rank, b) = (struct zero_entry){.slot = GW_NO_SLOT};
    if (mine->plan)
        prefetch_reset(mine->plan);
}

static void reset_groups(struct zero *z)
{
    for (uint32_t g = 0; g < z->group_count; g++) {
        struct zero_group *group = &z->groups[g];

        group->gate = group->committed = group->gathered = z->step;
        group->fresh = (struct ranks){{0}};
    }
    groups_first_order(z);
}

int zero_reattach(struct zero *z, struct core_fault *ret_fault)
{
    size_t slots = (size_t)z->world * z->slots, units = (size_t)z->world * z->units;
    int r;

    r = check_torn(z);
    if (r < 0) {
        *ret_fault = z->fault;
        return r;
    }
    z->stale = z->committed > 0;
    /* A step that was not resolved by all counts as not made: no shard has seen it. */
    z->step = z->update_open = z->committed = step_resolved(z);
    for (uint32_t rank = 0; rank < z->world; rank++)
        reset_rank(z, rank);
    memset(z->slot_table, 0, slots * sizeof(*z->slot_table));
    memset(z->tokens, 0, (size_t)z->world * z->token_keys * sizeof(*z->tokens));
    memset(z->unit_fetches, 0, units * sizeof(*z->unit_fetches));
    memset(z->unit_held, 0, units * sizeof(*z->unit_held));
    memset(z->unit_gather, 0, (size_t)z->world * z->fetch_units * sizeof(*z->unit_gather));
    measure_reset(z);
    freeze_reset(z);
    z->unheard = 0;
    ops_reset(z);
    grant_reset(z);
    secondary_forget(z);
    tokens_reset(z);
    reset_groups(z);
    grad_reset_step(z);
    return 0;
}

/* Masters are whole. */
void zero_renew(struct zero *z, uint64_t now_ns)
{
    static const struct wire_after none;

    if (!z->stale)
        return;
    z->stale = false;
    z->now_ns = now_ns;
    for (uint32_t rank = 0; rank < z->world; rank++)
        step_cast(z, rank, &none);
    for (uint32_t g = 0; g < z->group_count; g++) {
        z->groups[g].commits++; /* gathers wait for the casts */
        if (z->stage == 1 || z->stage == 2)
            step_gather_all(z, g, z->step, false);
    }
}

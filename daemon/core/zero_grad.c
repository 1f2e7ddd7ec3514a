/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger: which pieces of which bucket each rank has declared, and what that makes of its
 * contributions. Pure; one thread. It declares; zero_launch.c launches.
 *
 * In every micro-step a rank closes exactly one contribution to each bucket that is not done: when
 * its last outstanding piece is ready, else at the micro-step's or step's end, missing pieces then
 * being zero-filled. A bucket is done once all its pieces were final, or at the step's end.
 *
 *   accumulate=shard: each contribution is an input of its own to one reduction.
 *   accumulate=local: contributions are summed in the rank's ACC (REPLACE) or by the caller in
 *   GRADS (RUNNING); the one reduction is due when the bucket is done. The word that gives the
 *   buffer back after a contribution that is not the last rises at the micro-step's end, for only
 *   then is it known not to be the last.
 */
#include "daemon/core/zero_internal.h"

#include <string.h>

#define UNUSED_NAMES 8u /* named in a text */

/* ---- resetting ------------------------------------------------------------------------------- */

/* A new micro-step of the rank: what was not final is outstanding again. */
static void reset_micro_step(struct zero *z, uint32_t rank)
{
    struct zero_rank *mine = &z->ranks[rank];

    mine->open_buckets = 0;
    for (uint32_t p = 0; p < z->pieces; p++)
        *zero_piece_bits(z, rank, p) &= (uint8_t)~PIECE_READY;
    for (uint32_t b = 0; b < z->buckets; b++) {
        struct zero_entry *entry = zero_entry(z, rank, b);

        entry->left = z->bucket_table[b].pieces - entry->finals;
        entry->closed_now = false;
        mine->open_buckets += zero_member(z, b, rank) && !entry->done;
    }
}

static void reset_rank(struct zero *z, uint32_t rank)
{
    struct zero_rank *mine = &z->ranks[rank];

    memcpy(zero_piece_bits(z, rank, 0), z->frozen, z->pieces);
    mine->micro = 0;
    mine->undone_buckets = mine->own_buckets;
    for (uint32_t b = 0; b < z->buckets; b++) {
        struct zero_entry *entry = zero_entry(z, rank, b);
        bool done = zero_member(z, b, rank) && zero_frozen(z, b);

        *entry = (struct zero_entry){.slot = GW_NO_SLOT,
                                     .finals = z->frozen_pieces[b],
                                     .done = done,
                                     .consumed = entry->consumed,
                                     .last_op = entry->last_op,
                                     .gather_op = entry->gather_op};
        mine->undone_buckets -= done;
        if (done)
            ranks_row_add(zero_done_row(z, b), rank);
    }
    reset_micro_step(z, rank);
}

void grad_reset_step(struct zero *z)
{
    size_t due = (size_t)z->buckets * z->depth;

    memset(z->done, 0, (size_t)z->buckets * z->words * sizeof(*z->done));
    for (uint32_t r = 0; r < z->world; r++)
        reset_rank(z, r);
    memset(z->contributions, 0,
           (size_t)z->world * z->buckets * z->depth * sizeof(*z->contributions));
    memset(z->due, 0, due * sizeof(*z->due));
    memset(z->due_ranks, 0, due * z->words * sizeof(*z->due_ranks));
    memset(z->launched, 0, z->buckets * sizeof(*z->launched));
    memset(z->valid, 0, z->buckets);
    memset(z->zeroed, 0, z->buckets);
    memset(z->used_bits, 0, ((size_t)z->params + 7) / 8);
    z->used_params = 0;
    z->declared = (struct ranks){{0}};
    groups_reset_step(z);
}

/* ---- closing contributions ------------------------------------------------------------------- */

static void arrive(struct zero *z, uint32_t rank, uint32_t bucket, uint32_t m)
{
    struct zero_due *due = zero_due(z, bucket, m);

    if (!due->any)
        due->first_ns = z->now_ns;
    due->any = true;
    due->ready_ns = z->now_ns;
    ranks_row_add(zero_due_row(z, bucket, m), rank);
}

/* The first member's order of declarations is the next step's order of launches. */
static void record(struct zero *z, uint32_t rank, uint32_t bucket)
{
    struct zero_group *group = zero_group_of(z, bucket);

    if (rank == group->ranks[0])
        group->recorded[group->recorded_count++] = bucket;
}

/* A RUNNING sum lies in GRADS; but all ranks' inputs of one op have one dtype. */
static bool must_convert(const struct zero *z, uint32_t rank, uint32_t bucket)
{
    const struct zero_entry *entry = zero_entry(z, rank, bucket);
    const struct gw_layout_bucket *at = &z->bucket_table[bucket];

    return entry->style == STYLE_RUNNING && entry->ever && at->grad_dtype != at->accum_dtype &&
           place_sums(z->ranks[rank].place, bucket);
}

static void finish(struct zero *z, uint32_t rank, uint32_t bucket)
{
    struct zero_entry *entry = zero_entry(z, rank, bucket);

    if (must_convert(z, rank, bucket))
        launch_local_add(z, rank, bucket);
    entry->done = true;
    ranks_row_add(zero_done_row(z, bucket), rank);
    z->ranks[rank].undone_buckets--;
    if (!z->local)
        return;
    arrive(z, rank, bucket, 0);
    record(z, rank, bucket);
}

static void close_shard(struct zero *z, uint32_t rank, uint32_t bucket)
{
    struct zero_entry *entry = zero_entry(z, rank, bucket);
    uint32_t m = entry->closed, slot = entry->slot;

    if (entry->filled && z->ring)
        launch_zero_fill(z, rank, bucket, PIECE_READY, place_of_slot(z, slot, rank), true);
    else if (entry->filled)
        launch_zero_fill(z, rank, bucket, PIECE_READY, place_of_grads(z, bucket, rank), false);
    *zero_contribution(z, rank, bucket, m) = !entry->filled ? 0 : z->ring ? 1 + slot : 1;
    arrive(z, rank, bucket, m);
    if (m == 0)
        record(z, rank, bucket);
    /* Edge ALL_READY dropped: the reduction has run without it. */
    if (z->launched[bucket] > m && slot != GW_NO_SLOT)
        zero_slot(z, rank, slot)->held = false;
}

/* What a piece lacks that must read as zero: of RUNNING sums only what this step never wrote. */
static void close_local(struct zero *z, uint32_t rank, uint32_t bucket, bool done)
{
    struct zero_entry *entry = zero_entry(z, rank, bucket);
    struct core_ref grads = place_of_grads(z, bucket, rank);
    bool sums = place_sums(z->ranks[rank].place, bucket);

    if (sums && entry->style == STYLE_RUNNING) {
        if (done && entry->ever) /* pieces that are frozen are final, and never written */
            launch_zero_fill(z, rank, bucket, PIECE_EVER, grads, false);
    } else if (entry->filled) {
        launch_zero_fill(z, rank, bucket, PIECE_READY, grads, false);
        if (sums)
            launch_local_add(z, rank, bucket);
    }
}

/* The open contribution is declared. last: the step ends for the rank. */
static void close_contribution(struct zero *z, uint32_t rank, uint32_t bucket, bool last)
{
    struct zero_entry *entry = zero_entry(z, rank, bucket);
    bool done = last || entry->finals == z->bucket_table[bucket].pieces;

    if (z->local)
        close_local(z, rank, bucket, done);
    else
        close_shard(z, rank, bucket);
    entry->closed++;
    entry->closed_now = true;
    entry->filled = entry->overflow = false;
    entry->slot = GW_NO_SLOT;
    z->ranks[rank].open_buckets--;
    if (done)
        finish(z, rank, bucket);
}

/* ---- READY ----------------------------------------------------------------------------------- */

static int fail_piece(struct zero *z, int code, uint32_t rank, const struct wire_ready_entry *entry,
                      const char *what)
{
    struct text text;
    int r;

    r = zero_fail_start(z, code, rank, &text);
    text_add(&text, "rank %u: piece %u of parameter '", rank, entry->piece);
    text_add_escaped(&text, zero_param_name(z, entry->param));
    text_add(&text, "' %s", what);
    return r;
}

static int check_entry(struct zero *z, uint32_t rank, const struct wire_ready_entry *entry)
{
    if (entry->param >= z->params ||
        entry->piece >= layout_params(z->layout)[entry->param].pieces)
        return zero_fail(z, GW_E_INVALID, rank,
                         "rank %u declared piece %u of parameter %u, which does not exist", rank,
                         entry->piece, entry->param);
    if (!ranks_has(&z->groups[layout_params(z->layout)[entry->param].group].members, rank))
        return fail_piece(z, GW_E_INVALID, rank, entry,
                          "was declared, but its group does not hold the rank");
    if (entry->flags & ~(uint32_t)(GW_GRAD_ACCUMULATE | GW_GRAD_RUNNING) ||
        entry->tokens > GW_READY_TOKENS)
        return zero_fail(z, GW_E_INVALID, rank,
                         "rank %u declared a gradient with flags %#x and %u tokens", rank,
                         entry->flags, entry->tokens);
    for (uint32_t i = 0; i < entry->tokens; i++) {
        if (entry->timeline[i] >= GW_TIMELINES_MAX)
            return zero_fail(z, GW_E_INVALID, rank,
                             "rank %u declared a gradient that waits for its timeline %u, of %u",
                             rank, entry->timeline[i], GW_TIMELINES_MAX);
    }
    return 0;
}

/* RUNNING and REPLACE put the sum in different places. */
static int check_style(struct zero *z, uint32_t rank, uint32_t bucket,
                       const struct wire_ready_entry *what)
{
    struct zero_entry *entry = zero_entry(z, rank, bucket);
    uint8_t style = what->flags & GW_GRAD_RUNNING ? STYLE_RUNNING : STYLE_REPLACE;

    if (style == STYLE_RUNNING && !z->local)
        return fail_piece(z, GW_E_STATE, rank, what,
                          "was declared RUNNING, which needs accumulate=local");
    if (entry->style != STYLE_NONE && entry->style != style)
        return fail_piece(z, GW_E_STATE, rank, what,
                          "mixes RUNNING and REPLACE with others of its bucket in one step");
    entry->style = style;
    return 0;
}

static int check_buffer(struct zero *z, uint32_t rank, uint32_t bucket, uint32_t slot)
{
    const struct zero_entry *entry = zero_entry(z, rank, bucket);

    if (z->ring)
        return slot_use(z, rank, bucket, slot);
    if (z->local || entry->closed <= z->launched[bucket] ||
        !*zero_contribution(z, rank, bucket, entry->closed - 1))
        return 0;
    return zero_fail(z, GW_E_BUSY, rank,
                     "rank %u declared a gradient in the buffer of bucket %u, whose last "
                     "contribution is not reduced yet: acquire it first", rank, bucket);
}

/* Only the highest value of a timeline need be waited for. */
static int add_tokens(struct zero *z, uint32_t rank, uint32_t bucket,
                      const struct wire_ready_entry *entry)
{
    struct zero_tokens *tokens =
        zero_tokens(z, rank, z->ring ? entry->slot : bucket);

    for (uint32_t i = 0; i < entry->tokens; i++) {
        uint32_t at = 0;

        while (at < tokens->count && tokens->timeline[at] != entry->timeline[i])
            at++;
        if (at == ZERO_TOKENS)
            return zero_fail(z, GW_E_LIMIT, rank,
                             "rank %u: the gradients of bucket %u wait for more than %u different "
                             "timelines: use fewer", rank, bucket, ZERO_TOKENS);
        if (at == tokens->count) {
            tokens->timeline[at] = (uint8_t)entry->timeline[i];
            tokens->value[at] = 0;
            tokens->count++;
        }
        if (entry->value[i] > tokens->value[at])
            tokens->value[at] = entry->value[i];
    }
    return 0;
}

static void mark_used(struct zero *z, uint32_t param)
{
    uint8_t bit = (uint8_t)(1u << (param & 7));

    if (z->used_bits[param / 8] & bit)
        return;
    z->used_bits[param / 8] |= bit;
    z->used_params++;
}

static int ready_one(struct zero *z, uint32_t rank, const struct wire_ready_entry *what)
{
    uint32_t piece, bucket;
    struct zero_entry *entry;
    uint8_t *bits;
    int r;

    r = check_entry(z, rank, what);
    if (r < 0)
        return r;
    piece = layout_params(z->layout)[what->param].first_piece + what->piece;
    bucket = layout_pieces(z->layout)[piece].bucket;
    entry = zero_entry(z, rank, bucket);
    bits = zero_piece_bits(z, rank, piece);
    if (*bits & PIECE_READY)
        return fail_piece(z, GW_E_DUPLICATE, rank, what, "was declared twice in one micro-step");
    if (z->frozen[piece])
        return fail_piece(z, GW_E_STATE, rank, what, "was declared, but it is frozen");
    if (*bits & PIECE_FINAL)
        return fail_piece(z, GW_E_STATE, rank, what,
                          "was declared again after it had been final in this step");
    r = check_style(z, rank, bucket, what);
    if (r == 0)
        r = check_buffer(z, rank, bucket, what->slot);
    if (r == 0)
        r = add_tokens(z, rank, bucket, what);
    if (r < 0)
        return r;
    *bits |= PIECE_READY | PIECE_EVER;
    if (!(what->flags & GW_GRAD_ACCUMULATE)) {
        *bits |= PIECE_FINAL;
        entry->finals++;
    }
    entry->filled = entry->ever = true;
    mark_used(z, what->param);
    if (--entry->left == 0)
        close_contribution(z, rank, bucket, false);
    return 0;
}

/* A stream waits for its buffer, and may have declared already what it will write there. No op may
 * be launched that waits for it, on the stream that is to free the buffer; and the tokens of two
 * contributions must not be mixed. */
static bool must_wait(const struct zero *z, uint32_t rank, const struct wire_ready_entry *what)
{
    uint32_t piece, bucket;

    if (what->param >= z->params || what->piece >= layout_params(z->layout)[what->param].pieces)
        return false; /* refused later */
    piece = layout_params(z->layout)[what->param].first_piece + what->piece;
    bucket = layout_pieces(z->layout)[piece].bucket;
    return zero_member(z, bucket, rank) && grad_unlaunched(z, rank, bucket, false);
}

bool grad_unlaunched(const struct zero *z, uint32_t rank, uint32_t bucket, bool before)
{
    const struct zero_entry *entry = zero_entry(z, rank, bucket);
    uint32_t end = entry->closed - (before && entry->closed_now ? 1 : 0);

    return z->launched[bucket] < end;
}

int grad_ready(struct zero *z, uint32_t rank, const struct wire_ready_entry *entries,
               uint32_t count)
{
    int r = 0;

    for (uint32_t i = 0; i < count && z->ordered && !z->ring && !z->local; i++) {
        if (must_wait(z, rank, &entries[i]))
            return 1;
    }
    ranks_add(&z->declared, rank);
    for (uint32_t i = 0; i < count && r == 0; i++)
        r = ready_one(z, rank, &entries[i]);
    return r;
}

/* ---- ends ------------------------------------------------------------------------------------ */

static bool micro_steps_fit(const struct zero *z, const struct zero_rank *mine,
                            const struct zero_rank *other, bool ends)
{
    if (other->ended > z->step)
        return ends ? other->micro == mine->micro : other->micro >= mine->micro;
    return !ends || other->micro <= mine->micro;
}

/* A bucket that two ranks reduce together; UINT32_MAX: there is none. */
static uint32_t common_bucket(const struct zero *z, uint32_t rank, uint32_t other)
{
    for (uint32_t g = 0; g < z->group_count; g++) {
        if (zero_in(z, g, rank) && zero_in(z, g, other))
            return z->groups[g].order[0];
    }
    return UINT32_MAX;
}

/* Ranks that make different numbers of micro-steps would wait for each other for ever. */
static int check_micro_steps(struct zero *z, uint32_t rank, bool ends)
{
    const struct zero_rank *mine = &z->ranks[rank];

    for (uint32_t q = 0; q < z->world; q++) {
        const struct zero_rank *other = &z->ranks[q];
        uint32_t bucket = common_bucket(z, rank, q);
        bool ended = other->ended > z->step;

        if (q == rank || bucket == UINT32_MAX || micro_steps_fit(z, mine, other, ends))
            continue;
        return zero_fail(z, GW_E_MISMATCH, rank,
                         "rank %u %s micro-step %u of step %llu, but rank %u %s %u: bucket %u "
                         "would lack a contribution. All ranks must make the same number of "
                         "micro-steps",
                         rank, ends ? "ended the step with" : "is in", mine->micro + 1,
                         (unsigned long long)z->step + 1, q, ended ? "ended it with" : "is in",
                         other->micro + 1, bucket);
    }
    return 0;
}

static void close_group(struct zero *z, const struct zero_group *group, uint32_t rank, bool last)
{
    for (uint32_t i = 0; i < group->buckets; i++) {
        uint32_t b = group->order[i];
        struct zero_entry *entry = zero_entry(z, rank, b);

        if (last && zero_frozen(z, b))
            record(z, rank, b);
        if (entry->done)
            continue;
        if (!entry->closed_now) {
            close_contribution(z, rank, b, last);
        } else if (last) { /* it was not closed as the last one */
            if (z->local)
                close_local(z, rank, b, true);
            finish(z, rank, b);
        }
    }
}

static void close_all(struct zero *z, uint32_t rank, bool last)
{
    for (uint32_t g = 0; g < z->group_count; g++) {
        if (zero_in(z, g, rank))
            close_group(z, &z->groups[g], rank, last);
    }
}

static void begin_micro_step(struct zero *z, uint32_t rank)
{
    uint32_t micro = ++z->ranks[rank].micro;

    for (uint32_t g = 0; g < z->group_count; g++) {
        if (zero_in(z, g, rank) && micro > z->groups[g].micro_max)
            z->groups[g].micro_max = micro;
    }
    reset_micro_step(z, rank);
}

int grad_micro_end(struct zero *z, uint32_t rank)
{
    struct zero_rank *mine = &z->ranks[rank];

    ranks_add(&z->declared, rank);
    if (mine->micro + 1 >= z->micro_steps)
        return zero_fail(z, GW_E_STATE, rank,
                         "rank %u ended micro-step %u of step %llu, but the job was sealed with %u "
                         "micro-steps: end the step instead", rank, mine->micro + 1,
                         (unsigned long long)z->step + 1, z->micro_steps);
    close_all(z, rank, false);
    for (uint32_t b = 0; b < z->buckets && z->local; b++) {
        struct zero_entry *entry = zero_entry(z, rank, b);
        if (entry->closed_now && !entry->done)
            launch_consumed(z, rank, b);
    }
    begin_micro_step(z, rank);
    return check_micro_steps(z, rank, false);
}

/* Policy error: every parameter must have had a gradient on every rank. */
static int check_unused(struct zero *z, uint32_t rank)
{
    const struct gw_layout_param *params = layout_params(z->layout);
    struct text text = {0};
    uint32_t missing = 0;

    for (uint32_t p = 0; p < z->params; p++) {
        bool lacks = false;

        if (!(z->ranks[rank].groups >> params[p].group & 1))
            continue;
        for (uint32_t i = 0; i < params[p].pieces; i++)
            lacks |= !((*zero_piece_bits(z, rank, params[p].first_piece + i) & PIECE_EVER) |
                       z->frozen[params[p].first_piece + i]);
        if (!lacks)
            continue;
        if (missing == 0) {
            zero_fail_start(z, GW_E_UNUSED, rank, &text);
            text_add(&text, "rank %u ended step %llu without a gradient for ", rank,
                     (unsigned long long)z->step + 1);
        }
        if (missing < UNUSED_NAMES) {
            text_add(&text, "%s'", missing ? ", " : "");
            text_add_escaped(&text, zero_param_name(z, p));
            text_add(&text, "' (%u)", p);
        }
        missing++;
    }
    if (missing > UNUSED_NAMES)
        text_add(&text, " and %u more", missing - UNUSED_NAMES);
    return missing ? GW_E_UNUSED : 0;
}

int grad_step_end(struct zero *z, uint32_t rank)
{
    struct zero_rank *mine = &z->ranks[rank];
    int r;

    ranks_add(&z->declared, rank);
    r = check_micro_steps(z, rank, true);
    if (r == 0 && z->options.unused == GW_UNUSED_ERROR)
        r = check_unused(z, rank);
    if (r < 0)
        return r;
    close_all(z, rank, true);
    mine->ended++;
    mine->ended_ns = z->now_ns;
    mine->update = UPDATE_PENDING;
    return 0;
}

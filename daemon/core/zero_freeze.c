/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frozen parameters: which take no part in gradients and reductions from the next step on. Every
 * rank asks for the same set between two steps; when all have, it begins to count for all at once.
 * What is frozen is, in the ledger, final from a step's start: a bucket waits for its other pieces
 * only, and one that is frozen as a whole is done before the step begins and never reduced: its
 * reduced gradient is set to zero, where gradients lie perhaps, and nobody's word tells when. So
 * the last step's verdict, which comes behind that, must be in.
 * Pure; one thread.
 */
#include "daemon/core/zero_internal.h"

#include <string.h>

static bool has(const uint8_t *bits, uint32_t param)
{
    return bits[param / 8] >> (param & 7) & 1;
}

/* All of them have asked. */
static void answer_all(struct zero *z, int code, const char *text)
{
    for (uint32_t r = 0; r < z->world; r++) {
        z->ranks[r].freeze.waiting = false;
        zero_reply(z, r, z->ranks[r].freeze.request, code, "%s", text);
    }
}

/* The lowest rank that waits; the world's size: nobody does. */
static uint32_t first_asker(const struct zero *z)
{
    uint32_t rank = 0;

    while (rank < z->world && !z->ranks[rank].freeze.waiting)
        rank++;
    return rank;
}

static int differs(struct zero *z, uint32_t rank, uint32_t first, const uint8_t *bits)
{
    struct text text = {0};
    uint32_t param = 0;

    while (has(bits, param) == has(z->freeze_wanted, param))
        param++;
    zero_fail_start(z, GW_E_MISMATCH, rank, &text);
    text_add(&text, "rank %u freezes parameter %u, '", has(bits, param) ? rank : first, param);
    text_add_escaped(&text, zero_param_name(z, param));
    text_add(&text, "', and rank %u does not: all ranks must freeze the same",
             has(bits, param) ? first : rank);
    return GW_E_MISMATCH;
}

int freeze_request(struct zero *z, uint32_t rank, const struct wire_msg *msg)
{
    size_t bytes = ((size_t)z->params + 7) / 8;
    const uint8_t *bits = msg->u.freeze.params;
    struct zero_ask *ask = &z->ranks[rank].freeze;
    uint32_t first = first_asker(z);

    if (ask->waiting) {
        zero_reply(z, rank, msg->request, GW_E_BUSY, "rank %u waits in another gw_freeze already",
                   rank);
        return 0;
    }
    if (msg->u.freeze.bytes != bytes || (z->params & 7 && bits[bytes - 1] >> (z->params & 7))) {
        zero_reply(z, rank, msg->request, GW_E_INVALID,
                   "rank %u freezes parameters that the job has not: it has %u", rank, z->params);
        return 0;
    }
    if (first == z->world)
        memcpy(z->freeze_wanted, bits, bytes);
    else if (memcmp(z->freeze_wanted, bits, bytes) != 0)
        return differs(z, rank, first, bits);
    *ask = (struct zero_ask){.waiting = true, .request = msg->request, .since_ns = z->now_ns};
    return 0;
}

static void apply(struct zero *z)
{
    const struct gw_layout_param *params = layout_params(z->layout);

    memset(z->frozen, 0, z->pieces);
    memset(z->frozen_pieces, 0, z->buckets * sizeof(*z->frozen_pieces));
    for (uint32_t p = 0; p < z->params; p++) {
        for (uint32_t i = 0; i < params[p].pieces && has(z->freeze_wanted, p); i++) {
            uint32_t piece = params[p].first_piece + i;

            z->frozen[piece] = PIECE_FINAL;
            z->frozen_pieces[layout_pieces(z->layout)[piece].bucket]++;
        }
    }
    grad_reset_step(z);
}

/* What the rank is at that forbids it; its messages before the question have all been handled. */
static bool in_step(const struct zero *z, uint32_t rank, struct text *why)
{
    const struct zero_rank *mine = &z->ranks[rank];
    unsigned long long step = mine->ended;

    if (mine->update == UPDATE_BEGUN)
        text_add(why, "rank %u is inside its update of step %llu", rank, step);
    else if (ranks_has(&z->declared, rank))
        text_add(why, "rank %u is inside step %llu", rank, step + 1);
    else
        return false;
    text_add(why, ": freeze between steps");
    return true;
}

/* Some of its messages wait, or others', for whose step's end it has said all. */
static bool behind(const struct zero *z, uint32_t rank)
{
    const struct zero_rank *mine = &z->ranks[rank];

    return !mine->freeze.waiting || mine->backlog.count || mine->ended > z->step ||
           mine->ops_launched < mine->ops_submitted;
}

void freeze_pump(struct zero *z)
{
    char line[GW_TEXT_MAX + 1] = "";
    struct text why = TEXT(line);

    for (uint32_t r = 0; r < z->world; r++) {
        if (behind(z, r))
            return;
    }
    for (uint32_t r = 0; r < z->world; r++) {
        if (in_step(z, r, &why)) {
            answer_all(z, GW_E_STATE, line);
            return;
        }
    }
    if (ops_flight(z, z->verdict_op))
        return;
    apply(z);
    answer_all(z, 0, "");
}

void freeze_reset(struct zero *z)
{
    memset(z->frozen, 0, z->pieces);
    memset(z->frozen_pieces, 0, z->buckets * sizeof(*z->frozen_pieces));
    for (uint32_t r = 0; r < z->world; r++)
        z->ranks[r].freeze.waiting = false;
}

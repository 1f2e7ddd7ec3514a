/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ranks of a communicator must agree on, and the GPUs of a process: the same collectives
 * in the same order; kernels of several communicators in one order on all GPUs, for each holds its
 * CTAs until its peers are there. Lock held.
 */
#include <stdio.h>

#include "tests/fakegpu/nccl_server.h"

static const char *type_name(uint32_t type)
{
    static const char *const names[FGN_TYPES] = {"int8",  "uint8",  "int32",   "uint32",
                                                 "int64", "uint64", "fp16",    "fp32",
                                                 "fp64",  "bf16",   "fp8e4m3", "fp8e5m2"};

    return type < FGN_TYPES ? names[type] : "?";
}

uint64_t plan_digest(const struct plan *plan, char *ret_text, size_t size)
{
    uint64_t digest = 0x6e63636c;
    size_t at = 0;

    ret_text[0] = 0;
    for (uint32_t i = 0; i < plan->call_count; i++) {
        const struct fgn_call *call = &plan->calls[i];
        bool reduces = call->kind == FGN_ALL_REDUCE || call->kind == FGN_REDUCE_SCATTER ||
                       call->kind == FGN_REDUCE;
        bool rooted = call->kind == FGN_BROADCAST || call->kind == FGN_REDUCE;
        uint32_t op = reduces ? (call->op < FGN_OP_FIRST ? call->op : FGN_OP_FIRST) : 0;
        uint32_t root = rooted ? call->root : 0;

        if (call->kind >= FGN_SEND)
            continue;
        digest = mix64(digest ^ call->count);
        digest = mix64(digest ^ ((uint64_t)call->kind << 48 | (uint64_t)call->type << 32 |
                                 (uint64_t)op << 16 | root));
        if (at + 1 < size) {
            int n = snprintf(ret_text + at, size - at, "%s%s of %llu %s (op %u, root %u)",
                             at ? ", " : "", call_name(call->kind), (unsigned long long)call->count,
                             type_name(call->type), op, root);

            at += n > 0 ? (size_t)n : 0;
        }
    }
    return digest;
}

bool slot_agrees(struct server *s, struct slot *slot, const struct plan *plan)
{
    char text[sizeof(slot->text)];
    uint64_t digest = plan_digest(plan, text, sizeof(text));

    if (!slot->called) {
        slot->digest = digest;
        slot->first_rank = plan->member->rank;
        snprintf(slot->text, sizeof(slot->text), "%s", text);
        return true;
    }
    if (digest == slot->digest)
        return true;
    violation(s, RULE_nccl_mismatch, plan->member->process,
              "collective %llu of a communicator: rank %u calls %s; rank %u calls %s",
              (unsigned long long)slot->index, slot->first_rank, slot->text, plan->member->rank,
              text);
    return false;
}

/* ---- order over communicators ---------------------------------------------------------------- */

/* The clique's member on a GPU, of one process and in good order; else NULL. */
static const struct member *member_on(const struct clique *clique, const struct process *process,
                                      int gpu)
{
    const struct member *found = NULL;

    for (uint32_t rank = 0; rank < clique->ranks; rank++) {
        const struct member *member = clique->members[rank];

        if (!member || member->state != MEMBER_LIVE || member->aborted || member->revoked ||
            (member->result != FGN_SUCCESS && member->result != FGN_IN_PROGRESS))
            return NULL;
        if (member->process == process && member->gpu == gpu)
            found = member;
    }
    return found;
}

void slot_order_note(struct slot *slot, const struct member *member)
{
    slot->first = member;
    for (const struct clique *clique = nccl.cliques; clique; clique = clique->next) {
        const struct member *other = member_on(clique, member->process, member->gpu);

        if (!other || clique == member->clique || slot->order_count == N_ORDER_MAX)
            continue;
        slot->order[slot->order_count].clique = clique;
        slot->order[slot->order_count++].plans = other->collectives;
    }
}

void slot_order_check(struct server *s, const struct slot *slot, const struct member *member)
{
    const struct member *first = slot->first;

    if (!first || first->process != member->process || slot->order_count == N_ORDER_MAX ||
        !member_on(member->clique, member->process, member->gpu))
        return;
    for (const struct clique *clique = nccl.cliques; clique; clique = clique->next) {
        const struct member *there = member_on(clique, member->process, first->gpu);
        const struct member *here = member_on(clique, member->process, member->gpu);
        uint64_t plans = 0;

        if (clique == member->clique || !there || !here)
            continue;
        for (uint32_t i = 0; i < slot->order_count; i++) {
            if (slot->order[i].clique == clique)
                plans = slot->order[i].plans;
        }
        if (plans != here->collectives)
            violation(s, RULE_nccl_order, member->process,
                      "collective %llu (%s): GPU %d was given %llu of another communicator before "
                      "it, GPU %d %llu",
                      (unsigned long long)slot->index, slot->text, first->gpu,
                      (unsigned long long)plans, member->gpu,
                      (unsigned long long)here->collectives);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How communicators come to be: ranks meet by unique id or split, wait for each other, and are
 * ready each in its own time. A rank that never comes leaves the others waiting. Lock held.
 */
#include <stdlib.h>

#include "tests/fakegpu/nccl_server.h"

static struct member *member_new(struct request *r, int gpu, uint64_t ctas, uint64_t flags)
{
    struct member *member = calloc(1, sizeof(*member)), **end = &nccl.members;

    if (!member) {
        r->reply->v[0] = FGN_SYSTEM_ERROR;
        return NULL;
    }
    member->number = ++nccl.next_member;
    member->process = r->p;
    member->gpu = gpu;
    member->result = FGN_IN_PROGRESS;
    /* A default of a quarter leaves room for other kernels, as channels do on a GPU. */
    member->ctas = ctas && ctas < r->s->ctas ? (uint32_t)ctas : (r->s->ctas + 3) / 4;
    member->zero_cta = flags & FGN_INIT_ZERO_CTA;
    while (*end)
        end = &(*end)->next;
    *end = member;
    return member;
}

static struct clique *clique_new(uint32_t ranks)
{
    struct clique *clique = calloc(1, sizeof(*clique)), **end = &nccl.cliques;

    if (!clique)
        return NULL;
    clique->ranks = ranks;
    if (nccl.inject.init_hang && !--nccl.inject.init_hang)
        clique->hung = true;
    if (nccl.inject.init_error && !--nccl.inject.init_error)
        clique->failed = nccl.inject.init_code;
    while (*end)
        end = &(*end)->next;
    *end = clique;
    return clique;
}

/* All have come: from here each gets ready in its own time. */
static void clique_complete(struct request *r, struct clique *clique)
{
    for (uint32_t a = 0; a < clique->ranks; a++) {
        struct member *member = clique->members[a];

        member->due_ns = now_ns() + nccl.inject.delay_ns + 1 +
                         random_delay_ns(r->s, 0x6e696e6974, member->number);
        for (uint32_t b = 0; b < a; b++) {
            if (clique->members[b]->gpu != member->gpu)
                continue;
            violation(r->s, RULE_nccl_duplicate_gpu, r->p,
                      "ranks %u and %u of a communicator on GPU %d", b, a, member->gpu);
            clique->failed = FGN_INVALID_USAGE;
        }
    }
}

static void clique_join(struct request *r, struct clique *clique, struct member *member,
                        uint32_t rank)
{
    member->clique = clique;
    member->rank = rank;
    clique->members[rank] = member;
    if (++clique->joined == clique->ranks)
        clique_complete(r, clique);
}

void request_unique_id(struct request *r)
{
    r->reply->v[0] = ++nccl.next_id;
    r->reply->v[1] = mix64(nccl.next_id ^ mix64(r->s->seed ^ 0x6e63636c));
}

void request_init(struct request *r)
{
    uint64_t id = r->q->a[0], ranks = r->q->a[2], rank = r->q->a[3];
    struct clique *clique = nccl.cliques;
    struct member *member;

    r->reply->v[0] = FGN_INVALID_ARGUMENT;
    if (!id || id > nccl.next_id || r->q->a[1] != mix64(id ^ mix64(r->s->seed ^ 0x6e63636c)) ||
        !ranks || ranks > N_RANKS_MAX || rank >= ranks)
        return;
    while (clique && clique->id != id)
        clique = clique->next;
    if (clique && (clique->ranks != ranks || clique->members[rank])) {
        violation(r->s, RULE_nccl_mismatch, r->p, "ncclCommInitRank: rank %llu of %llu, %s",
                  (unsigned long long)rank, (unsigned long long)ranks,
                  clique->ranks != ranks ? "another rank gave another count"
                                         : "which this unique id has already");
        return;
    }
    member = member_new(r, (int)r->q->device, r->q->a[4], r->q->a[5]);
    if (!member)
        return;
    if (!clique)
        clique = clique_new((uint32_t)ranks);
    if (!clique) {
        r->reply->v[0] = FGN_SYSTEM_ERROR;
        member->state = MEMBER_GONE;
        return;
    }
    clique->id = id;
    clique_join(r, clique, member, (uint32_t)rank);
    r->reply->v[0] = FGN_SUCCESS;
    r->reply->v[1] = member->number;
}

/* ---- split ----------------------------------------------------------------------------------- */

/* The children of one split of one parent clique. */
static bool same_split(const struct member *a, const struct member *b)
{
    return a->parent && b->parent && a->parent->clique == b->parent->clique && a->split == b->split;
}

/* By key, then by the parent's rank. */
static bool comes_before(const struct member *a, const struct member *b)
{
    return a->key != b->key ? a->key < b->key : a->parent->rank < b->parent->rank;
}

static void split_color(struct request *r, const struct member *one)
{
    struct clique *clique;
    uint32_t ranks = 0;

    for (struct member *member = nccl.members; member; member = member->next)
        ranks += same_split(member, one) && member->color == one->color;
    clique = clique_new(ranks);
    for (struct member *member = nccl.members; clique && member; member = member->next) {
        uint32_t rank = 0;

        if (!same_split(member, one) || member->color != one->color)
            continue;
        for (struct member *other = nccl.members; other; other = other->next)
            rank +=
                same_split(other, one) && other->color == one->color && comes_before(other, member);
        clique_join(r, clique, member, rank);
    }
}

/* Once all ranks of the parent have called it. */
static void split_complete(struct request *r, const struct member *one)
{
    const struct clique *parents = one->parent->clique;

    for (struct member *member = nccl.members; member; member = member->next) {
        if (!same_split(member, one) || member->clique)
            continue;
        if (member->color < 0)
            member->state = MEMBER_GONE;
        else
            split_color(r, member);
    }
    for (uint32_t rank = 0; rank < parents->ranks; rank++)
        parents->members[rank]->due_ns =
            now_ns() + 1 + random_delay_ns(r->s, 0x73706c74, parents->members[rank]->number);
}

void request_split(struct request *r)
{
    struct member *parent = member_of(r, r->q->a[0], "ncclCommSplit"), *member;
    uint32_t called = 0;

    if (!parent)
        return;
    if (parent->result != FGN_SUCCESS || parent->finalized) {
        violation(r->s, RULE_nccl_use, r->p, "ncclCommSplit on rank %u, which is not ready",
                  parent->rank);
        r->reply->v[0] = FGN_INVALID_ARGUMENT;
        return;
    }
    member = member_new(r, parent->gpu, r->q->a[3] ? r->q->a[3] : parent->ctas, r->q->a[4]);
    if (!member)
        return;
    member->parent = parent;
    member->split = ++parent->splits;
    member->color = (int64_t)r->q->a[1] - 1;
    member->key = (int64_t)r->q->a[2];
    parent->result = FGN_IN_PROGRESS;
    parent->due_ns = 0;
    for (struct member *other = nccl.members; other; other = other->next)
        called += same_split(other, member);
    r->reply->v[0] = FGN_SUCCESS;
    r->reply->v[1] = member->color < 0 ? 0 : member->number;
    if (called == parent->clique->ranks)
        split_complete(r, member);
}

uint64_t init_tick(struct server *s, uint64_t now)
{
    uint64_t next = UINT64_MAX;

    (void)s;
    for (struct member *member = nccl.members; member; member = member->next) {
        const struct clique *clique = member->clique;

        if (member->result != FGN_IN_PROGRESS || !member->due_ns || !clique || clique->hung ||
            member->finalized || member->revoked || member->state == MEMBER_GONE)
            continue;
        if (now >= member->due_ns) {
            member->result = clique->failed;
            member->due_ns = 0;
        } else if (member->due_ns < next) {
            next = member->due_ns;
        }
    }
    return next;
}

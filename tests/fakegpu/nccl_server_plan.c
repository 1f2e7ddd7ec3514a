/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a group's calls to ops in streams: plans wait in a batch, are issued late, and end when
 * their jobs have. Lock held.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/fakegpu/nccl_server.h"

struct slot *slot_find(const struct clique *clique, uint64_t index)
{
    for (struct slot *slot = clique->slots; slot; slot = slot->next) {
        if (slot->index == index)
            return slot;
    }
    return NULL;
}

void slot_remove(struct clique *clique, struct slot *slot)
{
    struct slot **at = &clique->slots;

    while (*at && *at != slot)
        at = &(*at)->next;
    if (*at)
        *at = slot->next;
    free(slot);
}

static struct slot *slot_of(struct clique *clique, uint64_t index)
{
    struct slot *slot = slot_find(clique, index), **end = &clique->slots;
    struct nccl_inject *inject = &nccl.inject;

    if (slot)
        return slot;
    slot = calloc(1, sizeof(*slot));
    if (!slot)
        return NULL;
    slot->index = index;
    if (inject->hang && !--inject->hang)
        slot->broken = true;
    if (inject->error && !--inject->error)
        slot->error = inject->error_code;
    while (*end)
        end = &(*end)->next;
    *end = slot;
    return slot;
}

/* ---- plans ----------------------------------------------------------------------------------- */

void batch_forget(const struct plan *plan)
{
    for (struct batch *batch = nccl.batches; batch; batch = batch->next) {
        for (uint32_t i = 0; i < batch->count; i++) {
            if (batch->plans[i] == plan)
                batch->plans[i] = NULL;
        }
    }
}

void plan_free(struct plan *plan)
{
    struct plan **at = &plan->member->plans;
    struct slot *slot = NULL;

    if (plan->collective)
        slot = slot_find(plan->member->clique, plan->index);
    if (slot && slot->plans[plan->member->rank] == plan) {
        slot->plans[plan->member->rank] = NULL;
        if (!slot->taken)
            slot->broken = true;
    }
    while (*at && *at != plan)
        at = &(*at)->next;
    if (*at)
        *at = plan->next;
    free(plan->pair);
    free(plan->calls);
    free(plan);
}

void plan_finish(struct server *s, struct plan *plan)
{
    struct op *op = plan->op;

    plan->finished = true;
    plan->op = NULL;
    if (!plan->running)
        plan_free(plan);
    if (op) {
        op->u.collective = NULL;
        op_finish(s, op);
    }
}

void plans_abort(struct server *s, struct member *member)
{
    for (struct plan *plan = member->plans, *next; plan; plan = next) {
        next = plan->next;
        if (!plan->issued) {
            batch_forget(plan);
            plan->finished = true;
            plan_free(plan);
        } else if (plan->started && !plan->running) {
            plan_finish(s, plan);
        } /* else: nccl_start or nccl_finish end it */
    }
}

void nccl_drop(struct server *s, struct op *op)
{
    struct plan *plan = op->u.collective;

    (void)s;
    op->u.collective = NULL;
    if (!plan)
        return;
    plan->op = NULL;
    plan->finished = true;
    if (!plan->running)
        plan_free(plan);
}

/* ---- a group --------------------------------------------------------------------------------- */

/* Numbers sends and receives, so that each finds its counterpart. */
static void plan_number(struct plan *plan)
{
    struct member *member = plan->member;

    for (uint32_t i = 0; i < plan->call_count; i++) {
        const struct fgn_call *call = &plan->calls[i];

        plan->pair[i] = UINT64_MAX;
        if (call->kind == FGN_SEND)
            plan->pair[i] = member->sends[call->root]++;
        else if (call->kind == FGN_RECV)
            plan->pair[i] = member->receives[call->root]++;
        else
            plan->collective = true;
        plan->peers_left += call->kind == FGN_SEND || call->kind == FGN_RECV;
    }
    plan->collectives_done = !plan->collective;
}

/* The calls of one communicator out of a group's, in their order; empty ones do nothing. */
static struct plan *plan_new(struct member *member, const struct fgn_call *calls, uint32_t count)
{
    struct plan *plan = calloc(1, sizeof(*plan)), **end = &member->plans;

    if (!plan)
        return NULL;
    plan->member = member;
    plan->calls = calloc(count, sizeof(*calls));
    plan->pair = calloc(count, sizeof(*plan->pair));
    if (!plan->calls || !plan->pair) {
        free(plan->calls);
        free(plan->pair);
        free(plan);
        return NULL;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (calls[i].comm == member->number && calls[i].count)
            plan->calls[plan->call_count++] = calls[i];
    }
    plan->stream = plan->call_count ? plan->calls[0].stream : 0;
    plan->ctas = member->ctas;
    while (*end)
        end = &(*end)->next;
    *end = plan;
    plan_number(plan);
    return plan;
}

static bool in_symmetric_window(const struct member *member, uint64_t address, uint64_t bytes)
{
    const struct registration *registration = registration_of(member, address, bytes);

    return registration && registration->kind == FGN_REGISTER_SYMMETRIC;
}

/* Copy engines do an all-gather between windows without a CTA, where asked for. */
static bool needs_no_ctas(const struct plan *plan)
{
    const struct member *member = plan->member;

    for (uint32_t i = 0; i < plan->call_count; i++) {
        const struct fgn_call *call = &plan->calls[i];
        uint64_t bytes = call->count * fgn_type_bytes(call->type);

        if (call->kind != FGN_ALL_GATHER ||
            !in_symmetric_window(member, call->send, bytes) ||
            !in_symmetric_window(member, call->recv, bytes * member->clique->ranks))
            return false;
    }
    return member->zero_cta;
}

/* Takes its place among the clique's collectives. */
static void plan_place(struct server *s, struct plan *plan)
{
    struct member *member = plan->member;
    struct slot *slot;

    if (needs_no_ctas(plan))
        plan->ctas = 0;
    if (!plan->collective)
        return;
    plan->index = member->collectives++;
    if (!plan->index)
        member->clique->called++;
    slot = slot_of(member->clique, plan->index);
    if (!slot)
        return;
    if (!slot_agrees(s, slot, plan))
        slot->broken = true;
    if (!slot->called)
        slot_order_note(slot, member);
    else
        slot_order_check(s, slot, member);
    slot->called++;
    slot->plans[member->rank] = plan;
}

static struct plan *group_plan(struct request *r, const struct fgn_call *calls, uint32_t count,
                               uint32_t at)
{
    struct plan *plan;

    for (uint32_t i = 0; i < at; i++) {
        if (calls[i].comm == calls[at].comm)
            return NULL; /* in that one's plan */
    }
    plan = plan_new(member_find(calls[at].comm), calls, count);
    if (plan && !plan->call_count) {
        plan_free(plan);
        return NULL;
    }
    if (plan)
        plan_place(r->s, plan);
    return plan;
}

static void plan_issue(struct server *s, struct plan *plan)
{
    struct member *member = plan->member;
    struct stream *stream = stream_find(s, member->process, plan->stream);
    struct op *op = NULL;

    plan->issued = true;
    nccl.issuing = true;
    if (stream && !stream->closed)
        op = op_new(s, stream, OP_COLLECTIVE);
    nccl.issuing = false;
    member->result = op ? FGN_SUCCESS : FGN_UNHANDLED_CUDA_ERROR;
    if (!op) {
        violation(s, RULE_stream_destroyed, member->process,
                  "a collective of rank %u, issued late, finds its stream gone", member->rank);
        plan_finish(s, plan);
        return;
    }
    plan->op = op;
    op->ctas = plan->ctas;
    op->u.collective = plan;
    op_submit(s, op);
}

void request_group(struct request *r)
{
    const struct fgn_call *calls = r->payload;
    uint32_t count = (uint32_t)(r->q->payload_bytes / sizeof(*calls));
    struct nccl_inject *inject = &nccl.inject;
    struct batch *batch;
    int result = calls_check(r, calls, count);

    r->reply->v[0] = (uint64_t)result;
    if (result != FGN_SUCCESS)
        return;
    if (inject->call_error && !--inject->call_error) {
        r->reply->v[0] = (uint64_t)inject->call_code;
        return;
    }
    batch = calloc(1, sizeof(*batch) + count * sizeof(batch->plans[0]));
    if (!batch) {
        r->reply->v[0] = FGN_SYSTEM_ERROR;
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct plan *plan = group_plan(r, calls, count, i);

        if (!plan)
            continue;
        if (plan->member->clique->ranks == 1) { /* a copy, made at once */
            plan_issue(r->s, plan);
            continue;
        }
        plan->member->result = FGN_IN_PROGRESS;
        plan->member->unpolled = plan->stream;
        batch->plans[batch->count++] = plan;
        r->reply->v[0] = FGN_IN_PROGRESS;
    }
    batch->due_ns = now_ns() + inject->delay_ns + random_delay_ns(r->s, 0x6c617465, ++nccl.groups);
    if (!batch->count) {
        free(batch);
        return;
    }
    batch->next = nccl.batches;
    nccl.batches = batch;
}

/* A communicator's first collective connects its ranks: until all have called one, none goes on. */
static bool batch_connected(const struct batch *batch)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct plan *plan = batch->plans[i];

        if (plan && plan->collective && plan->member->clique->called < plan->member->clique->ranks)
            return false;
    }
    return true;
}

uint64_t plan_tick(struct server *s, uint64_t now)
{
    uint64_t next = UINT64_MAX;
    struct batch **at = &nccl.batches;

    while (*at) {
        struct batch *batch = *at;

        if (!batch_connected(batch)) { /* a call will wake us */
            at = &batch->next;
            continue;
        }
        if (now < batch->due_ns) {
            next = batch->due_ns < next ? batch->due_ns : next;
            at = &batch->next;
            continue;
        }
        *at = batch->next;
        for (uint32_t i = 0; i < batch->count; i++) {
            if (batch->plans[i])
                plan_issue(s, batch->plans[i]);
        }
        free(batch);
    }
    return next;
}

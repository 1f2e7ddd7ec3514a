/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flows: how an op's messages go out and come in, a window of each at a time, while what has come
 * is worked on. Stream threads; flows are made on the loop thread.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/fabric/ucx/ucx.h"

/* ---- scratch --------------------------------------------------------------------------------- */

/* A free one; kept for ops to come, so that steps do not allocate. */
struct ucx_scratch {
    struct ucx_scratch *next;
};

void *ucx_scratch_take(struct ucx_fabric *fabric)
{
    struct ucx_scratch *scratch;

    pthread_mutex_lock(&fabric->lock);
    scratch = fabric->scratch;
    if (scratch)
        fabric->scratch = scratch->next;
    pthread_mutex_unlock(&fabric->lock);
    return scratch ? (void *)scratch : aligned_alloc(4096, UCX_CHUNK_BYTES);
}

void ucx_scratch_give(struct ucx_fabric *fabric, void *scratch)
{
    struct ucx_scratch *given = scratch;

    if (!given)
        return;
    pthread_mutex_lock(&fabric->lock);
    given->next = fabric->scratch;
    fabric->scratch = given;
    pthread_mutex_unlock(&fabric->lock);
}

void ucx_scratch_free(struct ucx_fabric *fabric)
{
    while (fabric->scratch) {
        struct ucx_scratch *next = fabric->scratch->next;
        free(fabric->scratch);
        fabric->scratch = next;
    }
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Rows at a time: fewer where each takes room for many nodes. */
static uint32_t window_of(const struct ucx_op *op, const struct ucx_flow *flow)
{
    uint32_t side_by_side = flow->send ? op->fabric->local.config.nodes->count : flow->pieces;
    uint32_t window = UCX_SCRATCH_MAX / side_by_side;

    if (window > UCX_WINDOW)
        window = UCX_WINDOW;
    if (window > flow->rows)
        window = (uint32_t)flow->rows;
    return window > 0 ? window : 1;
}

int ucx_flow_add(struct ucx_op *op, const struct ucx_flow *flow)
{
    struct ucx_flow *to;

    if (op->flow_count == op->flow_room)
        return GW_E_INTERNAL;
    to = &op->flows[op->flow_count];
    *to = *flow;
    to->window = window_of(op, flow);
    to->slots = calloc((size_t)to->window * to->pieces, sizeof(*to->slots));
    to->missing = calloc(to->window, sizeof(*to->missing));
    op->flow_count++;
    return to->slots && to->missing ? 0 : GW_E_NOMEM;
}

static void give_row(struct ucx_op *op, struct ucx_flow *flow, uint64_t row)
{
    struct ucx_slot *slots = &flow->slots[row % flow->window * flow->pieces];

    for (uint32_t piece = 0; piece < flow->pieces; piece++) {
        ucx_scratch_give(op->fabric, slots[piece].scratch);
        slots[piece].scratch = NULL;
    }
}

void ucx_flows_free(struct ucx_op *op)
{
    for (uint32_t i = 0; i < op->flow_count; i++) {
        struct ucx_flow *flow = &op->flows[i];
        for (uint64_t row = 0; flow->slots && row < flow->window; row++)
            give_row(op, flow, row);
        free(flow->slots);
        free(flow->missing);
    }
    free(op->flows);
}

/* ---- running --------------------------------------------------------------------------------- */

/* The op's run, while it lasts. */
struct running {
    struct ucx_op *op;
    struct ucx_flow *flows;
    uint32_t count, under_way;
    bool failed;
};

/* Comes back when everything ends, and not before: an op that cannot go on must not look done. */
static void wait_for_the_end(struct running *running)
{
    struct ucx_op *op = running->op;
    struct net_inbox inbox;
    struct net_request never = {.node = op->own, .op = op->local->op.id, .piece = UINT64_MAX};

    net_inbox_init(&inbox);
    never.inbox = &inbox;
    net_fail(op->fabric->net, "no memory for what comes from other nodes, or goes there");
    net_post(op->fabric->net, &never);
    (void)net_inbox_take(&inbox);
    net_inbox_end(&inbox);
}

static void post_row(struct running *running, struct ucx_flow *flow)
{
    struct ucx_op *op = running->op;
    uint64_t row = flow->posted;
    struct ucx_slot *slots = &flow->slots[row % flow->window * flow->pieces];

    for (uint32_t piece = 0; piece < flow->pieces; piece++) {
        struct ucx_slot *slot = &slots[piece];
        slot->flow = flow;
        slot->row = row;
        slot->request = (struct net_request){.send = flow->send,
                                             .node = flow->node,
                                             .op = op->local->op.id,
                                             .digest = op->digest,
                                             .inbox = &op->inbox};
        if (flow->prepare(op, flow, row, piece, slot) < 0) {
            wait_for_the_end(running);
            running->failed = true;
            return;
        }
        if (flow->send && !(slot->request.flags & NET_EMPTY))
            op->crossed += slot->request.bytes;
        running->under_way++;
        net_post(op->fabric->net, &slot->request);
    }
    flow->missing[row % flow->window] = flow->pieces;
    flow->posted++;
}

static void post_all(struct running *running)
{
    for (uint32_t i = 0; i < running->count; i++) {
        struct ucx_flow *flow = &running->flows[i];
        while (!running->failed && flow->posted < flow->ready && flow->posted < flow->rows &&
               flow->posted < flow->over + flow->window)
            post_row(running, flow);
    }
}

static void take_one(struct running *running)
{
    struct ucx_op *op = running->op;
    struct net_request *request = net_inbox_take(&op->inbox);
    struct ucx_slot *slot = (struct ucx_slot *)(void *)request;
    struct ucx_flow *flow = slot->flow;

    running->under_way--;
    running->failed |= request->status < 0;
    flow->missing[slot->row % flow->window]--;
    while (!running->failed && flow->over < flow->posted &&
           flow->missing[flow->over % flow->window] == 0) {
        if (flow->complete)
            flow->complete(op, flow, flow->over);
        give_row(op, flow, flow->over);
        flow->over++;
    }
}

bool ucx_flows_run(struct ucx_op *op, uint32_t first, uint32_t count,
                   void (*meanwhile)(struct ucx_op *op))
{
    struct running running = {.op = op, .flows = &op->flows[first], .count = count};

    post_all(&running);
    if (meanwhile && !running.failed)
        meanwhile(op);
    while (running.under_way > 0) {
        take_one(&running);
        post_all(&running);
    }
    return !running.failed;
}

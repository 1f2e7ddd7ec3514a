/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ucx fabric's table, and what an op's part on this node is: nothing, as on one node, or with
 * flows to others. Loop thread, but for ucx_run (streams) and on_fault (the net's thread).
 */
#include "daemon/fabric/ucx/ucx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/hash.h"

static struct ucx_fabric *ucx_of(struct fabric *fabric)
{
    return (struct ucx_fabric *)(void *)fabric;
}

/* ---- ops ------------------------------------------------------------------------------------- */

/* All that nodes must agree on. */
static uint64_t digest_of(const struct core_op *op)
{
    const uint64_t words[] = {op->id,          op->kind,        op->stream,      op->traffic,
                              op->accumulate,  op->measure,     op->partials,    op->in_place_skip,
                              op->in_dtype,    op->out_dtype,   op->round_dtype, op->norm,
                              op->rank,        op->world,       op->bucket,      op->bucket_count,
                              op->version,     op->slice_first, op->slices,      op->numel,
                              op->total_numel, op->step,        op->digest,      op->shards};
    uint64_t hash = HASH_START;

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        hash = hash_add_u64(hash, words[i]);
    hash = hash_add(hash, &op->scale, sizeof(op->scale));
    for (uint32_t i = 0; i < op->world; i++)
        hash = hash_add_u64(hash, op->members[i]);
    return hash;
}

static bool is_of_one_rank(const struct core_op *op)
{
    return op->kind == CORE_OP_GATHER || op->kind == CORE_OP_FILL ||
           op->kind == CORE_OP_LOCAL_ADD || op->kind == CORE_OP_ZERO || op->kind == CORE_OP_CAST;
}

/* Where the op's members are, and which nodes have a part in it. */
static void place(struct ucx_op *op, const struct core_op *what)
{
    const struct fabric_nodes *nodes = op->fabric->local.config.nodes;

    op->own = nodes->own;
    op->first_own = what->world;
    if (is_of_one_rank(what))
        op->nodes = ranks_one(nodes->of_rank[what->rank]);
    for (uint32_t i = what->world; i-- > 0;) {
        op->node[i] = nodes->of_rank[what->members[i]];
        if (!is_of_one_rank(what))
            ranks_add(&op->nodes, op->node[i]);
        if (op->node[i] == op->own)
            op->first_own = i;
    }
}

/* ---- starts ---------------------------------------------------------------------------------- */

static int prepare_start(struct ucx_op *op, struct ucx_flow *flow, uint64_t row, uint32_t piece,
                         struct ucx_slot *slot)
{
    (void)op;
    (void)flow;
    (void)row;
    (void)piece;
    slot->request.piece = UCX_START;
    return 0;
}

/* Nodes that hear from what this one sends that its tokens are reached, and it from theirs. */
static struct ranks told_anyway(const struct ucx_op *op, const struct core_op *what)
{
    struct ranks told = {{0}};

    if (what->kind != CORE_OP_BARRIER && !is_of_one_rank(what))
        return ranks_has(&op->nodes, op->own) ? op->nodes : told;
    for (uint32_t i = 0; i < op->segment_count; i++)
        if (op->segments[i].rows)
            ranks_add(&told, op->segments[i].node);
    return told;
}

/* A node's tokens are reached when its part begins: all that have a part wait for that. */
static int plan_starts(struct ucx_op *op, const struct core_op *what)
{
    const struct fabric_nodes *nodes = op->fabric->local.config.nodes;
    struct ranks tokens = {{0}}, told = told_anyway(op, what);
    int r = 0;

    for (uint32_t i = 0; i < what->wait_count; i++)
        ranks_add(&tokens, nodes->of_rank[what->waits[i].rank]);
    for (uint32_t node = 0; r == 0 && node < nodes->count; node++) {
        struct ucx_flow flow = {
            .node = node, .pieces = 1, .rows = 1, .ready = 1, .prepare = prepare_start};
        if (node == op->own || ranks_has(&told, node))
            continue;
        if (ranks_has(&op->nodes, op->own) && ranks_has(&tokens, node))
            r = ucx_flow_add(op, &flow);
        flow.send = true;
        if (r == 0 && ranks_has(&op->nodes, node) && ranks_has(&tokens, op->own))
            r = ucx_flow_add(op, &flow);
    }
    op->starts = op->flow_count;
    return r;
}

/* ---- the op's own flows ---------------------------------------------------------------------- */

static void run_local(struct ucx_op *op)
{
    local_run(op->local, NULL);
}

static int plan_data(struct ucx_op *op)
{
    bool crosses = ranks_count(&op->nodes) > 1, own = ranks_has(&op->nodes, op->own);
    uint8_t kind = op->local->op.kind;

    if ((kind == CORE_OP_GATHER || kind == CORE_OP_FILL) && op->segment_count > 0)
        return ucx_plan_gather(op);
    if (own && (!crosses || kind == CORE_OP_BARRIER))
        op->meanwhile = run_local;
    if (!own || op->meanwhile)
        return 0;
    if (kind == CORE_OP_REDUCE_SCATTER || kind == CORE_OP_ALL_REDUCE)
        return ucx_plan_sum(op);
    if (kind == CORE_OP_ALL_GATHER)
        return ucx_plan_all_gather(op);
    if (kind == CORE_OP_BROADCAST)
        return ucx_plan_broadcast(op);
    return kind == CORE_OP_VERDICT ? ucx_plan_verdict(op) : GW_E_INTERNAL;
}

static void ucx_run(void *arg, void *native)
{
    struct local_op *local = arg;
    struct ucx_op *op = local->exchange;

    (void)native;
    if (!ucx_flows_run(op, 0, op->starts, NULL))
        return;
    if (op->begin)
        op->begin(op);
    if (!ucx_flows_run(op, op->starts, op->flow_count - op->starts, op->meanwhile))
        return;
    if (op->finish)
        op->finish(op);
    if (op->crossed > 0)
        figures_crossed(&op->fabric->local.counters, &local->op, local->op.members[op->first_own],
                        op->crossed);
}

static void op_free(struct ucx_op *op)
{
    ucx_flows_free(op);
    net_inbox_end(&op->inbox);
    free(op->segments);
    free(op->packed);
    free(op);
}

static void ucx_release(void *arg)
{
    struct local_op *local = arg;

    op_free(local->exchange);
    local_op_free(local);
}

/* ---- launch ---------------------------------------------------------------------------------- */

int ucx_waits_add(struct ucx_waits *waits, uint64_t op)
{
    uint64_t *grown = realloc(waits->ops, (waits->count + 1) * sizeof(*grown));

    if (!grown)
        return GW_E_NOMEM;
    waits->ops = grown;
    waits->ops[waits->count++] = op;
    return 0;
}

static int op_new(struct ucx_fabric *fabric, const struct core_op *what, struct ucx_op **ret_op)
{
    size_t world = what->world ? what->world : 1;
    size_t nodes = fabric->local.config.nodes->count;
    struct ucx_op *op =
        calloc(1, sizeof(*op) + (world + nodes + 1) * sizeof(uint64_t) +
                      world * (sizeof(struct ucx_part) + sizeof(uint16_t)));

    if (!op)
        return GW_E_NOMEM;
    op->moved = (uint64_t *)(op + 1);
    op->packed_at = op->moved + world;
    op->parts = (struct ucx_part *)(op->packed_at + nodes + 1);
    op->node = (uint16_t *)(op->parts + world);
    op->fabric = fabric;
    op->flow_room = 4 * fabric->local.config.nodes->count + 2;
    op->flows = calloc(op->flow_room, sizeof(*op->flows));
    if (!op->flows) {
        free(op);
        return GW_E_NOMEM;
    }
    net_inbox_init(&op->inbox);
    op->digest = digest_of(what);
    place(op, what);
    *ret_op = op;
    return 0;
}

/* What a gather or fill copies here, into `own`; from whom else a gather gets it. */
static int split(struct ucx_op *op, const struct fabric_op *from, struct fabric_segment **ret_own,
                 struct fabric_op *ret_here, struct ucx_waits *waits)
{
    struct fabric_segment *own = calloc(from->segment_count + 1, sizeof(*own));
    int r;

    if (!own)
        return GW_E_NOMEM;
    *ret_own = own;
    r = ucx_split_gather(op, from, own, &ret_here->segment_count);
    ret_here->segments = own;
    if (r == 0 && from->op->kind == CORE_OP_GATHER &&
        local_is_here(&op->fabric->local, from->op->rank))
        r = ucx_copies_gather(op, from, own, &ret_here->segment_count, waits);
    return r;
}

/* `here`: as the op is for this node. */
static int enqueue(struct ucx_op *op, const struct fabric_op *here, const struct ucx_waits *waits)
{
    struct local_op *local;
    bool own = ranks_has(&op->nodes, op->own);
    int r = local_op_new(&op->fabric->local, here, &local);

    if (r < 0) {
        op_free(op);
        return r;
    }
    op->local = local;
    local->exchange = op;
    if (!own)
        local->hold_ns = 0;
    r = plan_starts(op, here->op);
    if (r == 0)
        r = plan_data(op);
    if (r == 0)
        r = local_enqueue(
            &op->fabric->local, here, local,
            &(struct local_way){.quick = op->flow_count == 0 && (!own || local_is_quick(local)),
                                .run = ucx_run,
                                .release = ucx_release,
                                .wait_ops = waits->ops,
                                .wait_op_count = waits->count});
    if (r < 0)
        ucx_release(local);
    return r;
}

static int ucx_launch(struct fabric *fabric, const struct fabric_op *from)
{
    struct ucx_waits waits = {.count = 0};
    struct fabric_segment *own = NULL;
    struct fabric_op here = *from;
    struct ucx_op *op;
    int r;

    r = op_new(ucx_of(fabric), from->op, &op);
    if (r < 0)
        return r;
    for (uint32_t i = 0; r == 0 && i < from->op->wait_op_count; i++)
        r = ucx_waits_add(&waits, from->op->wait_ops[i]);
    if (r == 0 && (from->op->kind == CORE_OP_GATHER || from->op->kind == CORE_OP_FILL))
        r = split(op, from, &own, &here, &waits);
    if (r < 0)
        op_free(op);
    else
        r = enqueue(op, &here, &waits);
    free(own);
    free(waits.ops);
    return r;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* The net's thread. The device first: what ends now must not look done. */
static void on_fault(void *user, const char *text)
{
    struct ucx_fabric *fabric = user;

    fabric->local.config.device_ops->abort(fabric->local.config.device, DEVICE_ALL_RANKS);
    pthread_mutex_lock(&fabric->lock);
    snprintf(fabric->fault, sizeof(fabric->fault), "%s", text);
    pthread_mutex_unlock(&fabric->lock);
}

static bool ucx_take_fault(struct fabric *fabric, char text[GW_TEXT_MAX + 1])
{
    struct ucx_fabric *ucx = ucx_of(fabric);
    bool any;

    pthread_mutex_lock(&ucx->lock);
    any = ucx->fault[0] != 0;
    memcpy(text, ucx->fault, sizeof(ucx->fault));
    ucx->fault[0] = 0;
    pthread_mutex_unlock(&ucx->lock);
    return any;
}

static struct fabric *ucx_free(struct fabric *fabric)
{
    struct ucx_fabric *ucx = ucx_of(fabric);

    if (!ucx)
        return NULL;
    net_free(ucx->net);
    ucx_copies_clear(ucx);
    ucx_scratch_free(ucx);
    local_end(&ucx->local);
    pthread_mutex_destroy(&ucx->lock);
    free(ucx);
    return NULL;
}

static int ucx_new(const struct fabric_config *config, struct fabric **ret_fabric)
{
    struct ucx_fabric *fabric = calloc(1, sizeof(*fabric));
    int r;

    if (!fabric)
        return GW_E_NOMEM;
    if (local_init(&fabric->local, config) < 0) {
        free(fabric);
        return GW_E_NOMEM;
    }
    pthread_mutex_init(&fabric->lock, NULL);
    r = net_new(&(struct net_config){.nodes = config->nodes, .fault = on_fault, .user = fabric},
                &fabric->net);
    if (r < 0) {
        ucx_free((struct fabric *)(void *)fabric);
        return r;
    }
    *ret_fabric = (struct fabric *)(void *)fabric;
    return 0;
}

static int ucx_address(struct fabric *fabric, uint8_t ret_address[GW_FABRIC_ADDRESS_MAX],
                       uint32_t *ret_bytes)
{
    net_address(ucx_of(fabric)->net, ret_address, ret_bytes);
    return 0;
}

static int ucx_form(struct fabric *fabric)
{
    int r;

    ucx_copies_clear(ucx_of(fabric));
    r = local_place(&ucx_of(fabric)->local);
    return r < 0 ? r : net_form(ucx_of(fabric)->net);
}

/* Members of any group talk over the endpoints of their nodes, which form() made. */
static int ucx_group(struct fabric *fabric, const uint32_t *members, uint32_t count)
{
    (void)fabric;
    (void)members;
    (void)count;
    return 0;
}

static void ucx_memory_added(struct fabric *fabric, uint32_t rank,
                             const struct device_memory *memory)
{
    (void)fabric;
    (void)rank;
    (void)memory;
}

static void ucx_memory_removed(struct fabric *fabric, uint32_t rank,
                               const struct device_memory *memory)
{
    (void)rank;
    ucx_copies_gone(ucx_of(fabric), memory);
}

static int ucx_sealed(struct fabric *fabric, const struct gw_layout_page *page)
{
    (void)page;
    ucx_copies_clear(ucx_of(fabric));
    return 0;
}

/* The device first: an op that ends because of this must not look done. */
static void ucx_abort(struct fabric *fabric)
{
    struct ucx_fabric *ucx = ucx_of(fabric);

    ucx->local.config.device_ops->abort(ucx->local.config.device, DEVICE_ALL_RANKS);
    ucx_copies_clear(ucx);
    net_abort(ucx->net);
}

static const char *ucx_order_name(uint32_t order)
{
    (void)order;
    return "ucx exact";
}

static void ucx_counters(const struct fabric *fabric, uint32_t rank,
                         struct gw_counters ret_kinds[GW_KINDS])
{
    const struct ucx_fabric *ucx = (const struct ucx_fabric *)(const void *)fabric;

    figures_read(&ucx->local.counters, rank, ret_kinds);
}

static void ucx_reset(struct fabric *fabric)
{
    ucx_copies_clear(ucx_of(fabric));
    local_clear(&ucx_of(fabric)->local);
}

const struct fabric_ops fabric_ucx = {
    .name = "ucx",
    .fabric_new = ucx_new,
    .fabric_free = ucx_free,
    .address = ucx_address,
    .address_check = net_address_check,
    .form = ucx_form,
    .group = ucx_group,
    .memory_added = ucx_memory_added,
    .memory_removed = ucx_memory_removed,
    .sealed = ucx_sealed,
    .abort = ucx_abort,
    .launch = ucx_launch,
    .take_fault = ucx_take_fault,
    .order_name = ucx_order_name,
    .counters = ucx_counters,
    .reset = ucx_reset,
};

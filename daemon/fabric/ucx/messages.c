/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of the net: sent, matched with who expects them, held until somebody does. Net thread;
 * owns requests from post to end and what came early.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/fabric/ucx/net_internal.h"
#include "gradwire/errors.h"

static uint32_t slot_of(uint64_t op, uint64_t piece, uint32_t from)
{
    uint64_t mixed = (op * 64 + from) * 0x9e3779b97f4a7c15ull + piece * 0xbf58476d1ce4e5b9ull;

    return (uint32_t)(mixed >> 40) & (NET_SLOTS - 1);
}

void net_list_add(struct net_list *list, struct net_request *request)
{
    request->next = NULL;
    if (list->tail)
        list->tail->next = request;
    else
        list->head = request;
    list->tail = request;
}

struct net_request *net_list_take(struct net_list *list)
{
    struct net_request *request = list->head;

    if (!request)
        return NULL;
    list->head = request->next;
    if (!list->head)
        list->tail = NULL;
    return request;
}

void net_end(struct net_request *request, int status)
{
    struct net_inbox *inbox = request->inbox;

    request->status = status;
    request->next = NULL;
    pthread_mutex_lock(&inbox->lock);
    if (inbox->tail)
        inbox->tail->next = request;
    else
        inbox->head = request;
    inbox->tail = request;
    if (inbox->waiting)
        pthread_cond_signal(&inbox->filled);
    pthread_mutex_unlock(&inbox->lock);
}

/* UCX is through with it. One that failed is not told so before it is known why: until then the op
 * that waits for it must not end. */
static void finish(struct net_request *request, ucs_status_t status)
{
    struct net *net = request->net;

    if (status == UCS_OK) {
        net_end(request, 0);
    } else if (!net->open || request->generation != net->generation) {
        net_end(request, GW_E_PEER_LOST);
    } else {
        net_list_add(&net->parked, request);
        net_broken(net);
    }
}

/* ---- sending --------------------------------------------------------------------------------- */

static void on_sent(void *handle, ucs_status_t status, void *arg)
{
    struct net_request *request = arg;

    request->net->under_way--;
    ucp_request_free(handle);
    finish(request, status);
}

void net_send(struct net *net, struct net_request *request)
{
    const struct net_peer *peer = &net->peers[request->node];
    uint64_t bytes = request->flags & NET_EMPTY ? 0 : request->bytes;
    ucp_request_param_t how = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .flags = bytes > NET_EAGER_BYTES ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER,
        .cb.send = on_sent,
        .user_data = request,
        .memory_type = UCS_MEMORY_TYPE_HOST};
    ucs_status_ptr_t handle;

    if (!peer->endpoints[NET_OUT] || peer->failed) {
        finish(request, UCS_ERR_CONNECTION_RESET);
        return;
    }
    request->header.op = request->op;
    request->header.piece = request->piece;
    request->header.digest = request->digest;
    request->header.generation = request->generation;
    request->header.from = (uint16_t)net->nodes.own;
    request->header.flags = request->flags;
    memcpy(&request->header.secret, net->nodes.at[request->node].address,
           sizeof(request->header.secret));
    net->under_way++;
    handle = ucp_am_send_nbx(peer->endpoints[NET_OUT], NET_AM_ID, &request->header,
                             sizeof(request->header), request->buffer, bytes, &how);
    if (UCS_PTR_IS_PTR(handle))
        return;
    net->under_way--;
    finish(request, UCS_PTR_STATUS(handle));
}

/* ---- receiving ------------------------------------------------------------------------------- */

static void on_received(void *handle, ucs_status_t status, size_t bytes, void *arg)
{
    struct net_request *request = arg;

    (void)bytes;
    request->net->under_way--;
    ucp_request_free(handle);
    finish(request, status);
}

static void receive_one(struct net *net, struct net_request *request)
{
    const ucp_request_param_t how = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                     UCP_OP_ATTR_FIELD_USER_DATA |
                                                     UCP_OP_ATTR_FIELD_MEMORY_TYPE,
                                     .cb.recv_am = on_received,
                                     .user_data = request,
                                     .memory_type = UCS_MEMORY_TYPE_HOST};
    ucs_status_ptr_t handle;

    net->under_way++;
    handle = ucp_am_recv_data_nbx(net->workers[NET_IN], request->announced, request->buffer,
                                  request->bytes, &how);
    if (UCS_PTR_IS_PTR(handle))
        return;
    net->under_way--;
    finish(request, UCS_PTR_STATUS(handle));
}

bool net_receive(struct net *net)
{
    struct net_request *request;
    bool any = false;

    while (!net->faulted && (request = net_list_take(&net->matched))) {
        any = true;
        receive_one(net, request);
    }
    return any;
}

/* False: it is not what this node's op expects there. */
static bool agrees(struct net *net, const struct net_request *request,
                   const struct net_header *header, uint64_t bytes)
{
    const char *name = net->nodes.at[header->from].name;

    if (header->digest != request->digest)
        net_fault(net,
                  "op %llu is another one on node %s than here: the nodes' engines have not seen "
                  "the same events; start the job anew, with the same release on all nodes",
                  (unsigned long long)request->op, name);
    else if (bytes != (header->flags & NET_EMPTY ? 0 : request->bytes))
        net_fault(net, "op %llu: node %s sends %llu bytes where %llu are expected",
                  (unsigned long long)request->op, name, (unsigned long long)bytes,
                  (unsigned long long)request->bytes);
    else
        return true;
    return false;
}

/* data or announced: as the message came. */
static void deliver(struct net *net, struct net_request *request, const struct net_header *header,
                    const void *data, void *announced, uint64_t bytes)
{
    bool agreed = agrees(net, request, header, bytes);

    request->flags = header->flags;
    request->announced = announced;
    if (announced) {
        net_list_add(&net->matched, request);
    } else if (!agreed) {
        net_list_add(&net->parked, request);
    } else {
        if (bytes > 0)
            memcpy(request->buffer, data, bytes);
        net_end(request, 0);
    }
}

static bool is_of(const struct net_request *request, const struct net_header *header)
{
    return request->op == header->op && request->piece == header->piece &&
           request->node == header->from && request->generation == header->generation;
}

static struct net_request *take_expected(struct net *net, const struct net_header *header)
{
    struct net_list *list = &net->expected[slot_of(header->op, header->piece, header->from)];
    struct net_request *before = NULL;

    for (struct net_request *at = list->head; at; before = at, at = at->next) {
        if (!is_of(at, header))
            continue;
        if (before)
            before->next = at->next;
        else
            list->head = at->next;
        if (list->tail == at)
            list->tail = before;
        return at;
    }
    return NULL;
}

static bool hold(struct net *net, const struct net_header *header, const void *data,
                 void *announced, uint64_t bytes)
{
    uint64_t room = announced ? 0 : bytes;
    struct net_held **slot = &net->held[slot_of(header->op, header->piece, header->from)];
    struct net_held *held = NULL;

    if (net->held_bytes + sizeof(*held) + room <= NET_HELD_BYTES)
        held = malloc(sizeof(*held) + room);
    if (!held) {
        net_fault(net, "node %s is so far ahead that there is no memory for what it sends",
                  net->nodes.at[header->from].name);
        return false;
    }
    held->header = *header;
    held->bytes = bytes;
    held->announced = announced;
    if (room > 0)
        memcpy(held->data, data, room);
    held->next = *slot;
    *slot = held;
    net->held_bytes += sizeof(*held) + room;
    return true;
}

static struct net_held *held_free(struct net *net, struct net_held *held)
{
    net->held_bytes -= sizeof(*held) + (held->announced ? 0 : held->bytes);
    free(held);
    return NULL;
}

static ucs_status_t on_message(void *arg, const void *head, size_t head_bytes, void *data,
                               size_t bytes, const ucp_am_recv_param_t *param)
{
    struct net *net = arg;
    void *announced = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV ? data : NULL;
    struct net_request *request = NULL;
    struct net_header header;

    if (head_bytes != sizeof(header))
        return UCS_OK;
    memcpy(&header, head, sizeof(header));
    if (header.secret != net->secret || header.from >= GW_NODES_MAX ||
        header.generation < net->generation || (header.generation == net->generation && !net->open))
        return UCS_OK;
    if (header.generation == net->generation)
        request = take_expected(net, &header);
    if (request)
        deliver(net, request, &header, data, announced, bytes);
    else if (!hold(net, &header, data, announced, bytes))
        return UCS_OK;
    return announced ? UCS_INPROGRESS : UCS_OK;
}

void net_expect(struct net *net, struct net_request *request)
{
    uint32_t slot = slot_of(request->op, request->piece, request->node);

    for (struct net_held **at = &net->held[slot]; *at; at = &(*at)->next) {
        struct net_held *held = *at;
        if (!is_of(request, &held->header))
            continue;
        *at = held->next;
        deliver(net, request, &held->header, held->data, held->announced, held->bytes);
        held_free(net, held);
        return;
    }
    net_list_add(&net->expected[slot], request);
    if (net->peers[request->node].failed)
        net_broken(net);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void end_list(struct net_list *list, int status)
{
    struct net_request *request;

    while ((request = net_list_take(list)))
        net_end(request, status);
}

void net_end_all(struct net *net, int status)
{
    struct net_request *request;

    while ((request = net_list_take(&net->matched))) {
        ucp_am_data_release(net->workers[NET_IN], request->announced);
        net_end(request, status);
    }
    for (uint32_t slot = 0; slot < NET_SLOTS; slot++)
        end_list(&net->expected[slot], status);
    end_list(&net->parked, status);
}

void net_drop_held(struct net *net, uint32_t generation)
{
    for (uint32_t slot = 0; slot < NET_SLOTS; slot++)
        for (struct net_held **at = &net->held[slot]; *at;) {
            struct net_held *held = *at;
            if (held->header.generation > generation) {
                at = &held->next;
                continue;
            }
            *at = held->next;
            if (held->announced)
                ucp_am_data_release(net->workers[NET_IN], held->announced);
            held_free(net, held);
        }
}

bool net_waits_for_failed(const struct net *net)
{
    for (uint32_t slot = 0; slot < NET_SLOTS; slot++)
        for (const struct net_request *at = net->expected[slot].head; at; at = at->next)
            if (net->peers[at->node].failed)
                return true;
    return net->parked.head != NULL;
}

int net_messages_init(struct net *net)
{
    const ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = NET_AM_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = on_message,
        .arg = net};

    return ucp_worker_set_am_recv_handler(net->workers[NET_IN], &handler) == UCS_OK ? 0
                                                                                    : GW_E_INTERNAL;
}

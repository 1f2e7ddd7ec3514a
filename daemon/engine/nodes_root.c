/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The root's side of the log: who takes part, the order of events, and what all nodes must have
 * done before it is an event. Loop thread. A node is believed no further than that it speaks for
 * its own ranks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/engine/log.h"
#include "daemon/engine/nodes_internal.h"

/* ---- members --------------------------------------------------------------------------------- */

/* GW_NODES_MAX: none. */
static uint32_t node_of(const struct nodes *nodes, uint32_t peer)
{
    uint32_t node = 1;

    while (node < GW_NODES_MAX && nodes->members[node].peer != peer)
        node++;
    return node;
}

static bool is_alone(const struct nodes *nodes)
{
    uint32_t node = 1;

    while (node <= nodes->assigned && !nodes->members[node].active)
        node++;
    return node > nodes->assigned;
}

static void send_away(struct nodes *nodes, uint32_t peer, int code, const char *text)
{
    struct wire_msg msg = {.type = WIRE_CLOSE};

    log_line("a node is sent away: %s", text);
    msg.u.done.code = code;
    snprintf(msg.u.done.text, sizeof(msg.u.done.text), "%s", text);
    (void)nodes_send(nodes, peer, &msg);
    star_drop(nodes->star, peer);
}

/* ---- the log --------------------------------------------------------------------------------- */

static void drop_log(struct nodes *nodes)
{
    for (uint32_t i = 0; i < nodes->item_count; i++)
        free(nodes->items[i].data);
    free(nodes->items);
    nodes->items = NULL;
    nodes->item_count = nodes->item_room = 0;
    nodes->log_kept = false;
}

/* What a node has not been told; as much as may wait for it, for it may be far more, or all. */
static void tell_log(struct nodes *nodes, struct nodes_member *member, bool all)
{
    while (member->told < nodes->item_count && (all || !star_full(nodes->star))) {
        const struct nodes_log_item *item = &nodes->items[member->told++];

        (void)star_send(nodes->star, member->peer, item->data, item->bytes);
    }
}

static void tell_members(struct nodes *nodes, bool all)
{
    for (uint32_t node = 1; node <= nodes->assigned; node++)
        if (nodes->members[node].active)
            tell_log(nodes, &nodes->members[node], all);
}

/* No node can come any more; who has come knows all. */
static void close_log(struct nodes *nodes)
{
    tell_members(nodes, true);
    drop_log(nodes);
}

/* For nodes that come. Too much of it, and none can come any more. */
static int keep(struct nodes *nodes, const uint8_t *bytes, size_t count)
{
    uint8_t *copy;

    if (!nodes->log_kept)
        return 0;
    if (nodes->item_bytes + count > NODES_LOG_BYTES) {
        log_line("the log has grown too long for more nodes to come");
        close_log(nodes);
        return 0;
    }
    if (nodes->item_count == nodes->item_room) {
        uint32_t room = nodes->item_room ? nodes->item_room * 2 : 256;
        struct nodes_log_item *grown = realloc(nodes->items, room * sizeof(*grown));
        if (!grown)
            return GW_E_NOMEM;
        nodes->items = grown;
        nodes->item_room = room;
    }
    copy = malloc(count);
    if (!copy)
        return GW_E_NOMEM;
    memcpy(copy, bytes, count);
    nodes->items[nodes->item_count++] = (struct nodes_log_item){count, copy};
    nodes->item_bytes += count;
    return 0;
}

/* Who cannot take it is told lost, by and by. */
static int publish(struct nodes *nodes, const uint8_t *bytes, size_t count)
{
    int r = keep(nodes, bytes, count);

    if (nodes->log_kept)
        tell_members(nodes, false);
    for (uint32_t node = 1; node <= nodes->assigned && !nodes->log_kept; node++)
        if (nodes->members[node].active)
            (void)star_send(nodes->star, nodes->members[node].peer, bytes, count);
    return r;
}

void root_catch_up(struct nodes *nodes)
{
    if (nodes->log_kept)
        tell_members(nodes, false);
}

static int publish_msg(struct nodes *nodes, const struct wire_msg *msg)
{
    static uint8_t buffer[GW_FRAME_MAX];
    size_t bytes;
    int r = wire_encode(msg, buffer, sizeof(buffer), &bytes);

    return r < 0 ? r : publish(nodes, buffer, bytes);
}

static int publish_event(struct nodes *nodes, const struct nodes_event *event, uint64_t at_ns)
{
    struct wire_msg msg;
    int r;

    if (!nodes->log_kept && is_alone(nodes))
        return 0; /* all ranks are here */
    nodes_event_msg(event, at_ns, &msg);
    r = publish_msg(nodes, &msg);
    if (r < 0 || !event->event.msg)
        return r;
    return event->packet ? publish(nodes, event->packet, event->packet_bytes)
                         : publish_msg(nodes, event->event.msg);
}

/* Ops of an earlier generation are nobody's. */
static void follow_generation(struct nodes *nodes)
{
    const struct job *job = nodes->engine->job;
    uint32_t generation = core_generation(job_core(job));

    if (generation == nodes->generation)
        return;
    nodes->generation = generation;
    nodes->done_from = job_last_op(job) + 1;
    for (uint32_t i = 0; i < nodes->done_room; i++)
        nodes->done[i] = (struct nodes_done){.all = false};
}

static int carry_out(struct nodes *nodes, struct nodes_event *event)
{
    struct job *job = nodes->engine->job;
    uint64_t at_ns = now_ns();
    uint32_t unheard;
    int r;

    nodes->sequence++;
    r = publish_event(nodes, event, at_ns);
    if (r == 0)
        r = nodes_apply(nodes, at_ns, event);
    follow_generation(nodes);
    if (nodes->log_kept && job_has_formed(job))
        close_log(nodes);
    unheard = job_unheard(job);
    if (unheard > nodes->unheard_before)
        nodes->unheard_at = nodes->sequence;
    nodes->unheard_before = unheard;
    return r;
}

int root_put(struct nodes *nodes, struct nodes_event *event)
{
    int r = 0;

    STAILQ_INSERT_TAIL(&nodes->queue, event, link);
    if (nodes->carrying)
        return 0;
    nodes->carrying = true;
    while (!STAILQ_EMPTY(&nodes->queue)) {
        struct nodes_event *next = STAILQ_FIRST(&nodes->queue);
        STAILQ_REMOVE_HEAD(&nodes->queue, link);
        if (r == 0)
            r = carry_out(nodes, next);
        free(next);
    }
    nodes->carrying = false;
    return r;
}

static int put(struct nodes *nodes, const struct core_event *event, uint32_t node)
{
    struct nodes_event *copy;
    int r = nodes_event_new(event, node, 0, &copy);

    return r < 0 ? r : root_put(nodes, copy);
}

/* ---- what all must have done ----------------------------------------------------------------- */

static int done_room(struct nodes *nodes, uint64_t ahead)
{
    uint32_t room = nodes->done_room ? nodes->done_room : 256;
    struct nodes_done *grown;

    if (ahead < nodes->done_room)
        return 0;
    while (room <= ahead && room < NODES_OPS_MAX)
        room *= 2;
    if (room <= ahead)
        return GW_E_LIMIT;
    grown = calloc(room, sizeof(*grown));
    if (!grown)
        return GW_E_NOMEM;
    for (uint64_t op = nodes->done_from; op < nodes->done_from + nodes->done_room; op++)
        grown[op % room] = nodes->done[op % nodes->done_room];
    free(nodes->done);
    nodes->done = grown;
    nodes->done_room = room;
    return 0;
}

static bool all_have(const struct nodes *nodes, const struct ranks *done)
{
    uint32_t node = 0;

    while (node <= nodes->assigned && (!nodes->members[node].active || ranks_has(done, node)))
        node++;
    return node > nodes->assigned;
}

int root_op_done(struct nodes *nodes, uint32_t node, uint64_t op)
{
    struct nodes_done *done;
    int r;

    if (op < nodes->done_from)
        return 0;
    r = done_room(nodes, op - nodes->done_from);
    if (r < 0)
        return node == 0 ? r : 0; /* a node that makes numbers up hurts its own job only */
    done = &nodes->done[op % nodes->done_room];
    ranks_add(&done->nodes, node);
    if (done->all || !all_have(nodes, &done->nodes))
        return 0;
    done->all = true;
    while (nodes->done[nodes->done_from % nodes->done_room].all)
        nodes->done[nodes->done_from++ % nodes->done_room] = (struct nodes_done){.all = false};
    return put(nodes, &(struct core_event){.kind = CORE_EV_OP_DONE, .op = op}, 0);
}

int root_built(struct nodes *nodes, uint32_t node, int code, const char *text)
{
    struct core_event event = {.kind = CORE_EV_BUILT};

    nodes->members[node].built++;
    if (code < 0 && nodes->built_code == 0) {
        nodes->built_code = code;
        snprintf(nodes->built_text, sizeof(nodes->built_text), "node %s: %.420s",
                 nodes->table.at[node].name, text);
    }
    for (uint32_t i = 0; i <= nodes->assigned; i++)
        if (nodes->members[i].active && nodes->members[i].built < nodes->members[0].built)
            return 0;
    if (nodes->members[node].built > nodes->members[0].built)
        return 0; /* the root is behind */
    event.code = nodes->built_code;
    event.text = nodes->built_text;
    nodes->built_code = 0;
    return put(nodes, &event, 0);
}

int root_heard(struct nodes *nodes, uint32_t node, uint64_t at)
{
    nodes->members[node].heard_at = at;
    if (job_unheard(nodes->engine->job) == 0)
        return 0;
    for (uint32_t i = 0; i <= nodes->assigned; i++)
        if (nodes->members[i].active && nodes->members[i].heard_at < nodes->unheard_at)
            return 0;
    return put(nodes, &(struct core_event){.kind = CORE_EV_HEARD}, 0);
}

void root_values(struct nodes *nodes, uint32_t from_node, const struct wire_msg *msg)
{
    uint32_t rank = msg->u.star_data.rank, to = nodes->table.of_rank[rank];

    for (uint32_t node = 0; node <= nodes->assigned; node++) {
        if (node == from_node || !nodes->members[node].active ||
            (msg->u.star_data.read && node != to))
            continue;
        if (node > 0)
            (void)nodes_send(nodes, nodes->members[node].peer, msg);
        else
            (void)job_values(nodes->engine->job, rank, msg->u.star_data.request,
                             msg->u.star_data.read, msg->u.star_data.offset,
                             msg->u.star_data.values, msg->u.star_data.value_bytes);
    }
}

/* ---- nodes that come ------------------------------------------------------------------------- */

/* The log is not kept any more. */
static int come_too_late(const struct nodes *nodes, const char *name, char text[GW_TEXT_MAX + 1])
{
    if (job_has_formed(nodes->engine->job)) {
        snprintf(text, GW_TEXT_MAX + 1,
                 "the job has formed without node %s: its ranks' shards lie on the nodes that it "
                 "formed with; join there, or start a new job",
                 name);
        return GW_E_STATE;
    }
    snprintf(text, GW_TEXT_MAX + 1,
             "ranks have declared more than is kept for node %s (%u MiB): start a new job, whose "
             "ranks wait until it is ready before they register parameters",
             name, NODES_LOG_BYTES >> 20);
    return GW_E_LIMIT;
}

/* One more, or that of a node which left before the log knew it; GW_NODES_MAX: none is left. */
static uint32_t free_number(const struct nodes *nodes)
{
    uint32_t node = 1;

    while (node <= nodes->assigned && (nodes->members[node].peer || nodes->members[node].logged))
        node++;
    return node;
}

static bool may_come(struct nodes *nodes, const struct wire_msg *hello, char text[GW_TEXT_MAX + 1],
                     int *ret_code)
{
    uint32_t taking_part = 0;

    for (uint32_t node = 0; node <= nodes->assigned; node++)
        taking_part += nodes->members[node].active || nodes->members[node].peer;
    *ret_code = GW_E_STATE;
    if (hello->u.star_hello.version != GW_STAR_VERSION) {
        *ret_code = GW_E_VERSION;
        snprintf(text, GW_TEXT_MAX + 1,
                 "node %s speaks version %u between nodes, the job's root %u: install one release",
                 hello->u.star_hello.name, hello->u.star_hello.version, GW_STAR_VERSION);
    } else if (hello->u.star_hello.uid != getuid()) {
        *ret_code = GW_E_DENIED;
        snprintf(text, GW_TEXT_MAX + 1,
                 "user %u of node %s is not the job's creator, user %u: both must have one number",
                 hello->u.star_hello.uid, hello->u.star_hello.name, getuid());
    } else if (!nodes->log_kept) {
        *ret_code = come_too_late(nodes, hello->u.star_hello.name, text);
    } else if (taking_part >= nodes->create.u.job_create.nodes) {
        *ret_code = GW_E_LIMIT;
        snprintf(text, GW_TEXT_MAX + 1,
                 "the job was created for %u nodes, and %u take part: node %s is one too many",
                 nodes->create.u.job_create.nodes, taking_part, hello->u.star_hello.name);
    } else if (free_number(nodes) == GW_NODES_MAX) {
        *ret_code = GW_E_LIMIT;
        snprintf(text, GW_TEXT_MAX + 1,
                 "%u nodes have come to the job and most have left again, before it formed: there "
                 "is no number for node %s; start a new job",
                 GW_NODES_MAX - 1, hello->u.star_hello.name);
    } else {
        return true;
    }
    return false;
}

static void on_hello(struct nodes *nodes, uint32_t peer, const struct wire_msg *hello)
{
    const struct wire_msg *create = &nodes->create;
    struct wire_msg msg = {.type = WIRE_STAR_WELCOME};
    char text[GW_TEXT_MAX + 1];
    uint32_t node;
    int code;

    if (!may_come(nodes, hello, text, &code)) {
        send_away(nodes, peer, code, text);
        return;
    }
    node = free_number(nodes);
    if (node > nodes->assigned)
        nodes->assigned = node;
    nodes->members[node].peer = peer;
    memcpy(nodes->table.at[node].name, hello->u.star_hello.name, sizeof(nodes->table.at[0].name));
    msg.u.star_welcome.node = node;
    msg.u.star_welcome.sent_ns = hello->u.star_hello.sent_ns;
    msg.u.star_welcome.now_ns = now_ns();
    msg.u.star_welcome.world = create->u.job_create.world;
    msg.u.star_welcome.join_timeout_ns = create->u.job_create.join_timeout_ns;
    msg.u.star_welcome.op_timeout_ns = create->u.job_create.op_timeout_ns;
    msg.u.star_welcome.linger_ns = create->u.job_create.linger_ns;
    msg.u.star_welcome.link_bytes_per_s = create->u.job_create.link_bytes_per_s;
    msg.u.star_welcome.stall_report_ns = nodes->engine->options.stall_report_ns;
    msg.u.star_welcome.device = create->u.job_create.device;
    memcpy(msg.u.star_welcome.name, create->u.job_create.name, sizeof(msg.u.star_welcome.name));
    (void)nodes_send(nodes, peer, &msg);
}

void root_node(struct nodes *nodes, const struct wire_msg *msg)
{
    uint32_t node = msg->u.star_node.node;
    struct nodes_member *member = &nodes->members[node];

    member->told = 0;
    member->active = member->logged = true;
    member->built = nodes->members[0].built;
    engine_fault(nodes->engine, publish_msg(nodes, msg));
    nodes_note(nodes, msg);
}

static void on_node(struct nodes *nodes, uint32_t node, struct wire_msg *msg)
{
    struct nodes_member *member = &nodes->members[node];
    char line[GW_TEXT_MAX + 1], why[GW_TEXT_MAX + 1] = "";
    int r;

    if (member->active)
        return;
    if (!nodes->log_kept) {
        r = come_too_late(nodes, nodes->table.at[node].name, line);
    } else {
        r = job_address_check(nodes->engine->job, msg->u.star_node.address,
                              (uint32_t)msg->u.star_node.address_bytes, why);
        snprintf(line, sizeof(line), "node %s: %.400s", nodes->table.at[node].name, why);
    }
    if (r < 0) {
        send_away(nodes, member->peer, r, line);
        member->peer = 0;
        return;
    }
    msg->u.star_node.node = node;
    root_node(nodes, msg);
}

void root_on_lost(struct nodes *nodes, uint32_t peer, const char *why)
{
    uint32_t node = node_of(nodes, peer);
    const struct core *core = job_core(nodes->engine->job);
    int lost = job_has_formed(nodes->engine->job) ? GW_E_PEER_LOST : 0;
    char line[GW_TEXT_MAX + 1];
    struct text text = TEXT(line);
    int r = 0;

    if (node == GW_NODES_MAX)
        return;
    nodes_text(nodes, node, &text);
    text_add(&text, " is gone: %s", why);
    nodes->members[node].peer = 0;
    if (!nodes->members[node].active)
        return;
    nodes->members[node].active = false;
    r = put(nodes, &(struct core_event){.kind = (enum core_event_kind)NODES_LOST,
                                        .index = node, .text = line}, 0);
    for (uint32_t rank = 0; r == 0 && rank < job_world(nodes->engine->job); rank++)
        if (nodes->table.of_rank[rank] == node && ranks_has(core_present(core), rank))
            r = put(nodes,
                    &(struct core_event){
                        .kind = CORE_EV_LOST, .rank = rank, .code = lost, .text = line},
                    node);
    engine_fault(nodes->engine, r);
}

/* ---- what nodes say -------------------------------------------------------------------------- */

/* Of its own ranks, or one that joins. */
static bool speaks_for(const struct nodes *nodes, uint32_t node, const struct core_event *event)
{
    switch ((uint32_t)event->kind) {
    case CORE_EV_JOIN:
    case CORE_EV_DEVICE_LOST:
        return true;
    case CORE_EV_LOST:
    case CORE_EV_REQUEST:
    case CORE_EV_OVERFLOW:
    case CORE_EV_BUFFER:
        return nodes->table.of_rank[event->rank] == node;
    default:
        return false;
    }
}

static int on_event(struct nodes *nodes, uint32_t node, struct nodes_event *event)
{
    event->node = node;
    if ((uint32_t)event->event.kind == NODES_HEARD) {
        uint64_t at = event->event.op;
        free(event);
        return root_heard(nodes, node, at);
    }
    if (!speaks_for(nodes, node, &event->event)) {
        free(event); /* the rank has gone meanwhile */
        return 0;
    }
    return root_put(nodes, event);
}

static int on_done(struct nodes *nodes, uint32_t node, const struct wire_msg *msg)
{
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < msg->u.star_done.count; i++)
        r = root_op_done(nodes, node, msg->u.star_done.ops[i]);
    return r;
}

/* False: that is not what a node says, or not before it takes part: its loss would not be told. */
static bool on_known(struct nodes *nodes, uint32_t node, struct wire_msg *msg)
{
    struct nodes_event *event;
    int r = 0;

    if (msg->type != WIRE_STAR_NODE && !nodes->members[node].active)
        return false;
    switch (msg->type) {
    case WIRE_STAR_NODE:
        on_node(nodes, node, msg);
        break;
    case WIRE_STAR_EVENT:
        r = nodes_event_take(msg, &event);
        if (r == 0 && msg->u.star_event.packet)
            nodes->half[node] = event;
        else if (r == 0)
            r = on_event(nodes, node, event);
        break;
    case WIRE_STAR_DONE:
        r = on_done(nodes, node, msg);
        break;
    case WIRE_STAR_BUILT:
        r = root_built(nodes, node, msg->u.done.code, msg->u.done.text);
        break;
    case WIRE_STAR_DATA:
        root_values(nodes, node, msg);
        break;
    default:
        return false;
    }
    engine_fault(nodes->engine, r);
    return true;
}

static bool on_packet(struct nodes *nodes, uint32_t node, const struct wire_msg *msg,
                      const uint8_t *bytes, size_t count)
{
    struct nodes_event *event = nodes->half[node];

    nodes->half[node] = NULL;
    if (event->event.kind != CORE_EV_REQUEST) {
        free(event);
        return false;
    }
    event->event.msg = msg;
    event->packet = bytes;
    event->packet_bytes = count;
    engine_fault(nodes->engine, on_event(nodes, node, event));
    return true;
}

void root_on_message(struct nodes *nodes, uint32_t peer, const uint8_t *bytes, size_t count)
{
    uint32_t node = node_of(nodes, peer), request;
    struct wire_msg *msg = NULL;
    bool good = wire_decode(bytes, count, &msg, &request) == 0;

    if (good && node == GW_NODES_MAX) {
        good = msg->type == WIRE_STAR_HELLO;
        if (good)
            on_hello(nodes, peer, msg);
    } else if (good) {
        good = nodes->half[node] ? on_packet(nodes, node, msg, bytes, count)
                                 : on_known(nodes, node, msg);
    }
    wire_free(msg);
    if (good)
        return;
    send_away(nodes, peer, GW_E_PROTOCOL, "it broke the protocol between nodes");
    root_on_lost(nodes, peer, "it broke the protocol between nodes");
}

void root_free(struct nodes *nodes)
{
    drop_log(nodes);
    free(nodes->done);
    while (!STAILQ_EMPTY(&nodes->queue)) {
        struct nodes_event *next = STAILQ_FIRST(&nodes->queue);
        STAILQ_REMOVE_HEAD(&nodes->queue, link);
        free(next);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node's side of the log, and what root and nodes have in common: where the job's events go, and
 * how they come back. The root's side: nodes_root.c. Loop thread.
 */
#include "daemon/engine/nodes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/text.h"
#include "daemon/engine/log.h"
#include "daemon/engine/nodes_internal.h"

/* ---- the job's log --------------------------------------------------------------------------- */

/* To the root, with the client's packet behind it. */
static int propose(struct nodes *nodes, struct nodes_event *event)
{
    static uint8_t buffer[GW_FRAME_MAX];
    struct wire_msg msg;
    size_t bytes = 0;
    int r = 0;

    if (event->event.msg)
        r = wire_encode(event->event.msg, buffer, sizeof(buffer), &bytes);
    if (r < 0)
        return r;
    nodes_event_msg(event, 0, &msg);
    r = nodes_send(nodes, STAR_ROOT, &msg);
    return r < 0 || bytes == 0 ? r : star_send(nodes->star, STAR_ROOT, buffer, bytes);
}

/* A connection that takes no more is told lost, by and by; that is no fault of this engine. */
static int sent(int r)
{
    return r == GW_E_LIMIT || r == GW_E_NOT_FOUND ? 0 : r;
}

static int on_put(void *user, const struct core_event *event, uint64_t cookie)
{
    struct nodes *nodes = user;
    struct nodes_event *copy;
    int r;

    if (nodes->over)
        return 0;
    r = nodes_event_new(event, nodes->table.own, cookie, &copy);
    if (r < 0)
        return r;
    if (nodes->is_root)
        return root_put(nodes, copy);
    r = propose(nodes, copy);
    free(copy);
    return sent(r);
}

static int on_op_done(void *user, uint64_t op)
{
    struct nodes *nodes = user;
    struct wire_msg msg = {.type = WIRE_STAR_DONE};

    if (nodes->is_root)
        return root_op_done(nodes, 0, op);
    if (nodes->over)
        return 0;
    msg.u.star_done.count = 1;
    msg.u.star_done.ops[0] = op;
    return sent(nodes_send(nodes, STAR_ROOT, &msg));
}

static int on_built(void *user, int code, const char *text)
{
    struct nodes *nodes = user;
    struct wire_msg msg = {.type = WIRE_STAR_BUILT};

    if (nodes->is_root)
        return root_built(nodes, 0, code, text);
    if (nodes->over)
        return 0;
    msg.u.done.code = code;
    snprintf(msg.u.done.text, sizeof(msg.u.done.text), "%s", text);
    return sent(nodes_send(nodes, STAR_ROOT, &msg));
}

static int on_heard(void *user)
{
    struct nodes *nodes = user;
    struct nodes_event event = {.event = {.kind = (enum core_event_kind)NODES_HEARD,
                                          .op = nodes->sequence}};

    if (nodes->over || nodes->heard_sent_at == nodes->sequence)
        return 0;
    nodes->heard_sent_at = nodes->sequence;
    if (nodes->is_root)
        return root_heard(nodes, 0, nodes->sequence);
    return sent(propose(nodes, &event));
}

static int on_values(void *user, uint32_t rank, uint32_t request, bool read, uint64_t offset,
                     const void *values, size_t bytes)
{
    struct nodes *nodes = user;
    struct wire_msg msg = {.type = WIRE_STAR_DATA};

    msg.u.star_data.rank = rank;
    msg.u.star_data.request = request;
    msg.u.star_data.read = read;
    msg.u.star_data.offset = offset;
    msg.u.star_data.values = values;
    msg.u.star_data.value_bytes = bytes;
    if (nodes->is_root)
        root_values(nodes, 0, &msg);
    else if (!nodes->over)
        return sent(nodes_send(nodes, STAR_ROOT, &msg));
    return 0;
}

void nodes_configure(struct nodes *nodes, struct job_config *config)
{
    nodes->log = (struct job_log){.put = on_put,
                                  .op_done = on_op_done,
                                  .built = on_built,
                                  .heard = on_heard,
                                  .values = on_values,
                                  .user = nodes};
    config->log = &nodes->log;
    config->nodes = &nodes->table;
}

/* Before the job has formed, others may take its place. */
static void node_lost(struct nodes *nodes, uint32_t node, const char *text)
{
    struct fabric_node *at = &nodes->table.at[node % GW_NODES_MAX];

    log_line("%s", text);
    at->active = false;
    at->address_bytes = 0;
    if (!job_has_formed(nodes->engine->job))
        return;
    job_node_lost(nodes->engine->job, text);
    nodes->engine->linger_ns = 0; /* nobody can come back */
}

int nodes_apply(struct nodes *nodes, uint64_t at_ns, struct nodes_event *event)
{
    struct job *job = nodes->engine->job;

    if (event->event.kind == (enum core_event_kind)NODES_LOST) {
        node_lost(nodes, event->event.index, event->text);
        return 0;
    }
    return job_apply(job, at_ns, &event->event, event->node, event->cookie);
}

/* ---- a node ---------------------------------------------------------------------------------- */

static void ranks_text(const struct nodes *nodes, uint32_t node, struct text *text)
{
    uint32_t count = 0;

    for (uint32_t rank = 0; rank < GW_RANKS_MAX; rank++)
        if (nodes->table.of_rank[rank] == node)
            text_add(text, "%s%u", count++ ? ", " : " (ranks ", rank);
    text_add(text, "%s", count ? ")" : "");
}

void nodes_text(const struct nodes *nodes, uint32_t node, struct text *text)
{
    text_add(text, "node %s", nodes->table.at[node].name);
    ranks_text(nodes, node, text);
}

/* While it is connected to. */
static void tell_wait(struct engine *engine, const struct job_address *address)
{
    char at[64];

    star_address_text(address, at, sizeof(at));
    snprintf(engine->wait, sizeof(engine->wait), "connecting to the job's first engine, at %s", at);
    log_line("%s", engine->wait);
    stats_touch(engine);
}

static void tell_not_arrived(struct nodes *nodes, int code, const char *why)
{
    struct job_address address;
    char at[64], line[GW_TEXT_MAX + 1];

    job_id_address(nodes->engine->id->bytes, &address);
    star_address_text(&address, at, sizeof(at));
    snprintf(line, sizeof(line), "the job's first engine, at %s: %.400s", at, why);
    nodes->arrived(nodes->engine, code, line);
}

static void give_up(struct nodes *nodes, int code, const char *why)
{
    struct engine *engine = nodes->engine;
    char line[GW_TEXT_MAX + 1];
    struct text text = TEXT(line);

    if (nodes->over || engine->ending)
        return;
    nodes->over = true;
    if (!nodes->ready) {
        tell_not_arrived(nodes, code, why);
        return;
    }
    if (engine->session_count == 0) {
        log_line("the job has ended on its first node");
        engine_stop(engine, GW_E_ENGINE_LOST, "the job has ended");
        return;
    }
    nodes_text(nodes, 0, &text);
    text_add(&text, ", which holds the job together, is gone: %s; start the job anew", why);
    log_line("%s", line);
    engine_stop(engine, GW_E_PEER_LOST, line);
}

static int make_job(struct nodes *nodes, const struct wire_msg *msg, char text[GW_TEXT_MAX + 1])
{
    struct engine *engine = nodes->engine;
    struct job_config config = {
        .kind = (enum gw_device_kind)msg->u.star_welcome.device,
        .world = msg->u.star_welcome.world,
        .join_timeout_ns = msg->u.star_welcome.join_timeout_ns,
        .op_timeout_ns = msg->u.star_welcome.op_timeout_ns,
        .stall_report_ns = msg->u.star_welcome.stall_report_ns,
        .link_bytes_per_s = msg->u.star_welcome.link_bytes_per_s,
    };
    int r;

    nodes->table.own = msg->u.star_welcome.node;
    memcpy(engine->name, msg->u.star_welcome.name, sizeof(engine->name));
    if (msg->u.star_welcome.linger_ns != 0)
        engine->linger_ns = msg->u.star_welcome.linger_ns < 0
                                ? 0
                                : (uint64_t)msg->u.star_welcome.linger_ns;
    nodes_configure(nodes, &config);
    r = join_make_job(engine, &config, text);
    if (r < 0)
        return r;
    return nodes_tell_address(nodes);
}

int nodes_tell_address(struct nodes *nodes)
{
    struct wire_msg msg = {.type = WIRE_STAR_NODE};
    uint8_t address[GW_FABRIC_ADDRESS_MAX];
    uint32_t bytes = 0;
    int r;

    r = job_address(nodes->engine->job, address, &bytes);
    if (r < 0)
        return r;
    msg.u.star_node.node = nodes->table.own;
    snprintf(msg.u.star_node.name, sizeof(msg.u.star_node.name), "%s",
             nodes->engine->options.node_name);
    msg.u.star_node.address = address;
    msg.u.star_node.address_bytes = bytes;
    if (nodes->is_root)
        root_node(nodes, &msg);
    else
        r = sent(nodes_send(nodes, STAR_ROOT, &msg));
    return r;
}

static void on_welcome(struct nodes *nodes, const struct wire_msg *msg)
{
    char text[GW_TEXT_MAX + 1] = "the job's part on this node cannot be made";
    int r;

    if (nodes->engine->job)
        return;
    /* As if the answer had been given when the question was put: never late. */
    nodes->clock_offset_ns =
        (int64_t)msg->u.star_welcome.sent_ns - (int64_t)msg->u.star_welcome.now_ns;
    r = make_job(nodes, msg, text);
    if (r < 0)
        give_up(nodes, r, text);
}

void nodes_note(struct nodes *nodes, const struct wire_msg *msg)
{
    uint32_t node = msg->u.star_node.node;
    struct fabric_node *at = &nodes->table.at[node];

    memcpy(at->name, msg->u.star_node.name, sizeof(at->name));
    memcpy(at->address, msg->u.star_node.address, msg->u.star_node.address_bytes);
    at->address_bytes = (uint32_t)msg->u.star_node.address_bytes;
    at->active = true;
    if (nodes->table.count <= node)
        nodes->table.count = node + 1;
    log_line("node %u of the job is %s", node, at->name);
}

/* The next event of the log; its packet is decoded. */
static void carry_out(struct nodes *nodes, struct nodes_event *event, uint64_t at_ns)
{
    nodes->sequence++;
    engine_fault(nodes->engine,
                 nodes_apply(nodes, at_ns + (uint64_t)nodes->clock_offset_ns, event));
}

static void on_event(struct nodes *nodes, const struct wire_msg *msg)
{
    struct nodes_event *event;

    if (nodes_event_take(msg, &event) < 0) {
        engine_fault(nodes->engine, GW_E_NOMEM);
        return;
    }
    if (msg->u.star_event.packet) {
        nodes->half[0] = event;
        nodes->half_ns = msg->u.star_event.now_ns;
        return;
    }
    carry_out(nodes, event, msg->u.star_event.now_ns);
    free(event);
}

static void on_packet(struct nodes *nodes, const struct wire_msg *msg)
{
    struct nodes_event *event = nodes->half[0];

    nodes->half[0] = NULL;
    event->event.msg = msg;
    carry_out(nodes, event, nodes->half_ns);
    free(event);
}

static void on_node(struct nodes *nodes, const struct wire_msg *msg)
{
    char why[GW_TEXT_MAX + 1];
    int r = job_address_check(nodes->engine->job, msg->u.star_node.address,
                              (uint32_t)msg->u.star_node.address_bytes, why);

    if (r < 0) {
        give_up(nodes, r, why);
        return;
    }
    nodes_note(nodes, msg);
    if (msg->u.star_node.node != nodes->table.own)
        return;
    nodes->ready = true;
    nodes->engine->wait[0] = 0;
    nodes->arrived(nodes->engine, 0, "");
}

static void node_on_message(struct nodes *nodes, const struct wire_msg *msg)
{
    struct engine *engine = nodes->engine;

    if (nodes->half[0])
        on_packet(nodes, msg);
    else if (msg->type == WIRE_CLOSE)
        give_up(nodes, msg->u.done.code, msg->u.done.text);
    else if (msg->type == WIRE_STAR_WELCOME)
        on_welcome(nodes, msg);
    else if (!engine->job)
        return;
    else if (msg->type == WIRE_STAR_EVENT)
        on_event(nodes, msg);
    else if (msg->type == WIRE_STAR_DATA)
        (void)job_values(engine->job, msg->u.star_data.rank, msg->u.star_data.request,
                         msg->u.star_data.read, msg->u.star_data.offset, msg->u.star_data.values,
                         msg->u.star_data.value_bytes);
    else if (msg->type == WIRE_STAR_NODE)
        on_node(nodes, msg);
}

/* ---- the star's callbacks -------------------------------------------------------------------- */

static void say_hello(struct nodes *nodes)
{
    struct wire_msg msg = {.type = WIRE_STAR_HELLO};

    msg.u.star_hello.version = GW_STAR_VERSION;
    msg.u.star_hello.uid = getuid();
    snprintf(msg.u.star_hello.name, sizeof(msg.u.star_hello.name), "%s",
             nodes->engine->options.node_name);
    msg.u.star_hello.sent_ns = now_ns();
    (void)nodes_send(nodes, STAR_ROOT, &msg);
}

static void on_joined(void *user, uint32_t peer, const char *from)
{
    struct nodes *nodes = user;

    log_line(nodes->is_root ? "a node has come from %s" : "the job's root is at %s", from);
    if (!nodes->is_root && peer == STAR_ROOT)
        say_hello(nodes);
}

static void on_message(void *user, uint32_t peer, const uint8_t *bytes, size_t count)
{
    struct nodes *nodes = user;
    struct wire_msg *msg = NULL;
    uint32_t request;

    if (nodes->engine->ending || nodes->engine->fault)
        return;
    if (nodes->is_root) {
        root_on_message(nodes, peer, bytes, count);
    } else if (wire_decode(bytes, count, &msg, &request) == 0) {
        node_on_message(nodes, msg);
    } else {
        give_up(nodes, GW_E_PROTOCOL, "a malformed message came from it");
    }
    wire_free(msg);
    if (!nodes->engine->ending)
        engine_after(nodes->engine);
}

static void on_lost(void *user, uint32_t peer, int code, const char *text)
{
    struct nodes *nodes = user;

    if (nodes->engine->ending)
        return;
    if (nodes->is_root)
        root_on_lost(nodes, peer, text);
    else
        give_up(nodes, code, text);
    if (!nodes->engine->ending)
        engine_after(nodes->engine);
}

/* ---- start, end ------------------------------------------------------------------------------ */

static struct nodes *start(struct engine *engine)
{
    struct nodes *nodes = calloc(1, sizeof(*nodes));

    if (!nodes)
        return NULL;
    nodes->engine = engine;
    STAILQ_INIT(&nodes->queue);
    for (uint32_t rank = 0; rank < GW_RANKS_MAX; rank++)
        nodes->table.of_rank[rank] = FABRIC_NO_NODE;
    return nodes;
}

static struct star_config star_config(struct nodes *nodes)
{
    const struct engine_options *options = &nodes->engine->options;

    return (struct star_config){.loop = nodes->engine->loop,
                                .secret = nodes->engine->id->bytes + JOB_ID_SECRET_AT,
                                .interface = options->star_interface,
                                .port_first = options->star_port_first,
                                .port_last = options->star_port_last,
                                .beat_ns = options->star_beat_ns,
                                .lost_ns = options->star_lost_ns,
                                .callbacks = {.joined = on_joined,
                                              .message = on_message,
                                              .lost = on_lost,
                                              .user = nodes}};
}

int nodes_root(struct engine *engine, const struct wire_msg *create, struct nodes **ret_nodes,
               char text[GW_TEXT_MAX + 1])
{
    struct nodes *nodes = start(engine);
    struct job_address address;
    struct star_config config;
    int r;

    snprintf(text, GW_TEXT_MAX + 1, "no memory for a job of several nodes");
    if (!nodes)
        return GW_E_NOMEM;
    config = star_config(nodes);
    nodes->is_root = nodes->ready = nodes->log_kept = true;
    nodes->create = *create;
    config.peers_max = create->u.job_create.world + STAR_SPARE_PEERS;
    nodes->done_from = 1;
    r = star_root(&config, &nodes->star, &address, text);
    if (r < 0) {
        nodes_free(nodes);
        return r;
    }
    id_set_address(engine->id, &address);
    *ret_nodes = nodes;
    return 0;
}

int nodes_follow(struct engine *engine, nodes_arrived_fn *arrived, struct nodes **ret_nodes,
                 char text[GW_TEXT_MAX + 1])
{
    struct nodes *nodes = start(engine);
    struct job_address address;
    struct star_config config;
    int r;

    snprintf(text, GW_TEXT_MAX + 1, "no memory for a job of several nodes");
    if (!nodes)
        return GW_E_NOMEM;
    nodes->arrived = arrived;
    config = star_config(nodes);
    job_id_address(engine->id->bytes, &address);
    r = star_node(&config, &address, &nodes->star);
    if (r < 0) {
        nodes_free(nodes);
        return r;
    }
    tell_wait(engine, &address);
    *ret_nodes = nodes;
    return 0;
}

int nodes_made(struct nodes *nodes)
{
    return nodes_tell_address(nodes);
}

void nodes_turn(struct nodes *nodes)
{
    if (nodes->is_root)
        root_catch_up(nodes);
}

bool nodes_full(const struct nodes *nodes)
{
    return star_full(nodes->star);
}

bool nodes_ready(const struct nodes *nodes)
{
    return nodes->ready;
}

struct nodes *nodes_free(struct nodes *nodes)
{
    if (!nodes)
        return NULL;
    nodes->over = true;
    star_free(nodes->star);
    root_free(nodes);
    for (uint32_t i = 0; i < GW_NODES_MAX; i++)
        free(nodes->half[i]);
    free(nodes);
    return NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a packet to gradwired asks for. Loop thread only.
 *
 *   HELLO (first packet, client socket)   a new engine, or the one with that tag; a new one for
 *                                         that tag where the job spans nodes
 *   STATUS_GET, JOBS_GET                  anyone; on the client socket the own jobs only
 *   DRAIN, STOP                           administration socket only
 *   an unknown type                       DONE{UNIMPLEMENTED}; anything else ends the connection
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/supervisor/log.h"
#include "daemon/supervisor/supervisor.h"

#define STATUS_NODES_MAX 464 /* bytes of NUMA nodes that STATUS shows */

/* One try: who does not take the reply is gone. */
static void reply(struct peer *peer, const struct wire_msg *msg)
{
    if (packet_send_msg(watch_fd(peer->watch), msg, -1) < 0)
        (void)peer_free(peer);
}

static void reply_done(struct peer *peer, uint32_t request, int code, const char *text)
{
    if (packet_send_code(watch_fd(peer->watch), WIRE_DONE, request, code, text) < 0)
        (void)peer_free(peer);
}

/* ---- Hello --------------------------------------------------------------------------------- */

/* Why there is no engine for it. */
static void refuse_tag(struct peer *peer, const uint8_t tag[TAG_BYTES])
{
    const struct engine *others = engine_find(peer->sup, tag, SUP_ANY_USER);
    char hex[TAG_HEX_BYTES], text[GW_TEXT_MAX + 1];

    tag_to_hex(tag, hex);
    if (others == NULL) {
        (void)snprintf(text, sizeof(text),
                       "there is no job %s on this node: it has ended, or it runs elsewhere", hex);
        peer_close(peer, GW_E_NOT_FOUND, text);
    } else {
        (void)snprintf(text, sizeof(text),
                       "job %s belongs to another user; only its creator's processes may join",
                       hex);
        log_warning("user %u (pid %d) tried to join job %s of user %u", peer->cred.uid,
                    (int)peer->cred.pid, hex, others->uid);
        peer_close(peer, GW_E_DENIED, text);
    }
}

/* follow: as in engine_spawn. */
static void new_engine(struct peer *peer, const uint8_t *follow, const struct packet *packet)
{
    struct supervisor *sup = peer->sup;
    unsigned jobs = engines_count_user(sup, peer->cred.uid);
    char text[GW_TEXT_MAX + 1];
    struct engine *engine;
    int r;

    if (sup->draining) {
        peer_close(peer, GW_E_DRAINING,
                   "gradwired is draining and takes no new jobs; use another node");
        return;
    }
    if (jobs >= sup->conf.max_jobs_per_user) {
        (void)snprintf(text, sizeof(text),
                       "user %u has %u jobs on this node, which is the limit "
                       "(max_jobs_per_user in gradwired.conf)",
                       peer->cred.uid, jobs);
        peer_close(peer, GW_E_LIMIT, text);
        return;
    }
    r = engine_spawn(sup, peer, follow, &engine, text, sizeof(text));
    if (r < 0)
        peer_close(peer, r, text);
    else
        engine_take_client(engine, peer, packet);
}

/* A job that spans nodes has an engine here when its first rank has come. */
static void join_engine(struct peer *peer, const struct wire_msg *msg, const struct packet *packet)
{
    const uint8_t *tag = msg->u.hello.tag;
    struct engine *engine = engine_find(peer->sup, tag, peer->cred.uid);

    if (engine != NULL)
        engine_take_client(engine, peer, packet);
    else if (msg->u.hello.spans)
        new_engine(peer, tag, packet);
    else
        refuse_tag(peer, tag);
}

static void handle_hello(struct peer *peer, const struct wire_msg *msg, const struct packet *packet)
{
    char text[GW_TEXT_MAX + 1];

    if (peer->admin || peer->state != PEER_HALF_OPEN) {
        peer_close(peer, GW_E_PROTOCOL, "Hello belongs at the start, on the client socket");
    } else if (msg->u.hello.version_min > GW_PROTOCOL_VERSION ||
               msg->u.hello.version_max < GW_PROTOCOL_VERSION) {
        (void)snprintf(text, sizeof(text), "daemon speaks %u..%u, client %u..%u",
                       GW_PROTOCOL_VERSION, GW_PROTOCOL_VERSION, msg->u.hello.version_min,
                       msg->u.hello.version_max);
        peer_close(peer, GW_E_VERSION, text);
    } else if (msg->u.hello.tag_bytes == TAG_BYTES) {
        join_engine(peer, msg, packet);
    } else {
        new_engine(peer, NULL, packet);
    }
}

/* ---- questions ----------------------------------------------------------------------------- */

static bool may_see(const struct peer *peer, const struct engine *engine)
{
    return engine->tag_known && (peer->admin || engine->uid == peer->cred.uid);
}

static void handle_status(struct peer *peer, uint32_t request)
{
    struct supervisor *sup = peer->sup;
    struct wire_msg msg = {.type = WIRE_STATUS, .request = request};

    (void)snprintf(msg.u.status.version, sizeof(msg.u.status.version), "%s", GW_VERSION);
    (void)snprintf(msg.u.status.socket, sizeof(msg.u.status.socket), "%.*s", (int)RUNDIR_SOCKET_MAX,
                   sup->conf.socket);
    (void)snprintf(msg.u.status.devices, sizeof(msg.u.status.devices), "%s", sup->devices);
    if (sup->conf.placement == CONF_PLACEMENT_OFF || sup->topology[0] == '\0')
        (void)snprintf(msg.u.status.placement, sizeof(msg.u.status.placement), "off (%s)",
                       sup->topology[0] != '\0' ? "placement = off"
                                                : "no topology of this node could be had");
    else
        (void)snprintf(msg.u.status.placement, sizeof(msg.u.status.placement), "NUMA nodes %.*s%s",
                       STATUS_NODES_MAX, sup->topology,
                       strlen(sup->topology) > STATUS_NODES_MAX ? "..." : "");
    msg.u.status.pid = (uint32_t)getpid();
    msg.u.status.draining = sup->draining;
    msg.u.status.jobs = engines_count(sup);
    msg.u.status.uptime_ns = now_ns() - sup->started_ns;
    reply(peer, &msg);
}

/* total counts what this peer may see; Status has the count of all. */
static void handle_jobs(struct peer *peer, uint32_t request, uint32_t first)
{
    struct stats_text texts[WIRE_JOBS_PER_FRAME];
    struct wire_job jobs[WIRE_JOBS_PER_FRAME];
    struct wire_msg msg = {.type = WIRE_JOBS, .request = request};
    const struct engine *engine;
    uint32_t seen = 0, count = 0;

    TAILQ_FOREACH(engine, &peer->sup->engines, link) {
        if (!may_see(peer, engine))
            continue;
        if (seen >= first && count < WIRE_JOBS_PER_FRAME) {
            stats_job(engine, &texts[count], &jobs[count]);
            count++;
        }
        seen++;
    }
    msg.u.jobs.total = seen;
    msg.u.jobs.count = count;
    msg.u.jobs.jobs = jobs;
    reply(peer, &msg);
}

/* ---- administration ------------------------------------------------------------------------ */

static void handle_drain(struct peer *peer, uint32_t request)
{
    struct supervisor *sup = peer->sup;

    if (!sup->draining)
        log_info("draining: no new jobs, %u to end (asked by user %u)", engines_count(sup),
                 peer->cred.uid);
    sup->draining = true;
    if (TAILQ_EMPTY(&sup->engines)) {
        reply_done(peer, request, 0, "");
        return;
    }
    peer->wants_end = true;
    peer->end_request = request;
}

static void handle_stop(struct peer *peer, uint32_t request, bool engines)
{
    struct supervisor *sup = peer->sup;

    log_info("stopping%s (asked by user %u)", engines ? " with all engines" : "", peer->cred.uid);
    peer->wants_end = true;
    peer->end_request = request;
    if (engines) {
        supervisor_stop_engines(sup);
    } else {
        peers_answer_end(sup, 0, "");
        supervisor_stop(sup);
    }
}

static void handle_admin(struct peer *peer, const struct wire_msg *msg)
{
    if (!peer->admin)
        reply_done(peer, msg->request, GW_E_DENIED,
                   "this needs the administration socket (admin.sock)");
    else if (peer->wants_end)
        reply_done(peer, msg->request, GW_E_STATE, "an earlier request is still being answered");
    else if (msg->type == WIRE_DRAIN)
        handle_drain(peer, msg->request);
    else
        handle_stop(peer, msg->request, msg->u.stop.engines != 0);
}

static void handle_message(struct peer *peer, const struct wire_msg *msg,
                           const struct packet *packet)
{
    char text[GW_TEXT_MAX + 1];
    bool question = msg->type == WIRE_STATUS_GET || msg->type == WIRE_JOBS_GET ||
                    msg->type == WIRE_DRAIN || msg->type == WIRE_STOP;

    if (msg->type == WIRE_HELLO) {
        handle_hello(peer, msg, packet);
        return;
    }
    if (!question || msg->request == 0) {
        (void)snprintf(text, sizeof(text), "%s%s is not for gradwired, or not now",
                       wire_type_name(msg->type), question ? " without a request number" : "");
        peer_close(peer, GW_E_PROTOCOL, text);
        return;
    }
    peer_asks(peer);
    if (msg->type == WIRE_STATUS_GET)
        handle_status(peer, msg->request);
    else if (msg->type == WIRE_JOBS_GET)
        handle_jobs(peer, msg->request, msg->u.jobs_get.first);
    else
        handle_admin(peer, msg);
}

void request_handle(struct peer *peer)
{
    const struct packet *packet = &peer->sup->packet;
    struct wire_msg *msg = NULL;
    uint32_t request = 0;
    int r;

    r = wire_decode(packet->data, packet->bytes, &msg, &request);
    if (r == GW_E_UNIMPLEMENTED && request != 0) {
        peer_asks(peer);
        reply_done(peer, request, r, "gradwired does not know this request");
    } else if (r == GW_E_NOMEM) {
        peer_close(peer, r, "no memory for the message");
    } else if (r < 0) {
        peer_close(peer, GW_E_PROTOCOL, "malformed message");
    } else {
        handle_message(peer, msg, packet);
    }
    (void)wire_free(msg);
}

void request_again(struct peer *peer)
{
    struct packet *packet = &peer->sup->packet;

    memcpy(packet->data, peer->hello, peer->hello_bytes);
    packet->bytes = peer->hello_bytes;
    packet->fd_count = 0;
    free(peer->hello);
    peer->hello = NULL;
    peer->state = PEER_HALF_OPEN;
    request_handle(peer);
}

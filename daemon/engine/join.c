/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may take part: JOB_CREATE makes the job, JOIN must know its secret, a rank's GPU must be
 * leased, and known to the device; the core decides about ranks and generations. Loop thread.
 * Copies of the secret are wiped as soon as they are sent or compared.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/device/pages.h"
#include "daemon/engine/log.h"
#include "daemon/engine/session_internal.h"
#include "daemon/engine/waits.h"

/* For streams of the client to wait on. */
static int make_waits(struct session *session)
{
    struct device_memory *page;
    int r;

    r = pages_new(PAGES_SHARED, "gradwire-waits", GW_WAIT_BYTES(GW_OPS_IN_FLIGHT), PAGES_ANYWHERE,
                  &page);
    if (r < 0)
        return r;
    waits_start(page);
    r = job_lend(session->engine->job, page);
    if (r < 0) {
        pages_free(page);
        return r;
    }
    session->wait_page = page;
    engine_guard(session->engine, page, true);
    return 0;
}

/* The device reaches the session's pages. */
static int lend_pages(struct session *session)
{
    struct job *job = session->engine->job;
    int r = 0;

    if (!session->client_lent)
        r = job_lend(job, session->client_page);
    session->client_lent = r == 0;
    if (r == 0 && !session->engine_lent) {
        r = job_lend(job, session->engine_page);
        session->engine_lent = r == 0;
    }
    if (r == 0 && session->engine->kind != GW_DEVICE_HOST && !session->wait_page)
        r = make_waits(session);
    return r;
}

/* Works that are held back until their tokens are reached would be issued in another order on
 * another node, and NCCL's calls between two ranks would not match. */
static bool may_span(const struct engine *engine)
{
    return !engine->nodes || strcmp(job_ordering_name(engine->job), "events") != 0;
}

static void join(struct session *session, uint32_t rank, uint32_t world,
                 const struct device_place *place, uint32_t request)
{
    struct engine *engine = session->engine;
    char text[GW_TEXT_MAX + 1];
    int r;

    r = job_place(engine->job, rank, world, place, text);
    if (r < 0) {
        session_send_done(session, request, r, "%s", text);
        return;
    }
    if (text[0])
        log_line("%s", text); /* what is missing, though it works */
    if (!may_span(engine)) {
        session_send_done(session, request, GW_E_UNIMPLEMENTED,
                          "rank %u's GPU has no 64-bit stream memory operations (gwctl doctor): a "
                          "job of such GPUs has all its ranks on one node",
                          rank);
        return;
    }
    r = lend_pages(session);
    if (r < 0) {
        session_send_done(session, request, r,
                          "the device cannot reach the pages of rank %u: raise the limit of locked "
                          "memory (ulimit -l)",
                          rank);
        return;
    }
    engine_fault(engine, job_join(engine->job, now_ns(), rank, world, request, session->identity));
}

static struct device_place place_of(const struct wire_msg *msg)
{
    bool create = msg->type == WIRE_JOB_CREATE;
    struct device_place place;

    memcpy(place.gpu, create ? msg->u.job_create.gpu : msg->u.join.gpu, sizeof(place.gpu));
    return place;
}

/* ---- JOB_CREATE ------------------------------------------------------------------------------ */

int join_make_job(struct engine *engine, struct job_config *config, char text[GW_TEXT_MAX + 1])
{
    int r;

    config->memory_max_bytes = engine->options.memory_max_bytes;
    config->drop_edges = engine->options.drop_edges;
    r = plugins_tables(engine->plugins, config->kind, &config->device_ops, &config->fabric_ops,
                       text);
    if (r < 0)
        return r;
    if (config->nodes && config->kind == GW_DEVICE_HOST)
        config->fabric_ops = &fabric_ucx;
    r = engine_make_job(engine, config);
    if (r == GW_E_DEVICE && config->fabric_ops == &fabric_ucx)
        snprintf(text, GW_TEXT_MAX + 1,
                 "UCX finds nothing to reach other nodes by: look at UCX_TLS and UCX_NET_DEVICES "
                 "in gradwired's environment, and at what `ucx_info -d` says on this node");
    else if (r < 0)
        snprintf(text, GW_TEXT_MAX + 1, "no %s for a job",
                 r == GW_E_DEVICE ? "working GPU" : "memory");
    return r;
}

static int make_job(struct engine *engine, const struct wire_msg *msg, char text[GW_TEXT_MAX + 1])
{
    struct job_config config = {
        .kind = (enum gw_device_kind)msg->u.job_create.device,
        .world = msg->u.job_create.world,
        .join_timeout_ns = msg->u.job_create.join_timeout_ns,
        .op_timeout_ns = msg->u.job_create.op_timeout_ns,
        .stall_report_ns = engine->options.stall_report_ns,
        .link_bytes_per_s = msg->u.job_create.link_bytes_per_s,
    };
    int r;

    if (msg->u.job_create.nodes > 1) {
        r = nodes_root(engine, msg, &engine->nodes, text);
        if (r < 0)
            return r;
        nodes_configure(engine->nodes, &config);
    }
    r = join_make_job(engine, &config, text);
    if (r == 0 && engine->nodes)
        r = nodes_made(engine->nodes);
    if (r < 0)
        engine->nodes = nodes_free(engine->nodes);
    return r;
}

/* The GPU is leased, if it is one. */
static void create(struct session *session, const struct wire_msg *msg)
{
    struct engine *engine = session->engine;
    struct device_place place = place_of(msg);
    char text[GW_TEXT_MAX + 1];
    int r;

    if (engine->job) {
        session_send_done(session, msg->request, GW_E_STATE,
                          "the job exists already: join it with its id");
        return;
    }
    r = make_job(engine, msg, text);
    if (r < 0) {
        session_send_done(session, msg->request, r, "%s", text);
        return;
    }
    memcpy(engine->name, msg->u.job_create.name, sizeof(engine->name));
    if (msg->u.job_create.linger_ns != 0)
        engine->linger_ns =
            msg->u.job_create.linger_ns < 0 ? 0 : (uint64_t)msg->u.job_create.linger_ns;
    join(session, msg->u.job_create.rank, msg->u.job_create.world, &place, msg->request);
    if (session->state != SESSION_JOINED)
        engine->linger_ns = 0; /* nobody has its id */
}

/* ---- both ------------------------------------------------------------------------------------ */

/* Goes on at once on the host, else when the rank's GPU is leased. */
static void go_on(struct session *session, const struct wire_msg *msg)
{
    struct device_place place = place_of(msg);

    if (msg->type == WIRE_JOB_CREATE) {
        create(session, msg);
        return;
    }
    session_hear_ranks(session->engine);
    if (session->engine->fault == 0)
        join(session, msg->u.join.rank, msg->u.join.world, &place, msg->request);
}

/* Its answer comes later; one at a time. */
static void keep_asked(struct session *session, const struct wire_msg *msg)
{
    session->asked = malloc(sizeof(*session->asked));
    if (!session->asked) {
        session_send_done(session, msg->request, GW_E_NOMEM, "no memory for a request");
        return;
    }
    *session->asked = *msg;
    if (msg->type == WIRE_JOIN)
        id_wipe(session->asked->u.join.id, sizeof(session->asked->u.join.id));
}

static void lease_and_go_on(struct session *session, const struct wire_msg *msg)
{
    struct device_place place = place_of(msg);
    char text[GW_TEXT_MAX + 1];
    int r;

    r = lease_get(session->engine, place.gpu, text);
    if (r == 0) {
        go_on(session, msg);
    } else if (r != GW_E_AGAIN) {
        session_send_done(session, msg->request, r, "%s", text);
    } else {
        keep_asked(session, msg);
    }
}

static void answer_asked(struct session *session, int code, const char *text)
{
    struct wire_msg *msg = session->asked;

    session->asked = NULL;
    if (code < 0)
        session_send_done(session, msg->request, code, "%s", text);
    else
        go_on(session, msg);
    free(msg);
}

static struct session *next_asked(struct engine *engine, const uint8_t gpu[GW_GPU_BYTES])
{
    struct session *session;

    TAILQ_FOREACH(session, &engine->sessions, link)
    {
        struct device_place place;
        if (!session->asked)
            continue;
        place = place_of(session->asked);
        if (memcmp(place.gpu, gpu, sizeof(place.gpu)) == 0)
            return session;
    }
    return NULL;
}

void join_leased(struct engine *engine, const uint8_t gpu[GW_GPU_BYTES], int code, const char *text)
{
    struct session *session;

    /* From the front each time: a JOIN may close any of them. */
    while ((session = next_asked(engine, gpu)) != NULL) {
        session->busy = true;
        answer_asked(session, code, text);
        session->busy = false;
        if (session->closed)
            session_free(session);
    }
}

/* False: it has its answer. */
static bool may_ask(struct session *session, const struct wire_msg *msg)
{
    if (!session->asked)
        return true;
    session_send_done(session, msg->request, GW_E_BUSY,
                      "this client's JOB_CREATE or JOIN is being answered: wait for that");
    return false;
}

void join_create(struct session *session, const struct wire_msg *msg)
{
    struct engine *engine = session->engine;
    uint32_t rank = msg->u.job_create.rank, world = msg->u.job_create.world;
    char text[GW_TEXT_MAX + 1];

    if (!may_ask(session, msg))
        return;
    if (engine->job)
        session_send_done(session, msg->request, GW_E_STATE,
                          "the job exists already: join it with its id");
    else if (world == 0 || world > GW_RANKS_MAX || rank >= world)
        session_send_done(session, msg->request, GW_E_INVALID,
                          "rank %u of %u ranks: a job has 1 to %u ranks, numbered from 0", rank,
                          world, GW_RANKS_MAX);
    else if (msg->u.job_create.device == GW_DEVICE_HOST)
        create(session, msg);
    else if (world > GW_GPU_RANKS_MAX)
        session_send_done(session, msg->request, GW_E_LIMIT,
                          "a job of %u ranks on GPUs: this release takes %u there, and more in "
                          "host memory",
                          world, GW_GPU_RANKS_MAX);
    else if (plugins_probe(engine->plugins, text) < 0)
        session_send_done(session, msg->request, GW_E_NO_DEVICE, "this node offers no GPU: %.450s",
                          text);
    else
        lease_and_go_on(session, msg);
}

static const char *kind_text(enum gw_device_kind kind)
{
    return kind == GW_DEVICE_HOST ? "host memory" : "a GPU";
}

/* Its id is this job's, and the job is known here. */
static void join_known(struct session *session, const struct wire_msg *msg)
{
    struct engine *engine = session->engine;

    if (job_device_lost(engine->job))
        session_send_done(session, msg->request, GW_E_DEVICE,
                          "a device of this job has failed (%.300s) and is not used again: start a "
                          "new job",
                          job_device_lost(engine->job));
    else if (msg->u.join.device != engine->kind)
        session_send_done(session, msg->request, GW_E_MISMATCH,
                          "rank %u comes with %s, but the job was created with %s: all its ranks "
                          "use GPUs, or none",
                          msg->u.join.rank, kind_text((enum gw_device_kind)msg->u.join.device),
                          kind_text(engine->kind));
    else if (engine->kind == GW_DEVICE_HOST)
        go_on(session, msg);
    else
        lease_and_go_on(session, msg);
}

/* ---- the first JOIN on another node ---------------------------------------------------------- */

static struct session *next_early(struct engine *engine)
{
    struct session *session;

    TAILQ_FOREACH(session, &engine->sessions, link)
    {
        if (session->early && !session->doomed)
            return session;
    }
    return NULL;
}

/* The job's root has been reached, or never will be. */
static void on_arrived(struct engine *engine, int code, const char *text)
{
    struct session *session;

    if (code < 0) {
        log_line("%s", text);
        engine->linger_ns = 0;
        engine_stop(engine, code, text);
        return;
    }
    while ((session = next_early(engine)) != NULL) {
        struct wire_msg *msg = session->asked;
        session->asked = NULL;
        session->early = false;
        session->busy = true;
        join_known(session, msg);
        session->busy = false;
        free(msg);
        if (session->closed)
            session_free(session);
    }
}

static void join_early(struct session *session, const struct wire_msg *msg)
{
    struct engine *engine = session->engine;
    char text[GW_TEXT_MAX + 1];
    int r = 0;

    if (!engine->nodes)
        r = nodes_follow(engine, on_arrived, &engine->nodes, text);
    if (r < 0)
        session_send_done(session, msg->request, r, "%s", text);
    else
        keep_asked(session, msg);
    session->early = session->asked != NULL;
}

void join_join(struct session *session, const struct wire_msg *msg)
{
    struct engine *engine = session->engine;
    bool follows = engine->options.follow;

    if (!may_ask(session, msg))
        return;
    if (!engine->job && !follows) {
        session_send_done(session, msg->request, GW_E_NOT_FOUND,
                          "there is no job here yet: rank 0 must create it first");
        return;
    }
    if (id_take(engine->id, msg->u.join.id, msg->u.join.id_bytes) < 0) {
        session_send_done(session, msg->request, GW_E_DENIED,
                          "the id is not this job's: pass on the id that rank 0 got, unchanged");
        session_doom(session, GW_E_DENIED, "the id is not this job's");
        return;
    }
    if (follows && !(engine->nodes && nodes_ready(engine->nodes)))
        join_early(session, msg);
    else
        join_known(session, msg);
}

void join_reply(struct session *session, uint32_t rank, const struct wire_msg *msg)
{
    struct engine *engine = session->engine;
    struct wire_msg reply = *msg;
    struct job_port port = {.engine = session->engine_page->base,
                            .client = session->client_page->base,
                            .waits = session->wait_page,
                            .identity = session->identity,
                            .pid = session->pid};
    int page = -1;

    if (msg->type == WIRE_JOINED) {
        if (engine->ranks[rank])
            session_unbind(engine->ranks[rank]);
        session->state = SESSION_JOINED;
        session->rank = rank;
        engine->ranks[rank] = session;
        ranks_add(&engine->held, rank);
        job_attach(engine->job, rank, &port);
        alarm_clear(session->alarm);
        reply.u.joined.id_bytes = JOB_ID_BYTES;
        memcpy(reply.u.joined.id, engine->id->bytes, JOB_ID_BYTES);
        reply.u.joined.device = engine->kind;
        page = session->wait_page ? session->wait_page->fd : engine->job_page->fd;
        log_line("rank %u is %s (pid %d), generation %u", rank, session->client, (int)session->pid,
                 msg->u.joined.generation);
    }
    session_send(session, &reply, &page, page < 0 ? 0 : 1);
    id_wipe(&reply.u, sizeof(reply.u));
}

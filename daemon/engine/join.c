/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may take part: JOB_CREATE makes the job, JOIN must know its secret; the core decides about
 * ranks and generations. Loop thread. Copies of the secret are wiped as soon as they are sent or
 * compared.
 */
#include <string.h>

#include "daemon/engine/engine.h"
#include "daemon/engine/log.h"

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
    return r;
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
    r = lend_pages(session);
    if (r < 0) {
        session_send_done(session, request, r,
                          "the device cannot reach the pages of rank %u: raise the limit of locked "
                          "memory (ulimit -l)", rank);
        return;
    }
    engine->joiner = session;
    r = job_join(engine->job, now_ns(), rank, world, request);
    engine->joiner = NULL;
    engine_fault(engine, r);
}

static int make_job(struct engine *engine, const struct wire_msg *msg)
{
    struct job_config config = {
        .kind = GW_DEVICE_HOST,
        .device_ops = &device_host,
        .fabric_ops = &fabric_local,
        .world = msg->u.job_create.world,
        .join_timeout_ns = msg->u.job_create.join_timeout_ns,
        .op_timeout_ns = msg->u.job_create.op_timeout_ns,
        .link_bytes_per_s = msg->u.job_create.link_bytes_per_s,
        .memory_max_bytes = engine->options.memory_max_bytes,
        .drop_edges = engine->options.drop_edges,
    };

    return engine_make_job(engine, &config);
}

void join_create(struct session *session, const struct wire_msg *msg)
{
    struct engine *engine = session->engine;
    uint32_t rank = msg->u.job_create.rank, world = msg->u.job_create.world;
    struct device_place place;
    int r;

    if (engine->job) {
        session_send_done(session, msg->request, GW_E_STATE,
                          "the job exists already: join it with its id");
        return;
    }
    if (world == 0 || world > GW_RANKS_MAX || rank >= world) {
        session_send_done(session, msg->request, GW_E_INVALID,
                          "rank %u of %u ranks: a job has 1 to %u ranks, numbered from 0", rank,
                          world, GW_RANKS_MAX);
        return;
    }
    r = make_job(engine, msg);
    if (r < 0) {
        session_send_done(session, msg->request, r, "no memory for a job");
        return;
    }
    memcpy(engine->name, msg->u.job_create.name, sizeof(engine->name));
    if (msg->u.job_create.linger_ns != 0)
        engine->linger_ns =
            msg->u.job_create.linger_ns < 0 ? 0 : (uint64_t)msg->u.job_create.linger_ns;
    memcpy(place.gpu, msg->u.job_create.gpu, sizeof(place.gpu));
    join(session, rank, world, &place, msg->request);
}

void join_join(struct session *session, const struct wire_msg *msg)
{
    struct engine *engine = session->engine;
    struct device_place place;

    if (!engine->job) {
        session_send_done(session, msg->request, GW_E_NOT_FOUND,
                          "there is no job here yet: rank 0 must create it first");
        return;
    }
    if (!id_matches(engine->id, msg->u.join.id, msg->u.join.id_bytes)) {
        session_send_done(session, msg->request, GW_E_DENIED,
                          "the id is not this job's: pass on the id that rank 0 got, unchanged");
        session_doom(session, GW_E_DENIED, "the id is not this job's");
        return;
    }
    session_hear_ranks(engine);
    memcpy(place.gpu, msg->u.join.gpu, sizeof(place.gpu));
    if (engine->fault == 0)
        join(session, msg->u.join.rank, msg->u.join.world, &place, msg->request);
}

void join_reply(struct session *session, uint32_t rank, const struct wire_msg *msg)
{
    struct engine *engine = session->engine;
    struct wire_msg reply = *msg;
    struct job_port port = {session->engine_page->base, session->client_page->base,
                            session->identity};

    if (msg->type == WIRE_JOINED) {
        if (engine->ranks[rank])
            session_unbind(engine->ranks[rank]);
        session->state = SESSION_JOINED;
        session->rank = rank;
        engine->ranks[rank] = session;
        job_attach(engine->job, rank, &port);
        alarm_clear(session->alarm);
        reply.u.joined.id_bytes = ID_BYTES;
        memcpy(reply.u.joined.id, engine->id->bytes, ID_BYTES);
        reply.u.joined.device = engine->kind;
        log_line("rank %u is %s (pid %d), generation %u", rank, session->client,
                 (int)session->pid, msg->u.joined.generation);
    }
    session_send(session, &reply, NULL, 0);
    id_wipe(&reply.u, sizeof(reply.u));
}

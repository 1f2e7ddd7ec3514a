/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only a job on several nodes needs: values of parameters that travel between a rank and the
 * nodes where they lie, the times of ops here, told to the core when the op is done everywhere, and
 * how far a client's timelines had come when it went, for ops that the log brings after that.
 * Loop thread. A rank has one PARAM_IO under way at a time; the log brings its values, if it
 * writes, before the request itself, and to all nodes.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/job_internal.h"
#include "daemon/engine/star.h"

#define TIMES 1024u /* ops done here that are not done everywhere: more only lose their times */
#define UNKNOWN UINT64_MAX

/* All ranks may write or read at once, and the root hands all of it to each node; half is left for
 * the log. */
_Static_assert(GW_STAGING_ALL_BYTES <= STAR_QUEUE_BYTES / 2, "values fit");

struct io {
    uint32_t request;   /* 0: none */
    bool writes;        /* of a rank here: its values go elsewhere */
    uint64_t received;  /* bytes; of a write, nodes that have taken it */
    uint64_t elsewhere; /* of a rank here: how many of these are to come; UNKNOWN yet */
    float *values;      /* written by a rank elsewhere; GW_STAGING_BYTES */
    struct wire_msg reply;
};

struct span {
    struct device_done times[TIMES];
    struct io io[GW_RANKS_MAX];
    _Atomic uint64_t words[GW_RANKS_MAX][GW_TIMELINES_MAX]; /* of clients that are gone */
};

int span_new(struct job *job)
{
    if (!job->config.log)
        return 0;
    job->span = calloc(1, sizeof(*job->span));
    return job->span ? 0 : GW_E_NOMEM;
}

static void io_end(struct io *io)
{
    free(io->values);
    *io = (struct io){.values = NULL};
}

void span_reset(struct job *job)
{
    for (uint32_t rank = 0; job->span && rank < job->config.world; rank++)
        io_end(&job->span->io[rank]);
}

void span_free(struct job *job)
{
    span_reset(job);
    free(job->span);
    job->span = NULL;
}

/* ---- times ----------------------------------------------------------------------------------- */

void span_note(struct job *job, const struct device_done *done)
{
    job->span->times[done->op % TIMES] = *done;
}

void span_times(const struct job *job, struct core_event *event)
{
    const struct device_done *done = &job->span->times[event->op % TIMES];

    if (done->op != event->op)
        return;
    event->started_ns = done->started_ns;
    event->done_ns = done->done_ns;
}

/* ---- clients that are gone ------------------------------------------------------------------- */

void span_keep_words(struct job *job, uint32_t rank)
{
    const struct gw_client_page *page = job->ports[rank].client;

    for (uint32_t i = 0; page && i < GW_TIMELINES_MAX; i++)
        atomic_store(&job->span->words[rank][i], atomic_load(&page->timeline[i]));
}

const _Atomic uint64_t *span_kept_word(const struct job *job, uint32_t rank, uint32_t timeline)
{
    return ranks_has(&job->detached, rank) ? &job->span->words[rank][timeline] : NULL;
}

/* ---- values ---------------------------------------------------------------------------------- */

static void *staging_of(const struct job *job, uint32_t rank, uint64_t bytes)
{
    struct core_ref ref = {.kind = GW_ARENA_STAGING, .rank = (int16_t)rank};

    return bytes > 0 && bytes <= GW_STAGING_BYTES ? arenas_at(job->arenas, &ref, bytes) : NULL;
}

int span_param_io(struct job *job, uint32_t rank, const struct wire_msg *msg)
{
    const struct job_log *log = job->config.log;
    struct io *io = &job->span->io[rank];
    uint64_t count = msg->u.param_io.count, bytes, at;
    const char *staging;
    int r = 0;

    io_end(io);
    if (count > gw_staging_bytes(job->config.world) / sizeof(float))
        return 0; /* the core refuses it */
    bytes = count * sizeof(float);
    staging = staging_of(job, rank, bytes);
    if (!staging)
        return 0; /* told when it is carried out */
    io->request = msg->request;
    io->elsewhere = UNKNOWN;
    io->writes = msg->u.param_io.write;
    if (!io->writes)
        return 0;
    for (at = 0; r == 0 && at < bytes; at += GW_STAR_DATA_MAX) {
        uint64_t rest = bytes - at;
        r = log->values(log->user, rank, msg->request, false, at, staging + at,
                        rest < GW_STAR_DATA_MAX ? rest : GW_STAR_DATA_MAX);
    }
    return r;
}

static void take_written(struct io *io, uint32_t request, uint64_t offset, const void *values,
                         size_t bytes)
{
    if (io->request != request)
        io_end(io);
    io->request = request;
    if (!io->values)
        io->values = malloc(GW_STAGING_BYTES);
    if (!io->values)
        return; /* missing bytes are seen when they are used */
    memcpy((char *)io->values + offset, values, bytes);
    io->received += bytes;
}

static void reply_if_whole(struct job *job, uint32_t rank)
{
    struct io *io = &job->span->io[rank];
    struct wire_msg reply = io->reply;

    if (io->elsewhere == UNKNOWN || io->received < io->elsewhere)
        return;
    io_end(io);
    job_reply(job, rank, &reply, NULL, 0);
}

int job_values(struct job *job, uint32_t rank, uint32_t request, bool read, uint64_t offset,
               const void *values, size_t bytes)
{
    struct io *io = &job->span->io[rank];
    char *staging;

    if (rank >= job->config.world || request == 0 || bytes > GW_STAGING_BYTES ||
        offset > GW_STAGING_BYTES - bytes)
        return 0;
    if (!read) {
        if (!job_here(job, rank))
            take_written(io, request, offset, values, bytes);
        return 0;
    }
    staging = staging_of(job, rank, offset + bytes);
    if (!job_here(job, rank) || io->request != request || !staging)
        return 0; /* the rank has gone meanwhile */
    if (!io->writes)
        memcpy(staging + offset, values, bytes);
    io->received += io->writes ? 1 : bytes;
    reply_if_whole(job, rank);
    return 0;
}

int span_taken(struct job *job, uint32_t rank, uint32_t request)
{
    const struct job_log *log = job->config.log;

    io_end(&job->span->io[rank]);
    return log->values(log->user, rank, request, true, 0, "", 1);
}

uint64_t span_others(const struct job *job)
{
    const struct fabric_nodes *nodes = job->config.nodes;
    uint64_t others = 0;

    for (uint32_t i = 0; nodes && i < nodes->count; i++)
        others += i != nodes->own && nodes->at[i].active;
    return others;
}

float *span_written(struct job *job, uint32_t rank, uint32_t request, uint64_t bytes)
{
    struct io *io = &job->span->io[rank];

    return io->request == request && io->received >= bytes ? io->values : NULL;
}

void span_reply(struct job *job, const struct core_effect *effect, uint64_t elsewhere)
{
    struct io *io = &job->span->io[effect->rank];

    io->elsewhere = elsewhere;
    io->reply = effect->reply;
    reply_if_whole(job, effect->rank);
}

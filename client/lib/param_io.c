/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gw_param_write_sync and gw_param_read_sync: values through the staging arena, in chunks. One call
 * of a job at a time uses it; others wait. A chunk whose deadline passes leaves the arena to the
 * engine until its answer is there (CHANNEL_PARK_DRAIN).
 */
#include <string.h>

#include "client/lib/clock.h"
#include "client/lib/err.h"
#include "client/lib/zero.h"

struct transfer {
    uint32_t param;
    uint64_t offset, count;
    const float *from; /* write */
    float *to;         /* read */
};

/* Between steps only. Lock held. */
static int check_idle(const struct zero *zero)
{
    if (zero->updating)
        return err_set(GW_E_STATE, "an update window is open; call gw_update_commit first");
    if (zero->ledger->declared)
        return err_set(GW_E_STATE, "gradients of step %llu are declared; call gw_step_end first",
                       (unsigned long long)zero->steps + 1);
    for (uint32_t u = 0; u < zero->page->units; u++) {
        if (zero->fetches[u] > zero->releases[u])
            return err_set(GW_E_STATE, "unit %s is fetched; call gw_release first",
                           zero->view.names + zero->view.units[u].name_at);
    }
    return 0;
}

static int check(const struct zero *zero, const struct transfer *t)
{
    uint64_t numel;
    int r = zero_param_check(zero, t->param);

    if (r < 0)
        return r;
    numel = zero->view.params[t->param].numel;
    if (t->offset > numel || t->count > numel - t->offset)
        return err_set(GW_E_INVALID,
                       "parameter %s has %llu elements; %llu from %llu on end past it",
                       zero_param_name(zero, t->param), (unsigned long long)numel,
                       (unsigned long long)t->count, (unsigned long long)t->offset);
    if (t->count > 0 && !t->from && !t->to)
        return err_set(GW_E_INVALID, "the values are NULL");
    return 0;
}

static int staging_lock(gw_job *job, struct zero *zero, int64_t deadline)
{
    int r;

    pthread_mutex_lock(&job->lock);
    while (zero->staging_busy && job_cond_wait(job, deadline)) {
    }
    r = zero->staging_busy ? err_set(GW_E_TIMEOUT, "another thread moves parameters and was not "
                                                   "done before the deadline")
                           : check_idle(zero);
    if (r == 0)
        zero->staging_busy = true;
    pthread_mutex_unlock(&job->lock);
    return r;
}

static void staging_unlock(gw_job *job, struct zero *zero)
{
    pthread_mutex_lock(&job->lock);
    zero->staging_busy = false;
    pthread_cond_broadcast(&job->cond);
    pthread_mutex_unlock(&job->lock);
}

/* The engine moves values at once: what streams still do with the parameters must be over. */
static int settle(gw_job *job, int64_t deadline)
{
    int r = job->order.ops->settle(job, deadline);

    if (job_deadline_passed(job, &r))
        return err_set(r, "the job's stream was not done before the deadline");
    return r;
}

/* The request is the barrier: the engine copies between our two accesses of the staging memory. */
static int move_chunk(gw_job *job, struct zero *zero, const struct transfer *t, uint64_t done,
                      uint64_t count, int64_t deadline)
{
    struct wire_msg msg;
    int r;

    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_PARAM_IO;
    msg.u.param_io.write = t->from != NULL;
    msg.u.param_io.param = t->param;
    msg.u.param_io.offset = t->offset + done;
    msg.u.param_io.count = count;
    if (t->from)
        memcpy(zero->staging.base, t->from + done, count * sizeof(float));
    r = job_request(job, &msg, WIRE_DONE, CHANNEL_PARK_DRAIN, deadline, NULL);
    if (r == 0 && t->to)
        memcpy(t->to + done, zero->staging.base, count * sizeof(float));
    return r;
}

/* The job's state is checked once, at the start: the engine checks each chunk. */
static int transfer(gw_job *job, const struct transfer *t, int64_t timeout_ns)
{
    const uint64_t most = gw_staging_bytes(job->world) / sizeof(float);
    int64_t deadline = clock_deadline(timeout_ns);
    struct zero *zero = NULL;
    int r = zero_enter(job, &zero);

    if (r == 0)
        r = check(zero, t);
    if (r == 0)
        r = staging_lock(job, zero, deadline);
    if (r < 0)
        return r;
    r = settle(job, deadline);
    if (r == 0)
        r = memory_get(job, GW_ARENA_STAGING, 0, GW_STAGING_BYTES, "staging buffer", deadline, NULL,
                       &zero->staging);
    for (uint64_t done = 0; r == 0 && done < t->count;) {
        uint64_t left = t->count - done, count = left < most ? left : most;

        r = move_chunk(job, zero, t, done, count, deadline);
        done += count;
    }
    staging_unlock(job, zero);
    return r < 0 ? err_prefix(r, "parameter %s", zero_param_name(zero, t->param)) : 0;
}

int gw_param_write_sync(gw_job *job, uint32_t param, uint64_t offset, uint64_t count,
                        const float *values, int64_t timeout_ns)
{
    struct transfer t = {.param = param, .offset = offset, .count = count, .from = values};

    return transfer(job, &t, timeout_ns);
}

int gw_param_read_sync(gw_job *job, uint32_t param, uint64_t offset, uint64_t count,
                       float *ret_values, int64_t timeout_ns)
{
    struct transfer t = {.param = param, .offset = offset, .count = count, .to = ret_values};

    return transfer(job, &t, timeout_ns);
}

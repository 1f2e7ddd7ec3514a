/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps: micro-step and step end, the verdict, and the update window. Any thread; only gw_wait_step
 * waits.
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "client/lib/clock.h"
#include "client/lib/err.h"
#include "client/lib/guard.h"
#include "client/lib/wait.h"
#include "client/lib/zero.h"

#define VERDICT_TRIES 1000

static int send_empty(gw_job *job, uint16_t type)
{
    struct wire_msg msg;

    memset(&msg, 0, sizeof(msg));
    msg.type = type;
    return channel_send(&job->channel, &msg);
}

/* What it declares comes after all that the caller has done. Lock held. */
static int send_marked(gw_job *job, uint16_t type)
{
    struct wire_msg msg;
    int r;

    memset(&msg, 0, sizeof(msg));
    msg.type = type;
    r = job->order.ops->mark(job, &msg.u.after);
    return r < 0 ? r : channel_send(&job->channel, &msg);
}

/* An acquired but undeclared slot is open for writing until the micro-step ends. Lock held. */
static void guard_all(const gw_job *job, const struct zero *zero)
{
    for (uint32_t b = 0; job->debug_guard && b < zero->page->buckets; b++) {
        const struct ledger_bucket *bucket = &zero->ledger->buckets[b];

        if (!bucket->closed && (!zero->ledger->ring || bucket->slot != GW_NO_SLOT))
            guard_bucket(job, zero, b, bucket->slot, false);
    }
}

/* Contributions still open are closed here and at the engine alike, by the same rule. */
int gw_micro_step_end(gw_job *job)
{
    struct zero *zero = NULL;
    int r = zero_enter(job, &zero);

    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    if (zero->ledger->shut)
        r = err_set(GW_E_STATE, "gw_micro_step_end while gw_freeze is under way");
    else if (ledger_check_micro_end(zero->ledger) != LEDGER_OK)
        r = err_set(GW_E_STATE,
                    "micro-step %u of step %llu is the last one of micro_steps = %u; call "
                    "gw_step_end, or seal with more",
                    zero->ledger->micro, (unsigned long long)zero->steps + 1,
                    zero->options.micro_steps);
    if (r == 0)
        r = send_marked(job, WIRE_MICRO_END);
    if (r == 0) {
        zero->begun = true;
        guard_all(job, zero);
        ledger_micro_end(zero->ledger);
    }
    pthread_mutex_unlock(&job->lock);
    return r;
}

/* All reads of the step must be over when it ends: owners write next. Gradients of the next step
 * may come inside an update window, but its end may not. Lock held. */
static int check_end(const struct zero *zero)
{
    if (zero->ledger->shut)
        return err_set(GW_E_STATE, "gw_step_end while gw_freeze is under way");
    if (zero->updating)
        return err_set(GW_E_STATE,
                       "gw_step_end inside the update window of step %llu; call gw_update_commit "
                       "first",
                       (unsigned long long)zero->steps);
    for (uint32_t u = 0; u < zero->page->units; u++) {
        if (zero->fetches[u] > zero->releases[u])
            return err_set(
                GW_E_STATE,
                "unit %s is still fetched (%llu fetches, %llu releases); call gw_release "
                "before gw_step_end",
                zero->view.names + zero->view.units[u].name_at,
                (unsigned long long)zero->fetches[u], (unsigned long long)zero->releases[u]);
    }
    return 0;
}

/* The token's value is the step's number, which all ranks count alike. */
int gw_step_end(gw_job *job, struct gw_token *ret_token)
{
    struct zero *zero = NULL;
    int r = zero_enter(job, &zero);

    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    r = check_end(zero);
    if (r == 0)
        r = send_marked(job, WIRE_STEP_END);
    if (r == 0) {
        guard_all(job, zero);
        ledger_step_end(zero->ledger);
        zero->steps++;
        fetch_step_ended(zero);
        zero->begun = false;
        if (ret_token)
            *ret_token = zero_token(GW_TIMELINE(GW_TL_STEP, 0), zero->steps);
    }
    pthread_mutex_unlock(&job->lock);
    if (r == 0)
        split_next_step(&job->split);
    return r;
}

/* ---- verdict --------------------------------------------------------------------------------- */

/* Acquire loads, so that what is read after them is younger. */
static void copy_shared(void *to, const void *from, size_t bytes)
{
    uint8_t *out = to;
    const uint8_t *in = from;

    for (size_t i = 0; i < bytes; i++)
        out[i] = __atomic_load_n(&in[i], __ATOMIC_ACQUIRE);
}

/* The engine writes verdict and bits before it raises the step; both must still be of that step
 * after the copy. `any`: as it is (a dropped edge). */
static int copy_verdict(const struct zero *zero, uint64_t step, bool any,
                        struct gw_shm_verdict *verdict, uint8_t *used)
{
    size_t used_bytes = ((size_t)zero->page->params + 7) / 8;

    for (int i = 0; i < VERDICT_TRIES; i++) {
        uint64_t before = atomic_load_explicit(&zero->board->step.value, memory_order_acquire);

        copy_shared(verdict, &zero->board->verdict, sizeof(*verdict));
        copy_shared(used, zero->board_used, used_bytes);
        if (any ||
            (atomic_load_explicit(&zero->board->step.value, memory_order_relaxed) == before &&
             before >= step && verdict->step == before))
            return 0;
        sched_yield();
    }
    return GW_E_INTERNAL;
}

/* An engine that ends raises words without verdicts, and says why before it does. */
static int no_verdict(gw_job *job, const struct zero *zero, const struct gw_shm_verdict *verdict)
{
    char text[GW_TEXT_MAX + 1];
    int r = job_failure(job);

    if (r < 0)
        return r;
    snprintf(text, sizeof(text), "the board shows step %llu but the verdict of step %llu",
             (unsigned long long)atomic_load(&zero->board->step.value),
             (unsigned long long)verdict->step);
    return channel_broken(&job->channel, text);
}

/* Under the lock, so that verdict and used bits of two threads do not mix. */
static int take_verdict(gw_job *job, struct zero *zero, uint64_t step, bool any,
                        struct gw_verdict *ret_verdict)
{
    struct gw_shm_verdict verdict;
    int r;

    pthread_mutex_lock(&job->lock);
    r = copy_verdict(zero, step, any, &verdict, zero->used);
    if (r == 0)
        zero->waited = step;
    pthread_mutex_unlock(&job->lock);
    if (r < 0)
        return no_verdict(job, zero, &verdict);
    if (ret_verdict)
        *ret_verdict = (struct gw_verdict){.step = verdict.step,
                                           .norm = verdict.norm,
                                           .clip_factor = verdict.clip_factor,
                                           .nonfinite = verdict.nonfinite,
                                           .first_bucket = verdict.first_bucket,
                                           .used_params = verdict.used_params,
                                           .digest = verdict.digest};
    return 0;
}

int gw_wait_step(gw_job *job, int64_t timeout_ns, struct gw_verdict *ret_verdict)
{
    struct zero *zero = NULL;
    struct wait_time time;
    struct gw_token token;
    size_t index = 0;
    int r = zero_sealed(job, &zero);

    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    token = zero_token(GW_TIMELINE(GW_TL_STEP, 0), zero->steps);
    pthread_mutex_unlock(&job->lock);
    if (token.value == zero->first) {
        r = job_failure(job);
        return r < 0 ? r : err_set(GW_E_STATE, "no step has ended yet; call gw_step_end first");
    }
    if (job_edge_dropped(job, JOB_EDGE_VERDICT_READ)) {
        channel_flush(&job->channel);
        return take_verdict(job, zero, token.value, true, ret_verdict);
    }
    r = wait_tokens(job, &token, 1, false, clock_deadline(timeout_ns), &index, &time);
    if (job_deadline_passed(job, &r)) {
        split_defer(&job->split, time.w0, time.w1);
        return err_set(r, "the verdict of step %llu was not in within %lld ms",
                       (unsigned long long)token.value, (long long)(timeout_ns / CLOCK_MS));
    }
    if (r < 0)
        return r;
    wait_record(job, &token, 1, time);
    return take_verdict(job, zero, token.value, false, ret_verdict);
}

/* From the copy that was taken with the verdict: the board may be at a later step. */
int gw_param_used(gw_job *job, uint32_t param)
{
    struct zero *zero = NULL;
    int r = zero_sealed(job, &zero);

    if (r == 0)
        r = zero_param_check(zero, param);
    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    if (zero->waited == 0)
        r = err_set(GW_E_STATE, "no verdict was read yet; call gw_wait_step first");
    else
        r = zero->used[param / 8] >> (param % 8) & 1;
    pthread_mutex_unlock(&job->lock);
    return r;
}

/* ---- update window --------------------------------------------------------------------------- */

/* Lock held. */
static int check_begin(const struct zero *zero)
{
    unsigned long long step = zero->steps;

    if (zero->updating)
        return err_set(GW_E_STATE, "the update window of step %llu is open already", step);
    if (zero->steps == zero->first)
        return err_set(GW_E_STATE, "no step has ended yet; call gw_step_end before an update");
    if (zero->begun)
        return err_set(GW_E_STATE,
                       "step %llu has begun (a fetch or gradient came), so the update of step %llu "
                       "was skipped; begin it right after gw_step_end",
                       step + 1, step);
    if (zero->updated >= zero->steps)
        return err_set(GW_E_STATE, "step %llu has been updated already", step);
    return 0;
}

int gw_update_begin(gw_job *job, struct gw_token *ret_token)
{
    struct zero *zero = NULL;
    int r = zero_enter(job, &zero);

    if (r == 0 && !ret_token)
        r = err_set(GW_E_INVALID, "ret_token is NULL");
    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    r = check_begin(zero);
    if (r == 0)
        r = send_empty(job, WIRE_UPDATE_BEGIN);
    if (r == 0) {
        zero->updating = true;
        *ret_token = zero_token(GW_TIMELINE(GW_TL_UPDATE, 0), zero->steps);
    }
    pthread_mutex_unlock(&job->lock);
    return r;
}

/* The word is read again: a commit before it would publish what nobody may have stopped reading. In
 * streams: some stream of the caller waits for it. Lock held. */
static int check_commit(gw_job *job, const struct zero *zero)
{
    struct gw_token token = zero_token(GW_TIMELINE(GW_TL_UPDATE, 0), zero->steps);

    if (!zero->updating)
        return err_set(GW_E_STATE, "no update window is open; call gw_update_begin first");
    if (wait_reached(job, token) || zero->window_waited == zero->steps)
        return 0;
    return err_set(GW_E_STATE,
                   "not every rank has ended step %llu; wait for the token of gw_update_begin "
                   "before writing and committing",
                   (unsigned long long)zero->steps);
}

int gw_update_commit(gw_job *job)
{
    struct wait_time time = {0};
    struct gw_token token;
    struct zero *zero = NULL;
    int r = zero_enter(job, &zero);

    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    r = check_commit(job, zero);
    token = zero_token(GW_TIMELINE(GW_TL_UPDATE, 0), zero->steps);
    pthread_mutex_unlock(&job->lock);
    /* The stream that waited may be another one than the job's. */
    if (r == 0)
        r = job->order.ops->wait(job, token, clock_now(), &time);
    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    r = check_commit(job, zero);
    if (r == 0)
        r = send_marked(job, WIRE_UPDATE_COMMIT);
    if (r == 0) {
        zero->updating = false;
        zero->updated = zero->steps;
        guard_update(job, zero, false);
    }
    pthread_mutex_unlock(&job->lock);
    return r;
}

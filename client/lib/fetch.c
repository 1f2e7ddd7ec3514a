/* SPDX-License-Identifier: Apache-2.0 */
/* Fetching units, reading their parameters, releasing them. Any thread; nothing here waits. */
#include <string.h>

#include "client/lib/err.h"
#include "client/lib/guard.h"
#include "client/lib/wait.h"
#include "client/lib/zero.h"

static const char *unit_name(const struct zero *zero, uint32_t unit)
{
    return zero->view.names + zero->view.units[unit].name_at;
}

static int enter(gw_job *job, uint32_t unit, struct zero **ret_zero)
{
    int r = zero_enter(job, ret_zero);

    if (r == 0 && unit >= (*ret_zero)->page->units)
        r = err_set(GW_E_INVALID, "there is no unit %u; the layout has %u", unit,
                    (*ret_zero)->page->units);
    return r;
}

/* ---- hits ------------------------------------------------------------------------------------ */

/* Only the host's calls can do with memory at once; streams wait for the word anyway. */
static bool may_hit(const gw_job *job, const struct zero *zero)
{
    return zero->options.stage == 3 && !job->order.ops->streams;
}

/* What is persistent, or nothing, is in no fetch unit: all of it is counted as one more. */
static uint32_t fetch_unit_of(const struct zero *zero, uint32_t unit)
{
    uint32_t fetch_unit = zero->view.units[unit].fetch_unit;

    return fetch_unit < zero->page->fetch_units ? fetch_unit : zero->page->fetch_units;
}

/* Whether fetch `value` of the unit, declared now, is one. `served` is read before the grant: what
 * was served by then shows in it. And `since` before the place: of a grant that took another's
 * place meanwhile both are new, or the place alone, and then what ended the first one is not
 * served yet, so this is no hit by the old `since`. Lock held. */
static bool is_hit(const struct zero *zero, uint32_t unit, uint64_t value, uint64_t *ret_offset)
{
    const struct gw_shm_slot *slot = &zero->unit_slots[unit];
    const struct hits *hits = &zero->hits;
    uint32_t fetch_unit = fetch_unit_of(zero, unit);
    uint64_t other = hits->unit == fetch_unit ? hits->other : hits->fetched;
    uint64_t served = atomic_load_explicit(&zero->board->served, memory_order_acquire);
    uint64_t placed = atomic_load_explicit(&slot->placed, memory_order_acquire);
    uint64_t since = __atomic_load_n(&slot->since, __ATOMIC_ACQUIRE);
    uint64_t offset = __atomic_load_n(&slot->placed_offset, __ATOMIC_ACQUIRE);

    if (placed != value || served < hits->cleared ||
        atomic_load_explicit(&slot->placed, memory_order_relaxed) != placed)
        return false;
    *ret_offset = offset;
    return hits->touched[fetch_unit] <= since || served >= other;
}

/* Counts what was sent. Lock held. */
static void count_fetch(struct zero *zero, uint32_t unit, bool hit, uint64_t offset)
{
    struct hits *hits = &zero->hits;
    uint32_t fetch_unit = fetch_unit_of(zero, unit);

    if (hits->unit != fetch_unit)
        hits->other = hits->fetched;
    hits->unit = fetch_unit;
    hits->fetched = hits->touched[fetch_unit] = ++hits->declared;
    if (hit)
        hits->last[unit] = (struct hit){.value = zero->fetches[unit], .offset = offset};
    else
        hits->cleared = hits->declared;
}

void fetch_step_ended(struct zero *zero)
{
    zero->hits.cleared = ++zero->hits.declared;
}

/* The engine need not hear at once of declaration `number`. */
static bool is_quiet(const struct zero *zero, uint64_t number)
{
    return number < atomic_load_explicit(&zero->board->ring_at, memory_order_relaxed);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* A release comes after the reads before it. A fetch depends on nothing that the caller does, and
 * would be late if it waited for work that it could overlap. */
static int send_unit(gw_job *job, uint16_t type, uint32_t unit, bool quiet)
{
    struct wire_msg msg;
    int r = 0;

    memset(&msg, 0, sizeof(msg));
    msg.type = type;
    msg.u.unit.unit = unit;
    if (type == WIRE_RELEASE)
        r = job->order.ops->mark(job, &msg.u.unit.after);
    if (r < 0)
        return r;
    return quiet ? channel_send_quiet(&job->channel, &msg) : channel_send(&job->channel, &msg);
}

/* Message and count change together under the lock, so that the n-th FETCH in the ring is the
 * token with value n. A hit's token is reached: nobody need wait for the engine to count it. */
int gw_fetch(gw_job *job, uint32_t unit, struct gw_token *ret_token)
{
    struct zero *zero = NULL;
    uint64_t offset = 0;
    bool hit;
    int r = enter(job, unit, &zero);

    if (r == 0 && !ret_token)
        r = err_set(GW_E_INVALID, "ret_token is NULL");
    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    hit = may_hit(job, zero) && is_hit(zero, unit, zero->fetches[unit] + 1, &offset);
    r = send_unit(job, WIRE_FETCH, unit, hit && is_quiet(zero, zero->hits.declared + 1));
    if (r == 0) {
        zero->begun = true;
        zero->fetches[unit]++;
        count_fetch(zero, unit, hit, offset);
        *ret_token = hit ? zero_token(GW_TL_NONE, 0)
                         : zero_token(GW_TIMELINE(GW_TL_UNIT, unit), zero->fetches[unit]);
    }
    pthread_mutex_unlock(&job->lock);
    return r;
}

/* Where fetch `value` of the unit lies; `hit` is its last one. GW_E_AGAIN (no text): it is not
 * known to be there. */
static int place(gw_job *job, const struct zero *zero, uint32_t unit, uint64_t value,
                 struct hit hit, uint64_t *ret_offset)
{
    if (hit.value != value)
        return job->order.ops->place(job, &zero->unit_slots[unit], value, ret_offset);
    *ret_offset = hit.offset;
    return 0;
}

/* In order behind the fetch it ends: the engine counts alike. */
int gw_release(gw_job *job, uint32_t unit)
{
    struct zero *zero = NULL;
    uint64_t offset = 0;
    int r = enter(job, unit, &zero);

    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    if (zero->releases[unit] >= zero->fetches[unit])
        r = err_set(GW_E_STATE, "unit %s is not fetched; each gw_fetch needs one gw_release",
                    unit_name(zero, unit));
    if (r == 0)
        r = send_unit(job, WIRE_RELEASE, unit,
                      may_hit(job, zero) && is_quiet(zero, zero->hits.declared));
    if (r == 0 && ++zero->releases[unit] == zero->fetches[unit] && job->debug_guard) {
        (void)place(job, zero, unit, zero->fetches[unit], zero->hits.last[unit], &offset);
        guard_unit(job, zero, unit, offset, false);
    }
    pthread_mutex_unlock(&job->lock);
    return r;
}

static int check_fetched(gw_job *job, const struct zero *zero, uint32_t param, uint64_t *ret_fetch,
                         struct hit *ret_hit)
{
    uint32_t unit = zero->view.params[param].unit;
    int r = 0;

    pthread_mutex_lock(&job->lock);
    *ret_fetch = zero->releases[unit] + 1;
    *ret_hit = zero->hits.last[unit];
    if (zero->fetches[unit] == zero->releases[unit])
        r = err_set(GW_E_STATE, "unit %s of parameter %s is not fetched; call gw_fetch first",
                    unit_name(zero, unit), zero_param_name(zero, param));
    pthread_mutex_unlock(&job->lock);
    return r;
}

/* Where the parameter's values are, or will be when the fetch's token is reached. Without the lock:
 * the place may have to be waited for. */
static int locate(gw_job *job, const struct zero *zero, uint32_t param, uint64_t fetch_count,
                  struct hit hit, const void **ret_values, uint64_t *ret_pool_offset)
{
    const struct gw_layout_param *p = &zero->view.params[param];
    uint64_t offset = 0, at, bytes = p->numel * gw_dtype_bytes(p->dtype);
    int r = 0;

    /* Outside a pool the place is known; only on the host does the caller have to be behind it. */
    if (zero->pool.base || !job->order.ops->streams)
        r = place(job, zero, p->unit, fetch_count, hit, &offset);
    if (r == GW_E_AGAIN && job_edge_dropped(job, JOB_EDGE_GATHERED))
        r = 0;
    if (r == GW_E_AGAIN)
        return err_set(GW_E_STATE,
                       "unit %s of parameter %s is still being fetched; wait for gw_fetch's token",
                       unit_name(zero, p->unit), zero_param_name(zero, param));
    if (r < 0)
        return r;
    if (!zero->pool.base) {
        *ret_values = zero->params_view.base + zero_param_at(zero, param, 0);
        return 0;
    }
    at = offset <= zero->pool.bytes ? zero_param_at(zero, param, offset) : UINT64_MAX;
    if (offset % sizeof(float) != 0 || at > zero->pool.bytes || bytes > zero->pool.bytes - at)
        return err_set(GW_E_PROTOCOL, "the engine put unit %s past the end of the gather pool",
                       unit_name(zero, p->unit));
    *ret_pool_offset = offset;
    *ret_values = zero->pool.base + at;
    return 0;
}

/* The only way to a view, which is why guard mode opens its pages here. */
int gw_param_ptr(gw_job *job, uint32_t param, const void **ret_values)
{
    static const float nothing;
    struct zero *zero = NULL;
    uint64_t pool_offset = 0, fetch_count = 0;
    struct hit hit = {0};
    int r = zero_enter(job, &zero);

    if (r == 0)
        r = zero_param_held(job, zero, param);
    if (r == 0 && !ret_values)
        r = err_set(GW_E_INVALID, "ret_values is NULL");
    if (r < 0)
        return r;
    if (zero->view.params[param].numel == 0) {
        *ret_values = &nothing;
        return 0;
    }
    r = check_fetched(job, zero, param, &fetch_count, &hit);
    if (r == 0)
        r = locate(job, zero, param, fetch_count, hit, ret_values, &pool_offset);
    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    guard_unit(job, zero, zero->view.params[param].unit, pool_offset, true);
    pthread_mutex_unlock(&job->lock);
    return 0;
}

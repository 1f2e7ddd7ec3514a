/* SPDX-License-Identifier: Apache-2.0 */
/* Fetching units, reading their parameters, releasing them. Any thread; nothing here waits. */
#include <string.h>

#include "client/lib/err.h"
#include "client/lib/guard.h"
#include "client/lib/wait.h"
#include "client/lib/zero.h"

#define OFFSET_TRIES 1000

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

static int send_unit(gw_job *job, uint16_t type, uint32_t unit)
{
    struct wire_msg msg;

    memset(&msg, 0, sizeof(msg));
    msg.type = type;
    msg.u.unit.unit = unit;
    return channel_send(&job->channel, &msg);
}

/* Message and count change together under the lock, so that the n-th FETCH on the socket is the
 * token with value n. */
int gw_fetch(gw_job *job, uint32_t unit, struct gw_token *ret_token)
{
    struct zero *zero = NULL;
    int r = enter(job, unit, &zero);

    if (r == 0 && !ret_token)
        r = err_set(GW_E_INVALID, "ret_token is NULL");
    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    r = send_unit(job, WIRE_FETCH, unit);
    if (r == 0) {
        zero->begun = true;
        zero->fetches[unit]++;
        *ret_token = zero_token(GW_TIMELINE(GW_TL_UNIT, unit), zero->fetches[unit]);
    }
    pthread_mutex_unlock(&job->lock);
    return r;
}

/* A slot's offset and word belong together only if the word is the same before and after. */
static uint64_t slot_offset(const struct gw_shm_slot *slot, uint64_t *ret_value)
{
    uint64_t before = 0, offset = 0;

    for (int i = 0; i < OFFSET_TRIES; i++) {
        before = atomic_load_explicit(&slot->value, memory_order_acquire);
        offset = __atomic_load_n(&slot->offset, __ATOMIC_ACQUIRE);
        if (atomic_load_explicit(&slot->value, memory_order_relaxed) == before)
            break;
    }
    *ret_value = before;
    return offset;
}

/* In order behind the fetch it ends: the engine counts alike. */
int gw_release(gw_job *job, uint32_t unit)
{
    struct zero *zero = NULL;
    uint64_t value = 0;
    int r = enter(job, unit, &zero);

    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    if (zero->releases[unit] >= zero->fetches[unit])
        r = err_set(GW_E_STATE, "unit %s is not fetched; each gw_fetch needs one gw_release",
                    unit_name(zero, unit));
    if (r == 0)
        r = send_unit(job, WIRE_RELEASE, unit);
    if (r == 0 && ++zero->releases[unit] == zero->fetches[unit])
        guard_unit(job, zero, unit, slot_offset(&zero->unit_slots[unit], &value), false);
    pthread_mutex_unlock(&job->lock);
    return r;
}

/* Where the parameter's values are now. Lock held. */
static int locate(const gw_job *job, const struct zero *zero, uint32_t param,
                  const float **ret_values, uint64_t *ret_pool_offset)
{
    const struct gw_layout_param *p = &zero->view.params[param];
    const struct gw_layout_fetch_unit *fetch =
        &zero->view.fetch_units[zero->view.units[p->unit].fetch_unit];
    uint64_t served = 0, offset = slot_offset(&zero->unit_slots[p->unit], &served);

    if (zero->fetches[p->unit] == zero->releases[p->unit])
        return err_set(GW_E_STATE, "unit %s of parameter %s is not fetched; call gw_fetch first",
                       unit_name(zero, p->unit), zero_param_name(zero, param));
    if (served <= zero->releases[p->unit] && !job_edge_dropped(job, JOB_EDGE_GATHERED))
        return err_set(GW_E_STATE,
                       "unit %s of parameter %s is still being fetched; wait for gw_fetch's token",
                       unit_name(zero, p->unit), zero_param_name(zero, param));
    if (!zero->pool.base) {
        *ret_values = (const float *)(const void *)zero->params_view.base + p->offset;
        return 0;
    }
    if (offset % sizeof(float) != 0 || offset > zero->pool.bytes ||
        fetch->padded_numel * sizeof(float) > zero->pool.bytes - offset)
        return err_set(GW_E_PROTOCOL, "the engine put unit %s past the end of the gather pool",
                       unit_name(zero, p->unit));
    *ret_pool_offset = offset;
    *ret_values =
        (const float *)(const void *)(zero->pool.base + offset) + p->offset - fetch->offset;
    return 0;
}

/* The only way to a view, which is why guard mode opens its pages here. */
int gw_param_ptr(gw_job *job, uint32_t param, const float **ret_values)
{
    static const float nothing;
    struct zero *zero = NULL;
    uint64_t pool_offset = 0;
    int r = zero_enter(job, &zero);

    if (r == 0)
        r = zero_param_check(zero, param);
    if (r == 0 && !ret_values)
        r = err_set(GW_E_INVALID, "ret_values is NULL");
    if (r < 0)
        return r;
    if (zero->view.params[param].numel == 0) {
        *ret_values = &nothing;
        return 0;
    }
    pthread_mutex_lock(&job->lock);
    r = locate(job, zero, param, ret_values, &pool_offset);
    if (r == 0)
        guard_unit(job, zero, zero->view.params[param].unit, pool_offset, true);
    pthread_mutex_unlock(&job->lock);
    return r;
}

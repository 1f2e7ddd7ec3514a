/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gw_freeze: which parameters have no gradients from the next step on. The engine answers when
 * every rank has said the same; from then on both sides' accounts leave the frozen pieces out.
 * Until then the account is shut: what is declared meanwhile could belong to either set.
 */
#include <stdlib.h>
#include <string.h>

#include "client/lib/clock.h"
#include "client/lib/err.h"
#include "client/lib/zero.h"

static int list_bits(const struct zero *zero, const uint32_t *params, size_t count, uint8_t *bits)
{
    for (size_t i = 0; i < count; i++) {
        int r = zero_param_check(zero, params[i]);

        if (r < 0)
            return r;
        bits[params[i] / 8] |= (uint8_t)(1u << (params[i] & 7));
    }
    return 0;
}

/* Lock held. */
static int shut(struct zero *zero)
{
    if (zero->updating)
        return err_set(GW_E_STATE,
                       "gw_freeze inside the update window of step %llu; call "
                       "gw_update_commit first",
                       (unsigned long long)zero->steps);
    if (zero->begun)
        return err_set(GW_E_STATE,
                       "step %llu has begun (a fetch or gradient came); call gw_freeze before it",
                       (unsigned long long)zero->steps + 1);
    zero->ledger->shut = true;
    return 0;
}

static int agree(gw_job *job, struct zero *zero, const uint8_t *bits, int64_t timeout_ns)
{
    struct wire_msg msg;
    int r;

    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_FREEZE;
    msg.u.freeze.params = bits;
    msg.u.freeze.bytes = ((size_t)zero->page->params + 7) / 8;
    r = job_request(job, &msg, WIRE_DONE, CHANNEL_PARK_SAME, clock_deadline(timeout_ns), NULL);
    pthread_mutex_lock(&job->lock);
    if (r == 0) {
        ledger_freeze(zero->ledger, zero->view.params, zero->page->params, bits);
        zero->epoch++;
    }
    if (r != GW_E_TIMEOUT) /* then the engine may still answer, and the call comes again */
        zero->ledger->shut = false;
    pthread_mutex_unlock(&job->lock);
    return r;
}

int gw_freeze(gw_job *job, const uint32_t *params, size_t count, int64_t timeout_ns)
{
    struct zero *zero = NULL;
    uint8_t *bits;
    int r = zero_enter(job, &zero);

    if (r == 0 && count > 0 && !params)
        r = err_set(GW_E_INVALID, "params is NULL");
    if (r == 0 && zero->page->params > GW_FREEZE_PARAMS_MAX)
        r = err_set(GW_E_LIMIT, "a job of %u parameters cannot freeze any; at most %u can",
                    zero->page->params, GW_FREEZE_PARAMS_MAX);
    if (r < 0)
        return r;
    bits = calloc((size_t)zero->page->params / 8 + 1, 1);
    if (!bits)
        return err_set(GW_E_NOMEM, "no memory for a list of %u parameters", zero->page->params);
    r = list_bits(zero, params, count, bits);
    if (r == 0) {
        pthread_mutex_lock(&job->lock);
        r = shut(zero);
        pthread_mutex_unlock(&job->lock);
    }
    if (r == 0)
        r = agree(job, zero, bits, timeout_ns);
    free(bits);
    return r;
}

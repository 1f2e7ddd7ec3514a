/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller's own timelines: words in the client page that this process raises and the engine's
 * streams wait for. Any thread.
 */
#include <errno.h>
#include <unistd.h>

#include "client/lib/err.h"
#include "client/lib/event.h"
#include "client/lib/timeline.h"
#include "client/lib/wait.h"

int timeline_take(gw_job *job, uint32_t *ret_index)
{
    unsigned index = atomic_load(&job->timelines);

    do {
        if (index >= GW_TIMELINES_MAX)
            return err_set(GW_E_LIMIT,
                           "a job has at most %u own timelines; use them again with "
                           "higher values",
                           GW_TIMELINES_MAX);
    } while (!atomic_compare_exchange_weak(&job->timelines, &index, index + 1));
    *ret_index = index;
    return 0;
}

int gw_timeline_new(gw_job *job, uint32_t *ret_timeline)
{
    uint32_t index = 0;
    int r = job_check(job);

    if (r == 0 && !ret_timeline)
        r = err_set(GW_E_INVALID, "ret_timeline is NULL");
    if (r == 0)
        r = timeline_take(job, &index);
    if (r == 0)
        *ret_timeline = GW_TIMELINE(GW_TL_CLIENT, index);
    return r;
}

int gw_timeline_raise(gw_job *job, uint32_t timeline, uint64_t value)
{
    uint32_t index = GW_TIMELINE_INDEX(timeline);
    uint64_t one = 1, before;
    int r = job_check(job);

    if (r < 0)
        return r;
    if (GW_TIMELINE_CLASS(timeline) != GW_TL_CLIENT || index >= atomic_load(&job->timelines))
        return err_set(GW_E_INVALID, "0x%08x is no timeline of gw_timeline_new", timeline);
    if (value >= GW_TIMELINE_END)
        return err_set(GW_E_INVALID, "timelines end below %llu",
                       (unsigned long long)GW_TIMELINE_END);
    before = atomic_load(&job->page->timeline[index]);
    while (before < value &&
           !atomic_compare_exchange_weak(&job->page->timeline[index], &before, value)) {
    }
    if (before > value)
        return err_set(GW_E_INVALID, "the timeline is at %llu already; it only rises",
                       (unsigned long long)before);
    /* The engine's streams look again when the doorbell rings; a full counter rings already. */
    if (write(job->doorbell, &one, sizeof(one)) < 0 && errno != EAGAIN)
        return err_set(GW_E_IO, "cannot ring the engine's doorbell");
    wait_wake(job);
    event_raise(job);
    return 0;
}

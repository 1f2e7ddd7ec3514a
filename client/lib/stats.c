/* SPDX-License-Identifier: Apache-2.0 */
/* gw_stats_sync and gw_measure_sync: the engine's figures of this rank, and our own beside them. */
#include <stdlib.h>
#include <string.h>

#include "client/lib/clock.h"
#include "client/lib/err.h"
#include "client/lib/zero.h"

static void fill_engine(struct gw_stats *stats, const struct wire_msg *msg)
{
    stats->steps = msg->u.stats.steps;
    memcpy(stats->kinds, msg->u.stats.kinds, sizeof(stats->kinds));
    memcpy(stats->memory_bytes, msg->u.stats.memory_bytes, sizeof(stats->memory_bytes));
    stats->prefetch_hits = msg->u.stats.prefetch_hits;
    stats->prefetch_misses = msg->u.stats.prefetch_misses;
    stats->prefetch_drops = msg->u.stats.prefetch_drops;
    stats->gathered_bytes_now = msg->u.stats.gathered_bytes_now;
    stats->gathered_bytes_max = msg->u.stats.gathered_bytes_max;
    stats->overflow_slots = msg->u.stats.overflow_slots;
    stats->comm_ns = msg->u.stats.comm_ns;
    stats->comm_alone_ns = msg->u.stats.comm_alone_ns;
}

/* The engine counts what moves, this side what waits: nobody else can see either. */
int gw_stats_sync(gw_job *job, int64_t timeout_ns, struct gw_stats *ret_stats)
{
    struct gw_stats stats = {0};
    struct wait_parts parts = {0};
    struct reply reply = {0};
    struct wire_msg msg;
    const struct zero *zero;
    size_t struct_size;
    int r = job_check(job);

    if (r < 0)
        return r;
    if (!ret_stats || ret_stats->struct_size < 2 * sizeof(size_t))
        return err_set(GW_E_INVALID,
                       "gw_stats.struct_size is not set; set it to sizeof the struct");
    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_STATS_GET;
    r = job_request(job, &msg, WIRE_STATS, CHANNEL_PARK_NONE, clock_deadline(timeout_ns), &reply);
    if (r < 0)
        return r;
    fill_engine(&stats, reply.msg);
    reply_free(&job->channel, &reply);
    zero = atomic_load_explicit(&job->zero, memory_order_acquire);
    stats.copied_in_bytes = zero ? atomic_load(&zero->copied_in_bytes) : 0;
    stats.layout_epoch = zero ? zero->epoch : 0;
    stats.staged_bytes = atomic_load(&job->staged_bytes);
    split_get(&job->split, &parts);
    stats.late_ns = parts.late;
    stats.queued_ns = parts.queued;
    stats.exposed_ns = parts.exposed;
    stats.wakeup_ns = parts.wakeup;
    /* An older caller's struct is shorter; a newer one's further fields stay as they are. */
    struct_size = ret_stats->struct_size;
    stats.struct_size = struct_size;
    memcpy(ret_stats, &stats, struct_size < sizeof(stats) ? struct_size : sizeof(stats));
    return 0;
}

int gw_measure_sync(gw_job *job, int64_t timeout_ns)
{
    struct zero *zero = NULL;
    struct wire_msg msg;
    uint64_t steps;
    bool begun;
    int r = zero_enter(job, &zero);

    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    steps = zero->steps;
    begun = zero->begun || steps > 0;
    pthread_mutex_unlock(&job->lock);
    if (begun)
        return err_set(GW_E_STATE,
                       "gw_measure_sync comes before the first step; step %llu has "
                       "begun",
                       (unsigned long long)steps + 1);
    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_MEASURE;
    return job_request(job, &msg, WIRE_DONE, CHANNEL_PARK_SAME, clock_deadline(timeout_ns), NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams that wait for words and raise them; see order.h. No call waits but for room in the
 * submission ring. Any thread.
 */
#include <stdlib.h>

#include "client/lib/err.h"
#include "client/lib/wait.h"
#include "client/lib/zero.h"

static int begin(gw_job *job, void *stream)
{
    (void)job;
    (void)stream;
    return 0;
}

static uint64_t timeline_address(const gw_job *job, uint32_t index)
{
    return job->order.client_address + offsetof(struct gw_client_page, timeline) +
           index * sizeof(uint64_t);
}

static int raise_word(gw_job *job, struct order_stream *s, uint64_t value)
{
    return job->device->ops->stream_raise(job->device, s->stream,
                                          timeline_address(job, s->timeline), value);
}

/* Index in the board's wait page, or its number of words. */
static uint32_t board_index(const gw_job *job, struct gw_token token)
{
    const struct zero *zero = atomic_load_explicit(&job->zero, memory_order_acquire);
    uint32_t index = GW_TIMELINE_INDEX(token.timeline);

    switch (zero ? GW_TIMELINE_CLASS(token.timeline) : GW_TL_NONE) {
    case GW_TL_STEP:
        return GW_WAIT_STEP;
    case GW_TL_UPDATE:
        return GW_WAIT_UPDATE;
    case GW_TL_BUCKET:
        return GW_WAIT_BUCKETS + index;
    case GW_TL_UNIT:
        return GW_WAIT_BUCKETS + zero->page->buckets + index;
    default:
        return UINT32_MAX;
    }
}

bool order_word(gw_job *job, struct gw_token token, uint64_t *ret_address)
{
    const struct order *order = &job->order;
    uint32_t index = GW_TIMELINE_INDEX(token.timeline);

    if (GW_TIMELINE_CLASS(token.timeline) == GW_TL_CLIENT && index < GW_TIMELINES_MAX) {
        *ret_address = timeline_address(job, index);
        return true;
    }
    if (GW_TIMELINE_CLASS(token.timeline) == GW_TL_OP && index < order->op_words.words) {
        *ret_address = order->op_words.address + index * sizeof(uint64_t);
        return true;
    }
    index = board_index(job, token);
    if (index >= order->board_words.words)
        return false;
    *ret_address = order->board_words.address + index * sizeof(uint64_t);
    return true;
}

/* Words only rise: a stream that waits for a value already waits for all before it. Pieces of a
 * bucket ask for the same one. Lock held. */
static bool waits_already(gw_job *job, struct order_stream *s, struct gw_token token)
{
    uint32_t index = board_index(job, token), words = job->order.board_words.words;

    if (index >= words)
        return false;
    if (!s->waited)
        s->waited = calloc(words, sizeof(*s->waited));
    return s->waited && s->waited[index] >= token.value;
}

/* Lock held. */
static int enqueue(gw_job *job, struct gw_token token, struct order_stream *s)
{
    uint64_t address = 0;
    int r;

    if (waits_already(job, s, token) || !order_word(job, token, &address))
        return 0;
    r = job->device->ops->stream_wait(job->device, s->stream, address, token.value);
    if (r < 0)
        return r;
    if (s->waited && board_index(job, token) < job->order.board_words.words)
        s->waited[board_index(job, token)] = token.value;
    return 0;
}

static int wait_in_stream(gw_job *job, struct gw_token token, struct order_stream *s,
                          int64_t deadline, struct wait_time *ret_time)
{
    int r = order_flush(job);

    (void)deadline;
    (void)ret_time;
    if (r == 0)
        r = job_failure(job);
    if (r < 0)
        return r;
    pthread_mutex_lock(&job->order.lock);
    r = enqueue(job, token, s);
    pthread_mutex_unlock(&job->order.lock);
    return r;
}

static bool passed(gw_job *job, struct gw_token token)
{
    (void)job;
    (void)token;
    return false;
}

static void end(gw_job *job)
{
    (void)job;
}

static void free_stream(gw_job *job, struct order_stream *s)
{
    (void)job;
    (void)s;
}

const struct order_way order_words = {
    .begin = begin,
    .raise = raise_word,
    .wait = wait_in_stream,
    .passed = passed,
    .end = end,
    .free = free_stream,
};

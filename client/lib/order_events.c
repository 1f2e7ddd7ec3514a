/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams without memory operations; see order.h. What the engine raises, the host waits for; what
 * a stream has done is told by events, which the engine may ask and this process as well. Any
 * thread; no stream ever waits for another process, so none is left waiting when one dies.
 */
#include <string.h>

#include "client/lib/clock.h"
#include "client/lib/err.h"
#include "client/lib/timeline.h"
#include "client/lib/wait.h"

#define CLOSE_NS (1 * CLOCK_SECOND)

static int tell_engine(gw_job *job, uint32_t timeline, const uint8_t *handles, size_t bytes,
                       int64_t deadline)
{
    struct wire_msg msg;

    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_TIMELINE_EVENTS;
    msg.u.timeline_events.timeline = timeline;
    msg.u.timeline_events.handles = handles;
    msg.u.timeline_events.handle_bytes = bytes;
    return job_request(job, &msg, WIRE_DONE, CHANNEL_PARK_NONE, deadline, NULL);
}

/* Lock held. NULL: no such stream has events. */
static struct order_stream *find(gw_job *job, void *stream)
{
    for (uint32_t i = 0; i < job->order.stream_count; i++)
        if (job->order.streams[i].stream == stream && job->order.streams[i].events)
            return &job->order.streams[i];
    return NULL;
}

/* begin_lock held. Before the stream is known with its timeline, the engine has its events. */
static int make(gw_job *job, void *stream)
{
    uint8_t handles[GW_TIMELINE_EVENTS * GW_IPC_HANDLE_BYTES];
    struct gw_device_events *events = NULL;
    uint32_t index = 0, timeline = 0;
    int r;

    pthread_mutex_lock(&job->order.lock);
    r = order_find(job, stream, &index);
    pthread_mutex_unlock(&job->order.lock);
    if (r == 0)
        r = timeline_take(job, &timeline);
    if (r == 0)
        r = job->device->ops->events_new(job->device, handles, &events);
    if (r < 0)
        return r;
    r = tell_engine(job, timeline, handles, sizeof(handles), clock_deadline(job->timeout_ns));
    if (r < 0) {
        /* Refused, or gone: nobody else has them. */
        if (r != GW_E_TIMEOUT)
            job->device->ops->events_free(job->device, events);
        return r;
    }
    pthread_mutex_lock(&job->order.lock);
    job->order.streams[index].timeline = timeline;
    job->order.streams[index].events = events;
    job->order.streams[index].has_timeline = true;
    pthread_mutex_unlock(&job->order.lock);
    return 0;
}

static int begin(gw_job *job, void *stream)
{
    bool there;
    int r = 0;

    pthread_mutex_lock(&job->order.begin_lock);
    pthread_mutex_lock(&job->order.lock);
    there = find(job, stream) != NULL;
    pthread_mutex_unlock(&job->order.lock);
    if (!there)
        r = make(job, stream);
    pthread_mutex_unlock(&job->order.begin_lock);
    return r;
}

static int record(gw_job *job, struct order_stream *s, uint64_t value)
{
    return job->device->ops->events_record(job->device, s->events, s->stream, value);
}

/* Lock held. The stream whose timeline the token is of, if it is a stream's. */
static struct order_stream *source_of(gw_job *job, struct gw_token token)
{
    for (uint32_t i = 0; i < job->order.stream_count; i++) {
        struct order_stream *s = &job->order.streams[i];
        if (s->events && token.timeline == GW_TIMELINE(GW_TL_CLIENT, s->timeline) &&
            token.value <= s->recorded)
            return s;
    }
    return NULL;
}

static int wait_on_host(gw_job *job, struct gw_token token, struct order_stream *s,
                        int64_t deadline, struct wait_time *ret_time)
{
    struct order_stream *source;
    size_t index = 0;
    int r = 0;

    pthread_mutex_lock(&job->order.lock);
    source = source_of(job, token);
    if (source)
        r = job->device->ops->events_wait(job->device, source->events, s->stream, token.value);
    pthread_mutex_unlock(&job->order.lock);
    return source ? r : wait_tokens(job, &token, 1, false, deadline, &index, ret_time);
}

/* The word is raised too: the engine need not ask the event then. */
static bool passed(gw_job *job, struct gw_token token)
{
    _Atomic uint64_t *word;
    const struct order_stream *source;
    uint64_t before;
    bool is = false;

    if (GW_TIMELINE_CLASS(token.timeline) != GW_TL_CLIENT)
        return false;
    pthread_mutex_lock(&job->order.lock);
    source = source_of(job, token);
    if (source)
        is = job->device->ops->events_passed(job->device, source->events, token.value) == 0;
    pthread_mutex_unlock(&job->order.lock);
    if (!is)
        return false;
    word = &job->page->timeline[GW_TIMELINE_INDEX(token.timeline)];
    before = atomic_load(word);
    while (before < token.value && !atomic_compare_exchange_weak(word, &before, token.value))
        ;
    return true;
}

/* Nothing is recorded any more, and no token is on its way that its word does not tell. */
static void end(gw_job *job)
{
    int64_t deadline = clock_deadline(CLOSE_NS);

    for (uint32_t i = 0; i < job->order.stream_count; i++) {
        struct order_stream *s = &job->order.streams[i];

        if (!s->events)
            continue;
        (void)passed(job, (struct gw_token){.timeline = GW_TIMELINE(GW_TL_CLIENT, s->timeline),
                                            .value = s->recorded});
        s->closed = tell_engine(job, s->timeline, NULL, 0, deadline) == 0;
    }
}

/* Events that an engine may still ask stay to the end of the process. */
static void free_stream(gw_job *job, struct order_stream *s)
{
    if (s->events && (s->closed || atomic_load(&job->channel.dead) == GW_E_ENGINE_LOST))
        job->device->ops->events_free(job->device, s->events);
    s->events = NULL;
}

const struct order_way order_events = {
    .begin = begin,
    .raise = record,
    .wait = wait_on_host,
    .passed = passed,
    .end = end,
    .free = free_stream,
};

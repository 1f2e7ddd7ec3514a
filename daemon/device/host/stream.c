/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of the host device: one thread and one queue each. A thread takes works in order; each
 * waits for its tokens and for ops of other streams, is held (pace), runs, and raises its
 * signals. Owns the queues; everything shared is under the device's lock, which is never held while
 * a work runs. Must not touch engine state: works carry all they need.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/device/host/host.h"
#include "gradwire/errors.h"

static bool failed(const struct host_device *device, const struct host_work *work)
{
    struct ranks aborted = ranks_and(&device->aborted, &work->work.ranks);

    return device->stopping || ranks_any(&aborted);
}

static bool waits_over(const struct host_device *device, const struct host_work *work)
{
    const struct device_work *what = &work->work;

    for (uint32_t i = 0; i < what->wait_op_count; i++)
        if (work->wait_streams[i] && work->wait_streams[i]->done_op < what->wait_ops[i])
            return false;
    for (uint32_t i = 0; i < what->wait_count; i++) {
        const struct device_wait *wait = &what->waits[i];
        if (ranks_has(&device->aborted, wait->rank))
            continue; /* a dead rank's tokens count as reached */
        if (atomic_load_explicit(wait->word, memory_order_acquire) < wait->value)
            return false;
    }
    return true;
}

/* With the lock held. */
static void wait_turn(struct host_stream *stream, const struct host_work *work)
{
    struct host_device *device = stream->device;

    stream->waiting = true;
    while (!failed(device, work) && !waits_over(device, work))
        pthread_cond_wait(&stream->wake, &device->lock);
    stream->waiting = false;
}

/* With the lock held. An abort ends the hold. */
static void hold_until(struct host_stream *stream, const struct host_work *work, uint64_t until_ns)
{
    struct host_device *device = stream->device;
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                             .tv_nsec = (long)(until_ns % 1000000000u)};

    stream->waiting = true;
    while (!failed(device, work) && host_now_ns() < until_ns)
        (void)pthread_cond_timedwait(&stream->wake, &device->lock, &until);
    stream->waiting = false;
}

/* With the lock held at entry and exit; not held while signals are raised. */
static void raise_all(struct host_device *device, struct host_work *work)
{
    const struct device_work *what = &work->work;
    const struct device_done *done = &work->done;

    pthread_mutex_unlock(&device->lock);
    host_raise(device, what->signals, what->signal_count, what->ready_ns, work->run_started_ns,
               done->done_ns);
    pthread_mutex_lock(&device->lock);
    /* More may be asked for while these are raised; once the list is found empty under the lock,
     * the work leaves the queue in the same breath. */
    while (work->later_count > 0) {
        struct device_signal *later = work->later;
        uint32_t count = work->later_count;
        work->later = NULL;
        work->later_count = work->later_room = 0;
        pthread_mutex_unlock(&device->lock);
        host_raise(device, later, count, what->ready_ns, work->run_started_ns, done->done_ns);
        free(later);
        pthread_mutex_lock(&device->lock);
    }
}

/* With the lock held. */
static void add_done(struct host_stream *stream, struct host_work *work)
{
    struct host_device *device = stream->device;

    stream->done_op = work->work.op;
    work->next = NULL;
    if (device->done_tail)
        device->done_tail->next = work;
    else
        device->done_head = work;
    device->done_tail = work;
}

/* With the lock held. */
static void finish(struct host_stream *stream, struct host_work *work)
{
    struct host_device *device = stream->device;

    stream->head = work->next;
    if (!stream->head)
        stream->tail = NULL;
    add_done(stream, work);
    if (--device->unfinished == 0)
        pthread_cond_broadcast(&device->idle);
    host_wake_streams(device);
    if (!device->awake) {
        device->awake = true;
        device->config.wake(device->config.user);
    }
}

/* A chained work that was ready before the last one ended goes on with its run. */
static void join_run(struct host_stream *stream, struct host_work *work)
{
    if (!work->work.chained || work->work.ready_ns > stream->last_done_ns)
        stream->run_started_ns = work->done.started_ns;
    work->run_started_ns = stream->run_started_ns;
}

/* With the lock held at entry and exit. */
static void execute(struct host_stream *stream, struct host_work *work)
{
    struct host_device *device = stream->device;
    const struct device_work *what = &work->work;

    wait_turn(stream, work);
    work->done.started_ns = host_now_ns();
    join_run(stream, work);
    if (what->hold && !failed(device, work)) {
        uint64_t until_ns;
        pthread_mutex_unlock(&device->lock);
        until_ns = what->hold(what->arg, work->done.started_ns);
        pthread_mutex_lock(&device->lock);
        hold_until(stream, work, until_ns);
    }
    work->done.failed = failed(device, work);
    if (!work->done.failed && what->run) {
        pthread_mutex_unlock(&device->lock);
        what->run(what->arg, NULL);
        pthread_mutex_lock(&device->lock);
    }
    work->done.done_ns = stream->last_done_ns = host_now_ns();
    /* An abort during the run: values may rest on a dead rank's bytes, so nobody is told. */
    work->done.failed = work->done.failed || failed(device, work);
    if (!work->done.failed)
        raise_all(device, work);
    finish(stream, work);
}

/* Of the calling thread, and of helpers (crew.h) that it starts. It is only lowered, which anybody
 * may; where a sandbox forbids it, the thread is as all others. */
static void take_priority(enum priority priority)
{
    id_t self = (id_t)gettid();

    if (priority == PRIORITY_NICE)
        (void)setpriority(PRIO_PROCESS, self,
                          getpriority(PRIO_PROCESS, self) + PRIORITY_NICE_MORE);
    else if (priority == PRIORITY_IDLE)
        (void)sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0});
}

static void *stream_main(void *arg)
{
    struct host_stream *stream = (struct host_stream *)arg;
    struct host_device *device = stream->device;

    (void)pthread_setname_np(pthread_self(), stream->name);
    take_priority(device->config.priority);
    pthread_mutex_lock(&device->lock);
    while (!device->stopping) {
        if (stream->head)
            execute(stream, stream->head);
        else
            pthread_cond_wait(&stream->wake, &device->lock);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

int host_stream_new(struct device *device, const char *name, struct device_stream **ret_stream)
{
    struct host_device *host = host_of(device);
    struct host_stream *stream;
    sigset_t all, before;
    pthread_condattr_t attributes;
    int r;

    if (host->stream_count == HOST_STREAMS_MAX)
        return GW_E_LIMIT;
    stream = calloc(1, sizeof(*stream));
    if (!stream)
        return GW_E_NOMEM;
    stream->device = host;
    snprintf(stream->name, sizeof(stream->name), "%s", name);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&stream->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    /* Signals are the loop thread's. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = pthread_create(&stream->thread, NULL, stream_main, stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r != 0) {
        pthread_cond_destroy(&stream->wake);
        free(stream);
        return r == EAGAIN ? GW_E_LIMIT : GW_E_NOMEM;
    }
    pthread_mutex_lock(&host->lock);
    host->streams[host->stream_count++] = stream;
    pthread_mutex_unlock(&host->lock);
    *ret_stream = (struct device_stream *)(void *)stream;
    return 0;
}

void host_stream_free(struct host_stream *stream)
{
    while (stream->head) {
        struct host_work *work = stream->head;
        stream->head = work->next;
        host_work_free(work);
    }
    pthread_cond_destroy(&stream->wake);
    free(stream);
}

static struct host_work *work_copy(const struct device_work *work)
{
    size_t waits = work->wait_count * sizeof(*work->waits);
    size_t signals = work->signal_count * sizeof(*work->signals);
    size_t wait_ops = work->wait_op_count * sizeof(*work->wait_ops);
    size_t wait_streams = work->wait_op_count * sizeof(struct host_stream *);
    struct host_work *copy = calloc(1, sizeof(*copy) + waits + signals + wait_ops + wait_streams);
    char *behind;

    if (!copy)
        return NULL;
    behind = (char *)(copy + 1);
    copy->work = *work;
    copy->done.op = work->op;
    if (waits)
        copy->work.waits = memcpy(behind, work->waits, waits);
    if (signals)
        copy->work.signals = memcpy(behind + waits, work->signals, signals);
    if (wait_ops)
        copy->work.wait_ops = memcpy(behind + waits + signals, work->wait_ops, wait_ops);
    copy->wait_streams = (struct host_stream **)(void *)(behind + waits + signals + wait_ops);
    return copy;
}

struct host_work *host_work_free(struct host_work *work)
{
    if (work->work.release)
        work->work.release(work->work.arg);
    free(work->later);
    free(work);
    return NULL;
}

/* With the lock held: the unfinished work `op` and its stream; NULL: it is done. Ops rise along
 * each queue, so most queues are ruled out by their ends. */
static struct host_work *find_unfinished(struct host_device *device, uint64_t op,
                                         struct host_stream **ret_stream)
{
    for (uint32_t i = 0; op && i < device->stream_count; i++) {
        struct host_work *work = device->streams[i]->head;
        if (!work || work->work.op > op || device->streams[i]->tail->work.op < op)
            continue;
        while (work && work->work.op < op)
            work = work->next;
        if (work && work->work.op == op) {
            *ret_stream = device->streams[i];
            return work;
        }
    }
    return NULL;
}

/* With the lock held. Streams are idle or not by what the loop thread, which is here, gave them. */
static bool can_run_now(const struct host_stream *stream, const struct host_work *work)
{
    return work->work.quick && !stream->head && !work->work.hold && !failed(stream->device, work) &&
           waits_over(stream->device, work);
}

/* Loop thread, which is the one that aborts: none comes in between. */
static void run_now(struct host_stream *stream, struct host_work *work)
{
    struct host_device *device = stream->device;
    const struct device_work *what = &work->work;

    work->done.started_ns = host_now_ns();
    join_run(stream, work);
    what->run(what->arg, NULL);
    work->done.done_ns = stream->last_done_ns = host_now_ns();
    host_raise(device, what->signals, what->signal_count, what->ready_ns, work->run_started_ns,
               work->done.done_ns);
    device->quick.op = what->op;
    device->quick.ready_ns = what->ready_ns;
    device->quick.started_ns = work->run_started_ns;
    device->quick.done_ns = work->done.done_ns;
    pthread_mutex_lock(&device->lock);
    add_done(stream, work);
    pthread_mutex_unlock(&device->lock);
}

int host_enqueue(struct device_stream *stream, const struct device_work *work)
{
    struct host_stream *to = (struct host_stream *)(void *)stream;
    struct host_device *device = to->device;
    struct host_work *copy = work_copy(work);

    if (!copy)
        return GW_E_NOMEM;
    pthread_mutex_lock(&device->lock);
    for (uint32_t i = 0; i < work->wait_op_count; i++)
        (void)find_unfinished(device, work->wait_ops[i], &copy->wait_streams[i]);
    if (can_run_now(to, copy)) {
        pthread_mutex_unlock(&device->lock);
        run_now(to, copy);
        return 0;
    }
    if (to->tail)
        to->tail->next = copy;
    else
        to->head = copy;
    to->tail = copy;
    device->unfinished++;
    if (to->head == copy)
        pthread_cond_signal(&to->wake);
    pthread_mutex_unlock(&device->lock);
    return 0;
}

static int add_later(struct host_work *work, const struct device_signal *signal)
{
    if (work->later_count == work->later_room) {
        uint32_t room = work->later_room ? work->later_room * 2 : 4;
        struct device_signal *later = realloc(work->later, room * sizeof(*later));
        if (!later)
            return GW_E_NOMEM;
        work->later = later;
        work->later_room = room;
    }
    work->later[work->later_count++] = *signal;
    return 0;
}

int host_signal_after(struct device *device, uint64_t op, const struct device_signal *signal)
{
    struct host_device *host = host_of(device);
    struct host_stream *stream = NULL;
    struct host_work *work;
    uint64_t now_ns;
    int r = 0;

    pthread_mutex_lock(&host->lock);
    work = find_unfinished(host, op, &stream);
    if (work)
        r = add_later(work, signal);
    pthread_mutex_unlock(&host->lock);
    if (!work && op && op == host->quick.op) {
        host_raise(host, signal, 1, host->quick.ready_ns, host->quick.started_ns,
                   host->quick.done_ns);
    } else if (!work) {
        now_ns = op ? 1 : host_now_ns();
        host_raise(host, signal, 1, now_ns, now_ns, now_ns);
    }
    return r;
}

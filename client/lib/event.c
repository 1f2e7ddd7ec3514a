/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job's readable descriptor for event loops. It is an epoll descriptor over two things: an
 * eventfd of the engine, which its loop writes after words of ours have risen, and the control
 * socket, which turns readable when the engine closes or dies. So no thread is needed here, and a
 * reply on the socket wakes the caller's loop for nothing, which is harmless. Any thread.
 */
#include "client/lib/event.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "client/lib/clock.h"
#include "client/lib/err.h"

void event_close(gw_job *job)
{
    fork_fd_close(&job->guard, &job->epoll);
    fork_fd_close(&job->guard, &job->event);
}

/* Both descriptors into a new epoll set; the set is listed for forks. */
static int make_set(gw_job *job, int event, int *ret_epoll)
{
    struct epoll_event readable = {.events = EPOLLIN};
    int epoll, error;
    int r;

    fork_lock();
    epoll = epoll_create1(EPOLL_CLOEXEC);
    error = errno;
    r = epoll < 0 ? GW_E_IO : fork_fd_add(&job->guard, epoll);
    fork_unlock();
    if (r == 0 && (epoll_ctl(epoll, EPOLL_CTL_ADD, event, &readable) < 0 ||
                   epoll_ctl(epoll, EPOLL_CTL_ADD, job->channel.fd, &readable) < 0)) {
        error = errno;
        fork_fd_close(&job->guard, &epoll);
        r = GW_E_IO;
    }
    if (r < 0)
        return err_set(r, "cannot make the job's event descriptor: %s", strerror(error));
    *ret_epoll = epoll;
    return 0;
}

/* The engine makes it, so that clients never send descriptors. */
static int get_event(gw_job *job, int *ret_event)
{
    struct reply reply = {0};
    struct wire_msg msg;
    int r;

    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_EVENT_GET;
    r = job_request(job, &msg, WIRE_DONE, CHANNEL_PARK_NONE, clock_deadline(job->timeout_ns),
                    &reply);
    if (r < 0)
        return r;
    if (reply.fd_count == 1) {
        *ret_event = reply.fds[0]; /* stays listed for forks */
        reply.fd_count = 0;
    } else {
        r = err_set(GW_E_PROTOCOL, "the engine's event comes with %u descriptors, expected 1",
                    reply.fd_count);
    }
    reply_free(&job->channel, &reply);
    return r;
}

/* Made at the first call; two threads may both make one, and one of them is dropped. */
int gw_job_event_fd(gw_job *job, int *ret_fd)
{
    int event = -1, epoll = -1;
    int r = job_check(job);

    if (r == 0 && !ret_fd)
        r = err_set(GW_E_INVALID, "ret_fd is NULL");
    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    epoll = job->epoll;
    pthread_mutex_unlock(&job->lock);
    if (epoll < 0) {
        r = get_event(job, &event);
        if (r == 0)
            r = make_set(job, event, &epoll);
        if (r < 0) {
            fork_fd_close(&job->guard, &event);
            return r;
        }
        pthread_mutex_lock(&job->lock);
        if (job->epoll < 0) {
            job->epoll = epoll;
            job->event = event;
            epoll = event = -1;
        }
        pthread_mutex_unlock(&job->lock);
        fork_fd_close(&job->guard, &epoll); /* another thread was faster */
        fork_fd_close(&job->guard, &event);
    }
    *ret_fd = job->epoll;
    return 0;
}

/* -1 before the first gw_job_event_fd. */
static int event_of(gw_job *job)
{
    int event;

    pthread_mutex_lock(&job->lock);
    event = job->event;
    pthread_mutex_unlock(&job->lock);
    return event;
}

void event_raise(gw_job *job)
{
    int event = event_of(job);
    uint64_t one = 1;

    /* A full counter is readable already. */
    if (event >= 0 && write(event, &one, sizeof(one)) < 0)
        return;
}

int gw_job_event_clear(gw_job *job)
{
    uint64_t count;
    int event;
    int r = job_enter(job);

    if (r < 0)
        return r;
    event = event_of(job);
    if (event < 0)
        return err_set(GW_E_STATE, "there is no event descriptor; call gw_job_event_fd first");
    /* Emptied before the caller looks at its tokens, so that nothing raised later is missed. */
    while (read(event, &count, sizeof(count)) < 0 && errno == EINTR) {
    }
    channel_poll(&job->channel);
    return 0;
}

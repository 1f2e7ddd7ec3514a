/* SPDX-License-Identifier: Apache-2.0 */
/* Owns the libuv handles of gradwired or an engine; loop thread only. See handles.h. */
#include "daemon/ipc/handles.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "gradwire/errors.h"

struct watch {
    uv_poll_t poll; /* first: the close callback frees the whole */
    int fd;
    watch_fn *fn;
    void *owner;
};

struct alarm {
    uv_timer_t timer; /* first, as above */
    alarm_fn *fn;
    void *owner;
};

static void free_closed(uv_handle_t *handle)
{
    free(handle);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct watch *watch = (struct watch *)poll;

    watch->fn(watch->owner, status < 0 ? -1 : events);
}

int watch_new(uv_loop_t *loop, int fd, int events, watch_fn *fn, void *owner,
              struct watch **ret_watch)
{
    struct watch *watch = calloc(1, sizeof(*watch));

    if (watch == NULL) {
        fd_close(&fd);
        return GW_E_NOMEM;
    }
    *watch = (struct watch){.fd = fd, .fn = fn, .owner = owner};
    if (uv_poll_init(loop, &watch->poll, fd) < 0) {
        free(watch);
        fd_close(&fd);
        return GW_E_IO;
    }
    if (uv_poll_start(&watch->poll, events, on_poll) < 0) {
        (void)watch_free(watch);
        return GW_E_IO;
    }
    *ret_watch = watch;
    return 0;
}

struct watch *watch_free(struct watch *watch)
{
    if (watch != NULL) {
        uv_close((uv_handle_t *)&watch->poll, free_closed);
        fd_close(&watch->fd);
    }
    return NULL;
}

int watch_fd(const struct watch *watch)
{
    return watch == NULL ? -1 : watch->fd;
}

int watch_events(struct watch *watch, int events)
{
    return uv_poll_start(&watch->poll, events, on_poll) < 0 ? GW_E_IO : 0;
}

static void on_timer(uv_timer_t *timer)
{
    struct alarm *alarm = (struct alarm *)timer;

    alarm->fn(alarm->owner);
}

int alarm_new(uv_loop_t *loop, alarm_fn *fn, void *owner, struct alarm **ret_alarm)
{
    struct alarm *alarm = calloc(1, sizeof(*alarm));
    int r;

    if (alarm == NULL)
        return GW_E_NOMEM;
    alarm->fn = fn;
    alarm->owner = owner;
    r = uv_timer_init(loop, &alarm->timer);
    assert(r == 0);
    *ret_alarm = alarm;
    return 0;
}

struct alarm *alarm_free(struct alarm *alarm)
{
    if (alarm != NULL)
        uv_close((uv_handle_t *)&alarm->timer, free_closed);
    return NULL;
}

void alarm_set(struct alarm *alarm, uint64_t delay_ns)
{
    int r;

    /* Against the time of now, not of the loop's last turn; a millisecond up, never early. */
    uv_update_time(alarm->timer.loop);
    r = uv_timer_start(&alarm->timer, on_timer, delay_ns / 1000000u + 1, 0);
    assert(r == 0);
    (void)r;
}

void alarm_clear(struct alarm *alarm)
{
    (void)uv_timer_stop(&alarm->timer);
}

uint64_t now_ns(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void fd_close(int *fd)
{
    int saved = errno;

    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
    errno = saved;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host device's table, its life, completions and aborts. Loop thread, but for what it shares
 * with stream threads under its lock. Owns the streams.
 */
#include "daemon/device/host/host.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gradwire/errors.h"

uint64_t host_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void host_wake_streams(struct host_device *device)
{
    for (uint32_t i = 0; i < device->stream_count; i++)
        if (device->streams[i]->waiting || device->stopping)
            pthread_cond_signal(&device->streams[i]->wake);
}

static int host_new(const struct device_config *config, struct device **ret_device)
{
    struct host_device *device = calloc(1, sizeof(*device));

    if (!device)
        return GW_E_NOMEM;
    device->config = *config;
    pthread_mutex_init(&device->lock, NULL);
    pthread_mutex_init(&device->raise_lock, NULL);
    pthread_cond_init(&device->idle, NULL);
    *ret_device = (struct device *)(void *)device;
    return 0;
}

static struct device *host_free(struct device *device)
{
    struct host_device *host = host_of(device);
    struct device_done done;

    if (!host)
        return NULL;
    pthread_mutex_lock(&host->lock);
    host->stopping = true;
    host_wake_streams(host);
    pthread_mutex_unlock(&host->lock);
    /* All threads end before the first queue goes: each looks at all of them. */
    for (uint32_t i = 0; i < host->stream_count; i++)
        pthread_join(host->streams[i]->thread, NULL);
    for (uint32_t i = 0; i < host->stream_count; i++)
        host_stream_free(host->streams[i]);
    while (device_host.take_done(device, &done))
        ;
    pthread_cond_destroy(&host->idle);
    pthread_mutex_destroy(&host->raise_lock);
    pthread_mutex_destroy(&host->lock);
    free(host);
    return NULL;
}

static void host_copy(struct device *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    memcpy(to, from, bytes);
}

static void host_zero(struct device *device, void *to, size_t bytes)
{
    (void)device;
    memset(to, 0, bytes);
}

static void host_kick(struct device *device)
{
    struct host_device *host = host_of(device);

    pthread_mutex_lock(&host->lock);
    host_wake_streams(host);
    pthread_mutex_unlock(&host->lock);
}

static bool host_take_done(struct device *device, struct device_done *ret_done)
{
    struct host_device *host = host_of(device);
    struct host_work *work;

    pthread_mutex_lock(&host->lock);
    work = host->done_head;
    if (work) {
        host->done_head = work->next;
        if (!host->done_head)
            host->done_tail = NULL;
    } else {
        host->awake = false;
    }
    pthread_mutex_unlock(&host->lock);
    if (!work)
        return false;
    *ret_done = work->done;
    host_work_free(work);
    return true;
}

static void host_abort(struct device *device, uint64_t ranks)
{
    struct host_device *host = host_of(device);

    pthread_mutex_lock(&host->lock);
    host->aborted |= ranks;
    host_wake_streams(host);
    pthread_mutex_unlock(&host->lock);
}

static void host_drain(struct device *device)
{
    struct host_device *host = host_of(device);

    pthread_mutex_lock(&host->lock);
    while (host->unfinished > 0)
        pthread_cond_wait(&host->idle, &host->lock);
    pthread_mutex_unlock(&host->lock);
}

static void host_resume(struct device *device)
{
    struct host_device *host = host_of(device);

    pthread_mutex_lock(&host->lock);
    host->aborted = 0;
    pthread_mutex_unlock(&host->lock);
}

const struct device_ops device_host = {
    .name = "host",
    .device_new = host_new,
    .device_free = host_free,
    .memory_new = host_memory_new,
    .memory_free = host_memory_free,
    .copy = host_copy,
    .zero = host_zero,
    .stream_new = host_stream_new,
    .enqueue = host_enqueue,
    .signal_after = host_signal_after,
    .kick = host_kick,
    .take_done = host_take_done,
    .abort = host_abort,
    .drain = host_drain,
    .resume = host_resume,
};

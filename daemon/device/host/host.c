/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host device's table, its life, completions and aborts. Loop thread, but for what it shares
 * with stream threads under its lock. Owns the streams.
 */
#include "daemon/device/host/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/device/host/affinity.h"
#include "daemon/device/pages.h"
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
    device->place.own = affinity_own();
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
    free(host->place.now);
    free(host);
    return NULL;
}

/* Ranks compute wherever their processes run. */
static int host_place(struct device *device, uint32_t rank, const struct device_place *place,
                      char text[GW_TEXT_MAX + 1])
{
    (void)device;
    (void)rank;
    (void)place;
    text[0] = 0;
    return 0;
}

/* Without memory for it things stay where they are. */
static void host_beside(struct device *device, uint32_t rank, pid_t pid)
{
    struct host_device *host = host_of(device);
    struct placement *now;
    bool moved;

    if (!host->config.topology || (now = malloc(sizeof(*now))) == NULL)
        return;
    ranks_add(&host->place.ranks, rank);
    host->place.of[rank] = affinity_process(pid);
    placement_make(host->config.topology, &host->place.own, &host->place.ranks, host->place.of,
                   now);
    moved = memcmp(&now->cpus, host->place.now ? &host->place.now->cpus : &host->place.own,
                   sizeof(now->cpus)) != 0;
    if (moved)
        affinity_confine(&now->cpus);
    free(host->place.now);
    host->place.now = now;
}

static const struct placement *host_placement(const struct device *device, int *ret_place_error)
{
    const struct host_device *host = (const struct host_device *)(const void *)device;

    *ret_place_error = host->place.memory_error;
    return host->place.now;
}

/* Streams are threads here: they reach every mapping as it is. */
static int host_page_add(struct device *device, void *base, size_t bytes)
{
    (void)device;
    (void)base;
    (void)bytes;
    return 0;
}

static void host_page_remove(struct device *device, void *base)
{
    (void)device;
    (void)base;
}

static int host_memory_new(struct device *device, enum device_memory_kind kind, uint32_t rank,
                           const char *name, size_t bytes, struct device_memory **ret_memory)
{
    struct host_device *host = host_of(device);
    const struct placement *placement = host->place.now;
    int r;

    (void)kind;
    r = pages_new(PAGES_SHARED, name, bytes,
                  placement ? placement_memory(placement, rank) : PAGES_ANYWHERE, ret_memory);
    if (r == 0 && (*ret_memory)->place_error)
        host->place.memory_error = (*ret_memory)->place_error;
    return r;
}

static int host_memory_reserve(struct device *device, uint32_t rank, size_t bytes, uint32_t count)
{
    (void)device;
    (void)rank;
    (void)bytes;
    (void)count;
    return 0;
}

static int host_memory_import(struct device *device, uint32_t rank,
                              const struct device_import *import, struct device_memory **ret_memory,
                              char text[GW_TEXT_MAX + 1])
{
    (void)device;
    (void)rank;
    (void)import;
    (void)ret_memory;
    snprintf(text, GW_TEXT_MAX + 1, "a job on the host has no device memory to import");
    return GW_E_UNIMPLEMENTED;
}

static struct device_memory *host_memory_free(struct device *device, struct device_memory *memory)
{
    (void)device;
    return pages_free(memory);
}

static bool host_take_fault(struct device *device, char text[GW_TEXT_MAX + 1])
{
    (void)device;
    (void)text;
    return false;
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

static void host_abort(struct device *device, const struct ranks *ranks)
{
    struct host_device *host = host_of(device);

    pthread_mutex_lock(&host->lock);
    host->aborted = ranks ? ranks_or(&host->aborted, ranks) : ranks_below(GW_RANKS_MAX);
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
    host->aborted = (struct ranks){{0}};
    pthread_mutex_unlock(&host->lock);
}

const struct device_ops device_host = {
    .name = "host",
    .device_new = host_new,
    .device_free = host_free,
    .place = host_place,
    .beside = host_beside,
    .placement = host_placement,
    .page_add = host_page_add,
    .page_remove = host_page_remove,
    .memory_new = host_memory_new,
    .memory_reserve = host_memory_reserve,
    .memory_import = host_memory_import,
    .memory_free = host_memory_free,
    .copy = host_copy,
    .zero = host_zero,
    .stream_new = host_stream_new,
    .enqueue = host_enqueue,
    .signal_after = host_signal_after,
    .take_fault = host_take_fault,
    .kick = host_kick,
    .take_done = host_take_done,
    .abort = host_abort,
    .drain = host_drain,
    .resume = host_resume,
};

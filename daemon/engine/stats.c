/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The statistics page that gradwired made: rewritten under its sequence lock a short while after
 * something changed, so that a fast job does not spend its time on it. Loop thread.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "daemon/engine/engine.h"

/* What this node sent is counted for whichever of its ranks; the rest is one rank's. */
static void write_figures(struct engine *engine, struct gw_stats_page *page)
{
    struct gw_counters kinds[GW_KINDS];
    bool shown = false;

    for (uint32_t rank = 0; rank < page->world; rank++) {
        bool first = !shown && (!engine->options.follow || engine->ranks[rank]);

        job_counters(engine->job, rank, kinds);
        shown = shown || first;
        for (uint32_t kind = 0; kind < GW_KINDS; kind++) {
            page->cross_node_bytes[kind] += kinds[kind].cross_node_bytes;
            if (!first)
                continue;
            page->calls[kind] = kinds[kind].calls;
            page->payload_bytes[kind] = kinds[kind].payload_bytes;
            page->moved_bytes[kind] = kinds[kind].moved_bytes;
        }
    }
}

static void write_job(struct engine *engine, struct gw_stats_page *page)
{
    const struct core *core = job_core(engine->job);

    page->state = core_state(core);
    page->ranks_present = ranks_count(core_present(core));
    page->stage = core_layout(core) ? core_options(core)->stage : UINT32_MAX;
    page->generation = core_generation(core);
    page->steps = core_steps(core);
    page->memory_bytes = job_memory_bytes(engine->job);
    page->over = core_over(core);
    page->world = job_world(engine->job);
    write_figures(engine, page);
    snprintf(page->device, sizeof(page->device), "%s", job_device_name(engine->job));
    snprintf(page->fabric, sizeof(page->fabric), "%s", job_fabric_name(engine->job));
    snprintf(page->ordering, sizeof(page->ordering), "%s", job_ordering_name(engine->job));
    if (engine->kind == GW_DEVICE_HOST)
        snprintf(page->workers, sizeof(page->workers), "%s",
                 priority_names[engine->options.worker_priority]);
    job_placement_text(engine->job, page->placement, sizeof(page->placement));
}

static void write_page(struct engine *engine)
{
    struct gw_stats_page page = {
        .stage = UINT32_MAX,
        .started_ns = engine->started_ns,
        .idle_ns = engine->idle_ns,
        .ends_ns = engine->idle_ns ? engine->idle_ns + engine->linger_ns : 0};
    size_t at = offsetof(struct gw_stats_page, state);
    uint32_t sequence = atomic_load_explicit(&engine->stats->sequence, memory_order_relaxed);

    if (engine->job)
        write_job(engine, &page);
    memcpy(page.name, engine->name, sizeof(page.name));
    memcpy(page.wait, engine->wait, sizeof(page.wait));
    atomic_store_explicit(&engine->stats->sequence, sequence + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    memcpy((char *)engine->stats + at, (const char *)&page + at, sizeof(page) - at);
    atomic_store_explicit(&engine->stats->sequence, sequence + 2, memory_order_release);
}

static void on_due(void *owner)
{
    struct engine *engine = owner;

    engine->stats_ns = now_ns();
    write_page(engine);
}

int stats_start(struct engine *engine)
{
    struct stat status;
    void *page;
    int r;

    r = alarm_new(engine->loop, on_due, engine, &engine->stats_due);
    if (r < 0 || engine->options.stats_fd < 0)
        return r;
    if (fstat(engine->options.stats_fd, &status) < 0 || status.st_size < (off_t)GW_PAGE_BYTES)
        return GW_E_INVALID;
    page =
        mmap(NULL, GW_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, engine->options.stats_fd, 0);
    if (page == MAP_FAILED)
        return GW_E_IO;
    engine->stats = page;
    return 0;
}

void stats_end(struct engine *engine)
{
    engine->stats_due = alarm_free(engine->stats_due);
    if (engine->stats)
        munmap(engine->stats, GW_PAGE_BYTES);
    engine->stats = NULL;
}

void stats_touch(struct engine *engine)
{
    uint64_t now = now_ns();

    if (!engine->stats)
        return;
    if (engine->stats_ns > now)
        return; /* the alarm is set: stats_ns is when */
    if (now - engine->stats_ns >= ENGINE_STATS_NS) {
        on_due(engine);
        return;
    }
    engine->stats_ns += ENGINE_STATS_NS;
    alarm_set(engine->stats_due, engine->stats_ns - now);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics pages. gradwired makes and seals them; what an engine writes there is hostile. Loop
 * thread only; keeps nothing.
 *
 * The page is read with pread, never mapped: a read cannot fault, and it costs a few microseconds
 * per request.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/escape.h"
#include "daemon/supervisor/supervisor.h"

#define READ_TRIES 16
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

int stats_make(int *ret_fd)
{
    struct gw_shm_header header = {GW_SHM_MAGIC, GW_SHM_VERSION, GW_SHM_STATS,
                                   sizeof(struct gw_stats_page)};
    int fd = memfd_create("gradwire-stats", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return GW_E_IO;
    /* For real now: writing to a page that cannot be had would kill the engine later. */
    if (fallocate(fd, 0, 0, GW_PAGE_BYTES) < 0 ||
        pwrite(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header) ||
        fcntl(fd, F_ADD_SEALS, SEALS) < 0) {
        fd_close(&fd);
        return GW_E_IO;
    }
    *ret_fd = fd;
    return 0;
}

bool stats_check(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS); /* fails on what is no memory file, so reads cannot block */
    struct stat status;

    return seals >= 0 && (seals & SEALS) == SEALS && fstat(fd, &status) == 0 &&
           S_ISREG(status.st_mode) && status.st_size == (off_t)GW_PAGE_BYTES;
}

static bool read_sequence(int fd, uint32_t *ret_sequence)
{
    return pread(fd, ret_sequence, sizeof(*ret_sequence),
                 (off_t)offsetof(struct gw_stats_page, sequence)) == (ssize_t)sizeof(*ret_sequence);
}

bool stats_read(int fd, struct gw_stats_page *ret_page)
{
    if (fd < 0)
        return false;
    for (unsigned i = 0; i < READ_TRIES; i++) {
        uint32_t before, after;

        if (!read_sequence(fd, &before) ||
            pread(fd, ret_page, sizeof(*ret_page), 0) != (ssize_t)sizeof(*ret_page))
            return false;
        atomic_thread_fence(memory_order_acquire);
        if (!read_sequence(fd, &after))
            return false;
        if (before == after && (before & 1u) == 0)
            return ret_page->header.magic == GW_SHM_MAGIC &&
                   ret_page->header.version == GW_SHM_VERSION &&
                   ret_page->header.kind == GW_SHM_STATS;
    }
    return false;
}

static uint32_t clamp(uint32_t value, uint32_t max)
{
    return value < max ? value : max;
}

void stats_job(const struct engine *engine, struct stats_text *text, struct wire_job *ret_job)
{
    struct gw_stats_page page;
    uint64_t now = now_ns();
    struct wire_job job = {
        .name = text->name,
        .wait = text->wait,
        .device = text->device,
        .fabric = text->fabric,
        .ordering = text->ordering,
        .workers = text->workers,
        .placement = text->placement,
        .uid = engine->uid,
        .engine_pid = (uint32_t)engine->pid,
        .stage = UINT32_MAX,
        .age_ns = now > engine->started_ns ? now - engine->started_ns : 0,
    };

    memset(text, 0, sizeof(*text));
    memcpy(job.tag, engine->tag, TAG_BYTES);
    if (stats_read(engine->stats_fd, &page)) {
        job.state = page.state <= GW_JOB_LINGERING ? page.state : 0;
        job.world = clamp(page.world, GW_RANKS_MAX);
        job.ranks_present = clamp(page.ranks_present, job.world);
        job.stage = page.stage <= 3 ? page.stage : UINT32_MAX;
        job.generation = page.generation;
        job.steps = page.steps;
        job.memory_bytes = page.memory_bytes;
        memcpy(job.calls, page.calls, sizeof(job.calls));
        memcpy(job.payload_bytes, page.payload_bytes, sizeof(job.payload_bytes));
        memcpy(job.moved_bytes, page.moved_bytes, sizeof(job.moved_bytes));
        memcpy(job.cross_node_bytes, page.cross_node_bytes, sizeof(job.cross_node_bytes));
        (void)escape_text(page.name, strnlen(page.name, sizeof(page.name)), text->name,
                          sizeof(text->name));
        (void)escape_text(page.wait, strnlen(page.wait, sizeof(page.wait)), text->wait,
                          sizeof(text->wait));
        (void)escape_text(page.device, strnlen(page.device, sizeof(page.device)), text->device,
                          sizeof(text->device));
        (void)escape_text(page.fabric, strnlen(page.fabric, sizeof(page.fabric)), text->fabric,
                          sizeof(text->fabric));
        (void)escape_text(page.ordering, strnlen(page.ordering, sizeof(page.ordering)),
                          text->ordering, sizeof(text->ordering));
        (void)escape_text(page.workers, strnlen(page.workers, sizeof(page.workers)), text->workers,
                          sizeof(text->workers));
        (void)escape_text(page.placement, strnlen(page.placement, sizeof(page.placement)),
                          text->placement, sizeof(text->placement));
    } else {
        (void)strncpy(text->wait, "the engine's statistics cannot be read", sizeof(text->wait) - 1);
    }
    *ret_job = job;
}

_Static_assert(sizeof(((struct gw_stats_page *)0)->calls) == sizeof(((struct wire_job *)0)->calls),
               "one figure per kind");

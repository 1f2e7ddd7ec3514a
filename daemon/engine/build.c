/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a sealed job: arenas of every rank as the core sizes them, one board per rank, the
 * layout as a page, and where ranks compute on a device a verdict in its memory. Loop thread; runs
 * once per generation, with no op in flight.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/id.h"
#include "daemon/engine/job_internal.h"
#include "daemon/engine/waits.h"

#define OVERFLOW_RESERVE 2u /* slots of a rank that lie ready */

/* What a re-join must not see of the step that was cut off. */
static bool transient(enum gw_arena_kind kind)
{
    return kind == GW_ARENA_GRADS || kind == GW_ARENA_ACC || kind == GW_ARENA_RING ||
           kind == GW_ARENA_POOL;
}

static bool sealed_kind(enum gw_arena_kind kind)
{
    return kind != GW_ARENA_NONE && kind != GW_ARENA_OVERFLOW && kind != GW_ARENA_ARRAY &&
           kind != GW_ARENA_BUFFER && kind != GW_ARENA_VERDICT;
}

static int build_arena(struct job *job, enum gw_arena_kind kind, int rank, uint64_t bytes,
                       char text[GW_TEXT_MAX + 1])
{
    bool kept = false;
    int r;

    if (bytes == 0)
        return 0;
    r = arenas_make(job->arenas, kind, rank, 0, bytes, &kept);
    if (r < 0)
        request_memory_text(job, bytes, r, text, GW_TEXT_MAX + 1);
    else if (kept && transient(kind))
        arenas_zero(job->arenas, kind, rank, 0);
    return r;
}

static int build_arenas(struct job *job, char text[GW_TEXT_MAX + 1])
{
    int r = 0;

    for (int rank = -1; r == 0 && rank < (int)job->config.world; rank++) {
        if (rank >= 0 && !job_here(job, (uint32_t)rank))
            continue;
        if (rank >= 0)
            arenas_drop_kind(job->arenas, GW_ARENA_OVERFLOW, rank, 0);
        for (int kind = 0; r == 0 && kind < GW_ARENA_KINDS; kind++)
            if (sealed_kind((enum gw_arena_kind)kind))
                r = build_arena(job, (enum gw_arena_kind)kind, rank,
                                core_arena_bytes(job->core, (enum gw_arena_kind)kind, rank), text);
        if (r == 0 && rank >= 0 && job->config.kind != GW_DEVICE_HOST)
            r = build_arena(job, GW_ARENA_VERDICT, rank,
                            core_arena_bytes(job->core, GW_ARENA_VERDICT, rank), text);
    }
    return r;
}

static void drop_board(struct job *job, uint32_t rank)
{
    struct device_memory *waits = job->board_waits[rank];
    uint64_t after_op = job_last_unfinished(job);

    arenas_page_drop(job->arenas, job->boards[rank], ARENAS_PAGE_WORDS, after_op);
    job->boards[rank] = NULL;
    if (!waits)
        return;
    waits_release(waits->base, waits->bytes);
    job->config.callbacks.waits(job->config.callbacks.user, waits, false);
    arenas_page_drop(job->arenas, waits, ARENAS_PAGE_WAITS, after_op);
    job->board_waits[rank] = NULL;
}

static void drop_layout_page(struct job *job)
{
    arenas_page_drop(job->arenas, job->layout_page, ARENAS_PAGE_OUT, 0);
    job->layout_page = NULL;
}

/* Fresh in every generation: clients count from what they find here. */
static int build_board(struct job *job, uint32_t rank)
{
    const struct gw_layout_page *page = layout_page(core_layout(job->core));
    uint64_t steps = core_steps(job->core);
    uint64_t bytes = sizeof(struct gw_shm_board) +
                     ((uint64_t)page->buckets + page->units) * sizeof(struct gw_shm_slot) +
                     (page->params + 7) / 8;
    struct device_memory *memory;
    struct gw_shm_board *board;
    int r;

    r = arenas_page_new(job->arenas, ARENAS_PAGE_WORDS, "gradwire-board", bytes, &memory);
    if (r < 0)
        return r;
    board = memory->base;
    board->header =
        (struct gw_shm_header){GW_SHM_MAGIC, GW_SHM_VERSION, GW_SHM_BOARD, (uint32_t)bytes};
    board->buckets = page->buckets;
    board->units = page->units;
    board->params = page->params;
    atomic_store_explicit(&board->step.value, steps, memory_order_release);
    atomic_store_explicit(&board->update.value, steps, memory_order_release);
    drop_board(job, rank);
    job->boards[rank] = memory;
    return 0;
}

/* The words that raise with the board's slots, for a client's streams. */
static void set_waits(struct job *job, uint32_t rank, uint64_t steps)
{
    const struct device_memory *waits = job->board_waits[rank];

    if (!waits)
        return;
    atomic_store(waits_word(waits, GW_WAIT_STEP), steps);
    atomic_store(waits_word(waits, GW_WAIT_UPDATE), steps);
}

static int build_waits(struct job *job, uint32_t rank)
{
    const struct gw_layout_page *page = layout_page(core_layout(job->core));
    uint64_t words = GW_WAIT_BUCKETS + (uint64_t)page->buckets + page->units;
    struct device_memory *memory;
    int r;

    r = arenas_page_new(job->arenas, ARENAS_PAGE_WAITS, "gradwire-waits", GW_WAIT_BYTES(words),
                        &memory);
    if (r < 0)
        return r;
    waits_start(memory);
    job->board_waits[rank] = memory;
    set_waits(job, rank, core_steps(job->core));
    job->config.callbacks.waits(job->config.callbacks.user, memory, true);
    return 0;
}

void build_release_waits(struct job *job)
{
    for (uint32_t rank = 0; rank < job->config.world; rank++) {
        const struct device_memory *pages[2] = {job->board_waits[rank], job->ports[rank].waits};
        for (int i = 0; i < 2; i++)
            if (pages[i])
                waits_release(pages[i]->base, pages[i]->bytes);
    }
}

static int build_layout_page(struct job *job)
{
    const struct gw_layout_page *page = layout_page(core_layout(job->core));
    struct device_memory *memory;
    int r;

    r = arenas_page_new(job->arenas, ARENAS_PAGE_OUT, "gradwire-layout", page->size_bytes, &memory);
    if (r < 0)
        return r;
    memcpy(memory->base, page, page->size_bytes);
    id_hash(page, page->size_bytes, job->layout_hash);
    drop_layout_page(job);
    job->layout_page = memory;
    job->layout_bytes = page->size_bytes;
    return 0;
}

/* A first seal that came to nothing leaves nothing; the ranks may try again with less. */
static void drop_all(struct job *job)
{
    for (int rank = -1; rank < (int)job->config.world; rank++)
        for (int kind = 0; kind < GW_ARENA_KINDS; kind++)
            if (sealed_kind((enum gw_arena_kind)kind) && kind != GW_ARENA_STAGING)
                arenas_drop_kind(job->arenas, (enum gw_arena_kind)kind, rank, 0);
    build_free(job);
}

/* A ring's overflow slots come in the middle of a step: some lie ready. */
static void reserve_overflow(struct job *job)
{
    for (uint32_t rank = 0; rank < job->config.world; rank++) {
        uint64_t bytes = core_arena_bytes(job->core, GW_ARENA_OVERFLOW, (int)rank);
        if (bytes > 0 && job_here(job, rank))
            arenas_reserve(job->arenas, rank, bytes, OVERFLOW_RESERVE);
    }
}

int build_all(struct job *job, char text[GW_TEXT_MAX + 1])
{
    int r;

    text[0] = 0;
    if (!job->built)
        drop_all(job);
    r = build_arenas(job, text);
    if (r == 0)
        r = build_layout_page(job);
    for (uint32_t rank = 0; r == 0 && rank < job->config.world; rank++) {
        if (job_here(job, rank))
            r = build_board(job, rank);
        if (r == 0 && job_here(job, rank) && job->config.kind != GW_DEVICE_HOST)
            r = build_waits(job, rank);
    }
    if (r == 0)
        r = job->config.fabric_ops->sealed(job->fabric, layout_page(core_layout(job->core)));
    if (r < 0) {
        if (text[0] == 0)
            request_memory_text(job, GW_PAGE_BYTES, r, text, GW_TEXT_MAX + 1);
        return r;
    }
    reserve_overflow(job);
    job->config.fabric_ops->reset(job->fabric);
    return 0;
}

void build_told(struct job *job)
{
    enum gw_job_state state = core_state(job->core);

    if (!core_layout(job->core))
        drop_all(job);
    job->built = job->built || state == GW_JOB_SEALED || state == GW_JOB_RUNNING;
}

void build_free(struct job *job)
{
    for (uint32_t rank = 0; rank < job->config.world; rank++)
        drop_board(job, rank);
    drop_layout_page(job);
}

void build_reply_sealed(struct job *job, const struct core_effect *effect)
{
    struct wire_msg msg = effect->reply;
    struct gw_shm_board *board = job->boards[effect->rank]->base;
    const struct device_memory *waits = job->board_waits[effect->rank];
    int fds[3] = {job->layout_page->fd, job->boards[effect->rank]->fd, waits ? waits->fd : -1};

    /* The core has taken back a step that not every rank resolved since the board was made. */
    atomic_store_explicit(&board->step.value, msg.u.sealed.steps, memory_order_release);
    atomic_store_explicit(&board->update.value, msg.u.sealed.steps, memory_order_release);
    set_waits(job, effect->rank, msg.u.sealed.steps);
    memcpy(msg.u.sealed.layout_hash, job->layout_hash, sizeof(job->layout_hash));
    msg.u.sealed.layout_bytes = job->layout_bytes;
    msg.u.sealed.board_bytes = job->boards[effect->rank]->bytes;
    job_reply(job, effect->rank, &msg, fds, waits ? 3 : 2);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory registered with NCCL. A window is one piece of engine-owned memory of every rank, all of
 * one size: the first of each rank that has no window yet. Ranks of a layout get alike arenas in
 * the same order, so theirs are in windows.
 *
 * NCCL's conditions (User Buffer Registration; NCCL_WIN_COLL_SYMMETRIC): in a collective either all
 * ranks pass registered memory or none does, and at equal offsets; else what it does is undefined.
 * A call cannot say that its buffers are not to be looked up, so the registrations are those of a
 * communicator of their own, and an op goes there if all its buffers are alike (nccl_alike). On it
 * NCCL's zero-CTA policy holds: where ranks are within one NVLink domain its all-gather between
 * windows goes by copy engines.
 *
 * The loop thread owns the windows; issuing threads register each its rank's memory.
 */
#include <stdlib.h>

#include "daemon/device/cuda/plant.h"
#include "daemon/fabric/nccl/nccl.h"

/* ---- issuing threads ------------------------------------------------------------------------- */

/* Of all ranks, in the same order. Where the node or the memory is not of the kind, NCCL gives no
 * handle, to none. */
static void run_register(struct nccl_task *task)
{
    struct nccl_world *world = task->world;
    struct nccl_memory *memory = task->memory;
    ncclComm_t *comm = &world->registered->comm[task->rank];
    ncclWindow_t window = NULL;
    bool good;

    memory->handle = NULL;
    if (!*comm || atomic_load_explicit(&world->aborted, memory_order_acquire))
        return;
    if (world->library.window_register) {
        good = nccl_settled(world, task->rank, comm,
                            world->library.window_register(*comm, memory->base, memory->bytes,
                                                           &window, NCCL_WIN_COLL_SYMMETRIC),
                            "ncclCommWindowRegister");
        memory->handle = window;
    } else {
        good = world->library.comm_register(*comm, memory->base, memory->bytes, &memory->handle) ==
               ncclSuccess;
    }
    if (good && memory->handle)
        atomic_fetch_add_explicit(&memory->window->ready, 1, memory_order_release);
}

static void run_deregister(struct nccl_task *task)
{
    struct nccl_world *world = task->world;
    struct nccl_memory *memory = task->memory;
    ncclComm_t comm = world->registered->comm[task->rank];

    if (!comm || !memory->handle ||
        atomic_load_explicit(&world->aborted, memory_order_acquire) ||
        planted("registration_left"))
        return;
    if (world->library.window_register)
        (void)world->library.window_deregister(comm, (ncclWindow_t)memory->handle);
    else
        (void)world->library.comm_deregister(comm, memory->handle);
    memory->handle = NULL;
}

static void run_nothing(struct nccl_task *task)
{
    (void)task;
}

/* ---- loop thread ----------------------------------------------------------------------------- */

static int post(struct nccl_world *world, struct nccl_window *window,
                void (*run)(struct nccl_task *task))
{
    int r = 0;

    for (uint32_t rank = 0; r == 0 && rank < world->count; rank++)
        r = nccl_task_post(&(struct nccl_task){
            .world = world, .memory = window->memory[rank], .rank = rank, .run = run});
    return r;
}

int nccl_windows_register(struct nccl_fabric *fabric)
{
    int r = 0;

    for (struct nccl_window *window = fabric->windows; window && r == 0; window = window->next) {
        atomic_store_explicit(&window->ready, 0, memory_order_relaxed);
        if (fabric->world->registered)
            r = post(fabric->world, window, run_register);
    }
    return r;
}

/* The rank's oldest memory of that size without a window. */
static struct nccl_memory *find_alone(struct nccl_fabric *fabric, uint32_t rank, size_t bytes)
{
    struct nccl_memory *found = NULL;

    for (struct nccl_memory *at = fabric->memory; at; at = at->next) /* newest first */
        if (at->rank == rank && at->bytes == bytes && !at->window)
            found = at;
    return found;
}

int nccl_window_try(struct nccl_fabric *fabric, size_t bytes)
{
    struct nccl_window *window = calloc(1, sizeof(*window)), **end = &fabric->windows;

    if (!window)
        return GW_E_NOMEM;
    for (uint32_t rank = 0; rank < fabric->config.world; rank++) {
        window->memory[rank] = find_alone(fabric, rank, bytes);
        if (!window->memory[rank]) {
            free(window);
            return 0;
        }
    }
    for (uint32_t rank = 0; rank < fabric->config.world; rank++)
        window->memory[rank]->window = window;
    while (*end)
        end = &(*end)->next;
    *end = window;
    return fabric->world && fabric->world->registered ? post(fabric->world, window, run_register)
                                                      : 0; /* with the next generation */
}

bool nccl_window_end(struct nccl_fabric *fabric, struct nccl_window *window)
{
    struct nccl_window **at = &fabric->windows;
    struct nccl_world *world = fabric->world;
    bool over = true;

    while (*at != window)
        at = &(*at)->next;
    *at = window->next;
    if (world && world->registered) {
        over = post(world, window, run_deregister) == 0;
        /* Behind what was posted: of all ranks first, for they may do it together. */
        for (uint32_t rank = 0; over && rank < world->count; rank++)
            over = nccl_task_wait(
                &(struct nccl_task){.world = world, .rank = rank, .run = run_nothing});
    }
    for (uint32_t rank = 0; rank < fabric->config.world; rank++)
        window->memory[rank]->window = NULL;
    if (over)
        free(window); /* otherwise a task may still come, which names it */
    return over;
}

/* ---- ops ------------------------------------------------------------------------------------- */

/* Where a rank's buffer lies. */
struct spot {
    struct nccl_window *window; /* NULL: in none that all ranks have registered */
    uint64_t offset;
};

static struct spot spot_of(const struct nccl_fabric *fabric, uint32_t rank, const void *at,
                           uint64_t bytes)
{
    for (const struct nccl_memory *memory = fabric->memory; memory; memory = memory->next) {
        uint64_t offset = (uint64_t)((uintptr_t)at - (uintptr_t)memory->base);
        if (memory->rank != rank || offset >= memory->bytes)
            continue;
        if (!memory->window || bytes > memory->bytes - offset ||
            atomic_load_explicit(&memory->window->ready, memory_order_acquire) <
                fabric->config.world)
            break;
        return (struct spot){memory->window, offset};
    }
    return (struct spot){NULL, 0};
}

/* Buffers of all ranks, rank r's at `at[r]`, or `step` bytes times r behind. */
static bool alike(const struct nccl_fabric *fabric, const void *const *at, uint64_t step,
                  uint64_t bytes)
{
    struct spot first = {NULL, 0}, spot;

    for (uint32_t rank = 0; rank < fabric->config.world; rank++) {
        if (!at[rank])
            return false;
        spot = spot_of(fabric, rank, at[rank], bytes);
        if (spot.offset < rank * step)
            return false;
        spot.offset -= rank * step;
        if (rank == 0)
            first = spot;
        if (!spot.window || spot.window != first.window || spot.offset != first.offset)
            return false;
    }
    return true;
}

/* In place, a rank's slice lies at its place in the whole. */
static bool in_place(const void *const *slices, const void *const *wholes, uint64_t bytes,
                     uint32_t world)
{
    for (uint32_t rank = 0; rank < world; rank++)
        if (!wholes[rank] || slices[rank] != (const char *)wholes[rank] + rank * bytes)
            return false;
    return true;
}

static bool slices_alike(const struct nccl_op *op, const void *const *slices,
                         const void *const *wholes)
{
    uint64_t bytes = op->op.numel * gw_dtype_bytes(op->op.in_dtype), world = op->op.world;

    return alike(op->fabric, wholes, 0, bytes * world) &&
           alike(op->fabric, slices, in_place(slices, wholes, bytes, op->op.world) ? bytes : 0,
                 bytes);
}

/* The root's own buffer is its input. */
static bool broadcast_alike(const struct nccl_op *op)
{
    const void *at[GW_GPU_RANKS_MAX];

    for (uint32_t rank = 0; rank < op->op.world; rank++)
        at[rank] = rank == op->op.rank ? op->in[0] : op->out[rank];
    return alike(op->fabric, at, 0, op->op.numel * gw_dtype_bytes(op->op.in_dtype));
}

bool nccl_alike(const struct nccl_op *op)
{
    const struct core_op *what = &op->op;
    const void *const *out = (const void *const *)op->out;
    uint64_t total = what->total_numel ? what->total_numel : what->world * what->numel;
    uint64_t bytes = total * gw_dtype_bytes(what->in_dtype);
    bool at_place = !what->accumulate && what->in_dtype == what->out_dtype; /* else by scratch */

    if (!op->world->registered || what->world != op->fabric->config.world ||
        !parts_same(what->members, what->world, op->world->everyone->members, what->world))
        return false;
    if (planted("windows_assumed"))
        return true;
    switch ((enum core_op_kind)what->kind) {
    case CORE_OP_ALL_GATHER:
        return slices_alike(op, op->in, out);
    case CORE_OP_REDUCE_SCATTER:
        return at_place && slices_alike(op, out, op->in);
    case CORE_OP_ALL_REDUCE:
        return alike(op->fabric, op->in, 0, bytes) &&
               (what->shards || (at_place && alike(op->fabric, out, 0, bytes)));
    case CORE_OP_BROADCAST:
        return broadcast_alike(op);
    default:
        return false;
    }
}

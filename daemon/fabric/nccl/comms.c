/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators: made, split and aborted on the issuing threads of their GPUs, all ranks in the
 * order of the loop thread's calls. Non-blocking: each call is polled until it is
 * over, since NCCL may enqueue late; a poll ends with the world's abort or the op's deadline.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/fabric/nccl/nccl.h"
#include "daemon/device/cuda/plant.h"

#define NAP_MIN_NS 5000
#define NAP_MAX_NS 500000

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool aborted(struct nccl_world *world)
{
    return atomic_load_explicit(&world->aborted, memory_order_acquire);
}

/* Longer each time. False: aborted, or the deadline has passed, which is told. */
static bool nap(struct nccl_world *world, uint32_t rank, uint64_t began_ns, long *nap_ns,
                const char *call)
{
    struct timespec time = {0, *nap_ns};

    if (aborted(world))
        return false;
    if (now_ns() - began_ns > world->timeout_ns) {
        cuda_fault(world->device,
                   "rank %" PRIu32 ": %s was not over after %" PRIu64
                   " s; another rank's GPU may hang",
                   rank, call, world->timeout_ns / 1000000000u);
        return false;
    }
    nanosleep(&time, NULL);
    *nap_ns = *nap_ns * 2 > NAP_MAX_NS ? NAP_MAX_NS : *nap_ns * 2;
    return true;
}

static bool tell(struct nccl_world *world, uint32_t rank, ncclComm_t comm, ncclResult_t result,
                 const char *call)
{
    const char *last = ncclGetLastError(comm);

    /* An abort makes calls fail; that is not news. */
    if (!aborted(world))
        cuda_fault(world->device, "rank %" PRIu32 ": %s: %s%s%s", rank, call,
                   ncclGetErrorString(result), last && last[0] ? ": " : "", last ? last : "");
    return false;
}

static bool poll(struct nccl_world *world, uint32_t rank, ncclComm_t comm, ncclResult_t result,
                 const char *call)
{
    uint64_t began_ns = now_ns();
    long nap_ns = NAP_MIN_NS;
    ncclResult_t state;

    /* Collectives only: "ncclComm..." makes communicators. */
    if (planted("poll_left_out") && strncmp(call, "ncclComm", 8) != 0)
        return true;
    for (;;) {
        if (comm && (result == ncclSuccess || result == ncclInProgress)) {
            result = ncclCommGetAsyncError(comm, &state);
            if (result == ncclSuccess)
                result = state;
        }
        if (result == ncclSuccess)
            return !aborted(world);
        if (result != ncclInProgress)
            return tell(world, rank, comm, result, call);
        if (!nap(world, rank, began_ns, &nap_ns, call))
            return false;
    }
}

static void abort_one(ncclComm_t *comm)
{
    if (*comm)
        (void)ncclCommAbort(*comm);
    *comm = NULL;
}

/* A call that is not over may still enqueue, behind whatever is recorded next: not after this. */
bool nccl_settled(struct nccl_world *world, uint32_t rank, ncclComm_t *comm, ncclResult_t result,
                  const char *call)
{
    bool settled = poll(world, rank, *comm, result, call);

    if (!settled)
        abort_one(comm);
    return settled;
}

/* ---- tasks: issuing threads ------------------------------------------------------------------ */

/* group NULL: the parent of all. */
static ncclConfig_t config_of(const struct nccl_world *world, const struct nccl_group *group)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = 0;
    config.maxCTAs = NCCL_CTAS_MAX;
    if (group && group == world->registered && world->library.zero_cta)
        config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
    return config;
}

/* Rank 0's thread makes the id, for it may take a while; the others wait for it. */
static bool unique_id(struct nccl_world *world, uint32_t rank)
{
    uint64_t began_ns = now_ns();
    long nap_ns = NAP_MIN_NS;
    ncclResult_t result;
    int state;

    if (world->spans)
        return true;
    if (rank == 0) {
        result = ncclGetUniqueId(&world->id);
        atomic_store_explicit(&world->id_state,
                              result == ncclSuccess ? NCCL_ID_READY : NCCL_ID_FAILED,
                              memory_order_release);
        return result == ncclSuccess || tell(world, rank, NULL, result, "ncclGetUniqueId");
    }
    for (;;) {
        state = atomic_load_explicit(&world->id_state, memory_order_acquire);
        if (state != NCCL_ID_NONE)
            return state == NCCL_ID_READY;
        if (!nap(world, rank, began_ns, &nap_ns, "ncclGetUniqueId of rank 0"))
            return false;
    }
}

/* All ranks of the world, members or not. */
static void run_split(struct nccl_task *task)
{
    struct nccl_world *world = task->world;
    struct nccl_group *group = task->group;
    uint32_t index = parts_index(group->members, group->count, task->rank);
    ncclComm_t *parent = &world->parent[task->rank], *comm = &group->comm[task->rank];
    ncclConfig_t config = config_of(world, group);
    ncclResult_t result;

    if (!*parent || aborted(world))
        return;
    result = ncclCommSplit(*parent, index == UINT32_MAX ? NCCL_SPLIT_NOCOLOR : 0,
                           index == UINT32_MAX ? 0 : (int)index, comm, &config);
    if (!nccl_settled(world, task->rank, parent, result, "ncclCommSplit"))
        abort_one(comm);
    else if (*comm)
        (void)nccl_settled(world, task->rank, comm, ncclSuccess, "ncclCommSplit");
}

static void run_init(struct nccl_task *task)
{
    struct nccl_world *world = task->world;
    ncclConfig_t config = config_of(world, NULL);
    ncclComm_t *comm = &world->parent[task->rank];
    ncclResult_t result;

    if (aborted(world) || !unique_id(world, task->rank))
        return;
    result = ncclCommInitRankConfig(comm, (int)world->count, world->id, (int)task->rank, &config);
    if (nccl_settled(world, task->rank, comm, result, "ncclCommInitRankConfig"))
        run_split(task);
}

/* After what the thread had to do: polls have ended by then, for the world says that it is aborted.
 * Children before their parent. */
static void run_abort(struct nccl_task *task)
{
    struct nccl_group *group = atomic_load_explicit(&task->world->groups, memory_order_acquire);

    if (planted("communicator_left"))
        return;
    for (; group; group = group->next)
        abort_one(&group->comm[task->rank]);
    abort_one(&task->world->parent[task->rank]);
    atomic_fetch_sub_explicit(&task->world->left, 1, memory_order_release);
}

/* Errors that come without a call: a peer's, a link's. */
static void idle(void *arg, int gpu)
{
    const struct nccl_idle *self = (const struct nccl_idle *)arg;
    struct nccl_world *world = self->world;
    struct nccl_group *group = atomic_load_explicit(&world->groups, memory_order_acquire);
    ncclResult_t state, result;

    (void)gpu;
    for (; group && !aborted(world); group = group->next) {
        ncclComm_t comm = group->comm[self->rank];
        if (!comm)
            continue;
        result = ncclCommGetAsyncError(comm, &state);
        if (result == ncclSuccess)
            result = state;
        if (result != ncclSuccess && result != ncclInProgress)
            (void)tell(world, self->rank, comm, result, "a collective failed");
    }
}

/* ---- loop thread ----------------------------------------------------------------------------- */

static struct nccl_group *group_add(struct nccl_world *world, const uint32_t *members,
                                    uint32_t count, uint32_t lane)
{
    struct nccl_group *group = calloc(1, sizeof(*group));

    if (!group)
        return NULL;
    group->lane = lane;
    group->count = count;
    memcpy(group->members, members, count * sizeof(*members));
    group->next = atomic_load_explicit(&world->groups, memory_order_relaxed);
    atomic_store_explicit(&world->groups, group, memory_order_release);
    return group;
}

static int post_all(struct nccl_world *world, struct nccl_group *group,
                    void (*run)(struct nccl_task *task))
{
    int r = 0;

    for (uint64_t left = world->here; r == 0 && left; left &= left - 1)
        r = nccl_task_post(&(struct nccl_task){.world = world,
                                               .group = group,
                                               .rank = (uint32_t)__builtin_ctzll(left),
                                               .run = run});
    return r;
}

static int register_group(struct nccl_world *world, const uint32_t *members)
{
    world->registered = group_add(world, members, world->count, 0);
    return world->registered ? post_all(world, world->registered, run_split) : GW_E_NOMEM;
}

/* Of several nodes: from the list that the first node made. */
static int take_id(struct nccl_fabric *fabric, struct nccl_world *world)
{
    const struct fabric_nodes *nodes = fabric->config.nodes;
    uint32_t at = fabric->formed++ * (uint32_t)sizeof(world->id);

    world->spans = nodes != NULL;
    if (!nodes)
        return 0;
    if (at + sizeof(world->id) > nodes->at[0].address_bytes) {
        cuda_fault(world->device,
                   "the job has formed %u times, for which its nodes have communicator ids: start "
                   "a new job",
                   fabric->formed - 1);
        return GW_E_LIMIT;
    }
    memcpy(&world->id, nodes->at[0].address + at, sizeof(world->id));
    return 0;
}

int nccl_world_new(struct nccl_fabric *fabric, struct nccl_world **ret_world)
{
    struct nccl_world *world = calloc(1, sizeof(*world));
    uint32_t members[GW_GPU_RANKS_MAX];
    int r = GW_E_NOMEM;

    if (!world)
        return GW_E_NOMEM;
    world->device = fabric->config.device;
    world->library = fabric->library;
    world->timeout_ns =
        fabric->config.op_timeout_ns ? fabric->config.op_timeout_ns : NCCL_TIMEOUT_NS;
    world->references = 1;
    world->count = fabric->config.world;
    for (uint32_t rank = 0; rank < world->count; rank++) {
        members[rank] = rank;
        world->idle[rank] = (struct nccl_idle){world, rank};
        world->here |= (uint64_t)nccl_is_here(fabric, rank) << rank;
    }
    r = take_id(fabric, world);
    if (r < 0) {
        *ret_world = world;
        return r;
    }
    r = GW_E_NOMEM;
    world->everyone = group_add(world, members, world->count, 0);
    if (world->everyone)
        r = post_all(world, world->everyone, run_init);
    if (r == 0 && world->count > 1 && !world->spans &&
        (world->library.comm_register || world->library.window_register))
        r = register_group(world, members);
    for (uint64_t left = world->here; r == 0 && left; left &= left - 1)
        r = cuda_idle(world->device, (uint32_t)__builtin_ctzll(left), idle,
                      &world->idle[__builtin_ctzll(left)]);
    *ret_world = world;
    return r;
}

struct nccl_world *nccl_world_unref(struct nccl_world *world)
{
    struct nccl_group *group, *next;

    if (!world || --world->references > 0)
        return NULL;
    for (group = atomic_load(&world->groups); group; group = next) {
        next = group->next;
        free(group);
    }
    free(world);
    return NULL;
}

/* Should a task not be posted for want of memory, that rank's communicators stay until the engine
 * ends; nothing of this world is polled any more. */
void nccl_world_abort(struct nccl_world *world)
{
    atomic_store_explicit(&world->aborted, true, memory_order_release);
    atomic_store_explicit(&world->left, (unsigned)__builtin_popcountll(world->here),
                          memory_order_relaxed);
    for (uint64_t left = world->here; left; left &= left - 1) {
        uint32_t rank = (uint32_t)__builtin_ctzll(left);
        (void)cuda_idle(world->device, rank, NULL, NULL);
        if (nccl_task_post(&(struct nccl_task){.world = world, .rank = rank, .run = run_abort}) < 0)
            atomic_fetch_sub_explicit(&world->left, 1, memory_order_relaxed);
    }
}

void nccl_world_settle(struct nccl_world *world)
{
    uint64_t began_ns = now_ns();
    const struct timespec time = {0, NAP_MAX_NS};

    while (atomic_load_explicit(&world->left, memory_order_acquire) > 0 &&
           !cuda_broken(world->device)) {
        if (now_ns() - began_ns > NCCL_SETTLE_NS)
            cuda_fault(world->device, "communicators could not be ended within %u s; a GPU hangs",
                       (unsigned)(NCCL_SETTLE_NS / 1000000000u));
        nanosleep(&time, NULL);
    }
}

int nccl_group_get(struct nccl_world *world, const uint32_t *members, uint32_t count, uint32_t lane,
                   struct nccl_group **ret_group)
{
    struct nccl_group *group = atomic_load_explicit(&world->groups, memory_order_relaxed);
    int r = 0;

    while (group && (group == world->registered || group->lane != lane ||
                     !parts_same(group->members, group->count, members, count)))
        group = group->next;
    if (!group) {
        group = group_add(world, members, count, lane);
        if (!group)
            return GW_E_NOMEM;
        r = post_all(world, group, run_split);
    }
    if (r == 0)
        *ret_group = group;
    return r;
}

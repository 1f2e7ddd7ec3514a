/* SPDX-License-Identifier: Apache-2.0 */
/* libnccl's double: communicators, their making and their end. Any thread. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/fakegpu/nccl_lib.h"

#define MAGIC UINT64_C(0x6e63636c66616b65)

static _Thread_local char last_error[256];
static struct ncclComm *_Atomic all_comms; /* ended ones too */

ncclResult_t nccl_error(ncclResult_t result, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(last_error, sizeof(last_error), format, args);
    va_end(args);
    return result;
}

void sleep_a_little(void)
{
    struct timespec time = {.tv_nsec = 50000};

    nanosleep(&time, NULL);
}

/* ---- communicators --------------------------------------------------------------------------- */

ncclResult_t comm_check(struct ncclComm *comm)
{
    if (!comm || comm->magic != MAGIC)
        return nccl_error(ncclInvalidArgument, "no communicator");
    if (comm->ended) {
        fg_violation("nccl_use", "rank %d of a communicator used after its end", comm->rank);
        return nccl_error(ncclInvalidArgument, "communicator used after its end");
    }
    return ncclSuccess;
}

ncclResult_t comm_new(struct ncclComm **ret_comm)
{
    struct ncclComm *comm = calloc(1, sizeof(*comm));

    if (!comm)
        return nccl_error(ncclSystemError, "no memory");
    comm->magic = MAGIC;
    comm->initial = ncclInProgress;
    comm->next = all_comms;
    while (!atomic_compare_exchange_weak(&all_comms, &comm->next, comm))
        ;
    *ret_comm = comm;
    return ncclSuccess;
}

void comm_enter(struct ncclComm *comm, const char *call)
{
    uint64_t self = (uint64_t)syscall(SYS_gettid), none = 0;

    if (!atomic_compare_exchange_strong(&comm->owner, &none, self) && none != self)
        fg_violation("nccl_threads", "%s, rank %d: thread %llu is in a call on it already", call,
                     comm->rank, (unsigned long long)none);
    comm->depth++;
}

void comm_leave(struct ncclComm *comm)
{
    if (!--comm->depth)
        comm->owner = 0;
}

ncclResult_t comm_ask(uint32_t kind, uint64_t number, uint64_t a1, uint64_t a2, uint64_t a3,
                      struct fg_reply *ret_reply)
{
    struct fg_request request = {.kind = FG_NCCL_FIRST + kind, .a = {number, a1, a2, a3}};
    int r = fg_call(&request, NULL, ret_reply);

    if (r)
        return nccl_error(ncclUnhandledCudaError, "CUDA error %d", r);
    return (ncclResult_t)ret_reply->v[0];
}

ncclResult_t comm_state(struct ncclComm *comm)
{
    struct fg_reply reply;
    ncclResult_t result;

    if (!comm->number)
        return (ncclResult_t)comm->initial;
    result = comm_ask(FGN_STATE, comm->number, 0, 0, 0, &reply);
    if (result == ncclSuccess) {
        comm->rank = (int)reply.v[1];
        comm->ranks = (int)reply.v[2];
    }
    return result;
}

ncclResult_t comm_wait(struct ncclComm *comm)
{
    ncclResult_t result = comm_state(comm);

    while (result == ncclInProgress && !comm->ended) {
        sleep_a_little();
        result = comm_state(comm);
    }
    return result;
}

void comm_window_given(struct ncclComm *comm, ncclResult_t state)
{
    if (state == ncclSuccess && comm->window_to)
        *comm->window_to = comm->window;
    if (state != ncclInProgress)
        comm->window_to = NULL;
}

/* ---- making ---------------------------------------------------------------------------------- */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    struct fg_request request = {.kind = FG_NCCL_FIRST + FGN_UNIQUE_ID};
    struct fg_reply reply;

    if (!id)
        return nccl_error(ncclInvalidArgument, "ncclGetUniqueId: NULL");
    if (fg_current_gpu() < 0 || fg_call(&request, NULL, &reply))
        return nccl_error(ncclUnhandledCudaError, "no CUDA device");
    memset(id, 0, sizeof(*id));
    memcpy(id->internal, reply.v, 2 * sizeof(uint64_t));
    return ncclSuccess;
}

/* Reads a caller's options, which may be an older library's shorter ones. NULL: defaults. */
static ncclResult_t config_read(struct ncclComm *comm, const ncclConfig_t *given,
                                const struct ncclComm *parent)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    size_t size = sizeof(config);

    comm->blocking = parent ? parent->blocking : true;
    if (!given)
        return ncclSuccess;
    if (given->size < size)
        size = given->size;
    memcpy(&config, given, size);
    if (config.magic != 0xcafebeef)
        return nccl_error(ncclInvalidArgument, "not begun with NCCL_CONFIG_INITIALIZER");
    if (config.blocking != NCCL_CONFIG_UNDEF_INT) {
        if (config.blocking != 0 && config.blocking != 1)
            return nccl_error(ncclInvalidArgument, "blocking is %d", config.blocking);
        comm->blocking = config.blocking;
    }
    if (config.maxCTAs != NCCL_CONFIG_UNDEF_INT) {
        if (config.maxCTAs <= 0 ||
            (config.minCTAs != NCCL_CONFIG_UNDEF_INT && config.minCTAs > config.maxCTAs))
            return nccl_error(ncclInvalidArgument, "CTAs from %d to %d", config.minCTAs,
                              config.maxCTAs);
        comm->max_ctas = (uint64_t)config.maxCTAs;
    }
    if (config.CTAPolicy != NCCL_CONFIG_UNDEF_INT && config.CTAPolicy & NCCL_CTA_POLICY_ZERO)
        comm->flags |= FGN_INIT_ZERO_CTA;
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *ret_comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    struct ncclComm *comm;
    ncclResult_t result;

    if (!ret_comm)
        return nccl_error(ncclInvalidArgument, "ncclCommInitRank: NULL");
    if (ranks < 1 || rank < 0 || rank >= ranks)
        return nccl_error(ncclInvalidArgument, "rank %d of %d", rank, ranks);
    result = comm_new(&comm);
    if (result != ncclSuccess)
        return result;
    result = config_read(comm, config, NULL);
    comm->gpu = fg_current_gpu();
    if (result == ncclSuccess && comm->gpu < 0)
        result = nccl_error(ncclUnhandledCudaError, "no CUDA device");
    if (result != ncclSuccess)
        return result;
    if (cudaGetDevice(&comm->device) != cudaSuccess)
        comm->device = 0;
    comm->ranks = ranks;
    comm->rank = rank;
    memcpy(comm->id, id.internal, sizeof(comm->id));
    *ret_comm = comm;
    return group_init(comm);
}

ncclResult_t ncclCommInitRank(ncclComm_t *ret_comm, int ranks, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(ret_comm, ranks, id, rank, NULL);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int count, const int *devices)
{
    ncclUniqueId id;
    ncclResult_t result;
    int before = 0;

    if (!comms || count < 1)
        return nccl_error(ncclInvalidArgument, "ncclCommInitAll: %d", count);
    result = ncclGetUniqueId(&id);
    if (result != ncclSuccess)
        return result;
    if (cudaGetDevice(&before) != cudaSuccess)
        return nccl_error(ncclUnhandledCudaError, "cudaGetDevice");
    ncclGroupStart();
    for (int i = 0; i < count && result == ncclSuccess; i++) {
        if (cudaSetDevice(devices ? devices[i] : i) != cudaSuccess)
            result = nccl_error(ncclUnhandledCudaError, "cudaSetDevice");
        else
            result = ncclCommInitRank(&comms[i], count, id, i);
    }
    if (result == ncclSuccess)
        result = ncclGroupEnd();
    else
        ncclGroupEnd();
    cudaSetDevice(before);
    return result;
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *ret_comm,
                           ncclConfig_t *config)
{
    ncclResult_t result = comm_check(parent);
    struct ncclComm *comm;

    if (result != ncclSuccess)
        return result;
    if (!ret_comm || (color < 0 && color != NCCL_SPLIT_NOCOLOR))
        return nccl_error(ncclInvalidArgument, "ncclCommSplit: color %d", color);
    result = comm_new(&comm);
    if (result != ncclSuccess)
        return result;
    result = config_read(comm, config, parent);
    if (result != ncclSuccess)
        return result;
    if (!config)
        comm->flags = parent->flags;
    comm->gpu = parent->gpu;
    comm->device = parent->device;
    comm->parent = parent;
    comm->color = color;
    comm->key = key;
    *ret_comm = color == NCCL_SPLIT_NOCOLOR ? NULL : comm;
    return group_init(comm);
}

/* ---- ends ------------------------------------------------------------------------------------ */

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    struct fg_reply reply;
    ncclResult_t result;

    if (!comm)
        return ncclSuccess;
    result = comm_check(comm);
    if (result != ncclSuccess)
        return result;
    comm_enter(comm, "ncclCommFinalize");
    result = comm_ask(FGN_FINALIZE, comm->number, 0, 0, 0, &reply);
    if (result == ncclSuccess)
        result = comm->blocking ? comm_wait(comm) : comm_state(comm);
    comm_leave(comm);
    return result;
}

/* Asks until what the process' ranks left on their GPUs has ended. */
static ncclResult_t comm_end(struct ncclComm *comm, uint32_t kind)
{
    struct fg_request request = {.kind = FG_NCCL_FIRST + kind, .a = {comm->number}};
    struct fg_reply reply;
    int r = fg_call(&request, NULL, &reply);

    while (r == FG_BUSY) {
        sleep_a_little();
        request.a[1] = 1;
        r = fg_call(&request, NULL, &reply);
    }
    if (r)
        return nccl_error(ncclUnhandledCudaError, "CUDA error %d", r);
    return (ncclResult_t)reply.v[0];
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    ncclResult_t result;

    if (!comm)
        return ncclSuccess;
    result = comm_check(comm);
    if (result != ncclSuccess)
        return result;
    fg_note_sync("ncclCommDestroy");
    comm_enter(comm, "ncclCommDestroy");
    result = comm_end(comm, FGN_DESTROY);
    if (result == ncclSuccess)
        comm->ended = true;
    comm_leave(comm);
    return result;
}

/* From any thread, also while another is in a call on it. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    ncclResult_t result;

    if (!comm)
        return ncclSuccess;
    result = comm_check(comm);
    if (result != ncclSuccess)
        return result;
    comm->ended = true;
    return comm->number ? comm_end(comm, FGN_ABORT) : ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
    struct fg_reply reply;
    ncclResult_t result = comm_check(comm);

    if (result != ncclSuccess)
        return result;
    if (flags != NCCL_REVOKE_DEFAULT)
        return nccl_error(ncclInvalidArgument, "ncclCommRevoke: flags");
    result = comm_ask(FGN_REVOKE, comm->number, 0, 0, 0, &reply);
    if (result == ncclSuccess)
        result = comm->blocking ? comm_wait(comm) : comm_state(comm);
    return result;
}

/* ---- questions ------------------------------------------------------------------------------- */

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *ret_error)
{
    ncclResult_t result = comm_check(comm);

    if (result != ncclSuccess)
        return result;
    if (!ret_error)
        return nccl_error(ncclInvalidArgument, "ncclCommGetAsyncError: NULL");
    *ret_error = comm_state(comm);
    comm_window_given(comm, *ret_error);
    return ncclSuccess;
}

static ncclResult_t comm_get(struct ncclComm *comm, const int *from, int *ret_value,
                             const char *call)
{
    ncclResult_t result = comm_check(comm);

    if (result != ncclSuccess)
        return result;
    if (!ret_value)
        return nccl_error(ncclInvalidArgument, "%s: NULL", call);
    result = comm_state(comm);
    if (result == ncclInProgress) {
        fg_violation("nccl_use", "%s while an earlier call is in progress", call);
        return nccl_error(ncclInvalidArgument, "%s before the communicator is ready", call);
    }
    *ret_value = *from;
    return result;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *ret_count)
{
    return comm_get(comm, comm ? &comm->ranks : NULL, ret_count, "ncclCommCount");
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *ret_rank)
{
    return comm_get(comm, comm ? &comm->rank : NULL, ret_rank, "ncclCommUserRank");
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return last_error;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[ncclNumResults] = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };

    return (unsigned)result < ncclNumResults ? texts[result] : "unknown result code";
}

#ifdef FAKENCCL_OLD
#define VERSION 22803
#else
#define VERSION NCCL_VERSION_CODE
#endif

/* $FAKENCCL_VERSION: one that is too old. */
ncclResult_t ncclGetVersion(int *ret_version)
{
    const char *text = getenv("FAKENCCL_VERSION");

    if (!ret_version)
        return nccl_error(ncclInvalidArgument, "ncclGetVersion: NULL");
    *ret_version = text ? (int)strtol(text, NULL, 10) : VERSION;
    return ncclSuccess;
}

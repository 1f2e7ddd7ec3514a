/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libnccl's double: groups. What a thread calls between ncclGroupStart and its end is kept here and
 * goes to the server in one piece; a call outside is a group of its own. Any thread.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fakegpu/nccl_lib.h"

#define GROUP_MAX (FG_PAYLOAD_MAX / sizeof(struct fgn_call))

static _Thread_local struct group {
    int depth;
    ncclResult_t error; /* the first */
    int blocking;       /* of its communicators; -1: not known yet */
    uint32_t call_count, init_count;
    struct fgn_call calls[GROUP_MAX];
    struct ncclComm *comms[GROUP_MAX]; /* of the calls */
    struct ncclComm *inits[FG_GPUS_MAX];
} * group;

static pthread_key_t group_key; /* frees a thread's group with it */

static void group_key_make(void)
{
    pthread_key_create(&group_key, free);
}

static struct group *group_get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    if (group)
        return group;
    pthread_once(&once, group_key_make);
    group = calloc(1, sizeof(*group));
    if (!group)
        return NULL;
    group->blocking = -1;
    pthread_setspecific(group_key, group);
    return group;
}

static void group_clear(void)
{
    for (uint32_t i = 0; i < group->call_count; i++)
        comm_leave(group->comms[i]);
    group->call_count = group->init_count = 0;
    group->error = ncclSuccess;
    group->blocking = -1;
}

ncclResult_t ncclGroupStart(void)
{
    if (!group_get())
        return nccl_error(ncclSystemError, "no memory");
    group->depth++;
    return ncclSuccess;
}

static ncclResult_t group_fail(ncclResult_t result)
{
    if (group->error == ncclSuccess)
        group->error = result;
    return result;
}

static ncclResult_t group_blocking(const struct ncclComm *comm)
{
    if (group->blocking >= 0 && group->blocking != comm->blocking)
        return nccl_error(ncclInvalidArgument,
                          "blocking and non-blocking communicators in one group");
    group->blocking = comm->blocking;
    return ncclSuccess;
}

ncclResult_t group_call(struct ncclComm *comm, const struct fgn_call *call)
{
    ncclResult_t result;

    if (ncclGroupStart() != ncclSuccess)
        return ncclSystemError;
    result = comm_check(comm);
    if (result == ncclSuccess)
        result = group_blocking(comm);
    if (result == ncclSuccess && group->init_count)
        result = nccl_error(ncclInvalidUsage, "collectives and ncclCommInitRank in one group");
    if (result == ncclSuccess && group->call_count == GROUP_MAX)
        result = nccl_error(ncclInternalError, "too many calls in a group");
    if (result == ncclSuccess && !comm->number) {
        fg_violation("nccl_use", "a collective on a communicator that is not ready");
        result = nccl_error(ncclInvalidArgument, "communicator is not ready");
    }
    if (result == ncclSuccess) {
        comm_enter(comm, "a collective");
        group->comms[group->call_count] = comm;
        group->calls[group->call_count] = *call;
        group->calls[group->call_count++].comm = comm->number;
    } else {
        group_fail(result);
    }
    ncclResult_t end = ncclGroupEnd();

    return result != ncclSuccess ? result : end;
}

ncclResult_t group_init(struct ncclComm *comm)
{
    ncclResult_t result;

    if (ncclGroupStart() != ncclSuccess)
        return ncclSystemError;
    result = group_blocking(comm);
    if (result == ncclSuccess && group->call_count)
        result = nccl_error(ncclInvalidUsage, "collectives and ncclCommInitRank in one group");
    if (result == ncclSuccess && group->init_count == FG_GPUS_MAX)
        result = nccl_error(ncclInternalError, "too many communicators in a group");
    if (result == ncclSuccess)
        group->inits[group->init_count++] = comm;
    else
        group_fail(result);
    ncclResult_t end = ncclGroupEnd();

    return result != ncclSuccess ? result : end;
}

/* ---- the end of a group ---------------------------------------------------------------------- */

static ncclResult_t init_send(struct ncclComm *comm)
{
    struct fg_request request = {.kind = FG_NCCL_FIRST + FGN_INIT, .device = (uint32_t)comm->gpu};
    struct fg_reply reply;
    uint64_t init[6] = {comm->id[0],          comm->id[1],    (uint64_t)comm->ranks,
                        (uint64_t)comm->rank, comm->max_ctas, comm->flags};
    uint64_t split[6] = {
        0, (uint64_t)(comm->color + 1), (uint64_t)(int64_t)comm->key, comm->max_ctas, comm->flags,
        0};
    ncclResult_t result;

    memcpy(request.a, init, sizeof(init));
    if (comm->parent) {
        request.kind = FG_NCCL_FIRST + FGN_SPLIT;
        split[0] = comm->parent->number;
        memcpy(request.a, split, sizeof(split));
    }
    fg_note_sync(comm->parent ? "ncclCommSplit" : "ncclCommInitRank");
    if (fg_call(&request, NULL, &reply))
        result = nccl_error(ncclUnhandledCudaError, "no GPU");
    else
        result = (ncclResult_t)reply.v[0];
    if (result == ncclSuccess)
        comm->number = reply.v[1];
    else
        comm->initial = (int)result;
    if (result == ncclSuccess && !comm->number)
        comm->initial = ncclSuccess; /* of no color */
    return result;
}

static ncclResult_t group_send_inits(void)
{
    ncclResult_t result = ncclSuccess;

    for (uint32_t i = 0; i < group->init_count && result == ncclSuccess; i++)
        result = init_send(group->inits[i]);
    if (result != ncclSuccess || !group->blocking)
        return result != ncclSuccess ? result : ncclInProgress;
    for (uint32_t i = 0; i < group->init_count && result == ncclSuccess; i++) {
        struct ncclComm *comm = group->inits[i];

        if (comm->parent)
            result = comm_wait(comm->parent);
        if (result == ncclSuccess)
            result = comm_wait(comm);
    }
    return result;
}

static ncclResult_t group_send_calls(void)
{
    struct fg_request request = {.kind = FG_NCCL_FIRST + FGN_GROUP};
    struct fg_reply reply;
    ncclResult_t result;
    int r;

    request.payload_bytes = (uint32_t)(group->call_count * sizeof(struct fgn_call));
    r = fg_call(&request, group->calls, &reply);
    if (r)
        return nccl_error(ncclUnhandledCudaError, "CUDA error %d", r);
    result = (ncclResult_t)reply.v[0];
    if (result != ncclInProgress || !group->blocking)
        return result;
    result = ncclSuccess;
    for (uint32_t i = 0; i < group->call_count && result == ncclSuccess; i++)
        result = comm_wait(group->comms[i]);
    return result;
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t result;

    if (!group || !group->depth) {
        fg_violation("nccl_use", "ncclGroupEnd without ncclGroupStart");
        return nccl_error(ncclInvalidUsage, "ncclGroupEnd: not in a group");
    }
    if (--group->depth)
        return ncclSuccess;
    result = group->error;
    if (result == ncclSuccess && group->init_count)
        result = group_send_inits();
    if (result == ncclSuccess && group->call_count)
        result = group_send_calls();
    group_clear();
    return result;
}

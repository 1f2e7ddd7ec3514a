/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of nccl_cases that break a rule each; test_nccl.py says which. */
#include "tests/fakegpu/cases_nccl.h"

#include <stdatomic.h>
#include <unistd.h>

static void mismatched(int i)
{
    NCCL(started(ncclAllReduce(ranks[i].send, ranks[i].recv, i ? 10 : 11, ncclFloat32, ncclSum,
                               ranks[i].comm, ranks[i].stream)));
    NCCL(poll(ranks[i].comm));
}

void case_bad_count(void)
{
    all_init_non_blocking();
    all_threads(mismatched);
    abort_and_close();
}

static void disordered(int i)
{
    struct rank *rank = &ranks[i];

    for (int step = 0; step < 2; step++) {
        if ((step == 0) == (i == 0))
            NCCL(started(ncclAllReduce(rank->send, rank->recv, 10, ncclFloat32, ncclSum, rank->comm,
                                       rank->stream)));
        else
            NCCL(started(
                ncclAllGather(rank->send, rank->recv, 10, ncclFloat32, rank->comm, rank->stream)));
        NCCL(poll(rank->comm));
    }
}

void case_bad_order(void)
{
    all_init_non_blocking();
    all_threads(disordered);
    abort_and_close();
}

static void overlapping(int i)
{
    NCCL(started(ncclAllReduce(ranks[i].send, ranks[i].send + 16, 100, ncclFloat32, ncclSum,
                               ranks[i].comm, ranks[i].stream)));
    NCCL(poll(ranks[i].comm));
}

void case_bad_overlap(void)
{
    all_init_non_blocking();
    all_threads(overlapping);
    abort_and_close();
}

static cudaEvent_t events[RANKS_MAX];

static void unpolled(int i)
{
    all_reduce_one(i);
    CUDA(cudaEventRecord(events[i], ranks[i].stream)); /* the kernel may come after it */
    NCCL(poll(ranks[i].comm));
}

void case_bad_unpolled(void)
{
    all_init_non_blocking();
    for (int i = 0; i < n; i++) {
        CUDA(cudaSetDevice(i));
        CUDA(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming));
    }
    all_threads(unpolled);
    all_sync();
    for (int i = 0; i < n; i++)
        CUDA(cudaEventDestroy(events[i]));
    all_close();
}

void case_bad_in_progress(void)
{
    ncclUniqueId own;

    all_open();
    n = 2; /* of a communicator of two, only one comes */
    NCCL(ncclGetUniqueId(&own));
    id = own;
    init_only(0);
    EXPECT(ncclAllReduce(ranks[0].send, ranks[0].recv, 10, ncclFloat32, ncclSum, ranks[0].comm,
                         ranks[0].stream) == ncclInvalidArgument);
    NCCL(ncclCommAbort(ranks[0].comm));
    CUDA(cudaGetDeviceCount(&n));
    for (int i = 0; i < n; i++)
        rank_close(i);
}

void case_bad_use_after_abort(void)
{
    all_init();
    all_threads(abort_one);
    EXPECT(ncclAllReduce(ranks[0].send, ranks[0].recv, 10, ncclFloat32, ncclSum, ranks[0].comm,
                         ranks[0].stream) == ncclInvalidArgument);
    for (int i = 0; i < n; i++)
        rank_close(i);
}

void case_bad_duplicate_gpu(void)
{
    int devices[2] = {0, 0};
    ncclComm_t comms[2];

    EXPECT(ncclCommInitAll(comms, 2, devices) == ncclInvalidUsage);
    for (int i = 0; i < 2; i++)
        NCCL(ncclCommAbort(comms[i]));
}

void case_bad_leak(void)
{
    all_init();
    NCCL(ncclCommDestroy(ranks[0].comm));
    for (int i = 0; i < n; i++)
        rank_close(i);
}

void case_bad_registration(void)
{
    void *handle;

    all_init();
    NCCL(ncclCommRegister(ranks[0].comm, ranks[0].send, 4096, &handle));
    all_close();
}

/* One rank's buffer is registered, the others' are not. */
void case_bad_registered(void)
{
    void *handle;

    all_init();
    NCCL(ncclCommRegister(ranks[0].comm, ranks[0].send, 4096, &handle));
    NCCL(ncclGroupStart());
    for (int i = 0; i < n; i++)
        all_reduce_one(i);
    NCCL(ncclGroupEnd());
    all_sync();
    NCCL(ncclCommDeregister(ranks[0].comm, handle));
    all_close();
}

static void in_order_of(int i)
{
    NCCL(started(ncclAllReduce(ranks[i].send, ranks[i].recv, 10, ncclFloat32, ncclSum,
                               ranks[i].comm, ranks[i].stream)));
}

static _Atomic int inside;

static void threads_one(int i)
{
    NCCL(ncclGroupStart());
    in_order_of(i == n - 1 ? 0 : i); /* the last thread uses rank 0's */
    inside++;
    while (inside < n)
        usleep(100);
    /* Both have rank 0's in a group now; the last one's is not sent. */
    if (i != n - 1)
        NCCL(started(ncclGroupEnd()));
}

void case_bad_threads(void)
{
    all_init_non_blocking();
    all_threads(threads_one);
    abort_and_close();
}

/* Two communicators, given to GPU 0 and 1 in different orders. */
static ncclComm_t second[RANKS_MAX];
static cudaStream_t second_streams[RANKS_MAX];

static void two_orders(int i)
{
    for (int step = 0; step < 2; step++) {
        bool first = (step == 0) == (i == 0);
        ncclComm_t comm = first ? ranks[i].comm : second[i];

        NCCL(started(ncclAllReduce(ranks[i].send, ranks[i].recv + (first ? 0 : 4096), 10,
                                   ncclFloat32, ncclSum, comm,
                                   first ? ranks[i].stream : second_streams[i])));
    }
}

static void two_orders_end(int i)
{
    NCCL(poll(ranks[i].comm));
    NCCL(poll(second[i]));
}

void case_bad_launch_order(void)
{
    all_init_non_blocking();
    for (int i = 0; i < n; i++) {
        second[i] = ranks[i].comm;
        CUDA(cudaSetDevice(i));
        CUDA(cudaStreamCreateWithFlags(&second_streams[i], cudaStreamNonBlocking));
    }
    NCCL(ncclGetUniqueId(&id));
    all_threads(init_non_blocking);
    all_threads(two_orders);
    all_threads(two_orders_end);
    for (int i = 0; i < n; i++) {
        CUDA(cudaStreamSynchronize(second_streams[i]));
        NCCL(ncclCommDestroy(second[i]));
        CUDA(cudaStreamDestroy(second_streams[i]));
    }
    all_close();
}

void case_bad_device(void)
{
    all_init_non_blocking();
    EXPECT(ncclAllReduce(ranks[0].send, ranks[0].recv, 10, ncclFloat32, ncclSum, ranks[0].comm,
                         ranks[1].stream) == ncclInvalidArgument);
    abort_and_close();
}

void case_bad_memory(void)
{
    all_init_non_blocking();
    EXPECT(ncclAllReduce(ranks[1].send, ranks[0].recv, 10, ncclFloat32, ncclSum, ranks[0].comm,
                         ranks[0].stream) != ncclInProgress);
    EXPECT(ncclAllReduce(ranks[0].send + BYTES_MAX, ranks[0].recv, 10, ncclFloat32, ncclSum,
                         ranks[0].comm, ranks[0].stream) != ncclInProgress);
    abort_and_close();
}

/* A receive buffer goes before its collective, which NCCL holds back, is in the stream. */
void case_bad_free(void)
{
    void *memory;

    all_init_non_blocking();
    all_threads(all_reduce_polled);
    all_sync();
    CUDA(cudaSetDevice(0));
    NCCL(ncclMemAlloc(&memory, 4096));
    NCCL(started(ncclAllReduce(ranks[0].send, memory, 10, ncclFloat32, ncclSum, ranks[0].comm,
                               ranks[0].stream)));
    NCCL(ncclMemFree(memory));
    NCCL(poll(ranks[0].comm));
    abort_and_close();
}

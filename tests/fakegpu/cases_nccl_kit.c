/* SPDX-License-Identifier: Apache-2.0 */
/* See cases_nccl.h. Any thread, but for what makes and joins threads. */
#include "tests/fakegpu/cases_nccl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct rank ranks[RANKS_MAX];
int n;
ncclUniqueId id;

void die(int line, const char *what, int code)
{
    fprintf(stderr, "line %d: %s: %d\n", line, what, code);
    exit(1);
}

/* ---- set-up ---------------------------------------------------------------------------------- */

void rank_open(int i, int device)
{
    struct rank *rank = &ranks[i];

    rank->index = i;
    rank->device = device;
    CUDA(cudaSetDevice(device));
    CUDA(cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&rank->send, BYTES_MAX));
    CUDA(cudaMalloc((void **)&rank->recv, BYTES_MAX));
    rank->host_send = calloc(1, BYTES_MAX);
    rank->host_recv = calloc(1, BYTES_MAX);
    EXPECT(rank->host_send && rank->host_recv);
}

void rank_close(int i)
{
    struct rank *rank = &ranks[i];

    CUDA(cudaSetDevice(rank->device));
    CUDA(cudaStreamSynchronize(rank->stream));
    CUDA(cudaFree(rank->send));
    CUDA(cudaFree(rank->recv));
    CUDA(cudaStreamDestroy(rank->stream));
    free(rank->host_send);
    free(rank->host_recv);
}

void all_open(void)
{
    int devices = 0;

    CUDA(cudaGetDeviceCount(&devices));
    n = devices < RANKS_MAX ? devices : RANKS_MAX;
    for (int i = 0; i < n; i++)
        rank_open(i, i);
}

/* Blocking communicators of all GPUs, made by this thread. */
void all_init(void)
{
    ncclComm_t comms[RANKS_MAX];

    all_open();
    NCCL(ncclCommInitAll(comms, n, NULL));
    for (int i = 0; i < n; i++)
        ranks[i].comm = comms[i];
}

static void all_destroy(void)
{
    for (int i = 0; i < n; i++)
        NCCL(ncclCommDestroy(ranks[i].comm));
}

void all_close(void)
{
    all_destroy();
    for (int i = 0; i < n; i++)
        rank_close(i);
}

void all_sync(void)
{
    for (int i = 0; i < n; i++)
        CUDA(cudaStreamSynchronize(ranks[i].stream));
}

static void *thread_main(void *arg);

/* fn(i) on a thread for each rank, with its GPU current. */
static void (*thread_fn)(int i);

void all_threads(void (*fn)(int i))
{
    pthread_t threads[RANKS_MAX];

    thread_fn = fn;
    for (int i = 0; i < n; i++)
        EXPECT(!pthread_create(&threads[i], NULL, thread_main, &ranks[i]));
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

static void *thread_main(void *arg)
{
    struct rank *rank = arg;

    CUDA(cudaSetDevice(rank->device));
    thread_fn(rank->index);
    return NULL;
}

/* Until the last call on it has ended, or for a second. */
ncclResult_t poll(ncclComm_t comm)
{
    ncclResult_t result = ncclInProgress;
    struct timespec pause = {.tv_nsec = 1000000};

    for (int i = 0; i < 10000 && result == ncclInProgress; i++) {
        NCCL(ncclCommGetAsyncError(comm, &result));
        if (result == ncclInProgress && i > 100)
            nanosleep(&pause, NULL);
    }
    return result;
}

void init_non_blocking(int i)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t result;

    config.blocking = 0;
    config.maxCTAs = 2;
    result = ncclCommInitRankConfig(&ranks[i].comm, n, id, i, &config);
    EXPECT(result == ncclInProgress || result == ncclSuccess);
    NCCL(poll(ranks[i].comm));
}

void all_init_non_blocking(void)
{
    all_open();
    NCCL(ncclGetUniqueId(&id));
    all_threads(init_non_blocking);
}

ncclResult_t started(ncclResult_t result)
{
    return result == ncclInProgress ? ncclSuccess : result;
}

void all_reduce_one(int i)
{
    NCCL(started(ncclAllReduce(ranks[i].send, ranks[i].recv, 10, ncclFloat32, ncclSum,
                               ranks[i].comm, ranks[i].stream)));
}

void all_reduce_polled(int i)
{
    all_reduce_one(i);
    NCCL(poll(ranks[i].comm));
}

void abort_one(int i)
{
    NCCL(ncclCommAbort(ranks[i].comm));
}

void abort_and_close(void)
{
    all_threads(abort_one);
    for (int i = 0; i < n; i++)
        rank_close(i); /* synchronizes: streams are free */
}

void init_only(int i)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = 0;
    NCCL(started(ncclCommInitRankConfig(&ranks[i].comm, n, id, i, &config)));
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_cases CASE: one small program against libnccl's double, for test_nccl.py, which knows what
 * the fake GPU has to say to each. Exits with 0 when the program saw what it should, which for
 * programs that break a rule may be anything.
 */
#include <cuda_runtime.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS_MAX 8
#define BYTES_MAX (1u << 20)

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess)                                                                 \
            die(__LINE__, #call, (int)error_);                                                     \
    } while (0)
#define NCCL(call)                                                                                 \
    do {                                                                                           \
        ncclResult_t result_ = (call);                                                             \
        if (result_ != ncclSuccess)                                                                \
            die(__LINE__, #call, (int)result_);                                                    \
    } while (0)
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            die(__LINE__, #condition, 0);                                                          \
    } while (0)

struct rank {
    int index;
    ncclComm_t comm;
    cudaStream_t stream;
    unsigned char *send, *recv; /* device, BYTES_MAX each */
    unsigned char *host_send, *host_recv;
};

static struct rank ranks[RANKS_MAX];
static int n; /* ranks */
static ncclUniqueId id;

static void die(int line, const char *what, int code)
{
    fprintf(stderr, "line %d: %s: %d\n", line, what, code);
    exit(1);
}

/* ---- set-up -------------------------------------------------------------------------------------- */

static void rank_open(int i)
{
    struct rank *rank = &ranks[i];

    rank->index = i;
    CUDA(cudaSetDevice(i));
    CUDA(cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&rank->send, BYTES_MAX));
    CUDA(cudaMalloc((void **)&rank->recv, BYTES_MAX));
    rank->host_send = calloc(1, BYTES_MAX);
    rank->host_recv = calloc(1, BYTES_MAX);
    EXPECT(rank->host_send && rank->host_recv);
}

static void rank_close(int i)
{
    struct rank *rank = &ranks[i];

    CUDA(cudaSetDevice(i));
    CUDA(cudaStreamSynchronize(rank->stream));
    CUDA(cudaFree(rank->send));
    CUDA(cudaFree(rank->recv));
    CUDA(cudaStreamDestroy(rank->stream));
    free(rank->host_send);
    free(rank->host_recv);
}

static void all_open(void)
{
    int devices = 0;

    CUDA(cudaGetDeviceCount(&devices));
    n = devices < RANKS_MAX ? devices : RANKS_MAX;
    for (int i = 0; i < n; i++)
        rank_open(i);
}

/* Blocking communicators of all GPUs, made by this thread. */
static void all_init(void)
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

static void all_close(void)
{
    all_destroy();
    for (int i = 0; i < n; i++)
        rank_close(i);
}

static void all_sync(void)
{
    for (int i = 0; i < n; i++)
        CUDA(cudaStreamSynchronize(ranks[i].stream));
}

static void *thread_main(void *arg);

/* fn(i) on a thread for each rank, with its GPU current. */
static void (*thread_fn)(int i);

static void all_threads(void (*fn)(int i))
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

    CUDA(cudaSetDevice(rank->index));
    thread_fn(rank->index);
    return NULL;
}

/* Until the last call on it has ended, or for a second. */
static ncclResult_t poll(ncclComm_t comm)
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

static void init_non_blocking(int i)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t result;

    config.blocking = 0;
    config.maxCTAs = 2;
    result = ncclCommInitRankConfig(&ranks[i].comm, n, id, i, &config);
    EXPECT(result == ncclInProgress || result == ncclSuccess);
    NCCL(poll(ranks[i].comm));
}

static void all_init_non_blocking(void)
{
    all_open();
    NCCL(ncclGetUniqueId(&id));
    all_threads(init_non_blocking);
}

static ncclResult_t started(ncclResult_t result)
{
    return result == ncclInProgress ? ncclSuccess : result;
}

/* ---- the model: rings, by hand ------------------------------------------------------------------- */

/* Of positive values. */
static double bf16_nearest(double value)
{
    float wide = (float)value, low, high;
    uint32_t bits, up;

    memcpy(&bits, &wide, sizeof(bits));
    bits &= 0xffff0000;
    up = bits + 0x10000;
    memcpy(&low, &bits, sizeof(low));
    memcpy(&high, &up, sizeof(high));
    if ((double)wide - (double)low == (double)high - (double)wide)
        return bits & 0x10000 ? (double)high : (double)low;
    return (double)wide - (double)low < (double)high - (double)wide ? (double)low : (double)high;
}

static double rounded(ncclDataType_t type, double value)
{
    switch (type) {
    case ncclFloat16:
        return (double)(_Float16)value;
    case ncclBfloat16:
        return bf16_nearest(value);
    case ncclFloat32:
        return (double)(float)value;
    default:
        return value;
    }
}

static size_t type_bytes(ncclDataType_t type)
{
    return type == ncclFloat64 || type == ncclInt64 ? 8 : type == ncclFloat32 || type == ncclInt32
                                                              ? 4 : 2;
}

static double get(ncclDataType_t type, const unsigned char *base, size_t at)
{
    const unsigned char *from = base + at * type_bytes(type);
    _Float16 half;
    uint32_t wide = 0;
    int32_t whole;
    float single;
    double value;

    switch (type) {
    case ncclFloat16:
        memcpy(&half, from, 2);
        return (double)half;
    case ncclBfloat16:
        memcpy((char *)&wide + 2, from, 2);
        memcpy(&single, &wide, 4);
        return (double)single;
    case ncclFloat32:
        memcpy(&single, from, 4);
        return (double)single;
    case ncclInt32:
        memcpy(&whole, from, 4);
        return whole;
    default:
        memcpy(&value, from, 8);
        return value;
    }
}

static void put(ncclDataType_t type, unsigned char *base, size_t at, double value)
{
    unsigned char *to = base + at * type_bytes(type);
    _Float16 half = (_Float16)value;
    float single = (float)value;
    int32_t whole = (int32_t)value;

    switch (type) {
    case ncclFloat16:
        memcpy(to, &half, 2);
        break;
    case ncclBfloat16:
        memcpy(to, (char *)&single + 2, 2); /* values given are of the type */
        break;
    case ncclFloat32:
        memcpy(to, &single, 4);
        break;
    case ncclInt32:
        memcpy(to, &whole, 4);
        break;
    default:
        memcpy(to, &value, 8);
    }
}

static void fill(ncclDataType_t type, size_t count)
{
    for (int i = 0; i < n; i++) {
        for (size_t k = 0; k < count; k++) {
            uint64_t x = (k * 2654435761u + (uint64_t)i * 40503u + 12345u) * 2862933555777941757u;
            double value = type == ncclInt32 ? (double)(x >> 44)
                                             : (double)(x >> 40) / 4096.0 / (double)(1 + i * 37);

            put(type, ranks[i].host_send, k, rounded(type, value));
        }
        CUDA(cudaMemcpy(ranks[i].send, ranks[i].host_send, count * type_bytes(type),
                        cudaMemcpyHostToDevice));
    }
}

/* Element k summed along the ring that ends at `last`. */
static double ring(ncclDataType_t type, size_t k, int last)
{
    double sum = get(type, ranks[(last + 1) % n].host_send, k);

    for (int hop = 2; hop <= n; hop++)
        sum = rounded(type, sum + get(type, ranks[(last + hop) % n].host_send, k));
    return sum;
}

static void read_back(int i, const void *from, size_t bytes)
{
    CUDA(cudaStreamSynchronize(ranks[i].stream));
    CUDA(cudaMemcpy(ranks[i].host_recv, from, bytes, cudaMemcpyDeviceToHost));
}

static void expect_value(int line, int rank, size_t k, double want, double got)
{
    if (want == got)
        return;
    fprintf(stderr, "rank %d, element %zu: %.17g, should be %.17g\n", rank, k, got, want);
    die(line, "value", 0);
}

/* ---- good programs ------------------------------------------------------------------------------- */

static const ncclDataType_t types[] = {ncclFloat32, ncclFloat16, ncclBfloat16, ncclFloat64,
                                       ncclInt32};

static void check_all_reduce(ncclDataType_t type, size_t count, bool in_place)
{
    fill(type, count);
    NCCL(ncclGroupStart());
    for (int i = 0; i < n; i++)
        NCCL(ncclAllReduce(ranks[i].send, in_place ? ranks[i].send : ranks[i].recv, count, type,
                           ncclSum, ranks[i].comm, ranks[i].stream));
    NCCL(ncclGroupEnd());
    for (int i = 0; i < n; i++) {
        read_back(i, in_place ? ranks[i].send : ranks[i].recv, count * type_bytes(type));
        for (int part = 0; part < n; part++)
            for (size_t k = count * (size_t)part / (size_t)n;
                 k < count * (size_t)(part + 1) / (size_t)n; k++)
                expect_value(__LINE__, i, k, ring(type, k, part),
                             get(type, ranks[i].host_recv, k));
    }
}

static void check_reduce_scatter(ncclDataType_t type, size_t count, bool in_place)
{
    size_t bytes = count * type_bytes(type);

    fill(type, count * (size_t)n);
    NCCL(ncclGroupStart());
    for (int i = 0; i < n; i++)
        NCCL(ncclReduceScatter(ranks[i].send,
                               in_place ? ranks[i].send + bytes * (size_t)i : ranks[i].recv, count,
                               type, ncclSum, ranks[i].comm, ranks[i].stream));
    NCCL(ncclGroupEnd());
    for (int i = 0; i < n; i++) {
        read_back(i, in_place ? ranks[i].send + bytes * (size_t)i : ranks[i].recv, bytes);
        for (size_t k = 0; k < count; k++)
            expect_value(__LINE__, i, k, ring(type, (size_t)i * count + k, i),
                         get(type, ranks[i].host_recv, k));
    }
}

static void check_copies(ncclDataType_t type, size_t count)
{
    size_t bytes = count * type_bytes(type);

    fill(type, count);
    NCCL(ncclGroupStart());
    for (int i = 0; i < n; i++)
        NCCL(ncclAllGather(ranks[i].send, ranks[i].recv, count, type, ranks[i].comm,
                           ranks[i].stream));
    NCCL(ncclGroupEnd());
    for (int i = 0; i < n; i++) {
        read_back(i, ranks[i].recv, bytes * (size_t)n);
        for (int from = 0; from < n; from++)
            EXPECT(!memcmp(ranks[i].host_recv + bytes * (size_t)from, ranks[from].host_send,
                           bytes));
    }
    NCCL(ncclGroupStart());
    for (int i = 0; i < n; i++)
        NCCL(ncclBroadcast(ranks[i].send, ranks[i].recv, count, type, n - 1, ranks[i].comm,
                           ranks[i].stream));
    NCCL(ncclGroupEnd());
    NCCL(ncclGroupStart());
    for (int i = 0; i < n; i++)
        NCCL(ncclReduce(ranks[i].send, ranks[i].recv + BYTES_MAX / 2, count, type, ncclSum, 0,
                        ranks[i].comm, ranks[i].stream));
    NCCL(ncclGroupEnd());
    for (int i = 0; i < n; i++) {
        read_back(i, ranks[i].recv, bytes);
        EXPECT(!memcmp(ranks[i].host_recv, ranks[n - 1].host_send, bytes));
    }
    read_back(0, ranks[0].recv + BYTES_MAX / 2, bytes);
    for (size_t k = 0; k < count; k++)
        expect_value(__LINE__, 0, k, ring(type, k, 0), get(type, ranks[0].host_recv, k));
}

static void case_ring(void)
{
    static const size_t counts[] = {1, 7, 1000};

    all_init();
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
            check_all_reduce(types[t], counts[c], c % 2);
            check_reduce_scatter(types[t], counts[c], c % 2 == 0);
        }
        check_copies(types[t], 333);
    }
    all_close();
}

/* Differs from the tree ((0+1)+(2+3)) somewhere: whoever takes one for the other is seen. */
static void case_not_the_tree(void)
{
    size_t count = 1000, differ = 0;

    all_init();
    EXPECT(n >= 4);
    n = 4;
    fill(ncclFloat32, count);
    for (size_t k = 0; k < count; k++) {
        float x[4];

        for (int i = 0; i < 4; i++)
            x[i] = (float)get(ncclFloat32, ranks[i].host_send, k);
        differ += (x[0] + x[1]) + (x[2] + x[3]) != (float)ring(ncclFloat32, k, 0);
    }
    printf("%zu of %zu differ\n", differ, count);
    EXPECT(differ > count / 20);
    n = RANKS_MAX;
    CUDA(cudaGetDeviceCount(&n));
    all_close();
}

static void case_operators(void)
{
    float factor = 0.5f;
    ncclRedOp_t ops[RANKS_MAX];

    all_init();
    fill(ncclFloat32, 100);
    for (int i = 0; i < n; i++)
        NCCL(ncclRedOpCreatePreMulSum(&ops[i], &factor, ncclFloat32, ncclScalarHostImmediate,
                                      ranks[i].comm));
    NCCL(ncclGroupStart());
    for (int i = 0; i < n; i++) {
        NCCL(ncclAllReduce(ranks[i].send, ranks[i].recv, 100, ncclFloat32, ops[i], ranks[i].comm,
                           ranks[i].stream));
        NCCL(ncclAllReduce(ranks[i].send, ranks[i].recv + 400, 100, ncclFloat32, ncclMax,
                           ranks[i].comm, ranks[i].stream));
    }
    NCCL(ncclGroupEnd());
    for (int i = 0; i < n; i++) {
        read_back(i, ranks[i].recv, 800);
        for (int part = 0; part < n; part++)
            for (size_t k = (size_t)(100 * part / n); k < (size_t)(100 * (part + 1) / n); k++)
                expect_value(__LINE__, i, k, ring(ncclFloat32, k, part) / 2,
                             get(ncclFloat32, ranks[i].host_recv, k));
        for (size_t k = 0; k < 100; k++) {
            double most = 0;

            for (int from = 0; from < n; from++)
                if (get(ncclFloat32, ranks[from].host_send, k) > most)
                    most = get(ncclFloat32, ranks[from].host_send, k);
            expect_value(__LINE__, i, k, most, get(ncclFloat32, ranks[i].host_recv, 100 + k));
        }
        NCCL(ncclRedOpDestroy(ops[i], ranks[i].comm));
    }
    all_close();
}

static void loop_non_blocking(int i)
{
    struct rank *rank = &ranks[i];

    for (int step = 0; step < 20; step++) {
        NCCL(started(ncclReduceScatter(rank->send, rank->recv, 100, ncclFloat32, ncclSum,
                                       rank->comm, rank->stream)));
        NCCL(poll(rank->comm));
        NCCL(started(ncclAllGather(rank->recv, rank->send, 100, ncclFloat32, rank->comm,
                                   rank->stream)));
        NCCL(poll(rank->comm));
    }
    CUDA(cudaStreamSynchronize(rank->stream));
    NCCL(started(ncclCommFinalize(rank->comm)));
    NCCL(poll(rank->comm));
}

static void case_non_blocking(void)
{
    all_init_non_blocking();
    for (int i = 0; i < n; i++)
        CUDA(cudaMemset(ranks[i].send, 0, BYTES_MAX));
    CUDA(cudaDeviceSynchronize());
    all_threads(loop_non_blocking);
    all_close();
}

static void case_sends(void)
{
    all_init();
    fill(ncclFloat32, 64);
    NCCL(ncclGroupStart());
    for (int i = 0; i < n; i++) {
        for (int peer = 0; peer < n; peer++) {
            NCCL(ncclSend(ranks[i].send + 4 * peer, 1, ncclFloat32, peer, ranks[i].comm,
                          ranks[i].stream));
            NCCL(ncclRecv(ranks[i].recv + 4 * peer, 1, ncclFloat32, peer, ranks[i].comm,
                          ranks[i].stream));
        }
    }
    NCCL(ncclGroupEnd());
    for (int i = 0; i < n; i++) {
        read_back(i, ranks[i].recv, 4 * (size_t)n);
        for (int from = 0; from < n; from++)
            expect_value(__LINE__, i, (size_t)from,
                         get(ncclFloat32, ranks[from].host_send, (size_t)i),
                         get(ncclFloat32, ranks[i].host_recv, (size_t)from));
    }
    all_close();
}

static void case_split(void)
{
    ncclComm_t halves[RANKS_MAX], none[RANKS_MAX];
    int count = 0, rank = 0;

    all_init();
    fill(ncclInt32, 10);
    NCCL(ncclGroupStart());
    for (int i = 0; i < n; i++) /* odd ones and even ones, the last first */
        NCCL(ncclCommSplit(ranks[i].comm, i % 2, -i, &halves[i], NULL));
    NCCL(ncclGroupEnd());
    NCCL(ncclCommCount(halves[0], &count));
    NCCL(ncclCommUserRank(halves[0], &rank));
    EXPECT(count == (n + 1) / 2 && rank == count - 1);
    NCCL(ncclGroupStart());
    for (int i = 0; i < n; i++)
        NCCL(ncclCommSplit(ranks[i].comm, NCCL_SPLIT_NOCOLOR, 0, &none[i], NULL));
    NCCL(ncclGroupEnd());
    NCCL(ncclGroupStart());
    for (int i = 0; i < n; i++)
        NCCL(ncclAllReduce(ranks[i].send, ranks[i].recv, 10, ncclInt32, ncclSum, halves[i],
                           ranks[i].stream));
    NCCL(ncclGroupEnd());
    for (int i = 0; i < n; i++) {
        double want = 0;

        EXPECT(!none[i]);
        read_back(i, ranks[i].recv, 40);
        for (int from = i % 2; from < n; from += 2)
            want += get(ncclInt32, ranks[from].host_send, 3);
        expect_value(__LINE__, i, 3, want, get(ncclInt32, ranks[i].host_recv, 3));
    }
    for (int i = 0; i < n; i++)
        NCCL(ncclCommDestroy(halves[i]));
    all_close();
}

static void case_register(void)
{
    void *memory[RANKS_MAX], *handles[RANKS_MAX];

    all_init();
    for (int i = 0; i < n; i++) {
        CUDA(cudaSetDevice(i));
        NCCL(ncclMemAlloc(&memory[i], 4096));
        NCCL(ncclCommRegister(ranks[i].comm, memory[i], 4096, &handles[i]));
    }
    NCCL(ncclGroupStart());
    for (int i = 0; i < n; i++)
        NCCL(ncclAllReduce(ranks[i].send, memory[i], 10, ncclInt32, ncclSum, ranks[i].comm,
                           ranks[i].stream));
    NCCL(ncclGroupEnd());
    all_sync();
    for (int i = 0; i < n; i++) {
        NCCL(ncclCommDeregister(ranks[i].comm, handles[i]));
        NCCL(ncclMemFree(memory[i]));
    }
    all_close();
}

/* One process per GPU, the unique id through a pipe. */
static void process_rank(int i, int from)
{
    struct rank *rank = &ranks[i];

    EXPECT(read(from, &id, sizeof(id)) == (ssize_t)sizeof(id));
    rank_open(i);
    put(ncclFloat32, rank->host_send, 0, i + 1);
    CUDA(cudaMemcpy(rank->send, rank->host_send, 4, cudaMemcpyHostToDevice));
    NCCL(ncclCommInitRank(&rank->comm, n, id, i));
    for (int step = 0; step < 5; step++)
        NCCL(ncclAllReduce(rank->send, rank->recv, 1, ncclFloat32, ncclSum, rank->comm,
                           rank->stream));
    read_back(i, rank->recv, 4);
    expect_value(__LINE__, i, 0, n * (n + 1) / 2.0, get(ncclFloat32, rank->host_recv, 0));
    NCCL(ncclCommDestroy(rank->comm));
    rank_close(i);
}

static void case_processes(void)
{
    pid_t pids[RANKS_MAX];
    int to[2];

    EXPECT(!pipe(to));
    n = 3;
    for (int i = 0; i < n; i++) {
        pids[i] = fork();
        if (!pids[i]) {
            process_rank(i, to[0]);
            exit(0);
        }
    }
    NCCL(ncclGetUniqueId(&id));
    for (int i = 0; i < n; i++)
        EXPECT(write(to[1], &id, sizeof(id)) == (ssize_t)sizeof(id));
    for (int i = 0; i < n; i++) {
        int status = 0;

        waitpid(pids[i], &status, 0);
        EXPECT(!status);
    }
}

/* ---- ends ---------------------------------------------------------------------------------------- */

static void all_reduce_one(int i)
{
    NCCL(started(ncclAllReduce(ranks[i].send, ranks[i].recv, 10, ncclFloat32, ncclSum,
                               ranks[i].comm, ranks[i].stream)));
}

static void all_reduce_polled(int i)
{
    all_reduce_one(i);
    NCCL(poll(ranks[i].comm));
}

static bool stream_busy(int i)
{
    cudaError_t error = cudaStreamQuery(ranks[i].stream);

    EXPECT(error == cudaSuccess || error == cudaErrorNotReady);
    return error == cudaErrorNotReady;
}

static void abort_one(int i)
{
    NCCL(ncclCommAbort(ranks[i].comm));
}

static void abort_and_close(void)
{
    all_threads(abort_one);
    for (int i = 0; i < n; i++)
        rank_close(i); /* synchronizes: streams are free */
}

/* Rank 0 stays away: nothing completes until all have aborted. */
static void case_abort(void)
{
    all_init_non_blocking();
    all_threads(all_reduce_polled);
    all_sync();
    for (int i = 1; i < n; i++)
        all_reduce_one(i);
    for (int i = 1; i < n; i++)
        NCCL(poll(ranks[i].comm));
    usleep(50000);
    for (int i = 1; i < n; i++)
        EXPECT(stream_busy(i));
    abort_and_close();
}

static void case_hang(void)
{
    all_init_non_blocking();
    all_threads(all_reduce_polled);
    usleep(50000);
    for (int i = 0; i < n; i++)
        EXPECT(stream_busy(i));
    abort_and_close();
}

static void case_async_error(void)
{
    ncclResult_t result = ncclSuccess;

    all_init_non_blocking();
    all_threads(all_reduce_one);
    for (int i = 0; i < n; i++)
        poll(ranks[i].comm); /* the error may be there already */
    for (int i = 0; i < 1000 && result == ncclSuccess; i++) {
        usleep(1000);
        NCCL(ncclCommGetAsyncError(ranks[1].comm, &result));
    }
    EXPECT(result == ncclRemoteError);
    EXPECT(stream_busy(1));
    EXPECT(ncclAllReduce(ranks[1].send, ranks[1].recv, 10, ncclFloat32, ncclSum, ranks[1].comm,
                         ranks[1].stream) == ncclRemoteError);
    abort_and_close();
}

static void init_only(int i)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = 0;
    NCCL(started(ncclCommInitRankConfig(&ranks[i].comm, n, id, i, &config)));
}

static void case_init_hang(void)
{
    ncclResult_t result;

    all_open();
    NCCL(ncclGetUniqueId(&id));
    all_threads(init_only);
    usleep(50000);
    NCCL(ncclCommGetAsyncError(ranks[0].comm, &result));
    EXPECT(result == ncclInProgress);
    abort_and_close();
}

static void case_init_error(void)
{
    all_open();
    NCCL(ncclGetUniqueId(&id));
    all_threads(init_only);
    for (int i = 0; i < n; i++)
        EXPECT(poll(ranks[i].comm) == ncclSystemError);
    abort_and_close();
}

static void case_call_error(void)
{
    all_init_non_blocking();
    EXPECT(ncclAllReduce(ranks[0].send, ranks[0].recv, 10, ncclFloat32, ncclSum, ranks[0].comm,
                         ranks[0].stream) == ncclUnhandledCudaError);
    abort_and_close();
}

/* A killed process leaves its peer hanging until that aborts. */
static void case_dead_peer(void)
{
    int to[2], status = 0;
    pid_t pid;

    EXPECT(!pipe(to));
    n = 2;
    pid = fork();
    if (!pid) {
        EXPECT(read(to[0], &id, sizeof(id)) == (ssize_t)sizeof(id));
        rank_open(1);
        NCCL(ncclCommInitRank(&ranks[1].comm, n, id, 1));
        abort(); /* without a word */
    }
    rank_open(0);
    NCCL(ncclGetUniqueId(&id));
    EXPECT(write(to[1], &id, sizeof(id)) == (ssize_t)sizeof(id));
    init_non_blocking(0);
    waitpid(pid, &status, 0);
    all_reduce_one(0);
    usleep(100000);
    NCCL(ncclCommAbort(ranks[0].comm));
    rank_close(0);
}

static void case_version(void)
{
    int version = 0;

    NCCL(ncclGetVersion(&version));
    printf("%d\n", version);
}

/* ---- programs that break a rule ------------------------------------------------------------------- */

static void mismatched(int i)
{
    NCCL(started(ncclAllReduce(ranks[i].send, ranks[i].recv, i ? 10 : 11, ncclFloat32, ncclSum,
                               ranks[i].comm, ranks[i].stream)));
    NCCL(poll(ranks[i].comm));
}

static void case_bad_count(void)
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
            NCCL(started(ncclAllReduce(rank->send, rank->recv, 10, ncclFloat32, ncclSum,
                                       rank->comm, rank->stream)));
        else
            NCCL(started(ncclAllGather(rank->send, rank->recv, 10, ncclFloat32, rank->comm,
                                       rank->stream)));
        NCCL(poll(rank->comm));
    }
}

static void case_bad_order(void)
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

static void case_bad_overlap(void)
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

static void case_bad_unpolled(void)
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

static void case_bad_in_progress(void)
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

static void case_bad_use_after_abort(void)
{
    all_init();
    all_threads(abort_one);
    EXPECT(ncclAllReduce(ranks[0].send, ranks[0].recv, 10, ncclFloat32, ncclSum, ranks[0].comm,
                         ranks[0].stream) == ncclInvalidArgument);
    for (int i = 0; i < n; i++)
        rank_close(i);
}

static void case_bad_duplicate_gpu(void)
{
    int devices[2] = {0, 0};
    ncclComm_t comms[2];

    EXPECT(ncclCommInitAll(comms, 2, devices) == ncclInvalidUsage);
    for (int i = 0; i < 2; i++)
        NCCL(ncclCommAbort(comms[i]));
}

static void case_bad_leak(void)
{
    all_init();
    NCCL(ncclCommDestroy(ranks[0].comm));
    for (int i = 0; i < n; i++)
        rank_close(i);
}

static void case_bad_registration(void)
{
    void *handle;

    all_init();
    NCCL(ncclCommRegister(ranks[0].comm, ranks[0].send, 4096, &handle));
    all_close();
}

static void in_order_of(int i)
{
    NCCL(started(ncclAllReduce(ranks[i].send, ranks[i].recv, 10, ncclFloat32, ncclSum,
                               ranks[i].comm, ranks[i].stream)));
}

static _Atomic int inside;

static void case_bad_threads_one(int i)
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

static void case_bad_threads(void)
{
    all_init_non_blocking();
    all_threads(case_bad_threads_one);
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

static void case_bad_launch_order(void)
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

static void case_bad_device(void)
{
    all_init_non_blocking();
    EXPECT(ncclAllReduce(ranks[0].send, ranks[0].recv, 10, ncclFloat32, ncclSum, ranks[0].comm,
                         ranks[1].stream) == ncclInvalidArgument);
    abort_and_close();
}

static void case_bad_memory(void)
{
    all_init_non_blocking();
    EXPECT(ncclAllReduce(ranks[1].send, ranks[0].recv, 10, ncclFloat32, ncclSum, ranks[0].comm,
                         ranks[0].stream) != ncclInProgress);
    EXPECT(ncclAllReduce(ranks[0].send + BYTES_MAX, ranks[0].recv, 10, ncclFloat32, ncclSum,
                         ranks[0].comm, ranks[0].stream) != ncclInProgress);
    abort_and_close();
}

/* A receive buffer goes before its collective, which NCCL holds back, is in the stream. */
static void case_bad_free(void)
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

/* ---- choice -------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
#define CASE(name) {#name, case_##name}
    CASE(ring), CASE(not_the_tree), CASE(operators), CASE(non_blocking), CASE(sends), CASE(split),
    CASE(register), CASE(processes), CASE(abort), CASE(hang), CASE(async_error), CASE(init_hang),
    CASE(init_error), CASE(call_error), CASE(dead_peer), CASE(version), CASE(bad_count),
    CASE(bad_order), CASE(bad_overlap), CASE(bad_unpolled), CASE(bad_in_progress),
    CASE(bad_use_after_abort), CASE(bad_duplicate_gpu), CASE(bad_leak), CASE(bad_registration),
    CASE(bad_threads), CASE(bad_launch_order), CASE(bad_device), CASE(bad_memory), CASE(bad_free),
#undef CASE
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc == 2 && i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(cases[i].name, argv[1]))
            continue;
        alarm(60); /* nothing here may take longer */
        cases[i].run();
        return 0;
    }
    fputs("usage: nccl_cases CASE\n", stderr);
    return 2;
}

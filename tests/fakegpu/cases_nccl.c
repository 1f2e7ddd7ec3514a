/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_cases CASE: one small program against libnccl's double, for test_nccl.py, which knows what
 * the fake GPU has to say to each. Exits with 0 when the program saw what it should, which for
 * programs that break a rule may be anything.
 */
#include "tests/fakegpu/cases_nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the model: rings, by hand --------------------------------------------------------------- */

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
    return type == ncclFloat64 || type == ncclInt64   ? 8
           : type == ncclFloat32 || type == ncclInt32 ? 4
                                                      : 2;
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

/* ---- good programs --------------------------------------------------------------------------- */

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
                expect_value(__LINE__, i, k, ring(type, k, part), get(type, ranks[i].host_recv, k));
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
            EXPECT(
                !memcmp(ranks[i].host_recv + bytes * (size_t)from, ranks[from].host_send, bytes));
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
        NCCL(started(
            ncclAllGather(rank->recv, rank->send, 100, ncclFloat32, rank->comm, rank->stream)));
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
static void process_rank(int i, int device, int from)
{
    struct rank *rank = &ranks[i];

    EXPECT(read(from, &id, sizeof(id)) == (ssize_t)sizeof(id));
    rank_open(i, device);
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

static void processes(int count, int per_node)
{
    pid_t pids[RANKS_MAX];
    int to[2];

    EXPECT(!pipe(to));
    n = count;
    for (int i = 0; i < n; i++) {
        pids[i] = fork();
        if (!pids[i]) {
            if (i >= per_node)
                setenv("FAKEGPU_NODE", "1", 1);
            process_rank(i, i % per_node, to[0]);
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

static void case_processes(void)
{
    processes(3, 3);
}

/* Two nodes of two GPUs each. */
static void case_nodes(void)
{
    processes(4, 2);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static bool stream_busy(int i)
{
    cudaError_t error = cudaStreamQuery(ranks[i].stream);

    EXPECT(error == cudaSuccess || error == cudaErrorNotReady);
    return error == cudaErrorNotReady;
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

/* What runs ends, and the communicator can be destroyed. */
static void revoke_one(int i)
{
    all_reduce_one(i);
    NCCL(poll(ranks[i].comm));
    NCCL(started(ncclCommRevoke(ranks[i].comm, NCCL_REVOKE_DEFAULT)));
    NCCL(poll(ranks[i].comm));
    CUDA(cudaStreamSynchronize(ranks[i].stream));
}

static void case_revoke(void)
{
    all_init_non_blocking();
    all_threads(all_reduce_polled);
    all_threads(revoke_one);
    all_close();
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
        rank_open(1, 1);
        NCCL(ncclCommInitRank(&ranks[1].comm, n, id, 1));
        abort(); /* without a word */
    }
    rank_open(0, 0);
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

/* ---- choice ---------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
#define CASE(name) {#name, case_##name},
    CASE(ring) CASE(not_the_tree) CASE(operators) CASE(non_blocking) CASE(sends) CASE(split)
    CASE(register) CASE(processes) CASE(nodes) CASE(revoke) CASE(abort) CASE(hang)
    CASE(async_error) CASE(init_hang) CASE(init_error) CASE(call_error) CASE(dead_peer)
    CASE(version) BAD_CASES(CASE)
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

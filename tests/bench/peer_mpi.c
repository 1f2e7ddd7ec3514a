/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gwbench's peer: the same collective by an MPI library, or by oneCCL beside one (PEER_ONECCL, with
 * peer_oneccl.cpp). gwbench carries this text, compiles it and starts it for each round:
 *
 *   peer_mpi reduce-scatter|all-gather|all-reduce|latency fp32|fp16|bf16 BYTES ITERATIONS
 *            BUDGET_NS [plant]
 *
 * BYTES as gwbench means them; ITERATIONS 0: as many as fit into BUDGET_NS. Rank 0 prints "version
 * TEXT", then "lacks TEXT" where the library has no such op or type, or "iterations N", a line "ns
 * N" per timed op (of the slowest rank), and "ok" or "wrong ...". Values are gwbench's
 * (client/bench/values.h); a sum of half types may be rounded at every hop. One thread per rank.
 */
#define _GNU_SOURCE
#include <math.h>
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PERIOD = 61, SPOTS = 16, ITERATIONS_MAX = 20000, WARM_UPS = 5, FINALIZE_S = 3 };

enum op { REDUCE_SCATTER, ALL_GATHER, ALL_REDUCE };
enum type { FP32, FP16, BF16 };

struct run {
    enum op op;
    enum type type;
    int rank, ranks;
    size_t element;
    void *send, *recv;
    uint64_t count; /* of the call */
    uint64_t send_count, recv_count;
};

#ifdef PEER_ONECCL
const char *peer_oneccl_begin(int rank, int ranks);
int peer_oneccl(int op, int type, const void *send, void *recv, uint64_t count);
void peer_oneccl_end(void);
#endif

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- values ---------------------------------------------------------------------------------- */

static void put(const struct run *run, void *to, uint64_t at, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    if (run->type == FP32)
        ((float *)to)[at] = value;
    else if (run->type == FP16)
        ((_Float16 *)to)[at] = (_Float16)value;
    else
        ((uint16_t *)to)[at] = (uint16_t)(bits >> 16); /* what is sent fits */
}

static float get(const struct run *run, const void *from, uint64_t at)
{
    uint32_t bits;
    float value;

    if (run->type == FP32)
        return ((const float *)from)[at];
    if (run->type == FP16)
        return (float)((const _Float16 *)from)[at];
    bits = (uint32_t)((const uint16_t *)from)[at] << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static int factor(const struct run *run, int rank)
{
    return 1 + (run->type == FP32 ? rank : rank % 4);
}

static float expected(const struct run *run, uint64_t at)
{
    uint64_t first = run->op == REDUCE_SCATTER ? (uint64_t)run->rank * run->count : 0;
    int sum = 0;

    if (run->op == ALL_GATHER) {
        sum = factor(run, (int)(at / run->count));
    } else {
        for (int rank = 0; rank < run->ranks; rank++)
            sum += factor(run, rank);
    }
    return (float)sum * (float)(1 + (first + at) % PERIOD);
}

/* Half a unit in the last place at each of ranks - 1 additions, and a little. */
static int is_right(const struct run *run, uint64_t at)
{
    float must = expected(run, at), is = get(run, run->recv, at);
    float rounding = run->type == FP16 ? 1.0f / 2048 : 1.0f / 256;

    if (run->type == FP32 || run->op == ALL_GATHER)
        return is == must;
    return fabsf(is - must) <= must * rounding * (float)run->ranks;
}

static uint64_t spot(const struct run *run, uint64_t index)
{
    uint64_t last = run->recv_count - 1;

    return last / (SPOTS - 1) * index + last % (SPOTS - 1) * index / (SPOTS - 1);
}

static uint64_t check_all(const struct run *run)
{
    for (uint64_t i = 0; i < run->recv_count; i++) {
        if (!is_right(run, i))
            return i;
    }
    return UINT64_MAX;
}

static uint64_t check_spots(const struct run *run)
{
    for (uint64_t i = 0; i < SPOTS; i++) {
        if (!is_right(run, spot(run, i)))
            return spot(run, i);
    }
    return UINT64_MAX;
}

/* ---- an op ----------------------------------------------------------------------------------- */

#ifdef PEER_ONECCL
static const char *lacks(const struct run *run)
{
    (void)run;
    return NULL;
}

static int collective(const struct run *run)
{
    return peer_oneccl(run->op, run->type, run->send, run->recv, run->count);
}
#else
/* MPICH 4.0 names an fp16 whose sums end the process; who has both types can add them. */
#if defined(MPIX_C_FLOAT16) && defined(MPIX_C_BF16)
#define HALVES 1
#else
#define HALVES 0
#define MPIX_C_FLOAT16 MPI_DATATYPE_NULL
#define MPIX_C_BF16 MPI_DATATYPE_NULL
#endif

static const char *lacks(const struct run *run)
{
    return run->type != FP32 && !HALVES ? "it names no such type, or not both half types" : NULL;
}

static int collective(const struct run *run)
{
    int count = (int)run->count;
    MPI_Datatype type = run->type == FP32   ? MPI_FLOAT
                        : run->type == FP16 ? MPIX_C_FLOAT16
                                            : MPIX_C_BF16;

    if (run->op == REDUCE_SCATTER)
        return MPI_Reduce_scatter_block(run->send, run->recv, count, type, MPI_SUM, MPI_COMM_WORLD);
    if (run->op == ALL_GATHER)
        return MPI_Allgather(run->send, count, type, run->recv, count, type, MPI_COMM_WORLD);
    return MPI_Allreduce(run->send, run->recv, count, type, MPI_SUM, MPI_COMM_WORLD);
}
#endif

/* *bad becomes the index of a wrong value, if any. */
static uint64_t one_op(const struct run *run, int all, uint64_t *bad)
{
    uint64_t began, ns, at;

    if (all)
        memset(run->recv, 0xff, run->recv_count * run->element);
    for (uint64_t i = 0; i < SPOTS; i++)
        put(run, run->recv, spot(run, i), NAN);
    began = now_ns();
    if (collective(run) != MPI_SUCCESS)
        MPI_Abort(MPI_COMM_WORLD, 70);
    ns = now_ns() - began;
    at = all ? check_all(run) : check_spots(run);
    if (*bad == UINT64_MAX)
        *bad = at;
    return ns;
}

static int set_up(struct run *run, char **argv)
{
    uint64_t numel, part, first = 0;

    run->op = strcmp(argv[1], "reduce-scatter") == 0 ? REDUCE_SCATTER
              : strcmp(argv[1], "all-gather") == 0   ? ALL_GATHER
                                                     : ALL_REDUCE;
    run->type = strcmp(argv[2], "fp32") == 0 ? FP32 : strcmp(argv[2], "fp16") == 0 ? FP16 : BF16;
    run->element = run->type == FP32 ? sizeof(float) : sizeof(uint16_t);
    numel = strtoull(argv[3], NULL, 10) / run->element;
    part = numel / (uint64_t)run->ranks;
    run->count = run->send_count = run->recv_count = numel;
    if (run->op == REDUCE_SCATTER)
        run->count = run->recv_count = part;
    if (run->op == ALL_GATHER) {
        run->count = run->send_count = part;
        first = (uint64_t)run->rank * part;
    }
    run->send = malloc(run->send_count * run->element);
    run->recv = malloc(run->recv_count * run->element);
    if (run->send == NULL || run->recv == NULL)
        return -1;
    for (uint64_t i = 0; i < run->send_count; i++)
        put(run, run->send, i, (float)factor(run, run->rank) * (float)(1 + (first + i) % PERIOD));
    if (run->rank == 0 && argv[6] != NULL)
        put(run, run->send, run->send_count / 2, 2.0f * get(run, run->send, run->send_count / 2));
    memset(run->recv, 0, run->recv_count * run->element);
    return 0;
}

/* ---- a round --------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* Rank 0 decides for all. */
static uint64_t choose(const char *wanted, const char *budget, uint64_t one_ns)
{
    unsigned long long n = strtoull(wanted, NULL, 10);

    if (n == 0)
        n = strtoull(budget, NULL, 10) / (one_ns + 1);
    n = n < 1 ? 1 : n > ITERATIONS_MAX ? ITERATIONS_MAX : n;
    MPI_Bcast(&n, 1, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD);
    return n;
}

static void print(const unsigned long long *slowest, uint64_t iterations, unsigned long long bad)
{
    printf("iterations %llu\n", (unsigned long long)iterations);
    for (uint64_t i = 0; i < iterations; i++)
        printf("ns %llu\n", slowest[i]);
    if (bad == UINT64_MAX)
        printf("ok\n");
    else
        printf("wrong element %llu\n", bad);
}

static void run_round(const struct run *run, char **argv)
{
    static unsigned long long times[ITERATIONS_MAX], slowest[ITERATIONS_MAX];
    uint64_t bad = UINT64_MAX, warm[WARM_UPS], iterations;
    unsigned long long mine, least = 0;

    for (int i = 0; i < WARM_UPS; i++)
        warm[i] = one_op(run, 0, &bad);
    qsort(warm, WARM_UPS, sizeof warm[0], by_size);
    iterations = choose(argv[4], argv[5], warm[WARM_UPS / 2]);
    for (uint64_t i = 0; i < iterations; i++)
        times[i] = one_op(run, 0, &bad);
    (void)one_op(run, 1, &bad);
    MPI_Reduce(times, slowest, (int)iterations, MPI_UNSIGNED_LONG_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
    mine = bad;
    MPI_Reduce(&mine, &least, 1, MPI_UNSIGNED_LONG_LONG, MPI_MIN, 0, MPI_COMM_WORLD);
    if (run->rank == 0)
        print(slowest, iterations, least);
}

/* The first line, without the columns that some set it in. */
static void print_version(const struct run *run)
{
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;

    MPI_Get_library_version(library, &length);
    library[strcspn(library, "\n")] = 0;
    for (char *tab = library; (tab = strchr(tab, '\t')) != NULL;)
        *tab = ' ';
#ifdef PEER_ONECCL
    const char *oneccl = peer_oneccl_begin(run->rank, run->ranks);

    (void)snprintf(library, sizeof library, "%s", oneccl);
#endif
    if (run->rank == 0)
        printf("version %s\n", library);
}

static void end_now(int number)
{
    (void)number;
    _exit(0);
}

int main(int argc, char **argv)
{
    struct run run = {.rank = 0};
    const char *lacking;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &run.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &run.ranks);
    if (argc < 6 || set_up(&run, argv) < 0)
        MPI_Abort(MPI_COMM_WORLD, 64);
    print_version(&run);
    lacking = lacks(&run);
    if (lacking == NULL)
        run_round(&run, argv);
    else if (run.rank == 0)
        printf("lacks %s\n", lacking);
    free(run.send);
    free(run.recv);
#ifdef PEER_ONECCL
    peer_oneccl_end();
#endif
    /* MPICH 4.0 over UCX and TCP may wait here for ever: all has been said by then. */
    (void)fflush(stdout);
    (void)signal(SIGALRM, end_now);
    (void)alarm(FINALIZE_S);
    MPI_Finalize();
    return 0;
}

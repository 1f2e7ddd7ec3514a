/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gwbench's peer: the same collective by an MPI library. gwbench carries this text, compiles it
 * with mpicc and starts it with mpirun for each round:
 *
 *   peer_mpi reduce-scatter|all-gather|all-reduce|latency BYTES ITERATIONS BUDGET_NS [plant]
 *
 * BYTES as gwbench means them; ITERATIONS 0: as many as fit into BUDGET_NS. Rank 0 prints
 * "iterations N", a line "ns N" per timed op (of the slowest rank), then "ok" or "wrong ...".
 * Values and checks are gwbench's (client/bench/values.h). One thread per rank.
 */
#define _GNU_SOURCE
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PERIOD = 251, SPOTS = 16, ITERATIONS_MAX = 20000, WARM_UPS = 2 };

enum op { REDUCE_SCATTER, ALL_GATHER, ALL_REDUCE };

struct run {
    enum op op;
    int rank, ranks;
    float *send, *recv;
    uint64_t count; /* of the call */
    uint64_t send_count, recv_count;
};

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t spot(const struct run *run, uint64_t index)
{
    uint64_t last = run->recv_count - 1;

    return last / (SPOTS - 1) * index + last % (SPOTS - 1) * index / (SPOTS - 1);
}

static float expected(const struct run *run, uint64_t at)
{
    uint64_t first = run->op == REDUCE_SCATTER ? (uint64_t)run->rank * run->count : 0;
    int factor = run->ranks * (run->ranks + 1) / 2;

    if (run->op == ALL_GATHER)
        factor = (int)(at / run->count) + 1;
    return (float)factor * (float)(1 + (first + at) % PERIOD);
}

static uint64_t check_all(const struct run *run)
{
    for (uint64_t i = 0; i < run->recv_count; i++) {
        if (!(run->recv[i] == expected(run, i)))
            return i;
    }
    return UINT64_MAX;
}

static uint64_t check_spots(const struct run *run)
{
    for (uint64_t i = 0; i < SPOTS; i++) {
        if (!(run->recv[spot(run, i)] == expected(run, spot(run, i))))
            return spot(run, i);
    }
    return UINT64_MAX;
}

static int collective(const struct run *run)
{
    int count = (int)run->count;

    if (run->op == REDUCE_SCATTER)
        return MPI_Reduce_scatter_block(run->send, run->recv, count, MPI_FLOAT, MPI_SUM,
                                        MPI_COMM_WORLD);
    if (run->op == ALL_GATHER)
        return MPI_Allgather(run->send, count, MPI_FLOAT, run->recv, count, MPI_FLOAT,
                             MPI_COMM_WORLD);
    return MPI_Allreduce(run->send, run->recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* *bad becomes the index of a wrong value, if any. */
static uint64_t one_op(const struct run *run, int all, uint64_t *bad)
{
    uint64_t began, ns, at;

    if (all)
        memset(run->recv, 0xff, run->recv_count * sizeof(float));
    for (uint64_t i = 0; i < SPOTS; i++)
        run->recv[spot(run, i)] = NAN;
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
    uint64_t numel = strtoull(argv[2], NULL, 10) / sizeof(float);
    uint64_t part = numel / (uint64_t)run->ranks, first = 0;

    run->op = strcmp(argv[1], "reduce-scatter") == 0 ? REDUCE_SCATTER
              : strcmp(argv[1], "all-gather") == 0   ? ALL_GATHER
                                                     : ALL_REDUCE;
    run->count = run->send_count = run->recv_count = numel;
    if (run->op == REDUCE_SCATTER)
        run->count = run->recv_count = part;
    if (run->op == ALL_GATHER) {
        run->count = run->send_count = part;
        first = (uint64_t)run->rank * part;
    }
    run->send = malloc(run->send_count * sizeof(float));
    run->recv = malloc(run->recv_count * sizeof(float));
    if (run->send == NULL || run->recv == NULL)
        return -1;
    for (uint64_t i = 0; i < run->send_count; i++)
        run->send[i] = (float)(run->rank + 1) * (float)(1 + (first + i) % PERIOD);
    if (run->rank == 0 && argv[5] != NULL)
        run->send[run->send_count / 2] += 1.0f;
    memset(run->recv, 0, run->recv_count * sizeof(float));
    return 0;
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

int main(int argc, char **argv)
{
    static unsigned long long times[ITERATIONS_MAX], slowest[ITERATIONS_MAX];
    struct run run = {.rank = 0};
    uint64_t bad = UINT64_MAX, one_ns = 0, iterations;
    unsigned long long mine, least = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &run.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &run.ranks);
    if (argc < 5 || set_up(&run, argv) < 0)
        MPI_Abort(MPI_COMM_WORLD, 64);
    for (int i = 0; i < WARM_UPS; i++)
        one_ns = one_op(&run, 0, &bad);
    iterations = choose(argv[3], argv[4], one_ns);
    for (uint64_t i = 0; i < iterations; i++)
        times[i] = one_op(&run, 0, &bad);
    (void)one_op(&run, 1, &bad);
    MPI_Reduce(times, slowest, (int)iterations, MPI_UNSIGNED_LONG_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
    mine = bad;
    MPI_Reduce(&mine, &least, 1, MPI_UNSIGNED_LONG_LONG, MPI_MIN, 0, MPI_COMM_WORLD);
    if (run.rank == 0)
        print(slowest, iterations, least);
    free(run.send);
    free(run.recv);
    MPI_Finalize();
    return 0;
}

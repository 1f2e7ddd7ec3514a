/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gwbench: what its files share. The coordinator (main.c, one thread) starts a private gradwired,
 * workers (processes: one per rank, and one for the machine's limit) and peers, gives each its
 * rounds in turn, and prints. It never calls libgradwire itself, so that it may fork.
 *
 * Bandwidth by nccl-tests' definitions (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): `bytes`
 * is the larger buffer of a rank (reduce-scatter: send; all-gather: recv; all-reduce: both);
 * algbw = bytes / time; busbw = algbw * (n-1)/n for reduce-scatter and all-gather, algbw * 2(n-1)/n
 * for all-reduce. A time is one op's, from the call to its end on the slowest rank; ops follow each
 * other without a barrier between.
 */
#ifndef GW_BENCH_H
#define GW_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sysexits.h>

#include "client/bench/worker.h"

enum {
    EX_WRONG = 1, /* values were not what they must be */
    BENCH_LIST = 16,
    BENCH_SYSTEMS = 4,
};

enum bench_op {
    BENCH_REDUCE_SCATTER,
    BENCH_ALL_GATHER,
    BENCH_ALL_REDUCE,
    BENCH_LATENCY, /* an all-reduce, 4 KiB unless told */
    BENCH_FETCH,
    BENCH_STEP,
    BENCH_OPS
};

enum bench_variant {
    VARIANT_NONE,
    VARIANT_MAPPED,
    VARIANT_PRIVATE,
    VARIANT_MISS,
    VARIANT_HIT,
    VARIANT_STAGE0,
    VARIANT_STAGE1,
    VARIANT_STAGE2,
    VARIANT_STAGE3,
    VARIANTS
};

extern const char *const bench_op_names[BENCH_OPS];
extern const char *const bench_variant_names[VARIANTS]; /* NULL: none */

struct bench_options {
    enum bench_op op;
    uint64_t ranks[BENCH_LIST], sizes[BENCH_LIST];
    uint32_t ranks_count, sizes_count;
    uint64_t iterations; /* per case and system; 0: by time */
    int64_t budget_ns;   /* per case and system */
    uint64_t rounds;
    bool json, peers, is_private;
    const char *socket, *gradwired, *engine;
};

struct bench_case {
    enum bench_op op;
    enum bench_variant variant;
    uint32_t ranks;
    uint64_t bytes; /* after rounding down to whole elements of all ranks */
};

/* All samples of one system in one case. */
struct bench_samples {
    uint64_t *ns;
    size_t count, room;
};

/* 0, an exit code after a message, or -1: --help or --version was printed, end with 0. */
int options_parse(int argc, char **argv, struct bench_options *ret_options);

/* daemon.c: a gradwired of our own under `directory`; its socket's path. Exit codes. */
struct bench_daemon {
    int pid; /* 0: none */
    char runtime[128], socket[160];
};
int daemon_start(struct bench_daemon *daemon, const char *directory,
                 const struct bench_options *options);
/* When its engines have gone; false: something did not end by itself. */
bool daemon_stop(struct bench_daemon *daemon);
void remove_tree(const char *path);

/* output.c */
void samples_add(struct bench_samples *samples, uint64_t ns);
void samples_clear(struct bench_samples *samples);
void output_begin(const struct bench_options *options);
void output_row(const struct bench_options *options, const struct bench_case *what,
                const char *system, struct bench_samples *samples, uint64_t limit_p50_ns);
/* 0, or EX_IOERR. */
int output_end(const struct bench_options *options);
uint64_t samples_percentile(struct bench_samples *samples, uint32_t percent);

uint64_t bench_now_ns(void);
/* Set by SIGINT, SIGTERM and SIGHUP: every wait of the coordinator ends. */
bool bench_stopped(void);
void bench_nap(void);

#endif

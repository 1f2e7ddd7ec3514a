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
    RANKS_MAX = 64,
    BENCH_READY_PARAMS = 1000,
};

enum bench_op {
    BENCH_REDUCE_SCATTER,
    BENCH_ALL_GATHER,
    BENCH_ALL_REDUCE,
    BENCH_LATENCY, /* an all-reduce, 4 KiB unless told */
    BENCH_FETCH,
    BENCH_STEP,
    BENCH_READY,
    BENCH_STORM,
    BENCH_IDLE,
    BENCH_OPS
};

enum bench_variant {
    VARIANT_NONE,
    VARIANT_GRADIENTS, /* in turns with others */
    VARIANT_MAPPED,
    VARIANT_PRIVATE,
    VARIANT_MISS,
    VARIANT_HIT,
    VARIANT_STAGE0,
    VARIANT_STAGE1,
    VARIANT_STAGE2,
    VARIANT_STAGE3,
    VARIANT_OVERLAP,
    VARIANT_COVERED,
    VARIANT_OVERLAP_OFF, /* in turns with others */
    VARIANT_COVERED_STAGE3,
    VARIANT_NOTHING_SENT,
    VARIANT_CREATE,
    VARIANT_JOIN,
    VARIANT_COMPLETE,
    VARIANT_GRADWIRED,
    VARIANT_GRADWIRED_JOB,
    VARIANT_ENGINE,
    VARIANT_BLOCKS, /* where ranks are, with --nodes */
    VARIANT_DEALT,
    VARIANTS
};

/* What an op is, once for options, cases, output and plot. */
struct bench_op_traits {
    const char *name;
    const char *sizes;         /* unless told; NULL: it has none */
    uint32_t granule;          /* values that a size is rounded down to: so many, */
    bool per_rank;             /* for each rank */
    bool has_limit, has_peers; /* also measured there */
    bool has_bandwidth;
    bool has_nodes;                 /* also measured from node to node */
    enum bench_variant first, last; /* its variants, one case each */
};
extern const struct bench_op_traits bench_ops[BENCH_OPS];
/* Bytes that a size is rounded down to. */
uint64_t bench_granule(enum bench_op op, uint64_t ranks, uint32_t dtype);
extern const char *const bench_variant_names[VARIANTS]; /* NULL: none */
extern const char *const bench_dtype_names[GW_DTYPES];

struct bench_options {
    enum bench_op op;
    uint64_t ranks[BENCH_LIST], sizes[BENCH_LIST];
    uint32_t dtypes[BENCH_LIST];
    uint32_t ranks_count, sizes_count, dtypes_count;
    uint64_t nodes[BENCH_LIST], shapes[BENCH_LIST]; /* shapes: Mbit/s, 0 is none */
    uint32_t nodes_count, shapes_count;             /* no nodes: all is on this one */
    uint64_t jobs;                                  /* of a storm */
    uint64_t iterations;                            /* per case and system; 0: by time */
    int64_t budget_ns;                              /* per case and system */
    uint64_t rounds;
    bool json, peers, install_peers, is_private;
    const char *plot, *peers_root, *socket, *gradwired, *engine, *config;
};

struct bench_case {
    enum bench_op op;
    enum bench_variant variant;
    uint32_t dtype; /* enum gw_dtype */
    uint32_t ranks;
    uint32_t nodes; /* 0: no --nodes */
    uint64_t shape_mbit;
    uint64_t backward_ns; /* of a step that covers its communication; 0: to be chosen */
    uint64_t bytes;       /* after rounding down to whole values of all ranks; 0: it has none */
};

/* All samples of one system in one case. */
struct bench_samples {
    uint64_t *ns;
    size_t count, room;
};

/* Of a gwbench's run, while it lasts. */
struct bench {
    struct bench_options options;
    struct bench_daemon {
        int pid; /* 0: none */
        char runtime[128], socket[160];
    } daemon;
    struct peers *peers;
    struct nodes *nodes; /* with --nodes, while a network is there */
    char directory[96];
    const char *socket;
    const char *links; /* what joined the nodes; NULL: no --nodes */
    bool failed; /* clients of a storm did: what they say is the row, and EX_SOFTWARE the end */
};

/* 0, an exit code after a message, or -1: --help or --version was printed, end with 0. */
int options_parse(int argc, char **argv, struct bench_options *ret_options);

struct node;
/* daemon.c: a gradwired of our own under `directory`, on that node, the index-th (NULL: here, and
 * then the only one). Exit codes. */
int daemon_start(struct bench_daemon *daemon, const char *directory,
                 const struct bench_options *options, const struct node *node, uint32_t index);
/* The gradwired that a rank of the case goes to. */
const char *daemon_socket(const struct bench *bench, const struct bench_case *what, uint32_t rank);
/* When its engines have gone; false: something did not end by itself. */
bool daemon_stop(struct bench_daemon *daemon);
void remove_tree(const char *path);

/* case.c: cases of all variants of the op, one after the other. Exit codes. */
int cases_run(struct bench *bench, const struct bench_case *base);
int case_run(struct bench *bench, const struct bench_case *what);
/* storm.c, idle.c */
int storm_run(struct bench *bench, const struct bench_case *base);
int idle_run(struct bench *bench, uint32_t ranks);

/* samples.c */
void samples_add(struct bench_samples *samples, uint64_t ns);
void samples_clear(struct bench_samples *samples);
/* Nearest rank; sorts. 0 without samples. */
uint64_t samples_percentile(struct bench_samples *samples, uint32_t percent);

/* output.c: a table as rows come, or one JSON document at the end. */
void output_begin(const struct bench_options *options);
/* figures: FIGURES of them, NAN where there is none; NULL: none at all. Exit codes. */
int output_row(const struct bench_options *options, const struct bench_case *what,
               const char *system, struct bench_samples *samples, uint64_t limit_p50_ns,
               const double *figures);
int output_end(const struct bench *bench);
/* plot.c: size against bandwidth of all rows. check: 0, or EX_USAGE after a message. */
int plot_check(const char *path);
int plot_write(const struct bench *bench);
/* machine.c: its JSON object; no names, no paths. */
void machine_print(void);
void machine_begin(void);

uint64_t bench_now_ns(void);
/* Set by SIGINT, SIGTERM and SIGHUP: every wait of the coordinator ends. */
bool bench_stopped(void);
void bench_nap(void);

#endif

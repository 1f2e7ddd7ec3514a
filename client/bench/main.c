/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gwbench's coordinator: cases, and in each case rounds in which limit, gradwire and peers take
 * turns, so that what else happens on the machine meets all of them. One thread; starts processes,
 * and leaves none.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/bench/bench.h"
#include "client/bench/peer.h"

const char *const bench_op_names[BENCH_OPS] = {
    [BENCH_REDUCE_SCATTER] = "reduce-scatter",
    [BENCH_ALL_GATHER] = "all-gather",
    [BENCH_ALL_REDUCE] = "all-reduce",
    [BENCH_LATENCY] = "latency",
    [BENCH_FETCH] = "fetch",
    [BENCH_STEP] = "step",
};
const char *const bench_variant_names[VARIANTS] = {
    [VARIANT_MAPPED] = "mapped", [VARIANT_PRIVATE] = "private", [VARIANT_MISS] = "miss",
    [VARIANT_HIT] = "hit",       [VARIANT_STAGE0] = "stage0",   [VARIANT_STAGE1] = "stage1",
    [VARIANT_STAGE2] = "stage2", [VARIANT_STAGE3] = "stage3",
};

enum { CALIBRATE = 3, RANKS = 64 };

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
    (void)number;
    stopped = 1;
}

bool bench_stopped(void)
{
    return stopped != 0;
}

uint64_t bench_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void bench_nap(void)
{
    struct timespec t = {0, 10000000};

    (void)nanosleep(&t, NULL);
}

/* ---- one case -------------------------------------------------------------------------------- */

/* A system that measures in workers of ours: gradwire's ranks, or the limit. */
struct local {
    const char *name;
    struct worker workers[RANKS];
    uint32_t count;
    uint64_t iterations; /* of a round */
    struct bench_samples samples;
};

static const struct worker_ops *ops_of(const struct bench_case *what)
{
    if (what->op == BENCH_FETCH || what->variant == VARIANT_MAPPED)
        return &worker_fetch;
    return what->op == BENCH_STEP ? &worker_step : &worker_collective;
}

static int local_start(struct local *local, const struct bench_case *what,
                       const struct worker_ops *ops, const char *socket)
{
    bool limit = ops == &worker_limit;
    int r = 0;

    local->name = limit ? "limit" : "gradwire";
    for (uint32_t i = 0; r == 0 && i < (limit ? 1 : what->ranks); i++) {
        struct worker *worker = &local->workers[i];

        *worker = (struct worker){.ops = ops,
                                  .what = what,
                                  .socket = socket,
                                  .rank = i,
                                  .first = i > 0 ? local->workers[0].share : NULL};
        local->count = i + 1;
        r = worker_start(worker);
        if (r == 0 && i == 0 && !limit)
            r = worker_await(worker, "start of the job");
    }
    for (uint32_t i = 0; r == 0 && i < local->count; i++)
        r = worker_await(&local->workers[i], "set-up");
    return r;
}

/* The i-th sample is that of the slowest rank. */
static void take_samples(struct local *local, struct bench_samples *to)
{
    uint64_t count = local->workers[0].share->count;

    for (uint64_t i = 0; i < count && i < WORKER_SAMPLES; i++) {
        uint64_t slowest = 0;

        for (uint32_t rank = 0; rank < local->count; rank++) {
            uint64_t ns = local->workers[rank].share->samples[i];
            slowest = ns > slowest ? ns : slowest;
        }
        samples_add(to, slowest);
    }
}

/* How many ops a round has: as told, or what fits into its share of the time, with what a worker
 * does between them: of fetches that hit, that is nearly all. */
static int choose_iterations(struct local *local, const struct bench_options *options)
{
    struct bench_samples samples = {0};
    uint64_t one_ns, each_ns;
    int r;

    local->iterations = (options->iterations + options->rounds - 1) / options->rounds;
    if (options->iterations > 0)
        return 0;
    each_ns = bench_now_ns();
    r = workers_run(local->workers, local->count, CALIBRATE);
    each_ns = (bench_now_ns() - each_ns) / CALIBRATE;
    if (r == 0) {
        take_samples(local, &samples);
        one_ns = samples_percentile(&samples, 50) + 1;
        if (each_ns / 4 > one_ns) /* more than that is checks and the first op's start */
            one_ns = each_ns / 4;
        local->iterations = (uint64_t)options->budget_ns / options->rounds / one_ns;
    }
    if (local->iterations < 1)
        local->iterations = 1;
    if (local->iterations > WORKER_SAMPLES)
        local->iterations = WORKER_SAMPLES;
    samples_clear(&samples);
    return r;
}

static int local_round(struct local *local, const struct bench_options *options)
{
    int r = 0;

    if (local->iterations == 0)
        r = choose_iterations(local, options);
    if (r == 0)
        r = workers_run(local->workers, local->count, local->iterations);
    if (r == 0)
        take_samples(local, &local->samples);
    return r;
}

static void local_stop(struct local *local)
{
    workers_stop(local->workers, local->count);
    samples_clear(&local->samples);
    free(local);
}

struct bench {
    struct bench_options options;
    struct bench_daemon daemon;
    struct peers peers;
    char directory[96];
    const char *socket;
};

static int run_rounds(struct bench *bench, const struct bench_case *what, struct local *limit,
                      struct local *gradwire, struct bench_samples *peer_samples)
{
    int r = 0;

    for (uint64_t round = 0; r == 0 && round < bench->options.rounds; round++) {
        if (limit->count > 0)
            r = local_round(limit, &bench->options);
        if (r == 0)
            r = local_round(gradwire, &bench->options);
        for (uint32_t i = 0; r == 0 && i < bench->peers.count; i++)
            r = peer_round(&bench->peers, &bench->peers.list[i], what, &bench->options,
                           &peer_samples[i]);
    }
    return r;
}

static int run_case(struct bench *bench, const struct bench_case *what)
{
    bool has_limit = what->op != BENCH_FETCH && what->op != BENCH_STEP;
    const struct bench_options *o = &bench->options;
    struct bench_samples peer_samples[PEERS_MAX] = {{0}};
    struct local *limit = calloc(1, sizeof *limit), *gradwire = calloc(1, sizeof *gradwire);
    uint64_t limit_ns = 0;
    int r;

    if (limit == NULL || gradwire == NULL) {
        free(limit);
        free(gradwire);
        return EX_OSERR;
    }
    for (uint32_t i = 0; i < bench->peers.count; i++)
        bench->peers.list[i].iterations = (o->iterations + o->rounds - 1) / o->rounds;
    r = has_limit ? local_start(limit, what, &worker_limit, NULL) : 0;
    if (r == 0)
        r = local_start(gradwire, what, ops_of(what), bench->socket);
    if (r == 0)
        r = run_rounds(bench, what, limit, gradwire, peer_samples);
    if (r == 0 && has_limit) {
        limit_ns = samples_percentile(&limit->samples, 50);
        output_row(o, what, "limit", &limit->samples, limit_ns);
    }
    if (r == 0)
        output_row(o, what, "gradwire", &gradwire->samples, limit_ns);
    for (uint32_t i = 0; i < bench->peers.count; i++) {
        if (r == 0)
            output_row(o, what, bench->peers.list[i].name, &peer_samples[i], limit_ns);
        samples_clear(&peer_samples[i]);
    }
    local_stop(gradwire);
    local_stop(limit);
    return r;
}

/* ---- all cases ------------------------------------------------------------------------------- */

static void variants_of(const struct bench_options *o, enum bench_variant *ret_first,
                        enum bench_variant *ret_last)
{
    *ret_first = *ret_last = VARIANT_NONE;
    if (o->op == BENCH_ALL_GATHER)
        *ret_first = *ret_last = o->is_private ? VARIANT_PRIVATE : VARIANT_MAPPED;
    if (o->op == BENCH_FETCH) {
        *ret_first = VARIANT_MISS;
        *ret_last = VARIANT_HIT;
    }
    if (o->op == BENCH_STEP) {
        *ret_first = VARIANT_STAGE0;
        *ret_last = VARIANT_STAGE3;
    }
}

static int run_size(struct bench *bench, uint64_t ranks, uint64_t bytes)
{
    const struct bench_options *o = &bench->options;
    uint64_t granule = (o->op == BENCH_STEP ? 8 : 1) * ranks * sizeof(float);
    enum bench_variant first, last;
    int r = 0;

    variants_of(o, &first, &last);
    for (uint32_t variant = first; r == 0 && variant <= (uint32_t)last; variant++) {
        struct bench_case what = {.op = o->op,
                                  .variant = (enum bench_variant)variant,
                                  .ranks = (uint32_t)ranks,
                                  .bytes = bytes / granule * granule};

        r = run_case(bench, &what);
    }
    return r;
}

static int run_all(struct bench *bench)
{
    const struct bench_options *o = &bench->options;
    int r = 0;

    if (o->peers)
        r = peers_find(&bench->peers, bench->directory);
    if (r == 0)
        output_begin(o);
    for (uint32_t i = 0; r == 0 && i < o->ranks_count; i++) {
        for (uint32_t j = 0; r == 0 && j < o->sizes_count; j++)
            r = run_size(bench, o->ranks[i], o->sizes[j]);
    }
    return r != 0 ? r : output_end(o);
}

static int make_directory(struct bench *bench)
{
    const char *parent = getenv("TMPDIR");

    /* Sockets live below: their paths must stay short. */
    if (parent == NULL || parent[0] != '/' || strlen(parent) > 60)
        parent = "/tmp";
    (void)snprintf(bench->directory, sizeof bench->directory, "%s/gwbench.XXXXXX", parent);
    if (mkdtemp(bench->directory) != NULL)
        return 0;
    fprintf(stderr, "gwbench: cannot make a directory in %s: %s\n", parent, strerror(errno));
    return EX_CANTCREAT;
}

int main(int argc, char **argv)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal};
    struct bench bench = {.daemon = {.pid = 0}};
    int r;

    r = options_parse(argc, argv, &bench.options);
    if (r != 0)
        return r < 0 ? 0 : r;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        (void)sigaction(numbers[i], &action, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    r = make_directory(&bench);
    if (r != 0)
        return r;
    bench.socket = bench.options.socket;
    if (bench.socket == NULL) {
        r = daemon_start(&bench.daemon, bench.directory, &bench.options);
        bench.socket = bench.daemon.socket;
    }
    if (r == 0)
        r = run_all(&bench);
    if (!daemon_stop(&bench.daemon) && r == 0) {
        fprintf(stderr, "gwbench: the private gradwired or an engine did not end by itself\n");
        r = EX_SOFTWARE;
    }
    remove_tree(bench.directory);
    return r;
}

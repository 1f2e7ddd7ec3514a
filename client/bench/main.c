/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gwbench's coordinator: all cases of an op. One thread; starts processes, and leaves none.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/bench/bench.h"
#include "client/bench/nodes.h"
#include "client/bench/peer.h"

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

/* ---- all cases ------------------------------------------------------------------------------- */

static int run_dtype(struct bench *bench, uint64_t ranks, uint32_t dtype)
{
    const struct bench_options *o = &bench->options;
    uint64_t granule = bench_granule(o->op, ranks, dtype);
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < o->sizes_count; i++) {
        struct bench_case base = {.op = o->op,
                                  .dtype = dtype,
                                  .ranks = (uint32_t)ranks,
                                  .bytes = o->sizes[i] / granule * granule};

        r = cases_run(bench, &base);
    }
    return r;
}

static int run_ranks(struct bench *bench, uint64_t ranks)
{
    const struct bench_options *o = &bench->options;
    int r = 0;

    if (o->op == BENCH_STORM)
        return storm_run(bench, &(struct bench_case){.op = o->op, .ranks = (uint32_t)ranks});
    if (o->op == BENCH_IDLE)
        return idle_run(bench, (uint32_t)ranks);
    for (uint32_t i = 0; r == 0 && i < o->dtypes_count; i++)
        r = run_dtype(bench, ranks, o->dtypes[i]);
    return r;
}

static int run_all(struct bench *bench)
{
    const struct bench_options *o = &bench->options;
    int r = 0;

    machine_begin();
    if (o->peers)
        r = peers_find(bench->peers, bench->directory, o->peers_root, o->nodes_count > 0);
    if (r == 0)
        output_begin(o);
    if (r == 0 && o->nodes_count > 0)
        r = nodes_run(bench);
    for (uint32_t i = 0; r == 0 && o->nodes_count == 0 && i < o->ranks_count; i++)
        r = run_ranks(bench, o->ranks[i]);
    if (r == 0)
        r = output_end(bench);
    if (r == 0 && o->plot != NULL)
        r = plot_write(bench);
    return r == 0 && bench->failed ? EX_SOFTWARE : r;
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

static int install(const struct bench_options *options)
{
    char root[PEER_PATH_BYTES - 64];
    int r;

    r = peers_root(options->peers_root, root, sizeof root);
    return r != 0 ? r : peers_install(root);
}

int main(int argc, char **argv)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal};
    static struct peers peers;
    struct bench bench = {.peers = &peers};
    int r;

    r = options_parse(argc, argv, &bench.options);
    if (r != 0)
        return r < 0 ? 0 : r;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        (void)sigaction(numbers[i], &action, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    if (bench.options.install_peers)
        return install(&bench.options);
    r = make_directory(&bench);
    if (r != 0)
        return r;
    bench.socket = bench.options.socket;
    if (bench.socket == NULL && bench.options.nodes_count == 0) {
        r = daemon_start(&bench.daemon, bench.directory, &bench.options, NULL, 0);
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

/* SPDX-License-Identifier: Apache-2.0 */
/* Peers: see peer.h. What each is found by, how it is compiled and started, what it says. */
#include "client/bench/peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/bench/nodes.h"
#include "client/bench/values.h"
#include "daemon/base/escape.h"

#define COMPILE_NS 120000000000ull
#define ROUND_NS 300000000000ull

enum { PATH_BYTES = PEER_PATH_BYTES };

/* ---- finding --------------------------------------------------------------------------------- */

static void path_in(char path[PATH_BYTES], const char *directory, const char *name)
{
    (void)snprintf(path, PATH_BYTES, "%.319s/%.62s", directory, name);
}

/* Below the private directory. */
static bool is_there(const struct peers *peers, const char *name)
{
    char path[PATH_BYTES];

    path_in(path, peers->root, name);
    return access(path, R_OK) == 0;
}

static bool build(const struct peers *peers, const struct peer *peer, const char *const argv[])
{
    char out[PATH_BYTES];

    path_in(out, peers->directory, "peer.out");
    if (peer_run(argv, peers->directory, peer->root, out, COMPILE_NS) == 0)
        return true;
    fprintf(stderr, "gwbench: no peer %s: its program cannot be made:\n", peer->kind->name);
    peer_tell(argv[0], out);
    return false;
}

/* An MPI of the system: Debian's compilers and launchers end in its name. */
static bool find_mpi(const struct peers *peers, struct peer *peer)
{
    char compiler[32], source[PATH_BYTES];

    (void)snprintf(compiler, sizeof compiler, "mpicc.%s", peer->kind->name);
    (void)snprintf(peer->launcher, sizeof peer->launcher, "mpirun.%s", peer->kind->name);
    if (!peer_in_path(compiler) || !peer_in_path(peer->launcher)) {
        fprintf(stderr, "gwbench: no peer %s: %s and %s are not both installed\n", peer->kind->name,
                compiler, peer->launcher);
        return false;
    }
    path_in(source, peers->directory, "peer_mpi.c");
    return build(peers, peer,
                 (const char *const[]){compiler, "-O3", "-ffp-contract=off", "-o", peer->program,
                                       source, "-lm", NULL});
}

static bool no_private(const struct peers *peers, const struct peer *peer)
{
    fprintf(stderr, "gwbench: no peer %s: it is not in %s; gwbench --install-peers brings it\n",
            peer->kind->name, peers->root);
    return false;
}

static bool find_impi(const struct peers *peers, struct peer *peer)
{
    char include[PATH_BYTES], lib[PATH_BYTES], source[PATH_BYTES];

    peer->root = peers->root;
    path_in(include, peers->root, "include");
    path_in(lib, peers->root, "lib");
    path_in(source, peers->directory, "peer_mpi.c");
    path_in(peer->launcher, peers->root, "bin/mpiexec.hydra");
    if (!is_there(peers, "include/mpi.h") || !is_there(peers, "lib/libmpi.so"))
        return no_private(peers, peer);
    return build(peers, peer,
                 (const char *const[]){"cc", "-O3", "-ffp-contract=off", "-o", peer->program, "-I",
                                       include, source, "-L", lib, "-lmpi", "-lm", NULL});
}

static bool find_oneccl(const struct peers *peers, struct peer *peer)
{
    char include[PATH_BYTES], lib[PATH_BYTES], source[PATH_BYTES], more[PATH_BYTES];

    peer->root = peers->root;
    path_in(include, peers->root, "include");
    path_in(lib, peers->root, "lib");
    path_in(source, peers->directory, "peer_mpi.c");
    path_in(more, peers->directory, "peer_oneccl.cpp");
    path_in(peer->launcher, peers->root, "bin/mpiexec.hydra");
    if (!is_there(peers, "include/mpi.h") || !is_there(peers, "include/oneapi/ccl.hpp") ||
        !is_there(peers, "lib/libccl.so"))
        return no_private(peers, peer);
    return build(peers, peer,
                 (const char *const[]){"c++",
                                       "-O3",
                                       "-ffp-contract=off",
                                       "-DPEER_ONECCL",
                                       "-o",
                                       peer->program,
                                       "-I",
                                       include,
                                       "-x",
                                       "c",
                                       source,
                                       "-x",
                                       "c++",
                                       more,
                                       "-L",
                                       lib,
                                       "-lccl",
                                       "-lmpi",
                                       "-lm",
                                       NULL});
}

static bool find_gloo(const struct peers *peers, struct peer *peer)
{
    char out[PATH_BYTES];

    path_in(peer->program, peers->directory, "peer_gloo.py");
    path_in(peer->launcher, peers->root, "bin/python3");
    path_in(out, peers->directory, "peer.out");
    if (access(peer->launcher, X_OK) != 0)
        return no_private(peers, peer);
    if (peer_run((const char *const[]){peer->launcher, "-W", "ignore", peer->program, NULL},
                 peers->directory, NULL, out, COMPILE_NS) != 0)
        return no_private(peers, peer);
    return true;
}

/* ---- starting -------------------------------------------------------------------------------- */

static void launch_mpi(const struct peers *peers, const struct peer *peer, const char *ranks,
                       const char **argv)
{
    (void)peers;
    *argv++ = peer->launcher;
    if (strcmp(peer->kind->name, "openmpi") == 0)
        *argv++ = "--oversubscribe";
    *argv++ = "-n";
    *argv++ = ranks;
    *argv++ = peer->program;
    *argv = NULL;
}

static void launch_gloo(const struct peers *peers, const struct peer *peer, const char *ranks,
                        const char **argv)
{
    static char store[PATH_BYTES];

    path_in(store, peers->directory, "gloo.store");
    (void)unlink(store);
    *argv++ = peer->launcher;
    *argv++ = "-W";
    *argv++ = "ignore";
    *argv++ = peer->program;
    *argv++ = store;
    *argv++ = ranks;
    *argv = NULL;
}

static const struct peer_kind kinds[PEERS_MAX] = {
    {"mpich", find_mpi, launch_mpi, true},   {"openmpi", find_mpi, launch_mpi, true},
    {"impi", find_impi, launch_mpi, false},  {"oneccl", find_oneccl, launch_mpi, false},
    {"gloo", find_gloo, launch_gloo, false},
};

int peer_write(const char *directory, const char *name, const unsigned char *source,
               size_t source_bytes)
{
    char path[PATH_BYTES];
    FILE *file;
    bool written;

    path_in(path, directory, name);
    file = fopen(path, "wxe");
    written = file != NULL && fwrite(source, 1, source_bytes, file) == source_bytes;
    if (file != NULL)
        written = fclose(file) == 0 && written;
    if (written)
        return 0;
    fprintf(stderr, "gwbench: cannot write %s: %s\n", path, strerror(errno));
    return EX_CANTCREAT;
}

int peers_find(struct peers *peers, const char *directory, const char *root, bool on_nodes)
{
    int r;

    *peers = (struct peers){.directory = directory};
    r = peers_root(root, peers->root, sizeof peers->root);
    if (r == 0)
        r = peer_write(directory, "peer_mpi.c", peer_mpi_source, peer_mpi_source_bytes);
    if (r == 0)
        r = peer_write(directory, "peer_oneccl.cpp", peer_oneccl_source, peer_oneccl_source_bytes);
    if (r == 0)
        r = peer_write(directory, "peer_gloo.py", peer_gloo_source, peer_gloo_source_bytes);
    for (uint32_t i = 0; r == 0 && i < PEERS_MAX; i++) {
        struct peer *peer = &peers->list[peers->count];

        *peer = (struct peer){.kind = &kinds[i]};
        path_in(peer->program, directory, kinds[i].name);
        if ((!on_nodes || kinds[i].has_nodes) && kinds[i].find(peers, peer))
            peers->count++;
    }
    return r;
}

/* ---- a round --------------------------------------------------------------------------------- */

void peer_begin(struct peer *peer, uint64_t iterations)
{
    peer->iterations = iterations;
    peer->lacks = false;
}

static void lacks(struct peer *peer, const struct bench_case *what, char *why)
{
    why[strcspn(why, "\n")] = 0;
    if (!peer->told[what->dtype])
        fprintf(stderr, "gwbench: %s has no %s of %s: %s\n", peer->kind->name,
                bench_ops[what->op].name, bench_dtype_names[what->dtype], why);
    peer->lacks = peer->told[what->dtype] = true;
}

/* Lines: see peer_mpi.c. */
static int read_samples(struct peer *peer, const struct bench_case *what, const char *out,
                        struct bench_samples *samples)
{
    FILE *file = fopen(out, "re");
    unsigned long long value;
    char line[256];
    int r = EX_SOFTWARE;

    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "ns %llu", &value) == 1) {
            samples_add(samples, value);
        } else if (sscanf(line, "iterations %llu", &value) == 1) {
            peer->iterations = value;
        } else if (strncmp(line, "version ", 8) == 0) {
            line[strcspn(line, "\n")] = 0;
            (void)snprintf(peer->version, sizeof peer->version, "%.127s", line + 8);
        } else if (strncmp(line, "lacks ", 6) == 0) {
            lacks(peer, what, line + 6);
            r = 0;
        } else if (strncmp(line, "wrong", 5) == 0) {
            fprintf(stderr, "gwbench: %s: WRONG VALUE: %s", peer->kind->name, line + 5);
            r = EX_WRONG;
        } else if (strcmp(line, "ok\n") == 0) {
            r = 0;
        }
    }
    if (file != NULL)
        fclose(file);
    return r;
}

int peer_round(const struct bench *bench, struct peer *peer, const struct bench_case *what,
               struct bench_samples *samples)
{
    const struct bench_options *options = &bench->options;
    const struct peers *peers = bench->peers;
    char out[PATH_BYTES], ranks[16], bytes[32], iterations[32], budget[32];
    const char *argv[PEER_WORDS] = {NULL};
    uint32_t n = 0;
    int code, r;

    if (peer->lacks || (bench->nodes != NULL && bench->nodes->is_loopback))
        return 0;
    path_in(out, peers->directory, "peer.out");
    (void)snprintf(ranks, sizeof ranks, "%u", what->ranks);
    (void)snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)what->bytes);
    (void)snprintf(iterations, sizeof iterations, "%llu", (unsigned long long)peer->iterations);
    (void)snprintf(budget, sizeof budget, "%llu",
                   (unsigned long long)options->budget_ns / options->rounds);
    if (bench->nodes != NULL)
        nodes_launch(bench->nodes, peer, what, argv);
    else
        peer->kind->launch(peers, peer, ranks, argv);
    while (argv[n] != NULL)
        n++;
    argv[n++] = bench_ops[what->op].name;
    argv[n++] = bench_dtype_names[what->dtype];
    argv[n++] = bytes;
    argv[n++] = iterations;
    argv[n++] = budget;
    argv[n++] = values_planted("peer") ? "plant" : NULL;
    code = peer_run(argv, peers->directory, peer->root, out, ROUND_NS);
    r = read_samples(peer, what, out, samples);
    if (r == EX_WRONG)
        return r;
    /* What it said counts, not how MPI ended after it: see peer_mpi.c's end. */
    if (r != 0) {
        peer_tell(peer->kind->name, out);
        fprintf(stderr, "gwbench: %s ended with code %d\n", peer->kind->name, code);
        return bench_stopped() ? EX_TEMPFAIL : EX_SOFTWARE;
    }
    return 0;
}

void peers_print(const struct peers *peers)
{
    char escaped[ESCAPE_BYTES(128)];
    const char *between = "";

    printf("{");
    for (uint32_t i = 0; i < peers->count; i++) {
        if (peers->list[i].version[0] == 0)
            continue; /* it had no round */
        printf("%s\"%s\": \"%s\"", between, peers->list[i].kind->name,
               escape_string(peers->list[i].version, escaped, sizeof escaped));
        between = ", ";
    }
    printf("}");
}

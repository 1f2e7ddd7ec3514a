/* SPDX-License-Identifier: Apache-2.0 */
/* Peers: see peer.h. Starts compilers and launchers, each in a process group of its own. */
#include "client/bench/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/bench/values.h"

#define ROUND_NS 300000000000ull

static const char *const names[PEERS_MAX] = {"mpich", "openmpi"};

static bool in_path(const char *program)
{
    const char *path = getenv("PATH");
    char file[512];

    while (path != NULL && *path != 0) {
        size_t length = strcspn(path, ":");
        int used = snprintf(file, sizeof file, "%.*s/%s", (int)length, path, program);

        if (used > 0 && (size_t)used < sizeof file && access(file, X_OK) == 0)
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

static _Noreturn void become(char *const argv[], const struct peers *peers, const char *out)
{
    int fd = open(out, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (fd < 0 || null < 0 || dup2(null, 0) < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
        _exit(127);
    (void)setenv("TMPDIR", peers->directory, 1); /* what they leave goes with the directory */
    if (geteuid() == 0) {
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    }
    execvp(argv[0], argv);
    _exit(127);
}

/* Its exit code; -1 when it had to be ended. */
static int run(char *const argv[], const struct peers *peers, const char *out)
{
    uint64_t until = bench_now_ns() + ROUND_NS;
    pid_t pid = fork();
    int status = 0;

    if (pid == 0)
        become(argv, peers, out);
    if (pid < 0)
        return -1;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (bench_stopped() || bench_now_ns() > until) {
            kill(-pid, SIGTERM);
            for (uint32_t i = 0; i < 200 && waitpid(pid, &status, WNOHANG) == 0; i++)
                bench_nap();
            kill(-pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        bench_nap();
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The first lines of what it said. */
static void tell(const char *who, const char *out)
{
    FILE *file = fopen(out, "re");
    char line[256];

    for (uint32_t i = 0; file != NULL && i < 8 && fgets(line, sizeof line, file) != NULL; i++)
        fprintf(stderr, "gwbench: %s: %s", who, line);
    if (file != NULL)
        fclose(file);
}

static void compile(struct peers *peers, const char *name, const char *source)
{
    struct peer *peer = &peers->list[peers->count];
    char compiler[32], launcher[32], out[160];

    (void)snprintf(compiler, sizeof compiler, "mpicc.%s", name);
    (void)snprintf(launcher, sizeof launcher, "mpirun.%s", name);
    if (!in_path(compiler) || !in_path(launcher)) {
        fprintf(stderr, "gwbench: no peer %s: %s and %s are not both installed\n", name, compiler,
                launcher);
        return;
    }
    (void)snprintf(out, sizeof out, "%s/peer.out", peers->directory);
    (void)snprintf(peer->program, sizeof peer->program, "%s/peer-%s", peers->directory, name);
    if (run((char *[]){compiler, "-O3", "-ffp-contract=off", "-o", peer->program, (char *)source,
                       "-lm", NULL},
            peers, out) != 0) {
        tell(compiler, out);
        return;
    }
    peer->name = name;
    peers->count++;
}

int peers_find(struct peers *peers, const char *directory)
{
    char source[160];
    FILE *file;
    bool written;

    *peers = (struct peers){.directory = directory};
    (void)snprintf(source, sizeof source, "%s/peer_mpi.c", directory);
    file = fopen(source, "wxe");
    written = file != NULL && fwrite(peer_source, 1, peer_source_bytes, file) == peer_source_bytes;
    if (file != NULL)
        written = fclose(file) == 0 && written;
    if (!written) {
        fprintf(stderr, "gwbench: cannot write %s: %s\n", source, strerror(errno));
        return EX_CANTCREAT;
    }
    for (uint32_t i = 0; i < PEERS_MAX; i++)
        compile(peers, names[i], source);
    return 0;
}

/* ---- a round --------------------------------------------------------------------------------- */

/* Lines: "iterations N", "ns N" for each, then "ok" or "wrong ...". */
static int read_samples(struct peer *peer, const char *out, struct bench_samples *samples)
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
        } else if (strncmp(line, "wrong", 5) == 0) {
            fprintf(stderr, "gwbench: %s: WRONG VALUE: %s", peer->name, line + 5);
            r = EX_WRONG;
        } else if (strcmp(line, "ok\n") == 0) {
            r = 0;
        }
    }
    if (file != NULL)
        fclose(file);
    return r;
}

int peer_round(const struct peers *peers, struct peer *peer, const struct bench_case *what,
               const struct bench_options *options, struct bench_samples *samples)
{
    char out[160], launcher[32], ranks[16], bytes[32], iterations[32], budget[32];
    bool ompi = strcmp(peer->name, "openmpi") == 0;
    char *argv[12];
    int n = 0, code, r;

    (void)snprintf(out, sizeof out, "%s/peer.out", peers->directory);
    (void)snprintf(launcher, sizeof launcher, "mpirun.%s", peer->name);
    (void)snprintf(ranks, sizeof ranks, "%u", what->ranks);
    (void)snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)what->bytes);
    (void)snprintf(iterations, sizeof iterations, "%llu", (unsigned long long)peer->iterations);
    (void)snprintf(budget, sizeof budget, "%llu",
                   (unsigned long long)options->budget_ns / options->rounds);
    argv[n++] = launcher;
    if (ompi)
        argv[n++] = "--oversubscribe";
    argv[n++] = "-n";
    argv[n++] = ranks;
    argv[n++] = peer->program;
    argv[n++] = (char *)bench_op_names[what->op];
    argv[n++] = bytes;
    argv[n++] = iterations;
    argv[n++] = budget;
    argv[n++] = values_planted("peer") ? "plant" : NULL;
    argv[n] = NULL;
    code = run(argv, peers, out);
    r = read_samples(peer, out, samples);
    if (r == EX_WRONG)
        return r;
    if (code != 0 || r != 0) {
        tell(peer->name, out);
        fprintf(stderr, "gwbench: %s ended with code %d\n", peer->name, code);
        return bench_stopped() ? EX_TEMPFAIL : EX_SOFTWARE;
    }
    return 0;
}

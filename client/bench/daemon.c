/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gradwired of our own, in a directory of our own, and the removal of both. The coordinator's
 * thread.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/bench/nodes.h"

#define START_NS 20000000000ull
#define END_NS 20000000000ull

enum { WORDS = 32 };

/* Where one is to run, and with what. */
struct place {
    const struct node *node; /* NULL: here */
    uint32_t index;
    const char *runtime, *engine;
    const char *given; /* configuration of the one that is here; NULL: none */
    char config[160];  /* that on a node */
};

/* Beside gwbench, in sbin, in the build tree, or where it would be installed. */
static bool find_program(char *path, size_t path_bytes)
{
    static const char *const places[] = {"", "../sbin/", "../../daemon/supervisor/"};
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash;

    self[n > 0 ? n : 0] = 0;
    slash = strrchr(self, '/');
    if (slash != NULL)
        slash[1] = 0;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        int used = snprintf(path, path_bytes, "%s%sgradwired", self, places[i]);

        if (used > 0 && (size_t)used < path_bytes && access(path, X_OK) == 0)
            return true;
    }
    (void)snprintf(path, path_bytes, "%s", GWBENCH_GRADWIRED);
    return access(path, X_OK) == 0;
}

static bool answers(const char *socket_path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    bool is;

    (void)snprintf(address.sun_path, sizeof address.sun_path, "%.107s", socket_path);
    is = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0)
        close(fd);
    return is;
}

/* Words, ended by NULL. On a node it is entered first, which may make a user's process another
 * one's in the kernel's eyes; so that it still ends with its parent, setpriv asks once more. */
static void command(const char *argv[WORDS], const char *program, const struct place *place)
{
    const struct node *node = place->node;
    uint32_t n = 0;

    for (uint32_t i = 0; node != NULL && node->enter[i] != NULL; i++)
        argv[n++] = node->enter[i];
    if (n > 0) {
        argv[n++] = "setpriv";
        argv[n++] = "--pdeathsig";
        argv[n++] = "TERM";
    }
    argv[n++] = program;
    argv[n++] = "--foreground";
    argv[n++] = "--runtime-dir";
    argv[n++] = place->runtime;
    if (node != NULL || place->given != NULL) {
        argv[n++] = "--config";
        argv[n++] = node != NULL ? place->config : place->given;
    }
    if (place->engine != NULL) {
        argv[n++] = "--engine";
        argv[n++] = place->engine;
    }
    argv[n] = NULL;
}

/* All nodes are one machine: shared memory would reach from one to the other. An engine ends with
 * its ranks, also one that has not heard of its job's creator yet. */
static bool configure(const struct place *place)
{
    FILE *file;
    bool written;

    if (place->node == NULL)
        return true;
    if (setenv("UCX_TLS", "tcp", 1) < 0 || setenv("UCX_NET_DEVICES", place->node->interface, 1) < 0)
        return false;
    file = fopen(place->config, "we");
    if (file == NULL)
        return false;
    written = fprintf(file, "[job]\nlinger = 0\n[nodes]\nnode_name = node%u\nstar_interface = %s\n",
                      place->index, place->node->interface) > 0;
    return fclose(file) == 0 && written;
}

static _Noreturn void become(const char *program, const char *log, const struct place *place,
                             pid_t parent)
{
    const char *argv[WORDS];
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    /* Interrupts are the coordinator's; it ends the daemon last. */
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent || fd < 0 || null < 0 || dup2(null, 0) < 0 || dup2(fd, 1) < 0 ||
        dup2(fd, 2) < 0 || !configure(place))
        _exit(127);
    command(argv, program, place);
    execvp(argv[0], (char *const *)argv);
    _exit(127);
}

static void tell_log(const char *log)
{
    FILE *file = fopen(log, "re");
    char line[256];

    for (uint32_t i = 0; file != NULL && i < 10 && fgets(line, sizeof line, file) != NULL; i++)
        fprintf(stderr, "gwbench: gradwired: %s", line);
    if (file != NULL)
        fclose(file);
}

int daemon_start(struct bench_daemon *daemon, const char *directory,
                 const struct bench_options *options, const struct node *node, uint32_t index)
{
    struct place place = {
        .node = node, .index = index, .engine = options->engine, .given = options->config};
    uint64_t until = bench_now_ns() + START_NS;
    char program[PATH_MAX + 64], log[160], name[24] = "";
    pid_t parent = getpid();

    if (options->gradwired != NULL)
        (void)snprintf(program, sizeof program, "%s", options->gradwired);
    else if (!find_program(program, sizeof program)) {
        fprintf(stderr,
                "gwbench: there is no gradwired beside gwbench nor at %s; name it with "
                "--gradwired, or a running one's socket with --socket\n",
                program);
        return EX_UNAVAILABLE;
    }
    if (node != NULL)
        (void)snprintf(name, sizeof name, "%u", index);
    (void)snprintf(daemon->runtime, sizeof daemon->runtime, "%s/run%s", directory, name);
    (void)snprintf(daemon->socket, sizeof daemon->socket, "%s/gradwired.sock", daemon->runtime);
    (void)snprintf(log, sizeof log, "%s/gradwired%s.log", directory, name);
    (void)snprintf(place.config, sizeof place.config, "%s/gradwired%s.conf", directory, name);
    place.runtime = daemon->runtime;
    (void)mkdir(daemon->runtime, 0700);
    daemon->pid = fork();
    if (daemon->pid == 0)
        become(program, log, &place, parent);
    while (daemon->pid > 0 && !answers(daemon->socket)) {
        bool ended = waitpid(daemon->pid, NULL, WNOHANG) == daemon->pid;

        if (ended)
            daemon->pid = 0;
        if (ended || bench_stopped() || bench_now_ns() > until) {
            tell_log(log);
            fprintf(stderr, "gwbench: %s did not start\n", program);
            return EX_UNAVAILABLE;
        }
        bench_nap();
    }
    return daemon->pid > 0 ? 0 : EX_OSERR;
}

const char *daemon_socket(const struct bench *bench, const struct bench_case *what, uint32_t rank)
{
    return bench->nodes == NULL ? bench->socket
                                : bench->nodes->list[nodes_of_rank(what, rank)].daemon.socket;
}

static bool has_engines(const struct bench_daemon *daemon)
{
    char path[160];
    DIR *directory;
    uint32_t entries = 0;

    (void)snprintf(path, sizeof path, "%s/engines", daemon->runtime);
    directory = opendir(path);
    while (directory != NULL && readdir(directory) != NULL)
        entries++;
    if (directory != NULL)
        closedir(directory);
    return entries > 2; /* . and .. */
}

bool daemon_stop(struct bench_daemon *daemon)
{
    uint64_t until = bench_now_ns() + END_NS;
    bool by_itself = true;

    if (daemon->pid <= 0)
        return true;
    /* Jobs do not linger: their engines end with their ranks. */
    while (has_engines(daemon) && bench_now_ns() < until)
        bench_nap();
    by_itself = !has_engines(daemon);
    kill(daemon->pid, SIGTERM);
    while (waitpid(daemon->pid, NULL, WNOHANG) == 0) {
        if (bench_now_ns() > until + END_NS) {
            by_itself = false;
            kill(daemon->pid, SIGKILL);
        }
        bench_nap();
    }
    daemon->pid = 0;
    return by_itself;
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *where)
{
    (void)status;
    (void)type;
    (void)where;
    (void)remove(path);
    return 0;
}

void remove_tree(const char *path)
{
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

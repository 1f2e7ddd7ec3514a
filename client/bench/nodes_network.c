/* SPDX-License-Identifier: Apache-2.0 */
/* The process that holds the nodes' network: starts it, reads what it says, ends it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/bench/nodes.h"
#include "client/bench/peer.h"

#define START_NS 30000000000ull
#define END_NS 20000000000ull

/* Its standard input is all that it is held by, and its output all that it says. */
static _Noreturn void become(const char *program, uint32_t count, const char *rate, int in, int out)
{
    char number[16];
    const char *const argv[] = {"python3", "-B", program, number, rate[0] != 0 ? rate : NULL, NULL};

    (void)snprintf(number, sizeof number, "%u", count);
    (void)setpgid(0, 0); /* interrupts are the coordinator's */
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0)
        _exit(127);
    execvp(argv[0], (char *const *)argv);
    _exit(127);
}

/* One line: interface, address, words. */
static bool read_node(struct node *node)
{
    char *rest = NULL;
    const char *word = strtok_r(node->line, " \n", &rest);
    uint32_t words = 0;

    if (word == NULL)
        return false;
    (void)snprintf(node->interface, sizeof node->interface, "%.15s", word);
    word = strtok_r(NULL, " \n", &rest);
    if (word == NULL)
        return false;
    (void)snprintf(node->address, sizeof node->address, "%.47s", word);
    while (words + 1 < NODE_WORDS && (word = strtok_r(NULL, " \n", &rest)) != NULL)
        node->enter[words++] = word;
    return true;
}

/* The next line of all nodes; false: it ended, or said nothing in time. */
static bool read_line(int fd, char *line, size_t line_bytes)
{
    uint64_t until = bench_now_ns() + START_NS;
    size_t used = 0;

    while (used + 1 < line_bytes && !bench_stopped() && bench_now_ns() < until) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

        if (poll(&poll_fd, 1, 100) <= 0)
            continue;
        if (read(fd, line + used, 1) != 1)
            return false;
        if (line[used++] == '\n') {
            line[used] = 0;
            return true;
        }
    }
    return false;
}

static int read_nodes(struct nodes *nodes, int fd)
{
    for (uint32_t i = 0; i < nodes->count; i++) {
        struct node *node = &nodes->list[i];

        if (!read_line(fd, node->line, sizeof node->line) || !read_node(node)) {
            fprintf(stderr, "gwbench: the nodes' network was not made (it takes python3)\n");
            return bench_stopped() ? EX_TEMPFAIL : EX_UNAVAILABLE;
        }
    }
    nodes->is_loopback = nodes->list[0].enter[0] == NULL;
    return 0;
}

static int start(struct nodes *nodes, const char *program, const char *rate)
{
    int in[2], out[2], r;

    if (pipe2(in, O_CLOEXEC) < 0)
        return EX_OSERR;
    nodes->stdin_fd = in[1];
    if (pipe2(out, O_CLOEXEC) < 0) {
        close(in[0]);
        return EX_OSERR;
    }
    nodes->pid = fork();
    if (nodes->pid == 0)
        become(program, nodes->count, rate, in[0], out[1]);
    close(in[0]);
    close(out[1]);
    r = nodes->pid < 0 ? EX_OSERR : read_nodes(nodes, out[0]);
    close(out[0]);
    return r;
}

int network_start(struct nodes *nodes, const char *directory, uint32_t count, uint64_t shape_mbit)
{
    char program[PEER_PATH_BYTES], rate[32] = "";
    int r;

    *nodes = (struct nodes){.count = count, .shape_mbit = shape_mbit, .stdin_fd = -1};
    if (shape_mbit > 0)
        (void)snprintf(rate, sizeof rate, "%llumbit", (unsigned long long)shape_mbit);
    (void)snprintf(program, sizeof program, "%.319s/network.py", directory);
    if (access(program, R_OK) != 0) {
        r = peer_write(directory, "network.py", peer_network_source, peer_network_source_bytes);
        if (r != 0)
            return r;
    }
    r = start(nodes, program, rate);
    if (r == EX_OSERR)
        fprintf(stderr, "gwbench: no process for the nodes' network: %s\n", strerror(errno));
    return r;
}

void network_stop(struct nodes *nodes)
{
    uint64_t until = bench_now_ns() + END_NS;

    if (nodes->stdin_fd >= 0)
        close(nodes->stdin_fd);
    while (nodes->pid > 0 && waitpid(nodes->pid, NULL, WNOHANG) == 0) {
        if (bench_now_ns() > until)
            kill(nodes->pid, SIGKILL);
        bench_nap();
    }
    nodes->pid = 0;
    nodes->stdin_fd = -1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limit of the nodes' links: on each node a process that sends to the next node, by one TCP
 * connection, what a node has to send in the op, while as much comes from the one before; both
 * directions of every link at once, and nothing is computed. In a worker; one thread.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/bench/nodes.h"
#include "client/bench/values.h"

#define LINK_WAIT_NS 120000000000ull

enum { PIECE_BYTES = 1 << 20 };

struct link {
    int to, from;
    char *sent, *received;
    uint64_t bytes; /* each way in one op */
};

static int failed(struct worker *worker, const char *what)
{
    return worker_fail(worker, WORKER_FAILED, "limit: node %u: %s: %s", worker->rank, what,
                       strerror(errno));
}

/* ---- its place ------------------------------------------------------------------------------- */

static int join_namespace(const char *pid, const char *name, int type)
{
    char path[64];
    int fd, r;

    (void)snprintf(path, sizeof path, "/proc/%.20s/ns/%s", pid, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    r = setns(fd, type);
    close(fd);
    return r;
}

/* As the words of its command would: nsenter -t PID [-U ...] -n [-m]. */
static int enter(const struct node *node)
{
    const char *pid = NULL;
    bool has_users = false;

    for (const char *const *word = node->enter; *word != NULL; word++) {
        if (strcmp(*word, "-t") == 0)
            pid = word[1];
        has_users = has_users || strcmp(*word, "-U") == 0;
    }
    if (pid == NULL)
        return 0;
    if (has_users && join_namespace(pid, "user", CLONE_NEWUSER) < 0)
        return -1;
    return join_namespace(pid, "net", CLONE_NEWNET);
}

/* ---- its connections ------------------------------------------------------------------------- */

static struct sockaddr_in address_of(const struct node *node, uint32_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

    (void)inet_pton(AF_INET, node->address, &address.sin_addr);
    return address;
}

/* The port is told last: who sees it may connect. */
static int offer(struct worker *worker)
{
    struct sockaddr_in address = address_of(&worker->nodes->list[worker->rank], 0);
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, bytes) == 0 && listen(fd, 1) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &bytes) == 0) {
        __atomic_store_n(&worker->share->turn, ntohs(address.sin_port), __ATOMIC_RELEASE);
        return fd;
    }
    (void)failed(worker, "no port");
    if (fd >= 0)
        close(fd);
    return -1;
}

static int connect_next(struct worker *worker)
{
    uint64_t until = bench_now_ns() + LINK_WAIT_NS;
    const struct nodes *nodes = worker->nodes;
    struct sockaddr_in address;
    uint32_t port;
    int fd;

    while ((port = __atomic_load_n(&worker->first->turn, __ATOMIC_ACQUIRE)) == 0) {
        if (bench_now_ns() > until)
            return worker_fail(worker, WORKER_FAILED, "limit: node %u: the next is not there",
                               worker->rank);
        bench_nap();
    }
    address = address_of(&nodes->list[(worker->rank + 1) % nodes->count], port);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    (void)failed(worker, "cannot connect to the next");
    if (fd >= 0)
        close(fd);
    return -1;
}

static int accept_one(struct worker *worker, int listener)
{
    struct pollfd poll_fd = {.fd = listener, .events = POLLIN};
    int fd = -1;

    errno = ETIMEDOUT;
    if (poll(&poll_fd, 1, (int)(LINK_WAIT_NS / 1000000)) > 0)
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    close(listener);
    return fd >= 0 ? fd : failed(worker, "nobody connected");
}

/* ---- a worker -------------------------------------------------------------------------------- */

static struct values pattern(uint32_t node)
{
    return (struct values){.type = GW_DTYPE_FP32, .factor = values_factor(GW_DTYPE_FP32, node)};
}

static int link_open(struct worker *worker)
{
    struct link *l = calloc(1, sizeof *l);
    struct values own = pattern(worker->rank);
    int listener;

    if (l == NULL)
        return failed(worker, "no memory");
    worker->state = l;
    l->to = l->from = -1;
    l->bytes = nodes_crossing_bytes(worker->what);
    l->sent = malloc(l->bytes);
    l->received = malloc(l->bytes);
    if (l->sent == NULL || l->received == NULL)
        return failed(worker, "no memory");
    values_fill(l->sent, l->bytes / sizeof(float), &own);
    if (worker->rank == 0)
        values_plant("limit", GW_DTYPE_FP32, l->sent, l->bytes / sizeof(float));
    if (enter(&worker->nodes->list[worker->rank]) < 0)
        return failed(worker, "cannot enter its network");
    listener = offer(worker);
    if (listener < 0)
        return -1;
    l->to = connect_next(worker);
    l->from = accept_one(worker, listener);
    if (l->to < 0 || l->from < 0)
        return -1;
    return fcntl(l->to, F_SETFL, O_NONBLOCK) < 0 ? failed(worker, "no such socket") : 0;
}

/* What was moved; 0: not now; -1: the connection is gone. */
static ssize_t moved(ssize_t n)
{
    return n > 0 ? n : n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

static int one_op(struct worker *worker, uint64_t *ret_ns)
{
    struct link *l = (struct link *)worker->state;
    uint64_t began = bench_now_ns(), sent = 0, received = 0;

    while (sent < l->bytes || received < l->bytes) {
        struct pollfd fds[] = {{sent < l->bytes ? l->to : -1, POLLOUT, 0},
                               {received < l->bytes ? l->from : -1, POLLIN, 0}};
        uint64_t left[] = {l->bytes - sent, l->bytes - received};
        ssize_t out = 0, in = 0;

        if (poll(fds, 2, (int)(LINK_WAIT_NS / 1000000)) <= 0)
            return failed(worker, "nothing moves");
        if (fds[0].revents != 0)
            out = moved(send(l->to, l->sent + sent, left[0] < PIECE_BYTES ? left[0] : PIECE_BYTES,
                             MSG_NOSIGNAL));
        if (fds[1].revents != 0)
            in = moved(recv(l->from, l->received + received,
                            left[1] < PIECE_BYTES ? left[1] : PIECE_BYTES, 0));
        if (out < 0 || in < 0)
            return failed(worker, "a connection is gone");
        sent += (uint64_t)out;
        received += (uint64_t)in;
    }
    *ret_ns = bench_now_ns() - began;
    return 0;
}

static int verify(struct worker *worker)
{
    const struct link *l = (const struct link *)worker->state;
    uint32_t count = worker->nodes->count, before = (worker->rank + count - 1) % count;
    struct values must = pattern(before);
    uint64_t bad = values_check(l->received, l->bytes / sizeof(float), &must);

    return bad == l->bytes / sizeof(float)
               ? 0
               : worker_fail(worker, WORKER_WRONG, "WRONG VALUE: limit: element %llu from node %u",
                             (unsigned long long)bad, before);
}

/* The first opens the connection's window and is not timed, as elsewhere. */
static int link_run(struct worker *worker, uint64_t iterations)
{
    struct link *l = (struct link *)worker->state;
    uint64_t ns = 0;

    memset(l->received, 0xff, l->bytes);
    for (uint64_t i = 0; i <= iterations; i++) {
        if (one_op(worker, &ns) < 0)
            return -1;
        if (i > 0)
            worker_sample(worker, ns);
    }
    return verify(worker);
}

/* The rest goes with the process. */
static void link_close(struct worker *worker)
{
    free(worker->state);
}

const struct worker_ops worker_link = {link_open, link_run, link_close};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fakegpu: the GPUs of the doubles. The main thread owns the sockets and answers requests; workers
 * (server_run.c) run the streams. Ends on `quit`, SIGTERM or SIGINT, writes its report, and exits
 * with 1 if any rule was broken.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/fakegpu/server_internal.h"

struct options {
    uint32_t gpus, nodes, workers, ctas;
    uint64_t seed, memory_mib;
    bool mps, step, no_memops;
    const char *socket, *report, *kernels;
};

struct connection {
    int fd;
    enum { LISTEN, LISTEN_CONTROL, CALLS, HOSTFNS, CONTROL } kind;
    struct process *process; /* CALLS after Hello, HOSTFNS */
    char line[512];
    size_t line_bytes;
    struct connection *next;
};

static struct server server;
static volatile sig_atomic_t stopped;
static int epoll_fd;
static struct connection *connections;

static void on_stop(int number)
{
    (void)number;
    stopped = 1;
}

static int watch(int fd, int kind)
{
    struct connection *connection = calloc(1, sizeof(*connection));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};

    if (!connection || fd < 0)
        return -1;
    connection->fd = fd;
    connection->kind = (unsigned)kind;
    connection->next = connections;
    connections = connection;
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static void drop(struct server *s, struct connection *connection)
{
    struct connection **at = &connections;

    while (*at != connection)
        at = &(*at)->next;
    *at = connection->next;
    if (connection->kind == CALLS && connection->process)
        process_gone(s, connection->process);
    if (connection->kind == HOSTFNS && connection->process->host_fd == connection->fd)
        connection->process->host_fd = -1;
    close(connection->fd);
    free(connection);
}

/* ---- calls ---------------------------------------------------------------------------------- */

/* First request of a connection. */
static void hello(struct server *s, struct connection *connection, struct call *c)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);

    c->reply.error = E_INVALID_VALUE;
    if (c->q->kind != FG_HELLO || c->q->a[1] >= s->nodes ||
        getsockopt(connection->fd, SOL_SOCKET, SO_PEERCRED, &peer, &size))
        return;
    if (c->q->a[2]) {
        for (struct process *p = s->processes; p; p = p->next)
            if (p->id == c->q->a[3] && !p->gone)
                connection->process = p;
        if (!connection->process)
            return;
        connection->kind = HOSTFNS;
        connection->process->host_fd = connection->fd;
    } else {
        connection->process = process_new(s, connection->fd, peer.pid, (int)c->q->a[1]);
        if (!connection->process)
            return;
        connection->process->queues = c->q->a[4] && c->q->a[4] <= 32 ? (uint32_t)c->q->a[4] : 8;
        connection->process->no_leaks = (c->q->a[3] & FG_HELLO_NO_LEAKS) != 0;
    }
    c->reply.v[0] = connection->process->id;
    c->reply.v[1] = s->gpus_per_node;
    c->reply.v[2] = c->q->a[1] * s->gpus_per_node;
    c->reply.error = E_OK;
}

static void dispatch(struct server *s, struct call *c)
{
    uint32_t kind = c->q->kind;

    if (c->process->sticky && kind != FG_BYE && kind != FG_VIOLATION && kind != FG_SYNC) {
        c->reply.error = c->process->sticky;
        return;
    }
    if (c->q->device >= s->gpu_count) {
        c->reply.error = E_INVALID_DEVICE;
        return;
    }
    if (kind >= FG_NCCL_FIRST && kind <= FG_NCCL_LAST)
        nccl_request(s, c->process, c->q, c->payload, &c->reply);
    else if (kind >= FG_ALLOC && kind <= FG_POINTER)
        memory_request(s, c);
    else if (kind >= FG_IPC_EXPORT && kind <= FG_IPC_CLOSE)
        ipc_request(s, c);
    else if (kind >= FG_VMM_CREATE && kind <= FG_VMM_IMPORT)
        vmm_request(s, c);
    else if ((kind >= FG_STREAM_NEW && kind <= FG_STREAM_NULL) || kind == FG_QUERY)
        stream_request(s, c);
    else if (kind >= FG_EVENT_NEW && kind <= FG_EVENT_OPEN)
        event_request(s, c);
    else if (kind >= FG_LAUNCH && kind <= FG_HOSTFN)
        enqueue_request(s, c);
    else
        process_request(s, c);
}

static bool answer(struct connection *connection, struct call *c)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec part = {.iov_base = &c->reply, .iov_len = sizeof(c->reply)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    if (c->reply_fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);

        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &c->reply_fd, sizeof(int));
    }
    bool sent = sendmsg(connection->fd, &message, MSG_NOSIGNAL) == (ssize_t)sizeof(c->reply);

    if (c->reply_owned)
        close(c->reply_fd);
    return sent;
}

/* A request and its descriptor; < 0: the connection has ended or talks nonsense. */
static ssize_t receive(int fd, void *buffer, size_t room, int *ret_fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {.iov_base = buffer, .iov_len = room};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    ssize_t bytes = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    const struct cmsghdr *header = bytes > 0 ? CMSG_FIRSTHDR(&message) : NULL;

    *ret_fd = -1;
    if (header && header->cmsg_type == SCM_RIGHTS)
        memcpy(ret_fd, CMSG_DATA(header), sizeof(int));
    return bytes > 0 && !(message.msg_flags & MSG_TRUNC) ? bytes : -1;
}

static bool on_call(struct server *s, struct connection *connection)
{
    static _Alignas(8) char buffer[sizeof(struct fg_request) + FG_PAYLOAD_MAX];
    struct call c = {.process = connection->process, .q = (const void *)buffer,
                     .payload = buffer + sizeof(struct fg_request), .reply_fd = -1};
    ssize_t bytes = receive(connection->fd, buffer, sizeof(buffer), &c.fd);
    bool good = false;

    if (bytes >= (ssize_t)sizeof(struct fg_request) &&
        (size_t)bytes - sizeof(struct fg_request) == c.q->payload_bytes) {
        if (connection->process)
            dispatch(s, &c);
        else
            hello(s, connection, &c);
        good = answer(connection, &c);
    }
    if (c.fd >= 0)
        close(c.fd);
    return good;
}

/* A host function has returned. */
static bool on_hostfn(struct server *s, struct connection *connection)
{
    struct fg_hostfn message;

    if (recv(connection->fd, &message, sizeof(message), 0) != (ssize_t)sizeof(message))
        return false;
    for (uint32_t i = 0; i < s->stream_count; i++) {
        struct op *op = s->streams[i]->head;

        if (op && op->id == message.op && op->kind == OP_HOSTFN && op->running &&
            op->stream->process == connection->process) {
            op_finish(s, op);
            break;
        }
    }
    return true;
}

static bool on_control(struct server *s, struct connection *connection)
{
    char *end, *text = NULL;
    size_t size = 0;
    FILE *out;
    ssize_t bytes = recv(connection->fd, connection->line + connection->line_bytes,
                         sizeof(connection->line) - 1 - connection->line_bytes, 0);

    if (bytes <= 0)
        return false;
    connection->line_bytes += (size_t)bytes;
    connection->line[connection->line_bytes] = '\0';
    while ((end = strchr(connection->line, '\n')) != NULL) {
        *end = '\0';
        out = open_memstream(&text, &size);
        if (!out)
            return false;
        if (!control_line(s, connection->line, out))
            stopped = 1;
        fclose(out);
        for (size_t sent = 0; sent < size;) {
            ssize_t some = send(connection->fd, text + sent, size - sent, MSG_NOSIGNAL);

            if (some <= 0)
                break;
            sent += (size_t)some;
        }
        free(text);
        connection->line_bytes -= (size_t)(end + 1 - connection->line);
        memmove(connection->line, end + 1, connection->line_bytes + 1);
    }
    return connection->line_bytes < sizeof(connection->line) - 1;
}

/* ---- sockets -------------------------------------------------------------------------------- */

static int listen_at(const char *path, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    if (fd < 0 || strlen(path) >= sizeof(address.sun_path))
        return -1;
    memcpy(address.sun_path, path, strlen(path) + 1);
    unlink(path);
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 512)) {
        close(fd);
        return -1;
    }
    return fd;
}

static void on_event(struct server *s, struct connection *connection)
{
    bool good = true;
    int fd;

    switch (connection->kind) {
    case LISTEN:
    case LISTEN_CONTROL:
        fd = accept4(connection->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0 && watch(fd, connection->kind == LISTEN ? CALLS : CONTROL))
            close(fd);
        return;
    case CALLS:
        good = on_call(s, connection);
        break;
    case HOSTFNS:
        good = on_hostfn(s, connection);
        break;
    case CONTROL:
        good = on_control(s, connection);
        break;
    }
    if (!good)
        drop(s, connection);
}

/* What processes have said comes before what is said of them: who has ended is seen to have. */
static int round_of(struct server *s, int timeout_ms)
{
    struct epoll_event events[64];
    int count = epoll_wait(epoll_fd, events, 64, timeout_ms);

    pthread_mutex_lock(&s->lock);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < count; i++) {
            struct connection *connection = events[i].data.ptr;

            if (connection && (connection->kind == CONTROL) == (pass == 1)) {
                events[i].data.ptr = NULL;
                on_event(s, connection);
            }
        }
    pthread_mutex_unlock(&s->lock);
    return count;
}

static void loop(struct server *s)
{
    while (!stopped)
        round_of(s, 1000);
    while (round_of(s, 0) > 0) {
    }
}

/* ---- start ---------------------------------------------------------------------------------- */

static int parse(int argc, char **argv, struct options *o)
{
    static const struct option names[] = {
        {"gpus", 1, NULL, 'g'}, {"nodes", 1, NULL, 'n'}, {"seed", 1, NULL, 's'},
        {"mps", 0, NULL, 'm'}, {"report", 1, NULL, 'r'}, {"socket", 1, NULL, 'p'},
        {"kernels", 1, NULL, 'k'}, {"ctas", 1, NULL, 'c'}, {"memory-mib", 1, NULL, 'M'},
        {"workers", 1, NULL, 'w'}, {"step", 0, NULL, 'S'}, {"rules", 0, NULL, 'R'},
        {"no-memops", 0, NULL, 'W'}, {0},
    };
    int option;

    while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
        uint64_t value = optarg ? strtoull(optarg, NULL, 10) : 0;

        switch (option) {
        case 'g': o->gpus = (uint32_t)value; break;
        case 'n': o->nodes = (uint32_t)value; break;
        case 's': o->seed = value; break;
        case 'm': o->mps = true; break;
        case 'W': o->no_memops = true; break;
        case 'r': o->report = optarg; break;
        case 'p': o->socket = optarg; break;
        case 'k': o->kernels = optarg; break;
        case 'c': o->ctas = (uint32_t)value; break;
        case 'M': o->memory_mib = value; break;
        case 'w': o->workers = (uint32_t)value; break;
        case 'S': o->step = true; break;
        case 'R': rules_print(stdout); exit(0);
        default: return -1;
        }
    }
    return o->socket && o->gpus && o->nodes && o->ctas && o->workers &&
                   o->gpus * (uint64_t)o->nodes <= FG_GPUS_MAX
               ? 0
               : -1;
}

static void set_up(struct server *s, const struct options *o)
{
    pthread_condattr_t monotonic;

    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->work, &monotonic);
    s->seed = o->seed;
    s->gpus_per_node = o->gpus;
    s->nodes = o->nodes;
    s->gpu_count = o->gpus * o->nodes;
    s->ctas = o->ctas;
    s->mps = o->mps;
    s->no_memops = o->no_memops;
    s->default_step = o->step;
    s->delay_percent = 100;
    s->next_address = FG_VA_BASE + (random_of(s, 'A', 0) % 4096 << 24);
    for (uint32_t i = 0; i < s->gpu_count; i++)
        s->gpus[i] = (struct gpu){.index = (int)i, .node = (int)(i / o->gpus),
                                  .total_bytes = o->memory_mib << 20, .ctas_free = o->ctas};
}

static int finish(struct server *s, const struct options *o)
{
    FILE *file = o->report ? fopen(o->report, "we") : NULL;

    workers_stop(s);
    if (file) {
        report_write(s, file);
        fclose(file);
    }
    return report_violations(s) ? 1 : 0;
}

int main(int argc, char **argv)
{
    struct options o = {.gpus = 1, .nodes = 1, .seed = 1, .workers = 4, .ctas = 32,
                        .memory_mib = 16384, .socket = getenv("FAKEGPU_SOCKET"),
                        .kernels = getenv("FAKEGPU_KERNELS")};
    struct sigaction stop = {.sa_handler = on_stop};
    char control[256];

    if (parse(argc, argv, &o)) {
        fputs("usage: fakegpu --socket PATH [--gpus N] [--nodes M] [--seed S] [--mps] [--step]\n"
              "  [--no-memops] [--report FILE] [--kernels LIBRARY[:LIBRARY]] [--ctas N]\n"
              "  [--memory-mib N] [--workers N] | --rules\n", stderr);
        return 2;
    }
    prctl(PR_SET_TIMERSLACK, 1000UL);
    set_up(&server, &o);
    guard_init();
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    signal(SIGPIPE, SIG_IGN);
    snprintf(control, sizeof(control), "%s.ctl", o.socket);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0 || (o.kernels && kernels_load(o.kernels)) ||
        watch(listen_at(o.socket, SOCK_SEQPACKET), LISTEN) ||
        workers_start(&server, o.workers) || /* the control socket comes last: all is there then */
        watch(listen_at(control, SOCK_STREAM), LISTEN_CONTROL)) {
        fprintf(stderr, "fakegpu: cannot start at %s: %s\n", o.socket, strerror(errno));
        return 2;
    }
    puts("fakegpu: ready");
    fflush(stdout);
    loop(&server);
    return finish(&server, &o);
}

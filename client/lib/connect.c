/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connecting: the socket's path, HELLO and WELCOME, the two pages and the doorbell; see connect.h.
 * Runs on the thread that creates or joins a job, before anybody else has the handle.
 */
#include "client/lib/connect.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "client/lib/clock.h"
#include "client/lib/err.h"

#define DEFAULT_SOCKET "/run/gradwire/gradwired.sock"

/* secure_getenv: a set-user-id program takes no socket from its caller. */
int connect_path(gw_job *job, const char *option)
{
    const char *path = option;
    size_t length;

    if (!path || !path[0])
        path = secure_getenv("GRADWIRE_SOCKET");
    if (!path || !path[0])
        path = DEFAULT_SOCKET;
    length = strlen(path);
    if (length >= sizeof(job->socket_path))
        return err_set(
            GW_E_INVALID,
            "the socket path has %zu bytes, but a Unix socket's has at most %zu: %.80s... "
            "Use a shorter --runtime-dir for gradwired",
            length, sizeof(job->socket_path) - 1, path);
    memcpy(job->socket_path, path, length + 1);
    return 0;
}

/* How to start it is said only where that would make this very socket. */
static int no_daemon(const gw_job *job, int error)
{
    static const char name[] = "/gradwired.sock";
    const char *path = job->socket_path, *slash = strrchr(path, '/');

    if (strcmp(path, DEFAULT_SOCKET) == 0)
        return err_set(GW_E_NO_DAEMON,
                       "gradwired does not answer at %s (%s); start it (systemctl start gradwired) "
                       "or set GRADWIRE_SOCKET",
                       path, strerror(error));
    if (slash && slash != path && strcmp(slash, name) == 0)
        return err_set(GW_E_NO_DAEMON,
                       "gradwired does not answer at %s (%s); start it (gradwired --runtime-dir "
                       "%.*s) or set GRADWIRE_SOCKET",
                       path, strerror(error), (int)(slash - path), path);
    return err_set(GW_E_NO_DAEMON,
                   "gradwired does not answer at %s (%s); start it with that --socket, or set "
                   "GRADWIRE_SOCKET to the socket of one that runs",
                   path, strerror(error));
}

/* One line that names the socket and what to do; it is all that most users ever see of us. */
static int refused(const gw_job *job, int error)
{
    if (error == EACCES || error == EPERM)
        return err_set(
            GW_E_DENIED,
            "no access to gradwired's socket %s (%s): it is for root and the group that owns it "
            "(gradwire, if its configuration names no other)",
            job->socket_path, strerror(error));
    if (error == ENOENT || error == ECONNREFUSED || error == ENOTDIR)
        return no_daemon(job, error);
    if (error == EPROTOTYPE || error == ENOTSOCK)
        return err_set(GW_E_NO_DAEMON, "%s is not gradwired's socket (%s); set GRADWIRE_SOCKET",
                       job->socket_path, strerror(error));
    return err_set(GW_E_IO, "cannot connect to gradwired at %s: %s", job->socket_path,
                   strerror(error));
}

/* The descriptor is listed for forks as soon as it exists. */
static int socket_new(gw_job *job)
{
    int fd;
    int r;

    fork_lock();
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    r = fd < 0 ? GW_E_IO : fork_fd_add(&job->guard, fd);
    fork_unlock();
    if (fd < 0)
        return err_set(GW_E_IO, "cannot make a socket: %s", strerror(errno));
    if (r == 0)
        job->channel.fd = fd;
    return r;
}

/* A connect to a Unix socket never waits: it succeeds, fails, or finds the queue full. */
static int open_socket(gw_job *job, int64_t deadline)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int r;

    memcpy(address.sun_path, job->socket_path, sizeof(job->socket_path));
    r = socket_new(job);
    if (r < 0)
        return r;
    while (connect(job->channel.fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
        int error = errno;
        struct timespec pause = clock_timespec(5 * CLOCK_MS);

        if (error == EINTR)
            continue;
        if (error != EAGAIN) /* EAGAIN: the queue of connections is full */
            return refused(job, error);
        if (clock_now() >= deadline)
            return err_set(
                GW_E_TIMEOUT,
                "gradwired at %s accepts no connection: too many wait already; try again",
                job->socket_path);
        nanosleep(&pause, NULL);
    }
    return 0;
}

/* Magic and version first: a page of another release must not be read as ours. */
static int map_page(int fd, uint32_t kind, uint64_t bytes, uint32_t used_bytes, int prot,
                    const char *what, struct map *ret_map)
{
    struct map map;
    const struct gw_shm_header *header;
    int r;

    r = map_new(fd, bytes, prot, what, &map);
    if (r < 0)
        return r;
    header = (const struct gw_shm_header *)(const void *)map.base;
    if (header->magic != GW_SHM_MAGIC || header->kind != kind ||
        header->version != GW_SHM_VERSION || header->size < used_bytes || header->size > bytes) {
        r = err_set(header->magic == GW_SHM_MAGIC && header->version != GW_SHM_VERSION
                        ? GW_E_VERSION
                        : GW_E_PROTOCOL,
                    "the engine's %s has version %u and %u bytes, expected %u and %u; library and "
                    "service do not fit",
                    what, header->version, header->size, GW_SHM_VERSION, used_bytes);
        map_free(&map);
        return r;
    }
    *ret_map = map;
    return 0;
}

/* Client page, engine page, doorbell: proto/WIRE.md has the order. */
static int take_welcome(gw_job *job, struct reply *reply)
{
    int r;

    if (reply->msg->u.welcome.version != GW_PROTOCOL_VERSION)
        return err_set(GW_E_VERSION, "the engine speaks protocol version %u, this library %u",
                       reply->msg->u.welcome.version, GW_PROTOCOL_VERSION);
    if (reply->fd_count != 3)
        return err_set(GW_E_PROTOCOL, "the engine's welcome has %u descriptors, expected 3",
                       reply->fd_count);
    snprintf(job->channel.engine, sizeof(job->channel.engine), "engine (pid %u)",
             reply->msg->u.welcome.engine_pid);
    r = map_page(reply->fds[0], GW_SHM_CLIENT, GW_CLIENT_PAGE_BYTES, sizeof(struct gw_client_page),
                 PROT_READ | PROT_WRITE, "client page", &job->client_map);
    if (r == 0)
        r = map_page(reply->fds[1], GW_SHM_ENGINE, GW_ENGINE_PAGE_BYTES,
                     sizeof(struct gw_engine_page), PROT_READ, "engine page", &job->engine_map);
    if (r < 0)
        return r;
    job->page = (struct gw_client_page *)(void *)job->client_map.base;
    job->engine = (const struct gw_engine_page *)(const void *)job->engine_map.base;
    job->channel.failure = &job->engine->error;
    job->doorbell = reply->fds[2]; /* stays listed for forks */
    reply->fds[2] = -1;
    if (job->device) {
        job->client_fd = reply->fds[0]; /* likewise */
        reply->fds[0] = -1;
    }
    return 0;
}

int connect_job_page(gw_job *job, int fd)
{
    int r = map_page(fd, GW_SHM_JOB, GW_PAGE_BYTES, sizeof(struct gw_job_page), PROT_READ,
                     "job page", &job->job_map);

    if (r == 0)
        job->common = (const struct gw_job_page *)(const void *)job->job_map.base;
    return r;
}

int connect_open(gw_job *job, const struct connect_to *to, int64_t deadline)
{
    struct wire_msg msg;
    struct reply reply = {0};
    int r;

    r = open_socket(job, deadline);
    if (r < 0)
        return r;
    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_HELLO;
    msg.u.hello.version_min = GW_PROTOCOL_VERSION;
    msg.u.hello.version_max = GW_PROTOCOL_VERSION;
    if (to->join) {
        msg.u.hello.tag_bytes = GW_TAG_BYTES;
        memcpy(msg.u.hello.tag, to->tag, GW_TAG_BYTES);
        msg.u.hello.spans = to->spans;
    }
    snprintf(msg.u.hello.client, sizeof(msg.u.hello.client), "%s", program_invocation_short_name);
    snprintf(job->channel.engine, sizeof(job->channel.engine), "gradwired");
    r = channel_request(&job->channel, &msg, WIRE_WELCOME, CHANNEL_PARK_NONE, deadline, &reply);
    if (r < 0)
        return err_prefix(r, "connecting to %s", job->socket_path);
    r = take_welcome(job, &reply);
    reply_free(&job->channel, &reply);
    return r;
}

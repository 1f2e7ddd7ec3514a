/* SPDX-License-Identifier: Apache-2.0 */
/* gwctl's connection to gradwired: connect, one request, its reply. Blocking, with deadlines. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

static int try_connect(struct ctl *ctl, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int saved;

    if (fd < 0)
        return -1;
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        saved = errno;
        (void)close(fd);
        errno = saved;
        return -1;
    }
    ctl->fd = fd;
    ctl->used = path;
    return 0;
}

static int say_no_daemon(const struct ctl *ctl, const char *path, int error)
{
    const char *slash = strrchr(ctl->socket, '/');

    if (error == EACCES || error == EPERM) {
        ctl_say("you may not use %s: it is for root and the group that owns it (gradwired.conf)",
                path);
        return EX_NOPERM;
    }
    if (strncmp(ctl->socket, "/run/gradwire/", 14) == 0)
        ctl_say("no gradwired answers at %s (%s); start it with: systemctl start gradwired", path,
                strerror(error));
    else if (slash != NULL && slash != ctl->socket && strcmp(slash, "/gradwired.sock") == 0)
        ctl_say("no gradwired answers at %s (%s); start it with: gradwired --runtime-dir %.*s",
                path, strerror(error), (int)(slash - ctl->socket), ctl->socket);
    else
        ctl_say("no gradwired answers at %s (%s); name the socket of one that runs with --socket, "
                "or start one with it",
                path, strerror(error));
    return EX_UNAVAILABLE;
}

int ctl_connect(struct ctl *ctl, bool read_only)
{
    int error;

    if (try_connect(ctl, ctl->admin_socket) == 0)
        return 0;
    error = errno;
    if (!read_only) {
        /* With the client socket there, gradwired runs and only this one is out of reach. */
        return say_no_daemon(ctl, error == ENOENT ? ctl->socket : ctl->admin_socket, error);
    }
    if (try_connect(ctl, ctl->socket) == 0)
        return 0;
    return say_no_daemon(ctl, ctl->socket, errno);
}

static int64_t now_ms(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* Bytes of the next packet, 0 at the end, -1 with errno (ETIMEDOUT). */
static ssize_t receive(int fd, uint8_t *buffer, size_t bytes, int timeout_ms)
{
    int64_t end_ms = now_ms() + timeout_ms;
    struct pollfd item = {.fd = fd, .events = POLLIN};
    int64_t left_ms = -1;
    int n;

    do {
        if (timeout_ms >= 0) {
            left_ms = end_ms - now_ms();
            left_ms = left_ms < 0 ? 0 : left_ms;
        }
        n = poll(&item, 1, (int)left_ms);
    } while (n < 0 && errno == EINTR);
    if (n == 0)
        errno = ETIMEDOUT;
    return n <= 0 ? -1 : recv(fd, buffer, bytes, 0);
}

static int say_failure(const struct ctl *ctl, ssize_t n)
{
    if (n < 0 && errno == ETIMEDOUT) {
        ctl_say("gradwired at %s did not answer in time", ctl->used);
        return EX_TEMPFAIL;
    }
    ctl_say("gradwired at %s closed the connection%s%s", ctl->used, n < 0 ? ": " : "",
            n < 0 ? strerror(errno) : "");
    return EX_UNAVAILABLE;
}

static int say_refusal(const struct ctl *ctl, const struct wire_msg *reply)
{
    int code = reply->u.done.code;

    ctl_say("gradwired at %s: %s", ctl->used, reply->u.done.text);
    switch (code) {
    case GW_E_DENIED:
        return EX_NOPERM;
    case GW_E_LIMIT:
    case GW_E_TIMEOUT:
        return EX_TEMPFAIL;
    case GW_E_VERSION:
    case GW_E_PROTOCOL:
    case GW_E_UNIMPLEMENTED:
        return EX_PROTOCOL;
    default:
        return EX_UNAVAILABLE;
    }
}

int ctl_ask(struct ctl *ctl, struct wire_msg *request, uint16_t want, int timeout_ms,
            struct wire_msg **ret_reply)
{
    static uint8_t buffer[GW_FRAME_MAX];
    struct wire_msg *reply = NULL;
    uint32_t number;
    size_t bytes;
    ssize_t n;
    int r;

    request->request = ++ctl->request;
    r = wire_encode(request, buffer, sizeof(buffer), &bytes);
    if (r < 0) {
        ctl_say("the request cannot be encoded");
        return EX_SOFTWARE;
    }
    /* A refused connection may be closed already; then its reason is still there to read. */
    n = send(ctl->fd, buffer, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno != EPIPE && errno != ECONNRESET)
        return say_failure(ctl, n);
    n = receive(ctl->fd, buffer, sizeof(buffer), timeout_ms);
    if (n <= 0)
        return say_failure(ctl, n);
    r = wire_decode(buffer, (size_t)n, &reply, &number);
    if (r == 0 && reply->type == want && reply->request == ctl->request &&
        (want != WIRE_DONE || reply->u.done.code == 0)) {
        *ret_reply = reply;
        return 0;
    }
    if (r == 0 && (reply->type == WIRE_CLOSE || reply->type == WIRE_DONE)) {
        r = say_refusal(ctl, reply);
    } else {
        ctl_say("gradwired at %s gave an answer that makes no sense", ctl->used);
        r = EX_PROTOCOL;
    }
    (void)wire_free(reply);
    return r;
}

int ctl_wait_end(struct ctl *ctl, int timeout_ms)
{
    uint8_t byte;
    ssize_t n;

    do {
        n = receive(ctl->fd, &byte, sizeof(byte), timeout_ms);
    } while (n > 0);
    if (n < 0 && errno == ETIMEDOUT) {
        ctl_say("gradwired at %s has agreed to end, but still runs", ctl->used);
        return EX_TEMPFAIL;
    }
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Packets with descriptors, in order. See outbox.h. Queued copies may hold the job's secret, so all
 * are wiped. Loop thread. */
#include "daemon/engine/outbox.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/engine/id.h"
#include "gradwire/errors.h"
#include "proto/limits.h"

struct outbox_packet {
    struct outbox_packet *next;
    unsigned fd_count;
    int fds[GW_FRAME_FDS_MAX];
    size_t bytes;
    uint8_t data[];
};

void outbox_start(struct outbox *outbox)
{
    outbox->first = NULL;
    outbox->last = &outbox->first;
    outbox->count = 0;
}

static void packet_free(struct outbox_packet *packet)
{
    for (unsigned i = 0; i < packet->fd_count; i++)
        close(packet->fds[i]);
    id_wipe(packet->data, packet->bytes);
    free(packet);
}

static void pop(struct outbox *outbox)
{
    struct outbox_packet *packet = outbox->first;

    outbox->first = packet->next;
    if (!outbox->first)
        outbox->last = &outbox->first;
    outbox->count--;
    packet_free(packet);
}

void outbox_end(struct outbox *outbox)
{
    while (outbox->first)
        pop(outbox);
}

bool outbox_empty(const struct outbox *outbox)
{
    return outbox->first == NULL;
}

static int send_now(int fd, const uint8_t *data, size_t bytes, const int *fds, unsigned fd_count)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(GW_FRAME_FDS_MAX * sizeof(int))];
    } control = {.room = {0}};
    struct iovec vector = {(void *)(uintptr_t)data, bytes};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
    ssize_t n;

    if (fd_count > 0) {
        struct cmsghdr *c;

        header.msg_control = control.room;
        header.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(c), fds, fd_count * sizeof(int));
    }
    do {
        n = sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ? GW_E_AGAIN : GW_E_IO;
    return 0;
}

static int queue(struct outbox *outbox, const uint8_t *data, size_t bytes, const int *fds,
                 unsigned fd_count)
{
    struct outbox_packet *packet;

    if (outbox->count == OUTBOX_PACKETS_MAX)
        return GW_E_LIMIT;
    packet = malloc(sizeof(*packet) + bytes);
    if (!packet)
        return GW_E_NOMEM;
    packet->next = NULL;
    packet->bytes = bytes;
    packet->fd_count = 0;
    memcpy(packet->data, data, bytes);
    for (unsigned i = 0; i < fd_count; i++) {
        /* The original may be closed before the client reads. */
        int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
        if (fd < 0) {
            packet_free(packet);
            return GW_E_LIMIT;
        }
        packet->fds[packet->fd_count++] = fd;
    }
    *outbox->last = packet;
    outbox->last = &packet->next;
    outbox->count++;
    return 0;
}

int outbox_send(struct outbox *outbox, int fd, const uint8_t *data, size_t bytes, const int *fds,
                unsigned fd_count)
{
    int r = GW_E_AGAIN;

    if (outbox_empty(outbox))
        r = send_now(fd, data, bytes, fds, fd_count);
    return r == GW_E_AGAIN ? queue(outbox, data, bytes, fds, fd_count) : r;
}

int outbox_flush(struct outbox *outbox, int fd)
{
    while (outbox->first) {
        const struct outbox_packet *packet = outbox->first;
        int r = send_now(fd, packet->data, packet->bytes, packet->fds, packet->fd_count);
        if (r < 0)
            return r == GW_E_AGAIN ? 0 : r;
        pop(outbox);
    }
    return 0;
}

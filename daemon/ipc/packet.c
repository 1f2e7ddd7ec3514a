/* SPDX-License-Identifier: Apache-2.0 */
/* Packets and their descriptors; keeps no state. See packet.h. */
#include "daemon/ipc/packet.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gradwire/errors.h"

static void take_control(struct msghdr *header, struct packet *packet)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c != NULL; c = CMSG_NXTHDR(header, c)) {
        size_t bytes = c->cmsg_len - CMSG_LEN(0);

        if (c->cmsg_level != SOL_SOCKET)
            continue;
        if (c->cmsg_type == SCM_RIGHTS) {
            /* The room is for FDS_MAX, but the kernel may round it up by one. */
            for (size_t i = 0; i < bytes / sizeof(int); i++) {
                int fd;

                memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
                if (packet->fd_count < GW_FRAME_FDS_MAX)
                    packet->fds[packet->fd_count++] = fd;
                else
                    (void)close(fd);
            }
        } else if (c->cmsg_type == SCM_CREDENTIALS && bytes >= sizeof(struct ucred)) {
            struct ucred sender;

            memcpy(&sender, CMSG_DATA(c), sizeof(sender));
            packet->sender_known = true;
            packet->sender_pid = sender.pid;
            packet->sender_uid = sender.uid;
        }
    }
}

int packet_receive(int fd, struct packet *packet)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(GW_FRAME_FDS_MAX * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
    } control;
    struct iovec vector = {packet->data, sizeof(packet->data)};
    struct msghdr header = {
        .msg_iov = &vector,
        .msg_iovlen = 1,
        .msg_control = control.room,
        .msg_controllen = sizeof(control.room),
    };
    ssize_t n;

    packet->bytes = 0;
    packet->fd_count = 0;
    packet->sender_known = false;
    do {
        n = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? GW_E_AGAIN : GW_E_IO;
    take_control(&header, packet);
    if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
        packet_close_fds(packet);
        return GW_E_PROTOCOL;
    }
    if (n == 0) {
        packet_close_fds(packet);
        return 0;
    }
    packet->bytes = (size_t)n;
    return 1;
}

void packet_close_fds(struct packet *packet)
{
    for (unsigned i = 0; i < packet->fd_count; i++) {
        if (packet->fds[i] >= 0)
            (void)close(packet->fds[i]);
    }
    packet->fd_count = 0;
}

int packet_send(int fd, const uint8_t *data, size_t bytes, int pass_fd)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.room = {0}};
    struct iovec vector = {(void *)(uintptr_t)data, bytes};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
    ssize_t n;

    if (pass_fd >= 0) {
        struct cmsghdr *c;

        header.msg_control = control.room;
        header.msg_controllen = sizeof(control.room);
        c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &pass_fd, sizeof(int));
    }
    do {
        n = sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? GW_E_AGAIN : GW_E_IO;
    return 0;
}

int packet_send_msg(int fd, const struct wire_msg *msg, int pass_fd)
{
    static uint8_t buffer[GW_FRAME_MAX];
    size_t bytes;
    int r;

    r = wire_encode(msg, buffer, sizeof(buffer), &bytes);
    if (r < 0)
        return r;
    return packet_send(fd, buffer, bytes, pass_fd);
}

int packet_send_code(int fd, uint16_t type, uint32_t request, int code, const char *text)
{
    struct wire_msg msg = {.type = type, .request = request};

    msg.u.done.code = code;
    (void)snprintf(msg.u.done.text, sizeof(msg.u.done.text), "%s", text);
    return packet_send_msg(fd, &msg, -1);
}

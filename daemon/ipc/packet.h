/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets on SOCK_SEQPACKET sockets: one packet, its descriptors, its sender. Never blocks. Loop
 * thread only (one send buffer).
 */
#ifndef GW_IPC_PACKET_H
#define GW_IPC_PACKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/limits.h"
#include "proto/wire.h"

struct packet {
    size_t bytes;
    unsigned fd_count;
    int fds[GW_FRAME_FDS_MAX]; /* close-on-exec; the receiver's to close */
    bool sender_known;         /* on sockets with SO_PASSCRED */
    pid_t sender_pid;
    uid_t sender_uid;
    uint8_t data[GW_FRAME_MAX];
};

/* 1: a packet. 0: end of file (or an empty packet). GW_E_AGAIN. GW_E_PROTOCOL: the packet or its
 * descriptors were cut (those that came are closed). GW_E_IO: errno says why. */
int packet_receive(int fd, struct packet *packet);
void packet_close_fds(struct packet *packet);
/* Sends with pass_fd, if not -1. GW_E_AGAIN: the receiver does not read. GW_E_IO: see errno. */
int packet_send(int fd, const uint8_t *data, size_t bytes, int pass_fd);
int packet_send_msg(int fd, const struct wire_msg *msg, int pass_fd);
/* CLOSE or DONE{code, text}; text is cut at GW_TEXT_MAX. */
int packet_send_code(int fd, uint16_t type, uint32_t request, int code, const char *text);

#endif

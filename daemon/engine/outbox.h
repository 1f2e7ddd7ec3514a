/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replies on their way to one client: sent at once where the socket takes them, else queued with
 * copies of their descriptors, up to a bound. Loop thread; never blocks. Knows sockets, nothing of
 * sessions.
 */
#ifndef GW_ENGINE_OUTBOX_H
#define GW_ENGINE_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OUTBOX_PACKETS_MAX 512u

struct outbox_packet;

struct outbox {
    struct outbox_packet *first, **last;
    unsigned count;
};

void outbox_start(struct outbox *outbox);
void outbox_end(struct outbox *outbox);
/* 0: sent or queued. GW_E_LIMIT: the client does not read; GW_E_NOMEM; GW_E_IO: errno says why. */
int outbox_send(struct outbox *outbox, int fd, const uint8_t *data, size_t bytes, const int *fds,
                unsigned fd_count);
/* Socket is writable again. 0, or GW_E_IO. */
int outbox_flush(struct outbox *outbox, int fd);
bool outbox_empty(const struct outbox *outbox);

#endif

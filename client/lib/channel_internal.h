/* SPDX-License-Identifier: Apache-2.0 */
/* Between channel.c (sending) and request.c (replies). All with channel->lock held. */
#ifndef GW_CLIENT_CHANNEL_INTERNAL_H
#define GW_CLIENT_CHANNEL_INTERNAL_H

#include "client/lib/channel.h"

/* Ends the channel for every caller; the first cause is kept. */
void channel_die(struct channel *channel, int code, const char *text);
/* channel_broken with the lock held. */
int channel_break(struct channel *channel, const char *text);
/* What wire_encode's `code` is to the caller. */
int channel_unencodable(struct channel *channel, int code, const struct wire_msg *msg);
/* The socket closed without a CLOSE. */
void channel_lost(struct channel *channel);
/* Sends or keeps one packet. GW_E_AGAIN when too much is kept already. */
int channel_put(struct channel *channel, const struct wire_msg *msg);
int channel_put_batch(struct channel *channel);
int channel_push_pending(struct channel *channel);
/* Reads and hands out all packets that are there, without blocking. */
void channel_drain(struct channel *channel);
void channel_requests_free(struct channel *channel);

#endif

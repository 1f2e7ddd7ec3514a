/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's end of the control channel: one-way messages that never block, requests that wait
 * for their reply, and the news that the engine is gone.
 *
 * Any thread. `lock` covers everything but the poll() of the one thread that reads for all: threads
 * with a request outstanding take turns as reader, the others sleep on `cond`. There is no thread
 * of its own.
 *
 *   READY entries -> batch (<= 256) --+-> pending frames (bounded) -> submission ring
 *   other messages -------------------+        only while that is full
 *
 * Until the job is joined frames are packets on the socket; replies always are. The doorbell is
 * rung only for an engine that says it sleeps, once for each of its sleeps.
 *
 * A READY that completes its bucket sends the batch, as does any other message and any wait that
 * sleeps: the engine needs the rest no earlier. Order in the ring is the order of the calls. A
 * request whose deadline passes is parked: the engine still works on it, and the next call of that
 * kind takes its reply instead of asking twice.
 */
#ifndef GW_CLIENT_CHANNEL_H
#define GW_CLIENT_CHANNEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/lib/fork.h"
#include "proto/submit.h"
#include "proto/wire.h"

#define CHANNEL_PENDING_MAX (4u << 20) /* bytes kept while the ring is full */
#define CHANNEL_PAUSE_NS 1000000       /* between two looks for room */

struct reply {
    struct wire_msg *msg;
    int fds[GW_FRAME_FDS_MAX];
    uint32_t fd_count;
};

/* What a call does about a parked request of the same type. */
enum channel_park {
    CHANNEL_PARK_NONE,  /* never parked: a late reply is dropped */
    CHANNEL_PARK_SAME,  /* takes its reply if the content is the same; else GW_E_STATE */
    CHANNEL_PARK_ANY,   /* takes its reply whatever was asked */
    CHANNEL_PARK_DRAIN, /* waits for its reply, then asks anew */
};

struct request;
struct packet;

struct channel {
    pthread_mutex_t lock;
    pthread_cond_t cond; /* CLOCK_MONOTONIC */
    struct fork_state *fork;
    int fd;
    /* Once joined: */
    struct submit_writer ring;
    const struct gw_engine_page *engine_page; /* NULL before */
    int doorbell;
    uint32_t rung; /* the engine's sleep that it was rung for */
    bool quiet;    /* what is put now need not be heard of */
    bool unrung;   /* such frames lie in the ring */
    bool reading;
    bool welcomed;   /* before: the other side is gradwired */
    atomic_int dead; /* 0, or the GW_E_* that ended the channel; dead_text is set before */
    char dead_text[GW_TEXT_MAX + 129];
    /* The job's error word once there is one: a failed job's requests wait a second at most. */
    const _Atomic int32_t *failure;
    char engine[64]; /* "engine of job 0123456789abcdef (pid 12)", for texts */
    uint32_t last_request;
    struct request *requests;
    struct packet *first, *last;
    size_t pending_bytes;
    /* Completes entries when they are sent, those of one call alike; NULL: they are complete. */
    int (*stamp)(void *stamp_job, struct wire_ready_entry *entries, uint32_t count);
    void *stamp_job;
    uint32_t batch_count, stamped; /* stamped: the first ones of the batch */
    struct wire_ready_entry batch[GW_READY_PER_FRAME];
    uint8_t out[GW_FRAME_MAX];
    uint8_t in[GW_FRAME_MAX];
};

/* Takes no socket yet: channel->fd is set by connect.c, listed in `fork`. */
int channel_init(struct channel *channel, struct fork_state *fork);
void channel_deinit(struct channel *channel);

/* The job is joined: frames go into the ring from here on. The pages and the doorbell stay the
 * caller's, and mapped as long as the channel is used. */
void channel_join(struct channel *channel, struct gw_client_page *page,
                  const struct gw_engine_page *engine_page, int doorbell);
/* 0 or the channel's error, with its text. */
int channel_error(struct channel *channel);
/* A check of the library's own has failed: ends the job. The engine sees that this rank is lost and
 * tells the others. Returns the channel's error, with its text. */
int channel_broken(struct channel *channel, const char *text);
/* One-way; the batch goes first. GW_E_AGAIN when too much is pending (nothing was done). */
int channel_send(struct channel *channel, const struct wire_msg *msg);
/* The same for what the engine need not hear of before the next message, or a wait. */
int channel_send_quiet(struct channel *channel, const struct wire_msg *msg);
/* One READY entry into the batch; `flush` sends it at once (a bucket is complete). */
int channel_ready(struct channel *channel, const struct wire_ready_entry *entry, bool flush);
/* Stamps what is in the batch now. An error has ended the channel. */
int channel_stamp(struct channel *channel);
/* Sends what is batched or pending as far as there is room; true: nothing is left. */
bool channel_flush(struct channel *channel);
/* A short while, in which there may be room. */
void channel_pause(struct channel *channel);
/* Flushes and reads what is there, without blocking: notices a dead engine. */
void channel_poll(struct channel *channel);

/* Sends *msg (its request id is filled in) and waits for the reply, which must be of type `expect`.
 * A DONE with an error becomes that error, with the engine's text. On 0 the reply is the caller's
 * (reply_free); ret_reply may be NULL. */
int channel_request(struct channel *channel, struct wire_msg *msg, uint16_t expect,
                    enum channel_park park, int64_t deadline, struct reply *ret_reply);
/* Closes what is left of its descriptors. */
void reply_free(struct channel *channel, struct reply *reply);

#endif

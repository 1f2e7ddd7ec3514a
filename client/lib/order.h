/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a job's calls are ordered with those who read and write its memory: by waiting on the host,
 * or in the job's stream on a GPU. Two const tables, one chosen when the job starts; the calls
 * never ask which.
 *
 *              host                               device
 *   wait       sleeps until the token is reached  enqueues a stream wait for its word
 *   mark       nothing: what is declared is done  raises an own timeline in the stream; the message
 *                                                 carries that token
 *   READY      sent in batches                    one raise per batch, when it is sent
 *
 * On a device, words lie in wait pages (proto/shm.h), which this side may write as well: when the
 * job has failed, release() raises all, and streams go on. Where streams cannot wait for words
 * (struct order_way), wait sleeps too, and an own timeline is a ring of events. Any thread. `lock`
 * is the innermost one; device calls are made under it, so that the values of a timeline rise in
 * the stream's order.
 */
#ifndef GW_CLIENT_ORDER_H
#define GW_CLIENT_ORDER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/lib/device.h"
#include "client/lib/map.h"
#include "proto/shm.h"
#include "proto/wire.h"

#define ORDER_STREAMS 16u /* of a job; each takes one own timeline */

struct wait_time;

/* A stream that the job records or waits in. */
struct order_stream {
    void *stream;
    bool has_timeline;
    uint32_t timeline;               /* index */
    uint64_t recorded;               /* value raised last */
    bool used;                       /* may hold work on the job's memory */
    uint64_t *waited;                /* words: per bucket: value waited for; NULL: not known */
    struct gw_device_events *events; /* events: of the timeline */
    bool closed;                     /* events: the engine has closed them */
};

/* A registered page: words from `address` on. */
struct order_page {
    struct map map;
    uint64_t address; /* of word 0 */
    uint32_t words;
};

/* Host memory on the way to or from the device: two halves by turns (bounce.c). */
struct order_bounce {
    pthread_mutex_t
        lock;      /* taken before all others but job->lock, which its holder must not have */
    uint8_t *base; /* NULL before the first copy */
    struct gw_token busy[2]; /* a half is free again once its token is reached */
    uint32_t next;
};

struct order {
    const struct order_ops *ops;
    const struct order_way *way; /* NULL: host */
    pthread_mutex_t begin_lock;  /* events: a stream's first use; before all but job->lock */
    pthread_mutex_t lock;
    struct order_stream streams[ORDER_STREAMS];
    uint32_t stream_count, current; /* current: the job's */
    bool unmarked;                  /* a READY came after the last raise in the job's stream */
    uint64_t client_address;        /* the client page, as the device sees it */
    struct order_page op_words, board_words;
    /* Copies out of staged buffers (import.c): a stream of ours, whose timeline counts ops. */
    atomic_bool has_copies;
    void *copy_stream;
    uint32_t copy_timeline;
    uint64_t copied_out; /* value that it is raised to last */
    struct order_bounce bounce;
};

struct order_ops {
    /* A reader of memory that has been launched need not be waited for by the caller. */
    bool streams;
    uint32_t tokens_max; /* of a caller's gw_grad_ready */
    /* What the caller does next with the job's memory comes after the token. GW_E_TIMEOUT has no
     * text. *ret_time: when it slept. */
    int (*wait)(gw_job *job, struct gw_token token, int64_t deadline, struct wait_time *ret_time);
    /* What a message declares comes after what the caller has done. Before the message, in one hold
     * of job->lock. */
    int (*mark)(gw_job *job, struct wire_after *ret_after);
    /* Waits on the host until all that the caller has done is done. GW_E_TIMEOUT has no text. */
    int (*settle)(gw_job *job, int64_t deadline);
    /* Where fetch `value` of the slot's unit lies. GW_E_AGAIN (no text): cannot be said yet. */
    int (*place)(gw_job *job, const struct gw_shm_slot *slot, uint64_t value, uint64_t *ret_offset);
    /* The caller's memory into the job's; then host memory may be used again, and a device's in the
     * stream. GW_E_TIMEOUT as above. Not under job->lock. */
    int (*copy_in)(gw_job *job, void *to, const void *from, size_t bytes, int64_t deadline);
    /* The job's memory into the caller's on the host, behind what the stream holds: it is there
     * when this returns. Otherwise as copy_in. */
    int (*copy_out)(gw_job *job, void *to, const void *from, size_t bytes, int64_t deadline);
    /* A READY entry is about to be batched. */
    void (*declared)(gw_job *job);
    /* Gives entries their tokens, when they are sent; under channel->lock. */
    int (*stamp)(void *job, struct wire_ready_entry *entries, uint32_t count);
    /* The job failed: nothing may wait for it. */
    void (*release)(gw_job *job);
};

extern const struct order_ops order_host, order_device;

/*
 * The two ways of a device, by what its table (device.h) has.
 *
 *              words (order_words.c)               events (order_events.c)
 *   raise      the stream writes the own word      the stream records the value's event
 *   wait       the stream waits for the word       the host does: CUDA says nothing of a stream
 *                                                  that waits for a dead process' event; between
 *                                                  the job's streams the stream does, as ever
 */
struct order_way {
    /* Before the first raise in a stream; set-up, may ask the engine. Takes the locks it needs. */
    int (*begin)(gw_job *job, void *stream);
    /* Lock held. The timeline's next value. */
    int (*raise)(gw_job *job, struct order_stream *s, uint64_t value);
    /* What comes next in the stream comes after the token, which is not reached yet. GW_E_TIMEOUT
     * has no text. *ret_time: when it slept. */
    int (*wait)(gw_job *job, struct gw_token token, struct order_stream *s, int64_t deadline,
                struct wait_time *ret_time);
    /* Whether a token that its word calls unreached is reached all the same. */
    bool (*passed)(gw_job *job, struct gw_token token);
    /* Streams are quiet, the job is about to be left; then what is left of a stream. */
    void (*end)(gw_job *job);
    void (*free)(gw_job *job, struct order_stream *s);
};

extern const struct order_way order_words, order_events;

void order_init(gw_job *job);
void order_deinit(gw_job *job);
/* The wait page that came with JOINED; takes the client page too. */
int order_start(gw_job *job, int fd);
/* The wait page that came with SEALED: `words` of the board. */
int order_board(gw_job *job, int fd, uint32_t words);
/* Until streams hold nothing of the job any more, a second at most. release: they need not wait for
 * anything. False: some may still hold something. Words do not tell: whoever ends a job raises them
 * before the streams have come to them, and work may follow the last one. */
bool order_quiet(gw_job *job, bool release);
/* Streams are quiet: the engine gives back what it has of them. Before the job is left. */
void order_end(gw_job *job);
/* Unregisters the pages; quiet: and unmaps them. */
void order_close(gw_job *job, bool quiet);

/* ---- device only ---- */

/* The word of a token, as the device sees it. False: it has none (always reached, or unknown). */
bool order_word(gw_job *job, struct gw_token token, uint64_t *ret_address);
/* What comes next in any stream comes after the token; what that may depend on is sent before.
 * GW_E_TIMEOUT has no text. */
int order_stream_wait(gw_job *job, struct gw_token token, void *stream, int64_t deadline,
                      struct wait_time *ret_time);
/* Where its word is behind: events. */
bool order_passed(gw_job *job, struct gw_token token);
/* Its place in the table; a new one when it is used for the first time. Lock held. */
int order_find(gw_job *job, void *stream, uint32_t *ret_index);
int order_record(gw_job *job, void *stream, struct gw_token *ret_token);
int order_set_stream(gw_job *job, void *stream);
/* The job's stream. */
void *order_stream(gw_job *job);
/* copy_in and copy_out of devices. */
int bounce_copy_in(gw_job *job, void *to, const void *from, size_t bytes, int64_t deadline);
int bounce_copy_out(gw_job *job, void *to, const void *from, size_t bytes, int64_t deadline);
/* Everything batched or pending goes to the engine; waits for room. */
int order_flush(gw_job *job);

#endif

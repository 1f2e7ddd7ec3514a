/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handle of one job in one process: who we are, the channel, the two pages, and what the parts
 * of the library keep in it.
 *
 * Any thread. `lock` covers all state below it that is not said to be atomic or fixed after
 * set-up; it is taken before channel->lock, never while waiting, and `cond` goes with it. In a
 * forked child only guard.forked may be read: shared memory is not mapped there, and the locks may
 * be copies that another thread held.
 */
#ifndef GW_CLIENT_JOB_H
#define GW_CLIENT_JOB_H

#include "client/lib/channel.h"
#include "client/lib/map.h"
#include "client/lib/order.h"
#include "client/lib/split.h"
#include "gradwire/gradwire.h"
#include "proto/shm.h"

/* Edges of daemon/core/edges.def that lie in the client; droppable in test builds. */
enum job_edge {
    JOB_EDGE_BUFFER_CONSUMED = 1u << 0,
    JOB_EDGE_VERDICT_READ = 1u << 1,
    JOB_EDGE_GATHERED = 1u << 2,
};

struct zero;
struct params;

struct job_group {
    uint32_t count;
    uint32_t ranks[GW_RANKS_MAX];
};

/* The op that last took a slot; its buffers are in use until the slot reaches `sequence`. */
struct job_op {
    uint64_t sequence;
    bool barrier; /* uses no buffer */
    uint32_t send_buffer, recv_buffer;
};

struct gw_buffer {
    gw_job *job;
    struct gw_buffer *next;
    struct map map;      /* the service's memory; none for imported memory */
    void *data;          /* what the caller knows: the mapping, or its own device memory */
    bool staged;         /* data is copied to and from map */
    uint64_t copied_out; /* staged: last op whose result is copied from it */
    uint32_t id;
    size_t size_bytes;
};

struct gw_job {
    struct fork_state guard;
    /* Fixed after gw_job_create / gw_job_join. */
    uint32_t rank, world, generation;
    int64_t timeout_ns;
    struct gw_job_id id;
    char tag[GW_TAG_CHARS];
    char socket_path[108];
    uint32_t dropped_edges;
    bool debug_guard;
    struct gw_device *device; /* NULL: host */
    struct map client_map, engine_map, job_map;
    struct gw_client_page *page;
    const struct gw_engine_page *engine;
    const struct gw_job_page *common; /* NULL on a device */
    int doorbell;
    int client_fd; /* of the client page, until a device has it; -1 */
    struct channel channel;
    atomic_uint timelines; /* own ones handed out */
    atomic_uint_fast64_t apart; /* a bit for each op slot whose op is not one of all ranks */
    struct split split;    /* has its own lock */
    struct order order;    /* likewise */
    atomic_uint_fast64_t staged_bytes;

    pthread_mutex_t lock;
    pthread_cond_t cond; /* CLOCK_MONOTONIC */
    int event, epoll;    /* event.c; -1 before the first gw_job_event_fd */
    uint64_t last_op;
    struct job_op ops[GW_OPS_IN_FLIGHT];
    struct job_group *groups; /* GW_GROUPS_MAX */
    struct gw_buffer *buffers;
    struct params *params;
    struct zero *sealing;      /* between SEALED and the last mapping */
    struct zero *_Atomic zero; /* set once, by gw_seal */
};

/* Every public call begins with one of these. enter: the handle is ours (not NULL, not a forked
 * child's). check: and the job has not failed. */
int job_enter(const gw_job *job);
int job_check(gw_job *job);
/* 0, or the job's failure: the engine page's error word with its text, or the dead channel. Streams
 * that wait for the job go on then. */
int job_failure(gw_job *job);
/* Of a wait that ended with r. True: the caller's deadline passed, and no text is set. A failed
 * job's error may be GW_E_TIMEOUT too (an op's deadline); its text names the op and who is missing,
 * and is kept. *r becomes the job's failure if there is one by now. */
bool job_deadline_passed(gw_job *job, int *r);
/* channel_request, but a deadline passed because the job failed is the job's failure. */
int job_request(gw_job *job, struct wire_msg *msg, uint16_t expect, enum channel_park park,
                int64_t deadline, struct reply *ret_reply);
/* In test builds, whether $GRADWIRE_DROP_EDGE names this edge. */
bool job_edge_dropped(const gw_job *job, enum job_edge edge);
/* job->cond until the deadline; false: it has passed. Lock held. */
bool job_cond_wait(gw_job *job, int64_t deadline);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One job: feeds the core and carries out its effects on a device and a fabric. Loop thread only.
 *
 * Knows ranks, not connections: whoever owns those (session.c; a test) attaches a rank's two shared
 * pages when it has joined, hands requests in, and gets replies by callback. Owns the core, the
 * fabric and the job's memory; not the device, nor the pages.
 */
#ifndef GW_ENGINE_JOB_H
#define GW_ENGINE_JOB_H

#include <stdbool.h>

#include "daemon/core/core.h"
#include "daemon/device/device.h"
#include "daemon/fabric/fabric.h"

struct job;

/* Called inside job_* calls; may call back job_attach, job_detach and job_discard alone. */
struct job_callbacks {
    /* The descriptors stay the job's. joiner: for the connection that asked to join by this cookie,
     * whoever holds the rank; 0: for who holds it. */
    void (*reply)(void *user, uint32_t rank, uint64_t joiner, const struct wire_msg *msg,
                  const int *fds, unsigned fd_count);
    /* Close this rank's connection; it is no longer part of the job. */
    void (*drop)(void *user, uint32_t rank, int code, const char *text);
    void (*failed)(void *user, uint32_t rank, int code, const char *text); /* for the log */
    void (*report)(void *user, const char *text);                          /* a stall; "": over */
    void (*end)(void *user); /* the job will not form again */
    /* A wait page was made, or is about to be freed. */
    void (*waits)(void *user, const struct device_memory *page, bool made);
    void *user;
};

/* Of a job that spans nodes: the one order of its events. Every node's job is given the same events
 * in that order (job_apply), so every node's core decides the same; each carries out what concerns
 * its own ranks. Called inside job_* calls. 0, or < 0: the engine must end. */
struct job_log {
    /* For the log; what it points at is copied. cookie: comes back with it, on this node. */
    int (*put)(void *user, const struct core_event *event, uint64_t cookie);
    /* What all nodes must have done before it is put there. */
    int (*op_done)(void *user, uint64_t op);
    int (*built)(void *user, int code, const char *text);
    int (*heard)(void *user); /* what ranks here had sent by now was put */
    /* Values of a rank's PARAM_IO: to all nodes, or, read, to the rank's. */
    int (*values)(void *user, uint32_t rank, uint32_t request, bool read, uint64_t offset,
                  const void *values, size_t bytes);
    void *user;
};

struct job_config {
    enum gw_device_kind kind; /* of the tables below */
    const struct device_ops *device_ops;
    struct device *device;
    const struct fabric_ops *fabric_ops;
    uint32_t world;
    uint64_t join_timeout_ns, op_timeout_ns;
    uint64_t stall_report_ns;  /* 0: the core's default */
    uint64_t link_bytes_per_s; /* 0: no simulated link */
    uint64_t memory_max_bytes; /* 0: no limit */
    uint64_t drop_edges;
    struct gw_job_page *page;    /* NULL: nobody sleeps on it */
    const struct job_log *log;   /* NULL: all ranks are on this node */
    struct fabric_nodes *nodes;  /* with log: the job notes here where ranks are */
    struct job_callbacks callbacks;
};

struct job_port {
    struct gw_engine_page *engine;
    const struct gw_client_page *client;
    const struct device_memory *waits; /* of the ops; NULL: the client has no streams */
    uint64_t identity;                 /* of the client: no two of a job have the same */
    pid_t pid;                         /* of the client; 0: in another PID namespace */
};

/* All calls below that return int: 0, or < 0: the engine cannot go on and must end. */
int job_new(const struct job_config *config, struct job **ret_job);
/* Ends what the device still runs; the device itself stays. */
struct job *job_free(struct job *job);

/* Before job_join: where the rank computes. 0; or why it may not, with text:
 * GW_E_MISMATCH, or as the device says it. A join that the core will refuse anyway changes
 * nothing. */
int job_place(struct job *job, uint32_t rank, uint32_t world, const struct device_place *place,
              char text[GW_TEXT_MAX + 1]);
/* Before job_join: the device's streams reach the page until job_discard. */
int job_lend(struct job *job, struct device_memory *page);
int job_join(struct job *job, uint64_t now_ns, uint32_t rank, uint32_t world, uint32_t request,
             uint64_t cookie);
/* In the reply JOINED: signals for the rank go to these pages, and threads that work for it move
 * beside its process, before its memory is made. */
void job_attach(struct job *job, uint32_t rank, const struct job_port *port);
/* The rank's connection is gone: its pages are not touched any more by ops launched from now on.
 * Its registered buffers are freed once no op uses them. */
void job_detach(struct job *job, uint32_t rank);
/* Frees a lent page when no op launched so far can raise anything in it any more. */
void job_discard(struct job *job, struct device_memory *memory);
int job_lost(struct job *job, uint64_t now_ns, uint32_t rank, const char *how);
int job_request(struct job *job, uint64_t now_ns, uint32_t rank, const struct wire_msg *msg);
/* All that clients had sent before what job_unheard counts was handed in; due when it is not 0. */
int job_heard(struct job *job, uint64_t now_ns);
uint32_t job_unheard(const struct job *job);
/* The next event of the log, of that node. now_ns: by the root's clock, brought to this node's. */
int job_apply(struct job *job, uint64_t now_ns, const struct core_event *event, uint32_t node,
              uint64_t cookie);
/* What job_log.values of another node sent. Ill-fitting ones are dropped. */
int job_values(struct job *job, uint32_t rank, uint32_t request, bool read, uint64_t offset,
               const void *values, size_t bytes);
/* By the log, a node is gone for good, and its ranks' shards with it: nobody may join again, for
 * this reason. */
void job_node_lost(struct job *job, const char *text);
/* How other nodes' fabrics find this one's. 0 bytes: not needed. */
int job_address(struct job *job, uint8_t ret_address[GW_FABRIC_ADDRESS_MAX], uint32_t *ret_bytes);
/* What another node said as that; 0 bytes: it is not to be reached. As the fabric's check. */
int job_address_check(const struct job *job, const uint8_t *address, uint32_t bytes,
                      char text[GW_TEXT_MAX + 1]);
/* The last op launched; 0: none. */
uint64_t job_last_op(const struct job *job);
/* All ranks have joined once: nodes are as they are. */
bool job_has_formed(const struct job *job);
/* After device_config.wake. A fault of the device fails the job, and none of its ranks may join
 * again: job_device_lost. */
int job_completions(struct job *job, uint64_t now_ns);
int job_tick(struct job *job, uint64_t now_ns);
uint64_t job_deadline_ns(const struct job *job); /* UINT64_MAX: none */
/* What broke the device, or NULL. */
const char *job_device_lost(const struct job *job);

/* Tells every attached rank that the job is over, through its pages. */
void job_fail_all(struct job *job, uint32_t rank, int code, const char *text);

const struct core *job_core(const struct job *job);
uint32_t job_world(const struct job *job);
/* "host", "local exact" */
const char *job_device_name(const struct job *job);
const char *job_fabric_name(const struct job *job);
/* "words", "events" (struct device_ops); "": host memory, or no rank is placed yet. */
const char *job_ordering_name(const struct job *job);
/* Where threads and memory were put, for people; "": nowhere on purpose. */
void job_placement_text(const struct job *job, char *text, size_t text_bytes);
uint64_t job_memory_bytes(const struct job *job);
void job_counters(const struct job *job, uint32_t rank, struct gw_counters ret_kinds[GW_KINDS]);

#endif

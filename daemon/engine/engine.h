/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gradwire-engine: one job's process, and what its parts ask of each other. Loop thread only.
 *
 *   main.c      options, descriptors, exit code
 *   engine.c    life: loop, linger, the job's callbacks, the end
 *   channel.c   to gradwired: hand-overs, stop; survives gradwired
 *   session.c   one per client: start, pages, replies, end
 *   session_in.c   what it sends, its death
 *   intake.c    the clients' submission rings, in each turn of the loop
 *   outbox.c    a client's replies: bounded, with their descriptors
 *   join.c      JOB_CREATE, JOIN: who may take part
 *   nodes.c ... several nodes: the star's messages, the log of events (nodes.h, star.h)
 *   lease.c     the GPUs that gradwired has lent
 *   guard.c     the process that frees clients' streams when this one has ended
 *   plugin.c    the devices that can be offered
 *   stats.c     the statistics page
 *   job.c ...   the job itself (job.h): knows ranks, not sockets
 *
 *   session  NEW (--its GPU is asked for--> waits) --JOINED--> JOINED --LEAVE--> LEFT
 *            any --socket or process ends, protocol broken, dropped--> closed
 */
#ifndef GW_ENGINE_ENGINE_H
#define GW_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>
#include <uv.h>

#include "daemon/base/priority.h"
#include "daemon/base/tag.h"
#include "daemon/device/pages.h"
#include "daemon/engine/guard.h"
#include "daemon/engine/id.h"
#include "daemon/engine/job.h"
#include "daemon/engine/lease.h"
#include "daemon/engine/nodes.h"
#include "daemon/engine/outbox.h"
#include "daemon/engine/plugin.h"
#include "daemon/ipc/handles.h"
#include "daemon/ipc/packet.h"
#include "proto/shm.h"
#include "proto/submit.h"
#include "proto/wire.h"

#define ENGINE_FIRST_NS 30000000000ull /* a client must come by then, or join by then */
#define ENGINE_SESSIONS_LEAST 160u /* that it takes, in a small job too */
#define ENGINE_FRAMES_PER_TURN 64u    /* of one client, then others have their turn */
#define ENGINE_LOST_NS 10000000000ull /* after a device failed: for clients to see it, and to go */
#define ENGINE_STATS_NS 50000000ull

struct engine_options {
    int channel_fd, listen_fd, lock_fd, stats_fd; /* -1: none */
    uid_t owner_uid;
    uint64_t linger_ns;
    uint64_t memory_max_bytes;
    uint64_t stall_report_ns; /* 0: the core's default */
    enum priority worker_priority; /* of threads that sum and copy in host memory */
    struct topology topology; /* count 0: threads and memory are not placed */
    uint64_t drop_edges;
    bool follow; /* another node's engine made the job: the tag is known, the id comes by JOIN */
    uint8_t follow_tag[GW_TAG_BYTES];
    const char *star_interface; /* NULL: chosen; this and the next three: star.h */
    uint16_t star_port_first, star_port_last;
    uint64_t star_beat_ns, star_lost_ns;
    char node_name[GW_LABEL_MAX + 1];
    bool probe; /* say what could be offered, and end */
    bool guard; /* watch over another engine */
    enum plugin_offer offer;
    const char *plugins; /* directory; NULL: the usual places */
};

struct session;
TAILQ_HEAD(session_list, session);

struct intake {
    uv_prepare_t prepare;
    uv_check_t check;
    uv_idle_t idle; /* active: rings hold more */
    struct watch *bells; /* of all clients: an epoll of their eventfds */
};

struct engine {
    struct engine_options options;
    uv_loop_t *loop;
    struct id *id;
    char tag[TAG_HEX_BYTES];
    struct job *job; /* NULL before JOB_CREATE, as are those below */
    enum gw_device_kind kind;
    const struct device_ops *device_ops;
    struct device *device;
    uint64_t identities; /* given to clients */
    char name[GW_LABEL_MAX + 1];
    struct session_list sessions;
    unsigned session_count;
    struct session *ranks[GW_RANKS_MAX]; /* who holds the rank */
    struct ranks held;                   /* those that somebody does */
    struct nodes *nodes;                 /* NULL: all ranks are on this node */
    struct ranks present;                /* ranks that had clients when it was looked at last */
    uint64_t linger_ns;
    uint64_t idle_ns; /* since when no client is there; 0: some are, or it ends */
    bool end_soon; /* the core said END */
    bool device_lost;
    int fault;
    bool ending;
    int exit_code;

    uv_async_t completed;
    uv_signal_t signals[2];
    struct intake intake;
    bool asleep; /* as clients were told */
    struct alarm *deadline; /* the core's */
    struct alarm *linger;
    struct alarm *lost; /* set when the device has failed */
    struct alarm *stats_due;

    struct watch *channel;
    struct watch *listener;
    struct plugins *plugins;
    struct guard *guard; /* jobs on GPUs */
    struct lease_list leases;

    struct device_memory *job_page; /* its ranks'; NULL: no job, or one on GPUs */
    struct gw_stats_page *stats;
    uint64_t started_ns, stats_ns;
    char wait[GW_TEXT_MAX + 1];

    struct packet packet; /* for whoever receives; never kept across callbacks */
};

/* ---- engine.c ---- */

int engine_new(const struct engine_options *options, struct engine **ret_engine);
struct engine *engine_free(struct engine *engine);
int engine_run(struct engine *engine);
/* What a job_* call returned: < 0 ends the engine, at the next engine_after. */
void engine_fault(struct engine *engine, int r);
/* At the end of each callback that called the job: its faults, clients it sent away, its
 * deadline. */
void engine_after(struct engine *engine);
/* Clients are told, then everything ends. */
void engine_stop(struct engine *engine, int code, const char *text);
/* The last client has gone, or the first has come. */
void engine_check_linger(struct engine *engine);
/* The session that asked to join by that cookie; NULL: it is gone. */
struct session *engine_session(struct engine *engine, uint64_t identity);
/* Another job wants a GPU that this one has: it ends if all ranks have left in good order. Lost
 * ranks may come back, and find their shards. */
void engine_wanted(struct engine *engine);
/* Makes the job and its device; sets config's device and callbacks. As job_new or device_new. */
int engine_make_job(struct engine *engine, struct job_config *config);
/* A page of GW_SHM_* shm_kind with its header, `used` of `bytes` bytes. As pages_new. */
int engine_make_page(enum pages_kind kind, const char *name, uint32_t shm_kind, size_t used,
                     size_t bytes, struct device_memory **ret_page);
/* A wait page was made, or is about to be freed. */
void engine_guard(struct engine *engine, const struct device_memory *page, bool made);

/* ---- channel.c ---- */

int channel_start(struct engine *engine);
/* No client comes any more: those handed over but not started yet get CLOSE{code, text}. */
void channel_refuse(struct engine *engine, int code, const char *text);
void channel_end(struct engine *engine);

/* ---- session.c ---- */

enum session_state { SESSION_NEW, SESSION_JOINED, SESSION_LEFT };

struct session {
    TAILQ_ENTRY(session) link;
    struct engine *engine;
    enum session_state state;
    uint32_t rank; /* JOINED */
    struct watch *socket;
    int doorbell;           /* intake.c's */
    int event;              /* the client's event loop waits for it; -1: not asked for */
    uint32_t event_wake;    /* the engine page's wake word when it was written last */
    struct watch *process;  /* pidfd; NULL: end of file is all we will see */
    struct alarm *alarm;    /* NEW: must have joined by then */
    struct wire_msg *asked; /* NEW, waits for a lease: its JOB_CREATE or JOIN, without the id */
    bool early; /* `asked` waits for the job's root to be reached */
    struct device_memory *client_page, *engine_page;
    struct submit_reader submit;     /* read from JOINED on */
    struct device_memory *wait_page; /* jobs on GPUs, from its JOIN on */
    bool client_lent, engine_lent;   /* the pages: to the job */
    uint64_t identity;               /* no other client of this engine has it */
    struct outbox outbox;
    bool busy;   /* on the stack: freed when it returns */
    bool doomed; /* to be closed at the next engine_after, or when it returns */
    bool closed;
    char doom[GW_TEXT_MAX + 1];
    int doom_code;
    pid_t pid;
    char client[GW_LABEL_MAX * 6 + 1]; /* escaped */
};

/* Takes fd over. hello: the client's first packet, as gradwired got it. */
void session_start(struct engine *engine, int fd, const uint8_t *hello, size_t hello_bytes);
/* Queues a message; a client that does not read its replies is doomed. */
void session_send(struct session *session, const struct wire_msg *msg, const int *fds,
                  unsigned fd_count);
void session_send_done(struct session *session, uint32_t request, int code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Closed soon, with CLOSE{code, text} first; safe inside job callbacks. */
void session_doom(struct session *session, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The rank is no longer this session's; nobody is told. */
void session_unbind(struct session *session);
/* Closes at once: the job hears of it if a rank was held. */
void session_close(struct session *session, const char *how);
/* Something lies in its submission ring. */
bool session_has_more(const struct session *session);
void session_say_asleep(struct session *session, bool asleep);
/* Each client that holds a rank is heard, a turn's worth at most. True: some of them said
 * something. */
bool session_take_turns(struct engine *engine);
/* Requests that came and are judged by what all ranks have said: all rings are read, then the job
 * judges. True: there were some. */
bool session_hear_out(struct engine *engine);
/* Ends the doomed. */
void session_reap(struct engine *engine);
/* The job hears what the clients that hold ranks have sent by now, and who of them has ended: a
 * JOIN may be read before the last packets of the client whose place it takes. */
void session_hear_ranks(struct engine *engine);
/* Writes the event descriptor of each client whose words have risen since the last call. */
void session_tell_events(struct engine *engine);

/* ---- intake.c ---- */

int intake_start(struct engine *engine);
void intake_end(struct engine *engine);
/* A client's doorbell: an eventfd that wakes the loop. GW_E_LIMIT: no descriptor. */
int intake_hang(struct engine *engine, int *ret_doorbell);
void intake_unhang(struct engine *engine, int *doorbell);

/* ---- join.c ---- */

/* The first messages of a client. */
void join_create(struct session *session, const struct wire_msg *msg);
void join_join(struct session *session, const struct wire_msg *msg);
/* The device's and fabric's tables, then as engine_make_job. nodes: of the configuration's. */
int join_make_job(struct engine *engine, struct job_config *config, char text[GW_TEXT_MAX + 1]);
/* The answer to lease_get: those that wait for the GPU go on, or hear why not. */
void join_leased(struct engine *engine, const uint8_t gpu[GW_GPU_BYTES], int code,
                 const char *text);
/* The core's answer to a JOIN. */
void join_reply(struct session *session, uint32_t rank, const struct wire_msg *msg);

/* ---- stats.c ---- */

int stats_start(struct engine *engine);
void stats_end(struct engine *engine);
/* Something changed: the page follows within ENGINE_STATS_NS. */
void stats_touch(struct engine *engine);

#endif

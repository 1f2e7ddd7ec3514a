/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gradwired's state, and what its parts ask of each other. Loop thread only.
 *
 *   peers.c     sockets, connections, limits, the one packet in two seconds
 *   requests.c  what a packet asks for
 *   engines.c   one record per living engine, by tag; clients that wait for it; its end
 *   spawn.c     a new engine: directory entry, descriptors, fork, exec as the job's user
 *   adopt.c     engines of an earlier gradwired
 *   stats.c     what an engine's statistics page says
 *   leases.c    GPUs, each to one job
 *   probe.c     which devices there are, asked of a short-lived child
 *   rundir.c    runtime directory, lock, socket files
 *
 *   client -> peer HALF_OPEN --HELLO--> WAITING (for its engine) --ready--> handed over, forgotten
 *                            --other--> ASKING (status, jobs, drain, stop)
 *   engine    STARTING --ENGINE_READY--> LIVE --exit--> gone   (follows: of another node's job)
 *             ADOPTING --ENGINE_READY--> LIVE --channel lost--> ADOPTING
 *             gone, and it followed another node's job: who waited for it gets a new one
 */
#ifndef GW_SUPERVISOR_SUPERVISOR_H
#define GW_SUPERVISOR_SUPERVISOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <uv.h>

#include "daemon/base/tag.h"
#include "daemon/base/topology.h"
#include "daemon/conf/conf.h"
#include "daemon/ipc/handles.h"
#include "daemon/ipc/packet.h"
#include "daemon/supervisor/rundir.h"
#include "proto/shm.h"
#include "proto/wire.h"

#define SUP_ENGINE_READY_NS 10000000000ull /* from start or adoption to ENGINE_READY */
#define SUP_ENGINE_END_NS 5000000000ull    /* from ENGINE_STOP to SIGKILL */
#define SUP_WAITING_MAX GW_RANKS_MAX       /* clients that wait for one engine */

struct peer;
struct engine;
TAILQ_HEAD(peer_list, peer);
TAILQ_HEAD(engine_list, engine);

struct listener {
    struct watch *watch;
    bool admin;
    struct supervisor *sup;
};

struct supervisor {
    uv_loop_t *loop;
    struct conf conf;      /* in force: file, environment, command line */
    struct conf file_conf; /* as last read from the file */
    const char *config_path;
    bool config_optional;
    char engine_path[CONF_PATH_BYTES];
    bool privileged; /* root: engines run as their client's user */
    uid_t uid;
    struct rundir *dir;
    struct listener listeners[2]; /* client, admin */
    int reserve_fd;               /* given up to refuse a connection when descriptors run out */
    uint64_t starved_ns;          /* when it was last said that they did */
    struct peer_list peers;
    struct engine_list engines;
    bool draining;
    bool stopping; /* STOP{engines}: end when the last engine has */
    struct alarm *stop_alarm;
    uint64_t started_ns;
    struct probe *probe; /* the child that looks for GPUs; NULL: none now */
    char devices[GW_TEXT_MAX + 1];
    char topology[TOPOLOGY_TEXT_BYTES]; /* of this node, for engines; "": not known */
    struct packet packet; /* for whoever receives; never kept across callbacks */
};

/* ---- supervisor.c ---- */

/* Ends the loop after this turn; engines stay. */
void supervisor_stop(struct supervisor *sup);
/* STOP{engines}: no new jobs, every engine is told to end, then supervisor_stop. */
void supervisor_stop_engines(struct supervisor *sup);
/* An engine has gone: whoever waits for the last one is told. */
void supervisor_engine_gone(struct supervisor *sup);

/* ---- peers.c ---- */

enum peer_state { PEER_HALF_OPEN, PEER_ASKING, PEER_WAITING };

struct peer {
    TAILQ_ENTRY(peer) link;
    TAILQ_ENTRY(peer) wait_link; /* PEER_WAITING: in engine->waiting */
    struct supervisor *sup;
    struct watch *watch;
    struct alarm *alarm;
    enum peer_state state;
    bool admin;
    struct ucred cred;
    struct engine *engine; /* PEER_WAITING */
    uint8_t *hello;        /* PEER_WAITING: its packet */
    size_t hello_bytes;
    bool wants_end; /* DRAIN or STOP is to be answered */
    uint32_t end_request;
};

/* Takes over a listening socket. */
int peers_listen(struct supervisor *sup, bool admin, int fd);
void peers_stop_listening(struct supervisor *sup);
/* Closes the connection; takes the peer off every list; returns NULL. */
struct peer *peer_free(struct peer *peer);
/* Says why, then closes. */
void peer_close(struct peer *peer, int code, const char *text);
/* DONE{code, text} to every peer that waits for the end of all jobs. */
void peers_answer_end(struct supervisor *sup, int code, const char *text);
/* It sent a request: no Hello is expected any more, and it may be idle for a while. */
void peer_asks(struct peer *peer);
/* The peer waits for `engine`: keeps its packet, listens for hang-up only. */
int peer_wait(struct peer *peer, struct engine *engine, const struct packet *packet);

/* ---- requests.c ---- */

/* Acts on the packet in sup->packet. May free the peer. */
void request_handle(struct peer *peer);
/* The peer's HELLO once more: the engine that it waited for has gone. Uses sup->packet. */
void request_again(struct peer *peer);

/* ---- engines.c ---- */

enum engine_state { ENGINE_STARTING, ENGINE_ADOPTING, ENGINE_LIVE };

struct engine {
    TAILQ_ENTRY(engine) link;
    struct supervisor *sup;
    enum engine_state state;
    char entry[RUNDIR_ENTRY_BYTES]; /* name under engines/ */
    uint8_t tag[TAG_BYTES];
    bool tag_known; /* it has said so, or its entry's name does */
    bool follows;   /* started for the tag: others may come for it before it is ready */
    bool child;    /* ours to reap */
    bool unreaped; /* it has ended, but somebody traces it */
    bool ending;   /* told to end */
    uid_t uid;
    pid_t pid; /* 0: not known (yet) */
    uint64_t started_ns;
    struct watch *channel; /* NULL: none now */
    struct watch *process; /* pidfd */
    struct alarm *alarm;
    int stats_fd;
    int report_fd; /* STARTING: tells what exec's preparation failed at */
    unsigned attempts;
    struct peer_list waiting;
    unsigned waiting_count;
    int end_code; /* why waiting clients are sent away, if known */
    char end_text[GW_TEXT_MAX + 1];
};

int engine_new(struct supervisor *sup, enum engine_state state, struct engine **ret_engine);
/* Forgets the engine; process and entry are left alone. Waiting clients get end_code. */
struct engine *engine_free(struct engine *engine);
/* Takes over the descriptors; on failure closes them. */
int engine_set_channel(struct engine *engine, int fd);
int engine_set_process(struct engine *engine, int pidfd);
/* The user's engine of the job, or the one that is being started for it. Anybody can name a tag, so
 * that two users may have engines that follow it. */
#define SUP_ANY_USER ((uid_t)-1)
struct engine *engine_find(struct supervisor *sup, const uint8_t tag[TAG_BYTES], uid_t uid);
unsigned engines_count(const struct supervisor *sup);
unsigned engines_count_user(const struct supervisor *sup, uid_t uid);
/* Passes the peer on to a LIVE engine now, else when it is. Frees the peer in time. */
void engine_take_client(struct engine *engine, struct peer *peer, const struct packet *packet);
/* The peer hung up while it waited. */
void engine_forget_client(struct engine *engine, struct peer *peer);
/* Tells it to end; by force after SUP_ENGINE_END_NS. */
void engine_end(struct engine *engine);
void engine_kill(struct engine *engine);
/* Process and lock are gone: removes entry and record. Uses sup->packet. */
void engine_gone(struct engine *engine);

/* ---- spawn.c ---- */

/* Starts an engine for the peer's user. follow: the tag of the job that it takes part in, or NULL:
 * it makes one. On failure `error` says what went wrong. */
int engine_spawn(struct supervisor *sup, const struct peer *peer, const uint8_t *follow,
                 struct engine **ret_engine, char *error, size_t error_bytes);
/* What tells an engine which devices it may offer; ends with NULL. */
#define SPAWN_DEVICE_ARGS 5
void spawn_devices(struct conf *conf, char *argv[SPAWN_DEVICE_ARGS]);
/* What the child's preparation failed at, from engine->report_fd; false: nothing is known. */
bool spawn_report(struct engine *engine, char *text, size_t text_bytes);

/* ---- topology.c ---- */

/* Fills sup->topology, once: processors and NUMA nodes stay as they are while gradwired runs. */
void topology_load(struct supervisor *sup);

/* ---- probe.c ---- */

/* Which devices jobs are offered, asked of an engine's program in a process of its own: told in
 * the log and kept in sup->devices when the answer is there. With device = cuda it is waited for:
 * 0, or EX_UNAVAILABLE with what is missing. */
int probe_start(struct supervisor *sup, char *error, size_t error_bytes);
void probe_end(struct supervisor *sup);

/* ---- leases.c ---- */

/* Answers an engine's LEASE_GET. */
void lease_grant(struct engine *engine, const char *gpu);

/* ---- adopt.c ---- */

/* Walks engines/: takes up living ones, removes dead entries. */
void adopt_all(struct supervisor *sup);
/* Connects to an engine that has no channel; removes it when it is dead; else tries again later. */
void adopt_try(struct engine *engine);

/* ---- stats.c ---- */

/* A new sealed page with its header. GW_E_IO. */
int stats_make(int *ret_fd);
/* A descriptor that claims to be a page: sealed memfd of the right size? */
bool stats_check(int fd);
/* One consistent copy, nothing of it believed yet. False: none could be had. */
bool stats_read(int fd, struct gw_stats_page *ret_page);
/* What is told of an engine: clamped, names escaped. The text buffers belong to the caller and are
 * pointed to by *ret_job. */
struct stats_text {
    char name[GW_LABEL_MAX + 1];
    char wait[GW_TEXT_MAX + 1];
    char device[GW_LABEL_MAX + 1];
    char fabric[GW_LABEL_MAX + 1];
    char ordering[GW_LABEL_MAX + 1];
    char workers[GW_LABEL_MAX + 1];
    char placement[GW_TEXT_MAX + 1];
};
void stats_job(const struct engine *engine, struct stats_text *text, struct wire_job *ret_job);

#endif

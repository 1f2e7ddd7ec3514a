/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry of engines: their channel, their process, the clients that wait for them, their end.
 * Loop thread only. What an engine says is checked: it runs with its user's rights, not with ours.
 *
 * An engine has ended when its process has (pidfd); where the process is not known (adopted, and it
 * has not answered yet), when its lock is free (adopt.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/escape.h"
#include "daemon/supervisor/log.h"
#include "daemon/supervisor/supervisor.h"

#define RECONNECT_NS 50000000ull
#define EXIT_GRACE_NS 500000000ull
#define REAP_AGAIN_NS 20000000ull

/* ---- record -------------------------------------------------------------------------------- */

/* Why clients that wait are sent away: the first reason is the cause of those after it. */
__attribute__((format(printf, 3, 4))) static void set_end(struct engine *engine, int code,
                                                          const char *format, ...)
{
    va_list list;

    if (engine->end_code != 0)
        return;
    engine->end_code = code;
    va_start(list, format);
    (void)vsnprintf(engine->end_text, sizeof(engine->end_text), format, list);
    va_end(list);
}

static void on_process(void *owner, int events);

static void on_alarm(void *owner)
{
    struct engine *engine = owner;
    struct peer *peer;

    if (engine->unreaped) {
        on_process(engine, 0);
    } else if (engine->ending && engine->process != NULL) {
        log_warning("engine %d did not end when told; killing it", (int)engine->pid);
        engine_kill(engine);
    } else if (engine->state == ENGINE_STARTING) {
        set_end(engine, GW_E_TIMEOUT, "the engine was not ready %s; it has been killed",
                engine->channel == NULL ? "and closed its channel" : "within 10 s");
        engine_kill(engine);
    } else if (engine->state == ENGINE_ADOPTING) {
        if (engine->channel != NULL) {
            log_warning("engine %s does not answer; trying again", engine->entry);
            while ((peer = TAILQ_FIRST(&engine->waiting)) != NULL)
                peer_close(peer, GW_E_TIMEOUT, "the job's engine does not answer");
        }
        engine->channel = watch_free(engine->channel);
        adopt_try(engine);
    }
}

int engine_new(struct supervisor *sup, enum engine_state state, struct engine **ret_engine)
{
    struct engine *engine = calloc(1, sizeof(*engine));
    int r;

    if (engine == NULL)
        return GW_E_NOMEM;
    engine->sup = sup;
    engine->state = state;
    engine->stats_fd = engine->report_fd = -1;
    engine->started_ns = now_ns();
    TAILQ_INIT(&engine->waiting);
    r = alarm_new(sup->loop, on_alarm, engine, &engine->alarm);
    if (r < 0) {
        free(engine);
        return r;
    }
    TAILQ_INSERT_TAIL(&sup->engines, engine, link);
    *ret_engine = engine;
    return 0;
}

struct engine *engine_free(struct engine *engine)
{
    struct peer *peer;

    if (engine == NULL)
        return NULL;
    while ((peer = TAILQ_FIRST(&engine->waiting)) != NULL)
        peer_close(peer, engine->end_code < 0 ? engine->end_code : GW_E_ENGINE_LOST,
                   engine->end_text[0] != '\0' ? engine->end_text : "the job's engine has ended");
    TAILQ_REMOVE(&engine->sup->engines, engine, link);
    engine->channel = watch_free(engine->channel);
    engine->process = watch_free(engine->process);
    engine->alarm = alarm_free(engine->alarm);
    fd_close(&engine->stats_fd);
    fd_close(&engine->report_fd);
    free(engine);
    return NULL;
}

struct engine *engine_find(struct supervisor *sup, const uint8_t tag[TAG_BYTES], uid_t uid)
{
    struct engine *engine;

    TAILQ_FOREACH(engine, &sup->engines, link) {
        if ((engine->tag_known || engine->follows) && memcmp(engine->tag, tag, TAG_BYTES) == 0 &&
            (uid == SUP_ANY_USER || uid == engine->uid))
            return engine;
    }
    return NULL;
}

unsigned engines_count(const struct supervisor *sup)
{
    const struct engine *engine;
    unsigned count = 0;

    TAILQ_FOREACH(engine, &sup->engines, link) {
        count++;
    }
    return count;
}

unsigned engines_count_user(const struct supervisor *sup, uid_t uid)
{
    const struct engine *engine;
    unsigned count = 0;

    TAILQ_FOREACH(engine, &sup->engines, link) {
        count += engine->uid == uid;
    }
    return count;
}

/* ---- clients ------------------------------------------------------------------------------- */

/* False: the engine is ending, and so is its channel. Else the peer is freed. */
static bool hand_over(struct engine *engine, struct peer *peer, const uint8_t *hello,
                      size_t hello_bytes)
{
    struct wire_msg msg = {.type = WIRE_HANDOVER};
    int r;

    msg.u.handover.hello = hello;
    msg.u.handover.hello_bytes = hello_bytes;
    r = packet_send_msg(watch_fd(engine->channel), &msg, watch_fd(peer->watch));
    if (r == GW_E_IO && (errno == EPIPE || errno == ECONNRESET))
        return false;
    if (r == 0)
        (void)peer_free(peer); /* the engine has its own descriptor now */
    else
        peer_close(peer, GW_E_AGAIN,
                   "the job's engine takes no new connections now; try again later");
    return true;
}

void engine_take_client(struct engine *engine, struct peer *peer, const struct packet *packet)
{
    if (engine->state == ENGINE_LIVE && hand_over(engine, peer, packet->data, packet->bytes))
        return;
    if (engine->waiting_count >= SUP_WAITING_MAX) {
        peer_close(peer, GW_E_LIMIT, "too many clients wait for this job's engine");
    } else if (peer_wait(peer, engine, packet) < 0) {
        peer_close(peer, GW_E_NOMEM, "no memory for another client");
    }
}

void engine_forget_client(struct engine *engine, struct peer *peer)
{
    TAILQ_REMOVE(&engine->waiting, peer, wait_link);
    engine->waiting_count--;
    peer->engine = NULL;
    /* Started for those clients alone; for others of its job there will be another. */
    if (engine->state == ENGINE_STARTING && engine->waiting_count == 0)
        engine_kill(engine);
}

/* ---- channel ------------------------------------------------------------------------------- */

static void channel_lost(struct engine *engine)
{
    engine->channel = watch_free(engine->channel);
    if (engine->state == ENGINE_STARTING) {
        alarm_set(engine->alarm, EXIT_GRACE_NS); /* mostly it exits, and says why by its code */
        return;
    }
    engine->state = ENGINE_ADOPTING;
    engine->attempts = 0;
    if (!engine->ending)
        alarm_set(engine->alarm, RECONNECT_NS); /* mostly it is just about to exit */
}

/* It talks nonsense. A new one is useless; one that serves ranks is left alone with them. */
static void channel_refuse(struct engine *engine, const char *why)
{
    log_error("engine %d (%s): %s; its channel is closed", (int)engine->pid, engine->entry, why);
    set_end(engine, GW_E_INTERNAL, "the engine misbehaved: %s", why);
    channel_lost(engine);
    if (engine->state == ENGINE_ADOPTING)
        alarm_set(engine->alarm, SUP_ENGINE_READY_NS);
}

/* The entry's name and the tag must agree, for a restarted gradwired finds engines by it. */
static const char *take_tag(struct engine *engine, const uint8_t tag[TAG_BYTES])
{
    const struct engine *other = engine_find(engine->sup, tag, engine->uid);
    char entry[RUNDIR_ENTRY_BYTES];

    rundir_entry_name(tag, engine->follows, engine->uid, entry);
    if (strncmp(engine->entry, "new-", 4) != 0)
        return strcmp(engine->entry, entry) == 0 ? NULL : "it answers with another job's tag";
    if (engine->follows && other != engine)
        return "it was started for another job's tag";
    if ((!engine->follows && other != NULL) ||
        rundir_entry_rename(engine->sup->dir, engine->entry, entry) < 0)
        return "its tag cannot be registered";
    memcpy(engine->entry, entry, sizeof(entry));
    memcpy(engine->tag, tag, TAG_BYTES);
    engine->tag_known = true;
    return NULL;
}

static const char *take_stats(struct engine *engine, struct packet *packet)
{
    if (engine->state == ENGINE_STARTING)
        return packet->fd_count == 0 ? NULL : "descriptors that nobody asked for";
    if (packet->fd_count != 1 || !stats_check(packet->fds[0]))
        return "no statistics page, or not one that is sealed";
    fd_close(&engine->stats_fd);
    engine->stats_fd = packet->fds[0];
    packet->fd_count = 0;
    return NULL;
}

/* The sender may have ended since, and its number be another user's process, which is not ours to
 * watch or kill. What the number said is true if the process has not ended by then. */
static bool is_of_user(int pidfd, pid_t pid, uid_t uid)
{
    struct stat status;
    char path[32];

    (void)snprintf(path, sizeof(path), "/proc/%d", (int)pid);
    return stat(path, &status) == 0 && status.st_uid == uid &&
           syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0) == 0;
}

static const char *take_process(struct engine *engine, const struct packet *packet)
{
    int pidfd;

    if (!packet->sender_known || packet->sender_uid != engine->uid)
        return "the answer does not come from its user";
    /* 0: of a process outside of our view; then the lock has to tell its end. */
    if (engine->process != NULL || packet->sender_pid <= 0)
        return NULL;
    engine->pid = packet->sender_pid;
    pidfd = (int)syscall(SYS_pidfd_open, engine->pid, 0);
    if (pidfd >= 0 && !is_of_user(pidfd, engine->pid, engine->uid)) {
        fd_close(&pidfd);
        return NULL; /* the lock, likewise */
    }
    return engine_set_process(engine, pidfd) < 0 ? "its process cannot be watched" : NULL;
}

static void on_ready(struct engine *engine, const struct wire_msg *msg, struct packet *packet)
{
    const char *wrong = NULL;
    struct peer *peer;

    if (engine->state == ENGINE_LIVE)
        wrong = "it says ready twice";
    else if (msg->u.engine_ready.channel_version < 1 ||
             msg->u.engine_ready.channel_version > GW_CHANNEL_VERSION)
        wrong = "it speaks another version of the channel";
    if (wrong == NULL)
        wrong = take_process(engine, packet);
    if (wrong == NULL)
        wrong = take_stats(engine, packet);
    if (wrong == NULL)
        wrong = take_tag(engine, msg->u.engine_ready.tag);
    if (wrong != NULL) {
        channel_refuse(engine, wrong);
        return;
    }
    log_info("job %s of user %u %s (engine %d)", engine->entry, engine->uid,
             engine->state == ENGINE_STARTING ? "started" : "adopted", (int)engine->pid);
    engine->state = ENGINE_LIVE;
    engine->attempts = 0;
    alarm_clear(engine->alarm);
    fd_close(&engine->report_fd);
    while ((peer = TAILQ_FIRST(&engine->waiting)) != NULL &&
           hand_over(engine, peer, peer->hello, peer->hello_bytes)) {
    }
    if (engine->ending)
        engine_end(engine);
}

static void on_message(struct engine *engine, struct packet *packet)
{
    struct wire_msg *msg = NULL;
    uint32_t request;
    int r;

    r = wire_decode(packet->data, packet->bytes, &msg, &request);
    if (r == GW_E_UNIMPLEMENTED)
        return; /* a newer engine's remark */
    if (r < 0) {
        channel_refuse(engine, "malformed message");
        return;
    }
    if (msg->type == WIRE_ENGINE_READY) {
        on_ready(engine, msg, packet);
    } else if (msg->type == WIRE_LEASE_GET && engine->state == ENGINE_LIVE) {
        lease_grant(engine, msg->u.lease_get.gpu);
    } else if (msg->type == WIRE_CLOSE && engine->state == ENGINE_STARTING) {
        /* Why it cannot become ready; it will end now. */
        engine->end_code = msg->u.done.code < 0 ? msg->u.done.code : GW_E_ENGINE_LOST;
        (void)escape_string(msg->u.done.text, engine->end_text, sizeof(engine->end_text));
    } else {
        channel_refuse(engine, "a message that is not an engine's");
    }
    (void)wire_free(msg);
}

static void on_channel(void *owner, int events)
{
    struct engine *engine = owner;
    struct packet *packet = &engine->sup->packet;
    int r;

    r = packet_receive(watch_fd(engine->channel), packet);
    if (r == GW_E_AGAIN && events >= 0)
        return;
    if (r == 1) {
        on_message(engine, packet);
        packet_close_fds(packet);
    } else if (r == GW_E_PROTOCOL) {
        channel_refuse(engine, "a packet that was cut");
    } else {
        channel_lost(engine);
    }
}

int engine_set_channel(struct engine *engine, int fd)
{
    return watch_new(engine->sup->loop, fd, UV_READABLE | UV_DISCONNECT, on_channel, engine,
                     &engine->channel);
}

/* ---- end ----------------------------------------------------------------------------------- */

static void describe_exit(struct engine *engine, int status)
{
    char report[GW_TEXT_MAX + 1];

    if (spawn_report(engine, report, sizeof(report)))
        set_end(engine, GW_E_ENGINE_LOST, "%s", report);
    else if (WIFSIGNALED(status))
        set_end(engine, GW_E_ENGINE_LOST, "the job's engine was killed by signal %d",
                WTERMSIG(status));
    else
        set_end(engine, GW_E_ENGINE_LOST, "the job's engine ended with exit code %d",
                WEXITSTATUS(status));
}

static void on_process(void *owner, int events)
{
    struct engine *engine = owner;
    int status = 0;

    (void)events; /* a pidfd is readable once its process has ended */
    if (engine->child && waitpid(engine->pid, &status, WNOHANG) == 0) {
        /* Who traces it has it first. The pidfd stays readable, and would keep us busy. */
        (void)watch_events(engine->process, 0);
        engine->unreaped = true;
        alarm_set(engine->alarm, REAP_AGAIN_NS);
        return;
    }
    if (engine->child)
        describe_exit(engine, status);
    if (engine->state == ENGINE_STARTING)
        log_error("engine %d for user %u: %s", (int)engine->pid, engine->uid, engine->end_text);
    else if (WIFSIGNALED(status) && !engine->ending)
        log_error("job %s: %s", engine->entry, engine->end_text);
    engine_gone(engine);
}

int engine_set_process(struct engine *engine, int pidfd)
{
    if (pidfd < 0)
        return GW_E_IO;
    return watch_new(engine->sup->loop, pidfd, UV_READABLE, on_process, engine, &engine->process);
}

void engine_end(struct engine *engine)
{
    struct wire_msg msg = {.type = WIRE_ENGINE_STOP};

    engine->ending = true;
    if (engine->state == ENGINE_STARTING) {
        set_end(engine, GW_E_DRAINING, "gradwired stops its engines");
        engine_kill(engine);
    } else if (engine->state == ENGINE_LIVE) {
        (void)packet_send_msg(watch_fd(engine->channel), &msg, -1);
        alarm_set(engine->alarm, SUP_ENGINE_END_NS);
    } else if (engine->process != NULL) {
        alarm_set(engine->alarm, SUP_ENGINE_END_NS);
    }
}

void engine_kill(struct engine *engine)
{
    if (engine->process != NULL)
        (void)syscall(SYS_pidfd_send_signal, watch_fd(engine->process), SIGKILL, NULL, 0);
}

/* A job of other nodes may go on without its engine here: who came while that one was ending is
 * not told of its end. */
static void keep_waiting(struct engine *engine, struct peer_list *ret_peers)
{
    struct peer *peer;

    TAILQ_INIT(ret_peers);
    if (!engine->follows || !engine->tag_known || engine->sup->stopping)
        return;
    TAILQ_CONCAT(ret_peers, &engine->waiting, wait_link);
    TAILQ_FOREACH(peer, ret_peers, wait_link) {
        peer->engine = NULL;
    }
}

void engine_gone(struct engine *engine)
{
    struct supervisor *sup = engine->sup;
    struct peer_list peers;
    struct peer *peer;

    if (engine->tag_known)
        log_info("job %s of user %u ended", engine->entry, engine->uid);
    rundir_entry_remove(sup->dir, engine->entry);
    keep_waiting(engine, &peers);
    (void)engine_free(engine);
    while ((peer = TAILQ_FIRST(&peers)) != NULL) {
        TAILQ_REMOVE(&peers, peer, wait_link);
        request_again(peer);
    }
    supervisor_engine_gone(sup);
}

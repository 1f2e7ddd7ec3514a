/* SPDX-License-Identifier: Apache-2.0 */
/* Asks gradwired for GPUs and keeps what it got. See lease.h. Loop thread. */
#include "daemon/engine/lease.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

#include "daemon/device/gpu_name.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/log.h"

struct lease {
    TAILQ_ENTRY(lease) link;
    struct engine *engine;
    uint8_t gpu[GW_GPU_BYTES];
    char name[DEVICE_GPU_NAME_BYTES];
    struct alarm *alarm; /* ASKED; else NULL */
    uint64_t asked_ns;   /* first */
    bool again;          /* the alarm is for asking once more */
    int fd;              /* HELD: the lock; -1: GPUs may be shared */
};

static struct lease *find(struct engine *engine, const char *name)
{
    struct lease *lease;

    TAILQ_FOREACH(lease, &engine->leases, link)
    {
        if (strcmp(lease->name, name) == 0)
            return lease;
    }
    return NULL;
}

static void lease_free(struct lease *lease)
{
    TAILQ_REMOVE(&lease->engine->leases, lease, link);
    alarm_free(lease->alarm);
    fd_close(&lease->fd); /* and the lock with it */
    free(lease);
}

/* Those that wait for it hear of it last: they may end whatever is here. */
static void refuse(struct lease *lease, int code, const char *text)
{
    struct engine *engine = lease->engine;
    uint8_t gpu[GW_GPU_BYTES];

    memcpy(gpu, lease->gpu, sizeof(gpu));
    log_line("no %s: %s", lease->name, text);
    lease_free(lease);
    join_leased(engine, gpu, code, text);
}

static int no_daemon(const char *name, char text[GW_TEXT_MAX + 1])
{
    snprintf(text, GW_TEXT_MAX + 1,
             "gradwired is not there to lend %s to this job: start it on this node, and try again",
             name);
    return GW_E_NO_DAEMON;
}

static int ask(struct engine *engine, const char *name)
{
    struct wire_msg msg = {.type = WIRE_LEASE_GET};

    snprintf(msg.u.lease_get.gpu, sizeof(msg.u.lease_get.gpu), "%s", name);
    if (!engine->channel || packet_send_msg(watch_fd(engine->channel), &msg, -1) < 0)
        return GW_E_NO_DAEMON;
    return 0;
}

static void on_alarm(void *owner)
{
    struct lease *lease = owner;
    struct engine *engine = lease->engine;
    char text[GW_TEXT_MAX + 1];

    if (lease->again) {
        lease->again = false;
        alarm_set(lease->alarm, LEASE_ANSWER_NS);
        if (ask(engine, lease->name) == 0)
            return;
        refuse(lease, no_daemon(lease->name, text), text);
        engine_after(engine);
        return;
    }
    snprintf(text, sizeof(text), "gradwired did not answer whether %s is free: try again",
             lease->name);
    refuse(lease, GW_E_TIMEOUT, text);
    engine_after(engine);
}

static int lease_new(struct engine *engine, const uint8_t gpu[GW_GPU_BYTES], const char *name)
{
    struct lease *lease = calloc(1, sizeof(*lease));

    if (!lease)
        return GW_E_NOMEM;
    if (alarm_new(engine->loop, on_alarm, lease, &lease->alarm) < 0) {
        free(lease);
        return GW_E_NOMEM;
    }
    lease->engine = engine;
    lease->fd = -1;
    memcpy(lease->gpu, gpu, sizeof(lease->gpu));
    snprintf(lease->name, sizeof(lease->name), "%s", name);
    lease->asked_ns = now_ns();
    alarm_set(lease->alarm, LEASE_ANSWER_NS);
    TAILQ_INSERT_TAIL(&engine->leases, lease, link);
    return 0;
}

int lease_get(struct engine *engine, const uint8_t gpu[GW_GPU_BYTES], char text[GW_TEXT_MAX + 1])
{
    char name[DEVICE_GPU_NAME_BYTES];
    struct lease *lease;

    device_gpu_name(gpu, name);
    lease = find(engine, name);
    if (lease)
        return lease->alarm ? GW_E_AGAIN : 0;
    if (ask(engine, name) < 0)
        return no_daemon(name, text);
    if (lease_new(engine, gpu, name) < 0) {
        snprintf(text, GW_TEXT_MAX + 1, "no memory for a lease");
        return GW_E_NOMEM;
    }
    return GW_E_AGAIN;
}

/* The lock came taken with the descriptor; a gradwired that leaves that to us finds it so too. */
static bool lock(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

static bool may_be_free(const struct lease *lease, const struct wire_msg *msg)
{
    uint64_t waited_ns = now_ns() - lease->asked_ns;
    int code = msg->u.lease.code;

    if (msg->u.lease.known)
        return false;
    return (code == GW_E_AGAIN && waited_ns < LEASE_FREE_NS) ||
           (code == GW_E_BUSY && waited_ns < LEASE_BUSY_NS);
}

void lease_answer(struct engine *engine, const struct wire_msg *msg, struct packet *packet)
{
    struct lease *lease = find(engine, msg->u.lease.gpu);
    int fd = packet->fd_count == 1 ? packet->fds[0] : -1;
    uint8_t gpu[GW_GPU_BYTES];
    char text[GW_TEXT_MAX + 1];

    if (!lease || !lease->alarm)
        return; /* too late: the descriptor is closed, and the lock with it */
    if (may_be_free(lease, msg)) {
        lease->again = true;
        alarm_set(lease->alarm, LEASE_AGAIN_NS);
        return;
    }
    if (msg->u.lease.code < 0) {
        refuse(lease, msg->u.lease.code == GW_E_AGAIN ? GW_E_BUSY : msg->u.lease.code,
               msg->u.lease.text);
        return;
    }
    if (fd >= 0 && !lock(fd)) {
        snprintf(text, sizeof(text), "%s is used by another job", lease->name);
        refuse(lease, GW_E_BUSY, text);
        return;
    }
    if (fd >= 0)
        packet->fd_count = 0; /* the lease's now */
    lease->fd = fd;
    lease->alarm = alarm_free(lease->alarm);
    memcpy(gpu, lease->gpu, sizeof(gpu));
    log_line("%s is %s", lease->name, fd < 0 ? "used, and may be shared" : "this job's");
    join_leased(engine, gpu, 0, "");
}

static struct lease *next_asked(struct engine *engine)
{
    struct lease *lease;

    TAILQ_FOREACH(lease, &engine->leases, link)
    {
        if (lease->alarm)
            return lease;
    }
    return NULL;
}

void lease_no_daemon(struct engine *engine)
{
    char text[GW_TEXT_MAX + 1];
    struct lease *lease;

    while ((lease = next_asked(engine)) != NULL) {
        int code = no_daemon(lease->name, text);
        refuse(lease, code, text);
    }
}

void lease_end(struct engine *engine)
{
    struct lease *lease;

    while ((lease = TAILQ_FIRST(&engine->leases)) != NULL)
        lease_free(lease);
}

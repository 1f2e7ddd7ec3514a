/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel to gradwired: hand-overs of clients, leases, and the order to stop. Loop thread.
 * gradwired may go and come back: a broken channel means nothing, and a new one, made through the
 * listening socket of the engine's directory entry, takes its place.
 */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/engine/engine.h"
#include "daemon/engine/log.h"

/* Safe inside callbacks that hold no session. */
static void channel_close(struct engine *engine)
{
    engine->channel = watch_free(engine->channel);
    if (!engine->ending)
        lease_no_daemon(engine);
}

static int send_ready(struct engine *engine, int fd, int pass_fd)
{
    struct wire_msg msg = {.type = WIRE_ENGINE_READY};

    msg.u.engine_ready.channel_version = GW_CHANNEL_VERSION;
    msg.u.engine_ready.pid = (uint32_t)getpid();
    memcpy(msg.u.engine_ready.tag, engine->id->tag, GW_TAG_BYTES);
    return packet_send_msg(fd, &msg, pass_fd);
}

static void handover(struct engine *engine, struct packet *packet, const struct wire_msg *msg)
{
    if (packet->fd_count != 1) {
        log_line("a hand-over came with %u descriptors", packet->fd_count);
        packet_close_fds(packet);
        channel_close(engine);
        return;
    }
    packet->fd_count = 0; /* the session's now */
    session_start(engine, packet->fds[0], msg->u.handover.hello, msg->u.handover.hello_bytes);
}

static void handle(struct engine *engine, struct packet *packet)
{
    struct wire_msg *msg = NULL;
    uint32_t request;
    int r = wire_decode(packet->data, packet->bytes, &msg, &request);

    if (r == 0 && msg->type == WIRE_HANDOVER) {
        handover(engine, packet, msg);
    } else if (r == 0 && msg->type == WIRE_LEASE) {
        lease_answer(engine, msg, packet);
    } else if (r == 0 && msg->type == WIRE_LEASE_WANTED) {
        engine_wanted(engine);
    } else if (r == 0 && msg->type == WIRE_ENGINE_STOP) {
        log_line("told to stop");
        engine_stop(engine, GW_E_ENGINE_LOST, "the job was ended by this node's administrator");
    } else if (r != GW_E_UNIMPLEMENTED) {
        /* A later gradwired may say what this one does not know; it may not say nonsense. */
        log_line("a malformed message came from gradwired: channel closed");
        channel_close(engine);
    }
    packet_close_fds(packet);
    wire_free(msg);
}

static void on_channel(void *owner, int events)
{
    struct engine *engine = owner;
    struct packet *packet = &engine->packet;

    (void)events;
    for (unsigned i = 0; i < ENGINE_FRAMES_PER_TURN && engine->channel && !engine->ending; i++) {
        int r = packet_receive(watch_fd(engine->channel), packet);
        if (r == GW_E_AGAIN)
            return;
        if (r == 1)
            handle(engine, packet);
        else
            channel_close(engine);
        engine_after(engine);
    }
}

static int channel_open(struct engine *engine, int fd, int pass_fd)
{
    struct watch *watch;

    if (send_ready(engine, fd, pass_fd) < 0) {
        fd_close(&fd);
        return GW_E_IO;
    }
    if (watch_new(engine->loop, fd, UV_READABLE, on_channel, engine, &watch) < 0)
        return GW_E_IO;
    channel_close(engine);
    engine->channel = watch;
    engine_after(engine);
    return 0;
}

static void on_listener(void *owner, int events)
{
    struct engine *engine = owner;
    struct ucred cred = {0, (uid_t)-1, 0};
    socklen_t bytes = sizeof(cred);
    int fd;

    (void)events;
    fd = accept4(watch_fd(engine->listener), NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &bytes) < 0 ||
        (cred.uid != 0 && cred.uid != getuid() && cred.uid != engine->options.owner_uid)) {
        log_line("user %u (pid %d) may not be this engine's gradwired", cred.uid, (int)cred.pid);
        fd_close(&fd);
        return;
    }
    if (channel_open(engine, fd, engine->options.stats_fd) == 0)
        log_line("gradwired (pid %d) has taken this engine over", (int)cred.pid);
}

int channel_start(struct engine *engine)
{
    int fd = engine->options.listen_fd;

    if (fd >= 0) {
        engine->options.listen_fd = -1;
        if (watch_new(engine->loop, fd, UV_READABLE, on_listener, engine, &engine->listener) < 0)
            return GW_E_IO;
    }
    fd = engine->options.channel_fd;
    if (fd >= 0) {
        engine->options.channel_fd = -1;
        /* Without it the engine waits for a gradwired to connect. */
        if (channel_open(engine, fd, -1) < 0)
            log_line("the channel to gradwired is broken");
    }
    return 0;
}

/* Who was on the way when the job ended is told so; a job of other nodes may go on, and gradwired
 * has another engine for who comes again. After the shutdown gradwired's next hand-over fails, so
 * none is lost between this and the process's end. */
void channel_refuse(struct engine *engine, int code, const char *text)
{
    struct packet *packet = &engine->packet;

    if (engine->options.follow)
        code = GW_E_AGAIN;
    if (!engine->channel)
        return;
    (void)shutdown(watch_fd(engine->channel), SHUT_RD);
    while (packet_receive(watch_fd(engine->channel), packet) == 1) {
        for (unsigned i = 0; i < packet->fd_count; i++)
            (void)packet_send_code(packet->fds[i], WIRE_CLOSE, 0, code, text);
        packet_close_fds(packet);
    }
}

void channel_end(struct engine *engine)
{
    channel_close(engine);
    engine->listener = watch_free(engine->listener);
}

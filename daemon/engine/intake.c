/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The submission rings of all clients, once in each turn of the loop, the word that tells them
 * whether the engine must be rung for, and their doorbells. Loop thread.
 *
 *   timers, callbacks -> take what lies in the rings -> say "asleep" -> look once more -> epoll
 *                                                                       -> say "awake" -> ...
 *
 * While more waits for other nodes than should, nothing is taken: the loop turns when it is less.
 *
 * Each client has its turn, but where a request must be judged by what all had said before it: then
 * all is read that lies in any ring.
 *
 * The look after the word and the clients' look at the word after their position are in one order
 * (seq_cst): either we see what they put, or they see that we sleep, and ring. While rings hold
 * more than a turn's worth the loop only polls, so that sockets and timers are served too.
 */
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "daemon/engine/engine.h"

/* ---- doorbells ------------------------------------------------------------------------------- */

/* One of them has woken us, or several: the rings are looked at in each turn. Bells are edge
 * triggered and their counts never read, which would cost a call for each; a counter that is full
 * after 2^64 rings is its client's own harm. */
static void on_bells(void *owner, int events)
{
    struct engine *engine = owner;
    struct epoll_event rung[GW_RANKS_MAX];

    (void)events;
    if (epoll_wait(watch_fd(engine->intake.bells), rung, GW_RANKS_MAX, 0) > 0 && engine->device)
        engine->device_ops->kick(engine->device);
}

int intake_hang(struct engine *engine, int *ret_doorbell)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    if (fd < 0)
        return GW_E_LIMIT;
    if (epoll_ctl(watch_fd(engine->intake.bells), EPOLL_CTL_ADD, fd, &event) < 0) {
        fd_close(&fd);
        return GW_E_LIMIT;
    }
    *ret_doorbell = fd;
    return 0;
}

/* Closing ours is not enough: the client has the same open file. */
void intake_unhang(struct engine *engine, int *doorbell)
{
    if (*doorbell >= 0)
        (void)epoll_ctl(watch_fd(engine->intake.bells), EPOLL_CTL_DEL, *doorbell, NULL);
    fd_close(doorbell);
}

static int bells_start(struct engine *engine)
{
    int fd = epoll_create1(EPOLL_CLOEXEC);

    if (fd < 0)
        return GW_E_LIMIT;
    return watch_new(engine->loop, fd, UV_READABLE, on_bells, engine, &engine->intake.bells);
}

/* ---- rings ----------------------------------------------------------------------------------- */

/* Keeps epoll from waiting; nothing to do by itself. */
static void on_idle(uv_idle_t *idle)
{
    (void)idle;
}

/* Whether some ring holds something. */
static bool say_asleep(struct engine *engine)
{
    bool some = false;

    engine->asleep = true;
    for (uint32_t rank = ranks_first(&engine->held); rank < GW_RANKS_MAX;
         rank = ranks_next(&engine->held, rank + 1))
        session_say_asleep(engine->ranks[rank], true);
    for (uint32_t rank = ranks_first(&engine->held); rank < GW_RANKS_MAX && !some;
         rank = ranks_next(&engine->held, rank + 1))
        some = session_has_more(engine->ranks[rank]);
    return some;
}

static void say_awake(struct engine *engine)
{
    if (!engine->asleep)
        return;
    engine->asleep = false;
    for (uint32_t rank = ranks_first(&engine->held); rank < GW_RANKS_MAX;
         rank = ranks_next(&engine->held, rank + 1))
        session_say_asleep(engine->ranks[rank], false);
}

/* Right before epoll. */
static void on_prepare(uv_prepare_t *prepare)
{
    struct engine *engine = prepare->data;
    bool full = false, some = false, more;

    if (engine->nodes) {
        nodes_turn(engine->nodes);
        full = nodes_full(engine->nodes);
    }
    if (!full) {
        some = session_take_turns(engine);
        some |= session_hear_out(engine);
    }
    if (some)
        engine_after(engine);
    more = engine->ending || (say_asleep(engine) && !full);
    if (more)
        say_awake(engine);
    if (more)
        (void)uv_idle_start(&engine->intake.idle, on_idle);
    else
        (void)uv_idle_stop(&engine->intake.idle);
}

/* Right after it. */
static void on_check(uv_check_t *check)
{
    say_awake(check->data);
}

int intake_start(struct engine *engine)
{
    struct intake *intake = &engine->intake;

    intake->prepare.data = intake->check.data = engine;
    if (uv_prepare_init(engine->loop, &intake->prepare) < 0 ||
        uv_check_init(engine->loop, &intake->check) < 0 ||
        uv_idle_init(engine->loop, &intake->idle) < 0 ||
        uv_prepare_start(&intake->prepare, on_prepare) < 0 ||
        uv_check_start(&intake->check, on_check) < 0)
        return GW_E_IO;
    return bells_start(engine);
}

void intake_end(struct engine *engine)
{
    engine->intake.bells = watch_free(engine->intake.bells);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No wake-up is lost between the engine's ring (daemon/device/ring.h) and the client's sleep
 * (client/lib/wait.c), whoever pauses where. Both run as they are, on pages that they share; system
 * calls go through syscall() below, which pauses before each and lets nobody wake by time: naps end
 * after 200 ms else, and what is lost would only be late.
 *
 * Threads and processes wait for one word, two of several, and either of two; of words that share a
 * line, and of one that others wait for, too; and for one that rises for all clients at once. A
 * word rises again only when all that wait for it have seen it: nobody else's wake-up makes up for
 * a lost one. Lost is: the word has risen, the ring is over for a while, and the waiter sleeps in
 * the kernel all the same.
 *
 * ctest: label=tsan timeout=120 link=gw_client
 */
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#include "client/lib/clock.h"
#include "client/lib/wait.h"
#include "daemon/device/ring.h"

#define CLIENTS 3u
#define WAITERS 5u
#define DUTIES 4u
#define ROUNDS 1000u
#define SUSPECT_NS (300 * CLOCK_MS)

/* What an engine's thread raises for a client, and who waits for it. */
static const struct duty {
    uint32_t slots[2]; /* of collectives; 33 has the line of 1 */
    uint32_t slot_count;
    bool any; /* one of them rises, by turns */
    uint32_t first_waiter, waiters;
    bool all; /* rises for all clients at once; they sleep on the job's word */
} duties[DUTIES] = {
    {{0}, 1, false, 0, 2, false},
    {{1, 2}, 2, false, 2, 1, false},
    {{33, 3}, 2, true, 3, 1, false},
    {{35}, 1, false, 4, 1, true},
};

enum fault { FAULT_NONE, FAULT_RISES_AFTER, FAULT_NO_BUMP, FAULT_OTHER_LINE, FAULTS };

struct waiter {
    _Atomic uint64_t seen; /* rounds */
    _Atomic uint32_t pid, tid;
    _Atomic bool asleep; /* in FUTEX_WAIT */
};

static struct world { /* shared by all */
    struct {
        struct gw_engine_page engine;
        struct gw_client_page page;
        struct waiter waiters[WAITERS];
    } clients[CLIENTS];
    struct gw_job_page common;
    enum fault fault;
    bool of_all; /* the fault is in what rises for all at once; else in the rest */
    _Atomic bool over;
    _Atomic uint32_t lost;
    char text[256]; /* of the first that is lost */
} *world;

static _Thread_local struct waiter *self; /* NULL: an engine's thread */
static _Thread_local uint64_t dice;

/* ---- pauses ---------------------------------------------------------------------------------- */

static uint64_t draw(uint64_t below)
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (dice >> 33) % below;
}

static void pause_a_little(void)
{
    struct timespec pause = {.tv_nsec = (long)draw(40000)};
    uint64_t how = draw(8);

    if (how == 0)
        nanosleep(&pause, NULL);
    else if (how < 4)
        sched_yield();
}

/* In place of the C library's, for what wait.c and ring.h call. */
long syscall(long number, ...)
{
    static long (*_Atomic next)(long, ...);
    long (*call)(long, ...) = atomic_load(&next);
    long arguments[6], r;
    bool sleeps;
    va_list list;

    va_start(list, number);
    for (size_t i = 0; i < 6; i++)
        arguments[i] = va_arg(list, long);
    va_end(list);
    if (!call) {
        call = (long (*)(long, ...))(uintptr_t)dlsym(RTLD_NEXT, "syscall");
        atomic_store(&next, call);
    }
    sleeps = number == SYS_futex && self && arguments[1] == FUTEX_WAIT_BITSET;
    if (number == SYS_futex)
        pause_a_little();
    if (sleeps) {
        arguments[3] = 0; /* no time */
        atomic_store(&self->asleep, true);
    }
    r = call(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
             arguments[5]);
    if (sleeps)
        atomic_store(&self->asleep, false);
    return r;
}

/* ---- clients --------------------------------------------------------------------------------- */

struct place {
    uint32_t client, waiter;
};

static const struct duty *duty_of(uint32_t waiter)
{
    const struct duty *duty = duties;

    while (waiter < duty->first_waiter || waiter >= duty->first_waiter + duty->waiters)
        duty++;
    return duty;
}

static void *wait_rounds(void *arg)
{
    const struct place *place = arg;
    const struct duty *duty = duty_of(place->waiter);
    gw_job *job = calloc(1, sizeof(*job));

    if (!job)
        abort();
    self = &world->clients[place->client].waiters[place->waiter];
    dice = 1 + place->client * WAITERS + place->waiter;
    atomic_store(&self->tid, (uint32_t)gettid());
    atomic_store(&self->pid, (uint32_t)getpid());
    job->engine = &world->clients[place->client].engine;
    job->page = &world->clients[place->client].page;
    job->common = &world->common;
    for (uint32_t i = 0; i < duty->slot_count && !duty->all; i++)
        job->apart |= UINT64_C(1) << duty->slots[i];
    job->order.ops = &order_host;
    pthread_mutex_init(&job->channel.lock, NULL);
    for (uint64_t round = 1; round <= ROUNDS && !atomic_load(&world->over); round++) {
        struct gw_token tokens[2];
        struct wait_time time;
        size_t index;

        for (uint32_t i = 0; i < duty->slot_count; i++)
            tokens[i] = (struct gw_token){.timeline = GW_TIMELINE(GW_TL_OP, duty->slots[i]),
                                          .value = round};
        pause_a_little();
        if (wait_tokens(job, tokens, duty->slot_count, duty->any, INT64_MAX, &index, &time) == 0)
            atomic_store(&self->seen, round);
    }
    pthread_mutex_destroy(&job->channel.lock);
    free(job);
    return NULL;
}

static void run_client(uint32_t client)
{
    pthread_t threads[WAITERS];
    struct place places[WAITERS];

    for (uint32_t w = 0; w < WAITERS; w++) {
        places[w] = (struct place){client, w};
        if (pthread_create(&threads[w], NULL, wait_rounds, &places[w]) != 0)
            abort();
    }
    for (uint32_t w = 0; w < WAITERS; w++)
        pthread_join(threads[w], NULL);
}

/* ---- the engine ------------------------------------------------------------------------------ */

static enum fault fault_of(bool of_all)
{
    return world->of_all == of_all ? world->fault : FAULT_NONE;
}

static void ring(uint32_t client, uint32_t lines)
{
    struct gw_engine_page *engine = &world->clients[client].engine;
    const struct gw_client_page *page = &world->clients[client].page;

    if (fault_of(false) == FAULT_OTHER_LINE)
        lines = lines << 1 | lines >> 31;
    if (fault_of(false) == FAULT_NO_BUMP)
        atomic_fetch_sub(&engine->wake, 1); /* as if ring did not add it */
    device_ring(engine, page, lines);
}

/* Words to `round`: each with a ring of its own, or all with one. */
static void raise_words(uint32_t client, const struct duty *duty, uint64_t round)
{
    struct gw_engine_page *engine = &world->clients[client].engine;
    uint32_t first = duty->any ? (uint32_t)draw(2) : 0, lines = 0;
    uint32_t end = duty->any ? first + 1 : duty->slot_count;
    bool together = draw(2);

    for (uint32_t i = first; i < end; i++) {
        struct gw_shm_slot *slot = &engine->op[duty->slots[i]];

        lines |= device_line(slot);
        if (fault_of(false) == FAULT_RISES_AFTER) {
            ring(client, lines);
            pause_a_little();
        }
        atomic_store_explicit(&slot->value, round, memory_order_release);
        pause_a_little();
        if (fault_of(false) != FAULT_RISES_AFTER && (!together || i + 1 == end)) {
            ring(client, lines);
            lines = 0;
        }
    }
}

static void ring_common(const struct duty *duty)
{
    struct device_signal signals[CLIENTS];

    for (uint32_t c = 0; c < CLIENTS; c++) {
        struct gw_engine_page *engine = &world->clients[c].engine;

        signals[c] = (struct device_signal){.slot = &engine->op[duty->slots[0]],
                                            .engine = engine,
                                            .client = &world->clients[c].page,
                                            .job = &world->common};
        if (fault_of(true) == FAULT_OTHER_LINE)
            signals[c].slot++;
    }
    if (fault_of(true) == FAULT_NO_BUMP)
        atomic_fetch_sub(&world->common.wake, 1); /* as if it were not added */
    device_ring_all(signals, CLIENTS);
}

static void raise_for_all(const struct duty *duty, uint64_t round)
{
    if (fault_of(true) == FAULT_RISES_AFTER) {
        ring_common(duty);
        pause_a_little();
    }
    for (uint32_t c = 0; c < CLIENTS; c++) {
        atomic_store_explicit(&world->clients[c].engine.op[duty->slots[0]].value, round,
                              memory_order_release);
        pause_a_little();
    }
    if (fault_of(true) != FAULT_RISES_AFTER)
        ring_common(duty);
}

/* 'S': in the kernel, and nobody has woken it. */
static char state_of(const struct waiter *waiter)
{
    char path[64], line[512] = "", *end;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%u/task/%u/stat", atomic_load(&waiter->pid),
             atomic_load(&waiter->tid));
    file = fopen(path, "r");
    if (!file)
        return '?';
    (void)!fgets(line, sizeof(line), file);
    fclose(file);
    end = strrchr(line, ')');
    return end && end[1] ? end[2] : '?';
}

/* All is over: whoever sleeps sees the error. */
static void end_all(void)
{
    atomic_store(&world->over, true);
    for (uint32_t c = 0; c < CLIENTS; c++) {
        atomic_store(&world->clients[c].engine.error, GW_E_INTERNAL);
        atomic_fetch_add(&world->clients[c].engine.wake, 1);
        syscall(SYS_futex, &world->clients[c].engine.wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
    atomic_fetch_add(&world->common.wake, 1);
    syscall(SYS_futex, &world->common.wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Nobody has come for long: does one sleep on what has risen? */
static void suspect(uint32_t client, const struct duty *duty, uint64_t round)
{
    for (uint32_t w = duty->first_waiter; w < duty->first_waiter + duty->waiters; w++) {
        const struct waiter *waiter = &world->clients[client].waiters[w];

        if (atomic_load(&waiter->seen) >= round || !atomic_load(&waiter->asleep) ||
            state_of(waiter) != 'S' || atomic_load(&waiter->seen) >= round)
            continue;
        if (atomic_fetch_add(&world->lost, 1) == 0)
            snprintf(world->text, sizeof(world->text),
                     "client %u, waiter %u sleeps, though word %u has risen to %lu", client, w,
                     duty->slots[0], (unsigned long)round);
        end_all();
    }
}

static bool all_saw(uint32_t client, const struct duty *duty, uint64_t round)
{
    bool all = true;

    for (uint32_t w = duty->first_waiter; w < duty->first_waiter + duty->waiters; w++)
        all &= atomic_load(&world->clients[client].waiters[w].seen) >= round;
    return all;
}

static void serve_all(const struct duty *duty)
{
    int64_t rung = 0;

    for (uint64_t round = 0; !atomic_load(&world->over);) {
        uint32_t saw = 0;

        for (uint32_t c = 0; c < CLIENTS; c++) {
            bool all = all_saw(c, duty, round);

            saw += all;
            if (!all && clock_now() - rung > SUSPECT_NS)
                suspect(c, duty, round);
        }
        if (saw == CLIENTS && round == ROUNDS)
            return;
        if (saw == CLIENTS) {
            raise_for_all(duty, ++round);
            rung = clock_now();
        }
        sched_yield();
    }
}

static void *serve(void *arg)
{
    const struct duty *duty = arg;
    uint64_t round[CLIENTS] = {0};
    int64_t rung[CLIENTS] = {0};
    uint32_t done = 0;

    dice = 1000 + (uint64_t)(duty - duties);
    if (duty->all) {
        serve_all(duty);
        return NULL;
    }
    while (done < CLIENTS && !atomic_load(&world->over)) {
        done = 0;
        for (uint32_t c = 0; c < CLIENTS; c++) {
            if (!all_saw(c, duty, round[c])) {
                if (clock_now() - rung[c] > SUSPECT_NS)
                    suspect(c, duty, round[c]);
            } else if (round[c] == ROUNDS) {
                done++;
            } else {
                raise_words(c, duty, ++round[c]);
                rung[c] = clock_now();
            }
        }
        sched_yield();
    }
    return NULL;
}

static void run_engine(void)
{
    pthread_t threads[DUTIES];

    for (uint32_t d = 0; d < DUTIES; d++) {
        if (pthread_create(&threads[d], NULL, serve, (void *)(uintptr_t)&duties[d]) != 0)
            abort();
    }
    for (uint32_t d = 0; d < DUTIES; d++)
        pthread_join(threads[d], NULL);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void open_world(enum fault fault, bool of_all)
{
    world = mmap(NULL, sizeof(*world), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(world, MAP_FAILED);
    world->fault = fault;
    world->of_all = of_all;
}

static void *client_main(void *arg)
{
    run_client(*(const uint32_t *)arg);
    return NULL;
}

static void run_threads(void)
{
    pthread_t threads[CLIENTS];
    uint32_t numbers[CLIENTS];

    for (uint32_t c = 0; c < CLIENTS; c++) {
        numbers[c] = c;
        assert_int_equal(pthread_create(&threads[c], NULL, client_main, &numbers[c]), 0);
    }
    run_engine();
    for (uint32_t c = 0; c < CLIENTS; c++)
        pthread_join(threads[c], NULL);
}

static void close_world(void)
{
    munmap(world, sizeof(*world));
}

static void check_world(void)
{
    assert_string_equal(world->text, "");
    for (uint32_t c = 0; c < CLIENTS; c++) {
        for (uint32_t w = 0; w < WAITERS; w++)
            assert_int_equal(world->clients[c].waiters[w].seen, ROUNDS);
    }
}

static void threads_lose_no_wake_up(void **state)
{
    (void)state;
    open_world(FAULT_NONE, false);
    run_threads();
    check_world();
    close_world();
}

static void a_lost_wake_up_is_found(void **state)
{
    (void)state;
    for (uint32_t i = 2 * FAULT_RISES_AFTER; i < 2 * FAULTS; i++) {
        open_world((enum fault)(i / 2), i % 2);
        run_threads();
        if (world->lost == 0)
            fail_msg("fault %u%s: nothing is lost", i / 2, i % 2 ? ", for all" : "");
        close_world();
    }
}

#ifndef __SANITIZE_THREAD__ /* which sees nothing between processes */
static pid_t start(uint32_t client)
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (client < CLIENTS)
        run_client(client);
    else
        run_engine();
    _exit(0);
}

/* Stops one after the other for a little, wherever it is, until all have ended. */
static uint32_t torment(pid_t *pids, uint32_t count)
{
    uint32_t left = count, stops = 0;

    dice = 7;
    while (left > 0) {
        struct timespec pause = {.tv_nsec = (long)draw(1000000)};
        uint32_t i = (uint32_t)draw(count);
        int status;

        nanosleep(&pause, NULL);
        if (pids[i] > 0 && kill(pids[i], SIGSTOP) == 0) {
            pause.tv_nsec = (long)draw(1000000);
            nanosleep(&pause, NULL);
            kill(pids[i], SIGCONT);
            stops++;
        }
        for (i = 0; i < count; i++) {
            if (pids[i] > 0 && waitpid(pids[i], &status, WNOHANG) == pids[i]) {
                assert_int_equal(status, 0);
                pids[i] = 0;
                left--;
            }
        }
    }
    return stops;
}

static void stopped_processes_lose_no_wake_up(void **state)
{
    pid_t pids[CLIENTS + 1];

    (void)state;
    open_world(FAULT_NONE, false);
    for (uint32_t i = 0; i <= CLIENTS; i++)
        pids[i] = start(i);
    printf("stopped %u times\n", torment(pids, CLIENTS + 1));
    check_world();
    close_world();
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test(stopped_processes_lose_no_wake_up),
#endif
        cmocka_unit_test(threads_lose_no_wake_up),
        cmocka_unit_test(a_lost_wake_up_is_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

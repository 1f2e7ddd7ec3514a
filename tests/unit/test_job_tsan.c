/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared-page protocol in one process: a job (core, host device, local fabric) on the main
 * thread, and ranks as threads over the same mapping, so that ThreadSanitizer sees both sides of
 * every word. Stages 0 to 3 train to the same bits as a plain loop.
 * ctest: label=tsan timeout=120 link=gw_job
 *
 *   rank thread --submission ring---> main: job_request     pages, boards, arenas: shared words
 *   rank thread <--replies (mutex)--- main: reply callback
 *
 * The doorbell is a condition: rung only for a main thread that says it sleeps.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/device/device.h"
#include "daemon/device/ring.h"
#include "daemon/engine/job_internal.h"
#include "daemon/fabric/fabric.h"
#include "proto/submit.h"

#define WORLD 3u
#define STEPS 4u
#define PARAMS 4u
#define RATE 0.25f
#define DEADLINE_NS 60000000000ull

static const uint64_t numels[PARAMS] = {300, 50, 7, 700};

struct rank {
    struct bench *bench;
    uint32_t rank;
    pthread_t thread;
    struct gw_engine_page *engine;
    struct gw_client_page *client;
    struct submit_writer writer;
    struct submit_reader reader; /* the main thread's */
    struct posted {
        struct wire_msg msg;
        struct wire_ready_entry entry;
        struct wire_param params[PARAMS];
    } posted;
    uint8_t frame[GW_FRAME_MAX];
    uint32_t rung;
    uint64_t bells;
    struct wire_msg reply; /* under bench->lock */
    bool replied;
    /* Set with the reply SEALED. */
    const struct layout *layout;
    struct gw_shm_board *board;
    float *params, *grads, *ring, *shard_grads, *pool;
    uint64_t fetches[PARAMS];
    uint64_t norm_steps;
    double norms[STEPS];
};

struct bench {
    uint32_t stage;
    struct device *device;
    struct job *job;
    struct rank ranks[WORLD];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint8_t frame[GW_FRAME_MAX];
    uint64_t frames;
    uint32_t running;
    bool woken, rung;
};

static uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- the model ------------------------------------------------------------------------------- */

static float initial(uint64_t param, uint64_t i)
{
    return (float)(param + 1) * 0.125f + (float)(i % 13) * 0.0625f;
}

static float gradient(uint32_t rank, uint32_t step, uint64_t i, float value)
{
    return (float)(rank + 1) * 0.03f * (float)(i % 17) + (float)step * 0.01f + value * 0.37f;
}

static float updated(float value, float reduced)
{
    volatile float change = RATE * reduced;

    return value - change;
}

/* One process, no service: the tree over three ranks, scaled once. */
static void reference(float *values[PARAMS])
{
    const float scale = (float)(1.0 / WORLD);

    for (uint32_t p = 0; p < PARAMS; p++)
        for (uint64_t i = 0; i < numels[p]; i++)
            values[p][i] = initial(p, i);
    for (uint32_t step = 1; step <= STEPS; step++)
        for (uint32_t p = 0; p < PARAMS; p++)
            for (uint64_t i = 0; i < numels[p]; i++) {
                volatile float a = gradient(0, step, i, values[p][i]);
                volatile float b = gradient(1, step, i, values[p][i]);
                volatile float c = gradient(2, step, i, values[p][i]);
                volatile float sum = a + b;
                sum = sum + c;
                sum = sum * scale;
                values[p][i] = updated(values[p][i], sum);
            }
}

/* ---- a rank's side --------------------------------------------------------------------------- */

static struct posted *post(struct rank *rank, uint16_t type)
{
    memset(&rank->posted, 0, sizeof(rank->posted));
    rank->posted.msg.type = type;
    rank->posted.msg.u.ready.entries = NULL;
    return &rank->posted;
}

/* As client/lib/channel.c. */
static void ring_bell(struct rank *rank)
{
    uint32_t sleeps = atomic_load_explicit(&rank->engine->sleeps, memory_order_seq_cst);

    if ((sleeps & 1) == 0 || sleeps == rank->rung)
        return;
    rank->rung = sleeps;
    rank->bells++;
    pthread_mutex_lock(&rank->bench->lock);
    rank->bench->rung = true;
    pthread_cond_broadcast(&rank->bench->changed);
    pthread_mutex_unlock(&rank->bench->lock);
}

static void send_posted(struct rank *rank)
{
    struct wire_msg *msg = &rank->posted.msg;
    size_t bytes = 0;
    int r;

    if (msg->type == WIRE_READY)
        msg->u.ready.entries = &rank->posted.entry;
    else if (msg->type == WIRE_REGISTER)
        msg->u.reg.params = rank->posted.params;
    if (wire_encode(msg, rank->frame, sizeof(rank->frame), &bytes) < 0)
        abort();
    while ((r = submit_put(&rank->writer, rank->frame, bytes)) == GW_E_AGAIN)
        sched_yield();
    if (r < 0)
        abort();
    ring_bell(rank);
}

static void send_unit(struct rank *rank, uint16_t type, uint32_t unit)
{
    post(rank, type)->msg.u.unit.unit = unit;
    send_posted(rank);
}

static void call(struct rank *rank, uint16_t expected)
{
    struct bench *bench = rank->bench;

    send_posted(rank);
    pthread_mutex_lock(&bench->lock);
    while (!rank->replied)
        pthread_cond_wait(&bench->changed, &bench->lock);
    rank->replied = false;
    pthread_mutex_unlock(&bench->lock);
    if (rank->reply.type != expected || (expected == WIRE_DONE && rank->reply.u.done.code != 0)) {
        fprintf(stderr, "rank %u: reply %u: %s\n", rank->rank, rank->reply.type,
                rank->reply.type == WIRE_DONE ? rank->reply.u.done.text : "");
        abort();
    }
}

static void wait_slot(struct rank *rank, struct gw_shm_slot *slot, uint64_t value)
{
    uint64_t until = clock_ns() + DEADLINE_NS;

    while (atomic_load_explicit(&slot->value, memory_order_acquire) < value) {
        struct timespec until_time = {(time_t)(until / 1000000000u), 0};
        uint32_t line = gw_wake_line(slot);
        uint32_t wake;
        if (atomic_load(&rank->engine->error) != 0 || clock_ns() > until) {
            fprintf(stderr, "rank %u: failed or stuck: %s\n", rank->rank,
                    rank->engine->failure.text);
            abort();
        }
        atomic_fetch_add(&rank->client->waiting[line], 1);
        wake = atomic_load(&rank->engine->wake);
        if (atomic_load_explicit(&slot->value, memory_order_acquire) < value)
            (void)syscall(SYS_futex, &rank->engine->wake, FUTEX_WAIT_BITSET, wake, &until_time,
                          NULL, 1u << line);
        atomic_fetch_sub(&rank->client->waiting[line], 1);
    }
}

static void set_up(struct rank *rank)
{
    static const char *const names[PARAMS] = {"a", "b", "c", "d"};
    struct posted *posted = post(rank, WIRE_REGISTER);

    posted->msg.request = 1;
    posted->msg.u.reg.total = posted->msg.u.reg.count = PARAMS;
    for (uint32_t p = 0; p < PARAMS; p++)
        posted->params[p] = (struct wire_param){names[p], "", numels[p], 0};
    call(rank, WIRE_DONE);
    posted = post(rank, WIRE_SEAL);
    posted->msg.request = 2;
    posted->msg.u.seal = (struct wire_seal){.stage = rank->bench->stage,
                                            .ring_slots = 16,
                                            .shard_align_bytes = 4,
                                            .bucket_bytes = 200 * 4};
    call(rank, WIRE_SEALED);
}

/* Where bucket b's span of this rank lies. */
static void span(const struct rank *rank, uint32_t b, float **ret_params, float **ret_grads,
                 uint64_t *ret_at, uint64_t *ret_valid)
{
    const struct gw_layout_bucket *bucket = &layout_buckets(rank->layout)[b];
    uint64_t shard_at = layout_shard_offset(rank->layout, b), numel;
    uint32_t stage = rank->bench->stage;

    layout_span(rank->layout, b, rank->rank, ret_at, &numel, ret_valid);
    *ret_params = stage == 3 ? rank->params + shard_at : rank->params + bucket->offset + *ret_at;
    *ret_grads = stage >= 2 ? rank->shard_grads + shard_at : rank->grads + bucket->offset + *ret_at;
}

/* Flat element -> (param, element); false: padding. */
static bool locate(const struct layout *layout, uint64_t flat, uint32_t *ret_param,
                   uint64_t *ret_element)
{
    for (uint32_t p = 0; p < PARAMS; p++) {
        const struct gw_layout_param *param = &layout_params(layout)[p];
        if (flat >= param->offset && flat < param->offset + param->numel) {
            *ret_param = p;
            *ret_element = flat - param->offset;
            return true;
        }
    }
    return false;
}

/* What gw_param_write_sync does: every copy; stage 3 has one per element. */
static void write_initial(struct rank *rank)
{
    for (uint32_t p = 0; rank->bench->stage < 3 && p < PARAMS; p++)
        for (uint64_t i = 0; i < numels[p]; i++)
            rank->params[layout_params(rank->layout)[p].offset + i] = initial(p, i);
    for (uint32_t b = 0; b < layout_page(rank->layout)->buckets; b++) {
        uint64_t at, valid, element;
        float *params, *grads;
        uint32_t param;
        span(rank, b, &params, &grads, &at, &valid);
        for (uint64_t i = 0; i < valid; i++)
            if (locate(rank->layout, layout_buckets(rank->layout)[b].offset + at + i, &param,
                       &element))
                params[i] = initial(param, element);
    }
}

static void update(struct rank *rank)
{
    for (uint32_t b = 0; b < layout_page(rank->layout)->buckets; b++) {
        uint64_t at, valid;
        float *params, *grads;
        span(rank, b, &params, &grads, &at, &valid);
        for (uint64_t i = 0; i < valid; i++)
            params[i] = updated(params[i], grads[i]);
    }
}

static const float *fetch(struct rank *rank, uint32_t p)
{
    const struct gw_layout_param *param = &layout_params(rank->layout)[p];
    const struct gw_layout_unit *unit = &layout_units(rank->layout)[param->unit];
    const struct gw_layout_fetch_unit *whole = &layout_fetch_units(rank->layout)[unit->fetch_unit];
    struct gw_shm_slot *slot = &rank->board->slots[rank->board->buckets + param->unit];

    send_unit(rank, WIRE_FETCH, param->unit);
    wait_slot(rank, slot, ++rank->fetches[param->unit]);
    if (rank->bench->stage < 3)
        return rank->params + param->offset;
    return rank->pool + __atomic_load_n(&slot->offset, __ATOMIC_RELAXED) / sizeof(float) +
           (param->offset - whole->offset);
}

/* Says that the gradient is ready before it is written, and raises the own timeline after: the
 * reduction must wait for that. */
static void give_gradient(struct rank *rank, uint32_t p, uint32_t step, uint64_t *token)
{
    const struct gw_layout_param *param = &layout_params(rank->layout)[p];
    const float *values = fetch(rank, p);

    for (uint32_t piece = 0; piece < param->pieces; piece++) {
        const struct gw_layout_piece *what =
            &layout_pieces(rank->layout)[param->first_piece + piece];
        bool ring = rank->bench->stage >= 2;
        float *to = ring ? rank->ring + what->bucket * layout_page(rank->layout)->max_bucket_numel
                         : rank->grads + layout_buckets(rank->layout)[what->bucket].offset;
        struct posted *posted;
        wait_slot(rank, &rank->board->slots[what->bucket], step - 1);
        posted = post(rank, WIRE_READY);
        posted->msg.u.ready.count = 1;
        posted->entry = (struct wire_ready_entry){.param = p,
                                                  .piece = piece,
                                                  .slot = ring ? what->bucket : GW_NO_SLOT,
                                                  .tokens = 1,
                                                  .timeline = {5},
                                                  .value = {++*token}};
        send_posted(rank);
        for (uint64_t i = 0; i < what->numel; i++)
            to[what->bucket_offset + i] =
                gradient(rank->rank, step, what->param_offset + i, values[what->param_offset + i]);
        atomic_store_explicit(&rank->client->timeline[5], *token, memory_order_release);
        device_host.kick(rank->bench->device);
    }
    send_unit(rank, WIRE_RELEASE, param->unit);
}

static void *rank_main(void *arg)
{
    struct rank *rank = arg;
    uint64_t token = 0;

    set_up(rank);
    write_initial(rank);
    post(rank, WIRE_OP)->msg.u.op =
        (struct wire_op){.kind = WIRE_OP_BARRIER, .sequence = 1, .scale = 1, .name = "start"};
    send_posted(rank);
    wait_slot(rank, &rank->engine->op[1], 1);
    for (uint32_t step = 1; step <= STEPS; step++) {
        for (uint32_t p = 0; p < PARAMS; p++) { /* forward: order of use */
            volatile float sink = *fetch(rank, p);
            (void)sink;
            send_unit(rank, WIRE_RELEASE, layout_params(rank->layout)[p].unit);
        }
        for (uint32_t p = PARAMS; p-- > 0;)
            give_gradient(rank, p, step, &token);
        send_unit(rank, WIRE_STEP_END, 0);
        wait_slot(rank, &rank->board->step, step);
        {
            uint64_t bits =
                __atomic_load_n((uint64_t *)(void *)&rank->board->verdict.norm, __ATOMIC_RELAXED);
            memcpy(&rank->norms[step - 1], &bits, sizeof(bits));
        }
        send_unit(rank, WIRE_UPDATE_BEGIN, 0);
        wait_slot(rank, &rank->board->update, step);
        update(rank);
        send_unit(rank, WIRE_UPDATE_COMMIT, 0);
    }
    for (uint32_t p = 0; p < PARAMS; p++) { /* the last gathers are in before anybody looks */
        (void)fetch(rank, p);
        send_unit(rank, WIRE_RELEASE, layout_params(rank->layout)[p].unit);
    }
    pthread_mutex_lock(&rank->bench->lock);
    rank->bench->running--;
    pthread_cond_broadcast(&rank->bench->changed);
    pthread_mutex_unlock(&rank->bench->lock);
    return NULL;
}

/* ---- the engine's side ----------------------------------------------------------------------- */

static float *arena(struct bench *bench, enum gw_arena_kind kind, uint32_t rank)
{
    const struct device_memory *memory = arenas_get(bench->job->arenas, kind, (int)rank, 0);

    return memory ? memory->base : NULL;
}

static void on_reply(void *user, uint32_t r, bool joiner, const struct wire_msg *msg,
                     const int *fds, unsigned fd_count)
{
    struct bench *bench = user;
    struct rank *rank = &bench->ranks[r];

    (void)fds;
    (void)fd_count;
    if (joiner) {
        struct job_port port = {
            .engine = rank->engine, .client = rank->client, .identity = r + 1};
        job_attach(bench->job, r, &port);
        return;
    }
    pthread_mutex_lock(&bench->lock);
    if (msg->type == WIRE_SEALED) {
        rank->layout = core_layout(bench->job->core);
        rank->board = bench->job->boards[r]->base;
        rank->params = arena(bench, GW_ARENA_PARAMS, r);
        rank->grads = arena(bench, GW_ARENA_GRADS, r);
        rank->ring = arena(bench, GW_ARENA_RING, r);
        rank->shard_grads = arena(bench, GW_ARENA_SHARD_GRADS, r);
        rank->pool = arena(bench, GW_ARENA_POOL, r);
    }
    rank->reply = *msg;
    rank->replied = true;
    pthread_cond_broadcast(&bench->changed);
    pthread_mutex_unlock(&bench->lock);
}

static void on_drop(void *user, uint32_t rank, int code, const char *text)
{
    (void)user;
    fail_msg("rank %u dropped (%d): %s", rank, code, text);
}

static void on_failed(void *user, uint32_t rank, int code, const char *text)
{
    (void)user;
    fail_msg("job failed by rank %u (%d): %s", rank, code, text);
}

static void on_report(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "stall: %s\n", text);
}

static void on_end(void *user)
{
    (void)user;
    fail_msg("job ended");
}

static void on_wake(void *user)
{
    struct bench *bench = user;

    pthread_mutex_lock(&bench->lock);
    bench->woken = true;
    pthread_cond_broadcast(&bench->changed);
    pthread_mutex_unlock(&bench->lock);
}

/* Everything in the rings. False: there was nothing. */
static bool take_all(struct bench *bench)
{
    bool some = false;
    int bytes;

    for (uint32_t r = 0; r < WORLD; r++) {
        struct submit_reader *reader = &bench->ranks[r].reader;
        struct wire_msg *msg = NULL;
        uint32_t request = 0;

        while ((bytes = submit_take(reader, submit_seen(reader), bench->frame)) != 0) {
            some = true;
            bench->frames++;
            assert_true(bytes > 0);
            assert_int_equal(wire_decode(bench->frame, (size_t)bytes, &msg, &request), 0);
            assert_int_equal(job_request(bench->job, clock_ns(), r, msg), 0);
            wire_free(msg);
        }
    }
    return some;
}

static void say_asleep(struct bench *bench)
{
    for (uint32_t r = 0; r < WORLD; r++)
        atomic_fetch_add(&bench->ranks[r].engine->sleeps, 1);
}

/* As daemon/engine/intake.c. */
static void loop(struct bench *bench)
{
    for (;;) {
        bool woken, over;

        while (take_all(bench))
            ;
        say_asleep(bench);
        while (take_all(bench)) /* put before it was said: nobody rings for it */
            ;
        pthread_mutex_lock(&bench->lock);
        while (!bench->rung && !bench->woken && bench->running > 0)
            pthread_cond_wait(&bench->changed, &bench->lock);
        over = bench->running == 0 && !bench->rung && !bench->woken;
        woken = bench->woken;
        bench->woken = bench->rung = false;
        pthread_mutex_unlock(&bench->lock);
        say_asleep(bench); /* no more */
        if (woken)
            assert_int_equal(job_completions(bench->job, clock_ns()), 0);
        if (over)
            return;
    }
}

static void bench_start(struct bench *bench, uint32_t stage)
{
    struct job_config config = {
        .device_ops = &device_host,
        .fabric_ops = &fabric_local,
        .world = WORLD,
        .callbacks = {.reply = on_reply,
                      .drop = on_drop,
                      .failed = on_failed,
                      .report = on_report,
                      .end = on_end,
                      .user = bench}};

    memset(bench, 0, sizeof(*bench));
    bench->stage = stage;
    pthread_mutex_init(&bench->lock, NULL);
    pthread_cond_init(&bench->changed, NULL);
    assert_int_equal(
        device_host.device_new(&(struct device_config){on_wake, bench}, &bench->device), 0);
    config.device = bench->device;
    assert_int_equal(job_new(&config, &bench->job), 0);
    bench->running = WORLD;
    for (uint32_t r = 0; r < WORLD; r++) {
        struct rank *rank = &bench->ranks[r];
        rank->bench = bench;
        rank->rank = r;
        rank->engine = aligned_alloc(64, GW_ENGINE_PAGE_BYTES);
        rank->client = aligned_alloc(64, GW_CLIENT_PAGE_BYTES);
        memset(rank->engine, 0, GW_ENGINE_PAGE_BYTES);
        memset(rank->client, 0, GW_CLIENT_PAGE_BYTES);
        submit_writer_start(&rank->writer, rank->client, rank->engine);
        submit_reader_start(&rank->reader, rank->client, rank->engine);
        assert_int_equal(job_join(bench->job, clock_ns(), r, WORLD, 1), 0);
    }
    for (uint32_t r = 0; r < WORLD; r++)
        assert_int_equal(pthread_create(&bench->ranks[r].thread, NULL, rank_main, &bench->ranks[r]),
                         0);
}

static void bench_end(struct bench *bench)
{
    bench->job = job_free(bench->job);
    device_host.device_free(bench->device);
    for (uint32_t r = 0; r < WORLD; r++) {
        free(bench->ranks[r].engine);
        free(bench->ranks[r].client);
    }
    pthread_cond_destroy(&bench->changed);
    pthread_mutex_destroy(&bench->lock);
}

/* Every rank's span holds the reference's bits. */
static void check_values(struct bench *bench, float *expected[PARAMS])
{
    for (uint32_t r = 0; r < WORLD; r++) {
        struct rank *rank = &bench->ranks[r];
        for (uint32_t b = 0; b < layout_page(rank->layout)->buckets; b++) {
            uint64_t at, valid, element;
            float *params, *grads;
            uint32_t param;
            span(rank, b, &params, &grads, &at, &valid);
            for (uint64_t i = 0; i < valid; i++)
                if (locate(rank->layout, layout_buckets(rank->layout)[b].offset + at + i, &param,
                           &element) &&
                    memcmp(&params[i], &expected[param][element], 4) != 0)
                    fail_msg("stage %u rank %u param %u element %llu: %a, expected %a",
                             bench->stage, r, param, (unsigned long long)element, (double)params[i],
                             (double)expected[param][element]);
        }
    }
}

static void all_stages_train_to_the_same_bits(void **state)
{
    static float store[PARAMS][1024];
    float *expected[PARAMS] = {store[0], store[1], store[2], store[3]};
    double norms[STEPS] = {0};

    (void)state;
    reference(expected);
    for (uint32_t stage = 0; stage < 4; stage++) {
        static struct bench bench;
        bench_start(&bench, stage);
        loop(&bench);
        for (uint32_t r = 0; r < WORLD; r++)
            pthread_join(bench.ranks[r].thread, NULL);
        for (uint32_t r = 0; r < WORLD; r++) {
            assert_true(submit_all_taken(&bench.ranks[r].writer));
            assert_true(bench.ranks[r].bells <= bench.frames);
        }
        check_values(&bench, expected);
        for (uint32_t r = 0; r < WORLD; r++) {
            /* Stages 0-2 cut buckets alike, so their norms have the same bits too. */
            if (stage == 0 && r == 0)
                memcpy(norms, bench.ranks[0].norms, sizeof(norms));
            if (stage < 3)
                assert_memory_equal(bench.ranks[r].norms, norms, sizeof(norms));
            assert_memory_equal(bench.ranks[r].norms, bench.ranks[0].norms, sizeof(norms));
            assert_true(norms[0] > 0);
        }
        bench_end(&bench);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_stages_train_to_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared-page protocol in one process: a job (core, host device, local fabric) on the main
 * thread, and ranks as threads over the same mapping, so that ThreadSanitizer sees both sides of
 * every word. Stages 0 to 3 train to the same bits as a plain loop, with parameters of all dtypes,
 * a group of some ranks, and hybrid sharding.
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
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/device/device.h"
#include "daemon/device/host/kernels.h"
#include "daemon/device/ring.h"
#include "daemon/engine/job_internal.h"
#include "daemon/fabric/fabric.h"
#include "proto/place.h"
#include "proto/submit.h"

#define WORLD 4u
#define STEPS 4u
#define PARAMS 4u
#define RATE 0.25f
#define DEADLINE_NS 60000000000ull

static const uint64_t numels[PARAMS] = {300, 50, 7, 700};
static const char *const names[PARAMS] = {"a", "b", "c", "d"};
static const uint32_t pair[2] = {2, 0}; /* in this order */

static const struct variant {
    const char *name;
    uint8_t dtype[PARAMS], grad_dtype[PARAMS];
    uint32_t group[PARAMS]; /* 1: the pair */
    uint32_t shard_ranks;
    uint64_t persist_bytes;
} variants[] = {
    {.name = "fp32"},
    {.name = "mixed",
     .dtype = {GW_DTYPE_FP32, GW_DTYPE_BF16, GW_DTYPE_FP16, GW_DTYPE_BF16},
     .grad_dtype = {GW_DTYPE_BF16, GW_DTYPE_BF16, GW_DTYPE_FP32, GW_DTYPE_FP16},
     .group = {0, 0, 0, 1}},
    {.name = "hybrid",
     .dtype = {GW_DTYPE_FP32, GW_DTYPE_BF16, GW_DTYPE_FP16, GW_DTYPE_BF16},
     .grad_dtype = {GW_DTYPE_BF16, GW_DTYPE_BF16, GW_DTYPE_FP32, GW_DTYPE_FP16},
     .group = {0, 0, 0, 1},
     .shard_ranks = 2,
     .persist_bytes = 100},
};

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
    float *staging;
    /* Set with the reply SEALED. */
    const struct layout *layout;
    struct place *place;
    struct gw_shm_board *board;
    char *arenas[GW_ARENA_KINDS];
    uint64_t fetches[PARAMS];
    double norms[STEPS];
};

struct bench {
    uint32_t stage;
    const struct variant *variant;
    struct device *device;
    struct job *job;
    struct rank ranks[WORLD];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint8_t frame[GW_FRAME_MAX];
    uint64_t frames;
    uint32_t running;
    bool woken, rung;
    float read[PARAMS][1024]; /* by rank 1, at the end */
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

/* A half as a number, by definition. */
static float half_value(uint16_t half, uint8_t dtype)
{
    int bits = dtype == GW_DTYPE_FP16 ? 10 : 7, least = dtype == GW_DTYPE_FP16 ? -14 : -126;
    int exponent = (half & 0x7fff) >> bits, fraction = half & ((1 << bits) - 1);
    double size = exponent ? ldexp(fraction + (1 << bits), exponent - 1 + least - bits)
                           : ldexp(fraction, least - bits);

    return (float)(half & 0x8000 ? -size : size);
}

static void put(void *to, uint8_t dtype, uint64_t i, float value)
{
    kernel_cast((char *)to + i * gw_dtype_bytes(dtype), dtype, &value, 1, false);
}

static float get(const void *from, uint8_t dtype, uint64_t i)
{
    return dtype == GW_DTYPE_FP32 ? ((const float *)from)[i]
                                  : half_value(((const uint16_t *)from)[i], dtype);
}

static float rounded(float value, uint8_t dtype)
{
    float room;

    put(&room, dtype, 0, value);
    return get(&room, dtype, 0);
}

static bool is_member(const struct variant *variant, uint32_t param, uint32_t rank)
{
    return variant->group[param] == 0 || rank == pair[0] || rank == pair[1];
}

/* One process, no service: the tree over the parameter's ranks, scaled once. */
static float reduced(const struct variant *variant, uint32_t p, uint32_t step, uint64_t i,
                     float value)
{
    static const uint32_t all[WORLD] = {0, 1, 2, 3};
    const uint32_t *ranks = variant->group[p] ? pair : all;
    uint32_t count = variant->group[p] ? 2 : WORLD;
    volatile float g[WORLD], sum;

    for (uint32_t m = 0; m < count; m++)
        g[m] = rounded(gradient(ranks[m], step, i, rounded(value, variant->dtype[p])),
                       variant->grad_dtype[p]);
    sum = g[0] + g[1];
    if (count == 4) {
        volatile float right = g[2] + g[3];
        sum = sum + right;
    }
    sum = sum * (float)(1.0 / count);
    return sum;
}

static void reference(const struct variant *variant, float *values[PARAMS])
{
    for (uint32_t p = 0; p < PARAMS; p++)
        for (uint64_t i = 0; i < numels[p]; i++) {
            values[p][i] = initial(p, i);
            for (uint32_t step = 1; step <= STEPS; step++)
                values[p][i] = updated(values[p][i], reduced(variant, p, step, i, values[p][i]));
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
    const struct variant *variant = rank->bench->variant;
    struct posted *posted = post(rank, WIRE_PARAM_GROUP);

    posted->msg.request = 1;
    posted->msg.u.param_group.count = 2;
    posted->msg.u.param_group.ranks = pair;
    call(rank, WIRE_DONE);
    posted = post(rank, WIRE_REGISTER);
    posted->msg.request = 2;
    posted->msg.u.reg.total = posted->msg.u.reg.count = PARAMS;
    for (uint32_t p = 0; p < PARAMS; p++)
        posted->params[p] = (struct wire_param){.name = names[p],
                                                .unit = "",
                                                .numel = numels[p],
                                                .dtype = variant->dtype[p],
                                                .grad_dtype = variant->grad_dtype[p],
                                                .group = variant->group[p]};
    call(rank, WIRE_DONE);
    posted = post(rank, WIRE_SEAL);
    posted->msg.request = 3;
    posted->msg.u.seal =
        (struct wire_seal){.stage = rank->bench->stage,
                           .ring_slots = 16,
                           .shard_align_bytes = 4,
                           .bucket_bytes = 200 * 4,
                           .shard_ranks = rank->bench->stage > 0 ? variant->shard_ranks : 0,
                           .persist_bytes = rank->bench->stage == 3 ? variant->persist_bytes : 0};
    call(rank, WIRE_SEALED);
    posted = post(rank, WIRE_ARENA_GET);
    posted->msg.request = 4;
    posted->msg.u.arena_get.kind = GW_ARENA_STAGING;
    call(rank, WIRE_ARENA);
}

/* Between steps, by any rank. */
static void move_param(struct rank *rank, uint32_t p, bool write)
{
    struct posted *posted = post(rank, WIRE_PARAM_IO);

    posted->msg.request = 5;
    posted->msg.u.param_io.write = write;
    posted->msg.u.param_io.param = p;
    posted->msg.u.param_io.count = numels[p];
    call(rank, WIRE_DONE);
}

static void write_initial(struct rank *rank)
{
    for (uint32_t p = 0; p < PARAMS; p++) {
        if (p % WORLD != (rank->rank + 1) % WORLD)
            continue;
        for (uint64_t i = 0; i < numels[p]; i++)
            rank->staging[i] = initial(p, i);
        move_param(rank, p, true);
    }
}

static void *at(const struct rank *rank, struct place_ref ref)
{
    return rank->arenas[ref.kind] + ref.offset_bytes;
}

static const struct gw_layout_bucket *bucket_of(const struct rank *rank, uint32_t b)
{
    return &layout_buckets(rank->layout)[b];
}

/* A rank's own part of a bucket. */
struct span {
    float *params;
    const float *grads;
    uint64_t flat, valid;
};

/* False: it is not in the bucket's group. */
static bool span_of(const struct rank *rank, uint32_t b, struct span *ret_span)
{
    const struct gw_layout_page *page = layout_page(rank->layout);
    uint32_t group = bucket_of(rank, b)->group;
    uint32_t position = layout_page_position(page, group, rank->rank), slice;
    uint64_t offset, numel;

    if (position == UINT32_MAX)
        return false;
    slice = position % layout_groups(rank->layout)[group].shard_ranks;
    layout_slice(rank->layout, b, slice, &offset, &numel, &ret_span->valid);
    ret_span->flat = bucket_of(rank, b)->offset + offset;
    ret_span->params = at(rank, place_master(rank->place, b, slice));
    ret_span->grads = at(rank, place_reduced(rank->place, b, slice));
    return true;
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

static void update(struct rank *rank)
{
    for (uint32_t b = 0; b < layout_page(rank->layout)->buckets; b++) {
        struct span span;
        if (!span_of(rank, b, &span))
            continue;
        for (uint64_t i = 0; i < span.valid; i++)
            span.params[i] = updated(span.params[i], span.grads[i]);
    }
}

/* The parameter's values, of its dtype. */
static const void *fetch(struct rank *rank, uint32_t p)
{
    const struct gw_layout_param *param = &layout_params(rank->layout)[p];
    const struct gw_layout_piece *piece = &layout_pieces(rank->layout)[param->first_piece];
    struct gw_shm_slot *slot = &rank->board->slots[rank->board->buckets + param->unit];
    uint64_t offset = piece->bucket_offset * gw_dtype_bytes(param->dtype);

    send_unit(rank, WIRE_FETCH, param->unit);
    wait_slot(rank, slot, ++rank->fetches[param->unit]);
    if (rank->bench->stage < 3)
        return (char *)at(rank, place_params(rank->place, piece->bucket)) + offset;
    if (!param->persistent)
        offset += __atomic_load_n(&slot->offset, __ATOMIC_RELAXED);
    return rank->arenas[GW_ARENA_POOL] + place_gathered(rank->place, piece->bucket) + offset;
}

/* Says that the gradient is ready before it is written, and raises the own timeline after: the
 * reduction must wait for that. */
static void give_gradient(struct rank *rank, uint32_t p, uint32_t step, uint64_t *token)
{
    const struct gw_layout_param *param = &layout_params(rank->layout)[p];
    const void *values = fetch(rank, p);

    for (uint32_t piece = 0; piece < param->pieces; piece++) {
        const struct gw_layout_piece *what =
            &layout_pieces(rank->layout)[param->first_piece + piece];
        bool ring = place_ring(rank->place);
        void *to = at(rank, ring ? place_slot(rank->place, what->bucket)
                                 : place_grads(rank->place, what->bucket));
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
            put(to, param->grad_dtype, what->bucket_offset + i,
                gradient(rank->rank, step, what->param_offset + i,
                         get(values, param->dtype, what->param_offset + i)));
        atomic_store_explicit(&rank->client->timeline[5], *token, memory_order_release);
        device_host.kick(rank->bench->device);
    }
    send_unit(rank, WIRE_RELEASE, param->unit);
}

static void barrier(struct rank *rank, uint64_t sequence)
{
    post(rank, WIRE_OP)->msg.u.op =
        (struct wire_op){.kind = WIRE_OP_BARRIER, .sequence = sequence, .scale = 1, .name = "all"};
    send_posted(rank);
    wait_slot(rank, &rank->engine->op[sequence], sequence);
}

static void run_step(struct rank *rank, uint32_t step, uint64_t *token)
{
    const struct variant *variant = rank->bench->variant;
    uint64_t bits;

    for (uint32_t p = 0; p < PARAMS; p++) { /* forward: order of use */
        volatile uint16_t sink;
        if (!is_member(variant, p, rank->rank))
            continue;
        sink = *(const uint16_t *)fetch(rank, p);
        (void)sink;
        send_unit(rank, WIRE_RELEASE, layout_params(rank->layout)[p].unit);
    }
    for (uint32_t p = PARAMS; p-- > 0;)
        if (is_member(variant, p, rank->rank))
            give_gradient(rank, p, step, token);
    send_unit(rank, WIRE_STEP_END, 0);
    wait_slot(rank, &rank->board->step, step);
    bits = __atomic_load_n((uint64_t *)(void *)&rank->board->verdict.norm, __ATOMIC_RELAXED);
    memcpy(&rank->norms[step - 1], &bits, sizeof(bits));
    send_unit(rank, WIRE_UPDATE_BEGIN, 0);
    wait_slot(rank, &rank->board->update, step);
    update(rank);
    send_unit(rank, WIRE_UPDATE_COMMIT, 0);
}

static void *rank_main(void *arg)
{
    struct rank *rank = arg;
    uint64_t token = 0;

    set_up(rank);
    write_initial(rank);
    barrier(rank, 1);
    for (uint32_t step = 1; step <= STEPS; step++)
        run_step(rank, step, &token);
    barrier(rank, 2);
    for (uint32_t p = 0; p < PARAMS && rank->rank == 1; p++) {
        move_param(rank, p, false);
        memcpy(rank->bench->read[p], rank->staging, numels[p] * sizeof(float));
    }
    barrier(rank, 3);
    for (uint32_t p = 0; p < PARAMS; p++) { /* the last gathers are in before anybody looks */
        if (!is_member(rank->bench->variant, p, rank->rank))
            continue;
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

static void *arena(struct bench *bench, enum gw_arena_kind kind, uint32_t rank)
{
    const struct device_memory *memory = arenas_get(bench->job->arenas, kind, (int)rank, 0);

    return memory ? memory->base : NULL;
}

static void on_sealed(struct bench *bench, struct rank *rank)
{
    const struct gw_layout_page *page = layout_page(core_layout(bench->job->core));

    rank->layout = core_layout(bench->job->core);
    assert_int_equal(place_new(page, core_options(bench->job->core),
                               place_groups_of(page, rank->rank), &rank->place),
                     0);
    assert_int_equal(layout_groups(rank->layout)[0].shard_ranks,
                     bench->stage > 0 && bench->variant->shard_ranks ? bench->variant->shard_ranks
                                                                     : WORLD);
    rank->board = bench->job->boards[rank->rank]->base;
    for (int kind = 0; kind < GW_ARENA_KINDS; kind++)
        rank->arenas[kind] = arena(bench, (enum gw_arena_kind)kind, rank->rank);
}

static void on_reply(void *user, uint32_t r, uint64_t joiner, const struct wire_msg *msg,
                     const int *fds, unsigned fd_count)
{
    struct bench *bench = user;
    struct rank *rank = &bench->ranks[r];

    (void)fds;
    (void)fd_count;
    if (joiner) {
        struct job_port port = {.engine = rank->engine, .client = rank->client, .identity = r + 1};
        job_attach(bench->job, r, &port);
        return;
    }
    pthread_mutex_lock(&bench->lock);
    if (msg->type == WIRE_SEALED)
        on_sealed(bench, rank);
    if (msg->type == WIRE_ARENA)
        rank->staging = arena(bench, GW_ARENA_STAGING, r);
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

/* All that was sent before a request that was read lies in the rings by then. */
static void hear(struct bench *bench)
{
    while (take_all(bench))
        ;
    if (job_unheard(bench->job))
        assert_int_equal(job_heard(bench->job, clock_ns()), 0);
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

        hear(bench);
        say_asleep(bench);
        hear(bench); /* put before it was said: nobody rings for it */
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

static void bench_start(struct bench *bench, const struct variant *variant, uint32_t stage)
{
    struct job_config config = {.device_ops = &device_host,
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
    bench->variant = variant;
    pthread_mutex_init(&bench->lock, NULL);
    pthread_cond_init(&bench->changed, NULL);
    assert_int_equal(device_host.device_new(&(struct device_config){.wake = on_wake, .user = bench},
                                            &bench->device),
                     0);
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
        assert_int_equal(job_join(bench->job, clock_ns(), r, WORLD, 1, r + 1u), 0);
    }
    for (uint32_t r = 0; r < WORLD; r++)
        assert_int_equal(pthread_create(&bench->ranks[r].thread, NULL, rank_main, &bench->ranks[r]),
                         0);
}

static void bench_end(struct bench *bench)
{
    for (uint32_t r = 0; r < WORLD; r++)
        place_free(bench->ranks[r].place);
    bench->job = job_free(bench->job);
    device_host.device_free(bench->device);
    for (uint32_t r = 0; r < WORLD; r++) {
        free(bench->ranks[r].engine);
        free(bench->ranks[r].client);
    }
    pthread_cond_destroy(&bench->changed);
    pthread_mutex_destroy(&bench->lock);
}

static void assert_value(const struct bench *bench, uint32_t rank, uint32_t param, uint64_t i,
                         float got, float expected)
{
    if (memcmp(&got, &expected, sizeof(got)) != 0)
        fail_msg("%s, stage %u, rank %u, param %s element %llu: %a, expected %a",
                 bench->variant->name, bench->stage, rank, names[param], (unsigned long long)i,
                 (double)got, (double)expected);
}

/* Every rank's span holds the reference's bits, and what was read of the masters. */
static void check_values(struct bench *bench, float *expected[PARAMS])
{
    uint64_t element;
    uint32_t param;

    for (uint32_t r = 0; r < WORLD; r++) {
        struct rank *rank = &bench->ranks[r];
        for (uint32_t b = 0; b < layout_page(rank->layout)->buckets; b++) {
            struct span span;
            if (!span_of(rank, b, &span))
                continue;
            for (uint64_t i = 0; i < span.valid; i++)
                if (locate(rank->layout, span.flat + i, &param, &element))
                    assert_value(bench, r, param, element, span.params[i],
                                 expected[param][element]);
        }
    }
    for (uint32_t p = 0; p < PARAMS; p++)
        for (uint64_t i = 0; i < numels[p]; i++)
            assert_value(bench, 1, p, i, bench->read[p][i], expected[p][i]);
}

static void train(const struct variant *variant, double norms[4][STEPS])
{
    static float store[PARAMS][1024];
    float *expected[PARAMS] = {store[0], store[1], store[2], store[3]};

    reference(variant, expected);
    for (uint32_t stage = 0; stage < 4; stage++) {
        static struct bench bench;
        bench_start(&bench, variant, stage);
        loop(&bench);
        for (uint32_t r = 0; r < WORLD; r++)
            pthread_join(bench.ranks[r].thread, NULL);
        for (uint32_t r = 0; r < WORLD; r++) {
            assert_true(submit_all_taken(&bench.ranks[r].writer));
            assert_true(bench.ranks[r].bells <= bench.frames);
        }
        check_values(&bench, expected);
        memcpy(norms[stage], bench.ranks[0].norms, sizeof(norms[stage]));
        for (uint32_t r = 0; r < WORLD; r++)
            assert_memory_equal(bench.ranks[r].norms, norms[stage], sizeof(norms[stage]));
        assert_true(norms[stage][0] > 0);
        bench_end(&bench);
    }
    /* Stages 0-2 cut buckets alike, so their norms have the same bits too. */
    for (uint32_t stage = 1; stage < 3; stage++)
        assert_memory_equal(norms[stage], norms[0], sizeof(norms[0]));
}

static void all_stages_train_to_the_same_bits(void **state)
{
    double norms[4][STEPS];

    (void)state;
    train(&variants[0], norms);
}

/* However the shards are cut, each is in the norm once. */
static void dtypes_groups_and_replicas_do_too(void **state)
{
    double mixed[4][STEPS], hybrid[4][STEPS];

    (void)state;
    train(&variants[1], mixed);
    train(&variants[2], hybrid);
    assert_memory_equal(mixed[0], hybrid[0], sizeof(mixed[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_stages_train_to_the_same_bits),
        cmocka_unit_test(dtypes_groups_and_replicas_do_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

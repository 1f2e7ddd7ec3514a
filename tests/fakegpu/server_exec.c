/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an op does when its turn has come. Lock held on entry and on return; bodies that move bytes
 * run without it. What a body touches is checked before (ranges, peers) and, for what no check can
 * know, by the fault it causes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

#include "tests/fakegpu/server_internal.h"

struct body {
    const struct op *op;
    void *to;
    const void *from;
    uint64_t first, step, count; /* kernels: order of indices; copies: random */
};

/* Now and then what is to be written is poison first, as long as a reader must not look yet; and
 * the second half comes before the first. */
static void body_copy(void *arg)
{
    const struct body *body = arg;
    uint64_t bytes = body->op->u.copy.bytes, half = bytes / 2;
    char *to = body->to;
    const char *from = body->from;
    struct timespec nap = {.tv_nsec = (long)(body->step % 30000)};

    if (to + bytes > from && from + bytes > to) {
        memmove(to, from, bytes);
        return;
    }
    if (body->first % 4 == 0 && bytes <= 1u << 20) {
        memset(to, 0xff, bytes);
        nanosleep(&nap, NULL);
    }
    memcpy(to + half, from + half, bytes - half);
    memcpy(to, from, half);
}

static void body_fill(void *arg)
{
    const struct body *body = arg;
    const struct op *op = body->op;

    switch (op->u.fill.width) {
    case 1:
        memset(body->to, (int)op->u.fill.value, op->u.fill.count);
        break;
    case 2:
        for (uint64_t i = 0; i < op->u.fill.count; i++)
            ((uint16_t *)body->to)[i] = (uint16_t)op->u.fill.value;
        break;
    default:
        for (uint64_t i = 0; i < op->u.fill.count; i++)
            ((uint32_t *)body->to)[i] = op->u.fill.value;
    }
}

/* A kernel's threads in some order: every start and odd step is a permutation of 2^n indices. */
static void body_kernel(void *arg)
{
    const struct body *body = arg;
    const struct op *op = body->op;

    for (uint64_t i = 0; i < body->count; i++)
        op->u.launch.kernel->run(op->u.launch.argument,
                                 (body->first + i * body->step) & (body->count - 1), body->count);
}

static uint64_t unlocked(struct server *s, void (*fn)(void *arg), struct body *body)
{
    uint64_t faulted;

    pthread_mutex_unlock(&s->lock);
    faulted = guard_run(fn, body);
    pthread_mutex_lock(&s->lock);
    return faulted;
}

/* An address of the process for this op, on whose behalf `gpu` touches it; NULL: gone since it was
 * enqueued, or not for that GPU. */
static void *resolve(struct server *s, const struct op *op, int gpu, uint64_t address,
                     uint64_t bytes, bool write)
{
    const struct map *map = map_find(s, op->stream->process, address, bytes, true);

    if (!map) {
        violation(s, RULE_use_after_free, op->stream->process,
                  "op %llu of stream %u: %llu bytes at %llx", (unsigned long long)op->id,
                  op->stream->index + 1, (unsigned long long)bytes, (unsigned long long)address);
        return NULL;
    }
    if (write && map->read_only) {
        violation(s, RULE_read_only, op->stream->process, "op %llu of stream %u writes at %llx",
                  (unsigned long long)op->id, op->stream->index + 1,
                  (unsigned long long)address);
        return NULL;
    }
    if (!gpu_reaches(op->stream->process, gpu, map, write, false)) {
        violation(s, RULE_not_accessible, op->stream->process,
                  "op %llu of stream %u: GPU %d has no access to %llx, memory of GPU %d",
                  (unsigned long long)op->id, op->stream->index + 1, gpu,
                  (unsigned long long)address, map->gpu);
        return NULL;
    }
    return map_pointer(map, address);
}

static void run_copy(struct server *s, struct op *op)
{
    struct process *p = op->stream->process;
    uint64_t random = random_of(s, 'B', op->id), faulted = 1;
    struct body body = {.op = op, .first = random & 0xff, .step = random >> 8};

    body.to = resolve(s, op, op->u.copy.to_gpu, op->u.copy.to, op->u.copy.bytes, true);
    body.from = resolve(s, op, op->u.copy.from_gpu, op->u.copy.from, op->u.copy.bytes, false);
    if (body.to && body.from) {
        access_note(s, op, op->u.copy.from, op->u.copy.bytes, false);
        access_note(s, op, op->u.copy.to, op->u.copy.bytes, true);
        faulted = unlocked(s, body_copy, &body);
    }
    if (faulted && !p->gone)
        process_fault(s, p, E_ILLEGAL_ADDRESS, "copy of %llu bytes from %llx to %llx",
                      (unsigned long long)op->u.copy.bytes, (unsigned long long)op->u.copy.from,
                      (unsigned long long)op->u.copy.to);
}

static void run_fill(struct server *s, struct op *op)
{
    struct process *p = op->stream->process;
    uint64_t bytes = op->u.fill.count * op->u.fill.width, faulted = 1;
    struct body body = {.op = op};

    body.to = resolve(s, op, op->stream->gpu, op->u.fill.to, bytes, true);
    if (body.to) {
        access_note(s, op, op->u.fill.to, bytes, true);
        faulted = unlocked(s, body_fill, &body);
    }
    if (faulted && !p->gone)
        process_fault(s, p, E_ILLEGAL_ADDRESS, "fill of %llu bytes at %llx",
                      (unsigned long long)bytes, (unsigned long long)op->u.fill.to);
}

/* Words of the argument that are addresses of another process, or of a GPU that this one may not
 * use: in the server they would work. */
static void check_argument(struct server *s, struct op *op)
{
    struct process *p = op->stream->process;
    int gpu = op->stream->gpu;

    for (uint64_t i = 0; i + 8 <= op->u.launch.kernel->argument_bytes; i += 8) {
        const struct map *map = NULL;
        uint64_t word;

        memcpy(&word, (const char *)op->u.launch.argument + i, sizeof(word));
        if (word < FG_VA_BASE || word >= FG_VA_END)
            continue;
        for (struct process *other = s->processes; other && !map; other = other->next)
            map = map_find(s, other, word, 1, false);
        if (!map)
            continue; /* gone or nowhere: faults if it is touched */
        bool mine = map->process == p;

        if (mine && gpu_reaches(p, gpu, map, false, true))
            continue;
        violation(s, RULE_not_accessible, p, "%s on GPU %d: %llx is memory of %s%s",
                  op->u.launch.kernel->name, gpu, (unsigned long long)word,
                  mine ? "another GPU" : "another process", mine ? ", without access to it" : "");
        return;
    }
}

static void run_kernel(struct server *s, struct op *op)
{
    struct process *p = op->stream->process;
    uint64_t threads = op->u.launch.blocks * op->u.launch.threads;
    uint64_t random = random_of(s, 'K', op->id), faulted;
    struct body body = {.op = op, .first = random >> 8, .step = (random >> 32) | 1, .count = 1};

    if (p->sticky_in && !--p->sticky_in) {
        process_fault(s, p, E_LAUNCH_FAILED, "injected, in %s", op->u.launch.kernel->name);
        return;
    }
    if (threads > s->counts.threads_most)
        s->counts.threads_most = threads;
    check_argument(s, op);
    kernel_ranges(s, op);
    /* Few enough that the CPU's caches like it. */
    while (body.count * 2 <= threads && body.count < 16)
        body.count *= 2;
    body.count >>= random % 4;
    if (!body.count)
        body.count = 1;
    faulted = unlocked(s, body_kernel, &body);
    if (!faulted || p->gone)
        return;
    violation(s, RULE_use_after_free, p, "%s in stream %u of GPU %d touched %llx",
              op->u.launch.kernel->name, op->stream->index + 1, op->stream->gpu,
              (unsigned long long)faulted);
    process_fault(s, p, E_ILLEGAL_ADDRESS, "%s", op->u.launch.kernel->name);
}

/* ---- words ---------------------------------------------------------------------------------- */

bool wait_satisfied(struct server *s, const struct op *op)
{
    const struct fg_memop *memop = &op->u.memop;
    const struct map *map = map_find(s, op->stream->process, memop->address, 8, false);
    uint64_t word;
    int64_t distance;

    if (!map)
        return true; /* told when it runs */
    word = atomic_load((_Atomic uint64_t *)map_pointer(map, memop->address));
    distance = (int64_t)(word - memop->value);
    switch (memop->compare) {
    case FG_WAIT_GEQ: /* cyclic, as documented */
        return distance >= 0;
    case FG_WAIT_EQ:
        return distance == 0;
    case FG_WAIT_AND:
        return (word & memop->value) != 0;
    default:
        return (word | memop->value) != UINT64_MAX;
    }
}

static void run_memop(struct server *s, struct op *op)
{
    const struct fg_memop *memop = &op->u.memop;
    const struct map *map = map_find(s, op->stream->process, memop->address, 8, false);

    if (!map) {
        violation(s, RULE_use_after_free, op->stream->process,
                  "stream memory operation of stream %u at %llx", op->stream->index + 1,
                  (unsigned long long)memop->address);
        process_fault(s, op->stream->process, E_ILLEGAL_ADDRESS, "stream memory operation");
        return;
    }
    if (op->kind == OP_WAIT) {
        word_acquired(s, op, map, memop->address, memop->value);
        return;
    }
    word_released(s, op, map, memop->address, memop->value);
    atomic_store((_Atomic uint64_t *)map_pointer(map, memop->address), memop->value);
}

static void run_record(struct op *op)
{
    struct event *event = op->u.event;

    if (event->recorded.stream != op->stream->index || event->recorded.seq != op->seq)
        return; /* recorded again since */
    event->done_ns = now_ns();
    clock_free(&event->clock);
    clock_join(&event->clock, &op->stream->clock);
}

/* False: cannot be told to the process now. */
static bool run_hostfn(struct op *op)
{
    struct process *p = op->stream->process;
    struct fg_hostfn message = {op->id, op->u.hostfn.function, op->u.hostfn.argument};

    return p->host_fd >= 0 && send(p->host_fd, &message, sizeof(message),
                                   MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof(message);
}

/* ---- one op --------------------------------------------------------------------------------- */

/* The stream is now ordered behind what the op was. */
static void acquire(struct server *s, struct op *op)
{
    struct stream *stream = op->stream;

    for (uint32_t i = 0; i < op->after_count; i++)
        clock_join(&stream->clock, &s->streams[op->after[i].stream]->clock);
    if (op->kind == OP_NONE && op->u.event)
        clock_join(&stream->clock, &op->u.event->clock);
    clock_raise(&stream->clock, stream->index, op->seq);
}

void op_execute(struct server *s, struct op *op)
{
    struct gpu *gpu = &s->gpus[op->stream->gpu];

    op->running = true;
    op->start = ++s->next_start;
    acquire(s, op);
    switch (op->kind) {
    case OP_KERNEL:
        gpu->slice = op->stream->process;
        gpu->slice_running++;
        run_kernel(s, op);
        gpu->slice_running--;
        break;
    case OP_COPY:
        run_copy(s, op);
        break;
    case OP_FILL:
        run_fill(s, op);
        break;
    case OP_WAIT:
    case OP_WRITE:
        run_memop(s, op);
        break;
    case OP_RECORD:
        run_record(op);
        break;
    case OP_HOSTFN:
        if (run_hostfn(op))
            return; /* ends when the process says so */
        op->running = false;
        op->not_before_ns = now_ns() + 200000;
        return;
    case OP_COLLECTIVE:
        gpu->ctas_free -= op->ctas;
        op->collected = true;
        s->counts.collectives++;
        s->counts.zero_ctas += op->ctas == 0;
        if (s->ctas - gpu->ctas_free > s->counts.ctas_most)
            s->counts.ctas_most = s->ctas - gpu->ctas_free;
        nccl_start(s, op);
        return;
    case OP_NONE:
        break;
    }
    op_finish(s, op);
}

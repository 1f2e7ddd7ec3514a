/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: queues of ops. An op is named by (stream, number in it), which outlives it, so nothing
 * ever points to an op of another stream. Order between streams is a list of such names. Lock held.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/fakegpu/server_internal.h"

struct stream *stream_find(struct server *s, const struct process *p, uint64_t number)
{
    if (!number || number > s->stream_count)
        return NULL;
    struct stream *stream = s->streams[number - 1];

    return stream->process == p ? stream : NULL;
}

/* As many as `inject streams` lets a process have on a GPU. */
static bool no_more(const struct server *s, const struct process *p, int gpu)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < s->stream_count; i++)
        count += s->streams[i]->process == p && s->streams[i]->gpu == gpu && !s->streams[i]->closed;
    return s->inject.streams && count >= s->inject.streams;
}

struct stream *stream_new(struct server *s, struct process *p, int gpu, bool blocking)
{
    struct stream *stream = no_more(s, p, gpu) ? NULL : calloc(1, sizeof(*stream));
    struct stream **streams;

    if (!stream)
        return NULL;
    if (!(s->stream_count & (s->stream_count - 1))) {
        size_t room = s->stream_count ? (size_t)s->stream_count * 2 : 1;

        streams = realloc(s->streams, room * sizeof(struct stream *));
        if (!streams) {
            free(stream);
            return NULL;
        }
        s->streams = streams;
        streams = realloc(s->busy, room * sizeof(struct stream *));
        if (!streams) {
            free(stream);
            return NULL;
        }
        s->busy = streams;
    }
    *stream = (struct stream){.index = s->stream_count, .process = p, .gpu = gpu,
                              .blocking = blocking, .queue = p->streams[gpu]++ % p->queues};
    s->streams[s->stream_count++] = stream;
    return stream;
}

struct stream *stream_null(struct server *s, struct process *p, int gpu)
{
    if (!p->null_streams[gpu]) {
        p->null_streams[gpu] = stream_new(s, p, gpu, true);
        if (p->null_streams[gpu])
            p->null_streams[gpu]->null = true;
    }
    return p->null_streams[gpu];
}

/* ---- ops ------------------------------------------------------------------------------------ */

bool after_done(const struct server *s, const struct after *after)
{
    return s->streams[after->stream]->done_seq >= after->seq;
}

static int op_after(struct op *op, const struct stream *stream)
{
    struct after *after;

    if (stream->last_seq == stream->done_seq || stream->dead)
        return 0;
    after = realloc(op->after, (op->after_count + 1) * sizeof(*after));
    if (!after)
        return -1;
    op->after = after;
    after[op->after_count++] = (struct after){stream->index, stream->last_seq};
    return 0;
}

/* The NULL stream is behind all blocking streams of its GPU and process, and they behind it. */
static int op_order(struct server *s, struct op *op)
{
    const struct stream *stream = op->stream;
    int r = 0;

    if (!stream->blocking)
        return 0;
    if (!stream->null) {
        const struct stream *null = stream->process->null_streams[stream->gpu];

        return null ? op_after(op, null) : 0;
    }
    for (uint32_t i = 0; i < s->stream_count && !r; i++) {
        const struct stream *other = s->streams[i];

        if (other != stream && other->process == stream->process && other->gpu == stream->gpu &&
            other->blocking)
            r = op_after(op, other);
    }
    return r;
}

struct op *op_new(struct server *s, struct stream *stream, enum op_kind kind)
{
    static const char *const names[] = {"a wait for an event", "a kernel", "a copy", "a fill",
                                        "a wait for a word", "the write of a word", "an event",
                                        "a host function", "a collective"};
    struct op *op = calloc(1, sizeof(*op));

    if (!op)
        return NULL;
    nccl_behind(s, stream, names[kind]);
    op->stream = stream;
    op->kind = kind;
    if (op_order(s, op)) {
        free(op->after);
        free(op);
        return NULL;
    }
    return op;
}

void op_submit(struct server *s, struct op *op)
{
    struct stream *stream = op->stream;

    op->seq = ++stream->last_seq;
    op->id = ++s->next_op;
    op->enqueued_ns = now_ns();
    if (stream->tail)
        stream->tail->next = op;
    else
        stream->head = op;
    stream->tail = op;
    if (!stream->busy)
        s->busy[s->busy_count++] = stream;
    stream->busy = true;
    if (stream->dead) { /* after a fault: never runs */
        stream_kill(s, stream);
        return;
    }
    server_kick(s);
}

void op_free(struct server *s, struct op *op)
{
    if (op->kind == OP_KERNEL)
        free(op->u.launch.argument);
    if (op->kind == OP_COLLECTIVE && op->u.collective)
        nccl_drop(s, op);
    if ((op->kind == OP_RECORD || (op->kind == OP_NONE && op->u.event)) && op->u.event) {
        op->u.event->queued--;
        if (op->kind == OP_NONE && op->u.event->process != op->stream->process)
            op->u.event->waits--;
        event_drop(s, op->u.event);
    }
    free(op->after);
    free(op);
}

void op_finish(struct server *s, struct op *op)
{
    struct stream *stream = op->stream;

    order_op_done(s, op);
    stream->head = op->next;
    if (!stream->head)
        stream->tail = NULL;
    if (!stream->dead)
        stream->done_seq = op->seq;
    if (op->kind == OP_COLLECTIVE)
        s->gpus[stream->gpu].ctas_free += op->ctas;
    op_free(s, op);
    server_kick(s);
}

void stream_kill(struct server *s, struct stream *stream)
{
    struct op *head = stream->head;
    struct op *keep = NULL; /* a worker has it */

    stream->dead = true;
    if (head && head->running && head->kind != OP_HOSTFN && head->kind != OP_COLLECTIVE)
        keep = head;
    for (struct op *op = keep ? keep->next : head, *next; op; op = next) {
        next = op->next;
        if (op->kind == OP_COLLECTIVE && op->collected)
            s->gpus[stream->gpu].ctas_free += op->ctas;
        op_free(s, op);
    }
    if (keep)
        keep->next = NULL;
    stream->head = stream->tail = keep;
}

/* ---- requests ------------------------------------------------------------------------------- */

static void stream_make(struct server *s, struct call *c)
{
    struct stream *stream = stream_new(s, c->process, (int)c->q->device, !(c->q->a[0] & 1));

    if (!stream) {
        c->reply.error = E_OUT_OF_MEMORY;
        return;
    }
    stream->own = (c->q->a[0] & 2) != 0;
    stream->priority = (int)(int64_t)c->q->a[1];
    c->reply.v[0] = stream->index + 1u;
}

static void stream_destroy(struct server *s, struct call *c)
{
    struct stream *stream = stream_find(s, c->process, c->q->a[0]);

    if (!stream || stream->closed) {
        violation(s, RULE_stream_destroyed, c->process, "stream %llu destroyed twice",
                  (unsigned long long)c->q->a[0]);
        c->reply.error = E_INVALID_HANDLE;
        return;
    }
    stream->closed = true; /* what is queued still runs */
}

static bool busy(const struct stream *stream)
{
    return stream->head != NULL;
}

static void query(struct server *s, struct call *c)
{
    if (c->q->a[0] == FG_SCOPE_STREAM) {
        const struct stream *stream = stream_find(s, c->process, c->q->a[1]);

        if (!stream || stream->closed)
            c->reply.error = E_INVALID_HANDLE;
        else if (busy(stream))
            c->reply.error = FG_BUSY;
    } else if (c->q->a[0] == FG_SCOPE_EVENT) {
        const struct event *event = event_find(s, c->process, c->q->a[1]);

        if (!event)
            c->reply.error = E_INVALID_HANDLE;
        else if (event->recorded.seq && !after_done(s, &event->recorded))
            c->reply.error = FG_BUSY;
    } else {
        for (uint32_t i = 0; i < s->stream_count; i++)
            if (s->streams[i]->process == c->process &&
                s->streams[i]->gpu == (int)c->q->device && busy(s->streams[i]))
                c->reply.error = FG_BUSY;
    }
}

void stream_request(struct server *s, struct call *c)
{
    const struct stream *stream;

    switch (c->q->kind) {
    case FG_STREAM_NEW:
        stream_make(s, c);
        break;
    case FG_STREAM_FREE:
        stream_destroy(s, c);
        break;
    case FG_STREAM_NULL:
        stream = stream_null(s, c->process, (int)c->q->device);
        c->reply.error = stream ? E_OK : E_OUT_OF_MEMORY;
        c->reply.v[0] = stream ? stream->index + 1u : 0;
        break;
    default:
        query(s, c);
    }
}

void streams_process_gone(struct server *s, struct process *p, bool leaks)
{
    for (uint32_t i = 0; i < s->stream_count; i++) {
        struct stream *stream = s->streams[i];

        if (stream->process != p)
            continue;
        if (leaks && !stream->closed && !stream->null && !stream->own)
            violation(s, RULE_leak_stream, p, "stream %u", stream->index + 1);
        stream_kill(s, stream);
    }
}

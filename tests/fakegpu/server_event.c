/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events: the name of the op last recorded. Shared ones are one object for all processes that
 * opened them. Lock held.
 */
#include <stdlib.h>

#include "tests/fakegpu/server_internal.h"

static uint64_t bit_of(const struct process *p)
{
    return UINT64_C(1) << (p->id % 64);
}

struct event *event_find(struct server *s, const struct process *p, uint64_t number)
{
    for (struct event *event = s->events; event; event = event->next)
        if (event->id == number && ((event->process == p && !event->closed) ||
                                    (event->process != p && event->opened & bit_of(p))))
            return event;
    return NULL;
}

void event_drop(struct server *s, struct event *event)
{
    if (!event->closed || event->queued || event->opened)
        return;
    for (struct event **at = &s->events; *at; at = &(*at)->next) {
        if (*at != event)
            continue;
        *at = event->next;
        break;
    }
    clock_free(&event->clock);
    free(event);
}

static void event_make(struct server *s, struct call *c)
{
    struct event *event = calloc(1, sizeof(*event));

    if (!event) {
        c->reply.error = E_OUT_OF_MEMORY;
        return;
    }
    /* Flags as CU_EVENT_*: 1 blocking sync, 2 no timing, 4 interprocess. */
    *event = (struct event){.id = ++s->next_event, .process = c->process,
                            .gpu = (int)c->q->device, .interprocess = (c->q->a[0] & 4) != 0,
                            .timing = !(c->q->a[0] & 2), .next = s->events};
    event->secret = random_of(s, 'E', event->id);
    s->events = event;
    c->reply.v[0] = event->id;
}

static void event_destroy(struct server *s, struct call *c, struct event *event)
{
    if (event->process != c->process) {
        event->opened &= ~bit_of(c->process);
    } else {
        if (event->opened || event->waits)
            violation(s, RULE_event_free_pending, c->process, "event %llu",
                      (unsigned long long)event->id);
        event->closed = true;
    }
    event_drop(s, event);
}

static void event_record(struct server *s, struct call *c, struct event *event)
{
    struct stream *stream = stream_find(s, c->process, c->q->a[0]);
    struct op *op;

    c->reply.error = E_INVALID_HANDLE;
    if (!stream || stream->closed)
        return;
    if (stream->gpu != event->gpu) {
        violation(s, RULE_wrong_device, c->process,
                  "event %llu of GPU %d recorded in a stream of GPU %d",
                  (unsigned long long)event->id, event->gpu, stream->gpu);
        return;
    }
    if (event->interprocess && event->waits)
        violation(s, RULE_event_reuse, c->process,
                  "event %llu recorded again, %u queued wait(s) of other processes",
                  (unsigned long long)event->id, event->waits);
    op = op_new(s, stream, OP_RECORD);
    c->reply.error = E_OUT_OF_MEMORY;
    if (!op)
        return;
    op->u.event = event;
    event->queued++;
    event->recorded = (struct after){stream->index, stream->last_seq + 1};
    op_submit(s, op);
    s->counts.records++;
    c->reply.error = E_OK;
}

static void event_wait(struct server *s, struct call *c, struct event *event)
{
    struct stream *stream = stream_find(s, c->process, c->q->a[0]);
    struct after *after;
    struct op *op;

    c->reply.error = E_INVALID_HANDLE;
    if (!stream || stream->closed)
        return;
    c->reply.error = E_OK;
    if (!event->recorded.seq) {
        violation(s, RULE_event_never_recorded, c->process, "event %llu, stream %u",
                  (unsigned long long)event->id, stream->index + 1);
        return;
    }
    op = op_new(s, stream, OP_NONE);
    after = op ? realloc(op->after, (op->after_count + 1) * sizeof(*after)) : NULL;
    if (!after) {
        if (op)
            free(op->after);
        free(op);
        c->reply.error = E_OUT_OF_MEMORY;
        return;
    }
    after[op->after_count++] = event->recorded;
    op->after = after;
    op->u.event = event;
    event->queued++;
    if (event->process != c->process)
        event->waits++;
    op_submit(s, op);
}

static void event_elapsed(struct server *s, struct call *c, struct event *from)
{
    struct event *to = event_find(s, c->process, c->q->a[1]);

    if (!to || !from->timing || !to->timing || !from->recorded.seq || !to->recorded.seq)
        c->reply.error = E_INVALID_HANDLE;
    else if (!after_done(s, &from->recorded) || !after_done(s, &to->recorded))
        c->reply.error = E_NOT_READY;
    else
        c->reply.v[0] = to->done_ns - from->done_ns;
}

static void event_open(struct server *s, struct call *c)
{
    c->reply.error = E_INVALID_HANDLE;
    for (struct event *event = s->events; event; event = event->next) {
        if (event->id != c->q->a[0] || event->secret != c->q->a[1] || event->closed ||
            event->process == c->process || event->process->node != c->process->node)
            continue;
        event->opened |= bit_of(c->process);
        c->reply.v[0] = event->id;
        c->reply.error = E_OK;
    }
}

void event_request(struct server *s, struct call *c)
{
    static const uint8_t number_at[] = {[FG_EVENT_FREE - FG_EVENT_NEW] = 0,
                                        [FG_EVENT_RECORD - FG_EVENT_NEW] = 1,
                                        [FG_EVENT_WAIT - FG_EVENT_NEW] = 1,
                                        [FG_EVENT_ELAPSED - FG_EVENT_NEW] = 0,
                                        [FG_EVENT_EXPORT - FG_EVENT_NEW] = 0};
    struct event *event;

    if (c->q->kind == FG_EVENT_NEW || c->q->kind == FG_EVENT_OPEN) {
        (c->q->kind == FG_EVENT_NEW ? event_make : event_open)(s, c);
        return;
    }
    event = event_find(s, c->process, c->q->a[number_at[c->q->kind - FG_EVENT_NEW]]);
    if (!event) {
        violation(s, RULE_stream_destroyed, c->process, "event %llu does not exist",
                  (unsigned long long)c->q->a[number_at[c->q->kind - FG_EVENT_NEW]]);
        c->reply.error = E_INVALID_HANDLE;
    } else if (c->q->kind == FG_EVENT_FREE) {
        event_destroy(s, c, event);
    } else if (c->q->kind == FG_EVENT_RECORD) {
        event_record(s, c, event);
    } else if (c->q->kind == FG_EVENT_WAIT) {
        event_wait(s, c, event);
    } else if (c->q->kind == FG_EVENT_ELAPSED) {
        event_elapsed(s, c, event);
    } else if (!event->interprocess || s->inject.no_ipc) {
        c->reply.error = E_INVALID_HANDLE;
    } else {
        c->reply.v[0] = event->id;
        c->reply.v[1] = event->secret;
    }
}

void events_process_gone(struct server *s, struct process *p, bool leaks)
{
    for (struct event *event = s->events, *next; event; event = next) {
        next = event->next;
        if (event->process == p && !event->closed) {
            if (leaks)
                violation(s, RULE_leak_stream, p, "event %llu", (unsigned long long)event->id);
            event->closed = true;
        } else if (event->process != p) {
            event->opened &= ~bit_of(p);
        }
        event_drop(s, event);
    }
}

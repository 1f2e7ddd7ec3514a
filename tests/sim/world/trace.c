/* SPDX-License-Identifier: Apache-2.0 */
/* With $GW_SIM_TRACE set: every event and effect as a line on stderr, to see why a run went
 * wrong. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/world/internal.h"

static const char *message_name(uint16_t type)
{
    switch (type) {
#define NAME(name, value, member, message, lower)                                                  \
    case value:                                                                                    \
        return #name;
        WIRE_TYPE_MAP(NAME)
#undef NAME
    default:
        return "?";
    }
}

static bool tracing(void)
{
    static int on = -1;

    if (on < 0)
        on = getenv("GW_SIM_TRACE") != NULL;
    return on > 0;
}

void trace_event(const struct sim *sim, const struct core_event *event)
{
    static const char *const kinds[] = {"JOIN",        "LEAVE",    "LOST",   "REQUEST",
                                        "HEARD",       "BUILT",    "OVERFLOW", "BUFFER",
                                        "OP_DONE",     "TICK",     "DEVICE_LOST"};

    if (!tracing())
        return;
    fprintf(stderr, "%9lu  -> %s", (unsigned long)sim->now_ns / 1000, kinds[event->kind]);
    if (event->kind == CORE_EV_OP_DONE)
        fprintf(stderr, " %lu", (unsigned long)event->op);
    else if (event->kind == CORE_EV_REQUEST && event->msg->type == WIRE_READY)
        fprintf(stderr, " rank %u READY %s piece %u flags %u slot %d", event->rank,
                sim->plan->params[event->msg->u.ready.entries->param].name,
                event->msg->u.ready.entries->piece, event->msg->u.ready.entries->flags,
                (int)event->msg->u.ready.entries->slot);
    else if (event->kind == CORE_EV_REQUEST)
        fprintf(stderr, " rank %u %s (%u) %u", event->rank, message_name(event->msg->type),
                event->request, event->msg->u.unit.unit);
    else
        fprintf(stderr, " rank %u", event->rank);
    fputc('\n', stderr);
}

static void trace_op(const struct core_op *op)
{
    static const char *const kinds[] = {"reduce_scatter", "all_reduce", "all_gather",
                                        "gather",         "fill",       "broadcast",
                                        "barrier",        "local_add",  "zero",
                                        "cast",           "verdict"};

    fprintf(stderr, "op %lu %s stream %u rank %u bucket %u+%u accumulate %u of",
            (unsigned long)op->id, kinds[op->kind], op->stream, op->rank, op->bucket,
            op->bucket_count, op->accumulate);
    for (uint32_t i = 0; i < op->world; i++)
        fprintf(stderr, " %u", op->members[i]);
    fprintf(stderr, " after");
    for (uint32_t i = 0; i < op->wait_op_count; i++)
        fprintf(stderr, " %lu", (unsigned long)op->wait_ops[i]);
    fprintf(stderr, " signals");
    for (uint32_t i = 0; i < op->signal_count; i++)
        fprintf(stderr, " %u:%x=%lu", op->signals[i].rank, op->signals[i].timeline,
                (unsigned long)op->signals[i].value);
    for (uint32_t i = 0; i < op->wait_count; i++)
        fprintf(stderr, " waits %u:%u>=%lu", op->waits[i].rank, op->waits[i].index,
                (unsigned long)op->waits[i].value);
}

void trace_effect(const struct sim *sim, const struct core_effect *effect)
{
    static const char *const kinds[] = {"REPLY", "LAUNCH", "SIGNAL",   "BUILD",  "OVERFLOW",
                                        "FAIL",  "DROP",   "PARAM_IO", "REPORT", "END"};

    (void)sim;
    if (!tracing())
        return;
    fprintf(stderr, "          <-   %s ", kinds[effect->kind]);
    if (effect->kind == CORE_EFF_LAUNCH)
        trace_op(&effect->op);
    else if (effect->kind == CORE_EFF_SIGNAL)
        fprintf(stderr, "%u:%x=%lu after %lu", effect->signal.rank, effect->signal.timeline,
                (unsigned long)effect->signal.value, (unsigned long)effect->after_op);
    else if (effect->kind == CORE_EFF_REPLY)
        fprintf(stderr, "rank %u %s (%u) %d", effect->rank, message_name(effect->reply.type),
                effect->reply.request, (int)effect->reply.u.acquired.slot);
    else
        fprintf(stderr, "rank %u %s", effect->rank, effect->text);
    fputc('\n', stderr);
}

void trace_item(const struct sim *sim, const struct sim_client *client, uint32_t queue,
                const struct sim_item *item)
{
    static const char *const kinds[] = {"wait",    "token", "piece", "read", "verdict",
                                        "span",    "shard", "fill",  "sum"};

    if (tracing())
        fprintf(stderr, "%9lu     rank %u stream %u: %s %u, timeline %x %lu\n",
                (unsigned long)sim->now_ns / 1000, client->rank, queue, kinds[item->kind], item->a,
                item->timeline, (unsigned long)item->value);
}

void trace_run(const struct sim *sim, const char *what, uint64_t op)
{
    if (tracing())
        fprintf(stderr, "%9lu     %s %lu\n", (unsigned long)sim->now_ns / 1000, what,
                (unsigned long)op);
}

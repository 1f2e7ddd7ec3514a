/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered buffers of the collectives layer: their sizes, and how many unfinished ops use each.
 * The engine makes and frees the memory. Pure; the core's thread. Knows nothing of groups.
 */
#include "daemon/core/core_internal.h"

#include <stdlib.h>

struct lane_buffer *lane_find_buffer(const struct core *core, uint32_t rank, uint32_t id)
{
    const struct lane_rank *lane = &core->ranks[rank].lane;

    for (uint32_t i = 0; i < lane->buffer_count; i++) {
        if (lane->buffers[i].id == id)
            return &lane->buffers[i];
    }
    return NULL;
}

static void buffer_use(struct core *core, uint32_t rank, uint32_t id, int change)
{
    struct lane_buffer *buffer = lane_find_buffer(core, rank, id);

    if (buffer)
        buffer->uses = change > 0 ? buffer->uses + 1 : buffer->uses - 1;
}

void lane_use_buffers(struct core *core, uint32_t rank, const struct wire_op *op, int change)
{
    if (op->kind == WIRE_OP_BARRIER)
        return;
    buffer_use(core, rank, op->send_buffer, change);
    buffer_use(core, rank, op->recv_buffer, change);
}

void lane_buffer(struct core *core, const struct core_event *event)
{
    struct lane_rank *lane = &core->ranks[event->rank].lane;
    struct lane_buffer *buffers;
    uint32_t capacity;

    if (!ranks_has(&core->present, event->rank) || core->broken)
        return;
    if (lane->buffer_count == lane->buffer_capacity) {
        capacity = lane->buffer_capacity ? lane->buffer_capacity * 2 : 16;
        buffers = realloc(lane->buffers, capacity * sizeof(*buffers));
        if (!buffers) {
            core->nomem = true;
            return;
        }
        lane->buffers = buffers;
        lane->buffer_capacity = capacity;
    }
    lane->buffers[lane->buffer_count] =
        (struct lane_buffer){.id = event->index, .bytes = event->size_bytes};
    lane->buffer_count++;
}

void lane_buffer_free(struct core *core, uint32_t rank, const struct wire_msg *msg)
{
    struct lane_rank *lane = &core->ranks[rank].lane;
    uint32_t id = msg->u.buffer_free.buffer;
    struct lane_buffer *buffer = lane_find_buffer(core, rank, id);

    if (!buffer) {
        core_reply_done(core, rank, msg->request, GW_E_NOT_FOUND, "rank %u has no buffer %u", rank,
                        id);
    } else if (buffer->uses > 0) {
        core_reply_done(core, rank, msg->request, GW_E_BUSY,
                        "buffer %u of rank %u is used by %u unfinished ops: wait for them first",
                        id, rank, buffer->uses);
    } else {
        *buffer = lane->buffers[--lane->buffer_count];
        core_reply_done(core, rank, msg->request, 0, "%s", "");
    }
}

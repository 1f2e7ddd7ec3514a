/* SPDX-License-Identifier: Apache-2.0 */
/* Events of the log as messages of the star, and back. Loop thread. */
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/log.h"
#include "daemon/engine/nodes_internal.h"

int nodes_send(struct nodes *nodes, uint32_t peer, const struct wire_msg *msg)
{
    static uint8_t buffer[GW_FRAME_MAX];
    size_t bytes;
    int r;

    r = wire_encode(msg, buffer, sizeof(buffer), &bytes);
    return r < 0 ? r : star_send(nodes->star, peer, buffer, bytes);
}

int nodes_event_new(const struct core_event *event, uint32_t node, uint64_t cookie,
                    struct nodes_event **ret_event)
{
    struct nodes_event *copy = calloc(1, sizeof(*copy));

    if (!copy)
        return GW_E_NOMEM;
    copy->event = *event;
    copy->node = node;
    copy->cookie = cookie;
    if (event->text) {
        memcpy(copy->text, event->text, strnlen(event->text, GW_TEXT_MAX));
        copy->event.text = copy->text;
    }
    *ret_event = copy;
    return 0;
}

void nodes_event_msg(const struct nodes_event *event, uint64_t at_ns, struct wire_msg *ret_msg)
{
    const struct core_event *from = &event->event;

    *ret_msg = (struct wire_msg){.type = WIRE_STAR_EVENT};
    ret_msg->u.star_event.kind = (uint32_t)from->kind;
    ret_msg->u.star_event.now_ns = at_ns;
    ret_msg->u.star_event.node = event->node;
    ret_msg->u.star_event.cookie = event->cookie;
    ret_msg->u.star_event.rank = from->rank;
    ret_msg->u.star_event.request = from->request;
    ret_msg->u.star_event.world = from->world;
    ret_msg->u.star_event.index = from->index;
    ret_msg->u.star_event.code = from->code;
    ret_msg->u.star_event.size_bytes = from->size_bytes;
    ret_msg->u.star_event.op = from->op;
    ret_msg->u.star_event.started_ns = from->started_ns;
    ret_msg->u.star_event.done_ns = from->done_ns;
    ret_msg->u.star_event.packet = from->msg != NULL;
    memcpy(ret_msg->u.star_event.text, event->text, sizeof(event->text));
}

int nodes_event_take(const struct wire_msg *msg, struct nodes_event **ret_event)
{
    const struct core_event event = {
        .kind = (enum core_event_kind)msg->u.star_event.kind,
        .rank = msg->u.star_event.rank,
        .request = msg->u.star_event.request,
        .world = msg->u.star_event.world,
        .index = msg->u.star_event.index,
        .code = msg->u.star_event.code,
        .size_bytes = msg->u.star_event.size_bytes,
        .op = msg->u.star_event.op,
        .started_ns = msg->u.star_event.started_ns,
        .done_ns = msg->u.star_event.done_ns,
        .text = msg->u.star_event.text[0] ? msg->u.star_event.text : NULL,
    };

    return nodes_event_new(&event, msg->u.star_event.node, msg->u.star_event.cookie, ret_event);
}

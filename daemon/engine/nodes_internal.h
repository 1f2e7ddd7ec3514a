/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes.c, nodes_root.c and nodes_pack.c share. Loop thread. */
#ifndef GW_ENGINE_NODES_INTERNAL_H
#define GW_ENGINE_NODES_INTERNAL_H

#include "daemon/base/text.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/nodes.h"
#include "daemon/engine/star.h"

#define NODES_LOG_BYTES (256u << 20) /* of the log kept for nodes that come */
#define NODES_OPS_MAX (1u << 20)     /* ops that may be done on some nodes and not on all */
/* Kinds of the log beside enum core_event_kind. */
#define NODES_LOST 128u  /* node `index` is gone for good: text */
#define NODES_HEARD 129u /* proposed by a node: its ranks are heard, up to event `op` of the log */

/* An event that came up while another is carried out, or that waits for its packet. */
struct nodes_event {
    struct core_event event;
    uint32_t node;
    uint64_t cookie;
    char text[GW_TEXT_MAX + 1];
    bool has_text;
    const uint8_t *packet; /* of event.msg, as the client sent it; NULL: to be encoded */
    size_t packet_bytes;
    STAILQ_ENTRY(nodes_event) link;
};
STAILQ_HEAD(nodes_queue, nodes_event);

/* Root: what is known of each node; index: its number. */
struct nodes_member {
    uint32_t peer; /* of the star; 0: none, or the root itself */
    bool active;   /* takes part; not gone */
    bool logged;   /* the log knows the number: it is no other node's */
    uint32_t told; /* items of the log that were sent to it */
    char name[GW_LABEL_MAX + 1];
    uint64_t built;    /* how often it has */
    uint64_t heard_at; /* event of the log up to which its ranks are heard */
};

/* Root: who has done an op. */
struct nodes_done {
    struct ranks nodes;
    bool all; /* of those that take part */
};

struct nodes_log_item {
    size_t bytes;
    uint8_t *data;
};

struct nodes {
    struct engine *engine;
    struct star *star;
    struct fabric_nodes table;
    struct job_log log;
    nodes_arrived_fn *arrived; /* node */
    bool is_root, ready, over;
    uint64_t sequence;      /* events of the log so far */
    uint64_t heard_sent_at; /* `sequence` when HEARD was said last */
    /* An event whose packet is the next message of that peer. */
    struct nodes_event *half[GW_NODES_MAX];

    /* node */
    int64_t clock_offset_ns; /* added to the root's */
    uint64_t half_ns;        /* time of half[0] */

    /* root */
    struct wire_msg create; /* the job as it was asked for */
    struct nodes_member members[GW_NODES_MAX];
    uint32_t assigned; /* highest number given to a node */
    struct nodes_queue queue;
    bool carrying; /* an event is carried out */
    struct nodes_log_item *items;
    uint32_t item_count, item_room;
    uint64_t item_bytes;
    bool log_kept;
    uint64_t builds; /* calls to build so far */
    uint64_t built_logged;
    int built_code;
    char built_text[GW_TEXT_MAX + 1];
    uint32_t unheard_before;
    uint64_t unheard_at; /* event after which something was to be heard */
    uint32_t generation;
    uint64_t done_from; /* ops before it are done, or nobody's */
    struct nodes_done *done; /* op % done_room, a power of 2 */
    uint32_t done_room;
};

/* nodes_pack.c */
int nodes_send(struct nodes *nodes, uint32_t peer, const struct wire_msg *msg);
void nodes_event_msg(const struct nodes_event *event, uint64_t now_ns, struct wire_msg *ret_msg);
/* Of a decoded STAR_EVENT; owns its text. GW_E_NOMEM. */
int nodes_event_take(const struct wire_msg *msg, struct nodes_event **ret_event);
int nodes_event_new(const struct core_event *event, uint32_t node, uint64_t cookie,
                    struct nodes_event **ret_event);

/* nodes.c */
/* "node b (ranks 2, 3)" */
void nodes_text(const struct nodes *nodes, uint32_t node, struct text *text);
/* A STAR_NODE of the log. */
void nodes_note(struct nodes *nodes, const struct wire_msg *msg);
/* The job is made: how its fabric is reached. */
int nodes_tell_address(struct nodes *nodes);
/* An event of the log, on this node. Its msg, if any, is in event->event.msg. */
int nodes_apply(struct nodes *nodes, uint64_t now_ns, struct nodes_event *event);

/* nodes_root.c */
void root_on_message(struct nodes *nodes, uint32_t peer, const uint8_t *bytes, size_t count);
/* A node can take part: into the log. */
void root_node(struct nodes *nodes, const struct wire_msg *msg);
/* Who has come late is told more of the log, if there is room. */
void root_catch_up(struct nodes *nodes);
void root_on_lost(struct nodes *nodes, uint32_t peer, const char *text);
int root_put(struct nodes *nodes, struct nodes_event *event);
int root_op_done(struct nodes *nodes, uint32_t node, uint64_t op);
int root_built(struct nodes *nodes, uint32_t node, int code, const char *text);
int root_heard(struct nodes *nodes, uint32_t node, uint64_t at);
void root_values(struct nodes *nodes, uint32_t from_node, const struct wire_msg *msg);
void root_free(struct nodes *nodes);

#endif

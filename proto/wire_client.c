/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fields and bounds of the messages that open a connection, form a job and run collectives. Pure.
 */
#include "proto/wire_fields.h"

#define MSG struct wire_msg

/* ---- handshake ------------------------------------------------------------------------------- */

static const struct wire_field hello[] = {
    WIRE_U32(Hello, MSG, u.hello., version_min, 1, UINT32_MAX),
    WIRE_U32(Hello, MSG, u.hello., version_max, 1, UINT32_MAX),
    WIRE_U64(Hello, MSG, u.hello., features, UINT64_MAX),
    WIRE_BYTES(Hello, MSG, u.hello., tag, tag_bytes, 0),
    WIRE_TEXT(Hello, MSG, u.hello., client, 0),
    WIRE_U32(Hello, MSG, u.hello., spans, 0, 1),
};

static int check_hello(const void *checked)
{
    const struct wire_msg *msg = checked;

    if (msg->u.hello.tag_bytes != 0 && msg->u.hello.tag_bytes != GW_TAG_BYTES)
        return GW_E_INVALID;
    return msg->u.hello.version_min > msg->u.hello.version_max ? GW_E_INVALID : 0;
}

WIRE_MESSAGE(hello, hello, check_hello);

static const struct wire_field welcome[] = {
    WIRE_U32(Welcome, MSG, u.welcome., version, 1, UINT32_MAX),
    WIRE_U64(Welcome, MSG, u.welcome., features, UINT64_MAX),
    WIRE_U32(Welcome, MSG, u.welcome., engine_pid, 0, UINT32_MAX),
};
WIRE_MESSAGE(welcome, welcome, NULL);

/* Codes of a newer peer are let through: below GW_ERROR_LAST there is room. */
#define CODE_MIN (-4095)

static const struct wire_field close_fields[] = {
    WIRE_SCALAR(WIRE_F_S32, Close, code, MSG, u.done.code, CODE_MIN, 0),
    WIRE_TEXT(Close, MSG, u.done., text, 0),
};
WIRE_MESSAGE(close, close_fields, NULL);

static const struct wire_field done[] = {
    WIRE_SCALAR(WIRE_F_S32, Done, code, MSG, u.done.code, CODE_MIN, 0),
    WIRE_TEXT(Done, MSG, u.done., text, 0),
};
WIRE_MESSAGE(done, done, NULL);

/* ---- job ------------------------------------------------------------------------------------- */

static const struct wire_field job_create[] = {
    WIRE_U32(JobCreate, MSG, u.job_create., rank, 0, GW_RANKS_MAX - 1),
    WIRE_U32(JobCreate, MSG, u.job_create., world, 1, GW_RANKS_MAX),
    WIRE_U64(JobCreate, MSG, u.job_create., join_timeout_ns, INT64_MAX),
    WIRE_U64(JobCreate, MSG, u.job_create., op_timeout_ns, INT64_MAX),
    WIRE_SCALAR(WIRE_F_S64, JobCreate, linger_ns, MSG, u.job_create.linger_ns, -1, INT64_MAX),
    WIRE_U64(JobCreate, MSG, u.job_create., link_bytes_per_s, UINT64_MAX),
    WIRE_TEXT(JobCreate, MSG, u.job_create., name, 0),
    WIRE_U32(JobCreate, MSG, u.job_create., device, 0, GW_DEVICE_KINDS - 1),
    WIRE_BYTES(JobCreate, MSG, u.job_create., gpu, gpu_bytes, 0),
    WIRE_U32(JobCreate, MSG, u.job_create., nodes, 0, GW_NODES_MAX),
};

/* A GPU is named where there is one, and nowhere else. */
static bool place_good(uint32_t device, uint32_t gpu_bytes)
{
    return gpu_bytes == (device == GW_DEVICE_HOST ? 0 : GW_GPU_BYTES);
}

static int check_job_create(const void *checked)
{
    const struct wire_msg *msg = checked;

    if (!place_good(msg->u.job_create.device, msg->u.job_create.gpu_bytes))
        return GW_E_INVALID;
    return msg->u.job_create.rank >= msg->u.job_create.world ? GW_E_INVALID : 0;
}

WIRE_MESSAGE(job_create, job_create, check_job_create);

static const struct wire_field join[] = {
    WIRE_U32(Join, MSG, u.join., rank, 0, GW_RANKS_MAX - 1),
    WIRE_U32(Join, MSG, u.join., world, 1, GW_RANKS_MAX),
    WIRE_BYTES(Join, MSG, u.join., id, id_bytes, 1),
    WIRE_U32(Join, MSG, u.join., device, 0, GW_DEVICE_KINDS - 1),
    WIRE_BYTES(Join, MSG, u.join., gpu, gpu_bytes, 0),
};

static int check_join(const void *checked)
{
    const struct wire_msg *msg = checked;

    if (!place_good(msg->u.join.device, msg->u.join.gpu_bytes))
        return GW_E_INVALID;
    return msg->u.join.rank >= msg->u.join.world ? GW_E_INVALID : 0;
}

WIRE_MESSAGE(join, join, check_join);

static const struct wire_field joined[] = {
    WIRE_U32(Joined, MSG, u.joined., generation, 0, UINT32_MAX),
    WIRE_BYTES(Joined, MSG, u.joined., id, id_bytes, 0),
    WIRE_U32(Joined, MSG, u.joined., device, 0, GW_DEVICE_KINDS - 1),
};
WIRE_MESSAGE(joined, joined, NULL);

WIRE_MESSAGE_EMPTY(wait_ready);
WIRE_MESSAGE_EMPTY(leave);
WIRE_MESSAGE_EMPTY(event_get);

/* ---- groups, buffers, collectives ------------------------------------------------------------ */

static const struct wire_field group_new[] = {
    WIRE_LIST(WIRE_F_U32S_AT, GroupNew, MSG, u.group_new., ranks, offsetof(MSG, u.group_new.count),
              false, 1, GW_RANKS_MAX, NULL),
};

static int check_group_new(const void *checked)
{
    const struct wire_msg *msg = checked;

    for (uint32_t i = 0; i < msg->u.group_new.count; i++) {
        if (msg->u.group_new.ranks[i] >= GW_RANKS_MAX)
            return GW_E_INVALID;
    }
    return 0;
}

WIRE_MESSAGE(group_new, group_new, check_group_new);

static const struct wire_field group_made[] = {
    WIRE_U32(GroupMade, MSG, u.group_made., group, 0, GW_GROUPS_MAX - 1),
};
WIRE_MESSAGE(group_made, group_made, NULL);

static const struct wire_field buffer_new[] = {
    WIRE_U64(BufferNew, MSG, u.buffer_new., bytes, UINT64_MAX),
    WIRE_U32(BufferNew, MSG, u.buffer_new., stands_in, 0, WIRE_STANDS_IN_KINDS - 1),
};
WIRE_MESSAGE(buffer_new, buffer_new, NULL);

static const struct wire_field buffer_made[] = {
    WIRE_U32(BufferMade, MSG, u.buffer_made., buffer, 0, UINT32_MAX),
    WIRE_U64(BufferMade, MSG, u.buffer_made., bytes, UINT64_MAX),
    WIRE_U64(BufferMade, MSG, u.buffer_made., mapped_bytes, UINT64_MAX),
};
WIRE_MESSAGE(buffer_made, buffer_made, NULL);

static const struct wire_field buffer_free[] = {
    WIRE_U32(BufferFree, MSG, u.buffer_free., buffer, 0, UINT32_MAX),
};
WIRE_MESSAGE(buffer_free, buffer_free, NULL);

int wire_check_after(const struct wire_after *after)
{
    for (uint32_t i = 0; i < after->tokens; i++) {
        if (after->timeline[i] >= GW_TIMELINES_MAX)
            return GW_E_INVALID;
    }
    return 0;
}

static const struct wire_field buffer_import[] = {
    WIRE_BYTES_EXACT(BufferImport, MSG, u.buffer_import., handle),
    WIRE_U64(BufferImport, MSG, u.buffer_import., allocation_bytes, UINT64_MAX),
    WIRE_U64(BufferImport, MSG, u.buffer_import., offset, UINT64_MAX),
    WIRE_U64(BufferImport, MSG, u.buffer_import., bytes, UINT64_MAX),
};

/* Not beyond the allocation, which the engine asks the driver about too. */
static int check_buffer_import(const void *checked)
{
    const struct wire_msg *msg = checked;
    uint64_t offset = msg->u.buffer_import.offset, bytes = msg->u.buffer_import.bytes;
    uint64_t whole = msg->u.buffer_import.allocation_bytes;

    return bytes == 0 || offset > whole || bytes > whole - offset ? GW_E_INVALID : 0;
}

WIRE_MESSAGE(buffer_import, buffer_import, check_buffer_import);

static const struct wire_field timeline_events[] = {
    WIRE_U32(TimelineEvents, MSG, u.timeline_events., timeline, 0, GW_TIMELINES_MAX - 1),
    {.kind = WIRE_F_BYTES_AT,
     .from = offsetof(Gradwire__V1__TimelineEvents, handles),
     .at = offsetof(MSG, u.timeline_events.handles),
     .count_at = offsetof(MSG, u.timeline_events.handle_bytes),
     .min = 0,
     .max = GW_TIMELINE_EVENTS * GW_IPC_HANDLE_BYTES},
};

static int check_timeline_events(const void *checked)
{
    const struct wire_msg *msg = checked;
    size_t bytes = msg->u.timeline_events.handle_bytes;

    return bytes == 0 || bytes == GW_TIMELINE_EVENTS * GW_IPC_HANDLE_BYTES ? 0 : GW_E_INVALID;
}

WIRE_MESSAGE(timeline_events, timeline_events, check_timeline_events);

static const struct wire_field op[] = {
    WIRE_U32(Op, MSG, u.op., kind, WIRE_OP_REDUCE_SCATTER, WIRE_OP_BARRIER),
    WIRE_U32(Op, MSG, u.op., group, 0, GW_GROUPS_MAX - 1),
    WIRE_U64(Op, MSG, u.op., sequence, UINT64_MAX),
    WIRE_TEXT(Op, MSG, u.op., name, 0),
    WIRE_DOUBLE(Op, MSG, u.op., scale),
    WIRE_DOUBLE(Op, MSG, u.op., pre_scale),
    WIRE_U64(Op, MSG, u.op., count, UINT64_MAX),
    WIRE_U32(Op, MSG, u.op., send_buffer, 0, UINT32_MAX),
    WIRE_U64(Op, MSG, u.op., send_offset, UINT64_MAX),
    WIRE_U32(Op, MSG, u.op., recv_buffer, 0, UINT32_MAX),
    WIRE_U64(Op, MSG, u.op., recv_offset, UINT64_MAX),
    WIRE_U32(Op, MSG, u.op., root, 0, GW_RANKS_MAX - 1),
    WIRE_U32(Op, MSG, u.op., order, 0, GW_ORDER_FABRIC),
    WIRE_U32(Op, MSG, u.op., dtype, 0, GW_DTYPES - 1),
    WIRE_AFTER(Op, u.op.after.),
};

static int check_op(const void *checked)
{
    const struct wire_msg *msg = checked;

    return msg->u.op.sequence == 0 ? GW_E_INVALID : wire_check_after(&msg->u.op.after);
}

WIRE_MESSAGE(op, op, check_op);

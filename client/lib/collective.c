/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops of the collectives layer: checked here, numbered under job->lock (so that the numbers are the
 * order in the ring), run by the engine. Any thread; no call here blocks.
 */
#include "client/lib/collective.h"

#include <math.h>
#include <string.h>

#include "client/lib/err.h"
#include "client/lib/options.h"
#include "proto/layout_page.h"

/* An op's arguments; counts in elements. */
struct call {
    uint32_t kind;
    struct gw_slice send, recv;
    uint64_t send_count, recv_count; /* what the slices must hold; 0: none */
    uint64_t count;
    uint32_t root; /* a rank of the job */
    uint32_t size; /* bytes of an element */
};

/* Without overflow: offset and count are the caller's. */
static int check_slice(const gw_job *job, const struct gw_slice *slice, uint64_t count,
                       uint32_t size, const char *what)
{
    uint64_t numel;

    if (count == 0)
        return 0;
    if (!slice->buffer || slice->buffer->job != job)
        return err_set(GW_E_INVALID, "the %s slice has no buffer of this job", what);
    numel = slice->buffer->size_bytes / size;
    if (slice->offset > numel || count > numel - slice->offset)
        return err_set(GW_E_INVALID,
                       "the %s slice (%llu elements from %llu on) ends past its buffer of %llu "
                       "elements",
                       what, (unsigned long long)count, (unsigned long long)slice->offset,
                       (unsigned long long)numel);
    return 0;
}

/* In place is allowed only as the rank's own slice, or the same slice where counts are equal. */
static int check_overlap(const struct call *call, uint32_t member)
{
    uint64_t s0 = call->send.offset, s1 = s0 + call->send_count;
    uint64_t r0 = call->recv.offset, r1 = r0 + call->recv_count;
    bool allowed;

    if (call->send_count == 0 || call->recv_count == 0 || call->send.buffer != call->recv.buffer ||
        s1 <= r0 || r1 <= s0)
        return 0;
    if (call->kind == WIRE_OP_REDUCE_SCATTER)
        allowed = r0 == s0 + member * call->count;
    else if (call->kind == WIRE_OP_ALL_GATHER)
        allowed = s0 == r0 + member * call->count;
    else
        allowed = s0 == r0;
    if (!allowed)
        return err_set(GW_E_INVALID,
                       "send and recv overlap; in place is allowed only where the smaller slice is "
                       "the rank's own part of the larger one");
    return 0;
}

/* The place of a rank in a group. */
static int find_member(const gw_job *job, uint32_t group, uint32_t rank, uint32_t *ret_size,
                       uint32_t *ret_member)
{
    const struct job_group *g = &job->groups[group < GW_GROUPS_MAX ? group : 0];

    if (group >= GW_GROUPS_MAX || g->count == 0)
        return err_set(GW_E_NOT_FOUND, "there is no group %u; gw_group_new makes one", group);
    for (uint32_t i = 0; i < g->count; i++) {
        if (g->ranks[i] == rank) {
            *ret_size = g->count;
            *ret_member = i;
            return 0;
        }
    }
    return err_set(GW_E_INVALID, "rank %u is not in group %u", rank, group);
}

/* Everything the engine would end the job for is refused to this caller alone. */
static int check_call(const gw_job *job, struct call *call, const struct gw_op_options *options,
                      struct gw_token *ret_token)
{
    uint32_t size = 0, member = 0, root = 0;
    int r;

    if (!ret_token)
        return err_set(GW_E_INVALID, "ret_token is NULL");
    if (options->name && strlen(options->name) > GW_LABEL_MAX)
        return err_set(GW_E_INVALID, "the op's name has %zu bytes, at most %u are allowed",
                       strlen(options->name), GW_LABEL_MAX);
    if (!isfinite((float)(options->scale * (options->pre_scale == 0 ? 1 : options->pre_scale))))
        return err_set(GW_E_INVALID, "scale %g times pre_scale %g is not a finite fp32 number",
                       options->scale, options->pre_scale);
    if (options->dtype >= GW_DTYPES)
        return err_set(GW_E_INVALID, "dtype %u: there are fp32 (0), fp16 (1) and bf16 (2)",
                       options->dtype);
    call->size = gw_dtype_bytes(options->dtype);
    if (options->order > GW_ORDER_FABRIC || (options->order == GW_ORDER_FABRIC && !job->device))
        return err_set(GW_E_INVALID,
                       "order = %u: exact (0) everywhere, fabric (1) with GPUs, no other",
                       options->order);
    r = find_member(job, options->group, job->rank, &size, &member);
    if (r == 0 && call->kind == WIRE_OP_BROADCAST)
        r = find_member(job, options->group, call->root, &size, &root);
    if (r < 0)
        return r;
    if (call->kind != WIRE_OP_BARRIER && call->count == 0)
        return err_set(GW_E_INVALID, "count is 0; there is no collective of 0 bytes");
    if (call->count > UINT64_MAX / sizeof(float) / size)
        return err_set(GW_E_INVALID, "count is too large");
    if (call->kind == WIRE_OP_REDUCE_SCATTER)
        call->send_count *= size;
    if (call->kind == WIRE_OP_ALL_GATHER)
        call->recv_count *= size;
    r = check_slice(job, &call->send, call->send_count, call->size, "send");
    if (r == 0)
        r = check_slice(job, &call->recv, call->recv_count, call->size, "recv");
    if (r == 0)
        r = check_overlap(call, member);
    return r;
}

/* Fields that mean nothing for a kind stay 0, so that they cannot differ between ranks. */
static void fill(struct wire_op *op, const struct call *call, const struct gw_op_options *options)
{
    op->kind = call->kind;
    op->group = options->group;
    op->root = call->root;
    op->count = call->count;
    op->scale = options->scale == 0 ? 1 : options->scale;
    op->pre_scale = options->pre_scale == 0 ? 1 : options->pre_scale;
    op->order = options->order;
    op->dtype = options->dtype;
    op->send_buffer = call->send_count ? call->send.buffer->id : 0;
    op->send_offset = call->send_count ? call->send.offset : 0;
    op->recv_buffer = call->recv_count ? call->recv.buffer->id : 0;
    op->recv_offset = call->recv_count ? call->recv.offset : 0;
    if (options->name)
        memcpy(op->name, options->name, strlen(options->name));
}

/* Takes the next number and its slot. Lock held. */
static int send_op(gw_job *job, struct wire_msg *msg)
{
    uint64_t sequence = job->last_op + 1;
    uint32_t index = (uint32_t)(sequence % GW_OPS_IN_FLIGHT);
    struct job_op *slot = &job->ops[index];
    int r;

    if (slot->sequence > 0 &&
        atomic_load_explicit(&job->engine->op[index].value, memory_order_acquire) < slot->sequence)
        return err_set(GW_E_AGAIN,
                       "op %llu is not done and %u came after it; wait for its token first",
                       (unsigned long long)slot->sequence, GW_OPS_IN_FLIGHT - 1);
    if (msg->u.op.group == 0)
        atomic_fetch_and_explicit(&job->apart, ~(UINT64_C(1) << index), memory_order_relaxed);
    else
        atomic_fetch_or_explicit(&job->apart, UINT64_C(1) << index, memory_order_relaxed);
    msg->u.op.sequence = sequence;
    r = job->order.ops->mark(job, &msg->u.op.after);
    if (r == 0)
        r = channel_send(&job->channel, msg);
    if (r < 0)
        return r;
    *slot = (struct job_op){.sequence = sequence,
                            .barrier = msg->u.op.kind == WIRE_OP_BARRIER,
                            .send_buffer = msg->u.op.send_buffer,
                            .recv_buffer = msg->u.op.recv_buffer};
    job->last_op = sequence;
    return 0;
}

/* Check, number and send in one hold of the lock. */
static int submit(gw_job *job, struct call *call, const struct gw_op_options *options,
                  struct gw_token *ret_token)
{
    struct gw_op_options o = {0};
    struct gw_token token;
    struct wire_msg msg;
    int r = job_check(job);

    if (r == 0 && options)
        r = options_take(&o, sizeof(o), options, sizeof(size_t), "gw_op_options");
    if (r < 0)
        return r;
    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_OP;
    pthread_mutex_lock(&job->lock);
    r = check_call(job, call, &o, ret_token);
    if (r == 0) {
        fill(&msg.u.op, call, &o);
        r = import_copy_in(job, &call->send, call->send_count, call->size);
    }
    if (r == 0)
        r = send_op(job, &msg);
    token =
        (struct gw_token){.timeline = GW_TIMELINE(GW_TL_OP, msg.u.op.sequence % GW_OPS_IN_FLIGHT),
                          .value = msg.u.op.sequence};
    if (r == 0)
        r = import_copy_out(job, &call->recv, call->recv_count, call->size, msg.u.op.sequence,
                            &token);
    pthread_mutex_unlock(&job->lock);
    if (r < 0)
        return o.name && strlen(o.name) <= GW_LABEL_MAX ? err_prefix(r, "op \"%s\"", o.name) : r;
    *ret_token = token;
    return 0;
}

static int submit_slices(gw_job *job, uint32_t kind, struct gw_slice send, struct gw_slice recv,
                         uint64_t count, uint32_t root, const struct gw_op_options *options,
                         struct gw_token *ret_token)
{
    struct call call = {.kind = kind,
                        .send = send,
                        .recv = recv,
                        .send_count = count,
                        .recv_count = count,
                        .count = count,
                        .root = root};

    return submit(job, &call, options, ret_token);
}

int gw_reduce_scatter(gw_job *job, struct gw_slice send, struct gw_slice recv, uint64_t count,
                      const struct gw_op_options *options, struct gw_token *ret_token)
{
    return submit_slices(job, WIRE_OP_REDUCE_SCATTER, send, recv, count, 0, options, ret_token);
}

int gw_all_gather(gw_job *job, struct gw_slice send, struct gw_slice recv, uint64_t count,
                  const struct gw_op_options *options, struct gw_token *ret_token)
{
    return submit_slices(job, WIRE_OP_ALL_GATHER, send, recv, count, 0, options, ret_token);
}

int gw_all_reduce(gw_job *job, struct gw_slice send, struct gw_slice recv, uint64_t count,
                  const struct gw_op_options *options, struct gw_token *ret_token)
{
    return submit_slices(job, WIRE_OP_ALL_REDUCE, send, recv, count, 0, options, ret_token);
}

int gw_broadcast(gw_job *job, struct gw_slice data, uint64_t count, uint32_t root,
                 const struct gw_op_options *options, struct gw_token *ret_token)
{
    return submit_slices(job, WIRE_OP_BROADCAST, data, data, count, root, options, ret_token);
}

int gw_barrier(gw_job *job, const struct gw_op_options *options, struct gw_token *ret_token)
{
    struct call call = {.kind = WIRE_OP_BARRIER};

    return submit(job, &call, options, ret_token);
}

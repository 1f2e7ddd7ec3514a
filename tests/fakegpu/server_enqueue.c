/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that put work into streams: kernels, copies, fills, memory operations, host functions.
 * Lock held. */
#include <stdlib.h>
#include <string.h>

#include "tests/fakegpu/server_internal.h"

static struct stream *stream_for(struct server *s, struct call *c)
{
    struct stream *stream = stream_find(s, c->process, c->q->a[0]);

    if (stream && stream->closed) {
        violation(s, RULE_stream_destroyed, c->process, "stream %u used", stream->index + 1);
        stream = NULL;
    }
    if (!stream)
        c->reply.error = E_INVALID_HANDLE;
    return stream;
}

static struct op *op_for(struct server *s, struct call *c, struct stream *stream,
                         enum op_kind kind)
{
    struct op *op = op_new(s, stream, kind);

    if (!op)
        c->reply.error = E_OUT_OF_MEMORY;
    return op;
}

static void launch(struct server *s, struct call *c, struct stream *stream)
{
    const struct kernel *kernel = kernel_at((uint32_t)c->q->a[1]);
    struct op *op;
    void *argument;

    c->reply.error = E_INVALID_VALUE;
    if (!kernel || c->q->payload_bytes != kernel->argument_bytes || !c->q->a[2] || !c->q->a[3] ||
        c->q->a[3] > 1024)
        return;
    if (stream->gpu != (int)c->q->device) {
        violation(s, RULE_wrong_device, c->process, "%s: GPU %u is current, the stream is of %d",
                  kernel->name, c->q->device, stream->gpu);
        c->reply.error = E_INVALID_HANDLE;
        return;
    }
    argument = malloc(kernel->argument_bytes + 8);
    c->reply.error = E_OK;
    op = argument ? op_for(s, c, stream, OP_KERNEL) : NULL;
    if (!op) {
        free(argument);
        c->reply.error = E_OUT_OF_MEMORY;
        return;
    }
    memcpy(argument, c->payload, kernel->argument_bytes);
    op->u.launch.kernel = kernel;
    op->u.launch.blocks = c->q->a[2];
    op->u.launch.threads = c->q->a[3];
    op->u.launch.argument = argument;
    op_submit(s, op);
    s->counts.kernels++;
}

/* 0: the range is the process' to use; else what is wrong has been told. */
static int check_range(struct server *s, struct call *c, uint64_t address, uint64_t bytes,
                       const char *what)
{
    if (map_find(s, c->process, address, bytes, true))
        return E_OK;
    if (address < FG_VA_BASE || address >= FG_VA_END)
        return FG_PAGEABLE;
    violation(s, RULE_out_of_bounds, c->process, "%s: %llu bytes at %llx", what,
              (unsigned long long)bytes, (unsigned long long)address);
    return E_INVALID_VALUE;
}

static void copy(struct server *s, struct call *c, struct stream *stream)
{
    uint64_t to = c->q->a[1], from = c->q->a[2], bytes = c->q->a[3], sides = c->q->a[4];
    int to_error = check_range(s, c, to, bytes, "copy to");
    int from_error = check_range(s, c, from, bytes, "copy from");
    struct op *op;

    if (to_error == E_INVALID_VALUE || from_error == E_INVALID_VALUE) {
        c->reply.error = E_INVALID_VALUE;
        return;
    }
    if (to_error || from_error) {
        c->reply.error = FG_PAGEABLE;
        c->reply.v[0] = (to_error ? 1u : 0u) | (from_error ? 2u : 0u);
        return;
    }
    op = op_for(s, c, stream, OP_COPY);
    if (!op)
        return;
    op->u.copy.to = to;
    op->u.copy.from = from;
    op->u.copy.bytes = bytes;
    op->u.copy.to_gpu = sides ? (int)(sides & 0xff) - 1 : stream->gpu;
    op->u.copy.from_gpu = sides ? (int)(sides >> 8) - 1 : stream->gpu;
    op_submit(s, op);
    s->counts.copies++;
    s->counts.copy_bytes += bytes;
}

static void fill(struct server *s, struct call *c, struct stream *stream)
{
    uint64_t width = c->q->a[3], count = c->q->a[4];
    struct op *op;
    int r;

    c->reply.error = E_INVALID_VALUE;
    if ((width != 1 && width != 2 && width != 4) || c->q->a[1] % width ||
        count > UINT64_MAX / width)
        return;
    r = check_range(s, c, c->q->a[1], width * count, "fill");
    if (r) {
        c->reply.error = E_INVALID_VALUE;
        return;
    }
    c->reply.error = E_OK;
    op = op_for(s, c, stream, OP_FILL);
    if (!op)
        return;
    op->u.fill.to = c->q->a[1];
    op->u.fill.value = (uint32_t)c->q->a[2];
    op->u.fill.width = (uint32_t)width;
    op->u.fill.count = count;
    op_submit(s, op);
    s->counts.fills++;
}

static int memop_check(struct server *s, struct call *c, const struct fg_memop *memop)
{
    const struct map *map = map_find(s, c->process, memop->address, 8, false);

    if (!map || memop->address % 8) {
        violation(s, RULE_memop_address, c->process, "%s at %llx",
                  memop->kind == FG_MEMOP_WAIT ? "wait" : "write",
                  (unsigned long long)memop->address);
        return E_INVALID_VALUE;
    }
    if (memop->kind == FG_MEMOP_WRITE && map->read_only) {
        violation(s, RULE_read_only, c->process, "write of a word at %llx",
                  (unsigned long long)memop->address);
        return E_INVALID_VALUE;
    }
    return E_OK;
}

static void memop(struct server *s, struct call *c, struct stream *stream)
{
    struct fg_memop memop;
    struct op *op;

    if (s->no_memops || s->inject.no_memops) {
        violation(s, RULE_memops_missing, c->process, "an operation on stream %u",
                  stream->index + 1);
        c->reply.error = E_NOT_SUPPORTED;
        return;
    }
    if (c->q->payload_bytes != sizeof(memop)) {
        c->reply.error = E_INVALID_VALUE;
        return;
    }
    memcpy(&memop, c->payload, sizeof(memop));
    c->reply.error = memop_check(s, c, &memop);
    if (c->reply.error)
        return;
    op = op_for(s, c, stream, memop.kind == FG_MEMOP_WAIT ? OP_WAIT : OP_WRITE);
    if (!op)
        return;
    op->u.memop = memop;
    op_submit(s, op);
    s->counts.waits += memop.kind == FG_MEMOP_WAIT;
    s->counts.writes += memop.kind == FG_MEMOP_WRITE;
}

static void hostfn(struct server *s, struct call *c, struct stream *stream)
{
    struct op *op = op_for(s, c, stream, OP_HOSTFN);

    if (!op)
        return;
    op->u.hostfn.function = c->q->a[1];
    op->u.hostfn.argument = c->q->a[2];
    op_submit(s, op);
    s->counts.hostfns++;
}

void enqueue_request(struct server *s, struct call *c)
{
    struct stream *stream = stream_for(s, c);

    if (!stream)
        return;
    switch (c->q->kind) {
    case FG_LAUNCH:
        launch(s, c, stream);
        break;
    case FG_COPY:
        copy(s, c, stream);
        break;
    case FG_FILL:
        fill(s, c, stream);
        break;
    case FG_MEMOP:
        memop(s, c, stream);
        break;
    default:
        hostfn(s, c, stream);
    }
}

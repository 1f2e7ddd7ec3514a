/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks of this node have gathered from others: where it lies, as long as it does, so that
 * another rank may copy it. An op that reads such a copy waits for the one that made it; one that
 * writes there waits for those that read it. Loop thread.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/hash.h"
#include "daemon/fabric/ucx/ucx.h"

struct ucx_copy {
    struct ucx_copy *next;
    uint64_t what; /* digest of buckets, version and owners */
    uint64_t op;   /* that made it */
    uint32_t reader_count, count;
    uint64_t readers[UCX_READERS_MAX];
    struct fabric_segment at[]; /* those that crossed, in order */
};

static uint64_t what_of(const struct core_op *op)
{
    uint64_t hash = hash_add_u64(HASH_START, op->bucket);

    hash = hash_add_u64(hash, op->bucket_count);
    hash = hash_add_u64(hash, op->version);
    for (uint32_t i = 0; i < op->world; i++)
        hash = hash_add_u64(hash, op->members[i]);
    return hash;
}

static bool overlaps(const struct fabric_segment *a, const struct fabric_segment *b)
{
    uintptr_t a_at = (uintptr_t)a->to, b_at = (uintptr_t)b->to;

    return a_at < b_at + b->bytes && b_at < a_at + a->bytes;
}

static bool is_written(const struct ucx_copy *copy, const struct fabric_op *by)
{
    for (uint32_t i = 0; i < copy->count; i++)
        for (uint32_t k = 0; k < by->segment_count; k++)
            if (overlaps(&copy->at[i], &by->segments[k]))
                return true;
    return false;
}

static bool is_same(const struct ucx_copy *copy, const struct ucx_op *op, uint64_t what)
{
    if (copy->what != what || copy->count != op->segment_count ||
        copy->reader_count == UCX_READERS_MAX)
        return false;
    for (uint32_t i = 0; i < copy->count; i++)
        if (copy->at[i].bytes != op->segments[i].at.bytes ||
            copy->at[i].owner != op->segments[i].at.owner)
            return false;
    return true;
}

static int written(struct ucx_fabric *fabric, const struct fabric_op *by, struct ucx_waits *waits)
{
    for (struct ucx_copy **at = &fabric->copies; *at;) {
        struct ucx_copy *copy = *at;
        if (!is_written(copy, by)) {
            at = &copy->next;
            continue;
        }
        for (uint32_t i = 0; i < copy->reader_count; i++)
            if (ucx_waits_add(waits, copy->readers[i]) < 0)
                return GW_E_NOMEM;
        *at = copy->next;
        free(copy);
    }
    return 0;
}

static int share(struct ucx_op *op, const struct core_op *what, struct fabric_segment *own,
                 uint32_t *own_count, struct ucx_waits *waits)
{
    uint64_t digest = what_of(what);
    struct ucx_copy *copy = op->fabric->copies;

    while (copy && !is_same(copy, op, digest))
        copy = copy->next;
    if (!copy)
        return 0;
    if (ucx_waits_add(waits, copy->op) < 0)
        return GW_E_NOMEM;
    copy->readers[copy->reader_count++] = what->id;
    op->shared = true;
    for (uint32_t i = 0; i < copy->count; i++) {
        struct fabric_segment *segment = &own[(*own_count)++];
        *segment = op->segments[i].at;
        segment->from = copy->at[i].to;
    }
    return 0;
}

static int add(const struct ucx_op *op, const struct core_op *what)
{
    struct ucx_copy *copy = calloc(1, sizeof(*copy) + op->segment_count * sizeof(copy->at[0]));

    if (!copy)
        return GW_E_NOMEM;
    copy->what = what_of(what);
    copy->op = what->id;
    copy->count = op->segment_count;
    for (uint32_t i = 0; i < copy->count; i++)
        copy->at[i] = op->segments[i].at;
    copy->next = op->fabric->copies;
    op->fabric->copies = copy;
    return 0;
}

int ucx_copies_gather(struct ucx_op *op, const struct fabric_op *from, struct fabric_segment *own,
                      uint32_t *own_count, struct ucx_waits *waits)
{
    bool known = from->op->version > 0 && !from->op->measure && op->segment_count > 0;
    int r = written(op->fabric, from, waits);

    if (r == 0 && known)
        r = share(op, from->op, own, own_count, waits);
    return r == 0 && known ? add(op, from->op) : r;
}

void ucx_copies_clear(struct ucx_fabric *fabric)
{
    while (fabric->copies) {
        struct ucx_copy *next = fabric->copies->next;
        free(fabric->copies);
        fabric->copies = next;
    }
}

/* Memory goes: no op is left that reads it. */
void ucx_copies_gone(struct ucx_fabric *fabric, const struct device_memory *memory)
{
    const struct fabric_segment gone = {.to = memory->base, .bytes = memory->bytes};
    struct ucx_waits waits = {.count = 0};
    const struct fabric_op by = {.segments = &gone, .segment_count = 1};

    (void)written(fabric, &by, &waits);
    free(waits.ops);
}

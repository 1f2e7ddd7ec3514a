/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What steps of a sealed layout need beside the arenas: partials of all slices in pinned host
 * memory, and on each rank's GPU the room in which its verdict adds them up. Loop thread, no op in
 * flight; may block.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/fabric/nccl/nccl.h"

void nccl_unseal(struct nccl_fabric *fabric)
{
    struct device *device = fabric->config.device;

    for (uint32_t rank = 0; rank < fabric->config.world; rank++) {
        if (fabric->staging[rank].base)
            cuda_scratch_free(device, rank, fabric->staging[rank].base);
        fabric->staging[rank] = (struct nccl_staging){0};
    }
    if (fabric->partials)
        cuda_pinned_free(device, fabric->partials);
    free(fabric->starts);
    free(fabric->slice_numel);
    free(fabric->slices);
    fabric->partials = NULL;
    fabric->starts = fabric->slice_numel = NULL;
    fabric->slices = NULL;
    fabric->buckets = fabric->params = 0;
}

/* Whoever leaves a bucket's partials leaves those of as many slices as its group has members: all
 * at once, or under hybrid sharding each all-reduce between runs those of its slice. */
static int keep_layout(struct nccl_fabric *fabric, const struct gw_layout_page *page)
{
    const struct gw_layout_bucket *buckets = layout_page_buckets(page);
    const struct gw_layout_group *groups = layout_page_groups(page);

    fabric->starts = calloc((size_t)page->buckets + 1, sizeof(*fabric->starts));
    fabric->slice_numel = calloc((size_t)page->buckets + 1, sizeof(*fabric->slice_numel));
    fabric->slices = calloc((size_t)page->buckets + 1, sizeof(*fabric->slices));
    if (!fabric->starts || !fabric->slice_numel || !fabric->slices)
        return GW_E_NOMEM;
    for (uint32_t b = 0; b < page->buckets; b++) {
        fabric->slices[b] = groups[buckets[b].group].members;
        fabric->slice_numel[b] = buckets[b].padded_numel / fabric->slices[b];
    }
    parts_partials(fabric->slice_numel, fabric->slices, page->buckets, fabric->starts);
    fabric->buckets = page->buckets;
    fabric->params = page->params;
    return 0;
}

/* The table of buckets is the same in every step: pointers into the staging behind it. */
static int make_staging(struct nccl_fabric *fabric, uint32_t rank)
{
    uint64_t partials = fabric->starts[fabric->buckets] * sizeof(struct gw_k_partial);
    uint64_t table = fabric->buckets * sizeof(struct gw_k_bucket);
    uint64_t bits = ((uint64_t)fabric->params + 31) / 32 * 4;
    struct nccl_staging *staging = &fabric->staging[rank];
    struct gw_k_bucket *buckets;
    void *base;
    int r;

    r = cuda_scratch_new(fabric->config.device, rank, partials + table + bits + 16, &base);
    if (r < 0)
        return r;
    staging->base = base;
    staging->partials = base;
    staging->buckets = (struct gw_k_bucket *)(void *)((char *)base + partials);
    staging->bits = (uint32_t *)(void *)((char *)base + partials + table);
    if (fabric->buckets == 0)
        return 0;
    buckets = malloc(table);
    if (!buckets)
        return GW_E_NOMEM;
    for (uint32_t b = 0; b < fabric->buckets; b++)
        buckets[b] = (struct gw_k_bucket){staging->partials + fabric->starts[b],
                                          fabric->starts[b + 1] - fabric->starts[b]};
    fabric->config.device_ops->copy(fabric->config.device, staging->buckets, buckets, table);
    free(buckets);
    return 0;
}

int nccl_seal(struct nccl_fabric *fabric, const struct gw_layout_page *page)
{
    void *partials;
    int r;

    nccl_unseal(fabric);
    r = keep_layout(fabric, page);
    if (r == 0)
        r = cuda_pinned_new(fabric->config.device,
                            fabric->starts[page->buckets] * sizeof(struct gw_k_partial) + 16,
                            &partials);
    if (r == 0) {
        fabric->partials = partials; /* zeros, which stay where a bucket is never reduced */
    }
    for (uint32_t rank = 0; r == 0 && rank < fabric->config.world; rank++)
        r = nccl_is_here(fabric, rank) ? make_staging(fabric, rank) : 0;
    if (r < 0)
        nccl_unseal(fabric);
    return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All memory of a job: arenas by (rank, kind, index), pages, their sum against the job's limit, and
 * what waits to be freed until no op can touch it any more. Loop thread.
 *
 * Owns the memory it made. An arena outlives the client that used it (shards survive a re-join);
 * only registered buffers go with their client. An arena's base may be a device address: the host
 * never follows it.
 */
#ifndef GW_ENGINE_ARENAS_H
#define GW_ENGINE_ARENAS_H

#include <stdbool.h>

#include "daemon/core/core.h"
#include "daemon/device/device.h"
#include "daemon/device/pages.h"
#include "daemon/fabric/fabric.h"

struct arenas;

struct arenas_config {
    const struct device_ops *ops;
    struct device *device;
    const struct fabric_ops *fabric_ops; /* hears of bulk memory */
    struct fabric *fabric;
    uint32_t world;
    uint64_t limit_bytes; /* 0: none */
};

int arenas_new(const struct arenas_config *config, struct arenas **ret_arenas);
struct arenas *arenas_free(struct arenas *arenas);

/* Overflow slots are asked for in the middle of a step: room for some of them lies ready then. */
void arenas_reserve(struct arenas *arenas, uint32_t rank, uint64_t bytes, uint32_t count);
/* rank -1: of the job. Keeps what is there with the same size (*ret_kept). GW_E_LIMIT: the job's
 * limit or that of descriptors; GW_E_NOMEM. */
int arenas_make(struct arenas *arenas, enum gw_arena_kind kind, int rank, uint32_t index,
                uint64_t bytes, bool *ret_kept);
/* NULL: no such arena. */
const struct device_memory *arenas_get(const struct arenas *arenas, enum gw_arena_kind kind,
                                       int rank, uint32_t index);
/* `bytes` bytes at ref, or NULL: not all of them exist (or ref is GW_ARENA_NONE). */
void *arenas_at(const struct arenas *arenas, const struct core_ref *ref, uint64_t bytes);
void arenas_zero(struct arenas *arenas, enum gw_arena_kind kind, int rank, uint32_t index);
/* All of a kind of one rank; freed once op after_op and all before are done. */
void arenas_drop_kind(struct arenas *arenas, enum gw_arena_kind kind, int rank, uint64_t after_op);
void arenas_drop(struct arenas *arenas, enum gw_arena_kind kind, int rank, uint32_t index,
                 uint64_t after_op);

/* Registered buffers: ids from 1, never used twice by a rank. GW_E_LIMIT, GW_E_NOMEM. */
int arenas_buffer_new(struct arenas *arenas, uint32_t rank, uint64_t bytes, uint32_t *ret_id);
/* The same over the client's own device memory. GW_E_LIMIT, GW_E_NOMEM, else as the device says it,
 * with text. */
int arenas_buffer_import(struct arenas *arenas, uint32_t rank, const struct device_import *import,
                         uint32_t *ret_id, char text[GW_TEXT_MAX + 1]);
/* Shard arrays: by name; the same again for a name that exists. GW_E_LIMIT, GW_E_NOMEM;
 * GW_E_MISMATCH: it exists with another dtype or size. */
int arenas_array(struct arenas *arenas, uint32_t rank, const char *name, uint64_t numel,
                 uint32_t dtype, uint32_t *ret_index);

/* Pages count against the limit like arenas. */
enum arenas_page {
    ARENAS_PAGE_OUT,   /* clients read it */
    ARENAS_PAGE_WORDS, /* and streams of the device reach it */
    ARENAS_PAGE_WAITS, /* the same, and clients write it */
    ARENAS_PAGE_LENT,  /* of others, not counted; streams of the device reach it */
};
/* All but the last. GW_E_LIMIT, GW_E_NOMEM. */
int arenas_page_new(struct arenas *arenas, enum arenas_page how, const char *name, uint64_t bytes,
                    struct device_memory **ret_page);
/* The last: from now on. */
int arenas_page_lend(struct arenas *arenas, struct device_memory *page);
/* Frees a page likewise once no op can reach it. */
void arenas_page_drop(struct arenas *arenas, struct device_memory *page, enum arenas_page how,
                      uint64_t after_op);
/* Frees what waited; every op below `oldest_op` is done (UINT64_MAX: all are). */
void arenas_collect(struct arenas *arenas, uint64_t oldest_op);

uint64_t arenas_total_bytes(const struct arenas *arenas);
uint64_t arenas_limit_bytes(const struct arenas *arenas);
/* A rank's memory by use; of memory shared by all ranks, its part. */
void arenas_sum(const struct arenas *arenas, uint32_t rank, uint64_t ret_bytes[GW_MEMORIES]);

#endif

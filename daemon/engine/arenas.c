/* SPDX-License-Identifier: Apache-2.0 */
/* One sorted list of arenas per rank, and one for the job. See arenas.h. Loop thread. */
#include "daemon/engine/arenas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/memory.h"

struct arena {
    uint64_t key; /* kind, then index: the list is sorted by it */
    struct device_memory *memory;
    char name[GW_LABEL_MAX + 1]; /* of a shard array, and its dtype */
    uint32_t dtype;
};

struct arena_list {
    struct arena *items;
    uint32_t count, room;
    uint32_t last_buffer;
};

enum garbage_kind { GARBAGE_ARENA, GARBAGE_STAGING, GARBAGE_PAGE };

struct garbage {
    struct garbage *next;
    struct device_memory *memory;
    uint64_t after_op;
    int rank;
    enum garbage_kind kind;
    enum arenas_page how; /* of a page */
};

struct arenas {
    struct arenas_config config;
    uint64_t total_bytes;
    struct garbage *garbage;
    struct arena_list lists[GW_RANKS_MAX + 1]; /* [world]: the job's */
};

static uint64_t key_of(enum gw_arena_kind kind, uint32_t index)
{
    return (uint64_t)kind << 32 | index;
}

static struct arena_list *list_of(struct arenas *arenas, int rank)
{
    return &arenas->lists[rank < 0 ? (int)arenas->config.world : rank];
}

/* First position whose key is not smaller. */
static uint32_t find(const struct arena_list *list, uint64_t key)
{
    uint32_t low = 0, high = list->count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (list->items[middle].key < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Who a device and a fabric think it belongs to. */
static uint32_t owner_of(int rank)
{
    return rank < 0 ? DEVICE_NO_RANK : (uint32_t)rank;
}

/* A client's own memory is not ours to count. */
static uint64_t charge(const struct device_memory *memory)
{
    return memory->fd < 0 ? 0 : memory->mapped_bytes;
}

static enum garbage_kind garbage_kind_of(uint64_t key)
{
    return key >> 32 == GW_ARENA_STAGING ? GARBAGE_STAGING : GARBAGE_ARENA;
}

static struct arena *lookup(const struct arenas *arenas, enum gw_arena_kind kind, int rank,
                            uint32_t index)
{
    const struct arena_list *list;
    uint32_t at;

    if (rank < -1 || rank >= (int)arenas->config.world)
        return NULL;
    list = &arenas->lists[rank < 0 ? (int)arenas->config.world : rank];
    at = find(list, key_of(kind, index));
    if (at == list->count || list->items[at].key != key_of(kind, index))
        return NULL;
    return &list->items[at];
}

int arenas_new(const struct arenas_config *config, struct arenas **ret_arenas)
{
    struct arenas *arenas = calloc(1, sizeof(*arenas));

    if (!arenas)
        return GW_E_NOMEM;
    arenas->config = *config;
    *ret_arenas = arenas;
    return 0;
}

/* Now: no op can reach it. */
static void destroy(struct arenas *arenas, const struct garbage *what)
{
    const struct arenas_config *config = &arenas->config;

    if (what->kind == GARBAGE_PAGE) {
        if (what->how != ARENAS_PAGE_LENT)
            arenas->total_bytes -= what->memory->mapped_bytes;
        if (what->how != ARENAS_PAGE_OUT)
            config->ops->page_remove(config->device, what->memory->base);
        pages_free(what->memory);
        return;
    }
    arenas->total_bytes -= charge(what->memory);
    if (what->kind == GARBAGE_ARENA && what->memory->fd >= 0)
        config->fabric_ops->memory_removed(config->fabric, owner_of(what->rank), what->memory);
    config->ops->memory_free(config->device, what->memory);
}

struct arenas *arenas_free(struct arenas *arenas)
{
    if (!arenas)
        return NULL;
    arenas_collect(arenas, UINT64_MAX);
    for (uint32_t i = 0; i <= arenas->config.world; i++) {
        struct arena_list *list = &arenas->lists[i];
        for (uint32_t j = 0; j < list->count; j++)
            destroy(arenas, &(struct garbage){.memory = list->items[j].memory,
                                              .rank = i == arenas->config.world ? -1 : (int)i,
                                              .kind = garbage_kind_of(list->items[j].key)});
        free(list->items);
    }
    free(arenas);
    return NULL;
}

/* ---- making ---------------------------------------------------------------------------------- */

static const char *kind_name(enum gw_arena_kind kind)
{
    static const char *const names[GW_ARENA_KINDS] = {
        "none",     "params", "grads",   "acc",           "ring",   "shard-grads", "pool",
        "overflow", "array",  "staging", "shared-params", "buffer", "verdict",     "master",
        "secondary",
    };
    return names[kind];
}

static int list_room(struct arena_list *list)
{
    uint32_t room = list->room ? list->room * 2 : 16;
    struct arena *items;

    if (list->count < list->room)
        return 0;
    items = realloc(list->items, room * sizeof(*items));
    if (!items)
        return GW_E_NOMEM;
    list->items = items;
    list->room = room;
    return 0;
}

/* Charged before it is made: what does not fit is not tried. */
static bool fits(const struct arenas *arenas, uint64_t bytes)
{
    uint64_t limit = arenas->config.limit_bytes;

    return limit == 0 || (bytes <= limit && arenas->total_bytes <= limit - bytes);
}

/* In its place; there is room. */
static struct arena *insert(struct arena_list *list, uint64_t key, struct device_memory *memory)
{
    uint32_t at = find(list, key);

    memmove(&list->items[at + 1], &list->items[at], (list->count - at) * sizeof(*list->items));
    list->items[at] = (struct arena){.key = key, .memory = memory};
    list->count++;
    return &list->items[at];
}

static int add(struct arenas *arenas, enum gw_arena_kind kind, int rank, uint32_t index,
               uint64_t bytes, struct arena **ret_arena)
{
    const struct arenas_config *config = &arenas->config;
    struct arena_list *list = list_of(arenas, rank);
    enum device_memory_kind memory_kind = kind == GW_ARENA_STAGING    ? DEVICE_MEMORY_STAGING
                                          : kind == GW_ARENA_OVERFLOW ? DEVICE_MEMORY_RESERVED
                                                                      : DEVICE_MEMORY_ARENA;
    struct device_memory *memory;
    char name[48];
    int r;

    if (!fits(arenas, bytes))
        return GW_E_LIMIT;
    r = list_room(list);
    if (r < 0)
        return r;
    if (rank < 0)
        snprintf(name, sizeof(name), "gradwire-%s", kind_name(kind));
    else
        snprintf(name, sizeof(name), "gradwire-%s-%d.%u", kind_name(kind), rank, index);
    r = config->ops->memory_new(config->device, memory_kind, owner_of(rank), name, (size_t)bytes,
                                &memory);
    if (r < 0)
        return r;
    arenas->total_bytes += charge(memory);
    /* A reserved one is taken in the middle of a step, where registering it would wait. */
    if (memory_kind == DEVICE_MEMORY_ARENA)
        config->fabric_ops->memory_added(config->fabric, owner_of(rank), memory);
    *ret_arena = insert(list, key_of(kind, index), memory);
    return 0;
}

/* Without it they come as well, only later. */
void arenas_reserve(struct arenas *arenas, uint32_t rank, uint64_t bytes, uint32_t count)
{
    (void)arenas->config.ops->memory_reserve(arenas->config.device, rank, (size_t)bytes, count);
}

int arenas_make(struct arenas *arenas, enum gw_arena_kind kind, int rank, uint32_t index,
                uint64_t bytes, bool *ret_kept)
{
    struct arena *arena = lookup(arenas, kind, rank, index);
    int r = 0;

    if (arena && arena->memory->bytes == bytes) {
        *ret_kept = true;
        return 0;
    }
    if (arena)
        arenas_drop(arenas, kind, rank, index, 0);
    r = add(arenas, kind, rank, index, bytes, &arena);
    if (r == 0)
        *ret_kept = false;
    return r;
}

static bool buffers_full(const struct arena_list *list)
{
    uint32_t first = find(list, key_of(GW_ARENA_BUFFER, 0));
    uint32_t end = find(list, key_of(GW_ARENA_BUFFER + 1, 0));

    return end - first >= GW_BUFFERS_MAX || list->last_buffer == UINT32_MAX;
}

int arenas_buffer_new(struct arenas *arenas, uint32_t rank, uint64_t bytes, uint32_t *ret_id)
{
    struct arena_list *list = list_of(arenas, (int)rank);
    struct arena *arena;
    int r;

    if (buffers_full(list))
        return GW_E_LIMIT;
    r = add(arenas, GW_ARENA_BUFFER, (int)rank, list->last_buffer + 1, bytes, &arena);
    if (r == 0)
        *ret_id = ++list->last_buffer;
    return r;
}

int arenas_buffer_import(struct arenas *arenas, uint32_t rank, const struct device_import *import,
                         uint32_t *ret_id, char text[GW_TEXT_MAX + 1])
{
    struct arena_list *list = list_of(arenas, (int)rank);
    struct device_memory *memory;
    int r;

    text[0] = 0;
    if (buffers_full(list))
        return GW_E_LIMIT;
    r = list_room(list);
    if (r == 0)
        r = arenas->config.ops->memory_import(arenas->config.device, rank, import, &memory, text);
    if (r < 0)
        return r;
    arenas->total_bytes += charge(memory);
    (void)insert(list, key_of(GW_ARENA_BUFFER, ++list->last_buffer), memory);
    *ret_id = list->last_buffer;
    return 0;
}

int arenas_array(struct arenas *arenas, uint32_t rank, const char *name, uint64_t numel,
                 uint32_t dtype, uint32_t *ret_index)
{
    uint64_t bytes = numel * gw_dtype_bytes(dtype);
    struct arena *arena;
    uint32_t index = 0;
    int r;

    for (; (arena = lookup(arenas, GW_ARENA_ARRAY, (int)rank, index)) != NULL; index++) {
        if (strcmp(arena->name, name) != 0)
            continue;
        if (arena->dtype != dtype || arena->memory->bytes != bytes)
            return GW_E_MISMATCH;
        *ret_index = index;
        return 0;
    }
    if (index == GW_ARRAYS_MAX)
        return GW_E_LIMIT;
    r = add(arenas, GW_ARENA_ARRAY, (int)rank, index, bytes, &arena);
    if (r < 0)
        return r;
    snprintf(arena->name, sizeof(arena->name), "%s", name);
    arena->dtype = dtype;
    *ret_index = index;
    return 0;
}

/* ---- using ----------------------------------------------------------------------------------- */

const struct device_memory *arenas_get(const struct arenas *arenas, enum gw_arena_kind kind,
                                       int rank, uint32_t index)
{
    const struct arena *arena = lookup(arenas, kind, rank, index);

    return arena ? arena->memory : NULL;
}

void *arenas_at(const struct arenas *arenas, const struct core_ref *ref, uint64_t bytes)
{
    const struct device_memory *memory =
        arenas_get(arenas, (enum gw_arena_kind)ref->kind, ref->rank, ref->index);

    if (!memory || ref->offset_bytes > memory->bytes || bytes > memory->bytes - ref->offset_bytes)
        return NULL;
    return (char *)memory->base + ref->offset_bytes;
}

void arenas_zero(struct arenas *arenas, enum gw_arena_kind kind, int rank, uint32_t index)
{
    const struct device_memory *memory = arenas_get(arenas, kind, rank, index);

    if (memory)
        arenas->config.ops->zero(arenas->config.device, memory->base, memory->bytes);
}

uint64_t arenas_total_bytes(const struct arenas *arenas)
{
    return arenas->total_bytes;
}

uint64_t arenas_limit_bytes(const struct arenas *arenas)
{
    return arenas->config.limit_bytes;
}

static void sum_list(const struct arena_list *list, uint64_t divisor,
                     uint64_t ret_bytes[GW_MEMORIES])
{
    for (uint32_t i = 0; i < list->count; i++) {
        enum gw_memory use = memory_use((enum gw_arena_kind)(list->items[i].key >> 32));
        if (use < GW_MEMORIES)
            ret_bytes[use] += list->items[i].memory->bytes / divisor;
    }
}

void arenas_sum(const struct arenas *arenas, uint32_t rank, uint64_t ret_bytes[GW_MEMORIES])
{
    memset(ret_bytes, 0, GW_MEMORIES * sizeof(*ret_bytes));
    sum_list(&arenas->lists[rank], 1, ret_bytes);
    sum_list(&arenas->lists[arenas->config.world], arenas->config.world, ret_bytes);
}

/* ---- freeing --------------------------------------------------------------------------------- */

static void discard(struct arenas *arenas, const struct garbage *what)
{
    struct garbage *garbage = what->after_op ? malloc(sizeof(*garbage)) : NULL;

    if (garbage) {
        *garbage = *what;
        garbage->next = arenas->garbage;
        arenas->garbage = garbage;
    } else if (!what->after_op) {
        destroy(arenas, what);
    } /* Without memory for the note: keep it forever rather than free it under an op. */
}

void arenas_drop(struct arenas *arenas, enum gw_arena_kind kind, int rank, uint32_t index,
                 uint64_t after_op)
{
    struct arena_list *list = list_of(arenas, rank);
    struct arena *arena = lookup(arenas, kind, rank, index);
    uint32_t at;

    if (!arena)
        return;
    discard(arenas, &(struct garbage){.memory = arena->memory,
                                      .after_op = after_op,
                                      .rank = rank,
                                      .kind = garbage_kind_of(arena->key)});
    at = (uint32_t)(arena - list->items);
    list->count--;
    memmove(arena, arena + 1, (list->count - at) * sizeof(*arena));
}

void arenas_drop_kind(struct arenas *arenas, enum gw_arena_kind kind, int rank, uint64_t after_op)
{
    const struct arena_list *list = list_of(arenas, rank);
    uint32_t at = find(list, key_of(kind, 0));

    while (at < list->count && list->items[at].key >> 32 == (uint64_t)kind)
        arenas_drop(arenas, kind, rank, (uint32_t)list->items[at].key, after_op);
}

void arenas_collect(struct arenas *arenas, uint64_t oldest_op)
{
    struct garbage **at = &arenas->garbage;

    while (*at) {
        struct garbage *garbage = *at;
        if (garbage->after_op >= oldest_op && oldest_op != UINT64_MAX) {
            at = &garbage->next;
            continue;
        }
        *at = garbage->next;
        destroy(arenas, garbage);
        free(garbage);
    }
}

/* ---- pages ----------------------------------------------------------------------------------- */

int arenas_page_lend(struct arenas *arenas, struct device_memory *page)
{
    return arenas->config.ops->page_add(arenas->config.device, page->base, page->mapped_bytes);
}

int arenas_page_new(struct arenas *arenas, enum arenas_page how, const char *name, uint64_t bytes,
                    struct device_memory **ret_page)
{
    struct device_memory *page;
    int r;

    if (!fits(arenas, bytes))
        return GW_E_LIMIT;
    r = pages_new(how == ARENAS_PAGE_WAITS ? PAGES_SHARED : PAGES_OUT, name, (size_t)bytes,
                  PAGES_ANYWHERE, &page);
    if (r < 0)
        return r;
    r = how == ARENAS_PAGE_OUT ? 0 : arenas_page_lend(arenas, page);
    if (r < 0) {
        pages_free(page);
        return r;
    }
    arenas->total_bytes += page->mapped_bytes;
    *ret_page = page;
    return 0;
}

void arenas_page_drop(struct arenas *arenas, struct device_memory *page, enum arenas_page how,
                      uint64_t after_op)
{
    if (page)
        discard(arenas,
                &(struct garbage){
                    .memory = page, .after_op = after_op, .kind = GARBAGE_PAGE, .how = how});
}

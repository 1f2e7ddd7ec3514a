/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory between processes: legacy IPC handles (two words: number and secret of the allocation),
 * and VMM allocations, whose exported descriptor is a token: an end of a pipe, which nobody can map
 * on the host, and whose last copy's end the server sees. VMM handles are numbers per process: the
 * allocation's number and the process'. Lock held.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fakegpu/server_internal.h"

#define GRANULARITY (UINT64_C(2) << 20)

static struct phys *phys_by_id(struct server *s, uint64_t id)
{
    for (struct phys *phys = s->phys; phys; phys = phys->next)
        if (phys->id == id)
            return phys;
    return NULL;
}

/* ---- legacy IPC ----------------------------------------------------------------------------- */

static void ipc_export(struct server *s, struct call *c)
{
    struct map *map = map_find(s, c->process, c->q->a[0], 1, false);

    /* So do expandable segments (VMM memory) and imports. */
    c->reply.error = E_INVALID_VALUE;
    if (!map || map->kind != MAP_MALLOC)
        return;
    c->reply.error = s->inject.no_ipc ? E_NOT_SUPPORTED : E_OK;
    if (s->inject.no_ipc)
        return;
    map->phys->exported = true;
    c->reply.v[0] = map->phys->id;
    c->reply.v[1] = map->phys->secret;
}

static void ipc_open(struct server *s, struct call *c)
{
    struct phys *phys = phys_by_id(s, c->q->a[0]);
    uint64_t address;
    struct map *map;

    c->reply.error = E_INVALID_HANDLE;
    if (s->inject.ipc_open_fail) {
        s->inject.ipc_open_fail--;
        return;
    }
    if (!phys || phys->secret != c->q->a[1] || phys->freed ||
        s->gpus[phys->gpu].node != c->process->node)
        return;
    if (phys->owner == c->process) {
        violation(s, RULE_ipc_open_own, c->process, "allocation %llu, %llu bytes",
                  (unsigned long long)phys->id, (unsigned long long)phys->bytes);
        return;
    }
    for (size_t i = 0; i < s->maps.count; i++) {
        map = s->maps.at[i];
        if (map->kind != MAP_IPC || map->process != c->process || map->phys != phys)
            continue;
        violation(s, RULE_ipc_double_open, c->process, "allocation %llu, open at %llx",
                  (unsigned long long)phys->id, (unsigned long long)map->address);
        c->reply.error = E_ALREADY_MAPPED;
        return;
    }
    if ((int)c->q->device != phys->gpu && !gpus_are_peers(s, (int)c->q->device, phys->gpu)) {
        c->reply.error = E_INVALID_DEVICE;
        return;
    }
    address = address_new(s, phys->bytes, 0);
    map = address ? map_new(s, c->process, MAP_IPC, phys, address, phys->bytes, 0,
                            PROT_READ | PROT_WRITE)
                  : NULL;
    c->reply.error = E_OUT_OF_MEMORY;
    if (!map)
        return;
    map->gpu = (int)c->q->device;
    phys->imports++;
    s->counts.imports++;
    c->reply.v[0] = address;
    c->reply.v[1] = phys->bytes;
    c->reply.error = E_OK;
}

static void ipc_close(struct server *s, struct call *c)
{
    struct map *map = map_exact(s, c->process, c->q->a[0], MAP_IPC);

    if (memory_busy(s, c))
        return;
    if (!map) {
        violation(s, RULE_double_free, c->process, "close of %llx, which is no open IPC handle",
                  (unsigned long long)c->q->a[0]);
        c->reply.error = E_INVALID_VALUE;
        return;
    }
    map_check_queued(s, map);
    map_free(s, map);
}

void ipc_request(struct server *s, struct call *c)
{
    if (c->q->kind == FG_IPC_EXPORT)
        ipc_export(s, c);
    else if (c->q->kind == FG_IPC_OPEN)
        ipc_open(s, c);
    else
        ipc_close(s, c);
}

/* ---- virtual memory management -------------------------------------------------------------- */

static struct handle *handle_at(struct server *s, const struct process *p, const struct phys *phys)
{
    for (struct handle *handle = s->handles; handle; handle = handle->next)
        if (handle->process == p && handle->phys == phys)
            return handle;
    return NULL;
}

/* One more handle of the process; 0: no memory. */
static uint64_t handle_add(struct server *s, struct process *p, struct phys *phys)
{
    struct handle *handle = handle_at(s, p, phys);

    if (!handle) {
        handle = calloc(1, sizeof(*handle));
        if (!handle)
            return 0;
        *handle = (struct handle){.process = p, .phys = phys, .next = s->handles};
        s->handles = handle;
    }
    handle->count++;
    phys->handles++;
    return (uint64_t)p->id << 32 | phys->id;
}

static struct phys *phys_of_handle(struct server *s, const struct process *p, uint64_t number)
{
    struct phys *phys = number >> 32 == p->id ? phys_by_id(s, number & UINT32_MAX) : NULL;

    return phys && handle_at(s, p, phys) ? phys : NULL;
}

static void handle_drop(struct server *s, struct handle *handle, uint32_t count)
{
    struct phys *phys = handle->phys;

    handle->count -= count;
    phys->handles -= count;
    if (!handle->count) {
        for (struct handle **at = &s->handles; *at; at = &(*at)->next) {
            if (*at != handle)
                continue;
            *at = handle->next;
            break;
        }
        free(handle);
    }
    phys_drop(s, phys);
}

void vmm_sweep(struct server *s)
{
    for (struct phys *phys = s->phys, *next; phys; phys = next) {
        next = phys->next;
        phys_drop(s, phys);
    }
}

void vmm_process_gone(struct server *s, struct process *p, bool leaks)
{
    for (struct handle *handle = s->handles, *next; handle; handle = next) {
        next = handle->next;
        if (handle->process != p)
            continue;
        if (leaks)
            violation(s, RULE_leak_mapping, p, "%u VMM handle(s) of %llu bytes", handle->count,
                      (unsigned long long)handle->phys->bytes);
        handle_drop(s, handle, handle->count);
    }
}

static void vmm_create(struct server *s, struct call *c)
{
    struct gpu *gpu = &s->gpus[c->q->device];
    uint64_t bytes = c->q->a[0];
    struct phys *phys;

    c->reply.error = E_INVALID_VALUE;
    if (!bytes || bytes % GRANULARITY)
        return;
    c->reply.error = E_OUT_OF_MEMORY;
    if (s->inject.oom) {
        s->inject.oom--;
        return;
    }
    vmm_sweep(s);
    if (bytes > gpu->total_bytes - gpu->used_bytes)
        return;
    phys = phys_new(s, PHYS_VMM, gpu->index, bytes, c->process);
    if (!phys)
        return;
    phys_poison(phys);
    phys->exportable = c->q->a[1] != 0;
    c->reply.v[0] = handle_add(s, c->process, phys);
    s->counts.allocations++;
    c->reply.error = c->reply.v[0] ? E_OK : E_OUT_OF_MEMORY;
    phys_drop(s, phys);
}

static void vmm_release(struct server *s, struct call *c)
{
    struct phys *phys = phys_of_handle(s, c->process, c->q->a[0]);

    if (!phys) {
        violation(s, RULE_double_free, c->process, "release of handle %llx",
                  (unsigned long long)c->q->a[0]);
        c->reply.error = E_INVALID_VALUE;
        return;
    }
    s->counts.frees++;
    handle_drop(s, handle_at(s, c->process, phys), 1);
}

static void vmm_reserve(struct server *s, struct call *c)
{
    uint64_t alignment = c->q->a[1] > GRANULARITY ? c->q->a[1] : GRANULARITY;
    struct map *map;

    c->reply.error = E_INVALID_VALUE;
    if (!c->q->a[0] || c->q->a[0] % GRANULARITY || alignment & (alignment - 1))
        return;
    map = calloc(1, sizeof(*map));
    c->reply.error = E_OUT_OF_MEMORY;
    if (!map)
        return;
    map->kind = MAP_RESERVED;
    map->process = c->process;
    map->bytes = map->mapped_bytes = c->q->a[0];
    map->address = address_new(s, map->bytes, alignment);
    if (!map->address || maps_add(&s->reserved, map)) {
        free(map);
        return;
    }
    c->reply.v[0] = map->address;
    c->reply.error = E_OK;
}

/* The reservation of the process that holds the range. */
static struct map *reservation(struct server *s, const struct process *p, uint64_t address,
                               uint64_t bytes)
{
    for (size_t i = 0; i < s->reserved.count; i++) {
        struct map *map = s->reserved.at[i];

        if (map->process == p && address >= map->address && bytes <= map->bytes &&
            address - map->address <= map->bytes - bytes)
            return map;
    }
    return NULL;
}

static void vmm_unreserve(struct server *s, struct call *c)
{
    struct map *map = reservation(s, c->process, c->q->a[0], c->q->a[1]);

    c->reply.error = E_INVALID_VALUE;
    if (!map || map->address != c->q->a[0] || map->bytes != c->q->a[1])
        return;
    for (size_t i = 0; i < s->maps.count; i++)
        if (s->maps.at[i]->kind == MAP_VMM && s->maps.at[i]->address >= map->address &&
            s->maps.at[i]->address < map->address + map->bytes)
            return;
    maps_remove(&s->reserved, map);
    free(map);
    c->reply.error = E_OK;
}

static void vmm_map(struct server *s, struct call *c)
{
    struct phys *phys = phys_of_handle(s, c->process, c->q->a[3]);
    uint64_t address = c->q->a[0], bytes = c->q->a[1], offset = c->q->a[2];

    c->reply.error = E_INVALID_VALUE;
    if (!phys || !bytes || (address | bytes | offset) % GRANULARITY || bytes > phys->bytes ||
        offset > phys->bytes - bytes || !reservation(s, c->process, address, bytes))
        return;
    if (memory_busy(s, c))
        return;
    for (size_t i = 0; i < s->maps.count; i++)
        if (address < s->maps.at[i]->address + s->maps.at[i]->bytes &&
            s->maps.at[i]->address < address + bytes)
            return;
    c->reply.error = map_new(s, c->process, MAP_VMM, phys, address, bytes, offset, PROT_NONE)
                         ? E_OK
                         : E_OUT_OF_MEMORY;
}

static void vmm_unmap(struct server *s, struct call *c)
{
    uint64_t address = c->q->a[0], end = address + c->q->a[1];
    uint64_t covered = 0;

    c->reply.error = E_OK;
    if (memory_busy(s, c))
        return;
    for (size_t i = s->maps.count; i-- > 0;) {
        struct map *map = s->maps.at[i];

        if (map->process != c->process || map->kind != MAP_VMM || map->address < address ||
            map->address + map->bytes > end)
            continue;
        covered += map->bytes;
        map_check_queued(s, map);
        map_free(s, map);
    }
    if (covered == c->q->a[1])
        return;
    violation(s, RULE_double_free, c->process, "unmap of %llu bytes at %llx: %llu are mapped",
              (unsigned long long)c->q->a[1], (unsigned long long)address,
              (unsigned long long)covered);
    c->reply.error = E_INVALID_VALUE;
}

static void vmm_access(struct server *s, struct call *c)
{
    uint64_t address = c->q->a[0], end = address + c->q->a[1];
    uint64_t bit = UINT64_C(1) << c->q->device;

    c->reply.error = E_INVALID_VALUE;
    for (size_t i = 0; i < s->maps.count; i++) {
        struct map *map = s->maps.at[i];

        if (map->process != c->process || map->kind != MAP_VMM || map->address < address ||
            map->address + map->bytes > end)
            continue;
        if ((int)c->q->device != map->gpu &&
            (s->inject.few_peers || !gpus_are_peers(s, (int)c->q->device, map->gpu))) {
            c->reply.error = E_INVALID_DEVICE;
            return;
        }
        map->readable = c->q->a[2] ? map->readable | bit : map->readable & ~bit;
        map->writable = c->q->a[2] == 3 ? map->writable | bit : map->writable & ~bit;
        mprotect((void *)(uintptr_t)map->address, map->mapped_bytes,
                 (map->readable ? PROT_READ : 0) | (map->writable ? PROT_WRITE : 0));
        c->reply.error = E_OK;
    }
}

static void vmm_export(struct server *s, struct call *c)
{
    struct phys *phys = phys_of_handle(s, c->process, c->q->a[0]);
    char path[64];
    struct stat status;
    int ends[2] = {-1, -1};

    c->reply.error = E_INVALID_VALUE;
    if (!phys || !phys->exportable || s->inject.no_ipc || s->inject.no_vmm_export)
        return;
    if (phys->token_fd < 0) {
        if (pipe2(ends, O_CLOEXEC) || fstat(ends[0], &status))
            return;
        phys->token_fd = ends[0];
        phys->token_inode = status.st_ino;
    } else {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", phys->token_fd);
        ends[1] = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    }
    if (ends[1] < 0)
        return;
    c->reply_fd = ends[1];
    c->reply_owned = true;
    c->reply.error = E_OK;
}

static void vmm_import(struct server *s, struct call *c)
{
    struct stat status;

    c->reply.error = E_INVALID_VALUE;
    if (c->fd < 0 || fstat(c->fd, &status))
        return;
    for (struct phys *phys = s->phys; phys; phys = phys->next) {
        if (phys->token_fd < 0 || phys->token_inode != status.st_ino ||
            s->gpus[phys->gpu].node != c->process->node)
            continue;
        s->counts.imports++;
        c->reply.v[0] = handle_add(s, c->process, phys);
        c->reply.v[1] = phys->bytes;
        c->reply.error = c->reply.v[0] ? E_OK : E_OUT_OF_MEMORY;
        return;
    }
}

void vmm_request(struct server *s, struct call *c)
{
    static void (*const table[])(struct server *s, struct call *c) = {
        [FG_VMM_CREATE] = vmm_create, [FG_VMM_RELEASE] = vmm_release,
        [FG_VMM_RESERVE] = vmm_reserve, [FG_VMM_UNRESERVE] = vmm_unreserve,
        [FG_VMM_MAP] = vmm_map, [FG_VMM_UNMAP] = vmm_unmap, [FG_VMM_ACCESS] = vmm_access,
        [FG_VMM_EXPORT] = vmm_export, [FG_VMM_IMPORT] = vmm_import,
    };

    table[c->q->kind](s, c);
}

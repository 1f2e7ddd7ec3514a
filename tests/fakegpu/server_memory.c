/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about a process' own memory: device, pinned host, registered host. Lock held. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fakegpu/server_internal.h"

bool memory_busy(struct server *s, struct call *c)
{
    uint64_t ticket = c->q->a[5] ? c->q->a[5] : s->next_start;

    for (uint32_t i = 0; i < s->busy_count; i++) {
        const struct stream *stream = s->busy[i];
        const struct op *op = stream->head;

        if (stream->process != c->process || stream->gpu != (int)c->q->device || !op ||
            !op->running || op->start > ticket || op->kind == OP_HOSTFN)
            continue;
        c->reply.error = FG_BUSY;
        c->reply.v[0] = ticket;
        return true;
    }
    return false;
}

static bool in_range(const struct map *map, uint64_t address)
{
    return address - map->address < map->bytes ||
           (map->host_address && address - map->host_address < map->bytes);
}

static bool op_names(const struct op *op, const struct map *map)
{
    switch (op->kind) {
    case OP_COPY:
        return in_range(map, op->u.copy.to) || in_range(map, op->u.copy.from);
    case OP_FILL:
        return in_range(map, op->u.fill.to);
    case OP_WAIT:
    case OP_WRITE:
        return in_range(map, op->u.memop.address);
    case OP_KERNEL:
        for (uint64_t i = 0; i + 8 <= op->u.launch.kernel->argument_bytes; i += 8) {
            uint64_t word;

            memcpy(&word, (const char *)op->u.launch.argument + i, sizeof(word));
            if (in_range(map, word))
                return true;
        }
        return false;
    default:
        return false;
    }
}

void map_check_queued(struct server *s, const struct map *map)
{
    nccl_memory_going(s, map);
    for (uint32_t i = 0; i < s->stream_count; i++) {
        const struct stream *stream = s->streams[i];

        if (stream->process != map->process || stream->dead)
            continue;
        for (const struct op *op = stream->head; op; op = op->next)
            if (op_names(op, map)) {
                violation(s, RULE_unmap_busy, map->process,
                          "%llu bytes at %llx are named by queued op %llu (kind %d) of stream %u",
                          (unsigned long long)map->bytes, (unsigned long long)map->address,
                          (unsigned long long)op->id, op->kind, stream->index + 1);
                return;
            }
    }
}

/* The next `oom` calls that take memory, but for the first `oom_after`, get none. */
static bool is_out(struct server *s)
{
    if (!s->inject.oom)
        return false;
    if (s->inject.oom_after) {
        s->inject.oom_after--;
        return false;
    }
    s->inject.oom--;
    return true;
}

static void device_alloc(struct server *s, struct call *c)
{
    struct gpu *gpu = &s->gpus[c->q->device];
    uint64_t bytes = c->q->a[0], address;
    struct phys *phys;

    c->reply.error = E_OUT_OF_MEMORY;
    if (is_out(s))
        return;
    if (!bytes || bytes > gpu->total_bytes - gpu->used_bytes)
        return;
    address = address_new(s, bytes, 0);
    phys = address ? phys_new(s, PHYS_MALLOC, gpu->index, bytes, c->process) : NULL;
    if (!phys)
        return;
    phys_poison(phys);
    if (!map_new(s, c->process, MAP_MALLOC, phys, address, bytes, 0, PROT_READ | PROT_WRITE)) {
        phys_drop(s, phys);
        return;
    }
    s->counts.allocations++;
    c->reply.v[0] = address;
    c->reply.error = E_OK;
}

static void device_free(struct server *s, struct call *c)
{
    struct map *map = map_exact(s, c->process, c->q->a[0], MAP_MALLOC);

    if (!map) {
        violation(s, RULE_double_free, c->process, "free of %llx",
                  (unsigned long long)c->q->a[0]);
        c->reply.error = E_INVALID_VALUE;
        return;
    }
    map_check_queued(s, map);
    struct phys *phys = map->phys;

    if (phys->imports)
        violation(s, RULE_ipc_free_open, c->process,
                  "%llu bytes at %llx are open in %u other place(s)",
                  (unsigned long long)map->bytes, (unsigned long long)map->address,
                  phys->imports);
    phys->freed = true;
    phys_poison(phys);
    map_free(s, map);
    s->counts.frees++;
}

static void host_alloc(struct server *s, struct call *c)
{
    uint64_t bytes = c->q->a[0], address = address_new(s, bytes, 0);
    struct phys *phys;

    c->reply.error = E_OUT_OF_MEMORY;
    if (is_out(s))
        return;
    phys = address && bytes ? phys_new(s, PHYS_HOST, -1, bytes, c->process) : NULL;
    if (!phys)
        return;
    phys_poison(phys);
    if (!map_new(s, c->process, MAP_HOST, phys, address, bytes, 0, PROT_READ | PROT_WRITE)) {
        phys_drop(s, phys);
        return;
    }
    c->reply.v[0] = address;
    c->reply_fd = phys->fd;
    c->reply.error = E_OK;
}

static void host_free(struct server *s, struct call *c)
{
    struct map *map = map_exact(s, c->process, c->q->a[0], MAP_HOST);

    if (!map) {
        violation(s, RULE_double_free, c->process, "host free of %llx",
                  (unsigned long long)c->q->a[0]);
        c->reply.error = E_INVALID_VALUE;
        return;
    }
    map_check_queued(s, map);
    map_free(s, map);
}

/* The descriptor is of the file behind the process' mapping. */
static void host_register(struct server *s, struct call *c)
{
    uint64_t host = c->q->a[0], bytes = c->q->a[1], offset = c->q->a[3];
    uint64_t skip = offset % 4096, address;
    struct stat status;
    struct phys *phys;
    struct map *map;

    c->reply.error = E_INVALID_VALUE;
    if (c->fd < 0 || !bytes || fstat(c->fd, &status))
        return;
    for (size_t i = 0; i < s->maps.count; i++) {
        map = s->maps.at[i];
        if (map->kind != MAP_REGISTERED || map->process != c->process ||
            host >= map->host_address + map->bytes || map->host_address >= host + bytes)
            continue;
        c->reply.error = E_HOST_REGISTERED;
        return;
    }
    c->reply.error = E_OUT_OF_MEMORY;
    if (is_out(s))
        return;
    address = address_new(s, bytes + skip, 0);
    phys = address ? phys_new(s, PHYS_REGISTERED, -1, bytes + skip, c->process) : NULL;
    if (!phys)
        return;
    phys->fd = c->fd;
    c->fd = -1;
    phys->offset = offset - skip;
    phys->inode = status.st_ino;
    map = map_new(s, c->process, MAP_REGISTERED, phys, address, bytes + skip, 0,
                  c->q->a[2] ? PROT_READ : PROT_READ | PROT_WRITE);
    if (!map) {
        phys_drop(s, phys);
        c->reply.error = E_INVALID_VALUE;
        return;
    }
    map->host_address = host - skip;
    map->read_only = c->q->a[2] != 0;
    s->counts.registers++;
    c->reply.v[0] = address + skip;
    c->reply.error = E_OK;
}

static void host_unregister(struct server *s, struct call *c)
{
    uint64_t host = c->q->a[0];
    struct map *map = map_find(s, c->process, host, 1, true);

    c->reply.error = E_HOST_NOT_REGISTERED;
    if (!map || map->kind != MAP_REGISTERED || host - map->host_address >= 4096)
        return;
    map_check_queued(s, map);
    map_free(s, map);
    c->reply.error = E_OK;
}

static void pointer(struct server *s, struct call *c)
{
    const struct map *map = map_find(s, c->process, c->q->a[0], 1, true);
    static const uint64_t kinds[] = {[MAP_MALLOC] = FG_MEM_DEVICE, [MAP_IPC] = FG_MEM_DEVICE,
                                     [MAP_VMM] = FG_MEM_DEVICE, [MAP_HOST] = FG_MEM_HOST,
                                     [MAP_REGISTERED] = FG_MEM_REGISTERED};

    if (!map) {
        c->reply.error = E_INVALID_VALUE;
        return;
    }
    c->reply.v[0] = map->address;
    c->reply.v[1] = map->bytes;
    c->reply.v[2] = kinds[map->kind] | (uint64_t)(map->gpu < 0 ? 0 : map->gpu) << 8 |
                    (uint64_t)map->kind << 32;
    c->reply.v[3] = (uint64_t)(uintptr_t)map_pointer(map, c->q->a[0]);
}

void memory_request(struct server *s, struct call *c)
{
    static void (*const table[])(struct server *s, struct call *c) = {
        [FG_ALLOC] = device_alloc, [FG_FREE] = device_free, [FG_HOST_ALLOC] = host_alloc,
        [FG_HOST_FREE] = host_free, [FG_REGISTER] = host_register,
        [FG_UNREGISTER] = host_unregister, [FG_POINTER] = pointer,
    };

    if (c->q->kind == FG_POINTER || !memory_busy(s, c))
        table[c->q->kind](s, c);
}

void memory_process_gone(struct server *s, struct process *p, bool leaks)
{
    static const char *const kinds[] = {[MAP_MALLOC] = "allocation", [MAP_IPC] = "open IPC handle",
                                        [MAP_VMM] = "VMM mapping", [MAP_HOST] = "pinned memory",
                                        [MAP_REGISTERED] = "registration"};

    for (size_t i = s->maps.count; i-- > 0;) {
        struct map *map = s->maps.at[i];

        if (map->process != p)
            continue;
        if (leaks)
            violation(s, map->kind == MAP_MALLOC || map->kind == MAP_HOST ? RULE_leak_memory
                                                                          : RULE_leak_mapping,
                      p, "%s of %llu bytes at %llx", kinds[map->kind],
                      (unsigned long long)map->bytes, (unsigned long long)map->address);
        if (map->kind == MAP_MALLOC)
            map->phys->freed = true;
        map_free(s, map);
    }
    for (size_t i = s->reserved.count; i-- > 0;) {
        struct map *map = s->reserved.at[i];

        if (map->process != p)
            continue;
        if (leaks)
            violation(s, RULE_leak_mapping, p, "reservation of %llu bytes at %llx",
                      (unsigned long long)map->bytes, (unsigned long long)map->address);
        maps_remove(&s->reserved, map);
        free(map);
    }
    for (struct phys *phys = s->phys, *next; phys; phys = next) {
        next = phys->next;
        if (phys->owner == p)
            phys->owner = NULL;
        phys_drop(s, phys);
    }
}

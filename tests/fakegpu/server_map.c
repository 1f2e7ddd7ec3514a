/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory as the server holds it: memfds (phys) and where they are mapped (maps). An address is
 * handed out once and never again, so that who uses it after its end always faults. Lock held.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fakegpu/server_internal.h"

#define PAGE UINT64_C(4096)
#define GUARD (UINT64_C(64) << 10)

uint64_t page_up(uint64_t bytes)
{
    return (bytes + PAGE - 1) & ~(PAGE - 1);
}

uint64_t address_new(struct server *s, uint64_t bytes, uint64_t alignment)
{
    if (alignment < GUARD)
        alignment = GUARD;
    uint64_t address = (s->next_address + alignment - 1) & ~(alignment - 1);

    if (bytes > FG_VA_END - address)
        return 0;
    s->next_address = address + page_up(bytes) + GUARD;
    return address;
}

/* ---- sorted ranges -------------------------------------------------------------------------- */

static size_t maps_place(const struct maps *maps, uint64_t address)
{
    size_t low = 0, high = maps->count; /* first that begins above address */

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (maps->at[middle]->address > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

int maps_add(struct maps *maps, struct map *map)
{
    if (maps->count == maps->room) {
        size_t room = maps->room ? maps->room * 2 : 64;
        struct map **at = realloc(maps->at, room * sizeof(*at));

        if (!at)
            return -ENOMEM;
        maps->at = at;
        maps->room = room;
    }
    size_t place = maps_place(maps, map->address);

    memmove(maps->at + place + 1, maps->at + place, (maps->count - place) * sizeof(*maps->at));
    maps->at[place] = map;
    maps->count++;
    return 0;
}

void maps_remove(struct maps *maps, const struct map *map)
{
    size_t place = maps_place(maps, map->address);

    if (!place || maps->at[place - 1] != map)
        return;
    memmove(maps->at + place - 1, maps->at + place, (maps->count - place) * sizeof(*maps->at));
    maps->count--;
}

static bool holds(uint64_t base, uint64_t size, uint64_t address, uint64_t bytes)
{
    return address >= base && address - base <= size && bytes <= size - (address - base);
}

/* Of any process. */
static struct map *maps_at(const struct maps *maps, uint64_t address, uint64_t bytes)
{
    size_t place = maps_place(maps, address);

    if (!place)
        return NULL;
    struct map *map = maps->at[place - 1];

    return holds(map->address, map->bytes, address, bytes) ? map : NULL;
}

struct map *map_find(struct server *s, struct process *p, uint64_t address, uint64_t bytes,
                     bool host)
{
    if (address >= FG_VA_BASE && address < FG_VA_END) {
        struct map *map = maps_at(&s->maps, address, bytes);

        return map && map->process == p ? map : NULL;
    }
    for (size_t i = 0; host && i < s->maps.count; i++) {
        struct map *map = s->maps.at[i];

        if (map->kind == MAP_REGISTERED && map->process == p &&
            holds(map->host_address, map->bytes, address, bytes))
            return map;
    }
    return NULL;
}

void *map_pointer(const struct map *map, uint64_t address)
{
    if (address < FG_VA_BASE || address >= FG_VA_END)
        address = map->address + (address - map->host_address);
    return (void *)(uintptr_t)address;
}

struct map *map_exact(struct server *s, const struct process *p, uint64_t address,
                      enum map_kind kind)
{
    struct map *map = maps_at(&s->maps, address, 0);

    return map && map->process == p && map->address == address && map->kind == kind ? map : NULL;
}

/* ---- what holds bytes ----------------------------------------------------------------------- */

struct phys *phys_new(struct server *s, enum phys_kind kind, int gpu, uint64_t bytes,
                      struct process *owner)
{
    struct phys *phys = calloc(1, sizeof(*phys));
    struct stat status;

    if (!phys)
        return NULL;
    *phys = (struct phys){.kind = kind, .gpu = gpu, .owner = owner, .fd = -1, .token_fd = -1,
                          .bytes = bytes, .mapped_bytes = page_up(bytes)};
    if (kind != PHYS_REGISTERED) {
        phys->fd = memfd_create("fakegpu", MFD_CLOEXEC);
        if (phys->fd < 0 || ftruncate(phys->fd, (off_t)phys->mapped_bytes) ||
            fstat(phys->fd, &status)) {
            if (phys->fd >= 0)
                close(phys->fd);
            free(phys);
            return NULL;
        }
        phys->inode = status.st_ino;
    }
    phys->id = ++s->next_phys;
    phys->secret = random_of(s, 'P', phys->id);
    phys->next = s->phys;
    s->phys = phys;
    if (gpu >= 0)
        s->gpus[gpu].used_bytes += bytes;
    return phys;
}

void phys_drop(struct server *s, struct phys *phys)
{
    if (phys->maps || phys->handles || phys->imports)
        return;
    struct pollfd token = {.fd = phys->token_fd};

    if (phys->token_fd >= 0 && poll(&token, 1, 0) >= 0 && !(token.revents & POLLHUP))
        return; /* somebody has a descriptor by which it can be imported */
    for (struct phys **at = &s->phys; *at; at = &(*at)->next) {
        if (*at != phys)
            continue;
        *at = phys->next;
        break;
    }
    if (phys->gpu >= 0)
        s->gpus[phys->gpu].used_bytes -= phys->bytes;
    if (phys->fd >= 0)
        close(phys->fd);
    if (phys->token_fd >= 0)
        close(phys->token_fd);
    free(phys);
}

/* A NaN in every type, and recognizable. */
void phys_poison(const struct phys *phys)
{
    uint32_t *at = mmap(NULL, phys->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, phys->fd, 0);

    if (at == MAP_FAILED)
        return;
    for (uint64_t i = 0; i < phys->mapped_bytes / sizeof(*at); i++)
        at[i] = UINT32_C(0xffc0dead);
    munmap(at, phys->mapped_bytes);
}

/* ---- maps ----------------------------------------------------------------------------------- */

struct map *map_new(struct server *s, struct process *p, enum map_kind kind, struct phys *phys,
                    uint64_t address, uint64_t bytes, uint64_t offset, int protection)
{
    struct map *map = calloc(1, sizeof(*map));

    if (!map)
        return NULL;
    *map = (struct map){.address = address, .bytes = bytes, .mapped_bytes = page_up(bytes),
                        .kind = kind, .process = p, .phys = phys, .phys_offset = offset,
                        .gpu = phys->gpu};
    void *at = mmap((void *)(uintptr_t)address, map->mapped_bytes, protection,
                    MAP_SHARED | MAP_FIXED_NOREPLACE, phys->fd, (off_t)(phys->offset + offset));

    if (at == MAP_FAILED) {
        free(map);
        return NULL;
    }
    if (maps_add(&s->maps, map)) {
        munmap(at, map->mapped_bytes);
        free(map);
        return NULL;
    }
    phys->maps++;
    return map;
}

void map_free(struct server *s, struct map *map)
{
    struct phys *phys = map->phys;

    maps_remove(&s->maps, map);
    munmap((void *)(uintptr_t)map->address, map->mapped_bytes);
    phys->maps--;
    if (map->kind == MAP_IPC)
        phys->imports--;
    free(map);
    phys_drop(s, phys);
}

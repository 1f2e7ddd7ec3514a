/* SPDX-License-Identifier: Apache-2.0 */
/* Checked mappings of service memory; see map.h. Any thread. */
#include "client/lib/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/lib/device.h"
#include "client/lib/err.h"
#include "client/lib/fork.h"
#include "gradwire/errors.h"

static int check(int fd, uint64_t bytes, const char *what)
{
    struct stat stat;
    int seals = fcntl(fd, F_GET_SEALS);

    if (fstat(fd, &stat) < 0 || !S_ISREG(stat.st_mode) || stat.st_size < 0)
        return err_set(GW_E_PROTOCOL, "the engine's descriptor for the %s is no memory", what);
    if ((uint64_t)stat.st_size < bytes)
        return err_set(GW_E_PROTOCOL, "the engine's %s has %llu bytes, promised were %llu", what,
                       (unsigned long long)stat.st_size, (unsigned long long)bytes);
    /* An engine that dies cannot shrink it either, so a read never ends in SIGBUS. */
    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        return err_set(GW_E_PROTOCOL, "the engine's %s is not sealed against shrinking", what);
    return 0;
}

/* Not more than promised is mapped, whatever the file's size. */
int map_new(int fd, uint64_t bytes, int prot, const char *what, struct map *ret_map)
{
    void *base;
    int error;
    int r;

    if (bytes == 0 || bytes > SIZE_MAX)
        return err_set(GW_E_PROTOCOL, "the engine's %s has an impossible size", what);
    r = check(fd, bytes, what);
    if (r < 0)
        return r;
    /* One step for forks: a child must not see the mapping between the two calls. */
    fork_lock();
    base = mmap(NULL, (size_t)bytes, prot, MAP_SHARED, fd, 0);
    error = errno;
    if (base != MAP_FAILED && (madvise(base, (size_t)bytes, MADV_DONTFORK) < 0 ||
                               madvise(base, (size_t)bytes, MADV_DONTDUMP) < 0)) {
        error = errno;
        munmap(base, (size_t)bytes);
        base = MAP_FAILED;
    }
    fork_unlock();
    if (base == MAP_FAILED)
        return err_set(error == ENOMEM ? GW_E_NOMEM : GW_E_PROTOCOL,
                       "cannot map the %s (%llu bytes): %s", what, (unsigned long long)bytes,
                       strerror(error));
    *ret_map = (struct map){.base = base, .bytes = (size_t)bytes};
    return 0;
}

/* The driver knows what the descriptor is and how large; nothing here reads through it. */
int map_device(struct gw_device *device, int fd, uint64_t bytes, uint64_t mapped_bytes,
               const char *what, struct map *ret_map)
{
    void *base = NULL;
    int r;

    if (bytes == 0 || bytes > SIZE_MAX || mapped_bytes < bytes)
        return err_set(GW_E_PROTOCOL, "the engine's %s has an impossible size", what);
    r = device->ops->map(device, fd, mapped_bytes, &base);
    if (r < 0)
        return err_prefix(r, "the %s (%llu bytes)", what, (unsigned long long)mapped_bytes);
    *ret_map = (struct map){
        .base = base, .bytes = (size_t)bytes, .device = device, .mapped_bytes = mapped_bytes};
    return 0;
}

void map_free(struct map *map)
{
    if (map->base && map->device) {
        if (map->mapped_bytes > 0 && !atomic_load(&map->device->stuck))
            map->device->ops->unmap(map->device, map->base, map->mapped_bytes);
    } else if (map->base) {
        munmap(map->base, map->bytes);
    }
    *map = (struct map){0};
}

void map_guard_close(const struct map *map, uint64_t offset, uint64_t bytes, int prot)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t first = (offset + page - 1) / page * page;
    uint64_t end = (offset + bytes) / page * page;

    if (map->base && offset + bytes == map->bytes)
        end = (map->bytes + page - 1) / page * page; /* nothing follows: the last page is whole */
    if (map->base && first < end)
        mprotect(map->base + first, (size_t)(end - first), prot);
}

void map_guard_open(const struct map *map, uint64_t offset, uint64_t bytes, int prot)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t first = offset / page * page;

    if (map->base && bytes > 0)
        mprotect(map->base + first, (size_t)(offset + bytes - first), prot);
}

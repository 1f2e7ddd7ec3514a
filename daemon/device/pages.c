/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared host memory: one memfd each, allocated for real, its size sealed, its bytes kept out of
 * core files. Any thread; owns nothing global.
 *
 * Allocating a memfd for real has no failure of its own: where memory runs out, the kernel's killer
 * ends some process instead. So what is free is looked at before, piece by piece.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/device/pages.h"
#include "gradwire/errors.h"

#define PIECE_BYTES (64ull << 20)   /* allocated between two looks at what is free */
#define RESERVE_BYTES (32ull << 20) /* left alone */
#define HUGE_BYTES (2ull << 20)

/* First number after `key` at a line's start in a small file of /proc or /sys; key "": the file's
 * first number ("max" is none). */
static bool read_number(const char *path, const char *key, uint64_t *ret_value)
{
    char line[256];
    bool found = false;
    FILE *file = fopen(path, "re");

    if (!file)
        return false;
    while (!found && fgets(line, sizeof(line), file)) {
        unsigned long long value;
        if (strncmp(line, key, strlen(key)) == 0 &&
            sscanf(line + strlen(key), "%llu", &value) == 1) {
            *ret_value = value;
            found = true;
        }
    }
    fclose(file);
    return found;
}

/* What the control group (version 2) of this process and those above it still allow. */
static uint64_t cgroup_available(void)
{
    char line[512], path[640];
    uint64_t available = UINT64_MAX;
    bool found = false;
    FILE *file = fopen("/proc/self/cgroup", "re");

    if (!file)
        return available;
    while (!found && fgets(line, sizeof(line), file))
        found = strncmp(line, "0::/", 4) == 0;
    fclose(file);
    if (!found)
        return available;
    line[strcspn(line, "\n")] = 0;
    for (char *group = line + 3; group[0] == '/' && group[1];) {
        uint64_t most, now;
        snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", group);
        if (read_number(path, "", &most)) {
            snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.current", group);
            if (read_number(path, "", &now))
                available = most < now ? 0 : most - now < available ? most - now : available;
        }
        *strrchr(group, '/') = 0;
        if (!group[0])
            break;
    }
    return available;
}

static uint64_t memory_available(void)
{
    uint64_t available = UINT64_MAX, swap = 0, group = cgroup_available();

    if (read_number("/proc/meminfo", "MemAvailable:", &available)) {
        (void)read_number("/proc/meminfo", "SwapFree:", &swap);
        available = (available + swap) << 10;
    }
    return available < group ? available : group;
}

/* Populating the mapping instead of the file lets the kernel use large pages where it may; what
 * that leaves undone (older kernels), fallocate does. */
static int allocate(const struct device_memory *memory)
{
    for (uint64_t at = 0; at < memory->mapped_bytes;) {
        uint64_t rest = memory->mapped_bytes - at;
        uint64_t piece = rest < PIECE_BYTES ? rest : PIECE_BYTES;
        /* Small ones are not worth reading three files for. */
        if (memory->mapped_bytes > HUGE_BYTES && memory_available() < rest + RESERVE_BYTES)
            return GW_E_NOMEM;
        if (memory->mapped_bytes >= HUGE_BYTES)
            (void)madvise((char *)memory->base + at, piece, MADV_POPULATE_WRITE);
        if (fallocate(memory->fd, 0, (off_t)at, (off_t)piece) < 0) {
            if (errno == EINTR)
                continue;
            return GW_E_NOMEM;
        }
        at += piece;
    }
    return 0;
}

/* The policy is the file's own: it holds whoever touches it first. */
static void place(struct device_memory *memory, uint64_t nodes)
{
    unsigned long mask = (unsigned long)nodes;
    int mode = (nodes & (nodes - 1)) == 0 ? MPOL_PREFERRED : MPOL_INTERLEAVE;

    if (nodes != PAGES_ANYWHERE && syscall(SYS_mbind, memory->base, memory->mapped_bytes, mode,
                                           &mask, sizeof(mask) * 8 + 1, 0) < 0)
        memory->place_error = errno;
}

static int map(struct device_memory *memory, uint64_t nodes)
{
    if (ftruncate(memory->fd, (off_t)memory->mapped_bytes) < 0)
        return GW_E_NOMEM;
    memory->base =
        mmap(NULL, memory->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
    if (memory->base == MAP_FAILED) {
        memory->base = NULL;
        return GW_E_NOMEM;
    }
    (void)madvise(memory->base, memory->mapped_bytes, MADV_DONTDUMP);
    (void)madvise(memory->base, memory->mapped_bytes, MADV_DONTFORK);
    if (memory->mapped_bytes >= HUGE_BYTES)
        (void)madvise(memory->base, memory->mapped_bytes, MADV_HUGEPAGE);
    place(memory, nodes);
    return 0;
}

int pages_new(enum pages_kind kind, const char *name, size_t bytes, uint64_t nodes,
              struct device_memory **ret_memory)
{
    struct device_memory *memory;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    int r;

    if (bytes == 0 || bytes > (size_t)INT64_MAX - page)
        return GW_E_NOMEM;
    memory = calloc(1, sizeof(*memory));
    if (!memory)
        return GW_E_NOMEM;
    memory->bytes = bytes;
    memory->mapped_bytes = (bytes + page - 1) / page * page;
    memory->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory->fd < 0)
        r = errno == EMFILE || errno == ENFILE ? GW_E_LIMIT : GW_E_NOMEM;
    else
        r = map(memory, nodes);
    if (r == 0)
        r = allocate(memory);
    /* Our mapping exists: from here on nobody can make another one that writes. */
    if (kind == PAGES_OUT)
        seals |= F_SEAL_FUTURE_WRITE;
    if (r == 0 && fcntl(memory->fd, F_ADD_SEALS, seals) < 0)
        r = GW_E_INTERNAL;
    if (r < 0) {
        pages_free(memory);
        return r;
    }
    *ret_memory = memory;
    return 0;
}

struct device_memory *pages_free(struct device_memory *memory)
{
    if (!memory)
        return NULL;
    if (memory->base)
        munmap(memory->base, memory->mapped_bytes);
    if (memory->fd >= 0)
        close(memory->fd);
    free(memory);
    return NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuMemHostRegister: the server must map what the process has mapped. So the file behind the
 * mapping is found among the process' descriptors, or by /proc/self/map_files; private memory is
 * replaced, in place, by a memfd of the same content.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fakegpu/driver.h"

#define KEPT 64

struct backing {
    uint64_t start, end, offset;
    ino_t inode;
    bool shared, writable;
};

/* The mapping, or the run of mappings of one file without a gap, that holds the range. */
static bool backing_find(uint64_t from, uint64_t to, struct backing *ret_backing)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512], mode[8];
    struct backing b = {0}, one = {0};

    if (!maps)
        return false;
    while (fgets(line, sizeof(line), maps)) {
        uint64_t inode;

        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64 " %*s %" SCNu64, &one.start,
                   &one.end, mode, &one.offset, &inode) != 5 ||
            one.end <= from || one.start >= to)
            continue;
        one.inode = inode;
        one.writable = mode[1] == 'w';
        one.shared = mode[3] == 's';
        if (!b.end) {
            b = one;
        } else if (one.start == b.end && one.shared == b.shared && one.writable == b.writable &&
                   (!b.shared || (one.inode == b.inode &&
                                  one.offset == b.offset + (b.end - b.start)))) {
            b.end = one.end;
        } else {
            break;
        }
    }
    fclose(maps);
    *ret_backing = b;
    return b.start <= from && b.end >= to;
}

static int reopen(const char *path, bool read_only)
{
    int fd = open(path, O_CLOEXEC | (read_only ? O_RDONLY : O_RDWR));

    return fd < 0 && !read_only ? -1 : fd;
}

/* A descriptor of the file with that inode; writable unless read_only. */
static int descriptor_find(ino_t inode, bool read_only)
{
    DIR *directory = opendir("/proc/self/fd");
    struct dirent *entry;
    int found = -1;

    while (directory && found < 0 && (entry = readdir(directory)) != NULL) {
        char path[300];
        struct stat status;

        snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
        if (entry->d_name[0] != '.' && stat(path, &status) == 0 && S_ISREG(status.st_mode) &&
            status.st_ino == inode)
            found = reopen(path, read_only);
    }
    if (directory)
        closedir(directory);
    return found;
}

static int map_file_open(const struct backing *b, uint64_t address, bool read_only)
{
    DIR *directory = opendir("/proc/self/map_files");
    struct dirent *entry;
    int found = -1;

    (void)b;
    while (directory && found < 0 && (entry = readdir(directory)) != NULL) {
        uint64_t start, end;
        char path[300];

        if (sscanf(entry->d_name, "%" SCNx64 "-%" SCNx64, &start, &end) != 2 || address < start ||
            address >= end)
            continue;
        snprintf(path, sizeof(path), "/proc/self/map_files/%s", entry->d_name);
        found = reopen(path, read_only);
    }
    if (directory)
        closedir(directory);
    return found;
}

/* A descriptor to find the memory by when it is registered again; the last ones. */
static void keep(int fd)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int kept[KEPT]; /* 0: none */
    static unsigned next;

    pthread_mutex_lock(&lock);
    if (kept[next] > 0)
        close(kept[next]);
    kept[next] = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    next = (next + 1) % KEPT;
    pthread_mutex_unlock(&lock);
}

/* Private pages become shared ones of a memfd, with what they hold. */
static int replace(uint64_t from, uint64_t to)
{
    int fd = memfd_create("fakegpu-registered", MFD_CLOEXEC);
    size_t bytes = to - from;

    if (fd < 0 || ftruncate(fd, (off_t)bytes) ||
        pwrite(fd, (void *)(uintptr_t)from, bytes, 0) != (ssize_t)bytes ||
        mmap((void *)(uintptr_t)from, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
             0) == MAP_FAILED) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    keep(fd);
    return fd;
}

CUresult cuMemHostRegister(void *pointer, size_t bytes, unsigned int flags)
{
    uint64_t host = ADDRESS(pointer), from = host & ~UINT64_C(4095);
    uint64_t to = (host + bytes + 4095) & ~UINT64_C(4095);
    bool read_only = (flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0;
    struct fg_request request = {.kind = FG_REGISTER, .a = {host, bytes, read_only}};
    struct fg_reply reply;
    struct backing b;
    uint32_t us = 20;
    int fd;
    CUresult r = core_context(&request.device);

    if (r)
        return r;
    fg_note_sync("cuMemHostRegister");
    if (!bytes || !backing_find(from, to, &b) || (!b.writable && !read_only))
        return CUDA_ERROR_INVALID_VALUE;
    if (b.shared && b.inode) {
        fd = descriptor_find(b.inode, read_only);
        if (fd < 0)
            fd = map_file_open(&b, from, read_only);
        request.a[3] = b.offset + (host - b.start);
    } else if (!b.writable) {
        return CUDA_ERROR_INVALID_VALUE;
    } else {
        fd = replace(from, to);
        request.a[3] = host - from;
    }
    if (fd < 0) {
        fprintf(stderr, "fakegpu: cuMemHostRegister: no descriptor of the memory at %p\n",
                pointer);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    while ((r = (CUresult)fg_call_fd(&request, NULL, fd, &reply, NULL)) == FG_BUSY) {
        request.a[5] = reply.v[0];
        core_nap(&us);
    }
    close(fd);
    return r;
}

CUresult cuMemHostUnregister(void *pointer)
{
    uint32_t gpu;
    CUresult r = core_context(&gpu);

    if (r)
        return r;
    fg_note_sync("cuMemHostUnregister");
    return core_call_wait(FG_UNREGISTER, gpu, ARGS(ADDRESS(pointer)), NULL);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *device, void *host, unsigned int flags)
{
    struct fg_reply reply;
    CUresult r = core_context(NULL);

    if (!r && flags)
        r = CUDA_ERROR_INVALID_VALUE;
    if (!r)
        r = core_call(FG_POINTER, core_first_gpu(), ARGS(ADDRESS(host)), &reply);
    if (!r && (reply.v[2] & 0xff) == FG_MEM_DEVICE)
        r = CUDA_ERROR_INVALID_VALUE;
    if (!r)
        *device = reply.v[3];
    return r;
}

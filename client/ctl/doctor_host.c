/* SPDX-License-Identifier: Apache-2.0 */
/* Points of the host backend: processors, memory, limits. See doctor.h. */
#include <float.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/doctor.h"

#define COPY_BYTES (64u << 20) /* past any cache */
#define COPY_NS 200000000ull   /* of measuring */
#define NOFILE_GOOD 65536u     /* arenas, pages and clients of large jobs are descriptors */

/* ---- cgroups --------------------------------------------------------------------------------- */

#define NO_LIMIT DBL_MAX

/* Its path, of version 2. False: there are none, or of version 1. */
static bool own_cgroup(char *path, size_t path_bytes)
{
    char line[256];
    bool found =
        doctor_line("/proc/self/cgroup", line, sizeof(line)) && strncmp(line, "0::", 3) == 0;

    if (found)
        (void)snprintf(path, path_bytes, "%s", line + 3);
    return found;
}

/* The least that this process's cgroup, or one above it, has in that file: each of them limits. */
static double cgroup_limit(const char *name, double (*limit_of)(const char *line))
{
    char cgroup[256], path[400], line[64];
    double least = NO_LIMIT, limit;
    char *end;

    if (!own_cgroup(cgroup, sizeof(cgroup)))
        return least;
    do {
        (void)snprintf(path, sizeof(path), "/sys/fs/cgroup%s/%s", cgroup, name);
        limit = doctor_line(path, line, sizeof(line)) ? limit_of(line) : NO_LIMIT;
        least = limit < least ? limit : least;
        end = strrchr(cgroup, '/');
        if (end != NULL)
            *end = '\0';
    } while (end != NULL);
    return least;
}

static double processors_of(const char *line)
{
    double quota, period;

    return sscanf(line, "%lf %lf", &quota, &period) == 2 && period > 0 ? quota / period : NO_LIMIT;
}

static double bytes_of(const char *line)
{
    double bytes;

    return sscanf(line, "%lf", &bytes) == 1 ? bytes : NO_LIMIT;
}

/* ---- processors and memory ------------------------------------------------------------------- */

static void look_at_processors(struct doctor *doctor)
{
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int usable = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : (int)online;
    double limit = cgroup_limit("cpu.max", processors_of);

    if (limit < NO_LIMIT)
        doctor_add(doctor, "processors", PLUGIN_WARN,
                   "raise CPUQuota= of the unit or the container: sums run on these processors",
                   "%d of %ld usable, limited to %.1f by the cgroup", usable, online, limit);
    else
        doctor_add(doctor, "processors", usable < 2 ? PLUGIN_WARN : PLUGIN_GOOD,
                   usable < 2 ? "give gradwire and the trainers at least two" : NULL,
                   "%d of %ld usable", usable, online);
}

static void look_at_memory(struct doctor *doctor)
{
    struct sysinfo info;
    double max = cgroup_limit("memory.max", bytes_of);
    char text[32], limit[32];

    if (sysinfo(&info) < 0)
        return;
    human_bytes((uint64_t)info.totalram * info.mem_unit, text, sizeof(text));
    if (max < NO_LIMIT) {
        human_bytes((uint64_t)max, limit, sizeof(limit));
        doctor_add(doctor, "memory", PLUGIN_NOTE,
                   "a job whose ranks and engine share a cgroup is charged there: leave room for "
                   "its arenas (gwctl plan says how much)",
                   "%s, limited to %s by the cgroup", text, limit);
    } else {
        doctor_add(doctor, "memory", PLUGIN_GOOD, NULL, "%s, no limit by cgroups of version 2",
                   text);
    }
    if (info.totalswap > 0)
        doctor_add(doctor, "swap", PLUGIN_NOTE,
                   "arenas may be swapped out under pressure: size jobs by gwctl plan",
                   "%" PRIu64 " MiB", (uint64_t)info.totalswap * info.mem_unit >> 20);
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Best of the copies that fit into COPY_NS: one thread, bytes read plus bytes written. */
static void measure_bandwidth(struct doctor *doctor)
{
    char *from = malloc(COPY_BYTES), *to = malloc(COPY_BYTES);
    uint64_t began, best = UINT64_MAX;

    if (from != NULL && to != NULL) {
        memset(from, 1, COPY_BYTES);
        memset(to, 2, COPY_BYTES);
        began = now_ns();
        do {
            uint64_t start = now_ns(), took;

            memcpy(to, from, COPY_BYTES);
            __asm__ volatile("" : : "r"(to) : "memory");
            took = now_ns() - start;
            best = took < best ? took : best;
        } while (now_ns() - began < COPY_NS);
        doctor_add(doctor, "memory bandwidth", PLUGIN_GOOD, NULL,
                   "%.1f GB/s read and written by one thread copying",
                   2.0 * COPY_BYTES / (double)best);
    }
    free(from);
    free(to);
}

/* Arenas are memfds: what counts is the setting for shared memory. */
static void look_at_large_pages(struct doctor *doctor)
{
    char line[128];

    if (!doctor_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", line, sizeof(line)))
        doctor_add(doctor, "large pages", PLUGIN_NOTE, NULL, "this kernel has none for memfds");
    else if (strstr(line, "[never]") != NULL || strstr(line, "[deny]") != NULL)
        doctor_add(doctor, "large pages", PLUGIN_NOTE,
                   "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled: fewer page "
                   "faults when large arenas are made",
                   "off for shared memory (%s)", line);
    else
        doctor_add(doctor, "large pages", PLUGIN_GOOD, NULL, "%s for shared memory", line);
}

static void look_at_limits(struct doctor *doctor)
{
    struct rlimit files, locked;
    bool few;

    if (getrlimit(RLIMIT_NOFILE, &files) < 0 || getrlimit(RLIMIT_MEMLOCK, &locked) < 0)
        return;
    few = files.rlim_max < NOFILE_GOOD;
    doctor_add(doctor, "open files", few ? PLUGIN_WARN : PLUGIN_GOOD,
               few ? "raise the hard limit to 65536 (the unit's LimitNOFILE= does for gradwired)"
                   : NULL,
               "at most %llu", (unsigned long long)files.rlim_max);
    if (locked.rlim_max == RLIM_INFINITY)
        doctor_add(doctor, "locked memory", PLUGIN_GOOD, NULL, "no limit");
    else
        doctor_add(doctor, "locked memory", PLUGIN_NOTE,
                   "GPU jobs register pages: set LimitMEMLOCK=infinity (the unit does), and the "
                   "same for trainers",
                   "at most %llu KiB", (unsigned long long)locked.rlim_max >> 10);
}

/* What every arena is: a sealed memfd, mapped twice. */
static void try_memfd(struct doctor *doctor)
{
    int fd = memfd_create("gradwire-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *base = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, 4096) == 0)
        base = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base != MAP_FAILED)
        doctor_add(doctor, "shared memory", PLUGIN_GOOD, NULL, "memfds can be made and mapped");
    else
        doctor_add(doctor, "shared memory", PLUGIN_BAD,
                   "allow memfd_create and mmap: a seccomp filter or security module forbids them",
                   "a memfd cannot be made or mapped: %m");
    if (base != MAP_FAILED)
        (void)munmap(base, 4096);
    if (fd >= 0)
        (void)close(fd);
}

void doctor_host(struct doctor *doctor)
{
    look_at_processors(doctor);
    look_at_memory(doctor);
    measure_bandwidth(doctor);
    look_at_large_pages(doctor);
    look_at_limits(doctor);
    try_memfd(doctor);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Processors of threads: see affinity.h. Reads /proc; any thread. */
#include "daemon/device/host/affinity.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct cpus) == sizeof(cpu_set_t), "they are copied");

static struct cpus affinity_of(pid_t tid)
{
    struct cpus cpus = {{0}};
    cpu_set_t set;

    if (sched_getaffinity(tid, sizeof(set), &set) == 0)
        memcpy(&cpus, &set, sizeof(cpus));
    return cpus;
}

struct cpus affinity_own(void)
{
    return affinity_of(0);
}

void affinity_set(pid_t tid, const struct cpus *cpus)
{
    cpu_set_t set;

    memcpy(&set, cpus, sizeof(set));
    (void)sched_setaffinity(tid, sizeof(set), &set);
}

/* 0: no more. */
static pid_t next_thread(DIR *threads)
{
    struct dirent *entry;

    while ((entry = readdir(threads)) != NULL) {
        pid_t tid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (tid > 0)
            return tid;
    }
    return 0;
}

struct cpus affinity_process(pid_t pid)
{
    struct cpus all = {{0}};
    char path[32];
    DIR *threads;

    if (pid <= 0) /* in another PID namespace */
        return all;
    all = affinity_of(pid);
    (void)snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    threads = opendir(path);
    for (pid_t tid; threads && (tid = next_thread(threads)) > 0;) {
        struct cpus one = affinity_of(tid);
        all = cpus_or(&all, &one);
    }
    if (threads)
        closedir(threads);
    return all;
}

void affinity_confine(const struct cpus *cpus)
{
    DIR *threads = opendir("/proc/self/task");

    affinity_set(0, cpus);
    for (pid_t tid; threads && (tid = next_thread(threads)) > 0;)
        affinity_set(tid, cpus);
    if (threads)
        closedir(threads);
}

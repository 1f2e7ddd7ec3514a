/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What processes cost that have nothing to do: gradwired without a job, and with one whose ranks
 * only are there; that job's engine. Read from /proc; the coordinator's thread.
 */
#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/bench/local.h"

struct looked {
    uint64_t switches; /* voluntary ones of all its threads so far */
    uint32_t threads;
};

/* A number of /proc/.../status; 0: not there. */
static uint64_t status_number(const char *path, const char *name)
{
    FILE *file = fopen(path, "re");
    unsigned long long value = 0;
    char line[256];

    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, name, strlen(name)) == 0) {
            value = strtoull(line + strlen(name), NULL, 10);
            break;
        }
    }
    if (file != NULL)
        fclose(file);
    return value;
}

/* A thread that gave its processor away has been woken, or will be. */
static struct looked look(int pid)
{
    struct looked looked = {.threads = 0};
    char path[320];
    struct dirent *entry;
    DIR *tasks;

    (void)snprintf(path, sizeof path, "/proc/%d/task", pid);
    tasks = opendir(path);
    while (tasks != NULL && (entry = readdir(tasks)) != NULL) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        (void)snprintf(path, sizeof path, "/proc/%d/task/%.16s/status", pid, entry->d_name);
        looked.switches += status_number(path, "voluntary_ctxt_switches:");
        looked.threads++;
    }
    if (tasks != NULL)
        closedir(tasks);
    return looked;
}

/* gradwired's only child; 0: it has none. */
static int engine_of(int daemon_pid)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    char path[64];
    int pid = 0;

    while (proc != NULL && pid == 0 && (entry = readdir(proc)) != NULL) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        (void)snprintf(path, sizeof path, "/proc/%.16s/status", entry->d_name);
        if (status_number(path, "PPid:") == (uint64_t)daemon_pid)
            pid = (int)strtol(entry->d_name, NULL, 10);
    }
    if (proc != NULL)
        closedir(proc);
    return pid;
}

static void wait_ns(uint64_t ns)
{
    uint64_t until = bench_now_ns() + ns;

    while (bench_now_ns() < until && !bench_stopped())
        bench_nap();
}

/* One row for each of the processes, watched together. */
static int watch(const struct bench *bench, struct bench_case *what, const int *pids,
                 const enum bench_variant *variants, uint32_t count)
{
    struct bench_samples none = {0};
    struct looked before[2], after;
    double figures[FIGURES], seconds;
    uint64_t began;
    char path[64];
    int r = 0;

    wait_ns(200000000); /* what came before ends */
    began = bench_now_ns();
    for (uint32_t i = 0; i < count; i++)
        before[i] = look(pids[i]);
    wait_ns((uint64_t)bench->options.budget_ns);
    seconds = (double)(bench_now_ns() - began) / 1e9;
    for (uint32_t i = 0; r == 0 && i < count; i++) {
        after = look(pids[i]);
        for (uint32_t f = 0; f < FIGURES; f++)
            figures[f] = (double)NAN;
        (void)snprintf(path, sizeof path, "/proc/%d/status", pids[i]);
        figures[FIGURE_WAKEUPS] = (double)(after.switches - before[i].switches) / seconds;
        figures[FIGURE_RESIDENT] = (double)status_number(path, "VmRSS:") / 1024.0;
        figures[FIGURE_THREADS] = after.threads;
        what->variant = variants[i];
        r = output_row(&bench->options, what, "gradwire", &none, 0, figures);
    }
    return bench_stopped() ? EX_TEMPFAIL : r;
}

static int with_job(const struct bench *bench, struct bench_case *what)
{
    static const enum bench_variant variants[] = {VARIANT_GRADWIRED_JOB, VARIANT_ENGINE};
    struct local *local = local_new("gradwire", what);
    int pids[] = {bench->daemon.pid, 0};
    int r;

    if (local == NULL)
        return EX_OSERR;
    r = local_start(local, &worker_idle, bench);
    pids[1] = r == 0 ? engine_of(bench->daemon.pid) : 0;
    if (r == 0 && pids[1] == 0) {
        fprintf(stderr, "gwbench: the job's engine is not among the processes\n");
        r = EX_SOFTWARE;
    }
    if (r == 0)
        r = watch(bench, what, pids, variants, 2);
    (void)local_free(local);
    return r;
}

int idle_run(struct bench *bench, uint32_t ranks)
{
    static const enum bench_variant variant = VARIANT_GRADWIRED;
    struct bench_case what = {.op = BENCH_IDLE, .ranks = ranks};
    int r;

    r = watch(bench, &what, &bench->daemon.pid, &variant, 1);
    return r != 0 ? r : with_job(bench, &what);
}

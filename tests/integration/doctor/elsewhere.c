/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into gwctl doctor: another node's files, clock, kernel log and seccomp filter, as the
 * environment says. Whatever it says nothing of is this node's. One thread.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* $ELSEWHERE_ROOT/PATH where there is such a file. */
FILE *fopen(const char *path, const char *mode)
{
    FILE *(*real)(const char *, const char *);
    const char *root = getenv("ELSEWHERE_ROOT");
    char there[1000];

    *(void **)&real = dlsym(RTLD_NEXT, "fopen");
    (void)snprintf(there, sizeof(there), "%s%s", root ? root : "", path);
    return real(root && access(there, F_OK) == 0 ? there : path, mode);
}

FILE *fopen64(const char *path, const char *mode)
{
    return fopen(path, mode);
}

/* From one call to the next, the next of $ELSEWHERE_TICKS milliseconds, over and over. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    int (*real)(clockid_t, struct timespec *);
    const char *ticks = getenv("ELSEWHERE_TICKS");
    static const char *next;
    static long long ms;
    char *end;

    if (!ticks) {
        *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
        return real(clock, now);
    }
    ms += strtoll(next && *next ? next : ticks, &end, 10);
    next = end;
    *now = (struct timespec){ms / 1000, ms % 1000 * 1000000};
    return 0;
}

int klogctl(int type, char *text, int bytes)
{
    int (*real)(int, char *, int);
    const char *log = getenv("ELSEWHERE_LOG");

    if (!log) {
        *(void **)&real = dlsym(RTLD_NEXT, "klogctl");
        return real(type, text, bytes);
    }
    return snprintf(text, (size_t)bytes, "%s", log);
}

int memfd_create(const char *name, unsigned flags)
{
    int (*real)(const char *, unsigned);

    *(void **)&real = dlsym(RTLD_NEXT, "memfd_create");
    if (!getenv("ELSEWHERE_NO_MEMFD"))
        return real(name, flags);
    errno = EPERM;
    return -1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels there are: tables of the CPU builds that FAKEGPU_KERNELS names, opened at start. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/device/cuda/kernel.h"
#include "tests/fakegpu/server_internal.h"

#define KERNELS_MAX 256

static struct kernel kernels[KERNELS_MAX];
static uint32_t kernel_count;

/* On a worker, without the lock: now and then there is time for a store of a host's. */
static void gap(uint64_t *word)
{
    static _Atomic uint64_t count;
    uint64_t random = mix64((uint64_t)(uintptr_t)word ^ ++count);
    struct timespec nap = {.tv_nsec = (long)(random >> 8) % 30000};

    if (random % 16 == 0)
        nanosleep(&nap, NULL);
}

static int load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct gw_kernel_entry *entry = library ? dlsym(library, GW_KERNEL_TABLE) : NULL;
    void (**gap_of)(uint64_t *word) = library ? dlsym(library, GW_KERNEL_GAP) : NULL;

    if (!entry) {
        fprintf(stderr, "fakegpu: %s: %s\n", path, dlerror());
        return -1;
    }
    if (gap_of)
        *gap_of = gap;
    for (; entry->name; entry++) {
        if (kernel_count == KERNELS_MAX || entry->arg_bytes > FG_ARG_MAX) {
            fprintf(stderr, "fakegpu: %s: %s: too many kernels, or its argument is too large\n",
                    path, entry->name);
            return -1;
        }
        struct kernel *kernel = &kernels[kernel_count++];

        snprintf(kernel->name, sizeof(kernel->name), "%s", entry->name);
        kernel->argument_bytes = entry->arg_bytes;
        kernel->run = entry->run;
    }
    return 0;
}

int kernels_load(const char *paths)
{
    char *copy = strdup(paths), *rest = copy, *path;
    int r = copy ? 0 : -1;

    while (!r && (path = strsep(&rest, ":")) != NULL)
        if (*path)
            r = load(path);
    free(copy);
    return r;
}

uint32_t kernel_find(const char *name)
{
    for (uint32_t i = 0; i < kernel_count; i++)
        if (!strcmp(kernels[i].name, name))
            return i + 1;
    return 0;
}

const struct kernel *kernel_at(uint32_t number)
{
    return number && number <= kernel_count ? &kernels[number - 1] : NULL;
}

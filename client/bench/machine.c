/* SPDX-License-Identifier: Apache-2.0 */
/* The machine that was measured: no names, no paths. The coordinator's thread. */
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "client/bench/bench.h"
#include "daemon/base/escape.h"

static double load_before[3];

static void cpu_model(char *model, size_t model_bytes)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];

    (void)snprintf(model, model_bytes, "unknown");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *value = strchr(line, ':');

        if (strncmp(line, "model name", 10) == 0 && value != NULL && value[1] != 0) {
            value[strcspn(value, "\n")] = 0;
            (void)snprintf(model, model_bytes, "%s", value + 2);
            break;
        }
    }
    if (file != NULL)
        fclose(file);
}

/* The word in brackets: what the kernel does about large pages of that kind of memory. */
static void large_pages(const char *kind, char word[32])
{
    char path[64], line[256];
    const char *chosen = NULL;
    FILE *file;

    (void)snprintf(path, sizeof path, "/sys/kernel/mm/transparent_hugepage/%s", kind);
    file = fopen(path, "re");
    if (file != NULL && fgets(line, sizeof line, file) != NULL)
        chosen = strchr(line, '[');
    if (chosen == NULL || sscanf(chosen, "[%31[a-z_]", word) != 1)
        (void)snprintf(word, 32, "unknown");
    if (file != NULL)
        fclose(file);
}

static long long at_least_0(long value)
{
    return value < 0 ? 0 : value;
}

void machine_begin(void)
{
    (void)getloadavg(load_before, 3);
}

void machine_print(void)
{
    char model[256], escaped[ESCAPE_BYTES(256)], release[ESCAPE_BYTES(65)];
    char pages[32], shmem_pages[32];
    double load[3] = {0};
    struct utsname names;

    cpu_model(model, sizeof model);
    large_pages("enabled", pages);
    large_pages("shmem_enabled", shmem_pages);
    (void)getloadavg(load, 3);
    if (uname(&names) < 0)
        memset(&names, 0, sizeof names);
    printf("{\"cpu\": \"%s\", \"arch\": \"%s\", \"cpus_online\": %lld, \"memory_bytes\": %lld,\n"
           "  \"l1d_bytes\": %lld, \"l2_bytes\": %lld, \"l3_bytes\": %lld, \"kernel\": \"%s\", "
           "\"compiler\": \"%s\",\n  \"limit_threads\": 2, \"load_average_before\": [%.2f, %.2f, "
           "%.2f], \"load_average\": [%.2f, %.2f, %.2f],\n  \"large_pages\": "
           "{\"enabled\": \"%s\", \"shmem_enabled\": \"%s\"},\n  \"gwbench\": \"%s\"}",
           escape_string(model, escaped, sizeof escaped), names.machine,
           at_least_0(sysconf(_SC_NPROCESSORS_ONLN)),
           at_least_0(sysconf(_SC_PHYS_PAGES)) * at_least_0(sysconf(_SC_PAGESIZE)),
           at_least_0(sysconf(_SC_LEVEL1_DCACHE_SIZE)), at_least_0(sysconf(_SC_LEVEL2_CACHE_SIZE)),
           at_least_0(sysconf(_SC_LEVEL3_CACHE_SIZE)),
           escape_string(names.release, release, sizeof release), __VERSION__, load_before[0],
           load_before[1], load_before[2], load[0], load[1], load[2], pages, shmem_pages,
           GW_VERSION);
}

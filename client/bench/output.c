/* SPDX-License-Identifier: Apache-2.0 */
/* Samples, percentiles, and what is printed: a table as rows come, or one JSON document. */
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "client/bench/bench.h"
#include "daemon/base/escape.h"

static uint32_t rows;

void samples_add(struct bench_samples *samples, uint64_t ns)
{
    if (samples->count == samples->room) {
        size_t room = samples->room ? samples->room * 2 : 1024;
        uint64_t *more = realloc(samples->ns, room * sizeof *more);

        if (more == NULL)
            return; /* fewer samples are still samples */
        samples->ns = more;
        samples->room = room;
    }
    samples->ns[samples->count++] = ns;
}

void samples_clear(struct bench_samples *samples)
{
    free(samples->ns);
    *samples = (struct bench_samples){0};
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* Nearest rank; sorts. 0 without samples. */
uint64_t samples_percentile(struct bench_samples *samples, uint32_t percent)
{
    if (samples->count == 0)
        return 0;
    qsort(samples->ns, samples->count, sizeof *samples->ns, compare);
    return samples->ns[(samples->count * percent + 99) / 100 - 1];
}

/* nccl-tests' factor from algbw to busbw; a step: 2 or 3 of those of one way. */
static double bus_factor(const struct bench_case *what)
{
    double one_way = (double)(what->ranks - 1) / (double)what->ranks;

    switch (what->op) {
    case BENCH_ALL_REDUCE:
    case BENCH_LATENCY:
        return 2.0 * one_way;
    case BENCH_STEP:
        return what->variant == VARIANT_STAGE3 ? 3.0 * one_way : 2.0 * one_way;
    default:
        return one_way;
    }
}

void output_begin(const struct bench_options *options)
{
    if (options->json)
        printf("{\"schema\": 1, \"rows\": [");
    else
        printf("%-15s %-8s %5s %11s %-9s %11s %11s %9s %9s %8s %7s\n", "op", "variant", "ranks",
               "bytes", "system", "p50 us", "p99 us", "algbw", "busbw", "of limit", "ops");
}

void output_row(const struct bench_options *options, const struct bench_case *what,
                const char *system, struct bench_samples *samples, uint64_t limit_p50_ns)
{
    const char *variant = bench_variant_names[what->variant];
    const char *op = bench_op_names[what->op];
    uint64_t p50 = samples_percentile(samples, 50), p99 = samples_percentile(samples, 99);
    double algbw = p50 > 0 ? (double)what->bytes / (double)p50 : 0.0; /* bytes/ns is GB/s */
    double busbw = algbw * bus_factor(what);
    double of_limit = p50 > 0 ? (double)limit_p50_ns / (double)p50 : 0.0;
    unsigned long long bytes = what->bytes, ops = samples->count;

    rows++;
    if (options->json) {
        printf("%s\n  {\"op\": \"%s\", \"variant\": %s%s%s, \"dtype\": \"fp32\", \"ranks\": %u, "
               "\"bytes\": %llu, \"system\": \"%s\", \"p50_us\": %.3f, \"p99_us\": %.3f, "
               "\"algbw_gbs\": %.4f, \"busbw_gbs\": %.4f, \"ops\": %llu}",
               rows > 1 ? "," : "", op, variant ? "\"" : "", variant ? variant : "null",
               variant ? "\"" : "", what->ranks, bytes, system, (double)p50 / 1e3,
               (double)p99 / 1e3, algbw, busbw, ops);
        return;
    }
    printf("%-15s %-8s %5u %11llu %-9s %11.2f %11.2f %9.3f %9.3f ", op, variant ? variant : "",
           what->ranks, bytes, system, (double)p50 / 1e3, (double)p99 / 1e3, algbw, busbw);
    if (limit_p50_ns > 0)
        printf("%8.2f %7llu\n", of_limit, ops);
    else
        printf("%8s %7llu\n", "", ops);
    (void)fflush(stdout);
}

/* ---- the machine: no names, no paths --------------------------------------------------------- */

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

static long long at_least_0(long value)
{
    return value < 0 ? 0 : value;
}

static void print_machine(void)
{
    char model[256], escaped[ESCAPE_BYTES(256)], release[ESCAPE_BYTES(65)];
    double load[3] = {0};
    struct utsname names;

    cpu_model(model, sizeof model);
    (void)getloadavg(load, 3);
    if (uname(&names) < 0)
        memset(&names, 0, sizeof names);
    printf(
        "\n ],\n \"machine\": {\"cpu\": \"%s\", \"arch\": \"%s\", \"cpus_online\": %lld, "
        "\"memory_bytes\": %lld,\n  \"l1d_bytes\": %lld, \"l2_bytes\": %lld, \"l3_bytes\": %lld, "
        "\"kernel\": \"%s\", \"compiler\": \"%s\",\n  \"limit_threads\": 2, "
        "\"load_average\": [%.2f, %.2f, %.2f], \"gwbench\": \"%s\"}}\n",
        escape_string(model, escaped, sizeof escaped), names.machine,
        at_least_0(sysconf(_SC_NPROCESSORS_ONLN)),
        at_least_0(sysconf(_SC_PHYS_PAGES)) * at_least_0(sysconf(_SC_PAGESIZE)),
        at_least_0(sysconf(_SC_LEVEL1_DCACHE_SIZE)), at_least_0(sysconf(_SC_LEVEL2_CACHE_SIZE)),
        at_least_0(sysconf(_SC_LEVEL3_CACHE_SIZE)),
        escape_string(names.release, release, sizeof release), __VERSION__, load[0], load[1],
        load[2], GW_VERSION);
}

int output_end(const struct bench_options *options)
{
    if (options->json)
        print_machine();
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    fprintf(stderr, "gwbench: standard output could not be written\n");
    return EX_IOERR;
}

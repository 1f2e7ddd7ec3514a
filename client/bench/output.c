/* SPDX-License-Identifier: Apache-2.0 */
/* What is printed: a table as rows come, or one JSON document. The coordinator's thread. */
#include "client/bench/output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/bench/nodes.h"
#include "client/bench/peer.h"

static struct bench_row *rows;
static size_t rows_count, rows_room;

static const char *const figure_names[FIGURES] = {
    [FIGURE_HIDDEN] = "hidden_fraction",
    [FIGURE_COMM] = "comm_us",
    [FIGURE_COMM_ALONE] = "comm_alone_us",
    [FIGURE_EXPOSED] = "exposed_us",
    [FIGURE_COMPUTE] = "compute_us",
    [FIGURE_SLOWED] = "compute_slowed",
    [FIGURE_BESIDE_OFF] = "step_beside_overlap_off",
    [FIGURE_BESIDE_UNSENT] = "step_beside_nothing_sent",
    [FIGURE_BESIDE_STAGE2] = "step_beside_stage2",
    [FIGURE_CALL_P50] = "call_p50_us",
    [FIGURE_CALL_P99] = "call_p99_us",
    [FIGURE_ACQUIRE] = "acquire_us",
    [FIGURE_CLIENTS] = "clients",
    [FIGURE_JOBS] = "jobs",
    [FIGURE_FAILURES] = "failures",
    [FIGURE_WAKEUPS] = "wakeups_per_s",
    [FIGURE_RESIDENT] = "resident_mib",
    [FIGURE_THREADS] = "threads",
    [FIGURE_LINK] = "link_gbits",
};

const struct bench_row *output_rows(size_t *ret_count)
{
    *ret_count = rows_count;
    return rows;
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
        return what->variant == VARIANT_STAGE3 || what->variant == VARIANT_COVERED_STAGE3
                   ? 3.0 * one_way
                   : 2.0 * one_way;
    default:
        return one_way;
    }
}

static struct bench_row *row_new(void)
{
    if (rows_count == rows_room) {
        size_t room = rows_room ? rows_room * 2 : 64;
        struct bench_row *more = realloc(rows, room * sizeof *more);

        if (more == NULL)
            return NULL;
        rows = more;
        rows_room = room;
    }
    return &rows[rows_count++];
}

/* ---- a table --------------------------------------------------------------------------------- */

void output_begin(const struct bench_options *options)
{
    if (!options->json)
        printf("%-15s %-13s %-5s %5s %11s %-9s %11s %11s %9s %9s %8s %7s\n", "op", "variant",
               "dtype", "ranks", "bytes", "system", "p50 us", "p99 us", "algbw", "busbw",
               "of limit", "ops");
}

/* Right-aligned; empty where there is none. */
static void print_cell(int width, int digits, double value)
{
    if (isnan(value))
        printf(" %*s", width, "");
    else
        printf(" %*.*f", width, digits, value);
}

static void print_line(const struct bench_row *row, double of_limit)
{
    const char *variant = bench_variant_names[row->what.variant];
    bool sized = row->what.bytes > 0;

    printf("%-15s %-13s %-5s %5u %11llu %-9s", bench_ops[row->what.op].name, variant ? variant : "",
           sized ? bench_dtype_names[row->what.dtype] : "", row->what.ranks,
           (unsigned long long)row->what.bytes, row->system);
    print_cell(11, 2, row->p50_us);
    print_cell(11, 2, row->p99_us);
    print_cell(9, 3, row->algbw_gbs);
    print_cell(9, 3, row->busbw_gbs);
    print_cell(8, 2, of_limit);
    printf(" %7llu\n", (unsigned long long)row->ops);
    for (uint32_t i = 0; i < FIGURES; i++) {
        if (!isnan(row->figures[i]))
            printf("    %s %.4g\n", figure_names[i], row->figures[i]);
    }
    (void)fflush(stdout);
}

/* ---- one document ---------------------------------------------------------------------------- */

static void print_number(const char *name, int digits, double value)
{
    if (isnan(value))
        printf(", \"%s\": null", name);
    else
        printf(", \"%s\": %.*f", name, digits, value);
}

/* A word in quotes, or null. */
static void print_word(const char *name, const char *word)
{
    printf("\"%s\": %s%s%s, ", name, word ? "\"" : "", word ? word : "null", word ? "\"" : "");
}

static void print_json_row(const struct bench_row *row)
{
    bool sized = row->what.bytes > 0, first = true;
    char shape[16];

    printf("{");
    print_word("op", bench_ops[row->what.op].name);
    print_word("variant", bench_variant_names[row->what.variant]);
    print_word("dtype", sized ? bench_dtype_names[row->what.dtype] : NULL);
    if (row->what.nodes > 0) {
        printf("\"nodes\": %u, ", row->what.nodes);
        print_word("shape", shape_name(row->what.shape_mbit, shape));
    }
    printf("\"ranks\": %u, \"bytes\": %llu, \"system\": \"%s\"", row->what.ranks,
           (unsigned long long)row->what.bytes, row->system);
    print_number("p50_us", 3, row->p50_us);
    print_number("p99_us", 3, row->p99_us);
    print_number("algbw_gbs", 4, row->algbw_gbs);
    print_number("busbw_gbs", 4, row->busbw_gbs);
    printf(", \"ops\": %llu", (unsigned long long)row->ops);
    for (uint32_t i = 0; i < FIGURES; i++) {
        if (isnan(row->figures[i]))
            continue;
        printf("%s\"%s\": %.6g", first ? ", \"figures\": {" : ", ", figure_names[i],
               row->figures[i]);
        first = false;
    }
    printf(first ? "}" : "}}");
}

static void print_document(const struct bench *bench)
{
    printf("{\"schema\": 2, \"rows\": [");
    for (size_t i = 0; i < rows_count; i++) {
        printf("%s\n  ", i > 0 ? "," : "");
        print_json_row(&rows[i]);
    }
    printf("\n ],\n \"peers\": ");
    peers_print(bench->peers);
    if (bench->links != NULL)
        printf(",\n \"links\": \"%s\"", bench->links);
    printf(",\n \"machine\": ");
    machine_print();
    printf("}\n");
}

/* ---- both ------------------------------------------------------------------------------------ */

int output_row(const struct bench_options *options, const struct bench_case *what,
               const char *system, struct bench_samples *samples, uint64_t limit_p50_ns,
               const double *figures)
{
    double p50_ns = (double)samples_percentile(samples, 50);
    double p99_ns = (double)samples_percentile(samples, 99);
    bool moves =
        bench_ops[what->op].has_bandwidth && p50_ns > 0.0 && what->variant != VARIANT_NOTHING_SENT;
    struct bench_row *row = row_new();

    if (row == NULL) {
        fprintf(stderr, "gwbench: no memory for another row\n");
        return EX_OSERR;
    }
    *row = (struct bench_row){.what = *what, .ops = samples->count};
    (void)snprintf(row->system, sizeof row->system, "%s", system);
    row->p50_us = samples->count > 0 ? p50_ns / 1e3 : (double)NAN;
    row->p99_us = samples->count > 0 ? p99_ns / 1e3 : (double)NAN;
    row->algbw_gbs = moves ? (double)what->bytes / p50_ns : (double)NAN; /* bytes/ns is GB/s */
    row->busbw_gbs = row->algbw_gbs * bus_factor(what);
    for (uint32_t i = 0; i < FIGURES; i++)
        row->figures[i] = figures != NULL ? figures[i] : (double)NAN;
    if (!options->json)
        print_line(row,
                   limit_p50_ns > 0 && p50_ns > 0.0 ? (double)limit_p50_ns / p50_ns : (double)NAN);
    return 0;
}

int output_end(const struct bench *bench)
{
    if (bench->options.json)
        print_document(bench);
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    fprintf(stderr, "gwbench: standard output could not be written\n");
    return EX_IOERR;
}

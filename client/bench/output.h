/* SPDX-License-Identifier: Apache-2.0 */
/* Rows as they are printed and drawn. The coordinator's thread. */
#ifndef GW_BENCH_OUTPUT_H
#define GW_BENCH_OUTPUT_H

#include "client/bench/bench.h"

struct bench_row {
    struct bench_case what;
    char system[16];
    double p50_us, p99_us;       /* NAN: no time was taken */
    double algbw_gbs, busbw_gbs; /* NAN: it moves nothing */
    uint64_t ops;
    double figures[FIGURES];
};

/* All rows so far; valid until the next is added. */
const struct bench_row *output_rows(size_t *ret_count);

#endif

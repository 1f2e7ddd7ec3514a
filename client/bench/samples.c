/* SPDX-License-Identifier: Apache-2.0 */
/* Samples and their percentiles. Pure; any thread. */
#include <stdlib.h>

#include "client/bench/bench.h"

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

uint64_t samples_percentile(struct bench_samples *samples, uint32_t percent)
{
    if (samples->count == 0)
        return 0;
    qsort(samples->ns, samples->count, sizeof *samples->ns, compare);
    return samples->ns[(samples->count * percent + 99) / 100 - 1];
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See parts.h. No state. */
#include "daemon/fabric/nccl/parts.h"

#include <string.h>

uint64_t parts_piece(uint64_t bytes, uint32_t inputs, uint64_t most)
{
    uint64_t elements = inputs ? bytes / inputs / sizeof(float) : most;

    if (elements > most)
        elements = most;
    elements -= elements % PARTS_CHUNK;
    return elements ? elements : PARTS_CHUNK;
}

struct parts_range parts_share(uint64_t total, uint64_t share, uint32_t index)
{
    uint64_t first = index * share;
    struct parts_range range = {first, 0};

    if (first < total)
        range.count = total - first < share ? total - first : share;
    return range;
}

static bool continues(const struct fabric_segment *before, const struct fabric_segment *next)
{
    return before->owner == next->owner &&
           (const char *)before->to + before->bytes == (const char *)next->to &&
           (const char *)before->from + before->bytes == (const char *)next->from;
}

uint32_t parts_coalesce(struct fabric_segment *segments, uint32_t count)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (segments[i].bytes == 0 || segments[i].to == segments[i].from)
            continue;
        if (kept > 0 && continues(&segments[kept - 1], &segments[i]))
            segments[kept - 1].bytes += segments[i].bytes;
        else
            segments[kept++] = segments[i];
    }
    return kept;
}

static uint32_t word_at(const uint8_t *bits, uint64_t bytes, uint32_t index)
{
    uint64_t at = (uint64_t)index * 4;
    uint32_t word = 0;

    for (uint32_t i = 0; i < 4 && at + i < bytes; i++)
        word |= (uint32_t)bits[at + i] << 8 * i;
    return word;
}

struct parts_run parts_word_run(const uint8_t *bits, uint64_t bytes, uint32_t first)
{
    uint32_t words = (uint32_t)((bytes + 3) / 4);
    struct parts_run run = {0, 0};

    if (first >= words)
        return run;
    run.word = word_at(bits, bytes, first);
    for (run.words = 1; first + run.words < words; run.words++)
        if (word_at(bits, bytes, first + run.words) != run.word)
            break;
    return run;
}

bool parts_zero_run(const uint8_t *flags, uint32_t count, uint32_t *at, uint32_t *ret_end)
{
    uint32_t end;

    while (*at < count && flags[*at])
        ++*at;
    if (*at >= count)
        return false;
    for (end = *at; end < count && !flags[end]; end++)
        ;
    *ret_end = end;
    return true;
}

bool parts_same(const uint32_t *a, uint32_t a_count, const uint32_t *b, uint32_t b_count)
{
    return a_count == b_count && memcmp(a, b, a_count * sizeof(*a)) == 0;
}

uint32_t parts_index(const uint32_t *members, uint32_t count, uint32_t rank)
{
    for (uint32_t i = 0; i < count; i++)
        if (members[i] == rank)
            return i;
    return UINT32_MAX;
}

void parts_partials(const uint64_t *slice_numel, const uint32_t *slices, uint32_t buckets,
                    uint64_t *starts)
{
    starts[0] = 0;
    for (uint32_t b = 0; b < buckets; b++)
        starts[b + 1] = starts[b] + parts_chunks(slice_numel[b]) * slices[b];
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums over inputs that are subtrees' sums: the bits of the one tree over all leaves, however they
 * are cut into aligned subtrees, on every width of vectors; and how nodes cut them.
 * ctest: timeout=60 link=gw_fabric_ucx
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/device/host/kernels_isa.h"
#include "daemon/fabric/ucx/ucx.h"

#define NUMEL 1537u /* three pieces and one element */
#define LEAVES 64u

static uint64_t state = 88172645463325252ull;

static uint32_t rnd(uint32_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 20) % below);
}

static float leaves[LEAVES][NUMEL], sums[LEAVES][NUMEL];

/* Level by level, neighbours in pairs; an odd last one passes up. */
static float tree(const float *values, uint32_t n)
{
    float level[LEAVES];

    memcpy(level, values, n * sizeof(*values));
    for (; n > 1; n = (n + 1) / 2)
        for (uint32_t i = 0; i < n; i += 2)
            level[i / 2] = i + 1 < n ? level[i] + level[i + 1] : level[i];
    return level[0];
}

static void tree_of(uint32_t first, uint32_t n, float *to)
{
    float values[LEAVES];

    for (uint32_t k = 0; k < NUMEL; k++) {
        for (uint32_t i = 0; i < n; i++)
            values[i] = leaves[first + i][k];
        to[k] = tree(values, n);
    }
}

/* Random nodes in runs, some of which are aligned. */
static void place(uint16_t *node, uint32_t n)
{
    for (uint32_t i = 0; i < n;) {
        uint32_t run = 1u << rnd(5), on = rnd(4);
        for (; run > 0 && i < n; run--)
            node[i++] = (uint8_t)on;
    }
}

static uint32_t inputs_of(const struct ucx_part *parts, uint32_t count, const void **in,
                          struct kernel_subtree *subtrees)
{
    for (uint32_t p = 0; p < count; p++) {
        tree_of(parts[p].first, parts[p].count, sums[p]);
        in[p] = sums[p];
        subtrees[p] = (struct kernel_subtree){
            .first = parts[p].first, .height = parts[p].height, .sum = parts[p].count > 1};
    }
    return count;
}

static void a_cut_tree_has_the_whole_ones_bits(void **unused)
{
    static float want[NUMEL], got[NUMEL];

    (void)unused;
    for (uint32_t turn = 0; turn < 200; turn++) {
        uint32_t n = 1 + rnd(LEAVES), count;
        uint16_t node[LEAVES];
        struct ucx_part parts[LEAVES];
        struct kernel_subtree subtrees[LEAVES];
        const void *in[LEAVES];
        void *out = got;
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = 0; k < NUMEL; k++)
                leaves[i][k] = (float)(int32_t)(rnd(1u << 31) * 2u) / (float)(1u << rnd(30));
        place(node, n);
        count = inputs_of(parts, ucx_parts_cut(node, n, parts), in, subtrees);
        tree_of(0, n, want);
        for (const struct kernel_isa *const *isa = kernel_isas(); *isa; isa++) {
            struct kernel_moved moved = {0, 0};
            memset(got, 0xff, sizeof(got));
            kernel_reduce_with(*isa,
                               &(struct kernel_reduce){.in = in,
                                                       .n = count,
                                                       .subtrees = subtrees,
                                                       .out = &out,
                                                       .outs = 1,
                                                       .count = NUMEL,
                                                       .scale = 1},
                               &moved);
            assert_memory_equal(got, want, sizeof(want));
            assert_int_equal(moved.read, count * NUMEL * 4);
        }
        if (!ucx_parts_plain(subtrees, count))
            continue;
        for (uint32_t k = 0; k < NUMEL; k++) { /* then the plain tree over the sums is it as well */
            float values[LEAVES];
            for (uint32_t p = 0; p < count; p++)
                values[p] = sums[p][k];
            got[k] = tree(values, count);
        }
        assert_memory_equal(got, want, sizeof(want));
    }
}

/* 0.1 in halves, rounded to bf16 as a leaf is 0.10009765625; a sum is taken as it comes. */
static void leaves_are_rounded_and_sums_are_not(void **unused)
{
    static const uint16_t half[3] = {0x2e66, 0x2e66, 0x2e66}; /* 0.0999755859375 */
    static const float sum[3] = {0.3f, 0.3f, 0.3f};
    static const struct kernel_subtree subtrees[3] = {
        {.first = 0, .dtype = GW_DTYPE_FP16},
        {.first = 1, .dtype = GW_DTYPE_FP16},
        {.first = 2, .height = 1, .dtype = GW_DTYPE_FP32, .sum = true}};
    const void *in[3] = {half, NULL, sum};
    float got[3];
    void *out = got;
    struct kernel_moved moved = {0, 0};

    (void)unused;
    kernel_reduce(&(struct kernel_reduce){.in = in,
                                          .n = 3,
                                          .subtrees = subtrees,
                                          .out = &out,
                                          .outs = 1,
                                          .in_dtype = GW_DTYPE_FP16,
                                          .round_dtype = GW_DTYPE_BF16,
                                          .count = 3,
                                          .scale = 1},
                  &moved);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(got[i] == 0.10009765625f + 0.3f);
    assert_int_equal(moved.read, 3 * 2 + 3 * 4);
}

static void check_cut(const uint16_t *node, uint32_t n, const uint32_t (*want)[2], uint32_t count)
{
    struct ucx_part parts[LEAVES];

    assert_int_equal(ucx_parts_cut(node, n, parts), count);
    for (uint32_t p = 0; p < count; p++) {
        assert_int_equal(parts[p].first, want[p][0]);
        assert_int_equal(parts[p].count, want[p][1]);
        assert_int_equal(parts[p].node, node[want[p][0]]);
    }
}

static void a_node_has_maximal_aligned_subtrees(void **unused)
{
    (void)unused;
    check_cut((const uint16_t[]){0, 0, 1, 1}, 4, (const uint32_t[][2]){{0, 2}, {2, 2}}, 2);
    check_cut((const uint16_t[]){0, 1, 1, 1}, 4, (const uint32_t[][2]){{0, 1}, {1, 1}, {2, 2}}, 3);
    check_cut((const uint16_t[]){0, 0, 0, 1, 1}, 5,
              (const uint32_t[][2]){{0, 2}, {2, 1}, {3, 1}, {4, 1}}, 4);
    /* 7 + 8: the last seven of fifteen are one subtree if they begin at 8. */
    check_cut((const uint16_t[]){1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0}, 15,
              (const uint32_t[][2]){{0, 8}, {8, 7}}, 2);
    check_cut((const uint16_t[]){1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0}, 15,
              (const uint32_t[][2]){{0, 4}, {4, 2}, {6, 1}, {7, 1}, {8, 7}}, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cut_tree_has_the_whole_ones_bits),
        cmocka_unit_test(leaves_are_rounded_and_sums_are_not),
        cmocka_unit_test(a_node_has_maximal_aligned_subtrees),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

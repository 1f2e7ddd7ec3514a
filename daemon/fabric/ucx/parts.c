/* SPDX-License-Identifier: Apache-2.0 */
/* How a sum's tree falls onto nodes. Pure; any thread. */
#include "daemon/fabric/ucx/ucx.h"

static bool all_on(const uint16_t *node, uint32_t first, uint32_t end)
{
    for (uint32_t i = first + 1; i < end; i++)
        if (node[i] != node[first])
            return false;
    return true;
}

/* Positions of a subtree of that height; the last ones of the tree may have fewer leaves. */
static uint32_t end_of(uint32_t first, uint8_t height, uint32_t n)
{
    uint32_t end = first + (1u << height);

    return end < n ? end : n;
}

uint32_t ucx_parts_cut(const uint16_t *node, uint32_t n, struct ucx_part *parts)
{
    uint32_t count = 0, end;

    for (uint32_t first = 0; first < n; first = end) {
        uint8_t height = 0;
        end = first + 1;
        while (end < n && first % (2u << height) == 0 &&
               all_on(node, first, end_of(first, (uint8_t)(height + 1), n))) {
            height++;
            end = end_of(first, height, n);
        }
        parts[count++] = (struct ucx_part){
            .first = first, .count = end - first, .height = height, .node = node[first]};
    }
    return count;
}

/* Height in the tree at which input i and the one before it meet. */
static uint32_t meet(const struct kernel_subtree *subtrees, uint32_t i)
{
    return (uint32_t)__builtin_ctz(subtrees[i].first);
}

bool ucx_parts_plain(const struct kernel_subtree *subtrees, uint32_t n)
{
    if (n < 3)
        return true;
    if (n > 4 || meet(subtrees, 1) >= meet(subtrees, 2))
        return false;
    return n == 3 || meet(subtrees, 3) < meet(subtrees, 2);
}

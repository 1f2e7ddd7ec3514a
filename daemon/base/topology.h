/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node's processors and NUMA nodes, as gradwired found them, and the text in which an engine gets
 * them: "0:0-3,8-11 1:4-7,12-15", number and processors of each NUMA node that has some. Pure; any
 * thread.
 */
#ifndef GW_BASE_TOPOLOGY_H
#define GW_BASE_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CPUS_MAX 1024u /* of the kernel's plain calls too (cpu_set_t) */
#define CPUS_WORDS (CPUS_MAX / 64u)
#define TOPOLOGY_NODES_MAX 32u
#define TOPOLOGY_NUMBERS 64u /* NUMA nodes are numbered below: sets of them are one word */
#define TOPOLOGY_TEXT_BYTES 8192u /* more than 1,024 processors by themselves take */

/* Bit i of word i / 64, as in cpu_set_t on 64-bit machines. */
struct cpus {
    uint64_t word[CPUS_WORDS];
};

static inline bool cpus_has(const struct cpus *of, uint32_t cpu)
{
    return of->word[cpu / 64u] >> (cpu % 64u) & 1u;
}

static inline void cpus_add(struct cpus *to, uint32_t cpu)
{
    to->word[cpu / 64u] |= UINT64_C(1) << (cpu % 64u);
}

struct cpus cpus_or(const struct cpus *a, const struct cpus *b);
struct cpus cpus_and(const struct cpus *a, const struct cpus *b);
uint32_t cpus_count(const struct cpus *of);

struct topology {
    uint32_t count; /* 0: not known */
    struct topology_node {
        uint32_t number; /* the kernel's */
        struct cpus cpus;
    } node[TOPOLOGY_NODES_MAX];
};

/* Takes the node up, unless it has no processors of its own (memory alone) or there is no room. */
void topology_add(struct topology *topology, uint32_t number, const struct cpus *cpus);
/* GW_E_LIMIT: it does not fit. */
int topology_text(const struct topology *topology, char *text, size_t text_bytes);
/* GW_E_INVALID. */
int topology_parse(const char *text, struct topology *ret_topology);

#endif

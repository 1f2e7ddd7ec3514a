/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of processors, NUMA nodes, and their text: see topology.h. Pure; any thread. */
#include "daemon/base/topology.h"

#include <stdio.h>
#include <string.h>

#include "gradwire/errors.h"

/* ---- sets ------------------------------------------------------------------------------------ */

struct cpus cpus_or(const struct cpus *a, const struct cpus *b)
{
    struct cpus both;

    for (uint32_t i = 0; i < CPUS_WORDS; i++)
        both.word[i] = a->word[i] | b->word[i];
    return both;
}

struct cpus cpus_and(const struct cpus *a, const struct cpus *b)
{
    struct cpus both;

    for (uint32_t i = 0; i < CPUS_WORDS; i++)
        both.word[i] = a->word[i] & b->word[i];
    return both;
}

uint32_t cpus_count(const struct cpus *of)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < CPUS_WORDS; i++)
        count += (uint32_t)__builtin_popcountll(of->word[i]);
    return count;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

void topology_add(struct topology *topology, uint32_t number, const struct cpus *cpus)
{
    struct cpus known = {{0}}, shared;

    for (uint32_t i = 0; i < topology->count; i++)
        known = cpus_or(&known, &topology->node[i].cpus);
    shared = cpus_and(&known, cpus);
    if (cpus_count(cpus) == 0 || cpus_count(&shared) > 0 || number >= TOPOLOGY_NUMBERS ||
        topology->count == TOPOLOGY_NODES_MAX)
        return;
    topology->node[topology->count++] = (struct topology_node){.number = number, .cpus = *cpus};
}

/* ---- text ------------------------------------------------------------------------------------ */

struct writer {
    char *text;
    size_t bytes, used;
    bool full;
};

static void write_run(struct writer *to, const char *before, uint32_t first, uint32_t last)
{
    char run[32];
    int n = first == last ? snprintf(run, sizeof(run), "%s%u", before, first)
                          : snprintf(run, sizeof(run), "%s%u-%u", before, first, last);

    if (n < 0 || to->used + (size_t)n >= to->bytes) {
        to->full = true;
        return;
    }
    memcpy(to->text + to->used, run, (size_t)n + 1);
    to->used += (size_t)n;
}

static void write_node(struct writer *to, const char *before, const struct topology_node *node)
{
    const char *separator = ":";

    write_run(to, before, node->number, node->number);
    for (uint32_t cpu = 0; cpu < CPUS_MAX; cpu++) {
        uint32_t first = cpu;
        if (!cpus_has(&node->cpus, cpu))
            continue;
        while (cpu + 1 < CPUS_MAX && cpus_has(&node->cpus, cpu + 1))
            cpu++;
        write_run(to, separator, first, cpu);
        separator = ",";
    }
}

int topology_text(const struct topology *topology, char *text, size_t text_bytes)
{
    struct writer to = {.text = text, .bytes = text_bytes};

    if (text_bytes > 0)
        text[0] = 0;
    for (uint32_t i = 0; i < topology->count; i++)
        write_node(&to, i > 0 ? " " : "", &topology->node[i]);
    return to.full ? GW_E_LIMIT : 0;
}

/* Plain digits below `end`; UINT32_MAX: there are none, or too large a number. */
static uint32_t read_number(const char **at, uint32_t end)
{
    uint32_t value = 0;

    if (**at < '0' || **at > '9')
        return UINT32_MAX;
    for (; **at >= '0' && **at <= '9'; (*at)++) {
        value = value * 10 + (uint32_t)(**at - '0');
        if (value >= end)
            return UINT32_MAX;
    }
    return value;
}

static bool read_node(const char **at, struct topology *topology)
{
    struct cpus cpus = {{0}};
    uint32_t number = read_number(at, TOPOLOGY_NUMBERS), count = topology->count;

    if (number == UINT32_MAX || **at != ':')
        return false;
    do {
        uint32_t first, last;
        (*at)++;
        first = last = read_number(at, CPUS_MAX);
        if (**at == '-') {
            (*at)++;
            last = read_number(at, CPUS_MAX);
        }
        if (first == UINT32_MAX || last == UINT32_MAX || last < first)
            return false;
        for (uint32_t cpu = first; cpu <= last; cpu++)
            cpus_add(&cpus, cpu);
    } while (**at == ',');
    topology_add(topology, number, &cpus);
    return topology->count > count;
}

int topology_parse(const char *text, struct topology *ret_topology)
{
    struct topology topology = {0};

    do {
        if (topology.count > 0)
            text++;
        if (!read_node(&text, &topology))
            return GW_E_INVALID;
    } while (*text == ' ');
    if (*text)
        return GW_E_INVALID;
    *ret_topology = topology;
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Networks of nodes, and the cases on each; see nodes.h. The coordinator's thread. */
#include "client/bench/nodes.h"

#include <string.h>

#include "client/bench/peer.h"
#include "daemon/base/parse.h"

/* ---- words ----------------------------------------------------------------------------------- */

bool shape_parse(const char *word, uint64_t *ret_mbit)
{
    size_t length = strlen(word);
    char digits[8];
    bool giga;

    if (strcmp(word, "none") == 0) {
        *ret_mbit = 0;
        return true;
    }
    if (length < 2 || length > sizeof digits ||
        (word[length - 1] != 'G' && word[length - 1] != 'M'))
        return false;
    giga = word[length - 1] == 'G';
    (void)snprintf(digits, sizeof digits, "%.*s", (int)length - 1, word);
    if (parse_u64(digits, 1, giga ? 400 : 400000, ret_mbit) < 0)
        return false;
    *ret_mbit *= giga ? 1000 : 1;
    return true;
}

const char *shape_name(uint64_t mbit, char name[16])
{
    if (mbit == 0)
        return NULL;
    (void)snprintf(name, 16, mbit % 1000 == 0 ? "%lluG" : "%lluM",
                   (unsigned long long)(mbit % 1000 == 0 ? mbit / 1000 : mbit));
    return name;
}

uint32_t nodes_of_rank(const struct bench_case *what, uint32_t rank)
{
    if (what->nodes == 0)
        return 0;
    return what->variant == VARIANT_DEALT ? rank % what->nodes : rank / (what->ranks / what->nodes);
}

uint64_t nodes_crossing_bytes(const struct bench_case *what)
{
    uint64_t once = what->bytes / what->nodes * (what->nodes - 1);

    return (what->op == BENCH_ALL_REDUCE || what->op == BENCH_LATENCY ? 2 * once : once) /
           sizeof(float) * sizeof(float);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* With one rank on each node, both ways to place them are the same. */
static int run_size(struct bench *bench, const struct bench_case *base)
{
    struct bench_case what = *base;
    int r;

    what.variant = VARIANT_BLOCKS;
    r = case_run(bench, &what);
    what.variant = VARIANT_DEALT;
    if (r == 0 && what.ranks > what.nodes)
        r = case_run(bench, &what);
    return r;
}

static int run_dtype(struct bench *bench, const struct bench_case *base)
{
    const struct bench_options *o = &bench->options;
    uint64_t granule = bench_granule(o->op, base->ranks, base->dtype);
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < o->sizes_count; i++) {
        struct bench_case what = *base;

        what.bytes = o->sizes[i] / granule * granule;
        r = run_size(bench, &what);
    }
    return r;
}

static int run_ranks(struct bench *bench, uint32_t ranks)
{
    const struct bench_options *o = &bench->options;
    const struct nodes *nodes = bench->nodes;
    struct bench_case what = {
        .op = o->op, .ranks = ranks, .nodes = nodes->count, .shape_mbit = nodes->shape_mbit};
    int r = 0;

    if (o->op == BENCH_STORM)
        return storm_run(bench, &what);
    for (uint32_t i = 0; r == 0 && i < o->dtypes_count; i++) {
        what.dtype = o->dtypes[i];
        r = run_dtype(bench, &what);
    }
    return r;
}

/* ---- a network ------------------------------------------------------------------------------- */

static int start_daemons(struct bench *bench)
{
    struct nodes *nodes = bench->nodes;
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < nodes->count; i++)
        r = daemon_start(&nodes->list[i].daemon, bench->directory, &bench->options, &nodes->list[i],
                         i);
    return r;
}

static bool stop_daemons(struct nodes *nodes)
{
    bool by_themselves = true;

    for (uint32_t i = 0; i < nodes->count; i++)
        by_themselves = daemon_stop(&nodes->list[i].daemon) && by_themselves;
    return by_themselves;
}

static void tell_network(const struct bench *bench)
{
    const struct nodes *nodes = bench->nodes;
    char name[16];
    const char *shape = shape_name(nodes->shape_mbit, name);

    if (!bench->options.json)
        printf("%u nodes, %s, %s%s\n", nodes->count,
               nodes->is_loopback ? "all on loopback" : "in network namespaces",
               shape ? "each link shaped to bits per second of " : "links not shaped",
               shape ? shape : "");
    if (nodes->is_loopback && bench->options.peers)
        fprintf(stderr, "gwbench: no peers on %u nodes: on loopback they would use shared memory\n",
                nodes->count);
}

/* Shaping is left out where there is nothing to shape. */
static int on_network(struct bench *bench)
{
    const struct bench_options *o = &bench->options;
    struct nodes *nodes = bench->nodes;
    char name[16];
    int r;

    if (nodes->is_loopback && nodes->shape_mbit > 0) {
        fprintf(stderr, "gwbench: not shaped to %s, and left out: there are no namespaces\n",
                shape_name(nodes->shape_mbit, name));
        return 0;
    }
    r = nodes_agent(nodes, bench->directory);
    if (r == 0)
        r = start_daemons(bench);
    if (r != 0)
        return r;
    bench->links = nodes->is_loopback ? "loopback" : "veth";
    tell_network(bench);
    for (uint32_t i = 0; r == 0 && i < o->ranks_count; i++)
        r = run_ranks(bench, (uint32_t)o->ranks[i] * nodes->count);
    return r;
}

static int run_network(struct bench *bench, uint32_t count, uint64_t shape_mbit)
{
    static struct nodes nodes;
    int r;

    r = network_start(&nodes, bench->directory, count, shape_mbit);
    bench->nodes = &nodes;
    if (r == 0)
        r = on_network(bench);
    if (!stop_daemons(&nodes) && r == 0) {
        fprintf(stderr, "gwbench: a node's gradwired or an engine did not end by itself\n");
        r = EX_SOFTWARE;
    }
    bench->nodes = NULL;
    network_stop(&nodes);
    return r;
}

int nodes_run(struct bench *bench)
{
    const struct bench_options *o = &bench->options;
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < o->nodes_count; i++) {
        for (uint32_t j = 0; r == 0 && j < o->shapes_count; j++)
            r = run_network(bench, (uint32_t)o->nodes[i], o->shapes[j]);
    }
    return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an MPI's ranks come onto the nodes: its launcher runs on the first and starts its own daemon
 * on each other node through the agent, as it would by ssh. The coordinator's thread.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "client/bench/nodes.h"
#include "client/bench/peer.h"

/* Options are ssh's; a host's command comes in one word or in many. Each node has a host name: by
 * that Open MPI names its shared memory. */
int nodes_agent(struct nodes *nodes, const char *directory)
{
    FILE *file;
    bool written;

    (void)snprintf(nodes->agent, sizeof nodes->agent, "%.110s/agent", directory);
    file = fopen(nodes->agent, "we");
    if (file == NULL || fchmod(fileno(file), 0700) < 0) {
        fprintf(stderr, "gwbench: cannot write %s: %s\n", nodes->agent, strerror(errno));
        if (file != NULL)
            fclose(file);
        return EX_CANTCREAT;
    }
    fprintf(file, "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\n"
                  "host=$1\nshift\ncase $host in\n");
    for (uint32_t i = 0; i < nodes->count; i++) {
        fprintf(file, "%s) exec", nodes->list[i].address);
        for (const char *const *word = nodes->list[i].enter; *word != NULL; word++)
            fprintf(file, " %s", *word);
        fprintf(file, " unshare --uts sh -c 'hostname node%u && exec sh -c \"$*\"' sh \"$@\" ;;\n",
                i);
    }
    fprintf(file, "*) echo \"agent: no node is $host\" >&2; exit 1 ;;\nesac\n");
    written = ferror(file) == 0;
    return fclose(file) == 0 && written ? 0 : EX_CANTCREAT;
}

/* "ADDRESS:RANKS,...". */
static void hosts(const struct nodes *nodes, uint32_t each, char *list, size_t list_bytes)
{
    size_t used = 0;

    for (uint32_t i = 0; i < nodes->count && used < list_bytes; i++)
        used += (size_t)snprintf(list + used, list_bytes - used, "%s%s:%u", i > 0 ? "," : "",
                                 nodes->list[i].address, each);
}

static const char **add(const char **argv, const char *const words[])
{
    while (*words != NULL)
        *argv++ = *words++;
    return argv;
}

void nodes_launch(const struct nodes *nodes, const struct peer *peer, const struct bench_case *what,
                  const char **argv)
{
    static char list[NODES_MAX * 56], ranks[16], devices[40], provider[40], map[48];
    const char *interface = nodes->list[0].interface;
    bool is_dealt = what->variant == VARIANT_DEALT;
    bool is_openmpi = strcmp(peer->kind->name, "openmpi") == 0;
    uint32_t each = what->ranks / nodes->count;

    /* Hydra deals when it has gone through all hosts; Open MPI when it is told to. */
    hosts(nodes, is_dealt && !is_openmpi ? 1 : each, list, sizeof list);
    (void)snprintf(ranks, sizeof ranks, "%u", what->ranks);
    /* Open MPI 5 counts slots of addresses by rules of its own: oversubscribed or not, so many are
     * wanted on each node. */
    if (is_dealt)
        (void)snprintf(map, sizeof map, "node:OVERSUBSCRIBE");
    else
        (void)snprintf(map, sizeof map, "ppr:%u:node:OVERSUBSCRIBE", each);
    (void)snprintf(devices, sizeof devices, "UCX_NET_DEVICES=%s", interface);
    (void)snprintf(provider, sizeof provider, "FI_TCP_IFACE=%s", interface);
    argv = add(argv, nodes->list[0].enter);
    /* Between nodes the link only: by UCX or libfabric, whichever that MPICH is built with. */
    argv = add(argv, (const char *const[]){"env", "UCX_TLS=tcp,self", devices, "FI_PROVIDER=tcp",
                                           provider, peer->launcher, NULL});
    /* Each of Open MPI's daemons takes all processors for its own, and would bind to the first. */
    if (is_openmpi)
        argv = add(argv, (const char *const[]){
                             "--bind-to", "none", "--mca", "plm_rsh_agent", nodes->agent, "--mca",
                             "btl_tcp_if_include", interface, "--mca", "oob_tcp_if_include",
                             interface, "--map-by", map, "-H", list, NULL});
    else
        argv = add(argv, (const char *const[]){"-launcher", "ssh", "-launcher-exec", nodes->agent,
                                               "-hosts", list, NULL});
    argv = add(argv, (const char *const[]){"-n", ranks, peer->program, NULL});
    *argv = NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sole user of hwloc: the node's NUMA nodes and their processors are read once, and kept as the
 * text that engines are given. Loop thread, before the loop runs.
 *
 * hwloc's plug-ins would bring CUDA and display libraries into gradwired, and its x86 part would
 * run on every processor in turn; devices it leaves out unless asked.
 */
#include <hwloc.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/supervisor/log.h"
#include "daemon/supervisor/supervisor.h"

/* Those of other jobs too: what an engine may use is found where it runs. */
static int load(hwloc_topology_t hwloc)
{
    if (hwloc_topology_set_flags(hwloc, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) < 0 ||
        hwloc_topology_set_components(hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86") < 0)
        return -1;
    return hwloc_topology_load(hwloc);
}

static void take_nodes(hwloc_topology_t hwloc, struct topology *topology)
{
    hwloc_obj_t node = NULL;

    while ((node = hwloc_get_next_obj_by_type(hwloc, HWLOC_OBJ_NUMANODE, node)) != NULL) {
        struct cpus cpus = {{0}};

        for (unsigned cpu = 0; cpu < CPUS_MAX; cpu++) {
            if (hwloc_bitmap_isset(node->cpuset, cpu))
                cpus_add(&cpus, cpu);
        }
        topology_add(topology, node->os_index, &cpus);
    }
}

void topology_load(struct supervisor *sup)
{
    struct topology topology = {0};
    hwloc_topology_t hwloc = NULL;
    bool loaded;

    (void)setenv("HWLOC_PLUGINS_PATH", "/nonexistent", 1);
    loaded = hwloc_topology_init(&hwloc) == 0 && load(hwloc) == 0;
    (void)unsetenv("HWLOC_PLUGINS_PATH");
    if (loaded)
        take_nodes(hwloc, &topology);
    if (hwloc != NULL)
        hwloc_topology_destroy(hwloc);
    if (topology_text(&topology, sup->topology, sizeof(sup->topology)) < 0)
        sup->topology[0] = '\0';
    if (sup->topology[0] == '\0')
        log_warning("this node's topology could not be read: engines are not placed by it");
    else
        log_debug("NUMA nodes %s", sup->topology);
}

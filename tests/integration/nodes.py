# SPDX-License-Identifier: Apache-2.0
"""Several nodes for tests: a gradwired each, in network namespaces where the kernel gives them.

    with nodes.Cluster(directory, 3) as cluster:
        gw.run(4, rank, 4, {"socket": cluster.spread("dealt"), ...})

Clients talk to their gradwired by its socket's path, so that ranks need not be in its namespace.
"""
import contextlib
import os

import gw
import network
from conftest import CONFIG, Daemon, device_args, serving

SECTION = "[nodes]\nnode_name = node{node}\nstar_interface = {interface}\n"


class Node(Daemon):
    """A gradwired on a node of a network."""

    def __init__(self, directory, prefix, **options):
        super().__init__(directory, **options)
        self.prefix = prefix

    def command(self):
        return [*self.prefix, *super().command()]


class Cluster:
    """.nodes: list of Daemon; .network. At the end of `with` nothing is left on any node."""

    def __init__(self, directory, count, config="", rate=None, namespaces=None, env=None, lost=()):
        """config: more lines of section [nodes]. lost: nodes whose leftovers are no fault."""
        self.network = network.Network(count, rate, namespaces)
        self.nodes = []
        for node in range(count):
            place = directory / f"n{node}"
            place.mkdir()
            interface = self.network.interface(node)
            conf = directory / f"n{node}.conf"
            conf.write_text(CONFIG + SECTION.format(node=node, interface=interface) + config)
            # All is one machine: shared memory would reach from node to node.
            own = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": interface, "FAKEGPU_NODE": str(node),
                   "CUDA_FAKEGPU_NODE": str(node), **(env or {})}
            self.nodes.append(Node(place, self.network.prefix(node), env=own,
                                   args=["--config", str(conf), *device_args()]))
        self.stack = contextlib.ExitStack()
        self.lost = lost

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.callback(self.network.close)
            for node in self.nodes:
                stack.enter_context(serving(node))
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        return self.stack.__exit__(*error)

    def spread(self, place="blocks"):
        return gw.Spread([node.socket for node in self.nodes], place)

    def engines(self):
        """Lists of pids, by node."""
        return [node.engines() for node in self.nodes]

    def logs(self):
        return "".join(f"---- node {n}\n{node.log()}" for n, node in enumerate(self.nodes))


def of_test(request, directory):
    """For a test that runs on one node as well: how many nodes, and which rank is where, by its
    name."""
    count, place = ((2, "blocks"), (2, "dealt"), (3, "blocks"), (3, "dealt"))[
        sum(os.fsencode(request.node.nodeid)) % 4]
    print(f"{count} nodes, ranks {'dealt' if place == 'dealt' else 'in blocks'}")
    return Cluster(directory, count), place

# SPDX-License-Identifier: Apache-2.0
"""Several nodes for tests: a gradwired each, in network namespaces where the kernel gives them.

    with nodes.Cluster(directory, 3) as cluster:
        gw.run(4, rank, 4, {"socket": cluster.spread("dealt"), ...})

Clients talk to their gradwired by its socket's path, so that ranks need not be in its namespace.
"""
import contextlib
import inspect
import re

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

    def __init__(self, directory, count, config="", rate=None, namespaces=None, env=None, lost=(),
                 lent=None):
        """config: more lines of section [nodes]. lost: nodes whose leftovers are no fault. lent: a
        network that stays."""
        self.network = lent or network.Network(count, rate, namespaces)
        self.closes = lent is None
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
            if self.closes:
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


# ---- the same tests once more --------------------------------------------------------------------

COUNTS = (2, 3)


def ranks_of(item):
    """How many ranks a test starts at most, as its source says: no job is on more nodes. Where it
    does not say so, enough for all COUNTS."""
    known = {**item.function.__globals__, **item.callspec.params}
    said = re.findall(r"gw\.(?:run|Ranks)\((\w+)", inspect.getsource(item.function))
    numbers = [str(known.get(word, word)) for word in said]
    return max((int(n) for n in numbers if n.isdigit()), default=max(COUNTS))


def spreads(item):
    """Whether a test can run on as many nodes as its parameters say."""
    return "cluster" in item.fixturenames and not item.get_closest_marker("one_node") and \
        ranks_of(item) >= item.callspec.params["cluster"]


def place_of(item, count):
    """In blocks on two nodes and dealt to three, or the other way around: its name decides."""
    return ("blocks", "dealt")[(sum(item.originalname.encode()) + count) % 2]

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nodes on one machine: a network namespace each, joined by veth and a bridge.

Root or whoever may make user namespaces gets them; elsewhere all nodes are this machine, on
loopback, and .why says why. The namespaces have no names and are held by processes that die with
the one that made them, however it ends; the kernel then takes down what was in them. Nothing
outside of them is touched. Used by the tests (nodes.py) and, as a program, by demo.sh and by
gwbench, which carries it:

    network.py NODES [RATE]     one line per node: its interface, its address, then a command that
                                enters it; the network is there until standard input ends
"""
import contextlib
import os
import re
import shutil
import subprocess
import sys

# Where Debian keeps ip and tc, also for users whose PATH does not lead there.
PATH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
NEEDED = ("unshare", "nsenter", "setpriv", "ip")


def without_preload():
    """A sanitizer is for our programs, not for those that make the network."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


class Refused(Exception):
    """A command in the network failed; its text says why."""


class Switch:
    """A shell in a namespace of its own, where the bridge is; commands go to its standard input,
    and it ends with that."""

    def __init__(self, unshare):
        self.held = []
        self.shell = subprocess.Popen([*unshare, "sh"], stdin=subprocess.PIPE, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      env={**without_preload(), "PATH": PATH, "LC_ALL": "C"})

    def run(self, script):
        """Its output; Refused if a command of it failed."""
        with contextlib.suppress(BrokenPipeError):
            self.shell.stdin.write(f"(set -e\n{script}\n)\necho \"@$?\"\n")
            self.shell.stdin.flush()
        said = ""
        while True:
            line = self.shell.stdout.readline()
            if line.startswith("@") or not line:
                break
            said += line
        if line.strip() != "@0":
            raise Refused(said.strip() or f"the shell ended with {self.shell.wait()}")
        return said

    def hold(self, command):
        """The pid of a process that is started in the background and has said that it is there."""
        self.shell.stdin.write(f"{command} & echo \"$!\"\n")
        self.shell.stdin.flush()
        lines = [self.shell.stdout.readline().strip() for _ in range(2)]
        if "there" not in lines:
            raise Refused(" ".join(lines))
        lines.remove("there")
        self.held.append(lines[0])
        return int(lines[0])

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.shell.stdin.write(f"kill {' '.join(self.held)}; wait\n" if self.held else "")
            self.shell.stdin.close()
        self.shell.wait()
        self.shell.stdout.close()


class Network:
    """.nodes places; .why is None, or why they are all this machine."""

    def __init__(self, nodes, rate=None, namespaces=None):
        """rate: of each node's link, as tc writes it ("1gbit"); None: unshaped. namespaces: True:
        or fail; False: loopback."""
        self.nodes, self.switch, self.pids, self.why = nodes, None, [], None
        self.mounts = []
        try:
            if namespaces is False:
                raise Refused("loopback was asked for")
            self._make(rate)
        except (Refused, OSError) as error:
            self.close()
            if namespaces:
                raise
            self.why = str(error)

    def _make(self, rate):
        missing = [name for name in NEEDED + (("tc",) if rate else ())
                   if not shutil.which(name, path=PATH)]
        if missing:
            raise Refused(f"not installed: {' '.join(missing)}")
        ways = [["unshare", "--net"]] if os.geteuid() == 0 else []
        # As oneself, not as root: a gradwired in there is that of a user.
        self.own_users = ["--user", "--map-current-user", "--keep-caps"]
        ways.append(["unshare", *self.own_users, "--net"])
        for way in ways:
            try:
                self._lay(way)
                break
            except Refused:
                self._drop()
                if way is ways[-1]:
                    raise
        if rate:
            self.shape(rate)

    def _lay(self, way):
        self.enter = ["-U", "--preserve-credentials"] if "--user" in way else []
        self.switch = Switch(way)
        self.switch.run("ip link add br0 type bridge && ip link set br0 up")
        for node in range(self.nodes):
            # UCX looks for interfaces in /sys, which shows those of whoever has mounted it.
            pid = self.switch.hold("unshare --net --mount setpriv --pdeathsig KILL sh -c '"
                                   "mount -t sysfs sysfs /sys 2>/dev/null; echo there; "
                                   "exec sleep infinity'")
            self.pids.append(pid)
            self.switch.run(f"""
                ip link add p{node} type veth peer name eth0 netns {pid}
                ip link set p{node} master br0 up
                {self.inside(node)} ip link set lo up
                {self.inside(node)} ip address add {self.address(node)}/24 dev eth0
                {self.inside(node)} ip link set eth0 up""")
        # Who lives in a chroot would leave it: then all nodes have its /sys.
        if self.switch.run(f"{self.inside(0)} -m stat -c %d:%i /").split() == [
                "{0.st_dev}:{0.st_ino}".format(os.stat("/"))]:
            self.mounts = ["-m"]

    def inside(self, node):
        """For commands of the switch's shell, which has the rights."""
        return f"nsenter -t {self.pids[node]} -n"

    # ---- what a node is ----

    def prefix(self, node):
        """A command that runs what follows on the node."""
        if self.why is not None:
            return []
        return ["nsenter", "-t", str(self.pids[node]), *self.enter, "-n", *self.mounts, "--"]

    def interface(self, node):  # pylint: disable=unused-argument
        return "lo" if self.why is not None else "eth0"

    def address(self, node):
        return "127.0.0.1" if self.why is not None else f"10.77.0.{node + 1}"

    # ---- what may happen to it ----

    def shape(self, rate, limit="latency 50ms", burst=None):
        """Both ways of all nodes' links. limit: of what waits; what is more is dropped. burst:
        bytes that may pass at once (what comes between two ticks of a slow clock)."""
        burst = burst or max(64 << 10, rate_bits(rate) // 8 // 100)
        tbf = f"root tbf rate {rate} burst {burst} {limit}"
        for node in range(self.nodes):
            self.switch.run(f"tc qdisc replace dev p{node} {tbf}\n"
                            f"{self.inside(node)} tc qdisc replace dev eth0 {tbf}")

    def dropped(self, node):
        """Packets that the node's link has dropped, since it was shaped last."""
        said = self.switch.run(f"tc -s qdisc show dev p{node}\n"
                               f"{self.inside(node)} tc -s qdisc show dev eth0")
        return sum(map(int, re.findall(r"dropped (\d+)", said)))

    def unplug(self, node):
        """The link is down, and the node sees it."""
        self.switch.run(f"ip link set p{node} down")

    def cut(self, node):
        """Nothing comes through any more, and nobody is told."""
        self.switch.run(f"ip link set p{node} nomaster")

    def deafen(self, node):
        """It sends, and hears nothing."""
        self.switch.run(f"tc qdisc replace dev p{node} root blackhole")

    def mend_all(self):
        for node in range(self.nodes):
            self.switch.run(f"ip link set p{node} master br0 up\n"
                            f"tc qdisc del dev p{node} root 2>/dev/null || true")

    # ---- end ----

    def _drop(self):
        if self.switch:
            self.switch.close()
        self.switch, self.pids = None, []

    def close(self):
        self._drop()


def rate_bits(rate):
    """Bits per second of "1gbit"."""
    for unit, factor in (("gbit", 10**9), ("mbit", 10**6), ("kbit", 10**3), ("bit", 1)):
        if rate.endswith(unit):
            return int(rate[:-len(unit)]) * factor
    raise ValueError(rate)


def main(arguments):
    network = Network(int(arguments[0]), *arguments[1:])
    if network.why is not None:
        print(f"network.py: no network namespaces: {network.why}", file=sys.stderr)
    for node in range(network.nodes):
        print(network.interface(node), network.address(node), *network.prefix(node), flush=True)
    sys.stdin.read()
    network.close()


if __name__ == "__main__":
    main(sys.argv[1:])

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""An engine that serves nothing, for tests of gradwired: says ready, greets clients, is adopted.

$GRADWIRE_FAKE is what it does wrong: mute, die, refuse, garbage, deaf (takes no adoption),
stubborn (does not end when told), stray (follows no tag that it was given), hostile (scribbles over
its statistics page), older (its page ends before cross_node_bytes), closing and closed (when it
ends it takes nothing more from its channel, or closes it, makes a file beside the runtime
directory, <directory>.ending, and ends when there is another, <directory>.go). With "hold " before
it, it first waits for that other.
It ends --linger-ns after its last client has left.
"""
import argparse
import fcntl
import hashlib
import mmap
import os
import select
import signal
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import wire  # noqa: E402

MODE = os.environ.get("GRADWIRE_FAKE", "")
HOLD, MODE = MODE.startswith("hold"), MODE.removeprefix("hold").strip()
STATS = struct.Struct("<IIII I IIIII QQQ 5Q 5Q 5Q 64s 496s 16s 32s 5Q")


def options():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("channel-fd", "listen-fd", "lock-fd", "stats-fd", "owner-uid", "linger-ns",
                 "memory-max-bytes", "stall-report-ns", "star-beat-ns", "star-lost-ns"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--device", choices=["auto", "host", "cuda"], required=True)
    parser.add_argument("--worker-priority", choices=["equal", "nice", "idle"], required=True)
    parser.add_argument("--plugins")
    parser.add_argument("--topology")
    parser.add_argument("--star-ports", required=True)
    for name in ("star-interface", "node-name", "follow"):
        parser.add_argument("--" + name)
    return parser.parse_args()


def write_stats(page, clients, name=b"fake", wait=b""):
    values = [0x31485347, 1, 4, STATS.size, 0, 3, 4, clients, 2, 1, 7, 0, 1 << 20]
    values += [1, 2, 3, 4, 5] + [10] * 5 + [20] * 5
    stats = STATS.pack(*values, name, wait, b"fake", b"fake exact", *range(30, 35))
    page[:STATS.size - (40 if MODE == "older" else 0)] = stats[:-40 if MODE == "older" else None]


def scribble(page):
    """Huge numbers, a name without an end, control characters."""
    page[16:] = b"\xff" * (len(page) - 16)
    page[16:20] = struct.pack("<I", 2)
    at = STATS.size - 40 - 32 - 16 - 496 - 64
    page[at:at + 64] = b"\x1b[2J\n\x07" + b"x" * 58


class Engine:
    def __init__(self, o):
        # What exec gave us must not go further, and nothing else may have come.
        extra = [fd for fd in map(int, os.listdir("/proc/self/fd"))
                 if fd > 2 and fd not in (o.channel_fd, o.listen_fd, o.lock_fd, o.stats_fd)
                 and os.path.exists(f"/proc/self/fd/{fd}")
                 and not os.readlink(f"/proc/self/fd/{fd}").startswith("/proc/")]
        if extra:
            raise SystemExit(f"fake engine: descriptors leaked into exec: {extra}")
        self.owner = o.owner_uid
        self.channel = wire.Connection(socket.socket(fileno=o.channel_fd))
        self.listener = socket.socket(fileno=o.listen_fd)
        self.go = os.path.normpath(self.listener.getsockname() + "/../../..") + ".go"
        self.stats_fd = o.stats_fd
        self.linger = o.linger_ns / 1e9
        self.page = mmap.mmap(o.stats_fd, 4096)
        self.tag = bytes.fromhex(o.follow) if o.follow and MODE != "stray" else \
            hashlib.blake2b(os.urandom(32), digest_size=8).digest()
        self.nodes = f"{o.star_interface} {o.star_ports} {o.star_beat_ns} {o.star_lost_ns} " \
                     f"{o.node_name}"
        self.clients = []
        self.alone_since = time.monotonic() + 30  # the first client is on its way
        fcntl.fcntl(o.lock_fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)

    def ready(self, fds=()):
        self.channel.send(wire.frame("ENGINE_READY", 0, {1: 1, 2: self.tag, 3: os.getpid()}), fds)

    def show(self):
        if MODE == "hostile":
            scribble(self.page)
        else:
            write_stats(self.page, len(self.clients))

    def lease(self, text):
        """Asks for a GPU of that name: "lease CODE DESCRIPTORS TEXT"."""
        self.channel.send(wire.frame("LEASE_GET", 0, {1: text.removeprefix("lease ")}))
        answer = self.channel.receive()
        code = wire.unzigzag(answer.number(1))
        return f"lease {code} {len(answer.fds)} {answer.text(3)}"

    def on_channel(self):
        try:
            message = self.channel.receive(0)
        except wire.Closed:
            self.channel = None
            return
        if message.type == "HANDOVER":
            client = wire.Connection(socket.socket(fileno=message.fds[0]))
            # The real one sends three descriptors along.
            client.send(wire.frame("WELCOME", 0, {1: 1, 3: os.getpid()}))
            client.hello = message.fields[1][0]
            self.clients.append(client)
            self.show()
        elif message.type == "ENGINE_STOP" and MODE != "stubborn":
            raise SystemExit(0)

    def on_listener(self):
        sock, _ = self.listener.accept()
        uid = struct.unpack("iii", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if uid not in (0, os.getuid(), self.owner):
            sock.close()
            return
        self.channel = wire.Connection(sock)
        self.ready([self.stats_fd])

    def on_client(self, client):
        """Gives back what it gets, so that tests see where their packets went."""
        try:
            message = client.receive(0)
        except wire.Closed:
            self.clients.remove(client)
            self.alone_since = time.monotonic()
            self.show()
            return
        if message.type == "DONE" and message.text(2).startswith("lease "):
            client.send(wire.frame("DONE", message.request, {1: 0, 2: self.lease(message.text(2))}))
            return
        text = f"uid={os.getuid()} gid={os.getgid()} groups={sorted(os.getgroups())}"
        if message.type == "DONE" and message.text(2) == "nodes":
            text = self.nodes
        client.send(wire.frame("DONE", message.request, {1: 0, 2: text}))

    def turn(self):
        watched = [c.sock for c in self.clients]
        watched += [self.channel.sock] if self.channel else []
        watched += [self.listener] if MODE != "deaf" else []
        for sock in select.select(watched, [], [], 0.05)[0]:
            if sock is self.listener:
                self.on_listener()
            elif self.channel and sock is self.channel.sock:
                self.on_channel()
            else:
                for client in [c for c in self.clients if c.sock is sock]:
                    self.on_client(client)
        return self.clients or time.monotonic() < self.alone_since + self.linger


def main():
    if "--probe" in sys.argv:
        print("a fake has no GPU")
        raise SystemExit(69)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    engine = Engine(options())
    while HOLD and not os.path.exists(engine.go):
        time.sleep(0.01)
    if MODE == "die":
        raise SystemExit(3)
    if MODE == "refuse":
        engine.channel.send(wire.frame("CLOSE", 0, {1: wire.zigzag(-3),
                                                     2: "no memory for \x1b it"}))
        raise SystemExit(1)
    if MODE == "garbage":
        engine.channel.send(b"this is not a frame")
    elif MODE == "mute":
        time.sleep(1000)
    else:
        engine.ready()
    engine.show()
    while engine.turn():
        pass
    if MODE == "closing":
        engine.channel.sock.shutdown(socket.SHUT_RD)
    elif MODE == "closed":
        engine.channel.sock.close()
    if MODE in ("closing", "closed"):
        with open(engine.go.removesuffix("go") + "ending", "w", encoding="ascii"):
            pass
        while not os.path.exists(engine.go):
            time.sleep(0.01)


main()

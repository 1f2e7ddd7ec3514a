# SPDX-License-Identifier: Apache-2.0
"""gradwired against clients that are broken, slow, greedy or hostile.

After every attack the daemon answers others, holds no descriptor more than before, and has started
no engine.

ctest: label=security timeout=300
"""
import contextlib
import os
import random
import resource
import socket
import struct
import time

import pytest

import wire
from conftest import SLOWER, until

SEED = 20240607


@contextlib.contextmanager
def unharmed(daemon):
    """The daemon lives, answers, and has let go of everything the attack made it hold."""
    before = until(lambda: daemon.fds())
    yield
    assert daemon.alive(), daemon.log()
    assert daemon.status()["jobs"] == 0
    until(lambda: daemon.fds() <= before, what=f"{before} descriptors again")
    assert daemon.engines() == []


@pytest.fixture
def daemon(make_daemon):
    with make_daemon() as d:
        # With at least one other client that must not notice anything.
        with wire.Connection.to(d.socket) as bystander:
            assert bystander.ask("STATUS_GET").type == "STATUS"
            d.bystander = bystander
            yield d
            assert bystander.ask("STATUS_GET", request=77).request == 77


def attack(daemon, packet, path=None, fds=()):
    """Sends it as the first packet; the CLOSE that comes back, or None."""
    with wire.Connection.to(path or daemon.socket) as client:
        client.send(packet, fds)
        return client.wait_closed()


GOOD = wire.hello()
MALFORMED = {
    "empty-frame": b"\0" * 16,
    "one-byte": b"W",
    "half-a-header": GOOD[:9],
    "wrong-magic": wire.frame("HELLO", 0, {1: 1, 2: 1}, magic=0x31524758),
    "reserved-bits": wire.frame("HELLO", 0, {1: 1, 2: 1}, zero=1),
    "length-too-long": wire.frame("HELLO", 0, {1: 1, 2: 1}, length=5),
    "length-too-short": wire.frame("HELLO", 0, {1: 1, 2: 1}, length=3),
    "length-huge": wire.frame("HELLO", 0, {1: 1, 2: 1}, length=0xFFFFFFFF),
    "cut-varint": wire.frame("HELLO", 0, b"\x08\xff"),
    "endless-varint": wire.frame("HELLO", 0, b"\x08" + b"\xff" * 40),
    "cut-bytes": wire.frame("HELLO", 0, b"\x08\x01\x10\x01\x22\x7f\x00"),
    "group-field": wire.frame("HELLO", 0, b"\x0b" * 1000),
    "tag-of-7-bytes": wire.hello(b"1234567"),
    "tag-of-9-bytes": wire.hello(b"123456789"),
    "long-client-name": wire.hello(client="x" * 64),
    "nul-in-name": wire.hello(client="a\0b"),
    "stop-engines-2": wire.frame("STOP", 1, {1: 2}),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_first_packet_closes_that_client_alone(daemon, name):
    with unharmed(daemon):
        close = attack(daemon, MALFORMED[name])
        assert close is not None and close.code == "PROTOCOL", close


def test_every_truncation_of_a_hello_is_refused(daemon):
    with unharmed(daemon):
        for cut in range(1, len(GOOD)):
            close = attack(daemon, GOOD[:cut])
            assert close is not None and close.code == "PROTOCOL", (cut, close)


def test_a_packet_larger_than_a_frame_is_refused(daemon):
    with unharmed(daemon):
        for size in (wire.FRAME_MAX + 1, 2 * wire.FRAME_MAX):
            close = attack(daemon, wire.frame("HELLO", 0, b"\0" * (size - 16)))
            assert close.code == "PROTOCOL" and "too large" in close.reason, close


def test_random_packets(daemon):
    """Random bytes, and good packets with random bytes changed; a fixed seed."""
    rng = random.Random(SEED)
    # Without a tag a Hello would start an engine; that one is not random's business.
    good = [wire.hello(b"12345678"), wire.frame("STATUS_GET", 1), wire.frame("JOBS_GET", 2, {1: 5}),
            wire.frame("REGISTER", 3, {1: 0, 2: 1, 3: wire.body({1: "w", 2: 9})})]
    with unharmed(daemon):
        for _ in range(600):
            packet = bytearray(rng.choice(good))
            if rng.random() < 0.3:
                packet = bytearray(rng.randbytes(rng.randrange(1, 300)))
            for _ in range(rng.randrange(1, 5)):
                packet[rng.randrange(len(packet))] = rng.randrange(256)
            with wire.Connection.to(daemon.socket) as client:
                client.send(bytes(packet))
                with contextlib.suppress(wire.Closed):
                    answer = client.receive()
                    assert answer.type in ("CLOSE", "DONE", "STATUS", "JOBS"), answer


@pytest.mark.parametrize("kind", [k for k in wire.TYPES if k not in (
    "HELLO", "STATUS_GET", "JOBS_GET", "DRAIN", "STOP")])
def test_messages_of_other_channels_are_refused(daemon, kind):
    with unharmed(daemon):
        close = attack(daemon, wire.frame(kind, 1))
        assert close is not None and close.code == "PROTOCOL", close


def test_an_unknown_request_is_unimplemented_and_the_connection_goes_on(daemon):
    with unharmed(daemon), wire.Connection.to(daemon.socket) as client:
        for number in (59, 99, 65535):
            done = client.ask(number, request=number)
            assert (done.type, done.request, done.code) == ("DONE", number, "UNIMPLEMENTED")
        assert client.ask("STATUS_GET").type == "STATUS"


def test_unknown_fields_are_ignored(daemon):
    with wire.Connection.to(daemon.socket) as client:
        assert client.ask("JOBS_GET", {1: 0, 99: "new", 100: 7}).type == "JOBS"
        assert client.ask("JOBS_GET", {1: 0xFFFFFFFF}).fields.get(2) is None


@pytest.mark.parametrize("versions", [(2, 2), (7, 9), (0, 0)])
def test_a_client_without_a_common_version_is_told_both_ranges(daemon, versions):
    with unharmed(daemon):
        close = attack(daemon, wire.hello(version=versions))
        if versions == (0, 0) and close.code == "PROTOCOL":
            return  # no version at all
        assert close.code == "VERSION"
        assert close.reason == f"daemon speaks 1..1, client {versions[0]}..{versions[1]}"


def test_a_version_range_that_is_turned_round_is_malformed_or_refused(daemon):
    with unharmed(daemon):
        assert attack(daemon, wire.hello(version=(3, 1))).code in ("PROTOCOL", "VERSION")


def test_a_newer_client_that_still_speaks_our_version_is_served(daemon):
    with wire.Connection.to(daemon.socket) as client:
        client.send(wire.hello(version=(1, 1000)))
        assert client.receive().type == "WELCOME"
    daemon.assert_idle()


# ---- descriptors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 8, 9, 200])
def test_descriptors_of_strangers_are_closed(daemon, count):
    fds = [os.memfd_create("gift") for _ in range(count)]
    try:
        with unharmed(daemon):
            for path in (daemon.socket, daemon.admin_socket):
                for packet in (GOOD, wire.frame("STATUS_GET", 1), b"x"):
                    close = attack(daemon, packet, path, fds)
                    assert close is not None and close.code == "PROTOCOL", close
    finally:
        for fd in fds:
            os.close(fd)


def test_it_refuses_instead_of_spinning_when_descriptors_run_out(make_daemon):
    limits = "[limits]\nmax_connections_per_user = 1000\nmax_half_open = 1000\n"
    with make_daemon(conf=limits) as daemon:
        before = until(lambda: daemon.fds())
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (before + 20, before + 20))
        clients = [wire.Connection.to(daemon.socket) for _ in range(60)]
        answers = []
        for client in clients:
            with contextlib.suppress(BrokenPipeError):
                client.send(wire.frame("STATUS_GET", 1))
        for client in clients:
            with contextlib.suppress(wire.Closed):
                answers.append(client.receive())
        served = [m for m in answers if m.type == "STATUS"]
        refused = [m for m in answers if m.type == "CLOSE"]
        assert served and len(served) + len(refused) == len(answers), answers
        assert {(m.code, "descriptors" in m.reason) for m in refused} == {("LIMIT", True)}, refused
        for client in clients:
            client.close()
        until(lambda: daemon.fds() <= before)
        assert daemon.status()["jobs"] == 0
        assert daemon.log().count("out of descriptors") == 1
        cpu = cpu_seconds(daemon.pid)
        assert cpu < 5 * SLOWER, f"{cpu} s of CPU: it spins"


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---- slow and many -------------------------------------------------------------------------------


def test_a_client_that_says_nothing_is_closed_after_two_seconds(daemon):
    with unharmed(daemon), wire.Connection.to(daemon.socket) as client:
        start = time.monotonic()
        close = client.wait_closed()
        seconds = time.monotonic() - start
        print(f"closed after {seconds:.2f} s")
        assert close.code == "TIMEOUT" and "2 s" in close.reason, close
        assert seconds >= 2.0


def test_half_open_clients_are_limited_per_user_and_do_not_hold_up_others(make_daemon):
    with make_daemon(conf="[limits]\nmax_half_open = 5\nmax_connections_per_user = 8\n") as daemon:
        asking = wire.Connection.to(daemon.admin_socket)
        assert asking.ask("STATUS_GET").type == "STATUS"
        silent = [wire.Connection.to(daemon.socket) for _ in range(5)]
        with wire.Connection.to(daemon.socket) as sixth:
            with contextlib.suppress(BrokenPipeError):
                sixth.send(GOOD)  # where it comes in time, it must not cost the reason
            close = sixth.wait_closed()
            assert close.code == "LIMIT" and "max_half_open" in close.reason, close
        assert asking.ask("STATUS_GET").type == "STATUS"
        for client in silent:
            assert client.wait_closed().code == "TIMEOUT"
        asking.close()
        assert daemon.status()["jobs"] == 0


def test_connections_are_limited_per_user(make_daemon):
    with make_daemon(conf="[limits]\nmax_connections_per_user = 8\n") as daemon:
        clients = []
        for _ in range(8):
            clients.append(wire.Connection.to(daemon.socket))
            assert clients[-1].ask("STATUS_GET").type == "STATUS"
        with wire.Connection.to(daemon.socket) as ninth:
            close = ninth.wait_closed()
            assert close.code == "LIMIT" and "max_connections_per_user" in close.reason, close
        clients.pop().close()
        until(lambda: daemon.ctl("status", check=False).returncode == 0)
        for client in clients:
            client.close()


def test_a_thousand_connections_come_and_go(daemon):
    with unharmed(daemon):
        for _ in range(20):
            clients = [wire.Connection.to(daemon.socket) for _ in range(50)]
            for i, client in enumerate(clients):
                if i % 3 == 0:
                    client.send(wire.frame("STATUS_GET", 1))
                elif i % 3 == 1:
                    client.send(b"nonsense")
            for client in clients:
                client.close()


def test_a_client_that_asks_and_never_reads_is_closed(daemon):
    with unharmed(daemon), wire.Connection.to(daemon.socket) as client:
        client.sock.setblocking(False)
        packet, closed = wire.frame("STATUS_GET", 1), False
        deadline = time.monotonic() + 30 * SLOWER
        while not closed and time.monotonic() < deadline:
            try:
                client.sock.send(packet)
            except BlockingIOError:
                assert daemon.bystander.ask("STATUS_GET").type == "STATUS"
            except (BrokenPipeError, ConnectionResetError):
                closed = True
        assert closed


def test_a_second_packet_after_hello_does_not_reach_gradwired(make_daemon):
    """It belongs to the engine, whatever its type; gradwired reads exactly one."""
    with make_daemon() as daemon:
        with wire.Connection.to(daemon.socket) as client:
            client.send(GOOD)
            client.send(wire.frame("STOP", 9, {1: 1}))
            assert client.receive().type == "WELCOME"
            done = client.receive()
            assert (done.type, done.request) == ("DONE", 9) and "uid=" in done.reason, done
        daemon.assert_idle()
        assert daemon.alive()


def test_hello_belongs_on_the_client_socket_and_first(daemon):
    with unharmed(daemon):
        assert attack(daemon, GOOD, daemon.admin_socket).code == "PROTOCOL"
        with wire.Connection.to(daemon.socket) as client:
            assert client.ask("STATUS_GET").type == "STATUS"
            client.send(GOOD)
            assert client.wait_closed().code == "PROTOCOL"


def test_drain_and_stop_are_denied_on_the_client_socket(daemon):
    with unharmed(daemon), wire.Connection.to(daemon.socket) as client:
        for kind, content in (("DRAIN", None), ("STOP", {1: 1}), ("STOP", {1: 0})):
            done = client.ask(kind, content)
            assert (done.type, done.code) == ("DONE", "DENIED"), done
        assert daemon.status()["draining"] is False


def test_two_ends_at_once_on_one_connection(make_daemon):
    with make_daemon() as daemon:
        with wire.Connection.to(daemon.socket) as client, \
                wire.Connection.to(daemon.admin_socket) as admin:
            client.send(GOOD)
            assert client.receive().type == "WELCOME"
            admin.send(wire.frame("DRAIN", 1))
            assert admin.ask("DRAIN", request=2).code == "STATE"
            with wire.Connection.to(daemon.admin_socket) as leaver:
                leaver.send(wire.frame("DRAIN", 3))
            client.close()
            done = admin.receive()
            assert (done.request, done.code) == (1, "OK"), done


def test_an_empty_packet_is_an_end(daemon):
    with unharmed(daemon), wire.Connection.to(daemon.socket) as client:
        client.sock.send(b"")
        assert client.wait_closed() is None


def test_other_socket_types_cannot_connect(daemon):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_UNIX, kind) as sock, pytest.raises(OSError):
            sock.connect(str(daemon.socket))


def test_urgent_junk_in_control_messages(daemon):
    """Credentials nobody asked for are no reason to fall over."""
    with unharmed(daemon), wire.Connection.to(daemon.socket) as client:
        creds = struct.pack("iii", os.getpid(), os.getuid(), os.getgid())
        client.sock.sendmsg([wire.frame("STATUS_GET", 1)],
                            [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, creds)])
        assert client.receive().type == "STATUS"

# SPDX-License-Identifier: Apache-2.0
"""A node of a job's star, spoken by hand: it knows the job's secret and says what it likes.

Written from proto/WIRE.md, sections 9 and 10, not from the C code. Messages as wire.py has them.
"""
import ctypes as C
import ctypes.util
import hashlib
import os
import socket
import struct
import time

import wire

VERSION = 1
TYPES = dict(STAR_HELLO=100, STAR_WELCOME=101, STAR_NODE=102, STAR_EVENT=103, STAR_DONE=104,
             STAR_BUILT=105, STAR_DATA=106)
wire.TYPES.update(TYPES)
wire.NAMES.update({number: name for name, number in TYPES.items()})

# enum core_event_kind, and what the log has beside it
EVENTS = dict(JOIN=0, LEAVE=1, LOST=2, REQUEST=3, ALL_HEARD=4, BUILT=5, OVERFLOW=6, BUFFER=7,
              OP_DONE=8, TICK=9, DEVICE_LOST=10, NODE_LOST=128, HEARD=129)

SEAL, HEADER, NONCE = 17, 24, 32


def sodium():
    return C.CDLL(ctypes.util.find_library("sodium") or "libsodium.so.23")


class Stream:
    """One direction of libsodium's secretstream."""

    def __init__(self, lib, key):
        self.lib, self.key, self.state = lib, key, C.create_string_buffer(64)

    def push_header(self):
        header = C.create_string_buffer(HEADER)
        self.lib.crypto_secretstream_xchacha20poly1305_init_push(self.state, header, self.key)
        return header.raw

    def pull_header(self, header):
        assert self.lib.crypto_secretstream_xchacha20poly1305_init_pull(
            self.state, header, self.key) == 0

    def seal(self, record):
        out = C.create_string_buffer(len(record) + SEAL)
        self.lib.crypto_secretstream_xchacha20poly1305_push(
            self.state, out, None, record, C.c_ulonglong(len(record)), None, C.c_ulonglong(0),
            C.c_ubyte(0))
        return struct.pack("<I", len(out.raw)) + out.raw

    def open(self, sealed):
        out, tag = C.create_string_buffer(len(sealed) - SEAL), C.c_ubyte()
        assert self.lib.crypto_secretstream_xchacha20poly1305_pull(
            self.state, out, None, C.byref(tag), sealed, C.c_ulonglong(len(sealed)), None,
            C.c_ulonglong(0)) == 0, "not sealed by the root"
        return out.raw


class StarNode:
    """One connection to the root whose id this is; .number once it is welcome."""

    def __init__(self, job_id, name="x", uid=None):
        address = socket.inet_ntop(socket.AF_INET, job_id[40:44])
        port = int.from_bytes(job_id[6:8], "big")
        self.sock = socket.create_connection((address, port), timeout=20)
        self.received = 0
        self.waiting = []
        self.prove(job_id[8:40])
        self.say("STAR_HELLO", {1: VERSION, 2: os.getuid() if uid is None else uid, 3: name,
                                4: time.monotonic_ns()})
        welcome = self.hear()
        assert welcome.type == "STAR_WELCOME", welcome
        self.number, self.world = welcome.number(1), welcome.number(4)

    def prove(self, secret):
        lib, nonce = sodium(), os.urandom(NONCE)
        self.sock.sendall(b"GWST" + bytes([VERSION, 0, 0, 0]) + nonce)
        hello = self.exactly(40)
        both = nonce + hello[8:]

        def key(sender):
            return hashlib.blake2b(b"gradwire star\0" + bytes([VERSION, sender]) + both,
                                   key=secret, digest_size=32).digest()

        self.stream_in, self.stream_out = Stream(lib, key(2)), Stream(lib, key(1))
        self.stream_in.pull_header(self.exactly(HEADER))
        assert self.record() == b"\1"
        self.sock.sendall(self.stream_out.push_header() + self.stream_out.seal(
            b"\2" + os.urandom(8) + bytes(8) + b"\0"))
        assert self.record()[0] == 3

    def exactly(self, count):
        data = b""
        while len(data) < count:
            more = self.sock.recv(count - len(data))
            if not more:
                raise wire.Closed
            data += more
        return data

    def record(self):
        try:
            (length,) = struct.unpack("<I", self.exactly(4))
            return self.stream_in.open(self.exactly(length))
        except ConnectionResetError:
            raise wire.Closed from None

    def say_bytes(self, *messages):
        data = b"".join(struct.pack("<I", len(m)) + m for m in messages)
        record = b"\4" + struct.pack("<Q", self.received) + data
        self.sock.sendall(self.stream_out.seal(record))

    def say(self, kind, content, request=0):
        self.say_bytes(wire.frame(kind, request, content))

    def event(self, kind, packet=None, **more):
        """A proposed event, its packet behind it. more: fields by number, as "f5"."""
        content = {1: EVENTS.get(kind, kind), **{int(k[1:]): v for k, v in more.items()}}
        if packet is not None:
            content[15] = 1
        self.say("STAR_EVENT", content)
        if packet is not None:
            self.say_bytes(packet)

    def hear(self, timeout=20):
        """The next message; wire.Closed after a BYE or the end."""
        deadline = time.monotonic() + timeout
        while not self.waiting:
            if time.monotonic() > deadline:
                raise TimeoutError("only beats came")
            record = self.record()
            if record[0] == 5:
                raise wire.Closed
            assert record[0] == 4, record
            at = 9
            while at < len(record):
                (length,) = struct.unpack_from("<I", record, at)
                self.waiting.append(record[at + 4:at + 4 + length])
                self.received += 1
                at += 4 + length
            if at == 9:
                self.say_bytes()  # a beat for a beat
        return wire.Message(self.waiting.pop(0))

    def end(self):
        """With a BYE: the node is lost at once."""
        self.sock.sendall(self.stream_out.seal(b"\5\1"))
        self.close()

    def close(self):
        self.sock.close()

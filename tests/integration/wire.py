# SPDX-License-Identifier: Apache-2.0
"""gradwire's packets, spoken by hand: frames, enough of protobuf, descriptors.

Written from proto/WIRE.md and control.proto, not from the C code: what both understand is the
protocol. A message is (type, request, {field number: value or list of values}).
"""
import array
import mmap
import os
import select
import socket
import struct
import time

MAGIC = 0x31524757
FRAME_MAX = 65536
HEADER = struct.Struct("<IHHII")

TYPES = dict(
    HELLO=1, WELCOME=2, CLOSE=3, DONE=4, JOB_CREATE=10, JOIN=11, JOINED=12, WAIT_READY=13, LEAVE=14,
    GROUP_NEW=15, GROUP_MADE=16, REGISTER=20, SEAL=21, SEALED=22, ARENA_GET=23, ARENA=24,
    BUFFER_NEW=25, BUFFER_MADE=26, BUFFER_FREE=27, BUFFER_IMPORT=28, TIMELINE_EVENTS=29, OP=30,
    READY=31, ACQUIRE=32, ACQUIRED=33,
    MICRO_END=34, STEP_END=35, UPDATE_BEGIN=36, UPDATE_COMMIT=37, FETCH=38, RELEASE=39, PARAM_IO=40,
    ARRAY_GET=41, ARRAY_MADE=42, MEASURE=43, STATS_GET=44, STATS=45, EVENT_GET=46,
    STATUS_GET=60, STATUS=61, JOBS_GET=62, JOBS=63, DRAIN=64, STOP=65,
    ENGINE_READY=80, HANDOVER=81, ENGINE_STOP=82, LEASE_GET=83, LEASE=84, LEASE_WANTED=85)
NAMES = {number: name for name, number in TYPES.items()}
ERRORS = dict(
    INVALID=-1, STATE=-2, NOMEM=-3, TIMEOUT=-4, AGAIN=-5, NOT_FOUND=-6, DUPLICATE=-7, LIMIT=-8,
    UNIMPLEMENTED=-9, BUSY=-10, BUDGET=-11, IO=-12, PROTOCOL=-13, VERSION=-14, DENIED=-15,
    FORKED=-16, MISMATCH=-17, PEER_LOST=-18, ENGINE_LOST=-19, TORN=-20, UNUSED=-21, INTERNAL=-22,
    NO_DAEMON=-23, DRAINING=-24, DEVICE=-25, NO_DEVICE=-26)
CODES = {code: name for name, code in ERRORS.items()}


# ---- protobuf ------------------------------------------------------------------------------------

def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value):
    return value << 1 if value >= 0 else (-value << 1) - 1


def unzigzag(value):
    return value >> 1 if value & 1 == 0 else -(value + 1 >> 1)


def body(fields):
    """{number: int | float | bytes | str | list of those} -> bytes."""
    out = bytearray()
    for number, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, float):
                out += varint(number << 3 | 1) + struct.pack("<d", value)
            elif isinstance(value, (bytes, str)):
                data = value.encode() if isinstance(value, str) else value
                out += varint(number << 3 | 2) + varint(len(data)) + data
            else:
                out += varint(number << 3) + varint(value)
    return bytes(out)


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    """bytes -> {number: [values]}; varints as int, fixed64 as float, the rest as bytes."""
    out, at = {}, 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            value, at = read_varint(data, at)
        elif key & 7 == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif key & 7 == 2:
            length, at = read_varint(data, at)
            value, at = bytes(data[at:at + length]), at + length
        else:
            raise ValueError(f"wire type {key & 7}")
        out.setdefault(key >> 3, []).append(value)
    return out


def packed(value):
    """A packed repeated field of varints."""
    out, at = [], 0
    while at < len(value):
        item, at = read_varint(value, at)
        out.append(item)
    return out


# ---- frames --------------------------------------------------------------------------------------

def frame(kind, request=0, content=None, **change):
    """A packet. content: fields or bytes; change: magic, zero, length of the header."""
    data = content if isinstance(content, bytes) else body(content or {})
    number = TYPES[kind] if isinstance(kind, str) else kind
    return HEADER.pack(change.get("magic", MAGIC), number, change.get("zero", 0), request,
                       change.get("length", len(data))) + data


def hello(tag=b"", version=(1, 1), client="test", spans=0):
    return frame("HELLO", 0, {1: version[0], 2: version[1], 4: tag, 5: client, 6: spans})


class Message:
    def __init__(self, packet, fds=()):
        magic, number, zero, self.request, length = HEADER.unpack_from(packet)
        assert magic == MAGIC and zero == 0 and length == len(packet) - HEADER.size, packet[:16]
        self.type = NAMES.get(number, number)
        self.fields = fields(packet[HEADER.size:])
        self.fds = list(fds)

    def number(self, field, default=0):
        return self.fields.get(field, [default])[-1]

    def text(self, field):
        return self.fields.get(field, [b""])[-1].decode()

    @property
    def code(self):
        """Of CLOSE and DONE: "DENIED", or "OK"."""
        code = unzigzag(self.number(1))
        return CODES.get(code, "OK" if code == 0 else str(code))

    @property
    def reason(self):
        return self.text(2)

    def __repr__(self):
        if self.type in ("CLOSE", "DONE"):
            return f"{self.type}({self.code}: {self.reason})"
        return f"{self.type}(request {self.request}, {self.fields}, {len(self.fds)} fds)"


class Closed(Exception):
    """The other side has closed the connection."""


class Submissions:
    """The submission ring of a client: what it sends once it has joined."""
    AT, BYTES, PUT, TAKEN, SLEEPS = 4096, 131072, 576, 24, 32

    def __init__(self, welcome):
        page, engine_page, bell = welcome.fds
        self.memory = mmap.mmap(page, self.AT + self.BYTES)
        self.engine = mmap.mmap(engine_page, 8192, prot=mmap.PROT_READ)
        self.words = memoryview(self.memory).cast("Q")  # stored and loaded as a whole
        self.taken_words = memoryview(self.engine).cast("Q")
        self.bell = os.dup(bell)
        self.at = 0

    def close(self):
        self.words.release()
        self.taken_words.release()
        self.memory.close()
        self.engine.close()
        os.close(self.bell)

    @property
    def taken(self):
        return self.taken_words[self.TAKEN // 8]

    def write(self, data):
        """At our position, which moves on; nobody is told."""
        for byte in data:
            self.memory[self.AT + self.at % self.BYTES] = byte
            self.at += 1

    def tell(self, position=None):
        self.words[self.PUT // 8] = self.at if position is None else position

    def ring(self):
        os.write(self.bell, struct.pack("Q", 1))

    def has_room(self, packet):
        return self.at + 8 + len(packet) + 7 - self.taken <= self.BYTES

    def put(self, packet, length=None, zero=0, ring=True):
        self.write(struct.pack("<II", len(packet) if length is None else length, zero))
        self.write(packet + bytes(-len(packet) % 8))
        self.tell()
        if ring:
            self.ring()


class Connection:
    submit = None  # from WELCOME on
    has_joined = False

    def __init__(self, sock):
        self.sock = sock

    @classmethod
    def to(cls, path):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(str(path))
        except OSError:
            sock.close()
            raise
        return cls(sock)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.sock.close()
        if self.submit:
            self.submit.close()
            self.submit = None

    def put(self, packet, **how):
        """Into the ring, when there is room."""
        poll = select.poll()
        poll.register(self.sock, 0)
        while not self.submit.has_room(packet):
            if poll.poll(1):
                raise BrokenPipeError
        self.submit.put(packet, **how)

    def send(self, packet, fds=()):
        if self.has_joined:
            self.put(packet)
            return
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.sock.sendmsg([packet], rights)

    def receive(self, timeout=20):
        """The next message; raises Closed, or TimeoutError."""
        poll = select.poll()  # select() knows no descriptor above 1023
        poll.register(self.sock, select.POLLIN)
        if not poll.poll(timeout * 1000):
            raise TimeoutError(f"nothing came within {timeout} s")
        try:
            data, control, flags, _ = self.sock.recvmsg(FRAME_MAX, socket.CMSG_SPACE(8 * 4))
        except ConnectionResetError:
            raise Closed from None
        if not data:
            raise Closed
        assert flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) == 0
        fds = array.array("i")
        for level, kind, value in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(value[:len(value) - len(value) % 4])
        for fd in fds:
            os.set_inheritable(fd, False)
        return self.take(Message(data, fds))

    def take(self, message):
        """As a client; of other connections nothing is looked at."""
        if message.type == "WELCOME" and len(message.fds) == 3:
            self.submit = Submissions(message)
        self.has_joined |= message.type == "JOINED" and self.submit is not None
        return message

    def ask(self, kind, content=None, request=1, timeout=20):
        self.send(frame(kind, request, content))
        return self.receive(timeout)

    def wait_closed(self, timeout=20):
        """The CLOSE that came before the end, or None. Other messages are an error."""
        deadline, last = time.monotonic() + timeout, None
        while True:
            try:
                message = self.receive(max(0.0, deadline - time.monotonic()))
            except Closed:
                return last
            assert message.type == "CLOSE" and last is None, message
            last = message


def job_fields(data):
    """A Job of JOBS as a dict."""
    f = fields(data)

    def number(n):
        return f.get(n, [0])[-1]

    return dict(tag=f[1][0].hex(), name=f.get(2, [b""])[0].decode(), uid=number(3), pid=number(4),
                state=number(5), world=number(6), ranks_present=number(7), stage=number(8),
                steps=number(10), wait=f.get(16, [b""])[0].decode())

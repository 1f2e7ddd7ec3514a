# SPDX-License-Identifier: Apache-2.0
"""Saved state: plain tensors in safetensors files, into any world and stage, bit for bit.

Files are read by a reader of this test's own, written from the format's description, and by the
safetensors package (cmake/wheels.sh brings it). Values are random bits, NaNs and denormals
included.
ctest: device=cuda nodes=too timeout=300 python=wheels
"""
import ctypes as C
import hashlib
import json
import os
import pathlib
import random
import resource
import signal
import struct
import time

import pytest

import gw

MODEL = [("embed.weight", (37, 8), "embed"), ("h.0.w", (8, 24), "h.0"), ("h.0.b", (24,), "h.0"),
         ("h.1.w", (5, 7, 3), "h.1"), ("h.1.empty", (0, 4), "h.1"), ("ln.scalar", (), "ln"),
         ('odd "name"\\ é\t', (1, 1), "ln")]
MOMENTS = ["exp_avg", "exp_avg_sq"]
MINUTE = 60 * gw.S


class Shape(C.Structure):
    _fields_ = [("dims", C.c_uint32), ("extents", C.c_uint64 * 8)]


DIFFERENCE = C.CFUNCTYPE(None, C.c_void_p, C.c_char_p)


class Options(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("arrays", C.POINTER(C.c_char_p)),
                ("array_count", C.c_size_t), ("shapes", C.POINTER(Shape)),
                ("shape_count", C.c_size_t), ("file_bytes", C.c_uint64),
                ("params_off", C.c_uint32), ("allow_other", C.c_uint32),
                ("difference", DIFFERENCE), ("arg", C.c_void_p)]


def numel(shape):
    product = 1
    for extent in shape:
        product *= extent
    return product


def bits(name, count):
    """The random bits of a tensor: 4 bytes per element."""
    return random.Random(hashlib.sha256(name.encode()).digest()).randbytes(4 * count)


def wanted(model, arrays=()):
    """name -> (shape, bytes) of all tensors that a save should have."""
    return {f"{a}.{name}" if a else name:
            (shape, bits(f"{a}.{name}" if a else name, numel(shape)))
            for a in ("", *arrays) for name, shape, _ in model}


# ---- an independent reader and writer ------------------------------------------------------------


def read_file(path):
    """name -> (dtype, shape, bytes); metadata."""
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    body = data[8 + length:]
    metadata = header.pop("__metadata__", {})
    assert all(isinstance(v, str) for v in metadata.values())
    assert (8 + length) % 8 == 0
    end = 0  # the format: no holes, no overlap
    for entry in sorted(header.values(), key=lambda e: e["data_offsets"]):
        assert entry["data_offsets"][0] == end
        end = entry["data_offsets"][1]
    assert end == len(body)
    return {name: (e["dtype"], tuple(e["shape"]), body[slice(*e["data_offsets"])])
            for name, e in header.items()}, metadata


def read_state(path):
    path = pathlib.Path(path)
    index = path.with_name(path.name + ".index.json")
    if not index.exists():
        return read_file(path)[0]
    out = {}
    listed = json.loads(index.read_text())
    for name in sorted(set(listed["weight_map"].values())):
        tensors, _ = read_file(path.with_name(name))
        assert set(tensors) == {t for t, f in listed["weight_map"].items() if f == name}
        out.update(tensors)
    assert listed["metadata"]["total_size"] == sum(len(t[2]) for t in out.values())
    return out


def assert_state(path, want):
    got = read_state(path)
    assert set(got) == set(want)
    for name, (shape, data) in want.items():
        assert got[name] == ("F32", shape, data), name


def write_file(path, tensors, **json_options):
    """tensors: name -> (dtype, shape, bytes), in order."""
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, **json_options).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + body)


# ---- ranks ---------------------------------------------------------------------------------------


def open_job(rank, world, where, model=MODEL, **options):
    job = gw.Job(rank, world, id_path=where["id"], socket=where["socket"])
    job.wait_ready()
    for name, shape, unit in model:
        job.param(name, numel(shape), unit)
    job.seal(**{"stage": 3, "bucket_bytes": 1000, "shard_align_bytes": 4, **options})
    return job


def owned(job, model):
    """(parameter, offset in it, offset in shard arrays, elements) of all that the rank has."""
    for param in range(len(model)):
        for piece in job.pieces(param):
            for span in job.spans():
                first = max(piece.bucket_offset, span.bucket_offset)
                last = min(piece.bucket_offset + piece.numel, span.bucket_offset + span.numel)
                if span.bucket == piece.bucket and first < last:
                    yield (param, piece.param_offset + first - piece.bucket_offset,
                           span.shard_offset + first - span.bucket_offset, last - first)


def fill_job(job, model, arrays):
    """Raw bits, for a Python float would lose NaNs' payload."""
    for param, (name, shape, _) in enumerate(model if job.rank == 0 else ()):
        data = C.create_string_buffer(bits(name, numel(shape)), max(4 * numel(shape), 1))
        gw.call("gw_param_write_sync", job.handle, C.c_uint32(param), C.c_uint64(0),
                C.c_uint64(numel(shape)), data, C.c_int64(MINUTE))
    for array in arrays:
        values, _ = job.array(array)
        for param, offset, at, count in owned(job, model):
            data = bits(f"{array}.{model[param][0]}", numel(model[param][1]))
            part = C.create_string_buffer(data[4 * offset:4 * (offset + count)], 4 * count)
            gw.move(gw.shifted(values, at), C.addressof(part), 4 * count)
    job.barrier()


def check_job(job, model, arrays):
    """Every rank reads every parameter, and its own parts of arrays."""
    for param, (name, shape, _) in enumerate(model):
        data = C.create_string_buffer(max(4 * numel(shape), 1))
        gw.call("gw_param_read_sync", job.handle, C.c_uint32(param), C.c_uint64(0),
                C.c_uint64(numel(shape)), data, C.c_int64(MINUTE))
        assert data.raw[:4 * numel(shape)] == bits(name, numel(shape)), name
    for array in arrays:
        values, _ = job.array(array)
        for param, offset, at, count in owned(job, model):
            data = bits(f"{array}.{model[param][0]}", numel(model[param][1]))
            assert gw.raw(gw.shifted(values, at), count) == data[4 * offset:4 * (offset + count)]


def call(name, job, path, model=MODEL, arrays=(), shapes=True, told=None, **options):
    o = Options(struct_size=C.sizeof(Options), **options)
    names = (C.c_char_p * max(len(arrays), 1))(*[a.encode() for a in arrays])
    o.arrays, o.array_count = names, len(arrays)
    if shapes:
        table = (Shape * len(model))(*[Shape(len(s), (C.c_uint64 * 8)(*s)) for _, s, _ in model])
        o.shapes, o.shape_count = table, len(model)
    if told is not None:
        o.difference = DIFFERENCE(lambda _, line: told.append(line.decode()))
    gw.call(name, job.handle, str(path).encode(), C.byref(o), C.c_int64(MINUTE))


def save(job, path, *args, **options):
    call("gw_state_save_sync", job, path, *args, **options)


def load(job, path, *args, **options):
    call("gw_state_load_sync", job, path, *args, **options)


@pytest.fixture
def where(service, tmp_path):
    (tmp_path / "out").mkdir()
    return {"socket": service, "id": str(tmp_path / "job.id"),
            "out": str(tmp_path / "out")}


def new_id(where, tag):
    return {**where, "id": f"{where['id']}.{tag}"}


# ---- bit for bit ---------------------------------------------------------------------------------


def first_rank(rank, world, where, stage):
    job = open_job(rank, world, where, stage=stage)
    fill_job(job, MODEL, MOMENTS)
    save(job, f"{where['out']}/0.safetensors", arrays=MOMENTS)
    job.close()


def next_rank(rank, world, where, number, options):
    job = open_job(rank, world, where, **options)
    load(job, f"{where['out']}/{number}.safetensors", arrays=MOMENTS)
    check_job(job, MODEL, MOMENTS)
    save(job, f"{where['out']}/{number + 1}.safetensors", arrays=MOMENTS)
    job.close()


FILES = pytest.mark.one_node("files are the same wherever ranks are")


@pytest.mark.parametrize("stage", [
    0, pytest.param(1, marks=FILES), pytest.param(2, marks=FILES), 3])
def test_state_goes_through_worlds_4_6_2_1(where, stage):
    gw.run(4, first_rank, 4, new_id(where, 4), stage)
    assert_state(f"{where['out']}/0.safetensors", wanted(MODEL, MOMENTS))
    for number, (world, other, align, bucket) in enumerate(
            [(6, 3, 64, 500), (2, 0, 4, 4096), (1, 2, 16, 100)]):
        gw.run(world, next_rank, world, new_id(where, world), number, {
            "stage": (stage + other) % 4, "shard_align_bytes": align, "bucket_bytes": bucket})
        assert_state(f"{where['out']}/{number + 1}.safetensors", wanted(MODEL, MOMENTS))
    assert sorted(os.listdir(where["out"])) == [f"{n}.safetensors" for n in range(4)]


def mapped_rank(rank, world, where):
    job = open_job(rank, world, where, gather=1)
    fill_job(job, MODEL, ())
    save(job, f"{where['out']}/0.safetensors")
    save(job, f"{where['out']}/0.safetensors", file_bytes=1000)
    save(job, f"{where['out']}/0.safetensors", shapes=False)  # over both forms
    job.close()


@pytest.mark.host_only("mapped gathers are for host memory")
@pytest.mark.one_node("as mapped gathers are")
def test_mapped_parameters_and_flat_shapes(where):
    gw.run(2, mapped_rank, 2, where)
    got = read_state(f"{where['out']}/0.safetensors")
    assert {n: (s, d) for n, (_, s, d) in got.items()} == {
        name: ((numel(shape),), data) for name, (shape, data) in wanted(MODEL).items()}


def trained_rank(rank, world, where, stage):
    """After a step with an update: what is saved is the new values."""
    job = open_job(rank, world, where, stage=stage)
    for param in reversed(range(len(MODEL))):
        job.put(param, [1.0] * numel(MODEL[param][1]))
    job.step_end()
    job.wait_step()
    job.wait(job.update_begin())
    for span in job.spans():
        gw.fill(span.params, span.numel, [0.5 * rank + 1] * span.numel if stage else 3.0)
    job.update_commit()
    save(job, f"{where['out']}/m.safetensors")
    job.close()


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_an_update_is_in_the_next_save(where, stage):
    gw.run(2, trained_rank, 2, where, stage)
    values = struct.unpack(f"<{sum(numel(s) for _, s, _ in MODEL)}f", b"".join(
        data for _, _, data in read_state(f"{where['out']}/m.safetensors").values()))
    assert set(values) == ({3.0} if stage == 0 else {1.0, 1.5})


# ---- several files -------------------------------------------------------------------------------


def cut_rank(rank, world, where):
    job = open_job(rank, world, where, stage=1)
    fill_job(job, MODEL, ["m"])
    save(job, f"{where['out']}/model.safetensors", arrays=["m"])
    save(job, f"{where['out']}/model.safetensors", arrays=["m"], file_bytes=1500)
    job.close()
    job = open_job(rank, world, new_id(where, "again"), stage=2)
    load(job, f"{where['out']}/model.safetensors", arrays=["m"])
    load(job, f"{where['out']}/model.safetensors.index.json", arrays=["m"])
    check_job(job, MODEL, ["m"])
    job.close()


@FILES
def test_files_are_cut_as_other_tools_cut_them(where):
    gw.run(3, cut_rank, 3, where)
    assert_state(f"{where['out']}/model.safetensors", wanted(MODEL, ["m"]))
    # Bytes: 1184 768 96 420 0 4 4, twice; a file ends where the next would pass 1500.
    names = [f"model-{k:05d}-of-00004.safetensors" for k in range(1, 5)]
    assert sorted(os.listdir(where["out"])) == names + ["model.safetensors.index.json"]
    first = read_file(f"{where['out']}/{names[0]}")[0]
    assert list(first) == ["embed.weight"]
    assert list(read_file(f"{where['out']}/{names[1]}")[0]) == [n for n, _, _ in MODEL[1:]]


def mixed_rank(rank, world, where):
    job = open_job(rank, world, where)
    fill_job(job, MODEL, ())
    for directory in ("a", "b"):
        save(job, f"{where['out']}/{directory}/m", file_bytes=1200)
    job.barrier()
    if rank == 0:
        os.rename(f"{where['out']}/b/m-00002-of-00003", f"{where['out']}/a/m-00002-of-00003")
    job.barrier()
    with pytest.raises(gw.Error) as caught:
        load(job, f"{where['out']}/a/m")
    job.close()
    return caught.value.name, caught.value.text


@FILES
def test_files_of_two_saves_are_not_taken_for_one(where):
    for directory in ("a", "b"):
        os.mkdir(f"{where['out']}/{directory}")
    for name, text in gw.run(2, mixed_rank, 2, where):
        assert name == "GW_E_MISMATCH" and "another save" in text, text


# ---- other programs ------------------------------------------------------------------------------


@FILES
def test_the_safetensors_package_opens_them(where):
    safetensors = pytest.importorskip(
        "safetensors", reason="the safetensors package could not be brought")
    pytest.importorskip("numpy")
    gw.run(2, first_rank, 2, where, 3)
    want = wanted(MODEL, MOMENTS)
    with safetensors.safe_open(f"{where['out']}/0.safetensors", framework="np") as file:
        assert set(file.keys()) == set(want)
        for name, (shape, data) in want.items():
            tensor = file.get_tensor(name)
            assert tensor.shape == shape and tensor.tobytes() == data


def foreign_rank(rank, world, where, names):
    out = []
    for name in names:
        job = open_job(rank, world, new_id(where, name), stage=2)
        load(job, f"{where['out']}/{name}", allow_other=1)
        check_job(job, MODEL, ())
        out.append(job.stats().steps)
        job.close()
    return out


@FILES
def test_files_of_other_programs_are_loaded(where):
    tensors = [(name, ("F32", shape, data)) for name, (shape, data) in wanted(MODEL).items()]
    tensors.insert(2, ("steps", ("I64", (1,), b"\1" * 8)))
    write_file(f"{where['out']}/reversed", dict(reversed(tensors)))
    write_file(f"{where['out']}/pretty", dict(tensors), indent=3, ensure_ascii=True, sort_keys=True)
    write_file(f"{where['out']}/utf8", dict(tensors), ensure_ascii=False)
    # A header with more than is asked for, and an index without our id.
    for part in (0, 1):
        write_file(f"{where['out']}/part{part}", dict(tensors[part::2]))
    pathlib.Path(where["out"], "cut.index.json").write_text(json.dumps({
        "metadata": {"total_size": 1, "deep": [[{"a": [1.5e3, None, {"b": {}}]}]]},
        "weight_map": {name: f"part{k % 2}" for k, (name, _) in enumerate(tensors)}}))
    gw.run(2, foreign_rank, 2, where, ["reversed", "pretty", "utf8", "cut"])


# ---- differences and damage ----------------------------------------------------------------------


def refused_rank(rank, world, where, cases):
    job = open_job(rank, world, where)
    fill_job(job, MODEL, ())
    out = {}
    for name, options in cases.items():
        told = []
        with pytest.raises(gw.Error) as caught:
            load(job, f"{where['out']}/{name}", told=told, **options)
        out[name] = caught.value.name, caught.value.text, told
    check_job(job, MODEL, ())  # nothing was changed
    job.close()
    return out


def all_refused(where, cases):
    results = gw.run(2, refused_rank, 2, where, cases)
    assert results[0] == results[1]
    return results[0]


@FILES
def test_every_difference_is_told(where):
    tensors = {name: ("F32", shape, data) for name, (shape, data) in wanted(MODEL).items()}
    good = dict(tensors)
    del tensors["h.0.b"]
    tensors["h.0.w"] = ("F32", (24, 8), tensors["h.0.w"][2])
    tensors["embed.weight"] = ("F64", (37, 8), tensors["embed.weight"][2] * 2)
    tensors["more\nlines"] = ("F32", (1,), b"1234")
    write_file(f"{where['out']}/m", tensors)
    write_file(f"{where['out']}/other", {**good, "one.more": ("U8", (1,), b"1")})
    got = all_refused(where, {"m": {}, "other": {}, "./m": {"shapes": False, "allow_other": 1}})
    name, text, told = got["m"]
    assert name == "GW_E_MISMATCH" and "4 differences" in text and "rank 0" in text
    assert sorted(told) == [
        "tensor embed.weight has dtype F64 in the file, F32 here",
        "tensor h.0.b is not in the file",
        "tensor h.0.w has shape [24,8] in the file, [8,24] here",
        "tensor more\\u000alines is in the file, but not asked for"]
    assert got["other"][2] == ["tensor one.more is in the file, but not asked for"]
    assert len(got["./m"][2]) == 2  # any shape of the right size will do, and others are fine


@FILES
def test_damaged_files_are_refused(where):
    tensors = {name: ("F32", shape, data) for name, (shape, data) in wanted(MODEL).items()}
    write_file(f"{where['out']}/good", tensors)
    good = pathlib.Path(where["out"], "good").read_bytes()
    (length,) = struct.unpack("<Q", good[:8])
    text, body = good[8:8 + length], good[8 + length:]

    def put(name, header, data=body, length=None):
        pathlib.Path(where["out"], name).write_bytes(
            struct.pack("<Q", len(header) if length is None else length) + header + data)

    put("cut", text, body[:-1])
    put("header", text[:-7], b"", length)
    put("huge", text, body, 1 << 63)
    put("comma", text[:-1] + b",}", body)
    put("twice", text[:-1] + b"," + text[1:], body)
    put("after", text + b"x", body)
    put("offsets", text.replace(b'"data_offsets": [0,', b'"data_offsets": [9999999,'), body)
    put("wrap", text.replace(b"[37, 8]", b"[4294967296, 4294967296]"), body)
    put("deep", b'{"a":' + b"[" * 100000 + b"]" * 100000 + b"}", body)
    put("lone", text.replace(b"embed.weight", b"\\ud800bed.weight"), body)
    pathlib.Path(where["out"], "short").write_bytes(b"123")
    os.mkdir(f"{where['out']}/directory")
    pathlib.Path(where["out"], "up.index.json").write_text('{"weight_map":{"a":"../good"}}')
    pathlib.Path(where["out"], "bad.index.json").write_text('{"weight_map":{"a":1}}')
    want = {"cut": "damaged or cut", "header": "ends inside its header", "huge": "ends inside",
            "comma": "byte ", "twice": "comes twice", "after": "after the end",
            "offsets": "two rising numbers", "wrap": "has shape", "deep": "dtype, shape",
            "lone": "a name", "short": "ends inside", "directory": "no plain file",
            "up": "another directory", "bad": "the name of a file", "missing": "No such file"}
    want["deep"] = "byte "
    got = all_refused(where, {name: {} for name in want})
    for name, message in want.items():
        code, text, _ = got[name]
        assert message in text and code in ("GW_E_IO", "GW_E_INVALID", "GW_E_MISMATCH"), (name,
                                                                                          got[name])


# ---- what goes wrong while saving ----------------------------------------------------------------


def full_rank(rank, world, where, full):
    job = open_job(rank, world, where)
    fill_job(job, MODEL, ["m"])
    path = f"{where['out']}/m.safetensors"
    save(job, path)
    with open(path, "rb") as file:
        before = file.read()
    if rank == full:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, limit[1]))
    errors = []
    for options in ({}, {"file_bytes": 1900}):
        with pytest.raises(gw.Error) as caught:
            save(job, path, arrays=["m"], **options)
        errors.append((caught.value.name, caught.value.text))
    if rank == full:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    job.barrier()
    with open(path, "rb") as file:
        assert file.read() == before
    save(job, path, arrays=["m"])  # the job goes on
    job.close()
    return errors


@FILES
@pytest.mark.parametrize("full", [0, 1])
def test_a_full_disk_leaves_nothing_behind(where, full):
    results = gw.run(2, full_rank, 2, where, full)
    assert results[0] == results[1]
    for name, text in results[0]:
        assert name == "GW_E_IO" and f"rank {full}: " in text and "File too large" in text, text
        assert "make room" in text
    assert os.listdir(where["out"]) == ["m.safetensors"]
    assert_state(f"{where['out']}/m.safetensors", wanted(MODEL, ["m"]))


def misuse_rank(rank, world, where):
    job = open_job(rank, world, where, model=MODEL + [("m.h.0.b", (3,), None)])
    model = MODEL + [("m.h.0.b", (3,), None)]
    job.array("m")
    job.array("n")
    path = f"{where['out']}/m.safetensors"
    out = []

    def refused(*args, **options):
        with pytest.raises(gw.Error) as caught:
            save(job, *args, model=options.pop("model", model), **options)
        out.append((caught.value.name, caught.value.text))

    refused(path, arrays=["missing"])
    refused(path, arrays=["m"])
    refused(path, model=MODEL)
    refused(path, model=model[:-1] + [("m.h.0.b", (2, 2), None)])
    refused(path, params_off=1)
    refused(f"{where['out']}/no/such/m.safetensors")
    refused(path, arrays=["m", "n"][:rank + 1], params_off=1)
    job.wait(job.fetch(0))
    refused(path)
    job.release(0)
    job.barrier()
    save(job, path, model=model, arrays=["n"], params_off=1)
    job.close()
    return out


def test_wrong_use_is_told_on_all_ranks(where):
    results = gw.run(2, misuse_rank, 2, where)
    assert results[0] == results[1]
    for (name, text), (code, words) in zip(results[0], [
            ("GW_E_NOT_FOUND", "no shard array missing"), ("GW_E_DUPLICATE", "m.h.0.b"),
            ("GW_E_INVALID", "shapes has 7 entries; the job has 8"),
            ("GW_E_INVALID", "m.h.0.b has 3 elements"), ("GW_E_INVALID", "nothing to move"),
            ("GW_E_IO", "No such file or directory"), ("GW_E_MISMATCH", "rank 1 asks for other"),
            ("GW_E_STATE", "is fetched")]):
        assert name == code and words in text, text
    assert os.listdir(where["out"]) == ["m.safetensors"]
    got = read_state(f"{where['out']}/m.safetensors")
    assert all(n.startswith("n.") and not any(d) for n, (_, _, d) in got.items())


def lost_rank(rank, world, where):
    job = open_job(rank, world, where)
    fill_job(job, MODEL, ())
    if rank == 1:  # once rank 0 has made its file, and waits
        deadline = time.monotonic() + 20
        while not os.listdir(where["out"]) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(gw.Error) as caught:
        save(job, f"{where['out']}/m.safetensors")
    job.close()
    return caught.value.name


def test_a_dead_rank_ends_the_save(where):
    (alive, dead) = gw.Ranks(2, lost_rank, 2, where).join()
    assert alive == ("ok", "GW_E_PEER_LOST") and dead[0] == "died"
    assert os.listdir(where["out"]) == []

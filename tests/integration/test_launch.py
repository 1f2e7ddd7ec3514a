# SPDX-License-Identifier: Apache-2.0
"""gw_launch_options and gw_launch_join: ranks meet by their launcher's environment and a file.

ctest: timeout=120
"""
import ctypes as C
import os

import pytest

import gw

S = gw.S


def start(rank, world, path=None, timeout=20 * S):
    """A handle of libgradwire, joined as torchrun's rank."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank),
                      LOCAL_WORLD_SIZE=str(world), GROUP_WORLD_SIZE="1")
    options, job = gw.JobOptions(struct_size=C.sizeof(gw.JobOptions), linger_ns=-1), C.c_void_p()
    gw.call("gw_launch_options", C.byref(options))
    gw.call("gw_launch_join", C.byref(options), path, C.c_int64(timeout), C.byref(job))
    return job


def launched_rank(rank, world):
    job, tag = start(rank, world), C.create_string_buffer(17)
    gw.call("gw_job_tag", job, tag)
    said = gw.call("gw_job_rank", job), gw.call("gw_job_world", job), tag.value
    gw.LIB.gw_job_close(job)
    return said


@pytest.mark.host_only("handles of one launch are no matter of devices")
def test_ranks_meet_and_leave_no_file(daemon, tmp_path):
    env = {"GRADWIRE_SOCKET": str(daemon.socket), "GRADWIRE_ID_DIR": str(tmp_path),
           "TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": "2"}
    said = gw.run(3, launched_rank, 3, env=env)
    assert [s[:2] for s in said] == [(0, 3), (1, 3), (2, 3)]
    assert len({tag for _, _, tag in said}) == 1
    assert os.listdir(tmp_path) == []


def refused_rank(rank, path, timeout):
    with pytest.raises(gw.Error) as refused:
        start(rank, 2, path, timeout)
    return refused.value.name, refused.value.text


@pytest.mark.host_only("handles of one launch are no matter of devices")
def test_a_file_that_is_there_already_is_left_alone(daemon, tmp_path):
    path = tmp_path / "x"
    path.write_text("not ours")
    env = {"GRADWIRE_SOCKET": str(daemon.socket)}
    ((name, text),) = gw.run(1, refused_rank, str(path).encode(), 20 * S, env=env)
    assert name == "GW_E_DUPLICATE" and str(path) in text, (name, text)
    assert path.read_text() == "not ours"


@pytest.mark.host_only("handles of one launch are no matter of devices")
def test_a_start_that_times_out_leaves_no_file(daemon, tmp_path):
    path = tmp_path / "x"
    env = {"GRADWIRE_SOCKET": str(daemon.socket)}
    ((name, _),) = gw.run(1, refused_rank, str(path).encode(), S // 10, env=env)
    assert name == "GW_E_TIMEOUT"
    assert not path.exists()

# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300
"""gw_mpi_join in programs of MPICH and of Open MPI, launched by their own mpirun."""
import os
import pathlib
import shutil
import subprocess

import pytest

from conftest import BUILD, SLOWER

ROOT = pathlib.Path(os.environ.get("GRADWIRE_SOURCE") or pathlib.Path(__file__).parents[2])
RANKS = 4


@pytest.fixture(scope="module", params=["mpich", "openmpi"])
def program(request, tmp_path_factory):
    """(launcher, path) of mpi/rank.c, compiled by that MPI against the build's libraries."""
    name = request.param
    library = BUILD / f"client/mpi/libgradwire-{name}.so"
    if SLOWER > 1:
        pytest.skip("MPI's own memory is no business of the sanitizers")
    if not library.exists() or not shutil.which(f"mpirun.{name}"):
        pytest.skip(f"{name} is not installed")
    path = tmp_path_factory.mktemp(name) / "mpi_rank"
    subprocess.run([f"mpicc.{name}", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include",
                    "-o", path, ROOT / "tests/integration/mpi/rank.c",
                    f"-L{BUILD}/client/mpi", f"-lgradwire-{name}", f"-L{BUILD}/client/lib",
                    "-lgradwire", f"-Wl,-rpath,{BUILD}/client/mpi:{BUILD}/client/lib"],
                   check=True, timeout=120)
    return name, path


def launch(program, socket, what, ranks=RANKS, more=()):
    name, path = program
    command = [f"mpirun.{name}", "-n", str(ranks)]
    env = {**os.environ, "GRADWIRE_SOCKET": str(socket)}
    if name == "openmpi":
        command += ["--oversubscribe"]
        env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_btl_vader_single_copy_mechanism="none")
    done = subprocess.run([*command, path, what, *more], env=env, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.split("\n"))[1:]


@pytest.mark.parametrize("ranks", [1, 2, RANKS])
def test_a_communicator_is_a_job(daemon, program, ranks):
    assert launch(program, daemon.socket, "sum", ranks) == ["ok"]


def test_two_communicators_are_two_jobs(daemon, program):
    """Each with its ranks in the communicator's order, which is not that of the world."""
    assert launch(program, daemon.socket, "halves") == ["ok"]


def test_one_rank_that_fails_is_told_to_all(daemon, program):
    lines = launch(program, daemon.socket, "numbers")
    assert lines == [f"rank {r} gw_mpi_join GW_E_INVALID: rank 2: options name rank 1 of 0, the "
                     "communicator rank 2 of 4: leave both 0" for r in range(RANKS)]
    lines = launch(program, daemon.socket, "null")
    assert lines == [f"rank {r} gw_mpi_join GW_E_INVALID: rank 1: ret_job is NULL"
                     for r in range(RANKS)]


@pytest.mark.skipif(not (ROOT / "daemon/engine/nodes.c").exists(),
                    reason="engines know nothing of other nodes yet")
@pytest.mark.parametrize("nodes", [2, 3])
def test_a_communicator_of_several_nodes_is_a_job(make_nodes, program, nodes):
    """MPI sees one node; the caller says how many there are."""
    sockets = [str(daemon.socket) for daemon in make_nodes(nodes)]
    assert launch(program, sockets[0], "nodes", more=sockets) == [
        f"rank {r} of generation 1, nodes" for r in range(RANKS)]


def test_ranks_that_mpi_sees_on_one_node_are_a_job_of_one(daemon, program):
    assert launch(program, daemon.socket, "nodes", more=[str(daemon.socket)]) == [
        f"rank {r} of generation 1, one node" for r in range(RANKS)]


def test_no_daemon_is_told_to_all(program, tmp_path):
    lines = launch(program, tmp_path / "nobody.sock", "sum")
    assert len(lines) == RANKS
    for rank, line in enumerate(lines):
        assert line.startswith(f"rank {rank} gw_mpi_join GW_E_NO_DAEMON: rank 0: "), line

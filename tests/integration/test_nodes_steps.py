# SPDX-License-Identifier: Apache-2.0
"""Training across nodes: whatever the placement, the network's speed and what it loses, the bits
are those of one node.
ctest: label=nodes timeout=600
"""
import ctypes as C
import socket
import threading

import pytest

import gw
import network
import nodes
from conftest import SLOWER
from planning import RUN_BUCKET, STEPS, one_run, plan, write_model
from models import gpt2  # noqa: I001 (planning knows where)
from test_faults import flag, training_rank

PLACES = {  # of 4 ranks
    2: ["blocks", "dealt", [0, 1, 1, 1], [1, 0, 0, 1]],
    3: ["blocks", "dealt", [2, 1, 0, 0]],
}


def where_of(tmp_path, socket_, name):
    directory = tmp_path / name
    directory.mkdir()
    return {"socket": socket_, "id": str(directory / "job.id"), "dir": str(directory)}


def trained_rank(rank, world, runs, steps):
    """One job after another, in one process."""
    return [training_rank(rank, world, where, stage, steps, False) for where, stage in runs]


def trained(tmp_path, world, steps, runs):
    """The digest of all fetched values and norms, the same on all ranks, of each (name, socket,
    stage)."""
    runs = [({**where_of(tmp_path, socket_, name), "all_reduce": int("all-reduce" in name)}, stage)
            for name, socket_, stage in runs]
    results = gw.run(world, trained_rank, world, runs, steps, timeout=240 * SLOWER)
    assert all(result == results[0] for result in results), f"ranks differ: {results}"
    return results[0]


@pytest.mark.parametrize("count", [2, 3])
def test_every_placement_has_the_bits_of_one_node_in_every_stage(runtime_dir, tmp_path, count):
    with nodes.Cluster(runtime_dir, count) as cluster:
        runs = [("alone", str(cluster.nodes[-1].socket), 2)]
        runs += [(f"stage {stage}, ranks on {place}", cluster.spread(place), stage)
                 for stage in range(4) for place in PLACES[count]]
        runs += [(f"all-reduces in stage {stage}, ranks on {place}", cluster.spread(place), stage)
                 for stage, place in ((1, "dealt"), (3, PLACES[count][-1]))]
        alone, *apart = trained(tmp_path, 4, 3, runs)
        assert [name for (name, _, _), digest in zip(runs[1:], apart) if digest != alone] == []


def test_all_reduces_to_shards_cross_as_planned(runtime_dir, tmp_path):
    """A slice's partial sums to its owner, and its result once to each other node."""
    rows, place = gpt2(16, 67, 9), [0, 1, 1, 0]
    run = dict(stage=2, micro_steps=2, accumulate="shard", gather="private", secondary_ranks=0,
               all_reduce=1, bucket=RUN_BUCKET)
    want = plan.expected(plan.read_model(write_model(tmp_path / "m.tsv", rows)), 2, 4, RUN_BUCKET,
                         micro_steps=2, all_reduce=True, nodes=place)["cross_node_bytes"]
    with nodes.Cluster(runtime_dir, 2) as cluster:
        ranks = gw.run(4, one_run, 4, cluster.spread(place), str(tmp_path / "id"), rows, run,
                       timeout=240 * SLOWER)
    for kind in ("all_reduce", "reduce_scatter"):
        crossed = sum(counters[kind]["cross_node_bytes"] for counters, _, _ in ranks)
        assert crossed == STEPS * sum(want[kind]), kind


def test_seven_and_eight_ranks(runtime_dir, tmp_path):
    with nodes.Cluster(runtime_dir, 2) as cluster:
        alone, apart = trained(tmp_path, 15, 2, [
            ("alone", str(cluster.nodes[0].socket), 2),
            ("apart", cluster.spread([0] * 7 + [1] * 8), 2)])
        assert alone == apart


def test_more_ranks_than_a_word_has_bits(runtime_dir, tmp_path):
    with nodes.Cluster(runtime_dir, 2) as cluster:
        alone, apart = trained(tmp_path, 66, 1, [
            ("alone", str(cluster.nodes[0].socket), 2),
            ("apart", cluster.spread([0] * 30 + [1] * 36), 2)])
        assert alone == apart


def shaped(cluster, rate, **options):
    if cluster.network.why is not None:
        pytest.skip(f"no network that can be shaped: {cluster.network.why}")
    try:
        cluster.network.shape(rate, **options)
    except network.Refused as error:
        pytest.skip(f"tc cannot shape here: {error}")


def test_a_slow_network_that_loses_packets_changes_no_bit(runtime_dir, tmp_path):
    """A queue of three packets: of what comes faster than the link the rest is dropped."""
    with nodes.Cluster(runtime_dir, 2, "star_lost = 10s\nstar_beat = 1s\n") as cluster:
        shaped(cluster, "20mbit", limit="limit 5000", burst=5000)
        alone, *lossy = trained(tmp_path, 4, 3, [
            ("alone", str(cluster.nodes[0].socket), 2), ("stage 2", cluster.spread(), 2),
            ("stage 3", cluster.spread("dealt"), 3)])
        assert lossy == [alone] * 2
        dropped = sum(cluster.network.dropped(node) for node in range(2))
        print(f"{dropped} packets were dropped")
        assert dropped > 0


# ---- a relay -------------------------------------------------------------------------------------


class Relay:
    """Listens on loopback and passes on what comes, a while later, to the address of an id."""

    def __init__(self, port, delay_s):
        self.to, self.delay_s, self.passed = port, delay_s, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                one, _ = self.listener.accept()
                other = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                return
            for pair in ((one, other), (other, one)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, from_, to):
        """In order, each piece delay_s after it came."""
        while True:
            try:
                data = from_.recv(65536)
                threading.Event().wait(self.delay_s)
                self.passed += len(data)
                if data:
                    to.sendall(data)
                else:
                    to.shutdown(socket.SHUT_WR)
                    return
            except OSError:
                return

    def close(self):
        self.listener.close()


def relayed(where, delay_s, timeout=20):
    """Rank 0's id, with the relay's port in it; for the other node's ranks."""
    job_id = gw.JobId()
    gw.call("gw_job_id_load", where["root_id"].encode(), C.c_int64(timeout * gw.S),
            C.byref(job_id))
    relay = Relay(job_id.bytes[6] << 8 | job_id.bytes[7], delay_s)
    job_id.bytes[6], job_id.bytes[7] = relay.port >> 8, relay.port & 255
    gw.call("gw_job_id_save", C.byref(job_id), where["id"].encode())
    return relay


def relayed_rank(rank, world, where, stage, steps):
    if rank == 0:
        where = {**where, "id": where["root_id"]}
    return training_rank(rank, world, where, stage, steps, False)


def test_a_slow_way_to_the_root_changes_no_bit(runtime_dir, tmp_path):
    """What ranks declare comes 30 ms late to the root, and what it decides 30 ms late back."""
    with nodes.Cluster(runtime_dir, 2, namespaces=False) as cluster:
        (alone,) = trained(tmp_path, 2, 2, [("alone", str(cluster.nodes[0].socket), 3)])
        where = where_of(tmp_path, cluster.spread(), "late")
        where["root_id"] = where["id"] + ".root"
        ranks = gw.Ranks(2, relayed_rank, 2, where, 3, 2)
        relay = relayed(where, 0.03)
        try:
            assert ranks.join(120 * SLOWER) == [("ok", alone)] * 2
        finally:
            relay.close()
        assert relay.passed > 0


# ---- jobs beside each other ----------------------------------------------------------------------


def test_two_jobs_at_once_on_the_same_nodes(runtime_dir, tmp_path):
    """Their roots are on different nodes, and each has the bits that it has alone."""
    with nodes.Cluster(runtime_dir, 2) as cluster:
        (alone,) = trained(tmp_path, 2, 12, [("alone", str(cluster.nodes[0].socket), 2)])
        jobs = {}
        for stage, place in ((2, [0, 1]), (3, [1, 0])):
            where = where_of(tmp_path, cluster.spread(place), f"job{stage}")
            flag(where, "go")
            jobs[stage] = gw.Ranks(2, training_rank, 2, where, stage, 12, True)
        for ranks in jobs.values():
            assert ranks.join(120 * SLOWER) == [("ok", alone)] * 2

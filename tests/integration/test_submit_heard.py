# SPDX-License-Identifier: Apache-2.0
"""PARAM_IO and MEASURE are judged by what all ranks had said before, read or not.

Ranks order their calls in ways of their own, which the engine does not see; and it is not rung for
everything. It is stopped (SIGSTOP) while one rank says something and another, with a lower number,
asks, so that both lie there when it goes on.

ctest: timeout=120
"""
import pytest

import wire
from conftest import ENGINE
from test_engine import STAGING, start  # noqa: F401 (a fixture)
from test_last_messages import PARAM, Stopped

pytestmark = pytest.mark.skipif(not ENGINE.exists(), reason=f"{ENGINE} is not built")
UNIT = {1: 0}
FIRST = {2: 0, 4: 1}  # of PARAM_IO: read the first element


def sealed(engine, stage):
    """Two ranks, each with staging memory; two micro-steps."""
    ranks = [engine.create(world=2)]
    ranks.append(engine.join(ranks[0].id, 1, 2))
    for rank in ranks:
        assert rank.ask("REGISTER", {1: 0, 2: 1, 3: PARAM}, request=2).code == "OK"
        rank.send(wire.frame("SEAL", 3, {1: stage, 7: 2, 9: 4096, 10: 1.0}))
    for rank in ranks:
        assert rank.receive().type == "SEALED"
        assert rank.ask("ARENA_GET", {1: STAGING}, request=4).type == "ARENA"
    return ranks


def say(rank, *kinds):
    for kind in kinds:
        rank.send(wire.frame(kind, 0, UNIT if kind in ("FETCH", "RELEASE") else {}))


def handled(rank):
    assert rank.ask("STATS_GET", request=5).type == "STATS"


@pytest.mark.parametrize("stage", [0, 2, 3])
@pytest.mark.parametrize("before", [0, 100])  # fetches more: as many frames as several turns take
def test_a_release_counts_though_it_is_unread(start, stage, before):
    engine = start()
    low, high = sealed(engine, stage)
    say(high, "FETCH")
    handled(high)
    with Stopped(engine):
        say(high, *["RELEASE", "FETCH"] * before, "RELEASE")
        low.send(wire.frame("PARAM_IO", 6, FIRST))
    assert low.receive().code == "OK"
    say(high, "FETCH")
    handled(high)
    with Stopped(engine):
        say(high, *["RELEASE", "FETCH"] * before, "RELEASE")
        low.send(wire.frame("MEASURE", 7))
    handled(high)
    high.send(wire.frame("MEASURE", 7))
    assert low.receive().code == high.receive().code == "OK"


def test_each_of_two_that_ask_is_heard_before_the_other_is_judged(start):
    engine = start()
    low, high = sealed(engine, 3)
    for rank in low, high:
        say(rank, "FETCH")
        handled(rank)
    with Stopped(engine):
        for rank in low, high:
            say(rank, *["RELEASE", "FETCH"] * 100, "RELEASE")
            rank.send(wire.frame("PARAM_IO", 6, FIRST))
    assert low.receive().code == high.receive().code == "OK"


def test_a_step_s_end_counts_though_it_is_unread(start):
    engine = start()
    low, high = sealed(engine, 2)
    say(low, "MICRO_END", "STEP_END")
    handled(low)
    say(high, "MICRO_END")
    handled(high)
    with Stopped(engine):
        say(high, "STEP_END")
        low.send(wire.frame("PARAM_IO", 6, FIRST))
    assert low.receive().code == "OK"


def test_a_fetch_counts_though_it_is_unread(start):
    engine = start()
    low, high = sealed(engine, 3)
    with Stopped(engine):
        say(high, "FETCH")
        low.send(wire.frame("PARAM_IO", 6, FIRST))
    refused = low.receive()
    assert refused.code == "STATE" and "rank 1 has fetched unit 'u'" in refused.text(2), refused

# SPDX-License-Identifier: Apache-2.0
"""Public failures of other systems (test_cases.py): secondary shards (ZeRO++ hpZ).

Four ranks in blocks of two. A block's first gather of a version comes from all four and fills the
block's copy; what the block's ranks gather afterwards comes from that copy.
ctest: device=cuda nodes=too
"""
import pytest

import gw
from test_cases import sealed, where  # noqa: F401  pylint: disable=unused-import

WORLD, BLOCK = 4, 2
N = 4096
BYTES = 4 * N
ALL, COPY = BYTES * 3 // 4, BYTES * 1 // 2  # ring bytes of a gather from all, from the copy
SLOW = COPY * 4  # bytes/s: a gather from the copy takes a quarter of a second


def opened(rank, where, **job_options):
    job = sealed(rank, WORLD, where, [N], None, job_options, stage=3, bucket_bytes=BYTES,
                 secondary_ranks=BLOCK, overlap_off=1)  # nothing is gathered ahead
    if rank == 3:
        job.write(0, [1.0] * N)
    job.barrier()
    return job


def all_gather(job):
    return job.stats().kinds[gw.KINDS.index("all_gather")]


def read(job, token):
    job.wait(token)
    values = set(job.values(0, N))
    job.release(0)
    return values


def in_turn(rank, job):
    """What the rank reads, and the ring bytes that it counts: a block's first rank goes first."""
    ring, seen = all_gather(job).ring_bytes, None
    for turn in range(BLOCK):
        if rank % BLOCK == turn:
            seen = read(job, job.fetch(0))
        job.barrier()
    return seen, all_gather(job).ring_bytes - ring


def e01_rank(rank, where):
    job = opened(rank, where, link_bytes_per_s=SLOW)
    token = job.fetch(0) if rank % BLOCK == 0 else None
    job.barrier()  # the first one's gather has begun: 3/8 s; then its fill: 1/4 s
    seen = [read(job, token or job.fetch(0)), read(job, job.fetch(0))]
    job.barrier()
    kind, memory = all_gather(job), job.stats().memory_bytes[gw.MEMORY.index("params")]
    job.close()
    return seen, [kind.calls, kind.payload_bytes, kind.ring_bytes, kind.moved_bytes], memory


def test_e01_a_gather_waits_for_what_fills_the_copy(where):
    moved = 2 * BYTES + BYTES // BLOCK  # twice to the rank's pool, once its slice of the copy
    shards = BYTES // WORLD + BYTES // BLOCK
    first = ([{1.0}, {1.0}], [2, 2 * BYTES, ALL + COPY, moved], shards)
    second = ([{1.0}, {1.0}], [2, 2 * BYTES, COPY + COPY, moved], shards)
    assert gw.run(WORLD, e01_rank, where) == [first, second] * 2


def by_write(rank, job):
    if rank == 2:
        job.write(0, [2.0] * N)
    job.barrier()


def by_update(_, job):
    job.step_end()
    job.wait(job.update_begin())
    for s in job.spans():
        gw.fill(s.params, s.numel, 2.0)
    job.update_commit()


WAYS = {f.__name__: f for f in (by_write, by_update)}


def e02_rank(rank, where, how):
    job = opened(rank, where)
    seen = [in_turn(rank, job), in_turn(rank, job)]
    WAYS[how](rank, job)
    seen += [in_turn(rank, job), in_turn(rank, job)]
    job.close()
    return seen


@pytest.mark.parametrize("how", sorted(WAYS))
def test_e02_a_stale_copy_is_never_served(where, how):
    first = [({1.0}, ALL), ({1.0}, COPY), ({2.0}, ALL), ({2.0}, COPY)]
    second = [({1.0}, COPY), ({1.0}, COPY), ({2.0}, COPY), ({2.0}, COPY)]
    assert gw.run(WORLD, e02_rank, where, how) == [first, second] * 2

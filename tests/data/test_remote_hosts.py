"""Processes of one host share what is fetched: once, below the limit, and nothing wrong after a kill."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lfhelpers.data import Manifest
from lfhelpers.data.locks import Locked
from lfhelpers.data.remote import open_remote
from lfhelpers.processes import descendants
from tests.data.http_server import Server
from tests.data.remote_epochs import QUICK, ids, job, wait_for

FORK: Any = multiprocessing.get_context("fork")


def bytes_in(cache: Path) -> int:
    """What all shards in the cache take, whole or being fetched."""
    with Locked(cache / "lock", os.O_RDWR | os.O_CREAT) as lock:
        lock.exclusive(wait=True)  # or a shard that is renamed just now is seen twice
        found = 0
        for path in cache.glob("*/*.tar*"):
            with contextlib.suppress(FileNotFoundError):  # a fetch that was given up
                found += path.stat().st_size
        return found


def both(work, outbox) -> list[int]:
    """What two rank processes have read, sorted; both must end well."""
    ranks = [FORK.Process(target=work, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    read = sorted(outbox.get() + outbox.get())
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0, 0]
    return read


def test_two_ranks_of_a_host_fetch_each_shard_once(served: Server, many: Manifest, tmp_path: Path) -> None:
    served.folder, served.rate = many.folder, 1e6
    outbox = FORK.SimpleQueue()

    def work(rank: int) -> None:
        remote = open_remote(served.address, tmp_path, 1, QUICK)
        outbox.put(ids(job("data.workers=2", "data.shuffle=block"), remote, rank, world=2))

    assert both(work, outbox) == list(range(48))
    assert served.count() == {shard.name: 1 for shard in many.shards}


@pytest.mark.parametrize(("workers", "most"), [(0, 1), (2, 3)])
def test_an_epoch_through_a_small_cache_stays_below_its_limit(served: Server, many: Manifest, tmp_path: Path,
                                                              workers: int, most: int) -> None:
    limit, seen = 13 * max(shard.size for shard in many.shards), [0]  # of 24: a window of 8, 4 behind, and one ahead
    served.folder, served.watch = many.folder, lambda name, sent: seen.append(bytes_in(tmp_path))
    remote = open_remote(served.address, tmp_path, limit / 1e9, QUICK)
    assert sorted(ids(job("data.shuffle=block", f"data.workers={workers}"), remote)) == list(range(48))
    assert limit / 2 < max(seen) <= limit
    assert len(served.count()) == 24 and max(served.count().values()) <= most
    assert bytes_in(tmp_path) <= limit


def test_two_ranks_share_a_small_cache(served: Server, many: Manifest, tmp_path: Path) -> None:
    limit, seen, outbox = 14 * max(shard.size for shard in many.shards), [0], FORK.SimpleQueue()
    served.folder, served.watch = many.folder, lambda name, sent: seen.append(bytes_in(tmp_path))

    def work(rank: int) -> None:
        remote = open_remote(served.address, tmp_path, limit / 1e9, QUICK)
        outbox.put(ids(job("data.workers=1", "data.shuffle=block"), remote, rank, world=2, epochs=2))

    assert both(work, outbox) == sorted([*range(48), *range(48)])
    assert max(seen) <= limit


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_run_leaves_nothing_that_a_later_one_would_trust(served: Server, many: Manifest, tmp_path: Path,
                                                                  seed: int) -> None:
    served.folder = many.folder
    draw, limit = np.random.default_rng(seed), 13 * max(shard.size for shard in many.shards)
    toy = job("data.workers=2", "data.shuffle=block")

    def work() -> None:
        ids(toy, open_remote(served.address, tmp_path, limit / 1e9, QUICK), epochs=9)

    for _ in range(2):
        pieces, enough, delay = [], int(draw.integers(0, 150)), float(draw.uniform(0, 0.03))
        served.watch = lambda name, sent, pieces=pieces: pieces.append(name)
        run = FORK.Process(target=work)
        run.start()
        wait_for(lambda pieces=pieces, enough=enough: len(pieces) > enough)
        time.sleep(delay)
        family = descendants(run.pid)
        os.kill(run.pid, signal.SIGKILL)
        run.join()
        wait_for(lambda family=family: not any(member.alive for member in family))
        for path in tmp_path.glob("*/*.tar"):
            assert path.read_bytes() == (many.folder / path.name).read_bytes()
    assert sorted(ids(toy, open_remote(served.address, tmp_path, limit / 1e9, QUICK))) == list(range(48))
    left = [path.name for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".tar"]
    assert sorted(left) == ["lock", "lock-manifest", "manifest.json", "manifest.npz"]

"""The host's cache: nothing wrong under a trusted name, never above its limit, locks that end with their owner."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lfhelpers.data.address import Address
from lfhelpers.data.cache import Cache, Lease, NoRoom
from lfhelpers.data.download import Patience
from lfhelpers.data.locks import Locked
from lfhelpers.data.manifest import Shard
from lfhelpers.errors import LfError
from tests.data.http_server import Server
from tests.data.remote_epochs import wait_for

QUICK = Patience(tries=3, first=0.005, longest=0.02, stall=60, seed=1)
SIZE = 20_000
FORK: Any = multiprocessing.get_context("fork")


def body(number: int) -> bytes:
    return np.random.default_rng(number).bytes(SIZE)


def shard(number: int) -> Shard:
    return Shard(f"shard-{number}.tar", SIZE, hashlib.sha256(body(number)).hexdigest(), 1)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "served"
    folder.mkdir()
    for number in range(8):
        (folder / shard(number).name).write_bytes(body(number))
    with Server(folder) as server:
        yield server


@pytest.fixture
def cache(served: Server, tmp_path: Path) -> Cache:
    """Room for three shards."""
    (tmp_path / "cache" / "set").mkdir(parents=True)
    return Cache(tmp_path / "cache", tmp_path / "cache" / "set", Address(served.address), 3 * SIZE + 10, QUICK)


def read(cache: Cache, number: int, *keep: int) -> bytes:
    with cache.open(shard(number), lambda: [shard(other).name for other in keep]) as file:
        return os.pread(file.descriptor, SIZE + 1, 0)


def here(cache: Cache) -> list[int]:
    return sorted(int(name[6:-4]) for name in cache.present())


def aged(cache: Cache, *numbers: int) -> None:
    """As if these had been read long ago, the first one longest."""
    for age, number in enumerate(numbers):
        os.utime(cache.folder / shard(number).name, (1000 + age, 1000 + age))


def in_fork(work: Callable[[], object]) -> Any:
    process = FORK.Process(target=work)
    process.start()
    return process


def test_a_shard_is_fetched_once_and_then_read_from_disk(served: Server, cache: Cache) -> None:
    assert read(cache, 0) == read(cache, 0) == body(0)
    assert served.count() == {"shard-0.tar": 1} and here(cache) == [0]
    assert os.listdir(cache.folder) == ["shard-0.tar"]


def test_the_longest_unread_goes_first(served: Server, cache: Cache) -> None:
    for number in range(3):
        read(cache, number)
    aged(cache, 1, 2, 0)
    read(cache, 1)  # reading makes it young
    read(cache, 3)
    assert here(cache) == [0, 1, 3]
    read(cache, 4)
    assert here(cache) == [1, 3, 4]


def test_what_is_being_read_stays(cache: Cache) -> None:
    for number in range(3):
        read(cache, number)
    aged(cache, 0, 1, 2)
    with cache.open(shard(0)) as used:
        aged(cache, 0, 1, 2)
        read(cache, 3)
        assert here(cache) == [0, 2, 3]
        assert os.pread(used.descriptor, SIZE, 0) == body(0)
    aged(cache, 0, 2, 3)
    read(cache, 4)
    assert here(cache) == [2, 3, 4]


def test_no_room_is_waited_for_and_then_a_sentence(served: Server, cache: Cache) -> None:
    held = [cache.open(shard(number)) for number in range(3)]
    impatient = replace(cache, patience=replace(QUICK, stall=0.5))
    with pytest.raises(LfError, match=r"^shard shard-3.tar finds no room in .*/cache: other shards fill the limit of "
                                      r"6.001e-05 GB and are all being read or fetched; give a larger data.cache_gb"):
        read(impatient, 3)
    with pytest.raises(NoRoom):
        cache.fetch(shard(3), tuple, ahead=True)
    assert here(cache) == [0, 1, 2] and "shard-3.tar" not in served.count()
    held.pop().close()
    assert read(cache, 3) == body(3) and here(cache) == [0, 1, 3]


def test_a_shard_above_the_limit_is_a_sentence(served: Server, cache: Cache) -> None:
    small = Cache(cache.root, cache.folder, cache.address, SIZE - 1, QUICK)
    with pytest.raises(LfError, match=r"^shard shard-0.tar of http://.* has 2e-05 GB, the cache's limit is 1.9999e"):
        small.open(shard(0))
    assert not served.requests and not os.listdir(cache.folder)


def test_fetching_ahead_spares_what_jobs_need_and_a_reader_does_not(cache: Cache) -> None:
    for number in range(3):
        read(cache, number)
    aged(cache, 0, 1, 2)
    lease = cache.lease()
    lease.hold([shard(0).name, shard(1).name])
    assert cache.fetch(shard(3), lambda: [shard(3).name], ahead=True)
    assert here(cache) == [0, 1, 3]  # 2 was younger, but nobody needs it
    with pytest.raises(NoRoom):
        cache.fetch(shard(4), lambda: [shard(3).name, shard(4).name], ahead=True)
    read(cache, 4, 3, 4)
    assert here(cache) == [1, 3, 4]  # another job's shards before its own
    read(cache, 5, 4, 3, 5, 1)
    assert here(cache) == [3, 4, 5]  # and of its own the one that it needs last
    del lease
    cache.sweep()
    assert not os.listdir(cache.root / "leases")


def test_all_datasets_share_the_limit_and_none_its_names(served: Server, cache: Cache) -> None:
    (cache.root / "other").mkdir()
    (served.folder / "other").mkdir()
    (served.folder / "other" / "shard-0.tar").write_bytes(body(7))
    other = Cache(cache.root, cache.root / "other", Address(f"{served.address}/other"), cache.limit, QUICK)
    twin = Shard("shard-0.tar", SIZE, shard(7).sha256, 1)
    assert read(cache, 0) == body(0)
    with other.open(twin) as file:
        assert os.pread(file.descriptor, SIZE, 0) == body(7)
    assert read(cache, 0) == body(0)
    aged(other, 0)
    read(cache, 1)
    read(cache, 2)
    assert here(cache) == [0, 1, 2] and here(other) == []


def test_damage_on_this_disk_is_found_and_fetched_again(served: Server, cache: Cache) -> None:
    read(cache, 0)
    place = cache.folder / shard(0).name
    assert not cache.refute(shard(0)) and not cache.refute(shard(1))
    place.write_bytes(body(0)[:-1] + b"!")
    assert cache.refute(shard(0)) and not place.exists()
    assert read(cache, 0) == body(0)
    os.truncate(place, 100)
    assert read(cache, 0) == body(0)
    assert served.count() == {"shard-0.tar": 3}


def test_many_processes_ask_for_each_shard_once(served: Server, cache: Cache) -> None:
    served.rate = 400_000

    def work() -> None:
        for number in range(3):
            assert read(cache, number) == body(number)

    processes = [in_fork(work) for _ in range(5)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 5
    assert served.count() == {shard(number).name: 1 for number in range(3)}


@pytest.mark.parametrize("seed", range(6))
def test_a_kill_at_any_moment_leaves_nothing_wrong_that_is_trusted(served: Server, cache: Cache, seed: int) -> None:
    draw = np.random.default_rng(seed)
    for _ in range(3):
        pieces, enough, delay = [], int(draw.integers(1, 25)), float(draw.choice([0.0, draw.uniform(0, 0.02)]))
        served.watch = lambda name, sent, pieces=pieces: pieces.append(name)
        order = draw.integers(0, 8, 999).tolist()
        process = in_fork(lambda order=order: [read(cache, number) for number in order])
        wait_for(lambda pieces=pieces, enough=enough: len(pieces) >= enough)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        for number in here(cache):
            assert (cache.folder / shard(number).name).read_bytes() == body(number)
        assert sum(path.stat().st_size for path in cache.folder.iterdir()) <= cache.limit
    for number in range(8):
        assert read(cache, number) == body(number)
    cache.sweep()
    assert sorted(os.listdir(cache.folder)) == [shard(number).name for number in here(cache)]


def test_waiting_for_a_fetch_ends_when_its_owner_is_killed(served: Server, cache: Cache) -> None:
    served.faults["shard-0.tar"] = ["hang"]
    patient = Cache(cache.root, cache.folder, cache.address, cache.limit, Patience(stall=1000))
    owner = in_fork(lambda: patient.open(shard(0)))
    wait_for(lambda: served.requests)
    waiting = in_fork(lambda: os._exit(0 if read(cache, 0) == body(0) else 1))
    os.kill(owner.pid, signal.SIGKILL)
    waiting.join()
    owner.join()
    assert waiting.exitcode == 0 and served.count() == {"shard-0.tar": 2}


def test_a_fork_holds_no_lock_of_its_parent(cache: Cache) -> None:
    gone, (ours, theirs) = FORK.Event(), FORK.Pipe()
    file = cache.open(shard(0))
    child = in_fork(lambda: (theirs.send(file.descriptor), gone.wait()))
    assert ours.recv() == -1
    file.close()
    with Locked(cache.folder / shard(0).name) as again:
        assert again.exclusive()
    gone.set()
    child.join()
    assert child.exitcode == 0


def test_leases_and_parts_of_the_dead_are_swept(cache: Cache, served: Server) -> None:
    served.faults["shard-0.tar"] = ["hang"]
    patient = Cache(cache.root, cache.folder, cache.address, cache.limit, Patience(stall=1000))

    def work() -> None:
        lease = Lease(cache)
        lease.hold([shard(5).name])
        patient.open(shard(0))

    owner = in_fork(work)
    wait_for(lambda: served.requests)
    cache.sweep()
    assert os.listdir(cache.folder) == [".shard-0.tar.part"] and len(os.listdir(cache.root / "leases")) == 1
    os.kill(owner.pid, signal.SIGKILL)
    owner.join()
    cache.sweep()
    assert not os.listdir(cache.folder) and not os.listdir(cache.root / "leases")


def test_a_failure_leaves_no_file(cache: Cache, served: Server) -> None:
    served.faults["shard-0.tar"] = ["always:wrong"]
    with pytest.raises(LfError, match=r"^shard shard-0.tar can't be fetched from .*: its sha256 is not the manifest's"):
        cache.open(shard(0))
    assert not os.listdir(cache.folder)

"""Slots are shared with spawned processes, handed out one by one, refused where memory is small, and leave nothing."""

from __future__ import annotations

import os
import queue
import signal
import threading
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lfhelpers.data import ring as ring_module
from lfhelpers.data.ring import Ring
from lfhelpers.data.spawned import Spawned
from lfhelpers.errors import LfError


def mapped() -> int:
    """How many rings this process has mapped."""
    return Path("/proc/self/maps").read_text().count("lfhelpers-ring")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@settings(max_examples=30, deadline=None)
@given(slots=st.integers(1, 4), shape=st.lists(st.integers(0, 5), max_size=4),
       dtype=st.sampled_from(["uint8", "int64", "float32"]))
def test_slots_do_not_overlap(slots: int, shape: list[int], dtype: str) -> None:
    ring = Ring(slots, shape, dtype)
    for slot in range(slots):
        ring[slot][...] = slot + 1
    for slot in range(slots):
        assert ring[slot].shape == tuple(shape) and ring[slot].dtype == dtype
        assert (ring[slot] == slot + 1).all()
    ring.close()


def test_a_spawned_process_changes_what_this_one_sees() -> None:
    ring = Ring(3, (5,), "int64")
    for slot in range(3):
        ring[slot][:] = [1, 10, 100, 1000, slot]
    child = Spawned("tests.data.planted:doubling", [ring], {})
    for slot in (2, 0):
        child.pipe.send(slot)
        assert child.pipe.recv() == slot
    assert [ring[slot].tolist() for slot in range(3)] == [[2, 20, 200, 2000, 0], [1, 10, 100, 1000, 1],
                                                          [2, 20, 200, 2000, 4]]
    child.end()
    ring.close()


def test_slots_are_handed_out_once_and_waited_for() -> None:
    ring = Ring(2, (1,))
    assert {ring.take(), ring.take()} == {0, 1}
    assert ring.take(patient=False) is None
    taken: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def take() -> None:
        for _ in range(2):
            taken.put(ring.take())

    waiting = [threading.Thread(target=take) for _ in range(2)]
    for thread in waiting:
        thread.start()
    ring.give(1)
    assert taken.get(timeout=10) == 1
    ring.stop()
    assert [taken.get(timeout=10) for _ in range(3)] == [None] * 3, "whoever waits goes on when the ring is stopped"
    ring.give(0)
    assert ring.take() is None and ring.take(patient=False) is None
    ring.close()


def test_nothing_is_left_of_a_ring() -> None:
    files, maps = open_files(), mapped()
    ring = Ring(4, (1000, 1000))
    assert mapped() == maps + 1 and open_files() > files
    ring.close()
    ring.close()
    assert (open_files(), mapped()) == (files, maps)


def test_an_array_that_is_held_outlives_the_ring() -> None:
    maps = mapped()
    ring = Ring(2, (3,))
    held = ring[1]
    held[:] = 7
    ring.close()
    assert held.tolist() == [7, 7, 7]
    del held, ring
    assert mapped() == maps


def test_a_ring_that_memory_does_not_hold_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "memory_bytes", lambda: 3 * 2**30)
    files = open_files()
    sentence = (r"^a ring of 8 slots of 256.0 MiB takes 2.00 GiB of shared memory, more than half of the 3.00 GiB that "
                r"are free here; take a smaller data.depth or batch.micro.$")
    with pytest.raises(LfError, match=sentence):
        Ring(8, (2**28,))
    assert open_files() == files
    ring_module.need(2**30, "what fits")


def test_memory_that_the_system_refuses_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refused)
    files = open_files()
    with pytest.raises(LfError, match=r"can't be made, 0.00 GiB of shared memory: No space left on device; take a"):
        Ring(1, (10,))
    assert open_files() == files


def test_a_spawned_process_is_light_and_sees_no_gpu() -> None:
    child = Spawned("tests.data.planted:telling", [], {})
    assert child.pipe.recv() == {"torch": False, "scipy": False, "gpus": "", "ctrl_c": True, "parent": os.getpid()}
    assert child.cause() == "exit code 0"
    child.end()


def test_the_end_of_a_process_is_known_with_its_cause() -> None:
    ring = Ring(1, (1,))
    left, killed = (Spawned("tests.data.planted:doubling", [ring], {"leave": 3}) for _ in range(2))
    killed.process.send_signal(signal.SIGKILL)
    left.pipe.send(None)
    for child in (left, killed):
        with pytest.raises((EOFError, ConnectionError)):
            child.pipe.recv()
    assert left.cause() == "exit code 3"
    assert killed.cause() == "signal 9 (Killed)"
    for child in (left, killed):
        child.end()
        child.end()
        assert not psutil.pid_exists(child.process.pid)
    ring.close()

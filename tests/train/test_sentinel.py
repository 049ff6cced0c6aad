"""Memory that keeps growing is told from warm-up and noise, and its owner is named; a late rank by its own time."""

import ctypes
import itertools
import mmap
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from lfhelpers.errors import LfError
from lfhelpers.measure import census
from lfhelpers.measure.growth import growth
from lfhelpers.pitfalls.base import uncollected
from lfhelpers.recipe import recipe
from lfhelpers.runs import Run
from lfhelpers.train import sentinel
from lfhelpers.train.ranks import Ranks
from lfhelpers.train.sentinel import KEPT, Sentinel, by_stack, reader
from lfhelpers.train.straggler import FIRST, OWN, Seen, Straggler, crowded, late, left
from tests.train.toy import ALONE

MIB = 2**20
STEPS = 120


def curve(kind, seed):
    """Bytes held by step: 1 GiB of model, noise of 8 MiB, and what the kind says."""
    random = np.random.default_rng(seed)
    steps = np.arange(STEPS)
    held = 1024 * MIB + random.integers(0, 8 * MIB, STEPS)
    held = held + {"flat": 0 * steps, "leak": 2 * MIB * steps, "warm-up": 400 * MIB * (1 - np.exp(-steps / 10)),
                   "jump": 300 * MIB * (steps > random.integers(20, 100)),
                   "saw": 4 * MIB * (steps % 17)}[kind]
    return steps.tolist(), held.astype(int).tolist()


@pytest.mark.parametrize("kind", ["flat", "warm-up", "jump", "saw"])
def test_no_curve_without_a_leak_raises_an_alarm(kind):
    assert not any(growth(*curve(kind, seed)).leaks(MIB) for seed in range(20))


def test_every_leak_is_found_with_its_slope():
    for seed in range(20):
        found = growth(*curve("leak", seed))
        assert found.leaks(32 * MIB) and 0 < found.low <= found.slope <= found.high
        assert found.slope == pytest.approx(2 * MIB, rel=0.1)
        assert not found.leaks(1024 * MIB), "less was gained than is asked for"


def test_few_samples_are_no_evidence():
    assert growth(range(23), range(23)) is None


def test_the_sentinel_keeps_a_bounded_number_of_samples(tmp_path):
    watched = Sentinel(ALONE, read=lambda: MIB)
    watched.run_start(recipe("competent", "log.skip=0"), Run(tmp_path), None)
    for step in range(4 * KEPT):
        watched.step_end(step)
    summary = {}
    watched.run_end(summary)
    assert len(watched._held) <= KEPT and summary["memory_growth"]["leaks"] is False


def test_a_library_that_loads_late_is_no_leak_though_memory_creeps_on(tmp_path):
    """As found in ranks of 64 steps: some 3 KiB a step, and 37 MiB when scipy was loaded on the way."""
    held = iter([3000 * step + 37 * MIB * (step > 48) for step in range(64)])
    watched = Sentinel(ALONE, read=lambda: next(held))
    watched.run_start(recipe("competent", "log.skip=0"), Run(tmp_path), None)
    for step in range(64):
        watched.step_end(step)
    summary = {}
    watched.run_end(summary)
    assert growth(watched._steps, watched._held).leaks(32 * MIB), "by its gain it would be one"
    assert summary["memory_growth"]["leaks"] is False and not list(tmp_path.iterdir())


def test_a_flat_curve_is_looked_at_without_the_second_that_an_interval_costs(tmp_path, monkeypatch):
    """As found: the import of scipy at the 48th step left an H200 idle for a second, sixty steps of `small`."""
    def costly(steps, held):
        raise AssertionError("looked closely")
    monkeypatch.setattr(sentinel, "growth", costly)
    watched = Sentinel(ALONE, read=lambda: MIB)
    watched.run_start(recipe("competent", "log.skip=0"), Run(tmp_path), None)
    for step in range(STEPS):
        watched.step_end(step)
    leaking = Sentinel(ALONE, read=itertools.count(0, 64 * MIB).__next__)
    leaking.run_start(recipe("competent", "log.skip=0"), Run(tmp_path), None)
    with pytest.raises(AssertionError, match="looked closely"):
        for step in range(STEPS):
            leaking.step_end(step)


def test_a_rank_leaves_its_times_while_the_training_goes_on(tmp_path, monkeypatch):
    """Looking at all processes and waiting for a disk takes as long as many steps."""
    row = {"probe": False, "step_ms": 12.0, "ms": dict.fromkeys(OWN, 3.0)}
    written = threading.Event()
    write = Run.write
    monkeypatch.setattr(Run, "write", lambda *args: written.wait() and write(*args))
    watched = Straggler(Ranks(0, 2, torch.device("cpu")))
    watched.run_start(recipe("competent", "log.skip=0"), Run(tmp_path), None)
    for step in range(1, FIRST + 6):
        watched.step(row | {"step": step})
    assert not list(tmp_path.iterdir())
    written.set()
    watched.close()
    [(rank, seen)] = left(Run(tmp_path))
    assert rank == 0 and seen.step_ms == [12.0] * FIRST


def test_times_that_cannot_be_left_end_the_run(tmp_path):
    watched = Straggler(Ranks(0, 1, torch.device("cpu")))
    watched._watched = True  # as on a GPU
    watched.run_start(recipe("competent", "log.skip=0"), Run(tmp_path / "gone"), None)
    for step in range(1, FIRST + 1):
        watched.step({"step": step, "probe": False, "step_ms": 12.0, "ms": dict.fromkeys(OWN, 3.0)})
    with pytest.raises(LfError, match=r"pace-rank-0\.json"):
        watched.run_end({})
    watched.close()


def test_a_cpus_own_pages_grow_with_what_is_written():
    read = reader(torch.device("cpu"))
    for flags, counts in ((mmap.MAP_PRIVATE, True), (mmap.MAP_SHARED, False)):
        before = read()
        with mmap.mmap(-1, 64 * MIB, flags=flags | mmap.MAP_ANONYMOUS) as pages:
            pages.write(b"1" * 32 * MIB)
            assert (read() - before >= 30 * MIB) is counts, "shared pages are other processes', or files'"


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="malloc keeps what is free, without glibc")
def test_a_leak_into_memory_that_was_freed_before_the_run_is_seen(tmp_path):
    """As in a notebook, where one kernel makes many runs."""
    del (last := [torch.ones(4 * MIB)])[:]  # malloc keeps blocks of up to this size from now on
    freed, kept = [torch.ones(2**18) for _ in range(200)], []
    last.append(torch.ones(2**18))  # above what is freed, which can't be handed back by lowering the heap's end
    del freed
    watched, summary = Sentinel(ALONE), {}
    with uncollected():  # what earlier tests left is freed in no step
        watched.run_start(recipe("competent", "log.skip=0"), Run(tmp_path), None)
        for step in range(64):
            kept.append(torch.ones(2**18))
            watched.step_end(step)
        watched.run_end(summary)
    assert summary["memory_growth"]["leaks"], summary["memory_growth"]


class Recorder:
    def __init__(self):
        self.seen = {}


def test_who_holds_what_became_more_is_named():
    recorder, before = Recorder(), census.census()
    for step in range(5):
        recorder.seen[step] = torch.ones(3, 1)
    found, = census.grown(before, 5)
    assert found.count == 5 and found.kind == ("float32", (3, 1), "")
    assert "a dict of 5 under " in str(found)
    recorder.last = [torch.ones(7, 7) for _ in range(4)]
    assert "a list of 4, attribute last of Recorder" in next(map(str, census.grown(before, 4)))


def test_the_line_that_allocates_is_taken_from_the_allocators_history():
    def block(size, line, state="active_allocated"):
        return {"size": size, "state": state, "frames": [
            {"filename": "/x/torch/nn/functional.py", "line": 1, "name": "linear"},
            {"filename": "/home/me/loop.py", "line": line, "name": "fit"}]}
    snapshot = {"segments": [{"blocks": [block(MIB, 7)] * 8 + [block(90 * MIB, 9)] + [block(MIB, 7, "inactive")] * 3
                              + [{"size": 5, "state": "active_allocated"}]}]}
    assert by_stack(snapshot, 4) == "8 blocks, 8 MiB, made at loop.py:7 (fit)"
    assert by_stack(snapshot, 9) == ""


def seen(forward, data=0.0, busy=0.1, used=0.05, steps=20, seed=0):
    noise = np.random.default_rng(seed).uniform(0, 1, steps)
    own = {name: [0.0] * steps for name in OWN} | {"forward": list(forward + noise), "data_wait": [data] * steps}
    return Seen(own, [40.0] * steps, "host", busy, used)


def test_a_late_rank_is_named_with_its_part_and_its_hosts_load():
    found = late([seen(10), seen(10, seed=1), seen(20, busy=0.9, seed=2)])
    assert (found.rank, found.part) == (2, "forward") and found.ms == pytest.approx(10, abs=1)
    assert found.foreign == pytest.approx(0.75) and "75% of its cores on host do other work" in str(found)
    waiting = late([seen(10, data=30.0), seen(10, seed=1)])
    assert (waiting.rank, waiting.part) == (0, "data_wait") and "other work" not in str(waiting)


def test_only_ranks_on_the_same_cores_count_as_known_load_there():
    slow = replace(seen(20, busy=0.9, used=0.5, seed=2), cores=(1,))
    other = replace(seen(10, busy=0.5, used=0.5), cores=(0,))
    assert late([other, slow]).foreign == pytest.approx(0.4)
    assert late([replace(other, cores=(1,)), slow]).foreign == 0, "the other rank is what keeps it busy"


def test_more_threads_than_cores_are_told_for_ranks_that_share_them():
    two = replace(seen(10), cores=(0, 1), threads=2)
    assert crowded([two]) == ""
    assert crowded([two, two]).startswith("2 ranks on host compute with 4 threads on 2 cores; set OMP_NUM_THREADS=1")
    assert crowded([two, replace(two, cores=(2, 3))]) == "", "bound apart"
    assert crowded([replace(two, threads=1)] * 8) == "", "more ranks than cores are not too many threads"


def test_what_holds_the_late_ranks_gpu_down_is_said():
    slow = replace(seen(20, seed=2), slowed={"heat": 60.0})
    assert "heat holds its GPU's clock down in 60 % of the run" in str(late([seen(10), seen(10, seed=1), slow]))


def test_ranks_that_take_turns_at_being_last_are_not_late():
    for seed in range(20):
        assert late([seen(10, seed=2 * seed), seen(10, seed=2 * seed + 1)]) is None
    assert late([seen(10, steps=3), seen(90, steps=3)]) is None, "three steps are no evidence"
    assert late([seen(10)]) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_a_leak_is_named_with_its_holder_and_the_line_that_made_it(tmp_path):
    watched = Sentinel(Ranks(0, 1, torch.device("cuda", 0)))
    watched.run_start(recipe("competent", "log.skip=0"), Run(tmp_path), None)
    kept = []
    for step in range(90):
        kept.append(torch.ones(2**18, device="cuda"))
        watched.step_end(step)
    summary = {}
    watched.run_end(summary)
    found = summary["memory_growth"]
    assert found["leaks"] and found["bytes_a_step"] == pytest.approx(MIB, rel=0.01)
    assert "variable kept of test_on_a_gpu" in found["owner"] and "made at test_sentinel.py:" in found["owner"]

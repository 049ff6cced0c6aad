"""Two levels deliver what one does, and whatever dies in them ends the run with its cause and leaves nothing."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

from lfhelpers.data import Manifest, Plan, augment, make_loader, make_plan, quarantine, shards
from lfhelpers.data.decoding import DecodePool
from lfhelpers.data.engines import two_level
from lfhelpers.data.engines.two_level import TwoLevel
from lfhelpers.data.loader import Request
from lfhelpers.data.quarantine import Quarantine
from lfhelpers.errors import LfError
from lfhelpers.recipe import Recipe, recipe
from tests.data.toy_shards import ToyFields, sample, tensors

Batch = dict[str, Tensor]
STRONG = ("data.rand_augment=2", "data.rand_magnitude=9", "data.mixup=0.4", "data.aug_on=workers")


def toy(workers: int, *overrides: str, loader: str = "two_level") -> Recipe:
    return recipe("competent", f"data.loader={loader}", f"data.workers={workers}", "batch.micro=4",
                  "batch.accumulate=2", *overrides, device="cpu")


def loader_of(job: Recipe, dataset: Manifest, steps: int | None = None, start: int = 0, work: str | None = None,
              pool: Callable[..., Any] = DecodePool) -> TwoLevel:
    plan = make_plan(job, dataset, 1)
    request = Request(job, dataset, plan, ToyFields(), tensors, 0, start, steps or plan.steps_per_epoch)
    return two_level.make(request, pool, f"tests.data.planted:{work}" if work else two_level.level_two.STANDARD)


def read(job: Recipe, dataset: Manifest, **options: Any) -> list[Batch]:
    with loader_of(job, dataset, **options) as loader:
        return list(loader)


def equal(left: list[Batch], right: list[Batch]) -> bool:
    return len(left) == len(right) and all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(left, right, strict=True))


def held() -> tuple[set[int], set[tuple[str, str]], int, list[str]]:
    """What this process has: children, open files, rings, and entries of its own in /dev/shm."""
    gc.collect()
    return ({child.pid for child in psutil.Process().children(recursive=True)}, open_files(),
            Path("/proc/self/maps").read_text().count("lfhelpers-ring"),
            [name for name in os.listdir("/dev/shm") if "lfhelpers" in name or str(os.getpid()) in name])


def open_files() -> set[tuple[str, str]]:
    """(number, what it is) of each; not the one that lists them."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


@pytest.fixture
def nothing_left(dataset: Manifest) -> Iterator[None]:
    """No process, open file, ring or entry more than before; what other tests left may go meanwhile."""
    read(toy(1), dataset)  # libraries open files of their own at first use
    children, files, *rest = held()
    yield
    later, open_now, *others = held()
    assert later <= children and open_now <= files and others == rest


def test_the_second_level_does_to_each_batch_what_is_said_of_it(dataset: Manifest) -> None:
    plain = read(toy(0), dataset)
    plan = make_plan(toy(0), dataset, 1)
    found = read(toy(2, *STRONG), dataset)
    for (step, micro), before, after in zip(plan.sequence(0, plan.steps_per_epoch), plain, found, strict=True):
        chosen = augment.choose(plan.seed, 0, before["ids"].numpy(), 2, 9)
        pixels = np.stack([augment.on_pillow(*row) for row in zip(before["images"].numpy(), *chosen, strict=True)])
        weight = augment.share(0.4, plan.seed, 0, step, micro)
        assert np.array_equal(after["images"].numpy(), augment.mix(pixels, weight))
        assert after["mix"].tolist() == pytest.approx([weight] * 4) and after["partner"].tolist() == [3, 0, 1, 2]
        assert all(torch.equal(before[name], after[name]) for name in ("ids", "valid", "number"))


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("workers", [1, 6])
def test_pixels_are_equal_for_any_number_of_workers(dataset: Manifest, workers: int) -> None:
    alone = read(toy(0, *STRONG), dataset, steps=9)
    assert equal(alone, read(toy(workers, *STRONG, "data.depth=1"), dataset, steps=9))
    assert equal(alone[-4:], read(toy(workers, *STRONG), dataset, start=7, steps=9))


@pytest.mark.parametrize(("workers", "second", "expected"), [
    (0, True, (0, 0)), (1, True, (1, 1)), (2, True, (1, 1)), (3, True, (2, 1)), (15, True, (10, 5)),
    (8, False, (8, 0)),
])
def test_a_third_of_the_workers_are_processes(workers: int, second: bool, expected: tuple[int, int]) -> None:
    assert two_level.split(workers, second) == expected


@pytest.mark.parametrize("overrides", [(), ("data.rand_augment=2",), ("data.mixup=0.4", "data.aug_on=device"),
                                       ("data.aug_on=workers",)])
def test_without_work_for_it_there_is_no_second_level(dataset: Manifest, overrides: tuple[str, ...]) -> None:
    with loader_of(toy(3, *overrides), dataset) as loader:
        assert (loader.threads, loader.processes) == (3, 0)
        assert equal(list(loader), read(toy(0), dataset))


def test_a_batch_may_be_kept_while_its_slot_is_used_again(dataset: Manifest) -> None:
    job = toy(2, *STRONG, "data.depth=1")
    kept = read(job, dataset, steps=10)
    copies = []
    with loader_of(job, dataset, steps=10) as loader:
        copies = [batch["images"].clone() for batch in loader]
    assert all(torch.equal(batch["images"], copy) for batch, copy in zip(kept, copies, strict=True))


def test_bad_samples_are_replaced_and_listed(dataset: Manifest, tmp_path: Path) -> None:
    def damaged(index: int) -> dict[str, bytes]:
        whole = sample(index)
        return whole | {"wrist.jpg": whole["wrist.jpg"][:700]} if index in (5, 6) else whole

    broken = shards.write(tmp_path / "broken", damaged, 16, readers=1, progress=False)
    plan = Plan(16, 1, 4, 2, seed=0, shuffle="none")
    batches = []
    for workers in (0, 3):
        bad = Quarantine(tmp_path / f"bad{workers}")
        with make_loader(toy(workers, *STRONG), broken, plan, ToyFields(), tensors, 0, stop=2, bad=bad) as loader:
            batches.append(list(loader))
        assert [line["sample"] for line in quarantine.read(bad.folder)] == [5, 6]
    assert equal(*batches)
    assert batches[0][1]["ids"].tolist() == [4, 7, 7, 7] and batches[0][1]["valid"].tolist() == [1, 0, 0, 1]


@pytest.mark.usefixtures("nothing_left")
def test_a_killed_process_is_named_at_once_with_its_batch(dataset: Manifest) -> None:
    job = toy(6, *STRONG)  # two processes
    with loader_of(job, dataset, steps=50, work="hanging") as loader:
        batches = iter(loader)
        first = [next(batches), next(batches)]
        victim = loader._workers[0].process  # which hangs with the third batch
        os.kill(victim.pid, signal.SIGKILL)
        sentence = (r"^process 1 of 2 of the second level died with step 1, micro-batch 0 in hand: signal 9 "
                    r"\(Killed\); if it ran out of memory, try fewer data.workers or a smaller batch.micro.$")
        with pytest.raises(LfError, match=sentence):
            next(batches)
    assert len(first) == 2


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_an_augmentation_comes_with_its_batch(
        dataset: Manifest, workers: int, capfd: pytest.CaptureFixture[str]) -> None:
    got = []
    sentence = (r"^augmentation of step 1, micro-batch 1, in the second level raised ValueError: no such colour; the "
                r"traceback is in this rank's log.")
    with loader_of(toy(workers, *STRONG), dataset, work="failing") as loader, pytest.raises(LfError, match=sentence):
        for batch in loader:
            got.append(batch)
    assert [batch["images"].unique().tolist() for batch in got] == [[255]] * 3, "the batches before it were delivered"
    assert "ValueError: no such colour" in capfd.readouterr().err


@pytest.mark.usefixtures("nothing_left")
def test_a_work_that_does_not_exist_ends_the_run(dataset: Manifest, capfd: pytest.CaptureFixture[str]) -> None:
    with (loader_of(toy(2, *STRONG), dataset, work="mistyped") as loader,
          pytest.raises(LfError, match=r"^process 1 of 1 of the second level died with .* in hand: exit code 1;")):
        list(loader)
    assert "has no attribute 'mistyped'" in capfd.readouterr().err


class Breaking(DecodePool):
    """Fails at the third step, as a thread may, and never gets through with the next one."""

    def start(self, step: int, micro: int, out: np.ndarray[Any, Any]) -> Future[Any]:
        filled = super().start(step, micro, out) if step < 2 else Future()
        if step == 2:
            filled.set_exception(MemoryError("no more"))
        return filled


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("overrides", [(), STRONG])
def test_the_end_of_the_decoding_thread_is_no_hang(dataset: Manifest, overrides: tuple[str, ...]) -> None:
    got = []
    with loader_of(toy(2, *overrides), dataset, pool=Breaking) as loader, pytest.raises(MemoryError, match="no more"):
        for batch in loader:
            got.append(batch["number"])
    assert len(got) == 4


@pytest.mark.usefixtures("nothing_left")
def test_twenty_loaders_leave_nothing(dataset: Manifest) -> None:
    for cycle in range(20):
        loader = loader_of(toy(2, *STRONG), dataset, steps=100)
        if cycle % 5 == 0:
            next(iter(loader))  # whose generator is forgotten at once
        elif cycle % 5 == 1:
            del loader  # without close
            continue
        loader.close()
        loader.close()
        with pytest.raises(LfError, match="this loader is closed: it delivers its batches once"):
            next(iter(loader))
        del loader


@pytest.mark.usefixtures("nothing_left")
def test_a_loader_that_can_not_be_made_leaves_nothing(dataset: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(request: Request, threads: int) -> Any:
        raise LfError("no threads today.")

    with pytest.raises(LfError, match="no threads today"):
        loader_of(toy(6, *STRONG), dataset, pool=refusing)
    monkeypatch.setattr("lfhelpers.data.ring.memory_bytes", lambda: 10_000)
    with pytest.raises(LfError, match=r"6 slots of 0.0 MiB takes .* take a smaller data.depth or batch.micro"):
        loader_of(toy(2), dataset)


READER = """
import sys
from lfhelpers.data import Manifest
from tests.data.test_two_level import STRONG, loader_of, toy

dataset = Manifest.load(sys.argv[1])
with loader_of(toy(6, *STRONG, "data.rand_magnitude=30"), dataset, steps=10_000, work="slow") as loader:
    pids = [str(each.process.pid) for each in loader._workers]
    for number, _ in enumerate(loader):
        if number == 2:
            print(*pids, flush=True)
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_the_processes_too(dataset: Manifest, signum: int) -> None:
    reader = subprocess.Popen([sys.executable, "-c", READER, str(dataset.folder)], cwd=Path(__file__).parents[2],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert reader.stdout
    pids = [int(pid) for pid in reader.stdout.readline().split()]
    assert len(pids) == 2
    reader.send_signal(signum)
    assert reader.wait(10) == -signum
    assert reader.stderr and ("KeyboardInterrupt" in reader.stderr.read()) == (signum == signal.SIGINT)
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize("cost", [10, 20, 30])
def test_starvation_is_what_the_consumer_saw(dataset: Manifest, cost: int) -> None:
    """Against the test's own clock around each batch, whatever else the machine does."""
    waits, begins = [], []
    with loader_of(toy(2, *STRONG, f"data.rand_magnitude={cost}"), dataset, steps=10, work="slow") as loader:
        batches = iter(loader)
        for _ in range(20):
            begins.append(time.perf_counter())
            next(batches)
            waits.append(time.perf_counter() - begins[-1])
            time.sleep(0.015)
        found = loader.stats()
    seen = 100 * sum(waits[1:]) / (begins[-1] + waits[-1] - begins[0] - waits[0])
    assert found["starved_percent"] == pytest.approx(seen, abs=5)
    assert (found["batches"], found["processes"], found["slots"]) == (20, 1, 6)
    assert found["stages"]["augment"]["busy_s"] >= 20 * cost / 1e3
    assert set(found["depth"]) == {"decoded", "ready"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_are_pinned_where_there_is_a_gpu(dataset: Manifest) -> None:
    torch.zeros(1, device="cuda")  # a loader of this kind may come later than that
    job = toy(3, *STRONG).with_("device=cuda")
    for found, expected in zip(read(job, dataset), read(toy(0, *STRONG), dataset), strict=True):
        assert all(tensor.is_pinned() for tensor in found.values())
        assert equal([{name: tensor.cuda().cpu() for name, tensor in found.items()}], [expected])

"""All engines deliver the plan's batches: the same samples in order, and the same pixels, for any number of workers."""

from __future__ import annotations

import ctypes
import signal
import struct
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor

from lfhelpers.data import Manifest, Plan, make_loader, make_plan, shards
from lfhelpers.data.loader import Request
from lfhelpers.errors import LfError
from lfhelpers.recipe import Recipe, recipe
from tests.data.toy_shards import SAMPLES, ToyFields, photo, sample, tensors

Batch = dict[str, Tensor]
PILLOW = ["as_found", "webdataset"]
PROCESSES = [*PILLOW, "dali"]
ENGINES = [*PROCESSES, "threads", "two_level"]


def toy(loader: str, workers: int, *overrides: str) -> Recipe:
    if loader == "two_level":  # else its second level would have nothing to do
        overrides = ("data.rand_augment=1", "data.aug_on=workers", *overrides)
    return recipe("competent", f"data.loader={loader}", f"data.workers={workers}", "batch.micro=4",
                  "batch.accumulate=2", *overrides, device="cpu")


def read(job: Recipe, dataset: Manifest, plan: Plan, rank: int = 0, start: int = 0,
         stop: int | None = None) -> list[Batch]:
    stop = plan.steps_per_epoch if stop is None else stop
    with make_loader(job, dataset, plan, ToyFields(), tensors, rank, start=start, stop=stop) as loader:
        batches = list(loader)
        assert len(loader) == len(batches)
    return batches


def equal(left: list[Batch], right: list[Batch]) -> bool:
    return len(left) == len(right) and all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(left, right, strict=True))


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_plans_samples_come_in_its_order(dataset: Manifest, engine: str, workers: int, world: int) -> None:
    job = toy(engine, workers)
    plan = make_plan(job, dataset, world)
    counted = []
    for rank in range(world):
        batches = read(job, dataset, plan, rank)
        for (step, micro), batch in zip(plan.sequence(0, plan.steps_per_epoch), batches, strict=True):
            ids, valid = plan.slots(step, micro, rank)
            assert batch["ids"].tolist() == batch["number"].tolist() == ids.tolist()
            assert batch["valid"].tolist() == valid.tolist()
            assert batch["ids"].dtype == torch.int64 and batch["valid"].dtype == torch.float32
            counted += batch["number"][batch["valid"] == 1].tolist()
    assert sorted(counted) == list(range(SAMPLES))


@pytest.mark.parametrize("engine", ENGINES)
def test_pixels_are_equal_for_any_number_of_workers(dataset: Manifest, engine: str) -> None:
    plan = make_plan(toy(engine, 0), dataset, 1)
    alone = read(toy(engine, 0), dataset, plan)
    assert equal(alone, read(toy(engine, 1), dataset, plan))
    assert equal(alone, read(toy(engine, 5, "data.prefetch=1"), dataset, plan))  # four shards, five workers


@pytest.mark.parametrize("augment", ["true", "false"])
def test_as_found_has_the_pixels_of_webdataset(dataset: Manifest, augment: str) -> None:
    jobs = [toy(engine, 1, f"data.augment={augment}") for engine in PILLOW]
    plan = make_plan(jobs[0], dataset, 1)
    for found, tidy in zip(*(read(job, dataset, plan) for job in jobs), strict=True):
        assert tidy["images"].shape == (4, 2, 24, 24, 3) and tidy["images"].dtype == torch.uint8
        assert found["images"].shape == (4, 2, 3, 24, 24) and found["images"].dtype == torch.float32
        torch.testing.assert_close(found["images"], tidy["images"].movedim(-1, 2) / 127.5 - 1, rtol=0, atol=1e-6)
        assert equal([{name: found[name] for name in ("ids", "valid", "number")}],
                     [{name: tidy[name] for name in ("ids", "valid", "number")}])


@pytest.mark.parametrize(("engine", "workers"), [("as_found", 2), ("webdataset", 2), ("webdataset", 0), ("threads", 2),
                                                 ("dali", 2), ("two_level", 2)])
def test_any_start_gives_exactly_the_tail(dataset: Manifest, engine: str, workers: int) -> None:
    plan = make_plan(toy(engine, 0), dataset, 2)
    stop = 2 * plan.steps_per_epoch
    whole = read(toy(engine, 0), dataset, plan, rank=1, stop=stop)
    for start in range(1, stop + 1, 2):
        rest = sum(plan.micro_batches(step) for step in range(start, stop))
        tail = read(toy(engine, workers), dataset, plan, rank=1, start=start, stop=stop)
        assert equal(tail, whole[len(whole) - rest:])


def test_padding_at_the_end_of_the_epoch_is_masked(dataset: Manifest) -> None:
    plan = make_plan(toy("webdataset", 0), dataset, 2)  # 37 samples in steps of 16: the last one has 5
    last = [read(toy("webdataset", 1), dataset, plan, rank)[-1] for rank in range(2)]
    assert [batch["valid"].tolist() for batch in last] == [[1, 1, 1, 1], [1, 0, 0, 0]]
    assert torch.cat([batch["ids"] for batch in last])[5:].tolist() == plan.order(0)[:3].tolist()


def test_augmentation_differs_between_samples_and_epochs_and_not_between_runs(tmp_path: Path) -> None:
    same = {"front.jpg": photo(1, 1), "wrist.jpg": photo(1, 1), "number": struct.pack("<q", 0)}
    twins = shards.write(tmp_path / "twins", lambda index: same, 8, readers=1, progress=False)
    plan = Plan(8, 1, 8, 1, seed=0, shuffle="none")
    job = toy("webdataset", 0)
    first, second = (batch["images"] for batch in read(job, twins, plan, stop=2))
    assert torch.equal(first[:, 0], first[:, 1])  # both views of a sample: one crop, one change of colours
    assert len({image.numpy().tobytes() for image in torch.cat([first, second])[:, 0]}) == 16
    assert torch.equal(first, read(job, twins, plan, stop=1)[0]["images"])
    plain = read(toy("webdataset", 0, "data.augment=false"), twins, plan, stop=2)
    assert len({image.numpy().tobytes() for batch in plain for image in batch["images"][:, 0]}) == 1
    assert (first.float() - plain[0]["images"].float()).abs().mean() > 5


def test_frames_of_different_sizes_make_one_batch(tmp_path: Path) -> None:
    def odd(index: int) -> dict[str, bytes]:
        return sample(index) | {"front.jpg": photo(index, 0, 60 + index, 50)}

    mixed = shards.write(tmp_path / "mixed", odd, 8, readers=1, progress=False)
    plan = Plan(8, 1, 4, 2, seed=0)
    found, tidy = (torch.cat([batch["images"] for batch in read(toy(engine, 1), mixed, plan)]) for engine in PILLOW)
    torch.testing.assert_close(found, tidy.movedim(-1, 2) / 127.5 - 1, rtol=0, atol=1e-6)


def test_synthetic_reuses_one_batch(dataset: Manifest) -> None:
    plan = make_plan(toy("synthetic", 0), dataset, 2)
    batches = read(toy("synthetic", 0), dataset, plan, rank=1)
    assert len(batches) == len(list(plan.sequence(0, plan.steps_per_epoch)))
    assert equal(batches[:1] * len(batches), batches)
    assert batches[0]["images"].shape == (4, 2, 24, 24, 3) and batches[0]["images"].dtype == torch.uint8
    assert batches[0]["images"].float().std() > 60
    assert batches[0]["number"].tolist() == batches[0]["ids"].tolist() == [0, 1, 2, 3]
    assert batches[0]["valid"].tolist() == [1, 1, 1, 1]
    assert not torch.equal(batches[0]["images"], read(toy("synthetic", 0), dataset, plan, rank=0)[0]["images"])


@pytest.mark.parametrize("engine", ENGINES)
def test_no_worker_is_left_after_close_break_or_the_end(dataset: Manifest, engine: str) -> None:
    job, before = toy(engine, 2), children()
    plan = make_plan(job, dataset, 1)
    loader = make_loader(job, dataset, plan, ToyFields(), tensors, 0, stop=100)
    # Started at once: before the process can have used CUDA. One of the two of two_level is a thread.
    assert len(children() - before) == {"threads": 0, "two_level": 1}.get(engine, 2)
    loader.close()
    loader.close()
    assert children() == before
    with make_loader(job, dataset, plan, ToyFields(), tensors, 0, stop=100) as loader:
        for _ in loader:
            break
    assert children() == before
    loader = make_loader(job, dataset, plan, ToyFields(), tensors, 0, stop=100)
    for _ in loader:
        break
    assert children() == before  # also without a with block
    assert len(read(job, dataset, plan)) == 10
    assert children() == before
    with pytest.raises(LfError, match="this loader is closed: it delivers its batches once"):
        next(iter(loader))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_trainings_random_numbers_are_not_touched(dataset: Manifest, engine: str) -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    plan = make_plan(toy(engine, 1), dataset, 1)
    read(toy(engine, 1), dataset, plan)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_damaged_image_is_named_once(tmp_path: Path, engine: str, workers: int) -> None:
    def damaged(index: int) -> dict[str, bytes]:
        whole = sample(index)
        return whole | {"wrist.jpg": whole["wrist.jpg"][:700]} if index == 9 else whole

    broken = shards.write(tmp_path / "broken", damaged, 16, readers=1, progress=False)
    job, before = toy(engine, workers), children()
    plan = make_plan(job, broken, 1)
    sentence = r"^shard-00002.tar:000000009:wrist.jpg is no readable image \(700 bytes\): [^\n]*$"
    with pytest.raises(LfError, match=sentence):
        read(job, broken, plan)
    assert children() == before


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_of_the_workload_is_named_with_its_sample(dataset: Manifest, engine: str, workers: int) -> None:
    def failing(members: Mapping[str, bytes]) -> Batch:
        if members["number"] == struct.pack("<q", 20):
            raise KeyError("action")
        return tensors(members)

    job = toy(engine, workers)
    plan = make_plan(job, dataset, 1)
    loader = make_loader(job, dataset, plan, ToyFields(), failing, 0, stop=plan.steps_per_epoch)
    sentence = r"^shard-00002.tar:000000020:number: the workload's sample\(\) raised KeyError: 'action'$"
    with loader, pytest.raises(LfError, match=sentence):
        list(loader)


@pytest.mark.parametrize("engine", PROCESSES)
def test_a_worker_is_killed_with_its_parent(dataset: Manifest, engine: str) -> None:
    def asking(members: Mapping[str, bytes]) -> Batch:
        signum = ctypes.c_int(0)
        assert ctypes.CDLL(None).prctl(2, ctypes.byref(signum), 0, 0, 0) == 0  # PR_GET_PDEATHSIG
        return {"signal": torch.tensor(signum.value), "threads": torch.tensor(torch.get_num_threads())}

    job = toy(engine, 1)
    with make_loader(job, dataset, make_plan(job, dataset, 1), ToyFields(), asking, 0, stop=1) as loader:
        batch = next(iter(loader))
    assert batch["signal"].tolist() == [signal.SIGKILL] * 4
    assert batch["threads"].tolist() == [1] * 4


@pytest.mark.parametrize("engine", [*ENGINES, "synthetic"])
def test_a_workload_may_read_images_alone(dataset: Manifest, engine: str) -> None:
    job = toy(engine, 1)
    plan = make_plan(job, dataset, 1)
    with make_loader(job, dataset, plan, ToyFields(others=()), lambda _: {}, 0, stop=1) as loader:
        assert [set(batch) for batch in loader] == [{"images", "ids", "valid"}] * 2


@pytest.mark.parametrize("engine", [*ENGINES, "synthetic"])
def test_a_workload_without_images_gets_none(dataset: Manifest, engine: str) -> None:
    job = toy(engine, 1)
    plan = make_plan(job, dataset, 1)
    with make_loader(job, dataset, plan, ToyFields(images=()), tensors, 0, stop=2) as loader:
        batches = list(loader)
    assert len(batches) == 4
    assert {batch["images"].numel() for batch in batches} == {0}
    assert {batch["images"].shape[:2] for batch in batches} == {(4, 0)}


def test_a_killed_worker_is_one_sentence(dataset: Manifest) -> None:
    job, before = toy("webdataset", 2), children()
    plan = make_plan(job, dataset, 1)
    loader = make_loader(job, dataset, plan, ToyFields(), tensors, 0, stop=1000)
    with pytest.raises(LfError, match=r"^a data worker died \(.+\); .* try fewer data.workers"), loader:
        batches = iter(loader)
        next(batches)
        for pid in children() - before:
            psutil.Process(pid).kill()
        list(batches)
    assert children() == before


def test_tensors_of_different_shapes_are_one_sentence(dataset: Manifest) -> None:
    def ragged(members: Mapping[str, bytes]) -> Batch:
        return {"text": torch.zeros(1 + members["number"][0] % 3)}

    job = toy("webdataset", 1)
    plan = make_plan(job, dataset, 1)
    with (make_loader(job, dataset, plan, ToyFields(), ragged, 0, stop=2) as loader,
          pytest.raises(LfError, match="must give the same tensors in the same shapes for every sample")):
        list(loader)


def test_missing_members_and_ranks_are_refused_before_any_worker_starts(dataset: Manifest) -> None:
    job, before = toy("webdataset", 2), children()
    plan = make_plan(job, dataset, 2)
    with pytest.raises(LfError, match=r"no member 'wrist.png' that the workload reads; did you mean 'wrist.jpg'\?"):
        make_loader(job, dataset, plan, ToyFields(images=("front.jpg", "wrist.png")), tensors, 0, stop=1)
    with pytest.raises(LfError, match="rank 2 is not one of the plan's 2 ranks"):
        make_loader(job, dataset, plan, ToyFields(), tensors, 2, stop=1)
    assert children() == before


@pytest.mark.parametrize(("cores", "local", "expected"), [(2, "1", 2), (16, "4", 3), (2, "8", 2), (160, "1", 16)])
def test_workers_are_the_ranks_share_of_the_cores(dataset: Manifest, monkeypatch: pytest.MonkeyPatch, cores: int,
                                                  local: str, expected: int) -> None:
    monkeypatch.setattr("lfhelpers.data.loader.usable_cores", lambda: cores)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    job = toy("webdataset", 0, "data.workers=none")
    plan = make_plan(job, dataset, 8)
    assert Request(job, dataset, plan, ToyFields(), tensors, 0, 0, 1).workers() == expected

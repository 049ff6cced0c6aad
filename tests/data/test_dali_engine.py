"""The engine `dali` on the CPU: Pillow's pixels within its tolerance, and no batch lost, repeated or left running."""

from __future__ import annotations

import gc
import io
import os
import re
import signal
import struct
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from torch import Tensor

from lfhelpers.data import Manifest, Plan, dali_source, make_loader, make_plan, quarantine, shards
from lfhelpers.data.dali_decoder import Decoder
from lfhelpers.data.engines import dali as engine
from lfhelpers.data.quarantine import Quarantine
from lfhelpers.errors import LfError
from lfhelpers.recipe import Recipe, recipe
from tests.data.test_dali_images import ROUTED, TABLE
from tests.data.toy_shards import ToyFields, photo, tensors

pytest.importorskip("nvidia.dali", reason="DALI is not installed (Linux x86-64 only)")
pytestmark = pytest.mark.filterwarnings("ignore:::PIL")

Batch = dict[str, Tensor]
ONE = ToyFields(images=("jpg",), size=56)
KINDS = {name: data for name, data in TABLE.items() if name != "gif"}  # which all engines refuse


def job(loader: str = "dali", workers: int = 2, *overrides: str) -> Recipe:
    return recipe("competent", f"data.loader={loader}", f"data.workers={workers}", "batch.micro=4", *overrides,
                  device="cpu")


def packed(folder: Path, files: list[bytes]) -> Manifest:
    return shards.write(folder, lambda index: {"jpg": files[index], "number": struct.pack("<q", index)}, len(files),
                        readers=1, progress=False)


def read(toy: Recipe, data: Manifest, fields: ToyFields = ONE, **options: Any) -> tuple[list[Batch], Any]:
    """An epoch in the order of packing, and its loader."""
    plan = Plan(data.samples, 1, 4, 1, seed=0, shuffle="none")
    with make_loader(toy, data, plan, fields, tensors, 0, stop=plan.steps_per_epoch, **options) as loader:
        return list(loader), loader


def apart(left: list[Batch], right: list[Batch]) -> list[float]:
    """Mean difference of each image; all else is equal."""
    assert len(left) == len(right)
    gaps: list[float] = []
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one if name != "images")
        assert one["images"].shape == other["images"].shape and one["images"].dtype == other["images"].dtype
        gaps += (one["images"].float() - other["images"].float()).abs().mean((2, 3, 4)).flatten().tolist()
    return gaps


def equal(left: list[Batch], right: list[Batch]) -> bool:
    return max(apart(left, right)) == 0


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def damaged(index: int) -> bytes:
    """A PNG whose header and checksum in the manifest are sound, and whose pixels are not."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(photo(index, 0))).save(buffer, "PNG")
    data = bytearray(buffer.getvalue())
    data[len(data) // 2:len(data) // 2 + 8] = b"\xff" * 8
    return bytes(data)


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """One file of each kind that engines take."""
    return packed(tmp_path_factory.mktemp("kinds") / "set", list(KINDS.values()))


def test_the_decoder_is_told_the_largest_image_that_it_begins_with(tmp_path, monkeypatch):
    """For it the JPEG engine's memory is set aside; memory that grows waits for all the GPU has to do."""
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(engine, "Decoder", lambda settings, ahead, frame: told.append(frame) or Decoder(
        settings, ahead, frame))
    sides = {index: (96 + index, 172 - index) for index in range(100)}
    data = packed(tmp_path / "set", [photo(index, 0, *sides[index]) for index in range(100)])
    read(job("dali", 1, "data.depth=2"), data)
    assert told == [(96 + 7, 172)], "the first two batches of four"


@pytest.mark.parametrize("augment", ["true", "false"])
def test_pixels_are_pillows_for_every_kind_of_file(kinds: Manifest, augment: str) -> None:
    batches, loader = read(job("dali", 2, f"data.augment={augment}"), kinds)
    pillow, _ = read(job("webdataset", 2, f"data.augment={augment}"), kinds)
    assert max(apart(batches, pillow)) < 0.5
    assert batches[0]["images"].shape == (4, 1, 56, 56, 3) and batches[0]["images"].dtype == torch.uint8
    padded = -kinds.samples % 4
    assert loader.stats()["files"] == loader.files == kinds.samples + padded
    reasons = Counter(ROUTED[name][1] for name in [*KINDS, *list(KINDS)[:padded]] if name in ROUTED)
    assert loader.stats()["by_pillow"] == dict(reasons) and loader.rebuilt == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_files_that_find_no_room_in_shared_memory_are_sent(kinds: Manifest, monkeypatch: pytest.MonkeyPatch,
                                                           workers: int) -> None:
    whole, _ = read(job("dali", workers), kinds)
    monkeypatch.setattr(dali_source, "_LARGEST", 5_000)
    assert equal(whole, read(job("dali", workers), kinds)[0])


@pytest.mark.parametrize("depth", [1, 2, 50])
def test_any_depth_gives_the_same(kinds: Manifest, depth: int) -> None:
    whole, _ = read(job(), kinds)
    assert equal(whole, read(job("dali", 3, f"data.depth={depth}", "data.prefetch=1"), kinds)[0])


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_what_only_a_decoder_sees_is_quarantined_and_nothing_else_changes(tmp_path: Path, workers: int) -> None:
    bad = {5, 6, 13, 20}  # two in one batch, one in the next but one, one in the last
    files = [damaged(index) if index in bad else photo(index, 0) for index in range(22)]
    data = packed(tmp_path / "set", files)
    threads = psutil.Process().num_threads()
    batches, loader = read(job("dali", workers), data, bad=Quarantine(tmp_path / "dali"))
    assert psutil.Process().num_threads() <= threads  # no pipeline that gave up lives on
    pillow, _ = read(job("webdataset", workers), data, bad=Quarantine(tmp_path / "pillow"))
    assert max(apart(batches, pillow)) < 0.5
    assert quarantine.read(tmp_path / "dali") == quarantine.read(tmp_path / "pillow")
    assert {line["sample"] for line in quarantine.read(tmp_path / "dali")} == bad
    assert loader.rebuilt == 3 and loader.routed == {"in a batch that DALI gave up": 12}
    numbers = torch.cat([batch["number"][batch["valid"] > 0] for batch in batches]).tolist()
    assert sorted(numbers) == sorted(set(range(22)) - bad)
    assert set(loader.stats()["stages"]) == {"read", "decode"} and loader.stats()["batches"] == 6


def test_without_quarantine_it_is_named(tmp_path: Path) -> None:
    data, before = packed(tmp_path / "set", [damaged(6) if index == 6 else photo(index, 0) for index in range(12)]), \
        children()
    with pytest.raises(LfError, match=r"^shard-0000\d.tar:000000006:jpg is no readable image \(\d+ bytes\): [^\n]*$"):
        read(job(), data)
    assert children() == before


@pytest.mark.parametrize(("refused", "ends"), [({1, 2, 4, 5}, False), ({1, 2, 3}, True)])
def test_dali_may_not_give_up_again_and_again_without_a_reason(kinds: Manifest, monkeypatch: pytest.MonkeyPatch,
                                                               refused: set[int], ends: bool) -> None:
    whole, _ = read(job(), kinds)
    images, calls = Decoder.images, iter(range(1000))

    def sometimes(self: Decoder) -> Tensor:
        if next(calls) in refused:
            raise RuntimeError("Critical error in pipeline:\nencountered:\n\nout of memory\nmore")
        return images(self)

    monkeypatch.setattr(Decoder, "images", sometimes)
    if ends:
        with pytest.raises(LfError, match=r"^DALI gave up 3 batches in a row in which Pillow finds nothing wrong \(out "
                                          r"of memory\); take data.loader='threads'"):
            read(job(), kinds)
    else:
        batches, loader = read(job(), kinds)
        assert max(apart(batches, whole)) < 0.5 and loader.rebuilt == 4


@pytest.mark.parametrize("refused", [{4}, {5}, {6}, {4, 9, 14}])
def test_a_pipeline_that_takes_no_more_batches_is_replaced(kinds: Manifest, monkeypatch: pytest.MonkeyPatch,
                                                           refused: set[int]) -> None:
    whole, _ = read(job(), kinds)
    feed, calls = Decoder.feed, iter(range(1000))

    def sometimes(self: Decoder, batch: dali_source.Encoded) -> None:
        if next(calls) in refused:
            raise RuntimeError("Current pipeline object is no longer valid.")
        feed(self, batch)

    monkeypatch.setattr(Decoder, "feed", sometimes)
    batches, loader = read(job(), kinds)
    assert equal(batches, whole) and loader.rebuilt == len(refused)


def test_batches_before_an_error_are_delivered(dataset: Manifest) -> None:
    def failing(members: Mapping[str, bytes]) -> Batch:
        if members["number"] == struct.pack("<q", 22):
            raise ZeroDivisionError("no state")
        return tensors(members)

    plan, seen = Plan(dataset.samples, 1, 4, 1, seed=0, shuffle="none"), []
    loader = make_loader(job("dali", 2, "data.depth=4"), dataset, plan, ToyFields(), failing, 0, stop=9)
    with pytest.raises(LfError, match=r"22:number: the workload's sample\(\) raised ZeroDivisionError") as caught:
        for batch in loader:
            seen.append(batch["number"].tolist())
    assert seen == [list(range(start, start + 4)) for start in range(0, 20, 4)]
    assert 'raise ZeroDivisionError("no state")' in str(caught.value.__cause__)  # the worker's traceback


@pytest.mark.parametrize("which", [0, 1])
def test_a_killed_worker_ends_the_run_with_the_cause(dataset: Manifest, which: int) -> None:
    before, plan = children(), Plan(dataset.samples, 1, 4, 1, seed=0)
    loader = make_loader(job(), dataset, plan, ToyFields(), tensors, 0, stop=10_000)
    killed = sorted(children() - before)[which]
    with pytest.raises(LfError, match=r"^a data worker died \(killed by SIGKILL\); if it ran out of memory, try fewer "
                                      r"data.workers, a smaller data.depth or data.prefetch\.$"), loader:
        for number, _ in enumerate(loader):
            if number == 3:
                os.kill(killed, signal.SIGKILL)
    assert number < 10_000 - 1 and children() == before


def test_a_worker_that_ends_in_the_middle_is_no_wait(dataset: Manifest) -> None:
    def leaving(members: Mapping[str, bytes]) -> Batch:
        if members["number"] == struct.pack("<q", 9):
            os._exit(3)
        return tensors(members)

    plan, before = Plan(dataset.samples, 1, 4, 1, seed=0, shuffle="none"), children()
    with (pytest.raises(LfError, match=r"^a data worker died \(exit code 3\)"),
          make_loader(job(), dataset, plan, ToyFields(), leaving, 0, stop=9) as loader):
        list(loader)
    assert children() == before


def test_ctrl_c_reaches_the_training_process_alone(dataset: Manifest) -> None:
    before, plan = children(), make_plan(job(), dataset, 1)
    with make_loader(job(), dataset, plan, ToyFields(), tensors, 0, stop=10) as loader:
        batches = iter(loader)
        next(batches)
        for pid in children() - before:
            os.kill(pid, signal.SIGINT)
        assert len(list(batches)) == len(loader) - 1


def test_twenty_loaders_leave_nothing_behind(dataset: Manifest) -> None:
    ours = {os.getpid()}

    def held() -> tuple[set[int], int, list[str], int]:
        gc.collect()
        named = [name for name in os.listdir("/dev/shm") if ours & {int(pid) for pid in re.findall(r"\d+", name)}]
        return children(), len(os.listdir("/proc/self/fd")), named, psutil.Process().num_threads()

    plan = make_plan(job(), dataset, 1)
    for stop in (3, 1):  # what DALI and torch open once
        for _ in make_loader(job(), dataset, plan, ToyFields(), tensors, 0, stop=stop):
            pass
    before = held()
    for number in range(20):
        loader = make_loader(job(), dataset, plan, ToyFields(), tensors, 0, stop=100)
        for _ in zip(range(number % 3), loader, strict=False):
            pass
        ours |= children()
        loader.close()
        del loader
    assert held() == before


def test_a_forgotten_loader_ends_its_workers_and_a_forked_copy_does_not(dataset: Manifest) -> None:
    before, plan = children(), make_plan(job(), dataset, 1)
    loader = make_loader(job(), dataset, plan, ToyFields(), tensors, 0, stop=100)
    started = children() - before
    pid = os.fork()
    if not pid:
        del loader
        gc.collect()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert children() - before == started and len(started) == 2
    del loader
    gc.collect()
    assert children() == before


def test_tensors_of_any_kind_arrive_as_they_were_made(dataset: Manifest) -> None:
    def various(members: Mapping[str, bytes]) -> Batch:
        number = members["number"][0]
        return {"half": torch.full((2, 3), number + 0.5, dtype=torch.bfloat16), "flag": torch.tensor(number % 2 == 0),
                "none": torch.zeros(0), "turned": torch.arange(6).view(2, 3).T + number}

    plan = Plan(dataset.samples, 1, 4, 1, seed=0)
    for workers in (0, 2):
        with make_loader(job("dali", workers), dataset, plan, ToyFields(), various, 0, stop=2) as loader:
            for batch in loader:
                made = [various({"number": struct.pack("<q", index)}) for index in batch["ids"].tolist()]
                for name in made[0]:
                    expected = torch.stack([sample[name] for sample in made])
                    assert batch[name].dtype == expected.dtype and torch.equal(batch[name], expected)


def test_held_batches_stay_as_they_were(dataset: Manifest) -> None:
    plan, held, copies = make_plan(job(), dataset, 1), [], []
    with make_loader(job("dali", 1, "data.depth=1"), dataset, plan, ToyFields(), tensors, 0, stop=30) as loader:
        for batch in loader:
            held.append(batch["images"])
            copies.append(batch["images"].clone())
    assert len(held) == 30 and all(torch.equal(one, other) for one, other in zip(held, copies, strict=True))


@pytest.mark.parametrize(("workers", "expected"), [(0, 0), (1, 1), (2, 2), (9, 2), (15, 3), (16, 3)])
def test_a_few_processes_read_for_many_threads(workers: int, expected: int) -> None:
    assert engine.sources(workers) == expected


def test_without_dali_it_is_one_sentence(dataset: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    before = children()
    with pytest.raises(LfError, match=r"^data.loader='dali' needs NVIDIA DALI, which can't be imported \(.*\): pip "
                                      r"install nvidia-dali-cuda120"):
        make_loader(job(), dataset, make_plan(job(), dataset, 1), ToyFields(), tensors, 0, stop=1)
    assert children() == before


def test_shapes_hold_for_two_views(dataset: Manifest) -> None:
    plan = make_plan(job(), dataset, 1)
    for batch in make_loader(job("dali", 1), dataset, plan, ToyFields(), tensors, 0, stop=1):
        assert batch["images"].shape == (4, 2, 24, 24, 3)
        assert np.ptp(batch["images"].numpy(), axis=(2, 3, 4)).min() > 20

"""The engine `dali` on the GPU: Pillow's pixels within a tolerance, no wait for the training, nothing overwritten.

Decoded by nvJPEG and resized on the GPU, an image may be 2 levels of 255 from Pillow's in the mean; on the CPU the two
are within 0.5. All that is no pixel is equal.
"""

from __future__ import annotations

import gc
import os
import struct
from collections import deque
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor

from lfhelpers.data import Manifest, Plan, dali_canary, dali_decoder, make_loader, quarantine, shards
from lfhelpers.data.quarantine import Quarantine
from lfhelpers.measure.clock import StepClock
from lfhelpers.recipe import Recipe, recipe
from lfhelpers.train.feed import Feed
from lfhelpers.train.ranks import Ranks
from tests.data.test_dali_engine import ONE, damaged, job, kinds, packed  # noqa: F401  # a fixture
from tests.data.toy_shards import ToyFields, photo, tensors

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:::PIL"),
              pytest.mark.skipif(not torch.cuda.is_available(), reason="DALI's mixed backend decodes on a CUDA device, "
                                                                       "and this machine has none")]

Batch = dict[str, Tensor]
VIEWS = ToyFields(images=("front.jpg", "wrist.jpg"), size=224)


def gpu_job(*overrides: str) -> Recipe:
    return recipe("competent", "data.loader=dali", "data.workers=4", "batch.micro=8", *overrides, device="cuda")


@pytest.fixture(scope="session")
def camera(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """90 samples of two 640x480 JPEGs, as cameras make them."""
    return shards.write(tmp_path_factory.mktemp("camera") / "set", lambda index: {
        "front.jpg": photo(index, 0, 640, 480, 85), "wrist.jpg": photo(index, 1, 640, 480, 85),
        "number": struct.pack("<q", index)}, 90, readers=1, progress=False)


def read(toy: Recipe, data: Manifest, fields: ToyFields = VIEWS, start: int = 0, **options: Any
         ) -> tuple[list[Batch], Any]:
    """An epoch, and its loader."""
    plan = Plan(data.samples, 1, toy.batch.micro, 1, seed=4)
    with make_loader(toy, data, plan, fields, tensors, 0, start=start, stop=plan.steps_per_epoch, **options) as loader:
        return list(loader), loader


def worst(found: list[Batch], pillow: list[Batch]) -> float:
    """The largest mean difference of an image; order and all other tensors are equal."""
    assert len(found) == len(pillow)
    most = 0.0
    for one, other in zip(found, pillow, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name].cpu(), other[name]) for name in one if name != "images")
        assert one["images"].device == torch.device("cuda", 0) and one["images"].dtype == torch.uint8
        assert one["images"].shape == other["images"].shape
        gap = (one["images"].cpu().float() - other["images"].float()).abs()
        most = max(most, float(gap.mean((2, 3, 4)).max()))
    return most


def equal(left: list[Batch], right: list[Batch]) -> bool:
    return len(left) == len(right) and all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("augment", ["true", "false"])
@pytest.mark.parametrize("share", [0.0, 0.65, 1.0])
def test_camera_images_are_pillows_in_the_plans_order(camera: Manifest, augment: str, share: float) -> None:
    toy = gpu_job(f"data.augment={augment}", f"data.hw_decoder_load={share}")
    found, loader = read(toy, camera)
    pillow, _ = read(recipe(toy, "data.loader=webdataset", device="cpu"), camera)
    most = worst(found, pillow)
    print(f"share {share}, augment {augment}: mean difference of the worst image {most:.3f}")
    assert most < 2 and loader.stats()["by_pillow"] == {} and loader.files == 96 * 2


def test_every_kind_of_file_is_pillows(kinds: Manifest) -> None:  # noqa: F811
    found, loader = read(gpu_job(), kinds, ONE)
    pillow, _ = read(job("webdataset", 2, "batch.micro=8"), kinds, ONE)
    most = worst(found, pillow)
    print(f"mean difference of the worst image {most:.3f}, rebuilt {loader.rebuilt}, routed {dict(loader.routed)}")
    assert most < 2 and loader.rebuilt == 0


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_pixels_are_the_same_in_every_run_and_after_a_resume(camera: Manifest, share: float) -> None:
    whole, _ = read(gpu_job(f"data.hw_decoder_load={share}"), camera)
    again, _ = read(gpu_job(f"data.hw_decoder_load={share}", "data.workers=2", "data.depth=1"), camera)
    assert equal(whole, again)
    tail, _ = read(gpu_job(f"data.hw_decoder_load={share}"), camera, start=5)
    assert equal(tail, whole[5:])


def test_what_only_a_decoder_sees_is_quarantined(tmp_path: Path) -> None:
    bad = {3, 4, 17}
    data = packed(tmp_path / "set", [damaged(index) if index in bad else photo(index, 0) for index in range(30)])
    found, loader = read(gpu_job(), data, ONE, bad=Quarantine(tmp_path / "dali"))
    pillow, _ = read(job("webdataset", 2, "batch.micro=8"), data, ONE, bad=Quarantine(tmp_path / "pillow"))
    assert worst(found, pillow) < 2 and 1 <= loader.rebuilt <= 3
    assert quarantine.read(tmp_path / "dali") == quarantine.read(tmp_path / "pillow")
    assert {line["sample"] for line in quarantine.read(tmp_path / "dali")} == bad


def test_the_next_batch_does_not_wait_for_the_training(camera: Manifest) -> None:
    """Three seconds of work lie in torch's stream when batches are asked for, and are still there afterwards."""
    expected, _ = read(gpu_job(), camera)
    plan = Plan(camera.samples, 1, 8, 1, seed=4)
    with make_loader(gpu_job(), camera, plan, VIEWS, tensors, 0, stop=plan.steps_per_epoch) as loader:
        batches = iter(loader)
        for _ in range(5):  # memory is at its full size then
            next(batches)
        torch.cuda.synchronize()
        torch.cuda._sleep(6_000_000_000)
        woken = torch.cuda.Event()
        woken.record()
        torch.cuda.set_sync_debug_mode("error")
        try:
            waiting = [next(batches), next(batches)]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert not woken.query()
        torch.cuda.synchronize()
        assert equal(waiting, expected[5:7])


class Loss:
    """Of a workload, what a feed asks for."""

    def draws(self, samples: int, generator: torch.Generator) -> Batch:
        return {}


@pytest.mark.parametrize("copying", ["true", "false"])
def test_the_feed_hands_device_batches_on_as_they_are(camera: Manifest, copying: str) -> None:
    toy = gpu_job(f"data.async_copy={copying}").with_(steps=12)
    expected, _ = read(toy, camera)
    plan, ranks = Plan(camera.samples, 1, 8, 1, seed=4), Ranks(0, 1, torch.device("cuda", 0))
    handed: list[int] = []
    with make_loader(toy, camera, plan, VIEWS, tensors, 0, stop=12) as loader:
        def noted() -> Any:
            for batch in loader:
                handed.append(batch["images"].data_ptr())
                yield batch

        feed = Feed(noted(), plan, Loss(), ranks, StepClock(ranks.device), toy, 0)  # type: ignore[arg-type]
        fed = [batch for batch, _ in feed]
    assert [batch["images"].data_ptr() for batch in fed] == handed and len(handed) == 12
    assert all(value.device == ranks.device for batch in fed for value in batch.values())
    assert all(torch.equal(one["images"], other["images"]) for one, other in zip(fed, expected, strict=True))


def test_loaders_leave_nothing_behind(camera: Manifest) -> None:
    def held() -> tuple[set[int], set[str], int]:
        gc.collect()
        torch.cuda.synchronize()
        free = torch.cuda.mem_get_info()[0]
        return {process.pid for process in psutil.Process().children(recursive=True)}, set(os.listdir("/dev/shm")), free

    plan, seen = Plan(camera.samples, 1, 8, 1, seed=4), []
    for number in range(20):
        loader = make_loader(gpu_job(), camera, plan, VIEWS, tensors, 0, stop=plan.steps_per_epoch)
        for _ in zip(range(1 + number % 3), loader, strict=False):
            pass
        loader.close()
        seen.append(held())
    assert {repr(sorted(pids)) for pids, _, _ in seen} == {"[]"} and len({repr(sorted(shm)) for _, shm, _ in seen}) == 1
    assert seen[4][2] - seen[-1][2] < 256 * 2**20, "device memory grows with every loader"


class Careless(deque[Any]):
    """A decoder's lent memory, given back to DALI at once."""

    def append(self, item: Any) -> None:
        pass


def test_the_jpeg_engine_writes_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dali_canary.corrupted(200) == 0
    monkeypatch.setattr(dali_decoder, "deque", Careless)
    print(f"given back before it was read: {dali_canary.corrupted(100)} of 100 rounds corrupted")

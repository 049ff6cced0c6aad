"""What a loader delivers is counted in whole bursts, as normalised float32, whatever form the engine hands out."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lfhelpers.data import Manifest, augment_device, make_loader, make_plan, rate
from lfhelpers.data.loader import Batch, Request
from lfhelpers.errors import LfError
from lfhelpers.recipe import recipe
from tests.data.toy_shards import ToyFields, tensors

BURNT = 0.002
CPU = torch.device("cpu")


class Given:
    """A loader that hands out one batch again and again, and knows how often and whether it was closed."""

    def __init__(self, batch: Batch, count: int) -> None:
        self.batch, self.count, self.taken, self.closed = batch, count, 0, False

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.count):
            self.taken += 1
            yield self.batch

    def __len__(self) -> int:
        return self.count

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> "Given":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def request(dataset: Manifest, *overrides: str, stop: int = 100_000) -> Request:
    job = recipe("competent", "batch.micro=4", "device=cpu", "data.workers=3", *overrides)
    return Request(job, dataset, make_plan(job, dataset, 1), ToyFields(), tensors, 0, 0, stop)


def bytes_batch() -> Batch:
    images = torch.arange(4 * 2 * 24 * 24 * 3, dtype=torch.int64).remainder(256).to(torch.uint8)
    return {"images": images.view(4, 2, 24, 24, 3), "ids": torch.arange(4)}


def test_whole_bursts_are_counted_and_the_loader_is_closed(dataset: Manifest) -> None:
    loader = Given(bytes_batch(), 100_000)
    found = rate.measure(loader, request(dataset), CPU, 0.05)
    assert found.images % (3 * 4 * 2) == 0 and found.images < loader.taken * 8, "three workers, 4 samples of 2 views"
    assert loader.closed and loader.taken % 3 == 0
    assert found.images_per_s == found.images / found.seconds and found.seconds >= 0.05
    assert found.copied_bytes is None and found.gpu_percent is None


def burning(members: Mapping[str, bytes]) -> dict[str, Tensor]:
    """A sample that costs two milliseconds of a core."""
    end = time.thread_time() + BURNT
    while time.thread_time() < end:
        pass
    return tensors(members)


def test_work_of_other_processes_is_counted(dataset: Manifest) -> None:
    """A count without the workers would be of this process's few microseconds a batch."""
    asked = replace(request(dataset, "data.workers=1", "data.loader=webdataset"), sample=burning)
    loader = make_loader(asked.job, dataset, asked.plan, asked.fields, asked.sample, 0, stop=1000)
    found = rate.measure(loader, asked, CPU, 0.5)
    assert found.cpu_seconds > 0.7 * BURNT * found.images / len(asked.fields.images)


def test_a_loader_that_ends_too_early_is_an_error(dataset: Manifest) -> None:
    loader = Given(bytes_batch(), 3)
    with pytest.raises(LfError, match=r"ended after 3 batches, before 60 s"):
        rate.measure(loader, request(dataset), CPU, 60.0)
    assert loader.closed


def test_bytes_and_floats_become_the_same_tensor(dataset: Manifest) -> None:
    batch = bytes_batch()
    floats = {"images": batch["images"].movedim(-1, 2).float() / 127.5 - 1}
    asked = request(dataset)
    made = rate.delivered(batch, asked, 0, 0, CPU)
    assert made.shape == (8, 3, 24, 24) and made.dtype == torch.float32 and made.is_contiguous()
    assert torch.equal(made, rate.delivered(floats, asked, 0, 0, CPU))
    place = torch.full((8, 3, 24, 24), torch.nan)
    assert rate.delivered(batch, asked, 0, 0, CPU, place) is place and torch.equal(place, made)


def test_what_is_left_to_the_device_is_done(dataset: Manifest) -> None:
    asked, batch = request(dataset, "data.rand_augment=2"), bytes_batch()
    expected = augment_device.apply(batch["images"], batch["ids"].numpy(), asked.job.data, 0, 0, 0, 0)["images"]
    assert not torch.equal(expected, batch["images"])
    assert torch.equal(rate.delivered(batch, asked, 0, 0, CPU),
                       rate.delivered({"images": expected}, request(dataset), 0, 0, CPU))

"""The pool fills batches with every other engine's bits, whatever the number of threads and of batches under way."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lfhelpers.data import Manifest, Plan, decoding, draws, images, loader, make_plan, shards
from lfhelpers.data.decoding import DecodePool, pixels
from lfhelpers.data.engines import webdataset
from lfhelpers.data.loader import Request
from lfhelpers.errors import LfError
from lfhelpers.recipe import recipe
from tests.data.test_dali_images import DAMAGED, TABLE
from tests.data.toy_shards import ToyFields, photo, sample, tensors

pytestmark = pytest.mark.filterwarnings("ignore:::PIL")

Batch = dict[str, Tensor]
DRAWS = dict(zip(TABLE, draws.draw(0, 0, np.arange(len(TABLE))), strict=True))


def request_of(data: Manifest, plan: Plan | None = None, *overrides: str, rank: int = 0, stop: int = 4,
               make: Callable[[Mapping[str, bytes]], Batch] = tensors) -> Request:
    job = recipe("competent", "batch.micro=4", "batch.accumulate=2", "data.workers=0", *overrides, device="cpu")
    return Request(job, data, plan or make_plan(job, data, 1), ToyFields(), make, rank, 0, stop)


def room(request: Request) -> np.ndarray:
    return np.full((request.plan.micro, len(request.fields.images), request.fields.size, request.fields.size, 3), 77,
                   np.uint8)


def decoding_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("decode-")]


@pytest.mark.parametrize("threads", [0, 1, 5])
def test_batches_are_those_of_webdataset(dataset: Manifest, threads: int) -> None:
    """Padding in the last one, a second epoch and all."""
    request = request_of(dataset, Plan(37, 2, 4, 2, seed=3, shard_of=dataset.rows.shard), rank=1, stop=6)
    pool, out = DecodePool(request, threads), room(request)
    with webdataset.make(request) as expected:
        for (step, micro), batch in zip(request.sequence(), expected, strict=True):
            made, faults = pool.fill(step, micro, out)
            assert made.keys() | {"images"} == batch.keys() and faults == [""] * 4
            assert np.array_equal(out, batch["images"].numpy())
            assert all(torch.equal(made[name], batch[name]) and made[name].dtype == batch[name].dtype for name in made)
    pool.close()


def test_many_batches_under_way_do_not_mix(dataset: Manifest) -> None:
    """Of two epochs, whose order the plan keeps one at a time."""
    request = request_of(dataset, stop=10)
    alone, together = DecodePool(request, 0), DecodePool(request, 3)
    places = list(request.sequence())
    begun = [(out, together.start(*place, out)) for place, out in ((place, room(request)) for place in places)]
    for place, (out, future) in zip(places, begun, strict=True):
        expected = room(request)
        batch, _ = alone.fill(*place, expected)
        assert future.result()[0]["ids"].tolist() == batch["ids"].tolist() and np.array_equal(out, expected)
    together.close()


@pytest.mark.parametrize("name", [name for name in TABLE if name != "gif"])
def test_every_kind_of_file_has_the_rules_pixels(name: str) -> None:
    draw = DRAWS[name]
    expected = loader.view(images.decode(TABLE[name], "it"), draw, 56)
    assert np.array_equal(pixels(TABLE[name], "it", draw, 56), expected)


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("scaled", [False, True])
def test_a_damaged_file_is_named(name: str, scaled: bool) -> None:
    with pytest.raises(LfError, match=r"^shard-00001.tar:000000007:jpg is no readable image \(\d+ bytes\): "):
        pixels(DAMAGED[name][0], "shard-00001.tar:000000007:jpg", draws.CENTRE, 56, scaled)


def test_scaled_decoding_is_for_large_plain_jpegs_alone() -> None:
    large, small, png = photo(1, 0, 640, 480), photo(1, 0, 96, 72), TABLE["png"]
    for data, size, equal in ((large, 224, False), (large, 300, True), (small, 24, False), (small, 40, True),
                              (png, 16, True), (TABLE["jpeg, orientation 6"], 16, True)):
        apart = np.abs(pixels(data, "it", draws.CENTRE, size, scaled=True).astype(int)
                       - pixels(data, "it", draws.CENTRE, size))
        assert (apart.max() == 0) == equal and apart.mean() < 6


def test_scaled_decode_is_the_recipes_to_ask_for(dataset: Manifest) -> None:
    exact, scaled = request_of(dataset), request_of(dataset, None, "data.scaled_decode=true")
    first, second, third = room(exact), room(exact), room(exact)
    for request, out in ((exact, first), (scaled, second), (scaled, third)):
        pool = DecodePool(request, 2)
        pool.fill(0, 0, out)
        pool.close()
    assert np.array_equal(second, third)
    assert 0 < np.abs(first.astype(int) - second).mean() < 6


def test_the_first_bad_row_is_named_whoever_meets_it(tmp_path: Path) -> None:
    bad = [5, 6, 7]

    def broken(index: int) -> dict[str, bytes]:
        whole = sample(index)
        return whole | {"wrist.jpg": whole["wrist.jpg"][:700]} if index in bad else whole

    data = shards.write(tmp_path / "broken", broken, 16, readers=1, progress=False)
    request = request_of(data, Plan(16, 1, 16, 1, seed=1))
    first = next(index for index in request.plan.order(0).tolist() if index in bad)
    pool, sentence = DecodePool(request, 4), rf"^shard-\d+.tar:{first:09d}:wrist.jpg is no readable image"
    for _ in range(20):
        with pytest.raises(LfError, match=sentence):
            pool.fill(0, 0, room(request))
    pool.close()


def test_an_error_of_our_own_is_not_dressed_up(dataset: Manifest) -> None:
    request = request_of(dataset)
    pool = DecodePool(request, 2)
    with pytest.raises(ValueError, match="could not broadcast"):
        pool.fill(0, 0, np.zeros((4, 2, 5, 5, 3), np.uint8))
    pool.close()


def test_the_workloads_tensors_get_one_torch_thread_and_nobody_else_does(dataset: Manifest) -> None:
    def asking(members: Mapping[str, bytes]) -> Batch:
        return {"threads": torch.tensor(torch.get_num_threads())}

    before, elsewhere = torch.get_num_threads(), list[int]()
    torch.set_num_threads(3)
    try:
        request = request_of(dataset, make=asking)
        pool = DecodePool(request, 2)
        assert pool.fill(0, 0, room(request))[0]["threads"].tolist() == [1] * 4
        pool.close()
        thread = threading.Thread(target=lambda: elsewhere.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert torch.get_num_threads() == 3 and elsewhere == [3]
    finally:
        torch.set_num_threads(before)


def test_closing_drops_what_is_under_way(dataset: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def waiting(members: Mapping[str, bytes]) -> Batch:
        entered.set()
        go_on.wait()
        return {"number": torch.tensor(struct.unpack("<q", members["number"])[0])}

    request = request_of(dataset, make=waiting)
    pool = DecodePool(request, 2)
    begun = [pool.start(*place, room(request)) for place in request.sequence()]
    assert entered.wait() and len(decoding_threads()) == 2

    def let_go() -> None:
        while not all(future.cancelled() for future in begun):
            time.sleep(0.01)
        go_on.set()

    threading.Thread(target=let_go, daemon=True).start()
    monkeypatch.setattr(decoding, "PATIENCE", 600.0)  # no read hangs, and a busy machine is waited for
    pool.close()
    assert decoding_threads() == []
    for future in begun:
        with pytest.raises(CancelledError):
            future.result(timeout=0)
    with pytest.raises(LfError, match="this loader is closed"):
        pool.start(0, 0, room(request))
    pool.close()

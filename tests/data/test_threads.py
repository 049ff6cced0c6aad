"""What `threads` does beyond what all engines do: reading ahead within bounds, and nothing left in any exit path."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor

from lfhelpers.data import Manifest, make_loader, make_plan, shards
from lfhelpers.data.loader import Loader
from lfhelpers.errors import LfError
from lfhelpers.recipe import Recipe, recipe
from tests.data.http_server import Server
from tests.data.test_decoding import decoding_threads
from tests.data.toy_shards import ToyFields, photo, sample, tensors

Batch = dict[str, Tensor]


def toy(*overrides: str, device: str = "cpu") -> Recipe:
    return recipe("competent", "data.loader=threads", "data.workers=2", "batch.micro=4", *overrides,
                  device=device)  # type: ignore[arg-type]


def made(job: Recipe, data: Manifest, stop: int = 9, sample: object = tensors, size: int = 24) -> Loader:
    return make_loader(job, data, make_plan(job, data, 1), ToyFields(size=size), sample, 0, stop=stop)  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [1, 3])
def test_reading_ahead_ends_at_the_depth(dataset: Manifest, depth: int) -> None:
    """The batch in the consumer's hands, and `depth` more."""
    seen = list[int]()

    def counting(members: Mapping[str, bytes]) -> Batch:
        seen.append(1)
        return tensors(members)

    loader = made(toy(f"data.depth={depth}"), dataset, sample=counting)
    assert seen == [] and decoding_threads() == []  # nothing before the first batch is asked for
    batches = iter(loader)
    for taken in (1, 2, 3):
        next(batches)
        until = time.monotonic() + 30
        while len(seen) < 4 * (taken + depth) and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.1)  # in which a loader without a bound would read on
        assert len(seen) == 4 * (taken + depth)
    loader.close()


def test_without_threads_each_batch_is_made_when_asked_for(dataset: Manifest) -> None:
    seen = list[str]()

    def counting(members: Mapping[str, bytes]) -> Batch:
        seen.append(threading.current_thread().name)
        return tensors(members)

    with made(toy("data.workers=0"), dataset, sample=counting) as loader:
        for number, _ in enumerate(loader, 1):
            assert seen == [threading.current_thread().name] * 4 * number


def test_kept_batches_stay_as_they_were(dataset: Manifest) -> None:
    copies, kept = [], []
    with made(toy("data.depth=1"), dataset) as loader:
        for batch in loader:
            kept.append(batch["images"])
            copies.append(batch["images"].clone())
    assert len(kept) == 9 and all(torch.equal(one, other) for one, other in zip(kept, copies, strict=True))
    assert len({images.data_ptr() for images in kept}) == 9


def test_no_thread_is_left(dataset: Manifest, tmp_path: Path) -> None:
    loader = made(toy(), dataset)
    loader.close()
    loader = made(toy(), dataset)
    next(iter(loader))
    loader.close()
    assert decoding_threads() == []
    with made(toy(), dataset) as loader:
        for _ in loader:
            break
    assert decoding_threads() == []
    loader = made(toy(), dataset)
    for _ in loader:
        break
    assert decoding_threads() == []  # also without a with block
    list(made(toy(), dataset))
    assert decoding_threads() == []
    with pytest.raises(RuntimeError, match="of the consumer"), made(toy(), dataset) as loader:
        for _ in loader:
            raise RuntimeError("of the consumer")
    assert decoding_threads() == []


def test_closed_between_two_batches_it_says_so(dataset: Manifest) -> None:
    loader = made(toy(), dataset)
    batches = iter(loader)
    next(batches)
    loader.close()
    with pytest.raises(LfError, match="this loader is closed: it delivers its batches once"):
        next(batches)
    with pytest.raises(LfError, match="this loader is closed"):
        next(iter(loader))


def test_an_error_comes_where_its_batch_would_have_come(tmp_path: Path) -> None:
    def damaged(index: int) -> dict[str, bytes]:
        return sample(index) | ({"front.jpg": b"\xff\xd8\xff nothing"} if index == 9 else {})

    broken = shards.write(tmp_path / "broken", damaged, 16, readers=1, progress=False)
    delivered = []
    with (pytest.raises(LfError, match=r"^shard-0\d+.tar:000000009:front.jpg is no readable image"),
          made(toy("data.shuffle=none"), broken, stop=4) as loader):
        for batch in loader:
            delivered += batch["ids"].tolist()
    assert delivered == list(range(8)) and decoding_threads() == []


def test_twenty_loaders_leave_nothing(dataset: Manifest) -> None:
    list(made(toy(), dataset))  # all shards: the dataset keeps each open from its first read on
    me = psutil.Process()
    gc.collect()
    before = me.num_fds(), me.num_threads(), me.children()
    for _ in range(20):
        with made(toy(), dataset, stop=5) as loader:
            next(iter(loader))
    gc.collect()
    assert (me.num_fds(), me.num_threads(), me.children()) == before


def test_a_dataset_behind_an_address_is_followed(served: Server, dataset: Manifest, tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path))
    remote, before = Manifest.load(served.address), psutil.Process().children()
    with made(toy(), remote) as loader:
        found = list(loader)
    with made(toy(), dataset) as loader:
        assert all(torch.equal(a["images"], b["images"]) for a, b in zip(found, loader, strict=True))
    assert psutil.Process().children() == before and decoding_threads() == []


SCRIPT = """
import sys, threading
from lfhelpers.data import Manifest, decoding, make_loader, make_plan
from tests.data.test_threads import toy
from tests.data.toy_shards import ToyFields, tensors

def hanging(members):
    if sys.argv[2] == "hang" and threading.current_thread().name == "decode-1":
        print("hang", flush=True)
        threading.Event().wait()
    return tensors(members)

decoding.PATIENCE = 0.2
data = Manifest.load(sys.argv[1])
with make_loader(toy(), data, make_plan(toy(), data, 1), ToyFields(), hanging, 0, stop=1_000_000) as loader:
    while True:
        for batch in loader:
            print("batch", flush=True)
"""


@pytest.mark.parametrize("how", ["run", "hang"])
def test_ctrl_c_ends_the_process_even_where_a_thread_hangs(dataset: Manifest, how: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(dataset.folder), how], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert process.stdout
    assert any(line == {"run": "batch\n", "hang": "hang\n"}[how] for line in process.stdout)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=30)[1]
    assert process.returncode == -signal.SIGINT and error.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.gpu
def test_page_locked_batches_outlive_the_copies_out_of_them(tmp_path: Path) -> None:
    """As train.feed does it: copies on a stream of their own, which lags behind, and the batch is dropped at once."""
    if not torch.cuda.is_available():
        pytest.skip("page-locked memory and streams need a CUDA device, and this machine has none")
    large = shards.write(tmp_path / "large", lambda index: sample(index) | {"front.jpg": photo(index, 0, 640, 480)}, 32,
                         readers=1, progress=False)
    with made(toy("batch.micro=8", device="cuda"), large, stop=40, size=224) as loader:
        stream, copies = torch.cuda.Stream(), []
        for batch in loader:
            assert all(tensor.is_pinned() for tensor in batch.values())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(50_000_000)  # cycles: about 25 ms
                copies.append(batch["images"].to("cuda", non_blocking=True))
            del batch
        torch.cuda.synchronize()
    with made(toy("batch.micro=8"), large, stop=40, size=224) as loader:
        assert all(torch.equal(copy.cpu(), batch["images"]) for copy, batch in zip(copies, loader, strict=True))

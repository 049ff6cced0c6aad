"""A dataset behind an address gives the same epoch as one in a folder, whatever its server does, or one sentence."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from lfhelpers.data import Manifest, download, make_loader, make_plan, manifest, shards
from lfhelpers.data.download import Patience
from lfhelpers.data.engines import webdataset
from lfhelpers.data.remote import RemoteManifest, open_remote
from lfhelpers.errors import LfError
from tests.data.http_server import Server
from tests.data.remote_epochs import QUICK, ids, job, wait_for
from tests.data.toy_shards import SAMPLES, ToyFields, sample, tensors


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def impatient(stream: Callable[..., Iterator[bytes]], hanging: str) -> Callable[..., Iterator[bytes]]:
    """The same, but the file that never comes is not waited for as long as others may take on a busy machine."""
    return lambda address, name, offset, stall: stream(address, name, offset, 0.3 if name == hanging else stall)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("engine", ["as_found", "webdataset", "dali"])
def test_a_bad_server_gives_the_epoch_of_a_folder(dataset: Manifest, served: Server, tmp_path: Path, engine: str,
                                                  workers: int) -> None:
    served.rate = 1e6
    served.faults |= {"shard-00000.tar": ["500", "500"], "shard-00001.tar": ["cut"], "shard-00002.tar": ["wrong"],
                      "manifest.json": ["cut", "500"], "manifest.npz": ["cut", "wrong"]}
    remote = open_remote(served.address, tmp_path, 1, QUICK)
    assert remote.hash == dataset.hash and remote.samples == SAMPLES
    toy = job(f"data.loader={engine}", f"data.workers={workers}")
    plan, before = make_plan(toy, dataset, 1), children()
    batches = [list(make_loader(toy, each, plan, ToyFields(), tensors, 0, stop=2 * plan.steps_per_epoch))
               for each in (dataset, remote)]
    assert len(batches[1]) == 2 * plan.steps_per_epoch
    for local, fetched in zip(*batches, strict=True):
        assert local.keys() == fetched.keys() and all(torch.equal(local[name], fetched[name]) for name in local)
    assert served.count() == {"shard-00000.tar": 3, "shard-00001.tar": 2, "shard-00002.tar": 2, "shard-00003.tar": 1}
    assert children() == before


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("fault", "reason"), [
    ("wrong", "its sha256 is not the manifest's"), ("500", "the server answered 500"), ("404", "it is not there"),
    ("hang", "too little came in 0.3 s|.*")])
def test_a_server_that_never_mends_is_one_sentence(served: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                   fault: str, reason: str, workers: int) -> None:
    served.faults["shard-00002.tar"] = [f"always:{fault}"]
    if fault == "hang":
        monkeypatch.setattr(download, "stream", impatient(download.stream, "shard-00002.tar"))
    remote = open_remote(served.address, tmp_path, 1, Patience(2, 0.01, 0.05, 60, 1))
    with pytest.raises(LfError, match=rf"^shard shard-00002.tar can't be fetched from {served.address}: ({reason}) "
                                      r"\([12] tr(y|ies)\); see that it is whole there and start again: [^\n]*$"):
        ids(job(f"data.workers={workers}"), remote)
    # The fetching process and each reader give up for themselves.
    assert served.count()["shard-00002.tar"] <= 2 * (1 + max(workers, 1))
    assert "shard-00002.tar" not in os.listdir(remote.folder)
    served.faults.clear()
    assert sorted(ids(job(), remote)) == list(range(SAMPLES))


@pytest.mark.parametrize(("fault", "sentence"), [
    ("404", r"it is not there \(1 try\)"), ("500", r"the server answered 500 \(4 tries\)")])
def test_an_address_without_a_dataset_is_one_sentence(served: Server, tmp_path: Path, fault: str, sentence: str
                                                      ) -> None:
    served.faults["manifest.json"] = [f"always:{fault}"]
    with pytest.raises(LfError, match=rf"^manifest.json can't be fetched from {served.address}: {sentence}"):
        open_remote(served.address, tmp_path, 1, QUICK)


def test_a_table_that_stays_wrong_is_one_sentence_and_no_folder(served: Server, tmp_path: Path) -> None:
    served.faults["manifest.npz"] = ["always:wrong"]
    with pytest.raises(LfError, match=r"^manifest.npz can't be fetched from .*: it holds no dataset: .*\(4 tries\)"):
        open_remote(served.address, tmp_path, 1, QUICK)
    assert [path.name for path in tmp_path.iterdir()] == ["lock-manifest"]
    served.faults.clear()
    assert sorted(ids(job(), open_remote(served.address, tmp_path, 1, QUICK))) == list(range(SAMPLES))


def test_a_shard_name_that_leads_elsewhere_is_refused(copied: Path, tmp_path: Path) -> None:
    text = (copied / manifest.JSON).read_text().replace("shard-00001.tar", "../shard-00001.tar")
    (copied / manifest.JSON).write_text(text)
    with Server(copied) as server, pytest.raises(LfError, match=r"names a shard '../shard-00001.tar', which is no"):
        open_remote(server.address, tmp_path / "cache", 1, Patience(2, 0.01))


def test_a_limit_below_what_the_order_needs_is_refused(served: Server, many: Manifest, tmp_path: Path) -> None:
    served.folder = many.folder
    remote = open_remote(served.address, tmp_path, 12 * many.shards[0].size / 1e9, QUICK)
    before = children()
    with pytest.raises(LfError, match=r"^data.cache_gb = [\d.e-]+ is too small: this order reads .* GB of shards at "
                                      r"the same time; give more, take data.shuffle='block', or pack smaller shards"):
        ids(job("data.shuffle=global"), remote)
    assert children() == before and not served.count()


def test_all_is_fetched_ahead_and_nothing_that_no_step_reads(served: Server, many: Manifest, tmp_path: Path,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    served.folder = many.folder
    remote, toy = open_remote(served.address, tmp_path, 1, QUICK), job("data.shuffle=none", "data.workers=1")
    plan = make_plan(toy, remote, 1)
    with make_loader(toy, remote, plan, ToyFields(), tensors, 0, start=2, stop=5):
        wait_for(lambda: len(served.count()) == 6)  # samples 8..19, two in each shard, though one batch is read at most
        wait_for(lambda: len(remote._cache.present()) == 6)
    assert capsys.readouterr().out == (f"0 of 24 shards of {served.address} are in {remote.folder}; the others are "
                                       "fetched while they are needed\n")
    assert served.count() == {f"shard-{number:05d}.tar": 1 for number in range(4, 10)}


def test_an_engine_that_can_not_be_made_leaves_no_process(served: Server, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webdataset, "make", lambda request: 1 / 0)
    remote, before = open_remote(served.address, tmp_path, 1, QUICK), children()
    with pytest.raises(ZeroDivisionError):
        ids(job(), remote)
    assert children() == before


@pytest.mark.parametrize("workers", [0, 1])
def test_readers_go_on_without_the_fetching_process(served: Server, many: Manifest, tmp_path: Path, workers: int
                                                    ) -> None:
    served.folder, served.rate = many.folder, 2e6
    remote, toy, read = open_remote(served.address, tmp_path, 1, QUICK), job(f"data.workers={workers}"), []
    plan = make_plan(toy, remote, 1)
    with make_loader(toy, remote, plan, ToyFields(), tensors, 0, stop=plan.steps_per_epoch) as loader:
        fetching = remote._ahead[0]._process
        for batch in loader:
            if not read:
                os.kill(fetching.pid or 0, signal.SIGKILL)
                fetching.join()
            read += batch["number"].tolist()
    assert sorted(read) == list(range(48))


def test_addresses_and_versions_with_the_same_names_never_meet(copied: Path, tmp_path: Path) -> None:
    shutil.copytree(copied, copied / "inner" / "set")
    with Server(copied) as server:
        first = open_remote(server.address, tmp_path / "cache", 1, QUICK)
        inner = open_remote(f"{server.address}/inner/set", tmp_path / "cache", 1, QUICK)
        assert first.folder != inner.folder and first.read(0) == inner.read(0) == sample(0)
        assert server.count() == {"shard-00000.tar": 1, "inner/set/shard-00000.tar": 1}
        shutil.rmtree(copied)
        shards.write(copied, lambda index: sample(SAMPLES - 1 - index), SAMPLES, readers=1, progress=False)
        renewed = open_remote(server.address, tmp_path / "cache", 1, QUICK)
        assert renewed.folder != first.folder
        assert renewed.read(0, check=True) == sample(SAMPLES - 1) and first.read(0, check=True) == sample(0)


def test_damage_in_the_cache_is_mended_while_reading(served: Server, tmp_path: Path) -> None:
    remote = open_remote(served.address, tmp_path, 1, QUICK)
    assert remote.read(3, check=True) == sample(3)
    place = remote.folder / "shard-00000.tar"
    place.write_bytes(bytes(place.stat().st_size))
    assert remote.read(3, check=True) == sample(3)
    assert served.count() == {"shard-00000.tar": 2}
    with pytest.raises(LfError, match=r"no member 'depth.png'"):
        remote.read(3, ["depth.png"])
    assert served.count() == {"shard-00000.tar": 2}


def test_a_cache_that_is_taken_away_is_one_sentence(served: Server, tmp_path: Path) -> None:
    remote = open_remote(served.address, tmp_path, 1, QUICK)
    shutil.rmtree(remote.folder)
    with pytest.raises(LfError, match=r"^the cache of remote shards in .* can't be used: No such file or directory"):
        remote.read(0)


def test_it_can_be_sent_to_another_process(served: Server, tmp_path: Path) -> None:
    remote = open_remote(served.address, tmp_path, 1, QUICK)
    there = pickle.loads(pickle.dumps(remote))
    assert isinstance(there, RemoteManifest) and there.hash == remote.hash and there.read(5) == sample(5)


def test_any_address_of_fsspec_is_a_data_path(dataset: Manifest, runs_root: Path) -> None:
    remote = Manifest.load(f"file://{dataset.folder}", cache_gb=0.5)
    assert isinstance(remote, RemoteManifest) and remote.cache and remote.cache.limit == 5 * 10**8
    assert remote.folder.parent == runs_root / "cache" and remote.folder.name.startswith("toy-")
    assert sorted(ids(job("data.workers=1"), remote)) == list(range(SAMPLES))


def test_a_missing_driver_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(LfError, match=r"^s3://bucket/set needs a package that is missing here: Install s3fs to access"):
        open_remote("s3://bucket/set", tmp_path)


def test_a_synthetic_run_fetches_only_what_it_looks_at(served: Server, tmp_path: Path) -> None:
    remote, toy = open_remote(served.address, tmp_path, 1, QUICK), job("data.loader=synthetic")
    with make_loader(toy, remote, make_plan(toy, remote, 1), ToyFields(), tensors, 0, stop=3) as loader:
        assert [batch["number"].tolist() for batch in loader] == [[0, 1, 2, 3]] * 3
    assert served.count() == {"shard-00000.tar": 1}

"""A dataset that does not fit its manifest is refused with a sentence; one that does gives any member in one read."""

from __future__ import annotations

import dataclasses
import os
import pickle
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
import pytest

from lfhelpers.data import Manifest, manifest
from lfhelpers.errors import LfError
from tests.data.toy_shards import SAMPLES, make, sample


def test_every_member_is_read_as_it_was_packed(dataset: Manifest) -> None:
    assert dataset.fields == ("front.jpg", "wrist.jpg", "number")
    for index in range(SAMPLES):
        assert dataset.read(index, check=True) == sample(index)


def test_a_part_of_the_members_is_read_in_the_order_asked_for(dataset: Manifest) -> None:
    assert list(dataset.read(5, ["number", "front.jpg"]).items()) == [
        ("number", struct.pack("<q", 5)), ("front.jpg", sample(5)["front.jpg"])]


def test_threads_and_few_open_files_read_the_same(dataset: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "OPEN_FILES", 1)
    found: list[bytes] = []

    def read_all() -> None:
        order = np.random.default_rng(threading.get_ident()).permutation(SAMPLES)
        found.extend(dataset.read(int(index), ["number"])["number"] for index in order)

    threads = [threading.Thread(target=read_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(4 * [struct.pack("<q", index) for index in range(SAMPLES)])
    assert len(dataset._files) <= 4


def test_closed_files_are_really_closed(copied: Path) -> None:
    there = Manifest.load(copied)
    for index in range(SAMPLES):
        there.read(index, ["number"])
    open_files = os.listdir("/proc/self/fd")
    assert len(there._files) == 4
    del there
    assert len(os.listdir("/proc/self/fd")) == len(open_files) - 4


def test_the_hash_follows_the_content_alone(dataset: Manifest, copied: Path, tmp_path: Path) -> None:
    assert len(dataset.hash) == 16 and int(dataset.hash, 16) >= 0
    assert Manifest.load(copied).hash == dataset.hash
    assert make(tmp_path / "again", source={"made by": "someone else"}).hash == dataset.hash
    rows = dataclasses.replace(dataset.rows, crc32=dataset.rows.crc32 + 1)
    assert dataclasses.replace(dataset, rows=rows).hash != dataset.hash
    shards = (dataclasses.replace(dataset.shards[0], sha256="0" * 64), *dataset.shards[1:])
    assert dataclasses.replace(dataset, shards=shards).hash != dataset.hash


def test_it_can_be_sent_to_another_process(dataset: Manifest) -> None:
    dataset.read(0)
    there = pickle.loads(pickle.dumps(dataset))
    assert there.read(3) == sample(3) and there.hash == dataset.hash


def test_seed_and_source_are_kept(tmp_path: Path) -> None:
    made = make(tmp_path / "set", seed=7, source={"world": "toy", "distractors": 3})
    assert (made.seed, made.source) == (7, {"world": "toy", "distractors": 3})


def test_a_flipped_bit_is_found_by_its_crc(copied: Path) -> None:
    there = Manifest.load(copied)
    place = int(there.rows.offset[20, 1]) + 300
    shard = copied / there.shards[there.rows.shard[20]].name
    data = bytearray(shard.read_bytes())
    data[place] ^= 4
    shard.write_bytes(data)
    assert Manifest.load(copied).read(20, ["wrist.jpg"]) != {"wrist.jpg": sample(20)["wrist.jpg"]}
    with pytest.raises(LfError, match=r"^shard-00002.tar:000000020:wrist.jpg is damaged: its crc32 is not"):
        Manifest.load(copied).read(20, check=True)
    with pytest.raises(LfError, match=r"^shard shard-00002.tar in .*copied is damaged: its sha256 is not the"):
        Manifest.load(copied, check="sha256")


def test_a_shard_cut_after_loading_is_named(copied: Path) -> None:
    there = Manifest.load(copied)
    os.truncate(copied / "shard-00003.tar", 4000)
    with pytest.raises(LfError, match=r"^shard-00003.tar:000000036 in .*copied is cut short: the shard ends before"):
        there.read(36)


def test_a_member_that_is_not_there_is_named_with_the_nearest(dataset: Manifest) -> None:
    with pytest.raises(LfError, match=r"no member 'front.jpeg' that the workload reads; did you mean 'front.jpg'\?"):
        dataset.read(0, ["front.jpeg"])


def edited(folder: Path, **changes: object) -> None:
    path = folder / manifest.JSON
    path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | changes))


def shorter_table(folder: Path) -> None:
    with np.load(folder / manifest.ARRAYS) as arrays:
        rows = {name: array[:-1] for name, array in arrays.items()}
    np.savez(folder / manifest.ARRAYS, **rows)


def table_of_another_set(folder: Path) -> None:
    with np.load(folder / manifest.ARRAYS) as arrays:
        rows = dict(arrays) | {"offset": arrays["offset"] + 10**6}
    np.savez(folder / manifest.ARRAYS, **rows)


@pytest.mark.parametrize(("damage", "sentence"), [
    (lambda folder: (folder / "shard-00001.tar").unlink(),
     r"shard shard-00001.tar is missing from .*copied; copy it there"),
    (lambda folder: os.truncate(folder / "shard-00001.tar", 5120),
     r"shard shard-00001.tar in .*copied has 5120 bytes, the manifest says \d+; copy it again"),
    (lambda folder: (folder / manifest.JSON).unlink(),
     r"has no manifest.json: it is unfinished, or .*: lfhelpers data make --out .*copied"),
    (lambda folder: (folder / manifest.JSON).write_text("{"), r"manifest.json can't be read: "),
    (lambda folder: (folder / manifest.JSON).write_text("[]"), r"manifest.json is no manifest of format 1"),
    (lambda folder: edited(folder, format=2), r"manifest.json is no manifest of format 1"),
    (lambda folder: edited(folder, samples=38), r"has 37 rows, manifest.json says 38 samples and its shards hold 37"),
    (shorter_table, r"has 36 rows, manifest.json says 37 samples and its shards hold 37"),
    (table_of_another_set, r"manifest.npz does not fit manifest.json: it belongs to another dataset"),
    (lambda folder: (folder / manifest.ARRAYS).unlink(), r"manifest.npz is missing or no table of rows"),
    (lambda folder: (folder / manifest.ARRAYS).write_bytes(b"PK\x03\x04 half"), r"manifest.npz is missing or no table"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_what_does_not_fit_is_refused_with_a_sentence(
        copied: Path, damage: Callable[[Path], object], sentence: str) -> None:
    damage(copied)
    with pytest.raises(LfError, match=sentence):
        Manifest.load(copied)


def test_a_missing_folder_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(LfError, match=r"there is no data folder .*; make one: lfhelpers data make --out .*nowhere$"):
        Manifest.load(tmp_path / "nowhere")

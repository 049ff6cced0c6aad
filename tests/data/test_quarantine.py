"""Bad samples are replaced, masked and named, alike by all engines with any number of workers; too many end the run."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from lfhelpers.data import Manifest, Plan, make_loader, manifest, quarantine, shards
from lfhelpers.data.quarantine import Quarantine
from lfhelpers.errors import LfError
from lfhelpers.recipe import Recipe, recipe
from tests.data.broken_tars import encoded, noise
from tests.data.toy_shards import ToyFields, photo, tensors

Batch = dict[str, Tensor]
ENGINES = ["as_found", "webdataset", "threads", "dali", "two_level"]
FIELDS = ToyFields(images=("jpg",))
WHOLE = encoded(noise(), quality=90)
CUT, HTML, EMPTY, GIF = 13, 41, 40, 99
BAD = {CUT: WHOLE[:len(WHOLE) // 2], HTML: b"<html><body>404 Not Found</body></html>", EMPTY: b"",
       GIF: encoded(noise().convert("P"), "GIF")}
CONTROLS = {2: encoded(noise(), "WEBP"), 3: encoded(noise().convert("L")), 4: encoded(noise().convert("RGBA"), "PNG")}


def members(index: int) -> dict[str, bytes]:
    return {"jpg": (BAD | CONTROLS).get(index) or photo(index, 0), "number": struct.pack("<q", index)}


@pytest.fixture(scope="session")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """100 samples of which 4 are bad. Our packer refuses empty members, so that one is emptied afterwards."""
    made = shards.write(tmp_path_factory.mktemp("hundred") / "set", members, 100, readers=1, progress=False)
    made.rows.size[EMPTY, 0], made.rows.crc32[EMPTY, 0] = 0, zlib.crc32(b"")
    manifest.save(made.folder, made)
    return Manifest.load(made.folder)


def job(engine: str, workers: int) -> Recipe:
    return recipe("competent", f"data.loader={engine}", f"data.workers={workers}", device="cpu")


def read(engine: str, workers: int, data: Manifest, plan: Plan, bad: Quarantine | None, rank: int = 0, start: int = 0,
         stop: int | None = None) -> list[Batch]:
    stop = plan.steps_per_epoch if stop is None else stop
    made = make_loader(job(engine, workers), data, plan, FIELDS, tensors, rank, start=start, stop=stop, bad=bad)
    with made as loader:
        return list(loader)


def equal(left: list[Batch], right: list[Batch]) -> bool:
    return len(left) == len(right) and all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("engine", ENGINES)
def test_four_bad_of_a_hundred(hundred: Manifest, tmp_path: Path, engine: str, workers: int) -> None:
    plan, bad = Plan(100, 1, 8, 2, seed=1), Quarantine(tmp_path / "bad")
    batches = read(engine, workers, hundred, plan, bad)
    numbers = torch.cat([batch["number"][batch["valid"] == 1] for batch in batches]).tolist()
    assert sorted(numbers) == sorted(set(range(100)) - BAD.keys()) and len(numbers) == 96
    lines = quarantine.read(bad.folder)
    assert {line["sample"] for line in lines} == BAD.keys() and len(lines) == 4
    order = plan.order(0).tolist()
    for line in lines:
        place = f"{hundred.shards[hundred.rows.shard[line['sample']]].name}"
        assert (line["shard"], line["key"], line["member"]) == (place, f"{line['sample']:09d}", "jpg")
        assert (line["epoch"], line["step"]) == (0, order.index(line["sample"]) // 16)
    reasons = {line["sample"]: line["reason"] for line in lines}
    assert "truncated" in reasons[CUT] and "cannot identify" in reasons[HTML]
    assert "(0 bytes)" in reasons[EMPTY] and "is a GIF" in reasons[GIF]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_stands_in_is_the_next_good_sample(hundred: Manifest, tmp_path: Path, engine: str) -> None:
    plan = Plan(100, 1, 8, 1, seed=1, shuffle="none")  # 40 and 41 are neighbours, 99 is the last of all
    batches = read(engine, 1, hundred, plan, Quarantine(tmp_path / "bad"))
    ids, valid = (torch.cat([batch[name] for batch in batches]).tolist() for name in ("ids", "valid"))
    stand_ins = {CUT: 14, EMPTY: 42, HTML: 42, GIF: 0}
    assert ids[:100] == [stand_ins.get(index, index) for index in range(100)]
    assert valid == [0.0 if index in BAD or index >= 100 else 1.0 for index in range(104)]
    assert torch.cat([batch["number"] for batch in batches]).tolist() == ids
    pixels = torch.cat([batch["images"] for batch in batches])
    assert torch.equal(pixels[CUT], pixels[14]) and torch.equal(pixels[HTML], pixels[42])  # its own augmentation too


@pytest.mark.parametrize("world", [1, 2])
def test_all_engines_and_any_number_of_workers_give_the_same(hundred: Manifest, tmp_path: Path, world: int) -> None:
    plan = Plan(100, world, 8, 2, seed=3)
    for rank in range(world):
        first = read("webdataset", 0, hundred, plan, Quarantine(tmp_path / "a"), rank)
        assert equal(first, read("webdataset", 3, hundred, plan, Quarantine(tmp_path / "b"), rank))
        assert equal(first, read("threads", 3, hundred, plan, Quarantine(tmp_path / "e"), rank))
        found = read("as_found", 0, hundred, plan, Quarantine(tmp_path / "c"), rank)
        assert equal(found, read("as_found", 2, hundred, plan, Quarantine(tmp_path / "d"), rank))
        assert all(torch.equal(a[name], b[name]) for a, b in zip(first, found, strict=True)
                   for name in ("ids", "valid", "number"))
    written = [quarantine.read(tmp_path / name) for name in "abcde"]
    assert written == written[:1] * 5 and {line["sample"] for line in written[0]} == BAD.keys()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [f"rank-{rank}.jsonl" for rank in range(world)]


@pytest.mark.parametrize("engine", ENGINES)
def test_resumed_at_any_step_the_list_is_the_same(hundred: Manifest, tmp_path: Path, engine: str) -> None:
    plan = Plan(100, 1, 8, 2, seed=1)
    stop = 2 * plan.steps_per_epoch
    whole = read(engine, 0, hundred, plan, Quarantine(tmp_path / "whole"), stop=stop)
    lines = (tmp_path / "whole" / "rank-0.jsonl").read_bytes()
    assert [line["epoch"] for line in quarantine.read(tmp_path / "whole")] == [0] * 4 + [1] * 4
    for start in (1, 6, 7, 11):
        bad = Quarantine(tmp_path / f"from-{start}")
        read(engine, 0, hundred, plan, bad, stop=start + 1)  # a step further than the checkpoint, as after a kill
        bad.file(0).open("ab").write(b'{"shard": "sh')
        rest = sum(plan.micro_batches(step) for step in range(start, stop))
        assert equal(read(engine, 1, hundred, plan, bad, start=start, stop=stop), whole[len(whole) - rest:])
        assert bad.file(0).read_bytes() == lines


def test_resumed_by_fewer_ranks_no_sample_is_told_twice(hundred: Manifest, tmp_path: Path) -> None:
    bad = Quarantine(tmp_path / "bad")
    for rank in range(2):
        read("webdataset", 0, hundred, Plan(100, 2, 8, 1, seed=1), bad, rank)
    read("webdataset", 0, hundred, Plan(100, 1, 8, 2, seed=1), bad, start=2)
    assert sorted(line["sample"] for line in quarantine.read(bad.folder)) == sorted(BAD)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_without_it_the_first_bad_sample_raises(hundred: Manifest, engine: str, workers: int) -> None:
    plan = Plan(100, 1, 8, 1, seed=1, shuffle="none")
    with pytest.raises(LfError, match=r"^shard-00000.tar:000000013:jpg is no readable image"):
        read(engine, workers, hundred, plan, None)
    only_gif = Plan(100, 1, 1, 1, seed=1, shuffle="none")
    with pytest.raises(LfError, match=r"^shard-00003.tar:000000099:jpg is a GIF, which DALI can't decode; convert it"):
        read(engine, workers, hundred, only_gif, None, start=99)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_too_many_bad_samples_end_the_run(hundred: Manifest, tmp_path: Path, engine: str, workers: int) -> None:
    plan, bad = Plan(100, 1, 8, 1, seed=1, shuffle="none"), Quarantine(tmp_path / "bad", max_fraction=0.02, least=1)
    delivered = []
    sentence = (r"^3 bad samples are more than the 2 that are allowed of 100; they are listed in .*rank-0.jsonl: mend "
                r"the set with lfhelpers data lint --repack, or allow more\.$")
    with pytest.raises(LfError, match=sentence), make_loader(
            job(engine, workers), hundred, plan, FIELDS, tensors, 0, stop=13, bad=bad) as loader:
        for batch in loader:
            delivered.append(batch)
    assert len(delivered) == 5  # 13 is in the second batch, 40 and 41 are in the sixth
    assert [line["sample"] for line in quarantine.read(bad.folder)] == [CUT, EMPTY, HTML]
    read(engine, workers, hundred, plan, replace(bad, max_fraction=0.04))
    assert Quarantine(tmp_path).allowed(100) == 10 and Quarantine(tmp_path).allowed(5000) == 50


def test_a_sample_that_comes_again_counts_once(hundred: Manifest, tmp_path: Path) -> None:
    plan, bad = Plan(100, 1, 10, 1, seed=1), Quarantine(tmp_path / "bad", max_fraction=0.04, least=1)
    read("webdataset", 1, hundred, plan, bad, stop=3 * plan.steps_per_epoch)
    assert len(quarantine.read(bad.folder)) == 12


def test_a_set_of_nothing_good_is_one_sentence(tmp_path: Path) -> None:
    page = {"jpg": BAD[HTML], "number": struct.pack("<q", 0)}
    pages = shards.write(tmp_path / "pages", lambda index: page, 40, readers=1, progress=False)
    with pytest.raises(LfError, match=r"^11 samples in a row can't be used, from 'shard-0.*:jpg is no readable image "):
        read("webdataset", 2, pages, Plan(40, 1, 4, 1, seed=0), Quarantine(tmp_path / "bad"))


def test_every_fault_of_a_sample_is_caught(tmp_path: Path) -> None:
    """A flipped bit, a cut shard, and a workload that can't make sense of a member."""
    def good(index: int) -> dict[str, bytes]:
        return {"jpg": photo(index, 0), "number": struct.pack("<q", index)}

    made = shards.write(tmp_path / "set", good, 40, readers=1, progress=False)
    first, last = made.folder / made.shards[0].name, made.folder / made.shards[-1].name
    data = bytearray(first.read_bytes())
    data[int(made.rows.offset[3, 0]) + 500] ^= 4
    first.write_bytes(data)
    loaded = Manifest.load(made.folder)
    last.write_bytes(last.read_bytes()[:int(made.rows.offset[39, 0]) + 10])

    def picky(found: Mapping[str, bytes]) -> Batch:
        if found["number"] == struct.pack("<q", 17):
            raise KeyError("action")
        return tensors(found)

    plan, bad = Plan(40, 1, 4, 1, seed=5), Quarantine(tmp_path / "bad")
    with make_loader(job("webdataset", 2), loaded, plan, FIELDS, picky, 0, stop=10, bad=bad) as loader:
        numbers = torch.cat([batch["number"][batch["valid"] == 1] for batch in loader]).tolist()
    assert sorted(numbers) == sorted(set(range(40)) - {3, 17, 39})
    found = {line["sample"]: (line["member"], line["reason"]) for line in quarantine.read(bad.folder)}
    assert found[3][0] == "jpg" and found[3][1].startswith("is damaged: its crc32 is not the manifest's")
    assert found[17] == ("number", "the workload's sample() raised KeyError: 'action'")
    assert found[39][0] == "" and "is cut short: the shard ends before byte" in found[39][1]


def test_an_error_that_is_no_samples_fault_is_raised(hundred: Manifest, tmp_path: Path) -> None:
    def ragged(found: Mapping[str, bytes]) -> Batch:
        return {"x": torch.zeros(struct.unpack("<q", found["number"])[0])}

    with make_loader(job("webdataset", 0), hundred, Plan(100, 1, 4, 1, seed=5), FIELDS, ragged, 0, stop=10,
                     bad=Quarantine(tmp_path / "bad")) as loader, pytest.raises(LfError, match="same shapes"):
        list(loader)


def test_a_lost_connection_is_no_samples_fault(
        hundred: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(self: Manifest, index: int, *args: object, **options: object) -> dict[str, bytes]:
        raise LfError("the server does not answer.")

    monkeypatch.setattr(Manifest, "read", lost)
    with pytest.raises(LfError, match=r"^the server does not answer.$"):
        read("as_found", 0, hundred, Plan(100, 1, 4, 1, seed=5), Quarantine(tmp_path / "bad"))


def test_padding_by_a_bad_sample_is_told_once(hundred: Manifest, tmp_path: Path) -> None:
    """The epoch begins with the cut image, so the last batch is padded with it."""
    seed = next(seed for seed in range(1000) if Plan(100, 1, 8, 1, seed=seed).order(0)[0] == CUT)
    plan, bad = Plan(100, 1, 8, 1, seed=seed), Quarantine(tmp_path / "bad")
    batches = read("as_found", 1, hundred, plan, bad)
    assert batches[-1]["valid"].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert batches[-1]["ids"][4] == batches[0]["ids"][0] == plan.order(0)[1]
    assert [line["sample"] for line in quarantine.read(bad.folder)].count(CUT) == 1


def test_the_four_are_bad_and_the_controls_are_not() -> None:
    for data in CONTROLS.values():
        assert np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).shape == (64, 64, 3)
    assert Image.open(io.BytesIO(BAD[GIF])).format == "GIF" and len(BAD) == 4

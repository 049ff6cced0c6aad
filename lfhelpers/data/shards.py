"""Writing shards: tar files that webdataset and DALI read alike, with DALI's index beside each and one manifest.

The dataset is built in a hidden folder next to its place and takes its name when it is whole. What goes into which
shard is settled before the first one is written, from the size of a few samples, so neither the number of writers nor
an interruption changes a byte; the price is that shards have the wanted size only on average. A finished shard is
never written twice: after a kill, an interrupt or a full disk the same call goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
from tqdm import tqdm

from lfhelpers.data import manifest, writers
from lfhelpers.data.manifest import Manifest, Rows, Shard
from lfhelpers.data.tar import ROWS, Packing, Sample, is_whole, members, rows_file, tar_bytes, write_shard
from lfhelpers.errors import LfError
from lfhelpers.runs import write_atomic

PROBE = 8  # samples that are made beforehand to learn the mean size and the members


def write(out: str | os.PathLike[str], sample: Sample, samples: int, *, shard_mb: float = 1024, jobs: int = 1,
          seed: int = 0, source: Mapping[str, Any] | None = None, progress: bool | Literal["always"] = True,
          readers: int = 4) -> Manifest:
    """Pack sample(0) .. sample(samples - 1), each {extension: bytes} in a fixed order, into the folder `out`.

    shard_mb: MiB a shard, smaller where that would give fewer than 4 shards for each of `readers`.
    jobs: writer processes, spawned, so `sample` must be picklable; 1 writes in this process.
    progress: a bar with the time left, on a terminal; "always" shows it also where stderr is none.
    Returns the dataset, also where it already was there with the same settings. Raises LfError for other settings, for
    samples that can't be packed, a full disk or a folder without rights; finished shards are kept for the next call.
    """
    place = Path(out).absolute()
    packing = Packing(samples, float(shard_mb), readers, seed, orjson.loads(orjson.dumps(dict(source or {}))))
    _check(packing, jobs)
    if _occupied(place, packing):
        return Manifest.load(place)
    building = place.with_name(f".{place.name}.building")
    try:
        (building / ROWS).mkdir(parents=True, exist_ok=True)
        with _lock(building), _cleaned(building):
            packing = _planned(building, packing, sample)
            _write_missing(building, packing, sample, jobs, progress)
            _finish(building, packing)
            building.rename(place)
    except OSError as error:
        raise LfError(_sentence(error, place, building, packing)) from error
    shutil.rmtree(place / ROWS)
    return Manifest.load(place)


def _check(packing: Packing, jobs: int) -> None:
    for name, value in {"samples": packing.samples, "readers": packing.readers, "jobs": jobs}.items():
        if value < 1:
            raise LfError(f"{name} = {value} can't be packed with; give 1 or more.")
    if packing.shard_mb <= 0:
        raise LfError(f"shard_mb = {packing.shard_mb} is no size; give the MiB of a shard.")


def _occupied(place: Path, packing: Packing) -> bool:
    """True: the dataset is there already. Raises LfError where the place holds anything else."""
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return False
    if not (place / manifest.JSON).exists():
        raise LfError(f"{place} exists and is not one of our datasets; choose a new or an empty folder.")
    _same(Manifest.load(place).packing, packing, f"{place} already holds a dataset")
    shutil.rmtree(place / ROWS, ignore_errors=True)
    return True


def _same(there: Mapping[str, Any], packing: Packing, what: str) -> None:
    before, now = _flat(there), _flat(packing.settings())
    for name in now | before:
        if before.get(name) != now.get(name):
            raise LfError(f"{what} made with {name} = {before.get(name)}, not {now.get(name)}; give the same settings, "
                          "another folder, or remove it.")


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The source's entries beside the other settings, so that a sentence can name the one that differs."""
    return {**settings, "source": None} | {f"source.{name}": value
                                             for name, value in settings.get("source", {}).items()}


def _planned(building: Path, packing: Packing, sample: Sample) -> Packing:
    """The plan of an interrupted call, or a new one from the first samples' mean size."""
    path = building / ROWS / "plan.json"
    if path.exists():
        known = Packing(**orjson.loads(path.read_bytes()))
        _same(known.settings(), packing, f"{building} is an unfinished dataset")
        return known
    first = [members(sample, index) for index in range(min(PROBE, packing.samples))]
    mean = sum(tar_bytes(made) for made in first) // len(first)
    wanted = -(-packing.samples * mean // int(packing.shard_mb * 2**20))
    shards = min(packing.samples, max(wanted, 4 * packing.readers))
    planned = Packing(**packing.settings(), fields=list(first[0]), mean_bytes=mean, shards=shards)
    write_atomic(path, orjson.dumps(asdict(planned)))
    return planned


def _write_missing(building: Path, packing: Packing, sample: Sample, jobs: int, progress: bool | str) -> None:
    todo = [number for number in range(packing.shards) if not is_whole(building, number)]
    done = packing.samples - sum(len(packing.indices(number)) for number in todo)
    disable = None if progress is True else not progress  # None: tqdm shows it on a terminal alone
    with tqdm(total=packing.samples, initial=done, unit=" samples", desc="packing", disable=disable) as bar:
        if jobs == 1:
            for number in todo:
                write_shard(building, packing, number, sample, bar.update)
        else:
            writers.run(building, packing, sample, todo, min(jobs, len(todo)), bar)


def _finish(building: Path, packing: Packing) -> None:
    """Gather the shards' rows and write the manifest."""
    shards, tables = [], []
    for number in range(packing.shards):
        with np.load(rows_file(building, number)) as rows:
            tables.append(rows["table"])
            shards.append(Shard(f"shard-{number:05d}.tar", int(rows["size"]), str(rows["sha256"]), len(rows["table"])))
    table = np.concatenate(tables)
    rows = Rows(np.repeat(np.arange(len(shards), dtype=np.int32), [shard.samples for shard in shards]),
                table[:, :, 0].copy(), table[:, :, 1].astype(np.int32), table[:, :, 2].astype(np.uint32))
    manifest.save(building, Manifest(building, tuple(packing.fields), packing.samples, tuple(shards), rows,
                                     packing.seed, packing.source, packing.settings()))


@contextlib.contextmanager
def _lock(building: Path) -> Iterator[None]:
    """One writer call a folder; the system frees the lock when its holder dies."""
    with (building / ROWS / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LfError(f"another process is writing {building}; wait for it, or end it.") from error
        yield


@contextlib.contextmanager
def _cleaned(building: Path) -> Iterator[None]:
    """No temporary file of a killed writer before, nor of a stopped one after."""
    for path in building.rglob(".*.tmp"):
        path.unlink(missing_ok=True)
    try:
        yield
    finally:
        for path in building.rglob(".*.tmp"):
            path.unlink(missing_ok=True)


def _sentence(error: OSError, place: Path, building: Path, packing: Packing) -> str:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return f"{place} can't be written: {error.strerror or error}; choose another folder, or get the rights."
    sizes = [path.stat().st_size for path in building.glob("*.tar")]
    need = f"about {(packing.samples * packing.mean_bytes - sum(sizes)) / 2**20:,.1f} MiB" if packing.shards else "room"
    free = shutil.disk_usage(next(path for path in building.parents if path.exists())).free / 2**20
    return (f"the disk is full: {place} needs {need} more and {free:,.1f} MiB are free; make room and give the same "
            f"command again, its {len(sizes)} finished shards are kept.")

"""How large should a shard be? The same samples in shards of 100 MB to 4 GB and as small files, read cold.

Only reading is timed, by threads that do nothing else: decoding would hide the disk. Where one `pread` fetches any
sample, a shard's size decides how near each other the samples of a block-shuffled window lie, and nothing more; small
files pay an open, a lookup and a seek each. The page cache is told to forget the files before each reading; what a
hypervisor or a file server keeps is out of reach, so the plain speed of the disk stands beside the rows.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from lfhelpers.data import Manifest, Plan
from lfhelpers.data.shards import write
from lfhelpers.errors import LfError
from lfhelpers.measure import disk
from lfhelpers.measure.hardware import usable_cores
from lfhelpers.measure.record import Row

SIZES_MB = (100, 250, 500, 1000, 2000, 4000)
ORDERS = ("block", "global")
SHARDS = 4
"""Of the largest size; the smaller sizes hold as much in more shards."""
FILES = 8192
"""Small files at most: they stand for their kind, and some file systems make a few thousand a second."""
THREADS = 16
"""Reads under way at once, more than cores: they wait for the disk, which is fast only with many to choose from."""


def sweep(source: Path, place: Path, sizes_mb: Sequence[int] = SIZES_MB, seconds: float = 2.0,
          rounds: int = 3) -> tuple[list[Row], dict[str, object]]:
    """Rows of MB/s (10^6 bytes of members) and images/s, and what to note in the settings.

    source: a dataset whose samples are copied as often as it takes. place: on the disk to measure, with room for twice
    four shards of the largest size; larger sizes are left out. All that is written there is removed again.
    """
    manifest = Manifest.load(source, "none")
    room = shutil.disk_usage(place).free / 2e6
    fitting = [size for size in sizes_mb if SHARDS * size < room]
    if not fitting:
        raise LfError(f"{place} has room for no shard size of {', '.join(map(str, sizes_mb))} MB: four shards of the "
                      "smallest may take half of what is free; free some, or give smaller sizes.")
    samples = max(1, round(SHARDS * max(fitting) * 1e6 / (manifest.rows.size.sum() / manifest.samples)))
    members = [name for name in manifest.fields if name.endswith((".jpg", ".png"))]
    speed = disk.read_speed(place, 3 * seconds)
    rows = [Row.of("disk, one long read", [speed.sequential_mb_s], "MB/s"),
            Row.of("disk, reads of 64 kB one by one", [speed.random_mb_s], "MB/s")]
    with tempfile.TemporaryDirectory(prefix=".lfhelpers-sweep-", dir=place) as folder:
        rows += _small_files(manifest, members, Path(folder) / "files", min(FILES, samples * len(members)), seconds,
                             rounds)
        for size in tqdm(fitting, desc="shard sizes", disable=None):
            rows += _shards(manifest, members, Path(folder), size, samples, seconds, rounds)
    return rows, {"sweep": {"sizes_mb": fitting, "samples": samples, "threads": THREADS, "seconds": seconds,
                            "cache": "files dropped before each reading", "disk": vars(speed)}}


def _shards(manifest: Manifest, members: list[str], folder: Path, size: int, samples: int, seconds: float,
            rounds: int) -> list[Row]:
    out = folder / f"shards-{size}"
    made = write(out, functools.partial(_copy, manifest), samples, shard_mb=size * 1e6 / 2**20, readers=1,
                 jobs=usable_cores(), progress=False)
    rows = []
    try:
        seen: dict[str, list[tuple[float, float]]] = {order: [] for order in ORDERS}
        for number in range(rounds):
            for order in ORDERS if number % 2 == 0 else reversed(ORDERS):
                plan = Plan(made.samples, 1, 1, 1, number, order, shard_of=made.rows.shard)  # type: ignore[arg-type]
                disk.drop_cached(out / shard.name for shard in made.shards)
                seen[order].append(_rate(lambda index: sum(map(len, made.read(index, members).values())),
                                         plan.order(0).tolist(), len(members), seconds))
        for order in ORDERS:
            rows += _rows(f"sweep_{size}_{order}", seen[order])
    finally:
        shutil.rmtree(out)
    return rows


def _small_files(manifest: Manifest, members: list[str], folder: Path, files: int, seconds: float,
                 rounds: int) -> list[Row]:
    """Each image a file, read in an order drawn from all of them."""
    folder.mkdir()
    paths = [folder / f"{number:06d}" for number in range(files)]
    for number, path in enumerate(paths):
        sample, place = divmod(number, len(members))
        path.write_bytes(manifest.read(sample % manifest.samples, members)[members[place]])
    seen = []
    for number in range(rounds):
        disk.drop_cached(paths)
        order = Plan(files, 1, 1, 1, number).order(0).tolist()
        seen.append(_rate(lambda index: len(paths[index].read_bytes()), order, 1, seconds))
    shutil.rmtree(folder)
    return _rows("sweep_small_files", seen)


def _copy(manifest: Manifest, index: int) -> dict[str, bytes]:
    return manifest.read(index % manifest.samples)


def _rate(read: Callable[[int], int], order: Sequence[int], images: int, seconds: float) -> tuple[float, float]:
    """(MB/s, images/s) of threads that read by `order` until it ends or the time is up, each once at least."""
    ids, end, start = iter(order), time.perf_counter() + seconds, time.perf_counter()

    def work(_: int) -> tuple[int, int]:
        total = count = 0
        for index in ids:  # list iterators are thread-safe
            total += read(index)
            count += images
            if time.perf_counter() >= end:
                break
        return total, count

    with ThreadPoolExecutor(THREADS) as pool:
        parts = list(pool.map(work, range(THREADS)))
    wall = time.perf_counter() - start
    return sum(part[0] for part in parts) / wall / 1e6, sum(part[1] for part in parts) / wall


def _rows(name: str, seen: Sequence[tuple[float, float]]) -> list[Row]:
    return [Row.of(name, [megabytes for megabytes, _ in seen], "MB/s"),
            Row.of(name, [images for _, images in seen], "images/s")]

"""`bench data`: how fast each engine feeds the training device, what an image costs, and what the ceilings are.

Engines are compared in rounds, forwards and backwards in turn, because a machine's speed drifts; every measurement is a
process of its own, so none inherits another's workers, CUDA context or crash. An engine that fails is a row with its
sentence. The data lies in the page cache (it is read once beforehand): the sweep is what measures the disk.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from lfhelpers import runs
from lfhelpers.bench import data_engines as engines
from lfhelpers.bench import data_naive, data_sweep, data_table, data_train, transport
from lfhelpers.bench.data_engines import Setting, Spec
from lfhelpers.data import Manifest, choice
from lfhelpers.data.rate import Rate
from lfhelpers.errors import LfError
from lfhelpers.measure import hardware, isolated
from lfhelpers.measure.record import Record, Row
from lfhelpers.measure.statistics import spread

AGAIN = ", again"
DECODERS = ("pillow", "simplejpeg")
LEAST_ROUNDS = 2
TIMEOUT = 90.0  # seconds for one measurement


@dataclass(frozen=True)
class Options:
    """What to run. `images` is the size of the set that is rendered, unless `data` names one.

    seconds: of timing a measurement. Rounds end after `rounds`, or when another one would pass `minutes`; two are run.
    """

    data: Path | None = None
    images: int = 1024
    only: tuple[str, ...] = engines.ENGINES
    seconds: float = 1.0
    rounds: int = 5
    minutes: float = 4.0
    quick: bool = False
    compare: bool = True
    sweep: tuple[int, ...] = ()
    train: bool = False


def run(options: Options, keep: Callable[[Record], object] = lambda record: None) -> Record:
    """The record of all that was asked for. Raises LfError for an engine that doesn't exist or data without images.

    keep: is given the record so far after each part, so that a run that is cut short leaves what it has measured.
    """
    unknown = set(options.only) - set(engines.ENGINES)
    if unknown:
        raise LfError(f"there is no engine '{min(unknown)}' to measure; there are {', '.join(engines.ENGINES)}.")
    if options.quick:
        options = replace(options, seconds=min(options.seconds, 0.2), rounds=LEAST_ROUNDS)
    folder = _dataset(options)
    setting = _setting(folder, options)
    parts = Parts(_settings(setting, options))
    if options.compare:
        _engines(parts, setting, options, keep)
        keep(parts.record())
    if options.sweep:
        rows, noted = data_sweep.sweep(folder, folder.parent, options.sweep, options.seconds)
        parts.add(rows, settings=noted)
        keep(parts.record())
    if options.train:
        for rows, checks, failed in data_train.measure(data_train.jobs(folder)):
            so_far = parts.copy()
            so_far.add(rows, checks, failed=failed)
            keep(so_far.record())
        parts = so_far
    return parts.record()


@dataclass
class Parts:
    """What has been found so far."""

    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    checks: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    aa_spread: float = 0.0

    def copy(self) -> Parts:
        """Another one with the same in it."""
        return Parts(dict(self.settings), list(self.rows), dict(self.checks), dict(self.failed), self.aa_spread)

    def record(self) -> Record:
        """All of it."""
        return Record("data", self.settings | {"failed": self.failed}, self.rows, self.checks, self.aa_spread)

    def add(self, rows: list[Row], checks: Mapping[str, float] | None = None, *,
            settings: Mapping[str, Any] | None = None, failed: Mapping[str, str] | None = None) -> None:
        """Add another part's."""
        self.rows += rows
        self.checks |= checks or {}
        self.settings |= settings or {}
        self.failed |= failed or {}


def _engines(parts: Parts, setting: Setting, options: Options, keep: Callable[[Record], object]) -> None:
    cores, gpu = hardware.usable_cores(), setting.device == "cuda"
    dali = any(hardware.version(build) for build in hardware.DALI_BUILDS)
    specs = engines.specs(cores, gpu, dali, options.only, options.quick)
    twice = next((spec for spec in specs if spec.name == f"webdataset x{cores}"), specs[-1])
    specs.append(replace(twice, name=twice.name + AGAIN))
    for seen in _rounds(specs, setting, options):
        so_far = parts.copy()
        _tabulate(so_far, seen, twice.name, cores, gpu)
        keep(so_far.record())
    _tabulate(parts, seen, twice.name, cores, gpu)
    parts.add(data_table.hardware_ceiling(seen.found, cores))
    parts.add(*_queues(parts.failed))
    if not options.quick:
        _auto(parts, seen.found, setting, cores)


def _tabulate(parts: Parts, seen: Seen, twice: str, cores: int, gpu: bool) -> None:
    """Add what the rounds so far have found; `twice` is the name of what was measured twice in each."""
    parts.add([row for name, rates in seen.found.items() for row in data_table.rows(name, rates)],
              data_table.checks(seen.found, cores, gpu), failed=seen.failed,
              settings={"rounds": max(map(len, seen.ceilings.values()))})
    parts.add([Row.of(f"decode ceiling, one thread, {name}", rates, "images/s")
               for name, rates in seen.ceilings.items()])
    first, second = ([rate.images_per_s for rate in seen.found[name]] for name in (twice, twice + AGAIN))
    pairs = min(len(first), len(second))
    parts.aa_spread = spread(first[:pairs], second[:pairs]) if pairs else math.nan


def _auto(parts: Parts, found: dict[str, list[Rate]], setting: Setting, cores: int) -> None:
    """Whether `data.loader="auto"`, which looks for a second only, takes the fastest engine of the table."""
    names = {"threads": f"threads exact x{cores}", "webdataset": f"webdataset x{cores}",
             "dali": f"dali mixed 1 x{cores}" if setting.device == "cuda" else f"dali cpu x{cores}"}
    speeds = {engine: statistics.median(rate.images_per_s for rate in found[name]) for engine, name in names.items()
              if found.get(name)}
    try:
        seen = choice.measured(engines.job_of(setting, "auto", cores), 1, "lfhelpers.bench.data_engines:OneCamera")
        chosen = choice.fastest(seen)
    except LfError as error:
        parts.failed["auto"] = str(error)
        return
    parts.settings["auto"] = {"chosen": chosen, "found": seen}
    if chosen in speeds:
        parts.add([Row.of(f"auto takes {chosen}: its speed over the fastest one's",
                          [speeds[chosen] / max(speeds.values())], "ratio")])


@dataclass
class Seen:
    """What the rounds so far have found: rates by name, decode ceilings by decoder, the sentences of what failed."""

    found: dict[str, list[Rate]]
    ceilings: dict[str, list[float]]
    failed: dict[str, str] = field(default_factory=dict)


def _rounds(specs: list[Spec], setting: Setting, options: Options) -> Iterator[Seen]:
    """All that was found, after each round; what failed isn't tried again."""
    seen = Seen({spec.name: [] for spec in specs}, {decoder: [] for decoder in DECODERS})
    start = time.monotonic()
    for number in range(options.rounds):
        past = time.monotonic() - start
        if number >= LEAST_ROUNDS and past * (number + 1) / number > options.minutes * 60:
            break
        once = specs if number % 2 == 0 else [spec for spec in reversed(specs) if spec.always]
        due = [spec for turn in range(max(spec.times for spec in specs)) for spec in once if spec.times > turn]
        for spec in tqdm(due, desc=f"round {number + 1}", disable=None):
            if spec.name in seen.failed:
                continue
            try:
                seen.found[spec.name].append(isolated.call(engines.measure, spec, setting, timeout=TIMEOUT))
            except LfError as error:
                seen.failed[spec.name] = str(error)
                seen.found[spec.name] = []
        for decoder in DECODERS:
            images, seconds = isolated.call(engines.decode_ceiling, decoder, setting)
            seen.ceilings[decoder].append(images / seconds)
        print(f"round {number + 1}: {len(due)} measurements, {len(seen.failed)} failed, "
              f"{time.monotonic() - start:.0f} s so far", flush=True)
        yield seen


def _dataset(options: Options) -> Path:
    """The folder of shards, rendered on first use by the command, since a notebook can't spawn the writers."""
    if options.data is not None:
        return options.data.absolute()
    runs.make_root()
    folder = runs.root() / "data" / f"bench-{options.images}"
    if not (folder / "manifest.json").exists():
        command = [sys.executable, "-m", "lfhelpers", "data", "make", "--out", str(folder), "--samples",
                   str(options.images), "--shard-mb", "16"]
        if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode:
            raise LfError(f"the bench's dataset can't be made in {folder}; the reason stands above. Give a folder of "
                          "shards with --data.")
    return folder


def _setting(folder: Path, options: Options) -> Setting:
    """What all measurements share; small files are written and everything is read once, so that all is in memory."""
    manifest = Manifest.load(folder)
    member = engines.jpeg(manifest)
    gpu = bool(torch.version.cuda and hardware.gpus())  # NVML alone: this process forks, so it must not touch CUDA
    place = runs.root() / "data" / f"bench-files-{manifest.hash}-{member}"
    place.parent.mkdir(parents=True, exist_ok=True)
    files = data_naive.unpack(manifest, member, place)
    for path in [*files, *(folder / shard.name for shard in manifest.shards)]:
        path.read_bytes()
    micro = 256 if gpu else 16 if options.quick else 64
    return Setting(folder, place, member, "cuda" if gpu else "cpu", micro, options.seconds)


def _settings(setting: Setting, options: Options) -> dict[str, Any]:
    manifest = Manifest.load(setting.folder, "none")
    sizes = manifest.rows.size[:, manifest.fields.index(setting.member)]
    return {"images": manifest.samples, "member": setting.member, "mean_kb": round(float(sizes.mean()) / 1e3, 1),
            "delivered": f"float32 NCHW {engines.SIZE} x {engines.SIZE} in -1..1 on {setting.device}",
            "decoding": "exact decode of the whole frame, centre crop, antialiased bilinear resize; no augmentation "
                        "but where RandAugment is named; `scaled` decodes at a fraction of the size",
            "batch": setting.micro, "seconds": options.seconds, "quick": options.quick, "page_cache": "warm: read once",
            "interval": "of the median over rounds; each measurement in a process of its own"}


def _queues(failed: dict[str, str]) -> tuple[list[Row], dict[str, float]]:
    """The pickled queue against the ring, the two ways from one process to another."""
    try:
        return isolated.call(transport.measure, timeout=TIMEOUT)
    except LfError as error:
        failed["queues"] = str(error)
        return [Row.of("queues", [], "ms")], {}

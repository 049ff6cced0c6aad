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
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from lfhelpers import runs
from lfhelpers.bench import data_engines as engines
from lfhelpers.bench import data_naive, data_sweep, data_train, transport
from lfhelpers.bench.data_engines import Setting, Spec
from lfhelpers.data import Manifest
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


def run(options: Options) -> Record:
    """The record of all that was asked for. Raises LfError for an engine that doesn't exist or data without images."""
    unknown = set(options.only) - set(engines.ENGINES)
    if unknown:
        raise LfError(f"there is no engine '{min(unknown)}' to measure; there are {', '.join(engines.ENGINES)}.")
    if options.quick:
        options = replace(options, seconds=min(options.seconds, 0.2), rounds=LEAST_ROUNDS)
    folder = _dataset(options)
    setting = _setting(folder, options)
    parts = Parts(_settings(setting, options))
    if options.compare:
        _engines(parts, setting, options)
    if options.sweep:
        rows, noted = data_sweep.sweep(folder, folder.parent, options.sweep, options.seconds)
        parts.add(rows, settings=noted)
    if options.train:
        rows, checks, failed = data_train.measure(data_train.jobs(folder))
        parts.add(rows, checks, failed=failed)
    # Last, since it asks torch for versions: until here this process, which forks, has not touched CUDA's libraries.
    return Record("data", parts.settings | {"failed": parts.failed}, parts.rows, parts.checks, parts.aa_spread)


@dataclass
class Parts:
    """What has been found so far."""

    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    checks: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    aa_spread: float = 0.0

    def add(self, rows: list[Row], checks: Mapping[str, float] | None = None, *,
            settings: Mapping[str, Any] | None = None, failed: Mapping[str, str] | None = None) -> None:
        """Add another part's."""
        self.rows += rows
        self.checks |= checks or {}
        self.settings |= settings or {}
        self.failed |= failed or {}


def _engines(parts: Parts, setting: Setting, options: Options) -> None:
    cores, gpu = hardware.usable_cores(), setting.device == "cuda"
    dali = any(hardware.version(build) for build in hardware.DALI_BUILDS)
    specs = engines.specs(cores, gpu, dali, options.only, options.quick)
    twice = next((spec for spec in specs if spec.name == f"webdataset x{cores}"), specs[-1])
    specs.append(replace(twice, name=twice.name + AGAIN))
    found, ceilings, failed = _rounds(specs, setting, options)
    parts.add([row for spec in specs for row in _rows(spec.name, found[spec.name])], _checks(found, cores, gpu),
              settings={"rounds": max(map(len, found.values()), default=0)}, failed=failed)
    parts.add([Row.of(f"decode ceiling, one thread, {name}", rates, "images/s") for name, rates in ceilings.items()])
    parts.add(_hardware_ceiling(found, cores))
    parts.add(*_queues(parts.failed))
    first, second = ([rate.images_per_s for rate in found[name]] for name in (twice.name, twice.name + AGAIN))
    pairs = min(len(first), len(second))
    parts.aa_spread = spread(first[:pairs], second[:pairs]) if pairs else math.nan


def _rounds(specs: list[Spec], setting: Setting, options: Options
            ) -> tuple[dict[str, list[Rate]], dict[str, list[float]], dict[str, str]]:
    """Rates by name, decode ceilings by decoder, and the sentences of what failed, which isn't tried again."""
    found: dict[str, list[Rate]] = {spec.name: [] for spec in specs}
    ceilings: dict[str, list[float]] = {decoder: [] for decoder in DECODERS}
    failed: dict[str, str] = {}
    start = time.monotonic()
    for number in range(options.rounds):
        past = time.monotonic() - start
        if number >= LEAST_ROUNDS and past * (number + 1) / number > options.minutes * 60:
            break
        due = specs if number % 2 == 0 else [spec for spec in reversed(specs) if spec.always]
        for spec in tqdm(due, desc=f"round {number + 1}", disable=None):
            if spec.name in failed:
                continue
            try:
                found[spec.name].append(isolated.call(engines.measure, spec, setting, timeout=TIMEOUT))
            except LfError as error:
                failed[spec.name] = str(error)
                found[spec.name] = []
        for decoder in DECODERS:
            images, seconds = isolated.call(engines.decode_ceiling, decoder, setting)
            ceilings[decoder].append(images / seconds)
    return found, ceilings, failed


def _rows(name: str, rates: list[Rate]) -> list[Row]:
    """Speed, CPU time, bytes over the bus and GPU load of one engine; only the first where it failed."""
    rows = [Row.of(name, [rate.images_per_s for rate in rates], "images/s")]
    if not rates:
        return rows
    rows.append(Row.of(name, [1e3 * rate.cpu_seconds / rate.images for rate in rates], "CPU ms/image"))
    copied = [rate.copied_bytes / rate.images / 1e3 for rate in rates if rate.copied_bytes is not None]
    gpu, jpeg = ([value for rate in rates if (value := getattr(rate, name)) is not None]
                 for name in ("gpu_percent", "jpeg_percent"))
    more = {"kB/image to the GPU": copied, "% of time a kernel ran": gpu, "% of the JPEG engines": jpeg}
    return rows + [Row.of(name, values, unit) for unit, values in more.items() if values]


def _hardware_ceiling(found: dict[str, list[Rate]], cores: int) -> list[Row]:
    """What each JPEG engine of the GPU decodes when all images go there."""
    count, rates = engines.jpeg_engines(), found.get(f"dali mixed 1 x{cores}", [])
    if not count or not rates:
        return []
    return [Row.of(f"decode ceiling, one of {count} JPEG engines", [rate.images_per_s / count for rate in rates],
                   "images/s")]


def _checks(found: dict[str, list[Rate]], cores: int, gpu: bool) -> dict[str, float]:
    """The figures for which goals are set, of what was measured."""
    if not gpu:
        return _ratios(found, {"threads_over_naive": (f"threads exact x{cores}", "plain x2"),
                               "threads_scaled_over_naive": (f"threads scaled x{cores}", "plain x2")})
    mixed = {name: statistics.median(rate.images_per_s for rate in rates) for name, rates in found.items()
             if name.startswith("dali mixed") and name.endswith(f"x{cores}") and rates}
    if not mixed:
        return {}
    best = max(mixed, key=lambda name: mixed[name])
    return {"dali_mixed_images_per_s": mixed[best]} | _ratios(
        found, {"dali_mixed_over_pillow_all_cores": (best, f"webdataset x{cores}")})


def _ratios(found: dict[str, list[Rate]], wanted: dict[str, tuple[str, str]]) -> dict[str, float]:
    """Medians over rounds of one engine's speed over another's in the same round."""
    pairs = {name: list(zip(found.get(over, []), found.get(under, []), strict=False))
             for name, (over, under) in wanted.items()}
    return {name: statistics.median(a.images_per_s / b.images_per_s for a, b in both) for name, both in pairs.items()
            if both}


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
    member = next((name for name in manifest.fields if name.endswith(".jpg")), None)
    if member is None:
        raise LfError(f"the samples in {folder} have no JPEG, only {', '.join(manifest.fields)}; give another --data.")
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

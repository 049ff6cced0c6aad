"""What `bench data` measures: every engine under the same request, and one measurement of one of them.

All deliver the same thing: the centre crop of one camera's JPEG, antialiased to 224 x 224, float32 NCHW in -1..1 on the
training device. Augmentation is off except where its place is what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lfhelpers.bench import data_naive
from lfhelpers.data import Manifest, make_loader, make_plan, rate
from lfhelpers.data.loader import Request
from lfhelpers.data.rate import Rate
from lfhelpers.errors import LfError
from lfhelpers.measure import hardware
from lfhelpers.recipe import Recipe, recipe

SIZE = 224
STEPS = 20_000
"""More than the fastest engine gets through in a measurement."""
SHARES = (0.0, 0.65, 0.9, 1.0)
"""Of JPEGs given to the hardware engine: none, DALI's default, nearly all, all."""
RAND_AUGMENT = "data.rand_augment=2"
ENGINES = ("synthetic", "plain", "as_found", "documented", "webdataset", "threads", "dali", "two_level")


@dataclass(frozen=True)
class Fields:
    """One camera, and nothing else to read."""

    images: tuple[str, ...]
    size: int = SIZE
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """What all measurements of a run share: device is `cpu` or `cuda`, micro the images of a batch."""

    folder: Path
    files: Path
    member: str
    device: str
    micro: int
    seconds: float


@dataclass(frozen=True)
class Spec:
    """One thing to measure: `engine` is one of ENGINES, `workers` processes or threads, `overrides` of the recipe.

    always: in every round, not only in every other one, as for what shows no more than how an engine scales.
    times, length: how often in a round, and for how many of the setting's seconds.
    """

    name: str
    engine: str
    workers: int
    overrides: tuple[str, ...] = ()
    always: bool = True
    times: int = 1
    length: float = 1.0

    def thorough(self) -> Spec:
        """Longer and more often: a goal is set for it, and 16 workers hand out bursts of more than a second."""
        return replace(self, times=3, length=3.0)


def counts(cores: int) -> list[int]:
    """Workers or threads to try: 1, 4 and all cores, as far as the machine has them."""
    return sorted({1, min(4, cores), cores})


def specs(cores: int, gpu: bool, dali: bool, engines: Sequence[str] = ENGINES, quick: bool = False) -> list[Spec]:
    """Everything to measure on a machine, in the order of the table; `quick` takes all cores alone."""
    found = [Spec("synthetic", "synthetic", 0), Spec("plain x2", "plain", 2)]
    for workers in [cores] if quick else counts(cores):
        found += [replace(spec, always=workers == cores) for spec in _at(workers, gpu, dali, workers == cores)]
    found += [Spec(f"two_level x{cores}", "two_level", cores),
              Spec(f"two_level, RandAugment in workers x{cores}", "two_level", cores,
                   (RAND_AUGMENT, "data.aug_on=workers")),
              Spec(f"two_level, RandAugment on the device x{cores}", "two_level", cores,
                   (RAND_AUGMENT, "data.aug_on=device"))]
    goals = goals_of(cores, gpu)
    return [spec.thorough() if spec.name in goals and not quick else spec for spec in found if spec.engine in engines]


def goals_of(cores: int, gpu: bool) -> tuple[str, ...]:
    """Names of what is compared where goals are set."""
    at = f"x{cores}"
    return (f"dali mixed 1 {at}", f"webdataset as documented {at}") if gpu else (
        f"threads exact {at}", f"threads scaled {at}", "plain x2")


def _at(workers: int, gpu: bool, dali: bool, shares: bool) -> list[Spec]:
    """Engines with so many workers; DALI at all shares of the hardware decoder, or with all images there."""
    found = [Spec(f"as_found x{workers}", "as_found", workers),
             Spec(f"webdataset as documented x{workers}", "documented", workers),
             Spec(f"webdataset x{workers}", "webdataset", workers),
             Spec(f"threads exact x{workers}", "threads", workers),
             Spec(f"threads scaled x{workers}", "threads", workers, ("data.scaled_decode=true",))]
    if dali:
        found.append(Spec(f"dali cpu x{workers}", "dali", workers, ("device=cpu",)))
    for share in (SHARES if shares else SHARES[-1:]) if dali and gpu else ():
        found.append(Spec(f"dali mixed {share:g} x{workers}", "dali", workers,
                          ("device=cuda", f"data.hw_decoder_load={share}")))
    return found


class Opened(NamedTuple):
    """A loader that has started, and the request that it serves."""

    loader: Any
    request: Request


def job_of(setting: Setting, loader: str, workers: int, *overrides: str) -> Recipe:
    """The recipe of a measurement."""
    return recipe("competent", f"data.loader={loader}", f"data.workers={workers}", "data.augment=false",
                  f"data.path={setting.folder}", f"batch.micro={setting.micro}", f"device={setting.device}", *overrides)


class OneCamera:
    """As much of a workload as `data.choice` needs: the first JPEG of each sample."""

    def __init__(self, job: Recipe) -> None:
        self.fields = Fields((jpeg(Manifest.load(str(job.data.path), "none")),))
        self.sample = nothing


def jpeg(manifest: Manifest) -> str:
    """The first JPEG among the members. Raises LfError where there is none."""
    for name in manifest.fields:
        if name.endswith(".jpg"):
            return name
    raise LfError(f"the samples in {manifest.folder} have no JPEG, only {', '.join(manifest.fields)}; give another "
                  "--data.")


def opened(spec: Spec, setting: Setting) -> Opened:
    """The engine at the start of its work."""
    naive = spec.engine in ("plain", "documented")
    job = job_of(setting, "webdataset" if naive else spec.engine, spec.workers, *spec.overrides)
    manifest = Manifest.load(setting.folder, "none")
    plan = make_plan(job, manifest, 1)
    request = Request(job, manifest, plan, Fields((setting.member,)), nothing, 0, 0, STEPS)
    if not naive:
        return Opened(make_loader(job, manifest, plan, request.fields, nothing, 0, stop=STEPS), request)
    pin = setting.device == "cuda"
    if spec.engine == "documented":
        dataset = data_naive.documented(manifest, setting.member, SIZE, setting.micro)
        return Opened(data_naive.PlainLoader(dataset, spec.workers, pin, count=STEPS), request)
    files = data_naive.Files(data_naive.unpack(manifest, setting.member, setting.files), SIZE)
    sampler = data_naive.PlannedBatches(plan, STEPS)
    return Opened(data_naive.PlainLoader(files, spec.workers, pin, sampler), request)


def measure(spec: Spec, setting: Setting) -> Rate:
    """Open the loader, warm it up, time it, close it. To be called in a process that is ended afterwards."""
    torch.set_num_threads(1)  # cores belong to the engine; the consumer's would spin between batches
    loader, request = opened(spec, setting)
    sizes = request.manifest.rows.size[:, request.manifest.fields.index(setting.member)]
    return rate.measure(loader, request, torch.device(setting.device), spec.length * setting.seconds,
                        float(sizes.mean()))


def nothing(members: Mapping[str, bytes]) -> dict[str, Tensor]:
    """The tensors of a sample that is images alone."""
    return {}


def decode_ceiling(decoder: str, setting: Setting) -> tuple[int, float]:
    """(images, seconds) of one thread that does nothing but decode JPEGs to full frames: `pillow` or `simplejpeg`."""
    import time

    from lfhelpers.data import images

    if decoder == "simplejpeg":
        import simplejpeg

        def decode(data: bytes) -> object:
            return simplejpeg.decode_jpeg(data, "RGB")
    else:
        def decode(data: bytes) -> object:
            return images.decode(data, "a frame")

    manifest = Manifest.load(setting.folder, "none")
    count = min(manifest.samples, 64)
    files = [manifest.read(index, [setting.member])[setting.member] for index in range(count)]
    decode(files[0])
    done, past, start = 0, 0.0, time.perf_counter()
    while not done or past < setting.seconds:
        decode(files[done % count])
        done, past = done + 1, time.perf_counter() - start
    return done, past


def jpeg_engines() -> int | None:
    """JPEG engines of the first GPU, None where the number isn't certain (GH100's datasheet gives seven)."""
    gpus = hardware.gpus()
    return 7 if gpus and any(name in gpus[0].name for name in ("H100", "H200")) else None

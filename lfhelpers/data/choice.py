"""`data.loader="auto"`: which engine is the fastest here, found by measuring each one for a second, once a machine.

Rules of thumb fail at this: DALI is the slowest engine on a CPU and the fastest beside a GPU, and threads overtake
processes or not by cores, image size and what a sample costs in Python. So each engine that can serve the recipe
delivers some batches of the very request. The choice is made before ranks start, because all must read alike, and goes
into the run's recipe.toml: the run is then reproducible, as one that chose for itself would not be. It is kept in
`loaders.json` beside the runs, until hardware, versions, the dataset's shape or the request change.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from lfhelpers import runs
from lfhelpers.data.manifest import Manifest
from lfhelpers.errors import LfError
from lfhelpers.measure import hardware, isolated
from lfhelpers.recipe import Recipe, loads

if TYPE_CHECKING:
    from lfhelpers.data.rate import Rate

SECONDS = 0.5
"""Of timing, after as much of warm-up, for each engine."""
STEPS = 100_000
"""More than any engine gets through."""
_LIBRARIES = ("torch", "pillow", "simplejpeg", "webdataset", "lfhelpers", *hardware.DALI_BUILDS)
_IRRELEVANT = ("path", "loader", "cache_gb", "on_bad", "max_bad", "last")
Found = dict[str, dict[str, Any]]
"""{engine: {"images_per_s": float} or {"failed": sentence}}"""


def decide(job: Recipe, world: int, find: str) -> Recipe:
    """The recipe with an engine in place of `auto`, after one printed line that says what was measured and chosen.

    world: ranks that will share this host. find: where the function is that makes the workload of a recipe,
    `package.module:name`; it is called in a process of its own. Raises LfError where no engine works.
    """
    if job.data.loader != "auto":
        return job
    names = candidates(job)
    if len(names) == 1:
        print(f"loader: {names[0]}, the only one that does what the recipe asks", flush=True)
        return job.with_(**{"data.loader": names[0]})
    facts = situation(job, world)
    known = _kept().get(_key(facts))
    if not known:
        print(f"loader: measuring {', '.join(names)}, once on this machine", flush=True)
    found: Found = known["found"] if known else measured(job, world, find)
    chosen = fastest(found)
    if not known and not any("failed" in result for result in found.values()):  # which may be mended by the next run
        _keep(facts, chosen, found)
    print(line(chosen, found) + (f" (measured {known['date'][:16]})" if known else ""), flush=True)
    return job.with_(**{"data.loader": chosen})


def candidates(job: Recipe) -> list[str]:
    """Engines that can serve the recipe, all with the same pixels: where it asks for others, those alone that do it."""
    data = job.data
    if data.aug_on == "workers" and (data.rand_augment or data.mixup):
        return ["two_level"]
    if data.scaled_decode:
        return ["threads"]
    dali = ["dali"] if any(hardware.version(build) for build in hardware.DALI_BUILDS) else []
    return ["threads", *dali, "webdataset"]


def fastest(found: Found) -> str:
    """The engine with the highest rate. Raises LfError, with what each one said, where all failed."""
    rates = {name: result["images_per_s"] for name, result in found.items() if "images_per_s" in result}
    if not rates:
        said = "; ".join(f"{name}: {result['failed']}" for name, result in found.items())
        raise LfError(f"data.loader='auto' finds no engine that works: {said}")
    return max(rates, key=lambda name: rates[name])


def line(chosen: str, found: Found) -> str:
    """`loader: threads, 812 images/s; webdataset 560, dali 420`, and why an engine failed."""
    others = sorted((name for name in found if name != chosen), key=lambda name: -found[name].get("images_per_s", 0.0))
    said = [f"{name} {found[name]['images_per_s']:,.0f}" if "images_per_s" in found[name] else
            f"{name} failed ({found[name]['failed']})" for name in others]
    return f"loader: {chosen}, {found[chosen]['images_per_s']:,.0f} images/s; {', '.join(said)}"


def situation(job: Recipe, world: int) -> dict[str, Any]:
    """All that the choice may depend on: hardware, versions, the samples' shape, and the request."""
    machine = hardware.describe()["hardware"]
    manifest = Manifest.load(str(job.data.path), "none", cache_gb=job.data.cache_gb)
    sizes = np.round(manifest.rows.size.mean(axis=0), -4)  # to 10 kB: more samples of a kind change nothing
    return {
        "hardware": {name: machine[name] for name in ("cpu", "cores_usable", "gpus")},
        "versions": {name: hardware.version(name) for name in _LIBRARIES},
        "members": dict(zip(manifest.fields, sizes.tolist(), strict=True)),
        "workload": job.workload.model_dump(), "micro": job.batch.micro, "device": job.device, "ranks": world,
        "data": {name: value for name, value in job.data.model_dump().items() if name not in _IRRELEVANT},
    }


def measured(job: Recipe, world: int, find: str) -> Found:
    """Each candidate's rate, from a process that imports what they need and never touches a GPU itself.

    world and find: as in `decide`. Raises LfError where that process fails; an engine's failure is in the answer.
    """
    command = [sys.executable, "-m", "lfhelpers.data.choice", str(world), find]
    done = subprocess.run(command, input=job.to_toml(), capture_output=True, text=True)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise LfError(f"data.loader='auto' can't be measured: {(done.stderr.strip().splitlines() or ['no words'])[-1]}")
    found: Found = orjson.loads(lines[-1])
    return found


def rate_of(job: Recipe, world: int, find: Callable[[Recipe], Any], seconds: float) -> Rate:
    """What the recipe's engine delivers to the recipe's device; to be called in a process that is ended afterwards."""
    import torch

    from lfhelpers.data import make_loader, make_plan, rate
    from lfhelpers.data.loader import Request
    from lfhelpers.data.quarantine import Quarantine

    workload = find(job)
    manifest = Manifest.load(str(job.data.path), cache_gb=job.data.cache_gb)
    plan = make_plan(job, manifest, world)
    device = torch.device(hardware.device(job.device)[0])
    torch.set_num_threads(1)  # cores belong to the engine; the consumer's would spin between batches
    request = Request(job, manifest, plan, workload.fields, workload.sample, 0, 0, STEPS)
    with tempfile.TemporaryDirectory() as folder:
        bad = Quarantine(Path(folder), job.data.max_bad) if job.data.on_bad == "skip" else None
        loader = make_loader(job, manifest, plan, workload.fields, workload.sample, 0, start=0, stop=STEPS, bad=bad)
        return rate.measure(loader, request, device, seconds)


def _kept() -> dict[str, Any]:
    with contextlib.suppress(OSError, orjson.JSONDecodeError):  # then it is measured again
        return dict(orjson.loads(_file().read_bytes()))
    return {}


def _keep(facts: Mapping[str, Any], chosen: str, found: Found) -> None:
    entry = {"date": runs.now(), "loader": chosen, "found": found, "situation": facts}
    with contextlib.suppress(OSError):  # it is a convenience: a full disk is the run's to complain about
        _file().parent.mkdir(parents=True, exist_ok=True)
        runs.write_atomic(_file(), orjson.dumps(_kept() | {_key(facts): entry}, option=orjson.OPT_INDENT_2))


def _key(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _file() -> Path:
    return runs.root() / "loaders.json"


def main() -> None:
    """Measure the candidates of the recipe on stdin, and print what was found as one line of JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("world", type=int)
    parser.add_argument("find", help="package.module:name of the function that makes a recipe's workload")
    options = parser.parse_args()
    job = loads(sys.stdin.read())
    module, _, name = options.find.partition(":")
    find = getattr(importlib.import_module(module), name)
    import lfhelpers.data.rate  # noqa: F401  # torch, once for all forked processes
    found: Found = {}
    for engine in candidates(job):
        try:
            rate = isolated.call(rate_of, job.with_(**{"data.loader": engine}), options.world, find, SECONDS)
            found[engine] = {"images_per_s": rate.images_per_s}
        except LfError as error:
            found[engine] = {"failed": str(error)}
    print(orjson.dumps(found).decode())


if __name__ == "__main__":
    main()

"""What launch.own starts: try the workload of the recipe on stdin, pack its samples, and answer with a line of JSON."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
import torch

from lfhelpers import runs
from lfhelpers.data.manifest import Manifest
from lfhelpers.data.shards import PROBE, write
from lfhelpers.errors import LfError
from lfhelpers.measure import hardware
from lfhelpers.recipe import Recipe, loads
from lfhelpers.workloads.base import Making, Workload, find
from lfhelpers.workloads.check import ROWS, Breach, check, told

TABLETOP = ("front.jpg", "wrist.jpg", "txt", "state.f32", "action.f32", "json")
"""Members of the default set, which a workload of the same kind may read without a set of its own."""
SHARD_MB = 32
ALONE = 4096
"""Samples up to which one process packs: another one would first import torch."""


@dataclass(frozen=True)
class Generated:
    """The samples of a workload, for the packer; each process builds the workload once."""

    toml: str

    def __call__(self, index: int) -> dict[str, bytes]:
        """The members of one sample."""
        workload = self.workload
        assert isinstance(workload, Making), "the caller has looked"
        try:
            made = workload.generate(index)
        except Exception as error:
            raise LfError(f"generate({index}) raised {told(error)}.") from error
        if not isinstance(made, Mapping) or not all(isinstance(value, bytes) for value in made.values()):
            raise LfError(f"generate({index}) must return a dict of bytes by extension, as {{'txt': b'...'}}.")
        return dict(made)

    @cached_property
    def workload(self) -> Workload:
        """Built from the recipe."""
        return find(loads(self.toml))


def answer(toml: str) -> dict[str, Any]:
    """{"notes", "data"}, or {"error"} with a sentence."""
    job = loads(toml)
    file, _, name = job.workload.use.rpartition(":")
    try:
        made = Generated(toml)
        found = check(made.workload, job, _members(made, job), torch.device(hardware.device(job.device)[0]))
        _raised(found)
        data = _packed(made, name) if job.data.path is None and isinstance(made.workload, Making) else None
    except LfError as error:
        words = str(error)
        return {"error": words if words.startswith(("workload", "frozen", "data.")) else
                f"workload {name} in {Path(file).name}: {words}"}
    except Exception as error:  # the user's file, or its __init__
        return {"error": f"workload {name} in {Path(file).name} can't be built: {told(error)}."}
    return {"notes": [f"{name}: {one.sentence}" for one in found], "data": data}


def _raised(found: list[Breach]) -> None:
    """Raise LfError with the first fatal breach, and how many others there are."""
    fatal = [one.sentence for one in found if one.fatal]
    if fatal:
        more = f" ({len(fatal) - 1} more to come)" if len(fatal) > 1 else ""
        raise LfError(f"{fatal[0]}{more}")


def _members(made: Generated, job: Recipe) -> list[dict[str, bytes]]:
    """Those of the first samples, from data.path or from the workload itself."""
    workload, fields = made.workload, made.workload.fields
    if job.data.path is not None:
        manifest = Manifest.load(job.data.path, cache_gb=job.data.cache_gb)
        manifest.need((*fields.images, *fields.others))
        return [manifest.read(index % manifest.samples, (*fields.images, *fields.others)) for index in range(ROWS)]
    if hasattr(workload, "generate") != hasattr(workload, "samples"):
        raise LfError("`samples`, how many there are, and generate(index), which makes one, need each other; add the "
                      "one that is missing to the class.")
    if isinstance(workload, Making):
        return [made(index % workload.samples) for index in range(ROWS)]
    if set(fields.images) | set(fields.others) <= set(TABLETOP):
        from lfhelpers.workloads.vla.tabletop.dataset import sample

        return [sample(job.seed, index, 0) for index in range(ROWS)]
    raise LfError("there is no data: give a folder of shards with data.path=FOLDER (`lfhelpers data pack` makes one), "
                  "or add `samples` and generate(index) to the class.")


def _packed(made: Generated, name: str) -> str:
    """The folder of the packed samples, named by what the first ones hold: an edited model finds its data again."""
    assert isinstance(made.workload, Making), "the caller has looked"
    samples = made.workload.samples
    first = [sorted(made(index).items()) for index in range(min(PROBE, samples))]
    digest = hashlib.sha256(repr((name, samples, first)).encode()).hexdigest()[:12]
    folder = runs.root() / "data" / f"{name.lower()}-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    jobs = 1 if samples <= ALONE else hardware.usable_cores()
    with contextlib.redirect_stdout(sys.stderr):
        write(folder, Generated(made.toml), samples, shard_mb=SHARD_MB, jobs=jobs, source={"workload": name})
    return str(folder)


def main() -> None:
    """Answer for the recipe on stdin."""
    toml = sys.stdin.read()
    with contextlib.redirect_stdout(sys.stderr):  # what the user's file prints
        found = answer(toml)
    print(orjson.dumps(found).decode())


if __name__ == "__main__":
    main()

"""A workload of one's own before its first job: is it whole, does it keep to its contract, and where is its data?

That needs torch and runs the user's code, so it happens in a process of its own (launch.own_job): a notebook's kernel
stays light, and reads an edited file anew. What was found is kept beside the runs until the file, or what it is given,
changes, so that a ladder of thirty jobs asks once.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.measure import hardware
from lfhelpers.recipe import Recipe

LOOKED_AT = ("size", "base", "dropout", "options")
"""Fields of the recipe's workload that a class of one's own may look at; the others are the built-in model's."""


@dataclass(frozen=True)
class Found:
    """notes: what narrows the levers, a sentence each; data: the folder of its samples, None for the default set."""

    notes: tuple[str, ...]
    data: str | None


def is_own(use: str) -> bool:
    """Whether `workload.use` names a class that doesn't come with lfhelpers."""
    return use != "vla" and not use.startswith("lfhelpers.")


def examine(job: Recipe) -> Found:
    """Check the recipe's workload, and pack its samples where it makes them itself and no data.path is given.

    Raises LfError with the sentence of the first breach, and where the file can't be read or imported.
    """
    job = job.with_(**{"frozen.ahead": False})  # whether a lever fits is for the job that pulls it to say
    marker = runs.root() / "workloads" / f"{_key(job)}.json"
    known = orjson.loads(marker.read_bytes()) if marker.exists() else None
    if known is None or (known["data"] and not Path(known["data"]).exists()):
        known = _asked(job)
        marker.parent.mkdir(parents=True, exist_ok=True)
        runs.write_atomic(marker, orjson.dumps(known, option=orjson.OPT_INDENT_2))
    return Found(tuple(known["notes"]), known["data"])


def defines(use: str, method: str) -> bool:
    """Whether the class has this method, by its source alone; True where a base class elsewhere may have it."""
    file, name = source(use)
    try:
        classes = {node.name: node for node in ast.parse(file.read_bytes()).body if isinstance(node, ast.ClassDef)}
    except SyntaxError:
        return True  # whoever imports it will say so
    while (node := classes.get(name)) is not None:
        if any(getattr(part, "name", None) == method for part in node.body):
            return True
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        if len(bases) < len(node.bases) or len(bases) > 1:
            return True
        if not bases:
            return False
        name = bases[0]
    return True


def source(use: str) -> tuple[Path, str]:
    """(file, class) that `workload.use` names. Raises LfError where there is no such file or module."""
    location, colon, name = use.rpartition(":")
    if not colon:
        raise LfError(f"'{use}' names no workload; write path/to/file.py:MyWorkload or package.module:MyWorkload.")
    file = Path(location) if location.endswith(".py") else _module(location)
    if file is None or not file.exists():
        raise LfError(f"workload.use: no file {file.absolute() if file else location}; "
                      "write path/to/file.py:MyWorkload.")
    return file, name


def _module(location: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(location)
    except ModuleNotFoundError:
        spec = None
    return Path(spec.origin) if spec and spec.origin else None


def _key(job: Recipe) -> str:
    file, name = source(job.workload.use)
    fields = job.workload.model_dump(mode="json")
    given = [hashlib.sha256(file.read_bytes()).hexdigest(), name, {field: fields[field] for field in LOOKED_AT},
             job.seed, job.data.path, hardware.version("torch"), hardware.version("lfhelpers")]
    return hashlib.sha256(orjson.dumps(given)).hexdigest()[:16]


def _asked(job: Recipe) -> dict[str, Any]:
    """From launch.own_job. What it prints beside its answer, a bar of the packing or a traceback, is shown."""
    command = [sys.executable, "-m", "lfhelpers.launch.own_job"]
    done = subprocess.run(command, input=job.to_toml().encode(), stdout=subprocess.PIPE)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise LfError(f"workload {job.workload.use} can't be tried, its process exited with {done.returncode}; the "
                      "reason stands above.")
    answer: dict[str, Any] = orjson.loads(lines[-1])
    if answer.get("error"):
        raise LfError(answer["error"])
    return answer

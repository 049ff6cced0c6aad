"""Run folders: one training job each, readable at any moment, also when its job was killed.

Every file but the append-only logs is written to a temporary name and renamed, so a reader never meets half a file.
Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from lfhelpers.errors import LfError, nearest
from lfhelpers.processes import Member
from lfhelpers.recipe import Recipe, recipe

STATES = ("running", "done", "failed", "stopped")
WORDLESS = 60.0  # seconds without a word from other machines, whose clocks may differ, after which a run is over


def root() -> Path:
    """The folder of all runs: $LFHELPERS_RUNS, or `runs` of the project's checkout, or `runs` of the current folder."""
    if folder := os.environ.get("LFHELPERS_RUNS"):
        return Path(folder).absolute()
    return project() / "runs"


def cache() -> Path:
    """What can be made again: $LFHELPERS_CACHE, or `lfhelpers` in the user's cache folder."""
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lfhelpers"
    return Path(os.environ.get("LFHELPERS_CACHE") or user).absolute()


def project() -> Path:
    """The checkout that the package was installed from, or the current folder where there is none."""
    checkout = Path(__file__).resolve().parents[1]
    return checkout if (checkout / "pyproject.toml").exists() else Path.cwd()


@dataclass(frozen=True)
class Run:
    """One run folder."""

    path: Path

    @property
    def id(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def recipe(self) -> Recipe:
        """The recipe that the run was started with."""
        return recipe(self.path / "recipe.toml")

    @property
    def status(self) -> dict[str, Any]:
        """state (running, done, failed, stopped), reason, time; a running run whose supervisor is gone is stopped."""
        status = self.read("status.json") or {"state": "stopped", "reason": "no status was written"}
        if status["state"] == "running" and not self._alive(status):
            return status | {"state": "stopped", "reason": "the job's process is gone; it was killed"}
        return status

    @property
    def summary(self) -> dict[str, Any]:
        """Figures of the whole run; empty until it has ended."""
        return self.read("summary.json") or {}

    def set_status(self, state: str, reason: str = "", pid: int | None = None, **more: Any) -> None:
        """Record the run's state; `pid` is the process whose end means that a running run was killed."""
        assert state in STATES, state
        self.write("status.json", {"state": state, "reason": reason, "pid": pid, "time": now(), **more})

    def read(self, name: str) -> Any:
        """A JSON file of the folder, or None where it isn't there."""
        path = self.path / name
        return orjson.loads(path.read_bytes()) if path.exists() else None

    def write(self, name: str, data: Any) -> None:
        """A JSON file of the folder, replaced in one step. Raises LfError where it can't be written."""
        content = orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)
        with self._writing(name):
            write_atomic(self.path / name, content)

    def append_steps(self, rows: list[dict[str, Any]]) -> None:
        """Add lines to steps.jsonl."""
        self.append("steps.jsonl", rows)

    def append(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Add lines to a .jsonl file, whole lines only. Raises LfError where they can't be written."""
        with self._writing(name), (self.path / name).open("ab") as file:
            file.write(b"".join(orjson.dumps(row) + b"\n" for row in rows))

    def steps(self, name: str = "steps.jsonl") -> list[dict[str, Any]]:
        """The lines of steps.jsonl, or of another .jsonl file; a last line cut short by a kill is left out."""
        path = self.path / name
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [orjson.loads(line) for line in lines]

    def truncate_steps(self, last: int) -> None:
        """Drop the lines after step `last`, which a resumed run will write again."""
        rows = [row for row in self.steps() if row["step"] <= last]
        write_atomic(self.path / "steps.jsonl", b"".join(orjson.dumps(row) + b"\n" for row in rows))


    def _alive(self, status: dict[str, Any]) -> bool:
        """By the supervisor's pid; where that is on another machine, by the words that supervisors of several write."""
        if status.get("host", platform.node()) == platform.node():
            member = Member.of(status["pid"]) if status.get("pid") else None
            return member is not None and member.alive
        words = [path.stat().st_mtime for path in (self.path / "hosts").glob("*.json")]
        return time.time() - max(words, default=0.0) < WORDLESS

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LfError(f"{self.path / name} can't be written: {error.strerror}; what was written before it is kept."
                          ) from error


def create(job: Recipe, name: str | None = None) -> Run:
    """A new run folder holding its recipe, named <date>-<time>-<name>-<4 hex>; LfError where none can be made."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    path = root() / f"{stamp}-{name or job.name}-{secrets.token_hex(2)}"
    make_root()
    with _placing(path.parent), new_folder(path) as building:
        for part in ("logs", "traces", "checkpoints"):
            (building / part).mkdir()
        write_atomic(building / "recipe.toml", job.to_toml().encode())
    return Run(path)


def make_root() -> None:
    """Make the folder of all runs, and see that it can be written; LfError where not."""
    with _placing(root()):
        root().mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=root()).close()


@contextlib.contextmanager
def _placing(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LfError(f"no run folder can be made in {place}: {error.strerror}; "
                      "give another place with LFHELPERS_RUNS.") from error


def load(run: str | os.PathLike[str] | Run) -> Run:
    """A run by its folder, its name under the root, or a unique part of that name."""
    if isinstance(run, Run):
        return run
    path = Path(run)
    if (path / "recipe.toml").exists():
        return Run(path.absolute())
    names = [item.id for item in find()]
    matches = [name for name in names if str(run) in name]
    if len(matches) == 1:
        return Run(root() / matches[0])
    if matches:
        raise LfError(f"'{run}' names {len(matches)} runs in {root()}: {', '.join(matches[:4])}; give more of it.")
    raise LfError(f"no run '{run}' in {root()}; {nearest(str(run), names) if names else 'there is none yet.'}")


def find() -> list[Run]:
    """All runs under the root, oldest first."""
    recipes = root().glob("[!.]*/recipe.toml")  # a folder that is being built begins with a dot, and will be renamed
    return [Run(path.parent) for path in sorted(recipes, key=lambda path: (path.stat().st_mtime_ns, path.parent.name))]


def recorded(name: str) -> Run:
    """A recorded run of the project, such as "h200x1/as_found"; LfError where the project's checkout isn't at hand."""
    path = project() / "runs" / "reference" / name
    if not (path / "recipe.toml").exists():
        raise LfError(f"no recorded run '{name}' in {path.parent}; records come with a checkout of the project.")
    return Run(path)


def timed(rows: Sequence[Mapping[str, Any]], skip: int) -> list[Mapping[str, Any]]:
    """The lines of steps.jsonl that statistics use: after the warm-up and without the profiled step.

    Of a run that ended within its warm-up, all that were not profiled; of a single step, that one.
    """
    usable = [row for row in rows if not row["probe"]] or list(rows)
    return [row for row in usable if row["step"] > skip] or usable


def now() -> str:
    """The local time with its offset, to the second."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file under a temporary name and rename it; a failure leaves the old file as it was."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, that takes the name `path` only when the block ends well; nothing is left otherwise."""
    building = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    building.chmod(0o755)
    try:
        yield building
        building.rename(path)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise

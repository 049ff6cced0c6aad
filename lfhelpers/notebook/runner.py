"""The playbook's runner: plays notebooks in order without anyone watching, and tells the truth in its exit code.

It stops at the first notebook that fails, because later lessons build on earlier findings, and plays nothing again that
is fresh: an outcome holds for the notebook's text, the package's sources, the parameters, the profile and the machine.
So a call on a schedule goes on where the last one ended, and costs seconds where nothing changed. One playbook a folder
plays at a time; those with folders of their own may play at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from nbformat import NotebookNode

import lfhelpers
from lfhelpers import runs
from lfhelpers.data.locks import Locked
from lfhelpers.errors import LfError
from lfhelpers.notebook import catalogue, execution, html, index, parameters, profiles
from lfhelpers.notebook.progress import Progress
from lfhelpers.processes import Member

PACKAGE = Path(lfhelpers.__file__).parent
OK, FAILED, INTERRUPTED = 0, 1, 130
STATES = {OK: "done", FAILED: "failed", INTERRUPTED: "interrupted"}
TIMEOUT = {"smoke": 1800.0, "gpu": 7200.0}
"""Longest time that a notebook may take [s], by profile."""
LOCK = ".lock"


class Busy(LfError):
    """Another playbook plays into the same folder: nothing is wrong, and the next call may find it free."""

    exit_code = os.EX_TEMPFAIL


@dataclass(frozen=True)
class Job:
    """One notebook to play: its file and content, its folder of results, and all that its outcome depends on."""

    path: Path
    source: NotebookNode
    folder: Path
    values: dict[str, Any]
    profile: profiles.Profile
    key: str

    def write_status(self, state: str, **more: Any) -> None:
        """Replace status.json."""
        facts = {"state": state, "title": catalogue.title(self.source) or self.path.stem,
                 "question": catalogue.question(self.source), "key": self.key, "parameters": self.values,
                 "profile": self.profile.name, "profile_reason": self.profile.reason, "time": runs.now(),
                 "process": str(Member.of(os.getpid())), "environment": profiles.environment(), **more}
        runs.write_atomic(self.folder / "status.json", orjson.dumps(facts, option=orjson.OPT_INDENT_2))


def play(names: Sequence[str] | None = None, given: Mapping[str, Any] | Sequence[str] = (),
         profile: str | None = None, *, out: Path | None = None, force: bool = False, folder: Path | None = None,
         timeout: float | None = None, keep_going: bool = False) -> int:
    """Play notebooks (all of `folder`, or those named) and return the exit code: 0 done, 1 failed, 130 interrupted.

    `given` are parameters, as 'name=value' or a mapping; `out` defaults to `playbook` among the runs; `timeout` is for
    a notebook [s]; `keep_going` plays on after one that failed. index.html and playbook.json in `out` are up to date
    after each notebook. Raises LfError, before anything runs, for an unknown notebook, parameter or profile, and Busy
    where another playbook plays into `out`.
    """
    paths = catalogue.select(names, folder)
    values = dict(given) if isinstance(given, Mapping) else dict(parameters.split(given))
    chosen = profiles.choose(values.pop("profile", None) if profile is None else profile)
    assigned = parameters.assign(paths, {**values, "profile": chosen.name})
    execution.check_kernel()
    limit = _limit(chosen, paths, timeout)
    out = (out or runs.root() / "playbook").absolute()
    jobs = [_job(path, out, assigned[path], chosen) for path in paths]
    try:
        with _alone(out):
            print(f"profile {chosen.name}: {chosen.reason}", flush=True)
            code = _play_all(jobs, out, force, limit, keep_going)
            print(f"index: {out / index.PAGE}", flush=True)
    except BrokenPipeError as error:
        raise LfError("the playbook stopped because nothing reads its output any more; send it to a file.") from error
    except OSError as error:
        raise LfError(f"results can't be kept in {out}: {error.strerror}; make room, or give another place with --out "
                      "or LFHELPERS_RUNS.") from error
    return code


def key(path: Path, values: Mapping[str, Any]) -> str:
    """A hash of everything that a notebook's outcome depends on; equal keys need no second run."""
    digest = hashlib.sha256(path.read_bytes())
    digest.update(orjson.dumps([dict(values), profiles.environment()], option=orjson.OPT_SORT_KEYS))
    for file in sorted(item for item in PACKAGE.rglob("*") if item.is_file() and "__pycache__" not in item.parts):
        digest.update(file.relative_to(PACKAGE).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _limit(profile: profiles.Profile, paths: Sequence[Path], timeout: float | None) -> float:
    """Seconds for each notebook. Raises LfError where they are none, and where notebooks would share a folder."""
    limit = TIMEOUT[profile.name] if timeout is None else timeout
    if limit <= 0:
        raise LfError(f"timeout = {limit:g} leaves no time for a notebook; give seconds.")
    if len({path.stem for path in paths}) < len(paths):
        raise LfError("two notebooks of one name would share a folder of results; play them one by one, with --out.")
    return limit


def _job(path: Path, out: Path, values: dict[str, Any], profile: profiles.Profile) -> Job:
    if "profile" not in values:
        raise LfError(f"notebook {path.stem} has no parameter 'profile'; declare profile: str = 'auto' in its cell.")
    return Job(path, catalogue.read(path), out / path.stem, values, profile, key(path, values))


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system frees when its holder dies. Raises Busy where another has it."""
    out.mkdir(parents=True, exist_ok=True)
    place = out / LOCK
    with Locked(place, os.O_RDWR | os.O_CREAT) as lock:
        if not lock.exclusive():
            raise Busy(f"{place.read_text().strip() or 'another process'} plays into {out}; wait for its end, or give "
                       "another folder with --out.")
        place.write_text(f"process {os.getpid()} on {platform.node()}, since {runs.now()},\n")
        yield


def _play_all(jobs: Sequence[Job], out: Path, force: bool, limit: float, keep_going: bool) -> int:
    """One after the other, until one doesn't end well; returns the exit code. Each leaves the index up to date."""
    code, started = OK, time.monotonic()
    order, player = [job.path.stem for job in jobs], str(Member.of(os.getpid()))
    try:
        with execution.interruptible():
            for job in jobs:
                index.write(out, order, {"state": "running", "exit_code": None, "process": player})
                ended = _play(job, force, limit)
                code = max(code, ended)
                if ended == INTERRUPTED or (ended != OK and not keep_going):
                    break
    except KeyboardInterrupt:  # between two notebooks, or while a page was made
        code = INTERRUPTED
    index.write(out, order, {"state": STATES[code], "exit_code": code, "seconds": round(time.monotonic() - started, 1)})
    return code


def _play(job: Job, force: bool, limit: float) -> int:
    """One notebook, unless it is fresh; returns its exit code."""
    before, name = index.load_status(job.folder), job.path.stem
    if not force and _fresh(before, job):
        print(f"{name}  fresh, not played again", flush=True)
        return OK
    code_cells = sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in job.source.cells)
    print(f"{name}  playing, {code_cells} code cells", flush=True)
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / execution.RESULTS).unlink(missing_ok=True)
    job.write_status("running")
    progress = Progress(name, code_cells + 1, _seconds(before, job))  # one more: papermill's cell of given parameters
    outcome = execution.execute(job.path, job.source, job.folder, job.values, limit, progress)
    files = {"notebook": job.path.name}
    if (job.folder / execution.LOG).stat().st_size:
        files["kernel's log"] = execution.LOG
    if outcome.state != "interrupted":  # who interrupts doesn't want to wait for pages
        files |= _pages(job)
    job.write_status(outcome.state, seconds=round(outcome.seconds, 1), reason=outcome.reason, cell=outcome.cell,
                     details=outcome.details, files=files)
    _report(job, outcome)
    return {"done": OK, "failed": FAILED, "interrupted": INTERRUPTED}[outcome.state]


def _fresh(before: Mapping[str, Any], job: Job) -> bool:
    """Done with the same key, and everything it left is still there."""
    files = [execution.RESULTS, *before.get("files", {}).values()]
    return (before.get("state") == "done" and before["key"] == job.key
            and all((job.folder / file).exists() for file in files))


def _pages(job: Job) -> dict[str, str]:
    """The executed notebook as HTML, with and without its code: link text to file name."""
    copy = job.folder / job.path.name
    html.write(copy, job.folder / f"{job.path.stem}.html")
    html.write(copy, job.folder / "report.html", code=False)
    return {"with code": f"{job.path.stem}.html", "without code": "report.html"}


def _seconds(before: Mapping[str, Any], job: Job) -> float | None:
    """How long the notebook took when it was last done with this profile."""
    same = before.get("state") == "done" and before.get("profile") == job.profile.name
    return before.get("seconds") if same else None


def _report(job: Job, outcome: execution.Outcome) -> None:
    name = job.path.stem
    if outcome.state == "done":
        print(f"{name}  done in {outcome.seconds:.0f} s", flush=True)
        return
    where = f" in cell {outcome.cell} ({_first_line(job.source, outcome.cell)})" if outcome.cell else ""
    details = f"\n{outcome.details}" if outcome.details else ""
    print(f"{name}  {outcome.state}{where}: {outcome.reason}{details}", flush=True)
    print(f"executed copy: {job.folder / job.path.name}", flush=True)


def _first_line(source: NotebookNode, cell: int) -> str:
    return source.cells[cell - 1].source.strip().splitlines()[0]

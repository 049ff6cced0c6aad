"""Which rank failed first, and why: the cause, not what the other ranks said when it was gone.

Three witnesses: the error file of each rank that raised (its time is exact), torchrun's closing summary (exit codes,
also of ranks that died without a word, to the second), and the ranks' logs. Ranks that lose a peer raise within
milliseconds of its death, so time alone does not decide: exceptions that only tell of a lost peer come later, and ranks
that torchrun ended with TERM last.
"""

from __future__ import annotations

import datetime
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from lfhelpers.runs import Run

HEADER = "--- rank "  # begins the line with which each start of a rank opens its part of the log
TAIL = 20  # lines of a log that stand in for a traceback
_PEER_LOST = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|socket closed|ncclRemoteError|recvValue failed|"
    r"communicator was aborted|DistNetworkError|DistStoreError|timed out waiting|watchdog caught collective",
    re.IGNORECASE)
_SUMMARY = re.compile(r"time\s+: (\S+)\n\s+host\s+: .*\n\s+rank\s+: (\d+) .*\n\s+exitcode\s+: (-?\d+) ")


@dataclass(frozen=True)
class Failure:
    """Why a job failed."""

    rank: int | None
    """The first failing rank; none: torchrun itself failed."""
    exit_code: int
    reason: str
    """One line."""
    report: str
    """What the user reads: an LfError's sentence alone, or the rank's traceback and where to look further."""
    symptom: bool = False
    """No rank says more than that it lost a peer, or was told to end: the cause lies elsewhere."""


@dataclass(frozen=True)
class _Death:
    rank: int
    exit_code: int
    time: float  # seconds since 1970
    message: dict[str, Any] | None  # torchelastic's record of the exception; none: it died without one

    @property
    def order(self) -> tuple[int, float, int]:
        """First the causes by time, then ranks that lost a peer, then those that were told to end."""
        if self.message is None:
            return (2 if self.exit_code == -signal.SIGTERM else 0), self.time, self.rank
        return int(bool(_PEER_LOST.search(self.message["message"]))), self.time, self.rank


def first(run: Run, exit_code: int) -> Failure:
    """The failure that ended a run whose torchrun, or whose only rank, ended with `exit_code`."""
    deaths = sorted(_deaths(run.path / "logs", exit_code), key=lambda death: death.order)
    if not deaths:
        tail = [line for path in sorted((run.path / "logs").glob("torchrun*.log")) for line in log_tail(path)]
        reason = f"torchrun {ending(exit_code)}" + (f": {tail[-1]}" if exit_code > 0 and tail else "")
        return Failure(None, exit_code, reason, "\n".join([f"{reason}.", "", *tail]))
    cause, *others = deaths
    symptom = cause.order[0] > 0
    if cause.message and cause.message.get("sentence"):
        return Failure(cause.rank, cause.exit_code, cause.message["sentence"], cause.message["sentence"])
    what = cause.message["message"].strip() if cause.message else ending(cause.exit_code)
    colon = ":" if cause.message else ""
    reason = f"rank {cause.rank}{colon} {what.splitlines()[0] if what else ''}"
    return Failure(cause.rank, cause.exit_code, reason, _report(run, cause, others), symptom)


def ending(exit_code: int) -> str:
    """How a process ended, in words that follow its name."""
    if exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        how = "was killed (signal 9)" if exit_code < 0 else "exited with 137 (as after signal 9)"
        return f"{how}, often out of memory"
    if exit_code < 0:
        return f"was ended by signal {-exit_code} ({_signal_name(-exit_code)})"
    return f"exited with {exit_code}"


def log_tail(path: Path, lines: int = TAIL) -> list[str]:
    """The last lines of a log that belong to its latest start; the last 64 KB are looked at."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 65536))
        text = file.read().decode(errors="replace").splitlines()
    starts = [index for index, line in enumerate(text) if line.startswith(HEADER)]
    return text[starts[-1] + 1 if starts else 0:][-lines:]


def _report(run: Run, cause: _Death, others: list[_Death]) -> str:
    """The rank's own words, then the other ranks in a line each, then the logs."""
    if cause.message:
        head, body = f"rank {cause.rank} failed:", cause.message["extraInfo"]["py_callstack"].rstrip().splitlines()
    else:
        tail = log_tail(run.path / "logs" / f"rank-{cause.rank}.log")
        after_head = ". Its last lines:" if tail else "; it printed nothing."
        head, body = f"rank {cause.rank} {ending(cause.exit_code)}{after_head}", tail
    after = [f"After that rank {death.rank} {ending(death.exit_code)}." for death in others]
    return "\n".join([head, *(["", *body] if body else []), "", *after, f"Logs: {run.path / 'logs'}"])


def _deaths(logs: Path, exit_code: int) -> list[_Death]:
    """All that is known of ranks that did not end well, of every host of the run.

    A rank that was started alone has no summary of torchrun's, but `exit_code` is its own.
    """
    summaries = [path.read_text(errors="replace") for path in logs.glob("torchrun*.log")]
    codes = {int(rank): (int(code), _seconds(when, int(code)))
             for when, rank, code in _SUMMARY.findall("".join(summaries))} if summaries else {0: (exit_code, 0.0)}
    records: dict[int, tuple[dict[str, Any] | None, float]] = {}
    for path in logs.glob("torchrun*/*/attempt_*/*/error.json"):
        message = _record(path)
        rank = (message or {}).get("rank", path.parent.name)  # the folder has the number on its host
        records[int(rank)] = message, path.stat().st_mtime
    deaths = []
    for rank in codes.keys() | records.keys():
        code, when = codes.get(rank, (1, 0.0))
        message, written = records.get(rank, (None, 0.0))
        deaths.append(_Death(rank, code, written if message else when, message))
    return deaths


def _record(path: Path) -> dict[str, Any] | None:
    """torchelastic's record of an exception; None where a full disk or a kill cut it short."""
    try:
        return orjson.loads(path.read_bytes())["message"]
    except orjson.JSONDecodeError:
        return None


def _seconds(when: str, exit_code: int) -> float:
    """torchrun's whole second; its end for an abort, which is often how C++ code answers another rank's death."""
    return datetime.datetime.fromisoformat(when).timestamp() + (1.0 if exit_code == -signal.SIGABRT else 0.0)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"

"""Where a run's step went, and what most likely caused it, from the run folder alone.

The parts are measured and sum to 100 %; the findings are inferred from them (diagnose.findings).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lfhelpers.diagnose.findings import Finding, find
from lfhelpers.errors import LfError
from lfhelpers.levers import compile_health, slow_link
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run, timed

PARTS = ("data_wait", "host_to_device", "forward", "backward", "communication", "optimizer", "captured", "other")
"""`captured`: forward, backward and perhaps the update, replayed as one CUDA graph. Older records don't have it."""

STALLS = 1.25
"""A mean step above so many medians is made by a few slow steps, and the report says so."""


@dataclass(frozen=True)
class StepReport:
    """The mean step of a run. `ms` and `percent` hold each of PARTS; the percents, to a tenth, sum to exactly 100."""

    run: str
    state: str
    job: Recipe
    device: str
    hardware: str
    ranks: int
    steps: int
    step_ms: Mapping[str, float]
    ms: Mapping[str, float]
    percent: Mapping[str, float]
    samples_per_s: float
    host_ms: float
    ranks_ms: Mapping[str, Mapping[str, float]]
    mfu: Mapping[str, Any]
    utilisation: Mapping[str, Any]
    probe: Mapping[str, Any] | None
    notes: tuple[str, ...]
    link: str | None = None
    """What stands over every table where the link between ranks was slowed; None for a native one."""
    communication: Mapping[str, Any] = field(default_factory=dict)
    """Exposed exchange in ms as `transfer_ms` + `waiting_ms`, `buckets_mb`, `giants`, `source`; {} for one rank."""

    @classmethod
    def from_run(cls, run: Run) -> StepReport:
        """Read a run folder; a run without summary.json, still running or killed, is computed from steps.jsonl alone.

        LfError where there is no step yet, and where the parts of the step don't add up.
        """
        state, summary, probe = run.status["state"], run.summary or _from_steps(run), run.read("probe.json")
        ms = {part: float(summary["report"]["ms"].get(part, 0)) for part in PARTS}
        if abs(sum(summary["report"]["percent"].values()) - 100) > 0.5 or sum(ms.values()) <= 0:
            raise LfError(f"run {run.id}: the parts of its step don't sum to 100 %, so its records are damaged; "
                          "run it again.")
        return cls(run.id, state, run.recipe, summary["device"], summary["hardware"], summary["ranks"],
                   summary["steps"]["timed"], summary["step_ms"], ms, percents(ms), summary["samples_per_s"],
                   summary["host_ms"], summary["ranks_ms"], summary["mfu"], summary["utilisation"], probe,
                   tuple(_notes(run, state, summary, probe)), slow_link.header(summary),
                   summary.get("communication", {}))

    @property
    def findings(self) -> list[Finding]:
        """What the thresholds of this module find, the likeliest cause first; `steady` alone if nothing is."""
        return find(self)

    @property
    def compute_ms(self) -> float:
        """Milliseconds of forward, backward and optimizer, captured ones included."""
        return self.ms["forward"] + self.ms["backward"] + self.ms["optimizer"] + self.ms["captured"]

    @property
    def launch_ms(self) -> float:
        """Milliseconds that bare operator overhead explains: operators x cost of a tiny one; 0 without a probe."""
        if self.probe is None:
            return 0.0
        return min(self.operators * self.probe["tiny_operator_us"] / 1e3, self.compute_ms)

    @property
    def operators(self) -> int:
        """Operators of forward, backward and optimizer; 0 without a probe."""
        counts = self.probe["operators"] if self.probe else {}
        return sum(counts.get(phase, 0) for phase in ("forward", "backward", "optimizer"))

    def share(self, ms: float) -> float:
        """Milliseconds as percent of the step."""
        return 100 * ms / sum(self.ms.values())

    def rows(self) -> list[dict[str, Any]]:
        """A row a part, with the slowest rank and the ranks' spread where there are several; last, the whole step."""
        parts = [part for part in PARTS if part != "captured" or self.ms[part]]
        rows = [{"part": part.replace("_", " "), "ms": round(self.ms[part], 2), "percent": self.percent[part]}
                for part in parts]
        if self.ranks > 1:
            for part, row in zip(parts, rows, strict=True):
                of_ranks = self.ranks_ms.get(part, {})
                row |= {"slowest rank ms": _rounded(of_ranks.get("max")), "spread ms": _rounded(of_ranks.get("spread"))}
        whole = {"part": "whole step", "ms": round(sum(self.ms.values()), 2),
                 "percent": round(sum(self.percent.values()), 1)}
        return [*rows, whole]

    def table(self) -> str:
        """The report as plain text: headline, parts, findings in order, notes."""
        batch, step, mfu = self.job.batch, self.step_ms, self.mfu["value"]
        utilised = "" if mfu is None else f"{100 * mfu:.1f} % of {self.mfu['peak_tflops']:.0f} TFLOP/s, "
        lines = [f"run {self.run} ({self.state}): {self.steps} timed steps of {self.job.name} on {self.hardware}, "
                 f"{self.ranks} rank(s) x micro {batch.micro} x accumulate {batch.accumulate}",
                 f"{step['mean']:.1f} ms a step (median {step['median']:.1f}, p95 {step['p95']:.1f}), "
                 f"{self.samples_per_s:.1f} samples/s; MFU: {utilised}{self.mfu['convention']}", *aligned(self.rows())]
        lines += [_exchange(self.communication)] if self.communication else []
        lines += [f"{rank}. {finding}" for rank, finding in enumerate(self.findings, 1)]
        return "\n".join([*([self.link] if self.link else []), *lines, *(f"note: {note}" for note in self.notes)])


@dataclass(frozen=True)
class Comparison:
    """Two reports side by side."""

    a: StepReport
    b: StepReport

    @property
    def speedup(self) -> float:
        """Samples/s of b over those of a."""
        return self.b.samples_per_s / self.a.samples_per_s

    def rows(self) -> list[dict[str, Any]]:
        """A row a part and one for the whole step, in milliseconds; `saved` is a - b."""
        a, b = ({row["part"]: row["ms"] for row in side.rows()} for side in (self.a, self.b))
        longer = max(a, b, key=len)  # a captured step's row is missing where nothing was captured
        pairs = [(part, a.get(part, 0.0), b.get(part, 0.0)) for part in longer]
        return [{"part": part, "a ms": a, "b ms": b, "saved ms": round(a - b, 2)} for part, a, b in pairs]

    def __str__(self) -> str:
        heads = [f"{name}: run {report.run} ({report.job.name}), {report.samples_per_s:.1f} samples/s"
                 + (f"; {report.link}" if report.link else "") for name, report in (("a", self.a), ("b", self.b))]
        return "\n".join([*heads, *aligned(self.rows()), f"b trains {self.speedup:.2f} times as many samples/s as a "
                          "(two single runs, not interleaved, so without an interval)"])


def percents(ms: Mapping[str, float]) -> dict[str, float]:
    """Shares in percent to a tenth that sum to exactly 100: tenths left over go to the largest remainders."""
    tenths = {part: 1000 * value / sum(ms.values()) for part, value in ms.items()}
    whole = {part: int(value) for part, value in tenths.items()}
    by_remainder = sorted(tenths, key=lambda part: whole[part] - tenths[part])
    for part in by_remainder[:1000 - sum(whole.values())]:
        whole[part] += 1
    return {part: value / 10 for part, value in whole.items()}


def _from_steps(run: Run) -> dict[str, Any]:
    """What steps.jsonl and the recipe tell, in the form of summary.json."""
    environment = run.read("environment.json") or {}
    device = environment.get("device") or run.recipe.device.replace("auto", "cpu")
    rows = timed(run.steps(), run.recipe.untimed(device))
    if not rows:
        raise LfError(f"run {run.id} has no timed step yet; wait for its first steps, or see {run.path / 'logs'}.")
    mean = {part: statistics.fmean(row["ms"].get(part, 0.0) for row in rows) for part in PARTS}
    step_ms = [row["step_ms"] for row in rows]
    whole = statistics.fmean(step_ms)
    gpus = environment.get("hardware", {}).get("gpus", [])
    processor = environment.get("hardware", {}).get("cpu", "an unknown CPU")
    return {
        "device": device, "ranks": 1, "steps": {"timed": len(rows)},
        "hardware": gpus[0]["name"] if device == "cuda" and gpus else processor,
        "step_ms": {"mean": whole, "median": statistics.median(step_ms),
                    "p95": sorted(step_ms)[int(0.95 * (len(rows) - 1))]},
        "samples_per_s": 1e3 * sum(row["samples"] for row in rows if not row["skipped"]) / sum(step_ms),
        "report": {"ms": mean, "percent": {part: 100 * value / whole for part, value in mean.items()}},
        "host_ms": statistics.fmean(row["host_ms"] for row in rows), "ranks_ms": {},
        "mfu": {"value": None, "convention": "not known before the run has ended"}, "utilisation": {},
    }


def _exchange(found: Mapping[str, Any]) -> str:
    """'exchange: 3.1 ms exposed, 2.5 of it transfer and 0.6 waiting for late ranks (DDP's timers); 4 buckets ...'."""
    sizes, giants = found.get("buckets_mb", []), found.get("giants", [])
    buckets = f"; {len(sizes)} buckets of {min(sizes):.3g} to {max(sizes):.3g} MiB" if sizes else ""
    giant = f"; {giants[0]['name']}, {giants[0]['mb']:.0f} MiB, can't be split" if giants else ""
    return (f"exchange: {found['exposed_ms']:.1f} ms exposed, {found['transfer_ms']:.1f} of it transfer and "
            f"{found['waiting_ms']:.1f} waiting for late ranks ({found['source']}){buckets}{giant}")


def _notes(run: Run, state: str, summary: Mapping[str, Any], probe: Any) -> list[str]:
    """What a reader must know before trusting the figures."""
    notes = []
    if not run.summary:
        notes.append(f"no summary.json (the run is {state}): computed from steps.jsonl of rank 0 alone, exposed "
                     "communication is still inside backward")
    if probe is None:
        notes.append("no probe.json: operators and host reads weren't counted, so their findings are missing")
    step = summary["step_ms"]
    if step["mean"] > STALLS * step["median"]:
        notes.append(f"a few slow steps make the mean {step['mean'] / step['median']:.1f} times the median: see "
                     "step_ms in steps.jsonl")
    if skipped := summary["steps"].get("skipped"):
        notes.append(f"{skipped} steps were not finite and changed nothing; they count as time and not as samples")
    if events := summary.get("replan", {}).get("events"):
        tried = ", ".join(f"step {each['step']}: {each['done']}" for each in events[-3:])
        notes.append(f"re-planned as memory ran short or grew, at the same effective batch, {len(events)} in all (the "
                     f"newest: {tried}); why and on which ranks is under replan in summary.json")
    return notes + compile_health.notes(summary.get("compile", {}))


def aligned(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows as lines of aligned columns, the first to the left and the others to the right; none for no rows."""
    if not rows:
        return []
    columns = list(rows[0])
    cells = [columns, *([_shown(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    return ["  ".join(cell.rjust(width) if index else cell.ljust(width)
                      for index, (cell, width) in enumerate(zip(line, widths, strict=True))) for line in cells]


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)

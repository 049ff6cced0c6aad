"""The ladder: levers added one by one to the recipe as found, each behind its gate; then each left out of the stack.

Every rung is a job of its own, from shards to weights, on the same samples in the same order, so its figure is what a
user's run would show; the price is that two rungs are never timed in the same seconds. So the three recipes that claims
are made of (as found, competent, full) are run again between the others, and by what they differ from themselves every
ratio may be wrong. A lever that does not pass its gate on this model is refused, and the ladder goes on without it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tqdm import tqdm

from lfhelpers.bench.jobs import Jobs
from lfhelpers.bench.rungs import AFTERNOON, START, TOP, Rung
from lfhelpers.diagnose import predictions, tiers
from lfhelpers.diagnose.ceilings import Ceiling, Ceilings
from lfhelpers.errors import LfError, nearest
from lfhelpers.launch import own
from lfhelpers.levers.table import COMPETENT, LEVERS, Lever, Machine
from lfhelpers.measure import formats, hardware
from lfhelpers.quality import levers as gates
from lfhelpers.quality.levers import Verdict
from lfhelpers.recipe import PROFILED, Recipe, recipe
from lfhelpers.runs import Run


@dataclass(frozen=True)
class Options:
    """What is climbed: a size, a micro-batch, ranks; timed steps a job; how often the anchors are run."""

    size: str = "tiny"
    micro: int = 16
    nproc: int = 1
    steps: int = 40
    anchors: int = 3
    without: bool = True
    """Also leave each lever out of the full stack."""
    predict: bool = True
    """Trace each rung, and tell from that what the next one can win."""
    levers: tuple[str, ...] = ()
    """Names of the levers to climb; all if none."""
    overrides: tuple[str, ...] = ()

    def chosen(self) -> list[Lever]:
        """The levers to climb, in the table's order. Raises LfError for a name that is in no row."""
        names = [lever.name for lever in LEVERS]
        for name in self.levers:
            if name not in names:
                raise LfError(f"no lever is named '{name}'; {nearest(name, names)}")
        return [lever for lever in LEVERS if not self.levers or lever.name in self.levers]


def machine(nproc: int, use: str = "vla") -> Machine:
    """What this machine can pull for a workload, as `workload.use` names it."""
    compiler = bool(os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++"))
    kind: Literal["cpu", "cuda"] = "cuda" if hardware.device()[0] == "cuda" else "cpu"
    return Machine(kind, nproc, compiler, own=own.is_own(use), bf16=formats.has_bf16(kind),
                   frozen=not own.is_own(use) or own.defines(use, "frozen"))


class Ladder:
    """Climbs the levers. `rungs` grows as it goes; `keep` is called after each job with what is known by then."""

    def __init__(self, options: Options, jobs: Jobs, where: Machine | None = None,
                 keep: Callable[[Ladder], Any] = lambda ladder: None) -> None:
        found = recipe("as_found", f"workload.size={options.size}", f"batch.micro={options.micro}", *options.overrides)
        self.options, self.jobs = options, jobs
        self.where = where or machine(options.nproc, found.workload.use)
        self.rungs: list[Rung] = []
        self._keep = keep
        self._errors: dict[str, float] = {}
        self._ceilings: dict[str, Ceilings | None] = {}
        self.start = self._long(found)

    def climb(self) -> list[Rung]:
        """All rungs, run and judged. Raises LfError where as found itself fails."""
        chosen = self.options.chosen()
        bar = tqdm(total=len(chosen) * (2 if self.options.without else 1) + 3 * self.options.anchors - 2, unit="job",
                   desc="ladder", disable=None)
        anchors = {START: self._add(Rung(START, "anchor", self.start), bar)}
        if not anchors[START].runs:
            raise LfError(f"the ladder has nothing to stand on: {anchors[START].obstacle}")
        self._accepted = anchors[START].runs[0]
        job, last = self.start, [lever for lever in chosen if lever in COMPETENT][-1:]
        for place, lever in enumerate(chosen):
            job = self._pull(lever, job, chosen[place:], bar)
            if [lever] == last:
                anchors[AFTERNOON] = self._reached(AFTERNOON, job)
        anchors[TOP] = self._reached(TOP, job)
        self._leave_out(list(anchors.values()), bar)
        bar.close()
        return self.rungs

    def _pull(self, lever: Lever, job: Recipe, rest: list[Lever], bar: Any) -> Recipe:
        """The recipe with the lever, where it can be pulled and its gate is passed; else as it was."""
        rung = self._with(lever, job)
        if rung.obstacle is None:
            self._run(rung, bar)
            if rung.obstacle is None:
                self._hold(lever, rung)
                rung.verdict = self._judged(lever, job, rung, rest)
                if not rung.verdict.passed:
                    rung.obstacle = f"refused, since its gate ({lever.equivalence}) is not passed: {rung.verdict.found}"
                else:
                    self._accepted = rung.runs[0]
            else:  # a lever that this machine could pull, and of which nothing was shown
                rung.verdict = Verdict(False, f"its job failed: {rung.obstacle}")
        self.rungs.append(rung)
        self._keep(self)
        return job if rung.obstacle else rung.job

    def _with(self, lever: Lever, job: Recipe) -> Rung:
        """A rung with the lever pulled; with the job as it was, and why, where machine or recipe don't let it."""
        rung = Rung(f"+ {lever.name}", "add", job, lever, lever.obstacle(self.where))
        try:
            rung.job = job if rung.obstacle else self._long(lever.pull(job))
        except LfError as error:
            rung.obstacle = f"it needs a lever that is not on the ladder: {error}"
        return rung

    def _hold(self, lever: Lever, rung: Rung) -> None:
        """The rung against the one that it stands on, and against what that one's trace had promised."""
        rung.over = rung.runs[0].summary["samples_per_s"] / self._accepted.summary["samples_per_s"]
        found = self.ceilings(self._accepted)
        promised: list[Ceiling] = [one for one in found or () if lever.name in one.levers]
        if promised:
            rung.score = predictions.scored(lever.name, promised[0].realistic, promised[0].ideal, rung.over)

    def ceilings(self, run: Run) -> Ceilings | None:
        """What the trace of a run promises, the highest first; None where it has none, or one that says too little."""
        if run.id not in self._ceilings:
            try:
                self._ceilings[run.id] = tiers.of_run(run)
            except LfError:
                self._ceilings[run.id] = None
        return self._ceilings[run.id]

    def _leave_out(self, anchors: list[Rung], bar: Any) -> None:
        """Each lever out of the full stack, the anchors again between them and at the end."""
        pulled = [rung.lever for rung in self.rungs if rung.kind == "add" and rung.lever and not rung.obstacle]
        others = [self._without(lever, pulled) for lever in pulled] if self.options.without else []
        rounds = self.options.anchors - 1
        places = [round((turn + 1) * len(others) / max(1, rounds)) for turn in range(rounds)]
        for place in range(len(others) + 1):
            for _ in range(places.count(place)):
                for rung in anchors:
                    self._run(rung, bar)
                    self._keep(self)
            if place < len(others):
                self._add(others[place], bar)

    def _without(self, lever: Lever, pulled: list[Lever]) -> Rung:
        """The stack of all other levers: a field that an earlier one had set is as that one left it."""
        fields = {name: value for other in pulled if other is not lever for name, value in other.fields.items()}
        try:
            return Rung(f"- {lever.name}", "without", self._long(self.start.with_(**fields)), lever)
        except LfError as error:
            return Rung(f"- {lever.name}", "without", self.start, lever, f"other levers need it: {error}")

    def _reached(self, name: str, job: Recipe) -> Rung:
        """An anchor where the ladder has come to; its first run is that of the last rung accepted, not a repeat."""
        rung = Rung(name, "anchor", job, runs=[self._accepted])
        self.rungs.append(rung)
        self._keep(self)
        return rung

    def _add(self, rung: Rung, bar: Any) -> Rung:
        if rung.obstacle is None:
            self._run(rung, bar)
        self.rungs.append(rung)
        self._keep(self)
        return rung

    def _run(self, rung: Rung, bar: Any) -> None:
        try:
            rung.runs.append(self.jobs.run(f"{rung.name} #{len(rung.runs)}", rung.job.with_(name=_plain(rung.name)),
                                           self.options.nproc))
        except LfError as error:
            rung.obstacle = str(error)
        bar.update()

    def _judged(self, lever: Lever, before: Recipe, rung: Rung, rest: list[Lever]) -> Verdict:
        """The gate's verdict; a gate that can't be asked is not passed."""
        try:
            return self._judge(lever, before, rung, rest)
        except LfError as error:
            return Verdict(False, str(error))

    def _judge(self, lever: Lever, before: Recipe, rung: Rung, rest: list[Lever]) -> Verdict:
        if lever.equivalence == "exact":
            pair = gates.fixed(before, rung.job, self.where.device)
            return gates.exact(*(_losses(self.jobs.run(_exact(job), job, self.options.nproc)) for job in pair))
        losses = [_losses(run) for run in (self._accepted, rung.runs[0])]
        common = min(map(len, losses))
        errors = self._gradients(lever, before, rest) if self._arithmetic(lever) else (None, None)
        return gates.reordered(losses[0][:common], losses[1][:common], *errors)

    def _gradients(self, lever: Lever, before: Recipe, rest: list[Lever]) -> tuple[float, float]:
        """(error of the gradients with the lever, of eager's); for all that is to come, as if nothing were refused."""
        if lever.name not in self._errors:
            eager = recipe("competent", f"workload.size={self.options.size}", *self.options.overrides)
            jobs, job = {"": eager}, before
            for each in rest:
                job = self._with(each, job).job
                if self._arithmetic(each):
                    jobs[each.name] = job
            self._errors |= gates.gradient_errors(jobs)
        return self._errors[lever.name], self._errors[""]

    @staticmethod
    def _arithmetic(lever: Lever) -> bool:
        return any(name.partition(".")[0] in gates.ARITHMETIC for name in lever.fields)

    def _long(self, job: Recipe) -> Recipe:
        """With enough steps for the timed ones, the untimed before them, and the profiled ones at the end."""
        traced = PROFILED if self.options.predict else 0
        return job.with_(steps=job.untimed(self.where.device) + self.options.steps + 1 + traced,
                         **{"log.profile": self.options.predict})


def _exact(job: Recipe) -> str:
    """A name by what is run: where exact levers follow each other, one's job with it is the next one's without."""
    return f"exact {hashlib.sha256(job.to_toml().encode()).hexdigest()[:12]}"


def _losses(run: Run) -> list[float]:
    return [row["loss"] for row in run.steps()]


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name).strip("-")

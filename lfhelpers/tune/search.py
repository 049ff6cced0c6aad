"""The study's loop: propose, run, judge, compare with the incumbent, remember; until the budget is used up.

The objective is the rate of one job, and rates of different minutes differ by more than the jobs do. So a trial that
looks faster than the incumbent is not believed: the incumbent is run again beside it, and gives way only where their
blocks, pair by pair, say `faster`. The price is a second job for each find, which are few. Proposals that the recipe
refuses, and those whose job has been run, cost no job and no budget.

Optuna's samplers don't look at failed trials, and would propose them again for ever. So a job that failed is told as
pruned, the worst there is, and what happened stands in the trial's attributes; failed, in Optuna's words, is only what
was killed together with the study, and is asked again.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState
from tqdm import tqdm

from lfhelpers.errors import LfError
from lfhelpers.levers.table import Machine
from lfhelpers.measure import hardware, statistics
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run, load
from lfhelpers.tune import judge, space, storage
from lfhelpers.tune import trial as trials
from lfhelpers.tune.options import Options, gpu_gib
from lfhelpers.tune.space import Knob
from lfhelpers.tune.trial import Outcome

ENOUGH = 30
"""Proposals in a row that need no job, after which the search has nothing new to say."""
RANDOM = 8
"""Trials before the sampler looks at what was found."""
SURE = 0.05
"""Of a trial's blocks being slower than the best one's (Wilcoxon's signed ranks), its job is stopped at this p."""
BASE = "base"
Execute = Callable[[Recipe, int, float, Callable[[Run], bool]], Outcome]
COPIED = ("ended", "why", "samples_per_s", "low", "high", "n", "loss", "peak_gib", "reserved_gib", "limits", "run")


@dataclass
class Search:
    """One study. `starts`: {name: recipe} tried first, as near as the knobs come; `keep` is called after each trial."""

    options: Options
    base: Recipe
    where: Machine
    starts: Mapping[str, Recipe] = field(default_factory=dict)
    keep: Callable[[Search], Any] = lambda search: None
    execute: Execute = trials.execute

    def __post_init__(self) -> None:
        self.given = self.base
        self.base = self.base.with_(steps=self.base.untimed(self.where.device) + self.options.steps + 1, name=BASE)
        self.knobs: list[Knob] = space.knobs(self.base, self.where, self.options.allow, self.options.knobs)
        self.place = storage.folder(self.options.name)
        self.memory_gib = self.options.memory_gib or gpu_gib()
        self.ended = ""

    def go(self) -> Search:
        """Search until the budget is used up; goes on where it was. LfError where the base fails, or another study."""
        with storage.alone(self.place):
            self.study = self._open()
            bar = tqdm(total=self.options.trials, initial=len(self.finished), unit="trial", desc=self.options.name,
                       disable=None)
            try:
                self._begin()
                self._all(bar)
            except KeyboardInterrupt:
                storage.retry(self.study)
                raise
            finally:
                bar.close()
        return self

    @property
    def finished(self) -> list[FrozenTrial]:
        """Trials that had a job, oldest first; the first one is the base."""
        return storage.finished(self.study)

    @property
    def incumbent(self) -> FrozenTrial:
        """The fastest trial that keeps to the limits and was seen to be faster than the one before it."""
        return [trial for trial in self.finished if trial.user_attrs.get("took_over")][-1]

    @property
    def minutes(self) -> float:
        """Of jobs, over all calls."""
        return sum(trial.user_attrs["seconds"] for trial in self.finished) / 60

    def job(self, trial: FrozenTrial) -> Recipe:
        """The recipe that a trial ran."""
        return space.pulled(self.base, self.knobs, trial.params)

    def _open(self) -> optuna.Study:
        options = self.options
        machine = hardware.describe()["hardware"]
        stated = {
            "knobs": {knob.name: knob.positions for knob in self.knobs},
            "hardware": {name: machine[name] for name in ("cpu", "cores_usable", "gpus")},
            "recipe": self.base.flat(), "ranks": options.nproc,
            "limits": {"margin": options.margin, "memory_gib": self.memory_gib, "allow": options.allow}}
        study = storage.open_study(self.place, stated)
        with warnings.catch_warnings():  # it may change in later releases of Optuna
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.pruner = optuna.pruners.WilcoxonPruner(p_threshold=SURE)
        # Another seed in each call: one that goes on must not draw again what the call before it drew.
        study.sampler = optuna.samplers.TPESampler(
            n_startup_trials=min(RANDOM, max(2, options.trials // 3)),
            seed=options.seed + len(study.get_trials(deepcopy=False)))
        return study

    def _begin(self) -> None:
        """What a kill left, then the base, which all others are held to, then the start values."""
        storage.retry(self.study)
        if not self.finished:
            own = space.labels(self.knobs, self.base)
            waits = bool(self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))  # killed, and asked again
            self.study.enqueue_trial(own, user_attrs={"start": BASE}, skip_if_exists=waits)
            self._next()
            if not self.finished:
                failed = self.study.get_trials(deepcopy=False)[-1].user_attrs
                raise LfError(f"the study has nothing to stand on, the base ended with {failed.get('ended')}: "
                              f"{failed.get('why')}")
        for name, job in self.starts.items():
            self.study.enqueue_trial(space.labels(self.knobs, job), user_attrs={"start": name}, skip_if_exists=True)

    def _all(self, bar: Any) -> None:
        free = 0
        while not self._spent() and free < ENOUGH:
            before = len(self.finished)
            self._next()
            free = free + 1 if len(self.finished) == before else 0
            bar.n = len(self.finished)
            bar.set_postfix_str(f"best {self.incumbent.user_attrs['samples_per_s']:.4g} samples/s, "
                                f"{self.minutes:.1f} min")  # which also draws the bar
        if free == ENOUGH:
            self.ended = f"{ENOUGH} proposals in a row were known or refused, so the space has little left"

    def _spent(self) -> bool:
        done, options = len(self.finished), self.options
        late = options.minutes is not None and self.minutes * (1 + 1 / done) > options.minutes
        if done < options.trials and not late:
            return False
        self.ended = f"all {options.trials} trials are done" if done >= options.trials else \
            f"another trial would pass {options.minutes:g} minutes"
        return True

    def _next(self) -> None:
        """One proposal, answered by a job, by the record, or by the recipe's own refusal."""
        trial = self.study.ask()
        labels = {knob.name: trial.suggest_categorical(knob.name, list(knob.positions)) for knob in self.knobs}
        try:
            job = space.pulled(self.base, self.knobs, labels)
        except LfError as error:
            _note(trial, ended="refused", why=str(error))
            self.study.tell(trial, state=TrialState.PRUNED)
            return
        _note(trial, job=storage.key(job))
        same = next((one for one in self.finished if one.user_attrs["job"] == storage.key(job)), None)
        if same is not None:
            self._answer(trial, same)
        else:
            self._run(trial, job)
        self.keep(self)

    def _answer(self, trial: optuna.Trial, same: FrozenTrial) -> None:
        """With what the record says of the same job."""
        known = {name: same.user_attrs[name] for name in COPIED if name in same.user_attrs}
        _note(trial, duplicate_of=same.number, **known)
        for name, value in known.get("limits", {}).items():
            trial.set_constraint(name, value)
        self.study.tell(trial, same.value if same.state == TrialState.COMPLETE else None, state=same.state)

    def _run(self, trial: optuna.Trial, job: Recipe) -> None:
        began, first = time.monotonic(), not self.finished
        outcome = self._executed(trial, job.with_(name=f"trial-{trial.number}"), watch=not first)
        _note(trial, ended=outcome.ended, why=outcome.why, **({"run": outcome.run.id} if outcome.run else {}))
        value = None
        if outcome.ended == "done" and outcome.run is not None:
            value = self._judge(trial, job, outcome.run, first)
        elif first:  # no trial is finished before the base is
            self.study.tell(trial, state=TrialState.FAIL)
            return
        _note(trial, seconds=time.monotonic() - began)
        self.study.tell(trial, value, state=TrialState.PRUNED if value is None else TrialState.COMPLETE)

    def _executed(self, trial: optuna.Trial, job: Recipe, watch: bool) -> Outcome:
        """The job, its blocks told to the pruner as they come."""
        told: list[float] = []

        def slower(run: Run) -> bool:
            blocks = trials.block_rates(run, job.untimed(self.where.device), self.options.steps)
            for place in range(len(told), len(blocks)):
                trial.report(blocks[place], place)
                told.append(blocks[place])
            return watch and trial.should_prune()

        try:
            outcome = self.execute(job, self.options.nproc, self.options.limit_s, slower)
        except LfError as error:
            return Outcome("crash", str(error))
        if outcome.ended == "done" and outcome.run is not None:
            slower(outcome.run)
        return outcome

    def _judge(self, trial: optuna.Trial, job: Recipe, run: Run, first: bool) -> float:
        """Note figures, limits, and whether it takes the incumbent's place; its rate."""
        found = trials.figures(run, job.untimed(self.where.device), self.options.steps)
        blocks = found.pop("blocks")
        base = None if first else self.finished[0]
        limits = judge.constraints(
            found, base.user_attrs if base else None, trials.losses(run),
            trials.losses(load(base.user_attrs["run"])) if base else [],
            space.equivalence(self.base, self.knobs, job), self.options.margin, self.memory_gib)
        for name, value in limits.items():
            trial.set_constraint(name, value)
        within = all(value <= 0 for value in limits.values())
        _note(trial, limits=limits, **found)
        takes_over = first or (within and found["samples_per_s"] > self.incumbent.user_attrs["samples_per_s"]
                               and self._faster(trial, blocks))
        _note(trial, took_over=takes_over)
        return float(found["samples_per_s"])

    def _faster(self, trial: optuna.Trial, blocks: list[float]) -> bool:
        """Whether it is faster than the incumbent, which is run again beside it."""
        job = self.job(self.incumbent).with_(name=f"beside-{trial.number}")
        outcome = self.execute(job, self.options.nproc, self.options.limit_s, lambda run: False)
        if outcome.ended != "done" or outcome.run is None:
            _note(trial, paired=f"the incumbent, run again, ended with {outcome.ended}: {outcome.why}")
            return False
        theirs = trials.block_rates(outcome.run, job.untimed(self.where.device), self.options.steps)
        pairs = [pair for pair in zip(theirs, blocks, strict=False) if min(pair) > 0]
        if len(pairs) < statistics.LEAST_PAIRS:
            _note(trial, paired=f"only {len(pairs)} blocks to compare with the incumbent's")
            return False
        found = statistics.effect([1 / rate for rate, _ in pairs], [1 / rate for _, rate in pairs])
        _note(trial, paired=str(found), paired_ratio=found.ratio)
        return found.verdict == "faster"


def _note(trial: optuna.Trial, **facts: Any) -> None:
    for name, value in facts.items():
        trial.set_user_attr(name, value)

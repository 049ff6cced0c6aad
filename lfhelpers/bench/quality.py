"""Time to quality: both recipes fine-tune from one base to a fixed target; how long does each take, and is it as good?

Pairs of runs share the seed: first weights, the order of the data, augmentation and noise. Both make all steps, since
a run that ends at its target says nothing of where it would have ended; when it got there is read off its curve.
Target and margins are fixed here, before any run, and belong to the name under which runs are kept: another margin is
another comparison. Every run is a job of its own, so a bench that was stopped goes on with the runs that it has.

Seconds are counted from before a run's first step, without its measurements, and in both arms alike: kernels that are
compiled and graphs that are recorded are in them. Minutes of compiling would say nothing of a training of hours that
these short runs stand for, so an arm that compiles fills the cache beforehand, by a job of a few steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from lfhelpers.bench.base import demonstrations, made
from lfhelpers.bench.climb import machine
from lfhelpers.bench.jobs import Jobs
from lfhelpers.errors import LfError, nearest
from lfhelpers.levers.table import stack
from lfhelpers.quality import equivalence
from lfhelpers.recipe import Recipe, recipe
from lfhelpers.runs import Run
from lfhelpers.train.base.recipe import load

ARMS = ("as_found", "full")
WORDS = ("question_accuracy", "bleu4")
"""Figures of what a model says, where the text loss is on."""


@dataclass(frozen=True)
class Options:
    """What is fine-tuned and how far. Margins: absolute for shares, a share of the figure for the action MSE."""

    size: str = "tiny"
    seeds: int = 5
    steps: int = 400
    micro: int = 32
    samples: int = 4096
    """Demonstrations of the task that the base has not seen."""
    lr: float | None = 2e-3
    """Peak learning rate; None: what the workload suggests for its size."""
    every: int = 100
    """Steps between measurements."""
    episodes: int = 200
    words: int = 0
    """Held-out scenes for captions and questions; 0 leaves the text loss out."""
    target_success: float = 0.7
    target_mse: float = 0.012
    margin_success: float = 0.05
    margin_mse: float = 0.10
    margin_words: float = 0.03
    overrides: tuple[str, ...] = ()
    """Of both recipes."""
    minutes: float | None = field(default=None, repr=False)
    """No further run begins that would pass it; not part of what is compared."""

    def __post_init__(self) -> None:
        if self.seeds < equivalence.LEAST:
            raise LfError(f"--seeds {self.seeds}: equality needs at least {equivalence.LEAST} pairs of runs.")
        if self.steps % self.every:
            raise LfError(f"--steps {self.steps} is no multiple of --every {self.every}, so the end would not be "
                          "measured; change one of them.")

    @property
    def margins(self) -> dict[str, float]:
        """By figure."""
        words = dict.fromkeys(WORDS, self.margin_words) if self.words else {}
        return {"success": self.margin_success, "action_mse": self.margin_mse, **words}


PRESETS: dict[str, Options] = {
    "tiny": Options(),
    "small": Options("small", samples=8192, steps=480, lr=None, every=160, words=100, target_success=0.6),
}
"""By size; what a caller gives replaces it. That a base learns its new task so was seen at size `tiny` on a CPU: from a
success of 0, also that of not looking, to 0.59 after 200 steps and 0.85 after all 400.

`small` in these steps is still to be seen. In the record of `bench base`, whose learning rate falls over 1000 steps of
64 samples, success was 0.34 to 0.83 after 250 steps, 0.79 to 0.90 after 500, and 0.99 or more at the end; here it has
fallen after 480 steps, so that they should end near 0.9. The target lies lower, so that no run misses it by chance.
More steps would pass what five runs as found may take, which is 20 minutes of one H200: at 85 samples/s the 15,360
samples take 181 seconds, and the start and four measurements about a minute, which makes 20 minutes of five. With all
levers, at 2,700 samples/s, they take 6 seconds, and what loading kernels and recording graphs takes: about 7 minutes of
five, most of it start and measurements."""


def preset(size: str, **given: Any) -> Options:
    """The size's options with those that are given and not None. Raises LfError for a size that has none."""
    if size not in PRESETS:
        raise LfError(f"bench quality: there is no base of size '{size}'; {nearest(size, PRESETS)}")
    return replace(PRESETS[size], **{name: value for name, value in given.items() if value is not None})


@dataclass
class Proof:
    """The pairs of runs so far: {arm: {seed: run}}, and why the bench ended before all were done."""

    options: Options
    jobs: Jobs
    runs: dict[str, dict[int, Run]] = field(default_factory=lambda: {arm: {} for arm in ARMS})
    failed: dict[str, str] = field(default_factory=dict)
    ended: str = ""

    @property
    def pairs(self) -> list[int]:
        """Seeds whose runs are done in both arms."""
        return [seed for seed in range(self.options.seeds) if all(seed in self.runs[arm] for arm in ARMS)]


def run(options: Options, keep: Callable[[Proof], Any] = lambda proof: None) -> Proof:
    """Run what is still to be run, arm by arm of each seed; `keep` is called after each run.

    The base is made first where there is none. Raises LfError where it can't be made, or a run of the first pair fails.
    """
    proof = Proof(options, Jobs.of("quality", options))
    print(plan(options), flush=True)
    recipes = _recipes(options)
    began, longest = monotonic(), dict.fromkeys(ARMS, 0.0)
    for arm in ARMS:
        _compile(proof, arm, recipes[arm])
    for seed in range(options.seeds):
        for arm in ARMS:
            name, before = f"{arm} #{seed}", monotonic()
            left = None if options.minutes is None else 60 * options.minutes - (before - began)
            if name not in proof.jobs.done and left is not None and left < 1.1 * longest[arm]:
                proof.ended = f"{name} would have passed the {options.minutes:g} minutes; call it again to go on"
                return proof
            _one(proof, arm, seed, recipes[arm])
            longest[arm] = max(longest[arm], monotonic() - before)
            keep(proof)
    return proof


def plan(options: Options) -> str:
    """What is fixed before the first run, and how likely equality can be shown, in sentences."""
    margins = ", ".join(f"{name} ±{100 * margin:.3g} {'% of it' if name == 'action_mse' else 'points'}"
                        for name, margin in options.margins.items())
    chances = ", ".join(f"{equivalence.power(options.seeds, 1.0, ratio):.0%} at {ratio:g}" for ratio in (0.25, 0.5, 1))
    return (f"target: success {options.target_success:g} and action MSE {options.target_mse:g}. Margins, fixed before "
            f"the runs: {margins}. Power of {options.seeds} pairs by the scatter of a pair's difference in margins: "
            f"{chances}.")


def _compile(proof: Proof, arm: str, job: Recipe) -> None:
    """Fill the compile cache by a job of a few steps, where the arm compiles; nothing of it is measured."""
    if job.compile.scope == "none":
        return
    from lfhelpers.levers.compile import SAVE_AFTER

    steps = max(job.untimed(machine(1).device), SAVE_AFTER) + 1
    nothing = {f"evaluate.{name}": 0 for name in ("samples", "episodes", "words", "every")}
    proof.jobs.run(f"{arm}, compiled", job.with_(name=f"{job.name}-compiled", steps=steps, **nothing), 1)


def _one(proof: Proof, arm: str, seed: int, job: Recipe) -> None:
    name = f"{arm} #{seed}"
    try:
        found = proof.jobs.run(name, job.with_(seed=seed), 1)
    except LfError as error:
        if seed == 0:
            raise
        proof.failed[name] = str(error)
        return
    proof.runs[arm][seed] = found
    last = curve(found)[-1]
    print(f"{name}: success {curve(found)[0]['success']:.2f} to {last['success']:.2f}, action MSE "
          f"{last['action_mse']:.4f}, {last['seconds']:.0f} s of training", flush=True)


def curve(found: Run) -> list[dict[str, float]]:
    """A run's measurements, the one before the first step included."""
    quality = found.summary["quality"]
    return [quality["before"] | {"step": 0, "samples": 0, "seconds": 0.0}, *quality["curve"]]


def _recipes(options: Options) -> dict[str, Recipe]:
    """Both arms' recipes: as found, and with every lever that this machine can pull; all else is the same.

    Pictures stay as they are: what is frozen learnt to see them so, and a crop would move what is to be grasped.
    """
    base = load(options.size)
    folder = made(base, options.size)
    shared = {"workload.size": options.size, "workload.base": str(folder), "steps": options.steps,
              "data.path": str(demonstrations(base.finetune, options.samples)), "batch.micro": options.micro,
              "data.augment": False, "optimizer.lr": options.lr,
              "log.probe": False, "evaluate.task": base.finetune, "evaluate.samples": options.episodes,
              "evaluate.episodes": options.episodes, "evaluate.every": options.every,
              **({"workload.text_loss": 0.1, "evaluate.words": options.words} if options.words else {})}
    found = recipe("as_found", **shared).with_(*options.overrides)
    return {"as_found": found, "full": stack(found, machine(1)).with_(name="full")}

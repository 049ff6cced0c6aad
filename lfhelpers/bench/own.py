"""`lfhelpers bench own`: what two plain workloads gain over their own plain loops, and what watching a loop costs.

Both sides are whole jobs, from shards to weights, on the same samples, in turns. The gain is a ratio of rates, and by
what a side differs from itself it may be wrong. What a loop learns stands beside it: the loss of its last quarter.
"""

from __future__ import annotations

import statistics as plain
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lfhelpers import runs
from lfhelpers.bench.climb import machine
from lfhelpers.bench.own_loop import RESULT
from lfhelpers.errors import LfError
from lfhelpers.launch import launch
from lfhelpers.launch.prepare import prepare
from lfhelpers.levers.table import fitting
from lfhelpers.measure import hardware, statistics
from lfhelpers.measure.record import Record, Row
from lfhelpers.recipe import Recipe, recipe

EXAMPLES = {"image": "image_classifier.py:ImageClassifier", "language": "language_model.py:LanguageModel"}
PARTS = (*EXAMPLES, "watch")
END = 4
"""The last quarter of the steps is what a loop has learnt."""


@dataclass(frozen=True)
class Options:
    """What is measured: parts, rounds of both sides, timed steps of a job, blocks of the watched loop."""

    parts: tuple[str, ...] = PARTS
    rounds: int = 5
    steps: int = 300
    blocks: int = 40
    micro: int | None = None
    """Samples a step; 64 on a GPU and 8 on a CPU if none is given."""
    overrides: tuple[str, ...] = ()
    """Of both sides."""


def examples() -> Path:
    """The folder of the example workloads. Raises LfError where the project's checkout isn't at hand."""
    folder = runs.project() / "notebooks" / "workloads"
    if not folder.is_dir():
        raise LfError(f"there are no example workloads in {folder}; they come with a checkout of the project.")
    return folder


def run(options: Options, keep: Callable[[Record], object] = lambda record: None) -> Record:
    """Measure the parts; keep: is given the record so far after each job. Raises LfError where a job fails."""
    for part in options.parts:
        if part not in PARTS:
            raise LfError(f"--part {part}: take {', '.join(PARTS)}.")
    record = Record("own_workloads", asdict(options) | {"recipes": {}, "failed": {}}, [], {}, 0.0)
    for part in options.parts:
        for found in _watch(record, options) if part == "watch" else _gains(record, part, options):
            record = found
            keep(record)
    return record


def _bases(part: str, options: Options) -> tuple[Recipe, Recipe]:
    """(plain, with every lever that fits): the same size, batch and samples."""
    gpu = hardware.device()[0] == "cuda"
    use = f"{examples() / EXAMPLES[part]}"
    common = [f"workload.use={use}", f"workload.size={'full' if gpu else 'tiny'}", "data.augment=false",
              "optimizer.schedule=constant", "optimizer.warmup=0.0",
              f"batch.micro={options.micro or (64 if gpu else 8)}", *options.overrides]
    tuned = fitting(machine(1, use), recipe("as_found", *common)).with_(name=f"{part}-full")
    steps = tuned.untimed("cuda" if gpu else "cpu") + options.steps
    return recipe("as_found", *common, name=f"{part}-plain", steps=steps), tuned.with_(steps=steps + 1)


def _gains(record: Record, part: str, options: Options) -> Iterator[Record]:
    """The record with one round more, again and again."""
    base, tuned = _bases(part, options)
    rates: dict[str, list[float]] = {"plain": [], "full": []}
    losses: dict[str, list[float]] = {"plain": [], "full": []}
    for turn in range(options.rounds):
        for side in list(rates)[::1 if turn % 2 == 0 else -1]:
            rate, loss = _plain(base) if side == "plain" else _full(tuned)
            rates[side].append(rate)
            losses[side].append(loss)
        yield _with(record, part, tuned, rates, losses)


def _plain(job: Recipe) -> tuple[float, float]:
    """(samples/s, loss) of the plain loop."""
    found = launch(prepare(job, 1), 1, watch=False, module="lfhelpers.bench.own_loop").read(RESULT)
    return found["samples_per_s"], found["loss"]


def _full(job: Recipe) -> tuple[float, float]:
    """(samples/s, loss) of lfhelpers' loop."""
    done = launch(prepare(job, 1), 1, watch=False)
    rows = done.steps()
    return done.summary["samples_per_s"], plain.fmean(row["loss"] for row in rows[-max(1, len(rows) // END):])


def _with(record: Record, part: str, tuned: Recipe, rates: dict[str, list[float]], losses: dict[str, list[float]]
          ) -> Record:
    """The record with what a part has found so far."""
    rows = [row for row in record.rows if not row.name.startswith(part)]
    rows += [Row.of(f"{part}, {side}", values, "samples/s") for side, values in rates.items()]
    rows += [Row.of(f"{part}, {side}", values, "loss at the end") for side, values in losses.items()]
    gain = plain.median(rates["full"]) / plain.median(rates["plain"])
    spread = max((statistics.spread(each[:-1], each[1:]) for each in rates.values() if len(each) > 1), default=0.0)
    rows.append(Row(f"{part}, full over plain", gain, gain / (1 + spread), gain * (1 + spread), "x",
                    len(rates["plain"])))
    settings = record.settings | {"recipes": record.settings["recipes"] | {part: tuned.to_toml()}}
    return replace(record, rows=rows, checks=record.checks | {f"{part}_gain": gain}, settings=settings,
                   aa_spread=max(record.aa_spread, spread))


def _watch(record: Record, options: Options) -> Iterator[Record]:
    """The record with the cost of watching the language model's plain loop."""
    base, _ = _bases("language", options)
    job = launch(prepare(base, 1), 1, watch=False, module="lfhelpers.bench.own_loop",
                 args=["--watched", str(options.blocks)])
    found: dict[str, Sequence[float]] = job.read(RESULT)
    effect = statistics.effect(found["watched"], found["bare"])
    cost = Row("watching a loop", effect.ratio - 1, effect.low - 1, effect.high - 1, "share of the step", effect.n)
    step = Row.of("the watched loop's step, bare", [1e3 * each for each in found["bare"]], "ms")
    yield replace(record, rows=[*record.rows, cost, step], checks=record.checks | {"watch_cost_share": cost.value},
                  aa_spread=max(record.aa_spread, effect.aa_spread))

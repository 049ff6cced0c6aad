"""What runs as each rank of `lfhelpers bench ddp`: one part of it, in a job of its own.

`levers` asks what the stack wins over as found on several ranks, what the exchange costs it, and whether the tuner
finds the best buckets; `scaling` what the exchange costs another size; `slow` what levers win where the link is slow.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from lfhelpers.bench.ddp_trials import STEPS, Bench, Trials, drop, exposed_ms, row_ms
from lfhelpers.bench.trainer import Trainer
from lfhelpers.levers import slow_link
from lfhelpers.measure import link as links
from lfhelpers.measure.link import Link
from lfhelpers.measure.record import Row
from lfhelpers.recipe import Recipe, recipe
from lfhelpers.runs import Run
from lfhelpers.train.ranks import Ranks, identify, joined


def levers(bench: Bench) -> None:
    """The tuner; the full stack with its buckets, with and without exchange, and against as found; then a sweep.

    Buckets are tuned without sharding, whose shorter update would be taken for a shorter exchange.
    """
    job, name, link = bench.run.recipe, title(bench.run.recipe), _link(bench)
    plain, alone = _pair(bench, job.with_(**{"ddp.in_place": True, "ddp.shard_optimizer": False}))
    trials = Trials(bench, plain, alone, link)
    bench.keep(tuner=trials.told(), checks={"tuner_exposed_error": trials.choice.exposed_error})
    full = _warm(job.with_(**{"ddp.bucket_mb": None, "ddp.bucket_list_mb": trials.choice.best.limits}), bench.ranks)
    _scaling(bench, full, alone, name, "")
    base = _warm(_as_found(job), bench.ranks)
    compared = bench.compare(base, full)
    effect = compared.effect
    bench.keep(rows=[row_ms(f"{name} as found", compared.a), row_ms(f"{name} full", compared.b),
                     asdict(Row(f"{name} full", effect.ratio, effect.low, effect.high, "x as found", effect.n))],
               checks={f"{name}_over_as_found": effect.ratio})
    bench.say(f"{name}: full over as found {effect}")
    for trainer in (base, full):
        drop(trainer)
    for over_best in trials.sweep():
        bench.keep(checks={"tuner_over_best": over_best}, tuner=trials.told())


def scaling(bench: Bench) -> None:
    """The full stack of another size, or with another way to exchange, with and without exchange."""
    job = bench.run.recipe
    full, alone = _pair(bench, job)
    way = "" if job.ddp.shard_optimizer else "in place" if job.ddp.in_place else "DDP"
    _scaling(bench, full, alone, " ".join(filter(None, [title(job), way])),
             {"": "small_", "in place": "in_place_", "DDP": "ddp_"}[way])


def slow(bench: Bench) -> None:
    """Over a slowed link: DDP as it comes, against 16-bit gradients, four micro-batches an exchange, tuned buckets."""
    job, link = bench.run.recipe, _link(bench)
    name = f"{title(job)} over the slow link"
    for when, fields in (("before", {}), ("after", {"ddp.hook": "bf16", "batch.accumulate": 4})):
        trainer, alone = _pair(bench, job.with_(**fields))
        if fields:
            bench.keep(tuner=Trials(bench, trainer, alone, link).told())
        compared = bench.compare(trainer, alone)
        step, exposed = 1e3 * statistics.median(compared.a) / STEPS, exposed_ms(bench, trainer)
        bench.keep(rows=[row_ms(f"{name}, {when}", compared.a),
                         row_ms(f"{name}, {when}, without exchange", compared.b)],
                   checks={f"slow_link_exposed_{when}": exposed["exposed_ms"] / step},
                   exposed={f"slow link, {when}": exposed | {"step_ms": step}})
        bench.say(f"{name}, {when}: {step:.1f} ms a step, {exposed['exposed_ms']:.1f} ms of it exposed exchange")
        drop(trainer)
        drop(alone)


PARTS: dict[str, Callable[[Bench], None]] = {"levers": levers, "scaling": scaling, "slow": slow}


def title(job: Recipe) -> str:
    """As in full_mb16."""
    return f"{job.workload.size}_mb{job.batch.micro}"


def _link(bench: Bench) -> Link:
    """The link as it is for this job, measured; a slowed one only as far as it takes moments."""
    declared, device = bench.run.recipe.ddp.slow_link, bench.ranks.device
    if declared:
        found = Link.from_dict(slow_link.measure(declared, device)["measured"])
    else:
        found, times = links.sweep(device)
        bench.keep(rows=[asdict(Row.of(f"all-reduce of {size} bytes", values, "ms")) for size, values in times.items()])
    bench.keep(link=found.as_dict())
    bench.say(str(found))
    return found


def _pair(bench: Bench, job: Recipe) -> tuple[Trainer, Trainer]:
    """A trainer over all ranks, and one of the same recipe without exchange; both warm."""
    return _warm(job, bench.ranks), _warm(job, bench.ranks.alone())


def _warm(job: Recipe, ranks: Ranks) -> Trainer:
    trainer = Trainer(job, ranks)
    trainer.warm_up()
    return trainer


def _scaling(bench: Bench, full: Trainer, alone: Trainer, name: str, prefix: str) -> None:
    """The step of `full` against the same without exchange, and how much of the exchange is exposed."""
    compared = bench.compare(full, alone)
    step, without = (1e3 * statistics.median(times) / STEPS for times in (compared.a, compared.b))
    exposed = exposed_ms(bench, full)
    bench.keep(rows=[row_ms(f"{name} full, with exchange", compared.a),
                     row_ms(f"{name} full, without exchange", compared.b)],
               checks={f"{prefix}scaling_efficiency": 1 / compared.effect.ratio,
                       f"{prefix}exposed_share": exposed["exposed_ms"] / step},
               exposed={name: exposed | {"added_ms": step - without, "step_ms": step}})
    bench.say(f"{name}: {step:.2f} ms with exchange, {without:.2f} without; {exposed['exposed_ms']:.2f} ms exposed, "
              f"{exposed['transfer_ms']:.2f} of them transfer")


def _as_found(job: Recipe) -> Recipe:
    """The recipe that the playbook starts from, of the same size and batch."""
    return recipe("as_found", f"workload.size={job.workload.size}", f"batch.micro={job.batch.micro}", "log.skip=5",
                  f"steps={job.steps}", f"device={job.device}", f"precision.mode={job.precision.mode}")


def main() -> None:
    """`python -m lfhelpers.bench.ddp_ranks RUN_FOLDER PART BLOCKS SECONDS`, started by torchrun."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("blocks", type=int)
    parser.add_argument("seconds", type=float, help="after which no further plan of the sweep begins")
    options = parser.parse_args()
    run = Run(options.run)
    ranks = identify(run.recipe.device)
    ranks.take_device()
    with joined(ranks, run.recipe.ddp.slow_link):
        PARTS[options.part](Bench(run, ranks, options.blocks, options.seconds))


if __name__ == "__main__":
    main()

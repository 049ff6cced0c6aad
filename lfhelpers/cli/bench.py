"""`lfhelpers bench`: measure one claim, print the table beside the record of this machine, and leave a new record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lfhelpers.cli.recording import Onto, Out, finish, keeping

bench_app = typer.Typer(no_args_is_help=True, help="Measure speed, and compare it with what is on record.\n\n"
                                                   "Example: lfhelpers bench data --quick")


@bench_app.command("data")
def data(
    folder: Annotated[Path | None, typer.Option("--data", help="Folder of shards; else a rendered set.")] = None,
    images: Annotated[int, typer.Option(min=64, help="Samples of the rendered set.")] = 1024,
    only: Annotated[list[str] | None, typer.Option(help="An engine to measure; repeatable; all if none.")] = None,
    seconds: Annotated[float, typer.Option(min=0.05, help="Of timing, for each measurement.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds at most.")] = 5,
    minutes: Annotated[float, typer.Option(min=0.1, help="No further round begins that would pass this.")] = 4.0,
    quick: Annotated[bool, typer.Option(help="Short and rough: all cores alone, two rounds.")] = False,
    compare: Annotated[bool, typer.Option("--engines/--no-engines", help="Compare the engines.")] = True,
    sweep: Annotated[bool, typer.Option(help="Read shards of 100 MB to 4 GB and small files, cold.")] = False,
    size_mb: Annotated[list[int] | None, typer.Option(min=1, help="Sweep: a shard's size; repeatable.")] = None,
    train: Annotated[bool, typer.Option(help="Train `small` and see what it waits for data.")] = False,
    out: Out = None,
    onto: Onto = None,
) -> None:
    """Images a second of every data engine, what one costs, and the ceilings beside it.

    Example: lfhelpers bench data --data shards --quick
    """
    from lfhelpers.bench.data import Options, run
    from lfhelpers.bench.data_engines import ENGINES
    from lfhelpers.bench.data_sweep import SIZES_MB

    sizes = tuple(size_mb or SIZES_MB) if sweep or size_mb else ()
    options = Options(folder, images, tuple(only or ENGINES), seconds, rounds, minutes, quick, compare, sizes, train)
    finish(run(options, keeping(out, onto)), out, onto)


@bench_app.command("step")
def step(
    case: Annotated[list[str] | None, typer.Option(help="SIZE_mbMICRO, as full_mb16; repeatable; else all.")] = None,
    blocks: Annotated[int, typer.Option(min=3, help="Blocks of five steps, of each side of a comparison.")] = 6,
    compiling: Annotated[bool, typer.Option("--compile/--no-compile", help="Time compilation, cold and warm.")] = True,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="field=value, for all rungs.")] = None,
    out: Out = None,
    onto: Onto = None,
) -> None:
    """One training step, lever by lever, against the step as found.

    Example: lfhelpers bench step --case full_mb16 --blocks 6
    """
    from lfhelpers.bench.step import cases, run

    keep = keeping(out, onto)
    finish(run(cases(case or []), blocks, "full" if compiling else None, overrides or [], keep), out, onto)


@bench_app.command("diagnosis")
def diagnosis(
    fault: Annotated[list[str] | None, typer.Option(help="A fault by its name; repeatable; else all six.")] = None,
    blocks: Annotated[int, typer.Option(min=3, help="Blocks of each side of a comparison.")] = 8,
    steps: Annotated[int, typer.Option(min=1, help="Steps a block.")] = 4,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="field=value, for all faults.")] = None,
    out: Out = None,
    onto: Onto = None,
) -> None:
    """Faults planted in the reference workload: is each found, and is it told rightly what its removal wins?

    Example: lfhelpers bench diagnosis --blocks 8
    """
    from lfhelpers.bench.diagnosis import run, selected

    finish(run(selected(fault or [], overrides or []), blocks, steps, keeping(out, onto)), out, onto)


@bench_app.command("ffn")
def ffn(
    only: Annotated[list[str] | None, typer.Option("--part", help="correctness, kernels, small or full.")] = None,
    blocks: Annotated[int, typer.Option(min=3, help="Blocks of five steps, of each side of a comparison.")] = 6,
    rounds: Annotated[int, typer.Option(min=3, help="Of each kernel at most; bf16 both ways four times.")] = 12,
    out: Out = None,
    onto: Onto = None,
) -> None:
    """The fused gated FFN in CUDA C++, in Triton and by torch.compile, against eager; and what a step gains.

    Example: lfhelpers bench ffn --part kernels
    """
    from lfhelpers.bench.ffn import run

    finish(run(only or [], blocks, rounds, keeping(out, onto)), out, onto)


@bench_app.command("base")
def base(
    name: Annotated[str, typer.Argument(help="The base: small, tiny, or its recipe's file.")] = "small",
    part: Annotated[list[str] | None, typer.Option(help="make or finetune; repeatable; else both.")] = None,
    again: Annotated[bool, typer.Option("--again/--keep", help="Make the base anew where there is one.")] = True,
    seeds: Annotated[int, typer.Option(min=1, help="Fine-tuned runs.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Of each.")] = 1000,
    micro: Annotated[int, typer.Option(min=1, help="Samples a step.")] = 64,
    samples: Annotated[int, typer.Option(min=64, help="Demonstrations to fine-tune on.")] = 8192,
    every: Annotated[int, typer.Option(min=1, help="Steps between measurements.")] = 250,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="field=value, of the fine-tuned recipe.")] = None,
    base_set: Annotated[list[str] | None, typer.Option(help="field=value, of the base's recipe.")] = None,
    out: Out = None,
    onto: Onto = None,
) -> None:
    """A base from nothing, and what fine-tuning from it learns on a task that it has not seen.

    Example: lfhelpers bench base small --seeds 3
    """
    from lfhelpers.bench.base import PARTS, Options, run

    options = Options(name, tuple(part or PARTS), again, seeds, steps, micro, samples, every, tuple(overrides or ()),
                      tuple(base_set or ()))
    finish(run(options, keeping(out, onto)), out, onto)


@bench_app.command("quality")
def quality(
    size: Annotated[str, typer.Argument(help="The base's size: tiny or small.")] = "tiny",
    seeds: Annotated[int | None, typer.Option(min=3, help="Pairs of runs.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Of each run.")] = None,
    micro: Annotated[int | None, typer.Option(min=1, help="Samples a step.")] = None,
    samples: Annotated[int | None, typer.Option(min=64, help="Demonstrations to fine-tune on.")] = None,
    lr: Annotated[float | None, typer.Option(min=0, help="Peak learning rate.")] = None,
    every: Annotated[int | None, typer.Option(min=1, help="Steps between measurements.")] = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="Held-out episodes of a measurement.")] = None,
    words: Annotated[int | None, typer.Option(min=0, help="Held-out scenes for captions and questions.")] = None,
    target_success: Annotated[float | None, typer.Option(min=0, max=1, help="Share of episodes.")] = None,
    target_mse: Annotated[float | None, typer.Option(min=0, help="Action MSE, open loop.")] = None,
    margin_success: Annotated[float | None, typer.Option(min=0, help="Absolute: 0.05 is 5 points.")] = None,
    margin_mse: Annotated[float | None, typer.Option(min=0, help="A share of it: 0.1 is 10 %.")] = None,
    margin_words: Annotated[float | None, typer.Option(min=0, help="Absolute, of BLEU-4 and of answers.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="No run begins that would pass this.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="field=value, of both recipes.")] = None,
    out: Out = None,
) -> None:
    """Fine-tune from the base to a target as found and with all levers: how much sooner, and is it as good?

    Stopped, killed or out of minutes, the same command goes on with the runs that are done.

    Example: lfhelpers bench quality small --minutes 8
    """
    from lfhelpers.bench.quality import preset, run
    from lfhelpers.bench.quality_record import record

    given = {"seeds": seeds, "steps": steps, "micro": micro, "samples": samples, "lr": lr, "every": every,
             "episodes": episodes, "words": words, "target_success": target_success, "target_mse": target_mse,
             "margin_success": margin_success, "margin_mse": margin_mse, "margin_words": margin_words,
             "minutes": minutes, "overrides": tuple(overrides) if overrides else None}
    keep = keeping(out)
    proof = run(preset(size, **given), lambda so_far: keep(record(so_far)))
    found = record(proof)
    finish(found, out)
    for name, test in found.settings["tests"].items():
        print(f"{name}: {test['said']}")
    if proof.ended:
        print(f"not done: {proof.ended}.")


@bench_app.command("memory")
def memory(
    only: Annotated[list[str] | None, typer.Option("--part", help="plans, widened or pace; repeatable.")] = None,
    micro: Annotated[int | None, typer.Option(min=1, help="Micro-batch of `plans`.")] = None,
    thorough: Annotated[bool, typer.Option("--thorough/--quick", help="All budgets, longer timing.")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="field=value, for all parts.")] = None,
    out: Out = None,
    onto: Onto = None,
) -> None:
    """Where memory goes, what recomputation frees and costs, and what the freed memory wins.

    Example: lfhelpers bench memory --part plans --micro 16
    """
    from lfhelpers.bench.memory import QUICK, Effort, run

    finish(run(only or [], micro, Effort() if thorough else QUICK, overrides or [], keeping(out, onto)), out, onto)


@bench_app.command("pitfalls")
def pitfalls(
    only: Annotated[list[str] | None, typer.Option("--pitfall", help="By its name; repeatable; else all.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Clean runs, and runs of each planted fault.")] = 20,
    out: Out = None,
    onto: Onto = None,
) -> None:
    """Every pitfall broken and cured, false alarms in clean runs, and what the detectors cost.

    Example: lfhelpers bench pitfalls --runs 20
    """
    from lfhelpers.bench.pitfalls import run
    from lfhelpers.pitfalls import NAMES

    finish(run(tuple(only or NAMES), runs, keeping(out, onto)), out, onto)


@bench_app.command("own")
def own(
    only: Annotated[list[str] | None, typer.Option("--part", help="image, language or watch; repeatable.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Jobs of each side, in turns.")] = 5,
    steps: Annotated[int, typer.Option(min=5, help="Timed steps of each job.")] = 300,
    blocks: Annotated[int, typer.Option(min=3, help="Of the watched loop, and of the bare one.")] = 40,
    micro: Annotated[int | None, typer.Option(min=1, help="Samples a step.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="field=value, of both sides.")] = None,
    out: Out = None,
    onto: Onto = None,
) -> None:
    """The example workloads against their own plain loops, and what lf.watch costs a loop.

    Example: lfhelpers bench own --part watch
    """
    from lfhelpers.bench.own import PARTS, Options, run

    options = Options(tuple(only or PARTS), rounds, steps, blocks, micro, tuple(overrides or ()))
    finish(run(options, keeping(out, onto)), out, onto)

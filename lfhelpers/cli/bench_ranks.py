"""`lfhelpers bench ddp`, `link` and `hooks`: benchmarks of several ranks."""

from __future__ import annotations

from typing import Annotated

import typer

from lfhelpers.cli.bench_trace import bench_app
from lfhelpers.cli.recording import Onto, Out, finish, keeping


@bench_app.command("ddp")
def ddp(
    ranks: Annotated[int, typer.Option(min=2, help="Ranks, on GPUs one each.")] = 2,
    only: Annotated[list[str] | None, typer.Option("--part", help="levers, ddp, in_place, small or slow_link.")] = None,
    blocks: Annotated[int, typer.Option(min=3, help="Blocks of five steps, of each side of a comparison.")] = 6,
    slow_link: Annotated[str | None, typer.Option(help="The slowed link, as ddp.slow_link: nccl:socket.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="field=value, for all parts.")] = None,
    out: Out = None,
    onto: Onto = None,
) -> None:
    """What several ranks win, what their exchange costs, and whether the tuner's buckets are the best.

    Example: lfhelpers bench ddp --ranks 2
    """
    from lfhelpers.bench.ddp import parts, run, selected

    finish(run(selected(parts(overrides or [], slow_link), only or []), ranks, blocks, keeping(out, onto)),
           out, onto)


@bench_app.command("link")
def link(
    ranks: Annotated[int, typer.Option(min=2, help="Ranks, on GPUs one each.")] = 2,
    repeats: Annotated[int, typer.Option(min=3, help="Of each size.")] = 15,
    slow_link: Annotated[str | None, typer.Option(help="Slow it on purpose, as ddp.slow_link: nccl:shm.")] = None,
    out: Out = None,
    onto: Onto = None,
) -> None:
    """What a message between ranks costs, by its size.

    Example: lfhelpers bench link --ranks 2
    """
    from lfhelpers.bench.link import run

    finish(run(ranks, repeats, slow_link), out, onto)


@bench_app.command("hooks")
def hooks(
    only: Annotated[list[str] | None, typer.Option("--hook", help="bf16, fp16, powersgd, onebit_adam, sharded")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Paired seeds; from 3 on equality is tested.")] = 5,
    steps: Annotated[int, typer.Option(min=10, help="Of each of them.")] = 200,
    ranks: Annotated[int, typer.Option(min=2, help="Ranks, on GPUs one each.")] = 2,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="field=value, for all of them.")] = None,
    out: Out = None,
    onto: Onto = None,
) -> None:
    """Ways to exchange gradients: bytes, time, and whether the loss is the same over seeds.

    Example: lfhelpers bench hooks --seeds 5
    """
    from lfhelpers.bench.hooks_record import NAMES, job_of, run

    finish(run(only or NAMES, seeds, steps, ranks, job_of(overrides or ()), keeping(out, onto)), out, onto)

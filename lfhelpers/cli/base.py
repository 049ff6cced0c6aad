"""`lfhelpers base`: make base checkpoints, look at them, and sweep their recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

base_app = typer.Typer(no_args_is_help=True, help="Make the checkpoints that recipes fine-tune from.\n\n"
                                                  "Example: lfhelpers base make small")

Name = Annotated[str, typer.Argument(help="tiny, small, or the TOML file of a base's recipe.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="field=value: stages.0.lr=1e-3; repeatable.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


@base_app.command("make")
def make(
    name: Name,
    sets: Sets = None,
    device: Device = "auto",
    again: Annotated[bool, typer.Option(help="Make it anew where it is there already.")] = False,
    upto: Annotated[str | None, typer.Option(help="The last stage to carry out.")] = None,
) -> None:
    """Make a base, stage by stage; one that is there is kept, one that was interrupted is continued.

    Example: lfhelpers base make tiny --upto sight
    """
    from lfhelpers.quality.captions import lines
    from lfhelpers.train.base.make import make as build
    from lfhelpers.train.base.recipe import load
    from lfhelpers.workloads.vla.pretrained import card

    base = load(name, *(sets or []))
    folder = build(base.upto(upto) if upto else base, device, again, _tell)
    about = card(folder)
    print(lines(about["figures"]))
    print(f"{about['samples']} samples in {about['seconds'] / 60:.1f} minutes, measuring not counted; base: {folder}")
    if not about["met"]:
        print(f"its targets are not met: {about['targets']}")
        raise typer.Exit(1)


@base_app.command("sweep")
def sweep(
    name: Name,
    tried: Annotated[list[str], typer.Option("--try", help="field=value,value: all combinations; repeatable.")],
    sets: Sets = None,
    device: Device = "auto",
    upto: Annotated[str | None, typer.Option(help="The last stage to carry out.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="At most, for each combination.")] = 600.0,
) -> None:
    """Make a base with every combination of values, each in a process of its own, and print what came of it.

    Example: lfhelpers base sweep tiny --try stages.0.lr=1e-3,3e-3 --seconds 300
    """
    from lfhelpers.errors import LfError
    from lfhelpers.measure import isolated
    from lfhelpers.train.base.sweep import combinations, one

    for overrides in combinations(tried):
        changes = [*(sets or []), *overrides]
        try:
            figures: Any = isolated.call(one, name, changes, device, upto, timeout=seconds)
        except LfError as error:
            figures = str(error)
        print(f"{' '.join(overrides)}: {figures}", flush=True)


@base_app.command("show")
def show(base: Annotated[str, typer.Argument(help="A base's name or folder.")]) -> None:
    """What is known of a base that was made.

    Example: lfhelpers base show tiny
    """
    from lfhelpers.quality.captions import lines
    from lfhelpers.workloads.vla.pretrained import card, find

    folder: Path = find(base)
    about = card(folder)
    print(f"{folder}\nmade {about['made']} on {about['hardware']}, recipe and code {about['digest']}")
    print(lines(about["figures"]))


def _tell(point: dict[str, Any]) -> None:
    """One line a measurement."""
    named = {key: value for key, value in point.items() if key.startswith("loss_") or key in
             ("success", "action_mse", "question_accuracy", "bleu4", "cider")}
    figures = ", ".join(f"{key.replace('_', ' ')} {value:.3f}" for key, value in named.items())
    print(f"{point['stage']} step {point['step']}, {point['seconds']:.0f} s: {figures}", flush=True)

"""The command `lfhelpers`. A mistake ends it with one sentence and exit code 2; a failed job or notebook with 1."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from typer.models import CommandInfo, Default, TyperInfo

from lfhelpers.cli.base import base_app
from lfhelpers.cli.bench_ranks import bench_app
from lfhelpers.cli.data import data_app
from lfhelpers.cli.diagnose import ablate as ablate_command
from lfhelpers.cli.diagnose import diagnose as diagnose_command
from lfhelpers.cli.ladder import ladder as ladder_command
from lfhelpers.cli.own import explain as explain_command
from lfhelpers.cli.own import new_workload as new_workload_command
from lfhelpers.cli.pitfalls import check as check_command
from lfhelpers.cli.pitfalls import replay as replay_command
from lfhelpers.cli.plan import plan as plan_command
from lfhelpers.cli.results import results as results_command
from lfhelpers.cli.tune import tune as tune_command
from lfhelpers.cli.words import job_of
from lfhelpers.errors import LfError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Cut a training run to half its time, and prove that quality did not change.\n\n"
                       "Begin with lfhelpers doctor, then lfhelpers playbook. Each --help has an example.\n\n"
                       "Example: lfhelpers launch recipe=competent workload.size=tiny --nproc 2")
recipe_app = typer.Typer(no_args_is_help=True, help="Show and compare recipes.\n\n"
                                                    "Example: lfhelpers recipe diff as_found full")
app.add_typer(recipe_app, name="recipe")
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")
app.add_typer(base_app, name="base")
app.command("diagnose")(diagnose_command)
app.command("ablate")(ablate_command)
app.command("ladder")(ladder_command)
app.command("results")(results_command)
app.command("plan")(plan_command)
app.command("tune")(tune_command)
app.command("explain")(explain_command)
app.command("new-workload")(new_workload_command)
app.command("check")(check_command)
app.command("replay")(replay_command)

Overrides = Annotated[list[str] | None, typer.Argument(
    help="recipe=NAME or FILE.toml, and fields to change: workload.size=small batch.micro=32", show_default=False)]


@app.command()
def launch(
    overrides: Overrides = None,
    nproc: Annotated[int, typer.Option(help="Processes on this host, one a GPU.")] = 1,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps; the same as steps=N.")] = None,
    resume: Annotated[str | None, typer.Option(help="A run to continue from its newest checkpoint.")] = None,
    port: Annotated[int | None, typer.Option(help="Where the ranks meet; a free port if none is given.")] = None,
    profile: Annotated[bool, typer.Option(help="Record three of the last steps: log.profile=true.")] = False,
    hosts: Annotated[str | None, typer.Option(help="a,b: prints what to run on each; --nproc counts on each.")] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="Submit to Slurm; --nproc counts on each node.")] = False,
    nodes: Annotated[int, typer.Option(min=1, help="Slurm: nodes.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="Slurm: GPUs a node, a rank each; 0: on CPUs.")] = 0,
    time: Annotated[str, typer.Option(help="Slurm: time limit, at which the job is queued again.")] = "1:00:00",
    sbatch: Annotated[list[str] | None, typer.Option(help="Slurm: an option more, as --sbatch=--partition=x.")] = None,
) -> None:
    """Train a recipe in a run folder of its own, through torchrun, and show where its steps' time went.

    Example: lfhelpers launch recipe=competent workload.size=tiny --nproc 2
    """
    from lfhelpers.diagnose import diagnose
    from lfhelpers.launch import launch as start
    from lfhelpers.runs import load

    changes = [*(overrides or []), *([f"steps={steps}"] if steps is not None else []),
               *(["log.profile=true"] if profile else [])]
    job = load(resume).recipe if resume and not changes else job_of(changes)
    if slurm:
        from lfhelpers.launch import slurm as cluster

        asked = cluster.Request(nodes, gpus_per_node or nproc, time, gpus_per_node > 0, options=tuple(sbatch or ()))
        run = cluster.submit(job, asked, resume=resume)
        print(f"Slurm job {cluster.job_of(run)}; follow it with: lfhelpers watch {run.id}")
    else:
        run = start(job, nproc, hosts=hosts.split(",") if hosts else None, resume=resume, port=port)
    if done := run.status["state"] == "done":  # else it is still to come
        print(diagnose(run).table())
    print(f"run folder: {run.path}")
    if done and run.recipe.log.profile:
        print(f"traces: lfhelpers diagnose {run.id}")


@app.command()
def runs(count: Annotated[int, typer.Option(help="How many of the newest to list.")] = 20) -> None:
    """List the newest runs with their state and speed.

    Example: lfhelpers runs --count 5
    """
    from lfhelpers.runs import find, root

    print(f"runs in {root()}")
    print(f"{'run':<44} {'state':<8} {'ranks':>5} {'samples/s':>10} {'step ms':>9} {'data wait %':>11}")
    for run in find()[-count:]:
        summary, status = run.summary, run.status
        figures, reason = "", (status["reason"].splitlines() or [""])[0]
        if summary:
            figures = (f"{summary['ranks']:>5} {summary['samples_per_s']:>10.1f} {summary['step_ms']['median']:>9.1f} "
                       f"{summary['report']['percent']['data_wait']:>11.1f}")
        print(f"{run.id:<44} {status['state']:<8} {figures:<38} {reason}")


@app.command()
def watch(run: Annotated[str, typer.Argument(help="A run's name, or part of it.")]) -> None:
    """Follow a running job from another shell; it is not touched.

    Example: lfhelpers watch competent
    """
    from lfhelpers.launch import watch as follow
    from lfhelpers.launch.slurm import wait
    from lfhelpers.runs import load

    found = load(run)
    wait(found, watch=True) if found.read("slurm.json") else follow(found)


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(help="Runs by name, part of a name, or folder; the first is the base.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the report; else `reports` among the runs.")] = None,
    title: Annotated[str | None, typer.Option(help="Its title; else the recipes' names.")] = None,
) -> None:
    """Where the time of runs' steps went: here, and as one HTML file, Markdown for a pull request, and JSON.

    Example: lfhelpers report as_found competent
    """
    from lfhelpers.diagnose.report import Comparison
    from lfhelpers.notebook import compared
    from lfhelpers.notebook.run_report import write

    found = compared.sides(runs)
    first = compared.report_of(compared.base(found))
    others = [side.report for side in found if side.report and side.report is not first]
    print("\n\n".join(str(Comparison(first, other)) for other in others) if others else first.table())
    page = write(found, out, title)
    print(f"report: {page}\nmarkdown: {page.with_suffix('.md')}")


@app.command()
def doctor(
    data: Annotated[Path | None, typer.Option(help="Folder whose disk is measured; else the runs' own.")] = None,
    quick: Annotated[bool, typer.Option(help="Leave out the disk measurement.")] = False,
) -> None:
    """What this machine has, what doesn't fit together, and the fix.

    Example: lfhelpers doctor --quick
    """
    from lfhelpers.diagnose.doctor import examine, render

    raise typer.Exit(render(examine(data, quick)))


@app.command()
def playbook(
    names: Annotated[list[str] | None, typer.Argument(help="Numbers or names; all if none is given.")] = None,
    parameter: Annotated[list[str] | None, typer.Option("--parameter", "-p", help="name=value.")] = None,
    profile: Annotated[str | None, typer.Option(help="smoke or gpu; chosen by the machine if none is given.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Run what is fresh too.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the results; else `playbook` among the runs.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds a notebook may take; 1800, on a GPU 7200.")] = None,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Play on after a notebook that failed.")] = False,
) -> None:
    """Execute the notebooks headless; index.html, playbook.json, copies and pages are left in runs/playbook.

    What is fresh isn't played again: the next call continues one that was stopped.

    Exit codes: 0 done, 1 a notebook failed, 2 a mistake, 75 the folder is in use by another call, 130 interrupted.

    Example: lfhelpers playbook 00 01 -p steps=30 --timeout 600
    """
    from lfhelpers.notebook.runner import play

    raise typer.Exit(play(names or None, parameter or [], profile, force=force, out=out, timeout=timeout,
                          keep_going=keep_going))


@app.command()
def lint(
    paths: Annotated[list[Path] | None, typer.Argument(help="Notebooks; all of the project if none is given.")] = None,
) -> None:
    """Check notebooks without running them.

    Example: lfhelpers lint notebooks/00_start_here.ipynb
    """
    from lfhelpers.notebook.lint import check

    raise typer.Exit(check(paths))


@app.command(hidden=True)
def readme() -> None:
    """Render README.md's figures from the recorded runs.

    Example: lfhelpers readme
    """
    from lfhelpers.notebook.readme import update

    update()


@recipe_app.command("show")
def recipe_show(overrides: Overrides = None) -> None:
    """Print a recipe as TOML.

    Example: lfhelpers recipe show recipe=full batch.micro=32
    """
    print(job_of(overrides or []).to_toml())


@recipe_app.command("diff")
def recipe_diff(
    left: Annotated[str, typer.Argument(help="A recipe's name or TOML file.")],
    right: Annotated[str, typer.Argument(help="Another one.")],
) -> None:
    """Print the fields in which two recipes differ.

    Example: lfhelpers recipe diff as_found full
    """
    from lfhelpers.recipe import diff, recipe

    table = Table("field", left, right)
    for field, (a, b) in diff(recipe(left), recipe(right)).items():
        table.add_row(field, _shown(a), _shown(b))
    Console().print(table)


PANELS = {
    "The playbook": ("doctor", "playbook", "lint"),
    "Train": ("launch", "runs", "watch", "new-workload", "recipe", "data", "base"),
    "Explain": ("report", "diagnose", "ablate", "explain", "check", "replay"),
    "Make it faster, and prove it": ("ladder", "plan", "tune", "results", "bench"),
}
"""How `lfhelpers --help` groups and orders the commands; one that isn't here stands at the end."""


def _arrange() -> None:
    order = [name for names in PANELS.values() for name in names]
    panel = {name: title for title, names in PANELS.items() for name in names}

    def name_of(item: CommandInfo | TyperInfo) -> str:
        return str(item.name or item.callback.__name__) if item.callback else str(item.name)

    items: list[CommandInfo | TyperInfo] = [*app.registered_commands, *app.registered_groups]
    for item in items:
        item.rich_help_panel = panel.get(name_of(item), Default(None))
    app.registered_commands.sort(key=lambda item: order.index(name_of(item)) if name_of(item) in order else len(order))


_arrange()


def main() -> None:
    """Entry point: errors that a user can mend are one line on stderr."""
    from lfhelpers.launch import LaunchError

    try:
        app()
    except LaunchError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    except LfError as error:
        print(f"lfhelpers: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _shown(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

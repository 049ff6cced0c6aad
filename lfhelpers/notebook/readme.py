"""The figures of README.md, rendered from the recorded runs, so that no number in it is typed; and the guide.

`lfhelpers readme` writes them between two marks and draws the picture; a test fails when either is out of date.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.notebook import catalogue, guide
from lfhelpers.notebook.charts import Chart, step_bars
from lfhelpers.notebook.figures import svg

RECORDS = "h200x1"
RECIPES = ("as_found", "competent", "full")
BEGIN, END = "<!-- rendered: begin -->", "<!-- rendered: end -->"
PICTURE = Path("runs/reference") / RECORDS / "steps.svg"
GUIDE = Path("notebooks/GUIDE.md")


def update(root: Path | None = None) -> None:
    """Render the block of README.md, the picture beside the records, and the guide beside the notebooks."""
    root = root or runs.project()
    (root / PICTURE).write_text(picture())
    (root / GUIDE).write_text(guide_page())
    readme = root / "README.md"
    readme.write_text(with_block(readme.read_text(), block()))


def with_block(text: str, rendered: str) -> str:
    """The text with `rendered` between the marks. Raises LfError where a mark is missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise LfError(f"README.md needs the marks {BEGIN} and {END}, in this order, around what is rendered.")
    return f"{before}{BEGIN}\n{rendered}\n{END}{after}"


def picture() -> str:
    """The one picture, as SVG: milliseconds of a step by part, one bar a recipe."""
    drawn = chart()
    return svg(drawn.figure, drawn.alt)


def guide_page() -> str:
    """notebooks/GUIDE.md: from symptom to lesson, and the words."""
    return guide.markdown({path.stem[:2]: path.name for path in catalogue.select(None, runs.project() / "notebooks")})


def chart() -> Chart:
    """Where a step's time goes in the recorded runs, in milliseconds."""
    return step_bars({name: _run(name).summary["report"]["ms"] for name in RECIPES}, unit="ms")


def block() -> str:
    """The picture, a table of the recorded runs, and what they were recorded on, as Markdown."""
    run = _run("competent")
    summary, environment = run.summary, run.read("environment.json")
    hardware = environment["hardware"]
    made = (f"Recorded {environment['time'][:10]} on one {summary['hardware']} ({hardware['cores']} cores, "
            f"torch {environment['versions']['torch']}, driver {hardware['driver']}), `vla` of size "
            f"`{run.recipe.workload.size}`, {summary['micro']} samples a step, {summary['precision']}, "
            f"mean of {summary['steps']['timed']} steps after {run.recipe.untimed(summary['device'])} of warm-up, "
            f"commit `{environment['commit']['hash'][:10]}`. {_spread()}")
    head = ["recipe", "ms a step", "samples/s", "against `as_found`", "against `competent`", "waiting for data", "MFU",
            "peak GiB"]
    lines = [_line(head), _line(["---"] + ["---:"] * (len(head) - 1)), *(_line(_row(name)) for name in RECIPES)]
    return "\n".join([f"![{chart().alt}]({PICTURE})", "", *lines, "", made])


def _row(name: str) -> list[str]:
    summary = _run(name).summary
    rate, mfu = summary["samples_per_s"], summary["mfu"]["value"]
    return [f"`{name}`", f"{summary['step_ms']['mean']:.0f}", f"{rate:.1f}", f"{rate / _rate('as_found'):.2f}",
            f"{rate / _rate('competent'):.2f}", f"{summary['report']['percent']['data_wait']:.0f} %",
            f"{100 * mfu:.1f} %", f"{summary['memory']['peak_gib']:.1f}"]


def _spread() -> str:
    """How far the repeated runs of the same call differ: the noise that a ratio has to beat."""
    found = [f"{100 * abs(_rate(f'{name}-repeat') / _rate(name) - 1):.0f} % for `{name}`" for name in RECIPES[:2]]
    return f"A repeat in the same call differs by {' and '.join(found)}."


def _rate(name: str) -> float:
    return float(_run(name).summary["samples_per_s"])


def _run(name: str) -> runs.Run:
    return runs.recorded(f"{RECORDS}/{name}")


def _line(cells: list[Any]) -> str:
    return f"| {' | '.join(cells)} |"

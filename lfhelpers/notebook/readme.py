"""The figures of README.md, rendered from the recorded runs, so that no number in it is typed; and the guide.

`lfhelpers readme` writes them between two marks and draws the picture; a test fails when either is out of date.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.measure import record as records
from lfhelpers.notebook import catalogue, guide
from lfhelpers.notebook.charts import Chart, step_bars
from lfhelpers.notebook.figures import svg

RECORDS = "h200x1"
RECIPES = ("as_found", "competent", "full")
EXAMPLE = Path("notebooks/workloads/language_model.py")
PICTURE = Path("runs/reference") / RECORDS / "steps.svg"
GUIDE = Path("notebooks/GUIDE.md")


def update(root: Path | None = None) -> None:
    """Render the block of README.md, the picture beside the records, and the guide beside the notebooks."""
    root = root or runs.project()
    (root / PICTURE).write_text(picture())
    (root / GUIDE).write_text(guide_page())
    readme = root / "README.md"
    readme.write_text(rendered(readme.read_text()))


def rendered(text: str) -> str:
    """The text of README.md with all its blocks as they are now."""
    for name, made in (("rendered", block), ("example", example), ("own", own_block)):
        text = with_block(text, made(), name)
    return text


def with_block(text: str, rendered: str, name: str = "rendered") -> str:
    """The text with `rendered` between the marks of this name. Raises LfError where a mark is missing."""
    first, last = (f"<!-- {name}: {side} -->" for side in ("begin", "end"))
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise LfError(f"README.md needs the marks {first} and {last}, in this order, around what is rendered.")
    return f"{before}{first}\n{rendered}\n{last}{after}"


def example() -> str:
    """The class of the example workload, from its file, as Markdown."""
    text = (runs.project() / EXAMPLE).read_text()
    return f"```python\n{text[text.index('class LanguageModel'):].rstrip()}\n```"


def own_block() -> str:
    """What the example workloads gain, from their record; a sentence where there is none yet."""
    kept = records.reference("own_workloads", RECORDS)
    if kept is None or not {"image_gain", "language_gain", "watch_cost_share"} <= set(kept.checks):
        return "No gain of the two examples is on record yet."
    checks, steps = kept.checks, kept.settings["steps"]
    return (f"Over its own plain loop the image classifier trains {checks['image_gain']:.2f} times as many samples/s, "
            f"the language model {checks['language_gain']:.2f} times; `lf.watch` costs a plain loop "
            f"{100 * checks['watch_cost_share']:.2f} % of its step. Recorded {kept.date[:10]} on one "
            f"{kept.hardware['gpus'][0]['name']}, {steps} timed steps a job, {kept.settings['rounds']} jobs of each "
            f"side; a side differs from itself by up to {100 * kept.aa_spread:.0f} %.")


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

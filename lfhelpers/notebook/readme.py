"""The figures of README.md, rendered from the recorded runs, so that no number in it is typed; and the guide.

`lfhelpers readme` writes them between two marks and draws the picture; a test fails when either is out of date.
"""

from __future__ import annotations

from pathlib import Path
from string import Formatter
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
CAPTURED = "one recorded graph of the whole step (captured)"
"""A part of the step whose name alone says nothing to who reads the README first."""
TOLD = (
    ("A step of `full`, 16 samples", "step", "h200x1",
     "{full_mb16_ms:.1f} ms, {full_mb16_over_as_found:.2f} times as found, {full_mb16_mfu:.1%} MFU"),
    ("A step of `full`, 64 samples", "step", "h200x1", "{full_mb64_ms:.0f} ms, {full_mb64_mfu:.1%} MFU"),
    ("A step of `small`, 32 samples", "step", "h200x1",
     "{small_mb32_ms:.1f} ms, {small_mb32_over_as_found:.2f} times as found"),
    ("Compiling `full`", "step", "h200x1", "{cold_compile_s:.0f} s, from its cache {warm_compile_s:.0f} s"),
    ("A step of `full` on two GPUs, 16 samples each", "ddp", "h200x2",
     "{full_mb16_over_as_found:.2f} times as found, {scaling_efficiency:.1%} of perfect scaling, "
     "{exposed_share:.1%} of it exposed exchange"),
    ("Images of 640 x 480 decoded by DALI", "data", "h200x1", "{dali_mixed_images_per_s:,.0f} a second"),
    ("The gated FFN, forward and backward", "ffn", "h200x1",
     "{ffn_over_eager:.2f} times eager at least, {ffn_saved_bytes_over_eager:.0%} of its kept bytes"))
"""What records say: of what, bench, machine, the figures by the names of its checks; left out where one is missing."""


def update(root: Path | None = None) -> None:
    """Render the block of README.md, the picture beside the records, and the guide beside the notebooks."""
    root = root or runs.project()
    (root / PICTURE).write_text(picture())
    (root / GUIDE).write_text(guide_page())
    readme = root / "README.md"
    readme.write_text(rendered(readme.read_text()))


def rendered(text: str) -> str:
    """The text of README.md with all its blocks as they are now."""
    for name, made in (("records", records_block), ("rendered", block), ("example", example), ("own", own_block)):
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


def records_block() -> str:
    """A table of what the records of benches say, with links to them, as Markdown."""
    lines = []
    for what, bench, where, figures in TOLD:
        kept = records.reference(bench, where)
        if kept is not None and all(name in kept.checks for _, name, _, _ in Formatter().parse(figures) if name):
            place = Path("runs/reference") / where / f"bench_{bench}.json"
            lines.append([what, figures.format(**kept.checks).replace("%", " %"), f"[{kept.date[:10]}]({place})"])
    head = ["on H200s, batches on the device", "measured", "record"]
    return "\n".join(map(_line, [head, ["---"] * 3, *lines]))


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
    drawn = step_bars({name: _run(name).summary["report"]["ms"] for name in RECIPES}, unit="ms")
    for label in drawn.figure.legends[0].get_texts():
        label.set_text(label.get_text().replace("captured", CAPTURED))
    return drawn._replace(alt=drawn.alt.replace("captured", CAPTURED))


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
    step = records.reference("step", RECORDS)
    older = " They are older than the records above." if step and step.date > environment["time"] else ""
    made = f"Whole runs, from shards to weights. {made}{older}"
    return "\n".join([f"![{chart().alt}]({PICTURE})", "", *lines, "", made])


def _row(name: str) -> list[str]:
    summary = _run(name).summary
    rate, mfu = summary["samples_per_s"], summary["mfu"]["value"]
    return [f"`{name}`", f"{summary['step_ms']['mean']:.0f}", f"{rate:.1f}", f"{rate / _rate('as_found'):.2f}",
            f"{rate / _rate('competent'):.2f}", f"{summary['report']['percent']['data_wait']:.0f} %",
            f"{100 * mfu:.1f} %", f"{summary['memory']['peak_gib']:.1f}"]


def _spread() -> str:
    """How far repeated runs on the same machine differ: the noise that a ratio has to beat."""
    found = [f"{100 * abs(_rate(f'{name}-repeat') / _rate(name) - 1):.0f} % for `{name}`" for name in RECIPES[:2]]
    return f"A repeat on the same machine differs by {' and '.join(found)}."


def _rate(name: str) -> float:
    return float(_run(name).summary["samples_per_s"])


def _run(name: str) -> runs.Run:
    return runs.recorded(f"{RECORDS}/{name}")


def _line(cells: list[Any]) -> str:
    return f"| {' | '.join(cells)} |"

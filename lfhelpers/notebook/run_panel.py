"""A run at a glance: how far, how fast, where its step goes, what it learns, and how busy the machine is.

Plain HTML, not a figure: it is made anew every second beside a job that needs the cores. Colours of text and lines are
the page's own; bars carry their labels and the numbers stand below, so nothing rests on colour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from lfhelpers.diagnose import diagnose
from lfhelpers.launch.watch import Progress
from lfhelpers.measure import system
from lfhelpers.notebook.charts import PARTS
from lfhelpers.notebook.figures import COLOURS, INK, thin
from lfhelpers.notebook.tables import number
from lfhelpers.runs import Run

MOST = 200
"""Points of the curve of losses."""
LONG = 16 * 2**20
"""Bytes of a steps.jsonl whose beginning is not read when a run is joined."""
WIDTH, HEIGHT = 300, 56
FACTS = "display:flex;flex-wrap:wrap;gap:6px 28px;margin:.6em 0;font-variant-numeric:tabular-nums"
LABELLED = 12.0
"""Percent of the step from which on a part of the bar has room for its name."""


class Now(NamedTuple):
    """What a panel shows; `line` says how it goes in words, `ms` holds the parts of the mean step, `load` percents."""

    run: str
    state: str
    line: str
    step: int
    total: int
    figures: Mapping[str, str]
    ms: Mapping[str, float]
    losses: Sequence[tuple[int, float]]
    load: Mapping[str, float]


class Follower:
    """Makes the panel of a run again and again; of one that runs, from its last steps and the machine's load now."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._progress = Progress(run)
        steps = run.path / "steps.jsonl"
        whole = steps.exists() and steps.stat().st_size < LONG
        self._losses = thin([(row["step"], row["loss"]) for row in run.steps()], MOST) if whole else []

    def now(self) -> Now:
        """The panel now."""
        line, look, state = self._progress.line(), self._progress.look(), self.run.status["state"]
        step = look.step if look else 0
        figures: dict[str, str] = {}
        if look:
            self._remember(look.step, look.loss)
            figures = {"loss": f"{look.loss:.4f}", "samples/s": number(look.samples_per_s),
                       "data wait": f"{look.wait_percent:.0f} %"}
            figures |= {"left": str(look.left)} if state == "running" else {}
        return Now(self.run.id, state, line, step, self._progress.total, figures, look.ms if look else {},
                   tuple(self._losses), _load_now() if state == "running" else {})

    def _remember(self, step: int, loss: float) -> None:
        while self._losses and self._losses[-1][0] >= step:  # a resumed run writes steps again
            self._losses.pop()
        self._losses.append((step, loss))
        if len(self._losses) > 2 * MOST:
            del self._losses[1:-1:2]


def ended(run: Run) -> Now:
    """The panel of a run that is over, by its own summary; of one that left none, by its last steps."""
    shown = Follower(run).now()
    if not run.summary:
        return shown
    report = diagnose(run)
    load = {"CPU": report.utilisation.get("cpu_percent"), "GPU": report.utilisation.get("gpu_percent")}
    figures = {**shown.figures, "samples/s": number(report.samples_per_s),
               "data wait": f"{report.percent['data_wait']:.0f} %"}
    return shown._replace(ms=report.ms, figures=figures,
                          load={name: value for name, value in load.items() if value is not None})


def panel(now: Now) -> tuple[str, str]:
    """(HTML, text) of a run."""
    figures = {**now.figures, **{name: f"{value:.0f} % busy" for name, value in now.load.items()}}
    cells = "".join(f'<span><small>{escape(name)}</small><br><strong>{escape(value)}</strong></span>'
                    for name, value in figures.items())
    line = "" if now.state == "running" and now.figures else f"<br>{escape(now.line)}"  # else the figures say it
    head = (f'<p><strong>{now.state}</strong> <code>{escape(now.run)}</code>{line}</p>'
            f'<progress aria-label="steps" max="{now.total}" value="{now.step}" style="width:{WIDTH}px;'
            f'accent-color:{COLOURS[0]}"></progress> {now.step:,} of {now.total:,} steps')
    facts = f'<div style="{FACTS}">{cells}</div>' if cells else ""
    words = "; ".join([*(f"{name} {value}" for name, value in figures.items()), parts_in_words(now.ms)])
    return (f'<div class="lf-run">{head}{facts}{bar(now.ms)}{curve(now.losses)}</div>',
            f"{now.run}: {now.line}\n{words}".rstrip("; \n"))


def bar(ms: Mapping[str, float]) -> str:
    """The mean step as one bar with the parts' names where they fit, and all of them in words below; "" for no step."""
    total = sum(ms.values())
    if not total:
        return ""
    known = [*PARTS, *(part for part in ms if part not in PARTS)]
    pieces = []
    for style, part in enumerate(known):
        share = 100 * ms.get(part, 0.0) / total
        label = f'<span style="background:#fff;color:{INK};padding:0 4px">{_name(part)}</span>'
        pieces += [f'<span style="width:{share:.2f}%;background:{COLOURS[style % len(COLOURS)]};overflow:hidden;'
                   f'border-right:1px solid #fff;box-sizing:border-box;text-align:center;font-size:85%">'
                   f'{label if share >= LABELLED else ""}</span>'] if share else []
    words = parts_in_words(ms)
    return (f'<div role="img" aria-label="{escape(words)}" style="display:flex;height:24px;line-height:24px;'
            f'max-width:720px;white-space:nowrap">{"".join(pieces)}</div><p style="margin:.3em 0">{escape(words)}</p>')


def parts_in_words(ms: Mapping[str, float]) -> str:
    """'mean step of 112 ms: forward 45 %, backward 30 %, data wait 25 %', the largest first; "" for no step."""
    total = sum(ms.values())
    shares = sorted(((100 * spent / total, part) for part, spent in ms.items() if spent >= 0.005 * total),
                    reverse=True) if total else []
    told = ", ".join(f"{_name(part)} {share:.0f} %" for share, part in shares)
    return f"mean step of {number(float(total))} ms: {told}" if told else ""


def curve(losses: Sequence[tuple[int, float]]) -> str:
    """Loss over steps as a small line in the page's own colour; "" for fewer than two finite losses."""
    points = [(step, loss) for step, loss in losses if loss is not None and math.isfinite(loss)]
    if len(points) < 2:
        return ""
    (first, begin), (last, end) = points[0], points[-1]
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    place = " ".join(f"{WIDTH * (step - first) / max(1, last - first):.1f},"
                     f"{3 + (HEIGHT - 6) * (high - loss) / ((high - low) or 1):.1f}" for step, loss in points)
    words = f"loss {number(float(begin))} at step {first:,}, {number(float(end))} at step {last:,}"
    return (f'<svg role="img" aria-label="{words}" width="{WIDTH}" height="{HEIGHT}" style="display:block;'
            f'border-bottom:1px solid currentColor"><polyline points="{place}" fill="none" stroke="currentColor" '
            f'stroke-width="1.5"/></svg><p style="margin:.3em 0">{words}</p>')


def _name(part: str) -> str:
    return part.replace("_", " ")


def _load_now() -> dict[str, float]:
    cores, gpus = system.load()
    return {"CPU": cores} | {f"GPU {index}": share for index, share in enumerate(gpus)}

"""A report on runs that leaves the machine: one HTML file that loads nothing, Markdown for a pull request, and JSON.

All three hold the same facts (notebook.compared). They lie in `reports` among the runs, under a name that the same runs
get again, and the playbook's index links them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.notebook import compared
from lfhelpers.notebook.compared import Side

if TYPE_CHECKING:
    from lfhelpers.notebook.charts import Chart

WIDE = "table{font-size:.92rem}td,th{vertical-align:top}li{margin:.3rem 0}"


def report(*given: str | os.PathLike[str] | runs.Run, out: str | os.PathLike[str] | None = None,
           title: str | None = None) -> Path:
    """Write NAME.html, NAME.md and NAME.json on the runs into the folder `out`, and return the page's path.

    `out` defaults to `reports` among the runs. The first run that has timed steps is what the others are measured
    against. Raises LfError for a run that isn't there, where none has a timed step, and where nothing can be written.
    """
    if not given:
        raise LfError("a report needs a run; `lfhelpers runs` lists them.")
    found = compared.sides(given)
    return write(found, Path(out) if out is not None else None, title)


def write(found: Sequence[Side], out: Path | None = None, title: str | None = None) -> Path:
    """The same, for runs that are read already."""
    from lfhelpers.notebook import index

    folder = (out or runs.root() / index.REPORTS).absolute()
    page = folder / f"{_name(found)}.html"
    heading = title or ", ".join(side.label for side in found)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        runs.write_atomic(page.with_suffix(".json"), orjson.dumps(facts(found, heading), option=orjson.OPT_INDENT_2))
        runs.write_atomic(page.with_suffix(".md"), markdown(found, heading).encode())
        runs.write_atomic(page, html(found, heading).encode())
        index.refresh(runs.root() / "playbook")
    except OSError as error:
        raise LfError(f"the report can't be written into {folder}: {error.strerror}; give another folder with --out."
                      ) from error
    return page


def facts(found: Sequence[Side], title: str) -> dict[str, Any]:
    """What programs read: title, time, verdict, cautions, and the rows of all tables."""
    return {"title": title, "time": runs.now(), "runs": [side.run.id for side in found],
            "verdict": compared.verdict(found), "cautions": compared.cautions(found), "summary": compared.rows(found),
            "quality": {side.label: side.quality() for side in found}, "recipes": compared.recipe_rows(found),
            "where": compared.where_rows(found), "again": {side.label: compared.again(side) for side in found}}


def html(found: Sequence[Side], title: str) -> str:
    """The page: verdict, cautions, tables, pictures with their finding as alt text; nothing in it is loaded."""
    from lfhelpers.notebook.page import page

    parts = ["".join(f"<p><strong>{escape(line)}</strong></p>" for line in compared.verdict(found)),
             _listed(compared.cautions(found)), *(_table(*table) for table in _tables(found)[:2])]
    parts += [f"<h2>Where the time of a step goes</h2>{_picture(_bars(found))}"]
    curves = _curves(found)
    parts += [f"<h2>Loss</h2>{_picture(curves)}"] if curves else []
    parts += ["<h2>What the reports advise</h2>", *(_advice(side) for side in found if side.report)]
    parts += [_table(*table) for table in _tables(found)[2:]]
    parts += ["<h2>Run it again</h2>", *(f"<pre>{escape(compared.again(side))}</pre>" for side in found)]
    return page(title, "".join(parts), WIDE)


def markdown(found: Sequence[Side], title: str) -> str:
    """The same without pictures, short enough for a pull request; what few readers need is folded."""
    lines = [f"### {title}", "", *(f"**{line}**  " for line in compared.verdict(found)), ""]
    lines += [f"- {line}" for line in compared.cautions(found)]
    first, *others = [table for table in _tables(found) if table[1]]
    lines += ["", *_pipes(first[1]), ""]
    for side in found:
        if side.report:
            lines += [f"- **{side.label}**: {_plain(str(finding))}" for finding in side.report.findings[:2]]
    for caption, rows in [*others, ("Milliseconds of a step by part", _parts(found))]:
        lines += ["", f"<details><summary>{caption}</summary>", "", *_pipes(rows), "", "</details>"]
    commands = "\n".join(compared.again(side) for side in found)
    return "\n".join([*lines, "", "```bash", commands, "```", ""])


def _tables(found: Sequence[Side]) -> list[tuple[str, list[dict[str, Any]]]]:
    """(caption, rows) of the tables in order: summary, quality, recipes, where. One without rows is left out later."""
    quality = [{"run": side.label, **side.quality()} for side in found if side.quality()]
    return [("Runs", compared.rows(found)), ("Quality on held-out data", quality),
            ("Fields in which the recipes differ", compared.recipe_rows(found) if len(found) > 1 else []),
            ("Where the runs ran", compared.where_rows(found))]


def _table(caption: str, rows: Sequence[Mapping[str, Any]]) -> str:
    from lfhelpers.notebook.tables import Table

    return f'<div class="wide">{Table.of(caption, rows).html()}</div>' if rows else ""


def _bars(found: Sequence[Side]) -> Chart:
    from lfhelpers.notebook.charts import step_bars

    return step_bars({side.label: side.report.ms for side in found if side.report}, unit="ms")


def _curves(found: Sequence[Side]) -> Chart | None:
    from lfhelpers.notebook.charts import loss_curves

    steps = {side.label: side.run.steps() for side in found}
    finite = {label: rows for label, rows in steps.items() if any(row.get("loss") is not None for row in rows)}
    return loss_curves(finite) if finite else None


def _picture(chart: Chart) -> str:
    from lfhelpers.notebook.figures import html as figure

    return figure(chart.figure, chart.alt, chart.table)


def _advice(side: Side) -> str:
    findings = [str(finding) for finding in compared.report_of(side).findings]
    return f"<h3>{escape(side.label)}</h3>{_listed(findings, 'ol')}"


def _parts(found: Sequence[Side]) -> list[dict[str, Any]]:
    """A row a part of the step, a column a run [ms]."""
    kept = [side.report for side in found if side.report]
    labels = [side.label for side in found if side.report]
    parts = [part for part in kept[0].ms if any(report.ms[part] for report in kept)]
    return [{"part": part.replace("_", " "), **{label: report.ms[part] for label, report in
                                                zip(labels, kept, strict=True)}} for part in parts]


def _listed(lines: Sequence[str], kind: str = "ul") -> str:
    return f"<{kind}>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</{kind}>" if lines else ""


def _pipes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows as a Markdown table."""
    from lfhelpers.notebook.tables import number

    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns, ["---"] * len(columns), *([_plain(number(row.get(key))) for key in columns] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in cells]


def _plain(text: str) -> str:
    """Text that Markdown shows as it stands."""
    return re.sub(r"([|<*\[\]`])", r"\\\1", text)


def _name(found: Sequence[Side]) -> str:
    """A file name from the recipes' names, and from which runs they are."""
    words = re.sub(r"[^\w-]+", "-", "-".join(side.run.recipe.name for side in found))[:60]
    return f"{words}-{hashlib.sha256('|'.join(str(side.run.path) for side in found).encode()).hexdigest()[:6]}"

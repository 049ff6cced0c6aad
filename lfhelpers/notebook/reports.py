"""A step report inside a lesson: the same content as in a terminal, laid out for a page that wraps its lines."""

from __future__ import annotations

from html import escape

from lfhelpers.diagnose.report import StepReport
from lfhelpers.notebook import output
from lfhelpers.notebook.tables import Table


def show_report(report: StepReport) -> None:
    """Show whose report it is, its parts, its findings with the likeliest first, and its notes; as text, its table."""
    head = "<br>".join(map(escape, report.table().splitlines()[:2]))
    found = "".join(f"<li>{escape(str(finding))}</li>" for finding in report.findings)
    notes = "".join(f"<p>Note: {escape(note)}.</p>" for note in report.notes)
    output.put(f"<p>{head}</p>{Table.of('Mean step', report.rows()).html()}<ol>{found}</ol>{notes}", report.table())

"""The before/after table as text, inside a lesson, and as one HTML file for whoever reads results and not notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from lfhelpers import runs
from lfhelpers.bench import article, before_after
from lfhelpers.bench.before_after import RECIPES, Measured
from lfhelpers.errors import LfError
from lfhelpers.measure import record as records
from lfhelpers.measure.record import Record
from lfhelpers.notebook import output
from lfhelpers.notebook.tables import Table
from lfhelpers.notebook.trace_page import STYLE

TITLE = "Before and after"


@dataclass(frozen=True)
class Results:
    """Tables and sentences, and what they hold for."""

    heading: str
    tables: tuple[Table, ...]
    sentences: tuple[str, ...]

    def text(self) -> str:
        """For a terminal."""
        return "\n\n".join([self.heading, *(table.text() for table in self.tables), "\n".join(self.sentences)])

    def html(self) -> str:
        """The same as a part of a page."""
        said = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.sentences)
        shown = "".join(f'<div class="table">{table.html()}</div>' for table in self.tables)
        return f"<p>{escape(self.heading)}</p>{shown}{said}"

    def show(self) -> None:
        """Put it into the cell's output."""
        output.put(self.html(), self.text())

    def write(self, path: Path) -> None:
        """A page of its own, with nothing to load, replaced in one step. Raises LfError where it can't be written."""
        page = (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{TITLE}</title>'
                f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>'
                f"<body><main><h1>{TITLE}</h1>{self.html()}</main></body></html>\n")
        try:
            runs.write_atomic(path, page.encode())
        except OSError as error:
            raise LfError(f"the page {path} can't be written: {error.strerror}; name another file with --html."
                          ) from error


def results(measured: Measured, quality: Record | None = None) -> Results:
    """What was measured beside what was claimed: the article's table, LoongForge's stages, the proof of quality."""
    tables = [Table.of("Measured here, claimed there", before_after.lines(measured, quality))]
    heading = f"Measured: {measured}."
    if measured.spread:
        heading += f" A recipe differs from itself by up to {measured.spread:.1%}."
    heading += f" Claimed by {article.ARTICLE}."
    if measured.rungs:  # captions don't wrap, so what the figures hold for stands above
        tables.append(Table.of("Published stages beside our rungs", before_after.published(measured)))
        heading += f" Stages are each against their own baseline; {article.STAGES_ON}."
    if quality is not None and quality.settings["tests"]:
        tables.append(quality_table(quality))
    return Results(heading, tuple(tables), tuple(before_after.sentences(measured)))


def quality_table(quality: Record) -> Table:
    """The tests of a proof of quality: a row a figure, with its margin, its power and its verdict."""
    settings = quality.settings
    rows: list[dict[str, Any]] = []
    for name, test in settings["tests"].items():
        as_found, full = (quality.row(f"{arm} {name}").value for arm in settings["arms"])
        rows.append({"figure": name.replace("_", " "), "as_found": as_found, "full": full,
                     "difference": test["difference"], "90 % low": test["low"], "90 % high": test["high"],
                     "margin": test["margin"], "p": test["p"], "power": test["power"], "verdict": test["verdict"]})
    return Table.of(f"Is it as good? {len(settings['pairs'])} paired seeds, size {settings['size']}, "
                    f"{settings['steps']} steps from one base; action MSE as its logarithm", rows)


def gather(names: Sequence[str], ladder: Path | None = None, quality: Path | None = None,
           machine: str | None = None) -> Results:
    """From three runs by name, or from a ladder's record; what isn't given is the committed record of `machine`.

    Raises LfError where there is neither.
    """
    proof = records.load(quality) if quality else records.reference("quality", machine)
    if names:
        if len(names) != len(RECIPES):
            raise LfError(f"before and after are three runs, {', '.join(RECIPES)}; {len(names)} are named.")
        return results(before_after.of_runs(*map(runs.load, names)), proof)
    climbed = records.load(ladder) if ladder else records.reference("ladder", machine)
    if climbed is None:
        raise LfError(f"there is no ladder's record of {machine or records.machine()}; give one with --ladder, or "
                      "name three runs.")
    return results(before_after.of_ladder(climbed), proof)

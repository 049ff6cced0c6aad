"""`lfhelpers results`: the before/after table in the article's shape, from a ladder's record or from three runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def results(
    runs: Annotated[list[str] | None, typer.Argument(help="Three: as found, competent, full; else a record.")] = None,
    ladder: Annotated[Path | None, typer.Option(help="A ladder's record; else this machine's committed one.")] = None,
    quality: Annotated[Path | None, typer.Option(help="A record of `bench quality`; else the committed one.")] = None,
    machine: Annotated[str | None, typer.Option(help="Whose committed records: h200x1; else this machine's.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the same as a page.")] = None,
) -> None:
    """What was measured beside what the article claims, with a verdict on each line.

    Example: lfhelpers results --machine h200x1 --html results.html
    """
    from lfhelpers.notebook import before_after

    found = before_after.gather(runs or [], ladder, quality, machine)
    print(found.text())
    if html is not None:
        found.write(html)
        print(f"page: {html}")

"""What several commands do with their words: overrides that make a recipe, and a workload that is tried first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lfhelpers.errors import LfError

if TYPE_CHECKING:
    from lfhelpers.recipe import Recipe

Own = Annotated[str | None, typer.Option("--workload", help="A workload of your own: FILE.py:Class.")]


def job_of(words: Sequence[str], default: str = "competent") -> Recipe:
    """The recipe of `recipe=NAME field=value ...`. Raises LfError where recipe= is given more than once."""
    from lfhelpers.recipe import recipe

    named = [text.partition("=")[2] for text in words if text.startswith("recipe=")]
    if len(named) > 1:
        raise LfError(f"recipe= is given {len(named)} times; give it once.")
    return recipe(named[0] if named else default, *(text for text in words if not text.startswith("recipe=")))


def tried(workload: str | None, words: Sequence[str]) -> list[str]:
    """The words with the workload's, once it has been found to keep to its contract; what it lacks is printed."""
    if workload is None:
        return list(words)
    from lfhelpers.launch.own import examine

    found = [*words, f"workload.use={workload}"]
    for note in examine(job_of(found)).notes:
        print(f"note: {note}")
    return found

"""The one exception that people see: a sentence with what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LfError(Exception):
    """A mistake that the user can mend; the command line prints its text alone and exits with `exit_code`."""

    exit_code = 2


def nearest(name: str, known: Iterable[str]) -> str:
    """The hint that ends a sentence about an unknown `name`: the closest known one, or the whole list."""
    options = sorted(known)
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(options)}"

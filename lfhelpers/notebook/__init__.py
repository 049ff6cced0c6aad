"""What a lesson uses: figures, tables, results, exercises and source listings, and the runner that plays lessons.

The names below are loaded on first use, so that a lint or a list of notebooks doesn't pay for matplotlib or papermill.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "show": "figures",
    "show_pictures": "figures",
    "show_report": "reports",
    "step_bars": "charts",
    "loss_curves": "charts",
    "bars_with_interval": "charts",
    "Table": "tables",
    "number": "tables",
    "choose_profile": "profiles",
    "expect": "results",
    "record": "results",
    "skip": "results",
    "say": "results",
    "headless": "results",
    "solution": "exercises",
    "check": "exercises",
    "show_source": "source",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)

"""The module's own code inside a lesson: one copy, shown from where it runs, never retyped in a cell."""

from __future__ import annotations

import functools
import inspect
import itertools
from html import escape
from pathlib import Path
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

import lfhelpers
from lfhelpers.errors import LfError
from lfhelpers.notebook import output


def show_source(thing: Any, until: str = "") -> None:
    """Show the source of a function, class or module, with its file and lines; `until` as in `listing`.

    Raises LfError where it has no source.
    """
    code, place = listing(thing, until)
    # Dark text on its own light ground: the page around it may be dark.
    ground = "background:#f6f8fa;color:#1f2328;padding:8px 12px;border-radius:6px;overflow-x:auto"
    letters = "background:inherit;color:inherit;margin:0;font-family:monospace;line-height:1.4;white-space:pre"
    body = highlight(code, PythonLexer(), HtmlFormatter(noclasses=True, cssstyles=ground, prestyles=letters))
    output.put(f'<div><div style="font-size:90%"><code>{escape(place)}</code></div>{body}</div>', f"# {place}\n{code}")


def listing(thing: Any, until: str = "") -> tuple[str, str]:
    """(code, place): the source text, and 'file, lines a to b' with the file seen from the package's folder.

    `until` ends it before the first line that begins so, to show the head of a long module or class alone.
    """
    target = inspect.unwrap(thing.func if isinstance(thing, functools.partial) else thing)
    try:
        lines, start = inspect.getsourcelines(target)
        file = Path(inspect.getsourcefile(target) or "?").resolve()
    except (TypeError, OSError) as error:
        raise LfError(f"{thing!r} has no Python source to show; give a function, a class or a module.") from error
    if until:
        lines = list(itertools.takewhile(lambda line: not line.startswith(until), lines))
    code = "".join(lines).rstrip() + "\n"
    package = Path(lfhelpers.__file__).resolve().parents[1]
    name = file.relative_to(package).as_posix() if file.is_relative_to(package) else file.name
    first = max(start, 1)
    return code, f"{name}, lines {first} to {first + code.count(chr(10)) - 1}"

"""The module's own code inside a lesson: one copy, shown from where it runs, never retyped in a cell."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import itertools
from html import escape
from pathlib import Path
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename

import lfhelpers
from lfhelpers.errors import LfError
from lfhelpers.notebook import output


def show_source(thing: Any, until: str = "", since: str = "") -> None:
    """Show the source of a function, class, module or file, with its place; `thing`, `until`, `since` as in `listing`.

    Raises LfError where it has no source.
    """
    code, place = listing(thing, until, since)
    lexer = get_lexer_for_filename(place.partition(",")[0])
    # Dark text on its own light ground: the page around it may be dark.
    ground = "background:#f6f8fa;color:#1f2328;padding:8px 12px;border-radius:6px;overflow-x:auto"
    letters = "background:inherit;color:inherit;margin:0;font-family:monospace;line-height:1.4;white-space:pre"
    body = highlight(code, lexer, HtmlFormatter(noclasses=True, cssstyles=ground, prestyles=letters))
    output.put(f'<div><div style="font-size:90%"><code>{escape(place)}</code></div>{body}</div>', f"# {place}\n{code}")


def listing(thing: Any, until: str = "", since: str = "") -> tuple[str, str]:
    """(code, place): the source text, and 'file, lines a to b' with the file seen from the package's folder.

    `thing` may also be text, 'package.module' or 'package.module:name': it is then read and not imported, since what a
    module needs, such as Triton, may be missing here. Or it is the path of a file in any language. `until` ends the
    listing before the first line that begins so, and `since` has it begin with one, to show a part of what is long.
    """
    if isinstance(thing, Path):
        lines, start, file = thing.read_text().splitlines(keepends=True), 1, thing.resolve()
    else:
        lines, start, file = _unimported(thing) if isinstance(thing, str) else _inspected(thing)
    if since:
        before = len(list(itertools.takewhile(lambda line: not line.startswith(since), lines)))
        lines, start = lines[before:], start + before
    if until:
        lines = list(itertools.takewhile(lambda line: not line.startswith(until), lines))
    code = "".join(lines).rstrip() + "\n"
    package = Path(lfhelpers.__file__).resolve().parents[1]
    name = file.relative_to(package).as_posix() if file.is_relative_to(package) else file.name
    first = max(start, 1)
    return code, f"{name}, lines {first} to {first + code.count(chr(10)) - 1}"


def _inspected(thing: Any) -> tuple[list[str], int, Path]:
    """Lines, the number of the first, and the file of something that is imported."""
    target = inspect.unwrap(thing.func if isinstance(thing, functools.partial) else thing)
    try:
        lines, start = inspect.getsourcelines(target)
        return lines, start, Path(inspect.getsourcefile(target) or "?").resolve()
    except (TypeError, OSError) as error:
        raise LfError(f"{thing!r} has no Python source to show; give a function, a class or a module.") from error


def _unimported(thing: str) -> tuple[list[str], int, Path]:
    """The same of 'package.module' or 'package.module:name', from the file alone."""
    module, _, name = thing.partition(":")
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.has_location or not spec.origin:
        raise LfError(f"there is no module '{module}' to show the source of.")
    text = Path(spec.origin).read_text()
    if not name:
        return text.splitlines(keepends=True), 1, Path(spec.origin).resolve()
    found = [node for node in ast.parse(text).body if getattr(node, "name", None) == name]
    if not found:
        raise LfError(f"module '{module}' has no function or class '{name}' to show.")
    node: Any = found[0]
    start = min(part.lineno for part in (node, *node.decorator_list))
    return text.splitlines(keepends=True)[start - 1:node.end_lineno], start, Path(spec.origin).resolve()

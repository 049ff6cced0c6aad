"""The one way into a cell's output: HTML for eyes and screen readers, plain text for logs, diffs and terminals.

Every output carries both, because a notebook on a code host, a saved copy and a terminal each show another one.
Where no IPython shell runs (a script, a test), the text is printed.
"""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display


def put(html: str, text: str) -> None:
    """Show `html`, with `text` as the plain form."""
    _put({"text/html": html, "text/plain": text})


def put_markdown(markdown: str) -> None:
    """Show Markdown, which is its own plain form."""
    _put({"text/markdown": markdown, "text/plain": markdown})


def _put(bundle: dict[str, str]) -> None:
    if InteractiveShell.initialized():
        display(bundle, raw=True)
    else:
        print(bundle["text/plain"])

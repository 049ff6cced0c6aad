"""An executed notebook as one HTML file that needs no network: for a colleague, a manager, an archive.

nbconvert's page loads scripts for widgets, formulas and diagrams from elsewhere, and not all of these addresses can be
configured. Our pages are static, so all scripts are dropped; the price is that formulas stay as typed. The
solutions of exercises are left out, so that a page can be handed to a learner.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter
from traitlets.config import Config

from lfhelpers import runs

SCRIPT = re.compile(r"<script\b.*?</script>", flags=re.DOTALL | re.IGNORECASE)
LOADS = (
    r"<(?:script|img|iframe|source|audio|video|embed|object)\b[^>]*?\b(?:src|data)\s*=\s*[\"']?(https?:[^\"'\s>]+)",
    r"<link\b[^>]*?\bhref\s*=\s*[\"']?(https?:[^\"'\s>]+)",
    r"@import\s+(?:url\()?[\"']?(https?:[^\"'\s)]+)",
    r"\burl\(\s*[\"']?(https?:[^\"'\s)]+)",
    r"\b(?:import|from)\s*\(?\s*[\"'](https?:[^\"']+)",
)


def write(notebook: Path, page: Path, *, code: bool = True) -> None:
    """Convert an executed notebook to a page; `code=False` leaves the cells' code out, for readers of results."""
    runs.write_atomic(page, render(notebook, code=code).encode())


def render(notebook: Path, *, code: bool = True) -> str:
    """The page's HTML, with every image inside it and nothing to load."""
    folded = Config({"TagRemovePreprocessor": {"enabled": True, "remove_input_tags": {"solution"}}})
    exporter = HTMLExporter(config=folded, embed_images=True, exclude_input=not code, exclude_input_prompt=not code,
                            exclude_output_prompt=not code, require_js_url="", mathjax_url="", jquery_url="",
                            jupyter_widgets_base_url="")
    resources = {"metadata": {"name": notebook.stem, "path": str(notebook.parent)}}
    html, _ = exporter.from_notebook_node(nbformat.read(notebook, as_version=4), resources=resources)
    return SCRIPT.sub("", html)


def external_loads(html: str) -> list[str]:
    """Addresses that a browser would fetch to show the page; links that a reader may follow are not among them."""
    found = (address for pattern in LOADS for address in re.findall(pattern, html, flags=re.IGNORECASE))
    return list(dict.fromkeys(found))

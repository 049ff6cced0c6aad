"""The frame of the pages that people open without Jupyter: one file, nothing to load, readable in light and dark."""

from __future__ import annotations

from html import escape

STYLE = """
:root{color-scheme:light dark;--ink:#1f2328;--soft:#57606a;--line:#d0d7de;--ground:#fff;--card:#f6f8fa;
--done:#1a7f37;--failed:#b42318;--interrupted:#8a5a00}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa4af;--line:#3d444d;--ground:#0d1117;--card:#161b22;
--done:#4ac26b;--failed:#ff7b72;--interrupted:#e3b341}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--ground);max-width:72rem;
margin:2rem auto;padding:0 1rem}
h1{margin:0}h2{margin-top:2rem}.soft,dd{color:var(--soft)}a{color:inherit}figure{overflow-x:auto}
.wide{overflow-x:auto;margin:1rem 0}
pre{white-space:pre-wrap;background:var(--card);padding:.5rem;border-radius:6px;font-size:.8rem}
"""


def page(title: str, body: str, style: str = "") -> str:
    """A whole page; `title` is text, `body` is HTML, `style` is added to the frame's own."""
    return (f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
            f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}{style}</style></head>'
            f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>\n")

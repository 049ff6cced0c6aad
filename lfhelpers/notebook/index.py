"""The index page of a played playbook: one row a notebook with its question, state, and what it found.

Made from the folders' JSON alone, so it can be rebuilt at any time; playbook.json beside it is the same for programs:
state (running, done, failed, interrupted), exit_code, seconds, time, and the notebooks with their status and results.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from lfhelpers import runs
from lfhelpers.notebook import guide
from lfhelpers.notebook.page import page
from lfhelpers.notebook.tables import number
from lfhelpers.processes import Member

PAGE, RESULT, GUIDE = "index.html", "playbook.json", "guide.html"
REPORTS = "reports"
"""Where reports lie among the runs: NAME.html, NAME.md and NAME.json."""
MARKS = {"done": "✔ done", "failed": "✘ failed", "interrupted": "■ interrupted", "running": "… running",
         "not played": "· not played"}
STYLE = """
td p{margin:0 0 .4rem}td:nth-child(2){white-space:nowrap}
table{border-collapse:collapse;width:100%;margin:1.5rem 0}caption{text-align:left;font-weight:600;padding:.3rem 0}
th,td{text-align:left;vertical-align:top;padding:.7rem .8rem;border-bottom:1px solid var(--line)}
th small{font-weight:400}thead th{font-size:.85rem;color:var(--soft)}
.state{font-weight:600;white-space:nowrap}.done{color:var(--done)}.failed{color:var(--failed)}
.interrupted{color:var(--interrupted)}
ul{margin:0;padding:0;list-style:none}li b{font-variant-numeric:tabular-nums}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem;background:var(--card);
padding:.8rem 1rem;border-radius:8px}
dt{font-weight:600}dd{margin:0}
"""


def write(out: Path, order: Sequence[str], verdict: Mapping[str, Any]) -> None:
    """Write playbook.json and the page for the notebooks played into `out`; `order` names those asked for last.

    `verdict` is how that call ended: its state, exit_code and seconds.
    """
    entries = _entries(out, order)
    told = {**verdict, "time": runs.now(), "asked_for": list(order), "notebooks": entries}
    runs.write_atomic(out / RESULT, orjson.dumps(told, option=orjson.OPT_INDENT_2))
    runs.write_atomic(out / GUIDE, page("Where to look", "".join(
        f'<div class="wide">{table.html()}</div>' for table in guide.tables())).encode())
    runs.write_atomic(out / PAGE, render(entries, _reports(out)).encode())


def refresh(out: Path) -> None:
    """Render the page anew, with the reports that were written meanwhile; nothing where no playbook was played."""
    told = _json(out / RESULT)
    if told is not None:
        runs.write_atomic(out / PAGE, render(_entries(out, told["asked_for"]), _reports(out)).encode())


def render(entries: Sequence[Mapping[str, Any]], reports: Sequence[Mapping[str, Any]] = ()) -> str:
    """The page for entries as playbook.json holds them; `reports` have a link, a title, a verdict and a time."""
    latest = max(entries, key=lambda entry: entry.get("time", ""))
    done = sum(entry["state"] == "done" for entry in entries)
    rows = "".join(_row(entry) for entry in entries)
    return page("Playbook results", (
        f"<p class=soft>{done} of {len(entries)} notebooks done, last played {escape(latest.get('time', 'never'))}. "
        f'<a href="{GUIDE}">Which lesson for which symptom, and the words.</a></p>'
        "<table><caption>Notebooks</caption><thead><tr><th scope=col>notebook</th><th scope=col>state</th>"
        f"<th scope=col>what it found</th></tr></thead><tbody>{rows}</tbody></table>{_listed(reports)}"
        f"<h2>Where it ran</h2>{_facts(latest)}"), STYLE)


def load_status(folder: Path) -> dict[str, Any]:
    """What status.json says of a notebook's last time, or {}; 'running' without its process is 'interrupted'."""
    status = _json(folder / "status.json") or {}
    if status.get("state") == "running" and not _plays_elsewhere(status):
        return status | {"state": "interrupted", "reason": "the runner was killed"}
    return status


def _plays_elsewhere(status: Mapping[str, Any]) -> bool:
    player = Member.parse(status["process"])
    return player.pid != os.getpid() and player.alive


def _entries(out: Path, order: Sequence[str]) -> list[dict[str, Any]]:
    names = {*order, *(path.parent.name for path in out.glob("*/status.json"))}
    return [_entry(out / name) for name in sorted(names)]


def _entry(folder: Path) -> dict[str, Any]:
    status = load_status(folder) or {"state": "not played", "title": folder.name}
    found = _json(folder / "results.json") or {}
    return {"notebook": folder.name, **status, "results": found.get("results", []), "skipped": found.get("skipped", [])}


def _reports(out: Path) -> list[dict[str, Any]]:
    """The reports among the runs, the newest first, with a link from the page in `out`."""
    found = [_json(path) | {"link": os.path.relpath(path.with_suffix(".html"), out)}
             for path in (runs.root() / REPORTS).glob("*.json") if path.with_suffix(".html").exists()]
    return sorted(found, key=lambda report: report["time"], reverse=True)


def _listed(reports: Sequence[Mapping[str, Any]]) -> str:
    if not reports:
        return ""
    rows = "".join(f'<tr><th scope=row><a href="{quote(report["link"])}">{escape(report["title"])}</a></th>'
                   f"<td>{escape(report['time'][:16].replace('T', ' '))}</td>"
                   f"<td>{escape(' '.join(report['verdict']))}</td></tr>" for report in reports)
    return ("<table><caption>Reports on runs</caption><thead><tr><th scope=col>report</th><th scope=col>written</th>"
            f"<th scope=col>what it says</th></tr></thead><tbody>{rows}</tbody></table>")


def _row(entry: Mapping[str, Any]) -> str:
    state = entry["state"]
    seconds = f"<br>{number(float(entry['seconds']))} s" if entry.get("seconds") else ""
    played = f"<br>profile {escape(entry['profile'])}" if entry.get("profile") else ""
    return (f"<tr><th scope=row>{escape(entry['title'])} <small class=soft>{escape(entry['notebook'])}</small>"
            f"<br><small>{escape(entry.get('question', ''))}</small><br><small>{_links(entry)}</small></th>"
            f'<td><span class="state {escape(state)}">{MARKS[state]}</span><small>{seconds}{played}</small></td>'
            f"<td>{_trouble(entry)}{_found(entry)}</td></tr>")


def _links(entry: Mapping[str, Any]) -> str:
    return " · ".join(f'<a href="{quote(entry["notebook"])}/{quote(file)}">{escape(text)}</a>'
                      for text, file in entry.get("files", {}).items())


def _trouble(entry: Mapping[str, Any]) -> str:
    if not entry.get("reason"):
        return ""
    where = f"cell {entry['cell']}: " if entry.get("cell") else ""
    details = f"<pre>{escape(entry['details'])}</pre>" if entry.get("details") else ""
    return f"<p>{escape(where + entry['reason'])}</p>{details}"


def _found(entry: Mapping[str, Any]) -> str:
    notes = [f" <small>({escape(item['note'])})</small>" if item["note"] else "" for item in entry["results"]]
    items = [f"<b>{escape(number(item['value']))}</b> {escape(item['unit'])}{note}"
             for item, note in zip(entry["results"], notes, strict=True)]
    items += [f"skipped, {escape(item['reason'])}" for item in entry["skipped"]]
    names = [escape(item["name"].replace("_", " ")) for item in [*entry["results"], *entry["skipped"]]]
    return "<ul>" + "".join(f"<li>{name}: {item}</li>" for name, item in zip(names, items, strict=True)) + "</ul>"


def _facts(entry: Mapping[str, Any]) -> str:
    facts = {"profile": f"{entry.get('profile', 'none')}: {entry.get('profile_reason', 'nothing was played')}",
             **entry.get("environment", {})}
    return "<dl>" + "".join(f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(_text(value))}</dd>"
                            for name, value in facts.items()) + "</dl>"


def _text(value: Any) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)


def _json(path: Path) -> Any:
    return orjson.loads(path.read_bytes()) if path.exists() else None

"""Pages need no network, sources are shown from where they run, and the profile says why it was chosen."""

import functools
import json
import os
from html import escape
from pathlib import Path

import nbformat
import pytest

import lfhelpers.notebook
from lfhelpers.diagnose import diagnose
from lfhelpers.errors import LfError
from lfhelpers.notebook import figures, html, index, profiles, reports, source
from lfhelpers.notebook.progress import Progress
from lfhelpers.runs import recorded
from tests.notebook.lessons import code, lesson, save, text


def page_of(tmp_path, made, **options):
    return html.render(save(tmp_path, "00_page", made), **options)


def test_nbconverts_page_would_load_scripts_and_ours_does_not(tmp_path, monkeypatch):
    made = lesson(text("See [the paper](https://example.org/paper) and `import x from 'local'`."))
    page = page_of(tmp_path, made)
    assert html.external_loads(page) == []
    assert 'href="https://example.org/paper"' in page
    monkeypatch.setattr(html, "SCRIPT", html.re.compile("(?!)"))  # leaves nbconvert's scripts in
    assert any("mermaid" in address for address in html.external_loads(page_of(tmp_path, made)))


@pytest.mark.parametrize("load", [
    '<script src="https://x.org/a.js"></script>', "<img alt='' src='http://x.org/a.png'>",
    '<link rel="stylesheet" href="https://x.org/a.css">', "<style>@import url(https://x.org/a.css)</style>",
    "<style>b{background:url('https://x.org/a.png')}</style>", '<script>import m from "https://x.org/a.mjs"</script>',
    "<iframe width=1 src=https://x.org/a></iframe>",
])
def test_a_load_is_found(load):
    assert [address.startswith("http") for address in html.external_loads(load)] == [True]


def test_code_can_be_left_out_for_readers_of_results(tmp_path):
    made = lesson('value = "seen only in code"', text("Text stays."))
    made.cells[3].outputs = [nbformat.v4.new_output("stream", text="printed 7")]
    with_code, without = page_of(tmp_path, made), page_of(tmp_path, made, code=False)
    assert "seen only in code" in with_code and "seen only in code" not in without
    assert "printed 7" in without and "Text stays." in without


def test_a_source_listing_is_the_modules_own_text(capsys):
    listed, place = source.listing(functools.partial(html.render, code=False))
    file, lines = place.split(", lines ")
    first, last = map(int, lines.split(" to "))
    assert file == "lfhelpers/notebook/html.py" and listed.startswith("def render(notebook: Path")
    assert Path(html.__file__).read_text().splitlines()[first - 1:last] == listed.splitlines()
    source.show_source(html.render)
    assert capsys.readouterr().out == f"# {place}\n{listed}\n"
    with pytest.raises(LfError, match="has no Python source to show"):
        source.show_source(len)


def test_a_listing_can_end_before_a_line():
    head, place = source.listing(figures, until="def ")
    assert head.startswith('"""Figures that everyone can read') and "SVG: dict" in head and "\ndef " not in head
    assert place == f"lfhelpers/notebook/figures.py, lines 1 to {len(head.splitlines())}"


def test_a_listing_can_be_a_part_of_any_file(tmp_path, capsys):
    file = tmp_path / "kernel.cu"
    file.write_text("#include <x>\nint one() {\n  return 1;\n}\nint two();\n")
    source.show_source(file, since="int one(", until="int two")
    assert capsys.readouterr().out == "# kernel.cu, lines 2 to 4\nint one() {\n  return 1;\n}\n\n"


def test_what_lessons_import_is_there_and_a_misspelling_is_no_silent_none():
    assert all(callable(getattr(lfhelpers.notebook, name)) for name in lfhelpers.notebook.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'shwo'"):
        lfhelpers.notebook.shwo  # noqa: B018


def played(out, name, state, **more):
    folder = out / name
    folder.mkdir()
    facts = {"state": state, "title": f"Lesson <{name}>", "question": "Why?", "profile": "smoke", "time": name,
             "profile_reason": "no GPU", "environment": {"torch": "2.11", "gpus": []}, "files": {"page": "a b.html"}}
    (folder / "status.json").write_text(json.dumps(facts | more))


def test_the_index_has_a_row_a_notebook_and_links_to_what_there_is(tmp_path):
    played(tmp_path, "00_a", "done", seconds=12.34)
    played(tmp_path, "01_b", "failed", reason="ValueError: x < 1", cell=7, details="line 1\nline 2")
    results = {"results": [{"name": "step_ms", "value": 12.3456, "unit": "ms", "note": "median"}],
               "skipped": [{"name": "gpu_memory", "reason": "no GPU here"}]}
    (tmp_path / "00_a" / "results.json").write_text(json.dumps(results))
    index.write(tmp_path, ["02_c"], {"state": "failed"})
    page = (tmp_path / "index.html").read_text()
    for part in ("1 of 3 notebooks done", "Lesson &lt;00_a&gt;", "12.3 s", "step ms: <b>12.3</b> ms", "median",
                 "gpu memory: skipped, no GPU here", "cell 7: ValueError: x &lt; 1", "line 1\nline 2", "· not played",
                 '<a href="00_a/a%20b.html">page</a>', "smoke: no GPU", "<dt>torch</dt><dd>2.11</dd>"):
        assert part in page, part
    assert html.external_loads(page) == []


def test_running_without_its_process_is_interrupted(tmp_path):
    played(tmp_path, "00_a", "running", process="4194305:1.0")  # no process can have this number
    assert index.load_status(tmp_path / "00_a")["state"] == "interrupted"
    played(tmp_path, "01_b", "running", process=str(index.Member.of(os.getppid())))
    assert index.load_status(tmp_path / "01_b")["state"] == "running"


def test_the_profile_is_chosen_by_the_machine_and_says_why(monkeypatch):
    monkeypatch.setattr(profiles, "usable_gpus", lambda: (["H200", "H200"], ""))
    assert profiles.choose() == profiles.Profile("gpu", "2 x H200")
    assert profiles.choose("smoke") == profiles.Profile("smoke", "asked for")
    monkeypatch.setattr(profiles, "usable_gpus", lambda: ([], "no NVIDIA driver answers"))
    assert profiles.choose("auto") == profiles.Profile("smoke", "no NVIDIA driver answers")
    with pytest.raises(LfError, match="profile 'gpu' needs a GPU, and no NVIDIA driver answers; take smoke"):
        profiles.choose("gpu")


def test_hidden_gpus_are_not_usable(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert profiles.usable_gpus() == ([], "CUDA_VISIBLE_DEVICES hides all GPUs")


def test_progress_estimates_from_the_last_time_or_from_the_cells():
    cell = code("import torch\n\ntrain()")
    known, unknown = Progress("00_a", 10, before=100.0), Progress("00_a", 10)
    for progress in (known, unknown):
        progress.cell(cell, 0)
    assert unknown.line(3.0) == "00_a  cell 1 of 10, 3 s: import torch"
    unknown.cell(cell, 1)
    known.cell(cell, 1)
    assert unknown.line(4.0) == "00_a  cell 2 of 10, 4 s, about 36 s left: import torch"
    assert known.line(40.0) == "00_a  cell 2 of 10, 40 s, about 60 s left: import torch"


def test_a_report_in_a_lesson_says_what_it_says_in_a_terminal(monkeypatch):
    shown = []
    monkeypatch.setattr(reports.output, "put", lambda page, words: shown.append((page, words)))
    report = diagnose(recorded("h200x1/as_found"))
    reports.show_report(report)
    [(page, words)] = shown
    assert words == report.table()
    assert f"{report.samples_per_s:.1f} samples/s" in page and '<th scope="row"' in page
    assert all(f"<li>{escape(str(finding))}</li>" in page for finding in report.findings)

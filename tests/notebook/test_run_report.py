"""A report leaves the machine: one page that loads nothing, Markdown, JSON; and it says what forbids a comparison."""

import json
import re
import shlex
import shutil

import pytest

import lfhelpers as lf
from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.notebook import compared, html, index, run_report
from lfhelpers.recipe import recipe

NAMES = ("as_found", "competent", "full")


def recorded(*names):
    return [runs.recorded(f"h200x1/{name}") for name in names]


def copied(root, source, **changes):
    """A run of one's own with a recorded run's figures, and another recipe."""
    run = runs.create(source.recipe.with_(**changes))
    for name in ("environment.json", "summary.json", "steps.jsonl", "probe.json", "status.json"):
        shutil.copy(source.path / name, run.path / name)
    return run


@pytest.fixture(scope="module")
def sides():
    return compared.sides(recorded(*NAMES))


def test_the_page_needs_no_network_and_reads_without_eyes(sides):
    page = run_report.html(sides, "Three recipes")
    assert html.external_loads(page) == [] and "http" not in page
    assert page.count("<img") == len(re.findall(r'<img alt="[^"]{40,}"', page)) == 2
    assert page.count("<th ") == page.count("<th scope=") and page.count("<table") == page.count("<caption") == 5
    rates = [runs.recorded(f"h200x1/{name}").summary["samples_per_s"] for name in NAMES]
    assert f"full trains {rates[2] / rates[0]:.2f} times as many samples a second as as_found" in page
    assert "data.loader=&#x27;webdataset&#x27;, whose workers work ahead" in page


def test_markdown_and_json_say_the_same(sides):
    text, facts = run_report.markdown(sides, "Three recipes"), run_report.facts(sides, "Three recipes")
    assert text.startswith("### Three recipes\n") and all(line in text for line in facts["verdict"])
    row = next(line for line in text.splitlines() if line.startswith("| competent |"))
    assert f"| {facts['summary'][1]['times as_found']:.3g} |" in row
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert all(len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1 for table in tables)
    assert len(tables) == 4


def test_the_command_in_it_makes_the_same_recipe(sides):
    for side in sides:
        words = shlex.split(compared.again(side).removeprefix("lfhelpers launch "))
        assert words[0] == f"recipe={side.run.recipe.name}"
        made = recipe(side.run.recipe.name, *words[1:])
        assert lf.diff(made, side.run.recipe).keys() == {"data.path"}, "data is the caller's own"


def test_a_report_stays_small_with_many_long_runs_of_one_recipe(runs_root):
    source = runs.recorded("h200x1/as_found")
    many = [copied(runs_root, source) for _ in range(10)]
    line = source.steps()[20]
    for number, run in enumerate(many):
        (run.path / "steps.jsonl").unlink()
        run.append_steps([line | {"step": step, "loss": 1 / (step + number)} for step in range(1, 3001)])
    page = lf.report(*many)
    assert page.stat().st_size < 2_000_000
    assert len({side.label for side in compared.sides(many)}) == 10


def test_reports_are_linked_from_the_playbooks_index_under_a_stable_name(runs_root):
    (runs_root / "playbook").mkdir(parents=True)
    index.write(runs_root / "playbook", ["00_a"], {"state": "done"})
    pair = recorded("as_found", "full")
    first = lf.report(*pair, title="Before & after")
    assert first == lf.report(*pair, title="Before & after")
    ratio = pair[1].summary["samples_per_s"] / pair[0].summary["samples_per_s"]
    page = (runs_root / "playbook" / "index.html").read_text()
    assert f'<a href="../reports/{first.name}">Before &amp; after</a>' in page
    assert f"full trains {ratio:.2f} times" in page
    assert json.loads(first.with_suffix(".json").read_text())["title"] == "Before & after"
    assert sorted(path.suffix for path in first.parent.iterdir()) == [".html", ".json", ".md"]


def test_it_says_what_can_not_be_compared_and_what_did_not_end_well(runs_root):
    source = runs.recorded("h200x1/as_found")
    small = copied(runs_root, source, **{"workload.size": "small"})
    broken = runs.create(recipe("full"))
    broken.set_status("failed", "rank 1: ValueError: no such camera")
    said = compared.cautions(sides := compared.sides([broken, source, small]))
    assert "full is failed: rank 1: ValueError: no such camera." in said
    assert any(line.endswith("they train other models (workload.size is full and small).") for line in said)
    assert compared.verdict(sides)[0].startswith("full has no figures: run ")
    page = run_report.html(sides, "x")
    assert "no such camera" in page and str(runs_root) not in page, "a path means nothing on another machine"


def test_what_can_not_be_reported_is_a_sentence(runs_root, tmp_path):
    with pytest.raises(LfError, match="a report needs a run"):
        lf.report()
    with pytest.raises(LfError, match=r"there is nothing to report: run .* has no timed step yet"):
        lf.report(runs.create(recipe("full")))
    (tmp_path / "file").touch()
    with pytest.raises(LfError, match=r"can't be written into .*; give another folder with --out"):
        lf.report(*recorded("full"), out=tmp_path / "file")


def test_the_command_prints_the_parts_and_where_the_report_lies(command, runs_root):
    places = [run.path for run in recorded(*NAMES)]
    code, said, _ = command("report", *places, "--out", runs_root / "here")
    assert code == 0 and said.count("times as many samples/s as a") == 2
    page = next((runs_root / "here").glob("*.html"))
    assert f"report: {page}\nmarkdown: {page.with_suffix('.md')}" in said
    assert f"{runs.Run(places[2]).summary['steps']['timed']} timed steps of full" in command("report", places[2])[1]

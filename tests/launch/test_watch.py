"""The line that says how a run goes, from steps.jsonl as it grows."""

import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers import runs
from lfhelpers.launch import watch
from lfhelpers.launch.watch import WINDOW, Tail, last_step, screen, status_line
from lfhelpers.recipe import recipe
from lfhelpers.runs import Run

ROW = {"loss": 2.0, "samples": 64, "step_ms": 100.0, "ms": {"data_wait": 40.0}, "probe": False}


def row(step: int, **changed) -> dict:
    return ROW | {"step": step} | changed


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path))
    run = runs.create(recipe(steps=7200))
    run.set_status("running", pid=os.getpid())
    return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the line takes for the time, which stands still."""
    still = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(sys.modules["lfhelpers.launch.watch"], "time", still)  # the name itself is the verb's
    return still


@given(steps=st.integers(0, 60), cuts=st.lists(st.integers(0, 3000), max_size=8))
def test_a_file_read_while_it_grows_gives_what_the_whole_file_gives(steps, cuts):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.jsonl"
        data = b"".join(orjson.dumps({"step": step, "loss": 1 / step}) + b"\n" for step in range(1, steps + 1))
        tail = Tail(path)
        tail.update()
        for cut in [*sorted(cuts), len(data)]:
            with path.open("ab") as file:  # also in the middle of a line
                file.write(data[file.tell():max(cut, file.tell())])
            tail.update()
        assert [row["step"] for row in tail.rows] == list(range(1, steps + 1))[-WINDOW:]


def test_of_a_long_file_only_the_end_is_read(tmp_path):
    path = tmp_path / "steps.jsonl"
    rows = [orjson.dumps(row(step) | {"pad": "x" * 2000}) + b"\n" for step in range(40)]
    path.write_bytes(b"not json at all\n" * 100_000 + b"".join(rows))
    tail = Tail(path)
    tail.update()
    assert [item["step"] for item in tail.rows] == list(range(20, 40))


def test_exposed_exchange_is_shown_once_it_is_known(run):
    run.append_steps([row(1, exposed_ms=None)])
    assert "exposed" not in status_line(run)
    run.append_steps([row(2, exposed_ms=7.0), row(3, exposed_ms=8.0)])
    assert "data wait 40 %  exposed exchange 8 %  ETA" in status_line(run)


def test_rows_that_a_resumed_run_cut_off_are_forgotten(run):
    run.append_steps([row(step) for step in range(1, 31)])
    tail = Tail(run.path / "steps.jsonl")
    tail.update()
    run.truncate_steps(10)
    tail.update()
    assert tail.rows[-1]["step"] == last_step(run) == 10
    run.append_steps([row(11)])
    tail.update()
    assert tail.rows[-1]["step"] == 11
    tail.path.write_bytes(orjson.dumps(row(1)) + b"\n")  # in the same file
    tail.update()
    assert [item["step"] for item in tail.rows] == [1]


def test_the_line_while_it_runs_leaves_the_profiled_step_out_of_the_rates(run, clock):
    assert status_line(run) == "starting, 0 s"
    run.append_steps([row(1), row(2, probe=True, step_ms=9000.0), row(3, loss=1.5)])
    assert status_line(run.id) == "step 3/7200  loss 1.5000  640.0 samples/s  data wait 40 %  ETA 0:12:00"


def test_the_line_after_the_end_says_how_it_ended(run):
    run.append_steps([row(1), row(2)])
    run.set_status("failed", "rank 1: ValueError: no")
    assert status_line(run) == "failed at step 2/7200: rank 1: ValueError: no"
    run.set_status("done")
    assert status_line(run) == "done: 2/7200 steps, loss 2.0000"


def test_a_job_that_writes_no_steps_is_done_without_any(run):
    run.set_status("done")
    assert status_line(run) == "done"


def test_watching_from_elsewhere_follows_the_run_to_its_end(run, clock, capsys):
    run.append_steps([row(1)])
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            run.set_status("done")

    clock.sleep = sleep
    assert watch(run.id, every=0.05) == run and pauses == [0.05] * 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("step 1/7200") and lines[1:] == ["done: 1/7200 steps, loss 2.0000"]  # no line between


def test_a_terminal_keeps_one_line(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show = screen()
    show("step 1", False)
    show("done", True)
    assert capsys.readouterr().out == "\rstep 1\x1b[K\rdone\x1b[K\n"

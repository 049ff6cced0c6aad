"""A notebook ends as done only if every cell ran and every promise was kept, whatever papermill says of it."""

import signal

import nbformat
import pytest

from lfhelpers.errors import LfError
from lfhelpers.notebook import catalogue, execution
from lfhelpers.notebook.progress import Progress
from tests.notebook.lessons import lesson, save

DYING = """import os

os.write(2, b"terminate called")  # as a native library says why it aborts
os._exit(1)"""


def played(folder, made, limit=60, **values):
    path = save(folder, "00_lesson", made)
    out = folder / "out {0}"  # papermill would take the braces for a field
    out.mkdir()
    return out, execution.execute(path, catalogue.read(path), out, values, limit, Progress("00_lesson", 9))


def outputs(out, number):
    """Outputs of a cell of the executed copy, counted as in the source; papermill's injected cell is left out."""
    cells = [cell for cell in nbformat.read(out / "00_lesson.ipynb", as_version=4).cells
             if not {"injected-parameters", "papermill-error-cell-tag"} & set(cell.metadata.tags)]
    return cells[number - 1].outputs


def test_parameters_reach_the_notebook_typed_and_its_results_are_read_back(tmp_path):
    out, outcome = played(tmp_path, lesson('record("speed", steps * 1.5, "samples/s")\nprint(repr(profile))'),
                          steps=64, profile="smoke")
    assert (outcome.state, outcome.reason) == ("done", "")
    assert execution.load_results(out)["results"] == [
        {"name": "speed", "value": 96.0, "unit": "samples/s", "note": ""}]
    assert outputs(out, 4)[0].text == "speed: 96 samples/s\n'smoke'\n"
    assert sorted(path.name for path in out.iterdir()) == ["00_lesson.ipynb", "kernel.log", "results.json"]


def test_a_polite_exit_is_no_success(tmp_path):
    _, outcome = played(tmp_path, lesson('import sys\n\nrecord("speed", 1.0)\nsys.exit(0)', "print('never reached')"))
    assert outcome.state == "failed" and outcome.cell == 4
    assert "left the notebook by exit" in outcome.reason


def test_a_kernel_that_dies_leaves_the_cells_before_it_and_a_mark_where_it_died(tmp_path):
    out, outcome = played(tmp_path, lesson("print('kept')", DYING, "print('never reached')"))
    assert (outcome.state, outcome.cell) == ("failed", 5)
    assert outcome.reason.startswith("the kernel died") and outcome.details == "terminate called"
    assert outputs(out, 4)[0].text == "kept\n"
    assert outputs(out, 5)[0].evalue == outcome.reason
    assert outputs(out, 6) == []


def test_a_notebook_that_takes_too_long_ends_in_the_cell_that_was_running(tmp_path):
    # No cell is long; it is their sum that passes the limit.
    cells = [f"import time\n\ntime.sleep(0.4)  # {number}" for number in range(30)]
    out, outcome = played(tmp_path, lesson('record("speed", 1.0)', *cells), limit=4)
    assert (outcome.state, outcome.reason) == (
        "failed", "the notebook took longer than 4 s, and this cell was running then")
    assert 3 <= outcome.cell < 15, "the imports of cell 3 count too"
    assert outputs(out, outcome.cell)[-1].evalue == outcome.reason


@pytest.mark.parametrize(("expect", "reason"), [
    ("memory", "it promised the results memory, and neither recorded nor skipped them"),
    ("speed", ""),
])
def test_a_promise_is_kept_by_a_record_or_a_skip(tmp_path, expect, reason):
    _, outcome = played(tmp_path, lesson('skip("speed", "no GPU here")', expect=expect))
    assert outcome.reason == reason
    assert outcome.state == ("failed" if reason else "done")


def test_a_kernelspec_of_another_interpreter_is_refused(tmp_path, monkeypatch):
    spec = tmp_path / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text('{"argv": ["/elsewhere/bin/python", "-m", "ipykernel_launcher"], "display_name": "x"}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    with pytest.raises(LfError, match="starts /elsewhere/bin/python, not"):
        execution.check_kernel()


def test_a_lost_terminal_interrupts_and_nohup_is_respected():
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with pytest.raises(KeyboardInterrupt), execution.interruptible():
            signal.raise_signal(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with execution.interruptible():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)

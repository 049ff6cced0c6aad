"""`lfhelpers diagnose` as it is typed: a trace, a folder, two of them, a run with and without traces."""

import json
import shutil

import jsonschema

from lfhelpers import runs
from lfhelpers.diagnose.trace.schema import schema
from lfhelpers.recipe import recipe
from tests.diagnose.trace.synthetic import Timeline
from tests.diagnose.trace.test_ranks import folder_of


def slow(path):
    return Timeline().steps([("data", 90.0)] * 70).write(path)


def fast(path):
    return Timeline().steps([("data", 1.0)] * 70).write(path)


def test_a_trace_is_judged_in_the_first_line(tmp_path, command):
    code, out, err = command("diagnose", slow(tmp_path / "t.json"), "--html", tmp_path / "page.html", "--json",
                             tmp_path / "t.out")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("Data-bound: the GPU waits 64 % of each step of 9.8 ms, mostly for data; a loader that")
    assert lines[1].startswith("t.json: 852 events, a GPU; 3 window(s) by ProfilerStep, mean 9.850 ms")
    assert ["idle:", "data", "6.3", "64.0"] in [line.split() for line in lines]
    assert "note: the trace names no rank, so it is read as one rank alone" in lines
    assert lines[0].replace("'", "") in (tmp_path / "page.html").read_text()
    assert json.loads((tmp_path / "t.out").read_text())["bound"] == "data"


def test_json_on_the_terminal_is_json_alone(tmp_path, command):
    code, out, _ = command("diagnose", folder_of(tmp_path), "--json", "-")
    found = json.loads(out)
    jsonschema.validate(found, schema())
    assert code == 0 and found["across_ranks"]["late"] == 3
    assert json.loads(command("diagnose", "--schema")[1]) == schema()


def test_two_traces_are_compared(tmp_path, command):
    code, out, _ = command("diagnose", slow(tmp_path / "a.json"), "--against", fast(tmp_path / "b.json"))
    assert code == 0
    assert out.startswith("b is 2.72 times as fast as a by medians (2.72 by means); no longer data-bound, now compute-")
    assert ["idle:", "data", "6.3", "0.07", "6.23"] in [line.split() for line in out.splitlines()]


def test_mistakes_are_one_sentence(tmp_path, command):
    (tmp_path / "empty.json").touch()
    for words, sentence in (
            ((tmp_path / "none.json",), f"lfhelpers: there is no {tmp_path / 'none.json'}; give a trace, a folder"),
            ((tmp_path / "empty.json",), f"lfhelpers: {tmp_path / 'empty.json'} is empty."),
            ((), "lfhelpers: diagnose needs a trace, a folder of traces, or a run"),
            ((slow(tmp_path / "t.json"), "--html", tmp_path / "no" / "page.html"),
             f"lfhelpers: {tmp_path}/no/page.html can't be written: No such file or directory.")):
        code, _, err = command("diagnose", *words)
        assert (code, err.count("\n")) == (2, 1)
        assert err.startswith(sentence)


def finished(traces=None):
    """A run of a few steps as it stands in its folder, with traces if any."""
    run = runs.create(recipe("competent", "log.skip=1"))
    ms = {"data_wait": 40.0, "host_to_device": 0.5, "forward": 20.0, "backward": 30.0, "optimizer": 5.0, "other": 0.5}
    run.append_steps([{"step": step, "epoch": 0, "time": 0.1 * step, "loss": 1.0, "lr": 1e-3, "grad_norm": 1.0,
                       "skipped": False, "samples": 16, "step_ms": 96.0, "ms": ms, "host_ms": 55.0, "probe": False}
                      for step in range(1, 6)])
    run.set_status("done")
    if traces:
        shutil.copy(traces, run.path / "traces" / "rank-0.json")
    return run


def test_a_run_gets_its_report_and_then_that_of_its_traces(tmp_path, command, runs_root):
    plain, traced = finished(), finished(slow(tmp_path / "t.json"))
    code, out, _ = command("diagnose", plain.id)
    assert code == 0 and out.startswith(f"run {plain.id} (done)") and "Data-bound" not in out
    code, out, _ = command("diagnose", traced.path)
    assert code == 0 and out.startswith(f"run {traced.id} (done)") and "\nData-bound: the GPU waits 64 %" in out
    code, out, _ = command("diagnose", plain.id, "--against", traced.id)
    assert code == 0 and out.startswith(f"a: run {plain.id}")
    code, out, _ = command("diagnose", traced.id, "--against", fast(tmp_path / "f.json"))
    assert code == 0 and out.startswith("b is 2.72 times as fast")


def test_what_needs_traces_says_how_to_record_them(tmp_path, command, runs_root):
    plain = finished()
    for words in ((plain.id, "--json", "-"), (plain.id, "--against", slow(tmp_path / "t.json"))):
        code, _, err = command("diagnose", *words)
        assert code == 2
        assert err == f"lfhelpers: run {plain.id} holds no traces; record them with `lfhelpers launch --profile`.\n"

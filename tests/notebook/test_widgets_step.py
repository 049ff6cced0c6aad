"""The what-if explorer begins at the measured run, and the timeline's picture moves along the step."""

import pytest

from lfhelpers import runs
from lfhelpers.diagnose import diagnose
from lfhelpers.measure.timeline import Span
from lfhelpers.notebook import widgets_step
from lfhelpers.notebook.widgets import Explorer


@pytest.fixture
def made(monkeypatch):
    """The explorers that a call would show, instead of their static results."""
    kept = []
    monkeypatch.setattr(widgets_step, "explore", lambda draw, labels, **ranges: kept.append(
        Explorer(draw, ranges, labels)))
    return kept


def test_the_measured_run_is_where_it_begins(made, capsys):
    report = diagnose(runs.recorded("h200x1/as_found"))
    widgets_step.what_if(report)
    (explorer,) = made
    controls, step = explorer.controls, report.step_ms["mean"]
    assert (controls["data"].value, controls["micro"].value) == (pytest.approx(step, rel=1e-3), 16)
    controls["data"].value = 0.0
    freed = step / (step - report.ms["data_wait"])
    assert f"{freed:.2f} times the measured run; computation sets the pace" in explorer.result.value
    controls["data"].value = controls["data"].max
    assert "0.50 times the measured run; the loader sets the pace" in explorer.result.value


def test_the_static_result_is_the_measured_step_alone(capsys):
    report = diagnose(runs.recorded("h200x1/competent"))
    widgets_step.what_if(report)
    out = capsys.readouterr().out
    assert out.startswith(f"Measured: a step of {report.step_ms['mean']:.0f} ms, {report.samples_per_s:.0f} samples/s; "
                          "computation sets the pace.")
    assert "what if" not in out


def test_the_timeline_shows_what_lies_in_its_window(made):
    widgets_step.step_timeline([Span("host", "op", 1000 * place, 1000 * place + 500) for place in range(10)], 10_000)
    (explorer,) = made
    explorer.controls["length"].value = 2.0
    assert "In 2 ms: step, host: 2 pieces, 50 % busy." in explorer.result.value
    explorer.controls["begin"].value = 9.0
    assert "In 2 ms: step, host: 1 pieces, 25 % busy." in explorer.result.value

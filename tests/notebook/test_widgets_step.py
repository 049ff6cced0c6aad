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
    widgets_step.what_if(diagnose(runs.recorded("h200x1/as_found")))
    (explorer,) = made
    controls = explorer.controls
    assert (controls["data"].value, controls["micro"].value) == (pytest.approx(362.9, abs=0.1), 16)
    controls["data"].value = 0.0
    assert "2.17 times the measured run; computation sets the pace" in explorer.result.value
    controls["data"].value = controls["data"].max
    assert "0.50 times the measured run; the loader sets the pace" in explorer.result.value


def test_the_static_result_is_the_measured_step_alone(capsys):
    widgets_step.what_if(diagnose(runs.recorded("h200x1/competent")))
    out = capsys.readouterr().out
    assert out.startswith("Measured: a step of 115 ms, 139 samples/s; computation sets the pace.")
    assert "what if" not in out


def test_the_timeline_shows_what_lies_in_its_window(made):
    widgets_step.step_timeline([Span("host", "op", 1000 * place, 1000 * place + 500) for place in range(10)], 10_000)
    (explorer,) = made
    explorer.controls["length"].value = 2.0
    assert "In 2 ms: step, host: 2 pieces, 50 % busy." in explorer.result.value
    explorer.controls["begin"].value = 9.0
    assert "In 2 ms: step, host: 1 pieces, 25 % busy." in explorer.result.value

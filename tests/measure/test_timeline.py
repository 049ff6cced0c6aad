"""Windows of a step: operators of a real CPU step, cut to a slice, and the slices on record."""

import orjson
import pytest
import torch

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.measure import timeline
from lfhelpers.measure.timeline import Span


def test_outermost_operators_are_found_and_what_they_call_is_not():
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    found = timeline.operators(lambda: model(x).softmax(1))
    assert [span.name for span in found] == ["aten::linear", "aten::softmax"]
    assert all(span.lane == "host" and span.end_us > span.start_us for span in found)
    assert found[0].end_us <= found[1].start_us


SPANS = [Span("host", "a", 100, 130), Span("stream 7", "b", 140, 200), Span("host", "c", 150, 160)]


def test_a_window_is_cut_at_both_ends_and_begins_at_0():
    assert timeline.window(SPANS, 60, 20) == [Span("host", "a", 0, 10), Span("stream 7", "b", 20, 60),
                                              Span("host", "c", 30, 40)]


def test_a_typical_window_is_neither_the_fullest_nor_the_emptiest():
    assert timeline.typical(SPANS, 25) == [Span("host", "a", 0, 5), Span("stream 7", "b", 15, 25)], "of 1, 2, 2, 1"
    assert timeline.typical(SPANS, 1000) == timeline.window(SPANS, 1000)


def test_times_that_overlap_or_touch_are_joined():
    assert timeline.merged(SPANS) == [(100, 130), (140, 200)]
    assert timeline.merged([Span("host", "a", 0, 5), Span("host", "b", 5, 6)]) == [(0, 6)]
    assert timeline.merged([]) == []


@pytest.fixture
def reference(tmp_path, monkeypatch):
    """The file of a machine's slices, in a project of its own."""
    monkeypatch.setattr(runs, "project", lambda: tmp_path)
    path = tmp_path / "runs" / "reference" / "h200x1" / "step_timeline.json"
    path.parent.mkdir(parents=True)
    return path


def test_a_recorded_timeline_is_read_with_what_it_was_recorded_on(reference):
    assert timeline.recorded("h200x1") is None
    reference.write_bytes(orjson.dumps({
        "case": "small_mb32", "window_us": 50.0, "hardware": {"gpus": []}, "versions": {}, "commit": None,
        "time": "now", "windows": {"as found": [["host", "cudaLaunchKernel", 0.0, 5.0], ["stream 7", "k", 8.0, 70.0]]},
    }))
    found = timeline.recorded("h200x1")
    assert found.windows == {"as found": [Span("host", "cudaLaunchKernel", 0, 5), Span("stream 7", "k", 8, 50)]}
    assert (found.length_us, found.facts["case"]) == (50.0, "small_mb32")


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"window_us": 1.0}'])
def test_a_file_that_holds_no_timeline_is_named(reference, content):
    reference.write_bytes(content)
    with pytest.raises(LfError, match=r"step_timeline.json holds no timeline .* record it anew"):
        timeline.recorded("h200x1")

"""Reading goes on where vendors spell things otherwise, and a long one shows on a terminal how far it is."""

import functools
import io

import pytest
from tqdm import tqdm

from lfhelpers.diagnose.trace import diagnose_trace, stream
from lfhelpers.diagnose.trace.read import read
from tests.diagnose.trace.synthetic import GEMM, Timeline
from tests.diagnose.trace.test_read import good, same, text_of


def test_a_trace_of_rocm_is_divided_like_one_of_cuda(tmp_path):
    """hip* calls stand in the category hip_runtime or still in cuda_runtime, and exchanges are rccl's or nccl's."""
    for category in ("hip_runtime", "cuda_runtime"):
        writer = Timeline().steps([("synchronisation", 200.0), ("exposed_copies", 50.0), ("forward_host", 100.0)])
        expected = diagnose_trace(writer.write(tmp_path / "cuda.json")).main.percent
        for event in writer.events:
            if event["cat"] == "cuda_runtime":
                event |= {"cat": category, "name": event["name"].replace("cuda", "hip")}
            if event["name"] == GEMM:
                event["name"] = "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI16x16x16x1"
        found = diagnose_trace(writer.write(tmp_path / "rocm.json")).main
        assert "hipStreamSynchronize" in found.trace.names and "hipMemcpyAsync" in found.trace.names
        assert found.percent == expected and expected["synchronisation"] > 20
        assert found.found.launched.known.all()


@pytest.mark.parametrize("spelt", [str, hex])
def test_correlations_that_are_text_tie_work_to_its_launch(tmp_path, spelt):
    writer, whole = good(), read(good().write(tmp_path / "whole.json"))
    for event in writer.events:
        if "correlation" in event["args"]:
            event["args"]["correlation"] = spelt(event["args"]["correlation"])
    assert same(read(writer.write(tmp_path / "t.json")), whole)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_shows_how_far_a_long_reading_is(tmp_path, monkeypatch, terminal):
    class Screen(io.StringIO):
        def isatty(self):
            return terminal

    text, screen = text_of(good()), Screen()
    path = tmp_path / "long.json"
    path.write_text(text)
    monkeypatch.setattr(stream, "READ", len(text) // 4)
    monkeypatch.setattr(stream, "tqdm", functools.partial(tqdm, file=screen, mininterval=0.0))
    monkeypatch.setattr(stream, "BAR_AFTER", 0)
    read(path)
    assert ("long.json: " in screen.getvalue() and "100%" in screen.getvalue()) == terminal
    assert bool(screen.getvalue()) == terminal, "a file or a pipe gets no bar"


def test_a_short_reading_shows_no_bar(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(stream, "tqdm", lambda **options: shown.append(options) or tqdm(**options | {"disable": True}))
    read(good().write(tmp_path / "t.json"))
    assert [(one["delay"], one["disable"]) for one in shown] == [(stream.BAR_AFTER, None)]

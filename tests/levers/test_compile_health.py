"""Reports of several ranks become one; a torch without a counter gives "unknown" and no number."""

import pytest
import torch

from lfhelpers.levers import compile as lever
from lfhelpers.levers.compile_health import known, merged, notes, reason
from lfhelpers.recipe import recipe

REPORT = {"state": "on", "reason": None, "seconds": 3.0, "graphs": 2, "graph_breaks": [], "eager_fallbacks": []}

FIGURES = ("seconds", "graphs", "recompilations", "graph_breaks", "eager_fallbacks", "cache")


def test_the_slowest_ranks_seconds_count_and_a_strange_ranks_fallback_is_named():
    lost = {"what": "Block", "reason": "no space left"}
    whole = merged([REPORT, REPORT | {"seconds": 9.0, "eager_fallbacks": [lost]}])
    assert whole["seconds"] == 9.0
    assert whole["eager_fallbacks"] == [{"what": "Block (rank 1)", "reason": "no space left"}]
    assert merged([REPORT | {"eager_fallbacks": [lost]}] * 2)["eager_fallbacks"] == [lost]


def test_what_this_torch_does_not_count_is_unknown(monkeypatch):
    from torch._dynamo import callback, utils

    assert known(lambda: {}["missing"]) == "unknown"
    for name in ("get_compilation_metrics", "set_compilation_metrics_limit", "graph_break_reasons"):
        monkeypatch.delattr(utils, name)
    monkeypatch.setitem(utils.counters, "stats", None)
    monkeypatch.delattr(callback, "callback_handler")
    with lever.session(recipe("competent", "compile.scope=blocks"), torch.device("cpu")) as compilation:
        report = compilation.report()
    assert [report[key] for key in FIGURES] == ["unknown"] * len(FIGURES)
    assert merged([report, report]) == report


def test_notes_say_what_is_not_compiled_and_where_graphs_break():
    assert notes(REPORT) == notes({}) == []
    off = REPORT | {"state": "off", "reason": "Triton is missing"}
    assert notes(off) == ["compile: off, because Triton is missing"]
    broken = REPORT | {"graph_breaks": [{"where": "model.py:7 in forward", "reason": "a print", "count": 3},
                                        {"where": "distributed.py:0 in DDPOptimizer", "reason": "meant", "count": 9}]}
    assert notes(broken) == ["compile: 3 graph breaks, the first at model.py:7 in forward: a print"]


@pytest.mark.parametrize(("error", "said"), [
    (RuntimeError("Failed to find C compiler. Please specify via CC"), "Triton finds no C compiler (install gcc, or "
                                                                      "name one with CC)"),
    (ValueError("first line.\nsecond"), "ValueError: first line"),
])
def test_the_innermost_error_is_told_in_one_line(error, said):
    outer = RuntimeError("a long story")
    outer.__cause__ = error
    assert reason(outer) == said

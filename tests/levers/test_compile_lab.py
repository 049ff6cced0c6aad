"""The experiments of lesson 03: what each of them says it shows, with the lever that a run compiles with."""

import logging

import pytest
import torch

from lfhelpers.errors import LfError
from lfhelpers.levers.compile_lab import Decides, Ffn, compiled


@pytest.fixture(autouse=True)
def without_inductor(monkeypatch):
    """Dynamo is what these tests are about; a C++ compilation each would make them slow."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, dynamic, mode: real(function, backend="aot_eager",
                                                                               dynamic=dynamic))
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("scope", ["blocks", "model"])
def test_blocks_or_a_whole_model_are_compiled_once_and_compute_the_same(scope):
    blocks, x = [Ffn(8) for _ in range(3)], torch.randn(4, 8, requires_grad=True)
    with torch.no_grad():
        wanted = blocks[2](blocks[1](blocks[0](x)))
    (found,), report = compiled(blocks, [x], f"compile.scope={scope}")
    assert torch.allclose(found, wanted, atol=1e-6)
    assert (report["scope"], report["state"], report["graphs"], report["cache"]) == (scope, "on", 1, "off")


def test_another_shape_is_another_compilation_until_the_limit(caplog):
    with torch.no_grad():
        _, report = compiled([Ffn(8)], [torch.randn(rows, 8) for rows in (4, 4, 3)])
        with pytest.raises(LfError, match=r"has compiled Ffn\.forward 2 times"):
            compiled([Ffn(8)], [torch.randn(rows, 8) for rows in (4, 3, 2)], "compile.recompile_limit=2")
    assert ["expected 4, actual 3" in item["guard"] for item in report["recompilations"]] == [True]
    assert logging.getLogger("torch._dynamo").level != logging.ERROR, "the process's logging is put back"


def test_a_decision_on_a_value_breaks_the_graph_and_stays_right():
    small, large = 0.1 * torch.ones(2, 8), 3 * torch.ones(2, 8)
    block = Decides(8)
    with torch.no_grad():
        wanted = [block(small), block(large)]
        found, report = compiled([block], [small, large])
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(found, wanted, strict=True))
    (item,) = report["graph_breaks"]
    assert (item["where"].split(":")[0], item["count"]) == ("compile_lab.py", 1)

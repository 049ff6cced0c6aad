"""Compiled parts compute what eager ones do, under the same names; what isn't compiled, or again and again, is told.

Most tests here use dynamo with a backend that runs the traced graph as it is: dynamo is what they are about, and a C++
compilation each would make them slow.
"""

import functools

import pytest
import torch
from torch import nn

from lfhelpers.errors import LfError
from lfhelpers.levers import compile as lever
from lfhelpers.recipe import recipe
from tests.train.toy import Toy, batches

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def backend(monkeypatch):
    """Let torch.compile use another backend than Inductor."""
    real = torch.compile

    def use(which="aot_eager"):
        monkeypatch.setattr(torch, "compile", lambda function, dynamic, mode: real(function, backend=which,
                                                                                   dynamic=dynamic))
    use()
    return use


def session(*overrides):
    return lever.session(recipe("competent", "compile.scope=blocks", "compile.cache=false", *overrides), CPU)


class Affine(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x).tanh()


class Prints(Affine):
    def forward(self, x):
        x = self.linear(x)
        print("a side effect that no graph can hold")
        return x.tanh()


class Cosine(nn.Module):
    def forward(self, x):
        return x.cos()


@pytest.mark.parametrize("scope", ["blocks", "model"])
def test_compiled_parts_give_the_eager_loss_and_gradients(scope):
    pair, = batches(1, 8)
    results = []
    for job in (recipe("competent"), recipe("competent", f"compile.scope={scope}", "compile.cache=false")):
        torch.manual_seed(0)
        model = Toy(job).model()
        with lever.session(job, CPU) as compilation:
            compilation.apply(model, [model[0]])
            loss, weight = Toy.loss(None, model, *pair)
            (loss / weight).backward()
            results.append((loss.item(), model[0].weight.grad, list(model.state_dict()), compilation.report()))
    eager, compiled = results
    assert compiled[0] == pytest.approx(eager[0], rel=1e-5)
    assert torch.allclose(compiled[1], eager[1], atol=1e-5)
    assert compiled[2] == eager[2], "checkpoints of compiled models have no _orig_mod. in their keys"
    assert (eager[3]["state"], eager[3]["graphs"], eager[3]["seconds"]) == ("none", 0, 0)
    assert (compiled[3]["state"], compiled[3]["graphs"], compiled[3]["cache"]) == ("on", 1, "off")
    assert compiled[3]["seconds"] > 0 and compiled[3]["eager_fallbacks"] == []


def test_blocks_of_one_class_share_a_graph_and_so_do_torchs_own_modules(backend):
    """Compiled in place by torch alone, an nn.Sequential would stay eager without a word."""
    blocks = [Affine() for _ in range(3)] + [nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)]
    with session() as compilation:
        compilation.apply(nn.ModuleList(blocks), blocks)
        x = torch.randn(4, 8, requires_grad=True)
        expected = functools.reduce(lambda value, block: block._call_impl(value), blocks, x)
        y = functools.reduce(lambda value, block: block(value), blocks, x)
        report = compilation.report()
    assert torch.equal(y, expected)
    assert (report["graphs"], report["recompilations"], report["state"]) == (2, [], "on")


def test_a_graph_break_is_reported_with_its_place_and_its_reason(backend):
    with session() as compilation:
        blocks = [Prints(), Prints()]
        compilation.apply(nn.ModuleList(blocks), blocks)
        for block in blocks:
            block(torch.randn(2, 8))
        found, = compilation.report()["graph_breaks"]
    assert found["where"].startswith("test_compile.py:") and found["where"].endswith(" in forward")
    assert "print" in found["reason"] and "Hint" not in found["reason"]
    assert found["count"] == 1


def test_a_recompilation_is_reported_with_the_guard_that_failed_and_the_limit_ends_the_run(backend):
    """torch would run the block eagerly from the third shape on, with a line in the log (TensorRT-LLM issue 6142)."""
    with session("compile.recompile_limit=2") as compilation:
        block = Affine()
        compilation.apply(block, [block])
        for rows in (16, 16, 7, 7):
            block(torch.randn(rows, 8))
        report = compilation.report()
        with pytest.raises(LfError, match=r"has compiled Affine.forward 2 times.*'tensor 'x' size mismatch at index 0"):
            block(torch.randn(5, 8))
        found, = report["recompilations"]
    assert report["graphs"] == 2
    assert found["what"].startswith("forward (test_compile.py:")
    assert "size mismatch at index 0. expected 16, actual 7" in found["guard"]


def test_a_class_that_torch_passes_over_is_named(backend):
    class Disabled(Affine):
        @torch.compiler.disable
        def forward(self, x):
            return self.linear(x)

    with session() as compilation:
        blocks = [Affine(), Disabled()]
        compilation.apply(nn.ModuleList(blocks), blocks)
        for block in blocks:
            block(torch.randn(2, 8))
        report = compilation.report()
    assert report["eager_fallbacks"] == [{"what": "Disabled", "reason": "RuntimeError: torch.compile passes over it"}]
    assert report["state"] == "part"


def test_a_frame_that_dynamo_gives_up_is_named(backend):
    class Loops(Affine):
        def forward(self, x):
            for _ in range(2):
                try:
                    print("a break where dynamo can't go on afterwards")
                finally:
                    x = self.linear(x)
            return x

    with session() as compilation:
        block = Loops()
        compilation.apply(block, [block])
        block(torch.randn(2, 8))
        found = compilation.report()["eager_fallbacks"]
    assert found, "a block that runs eagerly must not look compiled"
    assert all("Loops" in item["what"] or "forward" in item["what"] for item in found)


@pytest.mark.parametrize("fails_in", ["forward", "backward"])
def test_a_class_that_cannot_be_compiled_runs_eagerly_and_the_others_stay_compiled(backend, capsys, fails_in):
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    def refuse(graph, _):
        if any("cos" in str(node.target) or "sin" in str(node.target) for node in graph.graph.nodes):
            raise ValueError("no such kernel\nand many lines more")
        return make_boxed_func(graph)

    def accept(graph, _):
        return make_boxed_func(graph)
    forward, backward = (refuse, accept) if fails_in == "forward" else (accept, refuse)
    backend(aot_autograd(fw_compiler=forward, bw_compiler=backward))
    with session() as compilation:
        blocks = [Affine(), Cosine(), Cosine()]
        compilation.apply(nn.ModuleList(blocks), blocks)
        x = torch.randn(2, 8, requires_grad=True)
        functools.reduce(lambda value, block: block(value), blocks, x).sum().backward()
        report = compilation.report()
    assert x.grad.isfinite().all() and x.grad.any()
    assert report["eager_fallbacks"] == [{"what": "Cosine", "reason": "ValueError: no such kernel"}]
    assert (report["state"], report["reason"]) == ("part", "ValueError: no such kernel")
    assert capsys.readouterr().out == "compile: Cosine runs eagerly, because ValueError: no such kernel.\n"


def test_a_mistake_in_the_users_forward_is_raised_as_it_is(backend):
    with session() as compilation:
        block = Affine()
        compilation.apply(block, [block])
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            block(torch.randn(2, 9))


def test_evaluation_at_other_shapes_compiles_nothing(backend):
    with session() as compilation:
        block = Affine()
        compilation.apply(block, [block])
        block(torch.randn(8, 8))
        with compilation.eager(), torch.no_grad():
            for rows in range(1, 8):
                block(torch.randn(rows, 8))
        block(torch.randn(8, 8))
        report = compilation.report()
    assert (report["graphs"], report["recompilations"]) == (1, [])


def test_torchs_settings_are_put_back(backend):
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch

    def settings():
        return (dynamo.fail_on_recompile_limit_hit, dynamo.recompile_limit, dynamo.optimize_ddp,
                functorch.force_non_lazy_backward_lowering)
    before = settings()
    with session("compile.recompile_limit=3"):
        assert settings() == (True, 3, False, True)
    with session("compile.scope=model"):
        assert settings() == (True, 8, True, True), "one graph over the model needs DDP's cuts for its overlap"
    assert settings() == before

"""Recomputed blocks: the same gradients and the same dropout masks, for fewer saved bytes, and refusals by name."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from lfhelpers.errors import LfError
from lfhelpers.levers import activations
from lfhelpers.levers.activations_plan import SEGMENTS, rules_of_thumb
from lfhelpers.measure import memory
from lfhelpers.recipe import recipe

CPU = torch.device("cpu")
PLANS = {"none": (), "all": ("activations.plan=all",), "two blocks": ("activations.plan=blocks",
         "activations.blocks=[0, 2]"), "ops": ("activations.plan=ops",),
         "ops, every second": ("activations.plan=ops", "activations.recompute_every=2")}


class Layer(nn.Module):
    """Attention and an FFN with dropout."""

    def __init__(self):
        super().__init__()
        self.into, self.up, self.down, self.drop = nn.Linear(8, 24), nn.Linear(8, 32), nn.Linear(32, 8), nn.Dropout(0.3)

    def forward(self, x):
        query, key, value = self.into(x).chunk(3, dim=-1)
        x = x + F.scaled_dot_product_attention(query, key, value)
        return x + self.drop(self.down(F.gelu(self.up(x))))


class Counting(nn.Module):
    """Gives another result each time: what torch's own check of shapes lets pass."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 8), 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * self.calls


class Averaging(nn.Module):
    """Keeps a moving average in a buffer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0).mean(0))
        return self.layer(x)


def stack(count=3, dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(*[Layer() for _ in range(count)]).to(dtype)


def planned(model, *overrides):
    activations.apply(recipe("competent", "device=cpu", *overrides), list(model), CPU)
    return model


def gradients(model, x, autocast=False):
    """Output, gradients of the parameters and of x, as seen with one and the same stream of random numbers."""
    model.zero_grad()
    x = x.clone().requires_grad_(x.is_floating_point())
    torch.manual_seed(7)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast, cache_enabled=False):
        out = model(x)
    out.float().square().sum().backward() if autocast else out.square().sum().backward()
    return [out.detach(), x.grad, *(parameter.grad for parameter in model.parameters())], torch.rand(1)


@pytest.mark.parametrize("plan", [name for name in PLANS if name != "none"])
def test_gradients_and_dropout_masks_are_the_same_bits_and_so_is_what_is_drawn_next(plan):
    model, x = stack(), torch.randn(2, 5, 8, dtype=torch.float64)
    plain, after = gradients(copy.deepcopy(model), x)
    ours, after_ours = gradients(planned(model, *PLANS[plan]), x)
    assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))
    assert torch.equal(after, after_ours)


@pytest.mark.parametrize("plan", ["all", "ops"])
def test_a_block_used_twice_under_autocast_gets_the_same_gradients(plan):
    """Selective recomputation counts casts, which a cache of them would leave out (pytorch issue 193338)."""
    layer, x = stack(1, torch.float32)[0], torch.randn(2, 5, 8)
    plain, _ = gradients(nn.Sequential(copy.deepcopy(layer), copy.deepcopy(layer)), x, autocast=True)
    twice = nn.Sequential(layer, layer)
    ours, _ = gradients(planned(twice, *PLANS[plan]), x, autocast=True)
    both = [a + b for a, b in zip(plain[2:8], plain[8:], strict=True)]
    assert torch.equal(ours[0], plain[0]) and all(torch.allclose(a, b, rtol=1e-2, atol=1e-3)
                                                  for a, b in zip(ours[2:], both, strict=True))


def test_an_input_without_gradient_still_trains_every_parameter():
    """The reentrant checkpoint gives no gradient at all here, and only a warning (transformers issue 21381)."""
    model, x = stack(), torch.randn(2, 5, 8, dtype=torch.float64)
    plain = [parameter.grad for parameter in _backward(copy.deepcopy(model), x).parameters()]
    ours = [parameter.grad for parameter in _backward(planned(model, *PLANS["all"]), x).parameters()]
    assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))


def _backward(model, x):
    torch.manual_seed(7)
    model(x).square().sum().backward()
    return model


def test_each_plan_saves_less_and_a_frozen_stack_nothing():
    x = torch.randn(2, 5, 8, dtype=torch.float64)

    def saved(plan, frozen=False):
        model = planned(stack(), *PLANS[plan]).requires_grad_(not frozen)
        with memory.counted(model) as found:
            model(x)
        return found.bytes
    inputs = 3 * 2 * 5 * 8 * 8  # of three blocks, [2, 5, 8] float64; the last block's is counted like the first's
    assert saved("all") == inputs
    assert saved("all") < saved("ops, every second") < saved("ops") < saved("none")
    assert saved("all") < saved("two blocks") < saved("none")
    assert saved("none", frozen=True) == 0


def test_names_and_state_stay_as_they_are_and_evaluation_does_not_recompute():
    model = planned(stack(), *PLANS["all"])
    assert isinstance(model[0], Layer) and type(model[0]).__name__ == "Layer" and activations.recomputes(model[0])
    assert list(model.state_dict()) == list(stack().state_dict())
    with torch.no_grad():
        assert model(torch.randn(2, 5, 8, dtype=torch.float64)).grad_fn is None


@pytest.mark.parametrize(("block", "sentence"), [
    (Counting, "block Counting gives another result when it is run again"),
    (Averaging, "block Averaging changes its buffers in forward")])
def test_a_block_that_changes_is_refused_by_name_at_its_first_call(block, sentence):
    model = planned(nn.Sequential(block()), *PLANS["all"])
    with pytest.raises(LfError, match=sentence):
        model(torch.randn(2, 5, 8))


@pytest.mark.parametrize("whole", [False, True], ids=["compiled in place", "inside a compiled model"])
@pytest.mark.parametrize(("block", "sentence"), [
    (Counting, "block Counting gives another result when it is run again"),
    (Averaging, "block Averaging changes its buffers in forward")])
def test_a_block_that_changes_is_refused_where_it_is_compiled_too(block, sentence, whole):
    """The compiler alone would let the one pass, and end at the other with a RuntimeError about versions of tensors."""
    model = planned(nn.Sequential(block()), *PLANS["all"])
    if whole:
        model = torch.compile(model, backend="eager")
    else:
        model[0].compile(backend="eager")
    with pytest.raises(LfError, match=sentence):
        model(torch.randn(2, 5, 8))


@pytest.mark.parametrize("plan", ["all", "ops"])
def test_a_compiled_block_is_proven_once_and_has_the_gradients_of_an_eager_one(plan, monkeypatch):
    proofs, prove = [], activations._prove
    monkeypatch.setattr(activations, "_prove", lambda block, *rest: proofs.append(block) or prove(block, *rest))
    model, x = stack(2), torch.randn(2, 5, 8, dtype=torch.float64)
    for block in model:
        block.drop.p = 0.0
    plain, _ = gradients(copy.deepcopy(model), x)
    planned(model, *PLANS[plan])
    for block in model:
        block.compile(backend="aot_eager")
    for _ in range(2):
        ours, _ = gradients(model, x)
        assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(plain, ours, strict=True))
    assert proofs == list(model)


@pytest.mark.parametrize(("count", "inner"), [(4, 0), (8, 3)], ids=["one block a segment", "two blocks a segment"])
def test_torchs_checkpoint_sequential_keeps_what_its_stand_in_keeps_but_for_inputs_inside_a_segment(count, inner):
    """Such an input has as many bytes as x, and is what the rule of thumb pays for being a list of blocks."""
    x, model = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True), stack(count)
    numbers = rules_of_thumb(range(count))["all but the last of 4 segments"]
    ours = planned(copy.deepcopy(model), "activations.plan=blocks", f"activations.blocks={numbers}")
    kept = []
    for layers, run in ((model, lambda: checkpoint_sequential(model, SEGMENTS, x, use_reentrant=False)),
                        (ours, lambda: ours(x))):
        with memory.counted(layers) as found:
            run()
        kept.append(found.bytes)
    assert kept[1] - kept[0] == inner * x.nbytes


def test_batch_norm_is_refused_by_name_before_anything_runs():
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    with pytest.raises(LfError, match=r"block 0 \(Sequential\) holds BatchNorm1d '1', whose running statistics"):
        planned(model, *PLANS["all"])


def test_a_random_block_is_refused_where_its_masks_could_not_be_drawn_again():
    block = stack(1, torch.float32)[0]
    block.__class__ = activations.recomputing(Layer, restore_random=False)
    with pytest.raises(LfError, match="Layer draws random numbers, which can't be drawn again inside a CUDA graph"):
        block(torch.randn(2, 5, 8))


def test_numbers_of_blocks_are_checked():
    with pytest.raises(LfError, match=r"'activations.blocks' = 3: the model has 3 blocks, numbered from 0 to 2"):
        planned(stack(), "activations.plan=blocks", "activations.blocks=[0, 3]")


@pytest.mark.parametrize(("overrides", "sentence"), [
    (("activations.plan=blocks",), "need each other"), (("activations.blocks=[1]",), "need each other"),
    (("activations.plan=budget",), "set compile.scope='blocks'"),
    (("activations.plan=ops", "activations.recompute_every=1"), "is 0 or at least 2"),
    (("activations.plan=all", "activations.recompute_every=2"), "needs activations.plan='ops'")])
def test_contradictions_are_refused(overrides, sentence):
    with pytest.raises(LfError, match=sentence):
        recipe("competent", *overrides)


@pytest.mark.parametrize(("ranks", "why"), [(1, "each block's first call proves it"),
                                            (2, "DDP cuts compiled code at its buckets")])
def test_a_whole_compiled_model_is_refused(ranks, why):
    with pytest.raises(LfError, match=f"compile.scope='model': {why}.*set compile.scope='blocks'"):
        activations.apply(recipe("competent", "activations.plan=all", "compile.scope=model"), [], CPU, ranks)


def test_a_fused_gated_ffn_is_one_of_the_products_that_ops_keeps(monkeypatch):
    from lfhelpers.levers import gated_ffn_op as op
    from lfhelpers.levers.gated_ffn import FusedFfn
    from lfhelpers.workloads.vla.language import GatedFFN

    torch.manual_seed(0)
    model = nn.Sequential(FusedFfn(GatedFFN(8, 16), "torch")).double()
    x = torch.randn(5, 8, dtype=torch.float64)
    plain = [parameter.grad for parameter in _backward(copy.deepcopy(model), x).parameters()]
    computed, product = [], op._product
    monkeypatch.setattr(op, "_product", lambda packed, kernel: computed.append(kernel) or product(packed, kernel))
    ours = [parameter.grad for parameter in _backward(planned(model, *PLANS["ops"]), x).parameters()]
    assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))
    assert len(computed) == 3, "in forward, and twice where the block is proven to repeat itself; not in backward"

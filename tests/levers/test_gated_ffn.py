"""The fused gated FFN: as near to float64 as eager is, half as much kept, and nothing that odd inputs can break.

What a kernel needs a GPU for is marked so; the numerics of the Triton kernels run in test_gated_ffn_triton.
"""

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from lfhelpers.bench.trainer import Trainer, batch
from lfhelpers.levers import gated_ffn_op as op
from lfhelpers.levers.gated_ffn import FusedFfn, fuse
from lfhelpers.levers.gated_ffn_compare import SMALL, Shape, errors, kept_bytes, packed_ffn, plain_ffn, weights
from lfhelpers.quality import gates
from lfhelpers.recipe import recipe
from lfhelpers.workloads.vla.language import GatedFFN

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
IMPLEMENTATIONS = [("torch", "cpu"), *(pytest.param(kernel, "cuda", marks=GPU) for kernel in op.KERNELS)]
each = pytest.mark.parametrize(("kernel", "device"), IMPLEMENTATIONS)


@pytest.fixture(autouse=True)
def _loaded(request):
    kernel, device = (request.node.callspec.params if hasattr(request.node, "callspec") else {}).get("kernel"), "cuda"
    if kernel in ("triton", "cuda") and (why := op.obstacle(kernel, torch.device(device, 0))):
        pytest.fail(f"{kernel}: {why}")  # on a GPU that is none of ours to skip


def made(*size, device, dtype=torch.float32, grad=True):
    return torch.randn(*size, device=device, dtype=dtype, requires_grad=grad)


@pytest.mark.parametrize("seed", range(5))
@each
def test_output_and_gradients_are_as_near_to_fp64_as_eager_bf16(kernel, device, seed):
    ours, eager = (errors(name, torch.device(device), seed) for name in (kernel, "eager"))
    assert all(0 < ours[part] <= 1.5 * eager[part] for part in eager), (ours, eager)


@each
def test_in_fp32_it_is_exact_to_rounding(kernel, device):
    found = errors(kernel, torch.device(device), 7, SMALL._replace(dtype="float32"))
    assert max(found.values()) < 1e-5, found


@each
def test_opcheck_finds_nothing_on_either_operator(kernel, device):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    packed, weight = made(6, 80, device=device, dtype=dtype), made(7, 40, device=device, dtype=dtype)
    forward = torch.library.opcheck(op.swiglu_down, (packed, weight, kernel))  # compiles backward's operator as well
    given = made(6, 40, device=device, dtype=dtype, grad=False), packed.detach(), kernel
    backward = torch.library.opcheck(op.swiglu_grad, given, test_utils=("test_schema", "test_faketensor"))
    assert set(forward.values()) == set(backward.values()) == {"SUCCESS"}


@pytest.mark.parametrize(("kernel", "device"), [("torch", "cpu"), pytest.param("cuda", "cuda", marks=GPU)])
def test_gradients_are_those_of_finite_differences(kernel, device):
    packed, weight = (made(*size, device=device, dtype=torch.float64) for size in ((3, 10), (2, 5)))
    assert torch.autograd.gradcheck(lambda *given: op.gated(*given, kernel), (packed, weight))


@pytest.mark.parametrize(("backend", "kernel", "device"), [("aot_eager", "torch", "cpu"), *(
    pytest.param("inductor", *case.values, marks=GPU) for case in IMPLEMENTATIONS[1:])])
def test_it_compiles_without_a_graph_break(backend, kernel, device):
    shape = SMALL._replace(dtype="float32")
    given = weights(shape, True, torch.device(device))
    x = made(4, 8, shape.width, device=device)
    results = []
    for call in (packed_ffn, torch.compile(packed_ffn, fullgraph=True, dynamic=False, backend=backend)):
        out = call(x, *given, kernel)
        results.append([out.detach(), *torch.autograd.grad(out.square().sum(), [x, *given])])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)


def test_a_module_that_chooses_compiles_without_a_graph_break(capsys):
    ffn = FusedFfn(GatedFFN(16, 48), "auto")
    x = made(2, 3, 16, device="cpu")
    compiled = torch.compile(ffn, fullgraph=True, dynamic=False, backend="aot_eager")
    torch.testing.assert_close(compiled(x), ffn(x))


@each
@pytest.mark.parametrize("save", [True, False])
def test_selective_checkpointing_sees_one_operator_and_can_save_it(kernel, device, save, monkeypatch):
    given, x = weights(SMALL, True, torch.device(device)), made(8, SMALL.width, device=device, dtype=torch.bfloat16)
    seen, computed, product = set(), [], op._product
    monkeypatch.setattr(op, "_product", lambda packed, kernel: computed.append(kernel) or product(packed, kernel))

    def policy(context, operator, *args, **kwargs):
        seen.add(operator)
        ours = save and operator is torch.ops.lfhelpers.swiglu_down.default
        return CheckpointPolicy.MUST_SAVE if ours else CheckpointPolicy.PREFER_RECOMPUTE

    def squared(x):
        return packed_ffn(x, *given, kernel).square()
    plain = squared(x)
    computed.clear()
    saved = checkpoint(squared, x, use_reentrant=False,
                       context_fn=lambda: create_selective_checkpoint_contexts(policy))
    expected, found = (torch.autograd.grad(out.float().sum(), [x, *given]) for out in (plain, saved))
    assert torch.equal(saved, plain) and all(map(torch.equal, found, expected))
    assert computed == [kernel] * (1 if save else 2)
    assert torch.ops.lfhelpers.swiglu_down.default in seen and not any("silu" in str(operator) for operator in seen)


@each
def test_any_strides_give_the_same(kernel, device):
    packed, weight = made(12, 64, device=device, grad=False), made(5, 32, device=device)
    for odd in (packed.t().contiguous().t(), packed.repeat(1, 2)[:, :64], packed.repeat_interleave(2, 0)[::2]):
        odd.requires_grad_()
        out = op.gated(odd, weight, kernel)
        grad, = torch.autograd.grad(out.sum(), odd)  # of a sum: a gradient all of whose strides are 0
        plain = packed.clone().requires_grad_()
        expected = op.gated(plain, weight, "torch")
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(grad, torch.autograd.grad(expected.sum(), plain)[0], rtol=1e-4, atol=1e-5)


@each
@pytest.mark.parametrize("hidden", [1, 7, 20, 1032])
def test_any_width_gives_the_same(kernel, device, hidden):
    packed, weight = made(5, 2 * hidden, device=device), made(3, hidden, device=device)
    results = []
    for name in (kernel, "torch"):
        out = op.gated(packed, weight, name)
        results.append([out, *torch.autograd.grad(out.square().sum(), [packed, weight])])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@each
def test_an_empty_batch_has_an_empty_output_and_zero_gradients(kernel, device):
    given = weights(SMALL, True, torch.device(device))
    x = made(0, 4, SMALL.width, device=device, dtype=torch.bfloat16)
    out = packed_ffn(x, *given, kernel)
    grads = torch.autograd.grad(out.sum(), [x, *given])
    assert out.shape == x.shape and [grad.shape for grad in grads] == [x.shape, *(weight.shape for weight in given)]
    assert not any(grad.count_nonzero() for grad in grads)


@each
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_number_stays_in_its_row(kernel, device, bad):
    packed = made(6, 64, device=device, dtype=torch.bfloat16, grad=False)
    packed[2, 5] = bad
    packed.requires_grad_()
    weight = made(8, 32, device=device, dtype=torch.bfloat16)
    out = op.gated(packed, weight, kernel)
    grad, = torch.autograd.grad(out, packed, torch.ones_like(out))
    for result in (out, grad):
        assert result.isfinite().all(1).tolist() == [row != 2 for row in range(6)]


@each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_saturated_gates_give_the_limits(kernel, device, dtype):
    gate = torch.tensor([40.0, -40.0, 1e4, -1e4, 0.0, -0.0, 90.0, -90.0], device=device, dtype=dtype)
    packed = torch.cat([gate, torch.full_like(gate, 2)]).expand(2, -1).clone().requires_grad_()
    weight = torch.eye(8, device=device, dtype=dtype)
    out = op.gated(packed, weight, kernel)
    to_packed, = torch.autograd.grad(out, packed, torch.ones_like(out))
    exact = packed.detach().double().requires_grad_()
    expected = op.gated(exact, weight.double(), "torch")
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=1e-10)
    torch.testing.assert_close(to_packed.double(), torch.autograd.grad(expected.sum(), exact)[0], rtol=1e-2, atol=1e-10)


@each
def test_autocast_decides_the_dtype_and_weights_get_gradients_of_their_own(kernel, device):
    ffn = FusedFfn(GatedFFN(16, 48).to(device), kernel)
    with torch.autocast(device, torch.bfloat16):
        out = ffn(made(2, 3, 16, device=device))
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16 and {weight.grad.dtype for weight in ffn.parameters()} == {torch.float32}


def test_a_second_derivative_is_refused():
    packed, weight = made(2, 8, device="cpu"), made(3, 4, device="cpu")
    grad, = torch.autograd.grad(op.gated(packed, weight, "torch").sum(), packed, create_graph=True)
    with pytest.raises(RuntimeError, match="swiglu_grad"):
        grad.sum().backward()


def test_little_more_than_half_as_much_is_kept_as_by_eager():
    shape = Shape(64, 256, 768, "bfloat16", True)  # the proportions of the decoder's
    eager, ours = (kept_bytes(name, torch.device("cpu"), shape) for name in ("eager", "torch"))
    row = shape.hidden * 2  # bytes
    assert eager == 64 * (4 * row + 2 * shape.width) and ours == 64 * (2 * row + 2 * shape.width)
    assert ours < 0.75 * eager


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), GatedFFN(16, 48), nn.ModuleDict({"inner": GatedFFN(16, 32)}))
    model[2].inner.requires_grad_(False)
    return model


def test_fusing_keeps_names_in_checkpoints_weights_and_what_is_trained(model, tmp_path):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert fuse(model, "torch") == ["1", "2.inner"]
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [model[1].into.weight.requires_grad, model[2].inner.into.weight.requires_grad] == [True, False]
    save_model(model, str(tmp_path / "model.safetensors"))
    for weight in model.parameters():
        weight.data.zero_()
    load_model(model, str(tmp_path / "model.safetensors"))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_of_a_plain_model_are_loaded_and_a_missing_one_is_reported(model):
    plain = GatedFFN(16, 48)
    fuse(model, "torch")
    model[1].load_state_dict(plain.state_dict())
    x = made(2, 16, device="cpu", grad=False)
    torch.testing.assert_close(model[1](x), plain_ffn(x, plain.gate.weight, plain.up.weight, plain.down.weight))
    with pytest.raises(RuntimeError, match=r"Missing key.*into\.weight"):
        model[1].load_state_dict({name: value for name, value in plain.state_dict().items() if "up" not in name})


def test_where_a_kernel_cannot_be_had_the_next_is_taken_and_said(model, capsys):
    fuse(model, "cuda")
    assert model[1].kernel == "torch"
    assert capsys.readouterr().out == "ffn: torch in place of cuda: there is no GPU\n"
    assert fuse(nn.Linear(2, 2), "auto") == []
    assert "no gated FFN" in capsys.readouterr().out


def test_off_changes_nothing(model):
    kinds = [type(module) for module in model.modules()]
    assert fuse(model, "off") == [] and [type(module) for module in model.modules()] == kinds


@each
def test_a_models_gradient_is_as_near_to_fp64_as_eagers(kernel, device):
    def gradient(ffn, mode="bf16"):
        trainer = Trainer(recipe("competent", "workload.size=tiny", "batch.micro=2", f"compile.ffn={ffn}",
                                 f"precision.mode={mode}", device=device))
        data, model = batch(trainer.workload, trainer.job, 0, trainer.ranks.device), trainer.parts.model
        draws = trainer.workload.draws(2, torch.Generator(device).manual_seed(0))
        precision = trainer.parts.precision if mode == "bf16" else None
        found = gates.gradients(trainer.workload, model, data, draws, precision)
        trainer.close()
        return found, sum(isinstance(module, FusedFfn) for module in model.modules())
    exact, (eager, none), (ours, fused) = gradient("off", "fp32")[0], gradient("off"), gradient(kernel)
    assert (none, fused) == (0, 4) and 0 < gates.error(ours, exact) <= gates.GRADIENT * gates.error(eager, exact)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kernel", op.KERNELS)
class TestOnGpu:
    def test_a_replayed_graph_gives_the_bits_of_an_ordinary_call_each_time(self, kernel):
        given = weights(SMALL, True, torch.device("cuda"))
        x = made(64, SMALL.width, device="cuda", dtype=torch.bfloat16)

        def both():
            out = packed_ffn(x, *given, kernel)
            return [out, *torch.autograd.grad(out, [x, *given], torch.ones_like(out))]
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            both()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                outputs = both()
            for _ in range(3):
                with torch.no_grad():
                    x.normal_()
                    for value in outputs:
                        value.fill_(float("nan"))  # nothing may be left as it was
                graph.replay()
                assert all(map(torch.equal, outputs, both()))

    def test_past_two_to_the_thirty_first_elements_the_last_row_is_right(self, kernel):
        hidden = 6144
        rows = 2**31 // hidden + 2  # of the product too, and twice as many of what it is made from
        packed = torch.empty(rows, 2 * hidden, device="cuda", dtype=torch.bfloat16)
        packed[:-1] = 0
        packed[-1].normal_()
        weight = made(8, hidden, device="cuda", dtype=torch.bfloat16, grad=False)
        last = packed[-1:].clone()
        found, right = op.swiglu_down(packed, weight, kernel)[-1], op.swiglu_down(last, weight, "torch")[0]
        assert (found - right).norm() < 1e-2 * right.norm(), "6,144 rounded terms, added in another order"
        grad = torch.ones(rows, hidden, device="cuda", dtype=torch.bfloat16)
        results = op.swiglu_grad(grad, packed, kernel), op.swiglu_grad(grad[-1:], last, "torch")
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one[-1:], other, rtol=3e-2, atol=3e-2)
            assert one[0].count_nonzero() == 0

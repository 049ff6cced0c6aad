"""Reported failures of mixed precision and compilation, each with the value that is right.

Others of the same kind stand where their code is tested: test_precision (the lab's numbers), test_guard (what is
named), test_compiled_runs and levers/test_compile (short batches, changing shapes, the recompile limit).
"""


import pytest
import torch
from safetensors.torch import load_file
from torch.nn.parallel import DistributedDataParallel

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.levers import compile as lever
from lfhelpers.recipe import PrecisionFields, recipe
from lfhelpers.train import checkpoint
from lfhelpers.train.hooks import Hook
from lfhelpers.train.loop import train
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import Ranks, alone
from tests.train.toy import ALONE, Toy, ToyModel, batches, concatenated

CPU = torch.device("cpu")
ALWAYS_NAN = '''
import torch
from tests.train.toy import Toy

class AlwaysNan(Toy):
    def loss(self, model, batch, draws):
        total, weight = super().loss(model, batch, draws)
        return total * torch.nan, weight
'''


@pytest.fixture
def nan_workload(tmp_path):
    path = tmp_path / "always_nan.py"
    path.write_text(ALWAYS_NAN)
    return f"workload.use={path}:AlwaysNan"


def test_case_23_gradients_are_unscaled_before_they_are_clipped():
    """Clipped while scaled by 65,536 the norm would be 327,680 and the update 1.5e-5 (Pytorch-UNet issue 468)."""
    holder = torch.nn.Module()
    holder.weight = torch.nn.Parameter(torch.zeros(4))
    scaler = Precision(PrecisionFields(mode="fp16"), CPU).scaler
    job = recipe("competent", "optimizer.fused=false", "optimizer.warmup=0", "optimizer.schedule=constant")
    optimizer = Optimizer(job, holder, 1.0, scaler)
    optimizer.adamw = torch.optim.SGD(holder.parameters(), lr=1.0)
    scaler.scale(holder.weight @ torch.tensor([3.0, 4.0, 0.0, 0.0])).backward()
    norm, skipped, _ = optimizer.update(torch.tensor(1.0))
    assert (norm.item(), skipped.item()) == (pytest.approx(5.0, abs=1e-5), 0)
    assert holder.weight.detach().norm().item() == pytest.approx(1.0, abs=1e-5)


def test_case_23_bf16_has_no_scaler_at_all():
    assert not Precision(PrecisionFields(mode="bf16"), CPU).scaler.is_enabled()


def test_case_24_accumulation_unscales_once_a_step(toy_job, monkeypatch):
    """8 micro-batches, 4 a step; a second unscale_ before update() raises (accelerate issue 641)."""
    calls = []
    for name in ("unscale_", "step", "update"):
        real = getattr(torch.amp.GradScaler, name)
        monkeypatch.setattr(torch.amp.GradScaler, name, lambda *args, real=real, name=name: (
            calls.append(name), real(*args))[1])
    job = toy_job("precision.mode=fp16", "device=auto", "batch.micro=2", "batch.accumulate=4", "steps=2")
    summary = train(job, runs.create(job), ALONE)
    assert calls == ["unscale_", "step", "update"] * 2
    assert summary["steps"]["applied"] == 2


@pytest.mark.parametrize("mode", ["fp16", "bf16"])
def test_case_25_a_run_that_skips_every_step_is_ended(toy_job, nan_workload, mode):
    """Unguarded, the scale is 0.0 after 166 steps, without an exception (insightface issue 2262)."""
    job = toy_job(nan_workload, f"precision.mode={mode}", "device=auto", "optimizer.max_skips=20", "steps=200")
    run = runs.create(job)
    scale = ", loss scale 0.0625" if mode == "fp16" else ""
    with pytest.raises(LfError) as raised:
        train(job, run, ALONE)
    said = str(raised.value)
    assert said.startswith(f"steps 1 to 20 had no finite loss and gradients (loss nan{scale}) and were skipped, "
                           "because the workload's loss makes it of finite outputs of the model")
    assert "The batch holds ids, images, valid, weight, x, y" in said
    assert len(run.steps()) == 20 and all(row["skipped"] for row in run.steps())


def test_case_25_skipped_steps_are_no_speed(toy_job, nan_workload):
    job = toy_job(nan_workload, "optimizer.max_skips=20", "steps=6", "checkpoint.final=true")
    run = runs.create(job)
    summary = train(job, run, ALONE)
    assert summary["samples_per_s"] == 0
    assert (summary["steps"]["applied"], summary["steps"]["skipped"]) == (0, 6)
    torch.manual_seed(job.seed)
    first = Toy(job).model().state_dict()
    last = load_file(checkpoint.find(run)[-1] / "model.safetensors")
    assert all(torch.equal(first[name], last[name]) for name in first)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_case_29b_modes_with_graphs_of_their_own_are_refused_with_accumulation(mode):
    """A replay would overwrite accumulated gradients (pytorch issue 169545)."""
    settings = ("compile.scope=blocks", f"compile.mode={mode}")
    assert recipe("competent", *settings).compile.mode == mode
    with pytest.raises(LfError, match=r"need batch.accumulate=1; take 'max-autotune-no-cudagraphs'"):
        recipe("competent", *settings, "batch.accumulate=4")


def test_case_29b_four_compiled_micro_batches_equal_one_large_batch():
    pairs, grads = batches(4, 8), []
    for parts in (pairs, [concatenated(pairs)]):
        torch._dynamo.reset()
        job = recipe("competent", "compile.scope=blocks", "compile.cache=false")
        torch.manual_seed(0)
        model = Toy(job).model()
        with lever.session(job, CPU) as compilation:
            compilation.apply(model, [model])
            for pair in parts:
                Toy.loss(None, model, *pair)[0].backward()
            assert compilation.report()["state"] == "on"
        grads.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert torch.allclose(*grads, rtol=1e-5, atol=1e-5)


@pytest.fixture
def peers():
    """A process group of one, so that DDP can be built."""
    with alone():
        yield


WRAPPINGS = {
    "DDP(compile)": lambda model: DistributedDataParallel(torch.compile(model)),
    "compile(DDP)": lambda model: torch.compile(DistributedDataParallel(model)),
    "compile(DDP(compile))": lambda model: torch.compile(DistributedDataParallel(torch.compile(model))),
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_case_29c_saved_keys_are_bare_in_any_nesting_and_load_strictly(wrapping, peers, toy_job):
    """They would be module._orig_mod.0.weight and the like, and load as nothing (nanoGPT issue 325)."""
    job = toy_job("checkpoint.every=1")
    run = runs.create(job)
    names = Toy(job).model().state_dict().keys()
    wrapped, loaded = (WRAPPINGS[wrapping](Toy(job).model()) for _ in range(2))
    assert wrapped.state_dict().keys() != names
    optimizers = [Optimizer(job, model, 1e-2, Precision(job.precision, CPU).scaler) for model in (wrapped, loaded)]
    checkpoint.save(run, 1, wrapped, optimizers[0], {}, ALONE, keep=1)
    file = load_file(checkpoint.find(run)[-1] / "model.safetensors")
    assert file.keys() == names
    checkpoint.load(run, loaded, optimizers[1], ALONE)
    assert all(torch.equal(value, file[name]) for name, value in checkpoint.bare(loaded).state_dict().items())
    assert isinstance(checkpoint.bare(loaded), ToyModel)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["default", "max-autotune-no-cudagraphs"])
def test_case_29d_compiled_steps_hold_no_more_memory_after_200_than_after_20(toy_job, mode):
    """2.6 leaked 65,536 bytes an iteration (pytorch issue 149834)."""
    held = {}

    class Watches(Hook):
        def gradients_ready(self, step, model):
            held[step] = torch.cuda.memory_allocated()

    job = toy_job("compile.scope=blocks", f"compile.mode={mode}", "device=cuda", "steps=201", "log.probe=false")
    train(job, runs.create(job), Ranks(0, 1, torch.device("cuda", 0)), hooks=[Watches()])
    assert held[200] <= 1.01 * held[20]

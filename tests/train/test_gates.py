"""The gates that compilation, graphs, packed and bf16 weights must pass: as near to fp64 as eager bf16, and as good.

On a CPU the levers that need no compiler are judged at `tiny`; on a GPU the whole stack at `small`.
"""

import contextlib
import itertools

import pytest
import torch

from lfhelpers.bench.trainer import Trainer, batch
from lfhelpers.recipe import recipe
from lfhelpers.train import checkpoint
from lfhelpers.train.captured import CapturedStep
from lfhelpers.workloads.base import find
from lfhelpers.workloads.vla.action import EmbodimentLinear

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
LEVERS = ("frozen.packed=true", "precision.weights=bf16")
ON_GPU = (*LEVERS, "compile.scope=blocks")
CASES = [("cpu", "tiny", LEVERS), pytest.param("cuda", "small", ON_GPU, marks=GPU)]


def gradients(device, size, *overrides, exact=False):
    """All trained gradients of one batch in one vector, float64; `exact`: computed in float64 throughout."""
    trainer = Trainer(recipe("competent", f"workload.size={size}", "batch.micro=4", f"device={device}",
                             "workload.train_unused=false", *overrides))
    model, place = trainer.parts.model, trainer.ranks.device
    given = batch(trainer.workload, trainer.job, 0, place)
    draws = trainer.workload.draws(4, torch.Generator(place).manual_seed(0))
    if exact:
        model.double()
        for module in model.modules():
            if isinstance(module, torch.nn.Linear | EmbodimentLinear):
                module.register_forward_pre_hook(lambda _, args: tuple(widened(value) for value in args))
        given, draws = ({name: widened(value) for name, value in part.items()} for part in (given, draws))
    with contextlib.nullcontext() if exact else trainer.parts.precision.autocast():
        loss, weight = trainer.workload.loss(model, given, draws)
    (loss / weight).backward()
    trainer.close()
    return torch.cat([parameter.grad.flatten().double().cpu() for parameter in model.parameters()
                      if parameter.grad is not None])


def widened(value):
    return value.double() if value.is_floating_point() else value


@pytest.mark.parametrize("device, size, levers", CASES)
def test_gradients_are_as_near_to_fp64_as_those_of_eager_bf16(device, size, levers):
    exact = gradients(device, size, "precision.mode=fp32", exact=True)
    errors = {name: ((gradients(device, size, *overrides) - exact).norm() / exact.norm()).item()
              for name, overrides in (("eager", ()), ("levers", levers))}
    print(f"{device} {size}: relative error of the gradients, {errors}")
    assert 0 < errors["levers"] <= 1.5 * errors["eager"] < 0.1


def losses(device, size, steps, *overrides):
    """The loss of each step on fresh random images and noise, the same for all recipes."""
    trainer = Trainer(recipe("competent", f"workload.size={size}", "batch.micro=8", f"device={device}", "log.skip=0",
                             f"steps={steps}", *overrides))
    place = trainer.ranks.device
    draws, base = torch.Generator(place).manual_seed(1), batch(trainer.workload, trainer.job, 0, place)

    def pairs():
        for _ in itertools.count():
            images = torch.randint(256, base["images"].shape, generator=draws, device=place, dtype=torch.uint8)
            yield base | {"images": images}, trainer.workload.draws(8, draws)

    trainer.pairs = pairs()
    values = torch.stack([trainer.run(1)[0].clone() for _ in range(steps)]).double().cpu()
    recorded = trainer.step.graphs.count if isinstance(trainer.step, CapturedStep) else 0
    trainer.close()
    return values, recorded


@pytest.mark.parametrize("device, size, steps, levers", [
    ("cpu", "tiny", 40, LEVERS),
    pytest.param("cuda", "small", 200, (*ON_GPU, "graph.scope=step", "frozen.ahead=true"), marks=GPU)])
def test_a_run_with_the_levers_goes_the_way_of_the_eager_one(device, size, steps, levers):
    (eager, _), (ours, recorded) = losses(device, size, steps), losses(device, size, steps, *levers)
    apart = ((ours - eager).abs() / eager).median().item()
    end = (ours[-20:].mean() / eager[-20:].mean() - 1).abs().item()
    print(f"{device} {size}: median difference of a step {apart:.4%}, of the last 20 steps' loss {end:.4%}")
    assert recorded == (device == "cuda")
    assert eager[-20:].mean() < eager[:20].mean(), "it learns, so there is something to compare"
    assert apart < 0.01 and end < 0.015


@pytest.mark.parametrize("steps, levers", [
    pytest.param(2000, (*ON_GPU, "graph.scope=step", "frozen.ahead=true"), marks=GPU, id="2000 replays"),
    pytest.param(500, ON_GPU, marks=GPU, id="500 compiled steps")])
def test_memory_stays_as_it_was_at_step_50(steps, levers, tmp_path, monkeypatch):
    from lfhelpers import runs

    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path))
    job = recipe("competent", "workload.size=tiny", "batch.micro=8", "device=cuda", *levers)
    trainer, run = Trainer(job), runs.create(job)
    workload = find(job)
    trainer.run(50)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for done in range(50, steps, 150):
        trainer.run(150)
        checkpoint.save(run, done, trainer.parts.model, trainer.parts.optimizer, {}, trainer.ranks, 1)
        with torch.no_grad(), trainer.parts.precision.autocast(), trainer.compilation.eager():
            workload.evaluate(trainer.parts.model, 8, trainer.ranks.device)
    torch.cuda.synchronize()
    after = torch.cuda.memory_allocated()
    trainer.close()
    print(f"{before} bytes at step 50, {after} after {trainer.done} steps")
    assert abs(after - before) <= 0.01 * before

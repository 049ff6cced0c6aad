"""Plans of recomputation in whole steps and runs: the same bits on a CPU, the reordered gate on a GPU, two ranks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lfhelpers import runs
from lfhelpers.bench.trainer import fresh, losses
from lfhelpers.levers import activations
from lfhelpers.quality import gates
from lfhelpers.recipe import recipe
from lfhelpers.train.loop import train
from lfhelpers.train.trainer import Trainer, batch
from tests.train.toy import ALONE

ROOT = Path(__file__).resolve().parents[2]
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
TINY = ("workload.size=tiny", "batch.micro=2", "device=cpu", "precision.mode=fp32", "workload.dropout=0.2",
        "workload.text_loss=0.5", "steps=4", "log.skip=0")
PLANS = (("activations.plan=all", "activations.loss_rows=1"),
         ("activations.plan=ops", "activations.recompute_every=2"))


def test_two_ranks_with_a_frozen_block_and_one_used_twice_get_the_same_gradients():
    """Reentrant checkpointing calls a parameter ready twice here (case 39), and loses gradients (case 38)."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
         "tests.train.checkpoint_ranks"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    seen = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert seen["ranks_equal"] and seen["norm"] > 1
    assert (seen["all"], seen["ops"]) == (0.0, 0.0)


@pytest.fixture(scope="module")
def exact():
    """Gradients in fp64 under a plan, dropout and the text loss on."""
    def gradient(*overrides):
        trainer = Trainer(recipe("competent", *TINY, *overrides))
        cpu = trainer.ranks.device
        given, draws = batch(trainer.workload, trainer.job, 0, cpu), trainer.workload.draws(2, torch.Generator())
        torch.manual_seed(3)
        found = gates.gradients(trainer.workload, trainer.parts.model, given, draws, None)
        trainer.close()
        return found
    return gradient


def test_gradients_of_the_whole_model_are_the_same_bits_in_fp64(exact):
    plain = exact()
    found = {plan: exact(*plan) for plan in PLANS}
    # Only the text loss's own product is summed in other pieces where its rows are taken one by one.
    assert all(torch.equal(vector, plain) for plan, vector in found.items() if "activations.loss_rows=1" not in plan)
    assert torch.allclose(found[PLANS[0]], plain, rtol=1e-12, atol=1e-14) and plain.norm() > 0


def test_a_run_with_a_plan_has_the_losses_of_one_without(toy_job):
    def losses_of(*overrides):
        run = runs.create(toy_job("precision.mode=fp32", "workload.dropout=0.3", "steps=6", "log.probe=false",
                                  *overrides))
        summary = train(run.recipe, run, ALONE)
        return [row["loss"] for row in run.steps()], summary["steps"]["applied"], run.recipe
    plain, planned = losses_of(), losses_of("activations.plan=all")
    assert planned[0] == plain[0] and planned[1] == 6
    assert planned[2].activations.plan == "all"


def test_evaluation_and_checkpoints_know_nothing_of_a_plan():
    plain, ours = (Trainer(recipe("competent", *TINY, *plan)) for plan in ((), PLANS[0]))
    blocks = ours.workload.blocks(ours.parts.model)
    assert all(activations.recomputes(block) for block in blocks)
    assert list(ours.parts.model.state_dict()) == list(plain.parts.model.state_dict())
    ours.parts.model.load_state_dict(plain.parts.model.state_dict())


@pytest.mark.parametrize(("plan", "most"), [
    pytest.param(plan, most, marks=GPU, id=" ".join(plan)) for plan, most in (
        (("activations.plan=ops", "activations.recompute_every=2"), gates.END),
        (("activations.plan=budget", "activations.budget=0.3"), gates.END),
        (("activations.plan=all", "workload.dropout=0.1"), 0.1))])  # other masks than eager's, so other losses
def test_compiled_and_captured_plans_pass_the_reordered_gate(plan, most):
    """bf16 weights, compiled blocks, frozen part ahead, and one CUDA graph a step, against the plain eager step."""
    stack = ("compile.scope=blocks", "precision.weights=bf16", "graph.scope=step", "frozen.ahead=true")
    common = ("workload.size=small", "batch.micro=8", "device=cuda", "log.skip=0", "steps=40")
    pairs = fresh(recipe("competent", *common), 40)
    eager, _ = losses(recipe("competent", *common, *[text for text in plan if "dropout" in text]), pairs)
    ours, recorded = losses(recipe("competent", *common, *stack, *plan), pairs)
    band = gates.band(ours, eager)
    print(f"{plan}: median difference of a step {band.step:.4%}, of the last 20 steps' loss {band.end:.4%}")
    assert recorded == 1, "the step was recorded as a CUDA graph"
    assert band.end <= most and (band.passes or most > gates.END)


@pytest.mark.parametrize(("device", "scope"), [("cpu", "none"), pytest.param("cuda", "none", marks=GPU),
                                               pytest.param("cuda", "blocks", marks=GPU)])
def test_masks_of_dropout_are_drawn_again(device, scope):
    """The slope of the loss along its gradient is the gradient's norm; with other masks in backward it is not."""
    trainer = Trainer(recipe("competent", "workload.size=tiny", "batch.micro=2", f"device={device}",
                             "precision.mode=fp32", "workload.dropout=0.5", f"compile.scope={scope}",
                             "activations.plan=all"))
    place, model = trainer.ranks.device, trainer.parts.model
    given, draws = batch(trainer.workload, trainer.job, 0, place), trainer.workload.draws(2, torch.Generator(place))

    def loss():
        torch.manual_seed(5)
        return trainer.workload.loss(model, given, draws)[0]
    loss().backward()
    moved = [(parameter, parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.cat([grad.flatten() for _, grad in moved]).norm()

    def at(distance):
        with torch.no_grad():
            for parameter, grad in moved:
                parameter += distance * grad / norm
            return loss().double()
    rise = at(1e-3) - at(-2e-3)  # to one side, and from there to the other
    trainer.close()
    assert float(rise / 2e-3 / norm) == pytest.approx(1, abs=0.02)

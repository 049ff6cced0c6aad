"""The gates on a workload that can be checked by hand: right gradients pass, wrong ones and drifting losses don't."""

import pytest
import torch

from lfhelpers.quality import gates
from lfhelpers.recipe import recipe
from lfhelpers.train.precision import Precision
from lfhelpers.workloads.vla.action import EmbodimentLinear, Used
from tests.train.toy import ALONE, Toy, batches


def found(mode=None, scale=1.0):
    torch.manual_seed(0)
    workload = Toy(recipe("competent"))
    (batch, draws), = batches(1, 8)
    batch = batch | {"y": scale * batch["y"]}
    precision = Precision(recipe("competent", f"precision.mode={mode}").precision, ALONE.device) if mode else None
    return gates.gradients(workload, workload.model(), batch, draws, precision)


def test_in_float64_the_gradients_are_those_of_autograd():
    torch.manual_seed(0)
    workload = Toy(recipe("competent"))
    model = workload.model().double()
    (batch, draws), = batches(1, 8)
    loss, weight = workload.loss(model, *({name: value.double() for name, value in part.items()}
                                          for part in (batch, draws)))
    wanted = torch.autograd.grad(loss / weight, list(model.parameters()))
    exact = found()
    assert exact.dtype == torch.float64 and exact.shape == (4 * 8 + 8 + 8 * 2 + 2,)
    assert torch.equal(exact, torch.cat([grad.flatten() for grad in wanted]))


def test_bf16_is_farther_from_float64_than_fp32_and_a_wrong_target_farthest():
    exact = found()
    errors = [gates.error(found(mode), exact) for mode in ("fp32", "bf16")] + [gates.error(found("fp32", 1.1), exact)]
    assert 0 < errors[0] < 1e-6 < errors[1] < 0.02 < errors[2]
    assert gates.error(exact, exact) == 0


def test_embodiments_that_the_data_lacks_are_left_out_of_the_comparison():
    vectors = []
    for used in (Used((1,)), Used((1,), trained=(1,))):
        torch.manual_seed(0)
        layer = EmbodimentLinear(3, 2, 4, used)
        workload = type("One", (), {"loss": lambda self, model, batch, draws: (
            model(batch["x"], batch["ids"]).square().sum(), torch.ones(()))})()
        batch = {"x": torch.ones(2, 5, 2), "ids": torch.tensor([1, 1])}
        vectors.append(gates.gradients(workload, layer, batch, {}))
    assert len(vectors[0]) == 2 * 4 + 4
    assert torch.equal(*vectors)


@pytest.mark.parametrize(("ours", "band", "passes"), [
    ([2.0, 1.0, 1.0], gates.Band(0.0, 0.0), True),
    ([2.0, 1.0, 1.01], gates.Band(0.0, 0.005), True),
    ([2.2, 1.1, 1.1], gates.Band(0.1, 0.1), False),
    ([2.0, 1.0, 1.1], gates.Band(0.0, 0.05), False),
])
def test_losses_must_stay_near_in_the_median_step_and_at_the_end(ours, band, passes):
    verdict = gates.band(torch.tensor(ours).double(), torch.tensor([2.0, 1.0, 1.0]).double(), last=2)
    assert verdict == pytest.approx(band)
    assert verdict.passes is passes

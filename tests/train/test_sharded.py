"""ZeRO-1: two ranks that update a share each are as good as two that update everything."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers.recipe import recipe
from lfhelpers.runs import Run
from lfhelpers.train import checkpoint
from lfhelpers.train.adamw import store_in_bf16
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import Ranks
from lfhelpers.train.sharded import ALIGNED, Shards
from tests.train.exchange_job import DEVICES, seen
from tests.train.toy import ALONE, Toy

TWO = [Ranks(rank, 2, torch.device("cpu")) for rank in (0, 1)]


def parameters():
    """A matrix, a vector and a scalar that can't be cut, and a matrix in bf16."""
    return [torch.nn.Parameter(torch.arange(32.0).view(4, 8)), torch.nn.Parameter(torch.ones(3)),
            torch.nn.Parameter(torch.tensor(2.0)), torch.nn.Parameter(torch.arange(64.0).bfloat16())]


@given(st.lists(st.lists(st.integers(1, 16), min_size=1, max_size=3), min_size=1, max_size=4), st.integers(2, 8))
def test_the_shares_of_all_ranks_are_every_tensor_once_and_views_of_it(shapes, world):
    weights = [torch.nn.Parameter(torch.randn(*shape)) for shape in shapes]
    shards = [Shards(weights, Ranks(rank, world, torch.device("cpu"))) for rank in range(world)]
    for place, weight in enumerate(weights):
        shares = [each.mine[place] for each in shards]
        if all(share is weight for share in shares):
            assert weight.numel() * 4 % (ALIGNED * world), "it can't be cut, so every rank updates it"
        else:
            assert torch.equal(torch.cat(shares), weight.flatten())
            assert [share.data_ptr() - weight.data_ptr() for share in shares] == [
                rank * weight.nbytes // world for rank in range(world)]
            assert all(share.data_ptr() % ALIGNED == weight.data_ptr() % ALIGNED for share in shares)


def test_an_update_sees_its_parts_of_the_gradients_and_forgets_them_afterwards():
    weights, shards = (given := parameters()), Shards(given, TWO[1])
    for weight in weights[:-1]:
        weight.grad = weight.detach() + 1
    shards.take()
    assert shards.mine[0].grad.tolist() == list(range(17, 33)) and shards.mine[1].grad is weights[1].grad
    assert shards.mine[3].grad is None, "it took no part in the loss"
    shards.mine[0].grad.zero_()
    assert weights[0].grad.flatten().tolist() == [*range(1, 17), *[0] * 16]
    shards.release()
    assert shards.mine[0].grad is None and weights[0].grad is not None


def test_in_silence_nothing_is_sent_and_a_norm_is_the_ranks_own():
    """There is no process group here, so whatever is sent would fail."""
    shards, own = Shards(parameters(), TWO[0]), torch.tensor(3.0)
    with shards.silent():
        assert shards.norm(own) is own
        shards.spread(shards.mine)
        shards.arrived()
    with pytest.raises(ValueError, match="process group"):
        shards.norm(own)


def test_a_state_that_is_cut_is_the_ranks_part_of_each_tensor():
    weights = parameters()
    rows = {place: {"step": torch.tensor(3.0), "exp_avg": torch.randn_like(weight)}
            for place, weight in enumerate(weights) if weight.ndim}
    cut = [Shards(weights, ranks).share({"state": rows, "param_groups": ["as they are"]}) for ranks in TWO]
    assert torch.equal(torch.cat([each["state"][0]["exp_avg"] for each in cut]), rows[0]["exp_avg"].flatten())
    assert all(each["state"][0]["step"] == 3 and each["state"][1]["exp_avg"] is rows[1]["exp_avg"] for each in cut)
    masters = [(weights[3], weights[3].data.float())]
    kept = [Shards(weights, ranks).masters(masters) for ranks in TWO]
    assert [master.tolist() for ((_, master),) in kept] == [list(range(32)), list(range(32, 64))]


@pytest.mark.parametrize("device", DEVICES)
def test_sharded_equals_unsharded_to_the_bit_while_nothing_is_clipped(device):
    """fp32 weights with torch's fused AdamW, and bf16 weights with fp32 masters."""
    for name in ("not clipped", "bf16 weights"):
        assert seen(device)[f"sharded, {name}"]["difference"] == 0, name
        assert seen(device)[f"sharded, {name}"]["ranks_equal"]


@pytest.mark.parametrize("device", DEVICES)
def test_where_it_clips_only_the_norm_is_summed_in_another_order(device):
    assert seen(device)["sharded"]["difference"] < 1e-6
    assert seen(device)["sharded"]["loss"] == pytest.approx(seen(device)["none, 30 steps"]["loss"], rel=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_a_sharded_run_is_resumed_to_the_bit_with_and_without_shards(device):
    assert seen(device)["sharded, not clipped"]["resumed_equal"]
    assert seen(device)["unsharded_from_sharded"]


@pytest.mark.parametrize("kind, fields", [("not clipped", ()),
                                          ("bf16 weights", ("precision.mode=bf16", "precision.weights=bf16"))])
def test_its_checkpoint_is_that_of_an_unsharded_run_and_one_rank_goes_on_from_it(kind, fields):
    runs = [run_of(f"{name}, {kind}") for name in ("none", "sharded")]
    states = [torch.load(checkpoint.find(run)[-1] / "state.pt", weights_only=True)["optimizer"] for run in runs]
    tensors = [list(_tensors(state)) for state in states]
    assert len(tensors[0]) > 8 and all(torch.equal(*pair) for pair in zip(*tensors, strict=True))
    job = recipe("competent", "precision.mode=fp32", "device=cpu", *fields)
    model, masters = Toy(job).model(), None
    if fields:
        masters = store_in_bf16(model)
    optimizer = Optimizer(job, model, 1e-2, Precision(job.precision, ALONE.device).scaler, masters=masters)
    checkpoint.load(runs[1], model, optimizer, ALONE)
    assert all(torch.equal(*pair) for pair in zip(_tensors(optimizer.state_dict()), tensors[1], strict=True))


def test_the_same_bytes_cross_as_without():
    """Half with the gradients and half with the weights, of the toy's 58 numbers."""
    assert seen("cpu")["sharded"]["sent"] == seen("cpu")["none"]["sent"] == [4 * 58] * 2


def run_of(name):
    return Run(Path(seen("cpu")[name]["run"]))


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            if key != "lr":  # set anew in every step
                yield from _tensors(value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)

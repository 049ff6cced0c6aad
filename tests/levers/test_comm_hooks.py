"""Communication hooks: what crosses, what it does to learning, and what is refused."""

import shutil

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.data.shards import write
from lfhelpers.errors import LfError
from lfhelpers.launch import launch
from lfhelpers.levers.comm_hooks import Exchange, Half
from lfhelpers.levers.powersgd import PowerSgd, orthonormal
from lfhelpers.recipe import recipe
from lfhelpers.recipe.exchange import whole
from lfhelpers.train import checkpoint
from lfhelpers.train.exchange import Watch
from lfhelpers.train.ranks import alone
from lfhelpers.workloads.base import find
from tests.train.conftest import toy_members
from tests.train.exchange_job import DEVICES, seen


@pytest.fixture(scope="module")
def group():
    """A process group of this process alone, in which DDP wraps and hooks run."""
    with alone():
        yield


def passed(exchange, *gradients):
    """The gradient that a weight of 4 numbers gets through the exchange, for each of `gradients`."""
    model = DistributedDataParallel(nn.Linear(4, 1, bias=False))
    exchange.attach(model)
    results = []
    for gradient in gradients:
        model.zero_grad()
        model(torch.tensor([gradient])).sum().backward()
        results.append(model.module.weight.grad[0].tolist())
    return results


# Two real ranks.

@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("hook", ["none", "bf16", "fp16", "powersgd", "onebit_adam"])
def test_ranks_stay_equal_and_learn(hook, device):
    result = seen(device)[hook]
    over_none = result["loss"] / seen(device)["none"]["loss"]
    print(f"{device}, {hook}: loss of the last 20 of 200 steps, {over_none - 1:+.3%} against none")
    assert result["ranks_equal"]
    assert abs(over_none - 1) < {"none": 1e-9, "bf16": 1e-3, "fp16": 1e-3, "powersgd": 0.1, "onebit_adam": 0.15}[hook]


def test_the_toy_has_something_to_learn_in_200_steps():
    assert seen("cpu")["none"]["loss"] < 0.5 * seen("cpu")["none, 30 steps"]["loss"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("hook", ["bf16", "powersgd", "onebit_adam"])
def test_a_resumed_run_goes_on_bit_for_bit(hook, device):
    """Also through the buckets' new layout, and with what compression left out, which differs between ranks."""
    assert seen(device)[hook]["resumed_equal"]


def test_powersgd_is_torchs():
    """The same weights after 30 steps; torch's hook sends a third less here, so it does compress."""
    result = seen("cpu")["powersgd"]["against_torch"]
    assert result["difference"] < 1e-6
    assert result["compression"] == pytest.approx(58 / 38)


def test_bytes_on_the_wire_before_and_after_the_warm_up():
    """58 numbers: 232 bytes in fp32. PowerSGD sends 26 whole and 8 + 4 of the large matrix as factors.

    1-bit Adam pads each of four parameters to a block of 256: 4 (32 + 4) bytes, 1/2 of it twice, and the norm.
    """
    sent = {hook: seen("cpu")[hook]["sent"] for hook in ("none", "bf16", "fp16", "powersgd", "onebit_adam")}
    assert sent == {"none": [232, 232], "bf16": [116, 116], "fp16": [116, 116], "powersgd": [232, 4 * (26 + 12)],
                    "onebit_adam": [232, 4 * 36 + 4]}


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two ranks need two GPUs")
@pytest.mark.parametrize("name", ["none", "bf16", "sharded, not clipped", "sharded, bf16 weights"])
def test_a_captured_step_exchanges_like_an_eager_one(name):
    result = seen("cuda")["captured"][name]
    assert result["obstacle"] is None and result["recorded"] == 1
    assert result["difference"] < 1e-4


def test_a_job_with_a_hook_says_what_it_sent_and_is_resumed_from_its_checkpoint(tmp_path, runs_root):
    write(tmp_path / "shards", toy_members, 67, shard_mb=0.02, progress=False)
    job = recipe("competent", f"data.path={tmp_path / 'shards'}", "workload.use=tests.train.toy:Toy", "batch.micro=8",
                 "steps=8", "data.workers=0", "data.augment=false", "log.skip=2", "device=cpu", "checkpoint.every=4",
                 "ddp.hook=onebit_adam", "ddp.onebit_warmup=3")
    run = launch(job, nproc=2, watch=False)
    whole = [row["loss"] for row in run.steps()]
    assert run.summary["exchange"] == {"bytes_per_step": 4 * 36 + 4}
    newest = checkpoint.find(run)[-1]
    assert sorted(path.name for path in newest.glob("exchange-*")) == ["exchange-0.pt", "exchange-1.pt"]
    shutil.rmtree(newest)
    assert [row["loss"] for row in launch(job, nproc=2, resume=run, watch=False).steps()] == whole


# One process.

def test_fp16_counts_what_left_its_range_and_the_run_is_ended_by_name(group):
    half = Half(1, torch.float16)
    assert passed(half, [1.0, 2.0, 1e-9, 0.0]) == [[1, 2, 0, 0]]
    assert half.trouble() is None
    assert half.report() == {"bytes_per_step": 0, "flushed_to_zero": pytest.approx(1 / 3)}
    assert passed(half, [1e6, -7e4, 1.0, 0.0])[0] == [float("inf"), -float("inf"), 1, 0]
    watch = Watch(half)
    watch.step({"step": 7, "skipped": False})
    with pytest.raises(LfError, match=r"step 7 was skipped, because 2 finite gradients left fp16's range .* the "
                                      r"largest 1e\+06; take ddp.hook='bf16'"):
        watch.step({"step": 7, "skipped": True})


def test_fp16_is_not_blamed_for_gradients_that_were_infinite_before(group):
    half = Half(1, torch.float16)
    passed(half, [float("inf"), float("nan"), 1.0, 0.0])
    assert half.trouble() is None


def test_bf16_has_the_range_and_rounds(group):
    received, = passed(Half(1, torch.bfloat16), [1e30, 1e-30, 1 + 2**-9, 0.0])
    assert received[:2] == pytest.approx([1e30, 1e-30], rel=2**-8) and received[2:] == [1, 0]


def test_only_trained_rows_are_sent(group):
    """Rows of embodiments that the data doesn't have: trained, they are sent as zeros in every step."""
    sent, numbers = [], []
    for train_unused in ("true", "false"):
        workload = find(recipe("competent", "workload.size=tiny", f"workload.train_unused={train_unused}"))
        model = DistributedDataParallel(workload.model())
        exchange = Exchange(2)
        exchange.attach(model)
        sent.append(exchange.bytes_per_step)
        numbers.append(sum(value.numel() for value in model.parameters() if value.requires_grad))
    assert sent == [4 * numbers[0], 4 * numbers[1]]
    assert numbers == [864_304, 738_304]
    assert sum(value.numel() for value in model.parameters()) > numbers[0], "and frozen ones never"


def test_what_two_ranks_send_of_a_payload():
    for ranks, sent in ((1, 0), (2, 1000), (4, 1500)):
        exchange = Exchange(ranks)
        exchange.count(1000, 2)
        assert exchange.bytes_per_step == sent


def test_powersgd_refuses_a_parameter_that_is_no_matrix(group):
    model = nn.Linear(4, 1)
    model.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
    with pytest.raises(LfError, match="can't take scale, which has no dimension"):
        PowerSgd(1, 1, 2).attach(model)


def test_orthonormal_columns_of_every_matrix_also_of_one_without_gradient():
    torch.manual_seed(0)
    given = [torch.randn(8, 3), torch.randn(8, 3), torch.randn(5, 2), torch.zeros(5, 2)]
    for before, after in zip(given, orthonormal(given), strict=True):
        expected = torch.eye(before.shape[1]) if before.any() else torch.zeros(2, 2)
        assert torch.allclose(after.T @ after, expected, atol=1e-5)
        assert torch.allclose(after @ (after.T @ before), before, atol=1e-5), "they span the same space"


@pytest.mark.parametrize("overrides, sentence", [
    (("ddp.hook=fp16", "precision.mode=fp16"), "ddp.hook='fp16' with precision.mode='fp16'"),
    (("ddp.hook=bf16", "ddp.shard_optimizer=true"), "without DDP; leave ddp.hook"),
    (("ddp.hook=powersgd", "graph.scope=step"), "ddp.hook='powersgd' needs graph.scope='none'"),
    (("ddp.hook=powersgd", "precision.weights=bf16"), "needs precision.weights='fp32'"),
    (("ddp.hook=powersgd", "ddp.powersgd_start=1"), "ddp.powersgd_start"),
    (("ddp.hook=powersgd", "ddp.powersgd_start=50"), "would exchange the first 50 of 50 steps whole"),
    (("ddp.hook=onebit_adam", "steps=2"), "would exchange the first 2 of 2 steps whole"),
    (("ddp.hook=onebit_adam", "ddp.onebit_warmup=9", "optimizer.fused=false"), "takes the place of the optimizer's"),
    (("ddp.hook=onebit_adam", "ddp.onebit_warmup=9", "graph.scope=micro"), "needs graph.scope='none'"),
    (("ddp.shard_optimizer=true", "precision.mode=fp16"), "overflows in its own share alone"),
    (("ddp.shard_optimizer=true", "optimizer.states=int8", "optimizer.fused=false"), "optimizer.states='fp32'"),
    (("ddp.shard_optimizer=true", "ddp.static_graph=true"), "without DDP; leave ddp.hook"),
])
def test_contradictions_are_named_by_field(overrides, sentence):
    with pytest.raises(LfError, match=sentence):
        recipe("competent", *overrides)


def test_a_warm_up_is_a_share_of_the_run_where_none_is_given():
    for hook, steps in (("none", 0), ("powersgd", 20), ("onebit_adam", 40)):
        assert whole(recipe("competent", "steps=200", f"ddp.hook={hook}")) == steps
    assert whole(recipe("competent", "steps=5", "ddp.hook=powersgd")) == 2
    assert whole(recipe("competent", "ddp.hook=onebit_adam", "ddp.onebit_warmup=7")) == 7

"""The step is exact: accumulation, clipping, scaling and skipping give what one large batch in plain torch gives."""

import copy

import pytest
import torch

from tests.train.toy import Toy, batches, concatenated, trainer


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_accumulated_micro_batches_equal_one_large_batch():
    """The mean of means would differ: the micro-batches' weights do (transformers issue 34191)."""
    pairs = batches(4, 8)
    small, _, small_model = trainer("optimizer.clip_norm=0")
    large, _, large_model = trainer("optimizer.clip_norm=0", samples=32)
    a = small(0, iter(pairs), 4)
    b = large(0, iter([concatenated(pairs)]), 1)
    assert a[:3].tolist() == pytest.approx(b[:3].tolist(), rel=1e-5)
    assert torch.allclose(weights(small_model), weights(large_model), atol=1e-6)
    sums = [[value.item() for value in Toy.loss(None, small_model, *pair)] for pair in pairs]
    assert a[0].item() != pytest.approx(sum(loss / weight for loss, weight in sums) / 4, rel=0.01)


def test_the_step_equals_plain_torch():
    (batch, draws), = batches(1, 8)
    step, _, model = trainer("optimizer.clip_norm=0.5", "optimizer.warmup=0", "optimizer.schedule=constant")
    plain = copy.deepcopy(model)
    adamw = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=1e-5)
    loss, weight = Toy.loss(None, plain, batch, draws)
    (loss / weight).backward()
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
    adamw.step()
    values = step(0, iter([(batch, draws)]), 1)
    assert values.tolist() == pytest.approx([(loss / weight).item(), weight.item(), norm.item(), 0, 1e-2], rel=1e-5)
    assert torch.allclose(weights(model), weights(plain), atol=1e-7)


@pytest.mark.parametrize("mode", ["fused", "unfused"])
def test_a_padded_sample_changes_nothing(mode):
    (batch, draws), = batches(1, 8)
    batch["valid"][6:] = 0
    step, _, model = trainer(f"optimizer.fused={str(mode == 'fused').lower()}")
    step(0, iter([(batch, draws)]), 1)
    cut = {name: value[:6] for name, value in batch.items()}, {name: value[:6] for name, value in draws.items()}
    other, _, other_model = trainer()
    other(0, iter([cut]), 1)
    assert torch.allclose(weights(model), weights(other_model), atol=1e-6)


def test_fused_and_unfused_updates_agree_over_many_steps():
    (fused, _, a), (unfused, _, b) = trainer(), trainer("optimizer.fused=false")
    for index, pair in enumerate(batches(20, 8)):
        first, second = fused(index, iter([pair]), 1), unfused(index, iter([pair]), 1)
        assert first.tolist() == pytest.approx(second.tolist(), rel=1e-4, abs=1e-6)
    assert torch.allclose(weights(a), weights(b), atol=1e-6)


@pytest.mark.parametrize("fused", ["true", "false"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_with_a_bad_gradient_is_skipped_and_the_schedule_waits(fused, bad):
    step, optimizer, model = trainer(f"optimizer.fused={fused}", "optimizer.warmup=0.5")
    good, poisoned, after = batches(3, 8)
    poisoned[0]["y"][3, 0] = bad
    first = step(0, iter([good]), 1)
    before = weights(model)
    skipped = step(1, iter([poisoned]), 1)
    assert torch.equal(weights(model), before)
    assert (skipped[3].item(), optimizer.applied.item()) == (1, 1)
    third = step(2, iter([after]), 1)
    assert optimizer.applied.item() == 2 and third[3] == 0
    rates = [first[4].item(), skipped[4].item(), third[4].item()]
    assert rates[0] < rates[1] == rates[2], "the skipped step's rate is used by the next one"
    assert torch.isfinite(weights(model)).all()


def test_fp16_gradients_are_unscaled_before_they_are_clipped():
    """p = 0, loss = 3 p0 + 4 p1, scale 65536: the norm is 5 and not 327,680 (pytorch/examples issue 1196)."""
    from lfhelpers.recipe import recipe
    from lfhelpers.train.optimizer import Optimizer

    parameter = torch.nn.Parameter(torch.zeros(4))
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    holder = torch.nn.Module()
    holder.weight = parameter
    optimizer = Optimizer(recipe("competent", "optimizer.clip_norm=1"), holder, 1.0, scaler)
    scaler.scale((parameter * torch.tensor([3.0, 4.0, 0.0, 0.0])).sum()).backward()
    seen = []
    optimizer.adamw.register_step_pre_hook(lambda *args: seen.append(parameter.grad.clone()))
    norm, skipped, _ = optimizer.update(torch.tensor(1.0))
    assert (norm.item(), skipped.item()) == (pytest.approx(5.0), 0)
    assert seen[0].tolist() == pytest.approx([0.6, 0.8, 0, 0], abs=1e-5)


def test_an_fp16_overflow_halves_the_scale_and_counts_as_skipped():
    from lfhelpers.recipe import recipe
    from lfhelpers.train.optimizer import Optimizer

    holder = torch.nn.Linear(2, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = Optimizer(recipe("competent"), holder, 1.0, scaler)
    before = weights(holder)
    scaler.scale(holder(torch.full((1, 2), float("inf"))).sum()).backward()
    _, skipped, _ = optimizer.update(torch.tensor(1.0))
    assert (skipped.item(), scaler.get_scale(), optimizer.applied.item()) == (1, 512.0, 0)
    assert torch.equal(weights(holder), before)


def test_unscale_step_and_update_run_once_a_step_and_not_once_a_micro_batch(monkeypatch):
    """8 micro-batches, 4 a step: two of each (accelerate issue 641)."""
    calls = []
    step, _, _ = trainer()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for name in ("unscale_", "step", "update"):
        real = getattr(scaler, name)
        monkeypatch.setattr(scaler, name, lambda *args, real=real, name=name: (calls.append(name), real(*args))[1])
    step._precision.scaler = step._optimizer._scaler = scaler
    pairs = iter(batches(8, 4))
    step(0, pairs, 4)
    step(1, pairs, 4)
    assert calls == ["unscale_", "step", "update"] * 2

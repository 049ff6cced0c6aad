"""The flow-matching loss as a ratio of sums: what must not change it, what must, and what it leads to."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lfhelpers.errors import LfError
from lfhelpers.workloads.base import Batch
from lfhelpers.workloads.vla.model import IGNORE
from lfhelpers.workloads.vla.tabletop import text
from lfhelpers.workloads.vla.workload import Vla, answers
from tests.workloads.vla_batches import batch, built, job, members

Draws = dict[str, torch.Tensor]


def rows(tensors: Batch | Draws, start: int, stop: int) -> dict[str, torch.Tensor]:
    return {key: value[start:stop] for key, value in tensors.items()}


def drawn(workload: Vla, samples: int, seed: int = 0) -> Draws:
    return workload.draws(samples, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("text_loss", [0, 1])
@pytest.mark.parametrize("waste", ["compute_logits", "per_sample_gather"])
def test_published_wastes_change_nothing(waste: str, text_loss: int) -> None:
    """Loss and gradients, to 1e-6 in fp32."""
    results = []
    for on in ("true", "false"):
        workload = Vla(job(f"workload.{waste}={on}", f"workload.text_loss={text_loss}"))
        model = built(workload)
        if results:
            model.load_state_dict(results[0][0].state_dict(), strict=False)
        total, weight = workload.loss(model, batch(workload, 4), drawn(workload, 4))
        (total / weight).backward()
        results.append((model, (total / weight).item()))
    (first, one), (second, other) = results
    assert other == pytest.approx(one, rel=1e-6)
    gradients = {name: p.grad for name, p in first.named_parameters() if p.requires_grad}
    for name, parameter in second.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-6)


def test_wasted_logits_are_computed() -> None:
    """The waste must be there to be measured: logits of every token, in the forward pass alone."""
    workload = Vla(job("workload.compute_logits=true"))
    model, shapes = built(workload), []
    model.lm_head.register_forward_hook(lambda _module, _inputs, output: shapes.append(tuple(output.shape)))
    workload.loss(model, batch(workload, 2), drawn(workload, 2))[0].backward()
    assert shapes == [(2, 24, 512)]
    assert model.lm_head.weight.grad is None


@pytest.mark.parametrize("text_loss", [0, 1])
def test_samples_that_are_not_valid_add_nothing(text_loss: int) -> None:
    workload = Vla(job(f"workload.text_loss={text_loss}"))
    model, inputs, draws = built(workload), batch(workload, 5), drawn(workload, 5)
    padded = {**inputs, "valid": torch.tensor([1.0, 1, 1, 0, 0])}
    expected = workload.loss(model, rows(inputs, 0, 3), rows(draws, 0, 3))
    torch.testing.assert_close(workload.loss(model, padded, draws), expected, rtol=1e-6, atol=1e-6)
    nothing = workload.loss(model, {**inputs, "valid": torch.zeros(5)}, draws)
    assert [value.item() for value in nothing] == [0, 0]


@settings(max_examples=8, deadline=None)
@given(cut=st.integers(1, 5), text_loss=st.sampled_from([0.0, 0.5]))
def test_sums_and_weights_add_up_over_micro_batches(cut: int, text_loss: float) -> None:
    workload = Vla(job(f"workload.text_loss={text_loss}"))
    model, inputs, draws = built(workload), batch(workload, 6), drawn(workload, 6)
    inputs["mask"][2, 8:] = 0  # unequal weights: a mean of means would be wrong here
    whole = workload.loss(model, inputs, draws)
    parts = [workload.loss(model, rows(inputs, *ends), rows(draws, *ends)) for ends in ((0, cut), (cut, 6))]
    summed = tuple(sum(values) for values in zip(*parts, strict=True))
    torch.testing.assert_close(whole, summed, rtol=1e-5, atol=1e-5)


def test_loss_is_the_masked_squared_error_of_the_velocity() -> None:
    """By hand, from the model's own prediction."""
    workload = Vla(job())
    model, inputs, draws = built(workload), batch(workload, 3), drawn(workload, 3)
    time = draws["time"].view(3, 1, 1)
    velocity, _ = model(inputs, (1 - time) * draws["noise"] + time * inputs["action"], (draws["time"] * 1000).long())
    errors = velocity - (inputs["action"] - draws["noise"])
    total, weight = workload.loss(model, inputs, draws)
    assert weight.item() == 3 * 16 * 7
    assert total.item() == pytest.approx(errors[:, :16, :7].square().sum().item(), rel=1e-5)


def test_text_loss_is_added_with_its_weight() -> None:
    """ratio = action ratio + text_loss x mean cross-entropy; near log(512) for random weights."""
    ratios = []
    for share in (1, 3):
        workload = Vla(job(f"workload.text_loss={share}"))
        total, weight = workload.loss(built(workload), batch(workload, 2), drawn(workload, 2))
        ratios.append((total / weight).item())
    words = (ratios[1] - ratios[0]) / 2
    assert words == pytest.approx(np.log(512), rel=0.1)


def test_actions_do_not_depend_on_the_answers_that_follow() -> None:
    """The action head must not read in training what it will not be told in use."""
    workload = Vla(job("workload.text_loss=1"))
    model, inputs, draws = built(workload), batch(workload, 2), drawn(workload, 2)
    other = {**inputs, "text_tokens": inputs["text_tokens"].flip(1)}
    actions, step = draws["noise"], torch.tensor([10, 900])
    first, second = (model(given, actions, step) for given in (inputs, other))
    torch.testing.assert_close(first[0], second[0], rtol=1e-6, atol=1e-6)
    assert not torch.allclose(first[1], second[1])


def test_raw_and_normalised_images_give_the_same_loss() -> None:
    workload = Vla(job())
    model, inputs, draws = built(workload), batch(workload, 2), drawn(workload, 2)
    normalised = {**inputs, "images": inputs["images"].movedim(-1, -3).float() / 127.5 - 1}
    assert torch.equal(workload.loss(model, inputs, draws)[0], workload.loss(model, normalised, draws)[0])


@given(seed=st.integers(0, 2**32), samples=st.integers(1, 64))
@settings(max_examples=30, deadline=None)
def test_times_lie_in_range_and_draws_repeat(seed: int, samples: int) -> None:
    workload = Vla(job())
    draws, again = drawn(workload, samples, seed), drawn(workload, samples, seed)
    assert draws["time"].min() >= 0
    assert draws["time"].max() <= 0.999
    assert all(torch.equal(draws[key], again[key]) for key in draws)
    assert (draws["noise"].shape, draws["time"].shape) == ((samples, 16, 16), (samples,))


def test_times_follow_the_published_distribution() -> None:
    """t = (1 - x) 0.999 with x from Beta(1.5, 1): mean 0.4 x 0.999, standard deviation 0.999 x sqrt(0.06857)."""
    time = drawn(Vla(job()), 20_000)["time"]
    assert time.mean().item() == pytest.approx(0.999 * 0.4, abs=0.006)
    assert time.std().item() == pytest.approx(0.999 * (12 / 175) ** 0.5, abs=0.004)


def test_acting_repeats_with_its_seed() -> None:
    workload = Vla(job())
    model, inputs = built(workload), batch(workload, 3) | {"chunk": torch.zeros(3, dtype=torch.int64)}
    with torch.no_grad():
        first, again, other = (workload.act(model, inputs, seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert (first.shape, first.dtype) == ((3, 16, 7), torch.float32)


def test_acting_follows_the_flow() -> None:
    """A head that always answers v moves noise by v in its four steps of a quarter."""
    workload = Vla(job())
    model, inputs = built(workload), batch(workload, 2)
    model.head.action_decoder.second.weight.data.zero_()
    model.head.action_decoder.second.bias.data.fill_(0.5)
    noise = torch.randn(2, 16, 16)
    torch.testing.assert_close(model.act(inputs, noise), noise[:, :, :7] + 0.5)


def test_sample_pads_and_masks() -> None:
    tensors = Vla(job("workload.size=full")).sample(members(0))
    assert {key: tuple(value.shape) for key, value in tensors.items()} == {
        "tokens": (37,), "state": (128,), "action": (50, 128), "mask": (50, 128), "embodiment": ()}
    assert tensors["mask"].sum() == tensors["mask"][:16, :7].sum() == 112
    assert torch.equal(tensors["action"], tensors["action"] * tensors["mask"])
    assert tensors["state"][8:].abs().sum() == 0
    expected = np.frombuffer(members(0)["action.f32"], "<f4").reshape(16, 7)
    np.testing.assert_array_equal(tensors["action"][:16, :7].numpy(), expected)


def test_sample_refuses_a_member_cut_short() -> None:
    with pytest.raises(LfError, match=r"state\.f32 holds 28 bytes, not the 32"):
        Vla(job()).sample({**members(0), "state.f32": bytes(28)})


def spoken(seed: int, length: int) -> tuple[list[str], list[str]]:
    """Tokens and labels of one scene in words."""
    tensors = answers(members(seed)["json"], length)
    return tuple(["-" if number == IGNORE else text.VOCABULARY[number] for number in row.tolist()] for row in tensors)


@given(seed=st.integers(0, 500), length=st.integers(1, 300))
@settings(max_examples=30, deadline=None)
def test_labels_are_the_next_words(seed: int, length: int) -> None:
    tokens, labels = spoken(seed, length)
    assert len(tokens) == len(labels) == length
    assert all(label in ("-", following) for label, following in zip(labels, tokens[1:], strict=False))
    assert (tokens, labels) == tuple(row[:length] for row in spoken(seed, 300))


def test_labels_are_captions_and_answers() -> None:
    """What is predicted, put together again; captions in one scene of two, and questions never."""
    captions = 0
    for seed in range(20):
        content = json.loads(members(seed)["json"])
        said = " ".join(word for word in spoken(seed, 400)[1] if word != "-").split(" <eos>")[:-1]
        said = [sentence.strip() for sentence in said]
        captions += said[0] == content["caption"]
        assert sorted(said) == sorted([answer for _, answer in content["questions"]]
                                      + [content["caption"]] * (said[0] == content["caption"]))
    assert 5 <= captions <= 15


def test_tiny_learns_at_once() -> None:
    """60 steps on one batch of 16, whose actions are noise and can only be learnt by heart."""
    workload = Vla(job())
    torch.manual_seed(0)
    model, inputs = workload.model(), batch(workload, 16)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=workload.default_lr())
    generator, losses = torch.Generator().manual_seed(0), []
    for _ in range(60):
        total, weight = workload.loss(model, inputs, workload.draws(16, generator))
        optimizer.zero_grad()
        (total / weight).backward()
        optimizer.step()
        losses.append((total / weight).item())
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:5])


def test_evaluation_repeats_and_sees_the_model() -> None:
    """Open-loop error on held-out scenes: of a model that answers nothing, noise against the expert's actions."""
    workload = Vla(job())
    model, cpu = built(workload), torch.device("cpu")
    with torch.no_grad():
        first, again = (workload.evaluate(model, 4, cpu)["action_mse"] for _ in range(2))
        model.head.action_decoder.second.weight.zero_()
        model.head.action_decoder.second.bias.zero_()
        still = workload.evaluate(model, 64, cpu)["action_mse"]
    assert first == again
    assert 1.0 < still < 1.4

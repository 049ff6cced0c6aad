"""Held-out figures: the expert scores perfectly, a policy that does not look scores the floor, intervals bracket."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from lfhelpers.data import draws, images
from lfhelpers.errors import LfError
from lfhelpers.workloads.vla import evaluate
from lfhelpers.workloads.vla.tabletop import dataset


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several batches, the last one short, from few samples."""
    monkeypatch.setattr(evaluate, "BATCH", 4)
    yield
    evaluate.held_out.cache_clear()


def encode(members: Mapping[str, bytes]) -> dict[str, Tensor]:
    """State and the expert's chunk, as a workload makes them from a sample's members."""
    state = np.frombuffer(members["state.f32"], dtype="<f4").copy()
    action = np.frombuffer(members["action.f32"], dtype="<f4").reshape(16, 7).copy()
    return {"state": torch.from_numpy(state), "action": torch.from_numpy(action)}


def expert(batch: dict[str, Tensor]) -> Tensor:
    return batch["action"]


def test_the_expert_has_no_error() -> None:
    scores = evaluate.open_loop(expert, encode, 6, 56, "cpu")
    assert scores["action_mse"] == 0 and scores["samples"] == 6


def test_the_mean_chunk_scores_the_floor_and_knowing_the_state_alone_little_less() -> None:
    truth = torch.stack([encode(dataset.sample(1, index))["action"] for index in range(10)])
    mean = truth.mean(0)
    scores = evaluate.open_loop(lambda batch: mean.expand(len(batch["ids"]), 16, 7), encode, 10, 56, "cpu")
    assert scores["action_mse"] == pytest.approx(scores["action_mse_floor"], rel=1e-5)
    assert scores["action_mse_floor"] == pytest.approx(float(truth.var(0, correction=0).mean()), rel=1e-4)
    assert 0.005 < scores["action_mse_blind"] < 0.1


def test_the_policy_is_given_batches_as_in_training_all_of_one_shape() -> None:
    seen: list[dict[str, Tensor]] = []

    def act(batch: dict[str, Tensor]) -> Tensor:
        seen.append(batch)
        return batch["action"]

    evaluate.open_loop(act, encode, 6, 56, "cpu")
    assert [tuple(batch["images"].shape) for batch in seen] == [(4, 2, 56, 56, 3)] * 2
    assert seen[0]["images"].dtype == torch.uint8 and seen[0]["state"].shape == (4, 8)
    assert [batch["valid"].tolist() for batch in seen] == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert [batch["ids"].tolist() for batch in seen] == [[0, 1, 2, 3], [4, 5, 5, 5]]


def test_pictures_are_decoded_as_the_data_engines_decode_them() -> None:
    seen: list[Tensor] = []

    def act(batch: dict[str, Tensor]) -> Tensor:
        seen.append(batch["images"])
        return batch["action"]

    evaluate.open_loop(act, encode, 2, 56, "cpu")
    members = dataset.sample(1, 1)
    box = draws.crop_box(draws.CENTRE.offset, 640, 480)
    for view, name in enumerate(("front.jpg", "wrist.jpg")):
        there = images.augment(images.decode(members[name], name), box, None, 56)
        assert (seen[0][1, view].numpy() == there).all()


def test_held_out_samples_are_drawn_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    before = evaluate.open_loop(expert, encode, 3, 32, "cpu")
    monkeypatch.setattr(dataset, "members", None)
    assert evaluate.open_loop(expert, encode, 3, 32, "cpu") == before


def test_the_expert_succeeds_in_every_episode() -> None:
    scores = evaluate.success(expert, encode, 6, 16, "cpu")
    assert (scores["success"], scores["episodes"], scores["success_high"]) == (1.0, 6, 1.0)
    assert scores["success_low"] == pytest.approx(6 / (6 + 1.959964**2))


def test_a_policy_that_stands_still_never_succeeds_and_uses_every_chunk() -> None:
    calls: list[int] = []

    def still(batch: dict[str, Tensor]) -> Tensor:
        calls.append(len(batch["ids"]))
        return torch.zeros_like(batch["action"])

    scores = evaluate.success(still, encode, 6, 16, "cpu", distractors=0)
    assert scores["success"] == 0 and scores["success_low"] == 0
    assert calls == [4] * 6


def test_a_rate_lies_inside_its_interval() -> None:
    """An expert that gives up on odd scenes; the interval is Wilson's (1927)."""
    def sometimes(batch: dict[str, Tensor]) -> Tensor:
        return batch["action"] * (batch["ids"] % 2 == 0)[:, None, None]

    scores = evaluate.success(sometimes, encode, 8, 16, "cpu")
    rate, n, z = 0.5, 8, 1.959964
    half = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    assert scores["success"] == rate
    assert scores["success_high"] - scores["success_low"] == pytest.approx(2 * half, rel=1e-5)
    assert scores["success_low"] < rate < scores["success_high"]


def test_nothing_to_evaluate_or_a_wrong_shape_is_refused() -> None:
    with pytest.raises(LfError, match="episodes = 0; at least 1"):
        evaluate.success(expert, encode, 0, 16, "cpu")
    with pytest.raises(LfError, match=r"samples = 0; at least 1"):
        evaluate.open_loop(expert, encode, 0, 16, "cpu")
    with pytest.raises(LfError, match=r"shape \[2, 16, 6\]; give \[2, 16, 7\]"):
        evaluate.open_loop(lambda batch: batch["action"][..., :6], encode, 2, 16, "cpu")

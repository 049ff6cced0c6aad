"""Quality of the `vla` workload on scenes that training never saw: how near to the expert, and does it succeed?

Open loop is cheap and smooth, but a policy that never looks scores well on it: only success in the closed loop tells
that the named object was found. So open loop is always given with two scores of not looking, and success with its
interval. Samples come from seed 1 (training uses seed 0). Pictures become JPEGs and then what data engines make of
them without augmentation: the centre 0.95, bilinear with antialiasing.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.stats import binomtest
from torch import Tensor

from lfhelpers.errors import LfError
from lfhelpers.workloads.vla.tabletop import dataset
from lfhelpers.workloads.vla.tabletop.render import CAMERAS
from lfhelpers.workloads.vla.tabletop.scene import scene
from lfhelpers.workloads.vla.tabletop.simulator import CHUNKS, DIMENSIONS, STEPS, Simulator, expert

BATCH = 64
"""Most samples in a batch; all batches of an evaluation have one shape, so that nothing is compiled twice."""
CROP = 0.95
"""The share of each side that evaluation keeps: the middle of what augmentation draws from."""
BLIND_SEED, BLIND_SAMPLES = 2, 2000
"""Scenes, of neither training nor evaluation, on which the best map that sees the state alone is fitted."""

Act = Callable[[dict[str, Tensor]], Tensor]
Encode = Callable[[Mapping[str, bytes]], dict[str, Tensor]]


class Row(NamedTuple):
    """One sample: its number, its members but the JPEGs, and its pictures, uint8 [2, size, size, 3]."""

    id: int
    members: Mapping[str, bytes]
    images: NDArray[np.uint8]


def open_loop(act: Act, encode: Encode, samples: int, size: int, device: torch.device | str, seed: int = 1,
              distractors: int = 3) -> dict[str, float]:
    """Mean squared error of `act`'s chunks against the expert's, over `samples` held-out samples and all 16 x 7 values.

    `act` takes a batch as training does (images uint8 [B, 2, size, size, 3]) and returns [B, 16, 7]. Also the error of
    not looking: `action_mse_floor` of the mean chunk, `action_mse_blind` of the best affine map of the state.
    """
    rows = _held_out(_counted("samples", samples), size, seed, distractors)
    truth = np.stack([_floats(row.members["action.f32"]) for row in rows])
    said = np.concatenate([_acted(act, encode, rows[i:i + BATCH], min(samples, BATCH), device)
                           for i in range(0, samples, BATCH)])
    states = np.stack([_floats(row.members["state.f32"]) for row in rows])
    return {"action_mse": _error(said.reshape(truth.shape), truth),
            "action_mse_floor": _error(truth.mean(axis=0), truth),
            "action_mse_blind": _error(_with_one(states) @ _blind(distractors), truth),
            "samples": samples}


def success(act: Act, encode: Encode, episodes: int, size: int, device: torch.device | str, seed: int = 1,
            distractors: int = 3) -> dict[str, float]:
    """The share of `episodes` held-out scenes in which `act` picks up the named object, and its 95 % interval (Wilson).

    Closed loop: `act` sees the scene anew before each of at most 3 chunks of 16 steps.
    """
    _counted("episodes", episodes)
    wins = 0
    for first in range(0, episodes, BATCH):
        last = min(first + BATCH, episodes)
        running = {index: Simulator(scene(seed, index, distractors)) for index in range(first, last)}
        for _ in range(CHUNKS):
            rows = [_row(index, episode, size) for index, episode in running.items()]
            for row, chunk in zip(rows, _acted(act, encode, rows, min(episodes, BATCH), device), strict=True):
                running[row.id].run(chunk)
            wins += sum(episode.success for episode in running.values())
            running = {index: episode for index, episode in running.items() if not episode.done}
            if not running:
                break
    low, high = binomtest(wins, episodes).proportion_ci(method="wilson")
    return {"success": wins / episodes, "success_low": float(low), "success_high": float(high), "episodes": episodes}


def _acted(act: Act, encode: Encode, rows: Sequence[Row], length: int, device: torch.device | str
           ) -> NDArray[np.float32]:
    """`act` on a batch of `rows`, filled up to `length` with copies of the last: float32 [len(rows), 16, 7]."""
    filled = [*rows, *[rows[-1]] * (length - len(rows))]
    tensors = [encode(row.members) for row in filled]
    batch = {key: torch.stack([sample[key] for sample in tensors]) for key in tensors[0]}
    batch["images"] = torch.from_numpy(np.stack([row.images for row in filled]))
    batch["ids"] = torch.tensor([row.id for row in filled])
    batch["valid"] = (torch.arange(length) < len(rows)).float()
    chunks = act({key: tensor.to(device) for key, tensor in batch.items()})
    if chunks.shape != (length, STEPS, DIMENSIONS):
        raise LfError(f"evaluation: act returned actions of shape {list(chunks.shape)}; "
                      f"give [{length}, {STEPS}, {DIMENSIONS}].")
    return chunks[:len(rows)].detach().float().cpu().numpy()


@lru_cache(maxsize=4)
def _held_out(samples: int, size: int, seed: int, distractors: int) -> tuple[Row, ...]:
    """Held-out samples, kept so that evaluations of one process draw them once."""
    return tuple(_row(index, dataset.moment(seed, index, distractors), size) for index in range(samples))


def _row(number: int, episode: Simulator, size: int) -> Row:
    """What a sample of this moment of the episode holds, its pictures decoded."""
    members = dataset.members(episode)
    pictures = np.stack([_pixels(members[f"{camera}.jpg"], size) for camera in CAMERAS])
    return Row(number, {key: value for key, value in members.items() if not key.endswith(".jpg")}, pictures)


def _pixels(data: bytes, size: int) -> NDArray[np.uint8]:
    """A JPEG as uint8 [size, size, 3], by the rule that the data engines follow when they do not augment."""
    with Image.open(io.BytesIO(data)) as image:
        width, height = image.size
        wide, high = round(CROP * width), round(CROP * height)
        left, top = (width - wide) // 2, (height - high) // 2
        box = (left, top, left + wide, top + high)
        return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))


@lru_cache(maxsize=8)
def _blind(distractors: int) -> NDArray[np.float64]:
    """[9, 112]: least squares from the state, with a constant, to the expert's chunk."""
    moments = [dataset.moment(BLIND_SEED, index, distractors) for index in range(BLIND_SAMPLES)]
    states = np.stack([moment.state for moment in moments])
    chunks = np.stack([expert(moment.scene, moment.state) for moment in moments]).reshape(BLIND_SAMPLES, -1)
    return np.linalg.lstsq(_with_one(states), chunks, rcond=None)[0]


def _with_one(states: NDArray[np.float32]) -> NDArray[np.floating]:
    return np.concatenate([np.ones((len(states), 1)), states], axis=1)


def _error(said: NDArray[np.floating], truth: NDArray[np.floating]) -> float:
    return float(((said - truth).astype(np.float64) ** 2).mean())


def _floats(member: bytes) -> NDArray[np.float32]:
    return np.frombuffer(member, dtype="<f4")


def _counted(name: str, number: int) -> int:
    if number < 1:
        raise LfError(f"evaluation: {name} = {number}; at least 1 is needed.")
    return number

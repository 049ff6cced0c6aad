"""Quality of the `vla` workload on scenes that training never saw: how near to the expert, and does it succeed?

Open loop is cheap and smooth, but a policy that never looks scores well on it: only success in the closed loop tells
that the named object was found. So open loop is always given with two scores of not looking, and success with its
interval. Samples come from seed 1 (training uses seed 0). Pictures become JPEGs and then what data engines make of
them without augmentation: the centre 0.95, bilinear with antialiasing.

Drawing costs more than the model does, so many scenes are drawn in forked processes. Ranks share the samples out by
number and hand back what each one gave, so that the figures are the same on any number of ranks: nothing that decides
a sample, its noise included, may depend on what else is in its batch.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lfhelpers.errors import LfError
from lfhelpers.measure.hardware import usable_cores
from lfhelpers.workloads.vla.tabletop import dataset
from lfhelpers.workloads.vla.tabletop.render import CAMERAS
from lfhelpers.workloads.vla.tabletop.scene import Scene
from lfhelpers.workloads.vla.tabletop.simulator import CHUNKS, DIMENSIONS, STEPS, Simulator, expert
from lfhelpers.workloads.vla.tabletop.tasks import drawn

BATCH = 64
"""Most samples in a batch; all batches of an evaluation have one shape, so that nothing is compiled twice."""
CROP = 0.95
"""The share of each side that evaluation keeps: the middle of what augmentation draws from."""
SEED = 1
"""Of the scenes of evaluation."""
MANY = 32
"""Scenes that are worth processes of their own."""
BLIND_SEED, BLIND_SAMPLES = 2, 2000
"""Scenes, of neither training nor evaluation, on which the best map that sees the state alone is fitted."""

T = TypeVar("T")
Act = Callable[[dict[str, Tensor]], Tensor]
Encode = Callable[[Mapping[str, bytes]], dict[str, Tensor]]


class Row(NamedTuple):
    """One sample: its number, its members but the JPEGs, and its pictures, uint8 [2, size, size, 3]."""

    id: int
    members: Mapping[str, bytes]
    images: NDArray[np.uint8]


class Given(NamedTuple):
    """What a policy gave for one sample, and what it should have: [16, 7] both; and the state that it saw, [8]."""

    id: int
    said: NDArray[np.float32]
    truth: NDArray[np.float32]
    state: NDArray[np.float32]


def open_loop(act: Act, encode: Encode, samples: int, size: int, device: torch.device | str, seed: int = 1,
              distractors: int | str = 3) -> dict[str, float]:
    """Mean squared error of `act`'s chunks against the expert's, over `samples` held-out samples and all 16 x 7 values.

    `act` takes a batch as training does (images uint8 [B, 2, size, size, 3]) and returns [B, 16, 7]. Also the error of
    not looking: `action_mse_floor` of the mean chunk, `action_mse_blind` of the best affine map of the state.
    """
    return errors(given(act, encode, range(_counted("samples", samples)), size, device, seed, distractors), distractors)


def given(act: Act, encode: Encode, numbers: Sequence[int], size: int, device: torch.device | str, seed: int = SEED,
          distractors: int | str = 3, batch: int | None = None) -> list[Given]:
    """What `act` gives for the held-out samples of these numbers: a rank's share of `open_loop`.

    batch: the samples of every batch, filled up, which must be the same on any number of ranks for results to be so.
    """
    rows = held_out(tuple(numbers), size, seed, distractors)
    found: list[Given] = []
    for part in _parts(rows):
        for row, said in zip(part, _acted(act, encode, part, batch or min(len(rows), BATCH), device), strict=True):
            found.append(Given(row.id, said, _floats(row.members["action.f32"]).reshape(STEPS, DIMENSIONS),
                               _floats(row.members["state.f32"])))
    return found


def errors(found: Sequence[Given], distractors: int | str = 3) -> dict[str, float]:
    """The figures of `open_loop` from what all ranks have given."""
    ordered = sorted(found, key=lambda one: one.id)
    truth = np.stack([one.truth for one in ordered])
    states = np.stack([one.state for one in ordered])
    return {"action_mse": _error(np.stack([one.said for one in ordered]), truth),
            "action_mse_floor": _error(truth.mean(axis=0), truth),
            "action_mse_blind": _error((_with_one(states) @ _blind(distractors)).reshape(truth.shape), truth),
            "samples": len(ordered)}


def success(act: Act, encode: Encode, episodes: int, size: int, device: torch.device | str, seed: int = 1,
            distractors: int | str = 3) -> dict[str, float]:
    """The share of `episodes` held-out scenes in which `act` does what it was told, and its 95 % interval (Wilson).

    Closed loop: `act` sees the scene anew before each of at most 3 chunks of 16 steps; batch["chunk"] says which.
    distractors: their number, or the name of a task (tabletop.tasks).
    """
    return rate(wins(act, encode, range(_counted("episodes", episodes)), size, device, seed, distractors))


def wins(act: Act, encode: Encode, numbers: Sequence[int], size: int, device: torch.device | str, seed: int = SEED,
         distractors: int | str = 3, batch: int | None = None) -> dict[int, bool]:
    """Which of the held-out scenes of these numbers end well: a rank's share of `success`; batch as in `given`."""
    running = {index: Simulator(drawn(distractors, seed, index)) for index in numbers}
    won: dict[int, bool] = {}
    with _drawing(len(numbers)) as draw:
        for chunk in range(CHUNKS):
            for rows in _parts(draw([(index, episode, size) for index, episode in running.items()])):
                said = _acted(act, encode, rows, batch or min(len(numbers), BATCH), device, chunk)
                for row, actions in zip(rows, said, strict=True):
                    running[row.id].run(actions)
            won |= {index: episode.success for index, episode in running.items()}
            running = {index: episode for index, episode in running.items() if not episode.done}
    return won


def rate(won: Mapping[int, bool]) -> dict[str, float]:
    """The figures of `success` from the episodes of all ranks."""
    from scipy.stats import binomtest  # a second's import, which ranks and drawing processes would pay

    count = sum(won.values())
    low, high = binomtest(count, len(won)).proportion_ci(method="wilson")
    return {"success": count / len(won), "success_low": float(low), "success_high": float(high), "episodes": len(won)}


def filled(rows: Sequence[Row], length: int) -> list[Row]:
    """The rows and copies of the last, `length` in all."""
    return [*rows, *[rows[-1]] * (length - len(rows))]


@lru_cache(maxsize=8)
def bounds(episodes: int, seed: int = SEED, distractors: int | str = 3) -> dict[str, float]:
    """The success of the expert, and of the best affine map of the state: what looking can win, on the same scenes."""
    return {"success_blind": _without_pictures(lambda _, state: (_with_one(state[None]) @ _blind(distractors)).reshape(
                STEPS, DIMENSIONS), episodes, seed, distractors),
            "success_expert": _without_pictures(expert, episodes, seed, distractors)}


def _without_pictures(policy: Callable[[Scene, NDArray[np.float32]], NDArray[np.floating]], episodes: int, seed: int,
                      distractors: int | str) -> float:
    """Success of a policy that is given the scene and the state."""
    won = 0
    for index in range(episodes):
        episode = Simulator(drawn(distractors, seed, index))
        for _ in range(CHUNKS):
            episode.run(policy(episode.scene, episode.state))
        won += episode.success
    return won / episodes


def _acted(act: Act, encode: Encode, rows: Sequence[Row], length: int, device: torch.device | str,
           chunk: int = 0) -> NDArray[np.float32]:
    """`act` on a batch of `rows`, filled up to `length` with copies of the last: float32 [len(rows), 16, 7]."""
    full = filled(rows, length)
    tensors = [encode(row.members) for row in full]
    batch = {key: torch.stack([sample[key] for sample in tensors]) for key in tensors[0]}
    batch["images"] = torch.from_numpy(np.stack([row.images for row in full]))
    batch["ids"] = torch.tensor([row.id for row in full])
    batch["chunk"] = torch.full((length,), chunk)
    batch["valid"] = (torch.arange(length) < len(rows)).float()
    chunks = act({key: tensor.to(device) for key, tensor in batch.items()})
    if chunks.shape != (length, STEPS, DIMENSIONS):
        raise LfError(f"evaluation: act returned actions of shape {list(chunks.shape)}; "
                      f"give [{length}, {STEPS}, {DIMENSIONS}].")
    return chunks[:len(rows)].detach().float().cpu().numpy()


@lru_cache(maxsize=4)
def held_out(numbers: tuple[int, ...], size: int, seed: int, distractors: int | str) -> tuple[Row, ...]:
    """Held-out samples, kept so that evaluations of one process draw them once."""
    with _drawing(len(numbers)) as draw:
        return tuple(draw([(index, dataset.moment(seed, index, distractors), size) for index in numbers]))


@contextlib.contextmanager
def _drawing(scenes: int) -> Iterator[Callable[[list[tuple[int, Simulator, int]]], Iterator[Row]]]:
    """A function that makes rows of moments, in forked processes where there are many scenes and more than one core.

    Those draw ahead while the first rows are used; they never compute with torch, whose threads and CUDA context don't
    survive a fork.
    """
    workers = min(usable_cores(), 16, scenes // 8)
    if scenes < MANY or workers < 2:
        yield lambda moments: (_row(*moment) for moment in moments)
        return
    with warnings.catch_warnings():  # Python 3.12 warns of any thread, also of those that sleep in libraries
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
            yield lambda moments: pool.map(_row, *zip(*moments, strict=True)) if moments else iter(())


def _row(number: int, episode: Simulator, size: int) -> Row:
    """What a sample of this moment of the episode holds, its pictures decoded."""
    members = dataset.members(episode)
    pictures = np.stack([_pixels(members[f"{camera}.jpg"], size) for camera in CAMERAS])
    return Row(number, {key: value for key, value in members.items() if not key.endswith(".jpg")}, pictures)


def _parts(items: Iterable[T]) -> Iterator[list[T]]:
    """The items in portions of a batch."""
    rest = iter(items)
    while part := list(islice(rest, BATCH)):
        yield part


def _pixels(data: bytes, size: int) -> NDArray[np.uint8]:
    """A JPEG as uint8 [size, size, 3], by the rule that the data engines follow when they do not augment."""
    with Image.open(io.BytesIO(data)) as image:
        width, height = image.size
        wide, high = round(CROP * width), round(CROP * height)
        left, top = (width - wide) // 2, (height - high) // 2
        box = (left, top, left + wide, top + high)
        return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))


@lru_cache(maxsize=8)
def _blind(distractors: int | str) -> NDArray[np.float64]:
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

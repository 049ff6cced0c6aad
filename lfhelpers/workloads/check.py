"""Does a workload keep to its contract? Each breach is one sentence that names the method and the remedy.

Tried on a few samples before the first job, since most breaches raise nothing: a mean in place of a sum trains, and
gives each micro-batch and rank a wrong weight; randomness drawn inside makes two recipes incomparable. The model is
tried in eval mode, in fp32, so that dropout layers, which may draw, and the rounding of bf16 tell nothing.
"""

from __future__ import annotations

import importlib
import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lfhelpers.recipe import Recipe
from lfhelpers.workloads.base import Batch, Workload, blocks_of, complete

ROWS = 6
"""Samples that are tried: enough for two unequal parts and a padded row."""
APART = 1e-3
"""Share by which a sum may differ from that of its parts: fp32 adds in another order."""
OTHERS = (str(Path(torch.__file__).parent), str(Path(importlib.__file__).parent), str(Path(__file__).parents[1]))
"""Folders whose frames are not the user's."""


@dataclass(frozen=True)
class Breach:
    """What is wrong. Only a `fatal` one keeps a job from being started; any other one narrows what levers can do."""

    kind: str
    sentence: str
    fatal: bool = True


class _Broken(Exception):
    """Ends a part of the check with its breach."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.breach = Breach(kind, sentence)


def check(workload: Workload, job: Recipe, members: Sequence[Mapping[str, bytes]], device: torch.device
          ) -> list[Breach]:
    """The breaches that these samples' members show, in the order in which a job would meet them; [] for none.

    members: of ROWS samples, by extension.
    """
    found: list[Breach] = []
    complete(workload)
    _collect(found, lambda: _fields(workload, members))
    if found:  # without them no sample can be made
        return found
    _collect(found, lambda: _pickled(workload))
    rows = _collect(found, lambda: _samples(workload, members))
    draws = _collect(found, lambda: _draws(workload, device))
    figures = _collect(found, lambda: _figures(workload))
    if rows is not None and draws is not None and figures is not None and not any(one.fatal for one in found):
        _collect(found, lambda: _trained(workload, job, rows, draws, device, found))
    return found


def _collect(found: list[Breach], part: Callable[[], Any]) -> Any:
    """The part's answer; None, and its breach among the found ones, where it has one."""
    try:
        return part()
    except _Broken as broken:
        found.append(broken.breach)
        return None


def _fields(workload: Workload, members: Sequence[Mapping[str, bytes]]) -> None:
    fields = workload.fields
    for name in ("images", "size", "others"):
        if not hasattr(fields, name):
            raise _Broken("fields", f"fields has no '{name}'; give images, a tuple of extensions, size, the pixels of "
                                    "a side, and others, a tuple of extensions.")
    lacking = [ext for ext in (*fields.images, *fields.others) if ext not in members[0]]
    if lacking:
        raise _Broken("fields", f"fields names the member '{lacking[0]}', and a sample has {', '.join(members[0])}.")


def _pickled(workload: Workload) -> None:
    """What can't be pickled belongs to one process, and the loader's workers are forked with it: they would share it.
    """
    for name, value in vars(workload).items():
        if not _picklable(value):
            raise _Broken("unpicklable", f"self.{name}, a {type(value).__name__}, can't be pickled, and so can't be "
                          "given to worker processes: forked ones would share it; open it in the method that uses it, "
                          "or keep its path instead.")


def _picklable(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


def _samples(workload: Workload, members: Sequence[Mapping[str, bytes]]) -> list[dict[str, Tensor]]:
    """The samples' tensors, of one shape each, the same on a second call."""
    others = [{ext: one[ext] for ext in workload.fields.others if ext in one} for one in members]
    rows = [_called("sample", workload.sample, one) for one in others]
    if not all(isinstance(row, Mapping) and all(isinstance(value, Tensor) for value in row.values()) for row in rows):
        raise _Broken("sample", "sample() must return a dict of tensors, and of nothing else.")
    forms = [{name: (list(value.shape), value.dtype) for name, value in row.items()} for row in rows]
    for place, form in enumerate(forms):
        for name in forms[0].keys() | form.keys():
            if form.get(name) != forms[0].get(name):
                raise _Broken("varying shapes", f"sample() gives '{name}' as {_form(forms[0].get(name))} for sample 0 "
                              f"and {_form(form.get(name))} for sample {place}; pad or cut it to one shape.")
    again = _called("sample", workload.sample, others[0])
    if apart := [name for name, value in rows[0].items() if not torch.equal(value, again[name])]:
        raise _Broken("randomness", f"sample() gives another '{apart[0]}' when it is called again for the same sample; "
                                    "draw random numbers in draws(), which passes them to loss().")
    return [dict(row) for row in rows]


def _form(form: tuple[list[int], torch.dtype] | None) -> str:
    return "nothing" if form is None else f"{form[0]} {str(form[1]).removeprefix('torch.')}"


def _draws(workload: Workload, device: torch.device) -> Batch:
    """The loss's random numbers for ROWS samples: by the generator alone."""
    one, other = (dict(_called("draws", workload.draws, ROWS, torch.Generator(device).manual_seed(1)))
                  for _ in range(2))
    for name, value in one.items():
        if value.shape[:1] != (ROWS,):
            raise _Broken("draws", f"draws({ROWS}, generator) gives '{name}' of shape {list(value.shape)}; its first "
                                   "dimension must be that of the samples.")
        if not torch.equal(value, other[name]):
            raise _Broken("randomness", f"draws() gives another '{name}' from an equal generator; pass "
                                        "generator=generator to every call that draws.")
    return one


def _figures(workload: Workload) -> bool:
    for name in ("default_lr", "flops_per_sample"):
        value = _called(name, getattr(workload, name))
        if not isinstance(value, int | float) or value <= 0:
            raise _Broken(name, f"{name}() returns {value!r}; return a number above 0.")
    return True


def _trained(workload: Workload, job: Recipe, rows: list[dict[str, Tensor]], draws: Batch, device: torch.device,
             found: list[Breach]) -> None:
    """The model and its loss."""
    torch.manual_seed(job.seed)
    with device:
        model = _called("model", workload.model)
    batch = {name: torch.stack([row[name] for row in rows]).to(device) for name in rows[0]}
    batch |= _images(workload, device) | {"ids": torch.arange(ROWS, device=device),
                                          "valid": torch.ones(ROWS, device=device)}
    _additive(workload, model, batch, draws)
    _backward(workload, model, batch, draws)
    if not list(_called("blocks", blocks_of, workload, model)):
        found.append(Breach("no blocks", "the model repeats no block, so compile.scope='blocks' and activations.plan "
                            "have nothing to work on; put alike blocks into an nn.ModuleList, add blocks(model), or "
                            "take compile.scope='model'.", fatal=False))


def _images(workload: Workload, device: torch.device) -> Batch:
    fields = workload.fields
    shape = (ROWS, len(fields.images), fields.size, fields.size, 3)
    noise = torch.Generator(device).manual_seed(0)
    return {"images": torch.randint(256, shape, dtype=torch.uint8, generator=noise, device=device)}


def _additive(workload: Workload, model: nn.Module, batch: Batch, draws: Batch) -> None:
    """A sum and its weight: they add up over parts of a batch, and a padded row adds nothing."""
    model.eval()
    whole = _loss(workload, model, batch, draws, slice(0, ROWS), quiet=True)
    parts = [_loss(workload, model, batch, draws, rows) for rows in (slice(0, 2), slice(2, ROWS))]
    for what, one, *two in zip(("sum", "weight"), whole, *parts, strict=True):
        if abs(one - sum(two)) > APART * max(abs(one), 1e-6):
            raise _Broken("mean loss", f"loss() returns a {what} that doesn't add up: {one:.4g} for {ROWS} samples, "
                          f"{two[0]:.4g} and {two[1]:.4g} for two parts of them, as a mean would; return the sum over "
                          "samples, and as its weight what it is to be divided by.")
    padded = dict(batch) | {"valid": batch["valid"].clone()}
    padded["valid"][-1] = 0
    short = _loss(workload, model, batch, draws, slice(0, ROWS - 1))
    for one, other in zip(_loss(workload, model, padded, draws, slice(0, ROWS)), short, strict=True):
        if abs(one - other) > APART * max(abs(other), 1e-6):
            raise _Broken("padding", "a sample whose batch['valid'] is 0 still adds to what loss() returns; multiply "
                                     "each sample's part, and its weight, by batch['valid'].")


def _backward(workload: Workload, model: nn.Module, batch: Batch, draws: Batch) -> None:
    """Gradients, in train mode; images also as the engine `as_found` hands them out."""
    model.train()
    images = batch["images"].permute(0, 1, 4, 2, 3).float() / 127.5 - 1
    total, weight = _pair(_called("loss", workload.loss, model, batch | {"images": images}, draws))
    if not total.requires_grad:
        raise _Broken("no gradient", "loss() returns a sum without a gradient; leave out detach(), item() and "
                                     "no_grad() on the way to it.")
    _called("loss", (total / weight).backward)


def _loss(workload: Workload, model: nn.Module, batch: Batch, draws: Batch, rows: slice, quiet: bool = False
          ) -> tuple[float, float]:
    """(sum, weight) of some rows; quiet: see also that no random number is drawn on the way."""
    part, drawn = ({name: value[rows] for name, value in each.items()} for each in (batch, draws))
    before = _generators()
    with torch.no_grad():
        total, weight = _pair(_called("loss", workload.loss, model, part, drawn))
    after = _generators()
    if quiet and (names := [name for name, state in before.items() if state != after[name]]):
        raise _Broken("randomness", f"loss() or the model draws from {names[0]}'s own generator; draw in draws(), and "
                      "take the numbers from loss()'s third argument, so that two recipes can be given the same ones.")
    return float(total), float(weight)


def _pair(result: Any) -> tuple[Tensor, Tensor]:
    if not (isinstance(result, tuple) and len(result) == 2 and all(isinstance(one, Tensor) for one in result)):
        kind = f"one tensor of shape {list(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
        raise _Broken("mean loss", f"loss() returns {kind}, not (sum, weight); return the sum over samples, and as its "
                                   "weight what it is to be divided by for the mean, both 0-dim tensors.")
    if any(one.ndim for one in result):
        raise _Broken("mean loss", f"loss() returns shapes {[list(one.shape) for one in result]}; both must be 0-dim: "
                                   "sum over the samples.")
    return result


def _generators() -> dict[str, Any]:
    states: dict[str, Any] = {"torch": torch.get_rng_state().numpy().tobytes(), "random": random.getstate(),
                              "numpy": repr(np.random.get_state())}
    if torch.cuda.is_initialized():
        states["torch.cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
    return states


def _called(name: str, method: Callable[..., Any], *args: Any) -> Any:
    try:
        return method(*args)
    except Exception as error:
        raise _Broken(name, f"{name}() raised {told(error)}.") from error


def told(error: BaseException) -> str:
    """`KeyError: 'x' (my_model.py:12)`: what was raised, and where in the user's code."""
    words = (str(error).splitlines() or [""])[0].rstrip(".")
    frame, place = error.__traceback__, ""
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if not file.startswith((*OTHERS, "<")):
            place = f" ({Path(file).name}:{frame.tb_lineno})"
        frame = frame.tb_next
    return f"{type(error).__name__}: {words}{place}"

"""Where a number that is not finite first appears: in the batch, the weights, a module's forward, the loss, a gradient.

Each place is looked at only when all before it are clean, so what is named is the cause and not what it spoilt. This
runs a step's passes once more, eagerly and with a read of the device after every module: it is for a step that is
already known to be bad. What a few of a batch's samples do alone is told by passing halves of the batch, and halves of
those that are bad. Gradients come from torch.autograd.grad, which touches neither `.grad` nor DDP's hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lfhelpers.train.precision import Precision
from lfhelpers.workloads.base import Batch, Workload

CAUSES = ("batch", "weights", "forward", "loss", "gradient", "scale")
NAMED = 8
"""Sample ids that a sentence lists."""
PASSES = 24
"""Passes of parts of a batch in search of its bad samples; where they don't suffice, there are too many to name."""
APART = ("forward", "loss", "gradient")
"""Causes that may lie in single samples."""


@dataclass(frozen=True)
class Finding:
    """What is wrong, by one of CAUSES, and in words that go after 'because '."""

    cause: str
    text: str

    @property
    def place(self) -> int:
        """Earlier causes explain later ones."""
        return CAUSES.index(self.cause)


def examine(workload: Workload, model: nn.Module, precision: Precision, batch: Batch, draws: Batch,
            samples: int) -> Finding | None:
    """The first place where one micro-batch is not finite, or None. `model` is bare; `samples` as in train.step.

    The caller sees to it that nothing runs compiled. Generators are left as they were.
    """
    if found := in_batch(batch, "batch") or in_batch(draws, "draws") or in_weights(model):
        return found
    devices = [next(model.parameters()).device]
    with torch.random.fork_rng([device for device in devices if device.type == "cuda"]):
        found = _in_passes(workload, model, precision, batch, draws, samples)
        if found is None or found.cause not in APART:
            return found

        def bad(rows: slice) -> bool:
            part, noise = (_part(tensors, rows, len(batch["ids"])) for tensors in (batch, draws))
            return _in_passes(workload, model, precision, part, noise, samples) is not None
        ids = bad_samples(batch, bad)
    return Finding(found.cause, f"{found.text}, with {named(ids)}") if ids else found


def bad_samples(batch: Batch, bad: Callable[[slice], bool]) -> list[int]:
    """Ids of the samples that are bad by themselves; [] where all are, or more than PASSES can tell apart.

    bad: whether a part of the batch's rows is. A workload that can't pass a part names none.
    """
    rows = len(batch.get("ids", ()))
    left, found, passes = [slice(0, rows)] if rows > 1 else [], [], 0
    while left:
        whole = left.pop()
        middle = (whole.start + whole.stop) // 2
        for part in (slice(whole.start, middle), slice(middle, whole.stop)):
            try:
                if passes == PASSES:
                    return []
                passes += 1
                if not bad(part):
                    continue
            except Exception:  # its loss needs whole batches; the run must not end by looking
                return []
            if part.stop - part.start == 1:
                found.append(part.start)
            else:
                left.append(part)
    return [int(batch["ids"][row]) for row in sorted(found)] if len(found) < rows else []


def named(ids: Sequence[int]) -> str:
    """'sample 7', 'samples 7, 9', or the first NAMED and how many more."""
    shown = ", ".join(map(str, ids[:NAMED])) + (f" and {len(ids) - NAMED} more" if len(ids) > NAMED else "")
    return f"sample{'s' if len(ids) > 1 else ''} {shown}"


def in_batch(tensors: Mapping[str, Tensor], what: str) -> Finding | None:
    """A floating tensor of a batch or its draws that is not finite, with the ids of the samples where there are any."""
    for name, value in tensors.items():
        if finite(value):
            continue
        rows = (~torch.isfinite(value.float().flatten(1) if value.dim() > 1 else value.view(-1, 1))).any(dim=1)
        ids = tensors["ids"][rows].tolist() if "ids" in tensors and len(tensors["ids"]) == len(rows) else []
        where = f" of {named(ids)}" if ids else ""
        return Finding("batch", f"{what}['{name}']{where} is not finite")
    return None


def in_weights(model: nn.Module) -> Finding | None:
    """Parameters and buffers that are not finite already."""
    bad = [name for name, value in (*model.named_parameters(), *model.named_buffers()) if not finite(value)]
    if not bad:
        return None
    return Finding("weights", f"the weights {bad[0]}{_others(bad)} were not finite before the step")


def in_gradients(named: Iterable[tuple[str, Tensor | None]]) -> Finding | None:
    """Gradients that are not finite. Backward goes from the last module to the first, so the last one is named."""
    grads = [(name, grad) for name, grad in named if grad is not None]
    bad = [name for name, grad in grads if not finite(grad)]
    if not bad:
        return None
    return Finding("gradient", f"the gradient of {bad[-1]} is not finite ({len(bad)} of {len(grads)} are not; "
                               "backward came to this one first)")


def finite(value: Tensor) -> bool:
    """Whether all is finite; integers are. Reads the device."""
    return not value.is_floating_point() or bool(torch.isfinite(value).all())


def _part(tensors: Batch, rows: slice, of: int) -> Batch:
    """These rows of all tensors that have `of` of them."""
    return {name: value[rows] if value.dim() and len(value) == of else value for name, value in tensors.items()}


def _in_passes(workload: Workload, model: nn.Module, precision: Precision, batch: Batch, draws: Batch,
               samples: int) -> Finding | None:
    found: list[Finding] = []
    handles = [module.register_forward_hook(_look(name, found), with_kwargs=True)
               for name, module in model.named_modules()]
    try:
        with torch.enable_grad(), precision.autocast():
            loss, weight = workload.loss(model, batch, draws)
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return found[0]
    if not finite(loss) or not finite(weight):
        return Finding("loss", "the workload's loss makes it of finite outputs of the model")
    names, parameters = zip(*((name, value) for name, value in model.named_parameters() if value.requires_grad),
                            strict=True)
    scale = precision.scaler.get_scale() if precision.scaler.is_enabled() else 1.0
    bad = [in_gradients(zip(names, torch.autograd.grad(loss / samples * factor, parameters, allow_unused=True,
                                                       retain_graph=True), strict=True))
           for factor in dict.fromkeys((scale, 1.0))]
    if bad[0] and not bad[-1]:
        return Finding("scale", f"gradients overflow fp16 at the loss scale {scale:g}, which the scaler then halves")
    return bad[-1]


def _look(name: str, found: list[Finding]) -> Callable[..., None]:
    """A hook that notes the first module whose output is not finite, or the parent that handed it such an input."""
    def hook(module: nn.Module, inputs: Any, named_inputs: Any, output: Any) -> None:
        if found or all(map(finite, _tensors(output))):
            return
        kind = type(module).__name__
        if all(map(finite, _tensors((inputs, named_inputs)))):
            found.append(Finding("forward", f"the forward of {name or 'the model'} ({kind}) makes it of finite inputs"))
        else:
            parent = name.rpartition(".")[0] or "the model"
            found.append(Finding("forward", f"{parent} makes it before it calls {name} ({kind})"))
    return hook


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _others(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""

"""A slow link between ranks, on purpose and declared: what hides or shrinks communication can then be seen anywhere.

On NVLink, or between two processes of one CPU, communication costs so little that no lever can save much. On GPUs the
environment takes fast transports away from NCCL, and what remains is a real link. On CPUs gloo's process group is paced
(levers.paced): a model of a link, with the declared bandwidth and latency, for whoever communicates.

Nothing is slowed unless ddp.slow_link says so, and what it does is measured before training, written into the run's
summary, and shown in the head of its report. NCCL variables that slow the link without being declared are shown, too.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lfhelpers.errors import LfError
from lfhelpers.recipe.fields import SLOW_LINK

NCCL = {
    "shm": {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"},
    "socket": {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket",
               "NCCL_IB_DISABLE": "1"},
    "channel": {"NCCL_MAX_CTAS": "1", "NCCL_MIN_CTAS": "1", "NCCL_NVLS_ENABLE": "0"},
}
"""What each emulation on GPUs sets. NVLS (reduction in the switch) goes each time: it would go past what is limited."""
SLOWING = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_MAX_CTAS": "1", "NCCL_MAX_NCHANNELS": "1"}
"""Variables that, set to these values, slow a link whatever the machine."""
_SECONDS = 0.05  # the longest transfer of the sweep before training


@dataclass(frozen=True)
class Wire:
    """A declared link: bytes a second, and seconds a message and hop."""

    bandwidth: float
    latency: float

    def seconds(self, size: int, share: float, hops: int) -> float:
        """Seconds that `share` of a payload of `size` bytes takes in `hops` messages."""
        return size * share / self.bandwidth + hops * self.latency


def parse(text: str) -> Wire | Mapping[str, str]:
    """What ddp.slow_link says: a wire for gloo, or variables for NCCL. Raises LfError for anything else."""
    found = re.fullmatch(SLOW_LINK, text)
    if found is None:
        raise LfError(f"ddp.slow_link = '{text}' is no link; write gloo:0.5GB/s,100us or nccl:socket.")
    if found["how"]:
        return NCCL[found["how"]]
    return Wire(float(found["gb_s"]) * 1e9, float(found["us"] or 0) / 1e6)


@contextlib.contextmanager
def emulated(text: str | None, device: str) -> Iterator[str]:
    """For the block, the backend with which ranks on `device` (cuda or cpu) join over the link that `text` declares.

    Without a text: nccl or gloo as it is. Join inside the block: NCCL reads its variables when a process first joins,
    and never again.
    LfError where this device can't emulate that link, or the environment says otherwise.
    """
    slow = parse(text) if text else {}
    if text and isinstance(slow, Wire) != (device == "cpu"):
        raise LfError(f"ddp.slow_link = '{text}' does not go with a job on {device}; take "
                      f"{'nccl:socket' if device == 'cuda' else 'gloo:0.5GB/s'}.")
    if isinstance(slow, Wire):
        from lfhelpers.levers import paced  # here: reports of a run need no torch

        with paced.laid(slow):
            yield paced.BACKEND
        return
    if clash := {name: os.environ[name] for name, value in slow.items() if os.environ.get(name, value) != value}:
        raise LfError(f"ddp.slow_link = '{text}' contradicts {_listed(clash)} of the environment; unset it.")
    before = {name: os.environ.get(name) for name in slow}
    os.environ.update(slow)
    try:
        yield "nccl" if device == "cuda" else "gloo"
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def undeclared(declared: str | None, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """NCCL variables of the environment that slow the link without ddp.slow_link saying so: {name: value}."""
    known = parse(declared) if declared else {}
    return {name: value for name, value in SLOWING.items()
            if environment.get(name) == value and (isinstance(known, Wire) or name not in known)}


def measure(declared: str | None, device: Any) -> dict[str, Any]:
    """What to write of the link, on every rank: {} for a native one that nobody has to be told of.

    device: this rank's torch.device. declared, undeclared: what slows it; measured: a link.Link as plain values, from a
    short sweep; text: it in words. The group must stand; every rank must call it.
    """
    from lfhelpers.measure import link  # here: reports need no numpy

    hidden = undeclared(declared) if device.type == "cuda" else {}
    if not declared and not hidden:
        return {}
    slow = parse(declared) if declared else None
    most = int(min(link.MOST[device.type], max(2**16, slow.bandwidth * _SECONDS))) if isinstance(slow, Wire) else 2**26
    name = declared or _listed(hidden)
    found, _ = link.sweep(device, repeats=3, of=link.sizes(device.type, most=most), slow=name)
    return {"declared": declared, "undeclared": hidden, "measured": found.as_dict(), "text": str(found)}


def header(summary: Mapping[str, Any]) -> str | None:
    """The line that stands over every table of a run whose link was not native; None for a native link."""
    told = summary.get("link")
    if not told:
        return None
    hint = "" if told["declared"] else "; nobody declared that: unset it, or set ddp.slow_link"
    return f"SLOW LINK: {told['text']}{hint}"


def _listed(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in variables.items())

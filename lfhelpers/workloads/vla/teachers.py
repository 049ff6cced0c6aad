"""The direct teachers of a base: read-outs that are thrown away once it is made, and the losses on what they say.

A read-out is one linear layer, so that what it asks for must lie open in the tokens that the next part reads. All four
losses come out of one forward pass; a loss of weight zero is not computed, nor is what only it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lfhelpers.workloads.base import Batch
from lfhelpers.workloads.vla.model import TIME_STEPS, VlaModel
from lfhelpers.workloads.vla.tabletop.scene import COLOURS, SHAPES

KINDS = ("sight", "place", "text", "action")
OFTEN = 0.1
"""Weight of 'not there': most colours are absent from most tokens."""


class Teachers(nn.Module):
    """The read-outs on image tokens and on the instruction."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.sight = nn.Linear(width, len(COLOURS) * (3 + len(SHAPES)))
        self.place = nn.Linear(width, 4)


def losses(model: VlaModel, teachers: Teachers, batch: Batch, draws: Batch,
           weights: Mapping[str, float]) -> dict[str, Tensor]:
    """The mean of each loss that has a weight, 0-dim each; draws: noise and time of the action loss.

    batch is of lessons; "seen", the image tokens, may stand in it for the images where vision is not trained.
    """
    image = batch["seen"] if "seen" in batch else model.connector(model.vision(batch["images"]))
    found = {"sight": sight_loss(teachers.sight(image), batch["sight"])} if weights.get("sight") else {}
    if not any(weights.get(kind) for kind in KINDS[1:]):
        return found
    tokens = batch["tokens"]
    if weights.get("text"):
        tokens = torch.cat([tokens, batch["text_tokens"]], dim=1)
    hidden = model.decoder(image, tokens)
    text, sight = model.context(hidden)
    if weights.get("place"):
        found["place"] = place_loss(teachers.place(text), batch)
    if weights.get("text"):
        words = model.text_loss(hidden, batch)
        assert words is not None, "the model was built without workload.text_loss"
        found["text"] = words.mean()
    if weights.get("action"):
        found["action"] = action_loss(model, batch, draws, text, sight)
    return found


def sight_loss(said: Tensor, truth: Tensor) -> Tensor:
    """Of read-outs [B, tokens, 7 x 8] against `lessons.sights`: presence, place and shape, 0-dim."""
    said = said.float().unflatten(-1, (len(COLOURS), -1))
    there = truth[..., 0]
    weight = there + OFTEN * (1 - there)
    presence = F.binary_cross_entropy_with_logits(said[..., 0], there, weight=weight, reduction="sum")
    place = ((said[..., 1:3] - truth[..., 1:3]).square().sum(-1) * there).sum()
    shape = F.cross_entropy(said[..., 3:].flatten(0, 2), truth[..., 3].long().flatten(), reduction="none")
    return (presence + 20 * place + (shape * there.flatten()).sum()) / there.sum().clamp(min=1)


def place_loss(said: Tensor, batch: Batch) -> Tensor:
    """Squared error of each text token's [B, T, 4] about the named places, from the last word on, 0-dim."""
    words = (batch["tokens"] != 0).sum(dim=1, keepdim=True)
    after = (torch.arange(said.shape[1], device=said.device) >= words - 1).float()
    error = (said.float() - batch["place"].unsqueeze(1)).square().sum(-1)
    return (error * after).sum() / after.sum()


def action_loss(model: VlaModel, batch: Batch, draws: Batch, text: Tensor, image: Tensor) -> Tensor:
    """The workload's own loss, of `draws` a multiple of the batch in length: each sample is denoised several times."""
    times = len(draws["noise"]) // len(text)
    many: dict[str, Any] = {name: batch[name].repeat(times, *[1] * (batch[name].dim() - 1))
                            for name in ("action", "mask", "state", "embodiment")}
    share = draws["time"][:, None, None]
    noised = (1 - share) * draws["noise"] + share * many["action"]
    text, image = (part.repeat(times, 1, 1) for part in (text, image))
    velocity = model.head(many["state"], noised, (draws["time"] * TIME_STEPS).long(), many["embodiment"], text, image)
    wrong = (velocity.float() - (many["action"] - draws["noise"])).square() * many["mask"]
    return wrong.sum() / many["mask"].sum()

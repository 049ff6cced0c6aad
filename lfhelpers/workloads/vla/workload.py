"""The workload `vla`: how a shard's sample becomes tensors, and the masked flow-matching loss as a ratio of sums.

Every random number of the loss comes in as a tensor, so that two recipes, or an eager step and a captured graph, can be
given the same ones. State, actions and mask are padded to the model's fixed sizes, as published: shapes never change.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lfhelpers.errors import LfError
from lfhelpers.recipe import Recipe
from lfhelpers.workloads.base import Batch, Fields
from lfhelpers.workloads.vla import flops, pretrained, sizes
from lfhelpers.workloads.vla.model import IGNORE, TIME_STEPS, VlaModel, store_frozen_in_bf16, trained_layers
from lfhelpers.workloads.vla.packed import pack
from lfhelpers.workloads.vla.tabletop import text
from lfhelpers.workloads.vla.tabletop.scene import generator

VIEWS = ("front.jpg", "wrist.jpg")
EMBODIMENT = 0
"""The one embodiment of tabletop; weights for all others exist, as published, and get zero gradients."""
INPUTS_OF_FROZEN = ("images", "tokens", "text_tokens")
NOISE = 16
"""First stream of the noise that actions are denoised from in evaluation; an episode's later chunks have the next."""
BETA = 1.5
TIME_SCALE = 0.999


class Vla:
    """The reference workload; implements `workloads.base.Workload`."""

    fields: Fields

    def __init__(self, job: Recipe) -> None:
        self.job = job
        self.size = sizes.find(job.workload.size)
        if job.frozen.ahead and (job.workload.tune_vision or job.workload.tune_language):
            raise LfError("frozen.ahead: with workload.tune_vision or tune_language no part before the trained ones is "
                          "frozen; set frozen.ahead=false.")
        self.base = pretrained.find(job.workload.base) if job.workload.base else None
        trained_layers(self.size, job.workload)  # refuses what the size cannot do, before anything is built
        others = ("txt", "state.f32", "action.f32") + (("json",) if job.workload.text_loss else ())
        self.fields = Fields(images=VIEWS, size=self.size.vision.pixels, others=others)

    def model(self) -> VlaModel:
        """A model with random weights, or a base's, on torch's default device, frozen and stored as the recipe says."""
        model = VlaModel(self.size, self.job.workload, (EMBODIMENT,))
        if self.base is not None:
            pretrained.load(model, self.base, self.size.name)
        model.loss_rows = self.job.activations.loss_rows
        if self.job.precision.mode == "bf16" and self.job.precision.frozen_bf16:
            store_frozen_in_bf16(model)
        if self.job.frozen.packed and not self.job.workload.tune_vision:
            pack(model.vision.blocks)
        return model

    def sample(self, members: Mapping[str, bytes]) -> dict[str, Tensor]:
        """Tensors of one sample, without its images.

        tokens int64 [T], state float32 [state_dim], action and mask float32 [H, action_dim], embodiment int64 []; with
        the text loss text_tokens and text_labels int64 [answer_tokens] too. Raises LfError for a member cut short.
        """
        action = self.size.action
        steps, dimensions = sizes.CHUNK
        state = torch.zeros(action.state_dim)
        state[:sizes.STATE] = _floats(members, "state.f32", sizes.STATE)
        actions, mask = torch.zeros(2, action.horizon, action.action_dim)
        actions[:steps, :dimensions] = _floats(members, "action.f32", steps * dimensions).view(sizes.CHUNK)
        mask[:steps, :dimensions] = 1
        tensors = {
            "tokens": torch.from_numpy(text.encode(members["txt"].decode(), self.size.language.tokens)),
            "state": state,
            "action": actions,
            "mask": mask,
            "embodiment": torch.tensor(EMBODIMENT),
        }
        if self.job.workload.text_loss:
            tensors["text_tokens"], tensors["text_labels"] = answers(members["json"], self.size.language.answer_tokens)
        return tensors

    def draws(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """noise float32 [n, H, action_dim] and time float32 [n] = (1 - Beta(1.5, 1)) * 0.999, as published.

        Beta(1.5, 1) is drawn through its inverse distribution function u^(1/1.5), which any generator can serve.
        """
        action, device = self.size.action, generator.device
        noise = torch.randn(samples, action.horizon, action.action_dim, generator=generator, device=device)
        uniform = torch.rand(samples, generator=generator, device=device)
        return {"noise": noise, "time": (1 - uniform ** (1 / BETA)) * TIME_SCALE}

    def loss(self, model: nn.Module, batch: Batch, draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Sum of masked squared errors of the velocity, and the mask's sum: 0-dim float32 (as in GR00T N1.6).

        With the text loss each sample's mean cross-entropy is added with the sample's own weight, so that the ratio is
        the action loss plus `workload.text_loss` times the text loss.
        """
        noise, time, action = draws["noise"], draws["time"], batch["action"]
        share = time[:, None, None]
        noised = (1 - share) * noise + share * action
        velocity, words = model(batch, noised, (time * TIME_STEPS).long())
        weight = batch["mask"] * batch["valid"][:, None, None]
        total = ((velocity.float() - (action - noise)).square() * weight).sum()
        if words is not None:
            total = total + self.job.workload.text_loss * (words * weight.sum(dim=(1, 2))).sum()
        return total, weight.sum()

    def frozen(self, model: nn.Module, batch: Batch) -> Batch:
        """The batch with "hidden" [B, L, width], out of the lower decoder layers, instead of its images and tokens."""
        assert isinstance(model, VlaModel)
        kept = {name: value for name, value in batch.items() if name not in INPUTS_OF_FROZEN}
        return kept | {"hidden": model.frozen(batch)}

    def act(self, model: VlaModel, batch: Batch, seed: int | None = None) -> Tensor:
        """Action chunks float32 [B, 16, 7], denoised in 4 Euler steps.

        The noise of each row is drawn from (seed, batch["ids"], batch["chunk"]), whatever batch it is in.
        """
        seed = self.job.seed if seed is None else seed
        shape = self.size.action.horizon, self.size.action.action_dim
        rows = zip(batch["ids"].tolist(), batch["chunk"].tolist(), strict=True)
        noise = np.stack([generator(seed, number, NOISE + chunk).standard_normal(shape, dtype=np.float32)
                          for number, chunk in rows])
        return model.act(batch, torch.from_numpy(noise).to(batch["tokens"].device))

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """The blocks of the vision tower, the decoder and the action transformer, in order of the forward pass."""
        assert isinstance(model, VlaModel)
        return [*model.vision.blocks, *model.decoder.layers, *model.head.dit.blocks]

    def evaluate(self, model: nn.Module, samples: int, device: torch.device) -> dict[str, float]:
        """Figures on held-out scenes, as evaluate.* asks: open loop, success, words; each with its floor."""
        return self.verdict([self.judged(model, samples, device, 0, 1)])

    def judged(self, model: nn.Module, samples: int, device: torch.device, rank: int, world: int) -> dict[str, Any]:
        """What came of this rank's share of the held-out scenes, one by one; `verdict` makes figures of all ranks'."""
        from lfhelpers.workloads.vla import evaluate, words
        assert isinstance(model, VlaModel)
        asked, size, seed = self.job.evaluate, self.fields.size, evaluate.SEED

        def act(batch: Batch) -> Tensor:
            return self.act(model, batch)

        def share(count: int, what: Any, first: Any) -> Any:
            numbers = range(rank, count, world)
            return what(first, self.sample, numbers, size, device, seed, asked.task,
                        min(count, evaluate.BATCH)) if numbers else None

        spoken = asked.words if self.job.workload.text_loss else 0
        return {"given": share(samples, evaluate.given, act), "wins": share(asked.episodes, evaluate.wins, act),
                "said": share(spoken, words.said, model)}

    def verdict(self, found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The figures of what all ranks' `judged` found."""
        from lfhelpers.workloads.vla import evaluate, words
        given = [one for part in found for one in part["given"] or ()]
        won = {number: one for part in found for number, one in (part["wins"] or {}).items()}
        spoken = [one for part in found for one in part["said"] or ()]
        task = self.job.evaluate.task
        return {**(evaluate.errors(given, task) if given else {}),
                **(evaluate.rate(won) | evaluate.bounds(len(won), evaluate.SEED, task) if won else {}),
                **(words.figures(spoken) if spoken else {})}

    def flops_per_sample(self) -> float:
        """FLOPs of forward and backward of one sample; the convention is `flops`'s."""
        return flops.flops_per_sample(self.size, self.job.workload)

    def default_lr(self) -> float:
        """The size's suggestion."""
        return self.size.lr


def answers(member: bytes, length: int) -> tuple[Tensor, Tensor]:
    """Caption and answered questions of one scene as (tokens, labels), int64 [length] each, cut or padded.

    `<eos> caption <eos> question answer <eos> question answer <eos> ...`; a token's label is the token after it where
    that belongs to the caption or an answer (its end included), and -100 elsewhere. What the member's checksum says,
    and no chance, decides with which question a scene begins (rarely do all fit), and that every other scene has no
    caption: it gives most answers away, and without it they must be seen.
    """
    end = text.VOCABULARY.index("<eos>")
    content, fixed = json.loads(member), zlib.crc32(member)
    questions = content["questions"]
    first = fixed // 2 % max(1, len(questions))
    tokens, predicted = [end], [False]
    for question, answer in [("", content["caption"])] * (fixed % 2) + questions[first:] + questions[:first]:
        given, said = _words(question, length), [*_words(answer, length), end]
        tokens += given + said
        predicted += [False] * len(given) + [True] * len(said)
    labels = [token if said else IGNORE for token, said in zip(tokens[1:], predicted[1:], strict=True)]
    return _fixed(tokens, length, 0), _fixed(labels, length, IGNORE)


def _words(sentence: str, length: int) -> list[int]:
    """Token numbers of a sentence, without padding."""
    return [token for token in text.encode(sentence, length).tolist() if token]


def _fixed(numbers: list[int], length: int, fill: int) -> Tensor:
    return torch.tensor(numbers[:length] + [fill] * (length - len(numbers)))


def _floats(members: Mapping[str, bytes], name: str, count: int) -> Tensor:
    """`count` little-endian float32 of one member."""
    data = members[name]
    if len(data) != 4 * count:
        raise LfError(f"member {name} holds {len(data)} bytes, not the {4 * count} of {count} float32; "
                      "make the shards again with `lfhelpers data make`.")
    return torch.from_numpy(np.frombuffer(data, dtype="<f4").copy())

"""The whole vision-language-action model, what of it is trained, and how it is stored.

Frozen parts run without autograd: they save no activations and cost a forward pass only, which in `full` still is more
than half of a step's arithmetic. Frozen weights may be kept in bf16 (half the memory, no casts), trained ones stay
in fp32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lfhelpers.errors import LfError
from lfhelpers.recipe import WorkloadFields
from lfhelpers.workloads.base import Batch
from lfhelpers.workloads.vla.action import ActionHead, Used
from lfhelpers.workloads.vla.language import Decoder
from lfhelpers.workloads.vla.sizes import CHUNK, Size
from lfhelpers.workloads.vla.vision import Connector, VisionTower

IGNORE = -100
"""Label of a text token that is not predicted."""
TIME_STEPS = 1000
EULER_STEPS = 4


class VlaModel(nn.Module):
    """Pixels, instruction, state and noised actions to the velocity of the flow, and the text loss where it is on.

    `embodiments` are those in the data; weights exist for all.
    """

    def __init__(self, size: Size, fields: WorkloadFields, embodiments: tuple[int, ...] = (0,)) -> None:
        super().__init__()
        self.size, self.fields = size, fields
        self.loss_rows = 0
        """Samples whose logits exist at a time, computed again in backward; 0: those of all."""
        language = size.language
        self.vision = VisionTower(size.vision)
        self.connector = Connector(size.vision, language.width)
        self.decoder = Decoder(language, size.vision.tokens, first_with_gradient(size, fields))
        self.norm = nn.LayerNorm(language.width)
        used = Used(None if fields.per_sample_gather else embodiments, None if fields.train_unused else embodiments)
        self.head = ActionHead(size.action, language.width, used, fields.dropout)
        if fields.compute_logits or fields.text_loss:  # last, so that the others' first weights don't depend on it
            self.lm_head = nn.Linear(language.width, language.vocabulary, bias=False)
        _set_trained(self)

    def forward(self, batch: Batch, actions: Tensor, step: Tensor) -> tuple[Tensor, Tensor | None]:
        """Noised actions [B, H, action_dim] and times int64 [B] to (velocity, as actions; text loss [B] or None)."""
        hidden = self.decoder.upper(batch["hidden"] if "hidden" in batch else self.frozen(batch))
        words = self.text_loss(hidden, batch) if self.fields.compute_logits or self.fields.text_loss else None
        text, image = self.context(hidden)
        return self.head(batch["state"], actions, step, batch["embodiment"], text, image), words

    def frozen(self, batch: Batch) -> Tensor:
        """Hidden states [B, image tokens + text tokens, width] where gradients begin: the work of the frozen part."""
        tokens = batch["tokens"]
        if self.fields.text_loss:
            tokens = torch.cat([tokens, batch["text_tokens"]], dim=1)
        return self._lower(batch["images"], tokens)

    def act(self, batch: Batch, noise: Tensor) -> Tensor:
        """Action chunks float32 [B, 16, 7] from noise [B, H, action_dim], by 4 Euler steps along the flow."""
        text, image = self.context(self.decoder.upper(self._lower(batch["images"], batch["tokens"])))
        actions = noise.float()
        for index in range(EULER_STEPS):
            step = torch.full_like(batch["embodiment"], index * TIME_STEPS // EULER_STEPS)
            velocity = self.head(batch["state"], actions, step, batch["embodiment"], text, image)
            actions = actions + velocity.float() / EULER_STEPS
        steps, dimensions = CHUNK
        return actions[:, :steps, :dimensions]

    def _lower(self, images: Tensor, tokens: Tensor) -> Tensor:
        """Vision, connector, embeddings and the decoder layers below the first with gradients."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.fields.tune_vision):
            image = self.connector(self.vision(images))
        return self.decoder.lower(image, tokens)

    def context(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(instruction, image) hidden states for the action head; answers come after them and stay unseen."""
        image, text = self.size.vision.tokens, self.size.language.tokens
        context = self.norm(hidden[:, :image + text])
        return context[:, image:], context[:, :image]

    def text_loss(self, hidden: Tensor, batch: Batch) -> Tensor | None:
        """Mean cross-entropy of each sample's labelled tokens, float32 [B]; None for the published waste alone."""
        answers = batch["text_labels"].shape[1] if self.fields.text_loss else self.size.language.answer_tokens
        seen = hidden if self.fields.compute_logits else hidden[:, -answers:]
        if not self.fields.text_loss:
            self.lm_head(seen)  # as published: logits of every token, thrown away
            return None
        labels = batch["text_labels"]
        if not self.loss_rows or not torch.is_grad_enabled():
            return self._words(seen, labels)
        # Nothing in it is random, and a CUDA graph forbids to ask for the generator's state.
        return torch.cat([checkpoint(self._words, *rows, use_reentrant=False, preserve_rng_state=False) for rows in
                          zip(seen.split(self.loss_rows), labels.split(self.loss_rows), strict=True)])

    def _words(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Of hidden states [B, L, width], whose last ones answer for labels int64 [B, T]: mean loss float32 [B]."""
        scores = self.lm_head(hidden)[:, -labels.shape[1]:].float().transpose(1, 2)
        loss = F.cross_entropy(scores, labels, ignore_index=IGNORE, reduction="none")
        return loss.sum(dim=1) / (labels != IGNORE).sum(dim=1).clamp(min=1)


def trained_layers(size: Size, fields: WorkloadFields) -> int:
    """How many of the decoder's top layers are trained. Raises LfError where more are asked for than there are."""
    layers = size.language.layers
    if fields.tune_language:
        return layers
    top = size.language.trained if fields.tune_top_layers is None else fields.tune_top_layers
    if top > layers:
        raise LfError(f"recipe field 'workload.tune_top_layers' = {top}: "
                      f"the decoder of size '{size.name}' has {layers} layers; take {layers} or fewer.")
    return top


def first_with_gradient(size: Size, fields: WorkloadFields) -> int:
    """Index of the first decoder layer through which gradients flow: trained itself, or above something trained."""
    return 0 if fields.tune_vision else size.language.layers - trained_layers(size, fields)


def store_frozen_in_bf16(model: nn.Module) -> None:
    """Keep every frozen parameter in bf16, as published; trained ones stay fp32. The model then needs bf16 autocast."""
    for parameter in model.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)


def _set_trained(model: VlaModel) -> None:
    """requires_grad as published (action head, its norm, top decoder layers), widened by the recipe's switches."""
    model.requires_grad_(False)
    first = model.size.language.layers - trained_layers(model.size, model.fields)
    trained: list[nn.Module] = [model.norm, model.head, *model.decoder.layers[first:]]
    if model.fields.tune_language:
        trained.append(model.decoder)
    if model.fields.tune_vision:
        trained += [model.vision, model.connector]
    if model.fields.text_loss:
        trained.append(model.lm_head)
    for module in trained:
        module.requires_grad_(True)

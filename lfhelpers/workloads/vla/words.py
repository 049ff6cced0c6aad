"""What the decoder says of held-out scenes: answers to questions, and captions, against the truth.

A greedy answer is right exactly where each of its words is the likeliest after the right ones before it, so questions
need one forward pass and no decoding. Captions are decoded greedily, all scenes of a batch side by side and without a
cache of keys and values: a caption has some 30 words, and the passes of all 200 scenes take a second on a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lfhelpers.workloads.vla import scores
from lfhelpers.workloads.vla.evaluate import BATCH, SEED, Encode, Row, filled, held_out
from lfhelpers.workloads.vla.model import IGNORE, VlaModel
from lfhelpers.workloads.vla.tabletop import text
from lfhelpers.workloads.vla.tabletop.scene import COLOURS, SHAPES

QUESTIONS = 3
"""Questions asked of each scene: its first ones, which the scene has shuffled."""
LONGEST = 20
"""Words of a question with its answer, the marks around them included."""
LONGEST_CAPTION = 44
"""Words of a caption: one of six objects has 39."""
END = text.VOCABULARY.index("<eos>")
Image = Callable[[Tensor], Tensor]


class Said(NamedTuple):
    """What was said of one scene."""

    id: int
    caption: str
    truth: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    """The true ones."""
    right: tuple[bool, ...]


@torch.no_grad()
def said(model: VlaModel, encode: Encode, numbers: Sequence[int], size: int, device: torch.device | str,
         seed: int = SEED, distractors: int | str = 3, batch: int | None = None) -> list[Said]:
    """What the model says of the held-out scenes of these numbers; batch as in `evaluate.given`."""
    rows = held_out(tuple(numbers), size, seed, distractors)
    found: list[Said] = []
    for first in range(0, len(rows), BATCH):
        part = rows[first:first + BATCH]
        found += _of_batch(model, encode, filled(part, batch or min(len(rows), BATCH)), device)[:len(part)]
    return found


def figures(found: Sequence[Said]) -> dict[str, float]:
    """question_accuracy, bleu4 and cider, each with its `_floor`: the commonest answer to such a question, the
    commonest caption. Their ceilings are 1, 1 and 10: that of the truth."""
    ordered = sorted(found, key=lambda one: one.id)
    right = [one for scene in ordered for one in scene.right]
    spoken, truth = [scene.caption for scene in ordered], [scene.truth for scene in ordered]
    one = [scores.commonest(truth)] * len(truth)
    return {"question_accuracy": sum(right) / len(right), "question_accuracy_floor": _blind_answers(ordered),
            "bleu4": scores.bleu4(spoken, truth), "bleu4_floor": scores.bleu4(one, truth),
            "cider": scores.cider(spoken, truth), "cider_floor": scores.cider(one, truth),
            "scenes": float(len(ordered))}


def exchange(question: str, answer: str, length: int = LONGEST) -> tuple[Tensor, Tensor]:
    """(tokens, labels) int64 [length] of one question and its answer, as `workload.answers` lays them out."""
    given, told = _numbers(question), [*_numbers(answer), END]
    tokens = [END, *given, *told]
    labels = [IGNORE] * len(given) + told + [IGNORE]
    return tuple(F.pad(torch.tensor(row), (0, length - len(row)), value=fill)  # type: ignore[return-value]
                 for row, fill in ((tokens, 0), (labels, IGNORE)))


def captioned(model: VlaModel, image: Tensor, tokens: Tensor, longest: int) -> list[str]:
    """Greedy captions of images [B, N, width] after instructions int64 [B, T], of at most `longest` words."""
    spoken = torch.cat([tokens, torch.full_like(tokens[:, :1], END)], dim=1)
    for _ in range(longest):
        words = model.lm_head(model.decoder(image, spoken)[:, -1]).argmax(dim=-1, keepdim=True)
        words = words.clamp(max=len(text.VOCABULARY) - 1)  # the model knows more numbers than there are words
        ended = (spoken[:, tokens.shape[1] + 1:] == END).any(dim=1, keepdim=True)
        spoken = torch.cat([spoken, torch.where(ended, END, words)], dim=1)
        if bool((spoken[:, -1] == END).all()):
            break
    return [text.decode(row) for row in spoken[:, tokens.shape[1] + 1:].tolist()]


def _of_batch(model: VlaModel, encode: Encode, rows: Sequence[Row], device: torch.device | str) -> list[Said]:
    tensors = [encode(row.members) for row in rows]
    tokens = torch.stack([sample["tokens"] for sample in tensors]).to(device)
    pixels = torch.stack([torch.from_numpy(row.images) for row in rows]).to(device)
    contents: list[Mapping[str, Any]] = [json.loads(row.members["json"]) for row in rows]
    image = model.connector(model.vision(pixels))
    right = _answered(model, image, tokens, contents)
    spoken = captioned(model, image, tokens, LONGEST_CAPTION)
    asked = [content["questions"][:QUESTIONS] for content in contents]
    return [Said(row.id, caption, content["caption"], tuple(one for one, _ in pairs), tuple(one for _, one in pairs),
                 tuple(good))
            for row, caption, content, pairs, good in zip(rows, spoken, contents, asked, right, strict=True)]


def _answered(model: VlaModel, image: Tensor, tokens: Tensor,
              contents: Sequence[Mapping[str, Any]]) -> list[list[bool]]:
    """For each scene and question whether the greedy answer is right."""
    right: list[list[bool]] = []
    for number in range(QUESTIONS):
        pairs = [exchange(*content["questions"][number]) for content in contents]
        words, labels = (torch.stack(part).to(tokens.device) for part in zip(*pairs, strict=True))
        hidden = model.decoder(image, torch.cat([tokens, words], dim=1))[:, -words.shape[1]:]
        likeliest = model.lm_head(hidden).argmax(dim=-1)
        right.append(((likeliest == labels) | (labels == IGNORE)).all(dim=1).tolist())
    return [list(scene) for scene in zip(*right, strict=True)]


def _blind_answers(found: Sequence[Said]) -> float:
    """The accuracy of the commonest answer to each kind of question, whatever it names."""
    kinds: dict[str, list[str]] = {}
    for scene in found:
        for question, answer in zip(scene.questions, scene.answers, strict=True):
            kind = " ".join("*" if word in COLOURS or word in SHAPES else word for word in question.split())
            kinds.setdefault(kind, []).append(answer)
    everything = [answer for answers in kinds.values() for answer in answers]
    return sum(answers.count(scores.commonest(answers)) for answers in kinds.values()) / len(everything)


def _numbers(sentence: str) -> list[int]:
    return [token for token in text.encode(sentence, LONGEST).tolist() if token]

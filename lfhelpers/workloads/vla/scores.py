"""Scores of sentences: BLEU-4 and CIDEr of captions, each with the score of saying the commonest sentence.

Both count n-grams of words, so they need no model and no download, and a caption that names every object in its place
scores near the top. They agree with sacrebleu (no tokenizer, its smoothing) and with pycocoevalcap's CIDEr to rounding;
writing them out spares a dependency on compiled COCO tools, and shows what is counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

ORDERS = (1, 2, 3, 4)
LENGTH_SIGMA = 6.0
"""Words by which a caption's length may differ before CIDEr-D takes it for another sentence."""

Gram = tuple[str, ...]
Weighed = dict[Gram, float]


def bleu4(said: Sequence[str], truth: Sequence[str]) -> float:
    """Corpus BLEU-4 of sentences against one reference each, 0..1 (Papineni et al. 2002).

    An order without any match counts half, a quarter, ... of one match, as sacrebleu's default smoothing has it.
    """
    pairs = [(one.lower().split(), other.lower().split()) for one, other in zip(said, truth, strict=True)]
    spoken, wanted = (sum(len(pair[side]) for pair in pairs) for side in (0, 1))
    logs, half = 0.0, 1.0
    for order in ORDERS:
        matches = sum((_grams(one, order) & _grams(other, order)).total() for one, other in pairs)
        total = sum(max(0, len(one) - order + 1) for one, _ in pairs)
        if not total:
            return 0.0
        half = half if matches else half / 2
        logs += math.log((matches or half) / total)
    return min(1.0, math.exp(1 - wanted / spoken)) * math.exp(logs / len(ORDERS)) if _any(pairs) else 0.0


def cider(said: Sequence[str], truth: Sequence[str]) -> float:
    """Mean CIDEr-D of sentences against one reference each, 0..10 (Vedantam et al. 2015).

    n-grams are weighed by their rarity among the references, so words that every caption has count nothing.
    """
    references = [[_grams(sentence.split(), order) for order in ORDERS] for sentence in truth]
    rarity = Counter(gram for grams in references for order in grams for gram in order)
    documents = math.log(len(references))
    total = 0.0
    for sentence, wanted in zip(said, references, strict=True):
        spoken = [_grams(sentence.split(), order) for order in ORDERS]
        apart = spoken[1].total() - wanted[1].total()  # lengths in pairs of words, as the reference code has it
        same = sum(_cosine(_weighed(one, rarity, documents), _weighed(other, rarity, documents))
                   for one, other in zip(spoken, wanted, strict=True))
        total += 10 * same / len(ORDERS) * math.exp(-apart**2 / (2 * LENGTH_SIGMA**2))
    return total / len(references)


def commonest(sentences: Sequence[str]) -> str:
    """The sentence said most often; the first such one."""
    return Counter(sentences).most_common(1)[0][0]


def _any(pairs: Sequence[tuple[list[str], list[str]]]) -> bool:
    """Whether a single word was right: without one, smoothing would leave something above nothing."""
    return any(set(one) & set(other) for one, other in pairs)


def _grams(words: Sequence[str], order: int) -> Counter[Gram]:
    return Counter(tuple(words[i:i + order]) for i in range(len(words) - order + 1))


def _weighed(grams: Counter[Gram], rarity: Counter[Gram], documents: float) -> Weighed:
    return {gram: count * (documents - math.log(max(1, rarity[gram]))) for gram, count in grams.items()}


def _cosine(said: Weighed, truth: Weighed) -> float:
    """Cosine of two sentences' n-grams, of which no more counts than the reference has."""
    product = sum(min(value, truth[gram]) * truth[gram] for gram, value in said.items() if gram in truth)
    norm = math.sqrt(sum(v * v for v in said.values())) * math.sqrt(sum(v * v for v in truth.values()))
    return product / norm if norm else 0.0

"""BLEU-4 and CIDEr agree with the reference packages, and each figure stands between its floor and its ceiling."""

from __future__ import annotations

import random

import pytest
import sacrebleu
from pycocoevalcap.cider.cider import Cider

from lfhelpers.quality.captions import bleu4, bounded, cider, lines
from lfhelpers.workloads.vla.scores import commonest
from lfhelpers.workloads.vla.tabletop import tasks, text

TRUTH = [text.caption(tasks.drawn("colour", 1, index)) for index in range(20)]


def disturbed(seed: int) -> list[str]:
    """Captions with words exchanged and ends cut off."""
    draw = random.Random(seed)
    sentences = []
    for sentence in TRUTH:
        words = sentence.split()
        for _ in range(draw.randrange(6)):
            words[draw.randrange(len(words))] = draw.choice(["red", "a", "zebra"])
        sentences.append(" ".join(words[:draw.randrange(2, len(words) + 1)]))
    return sentences


CASES = {
    "the truth": (TRUTH, TRUTH), "disturbed": (disturbed(0), TRUTH), "others": (disturbed(1), TRUTH),
    "another scene's": (TRUTH[1:] + TRUTH[:1], TRUTH), "always the first": ([TRUTH[0]] * 20, TRUTH),
    "no word right": (["zebra"] * 20, TRUTH), "words alone right": (["table wooden a"] * 20, TRUTH),
    "longer": ([sentence + " and a red ball near left" for sentence in TRUTH], TRUTH),
    "nothing said": ([""] * 20, TRUTH), "one said, one not": (["", TRUTH[1]], TRUTH[:2]),
    "two short ones": (["a red ball", "a blue star"], ["a red ball is here", "the blue one"]),
}


@pytest.mark.parametrize("case", CASES)
def test_bleu4_is_sacrebleus(case: str) -> None:
    said, truth = CASES[case]
    there = sacrebleu.corpus_bleu(said, [truth], tokenize="none", lowercase=True).score / 100
    assert bleu4(said, truth) == pytest.approx(there, abs=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_cider_is_that_of_the_coco_tools(case: str) -> None:
    said, truth = CASES[case]
    numbered = [{i: [one] for i, one in enumerate(sentences)} for sentences in (truth, said)]
    there, _ = Cider().compute_score(*numbered)
    assert cider(said, truth) == pytest.approx(float(there), abs=1e-9)


def test_the_commonest_caption_is_the_floor_and_the_truth_the_ceiling() -> None:
    floor = [commonest(TRUTH)] * len(TRUTH)
    assert bleu4(floor, TRUTH) < bleu4(disturbed(0), TRUTH) < bleu4(TRUTH, TRUTH) == 1
    assert cider(floor, TRUTH) < cider(disturbed(0), TRUTH) < cider(TRUTH, TRUTH) == pytest.approx(10)


def test_a_figure_is_shown_between_its_bounds() -> None:
    figures = {"success": 0.55, "success_blind": 0.05, "success_expert": 1.0, "bleu4": 0.4, "bleu4_floor": 0.4,
               "samples": 3.0, "cider": 2.0}
    found = bounded(figures)
    assert [(one.name, one.floor, one.ceiling) for one in found] == [("success", 0.05, 1.0), ("bleu4", 0.4, 1.0)]
    assert found[0].share == pytest.approx(0.5 / 0.95) and found[1].share == 0
    assert "success in the closed loop      0.550    0.050    1.000        53%" in lines(figures)


def test_less_error_than_the_floor_is_part_of_the_way() -> None:
    (one,) = bounded({"action_mse": 0.01, "action_mse_blind": 0.04})
    assert one.share == pytest.approx(0.75)

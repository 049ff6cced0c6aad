"""What a model says: answers are judged as greedy decoding would give them, captions decoded, floors counted."""

from __future__ import annotations

import pytest
import torch

from lfhelpers.workloads.vla import words
from lfhelpers.workloads.vla.model import IGNORE, VlaModel
from lfhelpers.workloads.vla.tabletop import text
from lfhelpers.workloads.vla.words import END, Said
from lfhelpers.workloads.vla.workload import Vla
from tests.workloads.vla_batches import built, job


@pytest.fixture(scope="module")
def workload() -> Vla:
    return Vla(job("workload.tune_language=true", "workload.text_loss=1"))


@pytest.fixture(scope="module")
def model(workload: Vla) -> VlaModel:
    return built(workload).eval()


def test_an_exchange_is_laid_out_as_in_training() -> None:
    tokens, labels = words.exchange("is there a red ball", "yes", 10)
    assert text.decode(tokens[1:].tolist()) == "is there a red ball yes" and tokens[0] == END
    assert [int(label) for label in labels if label != IGNORE] == [text.VOCABULARY.index("yes"), END]
    assert labels[5] == text.VOCABULARY.index("yes")  # at the question's last word


def test_a_teacher_forced_answer_is_right_exactly_where_the_greedy_one_is(workload: Vla, model: VlaModel) -> None:
    """With the model's own greedy answer as the truth it is right, and with any other word it is wrong."""
    image, tokens = torch.randn(1, 8, 96), torch.randint(3, 40, (1, 16))
    question = "what shape is the red object"
    asked = torch.cat([tokens, torch.tensor([[END, *text.encode(question, 6)]])], dim=1)
    with torch.no_grad():
        spoken: list[int] = []
        while len(spoken) < 3:
            hidden = model.decoder(image, torch.cat([asked, torch.tensor([spoken], dtype=torch.long)], dim=1))
            spoken.append(int(model.lm_head(hidden[:, -1]).argmax()))
        length = len(question.split()) + 4
        given = torch.tensor([[END, *text.encode(question, 6), *spoken]])
        likeliest = model.lm_head(model.decoder(image, torch.cat([tokens, given], dim=1)))[0, -length:].argmax(-1)
    assert likeliest[6:9].tolist() == spoken


def test_captions_are_no_longer_than_asked_and_are_those_of_one_alone(model: VlaModel) -> None:
    image, tokens = torch.randn(3, 8, 96), torch.randint(3, 40, (3, 16))
    with torch.no_grad():
        together = words.captioned(model, image, tokens, 6)
        alone = [words.captioned(model, image[i:i + 1], tokens[i:i + 1], 6)[0] for i in range(3)]
    assert together == alone and all(len(sentence.split()) <= 6 for sentence in together)


def test_figures_count_right_answers_and_what_not_looking_would_give() -> None:
    said = [Said(number, caption, truth, ("what colour is the ball", "is there a red star"), answers, right)
            for number, (caption, truth, answers, right) in enumerate([
                ("a b c d", "a b c d", ("red", "yes"), (True, True)),
                ("a b c e", "a b c e", ("red", "no"), (False, True)),
                ("e f g h", "e f g h", ("blue", "no"), (True, False)),
                ("e f g h", "a b c d", ("cyan", "no"), (True, True))])]
    found = words.figures(said)
    assert found["question_accuracy"] == 6 / 8
    assert found["question_accuracy_floor"] == (2 + 3) / 8  # always red, always no
    assert 0 < found["bleu4_floor"] < found["bleu4"] < 1 and found["scenes"] == 4
    assert words.figures(said[::-1]) == found


def test_held_out_scenes_are_asked_three_questions_each_in_any_batches(workload: Vla, model: VlaModel,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "BATCH", 2)
    whole = words.said(model, workload.sample, range(3), 56, "cpu", batch=2)
    second = words.said(model, workload.sample, range(1, 3), 56, "cpu", batch=2)
    assert [scene.id for scene in whole] == [0, 1, 2] and all(len(scene.right) == 3 for scene in whole)
    assert [(scene.truth, scene.answers) for scene in second] == [(scene.truth, scene.answers) for scene in whole[1:]]

"""A workload's first job: tried in a process of its own, packed once, and refused with one sentence."""

import time
from pathlib import Path

import pytest

from lfhelpers.data import Manifest
from lfhelpers.errors import LfError
from lfhelpers.launch import own, own_job, skeleton
from lfhelpers.launch.prepare import prepare
from lfhelpers.recipe import recipe

BODY = '''
class Mean(New):
    def loss(self, model, batch, draws):
        total, weight = super().loss(model, batch, draws)
        return total / weight

class Alone(New):
    generate = None
    fields = New.fields.__class__(images=(), size=0, others=("wav",))

    def __init__(self, recipe):
        raise KeyError("no such file")
'''


@pytest.fixture
def file(tmp_path):
    made, kind = skeleton.write("new", tmp_path)
    assert kind == "New"
    made.write_text(made.read_text() + BODY)
    return made


def job(file, kind, *overrides):
    return recipe("competent", f"workload.use={file}:{kind}", "device=cpu", *overrides)


def test_its_samples_are_packed_once_and_found_again_when_the_model_is_edited(file, runs_root, monkeypatch):
    asked = []
    true = own._asked
    monkeypatch.setattr(own, "_asked", lambda job: asked.append(job) or true(job))
    first = prepare(job(file, "New"), 1)
    assert Manifest.load(str(first.data.path)).samples == 1024 and first.workload.use == f"{file}:New"
    assert prepare(job(file, "New", "batch.micro=4"), 1).data.path == first.data.path and len(asked) == 1
    file.write_text(file.read_text().replace("torch.tanh", "torch.sigmoid"))
    assert prepare(job(file, "New"), 1).data.path == first.data.path and len(asked) == 2
    assert len(list((runs_root / "data").glob("new-*"))) == 1


def test_a_breach_is_one_sentence_before_any_job(file, runs_root):
    for kind, sentence in (("Mean", "workload Mean in new.py: loss() returns one tensor of shape []"),
                           ("Alone", "workload Alone in new.py can't be built: KeyError: 'no such file' (new.py:"),
                           ("Nobody", "workload.use: ")):
        assert own_job.answer(job(file, kind).to_toml())["error"].startswith(sentence)
    with pytest.raises(LfError, match=r"workload\.use: no file .*absent\.py; write path/to/file\.py:MyWorkload"):
        own.examine(job("absent.py", "Mine"))
    assert not runs_root.exists() or not list(runs_root.glob("[!.]*/recipe.toml"))


def test_what_a_class_has_is_told_by_its_source_alone(file, tmp_path):
    file.write_text(file.read_text() + "\nimport torch\nclass Other(torch.nn.Module): ...\n")
    assert own.defines(f"{file}:Mean", "loss") and own.defines(f"{file}:Mean", "sample")
    assert not own.defines(f"{file}:Mean", "frozen")
    assert own.defines(f"{file}:Other", "frozen"), "a base elsewhere may have it"
    assert (own.is_own("vla"), own.is_own("lfhelpers.diagnose.planted:Slow"), own.is_own("a.py:B")) == \
        (False, False, True)


@pytest.mark.parametrize(("name", "stem", "kind"), [("speech_model", "speech_model", "SpeechModel"),
                                                    ("SpeechModel", "speech_model", "SpeechModel"),
                                                    ("gpt2", "gpt2", "Gpt2")])
def test_a_new_workload_is_named_as_python_would(name, stem, kind, tmp_path, command):
    code, out, _ = command("new-workload", name, "--folder", tmp_path)
    assert code == 0 and f"{stem}.py:{kind}" in out
    assert f"class {kind}:" in (tmp_path / f"{stem}.py").read_text()


def test_a_new_workload_overwrites_nothing(tmp_path, command):
    before = skeleton.write("mine", tmp_path)[0].stat().st_mtime_ns
    time.sleep(0.01)
    assert command("new-workload", "mine", "--folder", tmp_path)[2].endswith(
        "mine.py exists and is kept; give another name, or remove it.\n")
    assert Path(tmp_path / "mine.py").stat().st_mtime_ns == before
    assert "can't name a workload" in command("new-workload", "2 fast", "--folder", tmp_path)[2]

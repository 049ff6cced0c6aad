"""The callbacks against the real Trainers of transformers and Lightning, and without them."""

import subprocess
import sys
import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lfhelpers import adapters
from lfhelpers.adapters.reporting import Reporting
from lfhelpers.errors import LfError
from tests.clock import Clock

SLOW = 0.01  # seconds that a planted loader waits for a sample


class Rows(Dataset):
    """Samples that take a while to come, as from a slow disk."""

    def __init__(self, sleep):
        self.sleep = sleep

    def __len__(self):
        return 64

    def __getitem__(self, index):
        self.sleep(SLOW)
        return {"x": torch.full((8,), index / 64), "labels": torch.tensor(index % 2)}


class Net(nn.Module):
    """Returns its loss with its output, as models of transformers do."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x, labels=None):
        out = self.layers(x)
        return {"loss": nn.functional.cross_entropy(out, labels), "logits": out}


def by_transformers(tmp_path, rows):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    callback = adapters.hugging_face(skip=2)
    asked = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=14,
        use_cpu=True, report_to=[], logging_steps=3, disable_tqdm=True, save_strategy="no")
    transformers.Trainer(Net(), asked, train_dataset=rows, callbacks=[callback]).train()
    return callback, 12, 4


def by_lightning(tmp_path, rows):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, number):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    callback = adapters.lightning(skip=2)
    trainer = lightning.Trainer(max_steps=14, callbacks=[callback], accelerator="cpu", logger=False,
                                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                                default_root_dir=tmp_path)
    trainer.fit(Module(), DataLoader(rows, 2))
    return callback, 12, 2


@pytest.mark.parametrize("trained", [by_transformers, by_lightning])
def test_the_real_trainer_gets_the_step_report_and_its_slow_loader_is_found(trained, tmp_path, capsys, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    callback, steps, samples = trained(tmp_path, Rows(clock.sleep))
    report = callback.report()
    assert report.steps == steps and sum(report.percent.values()) == pytest.approx(100)
    assert report.ms["data_wait"] >= 1e3 * SLOW * samples
    assert report.ms["forward"] > 0 and report.ms["backward"] > 0 and report.ms["optimizer"] > 0
    assert report.ceilings.listed[0].cause == "data" and report.findings[0].startswith("data wait")
    assert report.samples_per_s == pytest.approx(samples * steps / (sum(report.step_ms) / 1e3))
    assert "a loader that is never waited for could give" in capsys.readouterr().out


def test_absent_packages_are_a_sentence_and_cost_nothing():
    script = """import sys
for absent in ("transformers", "lightning", "pytorch_lightning"):
    sys.modules[absent] = None
import lfhelpers, lfhelpers.adapters
print("torch" in sys.modules)
for made in (lfhelpers.adapters.hugging_face, lfhelpers.adapters.lightning):
    try:
        made()
    except lfhelpers.LfError as error:
        print(error)
"""
    loaded, *sentences = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                                        check=True).stdout.splitlines()
    assert loaded == "False"
    for sentence, lacks in zip(sentences, ("transformers", "lightning"), strict=True):
        assert sentence.startswith(f"this callback needs {lacks}") and "pip install 'lfhelpers[adapters]'" in sentence


@pytest.mark.parametrize(("package", "made", "name"), [
    ("transformers", adapters.hugging_face, "HuggingFaceReport"),
    ("lightning.pytorch", adapters.lightning, "LightningReport")])
def test_a_report_before_training_is_a_sentence(package, made, name):
    pytest.importorskip(package)
    with pytest.raises(LfError, match=f"^{name} has seen no training yet; pass it to the Trainer as callbacks="):
        made().report()


def test_what_comes_between_steps_belongs_to_none(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    shared = Reporting(skip=0, show=False)
    shared.follow(nn.Linear(1, 1))
    for _ in range(3):
        now[0] += 0.5
        shared.data_came()
        now[0] += 1.0
        shared.turn(4)
        now[0] += 60.0  # an evaluation
        shared.restart()
    assert shared.report().step_ms == (1500.0,) * 3 and shared.report().ms["data_wait"] == 500.0

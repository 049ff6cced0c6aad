"""A loop that stays the user's, watched: a small causal language model, as repositories train one in their README."""

import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import lfhelpers as lf
from lfhelpers.diagnose.trace import diagnose_trace
from lfhelpers.diagnose.watched import Watch, samples_of
from lfhelpers.errors import LfError
from tests.clock import Clock

TEXT = "the quick brown fox jumps over the lazy dog. " * 40
LETTERS = sorted(set(TEXT))
CONTEXT = 16


class Text(Dataset):
    def __init__(self, seconds=0.0, sleep=time.sleep):
        self.tokens, self.seconds = torch.tensor([LETTERS.index(letter) for letter in TEXT]), seconds
        self.sleep = sleep

    def __len__(self):
        return 96

    def __getitem__(self, index):
        self.sleep(self.seconds)
        return self.tokens[index:index + CONTEXT], self.tokens[index + 1:index + CONTEXT + 1]


class Gpt(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), width), nn.Embedding(CONTEXT, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, len(LETTERS))

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        return self.head(self.block(self.letters(tokens) + self.places.weight, mask, is_causal=True))


def parts(seed=0):
    torch.manual_seed(seed)
    model = Gpt()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def trained(batches, model, optimizer, stop=None):
    """The unmodified loop; its losses."""
    losses = []
    for step, (x, y) in enumerate(batches):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step + 1 == stop:
            break
    return losses


def test_a_watched_loop_computes_the_same_to_the_bit_and_leaves_nothing_behind(capsys):
    losses = []
    for watching in (False, True):
        model, optimizer = parts()
        loader = DataLoader(Text(), 4, shuffle=True, generator=torch.Generator().manual_seed(1))
        losses.append(trained(lf.watch(loader, model, optimizer) if watching else loader, model, optimizer))
    assert losses[0] == losses[1] and len(losses[0]) == 24
    assert not model._forward_hooks and not model._forward_pre_hooks
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    out = capsys.readouterr().out
    assert out.startswith("watched 19 steps on cpu") and "whole step" in out and "100.0" in out


def test_a_planted_slow_loader_is_found_and_priced(capsys, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    model, optimizer = parts()
    watched = lf.watch(DataLoader(Text(0.01, clock.sleep), 4), model, optimizer, show=False)
    trained(watched, model, optimizer)
    report, first = watched.report(), watched.report().ceilings.listed[0]
    assert (report.steps, len(watched), capsys.readouterr().out) == (19, 24, "")
    assert report.ms["data_wait"] >= 40 and sum(report.percent.values()) == pytest.approx(100)
    assert first.cause == "data" and first.ideal == pytest.approx(
        sum(report.ms.values()) / (sum(report.ms.values()) - report.ms["data_wait"]), rel=1e-6)
    assert "num_workers=4, persistent_workers=True), which works ahead of the step; it has num_workers=0" in \
        report.findings[0]
    assert report.as_dict()["ceilings"]["ceilings"][0]["cause"] == "data"


def test_a_loop_left_by_break_still_tells_and_a_short_one_says_why_not(capsys):
    model, optimizer = parts()
    trained(lf.watch(DataLoader(Text(), 4), model, optimizer), model, optimizer, stop=18)
    assert capsys.readouterr().out.startswith("watched 13 steps on cpu")
    trained(lf.watch(DataLoader(Text(), 4), model, optimizer), model, optimizer, stop=6)
    assert capsys.readouterr().out.startswith("watched 1 steady steps, and 10 are needed to tell anything;")


def test_what_the_loop_raises_comes_through_as_it_is():
    model, optimizer = parts()
    with pytest.raises(ZeroDivisionError):
        for _ in lf.watch(DataLoader(Text(), 4), model, optimizer, show=False):
            1 / 0  # noqa: B018
    with pytest.raises(RuntimeError, match="worker 0"):
        def broken(_):
            raise RuntimeError("worker 0")
        list(lf.watch(map(broken, range(3)), model, optimizer, show=False))


def test_what_is_given_in_another_order_is_named_before_the_loop_begins():
    (model, optimizer), loader = parts(), DataLoader(Text(), 4)
    order = r"; call lf\.watch\(loader, model, optimizer\), in this order\.$"
    for given, sentence in (((model, loader, optimizer), "loader is of type Gpt, which can't be iterated"),
                            ((nn.Sequential(model), loader, optimizer), "model is of type DataLoader, which is no "),
                            ((loader, optimizer, model), "model is of type AdamW, which is no torch.nn.Module"),
                            ((loader, model), "optimizer is of type NoneType, which is no torch optimizer")):
        with pytest.raises(LfError, match=f"^lf.watch: the {sentence}.*{order}"):
            lf.watch(*given)


def test_a_trace_gives_the_ceilings_and_its_steps_are_not_counted(tmp_path):
    model, optimizer = parts()
    watched = lf.watch(DataLoader(Text(0.005), 4), model, optimizer, trace=tmp_path, show=False)
    trained(watched, model, optimizer)
    report = watched.report()
    assert report.traces == tmp_path and report.ceilings.source == "a trace" and report.steps < 19
    ms = diagnose_trace(tmp_path).main.ms
    assert ms["data"] >= 20
    assert report.ceilings.of("data").ideal == pytest.approx(sum(ms.values()) / (sum(ms.values()) - ms["data"]))


def test_parts_are_told_by_the_clock_alone(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    watch = Watch(torch.device("cpu"), skip=0, facts={"fused": False})
    for _ in range(10):
        watch.begin()
        for phase, seconds in (("data_wait", 1), ("host_to_device", 2), ("forward", 3), ("backward", 4),
                               ("optimizer", 5)):
            now[0] += seconds
            watch.mark(phase)
        now[0] += 6  # logging
        watch.end(samples=8)
    report = watch.report()
    assert report.ms == {"data_wait": 1e3, "host_to_device": 2e3, "forward": 3e3, "backward": 4e3, "optimizer": 5e3,
                         "other": 6e3}
    assert report.samples_per_s == pytest.approx(8 / 21)
    assert report.ceilings.of("optimizer").ideal == pytest.approx(21 / 16)


def test_a_batch_tells_how_many_samples_it_has():
    x = torch.zeros(3, 2)
    assert [samples_of(batch) for batch in (x, [x, 1], {"a": "text", "b": (None, x)}, "text", torch.tensor(1.0))] == \
        [3, 3, 3, 0, 0]

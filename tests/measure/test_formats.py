"""`precision.mode = "auto"` is bf16 where the device has units for it, and the run's own recipe says what it became."""

import pytest
import torch

from lfhelpers import runs
from lfhelpers.measure import formats, hardware
from lfhelpers.measure.hardware import Gpu
from lfhelpers.recipe import recipe
from lfhelpers.train.loop import train
from lfhelpers.train.trainer import Trainer
from tests.train.toy import ALONE


@pytest.fixture
def processor(monkeypatch):
    """Give this machine a processor with these flags."""
    return lambda *flags: monkeypatch.setattr(formats, "cpu_flags", lambda: frozenset(flags))


@pytest.mark.parametrize(("text", "bf16"), [
    ("processor\t: 0\nflags\t\t: fpu sse2 avx2 avx512f avx512_bf16\n", True),
    ("processor\t: 0\nflags\t\t: fpu sse2 amx_bf16 amx_tile\n", True),
    ("processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n", True),
    ("processor\t: 0\nmodel name\t: bf16\nflags\t\t: fpu sse2 avx2\n", False),
])
def test_a_processors_units_are_read_from_linux(tmp_path, text, bf16):
    (tmp_path / "cpuinfo").write_text(text)
    assert bool(formats.CPU_FLAGS & formats.cpu_flags(tmp_path / "cpuinfo")) is bf16
    assert formats.cpu_flags(tmp_path / "elsewhere") == frozenset()


@pytest.mark.parametrize(("capabilities", "bf16"), [([(9, 0), (8, 0)], True), ([(9, 0), (7, 5)], False)])
def test_all_gpus_must_have_them(monkeypatch, capabilities, bf16):
    monkeypatch.setattr(hardware, "visible_gpus", lambda: [Gpu("a GPU", 16.0, found) for found in capabilities])
    assert formats.has_bf16("cuda") is bf16


@pytest.mark.parametrize(("flags", "overrides", "mode"), [
    (["avx512_bf16"], [], "bf16"), (["avx2"], [], "fp32"), (["avx2"], ["precision.mode=bf16"], "bf16"),
    (["avx512_bf16"], ["precision.mode=fp32"], "fp32"), (["avx2"], ["precision.weights=bf16"], "bf16")])
def test_what_is_asked_for_holds_and_auto_follows_the_device(processor, flags, overrides, mode):
    processor(*flags)
    job = recipe("competent", *overrides)
    assert formats.mode(job.precision, "cpu") == formats.settled(job, "cpu").precision.mode == mode


def test_a_run_and_a_trainer_say_what_they_computed_in(processor, toy, runs_root):
    processor("avx2")
    assert toy.precision.mode == "auto"
    run = runs.create(toy)
    assert train(toy, run, ALONE)["precision"] == "fp32"
    processor("avx512_bf16")
    trainer = Trainer(toy, ALONE)
    assert (trainer.job.precision.mode, trainer.parts.precision.autocast().fast_dtype) == ("bf16", torch.bfloat16)

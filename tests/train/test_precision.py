"""Modes of arithmetic: what each one rounds, that the process is left as it was, and the numbers of the lab."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.recipe import PrecisionFields, recipe
from lfhelpers.train import precision_lab as lab
from lfhelpers.train.loop import train
from lfhelpers.train.precision import Precision, arithmetic, deterministic
from lfhelpers.train.ranks import Ranks

CPU = torch.device("cpu")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def settings():
    return (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32,
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.conv.fp32_precision)


def test_deterministic_kernels_are_a_setting_of_the_block_alone() -> None:
    with pytest.raises(KeyError), deterministic(True):
        assert torch.are_deterministic_algorithms_enabled() and not torch.utils.deterministic.fill_uninitialized_memory
        raise KeyError
    assert not torch.are_deterministic_algorithms_enabled() and torch.utils.deterministic.fill_uninitialized_memory
    with deterministic(False):
        assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(("mode", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_autocast_and_scaler_by_mode(mode, dtype):
    precision = Precision(PrecisionFields(mode=mode), CPU)
    with precision.autocast():
        assert torch.nn.Linear(2, 2)(torch.randn(1, 2)).dtype == dtype
    assert not precision.scaler.is_enabled(), "only fp16 needs a scaler"


def test_only_fp16_scales_its_loss():
    fields = PrecisionFields(mode="fp16", init_scale=8.0, growth_interval=3)
    scaler = Precision(fields, CPU).scaler
    assert (scaler.is_enabled(), scaler.get_scale(), scaler.get_growth_interval()) == (True, 8.0, 3)


@pytest.mark.parametrize("left_by_others", ["highest", "high"])
def test_strict_fp32_allows_no_tf32_anywhere_and_puts_the_process_back(left_by_others, recwarn):
    torch.set_float32_matmul_precision(left_by_others)
    before = settings()
    try:
        with pytest.raises(KeyError), arithmetic("fp32", CPU):
            assert settings()[:3] == ("highest", False, False)
            raise KeyError
        assert settings()[:3] == before[:3]
        with arithmetic("bf16", CPU):
            assert settings() == before
    finally:
        torch.set_float32_matmul_precision("highest")
    assert [str(warning.message) for warning in recwarn] == []


def test_tf32_needs_a_gpu():
    with pytest.raises(LfError, match=r"precision.mode='tf32' needs a GPU"), arithmetic("tf32", CPU):
        pass
    with pytest.raises(LfError, match=r"precision.mode='tf32' needs a GPU; take 'fp32'"):
        recipe("competent", "precision.mode=tf32", "device=cpu")


@pytest.mark.gpu
@on_gpu
def test_on_a_gpu_tf32_cuts_the_inputs_and_strict_fp32_does_not(recwarn):
    """A product of 1 + 2^-12 with 1 is exact in fp32 and 1 in tf32, which has 10 bits of fraction."""
    device = torch.device("cuda", 0)
    a = torch.full((256, 256), 1 + 2**-12, device=device)
    before, products = settings(), {}
    for mode in ("fp32", "tf32"):
        with arithmetic(mode, device):
            products[mode] = (a @ torch.eye(256, device=device))[0, 0].item()
    assert products["fp32"] == 1 + 2**-12
    assert products["tf32"] == pytest.approx(1, abs=2**-11) and products["tf32"] != 1 + 2**-12
    assert settings()[:3] == before[:3]
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("mode", ["fp32", "tf32", "bf16", "fp16"])
def test_on_a_gpu_every_mode_trains(toy_job, mode):
    job = toy_job(f"precision.mode={mode}", "device=cuda", "steps=30", "optimizer.lr=0.05")
    run = runs.create(job)
    summary = train(job, run, Ranks(0, 1, torch.device("cuda", 0)))
    assert summary["precision"] == mode
    losses = [row["loss"] for row in run.steps()]
    assert sum(losses[-10:]) < sum(losses[:10])
    assert summary["steps"]["applied"] >= 20, "fp16's first scale may cost some steps, no other mode any"
    assert mode == "fp16" or summary["steps"]["skipped"] == 0


def test_clipping_before_unscaling_shrinks_the_update_by_the_scale():
    wrong, right = lab.clipping(unscale_first=False), lab.clipping(unscale_first=True)
    assert wrong == (pytest.approx(327_680), pytest.approx(1.526e-5, rel=1e-3))
    assert right == (pytest.approx(5.0), pytest.approx(1.0))


def test_a_scaler_checks_every_step_whatever_its_growth_interval():
    for interval in (2, 2000):
        steps = lab.scaling([False, True, False, False, False], init_scale=1024, growth_interval=interval)
        assert [step.applied for step in steps] == [True, False, True, True, True]
        assert [step.after for step in steps] == ([1024, 512, 512, 1024, 1024] if interval == 2 else [1024] + [512] * 4)


def test_a_scaler_that_only_sees_overflows_falls_to_zero_without_a_word():
    steps = lab.scaling([True] * 170)
    assert not any(step.applied for step in steps)
    assert next(number for number, step in enumerate(steps, 1) if step.after == 0) == 166


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 5))
def test_a_scale_is_a_power_of_two_apart_from_its_first_and_a_skipped_step_halves_it(overflows, interval):
    for step, overflow in zip(lab.scaling(overflows, 4096, interval), overflows, strict=True):
        assert step.applied == (not overflow)
        assert step.after == step.before / 2 if overflow else step.after in (step.before, 2 * step.before)


def test_fp16_loses_small_gradients_and_bf16_does_not():
    values = torch.tensor([0.0, 1e-9, 1e-8, 1e-3, 1.0])
    assert lab.lost(values, "fp16") == (0.5, 0.0)
    assert lab.lost(values, "bf16") == (0.0, 0.0)
    assert lab.lost(values, "fp16", scale=65536.0) == (0.0, 0.25), "the scale that saves the small overflows the large"
    assert lab.lost(torch.zeros(3), "fp16") == (0.0, 0.0)


def test_a_product_is_as_wrong_as_the_numbers_it_reads_are_coarse():
    errors = {mode: lab.product_error(mode) for mode in ("fp32", "tf32", "fp16", "bf16")}
    assert 0 < errors["fp32"] < 1e-6 < errors["tf32"] < 1e-3 < errors["bf16"] < 1e-2
    assert errors["tf32"] == pytest.approx(errors["fp16"], rel=0.1), "both have 10 bits of fraction"
    assert lab.read_in(torch.tensor([1 + 2.0**-12, 1 + 2.0**-10]), "tf32").tolist() == [1, 1 + 2.0**-10]


def test_a_bf16_weight_without_a_master_stands_still():
    assert lab.walked(master=False) == 0
    assert lab.walked(master=True, steps=128) == 0.125


def test_a_sum_of_gradients_in_bf16_loses_what_one_in_fp32_keeps():
    assert lab.summed_error("fp32", 16) < 1e-6 < 1e-3 < lab.summed_error("bf16", 16) < lab.summed_error("bf16", 256)

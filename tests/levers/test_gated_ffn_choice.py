"""The dispatcher measures a shape once, keeps what it found, and says in a line what it chose and why."""

import math

import pytest
import torch

from lfhelpers.levers import gated_ffn_choice as choice
from lfhelpers.levers.gated_ffn_compare import Shape, timed

SHAPE = Shape(64, 16, 48, "float32", True)
FOUND = {"torch": {"ms": 1.4}, "compile": {"ms": 1.0}, "triton": {"ms": 1.1}, "cuda": {"failed": "there is no nvcc"}}


@pytest.fixture
def machine(monkeypatch, runs_root):
    """A GPU that isn't there, on which measuring gives FOUND; the shapes that were measured."""
    measured = []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(choice, "_apart", lambda shape, device: measured.append(shape) or FOUND)
    monkeypatch.setattr(choice, "obstacle", lambda kernel, device: None)
    for function in (choice._for, choice._said):
        function.cache_clear()
    yield measured
    for function in (choice._for, choice._said):
        function.cache_clear()


def test_a_shape_is_measured_once_and_the_compiler_may_win(machine, capsys):
    assert [choice._for(SHAPE, True, 0) for _ in range(3)] == ["compile"] * 3
    assert machine == [SHAPE]
    assert capsys.readouterr().out == (
        "ffn: torch.compile is faster, 1.000 ms; triton 1.100; torch 1.400; cuda failed (there is no nvcc) "
        "(64 x 16 x 48, float32, forward and backward)\n")


def test_the_next_process_finds_the_choice(machine, capsys):
    choice._for(SHAPE, True, 0)
    choice._for.cache_clear()
    assert choice._for(SHAPE, True, 0) == "compile" and machine == [SHAPE]
    assert ", measured 20" in capsys.readouterr().out.splitlines()[-1]


def test_another_shape_or_another_version_is_measured_anew(machine, monkeypatch):
    choice._for(SHAPE, True, 0)
    choice._for(SHAPE._replace(backward=False), True, 0)
    choice._for.cache_clear()
    monkeypatch.setattr(choice.hardware, "version", lambda name: "99")
    choice._for(SHAPE, True, 0)
    assert machine == [SHAPE, SHAPE._replace(backward=False), SHAPE]


def test_a_choice_that_does_not_work_any_more_gives_way_to_the_next(machine, monkeypatch, capsys):
    found = {"torch": {"ms": 1.4}, "triton": {"ms": 1.1}, "cuda": {"ms": 1.0}}
    choice.keep(choice.situation(SHAPE, 0), found)
    monkeypatch.setattr(choice, "obstacle", lambda kernel, device: "the library is gone" if kernel == "cuda" else None)
    assert choice._for(SHAPE, True, 0) == "triton" and machine == []
    assert "triton, 1.100 ms; torch 1.400; cuda failed (the library is gone)" in capsys.readouterr().out


def test_where_nothing_may_be_measured_a_kernel_that_works_is_taken_and_not_kept(machine):
    assert choice._for(SHAPE, False, 0) == "triton" and machine == []
    assert not choice.file().exists()


def test_a_measurement_that_failed_is_not_kept(machine, monkeypatch, capsys):
    monkeypatch.setattr(choice, "_apart", lambda shape, device: {"torch": {"failed": "CUDA is out of memory"}})
    assert choice._for(SHAPE, True, 0) == "torch" and not choice.file().exists()
    assert "nothing could be measured" in (said := capsys.readouterr().out) and "out of memory" in said


def test_a_damaged_file_is_measured_over(machine):
    choice.file().parent.mkdir(parents=True)
    choice.file().write_text("{")
    assert choice._for(SHAPE, True, 0) == "compile" and choice.kept(choice.situation(SHAPE, 0))["kernel"] == "compile"


def test_each_implementation_gets_a_time_or_the_reason_why_not():
    found = choice.measure(SHAPE, torch.device("cpu"), ("torch", "triton"), rounds=3)
    assert found["torch"]["ms"] > 0 and found["triton"] == {"failed": "there is no GPU"}
    assert choice.fastest(found) == "torch"


def test_all_sides_take_part_in_every_round_in_an_order_of_its_own_until_the_time_is_up():
    order = []
    sides = {name: (lambda name=name: order.append(name)) for name in "abcd"}
    assert [len(times) for times in timed(sides, 20, torch.device("cpu"), limit_s=math.inf).values()] == [20] * 4
    rounds = ["".join(order[at:at + 4]) for at in range(0, 80, 4)]
    assert all(sorted(each) == list("abcd") for each in rounds)
    first = [each[0] for each in rounds]
    assert all(3 <= first.count(name) <= 8 for name in "abcd")
    assert len(timed(sides, 100, torch.device("cpu"), limit_s=0)["a"]) == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_all_implementations_are_measured_in_a_process_of_their_own():
    found = choice._apart(Shape(512, 128, 384, "bfloat16", True), 0)
    assert all("ms" in found[name] for name in ("torch", "compile", "triton", "cuda")), found

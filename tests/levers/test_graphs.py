"""Recording is decided by the form of the inputs; what is replayed computes what an ordinary call computes."""

import pytest
import torch

from lfhelpers.levers.graphs import MOST_GRAPHS, Graphs, Recorded


def replayed(function, inputs, variant):
    """What a GPU does, on a CPU: nothing is computed while recording, and everything on the recorded memory later."""
    buffers = {name: value.clone() for name, value in inputs.items()}
    outputs = {}
    return Recorded(buffers, outputs, lambda: outputs.update(function(buffers, variant)), 0.5)


def double(inputs, variant):
    return {"y": inputs["x"] * variant}


def test_a_form_is_recorded_after_its_warm_up_and_gives_the_same_results():
    graphs = Graphs(double, 2, replayed)
    x = {"x": torch.arange(3.0)}
    assert [graphs.ready(x, 2) for _ in range(4)] == [False, False, True, True]
    for value in (1.0, 5.0):
        assert graphs({"x": torch.full((3,), value)}, 2)["y"].tolist() == [2 * value] * 3
    assert (graphs.count, graphs.seconds, graphs.obstacle) == (1, 0.5, None)


@pytest.mark.parametrize("other", [
    ({"x": torch.zeros(4)}, 2), ({"x": torch.zeros(3, dtype=torch.float64)}, 2), ({"x": torch.zeros(3)}, 3),
    ({"x": torch.zeros(6)[::2]}, 2), ({"z": torch.zeros(3)}, 2),
], ids=["shape", "dtype", "variant", "stride", "name"])
def test_another_form_is_never_forced_through_the_recording(other):
    graphs = Graphs(double, 1, replayed)
    graphs.ready({"x": torch.zeros(3)}, 2)
    assert graphs.ready({"x": torch.zeros(3)}, 2)
    assert not graphs.ready(*other)
    with pytest.raises(KeyError):
        graphs(*other)


def test_what_cuda_refuses_becomes_a_reason_and_ordinary_calls():
    def refuses(function, inputs, variant):
        raise RuntimeError("operation not permitted when stream is capturing\nCompile with ...")

    graphs = Graphs(double, 0, refuses)
    assert [graphs.ready({"x": torch.zeros(3)}) for _ in range(3)] == [False] * 3
    assert graphs.obstacle == "operation not permitted when stream is capturing"
    assert graphs.count == 0


def test_inputs_without_a_fixed_shape_are_not_recorded_for_ever():
    graphs = Graphs(double, 0, replayed)
    taken = [graphs.ready({"x": torch.zeros(length)}, 1) for length in range(MOST_GRAPHS + 2)]
    assert taken == [True] * MOST_GRAPHS + [False] * 2
    assert "fix the shapes" in graphs.obstacle
    assert graphs.ready({"x": torch.zeros(0)}, 1), "what was recorded is still used"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_after_a_real_refusal_the_device_and_its_generator_go_on():
    def reads(inputs, variant):
        return {"y": inputs["x"] * (torch.rand(3, device="cuda") + inputs["x"].sum().item())}

    with torch.cuda.stream(torch.cuda.Stream()):
        graphs = Graphs(reads, 0)
        assert not graphs.ready({"x": torch.ones(3, device="cuda")})
        assert "captur" in graphs.obstacle
        assert torch.rand(3, device="cuda").sum() > 0
        assert reads({"x": torch.ones(3, device="cuda")}, None)["y"].shape == (3,)

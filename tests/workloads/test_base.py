"""Finding a workload of one's own, and what it may leave out."""

import pytest
from torch import nn

from lfhelpers.errors import LfError
from lfhelpers.recipe import recipe
from lfhelpers.workloads.base import LR, blocks_of, find


class Repeated(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
        self.mixed = nn.ModuleList([nn.Linear(2, 2), nn.Tanh()])
        self.single = nn.ModuleList([nn.Linear(2, 2)])


def test_blocks_are_the_workloads_own_or_what_the_model_repeats():
    model = Repeated()
    assert blocks_of(object(), model) == list(model.blocks)

    class Chosen:
        def blocks(self, model):
            return [model.single[0]]
    assert blocks_of(Chosen(), model) == [model.single[0]]


def test_a_chain_of_blocks_repeats_and_a_chain_of_bare_layers_does_not():
    chain = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(3)))
    assert blocks_of(object(), chain) == list(chain)
    assert blocks_of(object(), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []


def test_a_workload_needs_five_members_and_what_it_leaves_out_has_a_stand_in(tmp_path):
    members = ["model", "sample", "loss", "flops_per_sample"]
    body = "".join(f"    def {name}(self, *given): ...\n" for name in members)
    start = "    fields = None\n    def __init__(self, job): ...\n"
    (tmp_path / "own.py").write_text(f"class Own:\n{start}{body}class Less:\n{start}    def loss(self): ...\n")
    own = find(recipe("competent", f"workload.use={tmp_path}/own.py:Own"))
    assert type(own).__name__ == "Own"
    assert (own.draws(4, None), own.evaluate(None, 4, None), own.default_lr()) == ({}, {}, LR)
    with pytest.raises(LfError, match=r"Less .* lacks model, sample, flops_per_sample;"):
        find(recipe("competent", f"workload.use={tmp_path}/own.py:Less"))

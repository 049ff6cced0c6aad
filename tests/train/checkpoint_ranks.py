"""Run by torchrun with two gloo ranks: recomputed blocks under DDP, one of them used twice, below a frozen one.

Rank 0 prints one JSON line: the largest difference of any gradient from that without recomputation.
"""

import json

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.levers import activations
from lfhelpers.recipe import recipe
from lfhelpers.train.ranks import identify, joined

PLANS = {"none": (), "all": ("activations.plan=all",), "ops": ("activations.plan=ops",)}


class Block(nn.Module):
    """A small FFN with a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Model(nn.Module):
    """A frozen block, one that is used twice, one that is used once."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.blocks[0].requires_grad_(False)

    def forward(self, x):
        return self.blocks[2](self.blocks[1](self.blocks[1](self.blocks[0](x))))


def gradients(ranks, overrides):
    torch.manual_seed(0)
    model = Model().double()
    activations.apply(recipe("competent", "device=cpu", *overrides), model.blocks, ranks.device, ranks.world)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(ranks.rank))
    ddp(x).square().sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.requires_grad])


def main() -> None:
    ranks = identify("cpu")
    with joined(ranks):
        found = {name: gradients(ranks, overrides) for name, overrides in PLANS.items()}
        everyone = ranks.gather(found["all"])
        if ranks.first:
            print(json.dumps({"ranks_equal": torch.equal(*everyone), "norm": float(found["none"].norm()),
                              **{name: float((vector - found["none"]).abs().max()) for name, vector in found.items()}}))


if __name__ == "__main__":
    main()

"""Run by torchrun with two gloo ranks: what accumulation and DDP do to gradients; rank 0 prints one JSON line."""

import contextlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.measure.clock import StepClock
from lfhelpers.recipe import recipe
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import identify, joined
from lfhelpers.train.step import Step
from tests.train.toy import Toy, batches, concatenated, trainer

MICRO_BATCHES = 4


def main() -> None:
    ranks = identify("cpu")
    with joined(ranks):
        seen = exchanged(ranks)
        seen["threads"] = threads()
    for _ in range(600):  # a thread that has been waited for is in the list until the system has put it away
        if not (left := threads()):
            break
        time.sleep(0.1)
    if ranks.first:
        print(json.dumps(seen | {"threads_left": left}))


def threads() -> int:
    """Threads of gloo's in this process."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            found += "gloo" in (task / "comm").read_text()
    return found


def exchanged(ranks):
    job = recipe("competent", "precision.mode=fp32")
    workload = Toy(job)
    torch.manual_seed(0)
    model = workload.model()
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    exchanges = []
    ddp.register_comm_hook(None, counting(exchanges))
    precision = Precision(job.precision, ranks.device)
    optimizer = Optimizer(job, model, 1e-2, precision.scaler, keep_grads=True)
    step = Step(workload, ddp, optimizer, precision, ranks, StepClock(ranks.device), 4 * MICRO_BATCHES)
    pairs = batches(2 * MICRO_BATCHES, 4)  # position (micro, rank) is pair 2 * micro + rank
    values = step(0, iter(pairs[ranks.rank::2]), MICRO_BATCHES)
    mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    everyone = ranks.gather(mine)
    alone, _, alone_model = trainer(samples=32)
    expected = alone(0, iter([concatenated(pairs)]), 1)
    reference = torch.cat([parameter.detach().flatten() for parameter in alone_model.parameters()])
    return {"exchanges": len(exchanges), "ranks_equal": torch.equal(*everyone), "values": values.tolist(),
            "expected": expected.tolist(), "difference": float((mine - reference).abs().max())}


def counting(exchanges: list[int]):
    def hook(state, bucket):
        exchanges.append(bucket.index())
        return dist.all_reduce(bucket.buffer().div_(int(os.environ["WORLD_SIZE"])), async_op=True).get_future().then(
            lambda future: future.value()[0])
    return hook


if __name__ == "__main__":
    main()

"""Run by torchrun with two ranks over a paced link: every collective's result and time; rank 0 prints one JSON line."""

import json
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.levers import in_place, slow_link
from lfhelpers.train.ranks import identify, joined

LINK = "gloo:0.02GB/s,1000us"
SIZE = 2**20  # bytes


def timed(call) -> float:
    dist.barrier()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def three_at_once() -> None:
    for work in [dist.all_reduce(torch.ones(SIZE // 4), async_op=True) for _ in range(3)]:
        work.wait()


def late(rank: int) -> None:
    dist.barrier()  # the sleep begins when both look at their clocks
    if rank == 1:
        time.sleep(0.3)
    dist.all_reduce(torch.ones(SIZE // 4))


def main() -> None:
    ranks = identify("cpu")
    with joined(ranks, LINK):
        found = {"backend": dist.get_backend(), "link": slow_link.measure(LINK, ranks.device)}
        ones, mine = torch.ones(SIZE // 4), torch.full((SIZE // 8,), float(ranks.rank))
        parts, whole, half = [torch.empty_like(mine) for _ in range(2)], torch.empty_like(ones), torch.empty_like(mine)
        swapped = torch.empty_like(ones)
        found["seconds"] = {
            "all_reduce": timed(lambda: dist.all_reduce(ones)),
            "all_gather": timed(lambda: dist.all_gather(parts, mine)),
            "all_gather_into_tensor": timed(lambda: dist.all_gather_into_tensor(whole, mine)),
            "reduce_scatter": timed(lambda: dist.reduce_scatter_tensor(half, whole.clone())),
            "all_to_all": timed(lambda: dist.all_to_all_single(swapped, whole + ranks.rank)),
        }
        found["results"] = [float(ones.mean()), [float(part.mean()) for part in parts], float(whole.mean()),
                            float(half.mean()), [float(x) for x in swapped.view(2, -1).mean(1)]]
        two = [torch.full((SIZE // 8,), 1.0 + ranks.rank) for _ in range(2)]
        found["seconds"]["scatter in place"] = timed(lambda: in_place.scatter(two).wait())
        found["seconds"]["gather in place"] = timed(lambda: in_place.gather(two).wait())
        found["in place"] = [float(x) for tensor in two for x in (tensor.min(), tensor.max())]
        found["seconds"]["three at once"] = timed(three_at_once)
        found["waited"] = timed(lambda: late(ranks.rank))
        model = DistributedDataParallel(torch.nn.Linear(512, 512, bias=False))
        found["seconds"]["backward"] = timed(lambda: model(torch.ones(1, 512)).sum().backward())
        found["gradient"] = float(model.module.weight.grad.mean())
        if ranks.first:
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

"""Ranks that exchange for ever: `python -m ranks.meeting RUN`."""

import time

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    for count in range(10_000):
        dist.all_reduce(torch.ones(1))
        print("exchange", count, flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    main()

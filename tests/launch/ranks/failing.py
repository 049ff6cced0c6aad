"""A rank that fails: `python -m ranks.failing RUN [--resume] HOW`; the last rank is the cause, others lose a peer."""

import os
import signal
import sys

from lfhelpers.errors import LfError


def main(how: str) -> None:
    rank = int(os.environ["RANK"])
    last = rank == int(os.environ["WORLD_SIZE"]) - 1
    if how == "sentence":
        raise LfError("recipe field batch.micro = 512 does not fit; take 256.")
    if how == "killed":
        print("the last words", flush=True)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.ones(1)
    dist.all_reduce(value)
    print("met", int(value), flush=True)
    if last and how == "raises":
        raise RuntimeError(f"the tensor of rank {rank} is wrong")
    if last and how == "exits":
        os._exit(137)
    dist.all_reduce(value)


if __name__ == "__main__":
    main(sys.argv[-1])

"""A rank that fails: `python -m ranks.failing RUN [--resume] HOW`; rank 1 is the cause, rank 0 only loses its peer."""

import os
import signal
import sys

from lfhelpers.errors import LfError


def main(how: str) -> None:
    rank = int(os.environ["RANK"])
    if how == "sentence":
        raise LfError("recipe field batch.micro = 512 does not fit; take 256.")
    if how == "killed":
        print("the last words", flush=True)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.ones(1)
    dist.all_reduce(value)
    print("met", int(value), flush=True)
    if rank == 1 and how == "raises":
        raise RuntimeError("the tensor of rank 1 is wrong")
    if rank == 1 and how == "exits":
        os._exit(137)
    dist.all_reduce(value)


if __name__ == "__main__":
    main(sys.argv[-1])

"""What torchrun starts: `python -m lfhelpers.train RUN_FOLDER [--resume]`, one process a rank."""

from __future__ import annotations

import argparse
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from lfhelpers.processes import die_with_parent
from lfhelpers.runs import Run
from lfhelpers.train.loop import train
from lfhelpers.train.ranks import identify


@record
def main() -> None:
    """Train the run folder's recipe; an exception ends the rank with its traceback in torchrun's error file."""
    die_with_parent()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a run folder with its recipe.toml")
    parser.add_argument("--resume", action="store_true", help="continue from the folder's newest checkpoint")
    options = parser.parse_args()
    run = Run(options.run)
    job = run.recipe
    train(job, run, identify(job.device), resume=options.resume)


if __name__ == "__main__":
    main()

"""What runs as each rank: `python -m lfhelpers.train RUN_FOLDER [--resume]`; without torchrun it is one rank."""

from __future__ import annotations

import argparse
from pathlib import Path

from lfhelpers.runs import Run
from lfhelpers.train.loop import train
from lfhelpers.train.ranks import identify


def main() -> None:
    """Train the run folder's recipe; the launcher's rank shim records what is raised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a run folder with its recipe.toml")
    parser.add_argument("--resume", action="store_true", help="continue from the folder's newest checkpoint")
    options = parser.parse_args()
    run = Run(options.run)
    job = run.recipe
    train(job, run, identify(job.device), resume=options.resume)


if __name__ == "__main__":
    main()

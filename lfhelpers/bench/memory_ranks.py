"""Runs as each rank of `lf.plan`: `python -m lfhelpers.bench.memory_ranks FOLDER MOST`.

A rank searches the largest micro-batch alone, before it takes its device; then the ranks meet, and agree on the least.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lfhelpers.runs import Run
from lfhelpers.train import fit
from lfhelpers.train.ranks import identify, joined

FILE = "largest.json"
HERE = "lfhelpers.bench.memory_ranks"


def main() -> None:
    """Search for the run folder's recipe, and leave `agreed` and each rank's `found` samples in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("most", type=int, help="the largest micro-batch that is tried")
    asked = parser.parse_args()
    run = Run(asked.run)
    ranks = identify(run.recipe.device)
    largest = fit.largest(run.recipe, asked.most).largest
    ranks.take_device()
    with joined(ranks, run.recipe.ddp.slow_link):
        answer = {"agreed": fit.agreed(ranks, largest), "found": ranks.gather(largest)}
    if ranks.first:
        run.write(FILE, answer)


if __name__ == "__main__":
    main()

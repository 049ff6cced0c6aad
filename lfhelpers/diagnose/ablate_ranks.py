"""Runs as each rank of an ablation: `python -m lfhelpers.diagnose.ablate_ranks FOLDER BLOCKS STEPS [VARIANT ...]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from lfhelpers.diagnose.ablate import Options, measure
from lfhelpers.diagnose.ablation import FILE
from lfhelpers.runs import Run
from lfhelpers.train.ranks import identify, joined


def main() -> None:
    """Ablate the run folder's recipe, and leave ablation.json and traces in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("blocks", type=int)
    parser.add_argument("steps", type=int)
    parser.add_argument("only", nargs="*", help="variants to time; all if none is given")
    asked = parser.parse_args()
    run = Run(asked.run)
    ranks = identify(run.recipe.device)
    ranks.take_device()
    with joined(ranks, run.recipe.ddp.slow_link):
        found = measure(run.recipe, ranks, Options(asked.blocks, asked.steps, run.path / "traces"),
                        only=asked.only or None)
        ranks.barrier()
    if ranks.first:
        run.write(FILE, found.as_dict())


if __name__ == "__main__":
    main()

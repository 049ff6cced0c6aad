"""`lfhelpers bench link`: what a message between ranks costs by its size, native or slowed on purpose."""

from __future__ import annotations

import argparse
from pathlib import Path

from lfhelpers.launch import launch
from lfhelpers.measure import link as links
from lfhelpers.measure.link import Link, bus_gb_s
from lfhelpers.measure.record import Record, Row
from lfhelpers.recipe import recipe
from lfhelpers.runs import Run
from lfhelpers.train.ranks import identify, joined

RESULT = "link.json"


def run(ranks: int = 2, repeats: int = 15, slow_link: str | None = None, device: str = "auto") -> Record:
    """Sweep the link between `ranks` ranks of this machine; slow_link as ddp.slow_link says.

    Rows are milliseconds and bus bandwidth by size; checks `latency_us` and `bus_gb_s`, named slow_... where it was
    slowed. Raises LaunchError where a rank fails.
    """
    job = recipe("competent", f"device={device}", name="bench-link", **{"ddp.slow_link": slow_link})
    found = launch(job, ranks, watch=False, module="lfhelpers.bench.link", args=[str(repeats)]).read(RESULT)
    link = Link.from_dict(found["link"])
    rows, prefix = [], "slow link, " if slow_link else ""
    for size, times in found["times_ms"].items():
        rows += [Row.of(f"{prefix}{_bytes(int(size))}", times, "ms"),
                 Row.of(f"{prefix}{_bytes(int(size))}", [bus_gb_s(int(size), time, ranks) for time in times], "GB/s")]
    mark = "slow_" if slow_link else ""
    return Record("link", {"link": link.as_dict(), "text": str(link), "ranks": ranks, "repeats": repeats, "failed": {}},
                  rows, {f"{mark}latency_us": link.latency_us, f"{mark}bus_gb_s": link.gb_s}, 0.0)


def _bytes(size: int) -> str:
    """'64 KiB', '1.5 MiB'."""
    return f"{size / 2**20:.3g} MiB" if size >= 2**20 else f"{size / 2**10:.3g} KiB"


def main() -> None:
    """What runs as each rank: `python -m lfhelpers.bench.link RUN_FOLDER REPEATS`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("repeats", type=int)
    options = parser.parse_args()
    run = Run(options.run)
    ranks, slow = identify(run.recipe.device), run.recipe.ddp.slow_link
    ranks.take_device()
    with joined(ranks, slow):
        link, times = links.sweep(ranks.device, options.repeats, slow=slow or "")
        if ranks.first:
            run.write(RESULT, {"link": link.as_dict(), "times_ms": {str(size): row for size, row in times.items()}})


if __name__ == "__main__":
    main()

"""The picture of who reads what: the samples of an epoch's first steps, by rank and shard."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from lfhelpers.data.order import Plan
from lfhelpers.notebook.charts import Chart
from lfhelpers.notebook.figures import COLOURS, HATCHES, INK, blank
from lfhelpers.notebook.tables import Table


def who_reads_what(plan: Plan, shards: Sequence[int], steps: int) -> Chart:
    """One row a step, one box a sample: the colour and hatch of its rank, the number of its shard.

    `shards` gives the shard of each sample. Masked rows, which only fill the last batch up, are left white.
    """
    figure, axes = blank(height=0.9 + 0.36 * steps)
    touched: list[set[int]] = [set() for _ in range(steps)]
    masked = 0
    for step, micro in plan.sequence(0, steps):
        for rank in range(plan.world):
            ids, valid = plan.slots(step, micro, rank)
            real = [int(shards[index]) for index, counts in zip(ids, valid, strict=True) if counts]
            _boxes(axes, step, plan.rows(step, micro, rank).start, rank, real, named=step == micro == 0)
            touched[step] |= set(real)
            masked += len(ids) - len(real)
    axes.set_yticks(range(steps), [f"step {step + 1}" for step in range(steps)])
    axes.invert_yaxis()
    axes.set_xlim(0, plan.global_batch)
    axes.set_xlabel("position in the global batch; the number is the sample's shard", color=INK, fontsize=9)
    axes.grid(visible=False)
    figure.legend(loc="outside upper left", ncols=plan.world, frameon=False, fontsize=8.5)
    alt = (f"{plan.shuffle} shuffle on {plan.world} ranks: a step takes its {plan.global_batch} samples from "
           f"{min(map(len, touched))} to {max(map(len, touched))} shards; {masked} masked rows in {steps} steps.")
    rows = [{"step": step + 1, "shards read": len(used), "samples": plan.real_samples(step)}
            for step, used in enumerate(touched)]
    return Chart(figure, alt, Table.of(f"Shards that a step reads, {plan.shuffle} shuffle", rows))


def _boxes(axes: Axes, step: int, left: int, rank: int, shards: Sequence[int], named: bool) -> None:
    """A rank's samples of one micro-batch, side by side from `left` on; masked rows come last and stay white."""
    axes.barh([step] * len(shards), 1, left=range(left, left + len(shards)), height=0.8,
              color=COLOURS[rank % len(COLOURS)], hatch=HATCHES[rank % len(HATCHES)], edgecolor="white", linewidth=0.8,
              label=f"rank {rank}" if named else None)
    for place, shard in enumerate(shards, start=left):
        axes.text(place + 0.5, step, str(shard), ha="center", va="center", fontsize=7.5, color=INK,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8})

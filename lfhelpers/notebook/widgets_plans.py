"""Controls over plans: bucket sizes over a link, a budget of memory over checkpoint plans, and the rungs of a ladder.

Skins over levers.buckets_sim, memory_charts.plans_picture and ladder_charts.climb_bars.
"""

from __future__ import annotations

from collections.abc import Sequence

from lfhelpers.bench import ladder_table
from lfhelpers.errors import LfError
from lfhelpers.levers import buckets_sim
from lfhelpers.levers.activations_choice import Point
from lfhelpers.levers.buckets_sim import Outcome
from lfhelpers.levers.tuner import Model
from lfhelpers.measure.record import Record
from lfhelpers.notebook.ddp_charts import bucket_timeline
from lfhelpers.notebook.ladder_charts import ANCHORS, RATE, climb_bars
from lfhelpers.notebook.memory_charts import plans_picture
from lfhelpers.notebook.tables import number
from lfhelpers.notebook.widgets import Shown, explore

MIB = 2**20


def buckets_of(model: Model, first: float, size: float, last: float, times_link: float = 1.0) -> Outcome:
    """Simulate buckets of these MiB, all but the first and the last of one size, over a link so many times as fast."""
    whole = max(1, int((model.total_mb - first - last) / size))
    return buckets_sim.simulate(model.gradients, (first, *[size] * whole, last),
                                lambda sent: model.transfer_ms(sent) / times_link, model.pass_ms, model.slowing)


def bucket_simulator(model: Model) -> None:
    """Explore bucket sizes over the measured link; at first buckets of a quarter of all gradients."""
    largest = model.total_mb
    since = 0.9 * min(gradient.ready_ms for gradient in model.gradients)
    low = largest / 100

    def picture(first: float = largest / 30, size: float = largest / 4, last: float = largest / 15,
                times_link: float = 1.0) -> Shown:
        outcome = buckets_of(model, first, size, last, times_link)
        chart = bucket_timeline(outcome, before_ms=since)
        return chart._replace(alt=f"Simulated, the link's speed times {times_link:g}. {chart.alt} The step grows by "
                                  f"{number(float(outcome.added_ms))} ms.")

    explore(picture, first=(low, largest / 2, low), size=(low, largest, low), last=(low, largest / 2, low),
            times_link=(0.25, 8.0, 0.25),
            labels={"first": "first bucket [MiB]", "size": "buckets between [MiB]", "last": "last bucket [MiB]",
                    "times_link": "link's speed, times"})


def budget(points: Sequence[Point]) -> None:
    """Explore a limit on the peak: which plan is the fastest within it; at first in the middle of those measured."""
    peaks = sorted(point.peak / MIB for point in points if point.fits)
    step = max((peaks[-1] - peaks[0]) / 40, 1e-3)

    def picture(mib: float = (peaks[0] + peaks[-1]) / 2) -> Shown:
        try:
            return plans_picture(points, mib * MIB)
        except LfError as error:  # nothing fits, which is a finding here
            return str(error)

    explore(picture, mib=(0.98 * peaks[0], peaks[-1] + step, step), labels={"mib": "peak at most [MiB]"})


def ladder(record: Record, origin: str) -> None:
    """Explore a ladder: how many levers are pulled, and which figure the bars show; at first all, in samples/s.

    origin: a sentence that says where it was climbed.
    """
    lines = ladder_table.lines(record)
    climbed = [line for line in lines if line["rung"] not in ANCHORS[1:] and not line["rung"].startswith("- ")]
    heads = [head for head in ladder_table.UNITS.values() if any(line.get(head) is not None for line in lines)]

    def picture(rungs: int = len(climbed), figure: str = RATE) -> Shown:
        return climb_bars(lines if rungs == len(climbed) else climbed[:rungs], figure), origin

    explore(picture, rungs=(1, len(climbed), 1), figure=heads, labels={"rungs": "rungs climbed"})

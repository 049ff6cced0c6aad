"""Controls over a step: what it would take if its parts were others, and any few milliseconds of it in sight.

Skins over diagnose.whatif and the timeline's picture; the measured step is where they begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lfhelpers.diagnose.report import StepReport
from lfhelpers.diagnose.whatif import WhatIf
from lfhelpers.measure.timeline import Span, window
from lfhelpers.notebook.charts import Chart, step_bars
from lfhelpers.notebook.tables import number
from lfhelpers.notebook.timeline import timeline
from lfhelpers.notebook.widgets import explore

LARGEST_MICRO = 8
"""Times the measured micro-batch, to which the slider goes."""


def what_if(report: StepReport) -> None:
    """Explore a run's step: times of its parts, what hides, and the micro-batch; the run as measured comes first."""
    begin = WhatIf.of(report)

    def picture(data: float = begin.data_ms, compute: float = begin.compute_ms, exchange: float = begin.exchange_ms,
                hidden: int = round(100 * begin.hidden), ahead: int = round(100 * begin.ahead),
                micro: int = begin.micro) -> Chart:
        fixed = begin.fixed_ms * (compute / begin.compute_ms)
        changed = replace(begin, data_ms=data, compute_ms=compute, fixed_ms=fixed, exchange_ms=exchange,
                          hidden=hidden / 100, ahead=ahead / 100).with_micro(micro)
        return compared(begin, changed)

    whole = begin.step_ms
    explore(picture, data=_around(begin.data_ms, whole), compute=_around(begin.compute_ms, whole),
            exchange=_around(begin.exchange_ms, whole), hidden=(0, 100, 5), ahead=(0, 100, 5),
            micro=(1, LARGEST_MICRO * begin.micro, 1),
            labels={"data": "loader, a step [ms]", "compute": "computation [ms]", "exchange": "exchange [ms]",
                    "hidden": "exchange hidden [%]", "ahead": "loader working ahead [%]", "micro": "micro-batch"})


def compared(measured: WhatIf, changed: WhatIf) -> Chart:
    """The measured step and the other one as bars, with what the change wins as the finding; alone where it is none."""
    was = (f"Measured: a step of {number(measured.step_ms)} ms, {number(measured.samples_per_s)} samples/s; "
           f"{measured.bound} sets the pace.")
    if changed == measured:
        return step_bars({"measured": measured.parts}, unit="ms")._replace(alt=was)
    ratio = changed.samples_per_s / measured.samples_per_s
    finding = (f"What if: a step of {number(changed.step_ms)} ms, {number(changed.samples_per_s)} samples/s, "
               f"{ratio:.2f} times the measured run; {changed.bound} sets the pace. {was}")
    return step_bars({"measured": measured.parts, "what if": changed.parts}, unit="ms")._replace(alt=finding)


def step_timeline(spans: Sequence[Span], length_us: float) -> None:
    """Explore a step's lanes: where the picture begins and how long it is, in milliseconds; all of it at first."""
    length_ms = length_us / 1e3

    def picture(begin: float = 0.0, length: float = length_ms) -> Chart:
        return timeline({"step": window(spans, 1e3 * length, 1e3 * begin)}, 1e3 * length)

    tick = length_ms / 200
    explore(picture, begin=(0.0, length_ms - tick, tick), length=(tick, length_ms, tick),
            labels={"begin": "from [ms]", "length": "length [ms]"})


def _around(value: float, whole: float) -> tuple[float, float, float]:
    """A slider's range that holds the value: to twice of it, and at least to the whole step."""
    most = max(2 * value, whole)
    return 0.0, most, most / 200

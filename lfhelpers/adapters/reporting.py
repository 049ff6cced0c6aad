"""What the callbacks share: a watch whose steps follow each other, and its report."""

from __future__ import annotations

import time

from torch import nn

from lfhelpers.diagnose.watch_report import WatchReport
from lfhelpers.diagnose.watched import Watch, device_of
from lfhelpers.errors import LfError


class Reporting:
    """Steps from one `turn` to the next; whatever comes between that is no training is left out by `restart`."""

    def __init__(self, skip: int, show: bool) -> None:
        self._skip, self._show = skip, show
        self._watch: Watch | None = None
        self._began = 0.0

    def report(self) -> WatchReport:
        """The report so far. Raises LfError before training has begun."""
        return self.watch.report()

    @property
    def watch(self) -> Watch:
        """The watch of this training. Raises LfError before it has begun."""
        if self._watch is None:
            raise LfError(f"{type(self).__name__} has seen no training yet; pass it to the Trainer as "
                          "callbacks=[callback], train, and ask for its report then.")
        return self._watch

    def follow(self, model: nn.Module) -> None:
        """Training begins; nothing is known of the loader."""
        self._watch = Watch(device_of(model), self._skip, {"workers": None})
        self.restart()

    def restart(self) -> None:
        """The next step begins now: an evaluation, a log or a checkpoint belongs to none."""
        self.watch.pause()
        self._begin()

    def data_came(self) -> None:
        """The batch of the present step is there."""
        self.watch.mark("data_wait", time.perf_counter() - self._began)

    def turn(self, samples: int) -> None:
        """A step has ended, and the next one begins with its wait for data."""
        self.watch.end(samples)
        self._begin()

    def tell(self) -> None:
        """Print the report, where it is to be shown."""
        if self._show:
            print(self.report().table(), flush=True)

    def _begin(self) -> None:
        self.watch.begin()
        self._began = time.perf_counter()

"""Who reads which sample in which step: one pure function of (dataset, seed, epoch, global batch).

Workers, threads, engines and the number of ranks never enter, so every engine delivers the same batches, a resumed
run continues with exactly the next sample, and "each sample once" is an equality of sets. The price is random access:
any sample may be next, which needs the manifest's table and, on slow disks, `shuffle="block"`. The idea of an order
that is a function and not a state is MosaicML Streaming's; a permutation drawn per rank or per worker is the usual
way to lose samples.

    samples ---permutation(seed, epoch)---> windows of ranks x micro x accumulate ---> (micro-batch, rank, row)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lfhelpers.errors import LfError

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """The order of all steps. Position p in a global batch is micro m, rank r, row i: p = (m x world + r) x micro + i.

    shard_of: int [samples], the shard of each sample, needed by shuffle="block" alone.
    window: how many shards are shuffled together in "block".
    manifest: the dataset's hash, which a resumed run must share.
    """

    samples: int
    world: int
    micro: int
    accumulate: int
    seed: int
    shuffle: Literal["global", "block", "none"] = "global"
    last: Literal["pad", "drop"] = "pad"
    shard_of: NDArray[np.integer[Any]] | None = field(default=None, repr=False, compare=False)
    window: int = 8
    manifest: str = ""
    _orders: dict[int, Ids] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.last == "drop" and self.samples < self.global_batch:
            raise LfError(f"data.last='drop' leaves nothing to train on: {self.samples:,} samples are fewer than one "
                          f"global batch of {self._factors()}; take data.last='pad' or a smaller batch.")
        if self.samples < 1:
            raise LfError("the dataset has no samples; make one: lfhelpers data make")
        if self.shuffle == "block" and self.shard_of is None:
            raise LfError("data.shuffle='block' needs to know the shard of each sample; take data.shuffle='global'.")

    @property
    def global_batch(self) -> int:
        """Samples an optimizer step: world x micro x accumulate."""
        return self.world * self.micro * self.accumulate

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps an epoch, the short last one counted when it is padded."""
        whole, rest = divmod(self.samples, self.global_batch)
        return whole + (1 if rest and self.last == "pad" else 0)

    def epoch(self, step: int) -> int:
        """The epoch (from 0) of a global step (from 0)."""
        return step // self.steps_per_epoch

    def real_samples(self, step: int) -> int:
        """How many samples of the step are not padding."""
        return min(self.global_batch, self.samples - self._start(step))

    def micro_batches(self, step: int) -> int:
        """Micro-batches of the step, equal on all ranks: `accumulate`, or fewer in the epoch's short last step."""
        return -(-self.real_samples(step) // (self.world * self.micro))

    def sequence(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """(step, micro-batch) of all steps start..stop-1, in the order in which a rank runs them."""
        return ((step, micro) for step in range(start, stop) for micro in range(self.micro_batches(step)))

    def rows(self, step: int, micro: int, rank: int) -> slice:
        """The positions in the step's global batch that the rank's micro-batch holds."""
        assert 0 <= micro < self.micro_batches(step) and 0 <= rank < self.world, (step, micro, rank)
        first = (micro * self.world + rank) * self.micro
        return slice(first, first + self.micro)

    def slots(self, step: int, micro: int, rank: int) -> tuple[Ids, NDArray[np.float32]]:
        """(ids int64 [micro], valid float32 [micro]); rows past the epoch's end repeat its start, with valid 0."""
        rows = self.rows(step, micro, rank)
        positions = self._start(step) + np.arange(rows.start, rows.stop)
        ids = self.order(self.epoch(step))[positions % self.samples]
        return ids, (positions < self.samples).astype(np.float32)

    def order(self, epoch: int) -> Ids:
        """The epoch's permutation of all ids, int64 [samples]; the latest one is kept."""
        order = self._orders.get(epoch)
        if order is None:
            order = self._permutation(epoch)
            self._orders.clear()
            self._orders[epoch] = order
        return order  # and not what is kept by now: threads may be in different epochs

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint keeps, so that `step` is the next one: a few integers and names, and the dataset's hash."""
        return {"step": step, "epoch": self.epoch(step)} | self._identity()

    def check_state(self, state: Mapping[str, Any]) -> int:
        """The step to continue with. Raises LfError where another order of samples would follow than the saved one."""
        for name, here in self._identity().items():
            saved = state.get(name)
            if saved != here:
                raise LfError(f"the checkpoint's place in the data can't be continued: its {name} is {saved}, this "
                              f"run's is {here}; resume with the same dataset, seed and ranks x micro x accumulate.")
        return int(state["step"])

    def describe(self) -> str:
        """One line for people: samples, steps and micro-batches an epoch, and what is padded or dropped."""
        end = self.steps_per_epoch - 1
        micros = end * self.accumulate + self.micro_batches(end)
        text = (f"{self.samples:,} samples: {self.steps_per_epoch:,} steps an epoch of {self._factors()}, "
                f"{micros:,} micro-batches a rank; ")
        rest = self.samples % self.global_batch
        if not rest:
            return text + "nothing is padded or dropped"
        if self.last == "drop":
            return text + f"{rest:,} samples are dropped each epoch"
        padded = self.micro_batches(end) * self.world * self.micro - rest
        return text + f"the last step has {rest:,} samples and {padded:,} padded rows that count nothing"

    def _start(self, step: int) -> int:
        return step % self.steps_per_epoch * self.global_batch

    def _factors(self) -> str:
        ranks = f"{self.world} rank{'s' if self.world > 1 else ''}"
        return f"{self.global_batch:,} ({ranks} x {self.micro} micro x {self.accumulate} accumulate)"

    def _identity(self) -> dict[str, Any]:
        """All that the order depends on; ranks, micro and accumulate only through their product."""
        return {"manifest": self.manifest, "samples": self.samples, "seed": self.seed,
                "global batch": self.global_batch, "shuffle": self.shuffle, "window": self.window, "last": self.last}

    def _permutation(self, epoch: int) -> Ids:
        if self.shuffle == "none":
            return np.arange(self.samples)
        keys = _random(self.seed, epoch, 0, self.samples)
        if self.shuffle == "global":
            return np.argsort(keys, kind="stable")
        assert self.shard_of is not None
        ranks = np.argsort(np.argsort(_random(self.seed, epoch, 1, int(self.shard_of.max()) + 1), kind="stable"))
        return np.lexsort((keys, ranks[self.shard_of] // self.window))


def _random(seed: int, epoch: int, stream: int, count: int) -> NDArray[np.uint64]:
    """`count` random 64-bit keys. Numpy promises to keep Philox's raw output, so sorting it gives one permutation under
    every version; Generator.permutation makes no such promise."""
    return np.random.Philox(key=[seed % 2**64, epoch], counter=[0, 0, 0, stream]).random_raw(count)

"""The picture of who reads what agrees with the plan it is drawn from."""

import numpy as np

from lfhelpers.data.order import Plan
from lfhelpers.notebook.figures import svg
from lfhelpers.notebook.order_chart import who_reads_what

SHARDS = np.repeat(np.arange(5), 4)


def plan(shuffle, window=8):
    return Plan(20, world=2, micro=4, accumulate=1, seed=1, shuffle=shuffle, shard_of=SHARDS, window=window)


def test_unshuffled_samples_come_from_neighbouring_shards():
    chart = who_reads_what(plan("none"), SHARDS, steps=3)
    assert [(shards, samples) for _, shards, samples in chart.table.rows] == [(2, 8), (2, 8), (1, 4)]
    assert chart.alt == ("none shuffle on 2 ranks: a step takes its 8 samples from 1 to 2 shards; "
                         "4 masked rows in 3 steps.")


def test_a_block_shuffle_reads_few_shards_a_step_and_a_global_one_many():
    block = who_reads_what(plan("block", window=1), SHARDS, steps=2)
    spread = who_reads_what(plan("global"), SHARDS, steps=2)
    assert max(shards for _, shards, _ in block.table.rows) == 2
    assert min(shards for _, shards, _ in spread.table.rows) > 2
    assert ">rank 0<" in svg(spread.figure, "t") and ">rank 1<" in svg(spread.figure, "t")


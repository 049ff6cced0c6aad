"""The frozen part ahead: each pair once, in order, with the frozen part's results, launched or not."""

from itertools import count

import torch
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers.levers.frozen import Ahead


def pairs(number):
    return [({"x": torch.tensor(float(index))}, {"noise": torch.tensor(index)}) for index in range(number)]


@given(st.integers(0, 6), st.lists(st.booleans(), min_size=8, max_size=8))
def test_each_pair_is_delivered_once_and_in_order_however_it_is_launched(number, launches):
    calls = count()

    def frozen(batch):
        next(calls)
        return {"hidden": batch["x"] + 100}

    ahead = Ahead(iter(pairs(number)), frozen, None)
    taken = []
    for launch in launches:
        if launch and ahead.held() is None:
            ahead.launch()
        if (pair := next(ahead, None)) is not None:
            taken.append((pair[0]["hidden"].item(), pair[1]["noise"].item()))
    assert taken == [(100.0 + index, index) for index in range(number)]
    assert next(calls) == number, "the frozen part runs once a pair"


def test_what_was_launched_last_is_handed_to_the_next_step():
    source = iter(pairs(3))
    first = Ahead(source, lambda batch: {"hidden": batch["x"]}, None)
    next(first)
    first.launch()
    held = first.held()
    assert held[0]["hidden"] == 1
    second = Ahead(source, lambda batch: {"hidden": batch["x"]}, None, held)
    assert [pair[0]["hidden"].item() for pair in second] == [1, 2]

"""Which samples of a batch make it bad: named where they do so by themselves."""

import torch
from torch import nn

from lfhelpers.pitfalls.backward_nan import Length
from lfhelpers.train.nonfinite import bad_samples
from tests.train.test_guard import examined
from tests.train.toy import batches


def test_samples_that_are_bad_by_themselves_are_named():
    """A length of 0 has an infinite slope, which backward multiplies by 0."""
    x = batches(1, 8)[0][0]["x"]
    x[3], x[6] = 0, 0
    found = examined(nn.Linear(4, 8, bias=False), Length(0.0), nn.Linear(1, 2), batch={"x": x})
    assert found.cause == "gradient" and found.text.endswith(", with samples 103, 106")


def test_a_loss_that_cant_pass_a_part_of_a_batch_names_none():
    def refuses(rows):
        raise ValueError("whole batches only")
    assert bad_samples({"ids": torch.arange(8)}, refuses) == []
    assert bad_samples({"ids": torch.arange(8)}, lambda rows: True) == [], "all are bad, or the model is"
    assert bad_samples({"ids": torch.arange(100)}, lambda rows: any(row % 3 for row in range(100)[rows])) == []
    assert bad_samples({"ids": torch.arange(5) + 10}, lambda rows: 3 in range(5)[rows]) == [13]

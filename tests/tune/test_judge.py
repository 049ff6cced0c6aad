"""The limits of a trial as numbers: 0 or less is within, and what is not known is no limit."""

import math

import pytest

from lfhelpers.errors import LfError
from lfhelpers.tune.judge import constraints

BASE = {"loss": 2.0, "reserved_gib": 8.0}
STEADY = [2.0] * 8


def limits(loss=2.0, gib=8.0, losses=STEADY, equivalence="reordered", memory_gib=10.0):
    return constraints({"loss": loss, "reserved_gib": gib}, BASE, losses, STEADY, equivalence, 0.02, memory_gib)


def test_within_all():
    assert limits() == pytest.approx({"memory": -0.2, "quality": -0.02, "gate": -1.0})


def test_each_limit_alone():
    assert limits(gib=12.0)["memory"] == pytest.approx(0.2)
    assert limits(loss=2.1)["quality"] == pytest.approx(0.03)
    assert limits(loss=1.0)["quality"] < 0, "to learn more is no fault"
    assert limits(losses=[2.04] * 8)["gate"] == pytest.approx(1.0)  # 2 % apart, the band has 1 %
    assert limits(loss=math.nan)["quality"] == math.inf


def test_what_is_not_asked():
    assert "memory" not in limits(gib=None) and "memory" not in limits(memory_gib=None)
    assert limits(losses=[2.04] * 8, equivalence="changed")["gate"] == 0.0
    assert constraints(BASE, None, STEADY, [], "exact", 0.02, None) == {"quality": -0.02, "gate": 0.0}


def test_skipped_steps_are_left_out_of_the_band():
    assert limits(losses=[math.nan, *STEADY[1:]])["gate"] == pytest.approx(-1.0)
    with pytest.raises(LfError, match="no step in common"):
        limits(losses=[math.nan] * 8)

"""Loops over single numbers are told by their form, on a host of any speed; a model's own operators are none."""

import pytest

from lfhelpers.diagnose.trace import diagnose_trace
from lfhelpers.diagnose.trace.series import find
from tests.diagnose.trace.synthetic import Writer


def series(writer, tmp_path):
    found = diagnose_trace(writer.write(tmp_path / "t.json")).main.found
    return find(found.trace, found.main)


def rows_one_by_one(writer, slower, rows=30, numbers=16):
    """Each row's numbers taken apart, normalised and stacked again; a view or a copy a number lies within both."""
    now = 100.0
    for _ in range(rows):
        for name, length, inside in (("aten::unbind", 0.8 * numbers, "aten::select"),
                                     *[("aten::sub", 2.5, None), ("aten::div", 2.5, None)] * numbers,
                                     ("aten::stack", 0.8 * numbers, "aten::unsqueeze")):
            writer.host(name, now, slower * length)
            for number in range(numbers if inside else 0):
                writer.host(inside, now + slower * (0.8 * number + 0.1), slower * 0.6)
            now += slower * length + 1.0
    return now


@pytest.mark.parametrize("slower", [1.0, 1.5, 2.0, 3.0])
def test_a_loop_is_one_on_a_slow_host_too(slower, tmp_path):
    writer = Writer()
    end = rows_one_by_one(writer, slower)
    writer.step(1, 0, end + 100)
    found = series(writer, tmp_path)
    assert len(found.loops) == 1 and found.loop_events == 30 * (1 + 16 + 32 + 1 + 16)


def test_long_operators_are_none_however_alike(tmp_path):
    writer = Writer()
    for place in range(500):
        writer.host("aten::linear", 100.0 + 40 * place, 36.0)
        writer.host("aten::addmm", 102.0 + 40 * place, 30.0)
    writer.step(1, 0, 100.0 + 40 * 500)
    assert series(writer, tmp_path).loop_events == 0

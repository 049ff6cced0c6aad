"""A table can be walked by a screen reader, and reads as aligned text elsewhere."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers.notebook.tables import Table, number

SPEEDS = Table.of("Speed", [{"recipe": "as_found", "samples/s": 4.1234},
                            {"recipe": "full", "samples/s": 1012.3, "n": 3}])


def test_headers_have_a_scope_and_the_table_a_caption():
    html = SPEEDS.html()
    assert "<caption" in html and ">Speed</caption>" in html
    assert re.findall(r'<th scope="(\w+)"[^>]*>([^<]*)</th>', html) == [
        ("col", "recipe"), ("col", "samples/s"), ("col", "n"), ("row", "as_found"), ("row", "full")]


def test_text_is_aligned_and_a_missing_value_stays_empty():
    assert SPEEDS.text().splitlines() == [
        "Speed",
        "recipe    samples/s  n",
        "as_found       4.12",
        "full          1,012  3",
    ]


def test_markup_in_values_is_text():
    assert "&lt;script&gt;" in Table.of("x", [{"name": "<script>"}]).html()


@pytest.mark.parametrize(("value", "text"), [
    (0.0, "0"), (0.98765, "0.988"), (12.0, "12"), (999.6, "1,000"), (1234567.0, "1,234,567"), (2e-5, "2.00e-05"),
    (41, "41"), (12345, "12,345"), (True, "yes"), (None, ""), ("fp32", "fp32"), (float("inf"), "inf"),
])
def test_numbers_are_short_and_readable(value, text):
    assert number(value) == text


@given(st.floats(min_value=1e-3, max_value=1e8))
def test_a_number_shown_is_within_half_a_percent_of_the_number(value):
    shown = float(number(value).replace(",", ""))
    assert abs(shown - value) <= 0.0051 * value
    assert "e" not in number(value)

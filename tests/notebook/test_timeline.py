"""The picture of launch gaps counts what it shows, and keeps the lane of a host that has nothing to do."""

from lfhelpers.measure.timeline import Span
from lfhelpers.notebook.figures import svg
from lfhelpers.notebook.timeline import timeline

EAGER = [Span("host", "launch", 0, 6), Span("host", "launch", 10, 16), Span("stream 7", "gemm", 8, 10),
         Span("stream 7", "gelu", 18, 20)]
REPLAYED = [Span("stream 7", "gemm", 0, 50), Span("stream 7", "gelu", 50, 100)]


def test_each_lane_is_a_row_with_its_share_of_the_time():
    chart = timeline({"as found": EAGER, "full": REPLAYED}, 100)
    assert chart.table.rows == (
        ("as found", "host", 2, 12.0, 6, 4), ("as found", "stream 7", 2, 4.0, 2.0, 8),
        ("full", "host", 0, 0.0, None, None), ("full", "stream 7", 2, 100.0, 50.0, None))
    assert chart.alt == ("In 0.1 ms: as found, host: 2 pieces, 12 % busy; as found, stream 7: 2 pieces, 4 % busy; "
                         "full, host: 0 pieces, 0 % busy; full, stream 7: 2 pieces, 100 % busy.")


def test_the_drawing_is_the_same_each_time_and_names_every_lane():
    first, second = (svg(timeline({"as found": EAGER, "full": REPLAYED}, 100).figure, "t") for _ in range(2))
    assert first == second
    for label in ("as found: host", "as found: stream 7", "full: host", "full: stream 7"):
        assert f">{label}<" in first


def test_a_window_of_a_thousand_launches_stays_a_small_file():
    crowded = [Span("host", "launch", 4 * place, 4 * place + 3) for place in range(1000)]
    assert len(svg(timeline({"as found": crowded}, 4000).figure, "t")) < 80_000

"""The charts of the data pipeline say what their numbers say, and hold them in a table."""

import math
from dataclasses import replace

import pytest

from lfhelpers.measure.record import Record, Row
from lfhelpers.notebook import data_charts, figures


def row(name, value, unit="images/s", n=3):
    return Row(name, value, 0.9 * value, 1.1 * value, unit, n)


def record(*rows):
    return Record("data", {}, list(rows), {}, 0.02, hardware={"gpus": []}, versions={}, commit=None)


ENGINES = record(row("synthetic", 9000), row("plain x2", 400), row("webdataset x1", 300), row("webdataset x16", 2400),
                 row("webdataset x4", 900), row("webdataset x16, again", 2500),
                 row("webdataset x16", 6.0, "CPU ms/image"),
                 row("dali mixed 0.65 x16", 20000), Row("dali cpu x16", math.nan, math.nan, math.nan, "images/s", 0),
                 row("two_level, RandAugment in workers x16", 2000), row("ring uint8", 0.3, "ms"))
SWEPT = record(row("disk, one long read", 3000, "MB/s"), row("sweep_small_files", 50, "MB/s"),
               row("sweep_small_files", 600, "images/s"),
               *(row(f"sweep_{size}_{order}", value, "MB/s") for size, order, value in [
                   (100, "block", 900), (100, "global", 700), (1000, "block", 880), (1000, "global", 690)]))
FED = {"at": [0.0, 0.1, 0.2, 0.3, 0.4], "wait_ms": [80.0, 0.0, 0.0, 0.0, 0.0], "ready": [0.0, 1.0, 1.0, 1.0, 1.0],
       "decoded": [0.0, 2.0, 2.0, 2.0, 2.0]}
SLOW = {"at": [0.0, 0.2, 0.4], "wait_ms": [150.0, 100.0, 100.0], "ready": [0.0, 0.0, 1.0]}
LINES = {"depth 0": [(1, 200.0), (2, 300.0)], "depth 2": [(1, 250.0), (2, 500.0)]}
CHARTS = {"bars": lambda: data_charts.bars(data_charts.engines(ENGINES)),
          "sizes": lambda: data_charts.shard_sizes(SWEPT),
          "workers": lambda: data_charts.by_workers(LINES, 500.0, {"measured": (2, 450.0)}),
          "starvation": lambda: data_charts.starvation({"fed": FED, "slow": SLOW})}


@pytest.mark.parametrize(("name", "alt"), [
    ("bars", "plain x2 400 images/s; webdataset x16 2,400 images/s, 6.00 times plain x2; dali mixed 0.65 x16 20,000 "
             "images/s, 50.00 times plain x2."),
    ("sizes", "Read cold: block shuffle from 900 MB/s with shards of 100 MB to 880 MB/s with 1,000 MB; global shuffle "
              "from 700 MB/s with shards of 100 MB to 690 MB/s with 1,000 MB; small files 50 MB/s."),
    ("workers", "Images/s with 2 workers: depth 0 300; depth 2 500; the step alone allows 500; measured at 2 workers: "
                "450."),
    ("starvation", "Share of the trainer's time spent waiting for data: fed 0 %; slow 50 %."),
])
def test_the_finding_is_in_words(name, alt):
    assert CHARTS[name]().alt == alt


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_drawn_twice_is_the_same_small_svg(name):
    first, second = (figures.svg(chart.figure, chart.alt) for chart in (CHARTS[name](), CHARTS[name]()))
    assert first == second and "<text" in first and len(first) < 60_000


def test_engines_are_taken_with_their_most_workers_and_without_what_failed():
    assert [(found.name, found.value) for found in data_charts.engines(ENGINES)] == [
        ("plain x2", 400), ("webdataset x16", 2400), ("dali mixed 0.65 x16", 20000)]
    assert data_charts.bars([row("plain x2", 400)], {"plain x2": "naive"}).table.rows[0][0] == "naive"


def test_a_record_says_where_it_was_made():
    facts = {"cpu": "Some CPU", "cores_usable": 2, "gpus": []}
    made = replace(ENGINES, hardware=facts, versions={"torch": "2.13.0"}, date="2026-11-29T21:00:00")
    assert data_charts.origin(made) == "Some CPU, 2 cores, no GPU, torch 2.13.0, 2026-11-29"
    with_gpu = replace(made, hardware=facts | {"gpus": [{"name": "NVIDIA H200"}]})
    assert data_charts.origin(with_gpu).startswith("NVIDIA H200, 2 cores, torch")


def test_a_record_without_a_sweep_has_no_chart_of_it():
    assert data_charts.shard_sizes(ENGINES) is None
    assert data_charts.shard_sizes(SWEPT).table.rows == (
        ("100 MB", 900, 700), ("1,000 MB", 880, 690), ("no shards: small files", None, 50))


def test_the_tables_hold_the_numbers():
    assert CHARTS["workers"]().table.rows == ((1, 200.0, 250.0), (2, 300.0, 500.0))
    fed, slow = CHARTS["starvation"]().table.rows
    assert fed == ("fed", 5, 0.0, 0.0, 3.0)
    assert slow == ("slow", 3, pytest.approx(50), 100.0, 0.5)


def test_waits_are_drawn_where_they_were():
    strips, depths = CHARTS["starvation"]().figure.axes
    *_, waits = strips.collections
    spans = [path.vertices[:, 0] for path in waits.get_paths()]
    assert [(round(min(xs), 3), round(max(xs), 3)) for xs in spans] == [(0.1, 0.2), (0.3, 0.4)]
    assert [line.get_label() for line in depths.lines] == ["fed", "slow"]

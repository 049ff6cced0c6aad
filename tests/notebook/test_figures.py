"""A figure states its finding in words and numbers, is the same bytes each time, and stays small."""

import base64
import io
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from lfhelpers.notebook import charts, figures

REPORTS = {"as_found": {"data_wait": 62.0, "forward": 18.0, "backward": 20.0},
           "competent": {"data_wait": 2.0, "forward": 40.0, "backward": 50.0, "communication": 8.0}}
BARS = [{"label": "as_found", "value": 4.0, "low": 3.8, "high": 4.2, "unit": "samples/s"},
        {"label": "competent", "value": 12.0, "low": 11.5, "high": 12.4, "unit": "samples/s"}]


def losses(steps, last):
    return [{"step": step + 1, "loss": 2.0 + (last - 2.0) * step / steps} for step in range(steps)]


CURVES = {"as_found": losses(20_000, 0.5), "competent": losses(20_000, 0.4)}
CHARTS = [lambda: charts.step_bars(REPORTS), lambda: charts.loss_curves(CURVES),
          lambda: charts.bars_with_interval(BARS)]


@pytest.mark.parametrize("draw", CHARTS)
def test_a_chart_drawn_twice_is_the_same_svg_with_real_text_on_white(draw):
    first, second = (figures.svg(chart.figure, chart.alt) for chart in (draw(), draw()))
    assert first == second
    assert "<text" in first and "#ffffff" in first and "<dc:date>" not in first
    assert len(first) < 60_000


@pytest.mark.parametrize(("draw", "alt"), list(zip(CHARTS, [
    "Largest part of the step: as_found spends 62 % on data wait; competent spends 50 % on backward.",
    "Mean loss from the first to the last tenth of the steps: "
    "as_found from 1.93 to 0.575; competent from 1.92 to 0.48.",
    "as_found 4 samples/s; competent 12 samples/s, 3.00 times as_found.",
], strict=True)))
def test_alt_text_states_the_finding(draw, alt):
    assert draw().alt == alt


def test_the_numbers_stand_in_the_table():
    assert charts.step_bars(REPORTS, unit="ms").table.rows == (
        ("data wait", 62.0, 2.0), ("forward", 18.0, 40.0), ("backward", 20.0, 50.0), ("communication", 0.0, 8.0))
    assert charts.bars_with_interval(BARS).table.rows[1] == ("competent", 12.0, 11.5, 12.4)


def test_a_part_keeps_its_colour_when_others_are_missing():
    def colour(reports):
        bars = charts.step_bars(reports).figure.axes[0].containers
        return {bar.get_label(): bar.patches[0].get_facecolor() for bar in bars}

    assert colour(REPORTS)["backward"] == colour({"run": {"backward": 1.0}})["backward"]


def test_lines_are_thinned_and_steps_without_a_loss_left_out():
    rows = [{"step": step, "loss": loss} for step, loss in enumerate([1.0, None, float("nan"), 0.5], start=1)]
    (line,) = charts.loss_curves({"run": rows}).figure.axes[0].lines
    assert list(line.get_xdata()) == [1, 4]
    assert all(len(line.get_xdata()) == figures.POINTS for line in charts.loss_curves(CURVES).figure.axes[0].lines)
    assert figures.thin(range(10_000))[0] == 0 and figures.thin(range(10_000))[-1] == 9_999


def test_the_html_holds_the_picture_its_alt_text_and_the_table():
    chart = charts.step_bars({"a < b": {"forward": 1.0}})
    html = figures.html(*chart)
    assert 'alt="Largest part of the step: a &lt; b spends 100 % on forward."' in html
    assert "<figcaption>" in html and "<caption" in html
    data = re.search(r"data:image/svg\+xml;base64,([^\"]+)", html)
    assert ElementTree.fromstring(base64.b64decode(data[1])).tag.endswith("svg")


def test_outside_a_notebook_show_prints_the_finding_and_the_table(capsys):
    figures.show(*charts.bars_with_interval(BARS))
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "as_found 4 samples/s; competent 12 samples/s, 3.00 times as_found."
    assert printed[1] == "Values [samples/s]"


def test_pyplot_is_never_loaded():
    program = "import sys, lfhelpers.notebook.charts; print('matplotlib.pyplot' in sys.modules, 'torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False False\n"


def test_pixels_become_a_picture_without_loss():
    pixels = np.arange(2 * 3 * 3).reshape(2, 3, 3)
    assert (np.asarray(Image.open(io.BytesIO(figures.png(pixels)))) == pixels).all()


def test_pictures_stand_side_by_side_with_their_alt_text(monkeypatch):
    shown = []
    monkeypatch.setattr(figures.output, "put", lambda html, text: shown.append((html, text)))
    png, jpeg = b"\x89PNG\r\n\x1a\n1", b"\xff\xd8\xff2"
    figures.show_pictures({"A <red> block.": jpeg, "A plan.": png}, "One sample.")
    [(html, text)] = shown
    assert text == "One sample.\nA <red> block.\nA plan."
    assert [(alt, kind, base64.b64decode(data)) for alt, kind, data in
            re.findall(r'<img alt="([^"]+)" src="data:image/(\w+);base64,([^"]+)"', html)] == [
        ("A &lt;red&gt; block.", "jpeg", jpeg), ("A plan.", "png", png)]

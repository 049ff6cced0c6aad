"""Learning curves: seeds as a band, picture and table from the same points."""

from __future__ import annotations

from lfhelpers.notebook.base_charts import learning_curves

SEEDS = [[{"samples": 0, "seconds": 0.0, "success": 0.2}, {"samples": 64, "seconds": 1.0},
          {"samples": 128, "seconds": 2.0, "success": 0.6}],
         [{"samples": 0, "seconds": 0.0, "success": 0.4}, {"samples": 128, "seconds": 3.0, "success": 0.9}]]


def test_a_band_spans_the_seeds_and_the_table_says_the_same() -> None:
    chart = learning_curves({"competent": SEEDS, "never measured": [[{"samples": 1, "seconds": 1.0}]]}, "success")
    assert chart.table.columns == ("run", "samples", "lowest", "median", "highest")
    assert chart.table.rows[1] == ("competent", 128, 0.6, 0.75, 0.9) and len(chart.table.rows) == 2
    assert "competent from 0.3 to 0.75" in chart.alt
    over_time = learning_curves({"competent": SEEDS}, "success", "seconds")
    assert "seconds of training" in over_time.alt

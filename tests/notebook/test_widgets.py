"""Controls over a draw function: the first result without them, and theirs for each value, from any thread."""

import threading

import pytest

from lfhelpers.errors import LfError
from lfhelpers.notebook import results, widgets
from lfhelpers.notebook.charts import bars_with_interval
from lfhelpers.notebook.figures import svg
from lfhelpers.notebook.tables import Table
from lfhelpers.notebook.widgets import Explorer, explore, rendered


def doubled(share=50, kind="a"):
    if share == 13:
        raise LfError("13 can't be doubled; take another.")
    if share == 0:
        raise ZeroDivisionError("share")
    return f"{kind}: {2 * share} <%>"


def explorer(**ranges):
    return Explorer(doubled, ranges or {"share": (0, 95, 5), "kind": ["a", "b"]}, {"share": "share [%]"})


def test_without_anyone_at_the_controls_the_first_result_stands_alone(capsys):
    drawn = []

    def draw(share=50):
        drawn.append(share)
        return f"{share} %"
    explore(draw, share=(0, 95, 5))
    assert (capsys.readouterr().out, drawn) == ("50 %\n", [50])


@pytest.mark.parametrize(("in_kernel", "headless", "installed", "expected"), [
    (True, False, True, True), (False, False, True, False), (True, True, True, False), (True, False, False, False)])
def test_controls_need_a_kernel_a_reader_and_ipywidgets(monkeypatch, in_kernel, headless, installed, expected):
    class Shell:
        pass
    shell = Shell()
    if in_kernel:
        shell.kernel = object()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    monkeypatch.setattr(results, "headless", lambda: headless)
    monkeypatch.setattr(widgets.importlib.util, "find_spec", lambda name: object() if installed else None)
    assert widgets.interactive() is expected


def test_controls_begin_at_the_defaults_and_draw_for_their_values():
    made = explorer()
    assert [made.controls["share"].value, made.controls["kind"].value] == [50, "a"]
    assert made.controls["share"].description == "share [%]"
    assert not made.controls["share"].continuous_update, "nothing is drawn while the slider is dragged"
    assert widgets.BELOW in made.result.value
    made.controls["share"].value = 60
    assert "<p>a: 120 &lt;%&gt;</p>" in made.result.value
    made.controls["kind"].value = "b"
    assert "<p>b: 120 &lt;%&gt;</p>" in made.result.value


@pytest.mark.parametrize(("share", "words"), [(13, "13 can't be doubled"), (0, "ZeroDivisionError: share")])
def test_a_value_that_can_not_be_drawn_says_why(share, words):
    made = explorer(share=(0, 95, 1))
    made.controls["share"].value = share
    assert 'role="alert"' in made.result.value and words.replace("'", "&#x27;") in made.result.value
    made.controls["share"].value = 20
    assert "a: 40" in made.result.value


def test_a_control_whose_function_gives_no_first_value_is_refused():
    with pytest.raises(KeyError, match="depth"):
        Explorer(doubled, {"depth": (0, 8, 1)}, {})


def test_whole_numbers_get_whole_steps():
    made = Explorer(lambda share=4.0, count=3: "", {"share": (1, 16, 0.5), "count": (0, 8, 1)}, {})
    assert [type(control).__name__ for control in made.controls.values()] == ["FloatSlider", "IntSlider"]


def test_charts_tables_and_sentences_stand_below_each_other():
    chart = bars_with_interval([{"label": "a", "value": 1.0}])
    html, text = rendered([chart, Table.of("Numbers", [{"name": "x", "value": 2}]), "All in all."])
    assert html.count("<img alt=") == 1 and html.count("<table") == 2 and html.endswith("<p>All in all.</p>")
    assert text.startswith(chart.alt) and text.endswith("All in all.")


def test_a_slider_may_draw_while_a_cell_draws():
    """matplotlib's settings are the process's: without a lock one thread would write with the other's."""
    chart = bars_with_interval([{"label": "a", "value": 1.0}])
    alone = svg(chart.figure, "t")
    found: list[str] = []

    def draw():
        found.extend(svg(bars_with_interval([{"label": "a", "value": 1.0}]).figure, "t") for _ in range(2))
    threads = [threading.Thread(target=draw) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {alone} and len(found) == 6


def test_two_controls_changed_at_once_are_drawn_one_after_the_other():
    """JupyterLab may answer each in a thread of its own: the slower drawing must not overwrite the later values."""
    begun, finish, drawn = threading.Event(), threading.Event(), []

    def draw(share=50, kind="a"):
        drawn.append((share, kind))
        if kind == "a":
            begun.set()
            finish.wait(30)
        return f"{kind}: {share}"
    made = Explorer(draw, {"share": (0, 95, 5), "kind": ["a", "b"]}, {})
    first, second = (threading.Thread(target=setattr, args=(made.controls[name], "value", value), daemon=True)
                     for name, value in (("share", 60), ("kind", "b")))
    first.start()
    assert begun.wait(30)
    second.start()
    second.join(0.5)
    assert second.is_alive() and drawn == [(60, "a")], "the second waits while the first is drawn"
    finish.set()
    for thread in (first, second):
        thread.join(30)
    assert drawn == [(60, "a"), (60, "b")] and "<p>b: 60</p>" in made.result.value

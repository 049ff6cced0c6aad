"""Quality inside a run: at its ends, and on a curve where the recipe asks for one."""


def test_a_curve_has_a_point_every_so_many_steps_and_does_not_change_the_run(toy_run):
    _, plain = toy_run("evaluate.samples=4")
    _, curved = toy_run("evaluate.samples=4", "evaluate.every=5")
    points = curved["quality"]["curve"]
    assert [(point["step"], point["samples"]) for point in points] == [(5, 40), (10, 80)]
    assert 0 < points[0]["seconds"] < points[1]["seconds"] and all(point["measuring"] > 0 for point in points)
    assert curved["loss"] == plain["loss"] and curved["quality"]["after"] == plain["quality"]["after"]
    assert "curve" not in plain["quality"]
    ours = set(plain["quality"]["before"])
    assert ours <= set(points[0]) and points[0].keys() - ours <= {"step", "samples", "seconds", "measuring"}


def test_nothing_is_measured_where_nothing_is_asked(toy_run):
    _, summary = toy_run()
    assert summary["quality"] == {}

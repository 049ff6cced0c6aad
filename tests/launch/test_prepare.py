"""The default dataset is rendered where nobody named one, through the command, and only once."""

from lfhelpers.data import Manifest
from lfhelpers.launch import prepare as preparing
from lfhelpers.recipe import recipe


def test_the_default_set_is_rendered_on_first_use_and_then_taken(runs_root, monkeypatch, capfd):
    monkeypatch.setattr(preparing, "DEFAULT_SAMPLES", 4)
    job = preparing.prepare(recipe("competent"), 1)
    assert job.data.path == str(runs_root / "data" / "tabletop")
    assert f"no dataset yet: rendering 4 tabletop samples into {job.data.path}, once" in capfd.readouterr().out
    manifest = Manifest.load(job.data.path)
    assert manifest.samples == 4 and manifest.read(0)["front.jpg"].startswith(b"\xff\xd8")
    again = preparing.prepare(recipe("competent"), 1)
    assert again.data.path == job.data.path and "no dataset yet" not in capfd.readouterr().out

"""The default dataset is rendered once, also where two jobs want it at the same moment."""

import os
import threading

from lfhelpers.data.locks import Locked
from lfhelpers.launch import prepare


def test_a_job_waits_for_the_one_that_renders_the_default_dataset(runs_root, monkeypatch, capsys):
    rendered = []

    def render():
        rendered.append(threading.current_thread().name)
        prepare.default_folder().mkdir()
        (prepare.default_folder() / "manifest.json").touch()

    monkeypatch.setattr(prepare, "_render_default", render)
    prepare.default_folder().parent.mkdir(parents=True)
    second = threading.Thread(target=prepare._make_default)
    with Locked(prepare.default_folder().with_name(".tabletop.wanted"), os.O_RDWR | os.O_CREAT) as first:
        assert first.exclusive()
        second.start()
        second.join(0.5)
        assert second.is_alive() and rendered == []
        render()
    second.join(10)
    assert rendered == ["MainThread"]
    assert "another process renders the dataset" in capsys.readouterr().out

"""The default dataset is rendered where nobody named one, through the command, and once, however many ask for it."""

import os
import queue
import subprocess
import sys
import threading

import pytest

from lfhelpers.data import Manifest
from lfhelpers.data.locks import Locked
from lfhelpers.launch import prepare
from lfhelpers.measure import formats
from lfhelpers.recipe import recipe


def test_a_job_waits_for_the_one_that_renders_the_default_dataset(runs_root, monkeypatch):
    rendered, said = [], queue.Queue()

    def render():
        rendered.append(threading.current_thread().name)
        prepare.default_folder().mkdir()
        (prepare.default_folder() / "manifest.json").touch()

    monkeypatch.setattr(prepare, "_render_default", render)
    monkeypatch.setattr(prepare, "print", lambda line, flush: said.put(line), raising=False)
    prepare.default_folder().parent.mkdir(parents=True)
    second = threading.Thread(target=prepare._make_default)
    with Locked(prepare.default_folder().with_name(".tabletop.wanted"), os.O_RDWR | os.O_CREAT) as first:
        assert first.exclusive()
        second.start()
        assert said.get() == f"another process renders the dataset into {prepare.default_folder()}; waiting for it"
        assert second.is_alive() and rendered == []
        render()
    second.join()
    assert rendered == ["MainThread"] and said.empty()


def test_the_default_set_is_rendered_on_first_use_and_then_taken(runs_root, monkeypatch, capfd):
    monkeypatch.setattr(prepare, "DEFAULT_SAMPLES", 4)
    job = prepare.prepare(recipe("competent"), 1)
    assert job.data.path == str(runs_root / "data" / "tabletop")
    assert f"no dataset yet: rendering 4 tabletop samples into {job.data.path}, once" in capfd.readouterr().out
    manifest = Manifest.load(job.data.path)
    assert manifest.samples == 4 and manifest.read(0)["front.jpg"].startswith(b"\xff\xd8")
    again = prepare.prepare(recipe("competent"), 1)
    assert again.data.path == job.data.path and "no dataset yet" not in capfd.readouterr().out


@pytest.mark.parametrize(("hosts", "choose", "mode"), [(1, True, "fp32"), (2, True, "auto"), (1, False, "auto")])
def test_a_precision_left_to_the_machine_is_settled_where_ranks_will_run(
        tabletop_shards, monkeypatch, hosts, choose, mode):
    """This may be none of several hosts, or the login node of a cluster."""
    monkeypatch.setattr(formats, "cpu_flags", frozenset)
    job = recipe("competent", f"data.path={tabletop_shards}", device="cpu")
    assert prepare.prepare(job, 1, hosts, choose).precision.mode == mode


def test_who_prepares_a_job_does_not_import_torch(tabletop_shards):
    """It takes seconds, and a launcher has no need of it."""
    code = ("import sys; from lfhelpers.launch.prepare import prepare; from lfhelpers.recipe import recipe; "
            "job = prepare(recipe('competent', 'data.path=' + sys.argv[1]), 1); "
            "assert job.precision.mode != 'auto' and 'torch' not in sys.modules")
    subprocess.run([sys.executable, "-c", code, str(tabletop_shards)], check=True)

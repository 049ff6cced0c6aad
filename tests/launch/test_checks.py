"""What is refused before a run folder is made or a process is started."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.launch import checks, launch
from lfhelpers.launch.checks import check, count_visible, visible_gpus
from lfhelpers.recipe import recipe

JOB = recipe(device="cpu")
UUIDS = ["GPU-0a11", "GPU-1b22", "GPU-2c33"]


@pytest.fixture
def taken():
    """A port on which somebody listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def refusal(job=JOB, nproc=1, **options) -> str:
    with pytest.raises(LfError) as caught:
        launch(job, nproc, module="never.started", **options)
    return str(caught.value)


def test_no_ranks_is_refused_before_a_folder_is_made(place):
    assert refusal(nproc=0) == "nproc = 0: a job needs at least 1 rank."
    assert not place.exists()


def test_a_port_in_use_is_refused_by_launcher_and_supervisor(place, taken):
    sentence = f"port {taken} is already in use; give another, or none to have a free one chosen."
    assert refusal(port=taken) == sentence
    assert "is no TCP port" in refusal(port=70_000)
    assert not place.exists()
    run = runs.create(JOB)
    supervisor = [sys.executable, "-m", "lfhelpers.launch.supervisor"]
    done = subprocess.run([*supervisor, str(run.path), "--port", str(taken), "--", "nothing"],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr, done.stdout) == (2, sentence + "\n", "")
    assert not (run.path / "logs" / "torchrun.log").exists()


def test_a_port_whose_last_user_just_ended_is_free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()  # the side that closes first keeps the port in TIME_WAIT
    check(JOB, 1, port)


def test_a_place_where_no_folder_can_be_made_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "runs", Path("/proc/runs")):
        monkeypatch.setenv("LFHELPERS_RUNS", str(place))
        assert refusal().startswith(f"no run folder can be made in {place}: ")


def test_a_run_whose_logs_cannot_be_written_is_not_left_running():
    run = runs.create(JOB)
    (run.path / "logs").rmdir()
    assert refusal(resume=run) == f"the job can't be started in {run.path}: No such file or directory."
    assert (run.status["state"], run.status["reason"]) == ("failed", "not started: No such file or directory")


def test_a_run_is_resumed_only_when_it_is_over_and_with_its_own_recipe():
    run = runs.create(JOB)
    run.set_status("running", pid=os.getpid())
    assert "is still running" in refusal(resume=run)
    run.set_status("stopped")
    assert "batch.micro = 16 there, 8 here" in refusal(JOB.with_("batch.micro=8"), resume=run)


def test_more_ranks_than_gpus_are_refused_where_there_are_gpus(monkeypatch):
    monkeypatch.setattr(checks, "visible_gpus", lambda: (2, "NVML"))
    for device in ("auto", "cuda"):
        assert refusal(recipe(device=device), 3).startswith("nproc = 3, but visible GPUs = 2 (NVML)")
        check(recipe(device=device), 2, None)
    check(JOB, 3, None)
    monkeypatch.setattr(checks, "visible_gpus", lambda: (0, "NVML: none"))
    assert refusal(recipe(device="cuda")).startswith("recipe.device = 'cuda', but no GPU is visible (NVML: none)")
    check(recipe(device="auto"), 3, None)


@pytest.mark.parametrize(("listed", "count"), [
    ("0,1,2", 3), ("1", 1), ("", 0), ("-1", 0), ("0,-1,1", 1), ("0,9,1", 1), ("GPU-1b,0", 2), ("GPU-ff", 0),
    ("MIG-x", 1)])
def test_visible_devices_as_cuda_reads_them(listed, count):
    assert count_visible(listed, UUIDS) == count


@given(st.lists(st.integers(-1, 5)))
def test_devices_after_an_unknown_one_do_not_count(indices):
    known = [index in range(3) for index in indices]
    expected = known.index(False) if False in known else len(known)
    assert count_visible(",".join(map(str, indices)), UUIDS) == expected


def test_counting_gpus_makes_no_cuda_context_and_loads_no_torch():
    code = ("import sys; from lfhelpers.launch import supervisor, checks; "
            "print(checks.visible_gpus()[0], 'torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f"{visible_gpus()[0]} False\n"

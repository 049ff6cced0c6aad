"""Jobs launched from cells of a real Jupyter kernel: the line, Stop, a failure, and the kernel's restart and death."""

import os
import re
import signal
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager

from lfhelpers import runs
from tests.launch.jobs import belonging, left_after, supervisor_of, until, working

LAUNCH = """
from lfhelpers.launch import LaunchError, launch
from lfhelpers.recipe import recipe
job = recipe(device="cpu")
run = launch(job, 2, module="ranks.sleeper")
"""
# What the cell shows, line by line. Stop reaches the supervisor too, which may have ended the job before the last look.
LINES = (r"(starting, \d+ s\n)+(step \d+/\d+  loss 0\.5000  320\.0 samples/s  data wait 25 %  ETA .+\n)+"
         r"(stopped at step \d+/\d+: the supervisor got SIGINT\n)?")


@pytest.fixture(scope="module")
def kernel(place: Path):
    """A started kernel and its client."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready()
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def outputs(client, request: str) -> list[dict]:
    """All messages that a cell has published, until it is idle."""
    found = []
    while True:
        message = client.get_iopub_msg(timeout=30)
        if message["parent_header"].get("msg_id") == request:
            if message["content"].get("execution_state") == "idle":
                return found
            found.append(message)


def of_kind(messages: list[dict], kind: str) -> list[dict]:
    return [message["content"] for message in messages if message["msg_type"] == kind]


def launched(client):
    """The request of a cell that launches a job, its run once all ranks work, and its supervisor."""
    before = len(runs.find())
    request = client.execute(LAUNCH)
    (run,) = until(lambda: runs.find()[before:])
    until(lambda: working(run), run)
    return request, run, supervisor_of(run)


def test_stop_ends_everything_and_the_cell_says_where(kernel, capsys):
    manager, client = kernel
    request, run, supervisor = launched(client)
    assert len(belonging(run)) == 6
    manager.interrupt_kernel()
    left, took = left_after(run, supervisor)
    with capsys.disabled():
        print(f"\nStop: all processes ended after {took:.2f} s")
    assert left == set()
    messages = outputs(client, request)
    (shown,) = of_kind(messages, "display_data")  # one output, whose text is replaced
    assert shown["data"] == {"text/plain": "starting"}
    lines = "".join(f"{update['data']['text/plain']}\n" for update in of_kind(messages, "update_display_data"))
    assert re.fullmatch(LINES, lines), lines
    (printed,) = of_kind(messages, "stream")
    assert printed["text"] == f"stopped at step {run.steps()[-1]['step']}\n"
    assert [error["ename"] for error in of_kind(messages, "error")] == ["KeyboardInterrupt"]
    assert (run.status["state"], run.status["reason"]) == ("stopped", "the supervisor got SIGINT")


def test_a_restart_leaves_nothing(kernel, capsys):
    manager, client = kernel
    _, run, supervisor = launched(client)
    manager.restart_kernel()
    left, took = left_after(run, supervisor)
    with capsys.disabled():
        print(f"\nrestart: all processes ended after {took:.2f} s")
    assert left == set()
    client.wait_for_ready()


def test_a_failure_is_shown_by_the_ranks_words_alone(kernel):
    _, client = kernel
    code = "from lfhelpers.launch import LaunchError; raise LaunchError(None, 'rank 1 failed:\\n\\nValueError: no')"
    (error,) = of_kind(outputs(client, client.execute(code)), "error")
    assert error["traceback"] == ["rank 1 failed:\n\nValueError: no"]


def test_a_killed_kernel_leaves_nothing(kernel, capsys):
    manager, client = kernel
    _, run, supervisor = launched(client)
    os.kill(manager.provisioner.pid, signal.SIGKILL)
    left, took = left_after(run, supervisor)
    with capsys.disabled():
        print(f"\nkernel killed: all processes ended after {took:.2f} s")
    assert left == set()
    assert run.status["reason"] == "the process that launched it is gone"

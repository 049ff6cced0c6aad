"""Each call has a process of its own, whose mistakes, crashes and hangs come back as one sentence."""

import os
import signal
import subprocess
import time

import psutil
import pytest
import torch

from lfhelpers.errors import LfError
from lfhelpers.measure import isolated
from lfhelpers.processes import Member


def pair(left, right):
    return os.getpid(), left + right


def raising(error):
    raise error


def crashing():
    os.write(2, b"something first\nmalloc(): broken\n\n")
    os.kill(os.getpid(), signal.SIGKILL)


def hanging(pids):
    pids.write_text(str(subprocess.Popen(["sleep", "100"]).pid))
    time.sleep(100)


def answering_and_leaving():
    return subprocess.Popen(["sleep", "100"]).pid


def running(pid):
    member = Member.of(pid)
    return member is not None and member.alive


def test_the_answer_comes_from_another_process():
    pid, value = isolated.call(pair, [1], [2])
    assert value == [1, 2] and pid != os.getpid() and not psutil.pid_exists(pid)


@pytest.mark.parametrize(("error", "sentence"), [(LfError("no shard 'x'."), "^no shard 'x'.$"),
                                                 (ValueError("odd"), "^ValueError: odd$")])
def test_what_is_raised_comes_back_as_a_sentence(error, sentence):
    with pytest.raises(LfError, match=sentence):
        isolated.call(raising, error)


def test_a_crash_is_named_with_its_last_words():
    with pytest.raises(LfError, match=r"its process was ended by SIGKILL: malloc\(\): broken"):
        isolated.call(crashing)


def test_a_hang_is_ended_with_all_it_started(tmp_path, monkeypatch):
    pid, wait = tmp_path / "pid", isolated.wait
    pid.touch()

    def once_started(ends, timeout):
        while not pid.read_text() and not wait(ends, 0.01):
            pass
        return wait(ends, timeout)

    monkeypatch.setattr(isolated, "wait", once_started)
    with pytest.raises(LfError, match="did not end within 1 s"):
        isolated.call(hanging, pid, timeout=1)
    assert not running(int(pid.read_text()))


def test_what_an_answer_leaves_behind_is_ended():
    assert not running(isolated.call(answering_and_leaving))


def summed(size):
    return (torch.ones(size, size) @ torch.ones(size, size)).sum().item()


def test_it_computes_after_the_caller_has_used_torchs_threads():
    """The threads of the caller's pool aren't there after a fork; waiting for them would never end."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert isolated.call(summed, 512, timeout=30) == summed(512) == 512.0**3
        assert isolated.call(summed, 512, timeout=30) == 512.0**3, "and once more, now that the caller has computed"
    finally:
        torch.set_num_threads(threads)

"""Process trees of real processes: found, ended for certain, and never mistaken for others."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from lfhelpers import processes
from lfhelpers.processes import Member, descendants, end_tree

IGNORE_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


def python(code: str, **options) -> subprocess.Popen:
    """A python process that runs `code`, after it printed a first line."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **options)
    process.first = process.stdout.readline().strip()
    return process


def nested(code: str, session: bool = False) -> str:
    """Code of a process that starts another one running `code`, prints its pid and sleeps."""
    return (f"import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', {code!r}], "
            f"stdout=subprocess.PIPE, start_new_session={session}); child.stdout.readline(); "
            f"print(child.pid, flush=True); time.sleep(60)")


SLEEP = "import time; print('ready', flush=True); time.sleep(60)"


def test_a_tree_is_ended_though_a_child_has_its_own_session_and_ignores_term():
    top = python(nested(nested(IGNORE_TERM + SLEEP, session=True)))
    child = Member.of(int(top.first))
    (grandchild,) = descendants(child.pid)
    assert descendants(top.pid) == {child, grandchild}
    assert end_tree(Member.of(top.pid), {child, grandchild}, grace=0.3) == set()
    assert not child.alive and not grandchild.alive
    assert top.wait() == -signal.SIGTERM


def test_a_child_that_is_born_while_the_tree_ends_is_ended_too(tmp_path: Path, monkeypatch):
    # On TERM the top starts another process, tells its pid and goes on sleeping.
    late = tmp_path / "late"
    top = python(f"""
import pathlib, signal, subprocess, time
def on_term(*_):
    pathlib.Path({str(late)!r}).write_text(str(subprocess.Popen(["sleep", "60"]).pid))
signal.signal(signal.SIGTERM, on_term)
print("ready", flush=True)
time.sleep(60); time.sleep(60)
""")
    looks = []

    def clock() -> float:
        """Stands still until the child is born and another look has found it; then the grace is over."""
        looks.append(late.exists() and late.read_text() != "")
        return 1.0 if looks.count(True) > 1 else 0.0

    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
    known: set[Member] = set()
    assert end_tree(Member.of(top.pid), known, grace=0.5) == set()
    born = [member for member in known if member.pid == int(late.read_text())]
    assert len(born) == 1 and not born[0].alive


def test_orphans_are_found_under_the_process_that_adopts_them():
    # The middle process ends at once; its child must show up among ours, not get lost to init.
    code = f"""
import os, subprocess, sys, time
from lfhelpers.processes import Member, adopt_orphans, descendants, end_tree
assert adopt_orphans() == (True, "")
middle = subprocess.Popen([sys.executable, "-c", {nested(SLEEP)!r}], stdout=subprocess.PIPE)
orphan = Member.of(int(middle.stdout.readline()))
top = Member.of(middle.pid)
middle.kill(); middle.wait()
assert descendants(os.getpid()) == {{orphan}}
assert end_tree(top, set(), grace=1.0, search=os.getpid()) == set()
print(orphan.alive)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_a_reused_pid_is_not_signalled():
    stranger = python(SLEEP)
    earlier = Member(stranger.pid, Member.of(stranger.pid).started - 100)
    earlier.send(signal.SIGKILL)
    assert end_tree(earlier, set(), grace=0.1) == set()
    assert not earlier.alive and stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_a_zombie_has_ended():
    child = python("print('over')")
    member = Member(child.pid, time.time())
    while Member.of(child.pid) and member.alive:
        time.sleep(0.01)
    assert Member.of(child.pid) is not None and not member.alive  # still in the table until it is waited for
    child.wait()
    assert Member.of(child.pid) is None


def test_a_member_survives_the_way_through_text():
    me = Member.of(os.getpid())
    assert Member.parse(str(me)) == me


def test_a_child_dies_with_its_parent():
    child = f"from lfhelpers.processes import die_with_parent; die_with_parent(); {SLEEP}"
    parent = python(nested(child))
    member = Member.of(int(parent.first))
    assert member.alive
    parent.kill()
    parent.wait()
    for _ in range(500):
        if not member.alive:
            break
        time.sleep(0.01)
    assert not member.alive


def test_a_child_that_comes_too_late_for_its_parent_ends_at_once():
    def child(parent: int, **more: str) -> tuple[int, str]:
        code = f"from lfhelpers.processes import die_with_parent; print(die_with_parent({parent}))"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | more)
        return run.returncode, run.stdout

    gone = python("print('over')")
    gone.wait()
    assert child(gone.pid) == (-signal.SIGKILL, "")
    assert child(os.getpid(), LFHELPERS_SUPERVISOR=f"{gone.pid}:{time.time()}") == (-signal.SIGKILL, "")
    assert child(os.getpid(), LFHELPERS_SUPERVISOR=str(Member.of(os.getpid()))) == (0, "(True, '')\n")


def test_kill_is_sent_though_the_time_for_it_passed_in_one_pause(monkeypatch):
    """A machine that is busy, or slept, may go on so late."""
    top, clock = python(SLEEP), itertools.count(step=100)
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=clock.__next__, sleep=time.sleep))
    end_tree(Member.of(top.pid), set())
    assert top.wait() == -signal.SIGKILL

"""Jobs on two hosts: two network namespaces of this machine that share its file system and nothing else."""

import contextlib
import inspect
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.launch import crew, hosts, start, supervisor, written
from lfhelpers.launch.crew import Crew
from lfhelpers.launch.hosts import Place, commands, here, interface_to
from lfhelpers.processes import descendants, end_tree
from lfhelpers.recipe import recipe
from lfhelpers.runs import Run
from tests.launch.jobs import belonging, until

SCRIPTS = Path(__file__).parent
ROOT = SCRIPTS.parents[1]
A, B = "10.213.7.1", "10.213.7.2"
JOB = recipe(device="cpu", steps=80)
RULES = {"SILENT": crew.SILENT, "GONE": crew.GONE}
LAUNCH = """
import sys
from lfhelpers.launch import LaunchError, launch
from lfhelpers.recipe import recipe
try:
    run = launch(recipe(sys.argv[1]), 1, hosts=[{a!r}, {b!r}], watch=False, module=sys.argv[2], args=sys.argv[3:])
except LaunchError as error:
    print(error)
    sys.exit(1)
"""


# ---- what needs no network


def place(node: int = 0, names: tuple[str, ...] = ("a", "b")) -> Place:
    return Place(names, node, 29400, "s1")


@pytest.fixture
def run(tmp_path, monkeypatch) -> Run:
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path / "runs"))
    return runs.create(JOB)


def test_torchrun_meets_at_the_first_host():
    assert place(1).torchrun() == [
        "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a:29400", "--rdzv-id=s1", "--rdzv-conf=is_host=false",
        "--local-addr=b"]
    assert "--rdzv-conf=is_host=true" in place(0).torchrun()
    assert place(0, ("a",)).torchrun() == ["--standalone", "--local-addr=127.0.0.1"]


def test_torchrun_understands_what_it_is_given():
    from torch.distributed.run import get_args_parser

    options = get_args_parser().parse_args([*place(1).torchrun(), "--nproc-per-node=2", "-m", "module"])
    assert (options.nnodes, options.rdzv_backend, options.rdzv_endpoint) == ("2", "c10d", "a:29400")


def test_a_command_names_all_that_a_host_must_know(run):
    first, second = commands(run, [place(0), place(1)], 4, ["lfhelpers.train", str(run.path)])
    folder, program = second.split(" && ")
    assert shlex.split(folder) == ["cd", os.getcwd()]
    assert shlex.split(program) == [
        sys.executable, "-m", "lfhelpers.launch.supervisor", str(run.path), "--nproc", "4", "--hosts", "a,b", "--node",
        "1", "--port", "29400", "--start", "s1", "--detached", "--", "lfhelpers.train", str(run.path)]
    assert "--node 0" in first


@pytest.mark.parametrize("names", [["a"], ["a", "a"], ["a", ""]])
def test_hosts_are_two_or_more_different_ones(names):
    with pytest.raises(LfError, match="name two or more hosts, each once"):
        hosts.check(names)


def test_this_machine_is_known_by_name_and_address():
    assert here(["elsewhere.invalid", os.uname().nodename]) == 1
    assert here(["127.0.0.1", "elsewhere.invalid"]) == 0
    assert here(["elsewhere.invalid", "nowhere.invalid"]) is None
    assert interface_to("127.0.0.1") == "lo"


def test_a_job_for_other_hosts_is_written_and_not_started(run, capsys):
    with pytest.raises(LfError, match=r"none of the hosts c\.invalid, d\.invalid"):
        start(JOB, hosts=["c.invalid", "d.invalid"], module="never.started")
    made = written(JOB, 2, ["c.invalid", "d.invalid"], module="never.started")
    assert made.status["state"] == "stopped"
    assert made.status["reason"] == "not started yet: waits for c.invalid, d.invalid"
    text = (made.path / "hosts" / "commands.txt").read_text()
    assert text == capsys.readouterr().out
    head, c, d, within = text.splitlines()
    assert head.startswith("2 hosts x 2 ranks share ") and "meet at c.invalid:29400" in head
    assert c.startswith("c.invalid: cd ") and d.startswith("d.invalid: cd ")
    assert "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=c.invalid:29400" in within


def test_the_command_line_prints_what_to_run_and_starts_nothing_elsewhere(runs_root, toy, tmp_path, command):
    recipe_file = tmp_path / "toy.toml"
    recipe_file.write_text(toy.to_toml())
    code, out, err = command("launch", f"recipe={recipe_file}", "--hosts", "c.invalid,d.invalid", "--nproc", 2)
    assert (code, err) == (0, "")
    (made,) = runs.find()
    assert [line for line in out.splitlines() if line.startswith("d.invalid: cd ") and "--node 1" in line]
    assert out.splitlines()[-1] == f"run folder: {made.path}"
    assert command("launch", f"recipe={recipe_file}", "--hosts", "alone")[0] == 2


# ---- supervisors in threads, a hundred times as fast


@pytest.fixture
def quick(monkeypatch):
    """No silence is too long, since a busy machine may hold up a thread for any number of looks."""
    monkeypatch.setattr(crew, "LOOK", 0.02)
    for name in ("SILENT", "GONE"):
        monkeypatch.setattr(crew, name, 10**9)


@pytest.fixture
def strict(quick, monkeypatch):
    """Silence counts as it does in a job: for what looks at it from one thread alone."""
    for name, looks in RULES.items():
        monkeypatch.setattr(crew, name, looks)


def together(*crews: Crew) -> list[str | Exception | None]:
    """Each crew's meet(), at once: what it returned or raised."""
    answers: list = [None] * len(crews)

    def meet(index: int, one: Crew) -> None:
        try:
            answers[index] = one.meet(lambda: time.sleep(0.01))
        except LfError as error:
            answers[index] = error

    threads = [threading.Thread(target=meet, args=item, daemon=True) for item in enumerate(crews)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_supervisors_meet_and_say_how_it_ended(run, quick):
    a, b = Crew(run, place(0)), Crew(run, place(1))
    assert a.missing == ["b"]
    assert together(a, b) == [None, None]
    assert a.missing == [] and a.lost() is None
    ended = threading.Thread(target=b.end, args=(None, 0))
    ended.start()
    assert a.end(None, 0) == []
    ended.join()
    assert a.done and b.done and a.speaks and not b.speaks


def test_words_of_an_earlier_start_count_for_nothing(run, quick):
    old = Crew(run, Place(("a", "b"), 1, 29400, "earlier"))
    old.look()
    a = Crew(run, place(0))
    a.look()
    assert a.missing == ["b"]


def test_other_versions_are_refused_on_both_sides(run, quick, monkeypatch):
    a = Crew(run, place(0))
    monkeypatch.setattr(crew, "versions", lambda: {**a._word["versions"], "torch": "1.0"})
    b = Crew(run, place(1))
    first, second = together(a, b)
    assert str(first).startswith("b has torch 1.0, and a has ") and "install the same on all hosts" in str(first)
    assert str(second).startswith("a has torch ") and str(second).endswith(
        "and b has 1.0; install the same on all hosts.")


def test_a_host_that_never_comes_is_named(run, quick, monkeypatch):
    monkeypatch.setattr(crew, "COME", 0.1)
    (answer,) = together(Crew(run, place(0)))
    assert str(answer).startswith("b did not come within 0 s; run each host's command")


def test_a_stop_on_one_host_ends_the_others_by_name(run, quick):
    a, b = Crew(run, place(0)), Crew(run, place(1))
    together(a, b)
    answers: list = []
    ending = threading.Thread(target=lambda: answers.append(b.end("the supervisor got SIGINT", -15)))
    ending.start()
    until(lambda: a.lost())
    assert a.blamed == "b: the supervisor got SIGINT"
    assert a.end(None, -15) == ["b: the supervisor got SIGINT"]
    ending.join()
    assert answers == [["the supervisor got SIGINT"]]
    assert not a.done and a.speaks


def test_a_host_that_says_nothing_more_is_gone_and_the_next_one_speaks(run, strict):
    a, b = Crew(run, place(0)), Crew(run, place(1))
    together(a, b)
    until(lambda: b.lost())
    assert b.blamed == f"a is gone: no word from it for {crew.GONE * crew.LOOK:.0f} s"
    assert b.end(None, 1) == []
    assert b.silent == ["a"] and b.speaks and not b.done


def test_it_is_gone_sooner_where_the_ranks_here_have_ended(run, strict):
    a, b = Crew(run, place(0)), Crew(run, place(1))
    together(a, b)
    until(lambda: b.lost() or b._heard[0]["state"] == "running")  # its last word
    assert b.end(None, 1) == [] and b._quiet == {0: RULES["SILENT"]}
    assert b.silent == ["a"] and b.speaks and not b.done


def test_the_rules_leave_a_host_less_than_ten_seconds_after_anothers_last_word():
    kill = inspect.signature(end_tree).parameters["kill"].default
    assert RULES["SILENT"] * crew.LOOK + supervisor.GRACE + kill < 10


# ---- real jobs in two namespaces


def sh(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def namespaces():
    """Two network namespaces joined by a cable; skipped where none can be made."""
    names = [f"lf-{os.getpid()}-{letter}" for letter in "ab"]
    try:
        for name in names:
            sh("ip", "netns", "add", name)
        sh("ip", "link", "add", "lf0", "netns", names[0], "type", "veth", "peer", "name", "lf1", "netns", names[1])
        for name, device, address in zip(names, ("lf0", "lf1"), (A, B), strict=True):
            inside = ["ip", "-n", name]
            sh(*inside, "address", "add", f"{address}/24", "dev", device)
            sh(*inside, "link", "set", device, "up")
            sh(*inside, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", "") or str(error)
        pytest.skip(f"two network namespaces need root and iproute2: {why.strip()}")
    yield names
    for name in names:
        for pid in subprocess.check_output(["ip", "netns", "pids", name], text=True).split():
            os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "delete", name], check=False)


class TwoHosts:
    """One job on both hosts: launched on A, and on B by the line that A printed."""

    def __init__(self, namespaces, folder: Path, job, *module: str) -> None:
        self.namespaces = namespaces
        folder.mkdir()
        (folder / "job.toml").write_text(job.to_toml())
        self._environment = {**os.environ, "LFHELPERS_RUNS": str(folder / "runs"), "PYTHONPATH": str(SCRIPTS)}
        launch = [sys.executable, "-c", LAUNCH.format(a=A, b=B), str(folder / "job.toml"), *module]
        self.a = self._on(0, launch, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        (file,) = until(lambda: list(folder.glob("runs/*/hosts/commands.txt")), self.a)
        self.run = Run(file.parents[1])
        (line,) = [line for line in file.read_text().splitlines() if line.startswith(B)]
        self.b = self._on(1, ["sh", "-c", line.removeprefix(f"{B}: ")], cwd="/", stdout=subprocess.DEVNULL)

    def _on(self, host: int, command: list[str], **options) -> subprocess.Popen:
        return subprocess.Popen(["ip", "netns", "exec", self.namespaces[host], *command], env=self._environment,
                                stdin=subprocess.DEVNULL, **options)

    def processes(self, host: int) -> set[int]:
        """This job's processes on one host; other jobs may be there, too."""
        there = subprocess.check_output(["ip", "netns", "pids", self.namespaces[host]], text=True).split()
        own = (self.a, self.b)[host].pid
        return {int(pid) for pid in there} & (belonging(self.run) | {own, *(m.pid for m in descendants(own))})

    def pull_the_plug(self, host: int) -> None:
        """End all of it at once, as a power cut would: stopped first, so that none can tell of another's end."""
        there = self.processes(host)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in there:
                with contextlib.suppress(ProcessLookupError):  # the system ends some with their parents
                    os.kill(pid, number)


@pytest.fixture(scope="module")
def jobs(namespaces, toy, tmp_path_factory):
    """Three jobs on the two hosts and the first one's twin on one host, all at once, to share the waiting."""
    folder = tmp_path_factory.mktemp("hosts")
    endless = JOB.with_("steps=2000")
    started = {"learns": TwoHosts(namespaces, folder / "learns", toy, "lfhelpers.train"),
               "a dies": TwoHosts(namespaces, folder / "a", endless, "ranks.meeting"),
               "b dies": TwoHosts(namespaces, folder / "b", endless, "ranks.meeting")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LFHELPERS_RUNS", str(folder / "alone"))
        started["alone"] = start(toy, 2)
    return started


def test_two_hosts_learn_what_two_ranks_of_one_host_learn(jobs):
    there = jobs["learns"]
    assert there.a.wait() == 0 and there.b.wait() == 0
    assert there.run.status["state"] == "done" and there.run.summary["ranks"] == 2
    losses = [row["loss"] for row in there.run.steps()]
    assert len(losses) == 12 and losses == [row["loss"] for row in jobs["alone"].wait().steps()]
    assert f"--rdzv-endpoint={A}:" in (there.run.path / "logs" / "torchrun-1.log").read_text()
    assert (there.run.path / "logs" / "rank-1.log").read_text().startswith("--- rank 1 of 2")


def test_a_host_without_power_ends_the_other_by_name(jobs):
    both = [jobs["a dies"], jobs["b dies"]]
    logs = [there.run.path / "logs" / f"rank-{rank}.log" for there in both for rank in (0, 1)]
    until(lambda: all(log.exists() and "exchange 20" in log.read_text() for log in logs),
          *(host for there in both for host in (there.a, there.b)))
    for dead, there in enumerate(both):
        there.pull_the_plug(dead)
    for alive, there in ((1, both[0]), (0, both[1])):
        (there.a, there.b)[alive].wait()
        assert there.processes(alive) == set(), "its supervisor has ended all before itself"
    for dead, there in zip((A, B), both, strict=True):
        status = json.loads((there.run.path / "status.json").read_text())
        assert status["state"] == "failed"
        assert status["reason"] == f"{dead} is gone: no word from it, and the ranks here lost their peers"
        assert "onnection" in status["report"]

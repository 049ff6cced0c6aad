"""A link slowed on purpose: what is declared, what it does to every collective, and that nobody can overlook it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers import runs
from lfhelpers.diagnose import compare, diagnose
from lfhelpers.errors import LfError
from lfhelpers.launch import launch
from lfhelpers.levers import paced as pacing
from lfhelpers.levers.slow_link import NCCL, Wire, emulated, header, measure, parse, undeclared
from lfhelpers.measure import link
from lfhelpers.measure.link import Link
from lfhelpers.recipe import recipe
from lfhelpers.train.loop import train
from tests.train.toy import ALONE

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


@given(gb_s=st.floats(0.001, 900).map(lambda value: round(value, 3)), us=st.integers(0, 10_000))
def test_a_wire_is_what_its_text_says(gb_s, us):
    wire = parse(f"gloo:{gb_s}GB/s,{us}us")
    assert isinstance(wire, Wire)
    assert (wire.bandwidth, wire.latency) == (pytest.approx(gb_s * 1e9), pytest.approx(us / 1e6))
    assert parse(f"gloo:{gb_s}GB/s").latency == 0
    assert recipe("competent", f"ddp.slow_link=gloo:{gb_s}GB/s,{us}us").ddp.slow_link is not None


@pytest.mark.parametrize("text", ["gloo:0GB/s", "gloo:0.0GB/s", "gloo:fast", "gloo:1GB", "nccl:slow", "1GB/s", "nccl"])
def test_what_is_no_link_is_refused_by_recipe_and_lever(text):
    with pytest.raises(LfError, match=r"recipe field 'ddp\.slow_link' = .*write gloo:0\.5GB/s"):
        recipe("competent", f"ddp.slow_link={text}")
    with pytest.raises(LfError, match="is no link"):
        parse(text)


def test_a_link_that_the_device_cannot_have_contradicts():
    with pytest.raises(LfError, match="for device='cuda' take 'nccl:socket'"):
        recipe("competent", "ddp.slow_link=gloo:1GB/s", "device=cuda")
    with pytest.raises(LfError, match=r"for device='cpu' take 'gloo:0\.5GB/s'"):
        recipe("competent", "ddp.slow_link=nccl:shm", "device=cpu")
    for text, device in (("gloo:1GB/s", "cuda"), ("nccl:shm", "cpu")):
        with pytest.raises(LfError, match=f"does not go with a job on {device}"), emulated(text, device):
            pass


def test_seconds_on_the_wire_are_those_of_a_ring():
    wire = Wire(bandwidth=1e9, latency=1e-4)
    ranks, size = 4, 10**8
    assert wire.seconds(size, 2 * (ranks - 1) / ranks, 2 * (ranks - 1)) == pytest.approx(0.15 + 6e-4)


@pytest.mark.parametrize("how", NCCL)
def test_nccls_variables_are_set_for_the_block_alone(how, monkeypatch):
    for name in NCCL[how]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")  # as it stands already: kept
    with emulated(f"nccl:{how}", "cuda") as backend:
        assert backend == "nccl"
        assert {name: os.environ.get(name) for name in NCCL[how]} == NCCL[how]
        assert undeclared(f"nccl:{how}") == {}
    assert [name for name in NCCL[how] if name in os.environ] == ["NCCL_NVLS_ENABLE"]


def test_an_environment_that_says_otherwise_is_not_overruled(monkeypatch):
    monkeypatch.setenv("NCCL_P2P_DISABLE", "0")
    clash = pytest.raises(LfError, match="contradicts NCCL_P2P_DISABLE=0 of the environment")
    with clash, emulated("nccl:shm", "cuda"):
        pass
    with emulated(None, "cuda") as backend:
        assert (backend, os.environ["NCCL_P2P_DISABLE"]) == ("nccl", "0")


def test_a_native_link_says_nothing_and_an_undeclared_one_is_found():
    assert measure(None, CPU) == {} and header({}) is None
    assert undeclared(None, {"NCCL_DEBUG": "INFO", "NCCL_P2P_DISABLE": "0"}) == {}
    assert undeclared(None, {"NCCL_P2P_DISABLE": "1", "NCCL_MAX_CTAS": "1"}) == {
        "NCCL_P2P_DISABLE": "1", "NCCL_MAX_CTAS": "1"}
    assert undeclared("nccl:shm", {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}) == {"NCCL_SHM_DISABLE": "1"}
    line = header({"link": {"declared": None, "text": "nccl over 2 ranks, slowed on purpose (NCCL_P2P_DISABLE=1)"}})
    assert line.endswith("nobody declared that: unset it, or set ddp.slow_link")


@pytest.fixture(scope="module")
def paced():
    """What two ranks saw over 20 MB/s and 1 ms a message."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
         "tests.levers.slow_ranks"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def test_results_are_gloos(paced):
    assert paced["backend"].endswith("paced")
    assert paced["results"] == [2.0, [0.0, 1.0], 0.5, 0.0, [0.0, 1.0]]
    assert paced["gradient"] == 1.0
    assert paced["in place"] == [1.5] * 4, "the mean of both ranks, of all that each has scattered and gathered again"


def test_every_collective_takes_its_time_on_the_wire(paced):
    """1 MiB at 20 MB/s: 52 ms and 2 messages for an all-reduce of two ranks, half of that to gather or scatter."""
    whole, seconds = 2**20 / 0.02e9, paced["seconds"]
    assert seconds["all_reduce"] >= whole + 0.002
    assert seconds["backward"] >= whole + 0.002
    for name in ("all_gather", "all_gather_into_tensor", "reduce_scatter", "all_to_all", "scatter in place",
                 "gather in place"):
        assert seconds[name] >= whole / 2 + 0.001, name
    assert seconds["three at once"] >= 3 * (whole + 0.002), "transfers follow each other"
    assert paced["waited"] >= 0.3 + whole + 0.002, "a transfer begins when the last rank is there"


def test_the_link_is_measured_as_declared(paced):
    """A busy machine adds to it, and nothing takes from it; that lfhelpers itself adds nothing is told below."""
    found = Link.from_dict(paced["link"]["measured"])
    assert found.slow == "gloo:0.02GB/s,1000us" and len(found.sizes) == 12
    assert found.gb_s <= 0.02 and found.latency_us >= 2000
    line = header({"link": paced["link"]})
    assert line.startswith("SLOW LINK: ") and "slowed on purpose (gloo:0.02GB/s,1000us)" in line


class Clock:
    """Moved by who sleeps, and by nothing else."""

    now = 0.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_nothing_takes_longer_than_its_wire_where_gloo_takes_no_time(monkeypatch):
    wire, clock, done = parse("gloo:0.02GB/s,1000us"), Clock(), SimpleNamespace(wait=lambda: None)
    for module in (pacing, link):
        monkeypatch.setattr(module, "time", clock)
    group = pacing.Paced(SimpleNamespace(allreduce=lambda tensors: done), 0, 2, wire)
    for name, instead in {"get_world_size": lambda: 2, "get_backend": lambda: "paced", "barrier": lambda: None,
                          "all_reduce": lambda tensor, **options: group.allreduce([tensor])}.items():
        monkeypatch.setattr(dist, name, instead)
    found = Link.from_dict(measure("gloo:0.02GB/s,1000us", CPU)["measured"])
    group.shutdown()
    assert found.times_ms == pytest.approx([1e3 * wire.seconds(size, 1, 2) for size in found.sizes])
    assert found.gb_s == pytest.approx(0.0192, abs=1e-4), "1 MB takes 50 ms and two messages"


def test_a_run_over_it_says_so_in_every_table(toy, runs_root):
    run = launch(toy.with_("ddp.slow_link=gloo:0.001GB/s"), 2, watch=False)
    assert run.summary["link"]["declared"] == "gloo:0.001GB/s"
    assert diagnose(run).table().splitlines()[0].startswith("SLOW LINK: paced")
    assert all("; SLOW LINK: paced" in line for line in str(compare(run, run)).splitlines()[:2])
    assert "SLOW LINK: paced" in (run.path / "logs" / "rank-0.log").read_text()


def test_one_rank_has_no_link_to_slow(toy, runs_root):
    run = runs.create(toy.with_("ddp.slow_link=gloo:0.001GB/s", "steps=3"))
    assert "link" not in train(run.recipe, run, ALONE)
    assert "SLOW LINK" not in diagnose(run).table()

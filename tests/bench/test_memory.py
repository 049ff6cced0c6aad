"""The bench of memory: its parts on this machine's smallest scale, and what its record holds."""

from dataclasses import replace

import pytest
import torch

from lfhelpers.bench import memory, memory_batch
from lfhelpers.errors import LfError
from lfhelpers.levers import activations_choice as choice
from lfhelpers.levers.activations_choice import Point, Survey
from lfhelpers.levers.activations_plan import Block, Profile
from lfhelpers.measure import isolated
from lfhelpers.train import planner

PROFILE = Profile((Block("0", 100, 10, 1.0, 0),), 0, 10.0, 1000, standing=800)
POINTS = (Point("none", "none", {"plan": "none"}, 10.0, 1.0, 1.0, 1.0, 100, 1000, 1000),
          Point("all blocks", "blocks", {"plan": "all"}, 10.7, 1.06, 1.08, 1.07, 40, 940, 930, aa_spread=0.01),
          Point("budget", "budget", {}, trouble="does not fit: needs about 3 GiB"))


@pytest.fixture
def surveyed(monkeypatch):
    """Searches that are over at once, and no children."""
    asked = []

    def survey(job, effort, again):
        assert again, "a bench measures, and goes on where it was stopped"
        asked.append(job)
        return Survey(PROFILE, POINTS)
    monkeypatch.setattr(planner, "survey", survey)
    monkeypatch.setattr(memory.isolated, "call", lambda *_, **__: {"standing": {}})
    return asked


def test_the_plans_part_gives_the_checks_and_keeps_what_failed(surveyed):
    kept = []
    record = memory.run(["plans"], keep=kept.append)
    assert record.checks == {"bytes_saved_at_8pct": pytest.approx(0.6), "bytes_saved_at_20pct": pytest.approx(0.6),
                             "peak_prediction_error": pytest.approx(10 / 940)}
    assert record.row("all blocks", "x step time").value == 1.07 and record.aa_spread == 0.01
    assert record.row("budget").unit == "does not fit: needs about 3 GiB" and record.row("budget").n == 0
    assert memory.survey_of(record.settings["plans"]).points[1] == POINTS[1]
    assert kept == [record] and surveyed[0].batch.micro == memory.CPU.micro


def test_the_widened_part_compares_the_largest_micro_batches(surveyed, monkeypatch):
    """Probes as a line: 10 bytes a sample without a plan, 2 with it, which takes a tenth longer."""
    def probed(probes, micro):
        plan = probes._job.activations.plan != "none"
        probes.ms[micro] = [micro * (1.1 if plan else 1.0)]
        return 800 + (2 if plan else 10) * micro
    in_this_process(monkeypatch, probed)
    monkeypatch.setattr(memory_batch, "_limit", lambda *_: 1000.0)
    found = memory_batch.widened(replace(memory.CPU, most=500))
    assert found.checks == {"micro_batch_gain": 5.0, "samples_per_s_over_no_plan": pytest.approx(1 / 1.1)}
    assert found.notes["plan"]["name"] == "all blocks"
    job = surveyed[0]
    assert job.workload.tune_language and job.workload.text_loss and not job.frozen.ahead


def test_both_sides_are_alike_but_for_the_plan_and_only_points_within_the_limit_count(surveyed, monkeypatch):
    """Without a plan 20 samples fit, and 4 are the fastest; above the limit both sides would be ten times as fast."""
    asked = []

    def probed(probes, micro):
        plan = probes._job.activations.plan != "none"
        asked.append(probes._job.activations)
        used = 800 + (5 if plan else 9 if micro < 9 else 10) * micro  # so two probes promise 22
        probes.ms[micro] = [micro / (10.0 if used > 1000 else 0.9 if plan else 2.0 if micro == 4 else 1.0)]
        return used
    in_this_process(monkeypatch, probed)
    monkeypatch.setattr(memory_batch, "_limit", lambda *_: 1000.0)
    found = memory_batch.widened(replace(memory.CPU, most=500))
    assert {each.loss_rows for each in asked} == {surveyed[0].activations.loss_rows} == {memory.CPU.loss_rows}
    assert found.notes["chosen"] == {"without a plan": {"micro": 4, "samples_per_s": pytest.approx(2000)},
                                     "with the plan": {"micro": 40, "samples_per_s": pytest.approx(900)}}
    assert found.checks == {"micro_batch_gain": 2.0, "samples_per_s_over_no_plan": pytest.approx(0.45)}
    over = [each["micro"] for each in found.notes["without a plan"] if not each["fits"]]
    assert over and not any(row.name == f"without a plan, micro-batch {micro}" for row in found.rows for micro in over)


def test_a_probe_without_room_is_a_point_and_the_next_one_goes_on(monkeypatch):
    """The real trainer: batches of other sizes, one after the other, and memory that ends at seven samples."""
    times = memory_batch._times

    def full(trainer, rounds):
        if trainer.job.batch.micro > 6:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return times(trainer, rounds)
    monkeypatch.setattr(memory_batch, "_times", full)
    job = memory.CPU.job(4, *memory_batch.WIDENED, "activations.loss_rows=64")
    found, ms = isolated.call(memory_batch._searched, job, 1e12, 12, 2, 4, timeout=250)
    assert found.largest == 6 and set(ms) >= {2, 4, 6} and max(ms) == 6
    bytes_of = {point.micro: point.bytes for point in found.points if point.fits}
    assert bytes_of[2] < bytes_of[4] < bytes_of[6], "each is measured at its own size"


def in_this_process(monkeypatch, probed):
    monkeypatch.setattr(memory_batch.isolated, "call", lambda function, *args, timeout: function(*args))
    monkeypatch.setattr(memory_batch._Probes, "probed", probed)


def test_an_unknown_part_is_refused_and_a_failing_one_is_a_sentence(monkeypatch, surveyed):
    with pytest.raises(LfError, match="--part speed: there are plans, widened, pace"):
        memory.run(["speed"])

    def fails(*_):
        raise LfError("no room")
    monkeypatch.setattr(memory_batch, "pace", fails)
    assert memory.run(["pace"]).settings["failed"] == {"pace": "no room"}


def test_a_real_pace_on_this_machine():
    found = memory_batch.pace(replace(memory.CPU, paces=(1, 2, 3)))
    timed = [row for row in found.rows if row.name != "knee"]
    assert [row.name for row in timed] == [f"competent, micro-batch {micro}" for micro in (1, 2, 3)]
    assert all(row.value > 0 and row.n == 5 for row in timed) and found.line.endswith(("samples/s", "micro-batch"))
    assert found.checks == {} and found.notes["knee"] == found.notes["picture"]["knee"]
    assert choice.GIB == 2**30

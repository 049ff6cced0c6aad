"""The bench of the diagnosis: six faults, each with a cure and a cause; what it finds becomes rows and checks."""

import pytest

from lfhelpers.bench import diagnosis
from lfhelpers.bench.diagnosis import faults, selected
from lfhelpers.cli.bench import bench_app
from lfhelpers.diagnose.ceilings import REMEDIES
from lfhelpers.errors import LfError
from lfhelpers.recipe import diff


def found(first, expected, measured):
    effect = {"ratio": measured, "low": measured - 0.1, "high": measured + 0.1, "aa_spread": 0.03, "n": 8}
    return {"first": first, "expected": expected, "low": expected, "high": expected + 0.2, "effect": effect,
            "error": expected / measured - 1, "line": "found"}


def test_each_fault_differs_from_its_cure_in_the_fault_alone():
    assert len(faults()) == 6
    for fault in faults():
        changed = diff(fault.broken, fault.clean)
        assert fault.cause in REMEDIES and (changed.keys() <= {"workload.use", "optimizer.fused"})
        assert bool(changed) != bool(fault.broken.ddp.slow_link), "a slow link is removed while the job runs"


def test_faults_of_one_rank_share_a_job_and_those_with_workers_come_first():
    one, paced, late = diagnosis._jobs(faults())
    assert [fault.name for fault in one] == ["slow loader", "reads by the host", "tiny operators", "for-loop optimizer"]
    assert ([fault.name for fault in paced], [fault.name for fault in late]) == (["paced exchange"], ["late rank"])


def test_a_record_counts_what_was_ranked_first_and_keeps_the_worst_error(monkeypatch):
    told = {"slow loader": found("data", 1.5, 1.6), "tiny operators": found("python", 1.2, 1.0)}
    chosen = selected(list(told))
    monkeypatch.setattr(diagnosis, "_planted", lambda group, *_: ((fault.name, told[fault.name]) for fault in group))
    kept = []
    record = diagnosis.run(chosen, keep=kept.append)
    assert record.checks == {"faults_planted": 2, "faults_ranked_first": 1, "ceiling_error_max": pytest.approx(0.2)}
    assert [one.checks["faults_planted"] for one in kept] == [1, 2], "a bench cut short leaves what it has"
    assert record.row("slow loader, measured").value == 1.6 and record.aa_spread == 0.03


@pytest.mark.parametrize(("count", "device", "link"), [(0, "cpu", "gloo:0.03GB/s"), (1, "cpu", "gloo:0.03GB/s"),
                                                       (2, "cuda", None)])
def test_faults_of_two_ranks_use_two_gpus_where_there_are_two_and_say_where_not(count, device, link, monkeypatch):
    monkeypatch.setattr(diagnosis, "gpus", lambda: count)
    paced, late = selected(["paced exchange", "late rank"])
    assert (paced.broken.device, late.broken.device, paced.broken.ddp.slow_link) == (device, device, link)
    assert paced.broken.workload.use.endswith(":SlowExchange") == (count == 2)
    record = diagnosis._with(diagnosis.Record("diagnosis", {"faults": {}}, [], {}, 0.0), late,
                             found("late rank", 2.0, 2.0))
    told = "late rank (two ranks on the CPU), measured" if count == 1 else "late rank, measured"
    assert record.row(told).value == 2.0 and record.settings["faults"]["late rank"]["device"] == device


def test_a_fault_that_does_not_exist_is_named():
    with pytest.raises(LfError, match="--fault 'slow': there are slow loader, reads by the host"):
        selected(["slow"])


def test_the_command_is_there():
    assert "diagnosis" in {command.name for command in bench_app.registered_commands}

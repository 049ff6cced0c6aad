"""The bench of hooks: each one's loss against none's over paired seeds, and what is said with too few of them."""

import pytest

from lfhelpers.bench import hooks_record
from lfhelpers.bench.hooks import HookRow
from lfhelpers.measure import record as records
from lfhelpers.recipe import recipe

JOB = recipe("competent", "device=cpu", seed=7)


@pytest.fixture
def trained(monkeypatch):
    """bf16 learns what none learns, but for a scatter; PowerSGD ends 5 % above. Seeds and steps that were asked for."""
    asked = []

    def compare(names, steps, job, ranks):
        asked.append((job.seed, steps, ranks))
        loss = 1 + 0.1 * job.seed
        off = {"none": 1.0, "bf16": 1 + 0.0005 * (-1) ** job.seed, "powersgd": 1.05 + 0.001 * (job.seed % 2)}
        return [HookRow(name, 8_000_000 // (1 + place), 0.0, 5.0, loss * off[name], off[name])
                for place, name in enumerate(("none", *names))]

    monkeypatch.setattr(hooks_record.hooks, "compare", compare)
    return asked


def test_each_hook_is_tested_over_paired_seeds(trained, tmp_path):
    kept = []
    found = hooks_record.run(("bf16", "powersgd"), seeds=4, steps=50, job=JOB, keep=kept.append)
    assert trained == [(seed, 50, 2) for seed in (7, 8, 9, 10)] and len(kept) == 4
    assert found.checks["bf16_loss_off"] == pytest.approx(0.0005) and found.checks["powersgd_loss_off"] > 0.049
    assert found.checks["bf16_tost_p"] < 0.05 < 0.9 < found.checks["powersgd_tost_p"]
    again = hooks_record.verdicts(records.load(records.write(found, tmp_path / "bench_hooks.json")))
    assert again["bf16"].passes and not again["powersgd"].passes
    assert again["bf16"].margin == pytest.approx(hooks_record.MARGIN * 1.85)
    assert found.row("bf16", "MB a step").value == 4.0 and found.row("powersgd", "x the loss of none").n == 4


def test_two_seeds_show_figures_and_no_verdict(trained):
    found = hooks_record.run(("bf16",), seeds=2, steps=50, job=JOB)
    assert hooks_record.verdicts(found) == {} and set(found.checks) == {"bf16_loss_off", "bf16_run_off"}


def test_no_sample_comes_twice_where_the_default_data_would_not_do(monkeypatch, tmp_path):
    made, taken = [], []
    monkeypatch.setattr(hooks_record, "demonstrations", lambda task, samples: made.append(samples) or tmp_path)
    row = [HookRow("none", 8, 0.0, 5.0, 1.0, 1.0)]
    monkeypatch.setattr(hooks_record.hooks, "compare", lambda names, steps, job, ranks: taken.append(job) or row)
    for micro in (4, 32):
        hooks_record.run((), seeds=1, steps=200, job=JOB.with_(**{"batch.micro": micro}))
    assert made == [200 * 2 * 32] and [job.data.path for job in taken] == [None, str(tmp_path)]


def test_on_a_cpu_the_smallest_size_is_trained(monkeypatch):
    monkeypatch.setattr(hooks_record.hardware, "device", lambda: ("cpu", ""))
    assert hooks_record.job_of(["batch.micro=2"]).workload.size == "tiny"
    assert hooks_record.job_of(["batch.micro=2"]).batch.micro == 2
    monkeypatch.setattr(hooks_record.hardware, "device", lambda: ("cuda", ""))
    assert hooks_record.job_of().workload.size == "small"

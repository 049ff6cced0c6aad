"""From a limit on memory to a recipe: sides by planted measurements, and all of it for real on a toy."""

from types import SimpleNamespace

import pytest

import lfhelpers as lf
from lfhelpers.bench import memory_plan
from lfhelpers.data.shards import write
from lfhelpers.errors import LfError
from lfhelpers.levers.activations_choice import GIB, NoRoom, Point, Survey
from lfhelpers.levers.activations_plan import Candidate, Effort, Profile
from lfhelpers.recipe import recipe
from lfhelpers.train import fit, planner
from lfhelpers.train.planner import Planned
from tests.train.conftest import toy_members
from tests.train.test_fit import ROW, STANDING

SURVEY = Survey(Profile((), 0, 10.0, 1000))
ALL = Candidate("all blocks", "blocks", {"plan": "all"})


@pytest.fixture
def planted(monkeypatch):
    """Measurements by arithmetic: 12 samples fit without a plan, 40 with it; a step's micro-batch takes 3 ms and 1 ms
    a sample, under the plan 1.2 ms. Returns the goals that the planner was asked for."""
    goals, rows = [], {"none": 12, "all": 40}

    def plan(job, limit_gib=None, goal="time", effort=None, again=False):
        goals.append(goal)
        if goal == "time" and job.batch.micro > 16:
            raise NoRoom("no plan stays within 1 GiB")
        return Planned(ALL.recipe(job), Point(ALL.name, ALL.family, ALL.fields), SURVEY)

    def largest(job, most):
        return SimpleNamespace(largest=min(rows[job.activations.plan], most))

    def footprint(job, steps):
        sample = 1.2 if job.activations.plan == "all" else 1.0
        return fit.Footprint(job.batch.micro, 100, 100, [job.batch.accumulate * (3 + sample * job.batch.micro)] * steps)
    monkeypatch.setattr(planner, "plan", plan)
    monkeypatch.setattr(fit, "largest", largest)
    monkeypatch.setattr(fit, "footprint", footprint)
    return SimpleNamespace(goals=goals, rows=rows)


def toy(*overrides):
    return recipe("competent", "workload.use=tests.train.toy:Toy", "device=cpu", "precision.mode=fp32",
                  "batch.limit_gib=1", *overrides)


def test_the_faster_side_is_chosen_at_the_same_effective_batch(planted):
    found = lf.plan(toy("batch.micro=4", "batch.accumulate=6"))
    assert [(side.name, side.largest, side.recipe.batch.micro, side.recipe.batch.accumulate, side.ms)
            for side in found.sides] == [("without a plan", 12, 12, 2, 30.0),
                                         ("all blocks", 40, 24, 1, pytest.approx(31.8))]
    assert found.chosen.name == "without a plan" and found.recipe.activations.plan == "none"
    assert found.larger == () and found.chosen.samples_per_s == pytest.approx(800)


def test_room_beyond_the_effective_batch_is_a_suggestion_under_each_rule_and_never_taken(planted):
    found = lf.plan(toy("batch.micro=4", "batch.accumulate=5", "steps=100"), goal="batch")
    assert (found.recipe.batch.micro, found.recipe.batch.accumulate, found.recipe.optimizer.lr) == (20, 1, None)
    assert [lever.equivalence for lever in found.larger] == ["changed"] * 3
    rates = [lever.pull(found.recipe).optimizer.lr for lever in found.larger]
    assert rates == pytest.approx([1e-2, 2**0.5 * 1e-2, 2e-2])
    assert {(lever.fields["batch.micro"], lever.fields["steps"]) for lever in found.larger} == {(40, 50)}


def test_the_table_says_what_was_asked_found_and_chosen(planted):
    text = str(lf.plan(toy("batch.micro=4", "batch.accumulate=5"), goal="batch"))
    assert text.startswith("competent: 1 x 4 x 5 samples a step (ranks x micro-batch x accumulation), within 1 GiB a "
                           "rank\n")
    assert [line.split()[-1] == "chosen" for line in text.splitlines()[2:4]] == [False, True]
    assert "only with its gate" in text and text.count("- effective batch x 2") == 3


def test_where_no_plan_fits_this_micro_batch_that_for_the_largest_one_is_taken(planted):
    found = lf.plan(toy("batch.micro=32"))
    assert planted.goals == ["time", "batch"] and found.recipe.batch.micro * found.recipe.batch.accumulate == 32


def test_a_side_that_does_not_fit_is_a_note_and_none_that_fits_a_sentence(planted):
    planted.rows["none"] = 0
    found = lf.plan(toy("batch.micro=8"))
    assert found.chosen.name == "all blocks" and "note: without a plan: not even one sample fits" in found.table()
    planted.rows["all"] = 0
    with pytest.raises(LfError, match="within 1 GiB without a plan: not even one sample fits"):
        lf.plan(toy("batch.micro=8"))


def test_a_cpu_needs_a_limit():
    with pytest.raises(LfError, match=r"lf\.plan on a CPU has no limit to plan for: give limit_gib"):
        lf.plan("competent", "device=cpu")


def test_the_command_prints_the_table_and_leaves_the_recipe(planted, command, tmp_path):
    code, said, _ = command("plan", "workload.use=tests.train.toy:Toy", "device=cpu", "batch.micro=24", "--limit", "1",
                            "--goal", "batch", "--out", str(tmp_path / "mine.toml"))
    assert code == 0 and "all blocks" in said and recipe(str(tmp_path / "mine.toml")).activations.plan == "all"
    code, said, complaint = command("plan", "workload.use=tests.train.toy:Toy", "device=cpu", "batch.micro=24",
                                    "--limit", "1", "--out", tmp_path)
    assert code == 2 and "chosen" in said and "can't be written: " in complaint and "another file" in complaint
    code, _, complaint = command("plan", "device=cpu", "--goal", "speed")
    assert code == 2 and "--goal speed does not exist; take time or batch." in complaint


@pytest.fixture
def shards(tmp_path, monkeypatch):
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("LFHELPERS_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "shards", toy_members, 67, shard_mb=0.02, progress=False)
    return tmp_path / "shards"


def test_all_of_it_for_real_on_a_toy_has_exact_bytes(shards):
    effort = Effort(budgets=(), every=(), shares=(), rules=False, pairs=3, steps=1)
    job = toy(f"data.path={shards}", "batch.micro=8", "batch.accumulate=4")
    found = lf.plan(job, limit_gib=(STANDING + 21.5 * ROW) / GIB, effort=effort)
    plain = found.sides[0]
    assert (plain.largest, plain.recipe.batch.micro, plain.recipe.batch.accumulate) == (21, 16, 2)
    assert plain.peak == STANDING + 16 * ROW and plain.ms > 0


def test_two_ranks_agree_on_a_micro_batch(shards):
    job = toy(f"data.path={shards}", f"batch.limit_gib={(STANDING + 21.5 * ROW) / GIB}", "data.workers=0")
    assert memory_plan._agreed(job, 2, 64) == 21
    (run,) = lf.find()
    assert run.read("largest.json") == {"agreed": 21, "found": [21, 21]}

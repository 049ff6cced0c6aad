"""`lfhelpers check`: planted faults are found in a run's folder by name, and a clean run is clean."""

import pytest

from lfhelpers.pitfalls.base import Small, trained
from lfhelpers.pitfalls.checked import check, repeats
from lfhelpers.pitfalls.order import Fingerprint
from lfhelpers.recipe import recipe
from lfhelpers.runs import create


class BadSamples(Small):
    """Now and then a sample is not a number."""

    def loss(self, model, batch, draws):
        batch["x"][batch["ids"] == 7] = float("nan")
        return super().loss(model, batch, draws)


def test_a_clean_run_is_clean(command):
    with trained("log.probe=true") as run:
        assert check(run) == []
        assert command("check", run.path) == (0, "no pitfall found.\n", "")


def test_planted_faults_are_found_and_the_exit_code_says_so(command):
    with trained("log.probe=true", "log.loss_item=true", "optimizer.max_skips=9", use=BadSamples) as run:
        found = check(run)
        assert [item.pitfall for item in found] == ["black_image", "item_each_step"]
        assert "batch['x'] of sample 7 is not finite" in found[0].text
        code, out, _ = command("check", run.path)
        last = out.splitlines()[-1]
        assert code == 1 and last.startswith("item each step: the host waits for ")
        assert last.endswith("[notebook 07, slow without a word]")


@pytest.fixture
def run(runs_root):
    return create(recipe("competent", "device=cpu"))


def test_what_a_run_wrote_of_itself_is_told(run):
    run.write("summary.json", {
        "ranks": 2, "memory_growth": {"leaks": True, "text": "rank 0 holds more"},
        "late_rank": {"text": "rank 1 is late"},
        "compile": {"recompilations": [{"what": "Block.forward", "guard": "size 16"}]}})
    assert [(item.pitfall, item.section) for item in check(run)] == [
        ("loss_list", "memory"), ("recompiles", "memory"), ("late_rank", "several hosts")]


def test_a_gpu_that_is_held_down_and_a_network_that_loses_are_told(run):
    usage = {"gpu_slowed": {"heat": 40.0, "its power supply": 1.0}, "gpu_clock_mhz": 1200, "tcp_resent_percent": 3.0}
    run.write("summary.json", {"utilisation": usage})
    [heat] = check(run)
    assert "heat holds the GPU's clock down in 40 % of the run, at 1200 MHz" in heat.text
    for host in ("a", "b"):
        (run.path / "hosts").mkdir(exist_ok=True)
        run.write(f"hosts/{host}.json", {})
    assert [item.text for item in check(run)][1:] == ["3.0 % of what this host sends is lost and sent again"]


def test_most_steps_skipped_is_a_finding_and_a_scaler_that_finds_its_scale_is_none(run):
    def steps(skipped):
        (run.path / "steps.jsonl").unlink(missing_ok=True)
        run.append_steps([{"step": step, "skipped": step in skipped, "probe": False} for step in range(1, 101)])
        return [item.text for item in check(run)]
    assert steps(range(1, 9)) == []
    assert steps(range(50, 60)) == ["10 of 90 steps were skipped"]


def test_a_step_that_gets_an_earlier_steps_batch_is_told():
    assert not list(repeats(Fingerprint((1, 2, 3), (8, 8, 8), (5, 6, 7), (None,) * 3)))
    found, = repeats(Fingerprint((1, 2, 3), (8, 8, 8), (5, 6, 5), (None,) * 3))
    assert found.pitfall == "resume_repeats" and "step 3" in found.text and "step 1" in found.text

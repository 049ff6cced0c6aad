"""Each pitfall, both halves: the damage has its number, what lfhelpers says names it, and the cured run is silent."""

import re

import psutil
import pytest

from lfhelpers import pitfalls
from lfhelpers.errors import LfError
from lfhelpers.train.straggler import my_cores

EXPECTED = {  # figure when broken, figure when cured, what is said
    "loss_list": (pytest.approx(80, abs=1), 0, r"\+1 MiB a step.*SumBackward0.*list of \d+, variable losses of _train"),
    "kept_traceback": (16, 0, "4 more tensors .* variable activation of _fails"),
    "reference_cycle": (8, 0, "frees 8 MiB"),
    "recompiles": (6, 1, "5 recompilations: .*expected 16, actual 19"),
    "numpy_fork": (75, 0, "75 % of the augmentation draws"),
    "worker_seed": (75, 0, "75 % of the draws"),
    "resume_repeats": (45, 0, "its seed is 0, this run's is 1"),
    "worker_order": (100, 0, "8 of 8 steps had other samples, first step 1"),
    "uneven_shards": (5, 0, "5, 5, 5, 0 micro-batches"),
    "clip_before_unscale": (327_680, pytest.approx(5), "65536 times"),
    "unscale_twice": (0, 2, "already been called"),
    "scaler_collapse": (200, 4, "steps 1 to 4 .*skipped, because the workload's loss"),
    "schedule_on_skips": (10, 0, "10 steps ahead"),
    "black_image": (100, 0, r"batch\['images'\] of sample 12 is not finite"),
    "masked_row": (pytest.approx(100 / 3), 0, "the forward of the model"),
    "bf16_weights": (pytest.approx(96.6, abs=1), 0, "can't move 97 %"),
    "clip_nan": (100, 0, "the step is skipped: the gradient norm is nan"),
    "backward_nan": (pytest.approx(100 * 32 / 36), 0, "sample 3; the first operator is aten.mul.Tensor in backward"),
    "no_sync_backward": (4, 1, "4 exchanges a step for 1 bucket"),
    "first_bucket": (25, 1, "holds 25 MiB"),
    "tiny_buckets": (240, 4, "pays the link's latency"),
    "find_unused": (2, 1, "walks the graph in every step"),
    "item_each_step": (1, 0, "waits for 1 values"),
    "new_shapes": (64, 4, "32 of 32 micro-batches have shapes that none had before"),
    "small_shm": (5, 0, "a ring of 8 slots .* more than half"),
    "mean_of_means": (pytest.approx(11.9, abs=0.1), pytest.approx(0, abs=1e-3), "12 % off"),
    "dropped_tail": (pytest.approx(20), pytest.approx(0), "2 micro-batches"),
    "prefixed_keys": (100, 0, "Unexpected key.*_orig_mod.0.weight"),
    "augmented_evaluation": (pytest.approx(1.449, abs=0.01), 0, "differ by 1.4 %"),
    "static_no_sync": (1, 6, "1 of 6 steps were exchanged"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_pitfall_is_measured_seen_and_cured(name):
    module, (broken, cured, said) = pitfalls.pitfall(name), EXPECTED[name]
    assert module.break_it() == broken
    assert module.fix_it() == cured
    assert re.search(said, module.detect()), module.detect()
    assert module.detect(False) == "", "no alarm for what is well"


def test_a_random_order_of_names_differs_between_runs_and_a_fixed_one_does_not():
    module = pitfalls.pitfall("hash_seed")
    assert module.break_it() > 1, "four orders of ten names are alike once in 10**19 times"
    assert module.fix_it() == 1
    assert "random in this process" in module.detect() and module.detect(False) == ""


def test_a_late_rank_is_named_with_the_part_in_which_it_is_late():
    module = pitfalls.pitfall("late_rank")
    assert module.break_it() >= 30, "all ranks wait for the one that sleeps 30 ms"
    assert module.detect().startswith("rank 1 is late by ") and "in its forward" in module.detect()


@pytest.mark.alone
def test_another_program_on_a_ranks_core_is_named_as_the_cause():
    if (load := psutil.cpu_percent(1)) > 40:
        pytest.skip(f"the cores are {load:.0f} % busy before the test adds anything, so no rank would be late by much")
    module = pitfalls.pitfall("busy_host")
    assert module.break_it() > module.fix_it() > 20, "a forward computes for 20 ms"
    assert re.search(r"rank 1 is late by .* % of its cores on .* do other work", module.detect().replace("%", " %"))


def test_a_profiler_that_stays_on_keeps_every_step():
    module = pitfalls.pitfall("profiler_on")
    assert module.break_it() > 10 * module.fix_it() > 0, "48 steps, and three"
    assert "has been on for 32 steps" in module.detect() and module.detect(False) == ""


def test_processes_that_each_take_all_cores_are_counted():
    module = pitfalls.pitfall("thread_crowd")
    assert module.break_it() == 2
    if len(my_cores()) > 1:
        assert module.fix_it() <= 1 and module.detect(False) == ""
        assert "2 ranks on this host compute with" in module.detect()


def test_every_pitfall_tells_its_symptom_cause_cure_and_what_is_measured():
    assert len(pitfalls.NAMES) >= 24 and len(set(pitfalls.NAMES)) == len(pitfalls.NAMES)
    others = {"hash_seed", "late_rank", "busy_host", "profiler_on", "thread_crowd"}
    assert set(EXPECTED) | others == set(pitfalls.NAMES), "each one is tested"
    for name in pitfalls.NAMES:
        about = pitfalls.pitfall(name).ABOUT
        assert all((about.symptom, about.cause, about.cure, about.measured))


def test_a_row_of_the_table_holds_both_figures():
    row = pitfalls.show("dropped_tail")
    assert row["broken"] == pytest.approx(20) and row["cured"] == pytest.approx(0) and "no step" in row["said"]


def test_a_name_that_is_no_pitfall_is_refused_with_the_nearest_one():
    with pytest.raises(LfError, match=r"no pitfall 'los_list'.*loss_list"):
        pitfalls.pitfall("los_list")

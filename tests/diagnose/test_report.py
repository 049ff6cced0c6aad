"""The step report on run folders as training leaves them: planted causes come first, and parts sum to 100 %."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lfhelpers import runs
from lfhelpers.diagnose import compare, diagnose
from lfhelpers.diagnose.report import PARTS, StepReport, percents
from lfhelpers.errors import LfError
from lfhelpers.recipe import recipe


@pytest.fixture(autouse=True)
def _own_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path))


def probe_of(forward, backward, optimizer, reads=0, tiny_us=3.5, top=()):
    return {"step": 12, "host_reads": reads, "tiny_operator_us": tiny_us, "kernels": None,
            "operators": {"forward": forward, "backward": backward, "optimizer": optimizer,
                          "total": forward + backward + optimizer},
            "top": [{"name": name, "calls": calls, "self_ms": ms} for name, calls, ms in top]}


def finished(*overrides, device="cpu", host=None, ranks=1, ranks_ms=None, probe=None, cpu_percent=60.0,
             gpu_percent=None, **ms):
    """A finished run whose mean step has these parts in ms; parts that aren't given are 0."""
    run = runs.create(recipe("competent", *overrides))
    parts = {part: float(ms.get(part, 0)) for part in PARTS}
    step = sum(parts.values())
    run.write("summary.json", {
        "device": device, "hardware": {"cpu": "AMD EPYC, 2 cores", "cuda": "NVIDIA H200"}[device], "ranks": ranks,
        "micro": 16, "accumulate": 1, "precision": "bf16", "steps": {"applied": 50, "skipped": 0, "timed": 39},
        "step_ms": {"median": step, "mean": step, "p95": 1.1 * step}, "samples_per_s": ranks * 16e3 / step,
        "report": {"ms": parts, "percent": {part: 100 * value / step for part, value in parts.items()}},
        "ranks_ms": ranks_ms or {}, "host_ms": step if host is None else host, "flops_per_sample": 1e9,
        "mfu": {"value": 0.117, "peak_tflops": 989.0, "convention": "dense"} if device == "cuda" else
               {"value": None, "peak_tflops": None, "convention": "not given: a CPU has no published dense peak"},
        "utilisation": {"gpu_percent": gpu_percent, "cpu_percent": cpu_percent, "cpu_count": 2}})
    if probe is not None:
        run.write("probe.json", probe)
    run.set_status("done")
    return run


def parts_of(**values):
    """Arguments of `finished`."""
    return values


def changed(step, **values):
    """The arguments with some replaced."""
    return step | values


def names(run):
    return [finding.name for finding in diagnose(run).findings]


# A healthy step on two machines of very different speed, and on a GPU with a batch that fills it.
CLEAN_CPU = [
    parts_of(data_wait=0.3, forward=23, backward=20, optimizer=2, other=1, probe=probe_of(485, 750, 130, tiny_us=2.0)),
    parts_of(data_wait=5, forward=60, backward=100, optimizer=4, other=1, probe=probe_of(1500, 2500, 140, tiny_us=4.5)),
    parts_of(data_wait=9, forward=36, backward=60, optimizer=4, other=1, probe=probe_of(1500, 2500, 140, tiny_us=5.0)),
]
CLEAN_GPU = parts_of(device="cuda", host=130, data_wait=2, host_to_device=1, forward=95, backward=190, optimizer=24,
                     other=4, probe=probe_of(5500, 8500, 300, reads=1, tiny_us=6.0))


@pytest.mark.parametrize("step", [*CLEAN_CPU, CLEAN_GPU])
def test_a_clean_run_is_steady(step):
    [finding] = diagnose(finished(**step)).findings
    assert finding.name == "steady"
    assert "bound by computation" in finding.evidence
    assert finding.remedy.startswith("compile.scope='blocks'")
    assert "larger batch.micro" in diagnose(finished("compile.scope=blocks", **step)).findings[0].remedy


def test_a_steady_step_that_is_a_recorded_graph_is_told_by_the_graph():
    [finding] = diagnose(finished(device="cuda", host=5, data_wait=1, captured=99)).findings
    assert (finding.name, finding.share_percent) == ("steady", 99.0)
    assert finding.evidence.startswith("the recorded graph takes 99.0 % of the step")


@pytest.mark.parametrize("step", [
    changed(CLEAN_CPU[0], data_wait=195, cpu_percent=31.0), changed(CLEAN_CPU[1], data_wait=200),
    changed(CLEAN_GPU, data_wait=190), changed(CLEAN_GPU, data_wait=400, host=310),
])
def test_a_slow_loader_comes_first(step):
    first = diagnose(finished("data.workers=2", **step)).findings[0]
    assert first.name == "data wait"
    assert first.remedy.startswith("raise data.workers (now 2)")
    assert f"waits {step['data_wait']:.1f} of" in first.evidence
    as_found = finished("data.loader=as_found", **step)
    assert diagnose(as_found).findings[0].remedy.startswith("data.loader='webdataset'")


LOOP = ("aten::mul", 4222, 6.5)


@pytest.mark.parametrize("step", [
    changed(CLEAN_CPU[0], forward=34, probe=probe_of(5127, 750, 130, tiny_us=1.9, top=[("aten::mm", 121, 12.8), LOOP])),
    changed(CLEAN_CPU[1], forward=90, probe=probe_of(9500, 2500, 140, tiny_us=4.5, top=[LOOP])),
    changed(CLEAN_CPU[1], forward=180, probe=probe_of(30000, 2500, 140, tiny_us=4.0)),
    parts_of(device="cuda", host=183, forward=95, backward=75, optimizer=14, other=3,
             probe=probe_of(14000, 9000, 300, tiny_us=6.0, top=[LOOP])),
    parts_of(device="cuda", host=60, forward=45, backward=14, optimizer=2, data_wait=0.4,
             probe=probe_of(6200, 900, 20, reads=1, tiny_us=6.0)),
])
def test_thousands_of_tiny_operators_come_first(step):
    first = diagnose(finished(**step)).findings[0]
    assert first.name == "tiny operators"
    assert f"{sum(list(step['probe']['operators'].values())[:3]):,} operators a step" in first.evidence
    assert "compile.scope='blocks'" in first.remedy
    assert ("aten::mul alone runs 4,222 times" in first.evidence) == (LOOP in [tuple(row.values()) for row in
                                                                              step["probe"]["top"]])


@pytest.mark.parametrize("step", [
    changed(CLEAN_CPU[0], forward=27, probe=probe_of(1165, 750, 130, reads=170, tiny_us=3.9)),
    changed(CLEAN_CPU[1], data_wait=30, probe=probe_of(2200, 2500, 140, reads=230)),
    parts_of(device="cuda", host=138, forward=60, backward=65, optimizer=12, other=3,
             probe=probe_of(9000, 8500, 300, reads=900, tiny_us=6.0)),
    parts_of(device="cuda", host=33, forward=18, backward=12, optimizer=3,
             probe=probe_of(1200, 750, 20, reads=170, tiny_us=6.0)),
])
def test_a_host_read_for_each_parameter_comes_first(step):
    first = diagnose(finished(**step)).findings[0]
    assert first.name == "host reads"
    assert first.evidence.startswith(f"{step['probe']['host_reads']} values a step are read back by the host")
    assert ("cheap on a CPU" in first.evidence) == (step.get("device", "cpu") == "cpu")
    assert "log.loss_item=false" in first.remedy


def test_a_few_reads_are_bookkeeping_and_loss_item_is_named():
    step = CLEAN_CPU[0]
    assert names(finished(**step | {"probe": probe_of(485, 750, 130, reads=4, tiny_us=2.0)})) == ["steady"]
    assert names(finished("batch.accumulate=2", **step | {"probe": probe_of(970, 1500, 130, reads=8)})) == ["steady"]
    few = finished("log.loss_item=true", **step | {"probe": probe_of(485, 750, 130, reads=9, tiny_us=2.0)})
    assert diagnose(few).findings[0].remedy == "log.loss_item=false"


@pytest.mark.parametrize(("gpu_percent", "found"), [(63.0, ["host-bound"]), (96.0, ["steady"]), (None, ["steady"])])
def test_an_idle_gpu_beside_a_busy_host_with_few_operators_is_host_bound(gpu_percent, found):
    """The figures of `full` on an H200: compiled blocks launch little, but their guards keep the host busy."""
    run = finished("compile.scope=blocks", device="cuda", host=126, forward=52.6, backward=50.9, optimizer=23.3,
                   gpu_percent=gpu_percent, probe=probe_of(900, 1200, 454, tiny_us=8.2))
    assert names(run) == found


def test_a_busy_host_in_front_of_a_full_gpu_is_not_launch_bound():
    """With reads the host waits inside the step and seems busy throughout; the operators must explain the time too."""
    assert names(finished(**CLEAN_GPU | {"host": 316})) == ["steady"]
    launch_bound = CLEAN_GPU | {"host": 316, "probe": probe_of(20000, 9000, 300, tiny_us=6.0)}
    assert names(finished(**launch_bound)) == ["tiny operators"]
    assert names(finished(**launch_bound | {"host": 200})) == ["steady"], "a host that runs ahead hides its launches"


@pytest.mark.parametrize(("overrides", "change", "name", "remedy"), [
    ([], {"communication": 20, "ranks": 2}, "communication", "ddp.bucket_mb=100"),
    (["ddp.find_unused=true"], {"communication": 20, "ranks": 2}, "communication", "ddp.find_unused=false"),
    (["ddp.bucket_mb=100"], {"communication": 20, "ranks": 2}, "communication", "batch.accumulate"),
    ([], {"optimizer": 60}, "optimizer", "batch.accumulate"),
    (["optimizer.fused=false"], {"optimizer": 60}, "optimizer", "optimizer.fused=true"),
    ([], {"host_to_device": 15}, "data copy", "data.pin=true and data.async_copy=true"),
])
def test_other_parts_name_their_field(overrides, change, name, remedy):
    [finding] = diagnose(finished(*overrides, **CLEAN_CPU[1] | change)).findings
    assert finding.name == name
    assert finding.remedy.startswith(remedy)


def test_an_unfused_optimizer_that_is_all_operators():
    probe = probe_of(500, 700, 4000, tiny_us=5.0)
    [finding] = diagnose(finished("optimizer.fused=false", forward=23, backward=20, optimizer=8, probe=probe)).findings
    assert (finding.name, finding.remedy[:20]) == ("tiny operators", "optimizer.fused=true")


@pytest.mark.parametrize(("slow", "remedy"), [("data_wait", "data.workers"), ("forward", "free that rank's cores")])
def test_a_slow_rank_is_named_by_its_part_not_by_the_waiting_of_the_others(slow, remedy):
    ranks_ms = {part: {"max": 30.0, "spread": 1.0} for part in PARTS if part != "communication"}
    ranks_ms |= {slow: {"max": 48.0, "spread": 30.0}, "backward": {"max": 130.0, "spread": 30.0}}
    first = diagnose(finished(ranks=2, ranks_ms=ranks_ms, communication=10, **CLEAN_CPU[1])).findings[0]
    assert first.name == "slow rank"
    assert first.evidence.startswith(f"{slow.replace('_', ' ')} takes the slowest rank 48.0 ms, 30.0 ms more")
    assert first.remedy.startswith(remedy)


@settings(max_examples=200)
@given(st.lists(st.floats(0, 1e4), min_size=len(PARTS), max_size=len(PARTS)).filter(lambda values: sum(values) > 1e-3))
def test_percents_sum_to_exactly_100_and_stay_close(values):
    ms = dict(zip(PARTS, values, strict=True))
    shares = percents(ms)
    assert round(sum(shares.values()), 6) == 100
    assert all(abs(shares[part] - 100 * ms[part] / sum(values)) < 0.1001 for part in PARTS)


def test_the_table_reads_on_its_own():
    report = diagnose(finished(**CLEAN_GPU | {"data_wait": 190}))
    text = report.table()
    lines = text.splitlines()
    assert lines[0] == f"run {report.run} (done): 39 timed steps of competent on NVIDIA H200, 1 rank(s) x micro 16 x " \
                       "accumulate 1"
    assert "504.0 ms a step (median 504.0, p95 554.4), 31.7 samples/s; MFU: 11.7 % of 989 TFLOP/s, dense" in text
    assert lines[3].split() == ["data", "wait", "190.0", "37.7"]
    assert lines[10].split() == ["whole", "step", "504.0", "100.0"]
    assert lines[11].startswith("1. data wait, 37.7 % of the step: each step waits 190.0 of 504.0 ms")
    assert "Remedy: raise data.workers (now automatic)" in lines[11]


def test_rows_hold_the_ranks_where_there_are_several():
    ranks_ms = {"forward": {"max": 62.0, "spread": 3.456}}
    rows = diagnose(finished(ranks=2, ranks_ms=ranks_ms, **CLEAN_CPU[1])).rows()
    assert rows[2] == {"part": "forward", "ms": 60.0, "percent": rows[2]["percent"], "slowest rank ms": 62.0,
                       "spread ms": 3.46}
    assert rows[0]["spread ms"] is None
    assert rows[-1]["part"] == "whole step" and rows[-1]["percent"] == 100
    assert set(diagnose(finished(**CLEAN_CPU[1])).rows()[0]) == {"part", "ms", "percent"}


def row(step, scale=1.0, probe=False):
    ms = {"data_wait": 40.0, "host_to_device": 0.5, "forward": 20.0, "backward": 30.0, "optimizer": 5.0, "other": 0.5}
    ms = {part: scale * value for part, value in ms.items()}
    return {"step": step, "epoch": 0, "time": 0.1 * step, "loss": 1.0, "lr": 1e-3, "grad_norm": 1.0, "skipped": False,
            "samples": 16, "step_ms": sum(ms.values()), "ms": ms, "host_ms": 55.0, "probe": probe}


def test_a_killed_run_is_read_from_its_steps():
    run = runs.create(recipe("competent", "log.skip=2"))
    run.write("environment.json", {"hardware": {"cpu": "AMD EPYC", "gpus": []}})
    run.set_status("running", pid=2**22 + 1)  # beyond any process id
    run.append_steps([row(1, 50), row(2, 20), row(3), row(4, 9, probe=True), row(5), row(6, 2)])
    with (run.path / "steps.jsonl").open("ab") as file:
        file.write(b'{"step": 7, "ms"')
    report = diagnose(run)
    assert (report.state, report.device, report.hardware, report.steps) == ("stopped", "cpu", "AMD EPYC", 3)
    assert report.step_ms["mean"] == pytest.approx(128) and report.step_ms["median"] == 96
    assert report.samples_per_s == pytest.approx(16e3 / 128)
    assert report.percent["data_wait"] == 41.7 and sum(report.percent.values()) == pytest.approx(100)
    assert report.findings[0].name == "data wait"
    notes = report.table().split("note: ")[1:]
    assert notes[0].startswith("no summary.json (the run is stopped): computed from steps.jsonl of rank 0 alone")
    assert notes[1].startswith("no probe.json")
    assert notes[2].startswith("a few slow steps make the mean 1.3 times the median")


def test_a_run_killed_in_its_warm_up_is_read_all_the_same():
    run = runs.create(recipe("competent", "device=cuda"))
    run.append_steps([row(1, 2), row(2)])
    report = diagnose(run)
    assert (report.steps, report.device, report.hardware) == (2, "cuda", "an unknown CPU")


def test_a_run_without_steps_is_one_sentence():
    run = runs.create(recipe("competent"))
    with pytest.raises(LfError, match="has no timed step yet"):
        StepReport.from_run(run)


def test_parts_that_do_not_add_up_are_refused():
    run = finished(**CLEAN_CPU[0])
    summary = run.summary
    summary["report"]["percent"]["forward"] -= 7
    run.write("summary.json", summary)
    with pytest.raises(LfError, match=f"run {run.id}: the parts of its step don't sum to 100 %"):
        diagnose(run)
    broken = runs.create(recipe("competent"))
    broken.append_steps([row(1) | {"step_ms": 200.0}])
    with pytest.raises(LfError, match="don't sum to 100 %"):
        diagnose(broken)


def test_two_runs_side_by_side_by_name():
    slow, fast = finished(**CLEAN_CPU[1] | {"data_wait": 175}), finished(**CLEAN_CPU[1])
    both = compare(slow.id, fast.path)
    assert both.speedup == pytest.approx(340 / 170)
    assert both.rows()[0] == {"part": "data wait", "a ms": 175.0, "b ms": 5.0, "saved ms": 170.0}
    assert both.rows()[-1] == {"part": "whole step", "a ms": 340.0, "b ms": 170.0, "saved ms": 170.0}
    text = str(both)
    assert f"a: run {slow.id} (competent), 47.1 samples/s" in text
    assert "b trains 2.00 times as many samples/s as a (two single runs, not interleaved, so without an" in text


def test_the_exchange_is_told_as_transfer_and_waiting_and_late_ranks_are_the_remedy_where_they_are_the_cause():
    run = finished(ranks=2, communication=20, **CLEAN_CPU[1])
    told = {"exposed_ms": 20.0, "transfer_ms": 14.0, "waiting_ms": 6.0, "source": "DDP's timers",
            "buckets_mb": [4.0, 600.0], "giants": [{"name": "embedding", "mb": 576.0}]}
    run.write("summary.json", run.summary | {"communication": told})
    assert ("exchange: 20.0 ms exposed, 14.0 of it transfer and 6.0 waiting for late ranks (DDP's timers); 2 buckets "
            "of 4 to 600 MiB; embedding, 576 MiB, can't be split") in diagnose(run).table()
    assert diagnose(run).findings[0].remedy == "ddp.bucket_mb=100"
    run.write("summary.json", run.summary | {"communication": told | {"buckets_mb": [1.0, 2.3]}})
    assert diagnose(run).findings[0].remedy.startswith("batch.accumulate"), "one bucket of 100 MiB would hide nothing"
    run.write("summary.json", run.summary | {"communication": told | {"transfer_ms": 6.0, "waiting_ms": 14.0}})
    assert "14.0 ms of them waiting for late ranks" in diagnose(run).findings[0].evidence
    assert diagnose(run).findings[0].remedy.startswith("find what makes ranks late")

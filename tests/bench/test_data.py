"""`bench data`: all engines are given the same work, what fails is a row, and the record holds what was asked for."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from lfhelpers.bench import data, data_engines, data_naive, data_sweep, data_table, data_train
from lfhelpers.bench.data import Options
from lfhelpers.bench.data_engines import Setting, Spec
from lfhelpers.data import Manifest, make_plan, rate
from lfhelpers.data.rate import Rate
from lfhelpers.errors import LfError
from lfhelpers.launch import LaunchError
from lfhelpers.measure import hardware, record
from lfhelpers.recipe import recipe
from lfhelpers.runs import Run

CPU = torch.device("cpu")
MEMBER = "front.jpg"


@pytest.fixture(scope="module")
def setting(tabletop_shards, tmp_path_factory):
    return Setting(tabletop_shards, tmp_path_factory.mktemp("bench") / "files", MEMBER, "cpu", 4, 0.05)


def first_batch(spec, setting):
    """The tensor that the first batch of an engine becomes, float32 [4, 3, 224, 224]."""
    opened = data_engines.opened(spec, setting)
    with opened.loader as loader:
        return rate.delivered(next(iter(loader)), opened.request, 0, 0, CPU).clone()


def test_every_engine_delivers_the_same_pixels(setting):
    """Exact engines to the last bit but one of float32; DALI and scaled decoding within levels of 255."""
    found = {spec.name: first_batch(spec, setting)
             for spec in data_engines.specs(2, False, True, quick=True)
             if spec.engine not in ("synthetic", "documented") and "RandAugment" not in spec.name}
    expected = found["webdataset x2"]
    assert expected.shape == (4, 3, 224, 224) and expected.dtype == torch.float32
    for name in ("plain x2", "as_found x2", "threads exact x2", "two_level x2"):
        torch.testing.assert_close(found[name], expected, rtol=0, atol=1e-6, msg=name)
    assert (found["dali cpu x2"] - expected).abs().mean() * 127.5 < 0.5
    assert 0 < (found["threads scaled x2"] - expected).abs().mean() * 127.5 < 4


def test_the_plain_loader_reads_small_files_in_the_plans_order(tabletop_shards, tmp_path):
    manifest = Manifest.load(tabletop_shards)
    paths = data_naive.unpack(manifest, MEMBER, tmp_path / "files")
    assert [path.read_bytes() for path in paths[:3]] == [manifest.read(index)[MEMBER] for index in range(3)]
    before = paths[0].stat().st_mtime_ns
    assert data_naive.unpack(manifest, MEMBER, tmp_path / "files") == paths and paths[0].stat().st_mtime_ns == before
    plan = make_plan(recipe("competent", "batch.micro=4"), manifest, 1)
    sampler = data_naive.PlannedBatches(plan, 3)
    with data_naive.PlainLoader(data_naive.Files(paths, 24), 0, False, sampler) as loader:
        batches = list(loader)
        assert len(loader) == len(batches) == 3
    expected = [data_naive.Files(paths, 24)[int(index)] for index in plan.slots(1, 0, 0)[0]]
    assert torch.equal(batches[1]["images"][:, 0], torch.stack(expected))


def test_webdataset_as_documented_delivers_whole_batches_of_the_same_pixels(tabletop_shards):
    manifest = Manifest.load(tabletop_shards)
    dataset = data_naive.documented(manifest, MEMBER, 24, micro=4)
    with data_naive.PlainLoader(dataset, 1, False, count=3) as loader:
        batches = [batch["images"] for batch in loader]
    assert [tuple(batch.shape) for batch in batches] == [(4, 1, 3, 24, 24)] * len(loader)
    members = (io.BytesIO(manifest.read(index)[MEMBER]) for index in range(manifest.samples))
    known = torch.stack([data_naive.normalised(Image.open(member), 24) for member in members])
    apart = [(known - image).abs().amax((1, 2, 3)).min() for batch in batches for image in batch[:, 0]]
    assert max(apart) == 0, "each is the image of some sample"


@pytest.mark.parametrize(("cores", "workers"), [(1, [1]), (2, [1, 2]), (4, [1, 4]), (16, [1, 4, 16])])
def test_workers_are_one_four_and_all_that_the_machine_has(cores, workers):
    assert data_engines.counts(cores) == workers


def test_what_is_measured_follows_the_machine():
    names = [spec.name for spec in data_engines.specs(16, True, True)]
    assert len(set(names)) == len(names)
    assert {f"dali mixed {share} x16" for share in ("0", "0.65", "1")} <= set(names)
    assert {"dali mixed 1 x1", "dali cpu x4", "threads scaled x16", "plain x2", "synthetic"} <= set(names)
    on_cpu = [spec.name for spec in data_engines.specs(2, False, False)]
    assert not any("dali" in name for name in on_cpu)
    assert {spec.engine for spec in data_engines.specs(2, True, True, ("threads",))} == {"threads"}


def rates(speed, count=2):
    return [Rate(int(speed), 1.0, 0.5, None, None, None)] * count


def test_the_checks_are_ratios_of_the_same_round():
    found = {"plain x2": rates(100), "threads exact x2": rates(250), "threads scaled x2": rates(400)}
    assert data_table.checks(found, 2, gpu=False) == {"threads_over_naive": 2.5, "threads_scaled_over_naive": 4.0}
    found = {"webdataset x16": rates(3000), "webdataset as documented x16": rates(2000),
             "dali mixed 0 x16": rates(9000), "dali mixed 1 x16": rates(27000), "dali mixed 1 x4": rates(99000)}
    assert data_table.checks(found, 16, gpu=True) == {
        "dali_mixed_images_per_s": 27000, "dali_mixed_over_pillow_all_cores": 13.5,
        "dali_mixed_over_webdataset_engine": 9.0}
    assert data_table.checks({"webdataset x16": rates(2000), "dali mixed 1 x16": []}, 16, gpu=True) == {}


def test_what_fails_is_a_row_with_its_sentence_and_is_tried_once(setting, monkeypatch):
    specs = [Spec("good", "threads", 1), Spec("bad", "dali", 1), Spec("seldom", "threads", 1, always=False)]
    calls = []

    def call(function, first, *_, **__):
        calls.append(getattr(first, "name", first))
        if calls[-1] == "bad":
            raise LfError("it needs a GPU.")
        return (10, 1.0) if function is data_engines.decode_ceiling else rates(100)[0]

    monkeypatch.setattr(data.isolated, "call", call)
    *_, seen = data._rounds(specs, setting, Options(rounds=3))
    assert seen.failed == {"bad": "it needs a GPU."} and calls.count("bad") == 1
    assert len(seen.found["good"]) == 3 and seen.found["bad"] == [] and seen.ceilings["pillow"] == [10.0] * 3
    assert len(seen.found["seldom"]) == 2, "every other round"
    [row] = data_table.rows("bad", seen.found["bad"])
    assert row.n == 0 and np.isnan(row.value)
    assert [name for name in calls if name in ("good", "seldom")] == ["good", "seldom", "good", "good", "seldom"]


def test_what_a_goal_is_set_for_is_measured_longer_and_more_often_and_in_turn(setting, monkeypatch):
    for gpu in (True, False):
        names = {spec.name for spec in data_engines.specs(16, gpu, True) if (spec.times, spec.length) == (3, 3.0)}
        assert names == set(data_engines.goals_of(16, gpu)), "each of them is measured"
    assert {spec.times for spec in data_engines.specs(16, True, True, quick=True)} == {1}
    calls = []

    def call(function, first, *_, **__):
        calls.append(getattr(first, "name", ""))
        return (10, 1.0) if function is data_engines.decode_ceiling else rates(100)[0]

    monkeypatch.setattr(data.isolated, "call", call)
    specs = [Spec("a", "dali", 1).thorough(), Spec("once", "threads", 1), Spec("b", "documented", 1).thorough()]
    *_, seen = data._rounds(specs, setting, Options(rounds=1))
    assert [name for name in calls if name] == ["a", "once", "b", "a", "b", "a", "b"]
    assert len(seen.found["a"]) == 3


def test_no_round_begins_that_would_pass_the_time(setting, monkeypatch):
    monkeypatch.setattr(data.isolated, "call", lambda function, *_, **__: (
        (1, 1.0) if function is data_engines.decode_ceiling else rates(100)[0]))
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr(data.time, "monotonic", lambda: float(next(clock)))  # each look at the clock is 100 s later
    *_, seen = data._rounds([Spec("good", "threads", 1)], setting, Options(rounds=9, minutes=5))
    assert len(seen.found["good"]) == 2


@pytest.fixture(scope="module")
def quick(tabletop_shards, tmp_path_factory):
    """A record of two engines, made by the command."""
    place = tmp_path_factory.mktemp("quick")
    command = [sys.executable, "-m", "lfhelpers", "bench", "data", "--quick", "--data", str(tabletop_shards),
               "--only", "plain", "--only", "threads", "--seconds", "0.05", "--out", str(place / "record.json")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"LFHELPERS_RUNS": str(place)})
    assert done.returncode == 0, done.stderr
    return done.stdout, record.load(place / "record.json")


def test_the_command_prints_a_table_and_leaves_a_record(quick):
    printed, found = quick
    cores = hardware.usable_cores()
    assert f"threads scaled x{cores}" in printed and "threads_over_naive" in printed
    assert {"threads_over_naive", "threads_scaled_over_naive", "ring_over_pickle"} <= set(found.checks) or \
        hardware.gpus()
    assert all(value > 0 for value in found.checks.values()) and found.aa_spread >= 0
    speeds = {row.name: row for row in found.rows if row.unit == "images/s"}
    assert speeds["plain x2"].n == speeds[f"threads exact x{cores}"].n == 2
    assert found.settings["failed"] == {} and found.settings["rounds"] == 2 and found.settings["images"] == 256


def test_a_mistake_on_the_command_line_is_one_sentence(command, runs_root):
    code, _, err = command("bench", "data", "--only", "threds")
    assert code == 2 and "there is no engine 'threds' to measure" in err and len(err.strip().splitlines()) == 1
    code, _, err = command("bench", "data", "--data", "absent")
    assert code == 2 and "absent" in err and len(err.strip().splitlines()) == 1


def test_the_sweep_reads_every_size_in_both_orders_and_leaves_nothing(tabletop_shards, tmp_path):
    rows, noted = data_sweep.sweep(tabletop_shards, tmp_path, (1, 2), seconds=0.02, rounds=2)
    names = {row.name for row in rows}
    assert names == {"disk, one long read", "disk, reads of 64 kB one by one", "sweep_small_files",
                     "sweep_1_block", "sweep_1_global", "sweep_2_block", "sweep_2_global"}
    assert all(row.value > 0 for row in rows)
    images = next(row for row in rows if row.name == "sweep_2_block" and row.unit == "images/s")
    megabytes = next(row for row in rows if row.name == "sweep_2_block" and row.unit == "MB/s")
    assert 0.05 < megabytes.value / images.value < 0.15, "MB a JPEG"
    assert noted["sweep"]["sizes_mb"] == [1, 2]
    assert list(tmp_path.iterdir()) == []


def test_shard_sizes_without_room_are_left_out(tabletop_shards, tmp_path, monkeypatch):
    usage = data_sweep.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(data_sweep.shutil, "disk_usage", lambda _: usage._replace(free=12_000_000))
    rows, noted = data_sweep.sweep(tabletop_shards, tmp_path, (1, 100), seconds=0.02, rounds=2)
    assert noted["sweep"]["sizes_mb"] == [1] and "sweep_100_block" not in {row.name for row in rows}
    with pytest.raises(LfError, match="has room for no shard size of 100 MB"):
        data_sweep.sweep(tabletop_shards, tmp_path, (100,))


def test_training_gives_the_share_of_waiting_of_each_recipe(tmp_path, monkeypatch):
    jobs = data_train.jobs(tmp_path)
    assert jobs["full"].data.loader == "dali" and jobs["as_found"].data.loader == "as_found"
    assert {(job.workload.size, job.batch.micro) for job in jobs.values()} == {("small", 32)}
    waits = {"full": 0.5, "as_found": 42.0}

    def launch(job, watch):
        run = Run(tmp_path / job.name)
        if job.name not in waits:
            raise LaunchError(run, "rank 0: RuntimeError: no memory\nmore")
        run.path.mkdir(exist_ok=True)
        run.write("summary.json", {"report": {"percent": {"data_wait": waits[job.name]}}, "samples_per_s": 10.0})
        return run

    monkeypatch.setattr(data_train, "launch", launch)
    *_, (rows, checks, failed) = data_train.measure(jobs)
    assert checks == pytest.approx({"small_data_wait_full": 0.005, "small_data_wait_as_found": 0.42})
    assert failed == {"training, competent": "rank 0: RuntimeError: no memory"}
    assert {(row.name, row.n) for row in rows} >= {("training, full", 2), ("training, competent", 0)}


def test_a_real_training_run_is_measured(tabletop_shards, runs_root):
    jobs = data_train.jobs(tabletop_shards, size="tiny", micro=4, steps=4, skipped=1)
    [(_, checks, failed)] = data_train.measure({"competent": jobs["competent"].with_("device=cpu")}, repeats=1)
    assert failed == {} and 0 <= checks["small_data_wait_competent"] <= 1
    json.dumps(checks)


def test_parts_are_measured_one_by_one(quick, tabletop_shards, tmp_path, runs_root, command):
    """The sweep alone, onto the record of the engines."""
    _, found = quick
    earlier = record.write(replace(found, commit=hardware.commit(data.runs.project())), tmp_path / "engines.json")
    code, _, err = command("bench", "data", "--no-engines", "--size-mb", 1, "--seconds", 0.05, "--data",
                           tabletop_shards, "--onto", earlier, "--out", tmp_path / "both.json")
    assert code == 0, err
    both = record.load(tmp_path / "both.json")
    assert both.checks == found.checks and {row.name for row in both.rows} > {row.name for row in found.rows}

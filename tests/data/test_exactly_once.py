"""Every sample once an epoch: over ranks, workers and engines, stopped anywhere, resumed by another number of both."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lfhelpers.data import Manifest, make_loader, make_plan, shards
from lfhelpers.errors import LfError
from lfhelpers.recipe import Recipe, recipe
from tests.data.toy_shards import ToyFields, sample, tensors

SAMPLES, GLOBAL_BATCH, EPOCHS = 131, 42, 2
ENGINES = ["as_found", "webdataset", "threads", "dali", "two_level"]
WORLDS = [1, 2, 3, 7]
WORKERS = [0, 1, 3]


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """131 samples in 6 shards, with a global batch of 42: neither shards nor batches come out even."""
    return shards.write(tmp_path_factory.mktemp("uneven") / "set", sample, SAMPLES, shard_mb=0.15, readers=1,
                        progress=False)


def job_of(engine: str, world: int, workers: int, shuffle: str = "global") -> Recipe:
    """The same global batch for any number of ranks, in one or in two micro-batches."""
    share = GLOBAL_BATCH // world
    accumulate = 2 if share % 2 == 0 else 1
    return recipe("competent", f"data.loader={engine}", f"data.workers={workers}", f"batch.micro={share // accumulate}",
                  f"batch.accumulate={accumulate}", f"data.shuffle={shuffle}", "seed=5", device="cpu")


def seen(manifest: Manifest, job: Recipe, world: int, start: int, stop: int) -> Counter[tuple[int, int]]:
    """(epoch, id) of every sample that counts, over all ranks, in steps start..stop-1."""
    plan = make_plan(job, manifest, world)
    counted: Counter[tuple[int, int]] = Counter()
    for rank in range(world):
        with make_loader(job, manifest, plan, ToyFields(), tensors, rank, start=start, stop=stop) as loader:
            for (step, _), batch in zip(plan.sequence(start, stop), loader, strict=True):
                assert len(batch["ids"]) == job.batch.micro, "no rank ever gets a short or an empty batch"
                counted.update((plan.epoch(step), int(index)) for index in batch["ids"][batch["valid"] > 0])
    return counted


ONCE = Counter((epoch, index) for epoch in range(EPOCHS) for index in range(SAMPLES))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("workers", WORKERS)
def test_stopped_anywhere_and_resumed_by_others(uneven: Manifest, engine: str, world: int, workers: int) -> None:
    draw = random.Random(f"{engine} {world} {workers}")
    others = draw.choice([number for number in WORLDS if number != world])
    hands = draw.choice([number for number in WORKERS if number != workers])
    shuffle = draw.choice(["global", "block"])
    first, second = job_of(engine, world, workers, shuffle), job_of(draw.choice(ENGINES), others, hands, shuffle)
    end = make_plan(first, uneven, world).steps_per_epoch * EPOCHS
    stopped = draw.randrange(1, end)
    state = make_plan(first, uneven, world).state(stopped)
    assert make_plan(second, uneven, others).check_state(state) == stopped
    assert seen(uneven, first, world, 0, stopped) + seen(uneven, second, others, stopped, end) == ONCE


READER = """
import sys
from lfhelpers.data import Manifest, make_loader, make_plan
from tests.data.test_exactly_once import EPOCHS, job_of
from tests.data.toy_shards import ToyFields, tensors

job = job_of("webdataset", 1, 2)
manifest = Manifest.load(sys.argv[1])
plan = make_plan(job, manifest, 1)
stop = plan.steps_per_epoch * EPOCHS
with make_loader(job, manifest, plan, ToyFields(), tensors, 0, stop=stop) as loader:
    for (step, micro), batch in zip(plan.sequence(0, stop), loader):
        ids = batch["ids"][batch["valid"] > 0].tolist()
        print(step, micro, plan.epoch(step), *ids, flush=True)
        sys.stdin.readline()
"""


@pytest.mark.parametrize("lines", [1, 4, 9])
def test_killed_and_resumed_from_the_last_whole_step(uneven: Manifest, lines: int) -> None:
    """A process killed by signal 9 after some batches; what it had not finished as a step is read again."""
    reader = subprocess.Popen([sys.executable, "-c", READER, str(uneven.folder)], cwd=Path(__file__).parents[2],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert reader.stdin and reader.stdout
    rows = []
    for _ in range(lines):
        rows.append([int(word) for word in reader.stdout.readline().split()])
        reader.stdin.write("\n")
        reader.stdin.flush()
    reader.kill()
    reader.wait()
    plan = make_plan(job_of("webdataset", 1, 2), uneven, 1)
    done = rows[-1][0] + (rows[-1][1] + 1 == plan.micro_batches(rows[-1][0]))
    before = Counter((epoch, index) for step, _, epoch, *ids in rows if step < done for index in ids)
    after = seen(uneven, job_of("as_found", 3, 1), 3, done, plan.steps_per_epoch * EPOCHS)
    assert before + after == ONCE


@pytest.mark.parametrize(("change", "named"), [("seed=6", "seed"), ("batch.micro=20", "global batch"),
                                               ("data.shuffle=block", "shuffle"), ("data.last=drop", "last")])
def test_another_order_is_refused_on_resume(uneven: Manifest, change: str, named: str) -> None:
    job = job_of("webdataset", 1, 0)
    state = make_plan(job, uneven, 1).state(3)
    with pytest.raises(LfError, match=named):
        make_plan(job.with_(change), uneven, 1).check_state(state)


def test_another_dataset_is_refused_on_resume(uneven: Manifest, dataset: Manifest) -> None:
    job = job_of("webdataset", 1, 0)
    with pytest.raises(LfError, match="manifest"):
        make_plan(job, dataset, 1).check_state(make_plan(job, uneven, 1).state(1))


def test_what_is_padded_or_dropped_is_said_beforehand(uneven: Manifest) -> None:
    """131 samples are 3 x 42 and 5 more, which fill the first of two micro-batches of 7 x 3 rows by 5 of 21."""
    job = job_of("webdataset", 7, 0)
    padded, dropped = (make_plan(job.with_(change), uneven, 7).describe()
                       for change in ("data.last=pad", "data.last=drop"))
    assert "131 samples: 4 steps an epoch of 42 (7 ranks x 3 micro x 2 accumulate), 7 micro-batches a rank" in padded
    assert padded.endswith("the last step has 5 samples and 16 padded rows that count nothing")
    assert dropped.endswith("5 samples are dropped each epoch")


@pytest.mark.parametrize(("samples", "ranks", "micro", "steps", "dropped"),
                         [(50, 4, 5, 2, 10), (30, 4, 5, 1, 10), (10, 7, 1, 1, 3)])
def test_fewer_shards_than_workers_leave_nobody_idle(tmp_path: Path, samples: int, ranks: int, micro: int, steps: int,
                                                     dropped: int) -> None:
    """A split by shards gives four ranks 20, 10, 10, 10 of 50 samples, or one of them none at all of 30."""
    manifest = shards.write(tmp_path / "set", sample, samples, readers=1, progress=False)
    job = recipe("competent", "data.workers=3", f"batch.micro={micro}", "data.last=drop", device="cpu")
    assert len(manifest.shards) < 3 * ranks
    plan = make_plan(job, manifest, ranks)
    assert plan.describe().endswith(f"{dropped} samples are dropped each epoch")
    for rank in range(ranks):
        with make_loader(job, manifest, plan, ToyFields(), tensors, rank, stop=plan.steps_per_epoch) as loader:
            assert [len(batch["ids"]) for batch in loader] == [micro] * steps


def test_three_samples_in_two_shards_come_once_in_each_of_three_epochs(tmp_path: Path) -> None:
    """A shard-bound reader says 3 on both ranks, and gives 0 0 0 to one and 1 2 1 to the other."""
    manifest = shards.write(tmp_path / "set", sample, 3, shard_mb=0.007, readers=1, progress=False)
    assert len(manifest.shards) >= 2
    job = recipe("competent", "data.workers=1", "batch.micro=1", device="cpu")
    assert make_plan(job, manifest, 2).steps_per_epoch == 2
    assert seen(manifest, job, 2, 0, 6) == Counter((epoch, index) for epoch in range(3) for index in range(3))

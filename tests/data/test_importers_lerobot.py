"""LeRobot datasets, written by the lerobot package itself, become samples of the vla workload."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from PIL import Image

from lfhelpers.data import Manifest, importers
from lfhelpers.errors import LfError
from lfhelpers.recipe import recipe
from lfhelpers.runs import project
from tests.data.fixtures.write_lerobot import CAMERAS, DIMENSIONS, FPS, LENGTHS, action, picture, spelled, state, task
from tests.data.importing import check_killed_and_resumed, snapshot, stock_counts

FIXTURES = project() / "tests/data/fixtures/lerobot"
FRAMES = [(episode, frame) for episode, length in enumerate(LENGTHS) for frame in range(length)]
ACTIONS = [np.stack([action(episode, frame) for frame in range(length)]) for episode, length in enumerate(LENGTHS)]
VIDEO = "videos/chunk-000/observation.images.top/episode_000000.mp4"
TABLE = "data/chunk-000/episode_000001.parquet"


@pytest.fixture(params=["v21", "v30"])
def source(request: pytest.FixtureRequest) -> Path:
    return FIXTURES / request.param


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / "v21", tmp_path / "so100"))


def pack(source: Path, out: Path, **options: Any) -> Manifest:
    return importers.pack(source, out, readers=1, progress=False, **options)


def floats(member: bytes, width: int) -> NDArray[np.float32]:
    return np.frombuffer(member, "<f4").reshape(-1, width)


def pixels(member: bytes) -> NDArray[np.int64]:
    return np.asarray(Image.open(io.BytesIO(member))).astype(np.int64)


def following(episode: int, frame: int) -> NDArray[np.float32]:
    """The 16 actions from a frame on, the last one repeated."""
    return ACTIONS[episode][np.minimum(np.arange(frame, frame + 16), LENGTHS[episode] - 1)]


def test_the_fixtures_are_small() -> None:
    assert sum(path.stat().st_size for path in FIXTURES.rglob("*") if path.is_file()) < 1e6


def test_every_frame_is_a_sample_with_the_state_and_actions_of_the_source(source: Path, tmp_path: Path) -> None:
    before = snapshot(source)
    made = pack(source, tmp_path / "set", normalise=False)
    assert snapshot(source) == before
    assert made.fields == ("front.jpg", "wrist.jpg", "txt", "state.f32", "action.f32", "json")
    assert made.samples == len(FRAMES) == 60
    for index, (episode, frame) in enumerate(FRAMES):
        members = made.read(index)
        states, actions = floats(members["state.f32"], 8), floats(members["action.f32"], 7)
        assert states.shape == (1, 8) and actions.shape == (16, 7)
        assert (states[0, :DIMENSIONS] == state(episode, frame)).all() and not states[0, DIMENSIONS:].any()
        assert (actions[:, :DIMENSIONS] == following(episode, frame)).all() and not actions[:, DIMENSIONS:].any()
        assert members["txt"].decode() == task(episode, frame)
        assert json.loads(members["json"]) == {"episode": episode, "frame": frame, "task": task(episode, frame),
                                               "fps": FPS}
    assert stock_counts(made) == (60, 60)


def test_every_picture_is_that_of_its_frame_and_camera(source: Path, tmp_path: Path) -> None:
    made = pack(source, tmp_path / "set")
    for index, (episode, frame) in enumerate(FRAMES):
        members = made.read(index)
        for camera, name in enumerate(("front.jpg", "wrist.jpg")):
            seen = pixels(members[name])
            assert spelled(seen) == (episode, frame, camera)
            assert np.abs(seen - picture(episode, frame, camera)).mean() < 4


def test_actions_are_scaled_by_the_dataset_s_own_range(source: Path, tmp_path: Path) -> None:
    made = pack(source, tmp_path / "set")
    low, high = (np.concatenate(ACTIONS).astype(float).__getattribute__(name)(axis=0) for name in ("min", "max"))
    assert made.source["range"] == {"from": {"v21": "its actions", "v30": "meta/stats.json"}[source.name],
                                    "low": low.tolist(), "high": high.tolist()}
    for index, (episode, frame) in enumerate(FRAMES):
        actions = floats(made.read(index)["action.f32"], 7)
        scaled = (following(episode, frame)[:, :5] - low[:5]) / (high - low)[:5] * 2 - 1
        assert (actions[:, :5] == scaled.astype(np.float32)).all() and np.abs(actions).max() <= 1
        assert not actions[:, 5:].any()  # a joint that never moves, and one that isn't there


def test_a_range_that_does_not_cover_the_data_is_not_used(tmp_path: Path) -> None:
    source = Path(shutil.copytree(FIXTURES / "v30", tmp_path / "so100"))
    stats = json.loads((source / "meta/stats.json").read_text())
    stats["action"]["max"][0] -= 1
    (source / "meta/stats.json").write_text(json.dumps(stats))
    assert pack(source, tmp_path / "set").source["range"]["from"] == "its actions"


@pytest.mark.parametrize("every", [5, 7, 100])
def test_every_so_many_frames_of_each_episode(source: Path, tmp_path: Path, every: int) -> None:
    made = pack(source, tmp_path / "set", every=every, normalise=False)
    wanted = [(episode, frame) for episode, frame in FRAMES if frame % every == 0]
    assert [spelled(pixels(made.read(index)["front.jpg"]))[:2] for index in range(made.samples)] == wanted
    for index, (episode, frame) in enumerate(wanted):  # the actions are still those of the very next steps
        assert (floats(made.read(index)["action.f32"], 7)[:, :6] == following(episode, frame)).all()


def test_cameras_are_chosen_by_name_and_images_in_tables_count_too(
        source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = pack(source, tmp_path / "set", cameras={"front": "side", "wrist": "observation.images.top"})
    assert "front.jpg is observation.images.side, wrist.jpg is observation.images.top" in capsys.readouterr().out
    for index, (episode, frame) in enumerate(FRAMES):
        members = made.read(index)
        assert spelled(pixels(members["front.jpg"])) == (episode, frame, 2)
        assert spelled(pixels(members["wrist.jpg"])) == (episode, frame, 0)


def test_episodes_can_be_left_out(source: Path, tmp_path: Path) -> None:
    made = pack(source, tmp_path / "set", leave_out=[0, 2])
    assert [json.loads(made.read(index)["json"])["episode"] for index in range(made.samples)] == [1] * LENGTHS[1]


def test_the_vla_workload_reads_them(source: Path, tmp_path: Path) -> None:
    from lfhelpers.data import make_loader, make_plan
    from lfhelpers.workloads.base import find
    made = pack(source, tmp_path / "set", every=4)
    job = recipe("as_found", "workload.size=tiny", "data.workers=0", "device=cpu", "batch.micro=4")
    workload = find(job)
    plan = make_plan(job, made, 1)
    with make_loader(job, made, plan, workload.fields, workload.sample, 0, stop=plan.steps_per_epoch) as loader:
        seen = [batch["ids"][batch["valid"] > 0].tolist() for batch in loader]
    assert sorted(number for ids in seen for number in ids) == list(range(made.samples))


def test_killed_packing_is_continued_to_the_same_bytes(source: Path, tmp_path: Path) -> None:
    check_killed_and_resumed(source, tmp_path)


def without(keys: int) -> Callable[[Path], None]:
    """Leaves that many cameras in info.json."""
    def change(source: Path) -> None:
        info = json.loads((source / "meta/info.json").read_text())
        for camera in list(CAMERAS)[keys:]:
            del info["features"][camera]
        (source / "meta/info.json").write_text(json.dumps(info))
    return change


def versioned(version: str) -> Callable[[Path], None]:
    def change(source: Path) -> None:
        info = json.loads((source / "meta/info.json").read_text())
        (source / "meta/info.json").write_text(json.dumps(info | {"codebase_version": version}))
    return change


@pytest.mark.parametrize(("change", "options", "sentence"), [
    (None, {"chunk": (16, 5)}, r"action of .*so100 has 6 numbers and .* room for 5; give chunk=\(STEPS, 6\)"),
    (None, {"state_dim": 4}, "observation.state of .*so100 has 6 numbers and .* room for 4; give state_dim=6"),
    (None, {"state": "observation.stat"}, "has no feature 'observation.stat' for the state; did you mean"),
    (None, {"cameras": {"front": "tpo"}}, r"has no camera 'tpo'; known: observation.images.gripper, .*top"),
    (None, {"every": 0}, "every = 0 and chunk"),
    (None, {"leave_out": [1, 3]}, "has no episode 3 to leave out; it has 3 episodes, 0 to 2"),
    (without(1), {}, r"has not two cameras but observation.images.top, and the vla workload reads two; name one"),
    (versioned("v1.6"), {}, "is a LeRobot dataset of version v1.6; v2.0, v2.1 and v3 can be read"),
    (lambda source: (source / "meta/tasks.jsonl").unlink(), {}, r"meta/tasks.jsonl can't be read: .*No such file"),
    (lambda source: (source / "meta/info.json").write_text("{"), {}, r"meta/info.json can't be read: "),
    (lambda source: (source / "meta/info.json").write_text('{"codebase_version": "v2.1"}'), {},
     r"the meta folder of .*so100 is incomplete: KeyError: 'features'; copy the dataset again"),
])
def test_what_does_not_fit_is_one_sentence(copied: Path, tmp_path: Path, change: Callable[[Path], None] | None,
                                           options: dict[str, Any], sentence: str) -> None:
    if change:
        change(copied)
    with pytest.raises(LfError, match=sentence):
        pack(copied, tmp_path / "set", **options)
    assert not (tmp_path / "set").exists()


def rewritten(name: str, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Callable[[Path], None]:
    """Episode 1's table with another column."""
    def rewrite(source: Path) -> None:
        table = pq.read_table(source / TABLE)
        values = change(np.array(table.column(name).to_pylist()))
        place = table.column_names.index(name)
        pq.write_table(table.set_column(place, name, pa.array(values.tolist())), source / TABLE)
    return rewrite


def spoiled(values: NDArray[Any]) -> NDArray[Any]:
    values[3, 2] = np.nan
    return values


@pytest.mark.parametrize(("change", "reason"), [
    (lambda source: (source / TABLE).unlink(), "no table"),
    (lambda source: (source / TABLE).write_bytes(b"PAR1"), "unreadable table"),
    (lambda source: pq.write_table(pq.read_table(source / TABLE).slice(0, 9), source / TABLE),
     "frames that its table lacks"),
    (rewritten("action", spoiled), "numbers that are not finite"),
    (rewritten("action", lambda values: values[:, :5]), "another width of state or action than info.json says"),
    (rewritten("task_index", lambda values: values + 7), "no task"),
    (rewritten("episode_index", lambda values: values + 1), "frames that its table lacks"),
    (lambda source: (source / VIDEO.replace("00.mp4", "01.mp4")).unlink(), "no video"),
    (lambda source: (source / VIDEO.replace("00.mp4", "01.mp4")).write_bytes(b"?"), "unreadable video"),
])
def test_an_incomplete_episode_is_refused_or_left_out(copied: Path, tmp_path: Path, change: Callable[[Path], None],
                                                      reason: str) -> None:
    change(copied)
    with pytest.raises(LfError, match=rf"so100 has 1 that can't be packed: 1 {reason} \(episode 1\); mend"):
        pack(copied, tmp_path / "set")
    made = pack(copied, tmp_path / "set", on_bad="skip")
    assert made.source["left_out"] == {reason: 1}
    assert [json.loads(made.read(index)["json"])["episode"] for index in range(made.samples)] == [0] * 20 + [2] * 23


def shorten(path: Path, frames: int) -> None:
    """The same video without its last frames."""
    with av.open(str(path)) as old:
        kept = [frame.to_ndarray(format="rgb24") for frame in old.decode(video=0)][:frames]
    with av.open(str(path), "w") as new:
        stream = new.add_stream("mpeg4", rate=FPS)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 96, 96, "yuv420p", 2_000_000
        for pixels in kept:
            new.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        new.mux(stream.encode())


@pytest.mark.parametrize("frames", [19, 18])
def test_a_frame_or_two_beyond_the_video_s_end_show_its_last(copied: Path, tmp_path: Path, frames: int) -> None:
    shorten(copied / VIDEO, frames)
    made = pack(copied, tmp_path / "set")
    assert [spelled(pixels(made.read(index)["front.jpg"]))[1] for index in (16, 17, 18, 19)] == [
        min(index, frames - 1) for index in (16, 17, 18, 19)]


def test_a_video_that_ends_earlier_is_refused(copied: Path, tmp_path: Path) -> None:
    shorten(copied / VIDEO, 17)
    with pytest.raises(LfError, match=r"1 a video that ends early \(episode 0\)"):
        pack(copied, tmp_path / "set")
    assert pack(copied, tmp_path / "set", on_bad="skip").samples == 40

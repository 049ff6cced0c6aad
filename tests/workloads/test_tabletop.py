"""The world itself: scenes, pictures, words and samples are functions of (seed, index), and say the same thing."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, JpegImagePlugin

from lfhelpers.errors import LfError
from lfhelpers.workloads.vla.tabletop import dataset, text
from lfhelpers.workloads.vla.tabletop.render import CAMERAS, jpeg, render
from lfhelpers.workloads.vla.tabletop.scene import AREA, COLOURS, SPACING, Gripper, Scene, scene

scenes = st.builds(scene, st.integers(0, 3), st.integers(0, 10**12), st.integers(0, 5))


def digest(members: dict[str, bytes]) -> str:
    return hashlib.sha256(b"".join(members.values())).hexdigest()


def test_same_seed_and_index_give_the_same_bytes_in_another_process() -> None:
    program = ("from tests.workloads.test_tabletop import dataset, digest\n"
               "print(digest(dataset.sample(0, 41)), digest(dataset.sample(0, 7)))")
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert there == [digest(dataset.sample(0, 41)), digest(dataset.sample(0, 7))]


def test_another_seed_index_or_difficulty_gives_another_sample() -> None:
    samples = [dataset.sample(0, 5), dataset.sample(1, 5), dataset.sample(0, 6), dataset.sample(0, 5, distractors=1)]
    assert len({digest(members) for members in samples}) == 4


@given(scenes)
def test_a_scene_has_one_target_of_its_own_colour_and_room_between_objects(world: Scene) -> None:
    assert [thing.colour for thing in world.things].count(world.named.colour) == 1
    places = [(thing.x, thing.y) for thing in world.things]
    assert all(abs(x) <= AREA[0] and abs(y) <= AREA[1] for x, y in places)
    gaps = [np.hypot(a[0] - b[0], a[1] - b[1]) for i, a in enumerate(places) for b in places[:i]]
    assert min(gaps, default=1.0) >= SPACING > 2 * max(thing.radius for thing in world.things)


@pytest.mark.parametrize("distractors", range(6))
def test_difficulty_is_the_number_of_distractors_and_any_object_may_be_the_target(distractors: int) -> None:
    worlds = [scene(0, index, distractors) for index in range(100)]
    assert {len(world.things) for world in worlds} == {distractors + 1}
    assert {world.target for world in worlds} == set(range(distractors + 1))


@pytest.mark.parametrize(("arguments", "sentence"), [((0, 0, 6), "take 0 to 5"), ((0, -1, 3), "must both be 0")])
def test_a_scene_that_cannot_be_is_refused(arguments: tuple[int, int, int], sentence: str) -> None:
    with pytest.raises(LfError, match=sentence):
        scene(*arguments)


@pytest.mark.parametrize("camera", CAMERAS)
def test_a_jpeg_weighs_what_a_real_cameras_does(camera: str) -> None:
    files = [dataset.sample(0, index, distractors=index % 6)[f"{camera}.jpg"] for index in range(50)]
    assert min(map(len, files)) >= 60_000
    assert max(map(len, files)) <= 100_000
    picture = Image.open(io.BytesIO(files[0]))
    assert (picture.size, picture.mode, JpegImagePlugin.get_sampling(picture)) == ((640, 480), "RGB", 2)  # 2 is 4:2:0


@pytest.mark.parametrize("camera", CAMERAS)
def test_the_picture_does_not_show_which_object_is_named(camera: str) -> None:
    world = scene(0, 3)
    others = [replace(world, target=target) for target in range(4)]
    assert len({render(other, other.start, camera).tobytes() for other in others}) == 1


def test_the_front_camera_shows_objects_where_they_stand() -> None:
    """An object covers the pixels that change when it is taken away: right is right, and far is up."""
    rows, columns, places = [], [], []
    for index in range(30):
        world = scene(0, index, distractors=0)
        empty = replace(world, things=(replace(world.named, x=9.0, y=9.0),))
        gone = np.abs(render(world, world.start, "front").astype(int) - render(empty, world.start, "front")).sum(2) > 60
        row, column = np.nonzero(gone)
        rows.append(row.mean())
        columns.append(column.mean())
        places.append((world.named.x, world.named.y))
    assert np.corrcoef(columns, [x for x, _ in places])[0, 1] > 0.99
    assert np.corrcoef(rows, [y for _, y in places])[0, 1] < -0.99


def test_the_wrist_camera_shows_what_is_below_the_gripper_in_its_middle_and_larger_when_near() -> None:
    world = scene(0, 2, distractors=0)
    target, sizes = world.named, []
    for height in (0.20, 0.12, 0.04):
        above = Gripper(target.x, target.y, height)
        empty = replace(world, things=(replace(target, x=9.0, y=9.0),))
        changed = np.abs(render(world, above, "wrist").astype(int) - render(empty, above, "wrist")).sum(2) > 60
        row, column = (places.mean() for places in np.nonzero(changed))
        assert abs(row - 240) < 40 and abs(column - 320) < 40
        sizes.append(changed.sum())
    assert sizes[0] < sizes[1] < sizes[2]


@pytest.mark.parametrize("colour", COLOURS)
def test_each_colour_is_nearest_to_itself_in_the_tiny_sizes_56_pixels(colour: str) -> None:
    """Seen through JPEG and a squash to 56 x 56, the pixel nearest to any colour is nearest to its own."""
    world = scene(0, 11, distractors=0)
    world = replace(world, things=(replace(world.named, colour=colour, shape="block", x=0.15, y=-0.1),),
                    start=Gripper(-0.1, 0.1, 0.18))
    picture = Image.open(io.BytesIO(jpeg(render(world, world.start, "front"))))
    small = np.asarray(picture.resize((56, 56), Image.Resampling.BILINEAR), dtype=float)
    there = small[30:42, 30:44].reshape(-1, 1, 3)
    palette = np.array(list(COLOURS.values()), dtype=float)
    gaps = ((there - 0.95 * palette) ** 2).sum(2)
    assert list(COLOURS)[int(gaps.min(0).argmin())] == colour


def test_a_camera_that_does_not_exist_is_refused() -> None:
    world = scene(0, 0)
    with pytest.raises(LfError, match="front or wrist"):
        render(world, world.start, "side")


@given(scenes)
def test_all_that_is_said_is_made_of_the_vocabulary_and_reads_back(world: Scene) -> None:
    sentences = [text.instruction(world), text.caption(world)]
    sentences += [part for pair in text.questions(world) for part in pair]
    for sentence in sentences:
        ids = text.encode(sentence, 64)
        assert text.VOCABULARY.index("<unk>") not in ids
        assert text.decode(ids) == sentence
    assert len(text.encode(sentences[0], 16).nonzero()[0]) == len(sentences[0].split())


def test_the_vocabulary_is_small_and_begins_with_the_marks() -> None:
    assert text.VOCABULARY[:3] == ("<pad>", "<unk>", "<eos>")
    assert len(set(text.VOCABULARY)) == len(text.VOCABULARY) < 512


def test_encoding_cuts_pads_and_knows_its_limits() -> None:
    red, pick = text.VOCABULARY.index("red"), text.VOCABULARY.index("pick")
    assert text.encode("Pick, red!", 4).tolist() == [pick, red, 0, 0]
    assert text.encode("pick red red", 2).tolist() == [pick, red]
    assert text.encode("pick zebra", 2).tolist() == [pick, 1]
    assert text.decode(text.encode("yes <eos> no", 5)) == "yes"


@given(scenes)
def test_the_instruction_names_the_target_and_no_other(world: Scene) -> None:
    words = text.instruction(world).split()
    assert [thing for thing in world.things if thing.colour in words] == [world.named]
    assert words[-1] == world.named.shape


@given(scenes)
def test_every_answer_is_true_and_the_only_one(world: Scene) -> None:
    asked = text.questions(world)
    assert all(len({answer for question, answer in asked if question == key}) == 1 for key, _ in asked)
    answers = dict(asked)
    assert answers["how many objects are there"] == text.NUMBERS[len(world.things)]
    target = world.named
    assert answers[f"what shape is the {target.colour} object"] == target.shape
    row, column = answers[f"where is the {target.name}"].split()
    assert (row == "far") == (target.y >= AREA[1] / 3) and (column == "left") == (target.x < -AREA[0] / 3)
    _, column, _, row = answers[f"locate the {target.name}"].split()
    for word, parts, half, place in zip((column, row), text.GRID, AREA, (target.x, target.y), strict=True):
        middle = ((text.NUMBERS.index(word) - 0.5) / parts * 2 - 1) * half
        assert abs(middle - place) <= half / parts + 1e-9


def test_a_sample_has_the_six_members_in_their_order_and_lengths() -> None:
    members = dataset.sample(1, 12, distractors=2)
    assert list(members) == ["front.jpg", "wrist.jpg", "txt", "state.f32", "action.f32", "json"]
    assert len(members["state.f32"]) == 8 * 4 and len(members["action.f32"]) == 16 * 7 * 4
    world = scene(1, 12, distractors=2)
    assert members["txt"].decode("ascii") == text.instruction(world)
    words = json.loads(members["json"])
    assert words == {"caption": text.caption(world), "questions": [list(pair) for pair in text.questions(world)]}


def test_samples_begin_in_every_kind_of_state_and_the_gripper_does_not_point_at_the_target() -> None:
    moments = [dataset.moment(0, index) for index in range(1000)]
    starts = np.mean([moment.gripper == moment.scene.start for moment in moments])
    held = np.mean([moment.held is not None for moment in moments])
    assert abs(starts - dataset.START) < 0.04 and abs(held - dataset.HOLDING) < 0.01
    spread = [moment for moment in moments if moment.gripper != moment.scene.start and moment.gripper.opening == 1.0]
    along = np.corrcoef([m.gripper.x for m in spread], [m.scene.named.x for m in spread])[0, 1]
    assert len(spread) > 100 and abs(along) < 0.2

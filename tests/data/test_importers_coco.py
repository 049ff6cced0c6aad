"""COCO captions: one sample an image, its captions in the file's order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lfhelpers.data import importers
from lfhelpers.errors import LfError
from tests.data.importing import stock_counts
from tests.data.toy_shards import photo

IMAGES = [{"id": 30, "file_name": "000030.jpg"}, {"id": 7, "file_name": "000007.jpg"}]
NOTES = [{"id": 1, "image_id": 7, "caption": "seven"}, {"id": 2, "image_id": 30, "caption": " thirty\n"},
         {"id": 3, "image_id": 7, "caption": "again seven"}, {"id": 4, "image_id": 7, "caption": ""}]


def coco(folder: Path, images: list[dict[str, Any]] = IMAGES, notes: list[dict[str, Any]] = NOTES,
         place: str = "val2017") -> Path:
    """annotations/captions_val2017.json and a folder of images, as COCO lays them out."""
    (folder / "annotations").mkdir(parents=True)
    (folder / place).mkdir(parents=True)
    for number in (7, 30):
        (folder / place / f"{number:06d}.jpg").write_bytes(photo(number, 0))
    path = folder / "annotations" / "captions_val2017.json"
    path.write_text(json.dumps({"info": {}, "images": images, "annotations": notes}))
    return path


@pytest.mark.parametrize("place", ["val2017", "images", "images/val2017", "annotations/val2017"])
def test_captions_go_with_their_images(tmp_path: Path, place: str) -> None:
    made = importers.pack(coco(tmp_path / "coco", place=place), tmp_path / "set", progress=False)
    read = [made.read(index) for index in range(made.samples)]
    assert [(members["jpg"], members["txt"], json.loads(members["json"])) for members in read] == [
        (photo(30, 0), b"thirty", {"path": "000030.jpg", "id": 30, "captions": ["thirty"]}),
        (photo(7, 0), b"seven", {"path": "000007.jpg", "id": 7, "captions": ["seven", "again seven"]}),
    ]
    assert stock_counts(made) == (2, 2) and made.source["importer"] == "coco"


def test_images_may_lie_anywhere(tmp_path: Path) -> None:
    path = coco(tmp_path / "coco", place="elsewhere")
    with pytest.raises(LfError, match=r"none of the first images of .*captions_val2017.json is in .*annotations, .*; "
                                      r"give their folder with root="):
        importers.pack(path, tmp_path / "set", progress=False)
    assert importers.pack(path, tmp_path / "set", progress=False, root=tmp_path / "coco/elsewhere").samples == 2


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    images = [*IMAGES, {"id": 8, "file_name": "mute.jpg"}, {"id": 9, "file_name": "gone.jpg"}, IMAGES[0]]
    notes = [*NOTES, {"image_id": 9, "caption": "nine"}, {"image_id": 5, "caption": "five"}]
    path = coco(tmp_path / "coco", images, notes)
    with pytest.raises(LfError, match=r"has 4 that can't be packed: 1 duplicated id \(000030.jpg\), 2 no image "
                                      r"\(gone.jpg, image_id 5\), 1 no text \(mute.jpg\); mend"):
        importers.pack(path, tmp_path / "set", progress=False)
    made = importers.pack(path, tmp_path / "set", progress=False, on_bad="skip")
    assert made.samples == 2 and made.source["left_out"] == {"duplicated id": 1, "no image": 2, "no text": 1}


@pytest.mark.parametrize("content", ['{"images": []}', "[", '{"images": [], "annotations": ["a caption"]}',
                                     '{"images": [1], "annotations": []}'])
def test_another_json_is_one_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "boxes.json"
    path.write_text(content)
    with pytest.raises(LfError, match=r"boxes.json is no COCO captions file: it needs the lists images \(id, "):
        importers.pack(path, tmp_path / "set", kind="coco", progress=False)

"""Folders and tables of images become samples; what can't be packed is counted by its reason and named."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lfhelpers.data import images, importers
from lfhelpers.data.importers.found import plain
from lfhelpers.data.importers.images import _pairs
from lfhelpers.errors import LfError
from tests.data.importing import check_killed_and_resumed, snapshot, stock_counts
from tests.data.toy_shards import photo


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def picture(number: int) -> Image.Image:
    return Image.open(io.BytesIO(photo(number, 0)))


def turned(number: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(picture(number), "JPEG", quality=95, exif=exif.tobytes())


def put(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


GOOD = {
    "a.jpg": photo(0, 0),
    "deep/er/1.5_b.jpg": photo(1, 0),
    "deep/er/1.7_b.PNG": encoded(picture(2).convert("RGBA"), "PNG"),
    "photo.JPG": turned(3),
    "slow.jpeg": encoded(picture(4), "JPEG", progressive=True),
    "print.jpg": encoded(picture(5).convert("CMYK"), "JPEG"),
    "grey.jpg": encoded(picture(6).convert("L"), "JPEG"),
    "数据/帧一.webp": encoded(picture(7), "WEBP", quality=95),
    "deep.png": encoded(Image.fromarray(np.full((9, 8), 257 * 99, dtype=np.uint16)), "PNG"),
}
BAD = {
    "cut.jpg": photo(20, 0)[:1500], "cut.txt": b"half",
    "page.jpg": b"<html>404</html>", "page.txt": b"no photo",
    "none.jpg": b"", "none.txt": b"nothing",
    "alone.jpg": photo(21, 0),
    "words.txt": b"a text without an image",
    "mute.jpg": photo(22, 0), "mute.txt": b" \n",
    "latin.jpg": photo(23, 0), "latin.txt": "süß".encode("latin-1"),
    "twice.jpg": photo(24, 0), "twice.png": encoded(picture(25), "PNG"), "twice.txt": b"which one?",
    "notes.md": b"# notes",
    ".hidden.jpg": b"left alone",
}
REASONS = {
    "duplicated basename": ["twice.jpg", "twice.png", "twice.txt"], "empty text": ["mute.txt"],
    "no image": ["words.txt"], "no text": ["alone.jpg"], "not an image": ["none.jpg", "notes.md", "page.jpg"],
    "text that is not UTF-8": ["latin.txt"], "unreadable image": ["cut.jpg"],
}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    texts = {PurePosixPath(name).with_suffix(".txt").as_posix(): f"text of {name}\n".encode() for name in GOOD}
    return put(tmp_path / "photos", GOOD | texts)


def test_a_folder_of_pairs_becomes_samples(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(good)
    made = importers.pack(good, tmp_path / "set", progress=False)
    assert snapshot(good) == before
    assert made.samples == len(GOOD) and made.fields == ("jpg", "txt", "json")
    read = {json.loads(made.read(index)["json"])["path"]: made.read(index) for index in range(made.samples)}
    assert sorted(read) == sorted(GOOD)
    assert {name: members["txt"] for name, members in read.items()} == {
        name: f"text of {name}".encode() for name in GOOD}
    assert stock_counts(made) == (len(GOOD), len(GOOD))  # dots, depth and other scripts in names have no effect
    assert capsys.readouterr().out == (
        "photos is packed as images: it has images, a.jpg for one, and no meta/info.json\n")


def test_every_image_is_an_upright_baseline_jpeg_of_the_same_pixels(good: Path, tmp_path: Path) -> None:
    made = importers.pack(good, tmp_path / "set", progress=False)
    for index in range(made.samples):
        members = made.read(index)
        about = json.loads(members["json"])
        data = GOOD[about["path"]]
        assert plain(members["jpg"]) and (members["jpg"] == data) == plain(data) == ("original" not in about)
        before, after = (np.asarray(images.decode(item, "here")).astype(int) for item in (data, members["jpg"]))
        assert before.shape == after.shape and np.abs(before - after).mean() < 3
    assert [name for name, data in GOOD.items() if plain(data)] == ["a.jpg", "deep/er/1.5_b.jpg"]
    assert json.loads(made.read([*sorted(GOOD)].index("photo.JPG"))["json"])["original"] == {
        "format": "JPEG", "mode": "RGB", "orientation": 6}


def test_keep_stores_images_as_they_are(good: Path, tmp_path: Path) -> None:
    made = importers.pack(good, tmp_path / "set", progress=False, keep=True)
    assert [made.read(index)["jpg"] for index in range(made.samples)] == [GOOD[name] for name in sorted(GOOD)]


def test_what_can_not_be_packed_is_refused_in_one_sentence(good: Path, tmp_path: Path) -> None:
    put(good, BAD)
    with pytest.raises(LfError) as caught:
        importers.pack(good, tmp_path / "set", progress=False)
    assert str(caught.value) == (
        f"{good} has 11 that can't be packed: 3 duplicated basename (twice.jpg, twice.png, twice.txt), 1 empty text "
        "(mute.txt), 1 no image (words.txt), 1 no text (alone.jpg), 3 not an image (none.jpg, notes.md, page.jpg), "
        "1 text that is not UTF-8 (latin.txt), 1 unreadable image (cut.jpg); mend them, or leave them out with "
        "on_bad='skip'.")
    assert os.listdir(tmp_path) == ["photos"]


@pytest.mark.parametrize("jobs", [1, 3])
def test_or_left_out_and_counted(good: Path, tmp_path: Path, jobs: int, capsys: pytest.CaptureFixture[str]) -> None:
    put(good, BAD)
    made = importers.pack(good, tmp_path / "set", progress=False, on_bad="skip", jobs=jobs)
    assert made.samples == len(GOOD)
    assert made.source["left_out"] == {reason: len(names) for reason, names in REASONS.items()}
    assert "photos has 11 that can't be packed: 3 duplicated basename (twice.jpg" in capsys.readouterr().out
    refused = importers.read(good, on_bad="skip", progress=False).refused
    assert {reason: [name for name, why in refused if why == reason] for _, reason in refused} == REASONS


def test_one_hundred_images_with_four_bad_ones_give_ninety_six(tmp_path: Path) -> None:
    bad = {13: b"", 40: b"<html></html>", 41: photo(41, 0)[:1000], 77: encoded(picture(77), "GIF")[:2000]}
    files = {f"{number}.jpg": bad.get(number) or (b"" if number in bad else photo(number, 0, 32, 24))
             for number in range(100)}
    put(tmp_path / "photos", files | {f"{number}.txt": b"%d" % number for number in range(100)})
    made = importers.pack(tmp_path / "photos", tmp_path / "set", progress=False, on_bad="skip")
    assert sorted(int(made.read(index)["txt"]) for index in range(96)) == sorted(set(range(100)) - bad.keys())
    assert made.samples == 96 and made.source["left_out"] == {"not an image": 2, "unreadable image": 2}


def test_images_and_texts_may_lie_in_two_folders(tmp_path: Path) -> None:
    put(tmp_path / "data", {"images/1.jpg": photo(1, 0), "images/2.jpg": photo(2, 0), "texts/1.txt": b"one",
                            "texts/2.txt": b"two"})
    made = importers.pack(tmp_path / "data", tmp_path / "set", progress=False)
    assert [made.read(index)["txt"] for index in range(made.samples)] == [b"one", b"two"]


def test_a_text_elsewhere_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    put(tmp_path / "data", {"cats/1.jpg": photo(1, 0), "cats/2.jpg": photo(2, 0), "cats/2.txt": b"cat",
                            "dogs/1.txt": b"dog", "dogs/3.jpg": photo(3, 0), "dogs/3.txt": b"dog"})
    with pytest.raises(LfError, match=r"1 no image \(dogs/1.txt\), 1 no text \(cats/1.jpg\)"):
        importers.pack(tmp_path / "data", tmp_path / "set", progress=False)


names = st.builds(lambda folder, stem, suffix: PurePosixPath(f"{folder}{stem}{suffix}"),
                  st.sampled_from(["", "a/", "b/", "a/c/"]), st.sampled_from(["1", "2", "1.5"]),
                  st.sampled_from([".jpg", ".png", ".txt", ".TXT", ".md"]))


@given(st.sets(names).map(sorted))
def test_every_file_is_in_one_pair_or_refused_once(files: list[PurePosixPath]) -> None:
    pairs, refused = _pairs(files)
    used = [*(name for pair in pairs for name in pair), *(name for name, _ in refused)]
    assert sorted(used) == sorted(map(str, files))
    for image, text in pairs:
        assert PurePosixPath(image).stem == PurePosixPath(text).stem and text.lower().endswith(".txt")


def rows(path: Path, entries: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        else:
            table = csv.DictWriter(file, list(entries[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            table.writeheader()
            table.writerows(entries)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_a_table_names_images_and_gives_texts(good: Path, tmp_path: Path, suffix: str) -> None:
    table = rows(good / f"table{suffix}", [{"label": "7", "file_name": name, "caption": f'says "{name}",\n\u2028indeed'}
                                           for name in GOOD])
    made = importers.pack(table, tmp_path / "set", progress=False)
    assert [made.read(index)["txt"].decode() for index in range(made.samples)] == [
        f'says "{name}",\n\u2028indeed' for name in GOOD]
    assert json.loads(made.read(1)["json"]) == {"path": "deep/er/1.5_b.jpg", "row": 2}
    assert stock_counts(made) == (len(GOOD), len(GOOD))


def test_columns_of_other_names_and_images_elsewhere(good: Path, tmp_path: Path) -> None:
    table = rows(tmp_path / "table.csv", [{"Bild": "a.jpg", "Satz": "a"}, {"Bild": "grey.jpg", "Satz": "g"}])
    with pytest.raises(LfError, match=r"table.csv has no column image or .*; its columns are Bild, Satz: name one with "
                                      r"image_column=\.$"):
        importers.pack(table, tmp_path / "set", progress=False)
    made = importers.pack(table, tmp_path / "set", progress=False, image_column="Bild", text_column="Satz", root=good)
    assert made.samples == 2 and made.read(0)["jpg"] == GOOD["a.jpg"]


def test_bad_rows_are_refused_by_their_number(good: Path, tmp_path: Path) -> None:
    put(good, {"cut.jpg": BAD["cut.jpg"]})
    table = rows(good / "table.csv", [{"image": "a.jpg", "text": ""}, {"image": "", "text": "x"},
                                      {"image": "gone.jpg", "text": "x"}, {"image": "cut.jpg", "text": "x"},
                                      {"image": "a.jpg", "text": "y"}, {"image": "deep", "text": "x"}])
    with pytest.raises(LfError, match=r"has 5 that can't be packed: 1 empty text \(row 1\), 3 no image \(deep, "
                                      r"gone.jpg, row 2\), 1 unreadable image \(cut.jpg\); mend"):
        importers.pack(table, tmp_path / "set", progress=False)
    assert importers.pack(table, tmp_path / "set", progress=False, on_bad="skip").samples == 1


def test_a_folder_with_a_metadata_table_is_a_table(good: Path, tmp_path: Path) -> None:
    rows(good / "metadata.jsonl", [{"file_name": "a.jpg", "text": "from the table"}])
    made = importers.pack(good, tmp_path / "set", progress=False)
    assert made.samples == 1 and made.read(0)["txt"] == b"from the table"


@pytest.mark.parametrize(("name", "content", "sentence"), [
    ("t.jsonl", b'{"image": "a.jpg", "text": "a"}\n{broken', r"t.jsonl, line 2 is no JSON object; mend or remove it"),
    ("t.jsonl", b"[1, 2]", r"t.jsonl, line 1 is no JSON object"),
    ("t.csv", b"image,text\n", r"t.csv has nothing to pack\.$"),
    ("t.csv", b"\xff\xfe\x00", r"t.csv can't be read: .*; give a UTF-8 file"),
    ("t.json", b'{"images": 1}', r"t.json is nothing that can be packed: looked for a folder with meta/info.json"),
    ("folder/t.bin", b"\0", r"folder is nothing that can be packed: looked for"),
    ("folder/shard.tar", b"\0", r"folder holds tar files: shards, not raw data; check them with `lfhelpers data lint`"),
])
def test_bad_sources_are_one_sentence(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    put(tmp_path, {name: content})
    with pytest.raises(LfError, match=sentence):
        importers.pack(tmp_path / name.partition("/")[0], tmp_path / "set", progress=False)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(("options", "sentence"), [
    ({"kep": True}, "the kind images has no option 'kep'; did you mean 'keep'"),
    ({"kind": "image"}, "kind = 'image' is none that can be packed; did you mean 'images'"),
    ({"on_bad": "ignore"}, "on_bad = 'ignore' is neither 'refuse' nor 'skip'"),
    ({"kind": "table"}, "photos is no table; give a file of .csv"),
    ({"kind": "coco"}, "photos can't be read: Is a directory"),
])
def test_bad_options_are_one_sentence(good: Path, tmp_path: Path, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(LfError, match=sentence):
        importers.pack(good, tmp_path / "set", progress=False, **options)  # type: ignore[arg-type]


def test_the_source_is_not_written_into(good: Path) -> None:
    with pytest.raises(LfError, match=r"photos/set lies in .*photos, which is only read; choose a folder outside"):
        importers.pack(good, good / "set", progress=False)
    with pytest.raises(LfError, match=r"there is no .*photos/gone; give a folder or a file of data"):
        importers.pack(good / "gone", good.parent / "set", progress=False)


def test_a_name_that_is_no_text_is_packed_and_shown_escaped(tmp_path: Path) -> None:
    put(tmp_path / "photos", {os.fsdecode(b"b\xe4r.jpg"): photo(0, 0), os.fsdecode(b"b\xe4r.txt"): b"bear"})
    made = importers.pack(tmp_path / "photos", tmp_path / "set", progress=False)
    assert json.loads(made.read(0)["json"])["path"] == "b\\xe4r.jpg"


def test_killed_packing_is_continued_to_the_same_bytes(tmp_path: Path) -> None:
    put(tmp_path / "photos", {f"{number}.jpg": photo(number, 0) for number in range(16)}
        | {f"{number}.txt": b"%d" % number for number in range(16)})
    check_killed_and_resumed(tmp_path / "photos", tmp_path)


def test_a_source_that_has_changed_is_not_mixed_into_what_is_there(good: Path, tmp_path: Path) -> None:
    importers.pack(good, tmp_path / "set", progress=False)
    (good / "a.txt").write_text("another text")
    with pytest.raises(LfError, match=r"set already holds a dataset made with source.content = [0-9a-f]{16}, not "):
        importers.pack(good, tmp_path / "set", progress=False)

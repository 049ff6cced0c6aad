"""Tars with the damage that real sets have, each written with Python's own tarfile."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lfhelpers.data.lint import Report, lint

Members = Iterable[tuple[str, bytes]]


def tar(path: Path, members: Members, form: int = tarfile.GNU_FORMAT, kinds: Mapping[str, bytes] | None = None) -> Path:
    """A tar of (name, bytes) pairs; `kinds` gives the type of those that are no plain files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as file:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.type = (kinds or {}).get(name, tarfile.REGTYPE)
            info.size = len(data) if info.type == tarfile.REGTYPE else 0
            file.addfile(info, io.BytesIO(data))
    return path


def pairs(*keys: str, exts: Iterable[str] = ("jpg", "txt")) -> list[tuple[str, bytes]]:
    """A member of each extension for each key; its data is its name."""
    return [(f"{key}.{ext}", f"{key}.{ext}".encode()) for key in keys for ext in exts]


def four(path: Path) -> Path:
    """A tar of four samples of one member of 3,000 bytes each."""
    return tar(path, [(f"{number:03d}.bin", bytes([number + 1]) * 3000) for number in range(4)])


def edited(path: Path, change: Callable[[bytearray], Any]) -> Path:
    """The file, its bytes changed in place, or replaced by what `change` returns."""
    data = bytearray(path.read_bytes())
    path.write_bytes(change(data) or data)
    return path


def checked(path: Path, **options: Any) -> Report:
    """A lint without a bar."""
    return lint(path, progress=False, **options)


def kinds(report: Report) -> dict[str, int]:
    """The count of each kind of finding."""
    return {finding.kind: finding.count for finding in report.findings}


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    """An image file's bytes."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def tall() -> bytes:
    """A 4:4:0 JPEG, which Pillow can't write: a 4:2:2 one whose blocks are declared to lie below each other."""
    data = bytearray(encoded(noise(), subsampling=1))
    place = data.index(b"\xff\xc0") + 11
    assert data[place] == 0x21
    data[place] = 0x12
    return bytes(data)


def noise(seed: int = 0, size: int = 64) -> Image.Image:
    """An image that no encoder makes small."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8))


def stock(path: Path) -> list[dict[str, bytes]]:
    """What webdataset reads of a tar, its keys as `__key__`."""
    import webdataset as wds

    return [{ext: data for ext, data in sample.items() if ext in ("__key__",) or not ext.startswith("__")}
            for sample in wds.WebDataset([str(path)], shardshuffle=False, empty_check=False)]


def dali(paths: Iterable[Path], exts: Iterable[str], behaviour: str = "empty",
         indexed: bool = False) -> list[tuple[bytes, ...]]:
    """What DALI reads of tars: the data of each extension in each sample."""
    import nvidia.dali as dali

    tars = [str(path) for path in paths]
    index = {"index_paths": [str(Path(path).with_suffix(".idx")) for path in tars]} if indexed else {}

    @dali.pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def reader():  # type: ignore[no-untyped-def]
        outputs = dali.fn.readers.webdataset(name="reader", paths=tars, ext=list(exts),
                                             missing_component_behavior=behaviour, **index)
        return tuple(outputs) if isinstance(outputs, (list, tuple)) else outputs

    pipe = reader()
    count = pipe.reader_meta("reader")["epoch_size"]
    return [tuple(np.asarray(output.as_array())[0].tobytes() for output in pipe.run()) for _ in range(count)]

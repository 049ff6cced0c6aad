"""What the importers' tests share: stock readers over packed shards, and a packing that is killed half-way."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lfhelpers.data import Manifest, importers
from lfhelpers.runs import project
from tests.data.toy_shards import contents

HELD_PACK = """
import sys, time
from lfhelpers.data import importers
from lfhelpers.data.importers import images, steps

def hold(index):
    if index == int(sys.argv[3]):
        time.sleep(600)

for kind in (images.ImageTexts, steps.Steps):
    kind.__call__ = lambda self, index, whole=kind.__call__: hold(index) or whole(self, index)
importers.pack(sys.argv[1], sys.argv[2], readers=1, progress=False)
"""


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of every file below a folder."""
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def stock_counts(made: Manifest) -> tuple[int, int]:
    """How many samples the webdataset library and DALI's CPU reader find, all members of each there and not empty."""
    dali = pytest.importorskip("nvidia.dali", reason="DALI is not installed (Linux x86-64 only)")
    import webdataset as wds
    paths = [str(made.folder / shard.name) for shard in made.shards]
    read = [sample for sample in wds.WebDataset(paths, shardshuffle=False) if all(sample[ext] for ext in made.fields)]

    @dali.pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def reader():  # type: ignore[no-untyped-def]
        return tuple(dali.fn.readers.webdataset(
            name="reader", paths=paths, index_paths=[path.replace(".tar", ".idx") for path in paths],
            ext=list(made.fields), missing_component_behavior="error"))

    pipe = reader()
    count = pipe.reader_meta("reader")["epoch_size"]
    for index in range(count):
        found = [np.asarray(output.as_array())[0].tobytes() for output in pipe.run()]
        assert dict(zip(made.fields, found, strict=True)) == made.read(index)
    return len(read), count


def check_killed_and_resumed(source: Path, folder: Path) -> None:
    """Packing killed at the last sample, then continued by two writers, gives what one go gives."""
    whole = importers.pack(source, folder / "whole", readers=1, progress=False)
    before, last = snapshot(source), len(whole.shards) - 1
    process = subprocess.Popen([sys.executable, "-c", HELD_PACK, str(source), str(folder / "set"),
                                str(whole.samples - 1)], cwd=project(), stdout=subprocess.DEVNULL)
    building = folder / ".set.building"
    while not list(building.glob(f".shard-{last:05d}.*.tmp")):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (folder / "set").exists()
    assert len(list(building.glob(".rows/*.npz"))) == last > 0
    importers.pack(source, folder / "set", readers=1, jobs=2, progress=False)
    assert contents(folder / "set") == contents(folder / "whole")
    assert snapshot(source) == before

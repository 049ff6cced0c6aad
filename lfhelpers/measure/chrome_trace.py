"""A profiler's trace in a file: whole or not at all, and compressed while nobody waits long for it."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

LEVEL = 6
"""Of gzip. torch compresses at 9, line by line: five times as long for files that are a tenth smaller."""


def write(profiler: Any, path: Path) -> float:
    """Write what a torch.profiler.profile has recorded to `path`, a .json.gz in a folder that may have to be made.

    Returns its size in MiB. No reader meets half a trace: until the end the file has other names.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    plain, unfinished = path.with_name(f".{path.stem}"), path.with_name(f".{path.name}")
    try:
        profiler.export_chrome_trace(str(plain))
        with plain.open("rb") as given, gzip.open(unfinished, "wb", LEVEL) as packed:
            shutil.copyfileobj(given, packed, 2**20)
        unfinished.replace(path)
    finally:
        plain.unlink(missing_ok=True)
        unfinished.unlink(missing_ok=True)
    return path.stat().st_size / 2**20

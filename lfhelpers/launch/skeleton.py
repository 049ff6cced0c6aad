"""`lfhelpers new-workload NAME`: a file that runs as it stands, to be replaced part by part."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path

from lfhelpers import runs
from lfhelpers.errors import LfError

SOURCE = "lfhelpers.workloads.skeleton"


def write(name: str, folder: Path) -> tuple[Path, str]:
    """(file, class) of a new workload in `folder`. Raises LfError for a name that is none, and where the file is there.
    """
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)
    stem, kind = "_".join(words).lower(), "".join(word[0].upper() + word[1:] for word in words)
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name) or not words or keyword.iskeyword(stem):
        raise LfError(f"'{name}' can't name a workload; give letters, digits and _, as speech_model.")
    file = folder / f"{stem}.py"
    if file.exists():
        raise LfError(f"{file} exists and is kept; give another name, or remove it.")
    spec = importlib.util.find_spec(SOURCE)
    assert spec and spec.origin
    text = Path(spec.origin).read_text().replace("my_workload", stem).replace("MyWorkload", kind)
    try:
        runs.write_atomic(file, text.encode())
    except OSError as error:
        raise LfError(f"{file} can't be written: {error.strerror}.") from error
    return file, kind

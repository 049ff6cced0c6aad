"""Base checkpoints: where they lie, which one a recipe means, and how a model takes its weights.

A base belongs to the code that made it: it is found by name only while the files that decide what it learns are what
they were, so that no comparison starts from weights that nobody can make again. A path is taken as it is.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import orjson
import torch
from safetensors.torch import load_file
from torch import nn

from lfhelpers import runs
from lfhelpers.errors import LfError

WEIGHTS, CARD = "model.safetensors", "card.json"
SOURCES = ("workloads/vla", "train/base")
"""Folders of the package whose code decides what a base is."""
OPTIONAL = ("lm_head.",)
"""Weights that a model without the text loss doesn't have."""


def folder() -> Path:
    """Where bases are kept: `base` in the cache folder."""
    return runs.cache() / "base"


def code() -> str:
    """A digest of the code that decides what a base is, 12 hex digits."""
    package, digest = Path(__file__).resolve().parents[2], hashlib.sha256()
    for source in SOURCES:
        for file in sorted((package / source).rglob("*.py")):
            digest.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def find(name: str) -> Path:
    """The folder of a base, by its path or by the name of its recipe; raises LfError where there is none."""
    if (Path(name) / WEIGHTS).exists():
        return Path(name).absolute()
    made = [path.parent for path in folder().glob(f"{name}-*/{CARD}")]
    own = [path for path in made if (about := card(path))["name"] == name and about["code"] == code()]
    if not own:
        why = f"those there were made by other code: {', '.join(path.name for path in made)}" if made else \
            f"there is none in {folder()}"
        raise LfError(f"workload.base = '{name}': no such base, {why}; make it with `lfhelpers base make {name}`.")
    return max(own, key=lambda path: (path / CARD).stat().st_mtime_ns)


def card(base: Path) -> dict[str, Any]:
    """What is known of a base: name, size, hashes, figures, curve. Raises LfError where it can't be read."""
    try:
        return orjson.loads((base / CARD).read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise LfError(f"the base in {base} has no readable {CARD}; make it again.") from error


@torch.no_grad()
def load(model: nn.Module, base: Path, size: str) -> None:
    """Put a base's weights into a model, in the model's own dtypes. Raises LfError where the sizes differ."""
    about = card(base)
    if about["size"] != size:
        raise LfError(f"workload.base: {base.name} is of size '{about['size']}', the recipe's workload.size is "
                      f"'{size}'; take a base of the same size.")
    weights = load_file(str(base / WEIGHTS))
    own = model.state_dict()
    kept = {name: value for name, value in weights.items() if name in own or not name.startswith(OPTIONAL)}
    try:
        model.load_state_dict({name: own[name] for name in own if name.startswith(OPTIONAL)} | kept)
    except RuntimeError as error:
        raise LfError(f"workload.base: {base / WEIGHTS} doesn't fit the model: {str(error).splitlines()[-1].strip()}; "
                      "make it again.") from error

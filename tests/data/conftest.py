"""One small dataset for all data tests; those that damage it copy it first."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lfhelpers.data import Manifest, shards
from tests.data.http_server import Server
from tests.data.toy_shards import make, sample


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return make(tmp_path_factory.mktemp("data") / "toy")


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """48 samples in 24 shards: three windows of the block shuffle."""
    return shards.write(tmp_path_factory.mktemp("many") / "set", sample, 48, readers=6, progress=False)


@pytest.fixture
def served(dataset: Manifest) -> Iterator[Server]:
    """The small dataset behind an address."""
    with Server(dataset.folder) as server:
        yield server


@pytest.fixture
def copied(dataset: Manifest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dataset.folder, tmp_path / "copied"))

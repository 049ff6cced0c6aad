"""One small dataset for all data tests; those that damage it copy it first."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lfhelpers.data import Manifest
from tests.data.toy_shards import make


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return make(tmp_path_factory.mktemp("data") / "toy")


@pytest.fixture
def copied(dataset: Manifest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dataset.folder, tmp_path / "copied"))

"""One list of dependencies, and a package that is light to import."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GIVEN = {"torch", "jupyterlab", "nvidia-dali-cuda120", "webdataset", "ipywidgets", "matplotlib", "papermill"}


def names(lines):
    return {re.split(r"[<>=!~;\[ ]", line, maxsplit=1)[0].lower().replace("_", "-") for line in lines}


def test_what_the_users_asked_for_is_a_dependency():
    assert names(PROJECT["dependencies"]) >= GIVEN


def test_environment_yml_adds_nothing_of_its_own():
    lines = [line.strip().removeprefix("- ") for line in (ROOT / "environment.yml").read_text().splitlines()
             if line.strip().startswith("- ")]
    python, dali = "python" + PROJECT["requires-python"], "nvidia-dali-cuda120"
    assert lines[:3] == ["conda-forge", "nodefaults", python]
    assert "-e .[dev]" in lines and "-c constraints.txt" in lines
    assert next(line for line in PROJECT["dependencies"] if line.startswith(dali)).startswith(
        next(line for line in lines if line.startswith(dali)))


def test_every_direct_dependency_is_pinned():
    pinned = names(line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#"))
    extras = PROJECT["optional-dependencies"]
    direct = names([*PROJECT["dependencies"], *extras["dev"], *extras["adapters"]])
    assert direct - pinned == set()


@pytest.mark.parametrize(("module", "heavy"), [
    ("lfhelpers", ("torch", "matplotlib", "nvidia.dali", "numpy")),
    ("lfhelpers.notebook.exercises", ("torch", "matplotlib", "nbformat", "numpy")),
    ("lfhelpers.train.__main__", ("scipy", "matplotlib", "nbformat", "torch._dynamo")),
])
def test_a_script_a_kernel_and_a_rank_load_nothing_heavy_that_they_may_not_need(module, heavy):
    script = f"import {module}, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""What stands around the code: licence, citation, versions, hooks, CI, and the examples for schedules."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CI = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
PINS = {name.lower().replace("_", "-"): version for name, version in
        re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)}
RECORDED = [yaml.safe_load(path.read_text())["versions"]
            for path in (ROOT / "runs" / "reference").glob("**/environment.json")]


def test_the_licence_is_apache_everywhere():
    assert "Apache License" in (ROOT / "LICENSE").read_text() and "END OF TERMS AND CONDITIONS" in (
        ROOT / "LICENSE").read_text()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PROJECT["license"] == citation["license"] == "Apache-2.0"
    assert citation["version"] == PROJECT["version"] and PROJECT["version"] in (ROOT / "CHANGELOG.md").read_text()


def test_the_pythons_that_are_claimed_are_those_of_ci():
    claimed = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3" in line}
    assert claimed == set(CI["jobs"]["test"]["strategy"]["matrix"]["python"])
    assert PROJECT["requires-python"] == f">={min(claimed)}"
    assert all(version in (ROOT / "README.md").read_text() for version in claimed)


def test_every_floor_is_a_version_that_was_tested():
    untested = []
    for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]:
        name, floor = re.match(r"([\w.-]+)>=([\w.]+)", line).groups()
        tested = [PINS[name.lower()], *(versions[name] for versions in RECORDED if versions.get(name))]
        if not any(f"{version}.".startswith(f"{floor}.") or version.startswith(f"{floor}+") for version in tested):
            untested.append(f"{name}>={floor}, tested: {', '.join(tested)}")
    assert untested == []


def test_ci_calls_what_anyone_calls():
    steps = [step["run"] for job in CI["jobs"].values() for step in job["steps"] if "run" in step]
    assert ".ci/run" in steps and "make playbook" in steps
    assert "exec make test" in (ROOT / ".ci" / "run").read_text()
    recipe = (ROOT / "Makefile").read_text()
    marks = re.findall(r"pytest (?:.*?)-m '?([\w ]+)'?$", recipe, flags=re.MULTILINE)
    assert sorted(marks) == ["alone", "not alone"], "together they run every test"


def test_every_file_of_tests_is_found_by_pytest():
    written = [path for path in (ROOT / "tests").rglob("*.py")
               if re.search(r"^(?:async )?def test_|^class Test", path.read_text(), flags=re.MULTILINE)]
    assert [str(path) for path in written if not path.name.startswith("test_")] == []
    assert len(written) > 100


def test_hooks_check_what_ci_checks_and_leave_committed_notebooks_alone():
    hooks = {hook["id"]: hook for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
             for hook in repo["hooks"]}
    assert hooks.keys() == {"ruff", "nbstripout", "notebook-lint", "large-files"}
    strip = hooks["nbstripout"]["entry"].replace(".venv/bin/nbstripout", "nbstripout --verify")
    found = subprocess.run(f"{strip} notebooks/*.ipynb", shell=True, cwd=ROOT, capture_output=True, text=True,
                           env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"})
    assert found.returncode == 0, found.stdout + found.stderr


def test_nothing_large_is_kept_beside_the_records():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no git checkout")
    kept = [ROOT / name for name in listed.stdout.split("\0") if name and not name.startswith("runs/reference/")]
    assert [path.name for path in kept if path.is_file() and path.stat().st_size > 200 * 1024] == []


def test_the_slurm_example_hands_its_signal_and_its_words_to_the_playbook(tmp_path):
    stub = tmp_path / ".venv" / "bin" / "lfhelpers"
    stub.parent.mkdir(parents=True)
    stub.write_text('#!/bin/bash\necho "$$ $*"\n')
    stub.chmod(0o755)
    script = ROOT / "examples" / "playbook.sbatch"
    with subprocess.Popen(["bash", script, "00", "01"], env=os.environ | {"SLURM_SUBMIT_DIR": str(tmp_path)},
                          stdout=subprocess.PIPE, text=True) as job:
        said = job.stdout.read().split()
    assert int(said[0]) == job.pid, "the batch script is replaced, so Slurm's signal reaches the playbook"
    assert said[1] == "playbook" and said[-2:] == ["00", "01"] and job.returncode == 0
    outside = subprocess.run(["bash", script], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)
    assert outside.returncode != 0 and "submit this from the checkout" in outside.stderr

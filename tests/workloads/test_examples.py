"""The example workloads of lesson 08, taken by the command line as readers take their own: diagnosis, ladder, study.

Sizes and steps are the smallest there are: what is looked at is that each command does its whole work, and tells it.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lfhelpers.diagnose.ceilings import NAMED
from lfhelpers.diagnose.tiers import of_run
from lfhelpers.runs import Run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ["image_classifier.py:ImageClassifier", "language_model.py:LanguageModel"]
SMALL = ["device=cpu", "data.workers=0", "log.skip=1", "log.probe=false"]
CHANGED = [word for change in SMALL for word in ("--set", change)]
KNOBS = [word for knob in ("micro-batch", "optimizer", "depth") for word in ("--knob", knob)]


def begun(*words):
    """`lfhelpers WORDS` as a user types it, in the project's folder."""
    return subprocess.Popen([sys.executable, "-m", "lfhelpers", *words], cwd=ROOT, text=True,
                            env=os.environ | {"COLUMNS": "200"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def told(command):
    """What it printed; it must have ended well."""
    out, complaint = command.communicate()
    assert command.returncode == 0, complaint
    return out


@pytest.mark.long
@pytest.mark.timeout(600)  # a minute on two cores of its own; a dozen processes, each importing torch, on fewer
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_goes_through_diagnosis_ladder_and_study(example, runs_root, tmp_path):
    use = f"notebooks/workloads/{example}"
    with begun("diagnose", "--workload", use, "--set", "batch.micro=8", *CHANGED) as diagnosis:
        assert_diagnosed(told(diagnosis), use, runs_root)
    # The two share the cores: no rate of theirs is looked at.
    with begun("ladder", "--workload", use, "--micro", "8", "--steps", "5", "--anchors", "1", "--only-climb",
               "--no-predict", "--lever", "fused AdamW", "--lever", "packed frozen weights", *CHANGED,
               "--out", str(tmp_path / "ladder.json")) as ladder, \
            begun("tune", "mine", "recipe=competent", "batch.micro=8", "data.loader=threads", *SMALL,
                  "--workload", use, "--trials", "6", "--steps", "8", *KNOBS, "--start", "competent", "--no-verify",
                  "--out", str(tmp_path / "study.json")) as study:
        assert_climbed(told(ladder), json.loads((tmp_path / "ladder.json").read_text()))
        assert_searched(told(study), json.loads((tmp_path / "study.json").read_text()))


def assert_diagnosed(out, use, runs_root):
    """A verdict, what each remedy may win, the run that says so, and what to do next."""
    assert re.search(r"-bound: (of each step|no stall of the step) of ", out) and " as it is trained" in out
    run = Path(out.partition("run folder: ")[2].splitlines()[0])
    assert run.parent == runs_root and (run / "ablation.json").exists()
    ceilings = {ceiling.remedy: ceiling.ideal for ceiling in of_run(Run(run))}
    assert {"a loader that is never waited for", "a fused optimizer", "less Python between operators"} <= set(ceilings)
    for remedy, ideal in ceilings.items():  # what was worth a name that day, on a machine as busy as it was
        assert (f"\n{remedy} " in out) == (ideal >= NAMED)
    assert out.endswith(f"next: lfhelpers ladder --workload {use}\n")


def assert_climbed(out, record):
    """Each rung with its rate or why it has none, and the verdict of the lever that could be pulled."""
    settings = record["settings"]
    rates = {row["name"]: row["value"] for row in record["rows"] if row["unit"] == "samples/s"}
    assert list(rates) == ["as found", "+ fused AdamW", "competent", "full"] and min(rates.values()) > 0
    assert settings["gates"]["fused AdamW"]["passed"] and "from float64" in settings["gates"]["fused AdamW"]["found"]
    assert settings["failed"]["+ packed frozen weights"].startswith("it mends the built-in model's own code")
    assert "reordered: passed" in out and record["checks"]["gates_passed"] == record["checks"]["gates_total"] == 1


def assert_searched(out, record):
    """Six jobs of six recipes, the base first, and who leads."""
    tried = record["settings"]["trials"]
    assert len(tried) == 6 and tried[0]["ended"] == "done" and tried[0]["samples/s"] > 0
    assert {trial["ended"] for trial in tried} <= {"done", "slower"}
    assert len({json.dumps(trial["knobs"], sort_keys=True) for trial in tried}) == 6
    assert "study mine: 6 trials" in out and " leads with " in out and "all 6 trials are done." in out

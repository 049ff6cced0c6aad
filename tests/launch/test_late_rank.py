"""A rank that starts late, and one that compiles longer than the others (case 29e): the others wait, and no job ends.

torch's watchdog ends a job where a collective waits longer than the process group's time-out, as happened to nanochat
(pull request 722). Here a rank compiles before its first collective of a step, and the first steps aren't timed.
"""

import json

import numpy as np
import pytest
from torch.distributed.distributed_c10d import default_pg_timeout

from lfhelpers.launch import launch

LATE = 4.0
"""Seconds by which a rank is late, twice: until it joins, and in its first step."""
WORKLOAD = f'''
import json, os, time
from pathlib import Path
import torch.distributed as dist
from tests.train.toy import Toy

RANK, RUN = int(os.environ["RANK"]), Path(os.environ["LFHELPERS_RUN"])
time.sleep({LATE} * RANK)  # its imports take longer


class Late(Toy):
    """Rank 1 comes out of its first forward late, as one that compiles there; rank 0 is in its own by then."""

    compiled = False

    def loss(self, model, batch, draws):
        if not Late.compiled:
            Late.compiled = True
            group = dist.group.WORLD._get_backend(model.module[0].weight.device)
            (RUN / f"limit-{{RANK}}.json").write_text(json.dumps(group.options._timeout.total_seconds()))
            while not (RUN / "limit-0.json").exists():
                time.sleep(0.01)
            time.sleep({LATE} * RANK)
        return super().loss(model, batch, draws)
'''


@pytest.fixture(scope="module")
def late(place, toy, tmp_path_factory):
    """The run of two ranks of which the second is late."""
    file = tmp_path_factory.mktemp("late") / "late.py"
    file.write_text(WORKLOAD)
    return launch(toy.with_(f"workload.use={file}:Late"), 2, watch=False)


def test_case_29e_a_rank_that_starts_and_compiles_late_ends_nothing(late):
    rows = late.steps()
    assert late.status["state"] == "done" and [row["step"] for row in rows] == list(range(1, 13))
    assert rows[0]["step_ms"] >= 1e3 * LATE, "rank 0 has waited for it"


def test_case_29e_the_wait_is_in_no_figure_of_the_run(late):
    timed = [row["step_ms"] for row in late.steps()[2:]]
    assert late.summary["steps"]["timed"] == len(timed) == 10
    assert late.summary["step_ms"]["mean"] == np.mean(timed)


def test_case_29e_a_rank_may_be_ten_minutes_late(late):
    """What torch gives on its own is kept: half an hour with gloo here, and ten minutes with NCCL."""
    limits = [json.loads((late.path / f"limit-{rank}.json").read_text()) for rank in range(2)]
    assert limits == [default_pg_timeout.total_seconds()] * 2 and min(limits) >= 600

"""What each rank runs in, without torchrun around it: its log, its error record, and its end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lfhelpers.launch.failures import log_tail


@pytest.fixture
def rank(tmp_path: Path):
    """Runs `code` as rank 3 of 4 in a run folder; returns (exit code, its log's lines after the header)."""
    (tmp_path / "logs").mkdir()
    environment = {**os.environ, "RANK": "3", "WORLD_SIZE": "4", "LFHELPERS_RUN": str(tmp_path),
                   "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")}

    def run(code: str, start: str = "rank.main(['job', 'one', '--two'])") -> tuple[int, list[str]]:
        (tmp_path / "job.py").write_text(code)
        command = [sys.executable, "-u", "-c", f"from lfhelpers.launch import rank; {start}"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert done.stdout == done.stderr == ""
        return done.returncode, log_tail(tmp_path / "logs" / "rank-3.log")

    run.folder = tmp_path
    return run


def test_both_streams_are_in_one_log_in_order(rank):
    printing = "print(sys.argv[1:], __name__)\nprint('b', file=sys.stderr)\nos.system('echo c')"
    code, lines = rank(f"import os, sys\n{printing}")
    assert (code, lines) == (0, ["['one', '--two'] __main__", "b", "c"])
    assert (rank.folder / "logs" / "rank-3.log").read_text().startswith("--- rank 3 of 4, pid ")


def test_a_second_start_appends_and_the_tail_is_of_the_last_start(rank):
    rank("print('first')")
    assert rank("print('second')")[1] == ["second"]
    assert "first" in (rank.folder / "logs" / "rank-3.log").read_text()


def test_an_exception_is_recorded_with_the_modules_own_frames(rank):
    code, lines = rank("def inner():\n    raise ValueError('too big')\ninner()")
    record = json.loads((rank.folder / "error.json").read_text())["message"]
    assert code == 1
    assert record["message"] == "ValueError: too big" and record["sentence"] is None
    assert record["extraInfo"]["py_callstack"].splitlines() == lines
    assert [line.split(", ")[2] for line in lines if line.startswith("  File")] == ["in <module>", "in inner"]


def test_a_users_mistake_is_recorded_as_its_sentence_also_from_a_subclass(rank):
    rank("from lfhelpers.errors import LfError\nclass Mine(LfError): pass\nraise Mine('mend this.')")
    assert json.loads((rank.folder / "error.json").read_text())["message"]["sentence"] == "mend this."


def test_a_module_that_is_missing_is_an_error_like_any_other(rank):
    code, lines = rank("", start="rank.main(['nowhere'])")
    assert (code, lines[-1]) == (1, "ImportError: No module named nowhere")


def test_the_modules_own_exit_code_is_kept(rank):
    assert rank("import sys\nsys.exit('words')") == (1, ["words"])
    assert rank("import sys\nsys.exit(7)") == (7, [])


def test_a_failed_rank_ends_though_a_thread_or_an_exit_function_hangs(rank):
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    assert rank(thread + "raise ValueError('no')")[0] == 1
    assert rank(thread + "raise SystemExit(75)")[0] == 75, "as one that leaves before its time limit"
    hang = "import atexit, time\natexit.register(time.sleep, 600)\nraise ValueError('no')"
    code, lines = rank(hang, start="rank.LINGER = 0.2; rank.main(['job'])")
    assert code == 1 and any(line.startswith("Timeout") for line in lines)


def test_a_rank_that_has_done_its_work_may_tidy_up_for_longer_and_not_for_ever(rank):
    slow = "import atexit, time\natexit.register(time.sleep, {})"
    assert rank(slow.format(1.0), start="rank.LINGER = 0.2; rank.main(['job'])")[0] == 0
    assert rank(slow.format(600), start="rank.TIDY = 0.2; rank.main(['job'])")[0] == 1


def test_a_crash_in_c_code_leaves_its_stack(rank):
    code, lines = rank("import faulthandler\nfaulthandler._sigsegv()")
    assert code == -11 and lines[0] == "Fatal Python error: Segmentation fault"

"""Who failed first, from files as torch itself writes them: its error records, and the summary it prints at the end."""

import json
import os
import time
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from lfhelpers.launch.failures import ending, first
from lfhelpers.runs import Run

PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:1234"
NOW = time.time()


@pytest.fixture
def failed(tmp_path: Path):
    """Writes the logs of a job whose ranks ended as given: {rank: (exit code, exception or None, when)}."""
    logs = tmp_path / "logs"

    def write(deaths: dict[int, tuple[int, str | None, float]]):
        failures = {}
        for rank, (code, exception, when) in deaths.items():
            folder = logs / "torchrun" / "id_1" / "attempt_0" / str(rank)
            folder.mkdir(parents=True)
            if exception:
                record = {"message": exception, "extraInfo": {"py_callstack": "frames", "timestamp": str(int(when))}}
                (folder / "error.json").write_text(json.dumps({"message": record}))
                os.utime(folder / "error.json", (when, when))
            failures[rank] = ProcessFailure(rank, 100 + rank, code, str(folder / "error.json"))
            failures[rank].timestamp = int(when)
        if failures:
            (logs / "torchrun.log").write_text(f"some warning\n{ChildFailedError('job', failures)}\n")
        return first(Run(tmp_path), 1)

    logs.mkdir()
    write.logs = logs
    return write


def test_the_earlier_exception_is_the_cause_within_one_second(failed):
    assert failed({0: (1, "ValueError: late", NOW + 0.02), 1: (1, "ValueError: early", NOW)}).rank == 1


def test_a_lost_peer_is_never_the_cause_even_if_it_was_written_first(failed):
    cause = failed({0: (1, PEER, NOW), 1: (1, "ValueError: the cause", NOW + 0.5)})
    assert (cause.rank, cause.reason) == (1, "rank 1: ValueError: the cause")


def test_a_silent_death_comes_before_what_it_made_the_others_say(failed):
    cause = failed({0: (1, PEER, NOW), 2: (-15, None, NOW), 1: (-9, None, NOW)})
    assert (cause.rank, cause.exit_code) == (1, -9)
    assert cause.report.splitlines() == [
        "rank 1 was killed (signal 9), often out of memory; it printed nothing.", "",
        "After that rank 0 exited with 1.", "After that rank 2 was ended by signal 15 (SIGTERM).",
        f"Logs: {failed.logs}"]


def test_an_abort_in_the_same_second_is_an_answer_to_the_exception(failed):
    assert failed({0: (-6, None, int(NOW)), 1: (1, "ValueError: the cause", int(NOW) + 0.5)}).rank == 1


def test_a_survivor_killed_after_the_grace_is_not_the_cause(failed):
    assert failed({0: (-9, None, NOW + 10), 1: (1, "ValueError: the cause", NOW)}).rank == 1


def test_a_lost_peer_is_shown_where_nothing_else_is_known(failed):
    assert failed({0: (1, PEER, NOW)}).reason == f"rank 0: {PEER}"


def test_a_record_cut_short_leaves_the_log(failed):
    failed.logs.joinpath("rank-0.log").write_text("--- rank 0 of 1, pid 1\nlast words\n")
    folder = failed.logs / "torchrun" / "id_1" / "attempt_0" / "0"
    folder.mkdir(parents=True)
    (folder / "error.json").write_text('{"message": {"mess')
    assert failed({}).report.splitlines()[:3] == ["rank 0 exited with 1. Its last lines:", "", "last words"]


def test_without_ranks_torchrun_itself_speaks(failed):
    (failed.logs / "torchrun.log").write_text("Traceback\nRuntimeError: no free port\n")
    cause = failed({})
    assert (cause.rank, cause.reason) == (None, "torchrun exited with 1: RuntimeError: no free port")


def test_of_several_hosts_the_rank_that_raised_is_the_cause_wherever_it_ran(failed):
    """Both are the first of their host, so the folder of each says 0."""
    for name, rank, exception in (("torchrun", 0, PEER), ("torchrun-1", 1, "ValueError: the cause")):
        folder = failed.logs / name / "id_1" / "attempt_0" / "0"
        folder.mkdir(parents=True)
        extra = {"py_callstack": f"frames of rank {rank}", "timestamp": str(int(NOW))}
        record = {"message": exception, "rank": rank, "extraInfo": extra}
        (folder / "error.json").write_text(json.dumps({"message": record}))
        os.utime(folder / "error.json", (NOW + rank, NOW + rank))
        failure = ProcessFailure(0, 100, 1, str(folder / "error.json"))
        text = str(ChildFailedError("job", {rank: failure}))
        (failed.logs / f"{name}.log").write_text(text)
    cause = failed({})
    assert (cause.rank, cause.reason, cause.symptom) == (1, "rank 1: ValueError: the cause", False)
    assert cause.report.splitlines()[:4] == ["rank 1 failed:", "", "frames of rank 1", ""]
    assert "After that rank 0 exited with 1." in cause.report


def test_ranks_that_only_lost_their_peers_are_known_as_symptoms(failed):
    assert failed({0: (1, PEER, NOW), 1: (-15, None, NOW)}).symptom


@pytest.mark.parametrize(("code", "words"), [
    (3, "exited with 3"), (137, "exited with 137 (as after signal 9), often out of memory"),
    (-9, "was killed (signal 9), often out of memory"), (-11, "was ended by signal 11 (SIGSEGV)"),
    (-64, "was ended by signal 64 (SIGRTMAX)"), (-63, "was ended by signal 63 (unknown)")])
def test_endings_in_words(code, words):
    assert ending(code) == words

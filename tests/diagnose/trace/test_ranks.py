"""Folders of ranks: which files are read, and how communication divides into transfer and waiting."""

import gzip
import json
import random

import pytest

from lfhelpers.diagnose.trace import diagnose_trace
from lfhelpers.errors import LfError
from tests.diagnose.trace.synthetic import ALL_REDUCE, EXCHANGE_STREAM, LOADER, NODE, OTHER, Writer

TRANSFER = 100


def rank_of(rank, late, world=4, steps=4, skip=0, sequence=True, skew=0.0, slow=3):
    """A rank of a job in which rank `slow` computes `late` us longer than the 600 of the others.

    The exchange of 100 us ends on all ranks together; clocks differ by `skew`. `skip` leaves out the first exchanges,
    as where recording began later.
    """
    info = {"backend": "nccl", "rank": rank, "world_size": world}
    writer = Writer(distributedInfo=info)
    length = 600 + late + TRANSFER
    for number in range(steps):
        at = 1000 + skew + number * length
        computed = 600 + (late if rank == slow else 0)
        writer.step(number, at, length)
        writer.gpu(at, computed, at)
        for piece in range(60):
            writer.gpu(at + 10 * piece, 5, at + 1, stream=EXCHANGE_STREAM + 1, name="elementwise_kernel")
        if number >= skip:
            arguments = {"Collective name": "allreduce", "Process Group Name": "0", "dtype": "Float",
                         "In msg nelems": 1000} | ({"Seq": number + 1} if sequence else {})
            writer.gpu(at + computed, length - computed, at + 2, name=ALL_REDUCE, stream=EXCHANGE_STREAM, **arguments)
    return writer


def folder_of(tmp_path, ranks=(0, 1, 2, 3), late=200, **options):
    for rank in ranks:
        rank_of(rank, late, **options | {"skew": 5000.0 * rank}).write(tmp_path / f"rank-{rank}.json")
    return tmp_path


@pytest.mark.parametrize("sequence", [True, False])
def test_transfer_is_the_shortest_and_the_rest_is_waiting(tmp_path, sequence):
    found = diagnose_trace(folder_of(tmp_path, sequence=sequence))
    assert [(item.rank, item.collectives) for item in found.split.ranks] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert [item.transfer_ms for item in found.split.ranks] == pytest.approx([0.1] * 4)
    assert [item.wait_ms for item in found.split.ranks] == pytest.approx([0.2, 0.2, 0.2, 0])
    assert found.split.late == 3 and found.main.trace.rank == 3
    assert found.split.straggler.share == pytest.approx(100 * 200 / 900)
    assert found.verdict.startswith("Straggler: rank 3 comes last to the exchange: the others wait 0.2 ms a step for")
    assert "22 % of the step" in found.verdict


def test_ranks_that_come_together_have_no_straggler(tmp_path):
    found = diagnose_trace(folder_of(tmp_path, late=20))
    assert found.split.late is None and found.main.trace.rank == 0
    assert found.patterns == found.main.patterns


def test_recordings_that_began_at_different_steps_are_matched_all_the_same(tmp_path):
    folder_of(tmp_path, ranks=(0, 1, 2), skip=1)
    rank_of(3, 200).write(tmp_path / "rank-3.json")
    found = diagnose_trace(tmp_path)
    assert [item.wait_ms for item in found.split.ranks] == pytest.approx([0.2, 0.2, 0.2, 0])
    assert "1 of 4 collectives are in one rank's trace alone and are left out" in found.split.notes


def test_missing_ranks_are_named(tmp_path):
    found = diagnose_trace(folder_of(tmp_path, ranks=(1, 3), world=6))
    assert [item.rank for item in found.split.ranks] == [1, 3]
    assert any(note.startswith("4 of 6 ranks have no trace here (0, 2, 4, 5)") for note in found.notes)


def test_waiting_that_computation_hides_is_no_stragglers_fault(tmp_path):
    """Rank 0 reaches its exchange early, and computes beside it until the other comes."""
    for rank in (0, 1):
        writer = Writer(distributedInfo={"rank": rank, "world_size": 2})
        for number in range(3):
            at = 1000 * number
            writer.step(number, at, 1000)
            writer.gpu(at, 1000, at)
            start = at + (400 if rank == 0 else 700)
            writer.gpu(start, at + 800 - start, at + 1, name=ALL_REDUCE, stream=EXCHANGE_STREAM)
        writer.write(tmp_path / f"rank{rank}.json")
    found = diagnose_trace(tmp_path)
    assert [item.wait_ms for item in found.split.ranks] == pytest.approx([0.3, 0])
    assert [item.exposed_wait_ms for item in found.split.ranks] == [0, 0] and found.split.straggler is None


def test_exchanges_of_processors_are_matched_too(tmp_path):
    for rank, late in ((0, 0), (1, 250)):
        writer = Writer(distributedInfo={"rank": rank, "world_size": 2, "backend": "gloo"})
        for number in range(3):
            at = 1000 * number
            writer.step(number, at, 1000)
            writer.host(LOADER, at, 300 + late, category="user_annotation")
            writer.host(NODE, at + 300 + late, 200)
            writer.host("gloo:all_reduce", at + 500 + late, 500 - late, OTHER, "user_annotation")
        writer.write(tmp_path / f"{rank}.json")
    found = diagnose_trace(tmp_path)
    assert (found.split.late, found.split.ranks[0].wait_ms) == (1, pytest.approx(0.25))


def test_a_folder_is_read_in_any_form_and_what_is_no_trace_is_left_out(tmp_path):
    """Case: a trace packed and one plain, ranks in file names alone, and another JSON."""
    packed, plain = rank_of(0, 200, slow=1), rank_of(1, 200, slow=1)
    for writer in (packed, plain):
        writer.head = {}
    path = packed.write(tmp_path / "w.json")
    (tmp_path / "worker0.1699.pt.trace.json.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    plain.write(tmp_path / "worker1.1700.pt.trace.json")
    (tmp_path / "settings.json").write_text(json.dumps({"lr": random.random()}))
    (tmp_path / "log.txt").write_text("not looked at")
    found = diagnose_trace(tmp_path)
    assert [report.trace.rank for report in found.reports] == [0, 1]
    [note] = found.skipped
    assert note.startswith("left out: ") and "settings.json holds no list of traceEvents" in note


def test_two_recordings_of_one_rank_are_refused_by_name(tmp_path):
    rank_of(0, 0).write(tmp_path / "a.json")
    rank_of(0, 0).write(tmp_path / "b.json")
    with pytest.raises(LfError, match=r"a\.json and b\.json in .* are both of rank 0"):
        diagnose_trace(tmp_path)


def test_ranks_named_nowhere_are_taken_in_order(tmp_path):
    for name, rank in (("first.json", 0), ("second.json", 1)):
        writer = rank_of(rank, 200, slow=1)
        writer.head = {}
        writer.write(tmp_path / name)
    assert [report.trace.rank for report in diagnose_trace(tmp_path).reports] == [0, 1]


@pytest.mark.parametrize("head", [{}, {"distributedInfo": {"backend": "nccl"}}])
def test_a_trace_without_a_rank_is_one_rank_alone(tmp_path, head):
    writer = rank_of(0, 0)
    writer.head = head
    found = diagnose_trace(writer.write(tmp_path / "t.json"))
    assert found.split is None and found.main.trace.rank is None
    assert "the trace names no rank, so it is read as one rank alone" in found.notes


def test_an_empty_folder_is_one_sentence(tmp_path):
    with pytest.raises(LfError, match="holds no trace, no file that ends in"):
        diagnose_trace(tmp_path)
    (tmp_path / "a.json").write_text("")
    with pytest.raises(LfError, match=r"holds no trace: left out: .*a.json is empty"):
        diagnose_trace(tmp_path)

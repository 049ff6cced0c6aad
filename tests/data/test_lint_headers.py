"""The walk over headers against Python's own tarfile."""

from __future__ import annotations

import tarfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lfhelpers.data.lint.headers import Damage, members
from lfhelpers.data.lint.scan import Data
from tests.data.broken_tars import edited, tar

LETTERS = st.characters(min_codepoint=33, max_codepoint=0x4FFF, blacklist_categories=("Cs",), blacklist_characters="/")
NAMES = st.text(LETTERS, min_size=1, max_size=160)
MEMBERS = st.lists(st.tuples(NAMES, st.binary(max_size=1500)), max_size=8)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(MEMBERS, st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]), st.integers(0, 2**31), st.booleans())
def test_the_walk_sees_what_tarfile_sees_and_no_half_member(
        tmp_path: Path, given_members: list[tuple[str, bytes]], form: int, cut: int, whole: bool) -> None:
    path = tar(tmp_path / "set.tar", given_members, form)
    with tarfile.open(path) as file:
        theirs = [(item.name, item.offset_data, item.size) for item in file]
    assert walked(path, whole)[0] == [(*place, given_members[number][1]) for number, place in enumerate(theirs)]
    edited(path, lambda data: data[:cut % len(data)])
    left, damage = walked(path, whole)
    assert left == [(*place, given_members[number][1]) for number, place in enumerate(theirs)][:len(left)]
    assert damage or len(left) == len(theirs)


def walked(path: Path, whole: bool) -> tuple[list[tuple[str, int, int, bytes]], str]:
    """(name, offset, size, data) of all members, and the kind of damage."""
    found = []
    with Data(path, whole) as data:
        try:
            for entry in members(data):
                found.append((entry.name.rstrip("/"), entry.offset, entry.size, data.at(entry.offset, entry.size)))
        except Damage as damage:
            return found, damage.kind
    return found, ""


def test_progress_adds_up_to_the_size_of_the_file(tmp_path: Path) -> None:
    path = tar(tmp_path / "set.tar", [(f"{number}.bin", bytes(1 + number * 30_000)) for number in range(12)])
    for whole in (False, True):
        told: list[int] = []
        with Data(path, whole, told.append) as data:
            assert len(list(members(data))) == 12
        assert sum(told) == path.stat().st_size and min(told) >= 0

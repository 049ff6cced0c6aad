"""A file comes whole from a bad server, or one sentence does; and no server is asked, or waited for, without end."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers.data import download
from lfhelpers.data.address import Address
from lfhelpers.data.download import Patience
from lfhelpers.errors import LfError
from tests.data.http_server import Server

QUICK = Patience(tries=4, first=0.005, longest=0.02, stall=60, seed=1)
BODY = np.random.default_rng(3).bytes(300_000)
NAME = "a.tar"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / NAME).write_bytes(BODY)
    with Server(tmp_path / "set") as server:
        yield server


@pytest.fixture
def clock(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still, until all has come that a server sends before it hangs: then a stall is over at once."""
    whole, (came, now) = download.stream, ([0], [0.0])

    def stream(*question: Any) -> Iterator[bytes]:
        came[0] = 0
        for chunk in whole(*question):
            came[0] += len(chunk)
            yield chunk

    def monotonic() -> float:
        now[0] += QUICK.stall if came[0] == served.last else 0.0
        return now[0]

    monkeypatch.setattr(download, "stream", stream)
    monkeypatch.setattr(download, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))


def fetch(server: Server, place: Path, patience: Patience = QUICK, address: str = "") -> bytes:
    with place.open("w+b") as file:
        download.fetch(Address(address or server.address), NAME, len(BODY), hashlib.sha256(BODY).hexdigest(),
                       file.fileno(), patience)
        return place.read_bytes()


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("faults", "requests"), [
    ([], 1), (["500", "500"], 3), (["cut"], 2), (["wrong"], 2), (["hang"], 2), (["refuse"], 2),
    (["500", "hang", "wrong"], 4)], ids=str)
def test_what_passes_costs_one_more_request_each(served: Server, tmp_path: Path, faults: list[str], requests: int
                                                 ) -> None:
    served.faults[NAME] += faults
    assert fetch(served, tmp_path / "got") == BODY
    assert served.count() == {NAME: requests}


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("fault", "reason", "requests"), [
    ("wrong", "its sha256 is not the manifest's", 4),
    ("500", "the server answered 500", 4),
    ("404", "it is not there", 1),
    ("cut", r"the connection ended after \d+ of 300000 bytes", 4),
    ("hang", "too little came in 60 s", 4),
    ("refuse", "Remote end closed connection without response", 4)])
def test_what_stays_is_one_sentence_after_few_requests(served: Server, tmp_path: Path, fault: str, reason: str,
                                                       requests: int) -> None:
    served.faults[NAME] = [f"always:{fault}"]
    tries = f"{requests} tries" if requests > 1 else "1 try"
    with pytest.raises(LfError, match=rf"^shard a.tar can't be fetched from {served.address}: ({reason}) \({tries}\); "
                                      r"see that it is whole there and start again: [^\n]*$"):
        fetch(served, tmp_path / "got")
    assert served.count() == {NAME: requests}


def test_a_file_that_is_longer_or_shorter_there_is_refused(served: Server, tmp_path: Path) -> None:
    (served.folder / NAME).write_bytes(BODY + b"more")
    with pytest.raises(LfError, match=r"more came than the manifest's 300000 bytes \(4 tries\)"):
        fetch(served, tmp_path / "got")
    (served.folder / NAME).write_bytes(BODY[:-1])
    with pytest.raises(LfError, match=r"the connection ended after 299999 of 300000 bytes \(4 tries\)"):
        fetch(served, tmp_path / "got")


@pytest.mark.usefixtures("clock")
def test_a_broken_transfer_goes_on_where_it_stopped(served: Server, tmp_path: Path) -> None:
    served.faults[NAME] += ["cut", "hang"]  # half, then half of the rest
    assert fetch(served, tmp_path / "got") == BODY
    assert served.requests == [(NAME, 0), (NAME, 150_000), (NAME, 225_000)]


@pytest.mark.usefixtures("clock")
def test_a_server_that_sends_all_again_is_found_out(tmp_path: Path, served: Server) -> None:
    served.ranges = False
    served.faults[NAME] += ["hang"]
    assert fetch(served, tmp_path / "got") == BODY
    assert served.count() == {NAME: 3}  # half; from the start where the rest was asked for; all


@pytest.mark.usefixtures("clock")
def test_progress_is_not_punished_but_still_bounded(served: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                    ) -> None:
    monkeypatch.setattr(download, "EARNED", 1000)
    served.faults[NAME] += ["hang"] * 6  # more than the tries; each leaves half of the rest
    assert fetch(served, tmp_path / "got") == BODY
    served.ranges, served.faults[NAME] = False, ["always:hang"]  # brings much each time, and never the end
    with pytest.raises(LfError, match=r"\(4 tries\)"):
        fetch(served, tmp_path / "got")
    assert served.count()[NAME] == 7 + 5


def test_a_trickle_counts_as_a_stall(served: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served.rate = 100_000  # bytes a second: each piece comes in time, the file does not
    opened = download.open_at
    monkeypatch.setattr(download, "open_at", lambda address, name, offset, stall: opened(address, name, offset, 60))
    with pytest.raises(LfError, match=r"too little came in 0.4 s \(2 tries\)"):
        fetch(served, tmp_path / "got", Patience(2, 0.005, 0.02, 0.4, 1))


def test_an_abandoned_transfer_leaves_no_thread(served: Server) -> None:
    before, served.rate = set(threading.enumerate()), 2e6
    chunks = download.stream(Address(served.address), NAME, 0, 60)
    assert BODY.startswith(next(chunks))
    pump = [thread for thread in threading.enumerate() if thread not in before and "_pump" in thread.name]
    assert len(pump) == 1
    chunks.close()
    pump[0].join()
    assert not pump[0].is_alive()


def test_no_server_at_all_is_a_sentence(served: Server, tmp_path: Path) -> None:
    with pytest.raises(LfError, match=r"^shard a.tar can't be fetched from http://127.0.0.1:9/set: .*\(4 tries\)"):
        fetch(served, tmp_path / "got", address="http://127.0.0.1:9/set")


def test_secrets_are_sent_and_not_shown(served: Server, tmp_path: Path) -> None:
    address = served.address.replace("//", "//me:word@") + "?sig=hidden"
    asked: list[str] = []
    served.watch = lambda name, sent: asked.append(name)
    assert fetch(served, tmp_path / "got", address=address) == BODY
    assert Address(address).of(NAME) == served.address.replace("//", "//me:word@") + "/a.tar?sig=hidden"
    served.faults[NAME] = ["always:cut"]
    with pytest.raises(LfError) as caught:
        fetch(served, tmp_path / "got", address=address)
    assert served.address in str(caught.value)
    assert not any(secret in str(caught.value) for secret in ("hidden", "word", "me:"))


def test_other_protocols_resume_too(served: Server, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "CHUNK", 100_000)
        assert fetch(served, tmp_path / "got", address=f"file://{served.folder}") == BODY
    tail = b"".join(download.stream(Address(f"file://{served.folder}"), NAME, 299_000, 60))
    assert tail == BODY[299_000:] and not served.requests


@pytest.mark.parametrize(("address", "sentence"), [
    ("s3://bucket/set", r"^s3://bucket/set needs a package that is missing here: Install s3fs to access S3.$"),
    ("htp://host/set", r"^htp://host/set can't be read: nothing here knows the protocol 'htp'; did you mean 'http'\?$"),
])
def test_a_missing_driver_is_named(tmp_path: Path, address: str, sentence: str, monkeypatch: pytest.MonkeyPatch
                                   ) -> None:
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(LfError, match=sentence):
        list(download.stream(Address(address), NAME, 0, 60))


def test_a_full_disk_is_a_sentence(served: Server, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("a small disk can be mounted by root alone")
    try:
        with pytest.raises(LfError, match="can't be written: No space left on device; make room, or give a smaller"):
            fetch(served, disk / "got")
    finally:
        os.sync()
        subprocess.run(["umount", disk], check=True)
    assert served.count() == {NAME: 1}


@given(failures=st.integers(1, 40), seed=st.integers(0, 2**32), first=st.floats(0.01, 2), longest=st.floats(2, 60))
def test_pauses_double_up_to_a_limit_and_repeat_with_their_seed(failures: int, seed: int, first: float, longest: float
                                                                ) -> None:
    patience = Patience(first=first, longest=longest, seed=seed)
    full = min(longest, first * 2.0 ** (failures - 1))
    assert full / 2 <= patience.pause(failures) <= full
    assert patience.pause(failures) == patience.pause(failures)
    assert full / 2 <= Patience(first=first, longest=longest).pause(failures) <= full

"""The supervisors of a job's hosts, looking after each other through the run folder that they share.

There they see that all came, with the same versions, and then that all live. Each writes a word a second and reads the
others', so that a host that is gone ends the job with its name, where ranks would only tell of a closed connection, or
wait until a timeout of ten minutes. Silence is counted in looks of one's own, not in seconds, so that a stalled file
system, which silences all alike, ends nothing. The price is a small file a host and second on the shared file system.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable
from typing import Any

import orjson

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.launch.hosts import Place
from lfhelpers.measure import hardware
from lfhelpers.runs import Run, write_atomic

LOOK = 1.0  # seconds between looks
SILENT = 5  # looks without a word from a host, after which it is gone, where this host's ranks have ended
GONE = 30  # the same while they still run
COME = 600.0  # seconds in which all hosts must come, as torchrun allows


class Crew:
    """The supervisors of one job, as one of them sees them: who has come, who lives, and why the job ends."""

    def __init__(self, run: Run, place: Place) -> None:
        self.place = place
        self.blamed: str | None = None
        """Why this host's ranks must end on account of another host."""
        self._folder = run.path / "hosts"
        self._word: dict[str, Any] = {"start": place.start, "state": "waiting", "looks": 0, "versions": versions()}
        self._heard: dict[int, dict[str, Any]] = {}
        self._quiet = {node: 0 for node in range(len(place.hosts)) if node != place.node}
        self._next = 0.0

    @property
    def missing(self) -> list[str]:
        """Hosts that have not come yet."""
        return [self.place.hosts[node] for node in self._quiet if node not in self._heard]

    @property
    def silent(self) -> list[str]:
        """Hosts that have said nothing for SILENT looks, and have not ended."""
        return [self.place.hosts[node] for node in self._gone(SILENT)]

    def look(self) -> None:
        """Say a word and hear the others', once in LOOK seconds; costs nothing in between."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK
        self._word["looks"] += 1
        self._say()
        for node in self._quiet:
            word = self._hear(node)
            self._quiet[node] = self._quiet[node] + 1 if word in (None, self._heard.get(node)) else 0
            if word:
                self._heard[node] = word

    def meet(self, wait: Callable[[], str | None]) -> str | None:
        """Wait until all hosts have come; `wait` passes some time, and gives a reason to end, which is passed on.

        Raises LfError where one does not come in time, or comes with other versions.
        """
        deadline = time.monotonic() + COME
        while True:
            self.look()
            self._compare()
            if not self.missing:
                self._word["state"] = "running"
                self._say()
                return None
            if time.monotonic() > deadline:
                raise LfError(f"{', '.join(self.missing)} did not come within {COME:.0f} s; run each host's command, "
                              "and see that all hosts share the run folder.")
            if why := wait():
                return why

    def lost(self) -> str | None:
        """Look; the reason why this host's ranks must end, if another host gives one."""
        self.look()
        for node, word in self._heard.items():
            if word["state"] == "ended" and (word["why"] or word["code"]):
                self.blamed = f"{self.place.hosts[node]}: {word['why'] or 'its ranks failed'}"
        if gone := self._gone(GONE):
            self.blamed = f"{self.place.hosts[gone[0]]} is gone: no word from it for {GONE * LOOK:.0f} s"
        return self.blamed

    def end(self, why: str | None, code: int) -> list[str]:
        """Say that this host has ended, `why` on its own account, and wait for the others' last words.

        Returns what hosts said to have ended them, this one's first.
        """
        self._word |= {"state": "ended", "why": why, "code": code}
        self._say()
        while any(self._heard.get(node, {}).get("state") != "ended" for node in self._quiet if node not in
                  self._gone(SILENT)):
            self.look()
            time.sleep(LOOK / 10)
        reasons = [(self.place.hosts[node], word.get("why")) for node, word in sorted(self._heard.items())]
        return [*([why] if why else []), *(f"{host}: {other}" for host, other in reasons if other)]

    @property
    def done(self) -> bool:
        """Whether the ranks of all hosts ended well."""
        words = [self._word, *(self._heard.get(node, {}) for node in self._quiet)]
        return all(word.get("state") == "ended" and word.get("code") == 0 for word in words)

    @property
    def speaks(self) -> bool:
        """Whether it is for this host to write the run's status: the first that is not gone."""
        return min({self.place.node, *self._quiet} - set(self._gone(SILENT))) == self.place.node

    def ended(self, run: Run) -> int:
        """Wait until the host that speaks has written the run's status; 0 where it is done, 1 otherwise."""
        deadline = time.monotonic() + 2 * SILENT * LOOK
        while (state := run.read("status.json")["state"]) == "running" and time.monotonic() < deadline:
            time.sleep(LOOK / 10)
        return int(state != "done")

    def _gone(self, looks: int) -> list[int]:
        return [node for node, quiet in self._quiet.items()
                if quiet >= looks and self._heard.get(node, {}).get("state") != "ended"]

    def _say(self) -> None:
        with contextlib.suppress(OSError):  # on a full disk the others will count it as gone
            self._folder.mkdir(exist_ok=True)
            write_atomic(self._folder / f"{self.place.node}.json", orjson.dumps(self._word))

    def _hear(self, node: int) -> dict[str, Any] | None:
        with contextlib.suppress(OSError, orjson.JSONDecodeError):
            word = orjson.loads((self._folder / f"{node}.json").read_bytes())
            return word if word["start"] == self.place.start else None
        return None

    def _compare(self) -> None:
        for node, word in self._heard.items():
            for what, version in self._word["versions"].items():
                if (other := word["versions"].get(what)) != version:
                    raise LfError(f"{self.place.hosts[node]} has {what} {other}, and {self.place.name} has {version}; "
                                  "install the same on all hosts.")


def versions() -> dict[str, str | None]:
    """What must be the same on all hosts; torch is not loaded for it."""
    commit = hardware.commit(runs.project()) or {}
    return {"python": platform.python_version(), "torch": hardware.version("torch"),
            "numpy": hardware.version("numpy"), "lfhelpers": hardware.version("lfhelpers"),
            "the project's commit": commit.get("hash")}

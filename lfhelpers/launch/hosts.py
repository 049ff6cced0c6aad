"""One job on several hosts: what to run on each, and how their supervisors look after each other.

Each host runs a supervisor of its own around torchrun, and torchrun's c10d rendezvous joins them at the first host. The
supervisors meet first, in the run folder on the file system that all hosts share: there they see that all came, with
the same versions, and then that all live. Each writes a word a second and reads the others', so that a host that is
gone ends the job with its name, where ranks would only tell of a closed connection, or wait until a timeout of ten
minutes. Silence is counted in looks of one's own, not in seconds, so that a stalled file system, which silences all
alike, ends nothing. The price is a file a host and second on the shared file system.
"""

from __future__ import annotations

import contextlib
import platform
import shlex
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.measure import hardware
from lfhelpers.runs import Run, write_atomic

PORT = 29400
"""Where ranks of several hosts meet, if none is given and the first host is another machine: torchrun's own default."""
LOOK = 1.0  # seconds between looks
SILENT = 5  # looks without a word from a host, after which it is gone, where this host's ranks have ended
GONE = 30  # the same while they still run
COME = 600.0  # seconds in which all hosts must come, as torchrun allows


@dataclass(frozen=True)
class Place:
    """Where one supervisor stands: its job's hosts, which one it is, the port on the first one, and the start's name.

    start: tells the files of this start of the run from those of an earlier one.
    """

    hosts: tuple[str, ...]
    node: int
    port: int | None
    start: str

    @property
    def name(self) -> str:
        """This host's name."""
        return self.hosts[self.node]

    def torchrun(self) -> list[str]:
        """torchrun's options by which this host's ranks meet the others'; c10d numbers hosts by their addresses."""
        if len(self.hosts) == 1:
            return ["--standalone", "--local-addr=127.0.0.1"]
        return [f"--nnodes={len(self.hosts)}", "--rdzv-backend=c10d", f"--rdzv-endpoint={self.hosts[0]}:{self.port}",
                f"--rdzv-id={self.start}", f"--rdzv-conf=is_host={'false' if self.node else 'true'}",
                f"--local-addr={self.name}"]

    def options(self) -> list[str]:
        """The supervisor's options that say the same."""
        port = [] if self.port is None else ["--port", str(self.port)]
        return ["--hosts", ",".join(self.hosts), "--node", str(self.node), *port, "--start", self.start]

    def environment(self) -> dict[str, str]:
        """gloo would take the address of the host's own name, which is often a loopback one; NCCL finds its own."""
        if len(self.hosts) == 1:
            return {}
        return {"GLOO_SOCKET_IFNAME": interface_to(self.hosts[1 if self.node == 0 else 0])}


def check(hosts: Sequence[str]) -> None:
    """Raise LfError unless these are names of two or more hosts."""
    if len(hosts) < 2 or len(set(hosts)) != len(hosts) or not all(hosts):
        raise LfError(f"hosts = {','.join(hosts)}: name two or more hosts, each once; for one host leave hosts out.")


def here(hosts: Sequence[str]) -> int | None:
    """Which of the hosts this machine is, by name or by address; None: none of them."""
    names = {platform.node(), platform.node().split(".")[0], socket.getfqdn()}
    own = {address.address for each in psutil.net_if_addrs().values() for address in each}
    for node, host in enumerate(hosts):
        if host in names or host in own or _address(host) in own - {"127.0.0.1"}:
            return node
    return None


def interface_to(host: str) -> str:
    """The network interface through which `host` is reached, such as `eth0`. LfError where there is no way to it."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # sends nothing
            own = probe.getsockname()[0]
    except OSError as error:
        raise LfError(f"host {host} can't be reached from {platform.node()}: {error.strerror}; give names or addresses "
                      "that all hosts know.") from error
    return next(name for name, addresses in psutil.net_if_addrs().items()
                if own in {address.address for address in addresses})


def commands(run: Run, places: Sequence[Place], nproc: int, module: Sequence[str]) -> list[str]:
    """What to run on each host, in a shell: the same folder, Python and run folder must be there.

    module: what each rank runs, a module's name and its arguments.
    """
    return [shlex.join(["cd", str(Path.cwd())]) + " && " + shlex.join(
        [sys.executable, "-m", "lfhelpers.launch.supervisor", str(run.path), "--nproc", str(nproc), *place.options(),
         "--detached", "--", *module]) for place in places]


def instructions(run: Run, places: Sequence[Place], nproc: int, module: Sequence[str], started: int | None) -> str:
    """What a person needs to start the job: a line a host, but for the one that is `started` here; and what it does."""
    first = places[0]
    lines = [f"{len(places)} hosts x {nproc} ranks share {run.path} and meet at {first.name}:{first.port}. "
             "On each host run its line:"]
    for place, command in zip(places, commands(run, places, nproc, module), strict=True):
        lines.append(f"{place.name}: " + ("(started here)" if place.node == started else command))
    torchrun = shlex.join(["torchrun", *first.torchrun(), f"--nproc-per-node={nproc}", "-m", *module])
    return "\n".join([*lines, f"Within it, on {first.name}: {torchrun}"])


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


def _address(host: str) -> str | None:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return None

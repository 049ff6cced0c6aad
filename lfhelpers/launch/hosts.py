"""One job on several hosts: which ones they are, and what to run on each.

Each host runs a supervisor of its own around torchrun, whose c10d rendezvous joins them at the first host; the
supervisors look after each other (crew.py). Nothing is started on other hosts from here: whoever has the right to does
it, with the printed lines, or Slurm does.
"""

from __future__ import annotations

import platform
import shlex
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from lfhelpers.errors import LfError
from lfhelpers.runs import Run

PORT = 29400
"""Where ranks of several hosts meet, if none is given and the first host is another machine: torchrun's own default."""


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


def _address(host: str) -> str | None:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return None

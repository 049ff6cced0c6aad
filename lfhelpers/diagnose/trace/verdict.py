"""The verdict in a sentence, from a partition: what the step is bound by, and what each remedy could give at most.

What a remedy could give at most is the step without the part that it removes (Amdahl), with nothing else changed. That
is the ideal end of a range; a remedy seldom reaches it. Where the trace can be run again (diagnose.trace.replay), its
ceilings take the place of these.
"""

from __future__ import annotations

from dataclasses import dataclass

from lfhelpers.diagnose.trace import processor
from lfhelpers.diagnose.trace.partition import CAUSES, Partition
from lfhelpers.diagnose.trace.read import KERNEL, OPERATOR

LEAST_STEPS, LEAST_KERNELS = 3, 200
BOUND_SHARE = 10.0
"""Percent of the step from which on a part gives the verdict its name; below, the step is bound by computation."""
RECORD = ("record whole steps again with torch.profiler's activities CPU and CUDA, so that each kernel's launch is in "
          "the trace")
MENTION = 3.0
HOST = ("forward host", "backward host", "optimizer host", "launch latency")
WORDS = {"data": "for data", "synchronisation": "for synchronisations", "forward host": "for forward launches",
         "backward host": "for backward launches", "optimizer host": "for the optimizer's launches",
         "launch latency": "for launches under way", "dependency": "for other streams",
         "unknown": "for what the trace doesn't hold"}
REMEDIES = {
    "data": ("a loader that is never waited for", "Data"),
    "synchronisation": ("no synchronisation", "Synchronisation"),
    "host": ("compilation or CUDA graphs", "Host"),
    "communication": ("hidden communication", "Communication"),
    "copies": ("pinned, asynchronous copies", "Copy"),
    "dependency": ("no waiting between streams", "Dependency"),
    "optimizer": ("a fused optimizer", "Optimizer"),
    "python": ("less Python between operators", "Python"),
}


@dataclass(frozen=True)
class Cause:
    """A part of the step that one remedy could remove: its share in percent, and the speed-up without it, at most."""

    name: str
    share: float
    remedy: str
    at_most: float


@dataclass(frozen=True)
class Verdict:
    """`head`: what binds, alone.

    `bound`: its name, "compute", "unknown" where most of what the GPU waits has a cause that the trace doesn't hold, or
    None where the evidence is too thin.
    """

    bound: str | None
    head: str
    gains: str
    causes: tuple[Cause, ...]

    @property
    def sentence(self) -> str:
        """What binds, and what each remedy could give at most."""
        return self.with_gains(self.gains)

    def with_gains(self, gains: str) -> str:
        """The same with gains that were told in a better way."""
        return f"{self.head}; {gains}." if gains else f"{self.head}."


def thin(found: Partition | processor.HostPartition) -> str | None:
    """Why the evidence allows no verdict; None where it does."""
    trace = found.trace
    if isinstance(found, Partition):
        pieces, what = int((trace.kind[found.rows] == KERNEL).sum()), "kernels"
    else:
        pieces, what = int(((trace.kind == OPERATOR) & (trace.lane == found.main)).sum()), "operators"
    if found.steps.found >= LEAST_STEPS and pieces >= LEAST_KERNELS:
        return None
    return (f"the trace holds {found.steps.found} complete step(s) and {pieces:,} {what}, and a verdict needs "
            f"{LEAST_STEPS} and {LEAST_KERNELS}")


def judge(found: Partition | processor.HostPartition) -> Verdict:
    """The verdict on a partition."""
    causes = tuple(sorted(_causes(found), key=lambda cause: -cause.share))
    too_thin = thin(found)
    if too_thin:
        return Verdict(None, f"No verdict: {too_thin}", "", causes)
    first = causes[0]
    bound = first.name if first.share >= BOUND_SHARE else "compute"
    unknown = found.percent("unknown") if isinstance(found, Partition) else 0.0
    if unknown >= BOUND_SHARE and (unknown > first.share or bound == "compute"):
        bound = "unknown"
    sentence = _gpu_sentence(found, bound) if isinstance(found, Partition) else _host_sentence(found, bound)
    gains = [f"{cause.remedy} {'could give' if index else 'could give up to'} {cause.at_most:.2f}x"
             for index, cause in enumerate(cause for cause in causes if cause.share >= MENTION)]
    return Verdict(bound, sentence, "; ".join(gains[:3]), causes)


def _causes(found: Partition | processor.HostPartition) -> list[Cause]:
    """The parts that a remedy could remove; waits take with them the host's gaps that follow (partition.after)."""
    if not isinstance(found, Partition):
        shares = {"data": found.percent("data"), "communication": found.percent("exposed communication"),
                  "optimizer": found.percent("optimizer"), "python": found.percent("python")}
    else:
        after = {cause: 100 * spent / found.length for cause, spent in found.after.items()}
        shares = {cause: found.percent(cause) + after[cause] for cause in ("data", "synchronisation")}
        shares |= {"host": sum(found.percent(part) for part in HOST) - sum(after.values()),
                   "communication": found.percent("exposed communication"), "copies": found.percent("exposed copies"),
                   "dependency": found.percent("dependency")}
    return [Cause(name, max(share, 0.0), REMEDIES[name][0], 100 / max(100 - share, 1e-9))
            for name, share in shares.items()]


def _gpu_sentence(found: Partition, bound: str) -> str:
    idle = {cause: found.percent(cause) for cause in CAUSES}
    whole = sum(idle.values())
    ms = found.length / found.windows / 1e6
    if bound == "compute":
        return (f"Compute-bound: the GPU computes {found.percent('compute'):.0f} % of each step of {ms:.1f} ms and "
                f"waits {whole:.0f} %")
    if bound == "unknown":
        return (f"Cause unknown: the GPU waits {whole:.0f} % of each step of {ms:.1f} ms, and {idle['unknown']:.0f} % "
                f"before work whose launch isn't in the trace; {RECORD}")
    head = REMEDIES[bound][1]
    if bound in ("communication", "copies"):
        part = f"exposed {bound}"
        return (f"{head}-bound: {found.percent(part):.0f} % of each step of {ms:.1f} ms is {bound} that nothing hides; "
                f"the GPU waits {whole:.0f} %")
    mostly = max(HOST if bound == "host" else [bound], key=lambda cause: idle[cause])
    return f"{head}-bound: the GPU waits {whole:.0f} % of each step of {ms:.1f} ms, mostly {WORDS[mostly]}"


def _host_sentence(found: processor.HostPartition, bound: str) -> str:
    ms = found.length / found.windows / 1e6
    if bound == "compute":
        head, share, part = "Compute", found.percent("forward") + found.percent("backward"), "forward and backward"
    else:
        part = "exposed communication" if bound == "communication" else bound
        head, share = REMEDIES[bound][1], found.percent(part)
    return (f"{head}-bound (on the CPU; the trace holds no GPU work): {share:.0f} % of each step of {ms:.1f} ms is "
            f"{part}")

"""One lever on a page: what it changes, its precondition, its gate, its ceiling here, and the torch lines for it."""

from __future__ import annotations

from collections.abc import Sequence

from lfhelpers.diagnose.ceilings import Ceiling
from lfhelpers.errors import LfError, nearest
from lfhelpers.launch import own
from lfhelpers.levers.in_torch import LINES
from lfhelpers.levers.table import BESIDE, LEVERS, Equivalence, Lever, Machine
from lfhelpers.runs import Run, find, load

GATES: dict[Equivalence, str] = {
    "exact": "exact: losses of the same steps equal to the bit, with kernels in a fixed order",
    "reordered": "reordered: gradients as near to float64 as eager's, and losses within a band",
    "changed": "changed: two one-sided tests over paired seeds, with a margin fixed beforehand",
}


def named(name: str) -> Lever:
    """The lever of this name, or the only one with it in its name. Raises LfError where there is none, or several."""
    levers = {lever.name: lever for lever in LEVERS + BESIDE}
    fitting = [key for key in levers if name.lower() in key.lower()]
    if name in levers or len(fitting) == 1:
        return levers[name if name in levers else fitting[0]]
    if fitting:
        raise LfError(f"'{name}' names {len(fitting)} levers: {', '.join(fitting)}; give more of it.")
    raise LfError(f"no lever is named '{name}'; {nearest(name, levers)}")


def overview(where: Machine) -> str:
    """All levers as lines: gate, and what keeps one from being pulled here."""
    return "\n".join(f"{lever.name:<30} {lever.equivalence:<10} {lever.obstacle(where) or 'can be pulled here'}"
                     for lever in LEVERS + BESIDE)


def explained(name: str, where: Machine, run: str | None = None, workload: str | None = None) -> str:
    """The page. run: what the ceiling is read off; by default the newest run of that workload that can tell one."""
    lever = named(name)
    fields = ", ".join(f"{field}={_shown(value)}" for field, value in lever.fields.items())
    known = LINES[lever.name]
    return "\n".join([
        f"{lever.name}: {lever.why}.",
        f"changes: {fields}",
        f"precondition here: {_precondition(lever, where)}",
        f"gate: {GATES[lever.equivalence]}",
        f"ceiling: {_ceiling(lever, run, workload)}",
        f"in torch alone (lfhelpers/{known.module.replace('.', '/')}.py does it with its checks):",
        "", *(f"    {line}" for line in known.lines.splitlines())])


def _precondition(lever: Lever, where: Machine) -> str:
    obstacle = lever.obstacle(where)
    return f"not met, {obstacle}" if obstacle else "met"


def _ceiling(lever: Lever, name: str | None, workload: str | None) -> str:
    """What the evidence promises for the lever, in a sentence."""
    run = load(name) if name is not None else _newest(workload or "vla")
    if run is None:
        return f"not known yet; `lfhelpers {f'diagnose --workload {workload}' if workload else 'ablate'}` tells it"
    from lfhelpers.diagnose.tiers import of_run

    mine: Sequence[Ceiling] = [one for one in of_run(run) if lever.name in one.levers]
    if not mine:
        return f"run {run.id} has no evidence for it; only pulling it tells"
    best = max(mine, key=lambda one: one.realistic)
    return f"{best.realistic:.2f}x to {best.ideal:.2f}x, by {best.remedy} (run {run.id})"


def _newest(use: str) -> Run | None:
    """The newest ablated run of a workload."""
    wanted = _place(use)
    return next((run for run in reversed(find()) if run.read("ablation.json") is not None
                 and _place(run.recipe.workload.use) == wanted), None)


def _place(use: str) -> str:
    """A workload by its file's absolute path, as runs have it."""
    location, _, name = use.rpartition(":")
    if not location.endswith(".py"):
        return use
    try:
        return f"{own.source(use)[0].absolute()}:{name}"
    except LfError:  # an old run's file may be gone
        return use


def _shown(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

"""The search space: which knobs a recipe has on this machine, and what each of their positions sets in it.

A knob is a short list of named positions, never a range: a measured difference between 7 and 8 workers is noise, and
few positions let a search of some dozen trials see each of them more than once. The price is that an optimum between
two positions is not found. Fields that a recipe doesn't look at, such as DALI's beside another engine, stay as they are
in the base, so that proposals which make the same job are known to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lfhelpers.errors import LfError, nearest
from lfhelpers.levers.table import Equivalence, Machine
from lfhelpers.measure import hardware
from lfhelpers.recipe import Recipe

Area = Literal["data", "batch", "compile", "memory", "optimizer", "exchange"]
Position = Mapping[str, Any]
"""Fields by dotted name, as they stand with a knob in this position."""
RANK: Mapping[Equivalence, int] = {"exact": 0, "reordered": 1, "changed": 2}
PREFETCHING = ("webdataset", "as_found")
"""Engines that look at data.prefetch; the others look at data.depth."""


@dataclass(frozen=True)
class Knob:
    """A choice among named positions; the first one is the base's own.

    `used` tells from a whole recipe's fields whether the knob has any effect there.
    """

    name: str
    area: Area
    equivalence: Equivalence
    positions: Mapping[str, Position]
    used: Callable[[Position], bool] = lambda fields: True

    def of(self, fields: Position) -> str | None:
        """The position in which these fields, those of a whole recipe, have the knob; None: in none that it knows."""
        return next((label for label, values in self.positions.items()
                     if all(fields.get(name) == value for name, value in values.items())), None)


def knobs(base: Recipe, where: Machine, allow: Equivalence = "reordered", only: Sequence[str] = (),
          cores: int | None = None) -> list[Knob]:
    """The knobs that this machine has for the recipe, of classes up to `allow`, each with two positions or more.

    only: names to take instead of all. cores: those of this host, asked if not given. Raises LfError for a name that is
    no knob here, and where nothing is left to turn.
    """
    fields = base.flat()
    found = [knob for each in (*_data(base, where, cores or hardware.usable_cores()), *_compute(where),
                               *_memory(base, where), *_exchange(where))
             if len((knob := _based(each, fields)).positions) > 1 and RANK[knob.equivalence] <= RANK[allow]]
    names = [knob.name for knob in found]
    for name in only:
        if name not in names:
            raise LfError(f"no knob is named '{name}' for this recipe on this machine; {nearest(name, names)}")
    chosen = [knob for knob in found if not only or knob.name in only]
    if not chosen:
        raise LfError("no knob is left to turn; allow another class of changes, or take another recipe.")
    return chosen


def pulled(base: Recipe, knobs: Sequence[Knob], labels: Mapping[str, str]) -> Recipe:
    """The base with each knob in its named position, where it has an effect. Raises LfError for a contradiction."""
    own = base.flat()
    fields = own | {name: value for knob in knobs for name, value in knob.positions[labels[knob.name]].items()}
    for knob in knobs:
        if not knob.used(fields):
            fields |= {name: own[name] for name in knob.positions[labels[knob.name]]}
    return base.with_(**{name: value for name, value in fields.items() if value != own.get(name)})


def labels(knobs: Sequence[Knob], job: Recipe) -> dict[str, str]:
    """The positions that come nearest to a recipe: its own where the knob has it, else the base's."""
    fields = job.flat()
    return {knob.name: knob.of(fields) or next(iter(knob.positions)) for knob in knobs}


def equivalence(base: Recipe, knobs: Sequence[Knob], job: Recipe) -> Equivalence:
    """The class of all that differs from the base: that of the knob which changes most."""
    own, fields = base.flat(), job.flat()
    turned: list[Equivalence] = [knob.equivalence for knob in knobs
                                 if any(own[name] != fields[name] for name in _fields(knob))]
    return max(turned, key=lambda one: RANK[one], default="exact")


def rows(base: Recipe, knobs: Sequence[Knob]) -> list[dict[str, Any]]:
    """The space as a table: a row a knob."""
    return [{"knob": knob.name, "area": knob.area, "class": knob.equivalence,
             "positions": ", ".join(knob.positions), "base": knob.of(base.flat())} for knob in knobs]


def _data(base: Recipe, where: Machine, cores: int) -> list[Knob]:
    dali = where.device == "cuda" and any(hardware.version(build) for build in hardware.DALI_BUILDS)
    share = max(1, cores // where.ranks)
    engines = ("webdataset", "threads", *(("dali",) if dali else ()))
    return [
        Knob("loader", "data", "reordered", _each("data.loader", *engines)),
        Knob("workers", "data", "exact", _each("data.workers", *[2**power for power in range(9)
                                                                   if share < 2**power * 16 and 2**power <= share])),
        Knob("prefetch", "data", "exact", _each("data.prefetch", 1, 2, 4),
             lambda fields: fields["data.loader"] in PREFETCHING and fields["data.workers"] != 0),
        Knob("depth", "data", "exact", _each("data.depth", 2, 3, 6),
             lambda fields: fields["data.loader"] not in PREFETCHING),
        *([Knob("hardware decoder", "data", "reordered", _each("data.hw_decoder_load", 0.0, 0.5, 1.0),
                lambda fields: fields["data.loader"] == "dali")] if dali else []),
    ]


def _compute(where: Machine) -> list[Knob]:
    cuda = where.device == "cuda"
    found = [Knob("compile", "compile", "reordered", _each("compile.scope", "none", "blocks"))] * where.compiler
    if cuda:
        modes = _each("compile.mode", "default", "max-autotune-no-cudagraphs")
        found += [Knob("compile mode", "compile", "reordered", modes,
                       lambda fields: fields["compile.scope"] != "none")] * where.compiler
        found += [Knob("graph", "compile", "reordered", _each("graph.scope", "none", "micro", "step"))]
        found += [Knob("frozen part ahead", "compile", "exact", _each("frozen.ahead", False, True))] * where.frozen
    packed = Knob("packed frozen weights", "compile", "reordered", _each("frozen.packed", False, True))
    return [*found, *[packed] * (not where.own)]


def _memory(base: Recipe, where: Machine) -> list[Knob]:
    samples = base.batch.micro * base.batch.accumulate
    cuts = {f"{samples // parts} x {parts}": {"batch.micro": samples // parts, "batch.accumulate": parts}
            for parts in (1, 2, 4) if samples % parts == 0}
    found = [
        Knob("micro-batch", "batch", "reordered", cuts),
        Knob("recomputation", "memory", "reordered",
             {plan: {"activations.plan": plan, "activations.blocks": (), "activations.recompute_every": 0}
              for plan in ("none", "ops", "all")}),
        Knob("optimizer", "optimizer", "reordered", {
            "fused": {"optimizer.fused": True, "precision.weights": "fp32"},
            **({"fused, bf16 weights": {"optimizer.fused": True, "precision.weights": "bf16"}} if where.bf16 else {}),
            "foreach": {"optimizer.fused": False, "precision.weights": "fp32"}}),
    ]
    # A scale is a power of two, so it changes no bit of a step but those that overflow, which are skipped.
    scale = Knob("first loss scale", "optimizer", "reordered", _each("precision.init_scale", 1024.0, 8192.0, 65536.0))
    return [*found, scale] if base.precision.mode == "fp16" else found


def _exchange(where: Machine) -> list[Knob]:
    if where.ranks < 2:
        return []
    buckets: dict[str, Position] = {"torch's default": {"ddp.bucket_mb": None, "ddp.bucket_list_mb": ()}}
    buckets |= {f"{size:g} MiB": {"ddp.bucket_mb": size, "ddp.bucket_list_mb": ()} for size in (25.0, 100.0, 400.0)}
    buckets["4, 25, then 100 MiB"] = {"ddp.bucket_mb": None, "ddp.bucket_list_mb": (4.0, 25.0, 100.0)}
    return [Knob("buckets", "exchange", "reordered", buckets),
            Knob("sharded optimizer", "exchange", "reordered", _each("ddp.shard_optimizer", False, True)),
            Knob("compressed exchange", "exchange", "changed", _each("ddp.hook", "none", "bf16", "powersgd"))]


def _each(field: str, *values: Any) -> dict[str, Position]:
    return {_label(value): {field: value} for value in values}


def _based(knob: Knob, fields: Position) -> Knob:
    """The knob with the base's own position first, made of its fields where the knob doesn't know it."""
    own = {name: fields[name] for name in _fields(knob)}
    label = knob.of(fields)
    first = {label: knob.positions[label]} if label else {", ".join(map(_label, own.values())): own}
    return Knob(knob.name, knob.area, knob.equivalence, first | dict(knob.positions), knob.used)


def _fields(knob: Knob) -> list[str]:
    return list(dict.fromkeys(name for values in knob.positions.values() for name in values))


def _label(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else \
        "its share" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

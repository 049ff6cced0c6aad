"""The form of the JSON that `lfhelpers diagnose PATH --json` writes, as JSON Schema (2020-12).

Times are in milliseconds, shares in percent of the step, a step being the mean one unless a field says otherwise.
Fields are only added within a version; where one changes its meaning, `version` is raised.
"""

from __future__ import annotations

from typing import Any

from lfhelpers.diagnose.trace import partition, processor
from lfhelpers.diagnose.trace.report import VERSION
from lfhelpers.diagnose.trace.verdict import REMEDIES

Schema = dict[str, Any]


def schema() -> Schema:
    """The schema of a diagnosis, or of a comparison of two."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "lfhelpers trace diagnosis",
            "anyOf": [_diagnosis(), _comparison()]}


def _comparison() -> Schema:
    sides = {f"{side} ms": _number(f"In {side}.") for side in ("a", "b")}
    return _object("What changed from a to b.", {
        "verdict": _text("What changed, in a sentence."),
        "speedup": _object("Of b over a.", {
            "by_median": _number("By the median step: the host's own where both traces mark it, else the window."),
            "by_mean": _number("By the mean step.")}),
        "parts": _list("By part of the step, last the whole.",
                       _object("", {"part": _text("Name."), **sides, "saved ms": _number("a - b.")})),
        "groups": _list("By group of kernels.",
                        _object("", {"kernels": _text("Name."), **sides, "saved ms": _number("a - b.")})),
        "a": _diagnosis(), "b": _diagnosis()})


def _diagnosis() -> Schema:
    pattern = _pattern()
    split = {"rank": _integer("Rank."), "collectives": _integer("Exchanges that other ranks' traces hold too."),
             "transfer_ms": _number("The shortest length over the ranks."),
             "wait_ms": _number("What it lasted longer on this rank: waiting for a later one."),
             "exposed_wait_ms": _number("Of that, what no computation of this rank hides.")}
    return _object("The diagnosis of one rank or of several.", {
        "version": {"const": VERSION},
        "verdict": _text("In a sentence or two."),
        "bound": _bound(),
        "main_rank": _integer("The rank that the verdict is about; null where the trace names none.", True),
        "reports": _list("One a rank, in order.", _report()),
        "ceilings": _ceilings(), "ablation": _ablation(),
        "across_ranks": _object("Null for one rank.", {
            "ranks": _list("", _object("", split)),
            "late": _integer("The rank that the others wait for.", True),
            "straggler": {"anyOf": [pattern, {"type": "null"}]},
            "notes": _notes()}, True),
        "skipped": _list("Files of the folder that were not read, and why.", _text(""))})


def _ablation() -> Schema:
    blocks = _list("A rank each.", _list("A block each.", _number("")))
    return _object("The step with one thing taken away at a time; null where that was not measured.", {
        "name": _text("The recipe's."), "device": {"enum": ["cpu", "cuda"]}, "hardware": _text("Its name."),
        "micro": _integer("Samples of a micro-batch."), "accumulate": _integer("Micro-batches of a step."),
        "steps": _integer("Steady steps of each variant."),
        "ms": {"type": "object", "additionalProperties": blocks, "description": "Milliseconds of a step by variant."},
        "load_ms": _number("Of a micro-batch, the loader alone."),
        "load_cpu_ms": _number("CPU time of its processes."), "step_cpu_ms": _number("CPU time of a step."),
        "fused_ms": _number("A fused update of as many parameters; null where the recipe has one.", True),
        "observer_us": _number("What the profiler costs an operator."), "cores": _integer("That may be used."),
        "state": _object("Fingerprints of all state.", {"before": _text(""), "after": _text("The same.")})}, True)


def _ceilings() -> Schema:
    one = {"cause": _text("What is removed."), "remedy": _text("What removes it."),
           "levers": _list("Names in the table of levers.", _text("")),
           "realistic": _number("Speed-up with what nobody gets rid of left in place."),
           "ideal": _number("Speed-up with the cause gone."),
           "then": {"type": ["string", "null"], "description": "The next cause to look at; null: computation."}}
    return _object("By running the steps again; null where the evidence doesn't allow it.", {
        "source": _text("What they were read off."), "step_ms": _number("The step as it is."),
        "ceilings": _list("The highest realistic one first.", _object("", one)),
        "path": _list("Remedies one after the other, each time the one that wins most.", _object("", {
            "cause": _text("Removed beside all before it."), "speedup": _number("Realistic, of all up to it.")})),
        "notes": _notes()}, True)


def _report() -> Schema:
    shares = {"oneOf": [_object("", dict.fromkeys(names, _number("")))
                        for names in (partition.PARTS, processor.PARTS)]}
    return _object("One rank's trace.", {
        "file": _text("Name of the file."), "rank": _integer("Rank.", True),
        "world": _integer("Ranks of the job.", True), "gpu": _text("The GPU's name.", True),
        "device": {"enum": ["gpu", "cpu"], "description": "cpu: no GPU work in the trace, the main thread is divided."},
        "events": _integer("Events in the file."), "bound": _bound(), "verdict": _text("In a sentence."),
        "steps": _object("", {
            "source": {"enum": ["ProfilerStep", "optimizer", "kernels", "whole span"],
                       "description": "What steps are told by."},
            "found": _integer("Complete steps."),
            "windows": _integer("Windows reported; the last step may have no end."),
            "names": _list("Of the windows.", _text("")), "window_ms": _list("Of each window.", _number("")),
            "host_ms": _list("Of each step as the host marks it.", _number("")),
            "mean": _number("Of the windows."), "median": _number("Of the windows."),
            "host_mean": _number("Of the host's steps.", True), "host_median": _number("Of the host's steps.", True)}),
        "parts": _object("Sums to the step and to 100 %; on a GPU, parts behind exposed copies are idle time by cause.",
                         {"ms": shares, "percent": shares}),
        "after_ms": {"type": "object", "additionalProperties": {"type": "number"},
                     "description": "Of the host's idle causes, what follows from an earlier wait for data or a sync."},
        "causes": _list("What a remedy could remove, the largest first.", _object("", {
            "name": _text("Name."), "share": _number("Percent, with what follows from it."), "remedy": _text("Remedy."),
            "at_most": _number("Speed-up with the part gone and nothing else changed.")})),
        "patterns": _list("The largest share first.", _pattern()), "groups": _list("Kernels by group.", _group()),
        "kernels": _list("The costliest kernels.", _object("", {
            "name": _text("Name."), "group": _text("Group."), "calls": _number("A step."), "ms": _number("A step."),
            "median_us": _number("Of one call.")})),
        "collectives": _list("Exchanges over the whole trace.", _object("", {
            "name": _text("Name."), "calls": _integer("Number."), "ms": _number("Sum."), "shortest_ms": _number("One."),
            "longest_ms": _number("One."), "bytes": _integer("Sum.", True), "largest_bytes": _integer("One.", True)})),
        "whole": _whole(),
        "confidence": {"type": "object", "additionalProperties": {"type": ["number", "null"]},
                       "description": "Percent of GPU work with a launch, percent that begins before it, variation of "
                                      "steps, the profiler's own share; empty for a CPU-only trace."},
        "notes": _notes()})


def _group() -> Schema:
    return _object("", {
        "name": _text("Group."), "kernels": _number("A step."), "ms": _number("A step; overlaps count in full."),
        "percent": _number("Of the step."), "rate": _number("Achieved, where shapes are recorded.", True),
        "unit": {"enum": ["", "TFLOP/s", "GB/s"]}, "of_peak": _number("Percent of the GPU's peak.", True),
        "peak": _text("Whose peak, or why there is none.")})


def _whole() -> Schema:
    times = ("span_ms", "sum_ms", "busy_ms", "kernels_ms", "compute_ms", "communication_ms",
             "exposed_communication_ms", "copies_ms", "exposed_copies_ms", "idle_ms", "busy_percent")
    return _object("Over the whole trace (CPU-only: over its steps, and what only a GPU has is null).", {
        "gpu_events": _integer("Kernels, copies and memsets."), **{name: _number("", True) for name in times},
        "loader_percent": _number("Of the host's steps, in the loader.", True)})


def _pattern() -> Schema:
    return _object("", {"name": _text("Name."), "share": _number("Percent of the step that it may account for."),
                        "evidence": _text("What was seen."), "remedy": _text("What may help.")})


def _bound() -> Schema:
    return {"enum": [*REMEDIES, "compute", "unknown", None],
            "description": "What the step is bound by; unknown where most of what the GPU waits has a cause that the "
                           "trace doesn't hold, null where the evidence is too thin."}


def _notes() -> Schema:
    return _list("What a reader must know.", _text(""))


def _object(description: str, fields: Schema, nullable: bool = False) -> Schema:
    return {"type": ["object", "null"] if nullable else "object", "description": description, "properties": fields,
            "required": list(fields), "additionalProperties": False}


def _list(description: str, items: Schema) -> Schema:
    return {"type": "array", "description": description, "items": items}


def _text(description: str, nullable: bool = False) -> Schema:
    return {"type": ["string", "null"] if nullable else "string", "description": description}


def _number(description: str, nullable: bool = False) -> Schema:
    return {"type": ["number", "null"] if nullable else "number", "description": description}


def _integer(description: str, nullable: bool = False) -> Schema:
    return {"type": ["integer", "null"] if nullable else "integer", "description": description}

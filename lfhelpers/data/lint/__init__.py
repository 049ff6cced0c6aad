"""Checking any WebDataset tar set, ours or not: what readers will lose, merge or stumble over, and how to mend it.

Both readers are lenient and differ in what they lose, mostly without a word. A lint reads each shard once (all of it
where checksums or images are to be compared, headers alone otherwise) and the headers of doubtful shards once more to
name what is wrong. Nothing in the source is changed: `repack` writes a clean copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from lfhelpers.data.lint import pool, rules
from lfhelpers.data.lint.across import Across
from lfhelpers.data.lint.index import rebuild_index
from lfhelpers.data.lint.report import Finding, Report, Tally, findings
from lfhelpers.data.lint.schema import Schema, judge, settle
from lfhelpers.data.lint.sources import Place, Sources, compare, find
from lfhelpers.data.lint.survey import Survey, Task, survey

__all__ = ["Finding", "Report", "lint", "rebuild_index"]

Severity = Literal["error", "warning"]


def lint(paths: Place | Sequence[Place], level: Literal["members", "decode"] = "members", jobs: int | None = None, *,
         fields: Sequence[str] = (), checksums: bool = True, progress: bool = True) -> Report:
    """Check tars, or all tars in a folder.

    level: "decode" also decodes every image in full. fields: the members that each sample must have; otherwise those of
    the manifest, or those that most samples have. checksums: read everything and compare with the manifest's sha256,
    where there is a manifest. jobs: processes; by default one a core, fewer where the disk is the limit.
    Raises LfError where there is nothing to read; whatever is wrong with a shard is a finding.
    """
    sources = find(paths)
    work = Inspection(sources, jobs, fields, progress)
    surveys = work.survey(checksums, level == "decode")
    schema = work.schema(surveys)
    return work.report(surveys, schema)


class Inspection:
    """The steps of a lint, which repacking shares."""

    def __init__(self, sources: Sources, jobs: int | None, fields: Sequence[str], progress: bool) -> None:
        known = sources.only()
        self.sources, self.progress = sources, progress
        self.wanted = tuple(fields) or (known.fields if known else ())
        self.jobs = jobs

    def survey(self, checksums: bool, decode: bool, all_names: bool = False) -> list[Survey]:
        """Walk over every shard once."""
        tasks = [Task(path, name, decode or (checksums and self.sources.listed(path) is not None), decode, all_names)
                 for name, path in self.sources.tars.items()]
        return self.each(survey, [(task, Schema()) for task in tasks], decode, "decoding" if decode else "reading")

    def schema(self, surveys: list[Survey]) -> Schema:
        """What samples should have; where keys hold dots, the surveys' samples are counted again by the true keys."""
        across = Across(surveys)
        schema = judge(across.signatures, self.wanted)
        if schema.endings:
            calls = [(Task(path, name, False, False), schema) for name, path in self.sources.tars.items()]
            for old, new in zip(surveys, self.each(survey, calls, False, "reading again"), strict=True):
                old.keys, old.signature, old.signatures, old.odd = new.keys, new.signature, new.signatures, new.odd
            schema = settle(Across(surveys).signatures, self.wanted, schema.endings)
        return schema

    def report(self, surveys: list[Survey], schema: Schema) -> Report:
        """Name what is wrong in doubtful shards and put all together."""
        tally = compare(self.sources, dict(zip(self.sources.tars.values(), surveys, strict=True)))
        for found in surveys:
            tally.merge(found.tally)
        across = Across(surveys)
        self._second_look(surveys, schema, across, tally)
        expected = self.sources.samples()
        return Report(findings(tally, _severities(tally, surveys)), schema.fields, len(surveys),
                      sum(found.members for found in surveys), across.samples if expected is None else expected,
                      sum(found.runs for found in surveys), sum(found.size for found in surveys))

    def _second_look(self, surveys: list[Survey], schema: Schema, across: Across, tally: Tally) -> None:
        crossings = rules.crossings(across, schema)
        wanted = frozenset(number for crossing in crossings.values() for number in crossing.first)
        numbers = np.array(sorted(wanted), np.uint64)
        calls = [(Task(path, name, False, False), schema, across.several, wanted)
                 for (name, path), found in zip(self.sources.tars.items(), surveys, strict=True)
                 if rules.needs_second_look(found, schema) or np.isin(numbers, found.keys).any()]
        names: dict[int, list[str]] = {}
        for theirs, named in self.each(rules.examine, calls, False, "naming"):
            tally.merge(theirs)
            for number, name in named.items():
                names.setdefault(number, []).append(name)
        for kind, crossing in crossings.items():
            for place, number in enumerate(crossing.first):
                rest = crossing.count - len(crossing.first) + 1
                tally.add(kind, " and ".join(names[number]), count=1 if place else rest)
            tally.details[kind] += crossing.details

    def each(self, function, calls, decode: bool, what: str) -> list:  # type: ignore[no-untyped-def]
        """The function's results for all calls (task, ...), in parallel."""
        paths = [call[0].path for call in calls]
        jobs = pool.choose_jobs(self.jobs, paths, decode)
        return pool.each(function, calls, [path.stat().st_size for path in paths], jobs, what, self.progress)


def _severities(tally: Tally, surveys: Sequence[Survey]) -> Mapping[str, Severity]:
    """Where a kind is better or worse than it mostly is."""
    spelled: dict[str, set[str]] = {}
    for ext in {ext for found in surveys for signature in found.signatures for ext in signature}:
        spelled.setdefault(ext.lower(), set()).add(ext)
    severity: dict[str, Severity] = {}
    if all(len(spellings) == 1 for spellings in spelled.values()):
        severity["extension_case"] = "warning"  # all alike: a reader that asks for it as written gets it
    if rules.stumbles(tally.details["side_files"]):
        severity["side_files"] = "error"
    return severity

"""What a check found, by kind: how often, where, why it does harm, and what to do about it."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

SHOWN = 5
"""Names that a finding gives."""
WIDTH = 110


class Kind(NamedTuple):
    """A kind of finding: whether training goes wrong by it, what happens, and the fix."""

    severity: Literal["error", "warning"]
    why: str
    fix: str


REPACK = "write a clean copy: lfhelpers data lint PATHS --repack OUT"
COPY = "copy the shard again from where it is whole"
KINDS: dict[str, Kind] = {
    "empty_shard": Kind("error", "no sample is in it: webdataset stops or skips it, DALI counts an empty one", REPACK),
    "truncated_shard": Kind("error", "its end is missing: webdataset stops, or gives half a sample; DALI dies", COPY),
    "damaged_shard": Kind("error", "webdataset ends there without a word, DALI dies", COPY),
    "data_after_end": Kind("error", "readers stop at the first end mark, as where tars were joined with cat", REPACK),
    "compressed_shard": Kind("warning", "DALI can't read it, and nothing can jump in it", REPACK),
    "missing_shard": Kind("error", "the manifest names it and it is not there", COPY),
    "unlisted_shard": Kind("warning", "the manifest doesn't name it, so no loader of ours reads it", "remove it"),
    "bad_manifest": Kind("error", "the folder's manifest can't be used", REPACK),
    "size_differs": Kind("error", "it has not the size that its manifest gives", COPY),
    "checksum_differs": Kind("error", "its bytes are not those of its manifest; images with flipped bits still decode",
                             COPY),
    "index_mismatch": Kind("error", "DALI reads other bytes than the member's", "write it anew with "
                           "lfhelpers.data.lint.rebuild_index(TAR); wds2idx is wrong where names are long"),
    "index_old": Kind("warning", "it is older than its tar, though its entries fit", "touch it, or write it anew"),
    "dotted_keys": Kind("error", "readers end a key at its first dot: samples merge, or lack their members", REPACK),
    "not_adjacent": Kind("error", "keys reappear after being closed: both libraries give half samples", REPACK),
    "split_over_shards": Kind("error", "parts of one sample lie in several shards, and nobody joins them", REPACK),
    "dup_in_shard": Kind("error", "webdataset stops, or keeps the first; DALI keeps the first with a warning", REPACK),
    "dup_across_shards": Kind("error", "the sample is trained on more than once an epoch", REPACK),
    "missing_members": Kind("error", "webdataset gives the sample without them, DALI empty tensors", REPACK),
    "extra_members": Kind("warning", "fewer than half of the samples have them, so no batch can", REPACK),
    "empty_members": Kind("error", "0 bytes: DALI can't tell them from missing ones", REPACK),
    "extension_case": Kind("error", "webdataset lowers extensions, DALI gives an empty tensor", REPACK),
    "extension_mix": Kind("error", "a reader that asks for one of the extensions gets nothing for the other", REPACK),
    "pax_names": Kind("error", "DALI skips the PAX header with the name: it loses the sample or empties it", REPACK),
    "side_files": Kind("warning", "they belong to no sample; one without extension, or hidden in a folder, splits the "
                       "sample around it", REPACK),
    "unreadable_image": Kind("error", "the image can't be decoded: it ends the run, or must be left out",
                             REPACK + " (without the sample), or set data.on_bad=skip"),
    "gif_image": Kind("error", "DALI can't decode GIF", "convert it to PNG or JPEG, or " + REPACK + " (without it)"),
    "cmyk_image": Kind("warning", "four colours: decoded on the CPU, colours depend on the decoder", "convert to RGB"),
    "deep_image": Kind("warning", "16 bits: decoders scale or clip it to 8", "convert to 8 bits"),
    "rotated_image": Kind("warning", "EXIF turns it: DALI and our rule do, bare Pillow doesn't", "turn the pixels"),
    "not_rgb_image": Kind("warning", "grey, palette or alpha: converted to RGB when decoded, alpha dropped",
                          "nothing, or convert to RGB"),
    "progressive_image": Kind("warning", "the GPU's hardware decoder refuses it", "save it as baseline JPEG"),
    "odd_subsampling": Kind("warning", "the GPU's hardware decoder refuses it", "save it as 4:2:0 JPEG"),
}


class Tally:
    """Counts by kind while shards are read, with the first names of each (all of them where `limit` is None)."""

    def __init__(self, limit: int | None = SHOWN) -> None:
        self.limit = limit
        self.counts: Counter[str] = Counter()
        self.examples: defaultdict[str, list[str]] = defaultdict(list)
        self.details: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, kind: str, name: str, details: Iterable[str] = (), count: int = 1) -> None:
        """One more of a kind; `details` are what it may be broken down by."""
        assert kind in KINDS, kind
        self.counts[kind] += count
        self.details[kind].update(details)
        if self.limit is None or len(self.examples[kind]) < self.limit:
            self.examples[kind].append(name)

    def merge(self, other: Tally) -> None:
        """Add what another shard gave."""
        self.counts += other.counts
        for kind, details in other.details.items():
            self.details[kind] += details
        for kind, names in other.examples.items():
            room = None if self.limit is None else self.limit - len(self.examples[kind])
            self.examples[kind] += names[:room]


@dataclass(frozen=True)
class Finding:
    """One kind of damage. examples: the first names, shard:member; details: the count by member, colour or such."""

    kind: str
    count: int
    examples: tuple[str, ...]
    why: str
    fix: str
    severity: Literal["error", "warning"]
    details: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """The result of a lint.

    fields: the members that samples of this set have. samples_expected: samples that the set holds, however its members
    lie and are named; samples_read: how many a reader makes of them, who groups neighbours up to the first dot.
    """

    findings: tuple[Finding, ...]
    fields: tuple[str, ...]
    shards: int
    members: int
    samples_expected: int
    samples_read: int
    bytes: int

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings may be there."""
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """0, or 1 where there are errors."""
        return 0 if self.ok else 1

    def count(self, kind: str) -> int:
        """How many of a kind there are."""
        return next((finding.count for finding in self.findings if finding.kind == kind), 0)

    def rows(self) -> list[dict[str, Any]]:
        """A row a finding, for a table: severity, kind, count, examples, why, fix."""
        return [{"kind": finding.kind, "severity": finding.severity, "count": finding.count,
                 "what": self._what(finding), "examples": _examples(finding), "fix": finding.fix}
                for finding in self.findings]

    def table(self) -> str:
        """All findings as text, errors first."""
        lines = [f"{self.shards:,} shards, {self.members:,} members, {self.bytes / 1e9:,.2f} GB; "
                 f"a sample has {', '.join(self.fields) or 'no members in common'}",
                 f"samples: {self.samples_expected:,} in the set, {self.samples_read:,} as readers see it"]
        for row in self.rows():
            lines.append(f"{row['severity']:<8}{row['kind']}: {row['count']:,}")
            lines += [line for name in ("what", "examples", "fix")
                      for line in textwrap.wrap(f"{name}: {row[name]}", WIDTH, initial_indent=" " * 8,
                                                subsequent_indent=" " * 10, break_long_words=False)]
        return "\n".join([*lines, "nothing found" if not self.findings else ""]).rstrip()

    def _what(self, finding: Finding) -> str:
        missing, total = finding.kind == "missing_members", f" of {self.samples_expected:,}"
        details = [f"missing {name}: {count:,}{total}" if missing else f"{name}: {count:,}"
                   for name, count in list(finding.details.items())[:SHOWN]]
        return finding.why + (f" ({', '.join(details)})" if details else "")


def findings(tally: Tally, severity: Mapping[str, Literal["error", "warning"]]) -> tuple[Finding, ...]:
    """The tally as findings, errors first, in the order of KINDS; `severity` overrides the kinds' own."""
    found = [Finding(kind, tally.counts[kind], tuple(tally.examples[kind]), known.why, known.fix,
                     severity.get(kind, known.severity), dict(tally.details[kind].most_common()))
             for kind, known in KINDS.items() if tally.counts[kind]]
    return tuple(sorted(found, key=lambda finding: finding.severity))


def _examples(finding: Finding) -> str:
    rest = finding.count - len(finding.examples)
    return ", ".join(finding.examples) + (f", and {rest:,} more" if rest > 0 else "")

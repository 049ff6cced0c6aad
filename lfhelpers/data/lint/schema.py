"""Which members a sample of this set should have, and whether its keys hold dots: judged from the set itself.

A reader ends a key at the first dot of the last path part, so 'a.front.jpg' is the legal member front.jpg of sample a,
while '1.5_a.jpg' and '1.7_b.jpg' become one sample 1. Names alone don't tell the two apart; the whole set does. In a
sound set the same members come back in most samples; where keys hold dots, the parts between the first dot and the
extension differ from sample to sample, and cutting later gives whole samples. A set of one sample is judged by digits:
cameras have names, times and versions have numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lfhelpers.data.lint.headers import split

IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm")
"""Extensions of images, by their last part."""
RARE = 0.05
"""What comes back in fewer samples than this share is part of a key, not of an extension."""

Signatures = Mapping[tuple[str, ...], int]
_DIGIT, _LETTER = re.compile(r"\d"), re.compile(r"[a-z]")


@dataclass(frozen=True)
class Schema:
    """What samples are made of. `fields`: the members that most samples have, lower case, in packing order.

    aliases: other extensions of the same image, as jpeg for jpg. endings: the extensions at which keys with dots end;
    empty where keys hold none.
    """

    fields: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    endings: frozenset[str] = frozenset()

    def split(self, name: str) -> tuple[str, str, bool] | None:
        """(key, extension as written, whether the key holds a dot); None for what is no member of a sample."""
        parts = split(name)
        return None if parts is None else self.cut(*parts)

    def cut(self, key: str, ext: str) -> tuple[str, str, bool]:
        """The same of a reader's key and extension."""
        if self.endings and (cut := _later(ext.lower(), self.endings)):
            return f"{key}.{ext[:-len(cut) - 1]}", ext[-len(cut):], True
        return key, ext, False

    def canonical(self, ext: str) -> str:
        """The field that an extension stands for."""
        lower = ext.lower()
        return self.aliases.get(lower, lower)


def is_image(ext: str) -> bool:
    """Whether a member of this extension should be an image."""
    return ext.lower().rpartition(".")[2] in IMAGES


def judge(signatures: Signatures, wanted: Sequence[str] = ()) -> Schema:
    """The schema of a set from how many samples have which members (as written).

    wanted: the members that a sample must have, where the caller knows them. Where keys turn out to hold dots, samples
    must be counted again by this schema's split, and `settle` called with that.
    """
    lowered, samples = _map(signatures, str.lower), sum(signatures.values())
    common = _majority(lowered, samples)
    endings = frozenset(wanted) or _endings(lowered, common)
    roles = _roles(lowered, samples, common)
    dotted = _dotted(lowered, samples, endings, roles, bool(common or wanted))
    return settle(signatures, wanted, endings | roles if dotted else frozenset())


def settle(signatures: Signatures, wanted: Sequence[str] = (), endings: frozenset[str] = frozenset()) -> Schema:
    """The fields and aliases, once keys are known to be split rightly."""
    lowered, samples = _map(signatures, str.lower), sum(signatures.values())
    aliases = _aliases(lowered, wanted)
    merged = _map(lowered, lambda ext: aliases.get(ext, ext))
    fields = set(wanted) or {ext for ext, count in _counts(merged).items() if 2 * count >= samples}
    frequent = sorted(merged, key=lambda signature: -merged[signature])
    order = wanted or [ext for signature in frequent for ext in signature if ext in fields]
    return Schema(tuple(dict.fromkeys(order)), aliases, endings)


def _map(signatures: Signatures, change: Callable[[str], str]) -> Counter[tuple[str, ...]]:
    mapped: Counter[tuple[str, ...]] = Counter()
    for signature, count in signatures.items():
        mapped[tuple(dict.fromkeys(change(ext) for ext in signature))] += count
    return mapped


def _counts(signatures: Signatures) -> Counter[str]:
    counts: Counter[str] = Counter()
    for signature, count in signatures.items():
        for ext in signature:
            counts[ext] += count
    return counts


def _majority(signatures: Signatures, samples: int) -> set[str]:
    """Extensions of half of the samples at least; those with a dot must also come back in a second sample."""
    return {ext for ext, count in _counts(signatures).items() if 2 * count >= samples and (count > 1 or "." not in ext)}


def _roles(signatures: Signatures, samples: int, common: set[str]) -> frozenset[str]:
    """Extensions with a dot that come back, as a camera's name does and a key does not."""
    counts = {ext: count for ext, count in _counts(signatures).items() if "." in ext and not _numbered(common, ext)}
    return frozenset(ext for ext, count in counts.items() if count >= max(2, RARE * samples)
                     or (count > 1 and not _DIGIT.search(_head(ext))))


def _numbered(common: set[str], ext: str) -> bool:
    """Whether `ext` is one of three or more common extensions that differ in the digits before the last dot alone."""
    def masked(text: str) -> str:
        return _DIGIT.sub("0", _head(text)).replace("00", "0") + ext[len(_head(ext)):]

    if not _DIGIT.search(_head(ext)):
        return False
    return sum(masked(other) == masked(ext) and other.endswith(ext[len(_head(ext)):]) for other in common) >= 3


def _head(ext: str) -> str:
    return ext.rpartition(".")[0]


def _endings(signatures: Signatures, common: set[str]) -> frozenset[str]:
    """The extensions of true samples, if keys held dots: the longest parts behind a dot that come back often enough."""
    plain = frozenset(ext for ext in common if not _numbered(common, ext))
    if plain:
        return plain
    members, counts = _counts(signatures), Counter[str]()
    for ext, count in members.items():
        for ending in _suffixes(ext):
            counts[ending] += count
    chosen = Counter[str]()
    for ext, count in members.items():
        *longer, last = _suffixes(ext)
        chosen[next((ending for ending in longer if counts[ending] >= max(2, RARE * counts[last])), last)] += count
    most = max(chosen.values(), default=0)
    return frozenset(ending for ending, count in chosen.items() if count >= RARE * most)


def _suffixes(ext: str) -> list[str]:
    """What may be the true extension in it, longest first: its last one to three parts, beginning with a letter."""
    parts = ext.split(".")
    found = [parts[-count:] for count in range(min(3, len(parts) - 1), 1, -1) if _LETTER.search(parts[-count])]
    return [*(".".join(tail) for tail in found), parts[-1]]


def _later(ext: str, endings: Iterable[str]) -> str:
    """The longest of the endings that `ext` has behind a dot; empty where it is one itself, or has none."""
    while ext not in endings:
        _, dot, ext = ext.partition(".")
        if not dot:
            return ""
        if ext in endings:
            return ext
    return ""


def _dotted(signatures: Signatures, samples: int, endings: frozenset[str], roles: frozenset[str], known: bool) -> bool:
    """Whether keys are cut too early at the first dot: what lies before the endings are names of whole samples."""
    if len(signatures) == 1 and samples > 1:
        return False  # all samples have the same members: that is what a sound set looks like
    whole = others = 0
    for signature, count in signatures.items():
        groups: dict[str, set[str]] = {}
        for ext in signature:
            if cut := _later(ext, endings | roles):
                groups.setdefault(ext[:-len(cut) - 1], set()).add(cut)
        if samples == 1 and not known and not all(_DIGIT.search(head) for head in groups):
            return False
        stray = known and not endings.intersection(signature)
        fitting = sum(stray or found >= endings for found in groups.values())
        whole, others = whole + count * fitting, others + count * (len(groups) - fitting)
    return whole > others


def _aliases(signatures: Signatures, wanted: Sequence[str]) -> dict[str, str]:
    """Image extensions that never meet in a sample, as jpg and jpeg: each rarer one stands for the most frequent."""
    counts = _counts(signatures)
    names = sorted((ext for ext in counts if is_image(ext)),
                   key=lambda ext: (ext not in wanted, -counts[ext], len(ext), ext))
    together = {(a, b) for signature in signatures for a in signature for b in signature}
    classes: dict[str, list[list[str]]] = {}
    for name in names:
        alike = classes.setdefault(_head(name), [])
        fitting = [group for group in alike if not any((name, other) in together for other in group)]
        if fitting:
            fitting[0].append(name)
        else:
            alike.append([name])
    return {name: group[0] for alike in classes.values() for group in alike for name in group[1:]}

"""Which tars a check reads, what they are called in its report, and the manifests that they may have."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lfhelpers.data import manifest
from lfhelpers.data.lint.report import SHOWN, Tally
from lfhelpers.data.lint.survey import Survey
from lfhelpers.data.manifest import Manifest, Shard
from lfhelpers.errors import LfError

Place = str | os.PathLike[str]
ENDS = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")


@dataclass(frozen=True)
class Sources:
    """Tars by their name in the report, in order; manifests by folder; folders that were given whole."""

    tars: Mapping[str, Path]
    folders: tuple[Path, ...]
    manifests: Mapping[Path, Manifest] = field(default_factory=dict)
    broken: tuple[str, ...] = ()

    def listed(self, path: Path) -> Shard | None:
        """What the folder's manifest says about a tar."""
        known = self.manifests.get(path.parent)
        return next((shard for shard in known.shards if shard.name == path.name), None) if known else None

    def only(self) -> Manifest | None:
        """The one manifest that covers all tars, if there is one."""
        found = list(self.manifests.values())
        covered = len(found) == 1 and all(self.listed(path) for path in self.tars.values())
        return found[0] if covered else None

    def samples(self) -> int | None:
        """How many samples there should be, where one manifest covers all tars."""
        known = self.only()
        if known is None:
            return None
        if known.folder in self.folders:
            return known.samples
        return sum(shard.samples for path in self.tars.values() if (shard := self.listed(path)))


def find(paths: Place | Sequence[Place]) -> Sources:
    """The tars in folders, at any depth, and those given by name. Raises LfError where there are none."""
    given = [Path(path).absolute() for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    folders, tars = [], list[Path]()
    for path in given:
        if path.is_dir():
            folders.append(path)
            tars += _within(path)
        elif path.exists():
            tars.append(path)
        else:
            raise LfError(f"there is no file or folder {path}; give tars, or a folder that holds some.")
    tars = list(dict.fromkeys(tars))
    if not tars:
        raise LfError(f"no tar is in {', '.join(map(str, given)) or 'no folder at all'}; give tars, or a folder that "
                      f"holds files named *{', *'.join(ENDS)}.")
    base = Path(os.path.commonpath([path.parent for path in tars] + folders))
    manifests, broken = {}, []
    for folder in dict.fromkeys([*folders, *(path.parent for path in tars)]):
        if (folder / manifest.JSON).exists():
            try:
                manifests[folder] = Manifest.load(folder, check="none")
            except LfError as error:
                broken.append(str(error))
    return Sources({path.relative_to(base).as_posix(): path for path in tars}, tuple(folders), manifests, tuple(broken))


def compare(sources: Sources, surveys: Mapping[Path, Survey], limit: int | None = SHOWN) -> Tally:
    """What differs between the tars and their manifests: shards, sizes and checksums; damaged members by name."""
    tally, names = Tally(limit), {path: name for name, path in sources.tars.items()}
    for sentence in sources.broken:
        tally.add("bad_manifest", sentence)
    for folder, known in sources.manifests.items():
        for number, shard in enumerate(known.shards):
            found = surveys.get(folder / shard.name)
            if found is None:
                if folder in sources.folders:
                    tally.add("missing_shard", shard.name)
            elif found.size != shard.size:
                tally.add("size_differs", f"{names[folder / shard.name]} ({found.size:,} bytes, its manifest says "
                          f"{shard.size:,})")
            elif found.sha256 and found.sha256 != shard.sha256:
                _damaged(known, number, names[folder / shard.name], tally)
        for path in surveys:
            if path.parent == folder and sources.listed(path) is None:
                tally.add("unlisted_shard", names[path])
    return tally


def _within(folder: Path) -> list[Path]:
    """The folder's tars at any depth; hidden folders and files, as unfinished ones are, left out."""
    found = (path for path in folder.rglob("*") if path.name.endswith(ENDS) and path.is_file())
    return sorted(path for path in found
                  if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def _damaged(known: Manifest, number: int, name: str, tally: Tally) -> None:
    """The members whose crc32 is not the manifest's, or the shard where only its headers are changed."""
    found = 0
    for index in np.flatnonzero(known.rows.shard == number).tolist():
        members = known.read(index)
        for column, (ext, data) in enumerate(members.items()):
            if zlib.crc32(data) != known.rows.crc32[index, column]:
                found += 1
                tally.add("checksum_differs", f"{name}:{manifest.key(index)}.{ext}")
    if not found:
        tally.add("checksum_differs", f"{name} (its headers or padding)")

"""`lfhelpers data`: make, pack, check and mend datasets."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from lfhelpers.errors import LfError

data_app = typer.Typer(no_args_is_help=True, help="Make, pack, check and mend datasets.\n\n"
                                                  "Example: lfhelpers data pack photos shards")

ShardMb = Annotated[float, typer.Option(min=0.1, help="Largest size of a shard.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes; all usable cores if none is given.")]


class OnBad(StrEnum):
    """What to do with a source's bad entries."""

    refuse = "refuse"
    skip = "skip"


class Level(StrEnum):
    """How deep a lint looks."""

    members = "members"
    decode = "decode"


@data_app.command("make")
def make(
    out: Annotated[Path | None, typer.Option(help="Folder of the shards; else the default set's.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many samples.")] = 2048,
    shard_mb: ShardMb = 1024,
    jobs: Jobs = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn.")] = 0,
    distractors: Annotated[int, typer.Option(min=0, max=5, help="Objects beside the named one.")] = 3,
    task: Annotated[str | None, typer.Option(help="one, pair, colour, shape or two_step, instead of these.")] = None,
) -> None:
    """Render tabletop scenes into shards with index and manifest; an interrupted call is continued by the next.

    Example: lfhelpers data make --samples 2048 --out shards
    """
    from lfhelpers.launch.prepare import make_tabletop

    manifest = make_tabletop(out, samples, shard_mb=shard_mb, jobs=jobs, seed=seed,
                             distractors=task or distractors)
    print(f"{manifest.samples} samples in {len(manifest.shards)} shards in {manifest.folder}")


@data_app.command("pack")
def pack(
    source: Annotated[Path, typer.Argument(help="A folder of images, a CSV or JSONL, a COCO JSON, a LeRobot dataset.")],
    out: Annotated[Path, typer.Argument(help="Folder of the shards.")],
    kind: Annotated[str | None, typer.Option(help="images, table, coco or lerobot; else found by looking.")] = None,
    shard_mb: ShardMb = 1024,
    jobs: Jobs = None,
    on_bad: Annotated[OnBad, typer.Option(help="What to do about bad entries: skip counts them.")] = OnBad.refuse,
    keep: Annotated[bool, typer.Option(help="Store all images as they are, odd ones too.")] = False,
    root: Annotated[Path | None, typer.Option(help="Folder that image names start from.")] = None,
    image_column: Annotated[str | None, typer.Option(help="Table: the column of image names.")] = None,
    text_column: Annotated[str | None, typer.Option(help="Table: the column of texts.")] = None,
    every: Annotated[int | None, typer.Option(min=1, help="LeRobot: take each N-th frame.")] = None,
    chunk: Annotated[str | None, typer.Option(help="LeRobot: steps x numbers of an action chunk, as 16x7.")] = None,
    state_dim: Annotated[int | None, typer.Option(min=1, help="LeRobot: numbers of a state.")] = None,
    front: Annotated[str | None, typer.Option(help="LeRobot: the camera that becomes front.jpg.")] = None,
    wrist: Annotated[str | None, typer.Option(help="LeRobot: the camera that becomes wrist.jpg.")] = None,
    leave_out: Annotated[list[int] | None, typer.Option(help="LeRobot: an episode's number; repeatable.")] = None,
) -> None:
    """Pack your own data into shards; the source is only read, and an interrupted call is continued by the next.

    Example: lfhelpers data pack photos shards --on-bad skip
    """
    from lfhelpers.data import importers
    from lfhelpers.measure.hardware import usable_cores

    cameras = {name: feature for name, feature in (("front", front), ("wrist", wrist)) if feature}
    given: dict[str, Any] = {
        "keep": keep or None, "root": root, "image_column": image_column, "text_column": text_column, "every": every,
        "chunk": _chunk(chunk) if chunk else None, "state_dim": state_dim, "cameras": cameras or None,
        "leave_out": leave_out or None}
    options = {name: value for name, value in given.items() if value is not None}
    manifest = importers.pack(source, out, kind=kind, shard_mb=shard_mb, jobs=jobs or usable_cores(),
                              on_bad=on_bad.value, **options)
    print(f"{manifest.samples} samples in {len(manifest.shards)} shards in {manifest.folder}")


@data_app.command("lint")
def lint(
    paths: Annotated[list[Path], typer.Argument(help="Tars, or folders of tars; any WebDataset set.")],
    level: Annotated[Level, typer.Option(help="decode also decodes every image in full.")] = Level.members,
    repack: Annotated[Path | None, typer.Option(help="Write a clean copy into this folder.")] = None,
    jobs: Jobs = None,
    checksums: Annotated[bool, typer.Option(help="Read all bytes and compare with the manifest's.")] = True,
    fields: Annotated[list[str] | None, typer.Option(help="A member that each sample must have; repeatable.")] = None,
) -> None:
    """Find what readers of a tar set would lose, merge or stumble over; exit code 1 where something is wrong.

    Example: lfhelpers data lint shards --level decode
    """
    from lfhelpers.data.lint import lint as look
    from lfhelpers.data.lint.repack import repack as rewrite

    report = look(list(paths), level.value, jobs, checksums=checksums, fields=fields or ())
    print(report.table())
    if repack is not None:
        manifest = rewrite(list(paths), repack, decode=level == Level.decode, jobs=jobs, fields=fields or ())
        print(f"{manifest.samples} samples in {len(manifest.shards)} shards in {manifest.folder}; what was left out is "
              "listed in left_out.jsonl there")
        return
    raise typer.Exit(report.exit_code)


@data_app.command("check")
def check(
    folder: Annotated[Path, typer.Argument(help="A folder of shards.")],
    sha256: Annotated[bool, typer.Option(help="Read every byte and compare checksums.")] = False,
) -> None:
    """Check that a folder's shards are those that its manifest names.

    Example: lfhelpers data check shards --sha256
    """
    from lfhelpers.data.manifest import Manifest

    manifest = Manifest.load(folder, check="sha256" if sha256 else "sizes")
    print(f"{folder}: {manifest.samples} samples in {len(manifest.shards)} shards, as its manifest says")


def _chunk(text: str) -> tuple[int, int]:
    steps, times, numbers = text.partition("x")
    if not (times and steps.isdigit() and numbers.isdigit()):
        raise LfError(f"--chunk '{text}' is no size: write steps x numbers, for example 16x7.")
    return int(steps), int(numbers)

"""What commands that leave a record share: its options, and how it is written on the way and at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lfhelpers.measure.record import Record

Out = Annotated[Path | None, typer.Option(help="File of the record; else a new one in `bench` beside the runs.")]
Onto = Annotated[Path | None, typer.Option(help="An earlier record whose other rows and checks are taken over.")]


def keeping(out: Path | None, onto: Path | None = None) -> Callable[[Record], None]:
    """Write the record so far into the file that is asked for, so that a bench cut short leaves what it has.

    What `onto` holds is in it each time, since both may be one file. Raises LfError at once where it can't be added to.
    """
    from lfhelpers.measure import record as records

    earlier = records.load(onto) if onto is not None else None
    if earlier is not None:
        records.merge(earlier, records.Record(earlier.bench, {}, [], {}, 0.0))

    def keep(record: Record) -> None:
        if out is not None:
            records.write(record if earlier is None else records.merge(earlier, record), out)
    return keep


def finish(record: Record, out: Path | None, onto: Path | None = None) -> None:
    """Merge with an earlier record where one is given, show the table beside this machine's record, and write."""
    from lfhelpers.measure import record as records

    if onto is not None:
        record = records.merge(records.load(onto), record)
    records.show(record, records.reference(record.bench))
    path = records.save(record) if out is None else records.write(record, out)
    print(f"record: {path}")

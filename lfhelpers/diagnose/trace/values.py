"""Fields of an event as numbers, however the profiler that wrote it spells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LARGEST = 2**62
"""Nanoseconds beyond which a time is taken for damage: 146 years since 1970."""


def nanoseconds(value: Any) -> int:
    """Microseconds, as number or text, in whole nanoseconds."""
    if value.__class__ is int:
        return int(value * 1000)
    if value.__class__ is str:
        if value[-4:-3] == ".":  # as the profiler writes them
            return int(value[:-4] + value[-3:])
        whole, _, fraction = value.partition(".")
        return int(whole) * 1000 + (int(fraction[:3].ljust(3, "0")) if fraction else 0)
    return round(value * 1000)


def integer(value: Any) -> int:
    """An identifier, as number or text (decimal, or hexadecimal with 0x); 0 where it is none, or can't be one."""
    if value.__class__ is int:
        return value if 0 < value < LARGEST else 0
    try:
        number = int(value, 16) if value.__class__ is str and value[:2] in ("0x", "0X") else int(value)
    except (TypeError, ValueError, OverflowError):
        return 0
    return number if 0 < number < LARGEST else 0


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}

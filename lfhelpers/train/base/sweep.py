"""Combinations of a base recipe's values, one after the other: which learning rates and shares of time pay."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from lfhelpers.errors import LfError
from lfhelpers.train.base.make import make
from lfhelpers.train.base.recipe import load
from lfhelpers.workloads.vla.pretrained import card


def combinations(tried: Sequence[str]) -> list[tuple[str, ...]]:
    """All overrides of "field=value,value" texts: one value of each field."""
    options = []
    for text in tried:
        field, equals, values = text.partition("=")
        if not equals or not values:
            raise LfError(f"--try {text}: write field=value,value, for example stages.0.lr=1e-3,3e-3.")
        options.append([f"{field}={value}" for value in values.split(",")])
    return list(itertools.product(*options))


def one(name: str, overrides: Sequence[str], device: str, upto: str | None) -> dict[str, Any]:
    """The figures and last losses of one combination, rounded, and the seconds that it took."""
    base = load(name, *overrides)
    about = card(make(base.upto(upto) if upto else base, device))
    return {key: round(value, 3) for key, value in about["figures"].items()} | {"seconds": round(about["seconds"])}

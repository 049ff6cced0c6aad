"""The parameters of a notebook: what its one `parameters` cell declares, and what a caller gives.

papermill injects whatever it is given, with a warning at most; here an unknown name or a value of the wrong type is
refused before anything runs. The cell itself is the schema: `steps: int = 50  # optimizer steps` declares a name, a
type, a default and its help. A default of None means that the notebook chooses, and then 'none' is a value too.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import papermill
from nbformat import NotebookNode

from lfhelpers.errors import LfError, nearest
from lfhelpers.notebook import catalogue

TYPES: dict[str, Any] = {"str": str, "int": int, "float": float, "bool": bool}
Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Parameter:
    """One line of the parameters cell; `type` is a key of TYPES."""

    name: str
    type: str
    default: Scalar
    help: str


def split(pairs: Sequence[str]) -> dict[str, str]:
    """['steps=50'] as {'steps': '50'}. Raises LfError where a pair has no '='."""
    given = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise LfError(f"'{pair}' is no parameter: write name=value, for example steps=50.")
        given[name.strip()] = value.strip()
    return given


def declared(notebook: NotebookNode, where: str) -> dict[str, Parameter]:
    """The notebook's parameters by name. Raises LfError, beginning with `where`, for a cell that can't be read."""
    if len(catalogue.tagged(notebook, "parameters")) != 1:
        raise LfError(f"{where}: exactly one cell must be tagged 'parameters'.")
    try:
        found = papermill.inspect_notebook(notebook)  # a node, not a path: papermill takes braces in a path for fields
    except ValueError as error:
        raise LfError(f"{where}: its metadata must name the kernel python3 and the language python.") from error
    return {name: _parameter(entry, where) for name, entry in found.items()}


def assign(paths: Sequence[Path], given: Mapping[str, Any]) -> dict[Path, dict[str, Scalar]]:
    """The typed values that each notebook gets: those of `given` that it declares.

    Raises LfError for a name that none of them declares, and for a value of the wrong type.
    """
    known = {path: declared(catalogue.read(path), f"notebook {path.stem}") for path in paths}
    everywhere = {name for parameters in known.values() for name in parameters}
    for name in given:
        if name not in everywhere:
            which = ", ".join(path.stem for path in paths)
            raise LfError(f"notebook {which} has no parameter '{name}'; {nearest(name, everywhere)}")
    return {path: {name: value_of(parameters[name], raw, f"notebook {path.stem}")
                   for name, raw in given.items() if name in parameters} for path, parameters in known.items()}


def value_of(parameter: Parameter, raw: Any, where: str) -> Scalar:
    """A given value in the parameter's type. Raises LfError with a sentence that names the parameter."""
    kind = TYPES[parameter.type]
    if raw is None or (parameter.default is None and str(raw).lower() == "none"):
        if parameter.default is None:
            return None
    elif isinstance(raw, str) and kind is not str:
        parsed = _parse(kind, raw)
        if parsed is not None:
            return parsed
    elif type(raw) is kind or (kind is float and type(raw) is int):
        return kind(raw)
    example = {"int": "50", "float": "0.5", "bool": "true", "str": "text"}[parameter.type]
    raise LfError(f"{where}: parameter '{parameter.name}' takes {parameter.type}, not {raw!r}; "
                  f"for example {parameter.name}={example}.")


def _parse(kind: type, raw: str) -> Scalar:
    """None where the text isn't of this type."""
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(raw.lower())
    try:
        return kind(raw)
    except ValueError:
        return None


def _parameter(entry: Mapping[str, str], where: str) -> Parameter:
    kind = entry["inferred_type_name"]
    if kind not in TYPES:
        raise LfError(f"{where}: parameter '{entry['name']}' must be annotated as {', '.join(TYPES)}, not {kind}.")
    try:
        default = ast.literal_eval(entry["default"])
    except (ValueError, SyntaxError) as error:
        raise LfError(f"{where}: the default of parameter '{entry['name']}' must be a literal.") from error
    return Parameter(entry["name"], kind, default, entry["help"])

"""Which notebooks there are, and what their first cell says about them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from lfhelpers import runs
from lfhelpers.errors import LfError, nearest
from lfhelpers.notebook import answers

PLANNED: dict[str, str] = {}
"""Lessons to come, with their questions; one that is there speaks for itself."""
PROMISES = {"able": "You will be able to", "takes": "It takes", "needs": "It needs"}
WORDS_A_MINUTE, LINES_A_MINUTE, MINUTES_AN_EXERCISE = 200, 20, 5
"""A reader's pace: prose as most adults read it, code read with care, and an exercise that is thought about."""


def folder() -> Path:
    """The playbook's notebooks: `notebooks` of the checkout, or of the current folder where there is none."""
    return runs.project() / "notebooks"


def select(names: Sequence[str] | None = None, inside: Path | None = None) -> list[Path]:
    """Notebooks in order: all of the folder, or those given by number ('01'), name ('01_diagnosis') or path.

    Raises LfError for a name that fits none.
    """
    inside = inside or folder()
    known = {path.stem: path for path in sorted(inside.glob("[0-9][0-9]_*.ipynb"))}
    if not names:
        if not known:
            raise LfError(f"no notebooks in {inside}; run from the playbook's checkout, or name a .ipynb file.")
        return list(known.values())
    return list(dict.fromkeys(_one(name, known, inside) for name in names))


def overview(inside: Path | None = None) -> list[dict[str, str]]:
    """A row a lesson in order: its question, how long it takes, what it needs, and how many exercises are solved."""
    rows = [_described(path) for path in select(None, inside)]
    here = {row["notebook"] for row in rows}
    rows += [{"notebook": name, "question": asked, "takes": "to come"} for name, asked in PLANNED.items()
             if name not in here]
    return sorted(rows, key=lambda row: row["notebook"])


def _described(path: Path) -> dict[str, str]:
    notebook = read(path)
    said, count = promises(notebook), len(tagged(notebook, "exercise"))
    return {"notebook": path.stem, "question": question(notebook), "takes": said.get("takes", "").partition(",")[0],
            "needs": said.get("needs", "").replace("`", ""), "exercises solved": answers.solved(path.stem, count)}


def read(path: Path) -> NotebookNode:
    """The notebook as it stands in the file. Raises LfError where the file is missing or no notebook of version 4."""
    try:
        notebook = nbformat.v4.reads(path.read_text())  # nbformat.read would mend what the lint is there to find
    except OSError as error:
        raise LfError(f"notebook {path} can't be read: {error.strerror}.") from error
    except ValueError as error:
        raise LfError(f"{path} is no notebook: {error}.") from error
    if notebook.get("nbformat") != 4 or not isinstance(notebook.get("cells"), list):
        raise LfError(f"{path} is no notebook of format 4; open and save it in JupyterLab.")
    return notebook


def tagged(notebook: NotebookNode, tag: str) -> list[NotebookNode]:
    """The cells that carry a tag."""
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", [])]


def title(notebook: NotebookNode) -> str:
    """The first heading of the first cell; empty where there is none."""
    found = re.search(r"^# +(.+)$", _first(notebook), flags=re.MULTILINE)
    return found[1].strip() if found else ""


def question(notebook: NotebookNode) -> str:
    """The first sentence of the first cell that ends with a question mark: what the notebook answers."""
    text = re.sub(r"^#.*$", "", _first(notebook), flags=re.MULTILINE).replace("*", "")
    found = re.search(r"([^.?!]+\?)", " ".join(text.split()))
    return found[1].strip() if found else ""


def promises(notebook: NotebookNode) -> dict[str, str]:
    """What the first cell promises a reader, by the keys of PROMISES; what it doesn't say is left out."""
    text = " ".join(_first(notebook).split())
    found = {key: re.search(rf"- \*\*{words}\*\* (.+?)(?= - \*\*|$)", text) for key, words in PROMISES.items()}
    return {key: match[1].rstrip(".") for key, match in found.items() if match}


def minutes(notebook: NotebookNode) -> float:
    """How long a lesson takes, from its words, its code and its exercises; the runs in it are read beside."""
    prose = sum(len(cell.source.split()) for cell in notebook.cells if cell.cell_type == "markdown")
    lines = sum(len(cell.source.splitlines()) for cell in notebook.cells if cell.cell_type == "code")
    return prose / WORDS_A_MINUTE + lines / LINES_A_MINUTE + MINUTES_AN_EXERCISE * len(tagged(notebook, "exercise"))


def _first(notebook: NotebookNode) -> str:
    cell = notebook.cells[0] if notebook.cells else None
    return cell.source if cell is not None and cell.cell_type == "markdown" else ""


def _one(name: str, known: dict[str, Path], inside: Path) -> Path:
    if name.endswith(".ipynb"):
        path = Path(name).absolute()
        if path.exists():
            return path
        raise LfError(f"no notebook {path}.")
    if name in known:
        return known[name]
    numbered = [path for stem, path in known.items() if stem.partition("_")[0] == name]
    if len(numbered) == 1:
        return numbered[0]
    hint = nearest(name, [*known, *(stem[:2] for stem in known)]) if known else "there is none."
    raise LfError(f"no notebook '{name}' in {inside}; {hint}")

"""Static gates on notebooks: fast, without a kernel, each rule a small function.

A rule is given a notebook and yields its findings. A finding fails the check unless it is a mere warning. What concerns
a notebook's form is here; what needs its code understood is in lint_code.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode
from nbformat.validator import iter_validate

from lfhelpers.errors import LfError
from lfhelpers.notebook import catalogue, lint_code, parameters

CELLS = range(25, 61)
LINES = 40
EXERCISES = range(2, 4)
NOTEBOOK_METADATA = {"kernelspec", "language_info"}
CELL_METADATA = {"tags", "jupyter", "editable", "slideshow"}
HIDDEN: tuple[dict[str, bool], ...] = ({}, {"source_hidden": True})
TYPED_NUMBER = re.compile(
    r"\d[\d.,]*\s*(?:%|ms\b|µs\b|us\b|samples/s|tokens/s|steps/s|[GM]i?B/s\b|T?FLOPS?\b|[x×](?!\s*\d)(?=\W|$)|times\s+(?:as|fast|slow))",
    flags=re.IGNORECASE)
NOT_MEASURED = re.compile(r"^(?:0|95|99|100)\s*%$")
"""Shares that are a definition, not a finding: parts that sum to 100 %, a 95 % interval."""


@dataclass(frozen=True)
class Finding:
    """What a rule found; `cell` is counted from 1, None is the whole notebook."""

    cell: int | None
    message: str
    warning: bool = False


Rule = Callable[[NotebookNode], Iterator[Finding]]


def check(paths: Sequence[Path] | None = None) -> int:
    """Print file:cell: message for all findings in the notebooks (none: all); returns 1 if one is no warning."""
    failed = False
    for path in paths or catalogue.select():
        for finding in findings(catalogue.read(path)):
            where = f"{path.name}:{finding.cell}" if finding.cell else path.name
            print(f"{where}: {'warning: ' if finding.warning else ''}{finding.message}")
            failed |= not finding.warning
    return int(failed)


def findings(notebook: NotebookNode) -> list[Finding]:
    """What all rules find, in the order of the cells."""
    found = [finding for rule in RULES for finding in rule(notebook)]
    return sorted(found, key=lambda finding: finding.cell or 0)


def valid_format(notebook: NotebookNode) -> Iterator[Finding]:
    """The notebook satisfies nbformat's schema, and every cell has an id of its own."""
    for error in iter_validate(notebook):
        yield Finding(None, f"no valid notebook: {error.message.splitlines()[0]}")
    seen: set[str] = set()
    for number, cell in _cells(notebook):
        if not cell.get("id"):
            yield Finding(number, "the cell has no id")
        elif cell.id in seen:
            yield Finding(number, f"the cell's id '{cell.id}' is taken")
        seen.add(cell.get("id", ""))


def stripped(notebook: NotebookNode) -> Iterator[Finding]:
    """No outputs, counts or metadata that change from run to run."""
    extra = sorted(notebook.metadata.keys() - NOTEBOOK_METADATA)
    if extra or "version" in notebook.metadata.get("language_info", {}):
        yield Finding(None, f"volatile metadata {', '.join(extra) or 'language_info.version'}; strip the notebook")
    for number, cell in _cells(notebook):
        if cell.get("outputs") or cell.get("execution_count") is not None:
            yield Finding(number, "outputs or an execution count are kept; strip the notebook")
        if cell.metadata.keys() - CELL_METADATA or cell.metadata.get("jupyter", {}) not in HIDDEN:
            yield Finding(number, "volatile cell metadata; strip the notebook")


def kernel(notebook: NotebookNode) -> Iterator[Finding]:
    """The kernel is python3, which every Jupyter maps to its own interpreter."""
    if (name := notebook.metadata.get("kernelspec", {}).get("name")) != "python3":
        yield Finding(None, f"the kernel must be python3, not {name}")


def opening(notebook: NotebookNode) -> Iterator[Finding]:
    """The first cell has a title and asks the lesson's question; the index page shows both."""
    if not catalogue.title(notebook):
        yield Finding(1, "the first cell needs a title: # What this is about")
    if not catalogue.question(notebook):
        yield Finding(1, "the first cell must ask the lesson's question, a sentence that ends with ?")


def promises(notebook: NotebookNode) -> Iterator[Finding]:
    """The first cell says what a reader will be able to do, how long it takes and what it needs; the time is right.

    Right is within a half of what the lesson's words, code and exercises take: a lesson that grew must say so.
    """
    said = catalogue.promises(notebook)
    for key, words in catalogue.PROMISES.items():
        if key not in said:
            yield Finding(1, f"the first cell must say in a list: - **{words}** ...")
    if takes := said.get("takes"):
        told, likely = re.search(r"about (\d+) minutes", takes), catalogue.minutes(notebook)
        if told is None:
            yield Finding(1, "say how long the lesson takes as: about 30 minutes")
        elif not likely / 1.5 <= int(told[1]) <= likely * 1.5:
            yield Finding(1, f"the lesson is said to take {told[1]} minutes; its text, code and exercises take about "
                             f"{likely:.0f}")


def closing(notebook: NotebookNode) -> Iterator[Finding]:
    """A lesson says what did not help, and ends with what was learned."""
    headings = [line for _, cell in _cells(notebook) if cell.cell_type == "markdown"
                for line in cell.source.splitlines() if line.startswith("## ")]
    if not headings or headings[-1] != "## What we learned":
        yield Finding(None, "the last section must be: ## What we learned")
    if not any("not help" in heading for heading in headings):
        yield Finding(None, "a lesson has a section on what did not help: ## Tried, and did not help")


def size(notebook: NotebookNode) -> Iterator[Finding]:
    """25 to 60 cells, none longer than 40 lines, and about as much text as code; answers to exercises are neither."""
    text = sum(cell.cell_type == "markdown" for cell in notebook.cells)
    code = sum(cell.cell_type == "code" and not re.search(r"^answer = ", cell.source, re.MULTILINE)
               for cell in notebook.cells)
    if len(notebook.cells) not in CELLS:
        yield Finding(None, f"{len(notebook.cells)} cells; a lesson has {CELLS.start} to {CELLS.stop - 1}")
    if code > text:
        yield Finding(None, f"{code} code cells and only {text} of text", warning=True)
    for number, cell in _cells(notebook):
        if cell.cell_type == "code" and (lines := len(cell.source.splitlines())) > LINES:
            yield Finding(number, f"{lines} lines of code; move some into the module ({LINES} at most)")


def tags(notebook: NotebookNode) -> Iterator[Finding]:
    """No tag that hides a failure or leaves a cell out."""
    for number, cell in _cells(notebook):
        for tag in {"raises-exception", "skip-execution"} & set(cell.metadata.get("tags", [])):
            yield Finding(number, f"tag {tag}: the runner counts such a cell as failed; catch the error and print it")


def parameters_cell(notebook: NotebookNode) -> Iterator[Finding]:
    """One parameters cell, the first of the code cells: annotated literals, a comment a line, `profile` among them."""
    code = [(number, cell) for number, cell in _cells(notebook) if cell.cell_type == "code"]
    if not code or "parameters" not in code[0][1].metadata.get("tags", []):
        yield Finding(None, "the first code cell must be tagged parameters")
        return
    number, cell = code[0]
    wrong = list(_ill_formed(cell.source)) or list(_misread(notebook, cell.source))
    yield from (Finding(number, message) for message in wrong)


def exercises(notebook: NotebookNode) -> Iterator[Finding]:
    """Two or three, each a stub that only sets names to `...`, then a folded solution cell, then a cell that checks."""
    if (count := len(catalogue.tagged(notebook, "exercise"))) not in EXERCISES:
        yield Finding(None, f"{count} exercises; a lesson has {EXERCISES.start} or {EXERCISES.stop - 1}")
    code = [(number, cell) for number, cell in _cells(notebook) if cell.cell_type == "code"]
    for index, (number, cell) in enumerate(code):
        if "exercise" not in cell.metadata.get("tags", []):
            continue
        if not re.fullmatch(r"(?:\s*(?:\w+ = \.\.\.\s*)?(?:#.*)?\n?)+", cell.source):
            yield Finding(number, "an exercise cell only sets its answer: answer = ...  # what is asked")
        following = [cell for _, cell in code[index + 1:index + 3]]
        if len(following) < 2 or "solution" not in following[0].metadata.get("tags", []):
            yield Finding(number, "an exercise cell must be followed by its solution cell (tag solution)")
        elif not following[0].metadata.get("jupyter", {}).get("source_hidden"):
            yield Finding(number, "the solution cell must be folded: set jupyter.source_hidden in its metadata")
        elif "check(" not in following[1].source:
            yield Finding(number, "the solution cell must be followed by a cell that calls check(...)")


def images(notebook: NotebookNode) -> Iterator[Finding]:
    """Every image in a Markdown cell has alt text; figures of code have theirs from show."""
    for number, cell in _cells(notebook):
        if cell.cell_type == "markdown" and re.search(r"!\[\s*\]|<img(?![^>]*\balt=)", cell.source):
            yield Finding(number, "an image without alt text; say in it what the image shows")


def typed_numbers(notebook: NotebookNode) -> Iterator[Finding]:
    """No measured number is typed: text in Markdown cells, and text given to say, gets its numbers from results.

    Code in backticks is left alone, and a line that says whose number it is: one with the word 'published'.
    """
    for number, cell in _cells(notebook):
        texts = [cell.source] if cell.cell_type == "markdown" else lint_code.said(cell.source)
        for text in texts:
            for line in re.sub(r"```.*?```|`[^`]*`|\{[^}]*\}", "", text, flags=re.DOTALL).splitlines():
                for match in TYPED_NUMBER.finditer(line):
                    if "published" not in line.lower() and not NOT_MEASURED.match(match[0]):
                        yield Finding(number, f"typed number '{match[0].strip()}': render it from a result with say, "
                                              "or say that it is published")


def code_rules(notebook: NotebookNode) -> Iterator[Finding]:
    """The rules of lint_code: plain Python that runs top to bottom, alone, from any folder."""
    yield from (Finding(number or None, message) for number, message in lint_code.check(
        [(number, cell.source) for number, cell in _cells(notebook) if cell.cell_type == "code"]))


RULES: tuple[Rule, ...] = (valid_format, stripped, kernel, opening, promises, closing, size, tags, parameters_cell,
                           exercises, images, typed_numbers, code_rules)


def _cells(notebook: NotebookNode) -> Iterator[tuple[int, NotebookNode]]:
    return iter(enumerate(notebook.cells, start=1))


def _ill_formed(source: str) -> Iterator[str]:
    """Lines of a parameters cell that are no annotated assignment with a comment."""
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return  # lint_code reports it
    comments = {token.start[0] for token in tokenize.generate_tokens(io.StringIO(source).readline)
                if token.type == tokenize.COMMENT}
    for statement in statements:
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value):
            yield f"line {statement.lineno}: only lines such as steps: int = 50  # optimizer steps"
        elif statement.end_lineno != statement.lineno or statement.lineno not in comments:
            yield f"parameter '{statement.target.id}' must stand on one line with a comment that says what it is"


def _misread(notebook: NotebookNode, source: str) -> Iterator[str]:
    """Parameters that papermill reads in another way than Python, or whose default is not of their type."""
    try:
        declared = parameters.declared(notebook, "the parameters cell")
    except LfError as error:
        yield str(error)
        return
    names = [node.target.id for node in ast.walk(ast.parse(source))
             if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    for name in names:
        found = declared.get(name)
        if found is None:
            yield f"papermill does not see parameter '{name}'; is there an = in its comment, or a union in its type?"
        elif found.default is not None and not isinstance(found.default, parameters.TYPES[found.type]):
            yield f"parameter '{name}' is annotated {found.type}, but its default is {found.default!r}"
    if "profile" not in declared:
        yield 'declare profile: str = "auto"  # auto, smoke or gpu'

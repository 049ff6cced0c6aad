"""Static gates on the code of a notebook's cells: it is plain Python, and runs top to bottom, alone, from any folder.

The rules read syntax trees, not text, so that a comment about `sys.path` is no offence and an alias is no way around.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections.abc import Iterator, Sequence

FORBIDDEN = {
    "sys.path": "install the package instead of changing sys.path",
    "sys.exit": "skip a result with a reason instead of leaving the notebook",
    "os._exit": "skip a result with a reason instead of leaving the notebook",
    "exit": "skip a result with a reason instead of leaving the notebook",
    "quit": "skip a result with a reason instead of leaving the notebook",
    "os.chdir": "work with full paths instead of changing the folder",
    "os.system": "start work with lf.launch or subprocess.run(check=True), whose failure is seen",
    "os.popen": "start work with lf.launch or subprocess.run(check=True), whose failure is seen",
    "subprocess.Popen": "start work beside the notebook with lf.start, which ends it with the kernel",
    "ipywidgets": "take a function of lfhelpers.notebook, whose static result stands where ipywidgets is missing",
    "input": "take a parameter: nobody answers a headless run",
    "requests": "work offline; data is rendered, or given by a parameter",
    "httpx": "work offline; data is rendered, or given by a parameter",
    "urllib.request": "work offline; data is rendered, or given by a parameter",
    "torch.hub": "work offline; data is rendered, or given by a parameter",
    "get_ipython": "cells are plain Python, without magics",
    "matplotlib": "draw with a function of lfhelpers.notebook.charts, and show it with show(...)",
    "IPython.display": "show figures with show(...), text with say(...), tables with Table.show()",
    "tqdm.auto": "take plain tqdm: the widget bar leaves '0%' in the saved notebook",
    "tqdm.notebook": "take plain tqdm: the widget bar leaves '0%' in the saved notebook",
}
ABSOLUTE = re.compile(r"^(?:~?/(?!dev/|proc/)[\w.-]+(?:/|$)|[A-Za-z]:[\\/])")
IPYTHON_LINE = re.compile(r"^\s*(?:!|%|\?|[\w.]+\?+\s*$)")

Located = tuple[int, str]
"""The cell's number and a message."""


def check(cells: Sequence[tuple[int, str]]) -> Iterator[Located]:
    """All findings for a notebook's code cells, given in order as (number, source)."""
    trees: list[tuple[int, str, ast.Module]] = []
    for number, source in cells:
        magics = [line.strip() for line in source.splitlines() if IPYTHON_LINE.match(line)]
        try:
            trees.append((number, source, ast.parse(source)))
        except SyntaxError as error:
            yield number, (f"'{magics[0]}' is no Python: no magics and no shell lines" if magics
                           else f"does not parse: {error.msg} (line {error.lineno})")
    for number, source, tree in trees:
        yield from ((number, message) for message in [*_forbidden(tree), *_strings(tree), *_echoed(source, tree)])
    yield from _unbound(trees)
    called = {_name(node.func) for _, _, tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)}
    if not called & {"expect", "results.expect"}:
        yield 0, "nothing is promised: call expect('name', ...) in one of the first cells"


def said(source: str) -> list[str]:
    """The text given to say(...) in a cell."""
    try:
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    except SyntaxError:
        return []
    return [node.value for call in calls if _name(call.func) in ("say", "results.say")
            for argument in call.args for node in ast.walk(argument)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _forbidden(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        for name in _used(node):
            for bad, advice in FORBIDDEN.items():
                if name == bad or name.startswith(f"{bad}."):
                    yield f"{name}: {advice}"
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            yield f"from {node.module} import *: name what is used"


def _used(node: ast.AST) -> list[str]:
    """Dotted names that a node imports or reads."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Name | ast.Attribute):
        return [_name(node)]
    return []


def _strings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if ABSOLUTE.match(node.value):
                yield f"absolute path '{node.value}': it exists on one machine only"
            if re.search(r"\b(?:pip|conda|uv|mamba) install\b", node.value):
                yield f"'{node.value}': packages are installed before, never from a notebook"


def _echoed(source: str, tree: ast.Module) -> Iterator[str]:
    """A value that record has printed already, and that stands bare below it once more as the cell's own."""
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and _name(last.value.func) == "record":
        line = source.encode().splitlines()[(last.end_lineno or 1) - 1]
        if not line[last.end_col_offset:].lstrip().startswith(b";"):
            yield "the cell ends with record(...), so its value is shown twice: write record(...);"


def _unbound(trees: Sequence[tuple[int, str, ast.Module]]) -> Iterator[Located]:
    """Names that are used before a cell above, or a line above, has bound them in code that runs."""
    bound = set(dir(builtins)) | {"__name__"}
    for number, source, tree in trees:
        missing = list(_walk(tree.body, bound))
        missing += sorted(_globals_of_functions(source) - bound)  # a function may use what its cell binds below it
        yield from ((number, f"'{name}' is not bound in any cell above") for name in dict.fromkeys(missing))
        bound |= set(missing)  # one report a name


def _walk(statements: Sequence[ast.stmt], bound: set[str]) -> Iterator[str]:
    """Unbound names in the order of execution; adds to `bound` what the statements bind. Dead branches are left out."""
    for statement in statements:
        yield from _reads(statement, bound)
        bound |= _binds(statement)
        for block in _blocks(statement):
            yield from _walk(block, bound)


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The statements inside a compound one that run in this scope."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return []
    if isinstance(statement, ast.If) and isinstance(statement.test, ast.Constant):
        return [statement.body if statement.test.value else statement.orelse]
    if isinstance(statement, ast.Match):
        return [case.body for case in statement.cases]
    handlers = [handler.body for handler in getattr(statement, "handlers", [])]
    first, *others = (getattr(statement, name, []) for name in ("body", "orelse", "finalbody"))
    return [block for block in (first, *handlers, *others) if block]


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement without those of its blocks and of inner scopes."""
    scopes = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    queue: list[ast.AST] = [statement]
    while queue:
        node = queue.pop(0)
        yield node
        queue += [child for child in ast.iter_child_nodes(node) if not isinstance(child, scopes | ast.stmt)]


def _reads(statement: ast.stmt, bound: set[str]) -> Iterator[str]:
    """Unbound names that the statement's own line reads; targets of its loop or match count as bound."""
    targets = _binds(statement) if isinstance(statement, ast.For | ast.With | ast.Match) else set()
    for node in _own(statement):
        reads = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load | ast.Del)
        changed = isinstance(statement, ast.AugAssign) and node is statement.target and isinstance(node, ast.Name)
        if (reads or changed) and _name(node) not in bound | targets:
            yield _name(node)


def _binds(statement: ast.stmt) -> set[str]:
    names: set[str] = set()
    for node in _own(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.MatchAs | ast.MatchStar | ast.ExceptHandler) and node.name:
            names.add(node.name)
    return names


def _globals_of_functions(source: str) -> set[str]:
    """Names that the functions, classes and comprehensions of a cell take from the notebook."""
    found: set[str] = set()
    queue = list(symtable.symtable(source, "cell", "exec").get_children())
    while queue:
        table = queue.pop()
        queue += table.get_children()
        found |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced()}
    return found


def _name(node: ast.AST) -> str:
    """The dotted name of a Name or Attribute node; empty for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := _name(node.value)):
        return f"{base}.{node.attr}"
    return ""

"""Exercises with a check, an answer that stays folded, and a proof that both work.

An exercise is three code cells in a row: the stub (tag `exercise`) sets `answer = ...`, the solution (tag `solution`,
folded) fills it in with `solution(answer, value)`, and the third calls `check`. A reader's answer is never replaced,
and in JupyterLab the solution stays out of the way; the runner uses it, and there `check` also tries the stub: a check
that the stub passes, or that the solution fails, stops the notebook. So every run of the playbook proves its exercises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from lfhelpers.errors import LfError
from lfhelpers.notebook import output, results

if TYPE_CHECKING:  # a lesson's kernel checks answers, and only the runner reads notebooks
    from nbformat import NotebookNode


def solution(answer: Any, value: Any) -> Any:
    """The reader's answer; played by the runner, `value` in place of an untouched stub."""
    return value if answer is ... and results.headless() else answer


def check(name: str, answer: Any, passes: Callable[[Any], Any], hint: str, why: str = "") -> None:
    """Say whether `passes(answer)`: passed, or not yet with the hint; `why` is kept folded under 'Answer'.

    Raises LfError where the runner plays the notebook and the stub passes or the solution fails.
    """
    passed, trouble = _try(passes, answer)
    if results.headless():
        _prove(name, passed, stub_passes=_try(passes, ...)[0])
    output.put(_html(name, answer, passed, trouble, hint, why), _sentence(name, answer, passed, trouble, hint))


def unproven(notebook: NotebookNode, found: Mapping[str, Any]) -> list[str]:
    """What is wrong with a played notebook's exercises, one sentence each: a cell without its check, or a bad check.

    `found` is the content of the notebook's results file.
    """
    from lfhelpers.notebook import catalogue

    stubs = len(catalogue.tagged(notebook, "exercise"))
    proofs = found["exercises"]
    wrong = [f"exercise {name}: the stub passes its own check" for name, proof in proofs.items() if proof["stub"]]
    wrong += [f"exercise {name}: the solution fails" for name, proof in proofs.items() if not proof["solution"]]
    if stubs != len(proofs):
        wrong.append(f"cells tagged exercise: {stubs}, exercises checked: {len(proofs)}")
    return wrong


def _try(passes: Callable[[Any], Any], answer: Any) -> tuple[bool, str]:
    """A check that raises, as it may on an answer of the wrong kind, has not passed."""
    try:
        return bool(passes(answer)), ""
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"


def _prove(name: str, passed: bool, stub_passes: bool) -> None:
    results.BOOK.exercises[name] = {"stub": stub_passes, "solution": passed}
    results.BOOK.save()
    if stub_passes:
        raise LfError(f"exercise {name}: its check passes on the untouched stub, so it checks nothing.")
    if not passed:
        raise LfError(f"exercise {name}: its own solution fails the check.")


def _sentence(name: str, answer: Any, passed: bool, trouble: str, hint: str) -> str:
    if passed:
        return f"Exercise {name}: passed."
    if answer is ...:
        return f"Exercise {name}: no answer yet. Hint: {hint}"
    return f"Exercise {name}: not yet{f' ({trouble})' if trouble else ''}. Hint: {hint}"


def _html(name: str, answer: Any, passed: bool, trouble: str, hint: str, why: str) -> str:
    mark = "✔" if passed else "○"
    folded = f"<details><summary>Answer</summary><p>{escape(why)}</p></details>" if why else ""
    return f"<div><p>{mark} {escape(_sentence(name, answer, passed, trouble, hint))}</p>{folded}</div>"

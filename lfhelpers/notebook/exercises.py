"""Exercises with a check, an answer that stays folded, and a proof that both work.

An exercise is three code cells in a row: the stub (tag `exercise`) sets `answer = ...`, the solution (tag `solution`,
folded) fills it in with `solution(answer, value)`, and the third calls `check`. A reader's answer is never replaced,
and in JupyterLab the solution stays out of the way; the runner uses it, and there `check` also tries the stub: a check
that the stub passes, or that the solution fails, stops the notebook. So every run of the playbook proves its exercises.
What a reader has solved is kept (notebook.answers) and shown in the first lesson.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from math import isclose
from typing import TYPE_CHECKING, Any

from lfhelpers.errors import LfError
from lfhelpers.notebook import answers, output, results

if TYPE_CHECKING:  # a lesson's kernel checks answers, and only the runner reads notebooks
    from nbformat import NotebookNode


def solution(answer: Any, value: Any) -> Any:
    """The reader's answer; played by the runner, `value` in place of an untouched stub."""
    return value if answer is ... and results.headless() else answer


Wanted = Callable[[Any], Any] | Mapping[Any, float]


def check(name: str, answer: Any, passes: Wanted, hint: str, why: str = "", near: float = 1e-6) -> None:
    """Say whether the answer is right: passed, or not yet with what is wrong and the hint; `why` is kept folded.

    passes: a function of the answer that returns True, False, or text that names the wrong quantities. Or the right
    values, up to a relative error of `near`: {quantity: value} for an answer that is a mapping, {arguments: value} for
    one that is a function; the first that is off is named, and the right value is not.

    Raises LfError where the runner plays the notebook and the stub passes or the solution fails.
    """
    passed, trouble = _try(passes, answer, near)
    if results.headless():
        _prove(name, passed, stub_passes=_try(passes, ..., near)[0])
    elif answer is not ... and (lost := answers.keep(name, passed)) and passed:
        print(lost)
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


def _try(passes: Wanted, answer: Any, near: float) -> tuple[bool, str]:
    """(passed, what is wrong). A check that raises, as it may on an answer of the wrong kind, has not passed."""
    try:
        verdict = _off(passes, answer, near) if isinstance(passes, Mapping) else passes(answer)
        return (False, f"wrong: {verdict}") if isinstance(verdict, str) and verdict else (bool(verdict), "")
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"


def _off(right: Mapping[Any, float], answer: Any, near: float) -> bool | str:
    """True, or the first quantity or case whose value is off."""
    for key, value in right.items():
        given = answer(*key) if callable(answer) else answer[key]
        if not isclose(given, value, rel_tol=near, abs_tol=1e-9):
            return f"{', '.join(map(str, key))} gives {given:.4g}" if callable(answer) else f"{key} is not {given:.4g}"
    return True


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

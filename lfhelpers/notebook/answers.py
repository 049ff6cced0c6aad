"""Which exercises a reader has solved, kept in one file among the runs, and shown in the first lesson.

The file is the reader's own: the runner, which proves the exercises with their solutions, never touches it. Deleting it
begins anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
from IPython.core.interactiveshell import InteractiveShell

from lfhelpers import runs
from lfhelpers.errors import LfError

SESSION = "JPY_SESSION_NAME"
"""Environment variable in which Jupyter's server tells a kernel which notebook it serves."""
VSCODE = "__vsc_ipynb_file__"
"""The variable in a notebook's namespace by which VS Code says the same."""
Answers = dict[str, dict[str, dict[str, Any]]]
"""{lesson: {exercise: {"tries": int, "passed": time of the first right answer, or None}}}"""


def path() -> Path:
    """The file that holds the reader's progress."""
    return runs.root() / "exercises.json"


def load() -> Answers:
    """What is kept so far, {} at first. Raises LfError where the file is damaged."""
    try:
        found: Answers = orjson.loads(path().read_bytes()) if path().exists() else {}
    except ValueError as error:
        raise LfError(f"{path()} is damaged, so exercises that were solved aren't known; mend or delete it.") from error
    return found


def keep(exercise: str, passed: bool) -> str:
    """Note a try at an exercise of the notebook that this kernel serves; returns why it can't be kept, or nothing.

    What was passed once stays passed. Two lessons that are open at once don't lose each other's answers.
    """
    from lfhelpers.data.locks import Locked  # the package around it loads numpy

    lesson = this_lesson()
    if not lesson:
        return "progress isn't kept, because this front end doesn't say which notebook it shows"
    try:
        runs.root().mkdir(parents=True, exist_ok=True)
        with Locked(runs.root() / ".exercises.lock", os.O_RDWR | os.O_CREAT) as lock:
            lock.exclusive(wait=True)
            answers = load()
            before = answers.setdefault(lesson, {}).get(exercise, {"tries": 0, "passed": None})
            answers[lesson][exercise] = {"tries": before["tries"] + 1,
                                         "passed": before["passed"] or (runs.now() if passed else None)}
            runs.write_atomic(path(), orjson.dumps(answers, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))
    except (LfError, OSError) as error:  # an answer is right or wrong, whatever becomes of the file
        return f"progress isn't kept: {error}"
    return ""


def solved(lesson: str, total: int) -> str:
    """'2 of 3' exercises of a lesson; copies whose names begin with the lesson's count as it."""
    names = {exercise for name, tried in load().items() if name.startswith(lesson)
             for exercise, answer in tried.items() if answer["passed"]}
    return f"{min(len(names), total)} of {total}"


def this_lesson() -> str:
    """The name of the notebook that this kernel serves, without its ending; empty where nothing says it."""
    told = os.environ.get(SESSION, "")
    if not told and InteractiveShell.initialized():
        told = InteractiveShell.instance().user_ns.get(VSCODE, "")
    return Path(told).stem if told.endswith(".ipynb") else ""

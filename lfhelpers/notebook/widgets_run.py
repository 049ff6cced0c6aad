"""The dashboard of a training job: Run, Stop, and a panel that keeps itself up to date and outlives a reload.

What moves lives in the kernel: a thread looks at the run folder once a second and writes the panel into a widget, so a
page that is reloaded, or a cell that is run again, finds the job as it stands. The job itself is a process of its own
that ends with the kernel, as every job of a notebook does.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from lfhelpers import runs
from lfhelpers.launch import Job, start, stop
from lfhelpers.notebook import output, run_panel
from lfhelpers.notebook.widgets import STYLE, complaint, interactive
from lfhelpers.recipe import NAMED, Recipe, diff, recipe
from lfhelpers.runs import Run

EVERY = 1.0
"""Seconds between two looks."""


def dashboard(job: Recipe, nproc: int = 1, shown: Run | None = None, *, module: str = "lfhelpers.train",
              args: Sequence[str] = ()) -> None:
    """Show the command that trains `job` on `nproc` ranks and the panel of `shown`, a run that has ended.

    Where someone may press it, a Run button does what the command does, and Stop ends all of it. A job with the
    recipe's name that runs already, also one of another process, is joined.
    """
    command, (html, text) = command_of(job, nproc), run_panel.panel(run_panel.ended(shown)) if shown else ("", "")
    output.put(f"<p><code>{escape(command)}</code></p>{html}", f"{command}\n{text}".rstrip())
    if interactive():
        from IPython.display import display

        board = Dashboard(lambda: start(job, nproc, module=module, args=list(args)), command)
        if run := running(job.name):
            board.join(run)
        display(board.view)


class Dashboard:
    """Two buttons and a panel over the job that `begin` starts; `view` is the widget that holds them."""

    def __init__(self, begin: Callable[[], Job], command: str) -> None:
        import ipywidgets

        self._job, self._busy = begin, threading.Lock()
        self._run: Run | None = None
        self.run_button = ipywidgets.Button(description="Run", icon="play", tooltip=command)
        self.stop_button = ipywidgets.Button(description="Stop", icon="stop", disabled=True, tooltip="End all ranks")
        self.panel = ipywidgets.HTML("<em>Nothing runs.</em>")
        self.run_button.on_click(lambda _: self._begin(self._launched))
        self.stop_button.on_click(lambda _: self._stop())
        buttons = ipywidgets.HBox([self.run_button, self.stop_button])
        self.view = ipywidgets.VBox([ipywidgets.HTML(STYLE), buttons, self.panel])
        self.view.add_class("lf-skin")

    def join(self, run: Run) -> None:
        """Follow a run that is there already."""
        self._begin(lambda: self._follow(run, lambda: run.status["state"]))

    def _begin(self, work: Callable[[], None]) -> None:
        """Do `work` in a thread of its own, so that other controls still answer; a second press does nothing."""
        if self._busy.acquire(blocking=False):
            self.run_button.disabled = True
            threading.Thread(target=self._guarded, args=(work,), name="lfhelpers-dashboard", daemon=True).start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # a thread's traceback is seen by nobody
            self._show(complaint(error))
        finally:
            self._run = None
            self.stop_button.disabled, self.run_button.disabled = True, False
            self._busy.release()

    def _launched(self) -> None:
        self._show("<p><strong>starting</strong></p>")
        job = self._job()
        self._follow(job.run, job.poll)

    def _follow(self, run: Run, state: Callable[[], str]) -> None:
        follower = run_panel.Follower(run)
        self._run = run
        self.stop_button.disabled = False
        while state() == "running":
            self._show(run_panel.panel(follower.now())[0])
            time.sleep(EVERY)
        self._show(run_panel.panel(run_panel.ended(run))[0])

    def _stop(self) -> None:
        if run := self._run:
            self.stop_button.disabled = True
            threading.Thread(target=stop, args=(run,), name="lfhelpers-stop", daemon=True).start()

    def _show(self, html: str) -> None:
        self.panel.value = f'<div class="lf-shown">{html}</div>'


def running(name: str) -> Run | None:
    """The newest running run whose recipe has this name."""
    found = (run for run in reversed(runs.find()) if f"-{name}-" in run.id)
    return next((run for run in found if run.status["state"] == "running"), None)


def command_of(job: Recipe, nproc: int) -> str:
    """The shell command that trains a recipe: its base by name, and what differs from that."""
    base = job.name if job.name in NAMED else "competent"
    changed = [f"{field}={_word(new)}" for field, (_, new) in diff(recipe(base), job).items() if new is not None]
    name = [f"name={job.name}"] if job.name != base else []
    words = ["lfhelpers", "launch", f"recipe={base}", *name, *changed, *(["--nproc", str(nproc)] if nproc > 1 else [])]
    return shlex.join(words)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

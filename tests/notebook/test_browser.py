"""The first lesson in a real browser: JupyterLab and Debian's Chromium, a slider, a job of two ranks, a reload.

Screenshots in both themes are left in runs/browser/, to be looked at.
"""

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell

from lfhelpers import runs
from lfhelpers.notebook import catalogue
from lfhelpers.processes import Member, die_with_parent, end_tree
from tests.launch.jobs import belonging, left_after, supervisor_of, until

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install -e '.[dev]'")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NEEDED = os.environ.get("CI") == "true" and "LFHELPERS_WITHOUT_BROWSER" not in os.environ
"""Whether a missing browser is a failure: CI that could have installed one must not go without this test unseen."""
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
LESSON = "00_start_here.ipynb"
WHAT_IF = '''from lfhelpers.notebook.widgets_step import what_if
what_if(lf.diagnose(lf.recorded("h200x1/as_found")))'''
READY = """() => {
    const session = window.jupyterapp?.shell.currentWidget?.context?.sessionContext;
    return session?.isReady && session.session?.kernel?.status === 'idle';
}"""
PLAYED = """() => {
    const prompts = [...document.querySelectorAll('.jp-InputPrompt')].map(prompt => prompt.textContent);
    return prompts.some(text => /[0-9]/.test(text)) && !prompts.some(text => text.includes('[*]'));
}"""
SOON, LATE = 120_000, 600_000  # milliseconds: a page, and a lesson with its jobs, on a busy machine


@pytest.fixture
def lab(tmp_path, tabletop_shards, monkeypatch):
    """The address of a JupyterLab with the lesson in it, short and with the what-if explorer at its end."""
    (tmp_path / "runs" / "data").mkdir(parents=True)
    (tmp_path / "runs" / "data" / "tabletop").symlink_to(tabletop_shards)
    (tmp_path / "notebooks").mkdir()
    lesson = nbformat.read(catalogue.select(["00"])[0], as_version=4)
    short = next(cell for cell in lesson.cells if "parameters" in cell.metadata.get("tags", []))
    short.source = short.source.replace("steps: int = 40", "steps: int = 5")
    lesson.cells.append(new_code_cell(WHAT_IF))
    nbformat.write(lesson, tmp_path / "notebooks" / LESSON)
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path / "runs"))
    for name in ("CONFIG", "DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{name}_DIR", str(tmp_path / name))
    monkeypatch.setenv("JUPYTERLAB_SETTINGS_DIR", str(tmp_path / "settings"))
    setting(tmp_path, "notification", {"fetchNews": "false", "checkForUpdates": False})
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port=0", "--ip=127.0.0.1",
               "--expose-app-in-browser",
               f"--ServerApp.root_dir={tmp_path / 'notebooks'}", f"--LabApp.workspaces_dir={tmp_path / 'workspaces'}"]
    with (tmp_path / "lab.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True,
                                  preexec_fn=functools.partial(die_with_parent, os.getpid()))  # also of a killed test
    try:
        found = until(lambda: next((tmp_path / "RUNTIME").glob("jpserver-*.json"), None), server)
        facts = until(lambda: read_whole(found), server)
        yield f"{facts['url']}lab/tree/{LESSON}?token={facts['token']}"
    finally:
        end_tree(Member.of(server.pid), set())
        server.wait()


@pytest.fixture
def page(lab):
    """A page of Chromium with the lesson open."""
    assert CHROMIUM, "no browser on CI: .ci/run says why none could be installed"
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET, timeout=SOON)
        page = browser.new_page(viewport={"width": 1280, "height": 1600})
        page.set_default_timeout(SOON)
        sync_api.expect.set_options(timeout=SOON)
        page.goto(lab)
        yield page
        browser.close()


@pytest.mark.skipif(not CHROMIUM and not NEEDED, reason="no chromium here: apt-get install -y chromium")
@pytest.mark.timeout(900)
def test_the_first_lesson_in_a_browser(page, tmp_path):
    run_all(page)
    saved = played(page, tmp_path)
    assert [output for cell in saved for output in cell.outputs if output.output_type == "error"] == []
    assert [cell.id for cell in saved if cell.execution_count is None] == [], "each cell ran"
    stop_cell = next(cell for cell in saved if cell.id == "stop-job")
    static = "".join(output["data"]["text/plain"] for output in stop_cell.outputs if "data" in output)
    assert "lfhelpers launch recipe=competent" in static and "samples/s" in static, "the cell says it without buttons"

    a_slider_changes_the_text(page)
    page.locator(".lf-skin").last.screenshot(path=artifact("what_if_light.png"))

    run = a_job_of_two_ranks(page)
    saved = played(page, tmp_path)  # what a reload finds
    setting(tmp_path, "themes", {"theme": "JupyterLab Dark"})
    page.reload()
    a_reload_keeps_the_dashboard(page, run)

    supervisor = supervisor_of(run)
    board(page).get_by_role("button", name="Stop").press("Enter")
    sync_api.expect(board(page)).to_contain_text("stopped")
    assert left_after(run, supervisor)[0] == set()
    assert run.status["state"] == "stopped"


def run_all(page):
    """Run the lesson by its menu, until no cell waits any more."""
    page.wait_for_function(READY)  # before that, Run All would ask for a kernel
    page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]')
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    page.wait_for_function(PLAYED, timeout=LATE)


def played(page, tmp_path):
    """The code cells as they are saved."""
    path = tmp_path / "notebooks" / LESSON
    before = path.stat().st_mtime_ns
    page.keyboard.press("Control+s")
    saved = until(lambda: path.stat().st_mtime_ns > before and read_whole(path, notebook))
    return [cell for cell in saved.cells if cell.cell_type == "code"]


def a_slider_changes_the_text(page):
    """By the keyboard alone: half the loader's time."""
    explorer = page.locator(".lf-skin").last
    explorer.scroll_into_view_if_needed()
    assert "its result appears here" in explorer.inner_text()
    handle = explorer.get_by_role("slider").first
    handle.focus()
    page.keyboard.press("ArrowLeft")
    shown = explorer.locator(".lf-shown")
    sync_api.expect(shown).to_contain_text("times the measured run")
    first = shown.inner_text()
    page.keyboard.press("Home")
    sync_api.expect(shown).not_to_contain_text(first.splitlines()[0])
    sync_api.expect(shown).to_contain_text("computation sets the pace")


def a_job_of_two_ranks(page):
    """Press Run, wait for its steps, and return its run."""
    board(page).scroll_into_view_if_needed()
    board(page).get_by_role("button", name="Run").press("Enter")
    sync_api.expect(board(page)).to_contain_text(re.compile(r"[1-9]\d* of 100,000 steps"), timeout=LATE)
    board(page).screenshot(path=artifact("dashboard_light.png"))
    run = runs.find()[-1]
    assert run.status["nproc"] == 2 and len(belonging(run)) >= 4  # supervisor, torchrun, two ranks
    return run


def a_reload_keeps_the_dashboard(page, run):
    """The panel is there again, of the same job, and goes on."""
    sync_api.expect(board(page)).to_contain_text(run.id)
    step = steps(page)
    until(lambda: steps(page) > step)
    page.wait_for_selector('body[data-jp-theme-light="false"]', state="attached")
    board(page).scroll_into_view_if_needed()
    page.screenshot(path=artifact("page_dark.png"))
    board(page).screenshot(path=artifact("dashboard_dark.png"))
    page.locator(".lf-skin").last.screenshot(path=artifact("what_if_dark.png"))


def board(page):
    return page.locator(".lf-skin", has=page.get_by_role("button", name="Stop"))


def steps(page):
    sync_api.expect(board(page)).to_contain_text(re.compile(r"[1-9]\d* of 100,000 steps"))
    return int(re.search(r"([\d,]+) of 100,000 steps", board(page).text_content())[1].replace(",", ""))


def setting(tmp_path, name, value):
    folder = tmp_path / "settings" / "@jupyterlab" / "apputils-extension"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.jupyterlab-settings").write_text(json.dumps(value))


def read_whole(path, read=json.loads):
    with contextlib.suppress(ValueError):  # it is being written
        return read(path.read_text())
    return None


def notebook(text):
    return nbformat.reads(text, as_version=4)


def artifact(name):
    folder = runs.project() / "runs" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    return os.fspath(folder / name)

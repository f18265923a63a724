"""A learner's first exercise, in a browser: install the wheel, start a folder, open JupyterLab, answer wrongly, then rightly.

Needs Chromium or Chrome (on Debian and Ubuntu: apt install chromium); SCREENSHOTS names a folder to keep pictures in.
With BROWSER_REQUIRED set, as in CI, a missing browser is a failure and not a skip.
"""
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from clean import built, environment

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None and "BROWSER_REQUIRED" not in os.environ, reason="needs Chromium or Chrome")
sync_api = pytest.importorskip("playwright.sync_api")

TOKEN = "learner"
WRONG = """def scaled_attention(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(dim=-2)
    return weights @ value, weights"""
RIGHT = WRONG.replace("dim=-2", "dim=-1")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """JupyterLab in a folder that an installed wheel started."""
    here = tmp_path_factory.mktemp("learner")
    clean = environment(built(tmp_path_factory.mktemp("build")), here, hidden=("nbdev", "fastcore", "execnb", "transformers", "hypothesis"))
    started = clean.run("transformer-course", "start", "learning")
    assert started.returncode == 0, started.stderr
    for extension, name, value in (("notebook-extension", "tracker", {"windowingMode": "none"}),           # all cells on the page
                                   ("apputils-extension", "notification", {"fetchNews": "false"})):
        settings = here / "settings" / "@jupyterlab" / extension
        settings.mkdir(parents=True)
        (settings / f"{name}.jupyterlab-settings").write_text(json.dumps(value), encoding="utf-8")
    (here / "config").mkdir()
    (here / "config" / "jupyter_server_config.json").write_text(json.dumps({"ServerApp": {"allow_root": True}}), encoding="utf-8")
    share = Path(sys.prefix, "share", "jupyter")             # JupyterLab's own files lie with the running environment
    variables = clean.variables | {"JUPYTER_TOKEN": TOKEN, "JUPYTERLAB_SETTINGS_DIR": str(here / "settings"), "JUPYTER_PATH": str(share),
                                   "JUPYTERLAB_DIR": str(share / "lab"), "JUPYTER_CONFIG_DIR": str(here / "config")}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = open(here / "lab.log", "wb")
    lab = subprocess.Popen([clean.programs / "transformer-course", "lab", "learning", "--port", str(port), "--no-browser"],
                           cwd=clean.folder, env=variables, stdout=log, stderr=log)
    base = f"http://127.0.0.1:{port}"
    try:
        _wait(lambda: urllib.request.urlopen(f"{base}/api/status?token={TOKEN}", timeout=5).status == 200, lab, here / "lab.log")
        yield base, clean.folder / "learning"
    finally:
        lab.terminate()
        try:
            lab.wait(20)
        except subprocess.TimeoutExpired:
            lab.kill()
            lab.wait()


def _wait(ready, process, log, seconds=90):
    """Until something is ready; OSError counts as not yet."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text(encoding="utf-8")[-2000:]
        try:
            if ready():
                return
        except OSError:
            time.sleep(0.3)
    raise AssertionError(log.read_text(encoding="utf-8")[-2000:])


@pytest.fixture(scope="module")
def page(address):
    """The exercise notebook of lesson 20, open, its kernel idle."""
    with sync_api.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1400})
        page.goto(f"{address[0]}/lab/tree/exercises/20_attention_exercises.ipynb?token={TOKEN}")
        page.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=90_000)
        page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first.wait_for(state="attached", timeout=90_000)
        imports, until = cell_with(page, "from transformer_course.checking import"), time.monotonic() + 60
        while "[ ]" in imports.locator(".jp-InputPrompt").inner_text():      # a page may look ready before it listens
            assert time.monotonic() < until, "no cell could be run"
            imports.locator(".cm-content").click()
            page.keyboard.press("Control+Enter")
            page.wait_for_timeout(1500)
        yield page
        browser.close()


def picture(page, name):
    if folder := os.environ.get("SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(folder, f"{name}.png")))


def cell_with(page, text):
    """The first code cell whose source holds a text; it stays that cell when its source changes."""
    cells, until = page.locator(".jp-Notebook .jp-CodeCell"), time.monotonic() + 60
    while time.monotonic() < until:                                   # a large notebook comes in piece by piece
        sources = cells.locator(".cm-content").all_inner_texts()
        if found := [i for i, source in enumerate(sources) if text in source]:
            return cells.nth(found[0])
        page.wait_for_timeout(500)
    raise AssertionError(f"no code cell holds {text!r}")


def run_cell(page, cell, source=None):
    """Type a cell's new source, if any, and run it; wait until it has run."""
    before = cell.locator(".jp-InputPrompt").inner_text()
    editor = cell.locator(".cm-content")
    editor.click()
    if source is not None:
        editor.press("ControlOrMeta+A")
        page.keyboard.insert_text(source)
    editor.press("Control+Enter")
    try:
        page.wait_for_function("([cell, before]) => { const now = cell.querySelector('.jp-InputPrompt').innerText;"
                               " return now != before && !now.includes('*') }", arg=[cell.element_handle(), before], timeout=60_000)
    except sync_api.TimeoutError:
        picture(page, "stuck")
        raise


def test_a_wrong_answer_gets_its_reason_and_a_right_one_its_tick(address, page):
    answer, asking = cell_with(page, "def scaled_attention"), cell_with(page, "check(scaled_attention)")
    assert "YOUR CODE HERE" in answer.inner_text() and "mistakes = {" not in page.locator(".jp-Notebook").inner_text()
    run_cell(page, answer)
    run_cell(page, asking)
    assert "not attempted" in asking.locator(".jp-OutputArea").inner_text()
    run_cell(page, answer, WRONG)
    run_cell(page, asking)
    shown = asking.locator(".jp-OutputArea").inner_text()
    assert "wrong" in shown and "yours sum to 1 over queries" in shown and "query = " in shown
    picture(page, "wrong")
    run_cell(page, answer, RIGHT)
    run_cell(page, asking)
    assert "passed" in asking.locator(".jp-OutputArea").inner_text() and "✓" in asking.locator(".jp-OutputArea").inner_text()
    picture(page, "right")
    run_cell(page, asking, "from transformer_course.checking import progress\nprogress()")
    assert "1 of" in asking.locator(".jp-OutputArea").inner_text() and asking.locator("table").count() == 1
    asking.locator("table").scroll_into_view_if_needed()
    picture(page, "progress")
    noted = json.loads((address[1] / "progress.json").read_text(encoding="utf-8"))["exercises"]["scaled_attention"]
    assert noted["status"] == "passed" and noted["checks"] == 3


def test_an_endless_loop_leaves_the_notebook_alive(page):
    answer = cell_with(page, "def mended_mask")
    asking = cell_with(page, "check(mended_mask)")
    run_cell(page, answer, "def mended_mask(tokens, pad_id):\n    while True:\n        pass")
    run_cell(page, asking)
    assert "endless loop" in asking.locator(".jp-OutputArea").inner_text()
    run_cell(page, asking, "print('alive', scaled_attention.__name__)")
    assert "alive scaled_attention" in asking.locator(".jp-OutputArea").inner_text()

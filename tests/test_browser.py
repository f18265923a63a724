"""A learner's first hour, in a browser: install the wheel, start a folder, open JupyterLab, answer wrongly, rightly, wrongly.

Needs Chromium or Chrome (on Debian and Ubuntu: apt install chromium); SCREENSHOTS names a folder to keep pictures in.
With BROWSER_REQUIRED set, as in CI, a missing browser is a failure and not a skip.
"""
import contextlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from clean import built, environment
from PIL import Image

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None and "BROWSER_REQUIRED" not in os.environ,
                                reason="needs Chromium or Chrome: on Debian and Ubuntu, apt install chromium")
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
    own = here / "settings" / "@jupyterlab" / "notebook-extension"              # the learner's own settings
    own.mkdir(parents=True)
    (own / "tracker.jupyterlab-settings").write_text('{"windowingMode": "none"}', encoding="utf-8")       # all cells on the page
    (here / "config").mkdir()
    (here / "config" / "jupyter_server_config.json").write_text(json.dumps({"ServerApp": {"allow_root": True}}), encoding="utf-8")
    share = Path(sys.prefix, "share", "jupyter")             # JupyterLab's own files lie with the running environment
    variables = clean.variables | {"JUPYTER_TOKEN": TOKEN, "JUPYTERLAB_SETTINGS_DIR": str(here / "settings"), "JUPYTER_PATH": str(share),
                                   "JUPYTERLAB_DIR": str(share / "lab"), "JUPYTER_CONFIG_DIR": str(here / "config"),
                                   "JUPYTERLAB_WORKSPACES_DIR": str(here / "workspaces"), "JUPYTER_RUNTIME_DIR": str(here / "runtime")}
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
    """What the address opens that `lab` gives."""
    with sync_api.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(90_000)
        asks = page.locator(".jp-Dialog", has_text="Select Kernel")              # a slow server makes JupyterLab ask
        page.add_locator_handler(asks, lambda: asks.locator("button.jp-mod-accept").click())
        page.goto(f"{address[0]}/?token={TOKEN}")
        listening(page, "progress()")
        yield page
        browser.close()


def shown(page):
    """The notebook in front."""
    return page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")


def listening(page, text):
    """Wait until the notebook in front can run its cell that holds a text: a page may look ready before it listens."""
    cell, until = cell_with(page, text), time.monotonic() + 60
    shown(page).locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first.wait_for(state="attached")
    while not re.search(r"\[\d+\]", cell.locator(".jp-InputPrompt").inner_text()):      # [*] may stand for a kernel that is gone
        assert time.monotonic() < until, "no cell could be run"
        cell.locator(".cm-content").click()
        page.keyboard.press("Control+Enter")
        with contextlib.suppress(sync_api.TimeoutError):              # nobody listened, or a dialog asks: once more
            page.wait_for_function("cell => document.querySelector('.jp-Dialog')"
                                   " || /\\[\\d+\\]/.test(cell.querySelector('.jp-InputPrompt').innerText)",
                                   arg=cell.element_handle(), timeout=20_000)


def follow(page, link, title):
    """Click on a link in the notebook in front, and wait for the notebook that it opens."""
    shown(page).locator(".jp-MarkdownOutput a", has_text=re.compile(f"^{link}$")).first.click()
    shown(page).locator("h1", has_text=title).first.wait_for()


def theme(page, name):
    """Choose a theme in JupyterLab's menu."""
    page.locator(".lm-MenuBar-item", has_text="Settings").click()
    page.locator(".lm-Menu-item", has_text="Theme").first.click()
    page.locator(".lm-Menu-item", has_text=re.compile(f"^{name}$")).click()
    page.wait_for_function("light => document.body.dataset.jpThemeLight == light", arg=str("Light" in name).lower())
    page.wait_for_function("""light => {                              // colours come with a style sheet
        const paper = getComputedStyle(document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook')).backgroundColor;
        return (paper.match(/[\\d.]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) > 382) == light; }""", arg="Light" in name)


CONTRASTS = """root => {
    const parts = colour => { const n = colour.match(/[\\d.]+/g).map(Number); return n.length == 3 ? [...n, 1] : n; };
    const over = (top, below) => [0, 1, 2].map(i => top[3] * top[i] + (1 - top[3]) * below[i]);
    const light = colour => { const [r, g, b] = colour.map(c => { c /= 255;
        return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT), found = [];
    for (let node = texts.nextNode(); node; node = texts.nextNode()) {
        const element = node.parentElement, box = element.getBoundingClientRect();
        if (!node.textContent.trim() || !box.width || element.closest('style')) continue;
        const papers = [];
        for (let e = element; e; e = e.parentElement) papers.push(parts(getComputedStyle(e).backgroundColor));
        const paper = papers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
        const ink = over(parts(getComputedStyle(element).color), paper);
        const [dark, bright] = [light(ink), light(paper)].sort((a, b) => a - b);
        found.push([(bright + 0.05) / (dark + 0.05), node.textContent.trim().slice(0, 60)]);
    }
    return found;
}"""


def legible(place):
    """How many texts a place shows; each must have a contrast of 4.5 to 1 with its paper, as the browser computes both."""
    said = place.locator(".jp-OutputArea-output, .jp-MarkdownOutput")              # what the course says: not JupyterLab's prompts
    found = [pair for i in range(said.count()) for pair in said.nth(i).evaluate(CONTRASTS)]
    assert found and min(found)[0] >= 4.5, sorted(found)[:3]
    return len(found)


def picture(page, name):
    if folder := os.environ.get("SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(folder, f"{name}.png")))


def cell_with(page, text):
    """The first code cell whose source holds a text; it stays that cell when its source changes."""
    page.wait_for_function("""text => [...document.querySelectorAll(     // a large notebook comes in piece by piece
        '.jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-CodeCell .cm-content')].some(e => e.innerText.includes(text))""",
                           arg=text, timeout=60_000)
    cells = shown(page).locator(".jp-Notebook .jp-CodeCell")
    sources = cells.locator(".cm-content").all_inner_texts()
    return cells.nth(next(i for i, source in enumerate(sources) if text in source))


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


def answer(page, source):
    """Write an answer to exercise 20.1, check it, and return what is shown."""
    asking = cell_with(page, "check(scaled_attention)")
    if source is not None:
        run_cell(page, cell_with(page, "def scaled_attention"), source)
    run_cell(page, asking)
    asking.scroll_into_view_if_needed()
    return asking.locator(".jp-OutputArea")


def test_lab_opens_on_a_first_page_of_one_screen(address, page):
    """Below JupyterLab's menus, beside a list in reading order, and without Jupyter's news; the settings stay the learner's."""
    assert page.url.endswith("/lab/tree/00_index.ipynb") and page.locator(".Toastify__toast").count() == 0
    names = page.locator(".jp-DirListing-itemName").all_inner_texts()
    assert names[:6] == ["exercises", "library", "00_index.ipynb", "00_map.ipynb", "00_warm_up.ipynb", "01_text.ipynb"]
    lessons = [name for name in names if name[0].isdigit()]
    assert lessons == sorted(lessons) and not [name for name in lessons if name.startswith("9")]
    assert page.locator(".jp-DirListing-headerItem.jp-id-modified").filter(visible=True).count() == 0     # names have its room
    shown(page).locator(".jp-OutputArea table").wait_for()
    last = shown(page).locator(".jp-OutputArea p").last.bounding_box()
    assert "next: 00.1" in shown(page).locator(".jp-OutputArea").inner_text()
    assert last["y"] + last["height"] < 780, "where am I, what now, and what is done: all on one screen"
    picture(page, "first page")
    assert legible(shown(page).locator(".jp-Notebook")) > 100
    settings = [path.name for path in address[1].parents[1].joinpath("settings").rglob("*") if path.is_file()]
    assert settings == ["tracker.jupyterlab-settings"]


def test_a_question_for_the_kernel_is_answered(page):
    page.locator(".lm-MenuBar-item", has_text="Kernel").click()
    page.locator(".lm-Menu-item", has_text="Change Kernel").click()
    page.wait_for_function("document.querySelector('.jp-Dialog')")        # seen without an action, which would answer it
    cell_with(page, "progress()").click()
    assert page.locator(".jp-Dialog").count() == 0


def test_links_lead_through_the_hour(address, page):
    follow(page, "lesson 00", "Warm-up")
    picture(page, "lesson 00")
    follow(page, "Exercises", "Exercises: ")
    follow(page, "Next lesson", "Text")
    follow(page, "First page", "How sequence models")
    assert (address[1] / "exercises" / "00_warm_up_exercises.ipynb").is_file()


def test_a_wrong_answer_gets_its_reason_and_a_right_one_its_tick(address, page):
    page.set_viewport_size({"width": 1280, "height": 1400})
    page.goto(f"{address[0]}/lab/tree/exercises/20_attention_exercises.ipynb")
    listening(page, "from transformer_course.checking import")
    assert "YOUR CODE HERE" in cell_with(page, "def scaled_attention").inner_text()
    assert "mistakes = {" not in shown(page).locator(".jp-Notebook").inner_text()
    run_cell(page, cell_with(page, "def scaled_attention"))
    assert "not attempted" in answer(page, None).inner_text()
    wrong = answer(page, WRONG).inner_text()
    assert "wrong" in wrong and "yours sum to 1 over queries" in wrong, "the reason"
    assert "query = " in wrong and "expected" in wrong and "got" in wrong, "the case that shows it"
    picture(page, "wrong")
    right = answer(page, RIGHT)
    assert "passed" in right.inner_text() and "✓" in right.inner_text()
    picture(page, "right")
    noted = json.loads((address[1] / "progress.json").read_text(encoding="utf-8"))["exercises"]["scaled_attention"]
    assert noted["status"] == "passed" and noted["checks"] == 3


def test_after_a_pass_comes_the_next_exercise(page):
    """The report of a right answer says what it was good for and where to go on."""
    right = answer(page, RIGHT)
    assert "20.2" in right.inner_text() or right.locator("a").count()
    legible(right)


def test_a_later_wrong_answer_leaves_the_tick(address, page):
    assert "wrong" in answer(page, WRONG).inner_text()
    noted = json.loads((address[1] / "progress.json").read_text(encoding="utf-8"))["exercises"]["scaled_attention"]
    assert noted["status"] == "passed"
    asking = cell_with(page, "check(scaled_attention)")
    run_cell(page, asking, "from transformer_course.checking import progress\nprogress()")
    output = asking.locator(".jp-OutputArea")
    assert "1 of" in output.inner_text() and output.locator("table").count() == 1
    assert output.locator("table span", has_text="✓").get_attribute("title").startswith("20.1 ")
    asking.scroll_into_view_if_needed()
    picture(page, "progress")
    run_cell(page, asking, "check(scaled_attention)")


def test_every_message_can_be_read_in_both_themes(page):
    fails = "def scaled_attention(query, key, value, mask=None):\n    return 1 / 0"
    try:
        for name in ("JupyterLab Dark", "JupyterLab Light"):
            theme(page, name)
            for what, source in (("wrong", WRONG), ("error", fails), ("passed", RIGHT)):
                assert legible(answer(page, source)) >= 1
                picture(page, f"{name} {what}")
            asking = cell_with(page, "check(scaled_attention)")
            for call in ("hint(2, scaled_attention)", "solution(scaled_attention)", "progress()"):
                run_cell(page, asking, f"from transformer_course.checking import progress\n{call}")
                assert legible(asking.locator(".jp-OutputArea")) >= 1
            asking.scroll_into_view_if_needed()
            picture(page, f"{name} progress")
            run_cell(page, asking, "check(scaled_attention)")
    finally:
        theme(page, "JupyterLab Light")


def test_an_endless_loop_leaves_the_notebook_alive(page):
    mended = cell_with(page, "def mended_mask")
    asking = cell_with(page, "check(mended_mask)")
    run_cell(page, mended, "def mended_mask(tokens, pad_id):\n    while True:\n        pass")
    run_cell(page, asking)
    assert "endless loop" in asking.locator(".jp-OutputArea").inner_text()
    run_cell(page, asking, "print('alive', scaled_attention.__name__)")
    assert "alive scaled_attention" in asking.locator(".jp-OutputArea").inner_text()


def test_pictures_bring_their_own_paper_to_a_dark_page(address, page):
    """White to the edge, and not one letter beyond it: drawings and plots look like printed sheets."""
    page.goto(f"{address[0]}/lab/tree/20_attention.ipynb")
    shown(page).locator("h1", has_text="Attention").first.wait_for()
    theme(page, "JupyterLab Dark")
    try:
        pictures = shown(page).locator(".jp-OutputArea img, .jp-RenderedSVG svg")
        pictures.first.wait_for()
        assert pictures.count() >= 5
        for i in range(min(pictures.count(), 6)):
            pictures.nth(i).scroll_into_view_if_needed()
            sheet = Image.open(io.BytesIO(pictures.nth(i).screenshot())).convert("RGB")
            width, height = sheet.size
            corners = [sheet.getpixel((x, y)) for x in (3, width - 4) for y in (3, height - 4)]
            assert corners == [(255, 255, 255)] * 4, (i, corners)
        picture(page, "JupyterLab Dark lesson")
        assert legible(shown(page).locator(".jp-MarkdownCell").nth(1)) >= 1
    finally:
        theme(page, "JupyterLab Light")

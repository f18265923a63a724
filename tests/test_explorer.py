"""Pictures that move: what their HTML holds, read by plain Python, and how they answer a mouse and a keyboard in Chromium.

The tests with a browser are skipped where there is none (on Debian and Ubuntu: apt install chromium); SCREENSHOTS names a
folder to keep pictures in.
"""
import json
import math
import os
import re
import shutil
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from transformer_course.drawing.explorer import attention_explorer, still_links
from transformer_course.drawing.legibility import problems
from transformer_course.drawing.sliders import clock_slider, temperature_slider
from transformer_course.drawing.steps import Frame, steps_explorer, still_tree

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
ENGLISH = ["the", "queen & <king>", "saw", "it", "<eos>"]                           # S = 5
HINDI = ["raanii", "ne", "use", "dekhaa"]                                         # T = 4


def weights(*shape):
    scores = np.random.default_rng(1).normal(size=shape) * 2
    return np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)


def written():
    vectors = np.random.default_rng(2).normal(size=(4, 7))
    return [Frame(HINDI[:t + 1], weights(4, 5)[t], vectors[t]) for t in range(4)]


def beam():
    beams = [[(["the"], -0.5), (["a"], -0.9)],
             [(["a", "cat"], -1.0), (["the", "cat"], -1.4), (["a", "<eos>"], -2.0)],
             [(["a", "cat", "<eos>"], -1.1), (["the", "cat", "<eos>"], -1.6)]]
    return [Frame(one[0][0], beam=one) for one in beams]


PICTURES = {
    "attention": lambda: attention_explorer(weights(2, 3, 4, 5), ENGLISH, HINDI, "Who asks", gold={(1, 0), (2, 3)}),
    "steps": lambda: steps_explorer(written(), ENGLISH, "Word by word", state="seven numbers"),
    "beam": lambda: steps_explorer(beam(), title="A beam"),
    "temperature": lambda: temperature_slider({"fits": 8, "neutral": 0, "does not": -8}, first=8),
    "clocks": lambda: clock_slider((1.0, 0.1, 0.01)),
}
WORDS = {"attention": ENGLISH + HINDI, "steps": ENGLISH + HINDI, "beam": ["the", "a", "cat", "<eos>"],
         "temperature": ["fits", "neutral", "does not"], "clocks": ["position 7", "cosine, speed 0.01"]}


def content(html):
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', html, re.S)[1])


class Reader(HTMLParser):
    "All tags with their attributes, and the text that is shown without a script."

    def __init__(self, html):
        super().__init__()
        self.tags, self.open, self.text = [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("img", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"{tag} is closed in the wrong place"

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.text.append(data)


# Read by plain Python, on any machine

@pytest.mark.parametrize("name", PICTURES)
def test_html_holds_everything_and_needs_nothing(name):
    html = PICTURES[name]().html
    read = Reader(html)
    shown = re.sub(r'base64,[^"]*', "", html)
    assert not read.open and not re.search(r"""http|["'(]//|url\(|@import|import\(|fetch\(""", shown)
    attributes = [key for tag, found in read.tags for key in found]
    assert not {"id", "onclick", "href", "srcset"} & set(attributes) and "iframe" not in shown
    assert [found["src"][:22] for tag, found in read.tags if "src" in found] == ["data:image/png;base64,"]
    assert len(html.encode()) < 60_000 and html == PICTURES[name]().html


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_and_a_table_stand_in_for_the_script(name):
    read = Reader(PICTURES[name]().html)
    said = " ".join(read.text)
    assert [word for word in WORDS[name] if word not in said] == []
    (still,) = [found for tag, found in read.tags if tag == "img"]
    assert still["alt"] and [tag for tag, found in read.tags if tag == "table"]
    numbers = [float(cell) for cell in re.findall(r"-?\d+\.\d\d(?!\d)", said)]
    assert len(numbers) >= 5 and max(map(abs, numbers)) <= 2


@pytest.mark.parametrize("name", PICTURES)
def test_the_group_has_a_name_and_says_it_without_an_address(name):
    live = PICTURES[name]()
    assert repr(live) == f"Live(title={live.title!r})" and live._repr_html_() == live.html
    root = Reader(live.html).tags[0][1]
    assert root["role"] == "group" and unescape(root["aria-label"]) == live.title


def test_weights_sum_to_one_and_keep_three_decimals():
    given = weights(2, 3, 4, 5)
    held = content(attention_explorer(given, ENGLISH, HINDI, gold={(1, 0)}).html)
    maps = np.array(held["maps"])
    assert maps.shape == (6, 4, 5) and np.abs(maps - given.reshape(6, 4, 5)).max() <= 0.0005 + 1e-9
    assert np.abs(maps.sum(-1) - 1).max() < 0.003 and held["gold"] == [[1, 0]]
    assert held["names"][4] == "layer 2, head 2" and held["columns"] == ENGLISH and held["rows"] == HINDI
    assert content(attention_explorer(given[0], ENGLISH, HINDI).html)["names"] == ["head 1", "head 2", "head 3"]
    assert content(attention_explorer(given[0, 0], ENGLISH, HINDI).html)["names"] == ["weights"]


def test_the_table_has_the_weights_and_outlines_the_gold_links():
    given = weights(4, 5)
    table = attention_explorer(given, ENGLISH, HINDI, gold={(1, 0), (2, 3)}).html.split("<table>")[1].split("</table>")[0]
    cells = re.findall(r'<td style="([^"]*)">([\d.]+)</td>', table)
    assert [number for how, number in cells] == [f"{share:.2f}" for share in given.flatten()]
    assert [i for i, (how, number) in enumerate(cells) if "border" in how] == [0 * 5 + 1, 3 * 5 + 2]


def test_a_beam_becomes_a_tree():
    held = content(steps_explorer(beam()).html)
    branches = [(node["word"], node["at"], node["rank"], node["parent"]) for node in held["nodes"]]
    assert branches == [("the", 0, 0, None), ("a", 0, 1, None), ("cat", 1, 0, 1), ("cat", 1, 1, 0), ("<eos>", 1, 2, 1),
                        ("<eos>", 2, 0, 2), ("<eos>", 2, 1, 3)]
    assert [frame["best"] for frame in held["frames"]] == [0, 2, 5]
    assert [frame["weights"] for frame in held["frames"]] == [None] * 3


def test_vectors_are_shades_from_0_to_1():
    shades = np.array([frame["state"] for frame in content(steps_explorer(written(), ENGLISH).html)["frames"]])
    vectors = np.array([frame.state for frame in written()])
    assert shades.shape == (4, 7) and 0 <= shades.min() and shades.max() <= 1
    assert np.abs((shades - 0.5) * 2 * np.abs(vectors).max() - vectors).max() < 0.01


def test_tables_of_the_sliders_are_softmax_and_sines():
    said = temperature_slider({"one": 2, "zero": 1, "minus": 0}).html
    found = [float(cell) for cell in re.findall(r">(\d\.\d\d)</td>", said)]
    expected = [round(math.exp(score / by) / sum(math.exp(one / by) for one in (2, 1, 0)), 2)
                for by in (0.25, 0.5, 1, 2, 4, 8, 16) for score in (2, 1, 0)]
    assert found == pytest.approx(expected, abs=0.0051)
    found = [float(cell) for cell in re.findall(r">(-?\d\.\d\d)</td>", clock_slider((1.0, 0.1)).html)]
    expected = [wave(speed * p) for p in range(8) for speed in (1.0, 0.1) for wave in (math.sin, math.cos)]
    assert found == pytest.approx(expected, abs=0.0051)


def test_still_pictures_can_be_read():
    assert problems(still_links(weights(4, 5), ENGLISH, HINDI, "links")) == []
    assert problems(still_tree(content(steps_explorer(beam()).html)["nodes"], "a beam")) == []


@pytest.mark.parametrize("wrong, message", [
    (lambda: attention_explorer(weights(4, 5), HINDI, ENGLISH), r"must end in \(5, 4\)"),
    (lambda: attention_explorer(2 * weights(4, 5), ENGLISH, HINDI), "sums to 2.000"),
    (lambda: attention_explorer(weights(4, 5), ENGLISH, HINDI, gold={(5, 0)}), "gold link"),
    (lambda: attention_explorer(weights(2, 4, 5), ENGLISH, HINDI, names=["one"]), "2 maps have 1 names"),
    (lambda: attention_explorer(weights(4, 5), ENGLISH, HINDI, first=1), "first=1"),
    (lambda: steps_explorer([]), "frames is empty"),
    (lambda: steps_explorer(written(), HINDI), "must end in"),
    (lambda: temperature_slider({}), "scores is empty"),
    (lambda: clock_slider(()), "0 speeds"),
    (lambda: clock_slider(first=61), "first=61"),
])
def test_refuses(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


# In Chromium

@pytest.fixture(scope="module")
def browser():
    if BROWSER is None:
        pytest.skip("needs Chromium or Chrome: on Debian and Ubuntu, apt install chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, tmp_path):
    "A function that opens pictures on one page; the page may say no word to the console, and ask for no address."
    contexts, said = [], []

    def show(*names, width=900, paper="white", ink="black", **options):
        path = tmp_path / "page.html"
        body = "\n".join(PICTURES[name]().html for name in names)
        path.write_text('<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
                        f'<body style="background:{paper};color:{ink};font-family:sans-serif">{body}', encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda asked: said.append(asked.url) if asked.url[:5] not in ("file:", "data:") else None)
        page.goto(path.as_uri())
        return page

    yield show
    for context in contexts:
        context.close()
    assert said == []


def screenshot(page, name):
    if folder := os.environ.get("SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(folder, f"{name}.png")), full_page=True)


def status(page, nth=0):
    return page.locator("p[role=status]").nth(nth).inner_text()


def test_hover_shows_a_words_lines_and_its_gold_link(opened):
    page = opened("attention")
    assert status(page) == "layer 1, head 1: choose a word on the left"
    page.locator(".asks button", has_text="raanii").hover()
    row = weights(2, 3, 4, 5)[0, 0, 0]
    assert status(page).startswith(f"layer 1, head 1: raanii → {ENGLISH[row.argmax()]} {row.max():.2f}")
    shown = page.locator(".read b")
    assert [float(share) for share in shown.locator("small").all_inner_texts()] == pytest.approx(row, abs=0.0056)
    assert shown.locator("span").all_inner_texts() == ENGLISH
    assert page.locator(".read b.gold span").all_inner_texts() == ["queen & <king>"]
    assert page.locator("line:not(.gold)").count() == (row >= 0.02).sum() and page.locator("line.gold").count() == 1
    screenshot(page, "explorer hover")


def test_tab_and_arrows_reach_every_head_and_word(opened):
    page = opened("attention")
    for head in range(6):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.innerText") == f"layer {head // 3 + 1}, head {head % 3 + 1}"
    page.keyboard.press("Enter")
    assert status(page).startswith("layer 2, head 3")
    page.keyboard.press("Tab")
    assert status(page).startswith("layer 2, head 3: raanii →"), "tab to a word shows its lines"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert outline == "3px", "where the focus is can be seen"
    page.keyboard.press("ArrowDown")
    assert ": ne →" in status(page) and page.locator(".asks [aria-pressed=true]").inner_text() == "ne"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert ": dekhaa →" in status(page), "round the corner"
    page.keyboard.press("Escape")
    assert "choose a word" in status(page)
    page.locator(".maps button").nth(5).focus()
    page.keyboard.press("ArrowRight")
    assert status(page).startswith("layer 1, head 1")


def test_one_map_has_no_strip_and_two_pictures_do_not_meet(opened):
    page = opened("attention", "attention", "steps")
    page.locator(".asks").nth(1).locator("button").nth(2).hover()
    assert ": use →" in status(page, 1) and "choose a word" in status(page, 0) and "Step 1 of 4" in status(page, 2)
    assert page.locator("details").count() == 3
    parts = page.locator("button, input, summary, [tabindex]")
    assert parts.count() == page.locator("[data-lm-suppress-shortcuts=true]").count() == 2 * (6 + 4) + 3 + 3 + 1


def test_steps_by_buttons_and_by_keys(opened):
    page = opened("steps")
    previous, following = (page.get_by_role("button", name=name) for name in ("previous", "next"))
    assert status(page).startswith("Step 1 of 4: raanii →") and previous.is_disabled()
    following.click()
    assert status(page).startswith("Step 2 of 4: raanii ne →")
    assert page.locator(".written b").all_inner_texts() == ["raanii", "ne", "·", "·"]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert status(page).startswith("Step 4 of 4: raanii ne use dekhaa →") and following.is_disabled()
    assert page.locator("canvas").evaluate("c => [c.width, c.height]") == [7, 4]
    page.keyboard.press("ArrowRight")
    page.locator("button.play").focus()
    page.keyboard.press("ArrowLeft")
    assert status(page).startswith("Step 3 of 4")
    assert page.locator(".tree").is_hidden()
    screenshot(page, "explorer steps")


def test_play_runs_to_the_end_and_can_pause(opened):
    page = opened("steps")
    play = page.locator("button.play")
    play.click()
    assert play.inner_text() == "pause"
    page.wait_for_function("document.querySelector('p[role=status]').innerText.startsWith('Step 2')")
    play.click()
    assert play.inner_text() == "play"
    page.wait_for_timeout(1500)
    assert status(page).startswith("Step 2 of 4"), "it pauses"
    play.click()
    page.wait_for_function("document.querySelector('button.play').innerText == 'play'")
    assert status(page).startswith("Step 4 of 4")


def test_a_tree_grows_and_its_thick_line_jumps(opened):
    page = opened("beam")
    best = lambda: page.locator(".tree text.best").all_text_contents()
    assert best() == ["the", "-0.50"] and page.locator(".links").is_hidden()
    page.get_by_role("button", name="next").click()
    assert best() == ["a", "-0.90", "cat", "-1.00"] and page.locator(".tree text").count() == 10
    page.get_by_role("button", name="next").click()
    assert best() == ["a", "-0.90", "cat", "-1.00", "<eos>", "-1.10"]
    screenshot(page, "explorer beam")


def test_sliders_by_keys(opened):
    page = opened("temperature", "clocks")
    assert status(page) == "fits 0.67, neutral 0.24, does not 0.09"
    divisor, position = page.get_by_role("slider").all()
    assert divisor.get_attribute("aria-valuetext") == "8"
    for press in range(4):
        divisor.press("ArrowRight")
    assert page.locator("output").first.inner_text() == "16"
    divisor.press("Home")
    assert status(page) == "fits 1.00, neutral 0.00, does not 0.00"
    position.press("ArrowRight")
    assert status(page, 1) == f"its code: {math.sin(6):.2f} {math.cos(6):.2f}, 0.56 0.83, 0.06 1.00"
    screenshot(page, "sliders")


def test_reduced_motion_is_respected(opened):
    moving = opened("steps", reduced_motion="no-preference")
    assert moving.locator("button.play").is_visible()
    assert moving.locator("line").first.evaluate("line => getComputedStyle(line).animationName") == "course-live-in"
    still = opened("steps", reduced_motion="reduce")
    assert still.locator("button.play").is_hidden() and still.get_by_role("button", name="next").is_visible()
    assert still.locator("line").first.evaluate("line => getComputedStyle(line).animationName") == "none"


@pytest.mark.parametrize("name", PICTURES)
def test_without_scripts_a_picture_and_a_table_are_seen(opened, name):
    page = opened(name, java_script_enabled=False)
    assert page.locator("img").is_visible() and page.locator("table").first.is_visible()
    assert page.locator("button, input").count() == 0
    with_scripts = opened(name)
    assert with_scripts.locator("img").count() == 0 and with_scripts.locator("table").first.is_hidden()
    with_scripts.locator("summary").click()
    assert with_scripts.locator("table").first.is_visible()


@pytest.mark.parametrize("paper, ink", [("white", "black"), ("#111111", "#dddddd")])
def test_everything_fits_a_phone_on_light_and_dark_paper(opened, paper, ink):
    page = opened(*PICTURES, width=390, paper=paper, ink=ink)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    colours = page.locator("button, b, output, p").evaluate_all("all => all.map(one => getComputedStyle(one).color)")
    assert len(set(colours)) == 1, "text has the page's own colour"
    assert min(page.locator("button:visible").evaluate_all("all => all.map(one => one.getBoundingClientRect().height)")) >= 24
    screenshot(page, f"explorer phone {ink}")

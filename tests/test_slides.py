"""Slides: what of a lesson they show, in which order, and that they need no network."""
import re
from pathlib import Path

import nbformat
import pytest

accessibility = pytest.importorskip("accessibility")
slides = pytest.importorskip("slides")
new = nbformat.v4
PICTURE = new.new_output("display_data", data={"image/png": "aGk=", "text/plain": "<Figure>"})


def lesson(*cells):
    return new.new_notebook(cells=[new.new_markdown_cell("# Attention\n\n> Looking things up"), new.new_code_cell("#| default_exp a"), *cells])


def kinds(nb):
    """For each slide its heading and the kinds of its cells."""
    found = []
    for cell in slides.slides_of(nb):
        if cell.metadata.slideshow.slide_type == "slide":
            found.append([cell.source.splitlines()[0]])
        found[-1].append(cell.cell_type + (" with " + ", ".join(o.output_type for o in cell.outputs) if cell.get("outputs") else ""))
    return found


def test_drawings_equations_key_cells_and_the_summary_are_shown():
    nb = lesson(new.new_markdown_cell("## 1. The idea\n\nWords that are told, not shown.\n\n$$a = b$$\n\nMore."),
                new.new_code_cell("draw()", outputs=[PICTURE]), new.new_markdown_cell("*What to see.*\n\nA paragraph."),
                new.new_code_cell("#| export\ndef f(x):\n    return x"),
                new.new_markdown_cell("## 2. In numbers"), new.new_code_cell("print(1)", outputs=[new.new_output("stream", text="1\n")]),
                new.new_markdown_cell("## Summary\n\n- It works."))
    assert kinds(nb) == [["# Attention", "markdown"], ["## 1. The idea", "markdown"],
                         ["## 1. The idea", "markdown", "code with display_data", "markdown"], ["## 1. The idea", "markdown", "code"],
                         ["## 2. In numbers", "markdown", "code with stream"], ["## Summary", "markdown"]]
    shown = slides.slides_of(nb)
    assert [c.source for c in shown[1:5]] == ["## 1. The idea\n\n$$a = b$$", "## 1. The idea", "", "*What to see.*"]
    assert shown[6].source == "def f(x):\n    return x", "without the directive"


@pytest.mark.parametrize("hidden", [
    new.new_code_cell("import a\nfrom b import (\n    c)"),
    new.new_code_cell("x = 1"),
    new.new_code_cell("def f():\n" + "    pass\n" * 40),
    new.new_code_cell("#| hide\ndef f(): pass"),
    new.new_code_cell("def f(): pass", metadata={"jupyter": {"source_hidden": True}}),
    new.new_code_cell("def f(): pass", metadata={"tags": ["upkeep"]}),
    new.new_markdown_cell("## Exercises\n\n$$a$$\n\n## 5. Going on\n\n$$b$$"),
    new.new_markdown_cell("## Checks\n\n$$a$$"),
])
def test_what_is_not_for_a_class_is_left_out(hidden):
    assert kinds(lesson(hidden)) == [["# Attention", "markdown"]]


def test_code_and_what_it_prints_fit_one_slide():
    code = "\n".join(f"print({i})" for i in range(20))
    printed = [new.new_output("stream", text="x\n" * lines) for lines in (3, 10)]
    shown = slides.slides_of(lesson(new.new_code_cell(code, outputs=printed)))[-1]
    assert [o.text.count("\n") for o in shown.outputs] == [3]
    wide = slides.slides_of(lesson(new.new_code_cell("def f(): return " + "x" * 80)))[-1]
    assert wide.metadata.tags == ["wide"] and shown.metadata.tags == []


def test_a_page_names_no_address_outside(root):
    nb = nbformat.read(root / "nbs" / "lessons" / "20_attention.ipynb", as_version=4)
    body = slides.page(nb, "Attention")
    assert not re.findall(r"""(?:src|href)=["'](?:https?:)?//[^"']+\.(?:js|css)""", body) and "unpkg" not in body and "mermaid.init" not in body
    assert body.count("<section") >= 15 and "static/reveal.js/dist/reveal.js" in body and "Why several heads?" in body


def test_every_lesson_has_slides(root):
    for path in (root / "nbs" / "lessons").glob("*.ipynb"):
        shown = kinds(nbformat.read(path, as_version=4))
        assert 5 <= len(shown) <= 40 and shown[-1][0] == "## Summary", (path.stem, len(shown), shown[-1][0])


def test_links_lead_to_slides_or_are_words():
    body = '<a href="21_positions.ipynb">21</a> <a class="x" href="../exercises/ex20_attention.ipynb#a">try</a> <a href="#/3">on</a>'
    assert slides.relinked(body) == '<a href="21_positions.html">21</a> try <a href="#/3">on</a>'
    assert slides.relinked('<a href="20a_pronouns.ipynb#Summary">it</a>') == '<a href="20a_pronouns.html">it</a>'
    assert slides.relinked('<a href="https://a.org/b.ipynb">b</a>') == '<a href="https://a.org/b.ipynb">b</a>'


class Talk:
    """A page of a browser with slides of which some have a fault."""

    def __init__(self, faults):
        self.faults, self.at, self.keyboard = faults, 0, self

    def press(self, key):
        self.at += key == "ArrowRight"

    def evaluate(self, script, rules=None):
        if script.startswith("["):
            return [0, 1280, 1280]
        node = {"html": "<b>", "target": ["b"]}
        return {"violations": [{"id": "color-contrast", "help": "too pale", "nodes": [node]}] if self.at in self.faults else []}

    def locator(self, selector):
        return type("Sections", (), {"count": lambda _: 4})()

    def wait_for_selector(self, selector):
        self.waited = selector

    def __getattr__(self, name):
        return lambda *_, **__: None


def test_every_slide_is_looked_at():
    talk = Talk({0, 2})
    assert accessibility.look_through(talk, "http://127.0.0.1:1/a.html", "axe") == [
        "color-contrast (1): too pale: <b> at ['b']", "slide 3: color-contrast (1): too pale: <b> at ['b']"]
    assert talk.at == 3 and talk.waited == ".reveal.ready"


def test_slides_are_looked_at_where_they_are_made():
    ways = [way for _, _, way, _ in accessibility.rounds(Path("site"), None, ["index.html"])]
    assert ways == ["light", "dark", "phone"]
    folder, pages, way, looks = accessibility.rounds(Path("site"), Path("slides"), ["index.html"])[-1]
    assert (folder, way, looks) == (Path("slides"), "slides", accessibility.look_through)
    assert all((Path(slides.ROOT) / "nbs" / "lessons" / page).with_suffix(".ipynb").is_file() for page in pages)


def test_the_workflow_of_the_site_makes_the_slides_that_are_looked_at(root):
    lines = (root / ".github" / "workflows" / "site.yml").read_text(encoding="utf-8").splitlines()
    made = next(line.split("tools/slides.py")[1].split() for line in lines if "tools/slides.py" in line)
    assert made == [page.removesuffix(".html") for page in accessibility.SLIDES]
    assert any("tools/accessibility.py" in line and "--slides build/slides" in line for line in lines)

"""No file has more findings than its baseline allows, and tools/prose.py sees what it should."""
import json
import re
import subprocess
import sys

import notebooks
import prose
import pytest
from markdown_it import MarkdownIt


def test_no_file_has_more_findings_than_its_baseline_or_fewer():
    assert prose.unlike(prose.counts(), prose.baseline()) == []


@pytest.mark.parametrize("path", prose.lessons(), ids=lambda path: path.stem)
def test_a_lesson_of_the_new_form_is_as_long_as_it_says(path):
    assert prose.too_long(path) == []


# Sentences

def split(text):
    masks = [re.sub(f"{prose.THING}+", "x", mask) for line, mask, sentence in prose.read(text)]
    return [" ".join(mask.split()) for mask in masks]


@pytest.mark.parametrize("text, expected", [
    ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
    ("A rate of 0.1. Then 3.5 of it.", ["A rate of 0.1.", "Then 3.5 of it."]),
    ("Words, e.g. Hindi ones, i.e. those of Fig. 2, as in eq. 1. More.",
     ["Words, e.g. Hindi ones, i.e. those of Fig. 2, as in eq. 1.", "More."]),
    ("The answer is no. The next one is, too.", ["The answer is no.", "The next one is, too."]),
    ("By A. Vaswani and D. P. Kingma. The size is D. The rest is not.",
     ["By A. Vaswani and D. P. Kingma.", "The size is D.", "The rest is not."]),
    ("Vaswani et al. 2017 say so. Cells, gates etc. follow. Cells, gates, etc. Then more.",
     ["Vaswani et al. 2017 say so.", "Cells, gates etc. follow.", "Cells, gates, etc.", "Then more."]),
    ("Two rules: The first is short. Three models: RNN, LSTM and GRU.",
     ["Two rules:", "The first is short.", "Three models: RNN, LSTM and GRU."]),
    ("(It is so.) \"Is it?\" He said \"yes.\" And left.",
     ["(It is so.)", "\"Is it?\"", "He said \"yes.\"", "And left."]),
    ("It ends in `x.y. Z`. `f(x)` begins one.", ["It ends in x.", "x begins one."]),
    ("Asked \"who?\" she smiled … and left.", ["Asked \"who?\" she smiled … and left."]),
    ("In lesson 3. 12 of them", ["In lesson 3.", "12 of them"]),
])
def test_sentences(text, expected):
    assert split(text) == expected


def test_headings_items_cells_and_quotations_are_blocks_of_their_own():
    text = """# A title
A paragraph of
two lines
- an item
  that goes on
- another
1. a number

> quoted
> twice

| head | and more |
|---|---|
| a cell | [a link](https://x.y/a_(b)) · and ![a picture](p.png) |
After it"""
    assert split(text) == ["A title", "A paragraph of two lines", "an item that goes on", "another",
                           "a number", "quoted > twice", "head", "and more", "a cell", "a link", "and",
                           "a picture", "After it"]


def test_code_formulas_comments_and_targets_are_no_prose():
    text = ("Before ``a ` lot`` and $x_{lot}$ cost $5 or $6.\n"
            "```\na lot of code\n```\n<!-- a lot -->\n$$\\text{a lot}$$\n"
            "<b>After</b> [it](lot.html), *at* __last__, see https://lot.com/lot now")
    assert list(prose.wrong(text)) == []
    assert [prose.words(mask) for line, mask, sentence in prose.read(text)] == [8, 7]
    assert len(prose.masked(text)) == len(text)


def test_words_are_counted_as_a_reader_does():
    assert prose.words("A well-known rate, 0.5 – not 3,000 & more — and ¤¤¤ too.") == 10


def test_lines_are_those_of_the_text():
    text = "# Title\n\nGood.\nSo\nis this. A\nlot.\n\n- fine\n- a fault\n"
    found = [(line, kind.split("'")[1]) for line, kind, sentence in prose.wrong(text)]
    assert found == [(4, "lot"), (8, "fault")]


# What is wrong

@pytest.mark.parametrize("sentence", [
    "drawn by lot", "A lot.", "without a fault", "Heed this", "who knows", "it stands there", "Simply add",
    "Little gradient is no fate", "right more often than the look", "Obviously so", "we suspect it",
    "which the formulas have not.", "need not stand to each other as", "Four layers stand it.",
    "Both are had if", "small enough for a head",
    "Who guesses is right once in eight times."])
def test_stop_words(sentence):
    assert len(list(prose.wrong(sentence))) == 1


@pytest.mark.parametrize("sentence", [
    "plots and a slot", "default", "faulty", "a look at it", "which have not been run", "`stands`",
    "Who guesses better?", "a head", "stand-alone", "They had it"])
def test_words_that_may_stay(sentence):
    assert list(prose.wrong(sentence)) == []


def test_a_sentence_may_have_35_words():
    assert list(prose.wrong("word " * 35 + ".")) == []
    (line, kind, text), = prose.wrong("Short.\n" + "Word " * 36 + ". Short.")
    assert (line, kind) == (1, "36 words") and text == "Word " * 36 + "."


# Notebooks

CODE = '''#| export
def f(x):
    """Takes a lot.

    Raises ValueError at fate.
    """
    if x:
        raise ValueError(f"x is {x + 1}, a fault" if x > 2 else "heed " + "this")
    plot(x, title="who knows", colour="the look")
    return "a lot"
'''
CHECKS = '''def cases(draw):
    yield (3, "a lot")

def properties(fn, *case):
    yield "rows stand it", fn(*case) == "a lot"

mistakes = {"a lot": ("lot", "fault")}
hints = ["heed", "fine"]
'''


def notebook(folder, *cells):
    path = folder / "01_test.ipynb"
    made = [{"cell_type": kind, "source": source.splitlines(keepends=True), "metadata": metadata,
             **({"outputs": outputs} if kind == "code" else {})} for kind, source, metadata, outputs in cells]
    path.write_text(json.dumps({"cells": made}), encoding="utf-8")
    return path


def test_strings_in_code_are_read(tmp_path):
    long = "x = 1" + " " * 110 + "# fate"
    path = notebook(tmp_path, ("markdown", "# Fate", {}, []), ("code", CODE, {}, []),
                    ("code", CHECKS, {"tags": ["checks"]}, []),
                    ("code", long + "\n%magic a lot", {}, []), ("raw", "a lot", {}, []))
    found = [(finding.place, finding.kind.partition("(")[0].strip()) for finding in prose.findings(path)]
    assert found == [("cell 0, line 1", "stop word, 'Fate'"), ("cell 1, line 3", "stop word, 'lot'"),
                     ("cell 1, line 5", "stop word, 'fate'"), ("cell 1, line 8", "stop word, 'fault'"),
                     ("cell 1, line 8", "stop word, 'heed'"), ("cell 1, line 9", "stop word, 'who knows'"),
                     ("cell 2, line 5", "stop word, 'stand it'"), ("cell 2, line 7", "stop word, 'lot'"),
                     ("cell 2, line 8", "stop word, 'heed'"), ("cell 3, line 1", "121 characters")]
    assert all(finding.file == path.as_posix() for finding in prose.findings(path))


PICTURE = {"output_type": "display_data", "data": {"image/png": "x", "text/plain": "y"}}


def lesson(folder, words, lines, minutes, last="Checks"):
    opening = f"**Needed first**: nothing. **Time**: {minutes} minutes to read."
    return notebook(folder, ("markdown", opening, {}, []),
                    ("markdown", "word " * words + ".", {}, []),
                    ("code", "#| export\n" + "x = 1\n\n" * lines, {}, [PICTURE]),
                    ("code", "#| hide\ny = 1", {}, []),
                    ("code", "z = 1\n" * 9, {"jupyter": {"source_hidden": True}}, []),
                    ("markdown", "Two words\n\n## Exercises\nmore words", {}, []),
                    ("code", "x = 1\n", {}, [PICTURE]),
                    ("markdown", f"## {last}\nmore words", {}, []))


def test_size_of_the_core_path(tmp_path):
    found = prose.size(lesson(tmp_path, 290, 40, 6))
    assert found == prose.Size(words=300 - 10 + 2 + 8, lines=40, pictures=1, stated=6, new_form=True)
    assert found.minutes == 300 / 150 + 40 / 10


def test_lessons_that_are_too_long(tmp_path):
    assert prose.too_long(lesson(tmp_path, 290, 40, 5)) == []            # 6 minutes, less a quarter
    assert prose.too_long(lesson(tmp_path, 290, 40, 4)) == ["01_test.ipynb: states 4 minutes and takes 6"]
    assert prose.too_long(lesson(tmp_path, 290, 40, 60)) == []
    assert prose.too_long(lesson(tmp_path, 1991, 4, 20)) == [
        "01_test.ipynb: 2,001 words before the exercises, 2,000 are allowed"]
    folder = tmp_path / "lessons"
    folder.mkdir()
    assert prose.too_long(lesson(folder, 1491, 4, 20)) == [
        "01_test.ipynb: 1,501 words before the exercises, 1,500 are allowed"]
    assert prose.too_long(lesson(tmp_path, 290, 40, "no")) == [
        "01_test.ipynb: no line says '**Time**: … minutes'"]
    assert prose.too_long(lesson(tmp_path, 2500, 40, 1, last="The end")) == []                 # the old form


# Asterisks that a reader would see

FORMULA = re.compile(r"\$\$.+?\$\$|(?<![\\$`])\$(?=\S)[^$]+?(?<=\S)\$(?!\d)", re.S)


def stray_asterisks(text):
    """The pieces of text in which emphasis that does not open or close leaves its asterisk; A* is a name."""
    parsed = MarkdownIt("commonmark").enable("table").parse(FORMULA.sub("@0@", text))
    shown = (part.content for block in parsed for part in block.children or () if part.type == "text")
    return [piece.strip() for piece in shown if "*" in re.sub(r"\bA\*", "", piece)]


@pytest.mark.parametrize("text", [
    "*The state asks, as the* query*. An annotation is a* key*.*",    # before a full stop no emphasis opens
    "*Ten cells with words: six* given*, four* asked*.*", "a word*(s)* and", "**bold **and"])
def test_asterisks_that_are_seen(text):
    assert stray_asterisks(text)


@pytest.mark.parametrize("text", [
    "*The state asks, as the* query. *An annotation is a* key.", "**Bold**, *italic* and ***both***.", "A* and an A*-search",
    "`2 * 3`, $a * b$ and $$a * b$$", "```\n2 * 3 * 4\n```", "* an item\n* another", "2 \\(times\\) `a*b*c`", "*$x$ is* 3"])
def test_asterisks_that_are_not_seen(text):
    assert stray_asterisks(text) == []


@pytest.mark.parametrize("path", sorted({*notebooks.notebooks(), *prose.files()}), ids=lambda path: path.stem)
def test_no_reader_sees_an_asterisk_of_markdown(path):
    text = path.read_text(encoding="utf-8")
    cells = json.loads(text)["cells"] if path.suffix == ".ipynb" else [{"cell_type": "markdown", "source": [text]}]
    found = [stray_asterisks("".join(cell["source"])) for cell in cells if cell["cell_type"] == "markdown"]
    assert not any(found), [pieces for pieces in found if pieces]


# The baseline

def test_the_baseline_only_falls():
    allowed = {"a": 3, "b": 2, "c": 1, "gone": 4}
    now = {"a": 5, "b": 1, "new": 2}
    assert prose.lower(now, allowed) == {"a": 3, "b": 1}
    files = [line.partition(":")[0] for line in prose.unlike(now, allowed)]
    assert files == ["a", "new", "b", "c", "gone"]
    assert prose.unlike({"a": 3}, {"a": 3}) == []


def test_two_numbers_of_a_merge_are_the_smaller_one(tmp_path, monkeypatch):
    monkeypatch.setattr(prose, "BASELINE", tmp_path / "baseline.txt")
    prose.store({"b.md": 2, "a.md": 13})
    assert prose.baseline() == {"a.md": 13, "b.md": 2}
    with prose.BASELINE.open("a") as file:
        file.write("a.md 12\n<<<<<<< ours\nb.md 4\n=======\n")
    assert prose.baseline() == {"a.md": 12, "b.md": 2}


def test_the_script_says_what_it_found(tmp_path):
    page = tmp_path / "page.md"
    def run(text):
        page.write_text(text, encoding="utf-8")
        command = [sys.executable, prose.__file__, page]
        return subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    good, bad = run("Fine.\n"), run("Fine.\n\nA lot, and a fault.\n")
    assert (good.returncode, good.stdout.strip()) == (0, "")
    assert bad.returncode == 1
    ends = [line.partition("page.md")[2][:20] for line in bad.stdout.splitlines()]
    assert ends == [", line 3: stop word,"] * 2 + [""]
    assert bad.stdout.splitlines()[-1].split() == ["2", page.resolve().as_posix()]
    assert notebooks.ROOT not in page.parents

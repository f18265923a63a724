"""README.md and the pages in docs: short, in step with the records, and true in code, commands and links."""
import re
import subprocess
import sys
from pathlib import Path

import click
import model_tables
import notebooks
import pytest
import readme_tables
import results_page
from test_imports import MODULES

PAGES = [notebooks.ROOT / "README.md", notebooks.ROOT / "CONTRIBUTING.md",
         *sorted((notebooks.ROOT / "docs").glob("*.md"))]
README = PAGES[0].read_text(encoding="utf-8")


def blocks(path, language):
    """The code blocks of a page that name this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.S | re.M)


def lines(path, start):
    """The lines of a page's blocks of commands that begin so, without comments."""
    found = [line.partition(" #")[0].strip() for block in blocks(path, "") for line in block.splitlines()]
    return [line for line in found if line.startswith(start)]


def test_readme_fits_on_a_screen():
    assert len(README.splitlines()) <= 90
    assert README.count("![") == 1
    assert len(lines(PAGES[0], ("pip", "transformer-course"))) == 5, "three of a learner, two of an engineer"


def test_page_and_tables_are_what_the_records_give():
    assert results_page.check() == [], "run `python tools/results_page.py`"


def test_headlines_are_few():
    assert 5 <= len(readme_tables.headlines().splitlines()) - 2 <= 10


def test_no_figure_of_a_record_is_written_by_hand():
    """Prose of the results holds no decimal number but those that the generator fills in."""
    source = "".join(Path(module.__file__).read_text(encoding="utf-8") for module in (results_page, model_tables))
    prose = re.findall(r'(?:return|=) f?"""(?:## |\*\*|A larger).*?"""', source, re.S)
    assert len(prose) > 15
    assert [number for text in prose for number in re.findall(r"(?<![\w.:{])\d+\.\d+", text)] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    targets = re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
    missing = [t for t in targets if "://" not in t and not (path.parent / t.partition("#")[0]).exists()]
    assert missing == []
    assert not [t for t in targets if re.search(r"pypi|pythonhosted|download\.pytorch|conda", t)], "a registry"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_make_has_the_targets(path):
    makefile = (notebooks.ROOT / "Makefile").read_text(encoding="utf-8")
    for call in [*lines(path, "make "), *re.findall(r"`(make [^`]*)`", path.read_text(encoding="utf-8"))]:
        for word in call.split()[1:]:
            variable, assigned, value = word.partition("=")
            pattern = rf"^{variable}\s*[:?]?=" if assigned else rf"^{word}:"
            assert re.search(pattern, makefile, re.M), call


@pytest.mark.skipif("cli" not in MODULES, reason="there is no module cli yet")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_command_knows_its_words(path):
    from transformer_course.cli.app import app
    from typer.main import get_command
    text = path.read_text(encoding="utf-8")
    calls = lines(path, "transformer-course ") + re.findall(r"`(transformer-course [a-z][^`]*)`", text)
    for call in calls:
        command, words = get_command(app), re.findall(r'"[^"]*"|\S+', call)[1:]
        while isinstance(command, click.Group) or hasattr(command, "commands"):
            assert words and words[0] in command.commands, call
            command = command.commands[words.pop(0)]
        command.make_context(command.name, words)


WITH_CODE = [path for path in PAGES if blocks(path, "python") and path.name != "CONTRIBUTING.md"]


@pytest.mark.parametrize("path", WITH_CODE, ids=lambda path: path.name)
def test_the_code_runs(path, tmp_path):
    """Every example, with two steps of training in place of a minute."""
    for code in blocks(path, "python"):
        code = code.replace("minutes=1)", "steps=2)")
        assert "minutes" not in code
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8")
        assert done.returncode == 0, done.stderr[-800:]
    assert path.name != "README.md" or (tmp_path / "my-translator" / "model.safetensors").exists()

"""Slides of each lesson: its drawings, its equations and its key cells, for a class to look at.

    python tools/slides.py [NAME ...]      writes build/slides/NAME.html, which needs no network

Nothing is executed: pictures and prints are those stored in the notebooks. reveal.js, RequireJS and MathJax come from the npm
registry once (`npm pack`, 24 MB) and stay in build/slides/static.
"""
import html
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import nbformat
from nbconvert import SlidesExporter
from traitlets.config import Config

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "slides"
PACKAGES = {"reveal.js": "4.6.1", "requirejs": "2.3.7", "mathjax": "2.7.9"}     # those that nbconvert's template is made for
LINES, PRINTED = 26, 14                    # of code and of output that fit on a slide beside their title
WIDE = 78                                  # characters that fit on a slide in large letters
ASIDE = re.compile(r"(?:\d+\w*\. *)?\**(Exercises|Going further|Checks|Further reading)")
STYLE = """<style>
.reveal h1, .reveal h2 {text-transform: none} .reveal h1 {font-size: 2em} .reveal h2 {font-size: 1.5em} .reveal table {font-size: .8em}
.reveal img, .reveal svg {max-height: 440px; max-width: 900px; margin: 0 auto} .jp-RenderedHTMLCommon p {text-align: left}
.reveal pre {box-shadow: none; width: 100%; font-size: 18px !important; line-height: 1.3 !important}
.reveal p a, .reveal li a {text-decoration: underline !important}
:root {--jp-mirror-editor-comment-color: #356c6c; --jp-mirror-editor-number-color: #066f06; --jp-mirror-editor-operator-color: #8b12d6}
.celltag_wide .jp-InputArea pre {font-size: 13px !important} .celltag_wide .jp-OutputArea pre {font-size: 15px !important}
</style>"""


# What a lesson shows

def slides_of(nb) -> list:
    """The cells of a lesson's slides, in order; each that begins a slide says so in its metadata."""
    lesson = [c for c in nb.cells if "upkeep" not in c.metadata.get("tags", [])]
    title, line = re.match(r"# (.+)\n+> (.+)", lesson[0].source).groups()
    slides, section = [words(f"# {title}\n\n{line}\n\n{STYLE}", begins=True)], title
    for cell, following in zip(lesson[1:], [*lesson[2:], None]):
        if cell.cell_type == "markdown":
            for part in re.split(r"(?m)^(?=#+ )", cell.source):
                heading = re.match(r"#+ +(.+)", part)
                if heading and ASIDE.match(heading[1]):
                    return slides
                if heading:
                    section = heading[1]
                slides += of_words(part, section)
        else:
            slides += of_code(cell, following, section)
    return slides


def of_words(part: str, section: str) -> list:
    """The summary whole; of other prose the displayed equations."""
    if re.match(r"#+ +(?:\d+\w*\. *)?Summary", part):
        return [words("## Summary\n\n" + part.split("\n", 1)[-1], begins=True)]
    return [words(f"## {section}\n\n{equation}", begins=True) for equation in re.findall(r"\$\$.+?\$\$", part, re.S)]


def of_code(cell, following, section: str) -> list:
    """A picture with its caption; or, if the cell is to be read and short enough, its code and what it printed."""
    pictures = [o for o in cell.outputs if any(k.startswith("image/") for k in o.get("data", {}))]
    if pictures:
        caption = re.match(r"\*.+?\*(?=\n\n|$)", following.source, re.S) if following is not None else None
        shown = nbformat.v4.new_code_cell("", outputs=pictures, metadata=begins("-") | {"tags": ["picture"]})
        return [words(f"## {section}", begins=True), shown, *([words(caption[0])] if caption else [])]
    code = re.sub(r"^#\| ?export\n", "", cell.source)
    if folded(cell) or code.count("\n") >= LINES or code.startswith("#|") or only_imports(code):
        return []
    room = min(PRINTED, LINES - code.count("\n"))
    printed = [o for o in cell.outputs if o.get("name") == "stdout" and o.text.count("\n") <= room]
    if "class " not in code and "def " not in code and not printed:
        return []
    tags = ["wide"] if max(map(len, code.splitlines())) > WIDE else []
    shown = nbformat.v4.new_code_cell(code, outputs=printed, metadata=begins("-") | {"tags": tags})
    return [words(f"## {section}", begins=True), shown]


def folded(cell) -> bool:
    return bool(cell.metadata.get("jupyter", {}).get("source_hidden"))


def only_imports(code: str) -> bool:
    return all(re.match(r"(import|from) |[ )#]|$", line) for line in code.splitlines())


def words(text: str, begins: bool = False):
    return nbformat.v4.new_markdown_cell(text, metadata={"slideshow": {"slide_type": "slide" if begins else "-"}})


def begins(kind: str) -> dict:
    return {"slideshow": {"slide_type": kind}}


# From cells to pages

def page(nb, name: str) -> str:
    """The lesson's slides as one page, whose scripts are in the folder static beside it."""
    talk = nbformat.v4.new_notebook(cells=slides_of(nb), metadata={**nb.metadata, "title": name})
    config = Config()
    config.TagRemovePreprocessor.remove_input_tags = {"picture"}
    config.SlidesExporter.reveal_url_prefix = "static/reveal.js"
    config.SlidesExporter.reveal_theme = "white"                            # its letters are in the package, not on a server
    config.SlidesExporter.require_js_url = "static/requirejs/require.js"
    config.SlidesExporter.mathjax_url = "static/mathjax/MathJax.js?config=TeX-AMS_CHTML-full,Safe"
    config.SlidesExporter.jquery_url = config.SlidesExporter.mermaid_js_url = "static/nothing.js"
    body, _ = SlidesExporter(config=config, exclude_input_prompt=True, exclude_output_prompt=True).from_notebook_node(talk)
    return relinked(without_strangers(body))


def without_strangers(body: str) -> str:
    """The page without what a template brings for diagrams of Mermaid, of which the lessons have none."""
    body = re.sub(r"<script type=\"module\">.*?</script>", "", body, flags=re.S)
    return re.sub(r"<img(?![^>]*\balt=)", '<img alt="drawing of the lesson"', body)


def relinked(body: str) -> str:
    """The page with links from a lesson's slides to those of another; a link to what has no slides becomes words."""
    body = re.sub(r'(<a [^>]*href=")(\d\w*)\.ipynb(?:#[^"]*)?"', r'\1\2.html"', body)
    return re.sub(r'<a [^>]*href="[^":#]*\.(?:ipynb|md)(?:#[^"]*)?"[^>]*>(.*?)</a>', r"\1", body, flags=re.S)


def vendored(folder: Path):
    """Put the three packages into the folder, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nothing.js").write_text("", encoding="utf-8")                # in place of jQuery, which no slide uses
    for name, version in PACKAGES.items():
        if (folder / name).is_dir():
            continue
        packed = subprocess.run(["npm", "pack", "--silent", f"{name}@{version}"], cwd=folder, check=True, text=True, capture_output=True)
        archive = folder / packed.stdout.split()[-1]
        with tarfile.open(archive) as tar:
            tar.extractall(folder / f".{name}", filter="data")
        (folder / f".{name}" / "package").rename(folder / name)
        archive.unlink()


def main(names):
    lessons = [p for p in sorted((ROOT / "nbs" / "lessons").glob("*.ipynb")) if not names or any(p.stem.startswith(n) for n in names)]
    if not lessons:
        raise SystemExit(f"no lesson starts with {', '.join(names)}")
    vendored(OUT / "static")
    rows = []
    for path in lessons:
        nb = nbformat.read(path, as_version=4)
        title = nb.cells[0].source.splitlines()[0].removeprefix("# ")
        (OUT / f"{path.stem}.html").write_text(page(nb, title), encoding="utf-8")
        rows.append(f'<li><a href="{path.stem}.html">{path.stem.partition("_")[0]} {html.escape(title)}</a></li>')
    if not names:
        (OUT / "index.html").write_text('<!doctype html><html lang="en"><meta charset="utf-8"><title>Slides</title>'
                                        f"<h1>Slides of the lessons</h1><ul>{''.join(rows)}</ul>", encoding="utf-8")
    print(len(lessons), "lessons in", OUT.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])

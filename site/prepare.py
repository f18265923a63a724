"""Write the sources that Sphinx reads: notebooks with their stored outputs, cells edited for readers, and made pages.

    python site/prepare.py FOLDER        everything
    python site/prepare.py FOLDER 14 20  only notebooks that begin so (to look at a page quickly)

Nothing is executed here and nothing is fetched. What is done to a cell is in `reader_cell`, `exercise_cell`, `fold`
and `describe`.
"""
import ast
import json
import posixpath
import re
import shutil
import sys
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tools"), str(ROOT)]

import module_map  # noqa: E402
import words  # noqa: E402

from transformer_course.checking.exercise_notebooks import without_solution  # noqa: E402

NBS = ROOT / "nbs"
DOCUMENTS = {path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").with_suffix("").as_posix().replace("README", "index")
             for path in sorted((ROOT / "docs").rglob("*.md"))}             # such as docs/howto/README.md: howto/index
PAGES = {**DOCUMENTS, "CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog", "nbs/index.ipynb": "index", "README.md": "index"}
LINK = re.compile(r"(\]\()(<?)([^)\s#>]*)(#[^)\s>]*)?(>?)((?: \"[^\"]*\")?\))")
MAP_ROW = re.compile(r"^\| (?:(\S+) \| )?\[([^]]+)\]\(((?:lessons|library)/[\w/]+\.ipynb)\) \| (.+) \|$")


def settings() -> dict[str, str]:
    """settings.ini, the project's one configuration."""
    config = ConfigParser(delimiters=["="], interpolation=None)
    config.read(ROOT / "settings.ini", encoding="utf-8")
    return dict(config["DEFAULT"])


# Links

def slug(anchor: str) -> str:
    """An anchor as Jupyter or GitHub writes it, as MyST writes it."""
    return re.sub(r"[^\w\u4e00-\u9fff\- ]", "", anchor.lower().replace("%20", "-")).replace(" ", "-")


def relinked(text: str, source: str, page: str) -> str:
    """Markdown of a file of the repository, with its links as they must be on a page of the site.

    A notebook or a document that has a page is linked there; any other file of the repository, on the repository's host.
    """
    def link(found: re.Match) -> str:
        start, _, target, anchor, _, end = found.groups()
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        if not target:
            return f"{start}#{slug(anchor[1:])}{end}" if anchor else found[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / place).exists():
            return found[0]
        if place in PAGES:
            to = PAGES[place]
            if place == "nbs/index.ipynb" and anchor:
                to = "words" if "word" in anchor.lower() else "letters" if "letter" in anchor.lower() else to
                anchor = None
        elif place.startswith("nbs/") and place.endswith(".ipynb"):
            to = place.removeprefix("nbs/").removesuffix(".ipynb")
        elif place == "docs/modules.svg":
            to = "modules.svg"
        elif (ROOT / place).suffix in (".png", ".svg"):
            to = posixpath.basename(place)
        else:
            kind = "tree" if (ROOT / place).is_dir() else "blob"
            return f"{start}{settings()['git_url']}/{kind}/{settings()['branch']}/{place}{anchor or ''}{end}"
        ending = "" if "." in to else ".ipynb" if to.startswith(("lessons/", "exercises/", "library/")) else ".md"
        there = posixpath.relpath(to + ending, posixpath.dirname(page) or ".")
        return f"{start}{there}{'#' + slug(anchor[1:]) if anchor else ''}{end}"
    return LINK.sub(link, text)


def to_pages(shown: str) -> str:
    """HTML that a cell showed, with its links to other notebooks of the same folder as links to their pages."""
    return re.sub(r'(<a href="\w+)\.ipynb(["#])', r"\1.html\2", shown)


# Cells

def markdown(text: str) -> dict:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def tags(cell: dict) -> list[str]:
    return cell["metadata"].get("tags", [])


def only_imports(source: str) -> bool:
    """Whether a cell only imports, and sets the style of plots."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return False
    return bool(body) and all(isinstance(node, ast.Import | ast.ImportFrom)
                              or ast.unparse(node) == "plots.use_style()" for node in body)


def exported(source: str) -> list[str]:
    """Public functions and classes that a cell defines."""
    return [node.name for node in ast.parse(source).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")]


def reader_cell(cell: dict, module: str | None) -> list[dict]:
    """A cell of a lesson as readers see it: no directives, no seeding, no upkeep; links below what is exported."""
    if "upkeep" in tags(cell):
        return []
    if cell["cell_type"] != "code":
        return [cell]
    lines = cell["source"].split("\n")
    directives = [line for line in lines if line.startswith("#|")]
    source = "\n".join(line for line in lines if not line.startswith("#|")).strip("\n")
    if "#| hide" in directives or not source.strip():
        return []
    fresh = {**cell, "source": source}
    names = exported(source) if module and "#| export" in directives else []
    return [fresh, markdown(api_links(module, names))] if names else [fresh]


def api_links(module: str, names: list[str]) -> str:
    """A line below an exported cell: each name leads to its entry of the reference, and to its source."""
    full = f"transformer_course.{module}"
    entries = [f"{{py:obj}}`{name} <{full}.{name}>` {{source}}`{full}.{name}`" for name in names]
    return ":::{container} in-library\nIn the library: " + " · ".join(entries) + "\n:::"


def exercise_cell(cell: dict) -> list[dict]:
    """A cell of an exercise notebook as readers see it: without solutions, checks, and outputs that give them away."""
    if "checks" in tags(cell) or "upkeep" in tags(cell):
        return []
    if cell["cell_type"] != "code":
        return [cell]
    source = without_solution(cell["source"]) if "exercise" in tags(cell) else cell["source"]
    lines = [line for line in source.split("\n") if not line.startswith("#|")]
    outputs = cell["outputs"] if "shown" in tags(cell) else []
    return [{**cell, "source": "\n".join(lines).strip("\n"), "outputs": outputs}] if "".join(lines).strip() else []


def fold(cells: list[dict]) -> None:
    """Fold imports and what JupyterLab folds. *Checks* is folded as a whole, so that its cells are open inside."""
    inside = False
    for cell in cells:
        if cell["cell_type"] == "markdown":
            if level := re.findall(r"^(##?) (.+)$", cell["source"], re.M):
                inside = level[-1] == ("##", "Checks")
            continue
        hidden = cell["metadata"].get("jupyter", {}).get("source_hidden") or only_imports(cell["source"])
        metadata = {}
        if hidden and not inside:
            what = ("the imports" if only_imports(cell["source"]) else
                    "the code of this picture" if pictures(cell) else "the code")
            metadata = {"tags": ["hide-input"],
                        "mystnb": {"code_prompt_show": f"Show {what}", "code_prompt_hide": f"Hide {what}"}}
        cell["metadata"] = metadata


def pictures(cell: dict) -> list[dict]:
    """The pictures among a cell's outputs, each in all its forms."""
    found = [output.get("data", {}) for output in cell.get("outputs", [])]
    return [data for data in found if any(kind.startswith("image/") for kind in data)]


def plain(text: str) -> str:
    """Markdown as a reader would say it."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\\[a-zA-Z]+ ?|[$*`{}_^\\]", "", text)
    return " ".join(text.split())


def caption(text: str) -> str | None:
    """The caption with which a text begins, in italics; None if there is none."""
    first = text.lstrip().split("\n\n")[0].strip()
    if not re.match(r"\*[^*\s]", first):
        return None
    return plain(first)


def describe(cells: list[dict]) -> None:
    """Give each picture its words: a drawing's title, the first sentence of the caption, or the section it is in."""
    section = "this page"
    for cell, after in zip(cells, [*cells[1:], markdown("")]):
        if cell["cell_type"] == "markdown":
            section = (re.findall(r"^#+ (.+)$", cell["source"], re.M) or [section])[-1]
            continue
        found = pictures(cell)
        for data in found:
            if "image/svg+xml" in data:                 # drawings are sharp at any size
                data.pop("image/png", None)
        if not found:
            continue
        drawn = "".join(found[0].get("image/svg+xml", ""))
        title = re.search(r"<title>(.*?)</title>", drawn, re.S)
        said = caption(after["source"]) if after["cell_type"] == "markdown" else None
        alt = (plain(title[1]) if title else re.split(r"(?<=[.?!:]) ", said)[0] if said else
               f"Picture of the section “{plain(section)}”")
        cell["metadata"].setdefault("mystnb", {})["image"] = {"alt": alt}


# Launching

def launch(stem: str, folder: str) -> dict[str, str]:
    """Where a notebook can be run, by name. The copies in `launch` install the package in their first cell."""
    repository = settings()["git_url"].removeprefix("https://github.com/")
    copy = f"launch/{folder}/{stem}.ipynb"
    started = (f"exercises/{stem.removeprefix('ex')}_exercises" if folder == "exercises" else       # as `transformer-course start` names it
               f"{folder}/{stem}".removeprefix("lessons/"))
    return {"Colab": f"https://colab.research.google.com/github/{repository}/blob/gh-pages/{copy}",
            "Binder": f"https://mybinder.org/v2/gh/{repository}/{settings()['branch']}?urlpath=lab/tree/learning/{started}.ipynb",
            "in a dev container": f"https://codespaces.new/{repository}?quickstart=1"}


def launch_copy(nb: dict, exercise: bool) -> dict:
    """A notebook to run elsewhere: its first cell installs the package; an exercise has neither solutions nor checks."""
    cells = nb["cells"]
    if exercise:
        cells = [fresh for cell in cells for fresh in exercise_cell(cell)]
    cells = [{**cell, "outputs": []} if cell["cell_type"] == "code" else cell for cell in cells]
    address = settings()["git_url"]
    first = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [],
             "source": f'%pip install -q "transformer-course @ git+{address}"'}
    return {**nb, "cells": [{**cell, "id": f"cell-{i}"} for i, cell in enumerate([cells[0], first, *cells[1:]])]}


# Notebooks

def read(path: Path) -> dict:
    nb = json.loads(path.read_text(encoding="utf-8"))
    for cell in nb["cells"]:
        cell["source"] = "".join(cell["source"])
    return nb


def module_of(nb: dict) -> str | None:
    """The module that a notebook writes."""
    found = [re.match(r"#\| ?default_exp ([\w.]+)", cell["source"]) for cell in nb["cells"]]
    return next((match[1] for match in found if match), None)


def page(path: Path, exercises: dict[str, str]) -> dict:
    """A notebook of the repository as a page: edited cells, and below the title where to run it."""
    nb, place = read(path), path.relative_to(NBS).with_suffix("").as_posix()
    exercise, module = place.startswith("exercises/"), module_of(nb)
    cells = [fresh for cell in nb["cells"] for fresh in (exercise_cell(cell) if exercise else reader_cell(cell, module))]
    fold(cells)
    describe(cells)
    for cell in cells:
        if cell["cell_type"] == "markdown":
            cell["source"] = relinked(cell["source"], f"nbs/{place}", place)
        for output in cell.get("outputs", []):
            if "text/html" in output.get("data", {}):
                output["data"]["text/html"] = to_pages("".join(output["data"]["text/html"]))
    head = [f"Run it on [{name}]({address})" if i == 0 else f"[{name}]({address})"
            for i, (name, address) in enumerate(launch(path.stem, posixpath.dirname(place)).items())]
    if path.stem in exercises:
        head.insert(0, f"[Exercises](/exercises/{exercises[path.stem]}.ipynb)")
    if module:
        head.append(f"[API](/api/{module}.rst)")
    cells.insert(1, markdown(":::{container} launch\n" + " · ".join(head) + "\n:::"))
    if path.stem in exercises:
        cells.append(markdown(toctree("", [f"/exercises/{exercises[path.stem]}"])))
    for i, cell in enumerate(cells):
        cell["id"] = f"cell-{i}"
    return {**nb, "cells": cells}


def toctree(caption: str, entries: list[str], **options: str) -> str:
    lines = [f":caption: {caption}"] if caption else []
    lines += [f":{name}: {value}".rstrip() for name, value in options.items()]
    return "\n".join(["```{toctree}", ":hidden:", *lines, "", *entries, "```"])


def parts() -> dict[str, tuple[str, list[tuple[str, str, str]]]]:
    """The course's parts from the map: name -> its line, and (text, place, question) of each lesson."""
    found, current = {}, None
    for line in map_text().split("\n"):
        if head := re.match(r"\*\*([^*]+)\.\*\* ?(.*)", line):
            current = head[1]
            found[current] = (head[2], [])
        elif line.startswith("#"):
            current = None
        elif (row := MAP_ROW.match(line)) and current and not row[1]:
            found[current][1].append((row[2], row[3].removesuffix(".ipynb"), row[4]))
    return {name: part for name, part in found.items() if part[1]}


def rooms() -> dict[str, list[tuple[str, str, str]]]:
    """The library's notebooks from the map: room -> (text, place, question) of each."""
    found = {}
    for row in filter(None, map(MAP_ROW.match, map_text().split("\n"))):
        if row[1]:
            found.setdefault(row[1], []).append((row[2], row[3].removesuffix(".ipynb"), row[4]))
    return found


def map_text() -> str:
    return "\n".join(cell["source"] for cell in read(NBS / "index.ipynb")["cells"] if cell["cell_type"] == "markdown")


def exercise_of() -> dict[str, str]:
    """Lesson -> its notebook of exercises, by the number both begin with; a notebook of the library may have one too."""
    lessons = {path.stem.partition("_")[0]: path.stem for folder in ("lessons", "library") for path in (NBS / folder).rglob("*.ipynb")}
    return {lessons[number]: path.stem for path in sorted((NBS / "exercises").glob("ex*.ipynb"))
            if (number := path.stem.removeprefix("ex").partition("_")[0]) in lessons}


# Pages that are made

def front_page() -> str:
    course, exercises = parts(), exercise_of()
    lines = ["# How sequence models became the Transformer", "",
             "A course in Jupyter notebooks, and the PyTorch library that these notebooks write. You build a recurrent "
             "translator, add attention, arrive at the Transformer, and go on to language models, Transformer-XL, BERT and T5. "
             "You need Python and school mathematics. Every claim is measured, and every lesson runs on two processor cores.", "",
             ":::{container} begin", "[Begin with lesson 00](lessons/00_warm_up.ipynb) [All words](words.md) [All results](results.md)", ":::", "",
             "![Two heat maps of attention over one sentence; the true links are outlined](demo_alignment.png)", "",
             "*Two models translate English into romanised Hindi. Each row is a Hindi word; the bright cells are the English words "
             "that the model looks at while it writes. The orange frames mark the true links, which no model was told.*", ""]
    for name, (line, lessons) in course.items():
        lines += [f"## {name}", "", line, "", "| lesson | what it answers | exercises |", "|---|---|---|"]
        for text, place, question in lessons:
            own = exercises.get(posixpath.basename(place))
            lines.append(f"| [{text}]({place}.ipynb) | {question} | " + (f"[exercises](exercises/{own}.ipynb) |" if own else "|"))
        lines.append("")
    lines += ["## To run it yourself", "", "```", f'pip install "transformer-course[lab] @ git+{settings()["git_url"]}"',
              "transformer-course start learning", "transformer-course lab learning", "```", "",
              "`start` copies lessons and exercises into a folder, and `lab` opens it. In an exercise you write a function; `check` "
              "tries it, and tells you the reason if it is wrong. Each lesson also has links that open it in Colab, in Binder, or in a "
              "dev container.", "", "## The library", "",
              "All code of the lessons is the package `transformer_course`. [Using it](using.md), its [reference](api/index.md), "
              "and [the notebooks that no learner needs](library/index.md).", ""]
    for name, (_, lessons) in course.items():
        lines += [toctree(name, [f"{text} <{place}>" for text, place, _ in lessons]), ""]
    learner, engineer = ["letters", "words", "results", "references"], ["using", "several_machines"]
    folders = [name for name in DOCUMENTS.values() if name.endswith("/index")]
    others = [name for name in DOCUMENTS.values() if "/" not in name and name not in [*learner, *engineer, "teaching"]]
    lines += [toctree("For the learner", learner), "",
              toctree("The library", [*engineer, *folders, "api/index", "library/index"]), "",
              toctree("Teach and contribute", ["teaching", *others, "contributing", "changelog"]), ""]
    return "\n".join(lines)


def library_page() -> str:
    exercises = exercise_of()
    lines = ["# Notebooks of the library", "", "You can skip these notebooks. Each writes a module of the package that no lesson "
             "explains line by line. They lie in the rooms of the package.", ""]
    for room, notebooks in rooms().items():
        lines += [f"## {room}", "", "| notebook | what it answers | exercises |", "|---|---|---|"]
        for text, place, question in notebooks:
            own = exercises.get(posixpath.basename(place))
            lines.append(f"| [{text}]({place.removeprefix('library/')}.ipynb) | {question} | "
                         + (f"[exercises](../exercises/{own}.ipynb) |" if own else "|"))
        lines.append("")
    entries = [f"{text} </{place}>" for notebooks in rooms().values() for text, place, _ in notebooks]
    return "\n".join([*lines, toctree("", entries), ""])


def letters_page() -> str:
    """The legend of shapes, with its examples, from the index notebook."""
    nb = read(NBS / "index.ipynb")
    starts = [i for i, cell in enumerate(nb["cells"]) if cell["cell_type"] == "markdown" and cell["source"].startswith("## ")]
    (first,) = [i for i in starts if nb["cells"][i]["source"].startswith("## The letters")]
    last = min([i for i in starts if i > first], default=len(nb["cells"]))
    cells = [fresh for cell in nb["cells"][first:last] for fresh in reader_cell(cell, None)]
    cells[0]["source"] = cells[0]["source"].removeprefix("#")
    fold(cells)
    for i, cell in enumerate(cells):
        cell["id"] = f"cell-{i}"
        if cell["cell_type"] == "markdown":
            cell["source"] = relinked(cell["source"], "nbs/index.ipynb", "letters")
    return json.dumps({**nb, "cells": cells}, ensure_ascii=False)


def words_page() -> str:
    """The glossary, with an anchor for each word."""
    places = {path.stem.partition("_")[0]: path.relative_to(NBS).as_posix()
              for folder in ("lessons", "library") for path in (NBS / folder).rglob("*.ipynb")}
    lines = ["# The words", "", "Each in a sentence, with the lessons that make it exact.", ""]
    for word in words.glossary(NBS / "index.ipynb"):
        shown = ", ".join(f"[{n}]({places[n]})" if n in places else n for n in word.lessons)
        lines += [f"({word.anchor})=", f"**{word.term}** {word.meaning} · {shown}", ""]
    return "\n".join(lines)


def references_page(cited: dict[str, list[tuple[str, str]]]) -> str:
    """The works that are cited, and where: `cited` is key -> (text of a link, place) of each notebook that cites it."""
    lines = ["# References", "", "Works that the lessons, the library's notebooks and its docstrings cite.", ""]
    found = words.bibliography(Path(__file__).parent / "references.bib")
    for key in sorted(found.keys() & cited.keys(), key=lambda key: (words.key_of(found[key]["author"].split(",")[0], ""), found[key]["year"])):
        entry = found[key]
        said = re.sub(r"([$*_])", r"\\\1", entry["title"])              # as text, where Markdown would read a sign
        title = f"[{said}]({entry['url']})" if "url" in entry else f"*{said}*"
        where = ", ".join(f"[{text}](/{place}.ipynb)" for text, place in cited.get(key, []))
        lines += [f"(ref-{key})=", f"{words.authors(entry)} ({entry['year']}). {title}. {entry.get('venue', '')}."
                  .replace(". .", ".") + (f" Cited in {where}." if where else ""), ""]
    return "\n".join(lines)


def api_pages() -> dict[str, str]:
    """A page for each module, and one in front of them with the picture of the modules."""
    known = module_map.modules(ROOT / "transformer_course")
    pages, by_room = {}, {}
    for module, source in known.items():
        purpose = ast.get_docstring(ast.parse(source))
        if not purpose or module.endswith("__init__"):
            continue
        notebook = re.search(r"^# AUTOGENERATED.*?nbs/([\w/]+)\.ipynb", source, re.M)
        named = f"Written by the notebook :doc:`/{notebook[1]}`.\n\n" if notebook else ""
        pages[module] = (f"{module}\n{'=' * len(module)}\n\n{named}.. automodule:: transformer_course.{module}\n   :members:\n   :ignore-module-all:\n")
        by_room.setdefault(module_map.room(module), []).append((module, purpose.split("\n")[0]))
    lines = ["# API reference", "", "An arrow leads from a room, a folder of the package, to one that it imports from. An import that "
             "comes along with another one is not drawn.", "",
             "![The rooms of the package on their floors, with arrows from each to those that it imports from](../modules.svg)", ""]
    for room in [name for name in module_map.ROOMS if name in by_room]:
        lines += [f"## {room}", "", module_map.ROOMS[room].capitalize() + ".", "", "| module | what it is for |", "|---|---|"]
        lines += [f"| [{module}]({module}.rst) | {purpose} |" for module, purpose in by_room[room]] + [""]
    entries = [module for room in module_map.ROOMS for module, _ in by_room.get(room, [])]
    return {f"{module}.rst": text for module, text in pages.items()} | {"index.md": "\n".join([*lines, toctree("", entries), ""])}


def main(folder: Path, only: list[str]) -> None:
    """Write everything into a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    exercises, cited, known = exercise_of(), {}, words.bibliography(Path(__file__).parent / "references.bib")
    paths = [path for kind in ("lessons", "library", "exercises") for path in sorted((NBS / kind).rglob("*.ipynb"))
             if ".ipynb_checkpoints" not in path.parts]
    for path in paths:
        place = path.relative_to(NBS)
        number = path.stem.removeprefix("ex").partition("_")[0]
        nb = read(path)
        for _, _, key, second in words.citations("\n".join(cell["source"] for cell in nb["cells"])):
            key = words.work(known, key, second, number)
            if key and (number, place.with_suffix("").as_posix()) not in cited.setdefault(key, []):
                cited[key].append((number, place.with_suffix("").as_posix()))
        if only and not path.stem.removeprefix("ex").startswith(tuple(only)):
            continue
        for root, made in ((folder, page(path, exercises)), (folder / "extra" / "launch", launch_copy(nb, "exercises" in place.parts))):
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            (root / place).write_text(json.dumps(made, ensure_ascii=False), encoding="utf-8")
    for source in PAGES:
        if source.endswith(".md"):
            for _, _, key, second in words.citations((ROOT / source).read_text(encoding="utf-8")):
                if key := words.work(known, key, second, ""):
                    cited.setdefault(key, [])
    made = {"index.md": front_page(), "library/index.md": library_page(), "letters.ipynb": letters_page(), "words.md": words_page(),
            "references.md": references_page(cited)}
    made |= {f"{name}.md": relinked((ROOT / source).read_text(encoding="utf-8"), source, name)
             for source, name in PAGES.items() if name != "index"}
    for name in [name for name in DOCUMENTS.values() if name.endswith("/index")]:                # below it, the others of its folder
        beside = [f"/{other}" for other in DOCUMENTS.values() if other != name and posixpath.dirname(other) == posixpath.dirname(name)]
        made[f"{name}.md"] += "\n\n" + toctree("", beside) + "\n"
    made |= {f"api/{name}": text for name, text in api_pages().items() if not only or name.startswith(("index", "models.a"))}
    for name, text in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for place in ("docs", "experiments/results", "benchmarks/results"):
        for picture in [*(ROOT / place).glob("*.png"), *(ROOT / place).glob("*.svg")]:
            shutil.copy(picture, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

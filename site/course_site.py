"""What the site adds to Sphinx: mathematics set while it is built, folded *Checks*, and links to words, works and sources.

A Sphinx extension; what it looks for in texts is in `words`, and what it does to finished pages is in `finish`.
"""
import json
import re
from functools import cache
from pathlib import Path
from types import FunctionType

import finish
import words
from docutils import nodes
from sphinx.util import logging

HERE = Path(__file__).parent
FRACTIONS = {"¼": r"\tfrac14", "½": r"\tfrac12", "¾": r"\tfrac34", "⅓": r"\tfrac13", "⅔": r"\tfrac23"}
log = logging.getLogger(__name__)


# Mathematics: KaTeX runs in a small JavaScript machine here, so that readers need neither a script nor a network

@cache
def _katex():
    import quickjs
    machine = quickjs.Context()
    machine.eval((HERE / "katex" / "katex.min.js").read_text(encoding="utf-8"))
    # as JSON: this machine keeps a long text that was joined as a rope, which cannot be handed over
    return machine.eval("(tex, display) => JSON.stringify(katex.renderToString(tex, "
                        "{displayMode: display, throwOnError: true, strict: 'error'}))")


@cache
def rendered(tex: str, display: bool) -> str:
    """HTML of a formula, with MathML for screen readers. Raises ValueError for one that KaTeX does not understand."""
    for sign, written in FRACTIONS.items():
        tex = tex.replace(sign, written)
    if display and r"\\" in tex and r"\begin" not in tex:
        tex = rf"\begin{{aligned}}{tex}\end{{aligned}}"
    try:
        return json.loads(_katex()(tex, display))
    except Exception as problem:
        raise ValueError(str(problem).split("\n")[0]) from None


def _formula(writer, node, display: bool) -> None:
    tex = node.astext()
    try:
        html = rendered(tex, display)
    except ValueError as problem:
        log.warning("%s", problem, location=node)
        html = f"<code>{writer.encode(tex)}</code>"
    writer.body.append(f'<div class="formula" tabindex="0">{html}</div>\n' if display else html)
    raise nodes.SkipNode


# Folding

class Fold(nodes.General, nodes.Element):
    """A closed drop-down; `summary` is what is seen of it."""


def _open_fold(writer, node) -> None:
    writer.body.append(f'<details class="fold"><summary>{writer.encode(node["summary"])}</summary>\n')


def _close_fold(writer, node) -> None:
    writer.body.append("</details>\n")


def fold_checks(app, doctree) -> None:
    """What stands below the heading *Checks* is in a closed drop-down."""
    for section in list(doctree.findall(nodes.section)):
        if section[0].astext() == "Checks":
            inside = section.children[1:]
            cells = sum("cell_input" in node.get("classes", []) for part in inside for node in part.findall(nodes.container))
            fold = Fold(summary=f"Show what must hold ({cells} cells)" if cells else "Show what must hold")
            fold += inside
            section.children[1:] = []
            section += fold


# Words, works, sources

class Source(nodes.General, nodes.Inline, nodes.TextElement):
    """A link to the source of a name of the package."""


def source_role(name, rawtext, text, lineno, inliner, options=None, content=None):
    return [Source(text, "source", name=text)], []


def _linked(text: str, found: list[tuple[int, int, nodes.reference]]) -> list[nodes.Node]:
    "A text in which some stretches are links."
    parts, end = [], 0
    for start, stop, link in found:
        parts += [nodes.Text(text[end:start]), link]
        end = stop
    return [part for part in [*parts, nodes.Text(text[end:])] if part.astext()]


def _texts(doctree) -> list[nodes.Text]:
    "Running text: no code, mathematics, headings or links."
    closed = (nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.title, nodes.reference, nodes.raw, nodes.image,
              nodes.comment, nodes.term, Source)
    found = []
    for text in doctree.findall(nodes.Text):
        above = text.parent
        while above is not None and not isinstance(above, closed) and "desc_sig" not in type(above).__name__ \
                and type(above).__name__ not in ("desc_signature", "pending_xref") \
                and not {"cell_output", "launch", "in-library"} & set(getattr(above, "attributes", {}).get("classes", [])):
            above = above.parent
        if above is None:
            found.append(text)
    return found


def link_texts(app, doctree, docname: str) -> None:
    """Link each work that is cited, and in lessons and exercises the first use of each word of the glossary."""
    to = lambda page, anchor, shown, **more: nodes.reference(
        "", shown, internal=True, refuri=f"{app.builder.get_relative_uri(docname, page)}#{anchor}", **more)
    for node in list(doctree.findall(Source)):
        module, _, name = node["name"].rpartition(".")
        page = app.builder.get_relative_uri(docname, "_modules/" + module.replace(".", "/"))
        node.replace_self(nodes.reference("", "source", internal=True, refuri=f"{page}#{name}", classes=["source"],
                                          reftitle=f"the source of {name}"))
    known = words.bibliography(HERE / "references.bib") if docname != "references" else {}
    expression, of = _glossary() if docname.startswith(("lessons/", "exercises/")) else (None, {})
    used, lesson = set(), docname.rpartition("/")[2].removeprefix("ex").partition("_")[0]
    for text in _texts(doctree):
        found = [(start, end, to("references", f"ref-{key}", text[start:end], classes=["cited"], reftitle=known[key]["title"]))
                 for start, end, plain, second in words.citations(text) if (key := words.work(known, plain, second, lesson))]
        if expression:
            for match in expression.finditer(text):
                word = words.word_of(match[0], of, lesson if docname.startswith("lessons/") else "")
                if word and word.anchor not in used and not any(start < match.end() and match.start() < end for start, end, _ in found):
                    used.add(word.anchor)
                    meaning = re.sub(r"[*`$\\]", "", word.meaning)
                    found.append((*match.span(), to("words", word.anchor, match[0], classes=["word"], reftitle=f"{word.term}: {meaning}")))
        if found:
            parts = _linked(str(text), sorted(found, key=lambda one: one[:2]))
            text.parent.replace(text, parts)


@cache
def _glossary():
    return words.pattern(words.glossary(HERE.parent / "nbs" / "index.ipynb"))


def plain_docstring(app, what, name, obj, options, lines: list[str]) -> None:
    """Docstrings are prose: stars, bars and final underscores mean themselves, outside of backticks; `Pair`s is a plural."""
    for i, line in enumerate(lines):
        line = re.sub(r"(`[^`]+`)(?=\w)", r"\1\\ ", line)
        parts = re.split(r"(`[^`]*`)", line)
        lines[i] = "".join(part if part.startswith("`") else re.sub(r"(\*|\||(?<=\w)_(?!\w))", r"\\\1", part) for part in parts)


def only_definitions(app, what, name, obj, skip, options):
    """A module's page lists functions and classes; a constant would show the docstring of its type."""
    return True if what == "module" and not (isinstance(obj, type | FunctionType) or hasattr(obj, "__wrapped__")) else None


def forget_modules_without_source(app) -> list:
    """The index of sources would link modules that are written in C, such as `builtins`."""
    modules = getattr(app.env, "_viewcode_modules", {})
    for name in [name for name, entry in modules.items() if not entry]:
        del modules[name]
    return []                                           # no page is added


def carry_launch_copies(app, config) -> None:
    """Notebooks to launch lie beside the sources, and are carried as they are."""
    if (Path(app.srcdir) / "extra").is_dir():
        config.html_extra_path = [str(Path(app.srcdir) / "extra")]


def finish_pages(app, problem) -> None:
    if problem is None and app.builder.format == "html":
        finish.pages(Path(app.outdir))


def setup(app):
    app.add_node(Fold, html=(_open_fold, _close_fold))
    app.add_node(Source)
    app.add_role("source", source_role)
    app.add_html_math_renderer("katex", (lambda w, n: _formula(w, n, False), None), (lambda w, n: _formula(w, n, True), None))
    app.connect("autodoc-skip-member", only_definitions)
    app.connect("config-inited", carry_launch_copies)
    app.connect("doctree-read", fold_checks)
    app.connect("doctree-resolved", link_texts, priority=900)
    app.connect("autodoc-process-docstring", plain_docstring, priority=100)
    app.connect("html-collect-pages", forget_modules_without_source, priority=100)
    app.connect("build-finished", finish_pages, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True, "version": "1"}

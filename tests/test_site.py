"""The website: what becomes of the notebooks' cells, words, works and links; and with Sphinx installed, a small build.

Nothing here needs Sphinx, a browser or a network but the last test, which is skipped without Sphinx; `make site` installs it.
"""
import importlib.util
import json
import re
import subprocess
import sys

import check_links
import notebooks
import pytest

from transformer_course.checking.editions import places

sys.path.insert(0, str(notebooks.ROOT / "site"))

import finish  # noqa: E402
import prepare  # noqa: E402
import words  # noqa: E402

KNOWN = words.bibliography(notebooks.ROOT / "site" / "references.bib")


def code(source, tags=(), outputs=(), hidden=False):
    metadata = ({"tags": list(tags)} if tags else {}) | ({"jupyter": {"source_hidden": True}} if hidden else {})
    return {"cell_type": "code", "source": source, "metadata": metadata, "outputs": list(outputs), "execution_count": 1}


def picture(**forms):
    return {"output_type": "display_data", "data": {f"image/{kind}": value for kind, value in forms.items()}, "metadata": {}}


def test_links_in_what_a_cell_shows_lead_to_pages():
    shown = '<a href="14a_worth.ipynb">14a</a> <a href="20_a.ipynb#b">20</a> <a href="https://x.y/z.ipynb">z</a>'
    assert prepare.to_pages(shown) == shown.replace("14a_worth.ipynb", "14a_worth.html").replace("20_a.ipynb", "20_a.html")
    page = prepare.page(notebooks.NBS / "lessons" / "49_what_holds.ipynb", prepare.exercise_of())
    tables = "".join("".join(output.get("data", {}).get("text/html", "")) for cell in page["cells"] for output in cell.get("outputs", []))
    found = re.findall(r'<a href="(\w+)\.html" ', tables)
    assert len(found) > 35 and all((notebooks.NBS / "lessons" / f"{name}.ipynb").is_file() for name in found) and ".ipynb" not in tables


# Cells

def test_directives_seeding_and_upkeep_are_gone():
    for cell in (code("#| default_exp models.rnn"), code("#| hide\nreproducible(seed=1)"), code("assert True", ["upkeep"])):
        assert prepare.reader_cell(cell, "models.rnn") == []


def test_an_exported_cell_leads_to_its_entries_and_sources():
    shown, links = prepare.reader_cell(code("#| export\nclass A: ...\n\ndef _b(): ...\n\ndef c(): ...\n\nD = 1"), "models.rnn")
    assert shown["source"].startswith("class A") and "#|" not in shown["source"]
    assert re.findall(r"`(\w+) <transformer_course\.models\.rnn\.\1>`", links["source"]) == ["A", "c"]
    assert links["source"].count("{source}`transformer_course.models.rnn.") == 2
    assert len(prepare.reader_cell(code("def not_exported(): ..."), "models.rnn")) == 1


def test_a_solution_is_never_on_a_page():
    cell = code("def f(x):\n    ### BEGIN SOLUTION\n    return x.softmax(-1)\n    ### END SOLUTION", ["exercise"], [picture(png="x")])
    (shown,) = prepare.exercise_cell(cell)
    assert "softmax" not in shown["source"] and "YOUR CODE HERE" in shown["source"] and shown["outputs"] == []
    assert prepare.exercise_cell(code("mistakes = {}", ["checks"])) == []
    assert prepare.exercise_cell(code("print(1)", ["shown"], ["kept"]))[0]["outputs"] == ["kept"]


@pytest.mark.parametrize("path", sorted((notebooks.NBS / "exercises").glob("*.ipynb")), ids=lambda path: path.stem)
def test_no_page_and_no_copy_has_a_solution(path):
    nb = prepare.read(path)
    secrets = [line.strip() for cell in nb["cells"] if "exercise" in prepare.tags(cell)
               for part in re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", cell["source"], re.S) for line in part.splitlines()]
    for made in (prepare.page(path, prepare.exercise_of()), prepare.launch_copy(nb, exercise=True)):
        lines = {line.strip() for cell in made["cells"] if "exercise" in prepare.tags(cell) or "YOUR CODE HERE" in cell["source"]
                 for line in cell["source"].splitlines()}
        assert not any("SOLUTION" in line for line in lines)
        given = {line.strip() for cell in nb["cells"] if "exercise" not in prepare.tags(cell) for line in cell["source"].splitlines()}
        outside = {line.strip() for cell in nb["cells"] if "exercise" in prepare.tags(cell)
                   for line in re.sub(r"### BEGIN SOLUTION\n.*?### END SOLUTION", "", cell["source"], flags=re.S).splitlines()}
        assert lines & set(secrets) <= given | outside | {""}
        assert not any("checks" in prepare.tags(cell) for cell in made["cells"])


def test_imports_and_what_jupyterlab_folds_are_folded():
    cells = [code("import torch\nfrom a import b\n\nplots.use_style()"), code("x = 1"), code("draw()", hidden=True, outputs=[picture(png="")]),
             prepare.markdown("## Checks\n\nWhat must hold."), code("assert x", hidden=True), prepare.markdown("## Going further"),
             code("y = 2", hidden=True)]
    prepare.fold(cells)
    assert [prepare.tags(cell) for cell in cells if cell["cell_type"] == "code"] == [["hide-input"], [], ["hide-input"], [], ["hide-input"]]
    assert "imports" in cells[0]["metadata"]["mystnb"]["code_prompt_show"]


def test_every_picture_has_words():
    drawing = picture(**{"svg+xml": "<svg><title>One &amp; two</title></svg>", "png": "x"})
    cells = [prepare.markdown("## The $a_b$ part"), code("d()", outputs=[drawing]), code("p()", outputs=[picture(png="x")]),
             prepare.markdown("*Each point is a `group`. The band is wide.*\n\nMore"), code("q()", outputs=[picture(png="x")])]
    prepare.fold(cells)
    prepare.describe(cells)
    assert [cell["metadata"]["mystnb"]["image"]["alt"] for cell in cells if cell["cell_type"] == "code"] == [
        "One &amp; two", "Each point is a group.", "Picture of the section “The ab part”"]
    assert "image/png" not in drawing["data"], "a drawing is shown sharp"


# Links

@pytest.mark.parametrize("text, expected", [
    ("[20](20_attention.ipynb)", "[20](20_attention.ipynb)"),
    ("[14](../lessons/14_additive.ipynb#Whom-to-ask,-and-how?)", "[14](14_additive.ipynb#whom-to-ask-and-how)"),
    ("[ex](../exercises/ex20_attention.ipynb)", "[ex](../exercises/ex20_attention.ipynb)"),
    ("[map](../index.ipynb)", "[map](../index.md)"), ("[words](../index.ipynb#The-words)", "[words](../words.md)"),
    ("[r](../../docs/results.md)", "[r](../results.md)"), ("[x](https://a.org/b.ipynb)", "[x](https://a.org/b.ipynb)"),
    ("[s](../../Makefile)", "[s](https://github.com/transformer-course/transformer-course/blob/main/Makefile)")])
def test_links_of_the_repository_become_links_of_the_site(text, expected):
    assert prepare.relinked(text, "nbs/lessons/21_positions.ipynb", "lessons/21_positions") == expected


def test_a_broken_link_is_told(tmp_path):
    head = "<html lang='en'><title>t</title>"
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text(f"{head}<a href='a/b.html#here'>b</a><img src='no.png' alt=''><a href='https://x.org'>x</a>")
    (tmp_path / "a" / "b.html").write_text(f"{head}<p id='here'><a href='../index.html'>up</a><a href='#gone'>g</a><img src='../index.html'>")
    found, followed, outside = check_links.faults(tmp_path)
    assert sorted(found) == ["a/b.html: #gone has no such anchor", "a/b.html: a picture without words: ../index.html",
                             "index.html: no.png leads nowhere"]
    assert (followed, outside) == (4, 1)
    assert check_links.main(tmp_path) == 1
    assert check_links.main(tmp_path / "nothing") == 2


def test_launch_copies_install_the_package_first():
    copy = prepare.launch_copy(prepare.read(notebooks.NBS / "lessons" / "20_attention.ipynb"), exercise=False)
    title, first = copy["cells"][:2]
    assert title["source"].startswith("# ") and first["source"].startswith("%pip install") and first["cell_type"] == "code"
    assert len({cell["id"] for cell in copy["cells"]}) == len(copy["cells"])
    assert "gh-pages/launch/lessons/20_attention.ipynb" in prepare.launch("20_attention", "lessons")["Colab"]


def test_binder_opens_what_a_learner_gets():
    """The folder `learning` that .binder/postBuild starts has a notebook of each name that a page leads to."""
    there = set(places().values())
    for path in notebooks.notebooks():
        if path.name != "index.ipynb":
            address = prepare.launch(path.stem, path.parent.relative_to(notebooks.NBS).as_posix())["Binder"]
            assert address.partition("lab/tree/learning/")[2] in there, path


# Words and works

def test_words_are_found_in_their_forms():
    rows = [words.Word("alignment error rate (AER)", "", ()), words.Word("query, key, value", "", ()), words.Word("error", "", ())]
    expression, of = words.pattern(rows)
    found = [(match[0], words.word_of(match[0], of).term.split()[0]) for match in
             expression.finditer("Alignment error rates, AER; aer; queries, Keys, monkey, error-prone, errors")]
    assert found == [("Alignment error rates", "alignment"), ("AER", "alignment"), ("Keys", "query,"), ("errors", "error")]


def test_an_everyday_word_is_a_word_of_the_glossary_in_its_lessons_only():
    expression, of = words.pattern([words.Word("cell", "", ("10",))])
    assert words.word_of("Cells", of, "10") is not None and words.word_of("cell", of, "20") is None


@pytest.mark.parametrize("text, keys", [
    ("[Bahdanau et al. 2015, §3.2]", ["bahdanau2015"]), ("Radford et al. 2018 and 2019", ["radford2018", "radford2019"]),
    ("Luong, Pham & Manning 2015", ["luong2015"]), ("Popović 2015", ["popovic2015"]), ("Holtzman et al. (2020)", ["holtzman2020"]),
    ("van Merriënboer 2014", ["merrienboer2014"]), ("room 2015", [])])
def test_citations_are_found(text, keys):
    assert [key for _, _, key, _ in words.citations(text)] == keys


def test_two_works_of_one_name_and_year_are_told_apart():
    known = {"zhang2019": {}, "zhang2019-sennrich": {}, "liu2018": {}, "liu2018-43": {}}
    assert words.work(known, "zhang2019", "sennrich", "22") == "zhang2019-sennrich"
    assert words.work(known, "liu2018", "", "43") == "liu2018-43" and words.work(known, "liu2018", "", "30") == "liu2018"
    assert words.work(known, "nobody2018", "", "30") is None


def test_the_bibliography_is_complete():
    assert all({"author", "title", "year", "venue"} <= set(entry) for entry in KNOWN.values())
    assert all(entry["url"].startswith("https://") for entry in KNOWN.values() if "url" in entry)
    missing = {}
    for path in notebooks.notebooks():
        number = path.stem.removeprefix("ex").partition("_")[0]
        for cell in prepare.read(path)["cells"]:
            cited = re.findall(r"\[[^\[\]]*\d{4}[^\[\]]*\](?!\()|^\*\*Sources?.*$", cell["source"], re.M) if cell["cell_type"] == "markdown" else []
            for text in cited:
                for _, _, key, second in words.citations(text):
                    if words.work(KNOWN, key, second, number) is None:
                        missing.setdefault(key, []).append(path.name)
    assert missing == {}, "add these works to site/references.bib"


def test_the_page_of_references_has_what_is_cited():
    page = prepare.references_page({"vaswani2017": [("20", "lessons/20_attention")], "zhang2019-sennrich": []})
    assert "(ref-vaswani2017)=" in page and "Cited in [20](/lessons/20_attention.ipynb)" in page
    assert "(ref-zhang2019-sennrich)=" in page and "bahdanau2015" not in page


def test_signs_in_a_title_are_text_on_the_page_of_references():
    assert r"Single \$&!#\* Vector" in prepare.references_page({"conneau2018": []})


def test_every_word_of_the_glossary_has_an_anchor_of_its_own():
    rows = words.glossary(notebooks.NBS / "index.ipynb")
    assert len(rows) > 100 and len({row.anchor for row in rows}) == len(rows)
    page = prepare.words_page()
    assert all(f"({row.anchor})=" in page for row in rows)


# Pages

def test_every_notebook_has_its_place_in_the_sidebar():
    listed = "\n".join([prepare.front_page(), prepare.library_page()])
    for path in notebooks.notebooks():
        place = path.relative_to(notebooks.NBS).with_suffix("").as_posix()
        if path.parent.name not in ("exercises", "nbs"):
            assert re.search(rf"</?{place}>", listed), place
    assert set(prepare.exercise_of().values()) == {path.stem for path in (notebooks.NBS / "exercises").glob("*.ipynb")}


def test_every_module_has_a_page():
    pages = prepare.api_pages()
    for module in notebooks.modules():
        if f"{module}.rst" in pages:
            assert f"automodule:: transformer_course.{module}\n" in pages[f"{module}.rst"] and f"]({module}.rst)" in pages["index.md"]
    assert {f"{module}.rst" for module in notebooks.modules()} <= set(pages) and "modules.svg" in pages["index.md"]


def test_pictures_know_their_size(tmp_path):
    (tmp_path / "a.svg").write_text('<svg width="360pt" height="129pt"></svg>')
    (tmp_path / "b.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\x80\0\0\x01\xe0" + b"\0" * 20)
    page = finish.with_sizes('<img alt="" src="a.svg"/><img src="b.png"><img src="https://x.org/c.png">', tmp_path)
    assert page == ('<img width="480" height="172" alt="" src="a.svg"/><img width="640" height="480" src="b.png">'
                    '<img src="https://x.org/c.png">')


def test_what_the_theme_leaves_without_a_name_gets_one():
    page = finish.with_names('<li><a class="reference" href="x.html">14 additive</a><details><summary><i></i></summary></details>'
                             '<summary aria-label="Toggle hidden content"><p>Show</p></summary><pre>x</pre>'
                             '<button class="btn search-button-field" aria-label="Search">Search</button><button title="Light"><i></i></button>')
    assert '<summary aria-label="Pages below 14 additive"><i>' in page and "<summary><p>Show" in page and '<pre tabindex="0">' in page
    assert '<button class="btn search-button-field">' in page and '<button aria-label="Light" title="Light">' in page


@pytest.mark.skipif(not all(map(importlib.util.find_spec, ("sphinx", "myst_nb", "sphinx_book_theme", "quickjs"))),
                    reason="needs what builds the site: pip install -e .[site], or make site")
def test_a_page_is_built(tmp_path):
    prepare.main(tmp_path / "source", ["20_attention"])
    done = subprocess.run([sys.executable, "-m", "sphinx", "-q", "-c", str(notebooks.ROOT / "site"), "-D", "exclude_patterns=api,library,extra",
                           str(tmp_path / "source"), str(tmp_path / "out")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    page = (tmp_path / "out" / "lessons" / "20_attention.html").read_text(encoding="utf-8")
    assert 'class="katex"' in page and "<math" in page and "katex-error" not in page
    assert '<details class="fold"><summary>Show what must hold' in page
    assert 'class="word reference internal"' in page and "references.html#ref-vaswani2017" in page and "#| export" not in page
    assert not re.search(r"<img(?![^>]*\bheight=)[^>]*_images", page)
    assert json.loads((tmp_path / "out" / "launch" / "lessons" / "20_attention.ipynb").read_text(encoding="utf-8"))["cells"]

"""The notebooks that a learner gets: they run from top to bottom in a started folder, with nothing answered yet."""
import json
import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path

import nbformat

from transformer_course.checking import course, reports
from transformer_course.checking.exercise_notebooks import all_exercises


def test_student_notebooks_run_and_nothing_counts_as_attempted(tmp_path):
    folder = tmp_path / "learning"
    course.start(folder)
    script = Path(__file__).with_name("run_cells.py")     # a kernel for each would take minutes; test_browser has real ones
    done = subprocess.run([sys.executable, script, folder / "exercises"], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    noted = json.loads((folder / "progress.json").read_text(encoding="utf-8"))["exercises"]
    assert noted.keys() == all_exercises().keys(), "every exercise has its check"
    assert {entry["status"] for entry in noted.values()} == {"not attempted"}


def test_a_second_start_after_an_upgrade_keeps_every_answer(tmp_path, monkeypatch):
    folder = tmp_path / "learning"
    course.start(folder)
    mine = folder / "exercises" / "20_attention_exercises.ipynb"
    mine.write_text("answered", encoding="utf-8")
    shipped = course.student_lessons()
    monkeypatch.setattr(course, "student_lessons", lambda: {name: content + b" " for name, content in shipped.items()} | {"99_new.ipynb": b"new"})
    again = course.start(folder)
    assert again.added == ["99_new.ipynb"] and set(again.older) == set(shipped) and mine.read_text(encoding="utf-8") == "answered"
    assert again.yours == ["exercises/20_attention_exercises.ipynb"] and again.gone == []
    assert all((folder / name).read_bytes() == content for name, content in shipped.items())


def test_a_learners_lesson_runs_as_the_repositorys_does(tmp_path):
    """Without directives of the build, with its seeds folded, and with a link to exercises that exist and lead back."""
    folder = tmp_path / "learning"
    course.start(folder)
    for path in (*folder.glob("*.ipynb"), *folder.glob("library/**/*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        nbformat.validate(notebook)
        for cell in notebook["cells"]:
            text = "".join(cell["source"])
            assert cell["cell_type"] == "markdown" or not text.startswith("#|")
            if text.startswith("from transformer_course.records import reproducible\nreproducible("):
                assert cell["metadata"]["jupyter"]["source_hidden"]
            if text.startswith("[Exercises]("):
                there = path.parent / text.partition("(")[2].partition(")")[0]
                back = json.loads(there.read_text(encoding="utf-8"))["cells"][1]["source"]
                assert "".join(back) == f"[Back to the lesson](../{path.relative_to(folder).as_posix()})"
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "--nbval-lax", "--nbval-current-env", "-p", "no:cacheprovider",
                           "--rootdir", str(folder), *(str(folder / name) for name in ("00_index.ipynb", "00_map.ipynb", "00_warm_up.ipynb", "library/hall/07_protocols.ipynb"))],
                          capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_learners_folder_is_a_path_and_every_link_leads_on(tmp_path):
    """First page, map and lessons stand in reading order; the first page leads to lesson 00, and each lesson to the next."""
    folder = tmp_path / "learning"
    course.start(folder)
    places = {path.relative_to(folder).as_posix() for path in folder.rglob("*.ipynb")}
    links = {}
    for place in places:
        cells = json.loads((folder / place).read_text(encoding="utf-8"))["cells"]
        prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        found = re.findall(r"\[([^]]*)\]\(([^)\s:#]+\.ipynb)", prose)
        links[place] = {name: posixpath.normpath(posixpath.join(posixpath.dirname(place), there)) for name, there in found}
        assert set(links[place].values()) <= places, place
    top = sorted(place for place in places if "/" not in place)
    assert top[:3] == ["00_index.ipynb", "00_map.ipynb", "00_warm_up.ipynb"] and links["00_index.ipynb"]["lesson 00"] == top[2]
    assert [links[place]["Next lesson"] for place in top[2:-1]] == top[3:], "one after another"
    assert all(links[place]["First page"] == "00_index.ipynb" for place in places if place.startswith(("library/", *top[1:])))
    assert {"library/checking/90a_course.ipynb", "library/cli/91_cli.ipynb", "library/data/hindi/02e_hindi_forms.ipynb"} <= places


def test_the_first_page_fits_a_screen():
    page = json.loads(course.student_lessons()["00_index.ipynb"])
    words = " ".join("".join(cell["source"]) for cell in page["cells"]).split()
    assert len(page["cells"]) == 3 and len(words) < 200
    for question in ("Where you are", "What to do now", "What you have done"):
        assert f"**{question}" in "".join(page["cells"][0]["source"])


def test_the_first_page_names_the_helpers_and_counts_as_progress_does(tmp_path):
    from transformer_course.checking.learner import progress
    (tmp_path / "course.json").write_text("{}", encoding="utf-8")
    page = "".join(json.loads(course.student_lessons()["00_index.ipynb"])["cells"][0]["source"])
    exercises, lessons = re.search(r"of (\d+) exercises, 0 of (\d+) lessons", repr(progress(tmp_path))).groups()
    assert f"{lessons} lessons with {exercises} exercises" in page and "`hint(1)`" in page and "`solution()`" in page


def test_lab_leaves_the_users_own_settings_alone(tmp_path, monkeypatch):
    """It adds defaults in the folder, beside configuration that was there; a folder that cannot be written to still opens."""
    course.start(tmp_path / "learning")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/etc/mine")
    options, variables = course.lab_options(tmp_path / "learning")
    mine, ours = variables["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    told = json.loads((Path(ours) / "labconfig" / "default_setting_overrides.json").read_text(encoding="utf-8"))
    assert mine == "/etc/mine" and told["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
    assert told["@jupyterlab/notebook-extension:tracker"]["codeCellConfig"]["lineWrap"]        # no line scrolls sideways
    assert "--LabApp.default_url=/lab/tree/00_index.ipynb" in options and set(tmp_path.iterdir()) == {tmp_path / "learning"}
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / ".lab").write_text("in the way", encoding="utf-8")
    options, variables = course.lab_options(tmp_path / "full")
    assert variables == {} and len(options) == 1


def luminance(colour):
    """How much light a colour gives off, from 0 to 1 [WCAG 2.2, relative luminance]."""
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    return sum(w * (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4) for w, p in zip((0.2126, 0.7152, 0.0722), parts))


def contrast(one, other):
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def test_reports_can_be_read_on_white_and_on_dark_pages():
    """Letters are the page's own, or have 4.5 to 1 with what lies behind them; borders have 3 to 1 with either page."""
    assert round(contrast("#FFFFFF", "#000000")) == 21 and contrast("#777777", "#777777") == 1
    for status in reports.MARKS:
        shown = reports.Report("f", status, "a reason")._repr_html_()
        shown += reports.Progress({"00_a": {"f": status}}, {"f": "00.1 F"})._repr_html_()
        styles = [dict(part.split(": ", 1) for part in style.split("; ") if part) for style in re.findall('style="([^"]*)"', shown)]
        assert sum("color" in style for style in styles) == (2 if status != "not attempted" else 0) + 3      # three in the legend
        for style in styles:
            assert ("color" in style) == ("background-color" in style)
            assert "color" not in style or contrast(style["color"], style["background-color"]) >= 4.5
            for name in {"border", "border-left"} & style.keys():
                assert min(contrast(style[name].split()[-1], page) for page in ("#FFFFFF", "#111111")) >= 3

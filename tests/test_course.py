"""The notebooks that a learner gets: they run from top to bottom in a started folder, with nothing answered yet."""
import json
import subprocess
import sys

import nbformat

from transformer_course import course
from transformer_course.exercise_notebooks import all_exercises


def test_student_notebooks_run_and_nothing_counts_as_attempted(tmp_path):
    folder = tmp_path / "learning"
    course.start(folder)
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "--nbval-lax", "--nbval-current-env", "-p", "no:cacheprovider",
                           "--rootdir", str(folder), str(folder / "exercises")], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout[-3000:]
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
    assert again.yours == ["exercises/20_attention_exercises.ipynb"]
    assert all((folder / name).read_bytes() == content for name, content in shipped.items())


def test_a_learners_lesson_runs_as_the_repositorys_does(tmp_path):
    """Without directives of the build, with its seeds folded, and with a link to exercises that exist and lead back."""
    folder = tmp_path / "learning"
    course.start(folder)
    for path in folder.glob("*.ipynb"):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        nbformat.validate(notebook)
        for cell in notebook["cells"]:
            text = "".join(cell["source"])
            assert cell["cell_type"] == "markdown" or not text.startswith("#|")
            if text.startswith("from transformer_course.records import reproducible\nreproducible("):
                assert cell["metadata"]["jupyter"]["source_hidden"]
            if text.startswith("[Exercises]("):
                there = folder / text.partition("(")[2].partition(")")[0]
                back = json.loads(there.read_text(encoding="utf-8"))["cells"][1]["source"]
                assert "".join(back) == f"[Back to the lesson](../{path.name})"
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "--nbval-lax", "--nbval-current-env", "-p", "no:cacheprovider",
                           "--rootdir", str(folder), *(str(folder / name) for name in ("index.ipynb", "00_warm_up.ipynb", "07_protocols.ipynb"))],
                          capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout[-3000:]

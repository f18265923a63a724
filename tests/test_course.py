"""The notebooks that a learner gets: they run from top to bottom in a started folder, with nothing answered yet."""
import json
import subprocess
import sys

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
    shipped = course.lessons()
    monkeypatch.setattr(course, "lessons", lambda: {name: content + b" " for name, content in shipped.items()} | {"99_new.ipynb": b"new"})
    again = course.start(folder)
    assert again.added == ["99_new.ipynb"] and set(again.older) == set(shipped) and mine.read_text(encoding="utf-8") == "answered"
    assert again.yours == ["exercises/20_attention_exercises.ipynb"]
    assert all((folder / name).read_bytes() == content for name, content in shipped.items())

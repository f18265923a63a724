"""The students' edition: checks and hints as ever, and no solution in any file."""
import re
import zipfile

import edition
import pytest
from clean import environment, run

ASKS = """
from transformer_course.checking import check, hint, solution
def row_weights(scores):
    return scores
from transformer_course.checking.exercise_notebooks import all_exercises
exercises = all_exercises()
print(len(exercises))
print(solution(next(iter(exercises))))
print(hint(1))
name, exercise = next(iter(exercises.items()))
from transformer_course.checking.diagnosis import diagnose, function_from, prepared
print(diagnose(prepared(exercise).solution, exercise).status)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return edition.built(tmp_path_factory.mktemp("students"))


def test_no_file_holds_a_solution(wheel):
    assert wheel.name.startswith("transformer_course-") and "+students" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        holding = [n for n in names if re.search(rb"### BEGIN SOLUTION(?!['\"`])", archive.read(n))
                   and "library/checking" not in n and "checking/" not in n]
    assert holding == [] and not [n for n in names if re.search(r"exercises/ex.*\.ipynb", n)]
    assert sum(n.endswith(".sealed") for n in names) >= 44


def test_a_student_checks_and_gets_hints_but_no_solution(wheel, tmp_path):
    place = environment(wheel, tmp_path)
    told = place.run("python", "-c", ASKS)
    assert told.returncode == 0, told.stderr[-2000:]
    count, refused, *rest = told.stdout.splitlines()
    assert int(count) >= 165 and "does not show solutions" in refused and rest[-1] == "passed"
    assert run(place.programs / "transformer-course", "start", "learning", cwd=place.folder, env=place.variables).returncode == 0
    exercises = list((place.folder / "learning").rglob("*exercises.ipynb"))
    assert len(exercises) >= 40 and not any("### BEGIN SOLUTION" in p.read_text(encoding="utf-8") for p in exercises)

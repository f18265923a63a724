"""A class's notebooks: marks in a table, what a hostile notebook cannot do, and what ends with it."""
import csv
import json
import random
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from transformer_course.checking import course
from transformer_course.checking.exercise_notebooks import all_exercises
from transformer_course.cli.app import main

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux finds orphans and counts shared memory")
EDITIONS = course.student_exercises()
RIGHT = {"why_weights_sharpen": "def why_weights_sharpen():\n    return 'b'",
         "numbers_in_weights": "def numbers_in_weights():\n    return 80_000, 10_000"}


def handed_in(path, first="", **sources):
    """A notebook of lesson 20 with some answers, and perhaps a cell in front."""
    notebook = json.loads(EDITIONS["20_attention_exercises.ipynb"])
    for cell in notebook["cells"]:
        for name, source in sources.items():
            if "".join(cell["source"]).startswith(f"def {name}("):
                cell["source"] = source
    front = [{"cell_type": "code", "id": "first", "metadata": {}, "outputs": [], "execution_count": None, "source": first}]
    notebook["cells"] = (front if first else []) + notebook["cells"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


def statuses(reports):
    return {report.exercise: report.status for report in reports}


def gone(pid, seconds=10):
    """Has a process ended, or does it end soon?"""
    state, until = Path(f"/proc/{pid}/stat"), time.monotonic() + seconds
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


# --- what a hostile notebook cannot do --------------------------------------------------------------------------------------------------------

FORGED = {"exercise": "scaled_attention", "status": "passed", "reason": "", "number": "20.1", "lesson": "20_attention", "given": [], "expected": "",
          "got": "", "hints": 0, "running": False, "printed": "", "good_for": "", "next": ["", ""]}


@linux
@pytest.mark.parametrize("written", [json.dumps(FORGED), "null\n{\n[1]\n\xff\x00\n{\"exercise\": 1}"])
def test_what_a_notebook_writes_into_open_files_is_no_mark(tmp_path, written):
    """Into every file that is open or named on the command line, from a cell and from a function."""
    everywhere = (f"import os, sys, glob\ntext = ('null\\n' + {written!r} + '\\n').encode('latin-1')\n"
                  "def spoil():\n    for fd in range(3, 256):\n        try: os.write(fd, text)\n        except OSError: pass\n"
                  "    for word in open('/proc/self/cmdline').read().split('\\0'):\n        if word.endswith('.json'):\n"
                  "            with open(word, 'ab') as file: file.write(text)\nspoil()")
    spoiling = "def numbers_in_weights():\n    spoil()\n    return 80_000, 10_000"
    path = handed_in(tmp_path / "20.ipynb", everywhere, **{**RIGHT, "numbers_in_weights": spoiling})
    found = statuses(course.check_file(path, seconds=100))
    assert found == {"scaled_attention": "not attempted", "mended_mask": "not attempted", "numbers_in_weights": "passed",
                     "why_weights_sharpen": "passed", "heads_side_by_side": "not attempted"}


@linux
def test_a_cell_that_ends_python_is_named_and_costs_no_other(tmp_path):
    for how, said in (("import os\nos._exit(3)", "exit code 3"), ("import os\nos.kill(os.getpid(), 9)", "signal 9")):
        path = handed_in(tmp_path / "20.ipynb", **{**RIGHT, "mended_mask": f"{how}\ndef mended_mask(tokens, pad_id): pass"})
        found = {report.exercise: report for report in course.check_file(path, seconds=100)}
        assert found["numbers_in_weights"].status == found["why_weights_sharpen"].status == "passed"
        assert found["mended_mask"].status == "error" and said in found["mended_mask"].reason and "cell" in found["mended_mask"].reason


@linux
def test_no_child_outlives_a_check_whatever_it_drops(tmp_path):
    """In a session of its own, with nothing in its environment, and twice removed from the notebook."""
    child = ("import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        open('child', 'w').write(str(os.getpid()))\n"
             "        os.execve('/bin/sleep', ['sleep', '300'], {})\n    os._exit(0)\nimport time\n"
             "while not os.path.exists('child') or not open('child').read(): time.sleep(0.01)")
    path = handed_in(tmp_path / "20.ipynb", child, **RIGHT)
    assert statuses(course.check_file(path, seconds=100))["why_weights_sharpen"] == "passed"
    assert gone(int((tmp_path / "child").read_text()))


@linux
def test_shared_memory_counts_too(tmp_path):
    from transformer_course.checking.isolation import run_alone
    greedy = "import mmap\nopen('begun', 'w')\nm = mmap.mmap(-1, 2**29)\nfor i in range(0, 2**29, 4096): m[i] = 1\nopen('ended', 'w')\nimport time; time.sleep(5)"
    ended = run_alone([sys.executable, "-c", greedy], 60, tmp_path, memory=2**27)
    assert (tmp_path / "begun").exists() and "memory" in ended.how


NAMED = """
import ctypes, os
open('/dev/shm/left-{mark}', 'w').write('left')
number = ctypes.CDLL(None).shmget({key}, ctypes.c_size_t(4096), 0o1600)
open('made', 'w').write(f"{{number}} {{os.path.exists('/dev/shm/left-{mark}')}}")
"""


def segments():
    """Keys of the System V segments of shared memory that there are."""
    return {int(line.split()[0]) for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


@linux
def test_no_named_shared_memory_is_left(tmp_path):
    """Of a notebook in one's own folder, without a fence: files in /dev/shm, and segments of System V."""
    from transformer_course.checking.supervisor import can_set_apart
    mark, key = uuid.uuid4().hex, random.randrange(2**20, 2**30)
    path = handed_in(tmp_path / "20.ipynb", NAMED.format(mark=mark, key=key), **RIGHT)
    assert statuses(course.check_file(path, seconds=100))["why_weights_sharpen"] == "passed"
    number, there = (tmp_path / "made").read_text().split()
    assert int(number) >= 0 and there == "True" and key not in segments()
    if can_set_apart():
        assert not Path(f"/dev/shm/left-{mark}").exists()


@linux
def test_segments_of_others_stay(tmp_path):
    from transformer_course.checking.supervisor import remove_segments
    keys = [random.randrange(2**20, 2**30) for _ in range(2)]
    makers = []
    for key in keys:
        maker = subprocess.Popen([sys.executable, "-c", f"import ctypes; ctypes.CDLL(None).shmget({key}, ctypes.c_size_t(4096), 0o1600)"])
        maker.wait()
        makers.append(maker.pid)
    assert set(keys) <= segments()
    remove_segments({makers[0]})
    assert keys[0] not in segments() and keys[1] in segments()
    remove_segments({makers[1]})
    assert keys[1] not in segments()


# --- a class ----------------------------------------------------------------------------------------------------------------------------------

def files_in(folder):
    return {path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def marked(submissions, *options, capsys=None):
    """Exit code and rows by student of `check SUBMISSIONS --csv FILE`."""
    out = submissions.parent / "marks.csv"
    with pytest.raises(SystemExit) as ended:
        main(["check", str(submissions), "--csv", str(out), *options])
    with open(out, encoding="utf-8", newline="") as file:
        return ended.value.code, {row["student"]: row for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A class that hands in what classes hand in: exit code, rows, and the files before and after."""
    place = tmp_path_factory.mktemp("class") / "submissions"
    course.start(place / "anna" / "learning")                                    # a whole started folder, one notebook answered
    handed_in(place / "anna" / "learning" / "exercises" / "20_attention_exercises.ipynb", **RIGHT)
    (place / "anna" / "learning" / "progress.json").write_text('{"exercises": {}}')
    endless = "def numbers_in_weights():\n    import os\n    os._exit(3)"
    handed_in(place / "ben_20_attention_exercises.ipynb", **{**RIGHT, "numbers_in_weights": endless})
    outside = place.parent / "precious" / "marks.txt"
    outside.parent.mkdir()
    outside.write_text("precious")
    rude = f"open({str(outside)!r}, 'w').write('spoilt')\nopen('mine.txt', 'w').write('mine')"
    ill = "import os\nos.kill(os.getpid(), 9)\ndef mended_mask(tokens, pad_id): pass"
    handed_in(place / "=carla" / "20.ipynb", rude, **{**RIGHT, "mended_mask": ill})
    (place / "dora").mkdir()
    (place / "dora" / "20_attention_exercises.ipynb").write_bytes(EDITIONS["20_attention_exercises.ipynb"][:900])
    before = files_in(place)
    code, rows = marked(place)
    return code, rows, before, files_in(place), outside


@linux
def test_a_class_is_a_row_a_student(graded):
    code, rows, before, after, _ = graded
    assert list(rows) == ["'=carla", "anna", "ben", "dora"], "no text is a formula"
    assert [row["passed"] for row in rows.values()] == ["2", "2", "1", "0"] and {row["of"] for row in rows.values()} == {str(len(all_exercises()))}
    assert rows["anna"]["20.4"] == "passed" and rows["anna"]["10.1"] == "not attempted" and rows["anna"]["attempted"] == "2"
    assert rows["ben"]["20.3"] == "error" and "os._exit" in rows["ben"]["reasons"] and rows["ben"]["20.4"] == "passed"
    assert before == after, "nothing is noted in what was handed in"


@linux
def test_what_could_not_be_run_is_said_and_the_exit_code_tells(graded):
    code, rows, *_ = graded
    assert code == 1 and "killed (signal 9)" in rows["'=carla"]["problems"] and "cell" in rows["'=carla"]["problems"]
    assert rows["dora"]["problems"] == "20_attention_exercises.ipynb: it is damaged" and not rows["anna"]["problems"]
    assert rows["dora"]["reasons"].count("is damaged") == 1 and "20.1, 20.2" in rows["dora"]["reasons"], "what exercises share is said once"


@linux
def test_a_students_code_writes_in_its_copy_only(graded):
    from transformer_course.checking.supervisor import landlock_version
    *_, outside = graded
    if landlock_version() < 3:
        pytest.skip("this kernel has no Landlock of version 3")
    assert outside.read_text() == "precious"


def test_untouched_notebooks_are_not_run(tmp_path, monkeypatch, capsys):
    from transformer_course.checking import notebook_runs
    monkeypatch.setattr(notebook_runs, "run_alone", lambda *args, **options: pytest.fail("a notebook was run"))
    course.start(tmp_path / "class" / "anna")
    code, rows = marked(tmp_path / "class", "--lessons", "20,21")
    assert code == 0 and rows["anna"]["attempted"] == "0" and rows["anna"]["of"] == str(sum(e.lesson[:2] in ("20", "21") and e.lesson[2] == "_" for e in all_exercises().values()))
    assert {report.status for report in course.check_folder(tmp_path / "class" / "anna")} == {"not attempted"}


def test_wrong_words_cost_one_line(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "class" / "anna").mkdir(parents=True)
    for words, said in ((["check", str(tmp_path / "empty"), "--csv", "-"], "holds no folders and no notebooks"),
                        (["check", str(tmp_path / "none"), "--csv", "-"], "not a folder"),
                        (["check", str(tmp_path / "class"), "--csv", str(tmp_path / "no" / "marks.csv")], "--csv"),
                        (["check", str(tmp_path / "class"), "--csv", "-", "--lessons", "99"], "lesson '99' has no exercises"),
                        (["check", str(tmp_path / "class"), "--lessons", "20"], "--lessons needs --csv")):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code not in (0, None) and said in capsys.readouterr().err


def test_the_syllabus_states_the_minutes_that_the_lessons_state(root):
    """Every row of both syllabi, and the hours of the whole course."""
    reading, practice = {}, {}
    for path in (root / "nbs" / "lessons").glob("*.ipynb"):
        prose = "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "markdown")
        reading[path.stem.partition("_")[0]] = int(re.search(r"\*\*Time\*\*[^\n]*?(\d+) minutes", prose)[1])
    for exercise in all_exercises().values():
        number = exercise.lesson.partition("_")[0]
        practice[number] = practice.get(number, 0) + exercise.minutes
    page = (root / "docs" / "teaching.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| ([\w, ]+) \| (\d+) \| (\d+) \|", page, re.MULTILINE)
    assert len(rows) == 12 + 6
    for lessons, read, done in rows:
        names = lessons.split(", ")
        assert (int(read), int(done)) == (sum(map(reading.get, names)), sum(map(practice.get, names))), lessons
    hours = [round(sum(minutes.values()) / 60) for minutes in (reading, practice)]
    assert f"take {hours[0]} hours to read and the exercises {hours[1]} hours" in page

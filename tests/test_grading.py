"""A class's notebooks: marks in a table, what a hostile notebook cannot do, and what ends with it."""
import csv
import json
import os
import sys
import time
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

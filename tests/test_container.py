"""The container of docs/teaching.md, by the lines that stand there.

TRANSFORMER_COURSE_CONTAINER names a command that takes Docker's words, such as docker. Without it these tests are skipped.
"""
import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_course.checking.course import start

ROOT = Path(__file__).resolve().parents[1]
ENGINE = os.environ.get("TRANSFORMER_COURSE_CONTAINER")
pytestmark = pytest.mark.skipif(not ENGINE, reason="TRANSFORMER_COURSE_CONTAINER names no container engine")


def test_a_class_is_marked_in_a_container(tmp_path):
    page = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```\n(FROM .*?)```", page, re.S)
    (commands,) = re.findall(r"```\n(docker build .*?)```", page, re.S)
    (tmp_path / "Dockerfile").write_text(recipe)
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(ROOT)], check=True)
    start(tmp_path / "submissions" / "anna")
    notebook = tmp_path / "submissions" / "anna" / "exercises" / "00_warm_up_exercises.ipynb"
    cells = json.loads(notebook.read_text(encoding="utf-8"))
    (cell,) = [c for c in cells["cells"] if "def steady_softmax(" in "".join(c["source"])]
    cell["source"] = ("def steady_softmax(scores):\n    try:\n        open('/submissions/spoilt', 'w')\n    except OSError:\n"
                      "        return (scores - scores.logsumexp(-1, keepdim=True)).exp()")
    notebook.write_text(json.dumps(cells), encoding="utf-8")
    done = subprocess.run(["bash", "-ec", re.sub(r"^docker", shlex.join(shlex.split(ENGINE)), commands, flags=re.M)], cwd=tmp_path,
                          capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    with open(tmp_path / "marks" / "marks.csv", encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["student"] == "anna" and row["00.1"] == "passed" and row["attempted"] == "1"
    assert not (tmp_path / "submissions" / "spoilt").exists()

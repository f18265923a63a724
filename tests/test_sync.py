"""The notebooks' own rules, and that tools/notebooks.py sees each way of breaking them."""
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import notebooks
import pytest

LESSONS = notebooks.notebooks()
EXPORTS = re.compile(r"^#\|\s*export\b", re.M)


def sources(path):
    return ["".join(c["source"]) for c in json.loads(path.read_text(encoding="utf-8"))["cells"]]


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_stored_notebook(path):
    """It is stored clean, cleaning it twice changes nothing, and its outputs hold no fault."""
    text = path.read_text(encoding="utf-8")
    once = notebooks.dumps(notebooks.cleaned(json.loads(text)))
    assert once == text, "run `python tools/notebooks.py clean`"
    assert notebooks.dumps(notebooks.cleaned(json.loads(once))) == once
    assert notebooks.problems(path) == []


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_directives_hold(path):
    """Directives stand first in their cells, exports are the module of the notebook's name, and a title comes first."""
    cells = sources(path)
    assert cells[0].startswith("# ")
    exported = [c for c in cells if EXPORTS.search(c)]
    assert all(c.startswith("#|") for c in exported), "a directive below the first line is lost in silence"
    names = [m[1] for c in cells for m in re.finditer(r"^#\|\s*default_exp\s+(\S+)", c, re.M)]
    assert len(names) == (1 if exported else 0)
    assert not any("NBVAL_" in c for c in exported), "such a comment would leak into the module; use a cell tag"


@pytest.fixture
def project(tmp_path):
    """A repository of one notebook, exported and in step."""
    here = tmp_path / "project"
    (here / "tools").mkdir(parents=True)
    (here / "nbs").mkdir()
    shutil.copy(notebooks.ROOT / "settings.ini", here)
    for name in ("notebooks.py", "sections.py"):
        shutil.copy(Path(notebooks.__file__).with_name(name), here / "tools" / name)
    cells = [("markdown", "# Twice\n> Twice a number"), ("code", "#| default_exp twice"),
             ("code", "#| export\ndef twice(x):\n    return 2 * x"), ("code", "print(twice(4))")]
    nb = {"cells": [{"cell_type": kind, "source": source, "metadata": {}} for kind, source in cells]}
    output = {"output_type": "stream", "name": "stdout", "text": ["8\n"]}
    nb["cells"][3]["outputs"] = [output]
    save(here, notebooks.cleaned(nb))
    assert tool(here, "export").returncode == 0
    return here


def save(here, nb):
    notebooks.write(here / "nbs" / "01_twice.ipynb", notebooks.dumps(nb))


def load(here):
    return json.loads((here / "nbs" / "01_twice.ipynb").read_text(encoding="utf-8"))


def tool(here, *arguments):
    return subprocess.run([sys.executable, here / "tools" / "notebooks.py", *arguments], capture_output=True, text=True)


def test_in_step(project):
    before = notebooks.tracked(project)
    result = tool(project, "check")
    assert (result.returncode, result.stdout.strip()) == (0, "notebooks and package are in step")
    assert notebooks.tracked(project) == before
    assert {Path(name).name for name in before} == {"01_twice.ipynb", "twice.py", "_modidx.py", "__init__.py"}
    assert tool(project, "export").returncode == 0
    assert notebooks.tracked(project) == before, "a second export changes nothing"


def edit_module(project):
    module = project / "transformer_course" / "twice.py"
    module.write_text(module.read_text().replace("2 * x", "3 * x"))
    return "transformer_course/twice.py"


def edit_notebook(project):
    nb = load(project)
    nb["cells"][2]["source"] = "#| export\ndef twice(x):\n    return x + x"
    save(project, nb)
    return "transformer_course/twice.py"


def forget_cleaning(project):
    nb = load(project)
    nb["cells"][3]["metadata"] = {"collapsed": True}
    save(project, nb)
    return "nbs/01_twice.ipynb"


def leave_stale_module(project):
    module = project / "transformer_course" / "thrice.py"
    module.write_text((project / "transformer_course" / "twice.py").read_text().replace("01_twice", "02_thrice"))
    return "transformer_course/thrice.py"


def lose_index(project):
    (project / "transformer_course" / "_modidx.py").unlink()
    return "transformer_course/_modidx.py"


def store_error(project):
    nb = load(project)
    nb["cells"][3]["outputs"] = [{"output_type": "error", "ename": "ZeroDivisionError", "evalue": "", "traceback": []}]
    save(project, nb)
    return "stores the error ZeroDivisionError"


def store_path(project):
    nb = load(project)
    nb["cells"][3]["outputs"][0]["text"] = ["saved in /ho" "me/ada/model\n"]
    save(project, nb)
    return "prints a path of one machine"


def skip_running(project):
    nb = load(project)
    nb["cells"][3]["execution_count"] = None
    save(project, nb)
    return "cell-3 was never run"


@pytest.mark.parametrize("fault", [edit_module, edit_notebook, forget_cleaning, leave_stale_module, lose_index,
                                   store_error, store_path, skip_running], ids=lambda f: f.__name__)
def test_each_fault_is_seen(project, fault):
    expected = fault(project)
    result = tool(project, "check")
    assert result.returncode == 1
    assert expected in result.stderr


def test_export_of_one_leaves_the_rest(project):
    """A named export writes that module only; a full one also removes modules whose notebook is gone."""
    stale = project / leave_stale_module(project)
    assert tool(project, "export", "01").returncode == 0 and stale.exists()
    assert tool(project, "export").returncode == 0 and not stale.exists()


def test_unknown_name(project):
    result = tool(project, "export", "77_nowhere")
    assert result.returncode == 1 and "77_nowhere" in result.stderr


def test_run_stores_outputs(project):
    """`run` executes from the top, stores what came out, and leaves the notebook clean."""
    nb = load(project)
    nb["cells"][3]["outputs"] = []
    save(project, nb)
    result = tool(project, "run", "01_twice")
    assert result.returncode == 0, result.stderr
    assert load(project)["cells"][3]["outputs"][0]["text"] == ["8\n"]
    assert tool(project, "clean").stdout.strip() == "nothing to clean"

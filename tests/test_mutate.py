"""The mutation check is itself checked: what it breaks, in what order it looks, and that a survivor is reported."""
import json

import mutate
import pytest

SOURCE = '''"""Numbers"""
__all__ = ["twice", "half", "Counter", "LIMIT", "numbers", "Shape"]
LIMIT = 3
def twice(x):
    """Two of it."""
    def inner(y):
        return 2 * y
    return inner(x)
def half(x):
    return x / 2
def numbers():
    yield 1
class Counter:
    def __init__(self):
        self.n = 0
    def step(self):
        self.n += 1
        return self.n
class Shape:
    def area(self) -> float: ...
def hidden():
    return 1
'''


def broken(name, kind):
    space = {}
    exec(mutate.mutated(SOURCE, name, kind), space)
    return space


def test_what_there_is_to_break():
    """Functions and methods of `__all__`; neither constants, nor what is hidden, nor what is only declared."""
    found = {name: mutate.kinds(node) for name, node in mutate.exported(SOURCE).items()}
    assert found == {"twice": mutate.KINDS, "half": mutate.KINDS, "numbers": ("raises", "nothing"),
                     "Counter.__init__": ("raises", "nothing"), "Counter.step": mutate.KINDS}


def test_each_kind_breaks_one_function_only():
    for name in ("twice", "half"):
        with pytest.raises(RuntimeError, match="mutant"):
            broken(name, "raises")[name](4)
        assert broken(name, "nothing")[name](4) is None
    assert broken("twice", "wrong")["twice"](4) == 9, "the outer return is changed, not the inner one"
    assert broken("half", "wrong")["half"](4) == 3.37
    assert broken("half", "raises")["twice"](4) == 8
    assert broken("twice", "nothing")["twice"].__doc__ == "Two of it."
    counter = broken("Counter.step", "wrong")["Counter"]()
    assert (counter.step(), counter.n) == (2, 1)


def test_wrong_values_differ():
    import numpy as np
    import torch
    wrong = broken("half", "wrong")["_mutant"]
    for value in (True, 0, 0.0, -1.0, "", "abc", [], [1, 2], (0.5, "x"), {}, {"a": 1}, {1, 2}, frozenset(), None):
        assert wrong(value) != value
    for value in (torch.zeros(2, 3), torch.ones(4, dtype=torch.bool), torch.arange(5), np.zeros(2)):
        assert wrong(value).shape == value.shape and not (wrong(value) == value).any()
    assert wrong(object()) is None


def test_draw_depends_on_the_seed_alone():
    targets = [("m", f"f{i}", mutate.KINDS) for i in range(40)]
    assert mutate.draw(targets, 10, 3) == mutate.draw(targets, 10, 3) != mutate.draw(targets, 10, 4)
    assert len({m.name for m in mutate.draw(targets, 10, 3)}) == 10
    assert len(mutate.draw(targets, None, 3)) == 40
    assert {m.kind for m in mutate.draw(targets, None, 3)} == set(mutate.KINDS)


def test_a_new_function_leaves_the_other_lots_alone():
    targets = [("m", f"f{i}", mutate.KINDS) for i in range(40)]
    drawn = set(mutate.draw(targets, 10, 3))
    assert len(drawn & set(mutate.draw([("m", "new", mutate.KINDS), *targets], 10, 3))) >= 9


@pytest.fixture
def project(tmp_path):
    """A package of two modules, a test that holds one function of three, and a notebook that shadows another."""
    root = tmp_path / "project"
    for folder in ("transformer_course", "tests", "nbs"):
        (root / folder).mkdir(parents=True)
    library = root / "transformer_course"
    (library / "__init__.py").write_text("")
    (library / "base.py").write_text("__all__ = ['held', 'loose']\ndef held():\n    return 1\ndef loose():\n    return 2\n")
    (library / "upper.py").write_text("from .base import held\n__all__ = ['more']\n"
                                      "def more():\n    return held() + 1\n")
    (root / "tests" / "test_upper.py").write_text("from transformer_course.upper import more\n"
                                                  "def test_more():\n    assert more() == 2\n")
    (root / "tests" / "test_other.py").write_text("def test_other():\n    assert True\n")
    cell = {"cell_type": "code", "execution_count": 1, "metadata": {}, "outputs": [], "id": "cell-0",
            "source": "def loose(): return 2\nassert loose() == 2"}
    (root / "nbs" / "01_base.ipynb").write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return root


def test_only_what_can_reach_a_module_is_run(project):
    names = [path.name for path in mutate.candidates(project, "base", "held")]
    assert names == ["test_upper.py"], "neither a test of nothing, nor the notebook that defines its own"
    assert [path.name for path in mutate.candidates(project, "upper", "more")] == ["test_upper.py"]


def test_modules_that_a_text_mentions():
    modules = {"files", "data.text", "models.rnn", "models.luong", "cli.app", "drawing.plots"}
    assert mutate.mentioned("from transformer_course.data.text import PAD", modules) == {"data.text"}
    assert mutate.mentioned("from transformer_course.models import luong, rnn", modules) == {"models.luong", "models.rnn"}
    relative = "from ..data.text import PAD\nfrom . import rnn\nfrom ..drawing import plots\nfrom .. import files"
    assert mutate.mentioned(relative, modules, "models.luong") == {"data.text", "models.rnn", "drawing.plots", "files"}
    assert mutate.mentioned("import_module('.models.rnn', __name__)", modules) == {"models.rnn"}
    assert mutate.mentioned("run(['transformer-course', 'demo'])", modules) == {"cli.app"}
    assert mutate.mentioned("import torch", modules) == set()


def test_survivor_is_named_and_fails_the_run(project, capsys):
    assert mutate.main(["--all", "--kind", "wrong"], root=project) == 1
    *lines, counts = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["noticed  base.held (wrong)", "SURVIVED base.loose (wrong)",
                                                      "noticed  upper.more (wrong)"]
    assert "tests/test_upper.py::test_more" in lines[0]
    assert counts.startswith("2 passed, 1 failed")
    assert mutate.main(["--only", "upper"], root=project) == 0


def test_what_fails_anyway_notices_nothing(project, capsys):
    """A test that is broken without any mutant does not count."""
    (project / "tests" / "test_upper.py").write_text("from transformer_course.upper import more\n"
                                                     "def test_more():\n    assert more() == 3\n")
    assert mutate.main(["--only", "base.held", "--kind", "raises"], root=project) == 1
    assert "broken anyway: tests/test_upper.py" in capsys.readouterr().out


def test_unknown_name():
    with pytest.raises(SystemExit, match="nowhere.at_all"):
        mutate.main(["--only", "nowhere.at_all"])

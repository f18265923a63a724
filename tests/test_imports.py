"""Which way imports point, and that the package needs none of the development tools."""
import ast
import re
import subprocess
import sys

import notebooks
import pytest
from module_map import ROOMS, room            # the one ordered list of rooms

PACKAGE = "transformer_course"
DEVELOPMENT = ("nbdev", "fastcore", "execnb", "IPython", "ipykernel", "jupyter", "jupyterlab", "notebook", "nbformat",
               "nbclient", "ipywidgets", "transformers", "pytest", "hypothesis")
MODULES = notebooks.modules()                   # dotted names below the package, such as "data.hindi.forms"


def source(module):
    """The notebook that a module is made from."""
    return next(path for path in notebooks.notebooks() if re.search(rf'#\| ?default_exp {re.escape(module)}\\?[n"]',
                                                                   path.read_text(encoding="utf-8")))


def number(module):
    """The number of a module's notebook, in reading order: 21a comes after 21."""
    found = re.match(r"(\d+)([a-z]?)_", source(module).stem)
    return int(found[1]), found[2]


def imported(text, module="x"):
    """Every module that the source imports, anywhere in it, as dotted names; relative ones are seen from `module`."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            here = [PACKAGE, *module.split(".")][:-node.level] if node.level else []
            base = ".".join([*here, *filter(None, [node.module])])
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return names


def siblings(module):
    """The package's own modules that a module imports."""
    found = imported(read(module), module)
    return {name.removeprefix(PACKAGE + ".") for name in found} & set(MODULES) - {module}


def allowed(module, other):
    """Whether `module` may import `other`: one of its own room, or of a room that comes earlier in the list."""
    order = list(ROOMS)
    return order.index(room(other)) <= order.index(room(module))


def read(module):
    return notebooks.module_path(module).read_text(encoding="utf-8")


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_to_an_earlier_room(module):
    assert [other for other in sorted(siblings(module)) if not allowed(module, other)] == []


@pytest.mark.parametrize("module", [module for module in MODULES if room(module) == "models"])
def test_a_model_imports_models_of_earlier_lessons_only(module):
    models = [other for other in sorted(siblings(module)) if room(other) == "models"]
    assert [other for other in models if number(other) >= number(module)] == []


@pytest.mark.parametrize("module", MODULES)
def test_no_development_tool_is_named(module):
    assert {name.split(".")[0] for name in imported(read(module))}.isdisjoint(DEVELOPMENT)


def test_no_import_goes_round():
    """Modules can be put in an order in which each imports only earlier ones."""
    waiting = {module: siblings(module) for module in MODULES}
    while ready := [m for m in waiting if not waiting[m] & waiting.keys()]:
        for module in ready:
            del waiting[module]
    assert waiting == {}


def test_every_module_has_a_notebook_in_its_room():
    """A lesson may write a module of any room; every other notebook lies in the folder of its module's room."""
    for module in MODULES:
        folder = source(module).parent.relative_to(notebooks.NBS)
        assert folder.as_posix() in ("lessons", f"library/{room(module)}"), module


def test_package_imports_without_development_tools():
    """Import every module in a fresh interpreter in which the tools' top packages cannot be found."""
    code = f"""
import importlib, importlib.util, sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.split('.')[0] in {DEVELOPMENT!r} else self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Without, sys.meta_path)
assert not any(map(importlib.util.find_spec, {DEVELOPMENT!r}))
for module in {MODULES!r}:
    importlib.import_module('{PACKAGE}.' + module)
print('imported', len({MODULES!r}))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=notebooks.ROOT)
    assert result.returncode == 0, result.stderr[-800:]
    assert result.stdout.split() == ["imported", str(len(MODULES))]


def test_the_rule_itself():
    assert allowed("training.loop", "data.text") and allowed("models.seq2seq", "training.loop")
    assert allowed("models.seq2seq", "models.rnn") and allowed("data.hindi.forms", "records")
    assert not allowed("training.loop", "models.rnn"), "the loop knows no model"
    assert not allowed("models.rnn", "pipelines.translator"), "nothing below knows the top"
    assert not allowed("records", "data.text") and not allowed("search.beam", "cli.app")
    text = "from transformer_course.data import text\nfrom ..data.hindi.forms import conjugate\ndef f():\n    import transformer_course.cli.app"
    assert {"transformer_course.data.text", "transformer_course.data.hindi.forms", "transformer_course.cli.app"} <= imported(text, "models.rnn")

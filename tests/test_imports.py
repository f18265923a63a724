"""Which way imports point, and that the package needs none of the development tools."""
import ast
import re
import subprocess
import sys

import notebooks
import pytest

PACKAGE = "transformer_course"
TOOLS = {
    "any_function",
    "batching",
    "checking",
    "checkpoints",
    "code_edits",
    "comparison",
    "corpora",
    "course",
    "diagnosis",
    "diagrams",
    "diagrams_attention",
    "diagrams_recurrent",
    "diagrams_transformer",
    "drawings",
    "editions",
    "exercise_notebooks",
    "files",
    "functional",
    "given_tokenizers",
    "hindi_forms",
    "hindi_grammar",
    "hindi_lexicon",
    "hindi_parts",
    "hindi_templates",
    "legibility",
    "micro_entailment",
    "micro_hindi",
    "micro_reviews",
    "next_steps",
    "own_process",
    "one_change",
    "pacing",
    "paradigms",
    "plots",
    "progress_file",
    "protocols",
    "records",
    "reports",
    "safe_calls",
    "scoring",
    "search",
    "exact_search",
    "text",
    "training",
    "trials",
}
TOP = {
    "cli",
    "describing",
    "evaluation",
    "layouts",
    "lm_presets",
    "model_folder",
    "presets",
    "pretrained",
    "recipe",
    "runs",
    "scoreboard",
    "translating",
    "translation",
    "writing",
}
DEVELOPMENT = ("nbdev", "fastcore", "execnb", "IPython", "ipykernel", "jupyter", "jupyterlab", "notebook", "nbformat",
               "nbclient", "ipywidgets", "transformers", "pytest", "hypothesis")
MODULES = sorted(p.stem for p in notebooks.LIB.glob("*.py") if not p.stem.startswith("_"))
NUMBERS = {m[3]: (int(m[1]), m[2])                         # 21a comes after 21
           for p in notebooks.NBS.glob("*.ipynb") if (m := re.match(r"(\d+)([a-z]?)_(\w+)$", p.stem))}


def imported(source, package=PACKAGE):
    """Every module that the source imports, anywhere in it, as dotted names; `.x` counts as the package's x."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(filter(None, [package if node.level else None, node.module]))
            names |= {f"{base}.{alias.name}" for alias in node.names} if base == package else {base}
    return names


def siblings(source):
    """The package's own modules that the source imports."""
    return {name.split(".")[1] for name in imported(source) if name.startswith(PACKAGE + ".")} & set(MODULES)


def allowed(module, other, numbers=NUMBERS):
    """Whether `module` may import `other`: tools only tools, models tools and earlier lessons, the top anything below."""
    if module in TOOLS or other in TOOLS:
        return other in TOOLS
    if module in TOP or other in TOP:
        return module in TOP
    return numbers[other] < numbers[module]


def read(module):
    return (notebooks.LIB / f"{module}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downwards(module):
    assert [other for other in sorted(siblings(read(module))) if not allowed(module, other)] == []


@pytest.mark.parametrize("module", MODULES)
def test_no_development_tool_is_named(module):
    assert {name.split(".")[0] for name in imported(read(module))}.isdisjoint(DEVELOPMENT)


def test_no_import_goes_round():
    """Modules can be put in an order in which each imports only earlier ones."""
    waiting = {module: siblings(read(module)) - {module} for module in MODULES}
    while ready := [m for m in waiting if not waiting[m] & waiting.keys()]:
        for module in ready:
            del waiting[module]
    assert waiting == {}


def test_every_module_has_its_notebook():
    assert set(MODULES) <= NUMBERS.keys()


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
    numbers = {"rnn": (10, ""), "language_models": (10, "a"), "seq2seq": (11, ""), "attention": (20, "")}
    assert allowed("training", "functional", numbers) and allowed("seq2seq", "rnn", numbers)
    assert allowed("seq2seq", "training", numbers) and allowed("translation", "rnn", numbers)
    assert not allowed("training", "rnn", numbers), "a tool knows no model"
    assert not allowed("rnn", "seq2seq", numbers), "a lesson knows no later one"
    assert allowed("language_models", "rnn", numbers) and allowed("seq2seq", "language_models", numbers)
    assert not allowed("rnn", "language_models", numbers), "10a comes after 10"
    assert not allowed("rnn", "translation", numbers), "nothing below knows the top"
    assert not allowed("search", "cli", numbers)
    source = "from transformer_course import text\nfrom .rnn import GRU\ndef f():\n    import transformer_course.cli"
    assert imported(source) == {"transformer_course.text", "transformer_course.rnn", "transformer_course.cli"}

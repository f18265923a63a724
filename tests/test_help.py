"""What a user sees of a function before calling it: its parameters, by name, with their types and what they mean."""
import ast
import importlib
import inspect
import pydoc
import re
import sys
from pathlib import Path

import pytest

import transformer_course

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import notebooks  # noqa: E402
import sections  # noqa: E402

ROOMS = ("data", "search", "training", "published", "pipelines")


def public_functions():
    "The name of each public function, class and method of the rooms, and the function that is called."
    for module in notebooks.modules():
        if module.split(".")[0] not in ROOMS:
            continue
        found = importlib.import_module(f"{transformer_course.__name__}.{module}")
        for name in getattr(found, "__all__", ()):
            thing = getattr(found, name)
            if inspect.isclass(thing):
                members = {key: value for key, value in vars(thing).items() if not key.startswith("_") or key == "__init__"}
                yield from ((f"{module}.{name}.{key}", inspect.unwrap(getattr(value, "__func__", value)))
                            for key, value in members.items() if callable(getattr(value, "__func__", value)))
            elif inspect.isfunction(thing):
                yield f"{module}.{name}", inspect.unwrap(thing)


def test_no_public_function_hides_its_options():
    hidden = [name for name, function in public_functions() if inspect.isfunction(function) and function.__module__.startswith(transformer_course.__name__)
              for p in inspect.signature(function).parameters.values() if p.kind is p.VAR_KEYWORD and p.annotation is p.empty]
    allowed = {"data.hindi.grammar.assemble"}               # the marks of a sentence, by names that a template chooses
    assert set(hidden) == allowed, f"options without names: {', '.join(hidden)}"


def test_the_public_functions_say_what_they_take_and_give():
    """Every parameter and result of the doors and of what reads and writes published models has a type."""
    bare = []
    for name, function in public_functions():
        if name.split(".")[0] not in ("training", "published", "pipelines") or not inspect.isfunction(function) \
                or not function.__module__.startswith(transformer_course.__name__) or function.__qualname__.startswith("__create_fn__"):
            continue
        signature = inspect.signature(function)
        bare += [f"{name}({p.name})" for p in signature.parameters.values() if p.annotation is p.empty and p.name not in ("self", "cls")]
        if signature.return_annotation is signature.empty and not name.endswith("__init__"):
            bare.append(f"{name} -> ?")
    assert not bare, ", ".join(bare)


def test_the_doors_name_the_options_of_their_searches():
    from dataclasses import fields

    from transformer_course import Translator, Writer
    from transformer_course.pipelines.searching import SearchOptions
    from transformer_course.pipelines.writer import writing_options
    for function in (Translator.translate, Writer.write, writing_options):
        given = inspect.signature(function).parameters
        for field in fields(SearchOptions):
            assert field.name in given, f"{function.__qualname__} has no {field.name}"
            if field.name not in ("beam_size", "do_sample"):
                assert given[field.name].default == field.default and given[field.name].kind is inspect.Parameter.KEYWORD_ONLY
                assert given[field.name].annotation == field.type


PLAIN = '''
def join(
    query: Tensor,             # (B, T, K)
    mask: Tensor | None = None,   # (B, T, S)
                                  # True = may attend
    left=0, right=0,           # of both
    *,
    slope: float,              # a "\\\\t" apart
) -> tuple[Tensor, int]:       # the sum (B, T), and n
    """Join them.

    Raises ValueError.
    """
    return query, 1   # not a parameter


def shape(x):   # (N,) -> (N, 1)
    "One more dimension."
    return x[:, None]


def _hidden(x: int):   # left alone
    "Nobody asks."


class Whole:
    """Keeps a size."""

    def __init__(
        self,
        size: int,   # D
    ):
        self.size = size


@dataclass
class Facts:
    "What is known."

    name: str        # of a model
    steps: int = 3
'''

SHOWN = {"join": """Join them.

Raises ValueError.

Parameters
----------
query : Tensor
    (B, T, K)
mask : Tensor | None, default None
    (B, T, S) True = may attend
left : default 0
right : default 0
    of both
slope : float
    a "\\\\t" apart

Returns
-------
tuple[Tensor, int]
    the sum (B, T), and n""",
         "shape": "One more dimension.\n\nShapes\n------\n(N,) -> (N, 1)",
         "_hidden": "Nobody asks.",
         "Whole": "Keeps a size.\n\nParameters\n----------\nsize : int\n    D",
         "Facts": "What is known.\n\nParameters\n----------\nname : str\n    of a model\nsteps : int, default 3"}


def test_comments_beside_parameters_are_repeated_in_the_docstring():
    written = sections.with_sections(PLAIN)
    assert {node.name: ast.get_docstring(node) for node in ast.parse(written).body} == SHOWN
    assert sections.with_sections(written) == written, "twice changes nothing"
    assert len(sections.without_sections(written).splitlines()) == len(PLAIN.splitlines())
    assert ast.unparse(ast.parse(written).body[0].args) == ast.unparse(ast.parse(PLAIN).body[0].args)


def test_help_shows_parameters_with_shapes_and_meaning():
    from transformer_course import Translator
    from transformer_course.models.attention import attention
    shown = pydoc.plain(pydoc.render_doc(attention))
    assert re.search(r"query : Tensor\s+\(\.\.\., T, K\)", shown) and "True = may attend" in shown and "Returns\n" in shown
    assert "1: greedy" in inspect.getdoc(Translator.translate) and "(n,)" not in inspect.getdoc(Translator.translate)
    assert "keeps the course's translator protocol" in inspect.getdoc(Translator)


def test_no_exported_module_lacks_its_sections():
    for module in notebooks.modules():
        source = notebooks.module_path(module).read_text(encoding="utf-8")
        if notebooks.GENERATED in source:
            assert sections.with_sections(source) == source, module


def test_no_module_is_long_without_its_sections():
    lengths = {module: len(sections.without_sections(notebooks.module_path(module).read_text(encoding="utf-8")).splitlines())
               for module in notebooks.modules()}
    assert not {module: lines for module, lines in lengths.items() if lines > 350}


@pytest.mark.parametrize("one", ["attention", "MultiHeadAttention"])
def test_masks_say_where_pytorch_means_the_opposite(one):
    from transformer_course.models import attention
    assert "True = may attend" in getattr(attention, one).__doc__ and "nn.MultiheadAttention" in getattr(attention, one).__doc__

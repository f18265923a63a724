"""What a user sees of a function before calling it: its parameters, by name, with their types and what they mean."""
import importlib
import inspect
import sys
from pathlib import Path

import transformer_course

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import notebooks  # noqa: E402

ROOMS = ("pipelines",)


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
              for p in inspect.signature(function).parameters.values() if p.kind is p.VAR_KEYWORD]
    assert not hidden, f"options without names: {', '.join(hidden)}"


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

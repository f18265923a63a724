"""The one change that makes an answer right: found for slips that are not on an exercise's list, and only for them."""
import linecache
import math
from dataclasses import replace

import pytest
import torch

from transformer_course.checking import diagnosis
from transformer_course.checking.diagnosis import diagnose
from transformer_course.checking.exercise_notebooks import all_exercises, prepared
from transformer_course.checking.one_change import changes, one_change
from transformer_course.checking.safe_calls import TooLong


def function(source, name):
    """A function whose source can be had, as of one written in a notebook."""
    file = f"<cell with {hash(source)}>"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    names = {"torch": torch, "math": math}
    exec(compile(source, file, "exec"), names)
    return names[name]


CENTRED = "def centred(x):\n    mean = x.mean(-1, keepdim=True)\n    return (x - mean) / math.sqrt(x.shape[-1])\n"
COUNTED = ("def counted(words, least):\n    found = {}\n    for word in words:\n        found[word] = found.get(word, 0) + 1\n"
           "    return sorted((w, found[w]) for w in found if found[w] >= least)\n")
GATHERED = ("def counted(words, least):\n    found = {}\n    for word in words:\n        found.setdefault(word, 0)\n"
            "        found[word] += 1\n    return sorted((w, found[w]) for w in found if found[w] >= least)\n")
CASES = {"centred": [torch.tensor([[1.0, 2.0, 6.0]]), torch.randn(2, 4, generator=torch.Generator().manual_seed(1))],
         "counted": [["b", "a", "b", "c", "a", "b"]]}
SLIPS = [
    (CENTRED, "mean(-1", "mean(0", "`0` is the wrong number"),
    (CENTRED, ", keepdim=True", "", "needs `keepdim=True`"),
    (CENTRED, "x - mean", "mean - x", "`mean - x` has its two sides in the wrong order"),
    (CENTRED, "x - mean", "x + mean", "`x + mean` has the wrong sign"),
    (CENTRED, "(x - mean) / math", "x - mean / math", "has its brackets in the wrong place"),
    (CENTRED, "math.sqrt(x.shape[-1])", "x.shape[-1]", "`x.shape[-1]` lacks a square root"),
    (CENTRED, "x.mean", "x.sum", "should not use `sum`"),
    (CENTRED, "x.shape[-1]", "x.shape[0]", "`0` is the wrong number"),
    (COUNTED, ">= least", "> least", "is wrong for the limit itself"),
    (COUNTED, "sorted((w", "list((w", "should not use `list`"),
    (COUNTED, "found.get(word, 0)", "found.get(word, 1)", "`1` is the wrong number"),
    (COUNTED, "\n    return sorted", "\n        return sorted", "belongs after the block in which it is"),
    (COUNTED, "found = {}\n    for", "found = {}\n    words = words[2:]\n    for", "`2` is the wrong number"),
    (COUNTED, "for w in found if", "for w in words if", "`words` is the wrong variable"),
    (GATHERED, "+= 1", "+= 2", "`2` is the wrong number"),
    (GATHERED, "+= 1", "= 1", "`found[word] = 1` should add to the value"),
]


def fails(fn, name, case):
    arguments = (case.clone(),) if name == "centred" else (list(case), 2)
    right = function(CENTRED if name == "centred" else COUNTED, name)(*arguments)
    try:
        found = fn(*arguments)
        return not torch.equal(found, right) if name == "centred" else found != right
    except Exception:
        return True


@pytest.mark.parametrize("source, old, new, told", SLIPS)
def test_a_slip_is_found(source, old, new, told):
    assert source.count(old) == 1
    name = source[4:source.index("(")]
    wrong = function(source.replace(old, new), name)
    first = next(case for case in CASES[name] if fails(wrong, name, case))
    found = one_change(wrong, lambda fn: fails(fn, name, first), lambda fn: not any(fails(fn, name, c) for c in CASES[name]))
    assert found is not None and told in found


def test_a_change_leaves_the_learners_function_as_it_is():
    answer = function(COUNTED, "counted")
    before = answer(*(CASES["counted"][0], 2))
    code = {changed.__code__.co_code + repr(changed.__code__.co_consts).encode() for changed, told in changes(answer)}
    assert len(code) > 50
    assert answer(*(CASES["counted"][0], 2)) == before


def test_there_is_nothing_to_say_without_source_or_about_two_slips():
    assert list(changes(len)) == list(changes(lambda x: x)) == []
    exec("def hidden(x):\n    return x + 1\n", names := {})
    assert list(changes(names["hidden"])) == []
    twice = function(CENTRED.replace("x - mean", "mean - x").replace("math.sqrt(x.shape[-1])", "7.5"), "centred")
    case = CASES["centred"][1]
    assert one_change(twice, lambda fn: fails(fn, "centred", case), lambda fn: not fails(fn, "centred", case)) is None


def test_endless_changes_end_the_search():
    def still_fails(fn):
        calls.append(fn)
        raise TooLong
    calls = []
    assert one_change(function(COUNTED, "counted"), still_fails, lambda fn: True) is None and len(calls) == 3


def test_the_report_names_the_place_and_only_if_all_checks_pass_then():
    exercise = all_exercises()["steady_softmax"]
    body = "def steady_softmax(scores):\n    e = torch.exp(scores - scores.amax({}, keepdim=True))\n    return e / e.sum(-1, keepdim=True){}\n"
    slip = diagnose(function(body.format(-1, " * 2"), "steady_softmax"), exercise, listed=False)
    assert slip.status == "wrong" and "`2` is the wrong number" in slip.where and f"look here: {slip.where}" in repr(slip)
    two = diagnose(function(body.format(-1, " * 2 + 0.7"), "steady_softmax"), exercise, listed=False)
    assert two.status == "wrong" and two.where == "" and "look here" not in repr(two)
    right = diagnose(function(body.format(-1, ""), "steady_softmax"), exercise)
    assert right.status == "passed" and right.where == ""


TOLD = [("return (x, x + k)", "return (x, k + k)", "the first `k` is the wrong variable"),
        ("return (x, x - k)", "return (x, x - x)", "the third `x` is the wrong variable"),
        ("return (k * x, k)", "return (k * x, x)", "the second `x` is the wrong variable"),
        ("return (k, len('äöü' * k))", "return (k, len('äöü' * x))", "`x` is the wrong variable"),
        ("return (len('äöü' * k), x)", "return (len('äöü' * x), x)", "the first `x` is the wrong variable")]


@pytest.mark.parametrize("right, wrong, told", TOLD)
def test_of_like_names_in_a_line_the_place_says_which(right, wrong, told):
    right, wrong = (function(f"def paired(x, k):\n    {line}\n", "paired") for line in (right, wrong))
    def fails(fn):
        try:
            return fn(5, 3) != right(5, 3) or fn(2, 7) != right(2, 7)
        except Exception:
            return True
    found = one_change(wrong, fails, lambda fn: not fails(fn))
    assert found.endswith(f"`, {told}")


UNLISTED = "def slopes_by_a_hair(function, x, hair):\n    flat, slopes = x.view(-1), torch.zeros_like(x)\n    for i in range(len(flat)):\n        flat[i] += hair\n        slopes.view(-1)[i] = function(x) / hair\n        flat[i] -= hair\n    return slopes\n"


def test_augmented_assignments_do_not_stop_the_search():
    found = diagnose(function(UNLISTED, "slopes_by_a_hair"), all_exercises()["slopes_by_a_hair"], listed=False)
    assert found.status == "wrong" and "to the end" not in found.reason
    assert [told for changed, told in changes(function(UNLISTED, "slopes_by_a_hair")) if "replace the value" in told]


@pytest.mark.parametrize("problem", [AttributeError("lineno"), SystemExit(), MemoryError()])
def test_a_search_that_fails_does_not_cost_the_reason(problem, monkeypatch):
    def search(*arguments):
        raise problem
    exercise, answer = all_exercises()["slopes_by_a_hair"], function(UNLISTED, "slopes_by_a_hair")
    before = diagnose(answer, exercise, listed=False)
    monkeypatch.setattr(diagnosis, "one_change", search)
    found = diagnose(answer, exercise, listed=False)
    assert found.reason == before.reason and found.status == "wrong" and found.where == ""


def test_ctrl_c_ends_the_search(monkeypatch):
    def search(*arguments):
        raise KeyboardInterrupt
    monkeypatch.setattr(diagnosis, "one_change", search)
    with pytest.raises(KeyboardInterrupt):
        diagnose(function(UNLISTED, "slopes_by_a_hair"), all_exercises()["slopes_by_a_hair"], listed=False)


def test_a_listed_mistake_is_named_and_no_change_is_looked_for():
    exercise = all_exercises()["steady_softmax"]
    ready = prepared(exercise)
    message, (source, *others) = next(iter(ready.mistakes.items()))
    found = diagnose(function("import torch\nfrom torch import Tensor\n" + source, "steady_softmax"), replace(exercise))
    assert found.reason == message and found.where == ""

"""Wrong answers that once passed, or were told as something else; right ones that were refused."""
import dataclasses
import json
import os
import re
import time

import numpy
import pytest
import torch

from transformer_course.checking.comparison import difference
from transformer_course.checking.diagnosis import diagnose
from transformer_course.checking.exercise_notebooks import all_exercises, function_from, prepared

WRONG = [   # exercise, answer, words of the reason, words that would mislead
    ("min_p_first", """
def min_p_first(logits, share, temperature):
    p = logits.softmax(-1)
    kept = p >= share * p.amax(-1, keepdim=True)
    p = p.masked_fill(~kept, 0) ** (1 / temperature)
    return p / p.sum(-1, keepdim=True)""", ["temperature", "0 / 0"], []),
    ("wrong_names", """
def wrong_names(needed, found, copies):
    there = set(found) | {copies[name] for name in found if name in copies}
    missing = [name for name in needed if name not in there]
    other = [name for name in needed if name in found and found[name] != needed[name]]
    return sorted(missing + other + [name for name in found if name not in needed and name not in copies])""", ["original", "missing"], []),
    ("feed_real_words", """
def feed_real_words(x, real, W_1, b_1, W_2, b_2):
    return ((x @ W_1 + b_1).clamp(min=0) @ W_2 + b_2) * real[..., None]""", ["infinite", "NaN"], []),
    ("filled", """
def filled(source, target, first_mark):
    gaps, text = [], []
    for token in target:
        if token >= first_mark:
            gaps.append([])
        else:
            gaps[-1].append(token)
    gaps = iter(gaps)
    for token in source:
        text += next(gaps) if token >= first_mark else [token]
    return text""", ["in turn", "mark"], []),
    ("by_key", """
def by_key(scores):
    T, S = scores.shape
    found = torch.zeros_like(scores)
    for i in range(T):
        for j in range(S - T + i + 1):
            d = S - T + i - j
            found[i, j] = scores[i, min(S - d, S - 1)]
    return found""", ["S − 1 − d"], []),
    ("by_key", """
def by_key(scores):
    T, S = scores.shape
    found = torch.zeros_like(scores)
    for i in range(T):
        for j in range(S - T + i + 1):
            found[i, j] = scores[i, S - (S - T + i - j)] if i + S - T > j else 0
    return found""", ["S − 1 − d"], []),
    ("by_key", """
def by_key(scores):
    T, S = scores.shape
    found = torch.zeros_like(scores)
    for i in range(T):
        for j in range(S - T + i + 1):
            found[i, j] = scores[i, S - (S - T + i - j)]
    return found""", ["S − 1 − d"], []),
    ("penalised", "def penalised(logp, words, theta):\n    written = torch.zeros_like(logp, dtype=torch.bool).scatter(1, words, True)\n"
                  "    return torch.where(written, logp / theta, logp)", ["divide", "theta times log p"], ["p to the theta is log p"]),
    ("renumber", "def renumber(W_in, W_out, order):\n    return W_in[order], W_out[:, order]", [], []),
    ("renumber", "def renumber(W_in, W_out, order):\n    return W_in[:, order.argsort()], W_out[order.argsort()]", ["other way"], []),
    ("renumber", "def renumber(W_in, W_out, order):\n    new = torch.empty_like(W_in)\n    new[:, order] = W_in\n    return new, W_out[order]", [], []),
    ("renumber", "def renumber(W_in, W_out, order):\n    P = torch.eye(len(order))[order]\n    return W_in @ P, P @ W_out", [], []),
    ("next_word_loss", "def next_word_loss(logits, tokens):\n    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())", ["no shift"], []),
    ("next_word_loss", "def next_word_loss(logits, tokens):\n    return -logits.log_softmax(-1).gather(-1, tokens[..., None]).mean()", ["no shift"], []),
    ("next_word_loss", "def next_word_loss(logits, tokens):\n    logp = logits.log_softmax(-1)[:, 1:]\n    return -logp.gather(-1, tokens[:, 1:, None]).mean()", ["no shift"], []),
    ("obeyed", """
def obeyed(outputs, own, other):
    words = lambda text: "".join(c if c.isalpha() else " " for c in text.lower()).split()
    return sum(sum(w in own for w in words(t)) > sum(w in other for w in words(t)) for t in outputs) / len(outputs)""", ["marks"], []),
    ("obeyed", """
def obeyed(outputs, own, other):
    right = 0
    for text in outputs:
        words = text.lower().split()
        right += sum(w in own for w in words) >= sum(w in other for w in words)
    return right / len(outputs)""", ["is taken for right"], ["is in neither"]),
    ("whole_block", """
def whole_block(x, real, n_heads, W_q, W_k, W_v, W_o, W_1, W_2):
    B, T, D = x.shape
    q, k, v = ((x @ W).view(B, n_heads, T, D // n_heads) for W in (W_q, W_k, W_v))
    scores = (q @ k.mT / (D // n_heads) ** 0.5).masked_fill(~real[:, None, None, :], -math.inf)
    y = F.layer_norm(x + (scores.softmax(-1) @ v).reshape(B, T, D) @ W_o, (D,))
    return F.layer_norm(y + (y @ W_1).relu() @ W_2, (D,))""", ["words and heads"], ["padding"]),
    ("whole_block", """
def whole_block(x, real, n_heads, W_q, W_k, W_v, W_o, W_1, W_2):
    split = lambda W: (x @ W).unflatten(-1, (n_heads, -1)).transpose(1, 2)
    q, k, v = map(split, (W_q, W_k, W_v))
    scores = (q @ k.mT / k.shape[-1] ** 0.5).masked_fill(~real[:, None, :, None], -1e9)
    y = F.layer_norm(x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) @ W_o, x.shape[-1:])
    return F.layer_norm(y + (y @ W_1).relu() @ W_2, x.shape[-1:])""", ["queries", "keys"], []),
    ("learnt_by_heart", """
def learnt_by_heart(x, target, weights, rate, most):
    w, taken = weights.detach().clone().requires_grad_(), 0
    for step in range(most):
        if (x @ w).argmax(-1).eq(target).all():
            break
        gradient, = torch.autograd.grad(F.cross_entropy(x @ w, target), w)
        w, taken = (w - rate * gradient).detach().requires_grad_(), step
    return w.detach(), taken""", ["one too low"], []),
    ("mended_draw", "def mended_draw(logits, temperature):\n    e = (logits / temperature).exp()\n    return e / e.sum(-1, keepdim=True)", ["exp of a large score"], []),
    ("lengths_of_a_greeting", "def lengths_of_a_greeting():\n    word = 'नमस्ते'\n    return len(word), len(word.encode('utf-16'))", ["UTF-16"], []),
    ("gains", """
def gains(alone, memory, recalled):
    gain = alone - memory
    asked = torch.zeros(len(gain) + 2, dtype=torch.bool)
    asked[recalled + 1] = True
    asked = asked[:len(gain)]
    return gain[asked].mean().item(), gain[~asked].mean().item()""", ["wrong side"], []),
    ("wrong_names", """
def wrong_names(needed, found, copies):
    return (sorted(n for n in needed if n not in found) + sorted(n for n in needed if n in found and needed[n] != found[n])
            + sorted(n for n in found if n not in needed and n not in copies))""", ["sort the whole list"], []),
]


def told(name, source):
    exercise = all_exercises()[name]
    return diagnose(function_from(source, prepared(exercise), name), exercise)


@pytest.mark.parametrize("name, source, words, misleading", WRONG)
def test_a_wrong_answer_is_told_what_it_did(name, source, words, misleading):
    found = told(name, source)
    assert found.status in ("wrong", "error")
    assert all(word in found.reason for word in words) and not any(word in found.reason for word in misleading), found.reason


def test_a_default_of_double_precision_breaks_no_right_answer():
    torch.set_default_dtype(torch.float64)
    try:
        found = [told(name, all_exercises()[name].source)
                 for name in ("steady_softmax", "clock_codes", "scaled_attention")]
    finally:
        torch.set_default_dtype(torch.float32)
    assert [report.status for report in found] == ["passed"] * 3, [report.reason for report in found]


def test_the_task_of_the_clock_names_its_number_type(root):
    assert "float32" in (root / "nbs" / "exercises" / "ex21_positions.ipynb").read_text(encoding="utf-8").partition("## 21.1")[2].partition("def clock_codes")[0]


# --- the whole check --------------------------------------------------------------------------------------------------------------------------

def test_one_limit_holds_for_all_calls_of_a_check(monkeypatch):
    from transformer_course.checking import diagnosis
    exercise, began = all_exercises()["steady_softmax"], time.monotonic()
    right = prepared(exercise).solution
    monkeypatch.setattr(diagnosis, "WHOLE_CHECK", 1.0)
    slow = dataclasses.replace(prepared(exercise), seconds=0.5)
    monkeypatch.setattr(diagnosis, "prepared", lambda exercise: slow)
    found = diagnose(lambda scores: time.sleep(0.2) or right(scores), exercise)
    assert found.status == "error" and "take too long" in found.reason and time.monotonic() - began < 6


def test_a_long_check_shows_that_it_works(monkeypatch, capsys):
    from transformer_course.checking import isolation
    monkeypatch.setattr(isolation, "QUIET", 0.1)
    monkeypatch.setattr(isolation, "shows_bars", lambda: True)            # as in a terminal or a notebook
    right = prepared(all_exercises()["steady_softmax"]).solution
    assert diagnose(lambda scores: time.sleep(0.05) or right(scores), all_exercises()["steady_softmax"]).status == "passed"
    assert "checking" in capsys.readouterr().err


def test_an_answer_that_would_end_python_is_told_so():
    found = diagnose(lambda scores: os._exit(3), all_exercises()["steady_softmax"])
    assert found.status == "error" and "os._exit would end Python" in found.reason
    child = os.fork() if hasattr(os, "fork") else 0
    if child == 0 and hasattr(os, "fork"):
        os._exit(7)
    assert not child or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_numpy_results_are_read_or_told_as_such():
    assert difference(numpy.float32(0.5), 0.5) is None and difference(numpy.bool_(True), True) is None
    assert difference(numpy.str_("b"), "b") is None and difference([numpy.int64(3)], [3]) is None and difference(numpy.int64(3), 4)
    assert difference(numpy.ones(2), torch.ones(2)) == "the result should be a tensor, not a NumPy array: torch.from_numpy(it) makes a tensor"
    assert "tolist()" in difference(numpy.ones(2), [1.0, 1.0]) and "NumPy" in difference(numpy.ones(2), 1.0)


def test_the_report_says_whether_it_speaks_of_your_answer_or_of_what_is_right():
    exercise = all_exercises()["steady_softmax"]
    mistake = diagnose(lambda scores: scores.exp() / scores.exp().sum(-1, keepdim=True), exercise)
    assert mistake.lines()[1].startswith("  yours: ")
    rule = told("penalised", "def penalised(logp, words, theta):\n    written = torch.zeros_like(logp, dtype=torch.bool).scatter(1, words, True)\n"
                             "    return torch.where(written, logp * theta, logp + 0.01 * words.sum())")
    assert rule.lines()[1].startswith("  should hold: no word should become likelier")
    assert "yours" not in repr(diagnose(lambda scores: None, exercise)) and "should hold" not in repr(diagnose(lambda scores: None, exercise))


@pytest.mark.parametrize("cell, shown", [("check(steady_softmax)\ndone = 1", 1), ("for i in range(2): check(steady_softmax)", 2),
                                         ("report = check(steady_softmax)", 0), ("check(steady_softmax)", 1), ("1", 0)])
def test_a_check_inside_a_program_is_shown(tmp_path, cell, shown, capsys, monkeypatch):
    import runpy
    program = tmp_path / "mine.py"
    program.write_text("from transformer_course.checking import check\ndef steady_softmax(scores):\n    raise NotImplementedError()\n" + cell)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(program), run_name="__main__")
    assert capsys.readouterr().out.count("not attempted") == shown


def test_a_check_before_the_last_line_of_a_cell_is_shown_once(capsys):
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    try:
        shell.run_cell("from transformer_course.checking import check\ndef steady_softmax(scores):\n    raise NotImplementedError()")
        capsys.readouterr()
        for cell in ("check(steady_softmax)\ndone = 1", "check(steady_softmax)", "if True:\n    check(steady_softmax)"):
            shell.run_cell(cell)
            assert capsys.readouterr().out.count("not attempted") == 1, cell
    finally:
        InteractiveShell.clear_instance()


def test_numbers_have_no_gaps_and_what_was_cut_is_gone():
    by_lesson = {}
    for exercise in all_exercises().values():
        by_lesson.setdefault(exercise.lesson, []).append(exercise.number)
    for lesson, numbers in by_lesson.items():
        assert numbers == [f"{lesson.partition('_')[0]}.{i}" for i in range(1, len(numbers) + 1)], lesson
    gone = {"rms_norm", "split_places", "costs", "best_alignment", "mended_loss", "loss_of_words", "means_of_two_batches"}
    assert not gone & all_exercises().keys() and {"whole_block", "learnt_by_heart"} <= all_exercises().keys()


# --- what a message says, and where an exercise sends its reader ----------------------------------------------------------------------------------

def test_a_listed_mistake_that_says_the_rule_does_not_ascribe_it_to_the_answer():
    from_one = told("reported_layer", "def reported_layer(valid, test):\n    layer = int(valid.float().mean(1).argmax())\n"
                                      "    return layer + 1, float(test[layer].float().mean())")
    assert "count from 0" in from_one.reason and from_one.lines()[1].startswith("  yours: the layers are counted from 1")
    cell_lost = told("shape_and_context", "def shape_and_context():\n    return (4, 7, 1000), 600")
    assert cell_lost.lines()[1].startswith("  should hold: an LSTM's state is a pair")


def test_every_section_that_an_exercise_names_is_in_its_lesson(root):
    """A heading of the lesson, its number apart; one under Going further is said to be there."""
    wrong = []
    for exercise in all_exercises().values():
        lesson, _, place = exercise.section.removeprefix("lesson ").partition(", ")
        (path,) = [path for path in (root / "nbs").rglob(f"{lesson}_*.ipynb") if path.parent.name != "exercises"]
        core, _, further = sections_of(path)
        names, numbers = re.findall(r'"([^"]+)"', place), re.findall(r"\d+", place.partition('"')[0])
        offered = further if place.lower().startswith("going further") else core
        wrong += [(exercise.number, name) for name in names if name not in [name for number, name in offered] + ["Going further"]]
        wrong += [(exercise.number, n) for n in numbers if n not in [number for number, name in offered]]
    assert not wrong


def sections_of(path):
    """Numbers and names of a lesson's sections: before Going further, its own heading, and those under it."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    found = [(number, name.strip()) for number, name in re.findall(r"^##+ (?:(\d+)\. )?(.+)$", text, re.MULTILINE)]
    names = [name for number, name in found]
    cut = names.index("Going further") if "Going further" in names else len(found)
    return found[:cut], "Going further", found[cut + 1:]


def test_several_numbers_may_come_as_one_tensor():
    found = told("weights_with_and_without_tanh", "import math\n\ndef weights_with_and_without_tanh():\n    share = lambda x: 1 / (1 + math.exp(-x))\n"
                 "    return torch.tensor([share(2), share(2), share(2 * math.tanh(1)), share(math.tanh(4) - math.tanh(2))])")
    assert found.status == "passed", found.reason
    assert difference(torch.tensor([1.0, 2.5]), (1, 2.5)) is None and "member 1" in difference(torch.tensor([1.0, 2.0]), (1, 2.5))
    assert "2 members, not 3" in difference(torch.ones(3), (1, 2.5))
    assert "a list" in difference(torch.ones(2), [1, 1]) and "a tuple" in difference(torch.ones(2, 1), (1, 1))

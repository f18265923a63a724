"""What the checker promises: reasons that their case shows, limits that hold, and nothing lost."""
import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from transformer_course.checking import course, diagnosis, exercise_notebooks, isolation, notebook_runs, progress_file
from transformer_course.checking import check, find, hint, progress, solution
from transformer_course.checking.comparison import altered, difference, first_difference, relation, shown
from transformer_course.checking.diagnosis import case_shows_reason, diagnose
from transformer_course.checking.editions import FIRST_PAGE, headings, next_step
from transformer_course.checking.exercise_notebooks import all_exercises, function_from, prepared
from transformer_course.checking.progress_file import note, read_progress
from transformer_course.checking.reports import Report
from transformer_course.cli.app import main

EXERCISES = all_exercises()


def answer(name, *changes, whole=None):
    """A function for an exercise: its solution with some text replaced, or a source of its own."""
    source = whole or exercise_notebooks.mistaken(EXERCISES[name].source, changes)
    return function_from(source, prepared(EXERCISES[name]), name)


# --- reason and example belong together -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("lesson", ["00", "10_", "15", "22", "23", "24"])
def test_a_property_is_printed_with_a_case_that_shows_it(lesson):
    """Over all 726 recorded mistakes 48 reports printed another case; `prove` now asks this of every mistake."""
    exercises = [e for e in EXERCISES.values() if e.lesson.startswith(lesson)]
    for exercise in exercises[:2]:
        ready = prepared(exercise)
        for forms in ready.mistakes.values():
            wrong = function_from(forms[0], ready, exercise.name)
            assert case_shows_reason(diagnose(wrong, exercise, listed=False), wrong, ready)


def test_the_proof_notices_a_case_that_does_not_show_its_reason():
    exercise, ready = EXERCISES["lstm_holding"], prepared(EXERCISES["lstm_holding"])
    wrong = answer("lstm_holding", "return h, c", "return 3 * h, c")
    bound = "h should lie between -1 and 1"
    smallest, *others = ready.cases
    given = [diagnosis.named_arguments(ready.solution, case) for case in ready.cases]
    shows = [bool((wrong(*case)[0].abs() > 1).any()) for case in ready.cases]
    assert shows[1] or shows[2]
    for case, shown_there in zip(given, shows):
        assert case_shows_reason(Report("lstm_holding", "wrong", bound, given=case), wrong, ready) == shown_there


@pytest.mark.parametrize("name, changes, words, not_words", [
    ("feed_real_words", ("result[real] = answers", "pass"), "nothing but zeros", "b_2"),
    ("window_weights", ("(reach / 2)**2", "(reach // 2)**2"), "D // 2", "padding"),
    ("window_weights", ("scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(dim=-1)", "scores.softmax(dim=-1)"), "outside the window", "bell"),
    ("lstm_holding", ("return h, c", "return c, h"), "exchanged", "between -1 and 1"),
    ("attend_with_cache", (".view(B, H, 1, K)", ".view(H, B, 1, K).transpose(0, 1)"), "heads are cut", "first word"),
    ("answers_of_a_beam", ("softmax(dim=1)", "softmax(dim=0)"), "not over the hypotheses", "alone"),
    ("adam_step", ("beta2 * v + (1 - beta2) * gradient**2", "beta2 * v + gradient**2"), "the new v", "optim.Adam"),
    ("best_alignment", ("(best[:, None] + jumps).max(dim=0)", "(best[:, None]).expand_as(jumps).max(dim=0)"), "jump", "another alignment"),
])
def test_what_misled_learners_is_told_now(name, changes, words, not_words):
    report = diagnose(answer(name, *changes), EXERCISES[name])
    assert report.status == "wrong" and words in report.reason and not_words not in report.reason, report


# --- calls ------------------------------------------------------------------------------------------------------------------------------------

def test_a_check_runs_with_one_thread_and_puts_the_number_back():
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        diagnose(lambda scores: seen.append(torch.get_num_threads()) or scores.softmax(-1), EXERCISES["steady_softmax"])
        assert set(seen) == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_what_a_function_prints_appears_once(capsys):
    right = prepared(EXERCISES["clipped_gradients"]).solution

    def talking(gradients, limit):
        print("limit", limit)
        return right(gradients, limit)

    report = diagnose(talking, EXERCISES["clipped_gradients"])
    assert report.status == "passed" and repr(report).count("limit 1.0") == 1 and capsys.readouterr() == ("", "")
    report = diagnose(lambda *given: print("x" * 10**6), EXERCISES["clipped_gradients"])
    assert len(repr(report)) < 2500


def test_an_argument_is_compared_exactly():
    exercise = EXERCISES["slopes_by_a_hair"]
    moved = answer("slopes_by_a_hair", whole="""def slopes_by_a_hair(function, x, hair):
    slopes = torch.zeros_like(x)
    for i in range(x.numel()):
        x.view(-1)[i] += hair
        above = function(x)
        x.view(-1)[i] -= 2 * hair
        slopes.view(-1)[i] = (above - function(x)) / (2 * hair)
        x.view(-1)[i] += hair
    return slopes""")
    assert "changes its argument 'x'" in diagnose(moved, exercise).reason
    x = torch.tensor([0.1, torch.nan])
    assert altered([x + 1e-7], [x]) and not altered([x.clone()], [x])


@pytest.mark.parametrize("name, body, call", [
    ("steady_softmax", "return torch.nn.functional.softmax(scores, -1)", "softmax"),
    ("steady_softmax", "return scores.log_softmax(-1).exp()", "log_softmax"),
    ("cross_entropy_by_hand", "return torch.nn.CrossEntropyLoss()(logits, truth)", "cross_entropy"),
    ("cross_entropy_by_hand", "return torch.nn.functional.nll_loss(logits.log_softmax(-1), truth)", "nll_loss"),
    ("norm_of_vectors", "return F.layer_norm(x, x.shape[-1:], gamma, beta, epsilon)", "layer_norm"),
    ("loss_in_slices", """real = target != 0
    given = [x.detach().clone().requires_grad_() for x in (hidden, weight, bias)]
    loss = torch.nn.functional.cross_entropy((given[0] @ given[1].T + given[2])[real], target[real])
    loss.backward()
    return loss.detach(), *[x.grad for x in given]""", "backward")])
def test_what_a_task_forbids_is_noticed(name, body, call):
    head = EXERCISES[name].source.split("\n")[0]
    report = diagnose(answer(name, whole=f"{head}\n    {body}"), EXERCISES[name])
    assert report.status == "wrong" and f"`{call}`" in report.reason


def test_something_kept_between_calls_has_a_message_of_its_own():
    kept = answer("batches_within_budget", "(lengths, budget):", "(lengths, budget, batches=[]):", "batches, batch = [], []", "batch = []", "return batches + [batch]",
                  "batches.append(batch)\n    return batches")
    assert diagnose(kept, EXERCISES["batches_within_budget"]).reason == diagnosis.KEPT
    right, calls = prepared(EXERCISES["steady_softmax"]).solution, []
    assert diagnose(lambda x: right(x) + (calls.append(1) or len(calls) > len(prepared(EXERCISES["steady_softmax"]).cases)),
                    EXERCISES["steady_softmax"]).reason == diagnosis.KEPT
    assert diagnose(lambda x: torch.rand_like(x), EXERCISES["steady_softmax"]).reason != diagnosis.KEPT


# --- answers that are not a def ---------------------------------------------------------------------------------------------------------------

class Softmax:
    def __call__(self, scores):
        e = (scores - scores.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True)


def my_softmax(scores, dim=-1):
    e = (scores - scores.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


def test_a_change_in_place_is_told_as_such_where_the_result_is_right():
    name = "turned_by_place"
    report = diagnose(answer(name, "return torch.stack(pair, dim=-1).flatten(-2)",
                             "return x.copy_(torch.stack(pair, dim=-1).flatten(-2))"), EXERCISES[name])
    assert "changes its argument 'x' in place" in report.reason


def test_tensors_in_a_set_are_not_told_as_something_kept():
    name = "word_table_and_links"
    report = diagnose(answer(name, "best = table.argmax(dim=1).tolist()", "best = table.argmax(dim=1)"), EXERCISES[name])
    assert "plain values, not tensors" in report.reason, report.reason
    assert difference({1, 2}, {1, 3}) == "the result has the wrong value"


def test_an_import_is_not_stopped_halfway(tmp_path, monkeypatch):
    """PyTorch imports a part of itself at the first call on a meta device: 7 seconds on a busy machine."""
    (tmp_path / "slow_to_import.py").write_text("import time\nfor i in range(100):\n    time.sleep(0.01)\nready = True\n")
    monkeypatch.syspath_prepend(tmp_path)

    def late():
        import slow_to_import
        return slow_to_import.ready

    found = isolation.outcome(late, (), seconds=0.2)
    assert found.value is True, found.error


@pytest.mark.parametrize("form", [lambda scores: my_softmax(scores), functools.partial(my_softmax, dim=-1), Softmax(), my_softmax])
def test_a_right_answer_need_not_be_a_def(form):
    steady_softmax = form
    report = check(steady_softmax)
    assert (report.exercise, report.status) == ("steady_softmax", "passed")
    assert "infinite" not in hint(steady_softmax) and "row" in hint(steady_softmax)


def test_a_wrong_answer_of_any_form_gets_its_reason():
    steady_softmax = functools.partial(my_softmax, dim=-2)
    assert "each row should sum to 1" in check(steady_softmax).reason
    steady_softmax = lambda x: x.sotfmax(-1)
    assert "sotfmax" in check(steady_softmax).reason


# --- what is said -----------------------------------------------------------------------------------------------------------------------------

def test_a_long_result_is_shown_at_its_first_difference():
    rows = [[float(i + j) for j in range(40)] for i in range(40)]
    wrong = [list(row) for row in rows]
    wrong[3][7] = -1.5
    assert first_difference(wrong, rows) == ("[3][7]", -1.5, 10.0)
    report = diagnose(lambda lengths, budget: [[i] for i in range(len(lengths))], EXERCISES["batches_within_budget"])
    assert all(len(line) < 400 for line in report.lines())
    assert max(len(repr(diagnose(lambda *given: None, exercise))) for exercise in list(EXERCISES.values())[::9]) < 2500


def test_lengths_that_are_one_short_or_long_are_named():
    assert difference([1, 2], [1, 2, 3]).endswith("the last is missing") and difference([2, 3], [1, 2, 3]).endswith("the first is missing")
    x = torch.arange(6.0).view(2, 3)
    assert difference(x[:, 1:], x).endswith("along dimension 1 the first is missing")
    assert difference(x, x[:1]).endswith("along dimension 0 the last is one too many")
    assert "the last is missing" in diagnose(answer("noam_rates", "range(1, steps + 1)", "range(1, steps)"), EXERCISES["noam_rates"], listed=False).reason


def test_plain_relations_are_found_and_no_others():
    x = torch.tensor([[1.0, 2.0, 4.0], [3.0, 7.0, 5.0]])
    for wrong, kind in ((0 * x, "zero"), (-x, "sign"), (x.flip(1), "flip 1"), (3 * x, "factor"), (x + 2, "shift")):
        assert relation(wrong, x)[0] == kind
    assert "bits in place of nats?" in relation(x / 0.6931472, x)[1] and "percent in place" in relation(100 * x, x)[1]
    assert "base 10" in relation(x / 2.302585, x)[1] and relation(3 * x, x)[1].endswith("what it should be")
    assert relation((x, 1.0), (1.0, x))[0] == "order" and relation(x**2, x) is None and relation(x, None) is None
    assert relation(x.half() / 0, x) is None and relation(torch.ones(2, 3) > 0, torch.ones(2, 3) < 0)[0] == "exchanged"


def test_a_question_is_read_kindly_and_never_answered():
    stacks, plots = EXERCISES["stacks_by_gradient"], EXERCISES["plots_that_answer"]
    for form in ("BCA", "bca", " B, C, A ", "(B) (C) (A)"):
        assert diagnose(lambda: form, stacks).status == "passed"
    for form in ("BA", "", "BCAA", 3, ["B", "C", "A"]):
        assert diagnose(lambda: form, stacks).reason == "answer with 3 letters, such as 'ABC'"
    right = prepared(plots).solution()
    for wrong in (right[::-1], [right[2], right[1], right[3], right[0]]):
        report = diagnose(lambda: wrong, plots, listed=False)
        assert report.reason.startswith("question 1") and "another order" not in repr(report)
    assert "write each of the names" in diagnose(lambda: [name.title() for name in right], plots).reason


def test_a_prompt_that_was_left_behind_is_named_with_its_line(tmp_path):
    exercise = EXERCISES["steady_softmax"]
    left = answer("steady_softmax", whole="def steady_softmax(scores):\n    scores = scores - scores.amax()\n    raise NotImplementedError()")
    report = diagnose(left, exercise)
    assert report.status == "error" and "in line 3" in report.reason
    path = tmp_path / "mine.ipynb"
    cells = [{"cell_type": "code", "source": "def steady_softmax(scores):\n    return scores\n    raise NotImplementedError()\n\n\n"
                                             "def cross_entropy_by_hand(a, b):\n    'Mine.'\n    # YOUR CODE HERE\n    raise NotImplementedError()"}]
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    first, second = notebook_runs.check_notebook(path, [exercise, EXERCISES["cross_entropy_by_hand"]])
    assert first.status == "wrong" and second.status == "not attempted"


def test_what_cannot_be_shown_costs_its_own_exercise_only(tmp_path):
    notebook = json.loads(course.student_exercises()["20_attention_exercises.ipynb"])
    texts = {"def numbers_in_weights": "class Odd:\n    def __repr__(self):\n        raise SystemExit('no')\ndef numbers_in_weights():\n    return Odd()",
             "def why_weights_sharpen": "def why_weights_sharpen():\n    return 'b'"}
    for cell in notebook["cells"]:
        for begin, text in texts.items():
            if "".join(cell["source"]).startswith(begin):
                cell["source"] = text
    (path := tmp_path / "20.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    found = {report.exercise: report for report in course.check_file(path)}
    assert found["numbers_in_weights"].status == "wrong" and "cannot be shown" in found["numbers_in_weights"].got
    assert found["why_weights_sharpen"].status == "passed"


def test_hint_solution_and_progress_end_in_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for wrong in ("nonsense", "99.9", 99.9, [], object(), -1, 10**6, "", "\0", lambda x: x, None, {}, b"20.1"):
        for ask in (hint, solution, progress):
            assert isinstance(repr(ask(wrong)), str)
            ask(1, wrong) if ask is not progress else None
    assert hint("20.1") == hint(20.1) == hint("scaled_attention") == hint(1, "20.1") and "(T, S)" in hint("20.1")
    assert "def scaled_attention" in solution("20.1") and find("06d.2").number == "06d.2" and find(0.1).number == "00.1"
    assert check().status == check("20.1").status == "error"
    (tmp_path / "course.json").write_text("{}")
    (tmp_path / "progress.json").write_bytes(b"[" * 100_000)
    assert "damaged" in progress()


# --- progress ---------------------------------------------------------------------------------------------------------------------------------

def report(name="scaled_attention", status="passed"):
    return Report(name, status, number="20.1", lesson="20_attention")


def test_a_passed_exercise_keeps_its_tick(tmp_path):
    (tmp_path / "course.json").write_text("{}")
    for status in ("wrong", "passed", "error"):
        note([report(status=status)], tmp_path)
    noted = read_progress(tmp_path)["scaled_attention"]
    assert (noted["status"], noted["last"], noted["checks"]) == ("passed", "error", 3)
    assert progress(tmp_path).states["20_attention"]["scaled_attention"] == "passed"


def test_two_processes_lose_nothing_of_each_others_notes(tmp_path):
    (tmp_path / "course.json").write_text("{}")
    program = ("import sys; from transformer_course.checking.progress_file import note; from transformer_course.checking.reports import Report; "
               "[note([Report(f'{sys.argv[2]} {i}', 'passed')], sys.argv[1]) for i in range(43)]")
    both = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), name]) for name in ("anna", "ben")]
    assert [process.wait(300) for process in both] == [0, 0]
    assert len(read_progress(tmp_path)) == 86 and {path.name for path in tmp_path.iterdir()} == {"course.json", "progress.json"}


def test_a_lock_that_nobody_releases_costs_a_line_and_no_answer(tmp_path, monkeypatch, capsys):
    (tmp_path / "course.json").write_text("{}")
    monkeypatch.setattr(progress_file, "PATIENCE", 0.1)
    with progress_file.FolderLock(tmp_path, progress_file.LOCK):
        note([report()], tmp_path)
    assert "could not be noted" in capsys.readouterr().err
    note([report()], tmp_path)
    assert read_progress(tmp_path)["scaled_attention"]["checks"] == 1


# --- after a pass -----------------------------------------------------------------------------------------------------------------------------

def test_every_exercise_says_what_it_was_good_for():
    for exercise in EXERCISES.values():
        said = prepared(exercise).good_for
        assert said.endswith(".") and 4 <= len(said.split()) <= 30 and "\n" not in said, f"{exercise.number} needs a sentence `good_for`"


def test_every_exercise_leads_on_to_something_that_exists():
    notebooks = {lesson: "\n".join("".join(cell["source"]) for cell in notebook["cells"])
                 for lesson, notebook in exercise_notebooks.author_notebooks().items()}
    for exercise in EXERCISES.values():
        text, address = next_step(exercise)
        place, _, heading = address.partition("#")
        if place == f"../{FIRST_PAGE}":
            continue
        if place:
            known = headings(Path(place).stem)
            assert known and (not heading or heading in [title.replace(" ", "-") for title in known]), exercise.number
        else:
            assert f"## {text.removeprefix('exercise ').replace(', ', ' ', 1)}\n" in notebooks[exercise.lesson], exercise.number


def test_a_pass_is_followed_by_a_sentence_and_a_link():
    steady_softmax = Softmax()
    lines = check(steady_softmax).lines()
    assert lines[0].startswith("✓") and any("every prediction" in line for line in lines) and lines[-1] == "  next: exercise 00.2, Cross-entropy by hand"
    assert '<a href="#00.2-Cross-entropy-by-hand">exercise 00.2, Cross-entropy by hand</a>' in check(steady_softmax)._repr_html_()


# --- files ------------------------------------------------------------------------------------------------------------------------------------

def handed_in(path, **sources):
    """A student notebook of lesson 20 with some functions replaced."""
    notebook = json.loads(course.student_exercises()["20_attention_exercises.ipynb"])
    for cell in notebook["cells"]:
        for name, source in sources.items():
            if "".join(cell["source"]).startswith(f"def {name}("):
                cell["source"] = source
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


RIGHT = "def why_weights_sharpen():\n    return 'b'"
SLEEPER = "import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], start_new_session={})\n"


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory, and a look at the children, on Linux only")
@pytest.mark.parametrize("wild", [
    "def numbers_in_weights():\n    import sys\n    sys.setrecursionlimit(10**9)\n    f = lambda: f()\n    return f()",
    "def numbers_in_weights():\n    import sys\n    sys.setrecursionlimit(10**9)\n    f = lambda x: sorted([1, 2], key=f)\n    return f(1)",
    "def numbers_in_weights():\n    return bytearray(10**12), [bytearray(2**30) for i in range(64)]",
    "def numbers_in_weights():\n    import os\n    os.kill(os.getpid(), 9)"])
def test_a_wild_function_costs_its_own_exercise(tmp_path, wild):
    path = handed_in(tmp_path / "20.ipynb", numbers_in_weights=wild, why_weights_sharpen=RIGHT)
    began, found = time.monotonic(), {report.exercise: report for report in course.check_file(path, seconds=150)}
    assert found["numbers_in_weights"].status == "error" and found["why_weights_sharpen"].status == "passed"
    assert time.monotonic() - began < 140


@pytest.mark.skipif(sys.platform != "linux", reason="the children are looked for in /proc")
def test_sleepers_and_children_do_not_outlive_a_check(tmp_path):
    late = "import atexit, threading, time\natexit.register(time.sleep, 300)\nthreading.Thread(target=time.sleep, args=(300,)).start()\n"
    children = "".join(SLEEPER.format(new) + f"open('child{new}', 'w').write(str(child.pid))\n" for new in (False, True))
    path = handed_in(tmp_path / "20.ipynb", numbers_in_weights=late + children + "def numbers_in_weights():\n    return 80_000, 10_000", why_weights_sharpen=RIGHT)
    began, found = time.monotonic(), course.check_file(path, seconds=200)
    assert [report.status for report in found][2:4] == ["passed", "passed"] and time.monotonic() - began < 150
    for new in (False, True):
        state = Path(f"/proc/{(tmp_path / f'child{new}').read_text()}/stat")
        until = time.monotonic() + 10
        while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < until, "a child is still there"
            time.sleep(0.1)


@pytest.mark.skipif(os.name != "posix", reason="pipes with names")
def test_pipes_and_devices_are_refused_not_waited_for(tmp_path, capsys):
    os.mkfifo(tmp_path / "20.ipynb")
    for path in (tmp_path / "20.ipynb", Path("/dev/zero")):
        with pytest.raises(ValueError, match="not a file"):
            course.check_file(path)
    with pytest.raises(SystemExit):
        main(["check", str(tmp_path / "20.ipynb")])
    assert "not a file" in capsys.readouterr().err
    course.start(tmp_path / "here")
    (tmp_path / "here" / "20_attention.ipynb").unlink()
    os.mkfifo(tmp_path / "here" / "20_attention.ipynb")
    assert course.start(tmp_path / "here").yours == ["20_attention.ipynb"]


def test_a_notebook_that_was_cut_short_is_called_damaged(tmp_path):
    content = course.student_exercises()["20_attention_exercises.ipynb"]
    for length in (10, 900, len(content) - 20):
        (tmp_path / "20.ipynb").write_bytes(content[:length])
        with pytest.raises(ValueError, match="20.ipynb is damaged"):
            course.check_file(tmp_path / "20.ipynb")


def test_answers_in_a_file_need_not_be_a_def(tmp_path):
    sharpen = "why_weights_sharpen = lambda: 'b'"
    path = handed_in(tmp_path / "20.ipynb", numbers_in_weights="from functools import partial\nnumbers_in_weights = partial(lambda a, b: (a, b), 80_000, 10_000)", why_weights_sharpen=sharpen)
    assert [report.status for report in course.check_file(path)][2:4] == ["passed", "passed"]


def test_a_value_that_raises_when_shown_is_named_by_its_kind():
    class Odd:
        def __repr__(self):
            raise RecursionError
    assert shown(Odd()) == "an Odd that cannot be shown" and shown((1, Odd())) == "a tuple that cannot be shown"
    assert isolation.outcome(lambda: 1, (), 5).value == 1 and isolation.MEMORY > 2**30

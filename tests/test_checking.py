"""What learners hand to the checker, and what they do to their folder."""
import copy
import json
import math
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import prove as proving
import pytest
import torch
from hypothesis import given, settings, strategies as st

from transformer_course import checking
from transformer_course.checking import (course, diagnosis, exercise_notebooks, isolation, progress_file,
                                         reports)
from transformer_course.checking import check, hint, progress, solution
from transformer_course.checking.comparison import difference
from transformer_course.checking.diagnosis import diagnose
from transformer_course.checking.exercise_notebooks import all_exercises, prepared
from transformer_course.checking.progress_file import note, read_progress
from transformer_course.checking.reports import Report
from transformer_course.cli.app import main

EXERCISES = list(all_exercises().values())


def started(folder, keep):
    """A course's folder with the exercises of a few lessons only."""
    course.start(folder)
    for path in (folder / "exercises").glob("*.ipynb"):
        if not path.name.startswith(keep):
            path.unlink()
    return folder


class Evil:
    """A result that resists being looked at."""

    def __eq__(self, other):
        raise RuntimeError("do not compare me")

    def __repr__(self):
        raise RuntimeError("do not show me")

    __hash__ = None


nasty = {"none": None, "a number": 3.5, "a string": "no answer", "empty": (), "a list": [None, [1]], "a dict": {"a": 1}, "an object": Evil(),
         "a scalar": torch.tensor(1.0), "an empty tensor": torch.empty(0), "a bool": torch.tensor([True]), "nan": torch.full((2, 3), torch.nan),
         "complex": torch.ones(2, dtype=torch.complex64), "sparse": torch.eye(3).to_sparse(), "meta": torch.empty(2, device="meta"),
         "sparse pair": (torch.eye(3).to_sparse(), torch.eye(2).to_sparse()), "nested": (torch.ones(2), [torch.ones(3)], None), "huge": torch.ones(300, 300), "a class": Evil, "a generator": (i for i in range(3))}


@pytest.mark.parametrize("kind", nasty)
def test_no_result_hurts_the_checker(kind):
    for exercise in EXERCISES[::6]:
        report = diagnose(lambda *args: nasty[kind], exercise)
        assert report.status in ("wrong", "error") and report.reason and "\n" not in report.reason
        assert repr(report) and report._repr_html_().count("<div") == 1


@pytest.mark.parametrize("kind", nasty)
def test_check_takes_anything(kind):
    report = check(nasty[kind])
    assert report.status == "error" and report.reason


def test_wrong_signatures_and_deep_recursion():
    exercise = all_exercises()["scaled_attention"]

    def deep(*args):
        return deep(*args)

    assert "RecursionError" in diagnose(deep, exercise).reason
    assert "TypeError" in diagnose(lambda: 1, exercise).reason
    assert diagnose(print, exercise).status == "wrong"


def test_a_function_that_raises_keyboard_interrupt_is_an_error_and_a_named_folder_is_not_searched_above(tmp_path):
    def pressed(*args):
        raise KeyboardInterrupt

    assert "KeyboardInterrupt" in diagnose(pressed, all_exercises()["scaled_attention"]).reason
    course.start(tmp_path / "here")
    (tmp_path / "here" / "anna").mkdir()
    for place in (tmp_path / "here" / "anna", tmp_path / "here" / "typo"):
        with pytest.raises(FileNotFoundError, match="not a course folder"):
            course.check_folder(place)
    assert progress_file.course_folder(tmp_path / "here" / "exercises") == tmp_path / "here"


def test_a_folder_that_cannot_be_written_loses_no_answer(tmp_path, capsys):
    course.start(tmp_path / "here")
    (tmp_path / "here" / "progress.json").mkdir()
    note([report()], tmp_path / "here")
    assert "could not be noted" in capsys.readouterr().err


def test_a_folder_of_odd_files_is_checked_all_the_same(tmp_path):
    exercises = started(tmp_path / "here", keep=("20_", "21")) / "exercises"
    odd = exercises / "21_positions_exercises.ipynb"
    odd.unlink()
    odd.mkdir()
    (exercises / "random.py").write_text("raise SystemExit", encoding="utf-8")
    found = {r.exercise: r for r in course.check_folder(tmp_path / "here")}
    assert found["clock_codes"].reason == "its notebook is not there" and found["scaled_attention"].status == "not attempted"
    assert found["scaled_attention"].reason.startswith("replace the prompt")


def test_a_first_start_that_was_stopped_can_be_started_again(tmp_path, monkeypatch):
    whole = course.student_lessons()

    def stopped(path, content, wrote=[]):
        wrote.append(path)
        if len(wrote) == 5:
            raise KeyboardInterrupt
        path.write_bytes(content)

    with monkeypatch.context() as patched:
        patched.setattr(course, "write_atomically", stopped)
        with pytest.raises(KeyboardInterrupt):
            course.start(tmp_path / "here")
    again = course.start(tmp_path / "here")
    assert len(again.added) + len(again.same) == len(whole) + len(course.student_exercises()) and not again.yours


def test_an_endless_loop_leaves_no_thread_and_the_notebook_alive(monkeypatch):
    ready = prepared(all_exercises()["mended_mask"])
    monkeypatch.setattr(diagnosis, "prepared", lambda exercise: exercise_notebooks.Ready(**{**vars(ready), "seconds": 0.2}))
    before, began = threading.active_count(), time.monotonic()

    def endless(*args):
        while True:
            pass

    report = diagnose(endless, all_exercises()["mended_mask"])
    assert report.status == "error" and "endless" in report.reason and time.monotonic() - began < 30
    assert threading.active_count() == before and "restart" not in repr(report)


def test_a_loop_that_catches_everything_is_reported_as_still_running(monkeypatch):
    ready = prepared(all_exercises()["mended_mask"])
    monkeypatch.setattr(diagnosis, "prepared", lambda exercise: exercise_notebooks.Ready(**{**vars(ready), "seconds": 0.2}))
    over = threading.Event()

    def stuck(*args):
        while not over.is_set():
            try:                                     # twice, so that the stop finds no gap between two rounds
                while not over.is_set():
                    try:
                        time.sleep(0.005)
                    except BaseException:
                        pass
            except BaseException:
                pass

    try:
        report = diagnose(stuck, all_exercises()["mended_mask"])
        assert report.status == "error" and "endless" in report.reason and "\n" not in report.reason
        assert report.lines()[-1].strip() == "a call could not be stopped and is still running: restart the kernel"
        assert "restart the kernel" in report._repr_html_() and isolation.still_running()
        assert diagnose(lambda *args: None, all_exercises()["mended_mask"]).running, "a later check says so, too"
    finally:
        over.set()
        for thread in threading.enumerate():
            if thread.name == isolation.STUCK:
                thread.join(10)
    assert not isolation.still_running() and not diagnose(lambda *args: None, all_exercises()["mended_mask"]).running


def clock_by_index(positions, d_model, **where):
    codes = torch.zeros(len(positions), d_model, **where)
    for t, place in enumerate(positions):
        for i in range(0, d_model, 2):
            angle = place / 10000 ** (i / d_model)
            codes[t, i], codes[t, i + 1] = angle.sin(), angle.cos()
    return codes


def clock_by_value(positions, d_model):
    angles = [[place / 10000 ** (i // 2 * 2 / d_model) for i in range(d_model)] for place in positions.tolist()]
    return torch.tensor([[math.cos(angle) if i % 2 else math.sin(angle) for i, angle in enumerate(row)] for row in angles])


def mask_by_rows(tokens, pad_id, **where):
    B, T = tokens.shape
    mask = torch.zeros(B, T, T, dtype=torch.bool, **where)
    for t in range(T):
        mask[:, t, :t + 1] = tokens[:, :t + 1] != pad_id
    return mask


def mask_by_value(tokens, pad_id):
    T = tokens.shape[1]
    return torch.tensor([[[s <= t and row[s].item() != pad_id for s in range(T)] for t in range(T)] for row in tokens])


@pytest.mark.parametrize("name, filled, by_value", [("clock_codes", clock_by_index, clock_by_value), ("mended_mask", mask_by_rows, mask_by_value)])
def test_a_tensor_made_on_the_cpu_is_noticed_though_no_error_names_a_device(name, filled, by_value):
    exercise = all_exercises()[name]
    on_cpu = diagnose(filled, exercise)
    assert on_cpu.status == "passed" and "whatever the device of its arguments" in on_cpu.reason, "a pass with a remark"
    assert diagnose(lambda x, *rest: filled(x, *rest, device=x.device), exercise).status == "passed"
    found = diagnose(by_value, exercise)
    assert (found.status, found.reason) == ("passed", ""), "who needs the values is not accused"


def test_a_result_left_on_the_cpu_is_noticed_though_nothing_fails():
    exercise = all_exercises()["scaled_attention"]

    def forgetful(query, key, value, mask=None):
        output, weights = prepared(exercise).solution(query, key, value, mask)
        return (torch.zeros(output.shape, dtype=output.dtype), weights) if output.device.type == "meta" else (output, weights)

    assert "whatever the device of its arguments" in diagnose(forgetful, exercise).reason


@pytest.mark.parametrize("name, right, wrong", [("why_weights_sharpen", "b", "a"), ("loss_with_one_factor", "B", "A")])
def test_letters_are_read_kindly(name, right, wrong):
    exercise = all_exercises()[name]
    for form in ("{}", " {} ", "({})", "{})", "{}.", "**{}**"):
        for letter in (right.lower(), right.upper()):
            assert diagnose(lambda: form.format(letter), exercise).status == "passed"
        (told,) = [message for message, forms in prepared(exercise).mistakes.items() if f'return "{wrong}"' in forms[0]]
        assert diagnose(lambda: form.format(wrong.swapcase()), exercise).reason == told
    for answer in ("", "7", "ab", "the second", 2, ["b"], torch.ones(2), {"b"}):
        report = diagnose(lambda: answer, exercise)
        assert report.status == "wrong" and report.reason == f"answer with one letter, such as {wrong!r}"
    assert "return" in diagnose(lambda: None, exercise).reason


def test_a_number_is_too_small_or_too_large():
    number, pair = all_exercises()["lowest_smoothed_loss"], all_exercises()["numbers_in_weights"]
    assert diagnose(lambda: 0.5, number).reason == "the result has the wrong value: too small"
    assert diagnose(lambda: torch.tensor(7.0), number).reason == "the result has the wrong value: too large"
    assert diagnose(lambda: (80_000, 12_345), pair).reason == "member 1 of the result has the wrong value: too large"
    for strange in (math.nan, 1j):
        assert diagnose(lambda: strange, number).reason == "the result has the wrong value"


@pytest.mark.parametrize("name", ["smoothed_loss", "log_prob_with_teacher"])
def test_a_loss_that_nothing_can_be_learned_from_is_noticed(name):
    exercise = all_exercises()[name]
    right = prepared(exercise).solution

    def without_grad(*args):
        with torch.no_grad():
            return right(*args)

    for lost in (without_grad, lambda *args: right(*args).detach(), lambda *args: torch.tensor(right(*args).tolist())):
        report = diagnose(lost, exercise)
        assert report.status == "wrong" and "gradient" in report.reason or "double precision" in report.reason
    assert "gradient" in diagnose(without_grad, exercise).reason and diagnose(lambda *args: right(*args), exercise).status == "passed"


def test_a_gradient_that_is_lost_in_part_is_noticed():
    x = torch.tensor([0.5, -1.0, 2.0])
    assert checking.gradient_flows(lambda x: x.exp() * x, x)
    assert not checking.gradient_flows(lambda x: x.exp().detach() * x, x)
    assert not checking.gradient_flows(lambda x: torch.ones(3, requires_grad=True), x) and not checking.gradient_flows(lambda x: 3.0, x)


def test_exchanged_biases_of_a_gru_are_named():
    exercise = all_exercises()["gru_step"]
    right = prepared(exercise).solution
    exchanged = diagnose(lambda x, h, W, U, b, b2: right(x, h, W, U, b2, b), exercise)
    assert exchanged.status == "wrong" and exchanged.reason.startswith("b and b2 are exchanged")
    unlisted = diagnose(lambda x, h, W, U, b, b2: right(x, h, W, U, b2, b), exercise, listed=False)
    assert "last third of b2" in unlisted.reason


def test_the_generators_of_cuda_are_put_back_too_once_it_is_in_use(monkeypatch):
    forked = []
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: forked.append(devices) or nullcontext())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for in_use in (False, True):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use)
        with isolation.undisturbed():
            pass
    assert forked == [[], [0, 1]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_check_leaves_the_numbers_of_a_gpu_alone():
    torch.cuda.manual_seed(3)
    expected = torch.rand(4, device="cuda")
    torch.cuda.manual_seed(3)
    with isolation.undisturbed():
        torch.rand(4, device="cuda")
    assert torch.equal(torch.rand(4, device="cuda"), expected)


def test_random_states_and_arguments_are_left_alone():
    import numpy
    exercise = all_exercises()["scaled_attention"]

    def wild(query, key, value, mask=None):
        torch.manual_seed(0), random.seed(0), numpy.random.seed(0), torch.set_default_dtype(torch.float64)
        query.zero_()
        return query, query

    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy()
    assert diagnose(wild, exercise).status == "wrong"
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert (numpy.random.get_state()[1] == states[2]).all() and torch.get_default_dtype() == torch.float32
    once, twice = (diagnose(wild, exercise) for time in range(2))
    assert once == twice


values = st.recursive(st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=2),
                      lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=1), inner, max_size=2), max_leaves=6)


@settings(max_examples=200, deadline=None)
@given(values, values)
def test_difference_is_none_for_equals_and_a_line_otherwise(one, other):
    assert difference(one, one) is None
    found = difference(one, other)
    assert found is None or "\n" not in found
    if type(one) is type(other) is str and one != other:
        assert found


def test_hints_and_solution_unfold():
    assert "no exercise" in hint(1, "nonsense")
    first, all_of_them = hint(1, "scaled_attention"), hint(9, "scaled_attention")
    assert first.count("\n") < all_of_them.count("\n") and all_of_them.startswith(first.splitlines()[0])
    one, two = solution("scaled_attention"), solution("scaled_attention")
    assert one.splitlines()[-1] != two.splitlines()[-1] and "SOLUTION" not in two
    assert "weights @ value" in solution("scaled_attention", lines=99) and "…" not in solution("scaled_attention", lines=99)


def report(name="scaled_attention", status="passed"):
    return Report(name, status, number="20.1", lesson="20_attention")


def test_progress_is_whole_or_put_aside(tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match="start FOLDER"):
        progress_file.progress(tmp_path)
    assert "start FOLDER" in progress(tmp_path)
    course.start(tmp_path / "here")
    folder = tmp_path / "here"
    note([report()], folder / "exercises")
    assert read_progress(folder)["scaled_attention"]["status"] == "passed"
    assert repr(progress(folder)).splitlines()[-1].startswith("1 of ") and "<table>" in progress(folder)._repr_html_()
    assert all(f"{mark}</span> {status}" in progress(folder)._repr_html_() for status, mark in reports.MARKS.items()), "the marks are explained"
    for damage in (b"", b"{", b"[]", b'{"exercises": {"a": 1}}', b"\xff\xfe", b'{"exercises": {"a": {"status": "passed"}}}',
                   b"[" * 100_000, b'{"exercises": {"a": {"status": "passed", "when": "", "checks": 1e999}}}'):
        (folder / "progress.json").write_bytes(damage)
        assert "rebuilds it" in progress(folder)
        for asked in (read_progress, progress_file.progress):
            with pytest.raises(ValueError, match="damaged.*transformer-course progress .*rebuilds it$"):
                asked(folder)
        note([report(status="wrong")], folder)
        assert (folder / "progress.json.damaged").read_bytes() == damage and read_progress(folder)["scaled_attention"]["checks"] == 1
        assert "put aside" in capsys.readouterr().err


def test_damaged_progress_is_rebuilt_by_the_command(tmp_path, capsys):
    folder = started(tmp_path / "here", keep=("20_",))
    (folder / "progress.json").write_bytes(b"{")
    with pytest.raises(SystemExit) as ended:
        main(["progress", str(folder)])
    shown = capsys.readouterr()
    assert ended.value.code == 0 and "anew" in shown.err and shown.out.splitlines()[-1].startswith("0 of ")
    assert read_progress(folder)["scaled_attention"]["status"] == "not attempted"


def test_many_checks_at_once_leave_a_whole_file(tmp_path):
    course.start(tmp_path / "here")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: note([report(f"exercise {i}")], tmp_path / "here"), range(40)))
    assert read_progress(tmp_path / "here")


def test_two_of_one_name_and_missing_parts_are_refused(monkeypatch):
    notebook = exercise_notebooks.author_notebooks()["20_attention"]
    monkeypatch.setattr(exercise_notebooks, "author_notebooks", lambda: {"20_attention": notebook, "20_again": notebook})
    with pytest.raises(ValueError, match="two exercises"):
        exercise_notebooks.all_exercises.__wrapped__()
    for tag, text in (("checks", "no cell with the tag 'checks'"), ("exercise", "checks without a heading")):
        cells = [cell for cell in notebook["cells"] if tag not in cell["metadata"].get("tags", [])]
        with pytest.raises(ValueError, match=text):
            exercise_notebooks.read_exercises({"cells": cells}, "20_attention")


@pytest.mark.parametrize("line", ["", "implement · 10 minutes · easy · lesson 20, section 1", "*implement · ten minutes · easy · lesson 20, section 1*",
                                  "*implement · 10 minutes · simple · lesson 20, section 1*", "*write · 10 minutes · easy · lesson 20, section 1*",
                                  "*implement · 10 minutes · easy*", "*implement, 10 minutes, easy, lesson 20, section 1*"])
def test_a_wrong_line_of_facts_names_its_exercise(line):
    notebook = copy.deepcopy(exercise_notebooks.author_notebooks()["20_attention"])
    first = next(cell for cell in notebook["cells"] if "".join(cell["source"]).startswith("## 20.1"))
    lines = "".join(first["source"]).split("\n")
    first["source"] = "\n".join([*lines[:2], line, *lines[3:]])
    with pytest.raises(ValueError, match=r"20\.1 \(Scaled dot-product attention\)"):
        exercise_notebooks.read_exercises(notebook, "20_attention")


def test_exercises_know_their_kind_minutes_and_difficulty():
    known = all_exercises()["scaled_attention"]
    assert (known.kind, known.minutes, known.difficulty, known.section) == ("implement", 15, "medium", "lesson 20, section 1")
    assert {e.kind for e in EXERCISES} == {"implement", "find the bug", "predict, then run", "read a plot"}


def test_the_proof_wants_four_mistakes_an_exercise_on_average():
    assert not proving.lacking([3, 5]) and "3.67" in proving.lacking([4, 4, 3]) and proving.lacking([])


def test_json_gives_a_result_an_exercise(tmp_path, capsys):
    folder = started(tmp_path / "here", keep=("20_",))
    path = folder / "exercises" / "20_attention_exercises.ipynb"
    text = path.read_text(encoding="utf-8").replace('"    # YOUR CODE HERE\\n",\n    "    raise NotImplementedError()"', '"    return \\"a\\""')
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["check", str(folder), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0 and found["of"] == len(EXERCISES) == len(found["exercises"])
    states = {row["exercise"]: row for row in found["exercises"]}
    sharpen = states["why_weights_sharpen"]
    assert sharpen["status"] == "wrong" and sharpen["reason"].startswith("a: ") and sharpen["number"] == "20.4"
    assert (sharpen["title"], sharpen["minutes"], sharpen["difficulty"]) == ("Read a plot", 5, "easy") and "running" not in sharpen

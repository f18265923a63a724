"""The words of the command line: help that fits, guesses that make sense, and commands that can be copied."""
import io
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from transformer_course.cli import app, lines
from transformer_course.cli.app import main
from transformer_course.data.text import Tokenizer
from transformer_course.pipelines.encoder import Encoder
from transformer_course.pipelines.kinds import ENCODER


def said(capsys, *words) -> tuple[int, str, str]:
    "Exit code, standard output and standard error of a command."
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    shown = capsys.readouterr()
    return ended.value.code, shown.out, shown.err


@pytest.mark.parametrize("words", [(), ("data",), ("train",)])
def test_help_has_a_short_name(capsys, words):
    code, out, err = said(capsys, *words, "-h")
    assert code == 0 and not err and out == said(capsys, *words, "--help")[1] and "-h, --help" in out


def test_the_version_has_a_short_name(capsys):
    assert said(capsys, "-V") == said(capsys, "--version") and said(capsys, "-V")[0] == 0


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "transformer_course", "-V"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and re.fullmatch(r"transformer-course [\d.]+\n", done.stdout), done.stderr


def test_a_group_without_a_command_shows_its_commands(capsys):
    code, out, err = said(capsys, "data")
    assert code == 0 and not err and all(re.search(rf"^  {name}  ", out, re.M) for name in ("list", "fetch", "verify"))


@pytest.mark.parametrize("words", [(), ("data",)])
def test_a_summary_is_never_cut(capsys, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    out = said(capsys, *words, "--help")[1]
    commands = out.split("Commands:\n")[1].splitlines()
    assert len(commands) >= 3 and all(re.match(r"  \w+ +\S", line) for line in commands), out
    assert not [line for line in commands if line.endswith("...")], out
    assert all(len(line) < 80 for line in commands)


@pytest.mark.parametrize("word, never", [("--lr", "--help"), ("--lr", "--pair"), ("--gpu", "--help")])
def test_a_guess_resembles_what_was_written(capsys, word, never):
    code, out, err = said(capsys, "train", word, "3")
    assert code == 2 and not out and err.count("\n") == 1 and word in err
    assert never not in err.split("(--help shows")[0]


@pytest.mark.parametrize("word, meant", [("--presets", "--preset"), ("--min", "--minutes"), ("--folde", "--folder")])
def test_a_near_miss_gets_its_name(capsys, word, meant):
    assert meant in said(capsys, "train", word, "3")[2]


def test_completion_knows_the_commands(capsys, monkeypatch):
    for name, value in {"_TRANSFORMER_COURSE_COMPLETE": "complete_bash", "COMP_WORDS": "transformer-course tra", "COMP_CWORD": "1"}.items():
        monkeypatch.setenv(name, value)
    code, out, err = said(capsys)
    assert code == 0 and out.split() == ["train", "translate"]


def test_without_jupyterlab_the_hint_names_packages_that_exist(capsys, monkeypatch, tmp_path):
    from transformer_course.checking.course import start
    from transformer_course.cli import course
    start(tmp_path / "learning")
    monkeypatch.setattr(course, "find_spec", lambda name: None)
    code, out, err = said(capsys, "lab", str(tmp_path / "learning"))
    assert code == 1 and not out and "pip install jupyterlab ipywidgets" in err and "transformer-course[" not in err


def test_a_printed_command_can_be_copied(capsys, tmp_path):
    folder = tmp_path / "my first course"
    code, out, err = said(capsys, "start", str(folder))
    assert code == 0 and shlex.split(out.splitlines()[-1])[1:] == ["transformer-course", "lab", str(folder)]


def test_a_rule_is_named_as_the_option(capsys):
    from transformer_course.search.sampling import MinP, Nucleus
    for rule, name in ((Nucleus, "top_p"), (MinP, "min_p")):
        with pytest.raises(ValueError, match=f"{name}=1.5"):
            rule(1.5)


def test_lines_are_taken_as_they_come():
    "A line that has arrived does not wait for the next; what has arrived together stays together."
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as incoming, os.fdopen(writer, "wb", buffering=0) as outgoing:
        groups = lines.arriving(incoming, 3)
        outgoing.write(b"one\n")
        assert next(groups) == [b"one"]
        outgoing.write(b"two\nthr")
        assert next(groups) == [b"two"]
        outgoing.write(b"ee\n4\n5\n6\n7")
        assert next(groups) == [b"three", b"4", b"5"]
        assert next(groups) == [b"6"]
        outgoing.close()
        assert next(groups) == [b"7"] and next(groups, None) is None


def test_lines_of_a_file_come_in_groups():
    many = b"\n".join(b"%d" % i for i in range(30_000))
    groups = list(lines.arriving(io.BytesIO(many), 256))
    assert b"\n".join(line for group in groups for line in group) == many and max(map(len, groups)) == 256
    assert list(lines.arriving(io.BytesIO(b"a\n\nb\n"), 256)) == [[b"a", b"", b"b"]]
    assert list(lines.arriving(io.BytesIO(b""), 256)) == []
    assert list(lines.arriving(io.BytesIO(b"x" * 10**7 + b"\n"), 256)) == [[b"x" * 10**7]]


# encode, fill and classify: lines as they come

@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """Folders of an untrained BERT with its tasks and of a classifier."""
    place = tmp_path_factory.mktemp("encoders")
    words = Tokenizer.train(["the lion saw a dog", "a dog ran"], kind="words", size=40, specials=("[MASK]",))
    for model in ("bert", "bert-classifier"):
        sizes = ENCODER.presets["micro"].of(model)[0] | ({"classes": 2} if model == "bert-classifier" else {})
        config = {"model": model, "sizes": sizes} | ({"labels": ["bad", "good"]} if model == "bert-classifier" else {})
        Encoder(ENCODER.make(model, len(words), sizes), words, config).save_pretrained(place / model)
    return place


class Slow:
    """Standard input of a program that sends a line only after the answer to the one before."""

    def __init__(self, lines, answers):
        self.left, self.answers, self.sent = list(lines), answers, 0

    def read1(self, size):
        assert len(self.answers()) == self.sent, "each line is answered before the next is asked for"
        if not self.left:
            return b""
        self.sent += 1
        return self.left.pop(0)


@pytest.mark.parametrize(("verb", "model"), [("encode", "bert"), ("fill", "bert"), ("classify", "bert-classifier")])
def test_lines_are_answered_as_they_come_and_a_bad_one_costs_no_other(encoders, verb, model, capsys, monkeypatch):
    printed = []

    def answers():
        printed.extend(capsys.readouterr().out.splitlines())
        return printed

    lines = [b"the lion saw [MASK]\n", b"\n", b"\xff\n", b"a dog [MASK]\n", b"dog " * 99 + b"[MASK]\n", b"a [MASK] ran\n"]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Slow(lines, answers)))
    monkeypatch.setattr(sys, "stderr", told := io.StringIO())
    with pytest.raises(SystemExit) as ended:
        main([verb, str(encoders / model)])
    assert ended.value.code == 1 and [bool(line) for line in answers()] == [True, False, False, True, False, True]
    said = told.getvalue().splitlines()
    assert [line[:14] for line in said] == ["error: line 2 ", "error: line 3 ", "error: line 5 "], said
    assert "must be a text with words" in said[0] and "not valid UTF-8" in said[1] and "has 102 tokens" in said[2]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"".join(lines[i] for i in (0, 3, 5)))))
    with pytest.raises(SystemExit) as ended:
        main([verb, str(encoders / model)])
    alone = capsys.readouterr().out.splitlines()
    whole = [line for line in printed if line]
    assert ended.value.code == 0 and len(alone) == 3
    for one, other in zip(alone, whole):                            # in another company a vector may be rounded otherwise
        assert json.loads(one) == pytest.approx(json.loads(other), abs=2e-6) if verb == "encode" else one == other


def test_what_no_line_is_to_blame_for_is_said_once(encoders, capsys, monkeypatch):
    for words, says in ((("classify", encoders / "bert"), "cannot classify"), (("fill", encoders / "bert", "--top-k", "0"), "top_k=0")):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a dog\nthe lion\n")))
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        printed = capsys.readouterr()
        assert ended.value.code == 1 and printed.out == "" and printed.err.count("\n") == 1 and says in printed.err

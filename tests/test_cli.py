"""The command line as a user meets it: separate processes, bad input, and nothing lost."""
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import forked
import pytest
import torch
import transformers

from transformer_course.cli.app import main
from transformer_course.cli.texts import GROUP
from transformer_course.data import corpora
from transformer_course.pipelines import runs, scoreboard, translator as translation
from transformer_course.pipelines.writer import Writer

COMMAND = [sys.executable, "-c", "from transformer_course.cli.app import main; main()"]


def run(*words, stdin: bytes | None = None, **environment) -> subprocess.CompletedProcess:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return forked.run(COMMAND[-1], *words, stdin=stdin if stdin is not None else b"", env=env)


def refused(done: subprocess.CompletedProcess, *parts: str) -> str:
    "The single line on standard error of a command that failed."
    line = done.stderr.decode()
    assert done.returncode != 0 and line.count("\n") == 1 and line.startswith("error: "), line
    for part in parts:
        assert part in line, line
    return line


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "model"
    done = run("train", "--data", "micro-hindi", "--preset", "micro", "--steps", "2", "--folder", folder, "--device", "cpu")
    assert done.returncode == 0, done.stderr.decode()
    return folder


@pytest.fixture
def spoilt(model, tmp_path):
    "A copy of the trained model, to be damaged."
    return Path(shutil.copytree(model, tmp_path / "model"))


def test_translate_from_arguments_and_from_standard_input(model):
    sentences = ["jack saw jill", "the cow sleeps"]
    by_argument = run("translate", model, *sentences)
    by_line = run("translate", model, stdin="\n".join(sentences).encode())
    assert by_argument.returncode == by_line.returncode == 0
    assert by_argument.stdout == by_line.stdout and by_argument.stdout.count(b"\n") == 2


def test_a_bad_line_costs_no_good_one(model):
    bad = {2: (b"\xff\xfe", "not valid UTF-8"), 4: (b"   ", "empty"), 5: (b"cow " * 600, "601 tokens")}
    good = [b"jack saw jill", b"jill saw jack", b"the cow sleeps"]
    fine = iter(good)
    lines = [bad[number][0] if number in bad else next(fine) for number in range(1, 7)]
    done, alone = run("translate", model, stdin=b"\n".join(lines)), run("translate", model, stdin=b"\n".join(good))
    assert done.returncode == 1 and alone.returncode == 0
    found = done.stdout.decode().split("\n")
    assert [found[i] for i in (0, 2, 5)] == alone.stdout.decode().splitlines()
    assert [found[i] for i in (1, 3, 4, 6)] == [""] * 4 and len(found) == 7
    said = done.stderr.decode().splitlines()
    assert len(said) == 3
    for line, (number, (content, what)) in zip(said, bad.items(), strict=True):
        assert line.startswith(f"error: line {number} ") and what in line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_and_a_closed_pipe_are_told_in_one_line_or_none(model):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*COMMAND, "translate", str(model), "jack saw jill"], stdout=full, stderr=subprocess.PIPE, timeout=300)
    assert done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"No space left" in done.stderr
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*COMMAND, "translate", str(model), "jack saw jill"], stdout=writing, stderr=subprocess.PIPE, timeout=300)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_lines_come_group_by_group_and_ctrl_c_is_one_line(model):
    with subprocess.Popen([*COMMAND, "translate", str(model), "--beam-size", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}) as running:
        running.stdin.write(b"cow\n" * GROUP)
        running.stdin.flush()
        first = [running.stdout.readline() for line in range(GROUP)]       # no end of input was needed
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert all(line.endswith(b"\n") for line in first) and len(set(first)) == 1
    assert (running.returncode, out, err) == (130, b"", b"stopped\n")


def test_words_that_the_command_line_does_not_know_are_one_line(tmp_path):
    for words in (("trian",), ("train", "--stpes", "3"), ("train", "--steps", "abc", "--folder", tmp_path), ("train",)):
        done = run(*words)
        assert done.returncode == 2
        refused(done, "--help")


def test_bad_sentences(model):
    refused(run("translate", model, ""), "empty")
    refused(run("translate", model, "cow " * 600), "601 tokens", "512")
    refused(run("translate", model, "a", "--beam-size", "0"), "beam_size=0")
    refused(run("translate", model, "a", "--precision", "half"), "half", "medium")
    if sys.platform != "win32":
        refused(run("translate", model, b"\xff\xfe"), "not valid Unicode")


@pytest.mark.parametrize("words, parts", [
    (("--data", "multi31k"), ("multi31k", "multi30k")),
    (("--data", "micro-reviews"), ("micro-reviews", "not sentence pairs")),
    (("--pair", "en-xx"), ("en-xx", "en-hi")),
    (("--preset", "tinny"), ("tinny", "tiny")),
    (("--model", "gru"), ("gru", "seq2seq")),
    (("--device", "tpu"), ("tpu", "cpu")),
    (("--precision", "half"), ("half", "medium")),
    (("--steps", "0"), ("steps", "0")),
])
def test_unknown_names_and_budgets(tmp_path, words, parts):
    budget = () if "--steps" in words else ("--steps", "1")
    refused(run("train", *words, *budget, "--folder", tmp_path / "new"), *parts)


def test_without_a_budget_and_with_two(tmp_path):
    for budget in ((), ("--steps", "1", "--minutes", "1")):
        refused(run("train", *budget, "--folder", tmp_path / "new"), "either steps or minutes")
    assert not (tmp_path / "new").exists()


def test_folders_in_use_and_runs_that_do_not_exist(model, tmp_path):
    before = {path.name: path.stat().st_mtime_ns for path in model.iterdir()}
    refused(run("train", "--steps", "1", "--preset", "micro", "--folder", model), "not empty")
    assert before == {path.name: path.stat().st_mtime_ns for path in model.iterdir()}
    refused(run("train", "--resume", "--steps", "1", "--folder", tmp_path / "none"), "no run to resume")
    refused(run("train", "--resume", "--steps", "3", "--preset", "tiny", "--folder", model), "preset", "micro", "tiny")
    (tmp_path / "file").write_text("x")
    refused(run("train", "--steps", "1", "--preset", "micro", "--folder", tmp_path / "file"), "is a file")


def test_a_run_is_resumed_and_prolonged(spoilt):
    done = run("train", "--resume", "--steps", "4", "--folder", spoilt, "--device", "cpu")
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads((spoilt / "config.json").read_text())["training"]["steps"] == 4


def test_damaged_models(spoilt, tmp_path):
    weights = spoilt / "model.safetensors"
    whole = weights.read_bytes()
    for content in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:1000]):
        weights.write_bytes(content)
        refused(run("translate", spoilt, "a"), "model.safetensors", "altered or cut short")
    weights.unlink()
    refused(run("translate", spoilt, "a"), "model.safetensors", "missing")
    weights.write_bytes(whole)
    (spoilt / "checksums.json").write_text('{"config')
    refused(run("evaluate", spoilt), "checksums.json", "damaged")
    (tmp_path / "empty").mkdir()
    refused(run("translate", tmp_path / "empty", "a"), "empty", "no trained model")
    refused(run("translate", tmp_path / "nowhere" / "deep", "a", HF_HUB_OFFLINE="1"), "nowhere", "is not a folder here")


def test_a_vocabulary_that_does_not_match(spoilt):
    from transformer_course.data.text import Tokenizer
    from transformer_course.files import read_files, write_files
    files = read_files(spoilt)
    other = Tokenizer.train(["a b c", "d e f"], kind="words", size=10).to_json().encode()
    write_files(spoilt, files | {"tokenizer.json": other})
    refused(run("translate", spoilt, "a"), "vocabulary and weights do not fit", "embed")


def test_evaluate_prints_json_and_names_the_splits(model):
    done = run("evaluate", model, "--split", "roles", "--beam-size", "1", "--json")
    score = json.loads(done.stdout)
    assert score["split"] == "roles" and score["sentences"] == 300 and "version" in score["signature"]
    refused(run("evaluate", model, "--split", "tset"), "tset", "test")
    refused(run("evaluate", model, "--split", "roles", "--beam-size", "0"), "beam_size", "0")


def test_no_network_is_one_line(tmp_path):
    nothing = {"TRANSFORMER_COURSE_DATA": "", "TRANSFORMER_COURSE_CACHE": str(tmp_path / "cache"),
               "https_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
    done = run("data", "fetch", "tinyshakespeare", **nothing)
    assert done.returncode == 1
    last = done.stderr.decode().strip().splitlines()[-1]
    assert last.startswith("error: ") and "TRANSFORMER_COURSE_DATA" in last
    assert "Traceback" not in done.stderr.decode()


def test_a_wrong_option_leaves_the_folder_free(tmp_path):
    refused(run("train", "--preset", "micro", "--steps", "1", "--folder", tmp_path / "new", "--device", "tpu"), "tpu")
    refused(run("train", "--preset", "micro", "--steps", "x", "--folder", tmp_path / "new"), "--steps")
    refused(run("train", "--preset", "micro", "--steps", "1", "--folder", tmp_path / "new", "--data", "paradigms"), "valid")
    assert not (tmp_path / "new").exists()
    done = run("train", "--preset", "micro", "--steps", "1", "--folder", tmp_path / "new", "--device", "cpu")
    assert done.returncode == 0, done.stderr.decode()


@pytest.fixture
def few_pairs(monkeypatch):
    "micro-Hindi with a few pairs a split: models that are hardly trained end no sentence, and search takes minutes."
    whole = corpora.load("micro-hindi")
    few = replace(whole, splits={split: whole[split][:200 if split == "train" else 12] for split in whole.splits})
    monkeypatch.setattr(corpora, "load", lambda name, pair=None: few)
    for module in (runs, scoreboard):
        monkeypatch.setattr(module, "load", corpora.load)


def here(*words, capsys) -> str:
    "What a command prints that runs in this process and succeeds."
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.err
    return printed.out


def test_demo_prints_the_table_and_draws(few_pairs, tmp_path, capsys):
    printed = here("demo", "--steps", "2", "--folder", tmp_path / "out", capsys=capsys)
    assert all(f"| {name} " in printed for name in ("seq2seq", "additive", "transformer"))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"alignment.png", "scoreboard.png", "scoreboard.json"}
    figures = json.loads((tmp_path / "out" / "scoreboard.json").read_text())
    assert figures["budget"] == "2 steps" and [row["model"] for row in figures["rows"]] == ["seq2seq", "additive", "transformer"]


def test_doctor_and_data_list_say_what_is_there(tmp_path):
    done = run("doctor", TRANSFORMER_COURSE_CACHE=str(tmp_path))
    assert done.returncode == 0 and all(word in done.stdout.decode() for word in ("torch", "CPU", "micro-hindi", str(tmp_path)))
    listed = run("data", "list")
    assert listed.returncode == 0 and "multi30k" in listed.stdout.decode()


def test_debug_shows_the_traceback(tmp_path):
    done = run("translate", tmp_path / "no model", "a", "--debug")
    assert done.returncode == 1 and b"Traceback" in done.stderr


def test_compare_draws_one_table_of_one_run(few_pairs, tmp_path, capsys):
    picture = tmp_path / "board.png"
    printed = here("compare", "--steps", "2", "--split", "roles", "--models", "model1,seq2seq,additive", "--picture", picture, capsys=capsys)
    assert [line.split()[1] for line in printed.splitlines()[2:]] == ["model1", "seq2seq", "additive"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_compare_knows_its_models_before_it_trains():
    refused(run("compare", "--minutes", "60", "--models", "seq2seq,transformr"), "transformr", "transformer")


def test_the_multi30k_path_end_to_end(real_data, tmp_path):
    folder = tmp_path / "de"
    done = run("train", "--data", "multi30k", "--pair", "en-de", "--preset", "tiny", "--steps", "2", "--folder", folder,
               "--device", "cpu")
    assert done.returncode == 0, done.stderr.decode()
    score = json.loads(run("evaluate", folder, "--split", "test_2016_flickr", "--beam-size", "1", "--json").stdout)
    assert score["sentences"] == 1000 and score["aer"] is None


def test_one_notebook_is_checked_wherever_it_lies(tmp_path, capsys):
    from transformer_course.checking.editions import student_exercises
    text = student_exercises()["20_attention_exercises.ipynb"].decode().replace("raise NotImplementedError()", "return 'b'")
    handed_in = tmp_path / "from Anna (2).ipynb"
    handed_in.write_text(text, encoding="utf-8")
    found = json.loads(here("check", handed_in, "--json", capsys=capsys))
    rows = {row["exercise"]: row["status"] for row in found["exercises"]}
    assert found["of"] == len(rows) == 5 and found["passed"] == 1 and rows["why_weights_sharpen"] == "passed"
    assert "1 of 5 exercises passed" in here("check", handed_in, capsys=capsys) and list(tmp_path.iterdir()) == [handed_in]


def test_a_notebook_in_a_course_folder_is_noted_and_a_strange_one_refused(tmp_path, capsys):
    from transformer_course.checking.progress_file import read_progress
    here("start", tmp_path / "here", capsys=capsys)
    exercises = tmp_path / "here" / "exercises"
    here("check", exercises / "20_attention_exercises.ipynb", capsys=capsys)
    assert set(read_progress(tmp_path / "here")) == {"scaled_attention", "mended_mask", "numbers_in_weights", "why_weights_sharpen",
                                                     "heads_side_by_side"}
    strange = tmp_path / "strange.ipynb"
    strange.write_text('{"cells": []}', encoding="utf-8")
    for path, part in ((strange, "no exercise of this course"), (tmp_path / "none.ipynb", "none.ipynb")):
        with pytest.raises(SystemExit) as ended:
            main(["check", str(path)])
        error = capsys.readouterr().err
        assert ended.value.code == 1 and error.count("\n") == 1 and part in error


def test_memory_for_products_is_bounded_unless_the_user_has_a_limit(monkeypatch, capsys):
    for own, expected in (("7", "7"), (None, "200")):
        monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", own or "")
        if own is None:
            monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
        with pytest.raises(SystemExit):
            main(["--version"])
        assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == expected


def test_export_writes_what_others_read_and_says_what_does_not_fit(model, tmp_path):
    """The trained translator has its norms before the sublayers: it is a Pegasus, and no MarianMT."""
    out = tmp_path / "out"
    done = run("export", model, out)
    assert done.returncode == 0 and b"holds a Pegasus" in done.stdout, done.stderr.decode()
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= {p.name for p in out.iterdir()}
    assert json.loads((out / "config.json").read_text())["architectures"] == ["PegasusForConditionalGeneration"]
    refused(run("export", model, out), "is not empty: give a new folder")
    refused(run("export", model, tmp_path / "b", "--layout", "marian"), "MarianMT cannot hold norms before the sublayers (pre-norm)")
    refused(run("export", model, tmp_path / "b", "--layout", "bart"), "unknown model_type 'bart': choose one of gpt2, bert, t5, marian, pegasus")
    refused(run("export", tmp_path / "nothing", tmp_path / "b"), "nothing is not a folder here")
    assert not (tmp_path / "b").exists()


@pytest.fixture(scope="module")
def language_model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cli-lm") / "model"
    done = run("train", "--model", "transformer-lm", "--steps", "2", "--folder", folder, "--device", "cpu")
    assert done.returncode == 0 and b"bits per character" in done.stdout, done.stderr.decode()
    return folder


def test_a_language_model_writes_on(language_model):
    words = ("write", language_model, "on monday", "the", "--max-new-tokens", "7", "--num-return-sequences", "2", "--top-p", "0.9")
    first, again, other = run(*words), run(*words), run(*words, "--seed", "2")
    lines = first.stdout.decode().splitlines()
    assert first.returncode == 0 and len(lines) == 4, first.stderr.decode()
    assert [line[:3] for line in lines] == ["on ", "on ", "the", "the"]
    assert first.stdout == again.stdout != other.stdout
    assert run("write", language_model, "--max-new-tokens", "5").returncode == 0
    assert run("generate", *words[1:]).stdout == run(*words).stdout, "the ecosystem's word for write"
    beam = run("write", language_model, "on monday", "--max-new-tokens", "5", "--beam-size", "3", "--length-penalty", "0.5")
    assert beam.returncode == 0 and beam.stdout.startswith(b"on monday"), beam.stderr.decode()


def test_a_language_model_is_scored_resumed_and_exported(language_model, tmp_path):
    folder = Path(shutil.copytree(language_model, tmp_path / "model"))
    score = json.loads(run("evaluate", folder, "--split", "valid", "--json").stdout)
    assert score == json.loads((folder / "config.json").read_text())["valid"]
    done = run("train", "--resume", "--steps", "3", "--folder", folder, "--device", "cpu")
    assert done.returncode == 0 and json.loads((folder / "config.json").read_text())["training"]["steps"] == 3
    done = run("export", folder, tmp_path / "gpt2")
    assert b"holds a GPT-2" in done.stdout and b"AutoModelForCausalLM" in done.stdout, done.stderr.decode()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "gpt2").eval()
    ours = Writer.from_pretrained(folder)
    tokens = torch.tensor([ours.tokenizer.encode("on monday")])
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours.model(tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("words", "parts"), [
    (("train", "--model", "gpt", "--steps", "1", "--folder", "NEW"), ("unknown model 'gpt'", "transformer-lm", "t5-gated")),
    (("train", "--model", "gru-lm", "--preset", "base", "--steps", "1", "--folder", "NEW"), ("'base'", "micro, tiny, small")),
    (("train", "--model", "gru-lm", "--pair", "en-hi", "--steps", "1", "--folder", "NEW"), ("--pair en-hi", "one language")),
    (("train", "--model", "gru-lm", "--data", "micro-hindi", "--steps", "1", "--folder", "NEW"), ("holds pairs, not texts",)),
    (("train", "--data", "micro-text", "--steps", "1", "--folder", "NEW"), ("holds texts, not sentence pairs",)),
    (("write", "MODEL", "--num-return-sequences", "0"), ("num_return_sequences=0",)),
    (("write", "MODEL", "--top-p", "2"), ("top_p=2.0",)),
    (("write", "MODEL", "--beam-size", "2", "--top-k", "3"), ("top_k=3", "do_sample=True")),
    (("write", "MODEL", "a" * 99), ("100 tokens", "64 positions")),
    (("write", "NEW"), ("is not a folder here",)),
    (("translate", "MODEL", "a"), ("holds a language model", "`transformer-course write`")),
    (("evaluate", "MODEL", "--split", "tset"), ("tset", "test"))])
def test_what_a_language_model_cannot_do_is_one_line(language_model, tmp_path, words, parts):
    places = {"NEW": tmp_path / "new", "MODEL": language_model}
    refused(run(*(places.get(word, word) for word in words)), *parts)
    assert not (tmp_path / "new").exists()


def test_a_t5_is_a_translator_like_the_others(tmp_path):
    done = run("train", "--model", "t5-gated", "--preset", "micro", "--steps", "1", "--folder", tmp_path / "t5", "--device", "cpu")
    assert done.returncode == 0, done.stderr.decode()
    done = run("translate", tmp_path / "t5", "jack saw jill", "--beam-size", "2")
    assert done.returncode == 0 and done.stdout.count(b"\n") == 1, done.stderr.decode()
    drawn = run("translate", tmp_path / "t5", "jack saw jill", "--do-sample", "--top-k", "1", "--seed", "3")
    assert drawn.stdout == run("translate", tmp_path / "t5", "jack saw jill", "--beam-size", "1").stdout, drawn.stderr.decode()
    done = run("export", tmp_path / "t5", tmp_path / "out")
    assert done.returncode == 0 and b"holds a T5" in done.stdout, done.stderr.decode()
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    ours = translation.Translator.from_pretrained(tmp_path / "t5")
    src, tgt = torch.tensor([[7, 8, 9, ours.tokenizer.eos_id]]), torch.tensor([[ours.tokenizer.bos_id, 5, 6]])
    with torch.no_grad():
        found = theirs(input_ids=src, decoder_input_ids=tgt).logits
        torch.testing.assert_close(found, ours.model(src, tgt), rtol=1e-4, atol=1e-4)
    again = run("translate", tmp_path / "out", "jack saw jill", "--beam-size", "2")
    ours = run("translate", tmp_path / "t5", "jack saw jill", "--beam-size", "2")
    assert again.stdout.split() == ours.stdout.replace(b"<unk>", b"").split() != [], again.stderr.decode()     # a published tokenizer drops it
    refused(run("write", tmp_path / "out", "a"), "holds a translator, a published t5", "`transformer-course translate`")


def test_doctor_reports_what_is_broken_and_goes_on(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRANSFORMER_COURSE_DATA", str(tmp_path / "missing"))
    monkeypatch.setenv("TRANSFORMER_COURSE_CACHE", str(tmp_path / "file" / "cache"))
    printed = here("doctor", capsys=capsys)
    assert "micro-hindi" in printed and "unknown" in printed and f"TRANSFORMER_COURSE_DATA = '{tmp_path / 'missing'}' is not a folder" in printed
    monkeypatch.delenv("TRANSFORMER_COURSE_DATA")
    assert "file/cache cannot be written" in here("doctor", capsys=capsys).replace("\\", "/")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("Could not determine home directory.")))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: (_ for _ in ()).throw(RuntimeError("no driver")))
    printed = here("doctor", capsys=capsys)
    assert "home directory" in printed and "download cache" in printed


def test_an_error_does_not_go_to_standard_output_where_standard_error_is_closed(monkeypatch, capsys, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        with pytest.raises(SystemExit) as ended:
            main(["translate", str(tmp_path / "nowhere"), "a sentence"])
    assert ended.value.code == 1 and capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["stdin", "stdout"])
def test_a_closed_stream_ends_no_command(monkeypatch, model, name):
    with monkeypatch.context() as patch:
        patch.setattr(sys, name, None)
        with pytest.raises(SystemExit) as ended:
            main(["translate", str(model), *([] if name == "stdin" else ["the cow sleeps"])])
    assert ended.value.code == 0


@pytest.mark.skipif(sys.platform == "win32", reason="a shell that closes streams")
def test_a_training_without_any_stream_is_saved_and_leaves_no_lock(spoilt):
    words = [*COMMAND, "train", "--resume", "--steps", "3", "--folder", str(spoilt), "--device", "cpu"]
    done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words], timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0
    assert json.loads((spoilt / "config.json").read_text())["training"]["steps"] == 3
    assert not list(spoilt.glob("**/*.lock")) and json.loads((spoilt / "run.json").read_text())["model"] == "transformer"

"""Models from a user's own files on the command line: trained, resumed, scored and used, in this process."""
import json
import shutil
from pathlib import Path

import pytest

from transformer_course.cli.app import main
from transformer_course.data.corpora import Corpus, Pair
from transformer_course.pipelines.runs import Job, read_job
from transformer_course.pipelines.translator import Translator

NAMES = ("jack", "jill", "mary", "peter", "anna", "tom", "sita", "omar")
VERBS = {"sees": "voit", "likes": "aime", "hears": "entend", "knows": "connaît"}
PAIRS = [(f"{a} {verb} {b}", f"{a} {VERBS[verb]} {b}") for a in NAMES for b in NAMES for verb in VERBS if a != b]
QUICK = ("--preset", "micro", "--device", "cpu", "--precision", "highest", "--steps")


@pytest.fixture
def command(capsys):
    "Runs a command in this process: its exit code, and what it prints on both streams."
    def run(*words):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err
    return run


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    "A folder with a user's files."
    folder = tmp_path_factory.mktemp("my data")
    (folder / "pairs.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in PAIRS), encoding="utf-8")
    (folder / "new.tsv").write_text("anna sees omar\tanna voit omar\nanna likes zed\tanna aime zed\n", encoding="utf-8")
    (folder / "a.en").write_text("".join(f"{s}\n" for s, t in PAIRS), encoding="utf-8")
    (folder / "a.fr").write_text("".join(f"{t}\n" for s, t in PAIRS), encoding="utf-8")
    (folder / "book.txt").write_text("".join(f"{s} .\n{s} and sleeps .\n\n" for s, t in PAIRS), encoding="utf-8")
    (folder / "films.tsv").write_text("".join(f"{s}\t{'good' if 'likes' in s else 'bad'}\n" for s, t in PAIRS), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def translator(home) -> Path:
    "A translator from the user's own pairs, trained by the command."
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in ("train", "--tsv", home / "pairs.tsv", "--pair", "en-fr", "--folder", home / "my model", "--vocabulary", "30",
                                     "--learning-rate", "0.004", "--batch-tokens", "256", *QUICK, "120")])
    assert ended.value.code == 0
    return home / "my model"


def test_a_translator_is_trained_on_a_file_and_says_so(translator, home):
    config = json.loads((translator / "config.json").read_text())
    assert (config["data"], config["pair"], config["vocabulary"], config["learning_rate"]) == ("pairs.tsv", "en-fr", 30, 0.004)
    assert config["valid"]["sentences"] == 22 and config["training"]["steps"] == 120
    assert str(home) not in "".join((translator / name).read_text() for name in ("config.json", "README.md")), "no path of this machine"
    assert read_job(translator) == Job("pairs.tsv", "en-fr", "transformer", "micro", 1, 30, 0.004, 256)
    model = Translator.from_pretrained(translator)
    assert len(model.tokenizer) <= 30
    held_out = Corpus.from_files(home / "pairs.tsv")["valid"]
    found = model.translate([pair.source for pair in held_out])
    assert sum(text == pair.target for text, pair in zip(found, held_out)) >= 18, "the option took effect, and it has learnt"


def test_it_is_resumed_from_the_noted_files_or_from_given_ones(translator, home, command, tmp_path):
    folder = tmp_path / "copy"
    for words in ((), ("--tsv", home / "pairs.tsv")):
        shutil.copytree(translator, folder)
        code, out, err = command("train", "--resume", "--folder", folder, *QUICK[2:], "125", *words)
        assert code == 0, err
        assert json.loads((folder / "config.json").read_text())["training"]["steps"] == 125
        shutil.rmtree(folder)


def test_a_run_is_not_resumed_as_another(translator, home, command):
    for words, part in ((("--model", "gru-lm"), "has model 'transformer', not 'gru-lm'"), (("--seed", "2"), "has seed 1, not 2"),
                        (("--vocabulary", "31"), "has vocabulary 30, not 31"), (("--tsv", home / "new.tsv"), "is of another run")):
        code, out, err = command("train", "--resume", "--folder", translator, *QUICK[2:], "130", *words)
        assert code == 1 and part in err and err.startswith("error: ") and err.count("\n") == 1, err
    noted = json.loads((translator / "run.json").read_text())
    assert noted["files"]["train"] == [str((home / "pairs.tsv").resolve())]


def test_a_run_from_a_list_wants_its_files_when_it_is_resumed(command, tmp_path):
    Translator.train(Corpus.from_pairs(PAIRS, name="mine"), preset="micro", steps=1, device="cpu", folder=tmp_path / "run", progress=False)
    code, out, err = command("train", "--resume", "--folder", tmp_path / "run", "--steps", "2")
    assert code == 1 and "learns from 'mine'" in err and "--tsv" in err


def test_evaluate_on_own_files(translator, home, command):
    code, out, err = command("evaluate", translator, "--source", home / "a.en", "--target", home / "a.fr", "--json", "--beam-size", "1")
    score = json.loads(out)
    assert code == 0 and score["sentences"] == len(PAIRS) and score["split"] == "a.en, a.fr" and score["exact_match"] > 0.8
    code, out, err = command("evaluate", translator)
    assert code == 1 and "was trained on 'pairs.tsv'" in err and "--tsv" in err and err.count("\n") == 1
    for words, part in ((("--tsv", home / "a.en"), "a.en, line 1 has 1 column"), (("--source", home / "a.en"), "--target is missing"),
                        (("--text", home / "book.txt"), "cannot use such files: give --tsv FILE or --source FILE --target FILE"),
                        (("--data", "micro-hindi", "--tsv", home / "new.tsv"), "give a data set, or files of your own")):
        code, out, err = command("evaluate", translator, *words)
        assert code == 1 and part in err and err.count("\n") == 1, err


def test_what_looks_wrong_is_told_on_standard_error_and_training_goes_on(home, command, tmp_path):
    file = tmp_path / "twice.tsv"
    file.write_text((home / "pairs.tsv").read_text(encoding="utf-8") + "jack sees jill\tjack voit jill\n", encoding="utf-8")
    code, out, err = command("train", "--tsv", file, "--valid", home / "new.tsv", "--folder", tmp_path / "new", *QUICK, "1")
    lines = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert code == 0 and len(lines) == 2, err
    assert f"twice.tsv, line {len(PAIRS) + 1}: the same was given before" in lines[0] and "new.tsv, line 1: in train, too" in lines[1]
    assert json.loads((tmp_path / "new" / "config.json").read_text())["valid"]["sentences"] == 2


def test_a_language_model_and_encoders_learn_from_own_files(home, command, tmp_path):
    for model, words, split in (("gru-lm", ("--text", home / "book.txt"), "book.txt"), ("bert", ("--text", home / "book.txt"), "book.txt"),
                                ("bert-classifier", ("--tsv", home / "films.tsv"), "films.tsv")):
        folder = tmp_path / model
        code, out, err = command("train", "--model", model, *words, "--folder", folder, *QUICK, "2")
        assert code == 0, err
        code, out, err = command("train", "--resume", "--folder", folder, *QUICK[2:], "3")
        assert code == 0, err
        code, out, err = command("evaluate", folder, *words)
        assert code == 0 and out.startswith(f"{split}: "), err
    assert json.loads((tmp_path / "bert-classifier" / "config.json").read_text())["labels"] == ["bad", "good"]
    code, out, err = command("evaluate", tmp_path / "bert", "--tsv", home / "pairs.tsv")
    assert code == 0 and "nearest pairs" in out


@pytest.mark.parametrize("words, part", [
    (("--tsv", "pairs.tsv", "--text", "book.txt"), "in one way"),
    (("--source", "a.en"), "--target is missing"),
    (("--target", "a.fr"), "--source is missing"),
    (("--model", "gru-lm", "--tsv", "pairs.tsv"), "gru-lm cannot use such files: give --text FILE"),
    (("--text", "book.txt"), "transformer cannot use such files: give --tsv FILE or --source FILE --target FILE"),
    (("--model", "gru-lm", "--text", "book.txt", "--pair", "en-fr"), "reads one language"),
    (("--tsv", "pairs.tsv", "--pair", "english"), "pair='english'"),
    (("--tsv", "pairs.tsv", "--data", "micro-hindi"), "give a data set, or files of your own"),
    (("--valid", "new.tsv"), "--valid: give the files to learn from"),
    (("--tsv", "pairs.tsv", "--valid", "a.en", "--valid", "a.fr", "--valid", "a.fr"), "pairs come from one file or two, not 3"),
    (("--tsv", "nowhere.tsv"), "nowhere.tsv does not exist"),
    (("--tsv", "pairs.tsv", "--vocabulary", "0"), "vocabulary=0"),
    (("--tsv", "pairs.tsv", "--learning-rate", "nan"), "learning_rate=nan"),
    (("--tsv", "pairs.tsv", "--batch-tokens", "-1"), "batch_tokens=-1"),
    (("--tsv", "pairs.tsv", "--batch-tokens", "3"), "pairs.tsv, line 1 has 4 tokens, and a batch has 3"),
    (("--tsv", "pairs.tsv", "--seed", str(2**64)), "seed=18446744073709551616"),
    (("--tsv", "pairs.tsv", "--seed", "-1"), "seed=-1"),
])
def test_options_that_make_no_sense_are_one_line_and_leave_no_folder(home, command, tmp_path, monkeypatch, words, part):
    monkeypatch.chdir(home)
    code, out, err = command("train", *words, "--folder", tmp_path / "new", *QUICK, "1")
    assert code == 1 and part in err and err.startswith("error: ") and err.count("\n") == 1, err
    assert not (tmp_path / "new").exists()


def test_a_budget_without_end_is_refused(home, command, tmp_path):
    for given, part in (("inf", "not inf minutes"), ("nan", "not nan minutes")):
        code, out, err = command("train", "--tsv", home / "pairs.tsv", "--folder", tmp_path / "new", "--minutes", given)
        assert code == 1 and "positive and finite" in err and part in err


def test_a_line_that_is_too_long_is_named_before_the_training(command, tmp_path):
    long = " ".join(["cow"] * 600)
    (tmp_path / "pairs.tsv").write_text("a\tb\nc\td\ne\tf\n" + f"{long}\tx\n", encoding="utf-8")
    code, out, err = command("train", "--tsv", tmp_path / "pairs.tsv", "--folder", tmp_path / "new", *QUICK, "1")
    assert code == 1 and "pairs.tsv, line 4 has 601 tokens, and a batch has 512" in err
    (tmp_path / "train.tsv").write_text("a\tb\nc\td\n", encoding="utf-8")
    code, out, err = command("train", "--tsv", tmp_path / "train.tsv", "--valid", tmp_path / "pairs.tsv", "--folder", tmp_path / "new",
                             "--batch-tokens", "2000", *QUICK, "1")
    assert code == 1 and "pairs.tsv, line 4 has a source of 601 tokens" in err and "512" in err
    with pytest.raises(ValueError, match="pair 1 of valid has a source of 1 tokens"):
        hollow = Corpus("hollow", "pairs", {"train": [Pair("a", "b")], "valid": [Pair(" ", "b")]}, "", "", "en", "fr")
        Translator.train(hollow, preset="micro", steps=1, device="cpu", progress=False)


def test_compare_on_texts_is_one_line(command):
    for models in ("transformer", "model1"):
        code, out, err = command("compare", "--data", "micro-text", "--models", models, "--steps", "1")
        assert code == 1 and "'micro-text' holds texts, not sentence pairs" in err and err.count("\n") == 1


def test_the_command_to_go_on_with_is_quoted(home, command, tmp_path, monkeypatch):
    monkeypatch.setattr(Translator, "train", lambda *words, **options: (_ for _ in ()).throw(KeyboardInterrupt()))
    monkeypatch.setattr("transformer_course.training.checkpoints.checkpoint_folders", lambda folder: [folder])
    code, out, err = command("train", "--tsv", home / "pairs.tsv", "--folder", tmp_path / "my model", "--steps", "3")
    assert code == 130 and f"--folder '{tmp_path / 'my model'}' --steps 3" in err


def test_a_labelled_text_that_the_model_cannot_read_is_named_before_the_training(command, tmp_path):
    rows = [("a good film", "good"), ("a bad film", "bad"), ("film " * 70, "good")]
    (tmp_path / "long.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")
    (tmp_path / "short.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows[:2]), encoding="utf-8")
    code, out, err = command("train", "--model", "bert-classifier", "--tsv", tmp_path / "short.tsv", "--valid", tmp_path / "long.tsv",
                             "--folder", tmp_path / "new", *QUICK, "1")
    assert code == 1 and "long.tsv, line 3 has 72 tokens, and the model reads 64" in err and not (tmp_path / "new").exists()


def test_a_valid_text_that_is_too_long_is_told_before_anything_is_trained(home, command, tmp_path):
    (tmp_path / "valid.tsv").write_text("a good film\tgood\n" + "very " * 300 + "bad\tbad\n", encoding="utf-8")
    code, out, err = command("train", "--model", "bert-classifier", "--tsv", home / "films.tsv", "--valid", tmp_path / "valid.tsv", "--folder",
                             tmp_path / "model", *QUICK, "3")
    assert code == 1 and err.count("\n") == 1 and "valid.tsv, line 2 has 303 tokens, and the model reads 64: cut it" in err and not out
    assert not (tmp_path / "model").exists()


def test_warnings_of_own_data_come_from_the_first_process_only(home, command, tmp_path, monkeypatch, recwarn):
    (tmp_path / "twice.tsv").write_text((home / "pairs.tsv").read_text() + "anna sees omar\tanna voit omar\n", encoding="utf-8")
    for rank, lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        recwarn.clear()
        Corpus.from_files(tmp_path / "twice.tsv")
        assert len(recwarn) == lines
        code, out, err = command("evaluate", tmp_path / "none", "--tsv", tmp_path / "twice.tsv")
        assert code == 1


def test_a_bar_is_shown_to_a_terminal_only(translator, home, capsys, monkeypatch, tmp_path):
    """Standard error is a pipe here, and nothing is written to it; a terminal gets the bar."""
    import io
    import sys
    shutil.copytree(translator, tmp_path / "run")
    words = ["train", "--resume", "--folder", str(tmp_path / "run"), *QUICK[2:]]
    with pytest.raises(SystemExit):
        main([*words, "122"])
    assert capsys.readouterr().err == ""
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(SystemExit):
        main([*words, "124"])
    assert "gone" in terminal.getvalue()

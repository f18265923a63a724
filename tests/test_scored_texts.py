"""Scores, several translations of a sentence, unknown words, and searches that are too large, from Python and on the command line."""
import io
import json
import math

import pytest
import torch

from transformer_course.cli.app import main
from transformer_course.data.corpora import Corpus, Text
from transformer_course.data.text import Tokenizer
from transformer_course.pipelines.decoding import unknown_words
from transformer_course.pipelines.searching import MOST, SearchOptions
from transformer_course.pipelines.translator import Translator
from transformer_course.pipelines.writer import MAX_PROMPT, Writer

PAIRS = [(f"{a} {verb} {b}", f"{b} {a} {verb}") for a in ("jack", "jill", "tom") for b in ("jack", "jill", "tom") for verb in ("sees", "likes")]
QUICK = {"preset": "micro", "device": "cpu", "precision": "highest", "progress": False}


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored") / "model"
    return Translator.train(Corpus.from_pairs(PAIRS), steps=40, folder=folder, **QUICK), folder


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written") / "model"
    texts = [Text(f"{s} . {t} .") for s, t in PAIRS * 6]
    return Writer.train(Corpus("own", "texts", {"train": texts, "valid": texts[:40]}, "", ""), model="rotary-lm", steps=1, folder=folder, **QUICK), folder


@pytest.fixture
def command(capsys, monkeypatch):
    "Runs a command in this process: its exit code, and what it prints on both streams."
    def run(*words, stdin: bytes = b""):
        capsys.readouterr()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err
    return run


def log_p(translator, source: str, target: str) -> float:
    "log p of a translation with its end, from the model's own logits, word by word."
    words = translator.tokenizer
    src, tgt = torch.tensor([[*words.encode(source), words.eos_id]]), torch.tensor([[words.bos_id, *words.encode(target), words.eos_id]])
    with torch.no_grad():
        logp = translator.model(src, tgt[:, :-1]).log_softmax(-1)
    return logp.gather(-1, tgt[:, 1:, None]).sum().item()


@pytest.mark.parametrize("options, power", [(SearchOptions(4, 0.7, 3), 0.7), (SearchOptions(1), 0.0), (SearchOptions(num_return_sequences=2, do_sample=True), 0.0)])
def test_scores_are_log_p_over_length(translator, options, power):
    sentences = ["jack sees jill", "tom likes tom"]
    for sentence, some in zip(sentences, translator[0].nbest(sentences, options), strict=True):
        assert len(some) == options.num_return_sequences
        for one in some:
            length = len(translator[0].tokenizer.encode(one.text)) + 1
            assert math.isclose(one.score, log_p(translator[0], sentence, one.text) / length**power, rel_tol=1e-3, abs_tol=1e-4)
        assert power == 0 or [one.score for one in some] == sorted((one.score for one in some), reverse=True)


def test_nbest_and_translate_agree(translator):
    sentences = ["jack sees jill", "tom likes tom", "tom sees jack"]
    found = translator[0].nbest(sentences, SearchOptions(num_return_sequences=2))
    assert [one.text for some in found for one in some] == translator[0].translate(sentences, num_return_sequences=2)


def test_the_command_prints_json_lines(translator, command):
    lines = b"jack sees jill\n\nomar sees zed and omar\n"
    code, out, err = command("translate", translator[1], "--json", "--num-return-sequences", "2", stdin=lines)
    first, second, third = map(json.loads, out.splitlines())
    expected = translator[0].nbest(["jack sees jill"], SearchOptions(num_return_sequences=2))[0]
    assert first["source"] == "jack sees jill" and first["unknown"] == [] and code == 1
    assert [(one["text"], pytest.approx(one["score"], abs=1e-5)) for one in first["texts"]] == [(one.text, one.score) for one in expected]
    assert second == {"source": "", "error": "line 2 is empty: there is nothing to translate"}
    assert third["unknown"] == ["omar", "zed", "and"]
    assert err.splitlines() == ["error: line 2 is empty: there is nothing to translate", "warning: line 3 has words that the model does not know: omar, zed, and"]


def test_unknown_words_of_every_kind_of_tokenizer():
    texts = ["the cow sleeps", "  the   zebra\tsleeps zebra ", "a cow"]
    words = Tokenizer.train(["the cow sleeps"], kind="words", size=20)
    assert unknown_words(words, texts) == [[], ["zebra"], ["a"]]
    assert unknown_words(Tokenizer.train(["the cow sleeps"], kind="characters", size=40), texts) == [[], ["zebra"], ["a"]]
    assert unknown_words(Tokenizer.train(["the cow sleeps"], kind="bpe", size=300), texts) == [[], [], []]
    assert unknown_words(words, ["<eos> the cow"]) == [["<eos>"]]


def test_a_translation_with_line_ends_is_one_line(translator, command, monkeypatch):
    decode = Tokenizer.decode_many
    monkeypatch.setattr(Tokenizer, "decode_many", lambda self, rows: [f"{text}\nsecond\u2028third\r" for text in decode(self, rows)])
    code, out, err = command("translate", translator[1], stdin=b"jack sees jill\ntom sees jack\n")
    assert code == 0 and out.count("\n") == 2 and len(out.splitlines()) == 2 and out.splitlines()[0].endswith(" second third")
    code, out, err = command("translate", translator[1], "--json", "jack sees jill")
    assert json.loads(out)["texts"][0]["text"].endswith("\nsecond\u2028third\r")


def test_a_language_model_gives_scores_too(writer, command):
    code, out, err = command("write", writer[1], "tom sees", "xyzzy", "--json", "--num-return-sequences", "2", "--max-new-tokens", "4")
    first, second = map(json.loads, out.splitlines())
    assert code == 0 and len(first["texts"]) == 2 and all(one["text"].startswith("tom sees") and one["score"] < 0 for one in first["texts"])
    assert second["unknown"] == ["xyzzy"] and err.startswith("warning: prompt 2 has words that the model does not know: xyzzy")


@pytest.mark.parametrize("words, part", [
    (("translate", "--beam-size", "1000000"), "beam_size=1000000 must be at most 1000"),
    (("translate", "--beam-size", "1000000000", "--num-return-sequences", "1000000000"), "must be at most 1000"),
    (("translate", "--do-sample", "--num-return-sequences", "1000000000"), "num_return_sequences=1000000000 must be at most 1000"),
    (("translate", "--seed", str(2**64)), "seed=18446744073709551616"),
    (("write", "--num-return-sequences", "1000000000"), "num_return_sequences=1000000000 must be at most 1000"),
    (("write", "--max-new-tokens", "1000000000"), "max_new_tokens=1000000000 must be a whole number from 1 to 100000"),
    (("write", "--seed", "-1"), "seed=-1"),
])
def test_a_search_that_no_machine_can_hold_is_refused_at_once(translator, writer, command, words, part):
    code, out, err = command(words[0], {"translate": translator, "write": writer}[words[0]][1], "jack", *words[1:])
    assert code == 1 and part in err and err.count("\n") == 1, err


def test_a_prompt_of_a_megabyte_is_refused_at_once(writer, command):
    code, out, err = command("write", writer[1], "jack " * 200_000)
    assert code == 1 and f"at most {MAX_PROMPT:,} are allowed" in err and err.count("\n") == 1


def test_a_wide_beam_takes_fewer_sentences_at_a_time(translator):
    assert SearchOptions(5).cells() == SearchOptions(8).cells() == 2048 and SearchOptions(MOST).cells() == 16
    assert SearchOptions(1, num_return_sequences=64, do_sample=True).cells() == 256
    sentences = [pair[0] for pair in PAIRS]
    few = translator[0].translate(sentences, beam_size=40)
    assert few == [translator[0].translate([sentence], beam_size=40)[0] for sentence in sentences]

"""Language models by name: prompts and steps against reading everything at once, scores against counting, and failures."""
import json
import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from transformer_course.data.corpora import Corpus, Text, load
from transformer_course.data.text import Tokenizer
from transformer_course.pipelines.kinds import WRITER
from transformer_course.pipelines.lm_presets import LANGUAGE_MODELS, TEXT_PRESETS, RecurrentLM
from transformer_course.pipelines.translator import Translator
from transformer_course.pipelines.searching import SearchOptions, in_turn
from transformer_course.pipelines.writer import Writer, running_ids, write_on, writing_options
from transformer_course.protocols import LanguageModel
from transformer_course.search.beam import beam_search

CPU = {"device": "cpu", "precision": "highest", "progress": False}
WHOLE = load("micro-text")
FEW = replace(WHOLE, splits={"train": WHOLE["train"][:120], "valid": WHOLE["valid"][:14]})


@pytest.fixture(scope="module", params=LANGUAGE_MODELS)
def writer(request):
    return Writer.train(FEW, model=request.param, steps=2, **CPU)


def a_model(name, words=13):
    torch.manual_seed(1)
    sizes = {"d_model": 8, "n_layers": 2, "dropout": 0.0}
    sizes |= {"d_hidden": 9} if LANGUAGE_MODELS[name].func is RecurrentLM else {"n_heads": 2, "d_ff": 10}
    sizes |= {"max_len": 24} if name == "transformer-lm" else {"memory": 5} if name == "transformer-xl" else {}
    return LANGUAGE_MODELS[name](words, **sizes).eval()


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_every_language_model_keeps_the_protocol(name):
    assert isinstance(a_model(name), LanguageModel)
    for preset in TEXT_PRESETS:
        sizes, peak = TEXT_PRESETS[preset].of(name)
        assert peak > 0 and LANGUAGE_MODELS[name].keywords.items() <= sizes.items()
        with torch.device("meta"):
            WRITER.build(name, preset, 31)


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_later_words_change_nothing_before_them(name):
    model, tokens = a_model(name), torch.randint(3, 13, (3, 7))
    later = tokens.clone()
    later[:, 4:] = 3 + (later[:, 4:] - 2) % 10
    assert_close(model(tokens)[:, :4], model(later)[:, :4])
    assert not torch.allclose(model(tokens)[:, 4:], model(later)[:, 4:])


@pytest.mark.parametrize("name", [name for name in LANGUAGE_MODELS if name != "transformer-xl"])
def test_a_prompt_and_steps_say_what_reading_at_once_says(name):
    model, tokens = a_model(name), torch.randint(3, 13, (3, 9))
    state = model.start(tokens[:, :4])
    for t in range(3, 9):
        logits, state = model.step(state, tokens[:, t])
        assert_close(logits, model(tokens[:, :t + 1])[:, -1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_padding_after_the_end_costs_nothing(name):
    model, row = a_model(name), torch.randint(3, 13, (1, 6))
    padded = torch.cat([row, torch.zeros(1, 3, dtype=torch.long)], dim=1)
    assert_close(model.loss(padded), model.loss(row))


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_prompts_of_different_lengths_are_written_on_as_if_alone(name):
    model, prompts = a_model(name), [[2, 5, 6], [2], [2, 7, 8], [2, 9]]
    options = SearchOptions(do_sample=True, temperature=0)
    together = [texts[0].ids for texts in write_on(model, prompts, 6, options)]
    for prompt, found in zip(prompts, together):
        alone = write_on(model, [prompt], 6, options)[0][0].ids
        assert [i for i in alone if i != 0] == [i for i in found if i != 0]
        best = beam_search(model, torch.tensor([prompt]), 1, 6, length_penalty=0.0)
        end = alone.index(2) if 2 in alone else len(alone)
        assert best.tokens[0].tolist()[:min(end, 5)] == alone[:min(end, 5)]      # greedy search is a beam of one


def test_bits_are_those_of_each_token_alone(writer):
    """A short text fits into one window, so every token is predicted from all before it."""
    texts = ["the man saw", "a tree"]
    ids = running_ids(writer.tokenizer, texts)
    with torch.no_grad():
        logp = [writer.model(ids[None, :t])[0, -1].log_softmax(-1)[ids[t]].item() for t in range(1, len(ids))]
    score = writer.evaluate(texts, "two")
    assert (score.split, score.tokens, score.characters) == ("two", len(ids) - 1, len("the man saw") + len("a tree") + 1)
    assert math.isclose(score.bits_per_character * score.characters, -sum(logp) / math.log(2), rel_tol=1e-4)
    assert math.isclose(score.perplexity, math.exp(-sum(logp) / len(logp)), rel_tol=1e-4)


def test_characters_are_counted_the_same_with_pieces_of_words():
    texts = ["the thin thing, there", "other things"]
    corpus = Corpus("two", "texts", {"train": [Text(t) for t in texts] * 300, "valid": [Text(t) for t in texts]}, "", "")
    letters, pieces = (Writer.train(corpus, model="gru-lm", preset=preset, steps=1, **CPU).config["valid"] for preset in ("micro", "tiny"))
    longer = len(texts[0]) + len(texts[1]) + 2
    assert letters["characters"] == longer - 1 and letters["tokens"] > pieces["tokens"]
    assert pieces["characters"] < longer                  # all but those of its first piece


def test_saved_loaded_and_resumed(tmp_path, writer):
    writer.save_pretrained(tmp_path / "saved")
    again = Writer.from_pretrained(tmp_path / "saved")
    assert again.config == writer.config and all(map(torch.equal, again.model.parameters(), writer.model.parameters()))
    text = again.write(["on monday", ""], seed=5, max_new_tokens=20, top_p=0.9, min_p=0.01, top_k=20, repetition_penalty=1.1)
    assert text == writer.write(["on monday", ""], seed=5, max_new_tokens=20, top_p=0.9, min_p=0.01, top_k=20, repetition_penalty=1.1)
    assert text[0].startswith("on monday")
    name = writer.config["model"]
    whole = Writer.train(FEW, model=name, steps=4, folder=tmp_path / "whole", **CPU)
    Writer.train(FEW, model=name, steps=2, folder=tmp_path / "parts", **CPU)
    parts = Writer.train(FEW, model=name, steps=4, folder=tmp_path / "parts", resume=True, **CPU)
    assert all(map(torch.equal, whole.model.parameters(), parts.model.parameters()))
    assert parts.config["training"]["steps"] == 4


def test_rules_work_one_after_the_other():
    logp = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    double = lambda logp, words, sentence: 2 * logp
    shift = lambda logp, words, sentence: logp - 1
    assert_close(in_turn([double, shift])(logp, None, None), 2 * logp - 1)
    assert in_turn([]) is None


@pytest.mark.parametrize(("options", "message"), [
    ({"max_new_tokens": 0}, "max_new_tokens=0"), ({"num_return_sequences": 0}, "num_return_sequences=0"), ({"temperature": math.nan}, "temperature=nan"), ({"top_k": 0}, "top_k=0"),
    ({"top_p": 0.0}, "top_p=0.0"), ({"min_p": 1.5}, "min_p=1.5"), ({"repetition_penalty": 0.5}, "repetition_penalty=0.5")])
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        writing_options(**{"max_new_tokens": 100} | options)


def test_learned_positions_end_the_text_and_refuse_a_prompt_without_room():
    writer = Writer.train(FEW, model="transformer-lm", steps=1, **CPU)
    positions = TEXT_PRESETS["micro"].length
    assert len(writer.tokenizer.encode(writer.write(["on"], max_new_tokens=500)[0])) <= positions + 1
    with pytest.raises(ValueError, match=f"a prompt has 201 tokens, and the model has learnt {positions} positions"):
        writer.write(["a" * 200])


def test_what_cannot_be_a_writer_is_refused_in_one_line(tmp_path):
    for words, message in ((("micro-hindi", "gru-lm"), "holds pairs, not texts"),
                           (("micro-text", "transformer"), "unknown language model 'transformer'"),
                           (("micro-text", "gru-lm", "base"), "unknown preset 'base': choose one of micro, tiny, small")):
        with pytest.raises(ValueError, match=message) as caught:
            Writer.train(words[0], **dict(zip(("model", "preset"), words[1:])), steps=1, folder=tmp_path / "new", **CPU)
        assert "\n" not in str(caught.value) and not (tmp_path / "new").exists()
    short = Corpus("short", "texts", {"train": [Text("ab")], "valid": [Text("a")]}, "", "")
    with pytest.raises(ValueError, match="too short"):
        Writer.train(short, model="transformer-xl", steps=1, **CPU)


def test_a_translator_and_a_writer_refuse_each_others_folders(tmp_path, writer):
    writer.save_pretrained(tmp_path / "writer")
    with pytest.raises(ValueError, match="holds a language model, .*: `transformer-course write` and Writer can use it"):
        Translator.from_pretrained(tmp_path / "writer")
    hindi = load("micro-hindi")
    few = replace(hindi, splits={split: hindi[split][:40] for split in ("train", "valid")})
    Translator.train(few, steps=1, preset="micro", folder=tmp_path / "translator", **CPU)
    with pytest.raises(ValueError, match="holds a translator, transformer: `transformer-course translate`"):
        Writer.from_pretrained(tmp_path / "translator")


def test_a_card_says_how_good_it_is(writer, tmp_path):
    writer.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "pipeline_tag: text-generation" in card and f"{writer.config['valid']['bits_per_character']:.3f}" in card
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["data"] == "micro-text" and config["sizes"] == writer.config["sizes"]


def test_running_ids_end_each_text():
    words = Tokenizer.train(["a b c d"], kind="words", size=20)
    end = words.eos_id
    assert running_ids(words, ["a b", "", "d"]).tolist() == [*words.encode("a b"), end, end, *words.encode("d"), end]

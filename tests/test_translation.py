"""The translator's own promises, on a corpus small enough to train in a second."""
from dataclasses import replace
from shutil import rmtree
from threading import Thread

import pytest
import torch

from transformer_course.data.corpora import Pair, load
from transformer_course.data.text import Tokenizer
from transformer_course.models.transformer import EncoderDecoder
from transformer_course.pipelines.decoding import encode_pairs, target_limit
from transformer_course.pipelines.evaluation import TranslationScore, attention_places, choose_head
from transformer_course.pipelines.model_folder import model_card
from transformer_course.pipelines.presets import MODELS, PRESETS, build
from transformer_course.pipelines.runs import Job, check_lengths, held, read_job
from transformer_course.pipelines.scoreboard import ALIGNERS, compare, scoreboard
from transformer_course.pipelines.searching import SearchOptions
from transformer_course.pipelines.translator import Translator
from transformer_course.scoring import alignment_error_rate, bleu, exact_match, links_from_attention
from transformer_course.search.beam import greedy_search


@pytest.fixture(scope="module")
def corpus():
    whole = load("micro-hindi")
    return replace(whole, splits={"train": whole["train"][:300], "valid": whole["valid"][:23], "test": whole["test"][:17]})


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    "A Transformer after a few steps, and its folder."
    folder = tmp_path_factory.mktemp("translation") / "model"
    return Translator.train(corpus, preset="micro", steps=60, device="cpu", precision="highest", folder=folder, progress=False), folder


def alone(translator, sentence):
    "Greedy translation of one sentence, without any batch."
    src = torch.tensor([translator.tokenizer.encode(sentence) + [translator.tokenizer.eos_id]])
    return translator.tokenizer.decode(greedy_search(translator.model, src, target_limit(src.shape[1])).tokens[0])


def test_presets_fit_every_model_and_unknown_names_are_refused():
    for name in MODELS:
        sizes, peak = PRESETS["micro"].of(name)
        assert peak > 0 and MODELS[name].keywords.items() <= sizes.items()
        assert build(name, "micro", 50).tgt_embedding.weight.shape == (50, sizes["d_model"])
    for call in (lambda: build("transformr", "micro", 50), lambda: build("transformer", "mikro", 50)):
        with pytest.raises(ValueError, match="choose one of"):
            call()


def test_no_preset_averages_since_every_rate_falls_to_zero():
    """After such a fall the mean of the last epochs' weights gained nothing in the records, or lost; lesson 25a shows them."""
    assert {name: preset.average for name, preset in PRESETS.items()} == dict.fromkeys(PRESETS, 1)


def test_pairs_as_ids(trained, corpus):
    tokenizer = trained[0].tokenizer
    for pair, (src, tgt) in zip(corpus["test"], encode_pairs(tokenizer, corpus["test"]), strict=True):
        assert src == [*tokenizer.encode(pair.source), tokenizer.eos_id]
        assert tgt == [tokenizer.bos_id, *tokenizer.encode(pair.target), tokenizer.eos_id]


def test_training_says_what_it_did_and_repeats_itself(trained, corpus):
    translator, folder = trained
    config = translator.config
    assert (config["model"], config["preset"], config["data"], config["pair"]) == ("transformer", "micro", "micro-hindi", "en-hi")
    assert config["training"]["steps"] == 60 and config["valid"]["sentences"] == 23 and config["data_licence"]
    assert read_job(folder) == Job("micro-hindi", "en-hi", "transformer", "micro", 1)
    again = Translator.train(corpus, preset="micro", steps=60, device="cpu", precision="highest", progress=False)
    for (name, here), (_, there) in zip(translator.model.named_parameters(), again.model.named_parameters(), strict=True):
        assert torch.equal(here, there), name


def test_translations_keep_their_order_whatever_the_batches(trained, corpus):
    translator, sentences = trained[0], [pair.source for pair in corpus["test"]]
    assert len(set(map(len, sentences))) > 3
    expected = [alone(translator, sentence) for sentence in sentences]
    assert len(set(expected)) > 3
    for batch_tokens in (1, 40, 2048):
        assert translator.translate(sentences, beam_size=1, batch_tokens=batch_tokens) == expected
    assert translator.translate([]) == []


def unwilling(model):
    "The model, with EOS so unlikely that limits bind."
    if isinstance(model, EncoderDecoder):
        with torch.no_grad():
            model.output.weight[model.eos_id] *= -3
        return model
    step = model.step

    def later(state, token):
        logits, state = step(state, token)
        logits[:, model.eos_id] -= 2
        return logits, state
    model.step = later
    return model


@pytest.mark.parametrize("name", ["transformer", "transformer-learned", "additive", "luong-local-p"])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_translation_does_not_depend_on_its_company(name, beam_size):
    words = Tokenizer.train(["a b c d e f g"], kind="words", size=20)
    torch.manual_seed(5)
    sizes = {"d_model": 12, "n_heads": 2, "n_layers": 1, "d_ff": 14} if "transformer" in name else {"d_model": 12, "d_hidden": 14}
    model = MODELS[name](len(words), len(words), **sizes)
    translator = Translator(unwilling(model), words, {"model": name})
    sentences = ["a", "b c d e f g a b c d e f g", "c c", "d e f", "a b c d e f g a b"]
    options = [{"length_penalty": penalty, "batch_tokens": tokens} for penalty in (0.0, 1.0) for tokens in (30, 2048)]
    bound = 0
    for option in options:
        together = translator.translate(sentences, beam_size, **option)
        assert together == [translator.translate([sentence], beam_size, **option)[0] for sentence in sentences]
        bound += sum(len(text.split()) == target_limit(len(sentence.split()) + 1) for text, sentence in zip(together, sentences))
    assert bound > 0 or beam_size > 1


def test_a_model_with_learned_positions_is_asked_for_no_more_than_it_has():
    words = Tokenizer.train(["a b c d e f g"], kind="words", size=20)
    torch.manual_seed(5)
    model = MODELS["transformer-learned"](len(words), len(words), d_model=12, n_heads=2, n_layers=1, d_ff=14, max_len=9)
    translator = Translator(model, words, {})
    good = ["a b c d e f g a", "b"]                              # with EOS nine tokens: all there is
    for beam_size in (1, 3):
        assert all(len(text.split()) <= 9 for text in translator.translate(good, beam_size))
    with pytest.raises(ValueError, match="sentence 3 has 10 tokens, and the model has learnt 9 positions"):
        translator.translate([*good, "a b c d e f g a b"])
    examples = encode_pairs(words, [Pair("a", "b c d e f g a b"), Pair("a", "b c d e f g a b c")])
    check_lengths(model, examples[:1], "train")
    with pytest.raises(ValueError, match="pair 2 of train has 10 tokens"):
        check_lengths(model, examples, "train")


def test_precision_is_handed_down_and_set_for_nobody_else(trained, corpus):
    translator, sentences, seen = trained[0], [pair.source for pair in corpus["test"][:4]], set()

    def quickly():
        for turn in range(2):
            translator.translate(sentences, beam_size=1, precision="medium")

    expected = translator.translate(sentences, beam_size=1)
    threads = [Thread(target=quickly) for number in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen.add(torch.get_float32_matmul_precision())
        assert translator.translate(sentences, beam_size=1) == expected
    assert seen == {"highest"} == {torch.get_float32_matmul_precision()}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_translates_at_medium_precision(name):
    words = Tokenizer.train(["a b c d e f g"], kind="words", size=20)
    translator = Translator(build(name, "micro", len(words)), words, {})
    for beam_size in (1, 2):
        assert len(translator.translate(["a b c", "d"], beam_size, precision="medium")) == 2


def test_a_translator_can_draw(trained, corpus):
    translator, sentences = trained[0], [pair.source for pair in corpus["test"]]
    greedy = translator.translate(sentences, beam_size=1)
    for likeliest in ({"top_k": 1}, {"temperature": 0}, {"top_p": 1e-6}):
        assert translator.translate(sentences, do_sample=True, batch_tokens=40, **likeliest) == greedy
    drawn = translator.translate(sentences, do_sample=True, num_return_sequences=6, seed=3)
    assert len(drawn) == 6 * len(sentences) and len(set(drawn)) > len(sentences)
    assert drawn == translator.translate(sentences, do_sample=True, num_return_sequences=6, seed=3)
    assert drawn != translator.translate(sentences, do_sample=True, num_return_sequences=6, seed=4)
    with pytest.raises(ValueError, match="temperature=0.7 must come with do_sample=True"):
        translator.translate(sentences, temperature=0.7)


def test_what_cannot_be_translated_is_named(trained):
    translator = trained[0]
    assert translator.source_row("jack saw jill") == translator.tokenizer.encode("jack saw jill") + [translator.tokenizer.eos_id]
    for sentence, what in ((" ", "empty"), ("\x1f\u2003", "empty"), ("cow " * 600, "601 tokens"), ("\udc80", "the sentence"), (3, "string")):
        with pytest.raises(ValueError, match=what):
            translator.source_row(sentence)
    with pytest.raises(ValueError, match="sentence 2 is empty"):
        translator.translate(["jack saw jill", ""])
    with pytest.raises(ValueError, match="list of sentences"):
        translator.translate("jack saw jill")
    for wrong in ({"beam_size": 0}, {"beam_size": 1.5}, {"precision": "high"}, {"length_penalty": -1.0}, {"batch_tokens": 0}):
        (name, value), = wrong.items()
        with pytest.raises(ValueError, match=f"{name}={value!r}"):
            translator.translate(["jack"], **wrong)
        with pytest.raises(ValueError, match=f"{name}={value!r}"):
            SearchOptions(**wrong)


def test_of_two_runs_in_one_folder_one_is_refused(tmp_path, corpus):
    folder, job = tmp_path / "run", Job("micro-hindi", "en-hi", "transformer", "micro", 1)
    with held(folder, job):
        with pytest.raises(ValueError, match="in use by process"):
            Translator.train(corpus, preset="micro", steps=1, device="cpu", folder=folder, progress=False)
        assert [path.name for path in folder.iterdir()] == ["run.lock"]
    assert not folder.exists()


def test_attention_is_the_models_own_for_each_pair(trained, corpus):
    translator, pairs = trained[0], corpus["test"]
    for place in ((None, None), (1, 2), (0, None)):
        looks = translator.attention(pairs, *place)
        layer, head = translator.config["alignment"] if place == (None, None) else place
        for (src, tgt), look in zip(encode_pairs(translator.tokenizer, pairs), looks, strict=True):
            expected = translator.model.alignment(torch.tensor([src]), torch.tensor([tgt]), layer=layer, head=head)[0]
            torch.testing.assert_close(look, expected, rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(look.sum(-1), torch.ones(len(tgt) - 1))


def test_links_are_read_off_the_attention(trained, corpus):
    translator, pairs = trained[0], corpus["test"]
    for pair, look, links in zip(pairs, translator.attention(pairs, 1, 3), translator.links(pairs, 1, 3), strict=True):
        words = translator.tokenizer.word_of_piece
        assert links == links_from_attention(look, words(pair.source), words(pair.target))
        assert all(i < len(pair.source.split()) and j < len(pair.target.split()) for i, j in links)


def test_the_chosen_head_is_the_best_there_is(trained, corpus):
    translator, gold = trained[0], [pair.links for pair in corpus["valid"]]
    error = lambda layer, head: alignment_error_rate(translator.links(corpus["valid"], layer, head), gold)
    places = [(layer, head) for layer in range(2) for head in (None, 0, 1, 2, 3)]
    assert attention_places(translator.model) == [(None, None), *places]
    chosen = choose_head(translator.model, translator.tokenizer, corpus["valid"])
    assert error(*chosen) == min(error(*place) for place in places) == error(*translator.config["alignment"])


def test_a_model_without_attention_says_so(corpus):
    translator = Translator.train(corpus, model="seq2seq", preset="micro", steps=8, device="cpu", progress=False)
    with pytest.raises(ValueError, match="no attention"):
        translator.attention(corpus["test"])
    assert choose_head(translator.model, translator.tokenizer, corpus["test"]) == (None, None)
    assert translator.evaluate(corpus["test"], beam_size=1).aer is None


def test_scores_are_those_of_its_translations(trained, corpus):
    translator, pairs = trained[0], corpus["test"]
    found, references = translator.translate([pair.source for pair in pairs], beam_size=2), [pair.target for pair in pairs]
    score = translator.evaluate(pairs, "test", beam_size=2)
    assert score.bleu == bleu(found, references).value and score.exact_match == exact_match(found, references)
    assert score.aer == alignment_error_rate(translator.links(pairs), [pair.links for pair in pairs])
    assert (score.split, score.sentences, score.beam_size) == ("test", 17, 2)
    assert str(score).startswith(f"test: BLEU {score.bleu:.1f}, chrF {score.chrf:.1f}, exact match") and "AER" in str(score)
    with pytest.raises(ValueError, match="no pairs"):
        translator.evaluate([])


def test_a_folder_holds_all_of_it(trained, corpus):
    translator, folder = trained
    again, sentences = Translator.from_pretrained(folder), [pair.source for pair in corpus["test"]]
    assert again.config == translator.config and again.device.type == "cpu" and "micro-hindi" in repr(again)
    assert again.translate(sentences, beam_size=3) == translator.translate(sentences, beam_size=3)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card == model_card(translator.config) and translator.config["data_licence"] in card
    assert f"| valid | {translator.config['valid']['bleu']:.2f} |" in card and "60 steps" in card
    assert again.to("meta") is again and again.device.type == "meta"


def test_the_scoreboard_has_one_line_a_model(corpus):
    models = ("model1", "additive")
    rows, translators = compare(corpus, models=models, steps=8, beam_size=1, device="cpu", progress=False)
    assert [row.model for row in rows] == list(models) and list(translators) == ["additive"] and "model1" in ALIGNERS
    assert rows[0].score.aer < 0.5 and rows[0].score.bleu is None
    assert rows[1].score == translators["additive"].evaluate(corpus["test"], "test", 1)
    assert rows[1].parameters == sum(p.numel() for p in translators["additive"].model.parameters())
    lines = scoreboard(rows).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == list(models)
    assert f"| {rows[1].score.aer:.3f} |" in lines[3] and f"| {rows[0].parameters:,} |" in lines[2]
    with pytest.raises(ValueError, match="choose one of"):
        compare(corpus, models=("model1", "model2"), steps=1)


def test_an_evaluation_without_scores_is_short():
    assert str(TranslationScore("test", 3, 0, None, None, None, 0.25, "")) == "test: AER 0.250 (3 sentences)"


def test_a_model_is_saved_before_it_is_scored(corpus, tmp_path, monkeypatch):
    def broken(self, *given, **named):
        raise RuntimeError("scoring failed")

    with monkeypatch.context() as patch:
        patch.setattr(Translator, "evaluate", broken)
        with pytest.raises(RuntimeError, match="scoring failed"):
            Translator.train(corpus, preset="micro", steps=1, device="cpu", folder=tmp_path / "run", progress=False)
    saved = Translator.from_pretrained(tmp_path / "run")
    assert saved.translate(["jack sleeps ."], 1) and "valid" not in saved.config and saved.config["training"]["steps"] == 1
    again = Translator.train(corpus, preset="micro", steps=1, device="cpu", folder=tmp_path / "run", resume=True, progress=False)
    assert again.config["valid"]["sentences"] == 23 and Translator.from_pretrained(tmp_path / "run").config["valid"]


def test_a_run_whose_checkpoints_are_gone_is_not_trained_from_zero(corpus, tmp_path, capsys):
    folder, options = tmp_path / "run", dict(preset="micro", steps=1, device="cpu", progress=False)
    Translator.train(corpus, folder=folder, **options)
    rmtree(folder / "checkpoints")
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="its checkpoints are gone"):
        Translator.train(corpus, folder=folder, resume=True, **options)
    assert (folder / "model.safetensors").read_bytes() == before and not (folder / "run.lock").exists()
    for name in ("model.safetensors", "config.json", "tokenizer.json", "README.md", "checksums.json"):
        (folder / name).unlink()
    (folder / "checkpoints").mkdir()
    with pytest.raises(ValueError, match="its checkpoints are gone"):
        Translator.train(corpus, folder=folder, resume=True, **options)
    rmtree(folder / "checkpoints")                                   # as after a kill before the first checkpoint
    assert Translator.train(corpus, folder=folder, resume=True, **options).config["training"]["steps"] == 1
    assert "the training begins anew" in capsys.readouterr().err

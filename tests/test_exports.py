"""What we export, as others use it: tokenizer and model together, from text to text, through Hugging Face and CTranslate2."""
import json
import random
import re
import warnings
from dataclasses import replace

import pytest
import torch
import transformers

from transformer_course.cli.app import main
from transformer_course.data.corpora import load as corpus
from transformer_course.data.text import Tokenizer, pad
from transformer_course.files import read_files, write_files
from transformer_course.models.bert import Bert, BertForPreTraining, TextClassifier
from transformer_course.pipelines.decoding import encode_pairs
from transformer_course.pipelines.encoder import Encoder
from transformer_course.pipelines.lm_presets import LANGUAGE_MODELS
from transformer_course.pipelines.loading import load
from transformer_course.pipelines.model_folder import export_model
from transformer_course.pipelines.presets import MODELS
from transformer_course.pipelines.translator import Translator
from transformer_course.pipelines.writer import Writer, running_ids
from transformer_course.published.bert import BertForMaskedLM

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TRANSLATORS = {"transformer": ("Pegasus", {"norm": "pre"}), "transformer-post": ("MarianMT", {}), "t5": ("T5", {}), "t5-gated": ("T5", {})}
SIZES = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 64, "dropout": 0.0}
ODD = ["i run </s>", "<pad> i run", "i <eos> run <unk> <bos>"]      # names of special tokens are text, inside a text


@pytest.fixture(scope="module")
def pairs():
    """Short sentences, each once."""
    return list({pair.source: pair for pair in sorted(corpus("micro-hindi")["train"], key=lambda pair: len(pair.source))}.values())[:97]


@pytest.fixture(scope="module")
def tokenizer(pairs):
    return Tokenizer.train([text for pair in pairs for text in (pair.source, pair.target)], kind="bpe", size=380)


def learnt(model, batch, steps=170):
    """The model after some steps on batches that `batch` draws: enough to end its texts by itself."""
    optimizer, draw = torch.optim.Adam(model.parameters(), 6e-3), random.Random(1)
    for step in range(steps):
        optimizer.zero_grad()
        model.loss(*batch(draw)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module", params=TRANSLATORS)
def translator(request, pairs, tokenizer):
    name, (layout, more) = request.param, TRANSLATORS[request.param]
    torch.manual_seed(1)
    examples = encode_pairs(tokenizer, [*pairs, *(replace(pairs[0], source=text) for text in ODD)])

    def batch(draw):
        some = draw.sample(examples, 40)
        return [pad(side) for side in zip(*some)]

    model = learnt(MODELS[name](len(tokenizer), len(tokenizer), **SIZES, **more), batch)
    return Translator(model, tokenizer, {"model": name, "sizes": SIZES | more})


@pytest.fixture(scope="module")
def writer(pairs, tokenizer):
    torch.manual_seed(2)
    ids = running_ids(tokenizer, [pair.target for pair in pairs])
    rows = ids.unfold(0, 25, 5)
    model = learnt(LANGUAGE_MODELS["transformer-lm"](len(tokenizer), **SIZES, max_len=64), lambda draw: [rows[draw.sample(range(len(rows)), 30)]])
    return Writer(model, tokenizer, {"model": "transformer-lm", "sizes": SIZES | {"max_len": 64}})


@pytest.fixture(scope="module")
def exported(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "model"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layout = export_model(folder, translator.model, translator.tokenizer)
    assert layout == TRANSLATORS[translator.config["model"]][0]
    return folder


def hundred(pairs):
    return [pair.source for pair in pairs] + ODD


@pytest.mark.parametrize("beams", [1, 4])
def test_hugging_face_translates_as_we_do(translator, exported, pairs, beams):
    texts = hundred(pairs)
    ours = translator.translate(texts, beam_size=beams)
    assert max(map(len, translator.tokenizer.encode_many(ours))) < 39           # they end by themselves
    tokens = transformers.AutoTokenizer.from_pretrained(exported)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(exported)
    read = tokens(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        written = model.generate(**read, num_beams=beams, max_new_tokens=40)
    assert len(texts) == 100 and len(set(ours)) > 60
    assert tokens.batch_decode(written, skip_special_tokens=True) == ours


@pytest.mark.parametrize("beams", [1, 4])
def test_hugging_face_writes_on_as_we_do(writer, tmp_path, pairs, beams):
    prompts = ["", *ODD, *(pair.target[:1 + i % 9] for i, pair in enumerate(pairs[:96]))]
    ours = writer.write(prompts, 12, beam_size=beams, do_sample=False)
    assert export_model(tmp_path / "out", writer.model, writer.tokenizer) == "GPT-2"
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    theirs = []
    for prompt in prompts:
        with torch.no_grad():
            row = model.generate(**tokens(prompt, return_tensors="pt"), num_beams=beams, max_new_tokens=12)
        theirs.append(tokens.decode(row[0], skip_special_tokens=True))
    assert len(prompts) == 100 and theirs == ours


# CTranslate2, which reads no rule about words that are never written: it is told by the call

NEVER = [["<pad>"], ["<bos>"]]


def converted(folder, out):
    """The folder as CTranslate2's own converter makes it, at full precision."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 comes with the extra `dev`")
    ctranslate2.converters.TransformersConverter(str(folder)).convert(str(out))
    return ctranslate2


def test_ctranslate2_translates_as_we_do_or_the_export_says_so(translator, exported, pairs, tmp_path):
    name = translator.config["model"]
    if name in ("transformer-post", "t5-gated"):
        with pytest.warns(UserWarning, match=r"CTranslate2 cannot hold this (MarianMT|T5): it .*\. Hugging Face's library can"):
            export_model(tmp_path / "again", translator.model, translator.tokenizer)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export_model(tmp_path / "again", translator.model, translator.tokenizer)
    engine = converted(exported, tmp_path / "ct2").Translator(str(tmp_path / "ct2"), intra_threads=1)
    tokens, texts = transformers.AutoTokenizer.from_pretrained(exported), hundred(pairs)
    pieces = [tokens.convert_ids_to_tokens(tokens(text)["input_ids"]) for text in texts]
    for beams in (1, 4):
        ours = translator.translate(texts, beam_size=beams)
        found = engine.translate_batch(pieces, beam_size=beams, max_decoding_length=40, suppress_sequences=NEVER)
        assert [tokens.decode(tokens.convert_tokens_to_ids(row.hypotheses[0])) for row in found] == ours


def test_ctranslate2_writes_on_as_we_do(writer, tmp_path, pairs):
    prompts = ["", *ODD, *(pair.target[:1 + i % 9] for i, pair in enumerate(pairs[:96]))]
    export_model(tmp_path / "out", writer.model, writer.tokenizer)
    engine = converted(tmp_path / "out", tmp_path / "ct2").Generator(str(tmp_path / "ct2"), intra_threads=1)
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    pieces = [tokens.convert_ids_to_tokens(tokens(prompt)["input_ids"]) for prompt in prompts]
    for beams in (1, 4):
        ours = writer.write(prompts, 12, beam_size=beams, do_sample=False)
        found = [engine.generate_batch([row], beam_size=beams, max_length=12, include_prompt_in_result=False, suppress_sequences=NEVER)[0] for row in pieces]
        assert [tokens.decode(tokens(prompt)["input_ids"] + row.sequences_ids[0], skip_special_tokens=True)
                for prompt, row in zip(prompts, found)] == ours


# the README.md of an exported folder: its code is run as it stands

def printed_by(folder, texts, capsys):
    """What each block of Python in the folder's README.md prints, with the folder's own name and these texts in it."""
    blocks = (folder / "README.md").read_text(encoding="utf-8").split("```python\n")[1:]
    found = []
    for block in blocks:
        code = block.split("```")[0].replace('"FOLDER', f'"{folder.as_posix()}')
        assert code.count('texts = ["') == 1
        capsys.readouterr()
        exec(re.sub(r"(?m)^texts = .*$", lambda match: f"texts = {texts!r}", code), {})
        found.append(capsys.readouterr().out.splitlines())
    return found


@pytest.fixture(scope="module")
def words(pairs):
    return Tokenizer.train([text for pair in pairs for text in (pair.source, pair.target)], kind="words", size=400, specials=("[MASK]",))


@pytest.mark.parametrize("name", ["transformer", "t5"])
def test_the_readme_of_an_exported_translator_translates(name, words, pairs, tmp_path, capsys):
    pytest.importorskip("ctranslate2", reason="ctranslate2 comes with the extra `dev`")
    torch.manual_seed(1)
    examples, more = encode_pairs(words, pairs), TRANSLATORS[name][1]
    model = learnt(MODELS[name](len(words), len(words), **SIZES, **more), lambda draw: [pad(side) for side in zip(*draw.sample(examples, 40))], 120)
    ours = Translator(model, words, {"model": name, "sizes": SIZES | more})
    texts = [pair.source for pair in pairs[:20]]
    export_model(tmp_path / "out", model, words)
    expected = ours.translate(texts)
    for printed in (found := printed_by(tmp_path / "out", texts, capsys)):
        assert printed == expected and len(set(expected)) > 10
    assert len(found) == 2 and "AutoModelForSeq2SeqLM" in (tmp_path / "out" / "README.md").read_text()


def test_the_readme_of_an_exported_writer_writes(writer, pairs, tmp_path, capsys):
    pytest.importorskip("ctranslate2", reason="ctranslate2 comes with the extra `dev`")
    texts = [" ".join(pair.target.split()[:2]) for pair in pairs[:12]]
    export_model(tmp_path / "out", writer.model, writer.tokenizer)
    expected = writer.write(texts, 40, do_sample=False)
    assert [printed_by(tmp_path / "out", texts, capsys)] == [[expected, expected]]
    assert "AutoModelForCausalLM" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(("make", "auto"), [
    (lambda V: Bert(V, 12, 3, 2, 20, max_len=30), "AutoModel"), (lambda V: BertForPreTraining(Bert(V, 12, 3, 2, 20, max_len=30)), "AutoModelForPreTraining"),
    (lambda V: BertForMaskedLM(Bert(V, 12, 3, 2, 20, max_len=30)), "AutoModelForMaskedLM"),
    (lambda V: TextClassifier(Bert(V, 12, 3, 2, 20, max_len=30), 3), "AutoModelForSequenceClassification")])
def test_the_readme_of_an_exported_encoder_does_what_its_head_is_for(make, auto, words, pairs, tmp_path, capsys):
    torch.manual_seed(4)
    model, labels = make(len(words)).eval(), ["bad", "good", "so so"]
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.6)
    ours = Encoder(model, words, {"model": "bert", "labels": labels})
    texts = [" ".join([*pair.source.split()[:2], "[MASK]", *pair.source.split()[3:]]) for pair in pairs[-30:]]
    export_model(tmp_path / "out", model, words, labels=labels if "Class" in auto else ())
    (printed,) = printed_by(tmp_path / "out", texts, capsys)
    assert f"import {auto}, AutoTokenizer" in (tmp_path / "out" / "README.md").read_text()
    if auto == "AutoModel":
        torch.testing.assert_close(torch.tensor([json.loads(line) for line in printed]), ours.encode(texts), rtol=1e-4, atol=1e-4)
    elif "Class" in auto:
        assert printed == ours.classify(texts) and len(set(printed)) > 1
    else:
        assert printed == [found[0][0][0] for found in ours.fill(texts, top_k=1)] and len(set(printed)) > 1


def test_a_published_classifier_keeps_the_names_of_its_labels(words, tmp_path):
    labels = ["bad", "good", "so so"]
    export_model(tmp_path / "out", TextClassifier(Bert(len(words), 12, 3, 2, 20, max_len=30), 3).eval(), words, labels=labels)
    load(tmp_path / "out").save_pretrained(tmp_path / "again")
    assert load(tmp_path / "again").config["labels"] == labels
    with pytest.raises(ValueError, match="labels has 2 names, and the model tells 3 classes apart"):
        export_model(tmp_path / "no", TextClassifier(Bert(len(words), 12, 3, 2, 20, max_len=30), 3).eval(), words, labels=labels[:2])


def test_an_engine_that_cannot_hold_the_model_is_named_in_its_readme(pairs, tokenizer, tmp_path):
    for name, sizes in (("transformer-post", SIZES), ("t5-gated", SIZES)):
        with pytest.warns(UserWarning, match="CTranslate2 cannot hold"):
            export_model(tmp_path / name, MODELS[name](len(tokenizer), len(tokenizer), **sizes).eval(), tokenizer)
        text = (tmp_path / name / "README.md").read_text()
        assert text.count("```python") == 1 and "CTranslate2 cannot hold this" in text


def test_the_export_command_says_what_it_could_not_do_in_one_line(translator, tmp_path, capsys):
    translator.save_pretrained(tmp_path / "model")
    with pytest.raises(SystemExit) as ended:
        main(["export", str(tmp_path / "model"), str(tmp_path / "out")])
    printed = capsys.readouterr()
    assert ended.value.code == 0 and printed.out.count("\n") == 1 and "AutoModelForSeq2SeqLM" in printed.out and "README.md" in printed.out
    refused = translator.config["model"] in ("transformer-post", "t5-gated")
    assert printed.err.count("\n") == refused and printed.err.startswith("warning: CTranslate2 cannot hold" if refused else "")


def test_names_of_labels_that_belong_to_no_head_do_not_stop_a_save(words, tmp_path):
    """A published encoder that keeps the labels of a classifier it once was."""
    export_model(tmp_path / "out", BertForMaskedLM(Bert(len(words), 12, 3, 2, 20, max_len=30)).eval(), words)
    files = read_files(tmp_path / "out")
    config = json.loads(files["config.json"]) | {"id2label": {"0": "bad", "1": "good"}}
    write_files(tmp_path / "out", files | {"config.json": json.dumps(config).encode()})
    load(tmp_path / "out").save_pretrained(tmp_path / "again")
    assert load(tmp_path / "again").fill(["i [MASK]"], top_k=1)
    with pytest.raises(SystemExit) as ended:
        main(["export", str(tmp_path / "out"), str(tmp_path / "third")])
    assert ended.value.code == 0

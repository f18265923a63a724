"""A folder of a model is loaded, or refused in one line that names the file; nothing in it can make the loader run wild."""
import json
import random
from pathlib import Path

import pytest
import safetensors.torch
import torch

from transformer_course.data.corpora import Corpus
from transformer_course.data.text import Tokenizer
from transformer_course.files import read_files, write_files
from transformer_course.pipelines.model_folder import load_model, model_card, save_model
from transformer_course.pipelines.presets import MODELS
from transformer_course.pipelines.runs import Job, note_job, read_job
from transformer_course.pipelines.translator import Translator

SIZES = {"transformer": {"d_model": 12, "n_heads": 3, "n_layers": 2, "d_ff": 20}, "seq2seq": {"d_model": 10, "d_hidden": 14},
         "luong-local-p": {"d_model": 10, "d_hidden": 14, "window": 2, "bidirectional": True, **MODELS["luong-local-p"].keywords},
         "transformer-learned": {"d_model": 12, "n_heads": 3, "n_layers": [1, 2], "d_ff": 20, "max_len": 18, "positions": "learned"}}
VALID = {"split": "valid", "sentences": 5, "beam_size": 5, "bleu": 12.5, "chrf": 30.0, "exact_match": 0.2, "aer": None, "signature": "nrefs:1"}
TRAINING = {"steps": 7, "seconds": 3.5, "tokens": 1234, "epochs": 1, "hardware": "a machine", "precision": "highest", "history": []}
NASTY = (None, True, -1, 0, 3, 10**9, 10**30, -10**30, 1.5, float("nan"), float("inf"), "", "7", "x" * 1000, [], [2], [10**9, 2], {}, {"a": 1},
         json.loads("[" * 400 + "]" * 400))


@pytest.fixture(scope="module", params=SIZES)
def saved(request, tmp_path_factory):
    "A folder with an untrained model."
    folder = tmp_path_factory.mktemp("folder")
    words = Tokenizer.train(["a b c d e", "b c"], kind="bpe" if request.param == "transformer" else "words", size=300)
    torch.manual_seed(3)
    model = MODELS[request.param](len(words), len(words), **SIZES[request.param])
    config = {"model": request.param, "preset": "micro", "data": "micro-hindi", "pair": "en-hi", "seed": 1, "sizes": SIZES[request.param],
              "data_licence": "none", "data_citation": "nobody", "valid": VALID, "training": TRAINING, "alignment": [None, None]}
    save_model(folder, model, words, config)
    return folder, read_files(folder)


def places(value, path=()):
    "Every place in a JSON value."
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield from places(part, (*path, key))


def changed(value, path, new):
    "A copy with another value at a place; NotImplemented stands for its absence."
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(path) == 1 and new is NotImplemented:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(copy[path[0]], path[1:], new)
    return copy


def attempt(folder, *names):
    "Load and use a model: it works, or one line names one of the files."
    try:
        translator = Translator.from_pretrained(folder)
        translator.translate(["a b", "c"], beam_size=2)
        translator.save_pretrained(folder / "again")
        return True
    except ValueError as problem:
        text = str(problem)
        assert "\n" not in text and any(str(folder / name) in text for name in names), text[:300]
        return False


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_values_that_make_no_sense(saved, tmp_path, name):
    whole, files = saved
    content, draw = json.loads(files[name]), random.Random(f"{name} {json.loads(files['config.json'])['model']}")
    everywhere = [path for path in places(content) if path]
    cases = [(path, new) for path in everywhere for new in (*NASTY, NotImplemented) if not (isinstance(path[-1], int) and new is NotImplemented)]
    worked = 0
    for path, new in draw.sample(cases, min(len(cases), 60)):
        write_files(tmp_path, files | {name: json.dumps(changed(content, path, new)).encode()})
        worked += attempt(tmp_path, name, "config.json")
    assert worked < 55


def test_each_size_is_compared_with_the_weights(saved, tmp_path):
    whole, files = saved
    config = json.loads(files["config.json"])
    for size, value in config["sizes"].items():
        if isinstance(value, bool) or not isinstance(value, (int, list)) or size in ("window", "n_heads"):
            continue
        for wrong in (10**9, 10**12, 10**30, 6 if size == "n_layers" else 24):
            write_files(tmp_path, files | {"config.json": json.dumps(changed(config, ("sizes", size), wrong)).encode()})
            with pytest.raises(ValueError) as refused:
                load_model(tmp_path)
            assert str(tmp_path / "config.json") in str(refused.value) and f"{size} " in str(refused.value) and str(wrong) in str(refused.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_bytes_that_make_no_sense(saved, tmp_path, name):
    whole, files = saved
    deep, content = b"[" * 100_000, files[name]
    for bad in (b"", b"{", b"[]", b"null", b"3", b"\xff\xfe", deep, b'{"a": ' * 100_000, b'{"model": ' + deep, content[:-3], content[:9], b"\xff" * 8 + content,
                (10**12).to_bytes(8, "little") + content[8:], (5).to_bytes(8, "little") + b"[[[[[" + content[8:]):
        write_files(tmp_path, files | {name: bad})
        assert not attempt(tmp_path, name)


def test_weights_of_another_kind(saved, tmp_path):
    whole, files = saved
    weights = safetensors.torch.load(files["model.safetensors"])
    first = min(weights)
    for new in (weights | {first: weights[first].to(torch.int64)}, weights | {first: weights[first].to(torch.complex64)},
                weights | {"more": torch.zeros(2)}, {n: w for n, w in weights.items() if n != first}, weights | {first: torch.zeros(0, 10**9)}, {}):
        write_files(tmp_path, files | {"model.safetensors": safetensors.torch.save(new)})
        assert not attempt(tmp_path, "model.safetensors", "config.json")


def test_a_tokenizer_that_would_fill_the_memory_or_leaves_gaps(saved, tmp_path):
    whole, files = saved
    described = json.loads(files["tokenizer.json"])
    padding = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}
    gaps = changed(described, ("model", "vocab"), {**described["model"]["vocab"], "a": 10**6})
    for new in (described | {"padding": padding}, gaps):
        write_files(tmp_path, files | {"tokenizer.json": json.dumps(new).encode()})
        assert not attempt(tmp_path, "tokenizer.json")


def test_a_saved_model_is_the_same_model(saved):
    folder, files = saved
    model, tokenizer, config = load_model(folder)
    again = safetensors.torch.load(files["model.safetensors"])
    assert all(torch.equal(again[name], p) for name, p in model.named_parameters()) and config == json.loads(files["config.json"])
    assert tokenizer.to_json().encode() == files["tokenizer.json"] and files["README.md"].decode() == model_card(config)
    assert "| valid | 12.50 | 30.00 | 0.200 |  | 5 | 5 |" in model_card(config) and "7 steps, 1,234 target tokens" in model_card(config)


def test_a_missing_file_is_named(saved, tmp_path):
    whole, files = saved
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        write_files(tmp_path / name, {n: content for n, content in files.items() if n != name})
        with pytest.raises(FileNotFoundError, match=name):
            load_model(tmp_path / name)


def test_the_note_of_a_run_that_makes_no_sense(tmp_path):
    job = Job("micro-hindi", "en-hi", "transformer", "micro", 1)
    note_job(tmp_path, job)
    note = tmp_path / "run.json"
    told = json.loads(note.read_bytes())
    assert read_job(tmp_path) == job and told == {"data": "micro-hindi", "pair": "en-hi", "model": "transformer", "preset": "micro", "seed": 1}
    cases = [json.dumps(changed(told, (key,), new)).encode() for key in told for new in (None, 1.5, [], {}, NotImplemented, NASTY[-1])]
    cases += [json.dumps(told | {"model": "gru"}).encode(), json.dumps(told | {"seed": "1"}).encode(), b"", b"[" * 100_000, b'{"data": ' * 100_000, b"\xff"]
    for content in cases:
        note.write_bytes(content)
        with pytest.raises(ValueError) as refused:
            read_job(tmp_path)
        assert str(note) in str(refused.value) and "\n" not in str(refused.value)


def test_a_save_keeps_what_is_not_its_own(saved, tmp_path):
    model, tokenizer, config = load_model(saved[0])
    Path(tmp_path, "notes.txt").write_text("mine")
    Translator(model, tokenizer, config).save_pretrained(tmp_path)
    assert Path(tmp_path, "notes.txt").read_text() == "mine" and load_model(tmp_path)[2] == config


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_numbers(saved, tmp_path, bad):
    folder, files = saved
    weights = safetensors.torch.load(files["model.safetensors"])
    last = sorted(weights)[-1]
    weights[last].view(-1)[-1] = bad
    write_files(tmp_path, files | {"model.safetensors": safetensors.torch.save(weights)})
    with pytest.raises(ValueError, match=f"model.safetensors is damaged: {last} holds a number that is not finite"):
        load_model(tmp_path)


def test_a_tokenizer_of_another_model(saved):
    model, words, config = load_model(saved[0])
    for other in (Tokenizer.train(["a b c d e f g h"], kind="words", size=12), Tokenizer.train(["a"], kind="words", size=5)):
        with pytest.raises(ValueError, match=f"the tokenizer has {len(other)} entries, and the model {len(words)}"):
            Translator(model, other, config)
    model.pad_id = 3
    with pytest.raises(ValueError, match="the model's pad_id is 3, and the tokenizer's is 0"):
        Translator(model, words, config)


def test_a_tokenizer_of_equal_size_with_other_words_is_refused(tmp_path):
    ours, other = (Tokenizer.train([text], kind="words", size=30) for text in ("a b c d e", "v w x y z"))
    assert len(ours) == len(other)
    model = MODELS["transformer"](len(ours), len(ours), **SIZES["transformer"])
    save_model(tmp_path, model, ours, {"model": "transformer", "sizes": SIZES["transformer"]})
    files = read_files(tmp_path)
    load_model(tmp_path)
    write_files(tmp_path, files | {"tokenizer.json": other.to_json().encode()})
    with pytest.raises(ValueError, match="model.safetensors was trained with another tokenizer than the one beside it"):
        load_model(tmp_path)
    weights = safetensors.torch.save(safetensors.torch.load(files["model.safetensors"]), {"format": "pt"})
    write_files(tmp_path, files | {"model.safetensors": weights})
    load_model(tmp_path)                       # a folder from before says nothing of it


def test_a_run_is_not_resumed_with_other_words(tmp_path):
    """The ids of the new data are the same ones, and so are the batches: only the words differ."""
    pairs = [(f"{a} {b}", f"{b} {a}") for a in "abcd" for b in "abcd" if a != b]
    renamed = [tuple(side.translate(str.maketrans("abcd", "efgh")) for side in pair) for pair in pairs]
    corpora = [Corpus.from_pairs(rows[3:], rows[:3], name="mine", pair="x-y") for rows in (pairs, renamed)]
    quick = {"preset": "micro", "device": "cpu", "folder": tmp_path / "run", "progress": False}
    Translator.train(corpora[0], steps=2, **quick)
    with pytest.raises(ValueError, match="is of another run: its tokenizer has other words"):
        Translator.train(corpora[1], steps=3, resume=True, **quick)
    assert Translator.train(corpora[0], steps=3, resume=True, **quick).config["training"]["steps"] == 3

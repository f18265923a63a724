"""Models as CTranslate2 and ONNX Runtime hold them: the words of the folders' own pages are ours, and what cannot go there is one line."""
import re
from importlib.util import find_spec

import numpy as np
import pytest
import tokenizers
import torch
from test_exports import ODD, SIZES, learnt, printed_by

from transformer_course.cli.app import main
from transformer_course.data.corpora import load as corpus
from transformer_course.data.text import Tokenizer, pad
from transformer_course.files import read_files, write_files
from transformer_course.pipelines.decoding import encode_pairs
from transformer_course.pipelines.encoder import Encoder
from transformer_course.pipelines.encoder_presets import ENCODERS
from transformer_course.pipelines.lm_presets import LANGUAGE_MODELS
from transformer_course.pipelines.presets import MODELS
from transformer_course.pipelines.translator import Translator
from transformer_course.pipelines.writer import Writer, running_ids
from transformer_course.published import engines, onnx_graphs
from transformer_course.published.tokenizers import tokenizer_files
from transformer_course.search.beam import greedy_search

V = 23
SMALL = {"d_model": 12, "n_heads": 3, "n_layers": 2, "d_ff": 20, "dropout": 0.0}


@pytest.fixture(scope="module")
def pairs():
    """Thirty sentences of two to fifteen words."""
    every = sorted(corpus("micro-hindi")["train"], key=lambda pair: len(pair.source.split()))
    return every[:: len(every) // 29][:30]


@pytest.fixture(scope="module")
def words(pairs):
    return Tokenizer.train([text for pair in pairs for text in (pair.source, pair.target)], kind="words", size=400)


@pytest.fixture(scope="module")
def translator(pairs, words):
    """One that has learnt the thirty by heart, or nearly."""
    torch.manual_seed(1)
    examples, sizes = encode_pairs(words, pairs), SIZES | {"norm": "pre"}
    model = learnt(MODELS["transformer"](len(words), len(words), **sizes), lambda draw: [pad(side) for side in zip(*draw.sample(examples, 20))], 110)
    return Translator(model, words, {"model": "transformer", "sizes": sizes})


@pytest.fixture(scope="module")
def writer(pairs, words):
    torch.manual_seed(2)
    rows, sizes = running_ids(words, [pair.target for pair in pairs]).unfold(0, 20, 3), SMALL | {"d_model": 24}
    model = learnt(LANGUAGE_MODELS["rotary-lm"](len(words), **sizes), lambda draw: [rows[draw.sample(range(len(rows)), 20)]], 80)
    return Writer(model, words, {"model": "rotary-lm", "sizes": sizes})


def command(*words, capsys):
    """The exit code of a command, its output and its errors."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    printed = capsys.readouterr()
    return ended.value.code, printed.out, printed.err


@pytest.mark.parametrize("kind", ["words", "bpe", "characters"])
def test_the_tokenizer_of_a_page_cuts_texts_as_ours_does(kind, pairs):
    """Also where a text has the name of a special token in it."""
    ours = Tokenizer.train([pair.source for pair in pairs], kind=kind, size=300)
    theirs = tokenizers.Tokenizer.from_str(tokenizer_files(ours, "$A <eos>")["tokenizer.json"].decode())
    theirs.encode_special_tokens = True
    for text in [*ODD, *(pair.source for pair in pairs), "new words, and signs ✓"]:
        assert theirs.encode(text, add_special_tokens=False).ids == ours.encode(text)
        assert theirs.encode(text).ids == [*ours.encode(text), ours.eos_id]


# ONNX

def needs_onnx():
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} comes with the extra `onnx`")


@pytest.fixture(scope="module")
def graphs_of_translator(translator, tmp_path_factory):
    needs_onnx()
    folder = tmp_path_factory.mktemp("onnx")
    translator.save_pretrained(folder / "model")
    with pytest.raises(SystemExit) as ended:
        main(["export", str(folder / "model"), str(folder / "out"), "--to", "onnx"])
    assert ended.value.code == 0
    return folder / "out"


def program(folder):
    """What the page of a folder defines: its search and its sessions."""
    code = (folder / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    names = {}
    exec(code.replace('"FOLDER', f'"{folder.as_posix()}'), names)
    return names


def test_the_folder_is_whole_and_needs_no_torch(graphs_of_translator):
    names = {"encoder.onnx", "step.onnx", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert read_files(graphs_of_translator).keys() == names
    assert "torch" not in (graphs_of_translator / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("batch", [1, 3])
def test_onnx_runtime_translates_as_we_do(translator, pairs, graphs_of_translator, batch):
    sources = [pair.source for pair in pairs]
    ours, there = translator.translate(sources, beam_size=1), program(graphs_of_translator)["translate"]
    assert [text for i in range(0, 30, batch) for text in there(sources[i:i + batch])] == ours
    assert len(set(ours)) > 20 and len({len(source.split()) for source in sources}) > 6


@pytest.mark.parametrize("batch", [1, 3])
def test_each_step_of_the_graph_has_our_logits(translator, pairs, graphs_of_translator, batch):
    """Along the words of our own greedy search, which both choose."""
    there, model = program(graphs_of_translator), translator.model
    rows = [source for source, target in encode_pairs(translator.tokenizer, pairs)]
    for i in range(0, 30, batch):
        src = pad(rows[i:i + batch])
        found = greedy_search(model, src, 2 * src.shape[1] + 10)
        memory, mask = there["encoder"].run(None, {"ids": src.numpy()})
        assert (mask[:, 0, 0] == (src != 0).numpy()).all()
        cache, token, state = np.zeros((2, 2, batch, 4, 0, 8), np.float32), model.first(src), model.start(src)
        for step, written in enumerate(found.tokens.T):
            with torch.no_grad():
                logits, state = model.step(state, token)
            theirs, cache = there["step"].run(None, {"token": token.numpy(), "memory": memory, "mask": mask, "cache": cache})
            np.testing.assert_allclose(theirs, logits.numpy(), rtol=1e-4, atol=1e-4)
            going = torch.tensor([2 not in row[:step] for row in found.tokens.tolist()])
            theirs[:, :2] = -np.inf
            assert (torch.from_numpy(theirs).argmax(-1) == written)[going].all() and cache.shape == (2, 2, batch, 4, step + 1, 8)
            token = written.clone()
    assert found.tokens.shape[1] > 3


def test_a_graph_of_a_language_model_writes_as_we_do(writer, pairs, tmp_path, capsys):
    needs_onnx()
    writer.save_pretrained(tmp_path / "model")
    code, out, err = command("export", tmp_path / "model", tmp_path / "out", "--to", "onnx", capsys=capsys)
    assert (code, err) == (0, "") and out.endswith("holds step.onnx; its README.md shows the calls\n")
    prompts = ["", *(" ".join(pair.target.split()[:1 + i % 4]) for i, pair in enumerate(pairs[:29]))]
    ours = writer.write(prompts, 40, do_sample=False)
    assert printed_by(tmp_path / "out", prompts, capsys) == [ours] and len(set(ours)) > 9
    step, cache = program(tmp_path / "out")["step"], np.zeros((2, 2, 3, 3, 0, 8), np.float32)
    tokens = torch.randint(4, len(writer.tokenizer), (3, 11))
    for part in tokens.split([5, 1, 2, 3], 1):
        theirs, cache = step.run(None, {"tokens": part.numpy(), "cache": cache})
        with torch.no_grad():
            ours = writer.model(tokens[:, :cache.shape[4]])[:, -1]
        np.testing.assert_allclose(theirs, ours.numpy(), rtol=1e-4, atol=1e-4)


def test_positions_inside_attention_are_in_the_graph():
    needs_onnx()
    import onnxruntime

    torch.manual_seed(3)
    model = MODELS["t5"](V, V, **SMALL | {"n_layers": 1}).eval()
    encoder, step = (onnxruntime.InferenceSession(file) for file in onnx_graphs.graphs(model).values())
    for batch, length in ((1, 1), (3, 7), (2, 40)):
        src = torch.randint(4, V, (batch, length))
        memory, mask = encoder.run(None, {"ids": src.numpy()})
        cache, token, state = np.zeros((1, 2, batch, 3, 0, 4), np.float32), model.first(src), model.start(src)
        for t in range(20):
            with torch.no_grad():
                logits, state = model.step(state, token)
            theirs, cache = step.run(None, {"token": token.numpy(), "memory": memory, "mask": mask, "cache": cache})
            np.testing.assert_allclose(theirs, logits.numpy(), rtol=1e-4, atol=1e-4)
            token = logits.argmax(-1)


# CTranslate2

def needs_ctranslate2():
    for package in ("ctranslate2", "transformers"):
        pytest.importorskip(package, reason=f"{package} comes with the extra `dev`")


def test_the_pages_of_folders_for_ctranslate2_translate(translator, pairs, tmp_path, capsys):
    needs_ctranslate2()
    translator.save_pretrained(tmp_path / "model")
    sources = [pair.source for pair in pairs]
    ours, found = translator.translate(sources), {}
    for quantization in ("float32", "int8"):
        folder = tmp_path / quantization
        code, out, err = command("export", tmp_path / "model", folder, "--to", "ctranslate2", "--quantization", quantization, capsys=capsys)
        assert (code, err) == (0, "") and f"holds a Pegasus for CTranslate2, in {quantization}" in out and out.count("\n") == 1
        assert {"model.bin", "config.json", "tokenizer.json", "README.md"} < read_files(folder).keys()
        (found[quantization],) = printed_by(folder, sources, capsys)
    assert found["float32"] == ours and len(set(ours)) > 20
    assert sum(one == other for one, other in zip(found["int8"], ours, strict=True)) >= 10
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in found]
    assert sizes[1] < 0.7 * sizes[0]                   # here half of the rest is a table of positions, which stays


def test_the_page_of_a_language_model_for_ctranslate2_writes(words, pairs, tmp_path, capsys):
    needs_ctranslate2()
    torch.manual_seed(2)
    rows, sizes = running_ids(words, [pair.target for pair in pairs]).unfold(0, 20, 3), SMALL | {"d_model": 24, "max_len": 64}
    model = learnt(LANGUAGE_MODELS["transformer-lm"](len(words), **sizes), lambda draw: [rows[draw.sample(range(len(rows)), 20)]], 170)
    name, files = engines.ctranslate2_files(model, words)
    write_files(tmp_path / "out", files)
    prompts = [" ".join(pair.target.split()[:2]) for pair in pairs[:12]]
    ours = Writer(model, words, {"model": "transformer-lm", "sizes": sizes}).write(prompts, 40, do_sample=False)
    assert printed_by(tmp_path / "out", prompts, capsys) == [ours] and name == "GPT-2"


# what cannot be

@pytest.fixture(scope="module")
def folders(words, tmp_path_factory):
    """A folder for each kind of model, untrained."""
    place, V = tmp_path_factory.mktemp("kinds"), len(words)
    recurrent, bert = {"d_model": 6, "d_hidden": 7}, {"d_model": 12, "n_heads": 3, "n_layers": 1, "d_ff": 20, "max_len": 30}
    Translator(MODELS["seq2seq"](V, V, **recurrent), words, {"model": "seq2seq", "sizes": recurrent}).save_pretrained(place / "seq2seq")
    Translator(MODELS["transformer-rotary"](V, V, **SMALL), words, {"model": "transformer-rotary", "sizes": SMALL}).save_pretrained(place / "rotary")
    Translator(MODELS["transformer"](V, V, norm="pre", **SMALL), words, {"model": "transformer", "sizes": SMALL | {"norm": "pre"}}).save_pretrained(place / "good")
    Encoder(ENCODERS["bert"](V, **bert), words, {"model": "bert", "sizes": bert}).save_pretrained(place / "bert")
    return place


@pytest.mark.parametrize(("options", "parts"), [
    ("good OUT --to tflite", ("unknown --to 'tflite'", "huggingface, ctranslate2, onnx")),
    ("good OUT --to ctranslate2 --quantization int4", ("unknown --quantization 'int4'", "float32, int8")),
    ("good OUT --to onnx --quantization int8", ("--quantization int8", "only --to ctranslate2")),
    ("good OUT --quantization int8", ("--quantization int8", "not --to huggingface")),
    ("good OUT --to onnx --layout t5", ("--layout t5",)),
    ("good OUT --to ctranslate2 --layout t5", ("is no T5",)),
    ("good good --to onnx", ("is not empty: give a new folder",)),
    ("good good --to ctranslate2", ("is not empty: give a new folder",)),
    ("seq2seq OUT --to onnx", ("cannot go to ONNX", "transformer and t5", "rotary-lm")),
    ("bert OUT --to onnx", ("cannot go to ONNX", "transformer and t5")),
    ("seq2seq OUT --to ctranslate2", ("no published layout is known for a Seq2Seq", "transformer, t5 and transformer-lm")),
    ("rotary OUT --to ctranslate2", ("cannot hold",)),
    ("bert OUT --to ctranslate2", ("CTranslate2 cannot hold this BERT", "transformer, t5 and transformer-lm"))])
def test_an_export_that_cannot_be_is_one_line(options, parts, folders, tmp_path, capsys):
    places = [str(folders / word) if (folders / word).is_dir() else str(tmp_path / "out") if word == "OUT" else word for word in options.split()]
    code, out, err = command("export", *places, capsys=capsys)
    assert code == 1 and out == "" and err.count("\n") == 1 and err.startswith("error: "), err
    assert all(part in err for part in parts) and not (tmp_path / "out").exists(), err


@pytest.mark.parametrize(("to", "gone", "told"), [
    ("onnx", ("onnx", "onnxscript"), "error: --to onnx needs onnx and onnxscript: pip install onnx onnxscript\n"),
    ("ctranslate2", ("ctranslate2",), "error: --to ctranslate2 needs ctranslate2: pip install ctranslate2\n")])
def test_a_missing_package_is_named(to, gone, told, folders, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name in gone else find_spec("json"))
    assert command("export", folders / "good", tmp_path / "out", "--to", to, capsys=capsys) == (1, "", told)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("to", "part"), [("onnx", "graphs"), ("ctranslate2", "_converted")])
def test_an_interrupted_export_leaves_nothing(to, part, folders, tmp_path, capsys, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(onnx_graphs if to == "onnx" else engines, part, interrupted)
    monkeypatch.setattr(engines, "find_spec", lambda name: find_spec("json"))
    assert command("export", folders / "good", tmp_path / "out", "--to", to, capsys=capsys)[::2] == (130, "stopped\n")
    assert not (tmp_path / "out").exists() and not list(tmp_path.iterdir())


def test_a_published_model_goes_to_onnx_and_not_to_ctranslate2(folders, tmp_path, capsys, monkeypatch):
    assert command("export", folders / "good", tmp_path / "published", capsys=capsys)[0] == 0
    code, out, err = command("export", tmp_path / "published", tmp_path / "out", "--to", "ctranslate2", capsys=capsys)
    assert code == 1 and "ct2-transformers-converter" in err and err.count("\n") == 1
    monkeypatch.setattr(onnx_graphs, "graphs", lambda model: {"step.onnx": b"here"})
    assert command("export", tmp_path / "published", tmp_path / "out", "--to", "onnx", capsys=capsys)[0] == 0
    files = read_files(tmp_path / "out")
    assert files["tokenizer.json"] == read_files(tmp_path / "published")["tokenizer.json"]
    assert re.search(r"PAD, BOS, EOS, NEVER = 0, 1, 2, \[0, 1\]", files["README.md"].decode())

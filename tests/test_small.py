"""Eight bits: int8 layers are loops over whole numbers, a translator keeps its words, and a page in a browser writes what the library writes."""
import os
import shutil
import tarfile
from io import BytesIO

import pytest
import safetensors.torch
import torch
from torch import nn

from transformer_course.cli.app import main
from transformer_course.data.text import Tokenizer
from transformer_course.models.ends import Output
from transformer_course.models.int8 import Int8Linear, int8_product, int8_rows, quantised, stored_bytes
from transformer_course.models.transformer import Transformer
from transformer_course.pipelines.presets import MODELS
from transformer_course.pipelines.translator import Translator
from transformer_course.published import engines, page
from transformer_course.search.beam import greedy_search

SIZES = {"d_model": 12, "n_heads": 3, "n_layers": 2, "d_ff": 20, "dropout": 0.0}
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


def drawn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def looped(x, linear, bits=8):
    """The layer by loops over Python's whole numbers."""
    def ruler(row, most):
        scale = max(abs(value) for value in row) / most or 1.0
        return [round(value / scale) for value in row], scale
    rows = [ruler(row, 2 ** (bits - 1) - 1) for row in linear.weight.tolist()]
    found = []
    for vector in x.flatten(0, -2).tolist():
        p, s = ruler(vector, 127)
        found.append([sum(a * b for a, b in zip(p, q)) * s * t + bias for (q, t), bias in zip(rows, linear.bias.tolist())])
    return torch.tensor(found).view(*x.shape[:-1], len(rows))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_layer_is_a_loop_over_whole_numbers(bits):
    torch.manual_seed(bits)
    linear, x = nn.Linear(7, 5), drawn(2, 3, 7)
    x[1, 2] = 0                                                                    # padding may be all zeros
    torch.testing.assert_close(Int8Linear(linear, bits)(x), looped(x, linear, bits), rtol=1e-4, atol=1e-5)


def test_no_weight_moves_by_more_than_half_a_step():
    values = drawn(6, 50) * torch.tensor([1e-6, 1e-3, 1.0, 30.0, 1e4, 0.0])[:, None]
    numbers, scales = int8_rows(values)
    assert numbers.dtype == torch.int8 and numbers[-1].eq(0).all() and numbers[:-1].abs().amax(1).eq(127).all()
    assert ((numbers * scales - values).abs() <= scales * 0.5001).all()


@pytest.mark.parametrize("K", [1, 1024, 1025, 4096])
def test_products_of_whole_numbers_are_exact(K):
    draw = torch.Generator().manual_seed(K)
    left, right = (torch.randint(-127, 128, (n, K), dtype=torch.int8, generator=draw) for n in (3, 5))
    right[0] = left[0].sign() * 127                                                # a large sum
    assert torch.equal(int8_product(left, right).to(torch.int64), left.long() @ right.long().T)


def test_rows_have_their_own_scales_so_a_sentence_does_not_depend_on_its_batch():
    layer, x = Int8Linear(nn.Linear(7, 5)), drawn(4, 3, 7) * torch.tensor([1.0, 10, 100, 1000])[:, None, None]
    torch.testing.assert_close(layer(x)[:1], layer(x[:1]), rtol=1e-5, atol=1e-6)


def test_our_layer_is_closer_than_that_of_torch_ao():
    torch.manual_seed(2)
    linear, x = nn.Linear(96, 64), drawn(11, 96)
    linear.weight.data *= torch.linspace(0.1, 3, 64)[:, None]                      # rows of different lengths
    with pytest.warns():                                                           # PyTorch announces its end
        theirs = torch.ao.quantization.quantize_dynamic(nn.Sequential(linear), {nn.Linear}, dtype=torch.qint8)
    ours, theirs, exact = Int8Linear(linear)(x), theirs(x), linear(x)
    errors = [(one - exact).abs().mean().item() for one in (ours, theirs)]
    assert errors[0] < 0.5 * errors[1] < 0.05 * exact.std().item()


@pytest.fixture(scope="module")
def translator():
    torch.manual_seed(3)
    words = Tokenizer.train(["jack saw jill in delhi", "the cow sleeps", "raam ne gaay ko dekhaa"], kind="words", size=40)
    model = Transformer(len(words), len(words), **SIZES).eval()
    return Translator(model, words, {"model": "transformer", "sizes": SIZES, "pair": "en-hi"})


def test_a_quantised_model_is_a_copy_with_every_linear_layer_replaced(translator):
    model, before = translator.model, {name: w.clone() for name, w in translator.model.state_dict().items()}
    small = quantised(model)
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())
    assert not any(type(part) is nn.Linear for part in small.modules())
    assert sum(isinstance(part, Int8Linear) for part in small.modules()) == 2 * 4 + 2 * 7
    assert small.output.table is small.src_embedding.table is small.tgt_embedding.table       # still tied
    src, tgt = torch.tensor([[4, 5, 6, 2], [7, 8, 2, 0]]), torch.tensor([[1, 9, 10], [1, 11, 0]])
    with torch.no_grad():
        exact, near = model(src, tgt), small(src, tgt)
    assert 0 < (exact - near).abs().max() < 0.1 * exact.std()
    assert stored_bytes(small) < 0.6 * stored_bytes(model)


def test_it_searches_as_any_model_and_padding_changes_nothing(translator):
    small = quantised(translator.model)
    alone = greedy_search(small, torch.tensor([[7, 8, 2]]), 6).tokens
    among = greedy_search(small, torch.tensor([[7, 8, 2, 0, 0], [4, 5, 6, 9, 2]]), 6).tokens
    assert torch.equal(alone[0], among[0, :alone.shape[1]])
    found = Translator(small, translator.tokenizer, translator.config).translate(["jack saw jill"], beam_size=2)
    assert len(found) == 1 and isinstance(found[0], str)


def test_safetensors_hold_it(translator):
    small = quantised(translator.model)
    once = {tensor.data_ptr(): (name, tensor) for name, tensor in small.state_dict().items()}
    content = safetensors.torch.load(safetensors.torch.save(dict(once.values())))
    torch.manual_seed(4)
    other = quantised(Transformer(len(translator.tokenizer), len(translator.tokenizer), **SIZES))
    missing, unexpected = other.load_state_dict(content, strict=False)
    assert unexpected == [] and all(name.endswith("table.weight") for name in missing)
    src, tgt = torch.tensor([[4, 5, 2]]), torch.tensor([[1, 9]])
    with torch.no_grad():
        assert torch.equal(other(src, tgt), small(src, tgt))


def test_an_output_with_a_matrix_of_its_own_stays():
    model = MODELS["t5-gated"](23, 23, **SIZES).eval()
    small = quantised(model)
    outputs = [part for part in small.modules() if isinstance(part, Output)]
    assert [type(part.table) for part in outputs] == [nn.Linear]
    assert greedy_search(small, torch.tensor([[4, 5, 2]]), 4).tokens.shape[0] == 1


@pytest.mark.parametrize(("call", "said"), [
    (lambda: int8_rows(torch.tensor([1, 2])), "int8_rows: values must be floating point"),
    (lambda: int8_rows(torch.ones(2, 2), bits=9), "bits must be a whole number from 2 to 8, not 9"),
    (lambda: int8_rows(torch.ones(2, 2), bits=1), "not 1"),
    (lambda: int8_rows(torch.ones(2, 2), bits=7.5), "not 7.5"),
    (lambda: quantised(nn.ReLU()), "a ReLU has no nn.Linear"),
])
def test_what_cannot_be_is_one_line(call, said):
    with pytest.raises(ValueError, match=said) as problem:
        call()
    assert "\n" not in str(problem.value)


def needs_onnx():
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} comes with the extra `onnx`")


def test_an_int8_graph_has_the_numbers_of_our_layer():
    needs_onnx()
    import onnx
    torch.manual_seed(5)
    linear, helper, number = nn.Linear(7, 5, bias=False), onnx.helper, onnx.TensorProto.FLOAT
    weight = helper.make_tensor("w", number, (7, 5), linear.weight.detach().T.flatten().tolist())
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "layer", [helper.make_tensor_value_info("x", number, ("N", 7))],
                              [helper.make_tensor_value_info("y", number, ("N", 5))], [weight])
    small = engines.int8_graph(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString())
    kept = {tensor.name: torch.tensor(onnx.numpy_helper.to_array(tensor)) for tensor in onnx.load_from_string(small).graph.initializer}
    (theirs,) = (tensor for tensor in kept.values() if tensor.shape == (7, 5))
    (scales,) = (tensor for tensor in kept.values() if tensor.shape == (5,) and tensor.is_floating_point())
    numbers, ours = int8_rows(linear.weight.detach())
    assert theirs.dtype == torch.int8 and (theirs.T.int() - numbers.int()).abs().max() <= 1
    torch.testing.assert_close(scales, ours.flatten(), rtol=0.01, atol=0)


def fake_engine(monkeypatch):
    """A package of the right shape, in place of the one that npm fetches."""
    content = BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as files:
        for name in ("ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"):
            entry = tarfile.TarInfo(f"package/dist/{name}")
            entry.size = 3
            files.addfile(entry, BytesIO(b"abc"))
    monkeypatch.setattr(page, "SHA256", __import__("hashlib").sha256(content.getvalue()).hexdigest())
    return content.getvalue()


def test_a_page_has_all_that_it_needs(translator, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(page, "graphs", lambda model, positions: {"encoder.onnx": b"reads", "step.onnx": b"writes"})
    translator.save_pretrained(tmp_path / "model")
    (tmp_path / "engine.tgz").write_bytes(fake_engine(monkeypatch))
    with pytest.raises(SystemExit) as done:
        main(["export", str(tmp_path / "model"), str(tmp_path / "out"), "--to", "page", "--quantization", "float32", "--engine", str(tmp_path / "engine.tgz")])
    told = capsys.readouterr()
    assert (done.value.code or 0, told.err) == (0, "") and "holds a page that translates" in told.out
    files = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert set(files) - {"checksums.json"} == {"index.html", "page.js", "model.js", "engine.js", "ort.wasm.min.js", "LICENSE-onnxruntime.txt"}
    html = files["index.html"].decode()
    assert "<title>English to Hindi, on this device</title>" in html and "http" not in html.replace('content="width', "")
    assert b"Copyright (c) Microsoft" in files["LICENSE-onnxruntime.txt"] and files["ort.wasm.min.js"] == b"abc"
    assert b"fetch(" not in files["page.js"] and b'"jack"' in files["model.js"]


@pytest.mark.parametrize(("words", "said"), [
    ("--to page --quantization int4", "unknown --quantization 'int4'"),
    ("--to page --layout t5", "--layout t5"),
    ("--to onnx --engine FILE", "--engine: only --to page has one"),
    ("--to page", "there is no npm here: run `npm pack onnxruntime-web@"),
    ("--to page --engine FILE", "the file is not onnxruntime-web@"),
])
def test_a_page_that_cannot_be_is_one_line(translator, tmp_path, monkeypatch, capsys, words, said):
    translator.save_pretrained(tmp_path / "model")
    (tmp_path / "FILE").write_bytes(b"something else")
    monkeypatch.setattr(page.shutil, "which", lambda name: None)
    words = words.replace("FILE", str(tmp_path / "FILE")).split()
    with pytest.raises(SystemExit) as done:
        main(["export", str(tmp_path / "model"), str(tmp_path / "out"), *words])
    error = capsys.readouterr().err
    assert done.value.code and said in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_npm_that_fails_is_one_line(monkeypatch):
    monkeypatch.setattr(page.shutil, "which", lambda name: "false")
    with pytest.raises(ValueError, match="npm could not fetch it: run `npm pack") as problem:
        page.fetched_engine()
    assert "\n" not in str(problem.value)


def test_only_a_translator_of_words_goes_to_a_page(translator):
    pieces = Tokenizer.train(["jack saw jill"], kind="characters", size=30)
    assert "tokens are words" in page.why_not_page(translator.model, pieces)
    assert "cannot go to ONNX" in page.why_not_page(MODELS["seq2seq"](9, 9, d_model=6, d_hidden=7), translator.tokenizer)


@pytest.fixture(scope="module")
def opened(translator, tmp_path_factory):
    """The page in a browser without a network, with float32 weights; and all that it asked for."""
    needs_onnx()
    play = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if BROWSER is None:
        pytest.skip("needs Chromium or Chrome: on Debian and Ubuntu, apt install chromium")
    package = os.environ.get("ONNXRUNTIME_WEB", "")
    if not os.path.isfile(package):
        pytest.skip(f"needs ONNXRUNTIME_WEB, the path of the file that `npm pack {page.ENGINE}` writes")
    with open(package, "rb") as file:
        files = page.page_files(translator.model, translator.tokenizer, file.read(), quantization="float32", examples=["the cow sleeps"])
    folder = tmp_path_factory.mktemp("page")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with play.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        tab = browser.new_context(viewport={"width": 390, "height": 780}, offline=True).new_page()
        asked, faults = [], []
        tab.on("request", lambda request: asked.append(request.url))
        tab.on("pageerror", lambda fault: faults.append(str(fault)))
        tab.goto((folder / "index.html").as_uri())
        tab.wait_for_function("!document.getElementById('go').disabled", timeout=120_000)
        yield tab, asked, faults
        browser.close()


def test_a_browser_writes_the_words_of_the_library(translator, opened):
    tab, asked, faults = opened
    for text in ("jack saw jill", "  the   cow sleeps\n", "a cow <eos> saw delhi", "jill"):
        tab.fill("#source", text)
        tab.focus("#source")
        tab.keyboard.press("Enter")
        tab.wait_for_function("document.getElementById('time').textContent && !document.getElementById('go').disabled")
        assert tab.inner_text("#target").split() == translator.translate([text], beam_size=1)[0].split()
        unknown = translator.unknown_words([text])[0]
        assert tab.inner_text("#note") == (f"The model does not know: {', '.join(unknown)}." if unknown else "All words are known.")
    assert faults == [] and all(url.startswith(("file:", "blob:")) for url in asked)


def test_the_page_fits_a_phone_and_every_box_has_a_name(opened):
    tab = opened[0]
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert tab.get_by_label("English").count() == 1 and tab.get_by_role("button", name="Translate").count() == 1
    tab.get_by_role("button", name="the cow sleeps").press("Enter")
    tab.wait_for_function("document.getElementById('source').value == 'the cow sleeps'")
    light = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.emulate_media(color_scheme="dark")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_the_workflow_brings_the_engine_of_this_version(root):
    text = (root / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert f" {page.ENGINE}\n" in text and f"/{page.ENGINE.replace('@', '-')}.tgz\"" in text

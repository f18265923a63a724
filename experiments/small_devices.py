"""One translator in eight bits by four engines: file, memory, time, quality; how many bits are enough; where int8 saves time.

    python experiments/small_devices.py --models FOLDER --seeds 1 2 3
    python experiments/small_devices.py --models FOLDER --page CHROMIUM

Trains the micro Transformer on micro-Hindi in FOLDER/seedN (2,000 steps), unless it is there already. Then

`engines`: each engine translates 500 sentences of `test` in a process of its own (engines.py), one sentence at a time, greedily, with one thread.
`bits`: weights of 8 to 2 bits, one scale for each row or one for the whole matrix; inputs stay at 8 bits, embeddings at 32.
`widths`: seconds of one product, of one row and of 64 rows, for matrices of several widths; this needs no training.
`texts`: translations of a few short sentences by the first seed's model, with fewer and fewer bits.
`page`: the page of `transformer-course export --to page` in Chromium, without a network: are its words those of the library? Its picture,
at the widths of a desk and of a phone. Needs playwright, npm and a path to Chromium.

Writes results/small_devices.json after each seed, and goes on where an earlier call stopped.
"""
import argparse
import base64
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import safetensors.torch
import torch
from records import HERE, RESULTS, facts, write
from torch import nn

from transformer_course.data.corpora import load
from transformer_course.files import write_files
from transformer_course.models.int8 import Int8Linear, int8_rows, quantised, stored_bytes
from transformer_course.pipelines.decoding import source_rows, target_limit, translate
from transformer_course.pipelines.searching import SearchOptions
from transformer_course.pipelines.translator import Translator
from transformer_course.published.engines import ctranslate2_files, int8_graph
from transformer_course.published.onnx_graphs import cache_sizes, graphs
from transformer_course.scoring import bleu, exact_match

NAME, STEPS, POSITIONS, SENTENCES, TIMED, ROUNDS = "small_devices", 2000, 256, 500, 150, 3
ENGINES = {"PyTorch float32": "pytorch:fp32", "PyTorch float32, lesson 27": "pytorch:fast", "PyTorch int8, ours": "pytorch:ours",
           "PyTorch int8, torch.ao": "pytorch:ao", "ONNX Runtime float32": "onnx:float32", "ONNX Runtime int8": "onnx:int8",
           "CTranslate2 float32": "ctranslate2:float32", "CTranslate2 int8": "ctranslate2:int8"}
BITS, WIDTHS = (8, 6, 5, 4, 3, 2), (96, 192, 384, 768, 1536)
warnings.filterwarnings("ignore", message=".*(torch.ao.quantization|quantize_per_tensor|quantized tensor).*")


def trained(models: Path, seed: int) -> Translator:
    folder = models / f"seed{seed}"
    if not (folder / "model.safetensors").is_file():
        Translator.train("micro-hindi", model="transformer", preset="micro", steps=STEPS, seed=seed, device="cpu", precision="highest",
                         progress=False, folder=folder)
    return Translator.from_pretrained(folder)


def scores(found: list[str], references: list[str], plain: list[str]) -> dict:
    """Exact match, BLEU, and how many sentences are those of the float32 model."""
    return {"exact_match": exact_match(found, references), "bleu": round(bleu(found, references).value, 2),
            "same": round(sum(a == b for a, b in zip(found, plain)) / len(plain), 4)}


def ao(model: nn.Module) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def safetensors_bytes(model: nn.Module) -> int:
    """The size of a file of the model's tensors, each of them once."""
    once = {tensor.data_ptr(): (name, tensor) for name, tensor in model.state_dict().items()}
    return len(safetensors.torch.save(dict(once.values())))


def pickled_bytes(model: nn.Module) -> int:
    content = BytesIO()
    torch.save(model.state_dict(), content)
    return content.tell()


def written(place: Path, translator: Translator) -> dict[str, int]:
    """Folders for the engines that are not PyTorch; the bytes of each engine's model."""
    model, sizes = translator.model, {}
    plain = graphs(model, POSITIONS)
    for kind, files in (("float32", plain), ("int8", {name: int8_graph(graph) for name, graph in plain.items()})):
        write_files(place / f"onnx:{kind}", files)
        sizes[f"ONNX Runtime {kind}"] = sum(map(len, files.values()))
        _, files = ctranslate2_files(model, translator.tokenizer, quantization=kind)
        write_files(place / f"ctranslate2:{kind}", files)
        sizes[f"CTranslate2 {kind}"] = len(files["model.bin"])
    return sizes | {"PyTorch float32": safetensors_bytes(model), "PyTorch float32, lesson 27": safetensors_bytes(model),
                    "PyTorch int8, ours": safetensors_bytes(quantised(model)), "PyTorch int8, torch.ao": pickled_bytes(ao(model))}


def called(engine: str, folder: Path, task: Path) -> dict:
    """What engines.py says of one engine."""
    done = subprocess.run([sys.executable, HERE / "engines.py", engine, folder, task], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def engines(folder: Path, translator: Translator, pairs: list, plain: list[str]) -> dict:
    model, tokenizer, found = translator.model, translator.tokenizer, {}
    rows = source_rows(model, tokenizer, [pair.source for pair in pairs])
    task = {"rows": rows, "limits": [target_limit(len(row)) for row in rows], "timed": TIMED, "cache": cache_sizes(model),
            "bos": model.bos_id, "eos": model.eos_id, "never": [model.pad_id, model.bos_id]}
    pieces = task | {"rows": [[*tokenizer.pieces(pair.source), "<eos>"] for pair in pairs]}
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        sizes = written(place, translator)
        for name, content in (("ids", task), ("pieces", pieces)):
            (place / f"all {name}").write_text(json.dumps(content), encoding="utf-8")
            (place / f"few {name}").write_text(json.dumps(content | {"rows": content["rows"][:TIMED]}), encoding="utf-8")
        where = lambda engine: folder if engine.startswith("pytorch") else place / engine
        given = lambda engine, count: place / f"{count} {'pieces' if engine.startswith('ctr') else 'ids'}"
        for name, engine in ENGINES.items():
            one = called(engine, where(engine), given(engine, "all"))
            texts = [" ".join(row) if engine.startswith("ctr") else tokenizer.decode(_until_end(row, model.eos_id))
                     for row in one["found"]]
            found[name] = {"bytes": sizes[name], **scores(texts, [pair.target for pair in pairs], plain),
                           "seconds": [one["seconds"]], "memory": one["memory"]}
        for again in range(ROUNDS - 1):                                  # in turns: a slow minute meets all engines
            for name, engine in ENGINES.items():
                found[name]["seconds"].append(called(engine, where(engine), given(engine, "few"))["seconds"])
        for one in found.values():
            one["sentences_per_second"] = round(TIMED / statistics.median(one.pop("seconds")), 1)
        return found | {"nothing": {"memory": called("nothing", place, place / "few ids")["memory"]}}


def _until_end(row: list[int], eos: int) -> list[int]:
    return row[:row.index(eos)] if eos in row else row


def one_scale(model: nn.Module, bits: int) -> nn.Module:
    """As `quantised`, with one scale for each matrix in place of one for each of its rows."""
    found = quantised(model, bits)
    for name, part in found.named_modules():
        if isinstance(part, Int8Linear):
            weight = model.get_submodule(name).weight.detach()
            numbers, scale = int8_rows(weight.flatten(), bits)
            part.numbers, part.scales = numbers.view_as(weight), scale.expand(len(weight)).clone()
    return found


def small_table(model: nn.Module) -> nn.Module:
    """`quantised`, and the table of words rounded to int8 rows as well."""
    found = quantised(model)
    table = found.output.weight
    numbers, scales = int8_rows(table.data)
    table.data = numbers * scales
    return found


@torch.no_grad()
def logit_error(model: nn.Module, other: nn.Module, translator: Translator, pairs: list) -> float:
    """The mean difference of the next words' logits, over their standard deviation, when the gold words are read."""
    from transformer_course.data.text import pad
    from transformer_course.pipelines.decoding import encode_pairs
    examples = encode_pairs(translator.tokenizer, pairs)
    src, tgt = pad([src for src, tgt in examples]), pad([tgt for src, tgt in examples])
    real = tgt != model.pad_id
    ours, theirs = model(src, tgt)[real], other(src, tgt)[real]
    return round(((ours - theirs).abs().mean() / ours.std()).item(), 5)


def run(models: Path, seed: int, corpus) -> dict:
    translator = trained(models, seed)
    pairs, model, tokenizer = corpus["test"][:SENTENCES], translator.model.eval(), translator.tokenizer
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    texts = lambda changed: translate(changed, tokenizer, sources, SearchOptions(beam_size=1))
    plain = texts(model)
    of = lambda changed: scores(texts(changed), references, plain)
    found = {"seed": seed, "engines": engines(models / f"seed{seed}", translator, pairs, plain)}
    print(seed, json.dumps(found["engines"]), flush=True)
    found["bits"] = {str(bits): {"rows": of(quantised(model, bits)), "matrix": of(one_scale(model, bits))} for bits in BITS}
    print(seed, json.dumps(found["bits"]), flush=True)
    found["table too"] = of(small_table(model))
    found["error"] = {"ours": logit_error(model, quantised(model), translator, pairs[:200]),
                      "one scale": logit_error(model, one_scale(model, 8), translator, pairs[:200]),
                      "torch.ao": logit_error(model, ao(model), translator, pairs[:200])}
    found["stored"] = {"float32": stored_bytes(model), "int8": stored_bytes(quantised(model)), "table": model.output.weight.nbytes}
    return found


def seconds(work: Callable, least: float = 0.2) -> float:
    """Seconds of the processor of one call: the median of five groups of calls."""
    count, took = 1, 0.0
    while took < least / 5:
        count *= 2
        begun = time.process_time()
        for _ in range(count):
            work()
        took = time.process_time() - begun
    groups = []
    for group in range(5):
        begun = time.process_time()
        for _ in range(count):
            work()
        groups.append((time.process_time() - begun) / count)
    return statistics.median(groups)


@torch.inference_mode()
def widths() -> dict:
    found = {}
    for width in WIDTHS:
        torch.manual_seed(width)
        plain = nn.Linear(width, width)
        layers = {"float32": plain, "ours": Int8Linear(plain), "torch.ao": ao(nn.Sequential(plain))}
        for rows in (1, 64):
            x = torch.randn(rows, width)
            found.setdefault(str(width), {})[str(rows)] = {name: float(f"{seconds(lambda: layer(x)):.3g}")
                                                           for name, layer in layers.items()}
    return found


def texts(models: Path, corpus) -> list[dict]:
    """Three short sentences and their translations, by bits of a weight; "32" is the float32 model."""
    translator = trained(models, 1)
    pairs = [pair for pair in corpus["test"] if 6 <= len(pair.source.split()) <= 8][:3]
    made = {"32": translator.model} | {str(bits): quantised(translator.model, bits) for bits in BITS}
    found = {bits: translate(model, translator.tokenizer, [pair.source for pair in pairs], SearchOptions(beam_size=1))
             for bits, model in made.items()}
    return [{"source": pair.source, "target": pair.target, "bits": {bits: lines[i] for bits, lines in found.items()}}
            for i, pair in enumerate(pairs)]


def page(models: Path, corpus, chromium: str, count: int = 200) -> dict:
    """What the page writes, its size, its time and its picture."""
    from playwright.sync_api import sync_playwright

    from transformer_course.cli.exporting import EXAMPLES
    from transformer_course.published.page import fetched_engine, page_files
    translator = trained(models, 1)
    model, tokenizer = translator.model, translator.tokenizer
    package, found = fetched_engine(), {}
    sources = [pair.source for pair in corpus["test"][:count]]
    rows, plain = source_rows(model, tokenizer, sources), translate(model, tokenizer, sources, SearchOptions(beam_size=1))
    with tempfile.TemporaryDirectory() as made, sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for kind in ("float32", "int8"):
            files = page_files(model, tokenizer, package, quantization=kind, examples=EXAMPLES["micro-hindi"])
            write_files(Path(made, kind), files)
            tab = browser.new_context(viewport={"width": 1280, "height": 760}, offline=True).new_page()
            tab.goto(Path(made, kind, "index.html").as_uri())
            tab.wait_for_function("!document.getElementById('go').disabled", timeout=240_000)
            lines, begun = [], time.perf_counter()
            for row in rows:
                lines.append(tokenizer.decode(tab.evaluate("ids => translateIds(ids)", row[:-1])))
            took = time.perf_counter() - begun
            found[kind] = {"same": round(sum(a == b for a, b in zip(lines, plain)) / count, 4), "sentences_per_second": round(count / took, 1),
                           "bytes": {name: len(content) for name, content in files.items()}}
        found |= {"browser": f"Chromium {browser.version}", "sentences": count, "picture": picture(tab)}
        browser.close()
    return found


def picture(tab) -> str:
    """The page at the widths of a desk and of a phone, side by side on a sheet of white paper, as a PNG in base64."""
    from PIL import Image, ImageOps
    tab.fill("#source", "the old teacher will read this book in delhi")
    tab.keyboard.press("Enter")
    tab.wait_for_function("document.getElementById('time').textContent")
    shots = []
    for width in (1280, 390):
        tab.set_viewport_size({"width": width, "height": 760})
        shots.append(Image.open(BytesIO(tab.screenshot())).convert("RGB"))
    whole = Image.new("RGB", (1280 + 390 + 60, 800), "#8c959f")
    whole.paste(shots[0], (20, 20))
    whole.paste(shots[1], (1320, 20))
    content = BytesIO()
    whole = ImageOps.expand(whole.resize((1211, 560), Image.Resampling.LANCZOS), 8, "white")
    whole.quantize(32).save(content, "png", optimize=True)
    return base64.b64encode(content.getvalue()).decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--page", metavar="CHROMIUM", help="look at the page with this browser")
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {
        **facts(), "steps": STEPS, "preset": "micro", "sentences": SENTENCES, "timed": TIMED, "runs": []}
    corpus = load("micro-hindi")
    for seed in given.seeds:
        if seed not in [one["seed"] for one in record["runs"]]:
            record["runs"].append(run(given.models, seed, corpus))
            write(NAME, record)
    for part, made in (("widths", widths), ("texts", lambda: texts(given.models, corpus))):
        if part not in record:
            record[part] = made()
            write(NAME, record)
    if given.page:
        record["page"] = page(given.models, corpus, given.page)
        write(NAME, record)


if __name__ == "__main__":
    main()

"""A training step and decoding, of this library and of an earlier commit of it, side by side.

    python benchmarks/against.py COMMIT [--preset tiny] [--models transformer additive] [--rounds 24] [--device cpu]

The package of the commit is taken out of git and imported under another name, so both run in one process, on the same batches
and from the same random start. Their first losses must agree before anything is timed. Memory is what the process grows by in
three steps, each model in a process of its own. Decoding writes 30 words for each of 50 sentences, greedily and with a beam of 5,
with the plain model and, for the Transformer, with `FastDecoder` as well; both must find the same words. Results go to benchmarks/results/against_COMMIT_PRESET_DEVICE.json.
"""
import argparse
import importlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from timing import grown, interleaved, precisions, record, show, summary
from torch.testing import assert_close
from training_step import batches, stepper

from transformer_course.pipelines.presets import PRESETS

ROOT = Path(__file__).resolve().parents[1]
NOW, BEFORE = "this commit", "earlier commit"
PLACES = {"build": ("pipelines.presets", "presets", "translation"), "greedy_search": ("search.beam", "search"),       # where each was,
          "beam_search": ("search.beam", "search"), "FastDecoder": ("models.fast_decoding", "fast_decoding")}        # the latest first
LENGTH, SENTENCES = 30, 50


def parts(package: str) -> dict[str, Callable]:
    """What is compared, from this package or from an earlier one."""
    folder = Path(importlib.import_module(package).__file__).parent
    homes = {name: next(p for p in places if (folder / f"{p.replace('.', '/')}.py").is_file()) for name, places in PLACES.items()}
    return {name: getattr(importlib.import_module(f"{package}.{home}"), name) for name, home in homes.items()}


def earlier(commit: str, folder: str) -> dict[str, Callable]:
    """The parts of an earlier commit, imported from `earlier_course`."""
    packed = subprocess.run(["git", "archive", commit, "transformer_course"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(folder, filter="data")
    (Path(folder) / "transformer_course").rename(Path(folder) / "earlier_course")
    sys.path.append(folder)
    return parts("earlier_course")


def built(builders: dict, model: str, preset: str, device: torch.device) -> dict[str, torch.nn.Module]:
    """The model by both, from the same random start."""
    found = {}
    for name, build in builders.items():
        torch.manual_seed(1)
        found[name] = build(model, preset, PRESETS[preset].vocabulary).to(device)
    return found


def check(models: dict[str, torch.nn.Module], batch: tuple) -> None:
    """The same loss, without dropout."""
    with torch.no_grad():
        losses = [model.eval().loss(*batch) for model in models.values()]
    assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-5)


def memory_apart(name: str, model: str, given: argparse.Namespace, precision: str) -> float | None:
    """Megabytes of three steps, in a process of its own."""
    command = [sys.executable, __file__, given.commit, "--preset", given.preset, "--device", given.device, "--memory-of", name, model, precision]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def searches(library: dict[str, Callable], model: torch.nn.Module, src: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """For each way of decoding a call that gives exactly `LENGTH` words for each sentence."""
    readers = {"plain": model.eval()} | ({"fast": library["FastDecoder"](model)} if hasattr(model, "decoder") and hasattr(model, "encoder") else {})
    greedy = lambda reader: library["greedy_search"](reader, src, LENGTH, min_len=LENGTH).tokens
    beam = lambda reader: library["beam_search"](reader, src, 5, LENGTH, min_len=LENGTH).tokens
    return {f"{way}, {name}": partial(call, reader) for name, reader in readers.items() for way, call in (("greedy", greedy), ("beam of 5", beam))}


def compare_decoding(libraries: dict, models: dict, title: str, rounds: int, device: torch.device) -> dict:
    """The times of both libraries for each way of decoding."""
    draw, found = torch.Generator().manual_seed(1), {}
    vocabulary = 1000
    src = torch.randint(4, vocabulary, (SENTENCES, 15), generator=draw).to(device)
    calls = {name: searches(libraries[name], models[name], src) for name in libraries}
    for way in calls[NOW]:
        both = {name: own[way] for name, own in calls.items()}
        same = (both[BEFORE]() == both[NOW]()).float().mean().item()
        assert same > 0.9, f"{way}: only {same:.0%} of the words agree"
        rows = summary(interleaved(both, rounds, device, pause=0.2), BEFORE)
        show(f"decoding, {title}, {way}", rows, BEFORE)
        found[f"decoding, {title}, {way}"] = rows
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", help="of the earlier package")
    parser.add_argument("--preset", default="tiny", choices=PRESETS)
    parser.add_argument("--models", nargs="+", default=["transformer", "transformer-relative", "additive"])
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--memory-of", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    device, preset, figures = torch.device(given.device), PRESETS[given.preset], {}
    data = batches(preset.vocabulary, preset.batch_tokens, 3, device)
    with tempfile.TemporaryDirectory() as folder:
        libraries = {BEFORE: earlier(given.commit, folder), NOW: parts("transformer_course")}
        builders = {name: library["build"] for name, library in libraries.items()}
        if given.memory_of:
            name, model, precision = given.memory_of
            step = stepper(built({name: builders[name]}, model, given.preset, device)[name], data, precision)
            return print(json.dumps(grown(step, 3, device)))
        for model in given.models:
            models = built(builders, model, given.preset, device)
            check(models, data[0])
            for precision in precisions(device):
                steps = {name: stepper(one, data, precision) for name, one in models.items()}
                rows = summary(interleaved(steps, given.rounds, device, warm=len(data)), BEFORE)
                for name in rows:
                    rows[name]["megabytes"] = memory_apart(name, model, given, precision)
                show(f"training step, {model}, {given.preset}, {precision} precision", rows, BEFORE)
                figures[f"{model}, {precision}"] = rows
            figures |= compare_decoding(libraries, built(builders, model, given.preset, device), model, given.rounds, device)
    facts = {"earlier commit": given.commit, "preset": given.preset, "rounds": given.rounds}
    print(f"\nrecorded in {record(f'against_{given.commit[:7]}_{given.preset}_{device.type}', facts | figures, device)}")


if __name__ == "__main__":
    main()

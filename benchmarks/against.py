"""A training step of this library and of an earlier commit of it, side by side.

    python benchmarks/against.py COMMIT [--preset tiny] [--models transformer additive] [--rounds 24] [--device cpu]

The package of the commit is taken out of git and imported under another name, so both run in one process, on the same batches
and from the same random start. Their first losses must agree before anything is timed. Memory is what the process grows by in
three steps, each model in a process of its own. Results go to benchmarks/results/against_COMMIT_PRESET_DEVICE.json.
"""
import argparse
import importlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import torch
from timing import grown, interleaved, precisions, record, show, summary
from torch.testing import assert_close
from training_step import batches, stepper

from transformer_course.pipelines.presets import PRESETS

ROOT = Path(__file__).resolve().parents[1]
NOW, BEFORE = "this commit", "earlier commit"


def earlier(commit: str, folder: str):
    """The module of an earlier commit that has `build`, imported from `earlier_course`."""
    packed = subprocess.run(["git", "archive", commit, "transformer_course"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(folder, filter="data")
    (Path(folder) / "transformer_course").rename(Path(folder) / "earlier_course")
    sys.path.append(folder)
    places = ("pipelines/presets", "presets", "translation")                # where `build` was, the latest first
    place = next(place for place in places if (Path(folder) / "earlier_course" / f"{place}.py").is_file())
    return importlib.import_module(f"earlier_course.{place.replace('/', '.')}")


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
        builders = {BEFORE: earlier(given.commit, folder).build, NOW: importlib.import_module("transformer_course.pipelines.presets").build}
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
    facts = {"earlier commit": given.commit, "preset": given.preset, "rounds": given.rounds}
    print(f"\nrecorded in {record(f'against_{given.commit[:7]}_{given.preset}_{device.type}', facts | figures, device)}")


if __name__ == "__main__":
    main()

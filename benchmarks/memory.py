"""How memory grows as training meets new shapes of batches, by the number of products that oneDNN may keep ready.

    python benchmarks/memory.py [--preset tiny] [--steps 300] [--rounds 2]

For each shape of a product that it has not met, oneDNN (PyTorch's library for products on CPUs) makes a program, a
*primitive*, and keeps up to 1,024 of them. Batches by length have many shapes, and other ones in every epoch.
ONEDNN_PRIMITIVE_CACHE_CAPACITY sets another limit, if it is set before the first product; the command line sets 200. Here
each limit trains in a process of its own, the limits in turns, on the same batches. Linux only. Results go to benchmarks/results/memory_PRESET.json.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from timing import arithmetic, record, resident
from training_step import OURS, makers, stepper

from transformer_course.data.batching import batch_plan, collate
from transformer_course.pipelines.presets import PRESETS

LIMITS = {"default (1,024)": None, "200": "200", "50": "50"}
EVERY = 50     # steps


def captions(vocabulary: int, max_tokens: int, steps: int) -> list:
    """Batches of as many epochs as it takes over 29,000 pairs of random ids, whose lengths vary as those of captions do."""
    draw = random.Random(1)
    words = lambda n: [draw.randrange(4, vocabulary) for word in range(n)]
    lengths = [max(4, round(draw.lognormvariate(2.6, 0.32))) for sentence in range(29_000)]
    examples = [(words(n) + [2], [1] + words(max(3, round(n * draw.gauss(1, 0.18)))) + [2]) for n in lengths]
    plan, epoch = [], 0
    while len(plan) < steps:
        plan += batch_plan(examples, max_tokens, epoch=epoch)
        epoch += 1
    return [collate(examples, batch, 0) for batch in plan[:steps]]


def train(preset: str, steps: int) -> dict:
    """Memory after every 50 steps, and tokens a second; this process must do nothing else."""
    data = captions(PRESETS[preset].vocabulary, PRESETS[preset].batch_tokens, steps)
    step, megabytes, began = stepper(makers(preset)[OURS](), data, "medium"), [], time.perf_counter()
    with arithmetic("medium", data[0][0].device):
        for done in range(1, steps + 1):
            step()
            if done % EVERY == 0:
                megabytes.append(round(resident("VmRSS")))
    tokens = sum(int((tgt[:, 1:] != 0).sum()) for src, tgt in data)
    return {"megabytes": megabytes, "tokens per second": tokens / (time.perf_counter() - began),
            "shapes": len({(src.shape, tgt.shape) for src, tgt in data})}


def apart(limit: str | None, given: argparse.Namespace) -> dict:
    """`train` in a process of its own, with that limit."""
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_PRIMITIVE_CACHE_CAPACITY"}
    environment |= {} if limit is None else {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": limit}
    command = [sys.executable, str(Path(__file__)), "--preset", given.preset, "--steps", str(given.steps), "--alone"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="tiny", choices=("tiny", "small"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        return print(json.dumps(train(given.preset, given.steps)))
    runs, names = {name: [] for name in LIMITS}, list(LIMITS)
    for turn in range(given.rounds):
        for name in names[turn % len(names):] + names[:turn % len(names)]:
            runs[name].append(apart(LIMITS[name], given))
            print(f"{name:16} {runs[name][-1]}", flush=True)
    rows = {name: {"megabytes": [statistics.median(column) for column in zip(*(run["megabytes"] for run in found))],
                   "tokens per second": statistics.median(run["tokens per second"] for run in found)} for name, found in runs.items()}
    figures = {"preset": given.preset, "steps": given.steps, "rounds": given.rounds, "measured every": EVERY,
               "shapes of batches": runs[names[0]][0]["shapes"], "limits": rows}
    print(f"\nrecorded in {record(f'memory_{given.preset}', figures)}")


if __name__ == "__main__":
    main()

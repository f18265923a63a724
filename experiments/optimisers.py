"""What are Adam, its β₁ and the falling rate worth? Each against its rival, and each with its own rate.

    python experiments/optimisers.py --jobs 2

The model is the micro preset's Transformer, the data is micro-Hindi, as in `recipe.py`. Every variant is
first trained from seed 1 with each of its rates, and with further ones while the lowest or the highest of
them is the best. The rate with the lowest perplexity on `valid` is the variant's own; with that it is trained from
the other seeds. `test` is only scored. All rates warm up over the preset's 100 steps, and gradients are
clipped. Decoding is greedy. Writes results/optimisers.json after each run, and goes on where an earlier call
stopped.
"""
import argparse
import json
import math
import time
from dataclasses import dataclass
from functools import cache, partial
from typing import Callable

import torch
from recipe import MICRO, PEAK, SCHEDULES, SIZES, scores
from records import RESULTS, facts, shared, write
from torch import nn

from transformer_course.data.batching import PairBatches
from transformer_course.data.corpora import load
from transformer_course.data.text import Tokenizer
from transformer_course.models.transformer import Transformer
from transformer_course.pipelines.decoding import encode_pairs
from transformer_course.training.settings import Settings, adam
from transformer_course.training.trainer import fit


def descent(model: nn.Module, momentum: float = 0.0) -> torch.optim.Optimizer:
    """Gradient descent; the trainer sets the learning rate of each step."""
    return torch.optim.SGD(model.parameters(), lr=0.0, momentum=momentum)


@dataclass(frozen=True)
class Variant:
    """An optimiser, a schedule, and the rates to begin with, each `factor` times the one before."""

    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    schedule: str
    rates: tuple[float, ...]
    factor: float


def with_adam(beta1: float = 0.9, schedule: str = "linear decay") -> Variant:
    """Adam around the preset's rate."""
    return Variant(partial(adam, betas=(beta1, 0.98)), schedule, (PEAK / 2, PEAK, 2 * PEAK), 2.0)


VARIANTS = {
    "Adam": with_adam(),
    "Adam, β₁ = 0": with_adam(0.0),
    "Adam, β₁ = 0.98": with_adam(0.98),
    "SGD": Variant(descent, "linear decay", (0.25, 1.0, 4.0), 4.0),
    "SGD with momentum": Variant(partial(descent, momentum=0.9), "linear decay", (0.0625, 0.25, 1.0), 4.0),
    "Adam, inverse square root": with_adam(schedule="inverse square root"),
    "Adam, constant rate": with_adam(schedule="constant"),
}
MOST = 6         # rates of a variant


@cache
def prepared() -> tuple:
    """The corpus, its vocabulary, and the batches to learn from."""
    corpus = load("micro-hindi")
    texts = [text for pair in corpus["train"] for text in (pair.source, pair.target)]
    tokenizer = Tokenizer.train(texts, kind=MICRO.tokens, size=MICRO.vocabulary)
    return corpus, tokenizer, PairBatches(encode_pairs(tokenizer, corpus["train"]), MICRO.batch_tokens)


def run(name: str, rate: float, seed: int, steps: int) -> dict:
    """Train once and score; no scores if the training ended in numbers that are not finite."""
    began, start = facts(), time.perf_counter()
    variant, (corpus, tokenizer, batches) = VARIANTS[name], prepared()
    torch.manual_seed(seed)
    model = Transformer(len(tokenizer), len(tokenizer), **SIZES)
    try:
        fit(model, batches, SCHEDULES[variant.schedule](rate, MICRO.warmup), steps=steps, progress=False,
            settings=Settings(seed=seed, device="cpu", precision="highest"), optimizer=variant.optimizer)
        found = {split: scores(model, tokenizer, corpus[split]) for split in ("valid", "test")}
    except FloatingPointError:
        found = {}
    seconds = round(time.perf_counter() - start, 1)
    return {"rate": rate, "seed": seed, **began, "seconds": seconds, **found}


def best(runs: list[dict], seed: int) -> float:
    """Of the rates tried from this seed the one with the lowest perplexity on valid."""
    perplexity = {one["rate"]: one["valid"]["perplexity"] if "valid" in one else math.inf
                  for one in runs if one["seed"] == seed}
    return min(perplexity, key=perplexity.get)


def wanted(variant: Variant, runs: list[dict], seeds: list[int]) -> list[tuple[float, int]]:
    """Rates and seeds to run next.

    First all rates from the first seed, then one beyond the end that is best, then the best from other seeds.
    """
    first, tried = seeds[0], sorted(one["rate"] for one in runs if one["seed"] == seeds[0])
    missing = [rate for rate in variant.rates if rate not in tried]
    if missing:
        return [(rate, first) for rate in missing]
    own = best(runs, first)
    if len(tried) < MOST and own in (tried[0], tried[-1]):
        return [(own * variant.factor if own == tried[-1] else own / variant.factor, first)]
    done = {one["seed"] for one in runs if one["rate"] == own}
    return [(own, seed) for seed in seeds if seed not in done]


def noted(path, steps: int) -> dict:
    """The record so far; another number of steps is another record."""
    new = {"preset": "micro", "steps": steps, "variants": {}}
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else new
    if record["steps"] != steps:
        raise SystemExit(f"{path.name} was made with {record['steps']} steps, not {steps}")
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--only", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    given = parser.parse_args()
    torch.set_num_threads(1)
    record = noted(RESULTS / "optimisers.json", given.steps)
    variants = {name: record["variants"].get(name, {"schedule": variant.schedule, "rate": None, "runs": []})
                for name, variant in VARIANTS.items()}

    def left() -> list[tuple]:
        return [(name, *task, given.steps) for name in given.only
                for task in wanted(VARIANTS[name], variants[name]["runs"], given.seeds)]

    while tasks := left():
        for (name, *_), result in shared(run, tasks, given.jobs):
            runs = variants[name]["runs"]
            runs.append(result)
            runs.sort(key=lambda one: (one["seed"], one["rate"]))
            variants[name]["rate"] = best(runs, given.seeds[0])
            write("optimisers", record | {"seeds": given.seeds, "variants": variants})
            print(name, result["rate"], result["seed"], result.get("valid"), result["seconds"], flush=True)


if __name__ == "__main__":
    main()

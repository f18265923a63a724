"""GPT-2's block against today's: six changes, each alone and all together, at equal parameters.

    python experiments/todays_block.py --seeds 1 2 3

All models read characters of tinyshakespeare (`transformer-course data fetch tinyshakespeare`, or TRANSFORMER_COURSE_DATA) in segments
of 48, and have two layers of width 48 with 8 heads. "GPT-2" has LayerNorm, GELU, a trained vector for each position, a key and a value for
each head, biases, and no norm of queries and keys. Each of the next six models differs from it in one of these; "all" differs in all six. The
width of the feed-forward network makes up for what a change adds or saves, so all have about as many parameters as "GPT-2".

Each model's rate is searched on valid with seed 1: doubled or halved until a worse one lies on either side. `test` is only scored. "high
rates" trains three models with a rate above the best ones. "step": one training step of all models in turns, the median over rounds, in
seconds of the processor. Writes results/todays_block.json after each run, and goes on where an earlier call stopped. One thread.
"""
import argparse
import json
import math
import statistics
import time
from functools import cache

import torch
from records import RESULTS, best_rate, facts, write
from torch import nn

from transformer_course.data.corpora import load
from transformer_course.data.text import Tokenizer
from transformer_course.models.modern import ModernLM
from transformer_course.models.segments import SegmentBatches, window_losses
from transformer_course.training.schedules import linear_decay

NAME, LENGTH, ROWS, STEPS, WARMUP, ROUNDS = "todays_block", 48, 12, 150, 30, 15
SIZES = {"d_model": 48, "n_heads": 8, "n_layers": 2, "max_len": LENGTH}
GPT2 = {"norm": "layer", "gated": False, "rotary": False, "n_groups": 8, "bias": True, "qk_norm": False, "eps": 1e-5}
CHANGES = {"RMSNorm": {"norm": "rms"}, "SwiGLU": {"gated": True}, "rotary positions": {"rotary": True}, "2 groups for 8 heads": {"n_groups": 2},
           "no biases": {"bias": False}, "norms of q and k": {"qk_norm": True}}
MODELS = {"GPT-2": {}, **CHANGES, "all": {name: value for change in CHANGES.values() for name, value in change.items()}}
HIGH, FIRST = (0.064,), 0.016
HIGH_MODELS = ("GPT-2", "norms of q and k", "all")


@cache
def data() -> tuple[int, dict[str, torch.Tensor]]:
    """The number of characters that there are, and the ids of each split: 10,000 characters of valid, and all of test."""
    texts = {split: "\n".join(item.text for item in items) for split, items in load("tinyshakespeare").splits.items()}
    characters = Tokenizer.train([texts["train"]], kind="characters", size=200)
    most = {"train": None, "valid": 10_000, "test": None}
    return len(characters), {split: torch.tensor(characters.encode(text[:most[split]])) for split, text in texts.items()}


def built(name: str) -> ModernLM:
    """A model with a feed-forward network so wide that it has as many parameters as "GPT-2", as nearly as possible."""
    make = lambda d_ff, options: ModernLM(data()[0], **SIZES, **GPT2 | options, d_ff=d_ff)
    count = lambda d_ff, options: sum(p.numel() for p in make(d_ff, options).parameters())
    if name == "GPT-2":
        return make(192, {})
    wanted, one, two = count(192, {}), count(100, MODELS[name]), count(101, MODELS[name])
    return make(100 + round((wanted - one) / (two - one)), MODELS[name])


def stepper(model: ModernLM, ids: torch.Tensor):
    """A training step, as a function of the batch."""
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), fused=True)

    def step(batch, rate):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        model.loss(*batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return step


def trained(name: str, rate: float, seed: int) -> ModernLM:
    torch.manual_seed(seed)
    model, schedule = built(name), linear_decay(rate, WARMUP)
    source = SegmentBatches(data()[1]["train"], LENGTH, ROWS)
    step = stepper(model, data()[1]["train"])
    for n, batch in enumerate(source.plan(seed, 1)[:STEPS], start=1):
        step(source.collate(batch), schedule(n, n / STEPS))
    return model.eval()


def bits(model: ModernLM, split: str) -> float:
    """Bits per character, in segments of 48."""
    return round(window_losses(model, data()[1][split], LENGTH).mean().item() / math.log(2), 4)


def step_times() -> dict[str, float]:
    """Milliseconds of the processor for a training step of each model: the median over rounds, all models in turns."""
    source = SegmentBatches(data()[1]["train"], LENGTH, ROWS)
    batch = source.collate(source.in_order()[0])
    steps = {name: stepper(built(name), data()[1]["train"]) for name in MODELS}
    found = {name: [] for name in MODELS}
    for n in range(ROUNDS + 2):
        for name, step in steps.items():
            begun = time.process_time()
            step(batch, 0.001)
            found[name].append(1000 * (time.process_time() - begun))
    return {name: round(statistics.median(times[2:]), 1) for name, times in found.items()}


def cached(model: ModernLM) -> int:
    """Numbers that the model keeps for each word."""
    model.eval()
    state = model.step(model.start(torch.full((1, 1), 5)), torch.full((1,), 5))[1]
    return sum(cache.keys.numel() + cache.values.numel() for cache in state.caches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {
        **facts(), "settings": {"sizes": SIZES, "rows": ROWS, "steps": STEPS, "length": LENGTH}, "models": {}, "high rates": {}}
    for name in MODELS:
        if name not in record["models"]:
            rate, tried = best_rate(lambda rate: bits(trained(name, rate, 1), "valid"), FIRST)
            model = built(name)
            record["models"][name] = {"parameters": sum(p.numel() for p in model.parameters()), "cached": cached(model),
                                      "d_ff": model.stack.layers[0].feed_forward.contract.in_features, "rate": rate, "rates": tried, "runs": []}
        found = record["models"][name]
        for seed in given.seeds:
            if all(run["seed"] != seed for run in found["runs"]):
                model = trained(name, found["rate"], seed)
                found["runs"].append({"seed": seed, "valid": bits(model, "valid"), "test": bits(model, "test")})
                write(NAME, record)
        print(name, found, flush=True)
    for name in HIGH_MODELS:
        for rate in HIGH:
            if str(rate) not in record["high rates"].setdefault(name, {}):
                record["high rates"][name][str(rate)] = [bits(trained(name, rate, seed), "valid") for seed in given.seeds]
                write(NAME, record)
        print(name, record["high rates"][name], flush=True)
    record["step"] = step_times()
    write(NAME, record)
    print(record["step"])


if __name__ == "__main__":
    main()

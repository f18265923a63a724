"""Find the mark: which patterns of attention carry one marked value through a text, and after how many steps.

    python experiments/efficient.py --seeds 1 2 3

A text has 64 tokens. One filler, anywhere, is marked, and an encoder of two layers must say its value from the last position. The models differ
in their patterns only. Each learns on 300 batches, and all see the same ones. A model's rate is searched with seed 1 by the loss on `valid`,
averaged over the six times that it is measured, until a worse rate lies on either side: so the rate with which the model learns soonest wins.
Writes results/efficient.json after each run, and goes on where an earlier call stopped. One thread.
"""
import argparse
import json
import time

import torch
from records import RESULTS, best_rate, descend, facts, write
from torch import nn

from transformer_course.models.attention import Dense
from transformer_course.models.efficient import ReadsLast, Strided, Window, find_the_mark, patterned_encoder
from transformer_course.models.ends import Embedding, embedding_table
from transformer_course.models.linear_attention import Linear
from transformer_course.models.relative_positions import added_positions

NAME, LENGTH, WIDTH, VALUES, D_MODEL, ROWS, STEPS, EVERY, WARMUP = "efficient", 64, 8, 10, 32, 32, 300, 50, 50
PATTERNS = {"full": lambda: [Dense(), Dense()], "window": lambda: [Window(WIDTH), Window(WIDTH)],
            "window and global": lambda: [Window(WIDTH, first=1), Window(WIDTH, first=1)],
            "window, then strided": lambda: [Window(WIDTH), Strided(WIDTH)], "linear": lambda: [Linear(), Linear()]}


def build(name: str) -> ReadsLast:
    words = Embedding(embedding_table(2 * VALUES + 2, D_MODEL), added_positions("sinusoidal", D_MODEL, LENGTH), 0.0)
    return ReadsLast(words, patterned_encoder(PATTERNS[name](), D_MODEL, 4, 2 * D_MODEL), nn.Linear(D_MODEL, VALUES))


@torch.no_grad()
def measured(model: ReadsLast, seed: int, rows: int = 300) -> dict[str, float]:
    """Loss and accuracy on new texts; `within` and `beyond`: as far from the end as two windows reach, and further."""
    tokens, value, where = find_the_mark(rows, LENGTH, VALUES, torch.Generator().manual_seed(seed))
    scores = model(tokens)
    right, near = (scores.argmax(-1) == value).float(), LENGTH - 1 - where <= 2 * WIDTH
    return {"loss": round(nn.functional.cross_entropy(scores, value).item(), 5), "all": round(right.mean().item(), 4),
            "within": round(right[near].mean().item(), 4), "beyond": round(right[~near].mean().item(), 4)}


def train(name: str, rate: float, seed: int) -> tuple[ReadsLast, list[dict]]:
    """A trained model, and what was measured on valid on the way."""
    torch.manual_seed(seed)
    model, draw, found = build(name), torch.Generator().manual_seed(1000 + seed), []

    def loss(step):
        return model.loss(*find_the_mark(ROWS, LENGTH, VALUES, draw)[:2])

    def after(step):
        if step % EVERY == 0:
            found.append({"step": step, **measured(model, 2_000_000)})

    return descend(model, loss, lambda step: rate * min(1, step / WARMUP), STEPS, after), found


def run(name: str, rate: float, seed: int) -> dict:
    begun = time.process_time()
    model, found = train(name, rate, seed)
    return {"seed": seed, "valid": found, "test": measured(model, 3_000_000, 2000), "seconds": round(time.process_time() - begun, 1)}


def searched(name: str) -> dict:
    """A model's parameters and its rate."""
    loss = lambda rate: sum(one["loss"] for one in train(name, rate, 1)[1]) * EVERY / STEPS
    rate, tried = best_rate(loss, 0.005)
    return {"parameters": sum(p.numel() for p in build(name).parameters()), "rate": rate, "rates": tried, "runs": []}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {
        **facts(), "length": LENGTH, "width": WIDTH, "values": VALUES, "d_model": D_MODEL, "rows": ROWS, "steps": STEPS, "models": {}}
    for name in PATTERNS:
        if name not in record["models"]:
            record["models"][name] = searched(name)
            print(name, record["models"][name], flush=True)
            write(NAME, record)
        for seed in given.seeds:
            if seed not in [one["seed"] for one in record["models"][name]["runs"]]:
                record["models"][name]["runs"].append(run(name, record["models"][name]["rate"], seed))
                print(name, record["models"][name]["runs"][-1]["test"], flush=True)
                write(NAME, record)


if __name__ == "__main__":
    main()

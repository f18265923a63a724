"""What does Omar think? Documents read at two levels, or as one row of words; with and without weights for sentences.

    python experiments/hierarchical.py --seeds 1 2 3

Six people say what they think of a film, and a reader must tell what Omar thinks. No document comes twice, and all readers see the same ones.
A reader's rate is searched with seed 1 by the loss on valid, until a worse one lies on either side. `right` is the share of right labels on
test, and `gold` the share of documents whose largest sentence weight is on Omar's sentence. Two shortcuts that do not read Omar's sentence are
computed, too: guessing, and going with most of the six.
Writes results/hierarchical.json after each run, and goes on where an earlier call stopped. One thread.
"""
import argparse
import json
import random
from functools import cache

import torch
from records import RESULTS, best_rate, descend, facts, write
from torch import nn

from transformer_course.data.reviews import judge
from transformer_course.data.text import Tokenizer
from transformer_course.models.attention import Dense
from transformer_course.models.efficient import patterned_encoder
from transformer_course.models.ends import Embedding, embedding_table
from transformer_course.models.hierarchical import (AttentionPool, HierarchicalClassifier, MeanPool, OneRowClassifier, opinions,
                                                    padded_documents)
from transformer_course.models.relative_positions import added_positions
from transformer_course.training.schedules import linear_decay

NAME, D_MODEL, HEADS, ROWS, STEPS, WARMUP, FIRST = "hierarchical", 32, 4, 32, 800, 50, 0.0025
VALID, TEST = 2_000_000, 3_000_000                      # seeds of the documents
READERS = {"two levels": STEPS, "two levels, plain mean": STEPS, "one row": STEPS, "one row, own sentence": STEPS,
           "one row, longer": 2 * STEPS}                # and their steps


@cache
def tokenizer() -> Tokenizer:
    draw = random.Random(0)
    return Tokenizer.train([sentence for n in range(500) for sentence in opinions(draw)[0]], kind="words", size=300)


@cache
def batch(seed: int, rows: int = ROWS) -> tuple[torch.Tensor, ...]:
    """Documents (B, N, S), labels (B,), and which sentence is Omar's (B,)."""
    draw = random.Random(seed)
    documents, labels, his = zip(*(opinions(draw) for row in range(rows)))
    ids = padded_documents([[tokenizer().encode(sentence) for sentence in one] for one in documents])
    return ids, torch.tensor(labels), torch.tensor(his)


def build(name: str) -> nn.Module:
    positions = lambda: added_positions("sinusoidal", D_MODEL, 120)
    words = Embedding(embedding_table(len(tokenizer()), D_MODEL), positions(), 0.0)
    encoder = lambda layers: patterned_encoder([Dense()] * layers, D_MODEL, HEADS, 2 * D_MODEL)
    if name.startswith("one row"):
        return OneRowClassifier(words, encoder(2), AttentionPool(D_MODEL), nn.Linear(D_MODEL, 2), "own" in name)
    return HierarchicalClassifier(words, encoder(1), AttentionPool(D_MODEL), positions(), encoder(1),
                                  MeanPool() if "mean" in name else AttentionPool(D_MODEL), nn.Linear(D_MODEL, 2))


@cache                                                  # the search has trained the best one already
def train(name: str, rate: float, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model, steps, schedule = build(name), READERS[name], linear_decay(rate, WARMUP)
    loss = lambda step: model.loss(*batch(10_000 * seed + step)[:2])
    return descend(model, loss, lambda step: schedule(step, step / steps), steps).eval()


@torch.no_grad()
def measured(model: nn.Module, seed: int, rows: int) -> tuple[float, dict[str, float]]:
    """The loss, and the shares."""
    documents, labels, his = batch(seed, rows)
    scores = model(documents)
    found = {"right": round((scores.argmax(-1) == labels).float().mean().item(), 4)}
    if isinstance(getattr(model, "sentence_pool", None), AttentionPool):
        found["gold"] = round((model.read(documents)[1].argmax(-1) == his).float().mean().item(), 4)
    return nn.functional.cross_entropy(scores, labels).item(), found


def run(name: str, rate: float, seed: int) -> dict:
    return {"seed": seed, **measured(train(name, rate, seed), TEST, 1000)[1]}


def searched(name: str) -> dict:
    """A reader's steps, its parameters, and its rate."""
    rate, tried = best_rate(lambda rate: measured(train(name, rate, 1), VALID, 500)[0], FIRST)
    return {"steps": READERS[name], "parameters": sum(p.numel() for p in build(name).parameters()), "rate": rate, "rates": tried,
            "runs": []}


def most_of_the_six(rows: int = 1000) -> float:
    """The share of test documents in which most people think as Omar does; a draw counts as one half."""
    draw, found = random.Random(TEST), 0.0
    for row in range(rows):
        sentences, label, _ = opinions(draw)
        good = sum(judge(sentence.split(" says that ")[1]) for sentence in sentences)
        found += 0.5 if 2 * good == len(sentences) else float((2 * good > len(sentences)) == label)
    return round(found / rows, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {
        **facts(), "d_model": D_MODEL, "rows": ROWS, "people": 6, "guess": 0.5, "most": most_of_the_six(), "readers": {}}
    for name in READERS:
        if name not in record["readers"]:
            record["readers"][name] = searched(name)
            print(name, record["readers"][name], flush=True)
            write(NAME, record)
        entry = record["readers"][name]
        for seed in given.seeds:
            if seed not in [one["seed"] for one in entry["runs"]]:
                entry["runs"].append(run(name, entry["rate"], seed))
                print(name, entry["runs"][-1], flush=True)
                write(NAME, record)


if __name__ == "__main__":
    main()

"""Copying what came before: one layer against two, a fixed distance against a random one, and heads taken away.

    python experiments/induction.py --seeds 1 2 3

The data are the repeated blocks of lesson 30a. All models have width 64, two heads a layer and rotary positions, and
are trained for 600 steps of 32 rows, unless their name says otherwise; "wide" has a feed-forward network four times as
wide, and so more parameters than two layers. Each has a rate of its own: the best on the blocks "valid" (seed 1, loss of
the second copy), with half of it and twice of it tried and worse. The heads are those of two layers at the lesson's rate;
they are chosen by their attention on the blocks "valid". All other figures come from the blocks "test", in nats per
letter. Writes results/induction.json after each model, and goes on where an earlier call stopped. One thread.
"""
import argparse
import json

import torch
from records import RESULTS, best_rate, joined_facts, write

from transformer_course.models.induction import RepeatedBlocks, attention_shares, copy_losses, without_heads
from transformer_course.models.transformer_lm import TransformerLM
from transformer_course.training.schedules import linear_decay
from transformer_course.training.settings import Settings
from transformer_course.training.trainer import fit

NAME, STEPS, RATE, HEADS = "induction", 600, 0.006, 2
ANY, TEN = {"shortest": 5, "longest": 16}, {"shortest": 10, "longest": 10}
MODELS = {                                   # layers, width of the feed-forward network, steps, blocks
    "two layers": (2, 128, STEPS, ANY),
    "one layer": (1, 128, STEPS, ANY),
    "one layer, wide": (1, 512, STEPS, ANY),
    "one layer, three times the steps": (1, 128, 3 * STEPS, ANY),
    "one layer, wide, three times the steps": (1, 512, 3 * STEPS, ANY),
    "one layer, always ten letters": (1, 128, STEPS, TEN),
}


def train(n_layers, d_ff, steps, blocks, seed, rate=RATE):
    torch.manual_seed(seed)
    data = RepeatedBlocks(**blocks)
    model = TransformerLM(data.words, d_model=64, n_heads=HEADS, n_layers=n_layers, d_ff=d_ff, dropout=0.0, positions="rotary")
    fit(model, data, linear_decay(rate, 50), steps=steps, progress=False,
        settings=Settings(smoothing=0.0, seed=seed, device="cpu", precision="highest"))
    return model


def take_away(model, seed) -> dict:
    """What the loss grows by without each head, and without the heads that were chosen on valid."""
    shares = attention_shares(model, RepeatedBlocks(**ANY, name="valid", batches=10))
    test = RepeatedBlocks(**ANY, name="test", batches=20)
    first, second = copy_losses(model, test)
    heads = [(layer, head) for layer in range(2) for head in range(HEADS)]

    def without(*gone):
        with without_heads(model, gone):
            now = copy_losses(model, test)
        return now[0] - first, now[1] - second

    alone = {head: without(head) for head in heads}
    best = max(heads, key=lambda head: shares["after the copy"][head].item())
    before = max(heads, key=lambda head: shares["letter before"][head].item())
    others = [alone[head][1] for head in heads if head != best]
    added = {"the induction head": alone[best][1], "its first copy": alone[best][0],
             "another head at random (mean)": sum(others) / len(others),
             "the head on the letter before": alone[before][1],
             "both heads of layer 2": without((1, 0), (1, 1))[1]}
    rounded = lambda numbers: [round(number, 3) for number in numbers]
    return {"seed": seed, "induction head": best, "added": {name: round(value, 3) for name, value in added.items()},
            "shares": {name: [rounded(layer) for layer in share.tolist()] for name, share in shares.items()},
            "each head": [[rounded(alone[layer, head]) for head in range(HEADS)] for layer in range(2)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"models": {}, "removed": []}
    searched = record.setdefault("searched", {})             # a record without it has runs at the lesson's rate
    trained = {}

    def model(name, rate, seed):
        if (name, rate, seed) not in trained:
            trained[name, rate, seed] = train(*MODELS[name], seed, rate)
        return trained[name, rate, seed]

    def stored():
        seeds = sorted({run["seed"] for runs in record["models"].values() for run in runs})
        kept = {"models": {name: record["models"][name] for name in MODELS if name in record["models"]}, "removed": record["removed"]}
        write(NAME, {**joined_facts(record), "steps": STEPS, "rate": RATE, "heads": HEADS, "seeds": seeds, "searched": searched, **kept})

    for name, (*_, blocks) in MODELS.items():
        if name not in searched:
            def valid(rate):
                loss = copy_losses(model(name, rate, 1), RepeatedBlocks(**blocks, name="valid", batches=10))[1]
                print(f"{name}, rate {rate}: {loss:.4f} nats on valid", flush=True)
                return loss
            rate, tried = best_rate(valid, RATE)
            searched[name] = {"rate": rate, "valid": tried}
            if rate != RATE:
                record["models"].pop(name, None)             # of the lesson's rate
        rate, runs = searched[name]["rate"], record["models"].setdefault(name, [])
        for seed in given.seeds:
            if all(run["seed"] != seed for run in runs):
                first, second = copy_losses(model(name, rate, seed), RepeatedBlocks(**blocks, name="test", batches=20))
                parameters = sum(p.numel() for p in model(name, rate, seed).parameters())
                runs.append({"seed": seed, "parameters": parameters, "first copy": round(first, 4), "second copy": round(second, 4)})
                print(name, runs[-1], flush=True)
            if name == "two layers" and all(run["seed"] != seed for run in record["removed"]):
                record["removed"].append(take_away(model(name, RATE, seed), seed))
                print(record["removed"][-1], flush=True)
        trained.clear()
        stored()


if __name__ == "__main__":
    main()

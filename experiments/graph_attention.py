"""Attention with a given graph as its mask: all words, the graph alone, half of the heads each; few and many examples.

    python experiments/graph_attention.py --seeds 1 2 3

Each model reads an English sentence of micro-Hindi and says how its last verb must agree in Hindi: person, gender and number. They differ in
the mask alone. The rate is searched for each model with seed 1 and the larger number of examples, by the loss on valid, until a worse one lies
on either side; it serves for the smaller number too. `all`, `near` and `far` are the shares of right labels on test: of all, of verbs less than 5 words from their noun, of the others.
Writes results/graph_attention.json after each run, and goes on where an earlier call stopped. One thread.
"""
import argparse
import json
import random
import time
from functools import cache

import torch
from records import RESULTS, best_rate, descend, facts, write
from torch.nn import functional as F

from transformer_course.data.corpora import load
from transformer_course.data.text import PAD, Tokenizer, pad
from transformer_course.models.graph_attention import Agreement, VerbReader, agreements, edges_to_mask, head_masks
from transformer_course.training.schedules import linear_decay

NAME, ROWS, STEPS, WARMUP, FIRST, HEADS, FAR = "graph_attention", 32, 200, 25, 0.008, 4, 5
MODELS, EXAMPLES = {"all words": 0, "half of the heads": 2, "graph": 4}, (4000, 250)     # heads that read along the graph


@cache
def data() -> tuple[dict[str, list[Agreement]], Tokenizer, list[tuple]]:
    """The sentences of each split, the words of the training sentences, and the labels."""
    corpus = load("micro-hindi")
    found = {split: agreements(corpus[split]) for split in ("train", "valid", "test")}
    words = Tokenizer.train([" ".join(one.words) for one in found["train"]], kind="words", size=2000)
    return found, words, sorted({one.label for one in found["train"]})


def rows(sentences: list[Agreement], graph_heads: int) -> tuple[torch.Tensor, ...]:
    """Tokens (B, S), masks (B, H, S, S), verbs (B,) and labels (B,)."""
    _, words, labels = data()
    tokens = pad([words.encode(" ".join(one.words)) for one in sentences])
    graph = torch.stack([edges_to_mask(one.edges, tokens.shape[1]) for one in sentences])
    mask = head_masks(graph, tokens != PAD, HEADS, graph_heads)
    return tokens, mask, torch.tensor([one.verb for one in sentences]), torch.tensor([labels.index(one.label) for one in sentences])


def train(name: str, examples: int, rate: float, seed: int) -> VerbReader:
    torch.manual_seed(seed)
    found, words, labels = data()
    model, draw, schedule = VerbReader(len(words), len(labels)), random.Random(seed), linear_decay(rate, WARMUP)

    def loss(step):
        *given, true = rows(draw.sample(found["train"][:examples], ROWS), MODELS[name])
        return F.cross_entropy(model(*given), true)

    return descend(model, loss, lambda step: schedule(step, step / STEPS), STEPS).eval()


@torch.no_grad()
def scored(model: VerbReader, name: str, split: str) -> tuple[float, dict[str, float]]:
    """The loss, and the shares of right labels."""
    sentences, right, losses = data()[0][split], [], 0.0
    for i in range(0, len(sentences), 100):
        *given, true = rows(sentences[i:i + 100], MODELS[name])
        logits = model(*given)
        losses += F.cross_entropy(logits, true, reduction="sum").item()
        right += (logits.argmax(-1) == true).tolist()
    share = lambda chosen: round(sum(chosen) / len(chosen), 4)
    far = [one.distance >= FAR for one in sentences]
    return losses / len(sentences), {"all": share(right), "near": share([r for r, f in zip(right, far) if not f]),
                                     "far": share([r for r, f in zip(right, far) if f])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"rates": {}, "examples": {}}
    record = facts() | {"rows": ROWS, "steps": STEPS, "far": FAR, "rates": record["rates"], "examples": record["examples"]}
    for examples in EXAMPLES:
        part = record["examples"].setdefault(str(examples), {})
        for name in MODELS:
            if name not in record["rates"]:
                rate, losses = best_rate(lambda rate: scored(train(name, EXAMPLES[0], rate, 1), name, "valid")[0], FIRST)
                record["rates"][name] = {"rate": rate, "losses": losses}
                write(NAME, record)
                print(name, rate, losses, flush=True)
            part.setdefault(name, [])
            for seed in given.seeds:
                if any(run["seed"] == seed for run in part[name]):
                    continue
                began = time.process_time()
                shares = scored(train(name, examples, record["rates"][name]["rate"], seed), name, "test")[1]
                part[name].append({"seed": seed} | shares | {"seconds": round(time.process_time() - began, 1)})
                write(NAME, record)
                print(examples, name, part[name][-1], flush=True)


if __name__ == "__main__":
    main()

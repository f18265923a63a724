"""Which attention heads of a small translator matter? Each is removed alone; more and more are removed in four orders.

    python experiments/which_heads.py --seeds 1 2 3

The translator of lessons 44 and 44a: 1,500 sentences with an ambiguous noun and 4,500 others of micro-Hindi, 10 % of the source words replaced by the
unknown token. Scored on 100 sentences of `valid` and 100 of `distance`: loss of a word, sentences in which every word is predicted right
given those before it, and how often the right meaning of the ambiguous noun beats the other one. Orders of removal: by the loss when the head
alone is gone, by the gradient of the loss at its gate, and two random ones. Writes results/which_heads.json after each seed, and goes on where
an earlier call stopped. One thread.
"""
import argparse
import json
import random
import time

import torch
from explain import RATE, ROWS, SIZES, STEPS, TRAININGS, data, other_sense, train
from records import RESULTS, facts, write
from torch.nn import functional as F

from transformer_course.data.corpora import Pair
from transformer_course.data.text import Tokenizer, pad
from transformer_course.models.head_importance import attentions, gated, head_importance
from transformer_course.pipelines.decoding import encode_pairs

NAME, UNKNOWN = "which_heads", TRAININGS["10 % unknown"]
COUNTS = (0, 1, 2, 4, 6, 8, 12, 16, 20, 24)            # heads that are removed


@torch.no_grad()
def scores(model, words: Tokenizer, ordinary: list[Pair], far: list[Pair]) -> dict[str, float]:
    """Loss of a word and sentences without an error, of all sentences; meanings right, of the ambiguous nouns."""
    right, loss, count, meanings = 0, 0.0, 0, 0
    for pairs in (ordinary, far):
        src, tgt = (pad(side) for side in zip(*encode_pairs(words, pairs)))
        logits, gold = model(src, tgt[:, :-1]), tgt[:, 1:]
        right += ((logits.argmax(-1) == gold) | (gold == words.pad_id)).all(1).sum().item()
        loss += F.cross_entropy(logits.transpose(1, 2), gold, ignore_index=words.pad_id, reduction="sum").item()
        count += (gold != words.pad_id).sum().item()
        if pairs is far:
            for row, one, pair in zip(logits, gold, pairs):
                at = pair.tags["focus"][0]
                meanings += (row[at, one[at]] > row[at, words.encode(other_sense(pair))[0]]).item()
    return {"loss": round(loss / count, 4), "exact": round(right / (len(ordinary) + len(far)), 4), "meaning": round(meanings / len(far), 4)}


def run(made, words: Tokenizer, seed: int) -> dict:
    learnt, ordinary, far = made
    begun = time.process_time()
    model = train(words, learnt, UNKNOWN, seed)
    seconds = time.process_time() - begun
    names = [(name, head) for name, of in attentions(model).items() for head in range(of.n_heads)]

    def left(removed) -> dict[str, float]:
        gates = {name: torch.tensor([float((name, head) not in removed) for head in range(of.n_heads)]) for name, of in attentions(model).items()}
        with gated(model, gates):
            return scores(model, words, ordinary, far)

    alone, importance = {head: left([head]) for head in names}, {}
    for pairs in (ordinary, far):
        src, tgt = (pad(side) for side in zip(*encode_pairs(words, pairs)))
        losses = lambda: F.cross_entropy(model(src, tgt[:, :-1]).transpose(1, 2), tgt[:, 1:], ignore_index=words.pad_id, reduction="none").sum(1)
        for name, of in head_importance(model, losses, len(src)).items():
            importance |= {(name, head): importance.get((name, head), 0.0) + value / 2 for head, value in enumerate(of.tolist())}
    draw = random.Random(seed)
    orders = {"alone": sorted(names, key=lambda head: alone[head]["loss"]), "gradient": sorted(names, key=importance.get),
              "random 1": draw.sample(names, len(names)), "random 2": draw.sample(names, len(names))}
    return {"seed": seed, "seconds": round(seconds, 1), "whole": left([]),
            "heads": [{"attention": name, "head": head, **alone[name, head], "importance": round(importance[name, head], 4)} for name, head in names],
            "removed": {name: [left(order[:n]) for n in COUNTS] for name, order in orders.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    made, path = data(), RESULTS / f"{NAME}.json"
    words = Tokenizer.train([text for p in made[0] for text in (p.source, p.target)], kind="words", size=2000)
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {
        **facts(), "sizes": SIZES, "steps": STEPS, "rows": ROWS, "rate": RATE, "counts": COUNTS, "runs": []}
    for seed in given.seeds:
        if seed not in [one["seed"] for one in record["runs"]]:
            record["runs"].append(run(made, words, seed))
            print(json.dumps(record["runs"][-1]), flush=True)
            write(NAME, record)


if __name__ == "__main__":
    main()

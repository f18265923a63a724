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
from records import RESULTS, facts, write
from torch import nn
from torch.nn import functional as F

from transformer_course.data.corpora import Pair, load
from transformer_course.data.hindi.corpus import fits, some_distance
from transformer_course.data.hindi.templates import AMBIGUOUS, ambiguous
from transformer_course.data.text import Tokenizer, pad
from transformer_course.models.head_importance import attentions, gated, head_importance
from transformer_course.models.transformer import Transformer
from transformer_course.pipelines.decoding import encode_pairs

NAME, STEPS, ROWS, RATE, WARMUP, UNKNOWN = "which_heads", 1000, 32, 0.005, 50, 0.1
SIZES = {"d_model": 64, "n_heads": 4, "n_layers": 2, "d_ff": 128, "dropout": 0.0, "norm": "pre", "positions": "rotary"}
COUNTS = (0, 1, 2, 4, 6, 8, 12, 16, 20, 24)            # heads that are removed


def data() -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Sentences to learn from, 100 of `valid`, and 100 of `distance` with an ambiguous noun."""
    corpus = load("micro-hindi")
    far = [p for p in corpus["distance"] if p.tags["kind"] == "ambiguous" and p.tags["distance"] >= 1]
    taken, learnt, rng = {p.source for p in corpus["distance"]}, [], random.Random(7)
    while len(learnt) < 1500:
        for s in ambiguous(rng, some_distance(rng)) or ():
            if s and s.english not in taken and fits(s):
                learnt.append(Pair(s.english, s.hindi, s.links, s.tags))
    return learnt + corpus["train"][:4500], corpus["valid"][:100], random.Random(1).sample(far, 100)


def other_sense(pair: Pair) -> str:
    """The Hindi noun with which an ambiguous word would be translated in its other meaning, in the form that stands here."""
    word = pair.target.split()[pair.tags["focus"][0]]
    (other,) = {sense.hindi for senses in AMBIGUOUS.values() if pair.tags["sense"] in [s.hindi for s in senses]
                for sense in senses} - {pair.tags["sense"]}
    oblique = word.endswith("e") or (word == pair.tags["sense"] and f" {word} ko" in pair.target)
    return other[:-2] + "e" if oblique and other.endswith("aa") else other


def train(words: Tokenizer, pairs: list[Pair], seed: int) -> Transformer:
    torch.manual_seed(seed)
    model, draw = Transformer(len(words), len(words), **SIZES), random.Random(seed)
    rows = sorted(encode_pairs(words, pairs), key=lambda row: len(row[0]))
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    for step in range(1, STEPS + 1):
        first = draw.randrange(len(rows) - ROWS)
        src, tgt = (pad(side) for side in zip(*rows[first:first + ROWS]))
        hidden = (torch.rand(src.shape) < UNKNOWN) & (src != words.pad_id) & (src != words.eos_id)
        optimizer.param_groups[0]["lr"] = RATE * min(step / WARMUP, 1 - (step - WARMUP) / (STEPS - WARMUP))
        loss = model.loss(src.masked_fill(hidden, words.unk_id), tgt, smoothing=0.0)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


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
    model = train(words, learnt, seed)
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

"""Words, pieces of words, characters: the same language models on the course's own text, cut in three ways.

    python experiments/units.py --seeds 1 2 3

The text is micro-text. Every model reads each document whole, from the start token to the end token, so none of them
loses context to a cut. Counted n-grams use the order, of four, that is best on `valid`; the highest sees about four
words in every unit. The networks, a GRU and a Transformer with rotary positions, take the same number of steps, with
the same documents in each step, whatever the unit; without dropout. Each has a rate of its own for each unit: the best on
`valid` (seed 1, all steps), with half of it and twice of it tried and worse. `test` is only scored. Bits per character and perplexity
per word can be compared across units; the end of a document counts as a character and as a word. Perplexity per token
cannot. Writes results/units.json after each run, and goes on where an earlier call stopped. One thread, some 40 minutes.
"""
import argparse
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from records import RESULTS, best_rate, facts, write
from torch import nn

from transformer_course.data.corpora import load
from transformer_course.data.text import BOS, EOS, UNK, Tokenizer, pad
from transformer_course.models.language_models import NGramModel, RNNLanguageModel
from transformer_course.models.transformer_lm import TransformerLM
from transformer_course.training.schedules import linear_decay
from transformer_course.training.settings import Settings
from transformer_course.training.loop import evaluate_loss
from transformer_course.training.trainer import fit

NAME, ROWS, STEPS, FIRST_RATE = "units", 12, 300, 0.005
UNITS = {"words": {"kind": "words", "size": 500}, "pieces": {"kind": "bpe", "size": 400}, "characters": {"kind": "characters", "size": 100}}
ORDERS = {"words": (2, 3, 4, 5), "pieces": (2, 4, 6, 8), "characters": (5, 10, 15, 20)}


@dataclass(frozen=True, eq=False)
class Documents:
    """Whole documents, so many at a time; seed and epoch alone decide which, so that every unit gets the same."""

    ids: Sequence[Sequence[int]]   # each BOS ... EOS
    rows: int = ROWS

    def _batches(self, order):
        return [order[i:i + self.rows] for i in range(0, len(order), self.rows)]

    def plan(self, seed, epoch):
        order = list(range(len(self.ids)))
        random.Random(f"documents {seed} {epoch}").shuffle(order)
        return self._batches(order)

    def in_order(self):
        return self._batches(list(range(len(self.ids))))

    def collate(self, batch, device=None):
        return (pad([self.ids[i] for i in batch]).to(device),)

    def tokens(self, batch):
        return sum(len(self.ids[i]) - 1 for i in batch)

    def fingerprint(self):
        return f"{len(self.ids)} documents, {sum(map(len, self.ids))} ids, {self.rows} rows"


class Reader(nn.Module):
    """A GRU with the protocol of lesson 30: one text, no source."""

    def __init__(self, words: int):
        super().__init__()
        self.inner = RNNLanguageModel(words, dropout=0.0)

    def loss(self, tokens, smoothing=0.0):
        return self.inner.loss(tokens[:, :1], tokens, smoothing)


MODELS = {"gru": Reader, "rotary": lambda words: TransformerLM(words, d_model=64, n_heads=4, n_layers=2, positions="rotary", dropout=0.0)}


def train(name, rate, seed, steps, part):
    """A model after so many steps, and the seconds."""
    torch.manual_seed(seed)
    model, begun = MODELS[name](part["vocabulary"]), time.perf_counter()
    fit(model, Documents(part["ids"]["train"]), linear_decay(rate, 20), steps=steps, progress=False,
        settings=Settings(smoothing=0.0, seed=seed, device="cpu", precision="highest"))
    return model, round(time.perf_counter() - begun, 1)


def own_rate(name, part):
    """The best rate on valid, and the loss there of every rate tried."""
    return best_rate(lambda rate: evaluate_loss(train(name, rate, 1, STEPS, part)[0], Documents(part["ids"]["valid"])), FIRST_RATE)


def scores(nats: float, part, split="test") -> dict:
    """What a text costs in all, told per character, per word and per token."""
    counted = part["counted"][split]
    return {"bits per character": round(nats / math.log(2) / counted["characters"], 4),
            "perplexity per word": round(math.exp(nats / counted["words"]), 3),
            "perplexity per token": round(math.exp(nats / counted["tokens"]), 3)}


def count(unit, part):
    """Counted n-grams: bits on valid of each order, and the best one on test."""
    valid, best = {}, None
    for order in ORDERS[unit]:
        model = NGramModel(order).fit(part["ids"]["train"], part["ids"]["valid"], part["vocabulary"])
        nats = {split: -sum(map(model.log_prob, part["ids"][split])) for split in ("valid", "test")}
        valid[order] = scores(nats["valid"], part, "valid")["bits per character"]
        if valid[order] == min(valid.values()):
            best = {"order": order, "test": scores(nats["test"], part)}
    return best | {"valid": valid}


def prepare() -> dict[str, dict]:
    """For each unit: the ids of the documents, and how many characters, words and tokens are predicted."""
    corpus, found = load("micro-text"), {}
    texts = {split: [document.text for document in corpus[split]] for split in ("train", "valid", "test")}
    for unit, given in UNITS.items():
        tokenizer = Tokenizer.train(texts["train"], **given)
        ids = {split: [[BOS, *tokenizer.encode(text), EOS] for text in part] for split, part in texts.items()}
        assert all(UNK not in row and tokenizer.decode(row[1:-1]) == text for split in texts for row, text in zip(ids[split], texts[split]))
        found[unit] = {"vocabulary": len(tokenizer), "ids": ids, "counted": {
            split: {"characters": sum(len(text) + 1 for text in part), "words": sum(len(text.split()) + 1 for text in part),
                    "tokens": sum(len(row) - 1 for row in ids[split])} for split, part in texts.items()}}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    path, data = RESULTS / f"{NAME}.json", prepare()
    units = json.loads(path.read_text(encoding="utf-8"))["units"] if path.is_file() else {}

    def store():
        write(NAME, {**facts(), "data": "micro-text", "rows": ROWS, "steps": STEPS, "units": units})

    for unit, part in data.items():
        units.setdefault(unit, {"vocabulary": part["vocabulary"], "counted": part["counted"]["test"], "models": {}})
        if "ngram" not in units[unit]:
            units[unit]["ngram"] = count(unit, part)
            store()
            print(unit, units[unit]["ngram"], flush=True)
        for name in MODELS:
            models = units[unit]["models"]
            if name not in models:
                rate, valid = own_rate(name, part)
                parameters = sum(p.numel() for p in MODELS[name](part["vocabulary"]).parameters())
                models[name] = {"rate": rate, "valid": valid, "parameters": parameters, "runs": []}
            for seed in given.seeds:
                if any(run["seed"] == seed for run in models[name]["runs"]):
                    continue
                model, seconds = train(name, models[name]["rate"], seed, STEPS, part)
                nats = evaluate_loss(model, Documents(part["ids"]["test"])) * part["counted"]["test"]["tokens"]
                models[name]["runs"].append({"seed": seed, "seconds": seconds, **scores(nats, part)})
                store()
                print(unit, name, models[name]["rate"], models[name]["runs"][-1], flush=True)


if __name__ == "__main__":
    main()

"""Little data: a translator from English to an invented sister language, from scratch or from a parent that has learned English to micro-Hindi.

    python experiments/low_resource.py --seeds 1 2 3

The parent learns from 4,000 pairs of micro-Hindi. The child has few pairs of a sister language (data/sisters.py), made from the other 4,000. It
begins from random weights ("alone"), from the parent's ("parent"), or from the parent's without its vectors of pieces ("parent without vectors").
Everything else is the same: pieces (BPE, learned from the parent's pairs and the child's, both counted alike), sizes, batches, schedule. Training
stops when BLEU on 100 sentences of `valid` has not risen for `PATIENCE` looks, and the best weights are kept. Rate and dropout are searched by
BLEU on the same sentences, with seed 1, 300 pairs and at most 600 steps, by one rule: for all ways on the sister, and for the first two on the
unrelated language. The others take the settings that `SETTINGS_OF` names. `test` is read once for each run, at its end.

The record also has what needs no training: the parent's own words scored as if they were the sister language, the same after the changes of sound,
and the translation of the most similar training sentence. Writes results/low_resource.json after each run, and goes on where an earlier call
stopped. One thread.
"""
import argparse
import copy
import json
import time
from collections.abc import Sequence
from functools import cache

import torch
from records import RESULTS, best_rate, facts, write
from torch import nn

from transformer_course.data.batching import PairBatches
from transformer_course.data.corpora import Pair, load
from transformer_course.data.sisters import Sister
from transformer_course.data.text import Tokenizer
from transformer_course.models.transformer import Transformer
from transformer_course.pipelines.decoding import encode_pairs, translate
from transformer_course.pipelines.searching import SearchOptions
from transformer_course.pipelines.transfer import balanced_texts, inherited
from transformer_course.scoring import bleu, chrf
from transformer_course.training.schedules import inverse_sqrt

NAME, PARENT_PAIRS, PIECES, CELLS = "low_resource", 4000, 1000, 512
SIZES = {"d_model": 96, "n_heads": 4, "n_layers": 1, "d_ff": 192, "norm": "pre", "positions": "rotary"}
EVERY, PATIENCE, LEAST, MOST, WARMUP = 60, 3, 360, 2400, 50         # steps between looks; looks without a gain; steps, steps, steps
SEARCH_STEPS = 600
PARENT = {"rate": 0.006, "dropout": 0.1, "steps": 1200}
LANGUAGES = {"sister": Sister(0.0), "unrelated": Sister(1.0, backwards=True), "half": Sister(0.5)}
WAYS = {"alone": None, "parent": True, "parent without vectors": False}    # whether the parent's vectors of pieces are taken over
DROPOUTS = (0.1, 0.3, 0.5)
SETTINGS_OF = {("half", "alone"): ("sister", "alone"), ("half", "parent"): ("sister", "parent"),
               ("unrelated", "parent without vectors"): ("unrelated", "parent")}
TABLE = [(language, way, 300) for language in LANGUAGES for way in ("alone", "parent")]
TABLE += [("sister", way, n) for n in (1000, 100) for way in ("alone", "parent")]
TABLE += [(language, "parent without vectors", 300) for language in ("sister", "unrelated")]


@cache
def data(language: str) -> dict[str, list[Pair]]:
    """Pairs of the parent ("hindi") or of a child; no English sentence is in both, nor in two splits of one."""
    made = load("micro-hindi")
    if language == "hindi":
        return {"train": made["train"][:PARENT_PAIRS], "valid": made["valid"][:100], "test": made["test"][:300]}
    pair = LANGUAGES[language].pair
    return {"train": [pair(p) for p in made["train"][PARENT_PAIRS:]], "valid": [pair(p) for p in made["valid"][250:350]],
            "test": [pair(p) for p in made["test"][500:800]]}


@cache
def pieces(language: str, n: int) -> Tokenizer:
    """Pieces of the parent's text, or of this and n pairs of a child's."""
    given = [data("hindi")["train"]] + ([data(language)["train"][:n]] if n else [])
    return Tokenizer.train(balanced_texts(*given), kind="bpe", size=PIECES)


def build(tokenizer: Tokenizer, dropout: float, seed: int) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(len(tokenizer), len(tokenizer), dropout=dropout, **SIZES)


def written(model: nn.Module, tokenizer: Tokenizer, pairs: Sequence[Pair]) -> list[str]:
    return translate(model.eval(), tokenizer, [p.source for p in pairs], SearchOptions(beam_size=1))


def scores(texts: list[str], pairs: Sequence[Pair]) -> dict[str, float]:
    gold = [p.target for p in pairs]
    return {"bleu": round(bleu(texts, gold).value, 2), "chrf": round(chrf(texts, gold).value, 2)}


def train(model: nn.Module, tokenizer: Tokenizer, pairs: Sequence[Pair], valid: Sequence[Pair], rate: float, seed: int,
          steps: int = MOST, patience: int = PATIENCE, least: int = LEAST, every: int = EVERY, cells: int = CELLS,
          warmup: int = WARMUP) -> dict:
    """Train until BLEU on valid stops rising; leave the best weights in the model."""
    batches, schedule, seen = PairBatches(encode_pairs(tokenizer, pairs), cells), inverse_sqrt(rate, warmup), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), fused=True)
    torch.manual_seed(seed)
    step, epoch, best = 0, 0, copy.deepcopy(model.state_dict())
    plan = batches.plan(seed, epoch)
    while step < steps and (step < least or len(seen) <= patience or max(seen[-patience:]) > max(seen[:-patience])):
        if not plan:
            epoch += 1
            plan = batches.plan(seed, epoch)
        step += 1
        optimizer.param_groups[0]["lr"] = schedule(step, 0.0)
        model.train()
        loss = model.loss(*batches.collate(plan.pop()), 0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % every == 0:
            seen.append(scores(written(model, tokenizer, valid), valid)["bleu"])
            if seen[-1] == max(seen) and seen.count(seen[-1]) == 1:
                best = copy.deepcopy(model.state_dict())
    model.load_state_dict(best)
    return {"valid": max(seen), "best step": every * (1 + seen.index(max(seen))), "steps": step}


@cache
def parent(seed: int) -> tuple[Transformer, dict]:
    tokenizer, given = pieces("hindi", 0), data("hindi")
    model = build(tokenizer, PARENT["dropout"], seed)
    found = train(model, tokenizer, given["train"], given["valid"], PARENT["rate"], seed, PARENT["steps"], 99)
    return model.eval(), found


def child(language: str, way: str, n: int, rate: float, dropout: float, seed: int,
          steps: int = MOST) -> tuple[Transformer, dict]:
    """Train a child; where it ended, and how long it took."""
    began, given, tokenizer = time.process_time(), data(language), pieces(language, n)
    model = build(tokenizer, dropout, seed)
    if WAYS[way] is not None:
        model.load_state_dict(inherited(model, tokenizer, parent(seed)[0], pieces("hindi", 0), tables=WAYS[way]))
        began = time.process_time()
    found = train(model, tokenizer, given["train"][:n], given["valid"], rate, seed, steps)
    return model, found | {"seconds": round(time.process_time() - began, 1)}


def searched(language: str, way: str) -> dict:
    """The rate for the middle dropout, and then the dropout for this rate."""
    tried = {}

    def lost(rate: float, dropout: float) -> float:
        if (rate, dropout) not in tried:
            tried[rate, dropout] = 100 - child(language, way, 300, rate, dropout, 1, SEARCH_STEPS)[1]["valid"]
        return tried[rate, dropout]

    rate, _ = best_rate(lambda rate: lost(rate, 0.3), 0.006)
    dropout = min(DROPOUTS, key=lambda dropout: lost(rate, dropout))
    if dropout == min(DROPOUTS):                                    # none at all: there is nothing below
        dropout = min((0.0, dropout), key=lambda dropout: lost(rate, dropout))
    return {"rate": rate, "dropout": dropout, "tried": {f"{r:g}, {d}": round(100 - v, 2) for (r, d), v in sorted(tried.items())}}


def most_similar(train: Sequence[Pair], test: Sequence[Pair]) -> list[str]:
    """For each test sentence the translation of the training sentence with which it shares most words, for its length."""
    found, known = [], [(set(p.source.split()), p.target) for p in train]
    for pair in test:
        words = set(pair.source.split())
        found.append(max(known, key=lambda one: len(words & one[0]) / len(words | one[0]))[1])
    return found


def nearest(language: str, n: int) -> list[str]:
    """A guess without a model: the most similar sentence of n."""
    return most_similar(data(language)["train"][:n], data(language)["test"])


def untrained(seed: int) -> dict:
    """What the parent writes, scored on Hindi, as it is on each child's test set, and after the changes of sound."""
    model, found = parent(seed)
    tokenizer, test = pieces("hindi", 0), data("sister")["test"]
    texts = written(model, tokenizer, test)
    with_rules = [" ".join(map(LANGUAGES["sister"].word, text.split())) for text in texts]
    hindi = data("hindi")["test"]
    return {"seed": seed, **found, "hindi": scores(written(model, tokenizer, hindi), hindi),
            "as it is": {language: scores(texts, data(language)["test"]) for language in LANGUAGES},
            "with the rules": scores(with_rules, test), "examples": texts[:8]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {
        **facts(), "sizes": SIZES, "pieces": PIECES, "cells": CELLS, "steps": {"most": MOST, "search": SEARCH_STEPS},
        "parent": {**PARENT, "pairs": PARENT_PAIRS, "runs": []},
        "searches": {}, "nearest": {}, "runs": []}
    for seed in given.seeds:
        if seed not in [one["seed"] for one in record["parent"]["runs"]]:
            record["parent"]["runs"].append(untrained(seed))
            print(record["parent"]["runs"][-1], flush=True)
            write(NAME, record)
    for language, way, n in TABLE:
        of, like = SETTINGS_OF.get((language, way), (language, way))
        searches = record["searches"].setdefault(of, {})
        if like not in searches:
            searches[like] = searched(of, like)
            print(of, like, searches[like], flush=True)
            write(NAME, record)
        settings = searches[like]
        if str(n) not in record["nearest"].setdefault(language, {}):
            record["nearest"][language][str(n)] = scores(nearest(language, n), data(language)["test"])
        for seed in given.seeds:
            if any((one["language"], one["way"], one["pairs"], one["seed"]) == (language, way, n, seed) for one in record["runs"]):
                continue
            model, found = child(language, way, n, settings["rate"], settings["dropout"], seed)
            test = data(language)["test"]
            texts = written(model, pieces(language, n), test)
            examples = {"examples": texts[:8]} if seed == 1 else {}
            record["runs"].append({"language": language, "way": way, "pairs": n, "seed": seed, **found, "test": scores(texts, test), **examples})
            print(record["runs"][-1], flush=True)
            write(NAME, record)


if __name__ == "__main__":
    main()

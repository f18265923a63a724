"""Few real captions: English to French and to Czech with 500 or 2,000 pairs of Multi30k, from scratch or from a parent that knows German.

    python experiments/few_captions.py --seeds 1 2 3 --jobs 2

The parent (English to German, and one from German to English) learns from the first 20,000 captions, the child from the next 500 or 2,000, and 6,000
more captions have no English. No caption is in two of these parts. The ways:

`alone`: random weights, and pieces of its own, which are learned from the child's pairs. `parent`: the parent's weights; pieces are learned from the
parent's pairs, the child's, and the captions without English. `back`: `parent` with English for these captions, written by a model in the other
direction, which has a parent, too, and has learned from the same pairs. `gold`: the same with the true English, which no real study has.

Sizes and batches are the same for all. Rate, dropout and, for `alone`, the number of pieces are searched by BLEU on 200 captions of `valid`, in
French, with seed 1, one search for each number of pairs, by one rule for both; Czech takes the settings of French. The others take the rate and
the dropout of `parent`. Training stops when BLEU on these captions has not risen for three looks. The test set (2016) is read once for each run.
Writes results/few_captions.json after each run, and goes on where an earlier call stopped; parents and written captions wait in a folder of the
system for temporary files. One thread for each process, bfloat16 where autocast allows it. Needs the data set (`transformer-course data fetch
multi30k`, or TRANSFORMER_COURSE_DATA).
"""
import argparse
import itertools
import json
import tempfile
import time
from functools import cache
from pathlib import Path

import low_resource as few
import torch
from back_translation import turned
from multi30k import SENTENCES
from records import RESULTS, best_rate, facts, joined_facts, kept, shared, write

from transformer_course.data.corpora import Pair, load
from transformer_course.data.text import Tokenizer
from transformer_course.models.transformer import Transformer
from transformer_course.pipelines.back_translation import back_translated
from transformer_course.pipelines.transfer import balanced_texts, inherited

NAME, PARENT_PAIRS, MOST_REAL, MORE, PIECES = "few_captions", 20_000, 2_000, 6_000, 4_000
PAIRS, LANGUAGES, SEARCHED, MIXED = (500, 2000), ("fr", "cs"), ("alone", "parent"), ("back", "gold")
SIZES = {"d_model": 128, "n_heads": 4, "n_layers": 2, "d_ff": 256, "norm": "pre", "positions": "rotary"}
PARENT = {"rate": 0.004, "dropout": 0.1, "steps": 3000, "every": 500, "cells": 2048, "warmup": 700}
CHILD = {"steps": 1600, "every": 100, "cells": 1024, "warmup": 100, "least": 400}
SEARCH_STEPS, FIRST_RATE, FIRST_DROPOUT = 600, 0.004, 0.3
DROPOUTS, BEYOND, OWN_PIECES = (0.1, 0.3, 0.5), {0.1: 0.0, 0.5: 0.7}, (500, 1000, 2000, 4000, 8000)
KEPT = Path(tempfile.gettempdir()) / NAME


@cache
def data(language: str) -> dict[str, list[Pair]]:
    """The parts of the captions in English and another language; "hidden" are those of which a child sees the second side alone."""
    given = load("multi30k", pair=f"en-{language}")
    real, hidden = PARENT_PAIRS + MOST_REAL, PARENT_PAIRS + MOST_REAL + MORE
    return {"parent": given["train"][:PARENT_PAIRS], "real": given["train"][PARENT_PAIRS:real], "hidden": given["train"][real:hidden],
            "valid": given["valid"][:200], "test": given["test_2016_flickr"]}


@cache
def parent_pieces() -> Tokenizer:
    return Tokenizer.train(balanced_texts(data("de")["parent"]), kind="bpe", size=PIECES)


@cache
def shared_pieces(language: str, n: int) -> Tokenizer:
    """Pieces of the parent's pairs, of n pairs of a child, and of the captions without English."""
    given = data(language)
    texts = given["real"][:n] + [Pair(pair.target, pair.target) for pair in given["hidden"]]
    return Tokenizer.train(balanced_texts(data("de")["parent"], texts), kind="bpe", size=PIECES)


@cache
def own_pieces(language: str, n: int, size: int) -> Tokenizer:
    return Tokenizer.train(balanced_texts(data(language)["real"][:n]), kind="bpe", size=size)


def build(tokenizer: Tokenizer, dropout: float, seed: int) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(len(tokenizer), len(tokenizer), dropout=dropout, **SIZES)


def train(model: Transformer, tokenizer: Tokenizer, pairs: list[Pair], valid: list[Pair], rate: float, seed: int, **settings) -> dict:
    began = time.process_time()
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):       # a cache would keep the weights of the first step
        found = few.train(model, tokenizer, pairs, valid, rate, seed, **settings)
    return found | {"seconds": round(time.process_time() - began, 1)}


def parent(reverse: bool) -> dict:
    """Weights of English to German, or of German to English, and how its training ended."""
    way = turned if reverse else list

    def make():
        model, given = build(parent_pieces(), PARENT["dropout"], 1), data("de")
        settings = {name: PARENT[name] for name in ("steps", "every", "cells", "warmup")}
        found = train(model, parent_pieces(), way(given["parent"]), way(given["valid"]), PARENT["rate"], 1, patience=99, **settings)
        return {"weights": model.state_dict(), "found": found}

    return kept(KEPT / f"{'reverse parent' if reverse else 'parent'}.pt", make)


def trained(way: str, language: str, n: int, settings: dict, seed: int, steps: int = CHILD["steps"]) -> tuple[Transformer, Tokenizer, dict]:
    """A child, its pieces, and how its training ended."""
    given, reverse = data(language), way == "reverse"
    pairs, valid = given["real"][:n], given["valid"]
    if way == "alone":
        tokenizer = own_pieces(language, n, settings["pieces"])
        model = build(tokenizer, settings["dropout"], seed)
    else:
        tokenizer = shared_pieces(language, n)
        model, elder = build(tokenizer, settings["dropout"], seed), build(parent_pieces(), 0.0, seed)
        elder.load_state_dict(parent(reverse)["weights"])
        model.load_state_dict(inherited(model, tokenizer, elder, parent_pieces()))
    if way in MIXED:
        more = given["hidden"] if way == "gold" else torch.load(written(language, n, seed), weights_only=False)
        pairs = pairs * (len(more) // n) + more                       # real pairs are half of the pairs
    flip = turned if reverse else list
    found = train(model, tokenizer, flip(pairs), flip(valid), settings["rate"], seed, **{**CHILD, "steps": steps})
    return model, tokenizer, found


def written(language: str, n: int, seed: int) -> Path:
    """Where the pairs lie whose English a model has written."""
    return KEPT / f"written {language} {n} {seed}.pt"


def tried(way: str, language: str, n: int, settings: dict, steps: int) -> float:
    """100 minus BLEU on valid after a training of at most so many steps with seed 1; such results wait in the folder, too."""
    name = f"tried {way} {language} {n} {steps} " + " ".join(f"{key}={value:g}" for key, value in sorted(settings.items()))
    return kept(KEPT / f"{name}.pt", lambda: 100 - trained(way, language, n, settings, 1, steps)[2]["valid"])


def searched(way: str, n: int) -> dict:
    """The rate; with it, for `alone`, the number of pieces; with both, the dropout, in trainings of full length. All in French."""
    seen = {}

    def lost(steps: int = SEARCH_STEPS, **settings) -> float:
        found = tried(way, "fr", n, settings, steps)
        seen[f"{steps} steps, " + ", ".join(f"{key} {value:g}" for key, value in settings.items())] = round(100 - found, 2)
        return found

    own = {"pieces": 1000} if way == "alone" else {}
    rate, _ = best_rate(lambda rate: lost(rate=rate, dropout=FIRST_DROPOUT, **own), FIRST_RATE)
    if own:
        own = {"pieces": min(OWN_PIECES, key=lambda size: lost(rate=rate, dropout=FIRST_DROPOUT, pieces=size))}
    by_dropout = lambda dropout: lost(CHILD["steps"], rate=rate, dropout=dropout, **own)
    dropout = min(DROPOUTS, key=by_dropout)
    dropout = min((dropout, BEYOND.get(dropout, dropout)), key=by_dropout)
    return {"settings": {"rate": rate, "dropout": dropout, **own}, "tried": seen}


def run(way: str, language: str, n: int, settings: dict, seed: int) -> dict:
    """Train one model and test it; `reverse` also writes English for the captions that have none."""
    model, tokenizer, found = trained(way, language, n, settings, seed)
    test = turned(data(language)["test"]) if way == "reverse" else data(language)["test"]
    texts = few.written(model, tokenizer, test)
    found |= {"test": few.scores(texts, test)}
    if way != "reverse" and seed == 1:
        found["translations"] = few.written(model, tokenizer, [Pair(text, "") for text in SENTENCES])
    if way == "reverse":
        hidden = data(language)["hidden"]
        made = back_translated([pair.target for pair in hidden], model, tokenizer)
        torch.save(made, written(language, n, seed))
        found |= {"hidden": few.scores([pair.source for pair in made], turned(hidden))}
    return found


def nearest(language: str, n: int) -> dict:
    """The score of the translation of the training caption with which each test caption shares most words, for its length."""
    given = data(language)
    return few.scores(few.most_similar(given["real"][:n], given["test"]), given["test"])


def settings_of(record: dict, way: str, n: int) -> dict:
    """The settings with which a way is trained."""
    return record["searches"][way if way in SEARCHED else "parent"][str(n)]["settings"]


def runs(record: dict, tasks: list[tuple[str, str, int, int]], jobs: int) -> None:
    """The runs of these ways, languages, numbers of pairs and seeds that are missing."""
    done = {(one["way"], one["language"], one["pairs"], one["seed"]) for one in record["runs"]}
    asked = [(way, language, n, settings_of(record, way, n), seed) for way, language, n, seed in tasks if (way, language, n, seed) not in done]
    for (way, language, n, settings, seed), found in shared(run, asked, jobs) if asked else ():
        record["runs"].append({"way": way, "language": language, "pairs": n, "seed": seed, **settings, **found})
        print(json.dumps({key: value for key, value in record["runs"][-1].items() if key != "translations"}), flush=True)
        write(NAME, record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {
        **facts(), "sizes": SIZES, "parent": {**PARENT, "pairs": PARENT_PAIRS}, "child": CHILD, "pieces": PIECES, "more": MORE,
        "parents": {}, "nearest": {}, "searches": {}, "runs": []}
    record |= joined_facts(record)
    for language in LANGUAGES:
        record["nearest"][language] = {str(n): nearest(language, n) for n in PAIRS}
    for (reverse,), one in shared(parent, [(False,), (True,)], given.jobs):
        record["parents"]["reverse" if reverse else "forward"] = one["found"]
    write(NAME, record)
    tasks = [(way, n) for way in SEARCHED for n in PAIRS if str(n) not in record["searches"].get(way, {})]
    for (way, n), found in shared(searched, tasks, given.jobs) if tasks else ():
        record["searches"].setdefault(way, {})[str(n)] = found
        print(way, n, found, flush=True)
        write(NAME, record)
    runs(record, [(way, language, n, seed) for language in LANGUAGES for seed in given.seeds for n in PAIRS for way in SEARCHED], given.jobs)
    for language, n in itertools.product(LANGUAGES, sorted(PAIRS, reverse=True)):
        runs(record, [("reverse", language, n, seed) for seed in given.seeds], given.jobs)          # they write what `back` learns from
        runs(record, [(way, language, n, seed) for seed in given.seeds for way in MIXED], given.jobs)


if __name__ == "__main__":
    main()

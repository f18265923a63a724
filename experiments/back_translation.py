"""Back-translation: 300 pairs of the sister language, and 1,200 sentences of it without translations.

    python experiments/back_translation.py --seeds 1 2 3 --jobs 2

English to the sister, as in low_resource.py: all translators begin with the weights of the same parent (English to Hindi), and have the same sizes
and the same pieces, which are learned from the parent's pairs, the real pairs and the untranslated sentences. The ways differ in the pairs that are
added to the 300 real ones:

`real`: none. `gold N`: N times as many sentences with their true English, which no real study has. `back N`: English that a model in the other
direction has written. It has a parent, too (Hindi to English), and has learned from the same real pairs. `tagged N`: the same with a tag before
each source. `copy N`: the sentence itself as its source [Currey et al. 2017]. `forward N`: the true English of the same sentences, with
translations by the model `real` of the same seed (self-training).

Real pairs are repeated N times, so that they are half of the pairs. Training stops by the rule of low_resource.py. The rate is the one which that
script found for `real`. Dropout is the best on valid, with seed 1, for each way: 0.1 or 0.3, or the value beyond the better of these two, 0 or 0.5,
if that is better still (for `back 1` and the like, 0.1 or 0.3).
`test` is read once for each run. Writes results/back_translation.json after each run, and goes on where an earlier call stopped; trained parents
and written sentences wait in a folder of the system for temporary files. One thread for each process.
"""
import argparse
import json
import tempfile
import time
from functools import cache
from pathlib import Path

import low_resource as few
import torch
from records import RESULTS, facts, kept, shared, write

from transformer_course.data.corpora import Pair
from transformer_course.data.text import Tokenizer
from transformer_course.models.transformer import Transformer
from transformer_course.pipelines.back_translation import TAG, back_translated, tagged
from transformer_course.pipelines.transfer import balanced_texts, inherited

NAME, LANGUAGE, REAL, MORE, RATE, MOST = "back_translation", "sister", 300, 1200, 0.006, 1200
DROPOUTS, BEYOND = (0.1, 0.3), {0.1: 0.0, 0.3: 0.5}           # tried first; tried after that, next to the better one
SEARCHED = ("real", "reverse", "back 4", "gold 4", "tagged 4", "copy 4", "forward 4")
SMALLER = ("back 1", "back 2", "gold 1", "gold 2")
KEPT = Path(tempfile.gettempdir()) / NAME


def turned(pairs: list[Pair]) -> list[Pair]:
    return [pair.reversed() for pair in pairs]


@cache
def real() -> list[Pair]:
    return few.data(LANGUAGE)["train"][:REAL]


@cache
def hidden() -> list[Pair]:
    """The pairs of which only one side is given, except for `gold`."""
    return few.data(LANGUAGE)["train"][REAL:REAL + MORE]


@cache
def pieces() -> Tokenizer:
    given = real() + [Pair(f"{TAG} {TAG}", pair.target) for pair in hidden()]
    return Tokenizer.train(balanced_texts(few.data("hindi")["train"], given), kind="bpe", size=few.PIECES)


def parent(reverse: bool) -> dict:
    """Weights of English to Hindi, or of Hindi to English, and its BLEU on valid."""
    way = turned if reverse else list

    def make():
        model = few.build(few.pieces("hindi", 0), few.PARENT["dropout"], 1)
        given, steps = few.data("hindi"), few.PARENT["steps"]
        found = few.train(model, few.pieces("hindi", 0), way(given["train"]), way(given["valid"]), few.PARENT["rate"], 1, steps, steps)
        return {"weights": model.state_dict(), "found": found}

    return kept(KEPT / f"{'reverse parent' if reverse else 'parent'}.pt", make)


def trained(pairs: list[Pair], reverse: bool, dropout: float, seed: int) -> tuple[Transformer, dict]:
    """A child of a parent, and where its training ended."""
    model, elder, valid = few.build(pieces(), dropout, seed), few.build(few.pieces("hindi", 0), dropout, seed), few.data(LANGUAGE)["valid"]
    elder.load_state_dict(parent(reverse)["weights"])
    model.load_state_dict(inherited(model, pieces(), elder, few.pieces("hindi", 0)))
    return model, few.train(model, pieces(), pairs, turned(valid) if reverse else valid, RATE, seed, MOST)


def written(way: str, seed: int) -> list[str]:
    """English (`reverse`) or sister (`real`) of the hidden sentences; the model of this way and seed has written it before."""
    return torch.load(KEPT / f"{way} {seed}.pt")


def added(way: str, seed: int) -> list[Pair]:
    """The pairs that a way adds to the real ones."""
    kind, _, times = way.partition(" ")
    if kind in ("real", "reverse"):
        return []
    if kind == "gold":
        more = hidden()
    elif kind == "copy":
        more = [Pair(pair.target, pair.target) for pair in hidden()]
    elif kind == "forward":
        more = [Pair(pair.source, text) for pair, text in zip(hidden(), written("real", seed))]
    else:
        more = [Pair(text, pair.target) for pair, text in zip(hidden(), written("reverse", seed))]
    return (tagged(more) if kind == "tagged" else more)[:REAL * int(times)]


def run(way: str, dropout: float, seed: int) -> dict:
    """Train one model and test it; `real` and `reverse` also write the other side of the hidden sentences."""
    more, reverse = added(way, seed), way == "reverse"
    began = time.process_time()
    model, found = trained((turned(real()) if reverse else real()) * max(1, len(more) // REAL) + more, reverse, dropout, seed)
    found["seconds"] = round(time.process_time() - began, 1)
    test = few.data(LANGUAGE)["test"]
    test = turned(test) if reverse else test
    texts = few.written(model, pieces(), test)
    found |= {"test": few.scores(texts, test), **({"examples": texts[:8]} if seed == 1 else {})}
    if way in ("real", "reverse"):
        gold = turned(hidden()) if reverse else hidden()
        made = [pair.source for pair in back_translated([p.source for p in gold], model, pieces())]
        KEPT.mkdir(exist_ok=True)
        torch.save(made, KEPT / f"{way} {seed} {dropout}.pt")
        found |= {"hidden": few.scores(made, gold), "right": sum(a == b.target for a, b in zip(made, gold)),
                  **({"hidden examples": [[p.source, a, p.target] for a, p in zip(made[:8], gold)]} if seed == 1 else {})}
    return found


def searched(record: dict, ways: tuple[str, ...], jobs: int) -> None:
    """Seed 1 of each way with each dropout; the better one on valid is the run of the record."""
    new = [way for way in ways if way not in record["searches"]]
    found = {(one["way"], one["dropout"]): one for one in record["runs"] if one["seed"] == 1}
    tasks = [(way, dropout, 1) for way in new for dropout in DROPOUTS if (way, dropout) not in found]
    found |= {(way, dropout): one for (way, dropout, _), one in shared(run, tasks, jobs)} if tasks else {}
    for way in new:
        dropout = max(DROPOUTS, key=lambda one: found[way, one]["valid"])
        record["searches"][way] = {"dropout": dropout, "tried": {str(one): found[way, one]["valid"] for one in DROPOUTS}}
        record["runs"] = [one for one in record["runs"] if one["way"] != way or one["dropout"] == dropout and one["seed"] != 1]
        stored(record, way, dropout, 1, found[way, dropout])


def widened(record: dict, ways: tuple[str, ...], jobs: int) -> None:
    """The dropout beyond the better one, with seed 1; if it is better still, the way's runs are made again with it."""
    tasks = [(way, BEYOND[record["searches"][way]["dropout"]], 1) for way in ways if len(record["searches"][way]["tried"]) == len(DROPOUTS)]
    for (way, dropout, _), found in shared(run, tasks, jobs) if tasks else ():
        search = record["searches"][way]
        better = found["valid"] > max(search["tried"].values())
        search["tried"][str(dropout)] = found["valid"]
        print(way, search, flush=True)
        if better:
            search["dropout"] = dropout
            record["runs"] = [one for one in record["runs"] if one["way"] != way]
            stored(record, way, dropout, 1, found)
        write(NAME, record)


def stored(record: dict, way: str, dropout: float, seed: int, found: dict) -> None:
    if way in ("real", "reverse"):
        (KEPT / f"{way} {seed} {dropout}.pt").replace(KEPT / f"{way} {seed}.pt")
    record["runs"].append({"way": way, "seed": seed, "dropout": dropout, **found})
    print(json.dumps({k: v for k, v in record["runs"][-1].items() if "examples" not in k}), flush=True)
    write(NAME, record)


def others(record: dict, ways: tuple[str, ...], seeds: list[int], jobs: int) -> None:
    """The runs that are missing."""
    done = [(one["way"], one["seed"]) for one in record["runs"]]
    tasks = [(way, record["searches"][way]["dropout"], seed) for way in ways for seed in seeds if (way, seed) not in done]
    for (way, rate, seed), found in shared(run, tasks, jobs) if tasks else ():
        stored(record, way, rate, seed, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {
        **facts(), "real": REAL, "more": MORE, "rate": RATE, "parents": {}, "searches": {}, "runs": []}
    for (reverse,), one in shared(parent, [(False,), (True,)], given.jobs):
        record["parents"]["reverse" if reverse else "forward"] = one["found"]
    print(record["parents"], flush=True)
    write(NAME, record)
    for ways in (SEARCHED[:2], SEARCHED[2:]):                         # the first two write what the others learn from
        searched(record, ways, given.jobs)
        widened(record, ways, given.jobs)
        others(record, ways, given.seeds, given.jobs)
    searched(record, SMALLER, given.jobs)
    others(record, SMALLER, given.seeds, given.jobs)


if __name__ == "__main__":
    main()

"""Sentence pairs for a small BERT: micro-entailment from scratch and after pre-training on the same pairs without labels.

    python experiments/entailment.py
    python experiments/entailment.py --longer     # or --seeds 1

The encoder is that of bert.py. Pre-training sees the pairs of train as two segments and no label: it guesses hidden words, and
whether the hypothesis belongs to the premise. Three seeds; each draws its own labelled pairs. For every start the first seed tries
both RATES, and the one that is better on valid serves all seeds; test is scored with all and chooses nothing. `--longer` adds runs from
scratch with all labels and as many steps in all as a pre-trained one. Writes results/entailment.json after each start and goes on
where an earlier call stopped. One thread.
"""
import argparse
import json

import torch
from bert import ROWS, SIZES, asked, drawn, pretrain, right, share, tune
from records import RESULTS, facts, write

from transformer_course.data import entailment as micro_entailment
from transformer_course.data.text import Tokenizer
from transformer_course.data.masking import PretrainingBatches, join_pair
from transformer_course.models.bert import Bert, BertForPreTraining

PRE_STEPS, TUNE_STEPS, HIDDEN = 3000, 1200, 0.3
RATES, LABELS, SEEDS = (0.001, 0.002), 1000, (1, 2, 3)
GROUPS = {"kind": "thing and kind", "things": "two things"}          # the record's names for the two sorts of group
STARTS = ("pre-trained", "from scratch", "from scratch, longer")


class Pairs:
    """Micro-entailment, its words, and its pairs as rows."""

    def __init__(self):
        self.pairs = micro_entailment.generate(seed=1)
        known = [f"{pair.premise} {pair.hypothesis}" for pair in self.pairs["train"]]
        self.words = Tokenizer.train(known, kind="words", size=500, specials=("[MASK]",))

    def source(self, split: str) -> PretrainingBatches:
        encode = self.words.encode
        documents = [[encode(pair.premise), encode(pair.hypothesis)] for pair in self.pairs[split]]
        return PretrainingBatches(documents, len(self.words), self.words.special_id("[MASK]"), rows=ROWS, share=HIDDEN)

    def rows(self, split: str) -> list[tuple]:
        encode = self.words.encode
        return [(*join_pair(encode(pair.premise), encode(pair.hypothesis), 40), pair.label) for pair in self.pairs[split]]


def by_nouns(found: list[bool], pairs: list) -> dict[str, float]:
    """The share of right answers for both sorts of group."""
    return {name: share([ok for ok, pair in zip(found, pairs) if pair.tags["nouns"] == nouns]) for name, nouns in GROUPS.items()}


def rates(runs: list[dict]) -> tuple[float, ...]:
    """Both rates for the first seed; later the one that was better on valid."""
    tried = [run for run in runs if run["seed"] == SEEDS[0]]
    return (max(tried, key=lambda run: run["valid"])["rate"],) if tried else RATES


def run(data: Pairs, start: str, seed: int, earlier: list[dict]) -> tuple[dict, list[dict]]:
    """Pre-train, or not; fine-tune with each rate that is still in question."""
    torch.manual_seed(seed)
    model, about = BertForPreTraining(Bert(len(data.words), **SIZES)), {"seed": seed}
    if start == "pre-trained":
        about["cpu_seconds"] = pretrain(model, data.source("train"), True, PRE_STEPS, seed)
        model.eval()
        about["held_out"] = asked(model, data.source("valid"))
    runs, rows = [], {split: data.rows(split) for split in ("train", "valid", "test")}
    n, steps = (len(rows["train"]), TUNE_STEPS + PRE_STEPS) if start == STARTS[2] else (LABELS, TUNE_STEPS)
    for rate in rates(earlier):
        tuned = tune(model.bert, drawn(rows["train"], n, seed), 3, rate, steps, seed)
        found = right(tuned, rows["test"])
        runs.append({"labels": n, "rate": rate, "seed": seed, "steps": steps, "valid": share(right(tuned, rows["valid"])),
                     "test": share(found), "by_nouns": by_nouns(found, data.pairs["test"])})
    return about, runs


def noted() -> dict:
    """The record so far."""
    given = {"sizes": SIZES, "rates": RATES, "pre_steps": PRE_STEPS, "tune_steps": TUNE_STEPS, "rows": ROWS, "hidden": HIDDEN, "labels": LABELS}
    given, path = json.loads(json.dumps(given)), RESULTS / "entailment.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else facts() | {"settings": given, "starts": {}}
    if record["settings"] != given:
        raise SystemExit(f"{path.name} was made with other settings")
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longer", action="store_true")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = Pairs()
    for name, seed in [(name, seed) for seed in given.seeds for name in STARTS[:2]] + [(STARTS[2], seed) for seed in given.seeds if given.longer]:
        record = noted()
        entry = record["starts"].setdefault(name, {"pretraining": [], "runs": []})
        if any(about["seed"] == seed for about in entry["pretraining"]):
            continue
        about, runs = run(data, name, seed, entry["runs"])
        entry["pretraining"].append(about)
        entry["runs"] += runs
        write("entailment", record)
        print(name, about, *runs, sep="\n  ", flush=True)


if __name__ == "__main__":
    main()

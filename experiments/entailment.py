"""Sentence pairs for a small BERT: micro-entailment from scratch and after pre-training on the same pairs without labels.

    python experiments/entailment.py                  # or --seeds 1, --starts "from scratch"

The encoder is that of bert.py. Pre-training sees the pairs of train as two segments and no label: it guesses hidden words, and
whether the hypothesis belongs to the premise. Three seeds; each draws its own labelled pairs. From scratch there are three more runs:
with as many steps in all as a pre-trained one, with all labels, and with both (*longer*). For every start the rate is searched with the
first seed: the best on valid, with half of it and twice of it tried and no better; it serves all seeds. Test is scored with all and
chooses nothing. Writes results/entailment.json after each run and goes on where an earlier call stopped. One thread.
"""
import argparse
import json
from functools import cache

import torch
from bert import ROWS, SIZES, asked, drawn, pretrain, right, share, tune
from records import RESULTS, best_rate, joined_facts, write

from transformer_course.data import entailment as micro_entailment
from transformer_course.data.text import Tokenizer
from transformer_course.data.masking import PretrainingBatches, join_pair
from transformer_course.models.bert import Bert, BertForPreTraining

PRE_STEPS, TUNE_STEPS, HIDDEN = 3000, 1200, 0.3
FIRST_RATE, LABELS, SEEDS = 0.001, 1000, (1, 2, 3)
GROUPS = {"kind": "thing and kind", "things": "two things"}          # the record's names for the two sorts of group
STARTS = {"pre-trained": (LABELS, TUNE_STEPS), "from scratch": (LABELS, TUNE_STEPS),     # labels (None: all of train), steps with them
          "from scratch, more steps": (LABELS, TUNE_STEPS + PRE_STEPS), "from scratch, more labels": (None, TUNE_STEPS),
          "from scratch, longer": (None, TUNE_STEPS + PRE_STEPS)}


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


class Begin:
    """A new network for each seed, or a pre-trained one; each is made once."""

    def __init__(self, data: Pairs):
        self.data = data

    @cache
    def of(self, pretrained: bool, seed: int) -> tuple[BertForPreTraining, dict]:
        """The network, and what is known of its pre-training."""
        torch.manual_seed(seed)
        model, about = BertForPreTraining(Bert(len(self.data.words), **SIZES)), {"seed": seed}
        if pretrained:
            about["cpu_seconds"] = pretrain(model, self.data.source("train"), True, PRE_STEPS, seed)
            model.eval()
            about["held_out"] = asked(model, self.data.source("valid"))
        return model, about


def run(begin: Begin, rows: dict[str, list], start: str, rate: float, seed: int) -> tuple[dict, dict]:
    """Pre-train, or not; fine-tune with one rate."""
    model, about = begin.of(start == "pre-trained", seed)
    n, steps = STARTS[start]
    n = n or len(rows["train"])
    tuned = tune(model.bert, drawn(rows["train"], n, seed), 3, rate, steps, seed)
    found = right(tuned, rows["test"])
    return about, {"labels": n, "rate": rate, "seed": seed, "steps": steps, "valid": share(right(tuned, rows["valid"])),
                   "test": share(found), "by_nouns": by_nouns(found, begin.data.pairs["test"])}


def noted() -> dict:
    """The record so far."""
    given = {"sizes": SIZES, "pre_steps": PRE_STEPS, "tune_steps": TUNE_STEPS, "rows": ROWS, "hidden": HIDDEN, "labels": LABELS}
    given, path = json.loads(json.dumps(given)), RESULTS / "entailment.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"settings": given, "starts": {}}
    record["settings"].pop("rates", None)                    # of earlier calls, which tried two
    if record["settings"] != given:
        raise SystemExit(f"{path.name} was made with other settings")
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", nargs="+", default=list(STARTS), choices=STARTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    data, record = Pairs(), noted()
    begin, rows = Begin(data), {split: data.rows(split) for split in ("train", "valid", "test")}

    def result(start: str, rate: float, seed: int) -> dict:
        """A run of the record, or a new one, which is added to it."""
        entry = record["starts"].setdefault(start, {"pretraining": [], "runs": []})
        for known in entry["runs"]:
            if (known["rate"], known["seed"]) == (rate, seed):
                return known
        about, new = run(begin, rows, start, rate, seed)
        if all(earlier["seed"] != seed for earlier in entry["pretraining"]):
            entry["pretraining"].append(about)
        entry["runs"].append(new)
        record.update(joined_facts(record))
        write("entailment", record)
        print(start, about, new, sep="\n  ", flush=True)
        return new

    for start in given.starts:
        rate, tried = best_rate(lambda rate: 1 - result(start, rate, SEEDS[0])["valid"], FIRST_RATE)
        for seed in given.seeds:
            result(start, rate, seed)
        record["starts"][start] |= {"rate": rate, "wrong_on_valid": tried}
    record["starts"] = {start: record["starts"][start] for start in STARTS if start in record["starts"]}
    write("entailment", record)


if __name__ == "__main__":
    main()

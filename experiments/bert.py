"""What pre-training a small BERT is worth: accuracy against the number of labels, and which part of it helps.

    python experiments/bert.py                 # or --only labels, --only parts, --only looks

Two layers of width 64, made from seeds. *labels*: micro-reviews, from scratch and from two pre-trainings: on micro-text (hidden words
and the second segment), and on micro-text and the reviews of train without their labels (of those hidden words only: a review is
one sentence). Five seeds; each draws its own labelled reviews. A control from scratch takes as many steps as pre-training and
fine-tuning together, all of them with labels, with three seeds. For every start and number of labels the rate is searched: the best on
valid, mean over the seeds, with a third of it and three times it tried and no better. *parts*: the second pre-training with one
thing changed, three seeds, 256 labels, each of PART_RATES; all are asked the same held-out puzzles. *looks*: where [CLS] reads from, before and after fine-tuning on
1,024 reviews, as in the lesson but with three seeds and one rate that nobody chose. `test` is scored with all runs and chooses nothing.
Writes results/bert.json after each run and goes on where an earlier call stopped; what is pre-trained again is asked again, and must
answer as before. One thread.
"""
import argparse
import copy
import json
import random
import re
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, replace

import torch
from records import RESULTS, best_rate, facts, joined_facts, write
from torch import nn
from torch.nn.functional import cross_entropy

from transformer_course.data.corpora import load
from transformer_course.data.reviews import NEGATIVE, PATTERNS, POSITIVE
from transformer_course.data.text import BOS, EOS, PAD, Tokenizer, pad
from transformer_course.models.attention import attention_weights
from transformer_course.data.masking import MaskedText, PretrainingBatches, mask_words
from transformer_course.models.bert import Bert, BertForPreTraining, TextClassifier
from transformer_course.training.schedules import linear_decay
from transformer_course.training.settings import Settings
from transformer_course.training.trainer import fit

SIZES = {"d_model": 64, "n_heads": 4, "n_layers": 2, "d_ff": 128, "dropout": 0.0, "max_len": 128}
FIRST_RATE, PART_RATES, LOOK_RATE = 0.001, (0.001, 0.003), 0.001
PRE_RATE, PRE_STEPS, TUNE_STEPS, ROWS = 0.002, 1200, 250, 32
LABELS, LONGER_LABELS, PART_LABELS = (64, 128, 256, 512), (512, 256, 128), (256,)
SEEDS, PART_SEEDS = (1, 2, 3, 4, 5), (1, 2, 3)
LOOK_LABELS, LOOKED_AT = 1024, 200
CUES = ("not", "anything", "but", "although", "despite", "yet")


@dataclass(frozen=True)
class Start:
    """How an encoder is pre-trained; without text it is not."""

    text: bool = True        # micro-text, in pairs of segments
    reviews: bool = True     # micro-reviews of train, one segment each
    second: bool = True      # the loss of the second question counts
    share: float = 0.15      # of the words are hidden


BOTH = Start()
STARTS = {"from scratch": Start(text=False, reviews=False), "micro-text": Start(reviews=False), "micro-text and reviews": BOTH}
LONGER = "from scratch, as many steps"
PARTS = {"without the second question": replace(BOTH, second=False), "5 % hidden": replace(BOTH, share=0.05),
         "40 % hidden": replace(BOTH, share=0.4), "without micro-text": replace(BOTH, text=False)}


@dataclass(frozen=True)
class Singles:
    """Texts of one segment with hidden words: a source of batches like `PretrainingBatches`."""

    texts: list[list[int]]     # ids without special tokens
    vocab_size: int
    mask_id: int
    share: float
    rows: int = ROWS

    def plan(self, seed, epoch):
        order = list(range(len(self.texts)))
        random.Random(f"order {seed} {epoch}").shuffle(order)
        return self._cut(order, f"puzzle {seed} {epoch}")

    def in_order(self):
        return self._cut(range(len(self.texts)), "evaluation")

    def _cut(self, order, name):
        puzzles = [self._puzzle(n, name) for n in order]
        return [puzzles[i:i + self.rows] for i in range(0, len(puzzles), self.rows)]

    def _puzzle(self, n, name):
        tokens = [BOS, *self.texts[n], EOS]
        read, targets = mask_words(tokens, random.Random(f"{name} {n}"), self.vocab_size, self.mask_id, self.share)
        return MaskedText(read, [0] * len(read), targets, -1)     # -1: the second question is not asked

    collate, tokens = PretrainingBatches.collate, PretrainingBatches.tokens

    def fingerprint(self):
        return repr(self)


@dataclass(frozen=True)
class Mixed:
    """The batches of several sources in one order."""

    sources: list

    def plan(self, seed, epoch):
        batches = [batch for source in self.sources for batch in source.plan(seed, epoch)]
        random.Random(f"mixed {seed} {epoch}").shuffle(batches)
        return batches

    def in_order(self):
        return [batch for source in self.sources for batch in source.in_order()]

    collate, tokens = PretrainingBatches.collate, PretrainingBatches.tokens

    def fingerprint(self):
        return " ".join(source.fingerprint() for source in self.sources)


class Asked(nn.Module):
    """The loss of hidden words, and of the second question where it is asked."""

    def __init__(self, model: BertForPreTraining, second: bool):
        super().__init__()
        self.model, self.second = model, second

    def loss(self, tokens, segments, targets, is_random, smoothing=0.0):
        if self.second and (is_random >= 0).all():
            return self.model.loss(tokens, segments, targets, is_random, smoothing)
        vectors = self.model.bert(tokens, segments)
        return self.model.masked_lm.loss(vectors[targets >= 0], targets[targets >= 0], smoothing)


@torch.no_grad()
def asked(model: BertForPreTraining, source) -> dict:
    """On held-out puzzles: nats of a hidden word, the share that is right, and that of the second question."""
    nats, right, words, pairs, texts = 0.0, 0, 0, 0, 0
    for batch in source.in_order():
        tokens, segments, targets, is_random = source.collate(batch)
        of_words, of_pairs = model(tokens, segments)
        here = targets >= 0
        nats += cross_entropy(of_words[here], targets[here], reduction="sum").item()
        right, words = right + (of_words.argmax(-1) == targets)[here].sum().item(), words + here.sum().item()
        pairs, texts = pairs + (of_pairs.argmax(-1) == is_random).sum().item(), texts + len(is_random)
    found = {"nats": round(nats / words, 4), "right": round(right / words, 4), "second": round(pairs / texts, 4)}
    return {name: value for name, value in found.items() if name != "second" or (is_random >= 0).all()}


@torch.no_grad()
def sides(model: BertForPreTraining, data: "Reviews") -> dict:
    """Of held-out reviews with two opinions or more the last is hidden: is more mass on its side, praise or blame?"""
    praise, blame = ([data.words.encode(word)[0] for word in side] for side in (POSITIVE, NEGATIVE))
    found = []
    for tokens, segments, label in data.rows("valid"):
        places = [i for i, token in enumerate(tokens) if token in praise + blame]
        if len(places) > 1:
            true, tokens = tokens[places[-1]] in praise, [*tokens]
            tokens[places[-1]] = data.mask_id
            p = model(torch.tensor([tokens]))[0][0, places[-1]].softmax(-1)
            found.append((p[praise].sum() > p[blame].sum()).item() == true)
    return {"right": share(found), "of": len(found)}


def pretrain(model: BertForPreTraining, source, second: bool, steps: int, seed: int) -> float:
    """Train in place; CPU seconds."""
    began = time.process_time()
    settings = Settings(smoothing=0.0, precision="highest", device="cpu", seed=seed)
    fit(Asked(model, second), source, linear_decay(PRE_RATE, 100), steps=steps, progress=False, settings=settings)
    return round(time.process_time() - began, 1)


def batch_of(rows):
    """Rows (tokens, segments, label) as tensors."""
    return pad([row[0] for row in rows], PAD), pad([row[1] for row in rows], 0), torch.tensor([row[2] for row in rows])


@torch.no_grad()
def right(model: TextClassifier, rows) -> list[bool]:
    """Which rows it gets right."""
    tokens, segments, labels = batch_of(rows)
    return (model(tokens, segments).argmax(-1) == labels).tolist()


def tune(bert: Bert, rows, classes: int, rate: float, steps: int, seed: int) -> TextClassifier:
    """A classifier from a copy of the encoder, after so many steps on these rows."""
    torch.manual_seed(100 + seed)
    model, draw = TextClassifier(copy.deepcopy(bert), classes, dropout=0.0), random.Random(f"batches {seed}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, fused=True)
    warm = steps // 10
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / warm, (steps - step) / (steps - warm)))
    for _ in range(steps):
        optimizer.zero_grad()
        model.loss(*batch_of(draw.sample(rows, min(ROWS, len(rows))))).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def share(found: list[bool]) -> float:
    return round(sum(found) / len(found), 4)


def drawn(rows: list, n: int, seed: int) -> list:
    """n labelled rows; those of a smaller n are among those of a larger."""
    order = list(range(len(rows)))
    random.Random(f"labels {seed}").shuffle(order)
    return [rows[i] for i in order[:n]]


class Reviews:
    """Micro-text and micro-reviews with one vocabulary."""

    def __init__(self):
        self.text, self.reviews = load("micro-text"), load("micro-reviews")
        known = [item.text for corpus in (self.text, self.reviews) for item in corpus["train"]]
        self.words = Tokenizer.train(known, kind="words", size=2000, specials=("[MASK]",))
        self.mask_id = self.words.special_id("[MASK]")

    def documents(self, split):
        cut = (item.text.removesuffix(" .").split(" . ") for item in self.text[split])
        return [[self.words.encode(f"{sentence} .") for sentence in document] for document in cut]

    def source(self, start: Start, split="train"):
        named = {"vocab_size": len(self.words), "mask_id": self.mask_id, "share": start.share}
        found = [PretrainingBatches(self.documents(split), rows=16, **named)] if start.text else []
        if start.reviews:
            found.append(Singles([self.words.encode(item.text) for item in self.reviews[split]], **named))
        return Mixed(found)

    def rows(self, split):
        ids = [([BOS, *self.words.encode(item.text), EOS], item.label) for item in self.reviews[split]]
        return [(tokens, [0] * len(tokens), label) for tokens, label in ids]


def begin(data: Reviews, start: Start, seed: int) -> tuple[BertForPreTraining, dict]:
    """Pre-train, or not: the model, and what is known of it."""
    torch.manual_seed(seed)
    model = BertForPreTraining(Bert(len(data.words), **SIZES))
    about = {"seed": seed, "start": asdict(start)}
    if start.text or start.reviews:
        about["cpu_seconds"] = pretrain(model, data.source(start), start.second, PRE_STEPS, seed)
        model.eval()
        about["micro-text"] = asked(model, data.source(Start(reviews=False), "valid"))
        about["reviews"] = asked(model, data.source(Start(text=False), "valid"))
        about["sides"] = sides(model, data)
    return model, about


def tune_run(data: Reviews, model: BertForPreTraining, n: int, rate: float, steps: int, seed: int) -> dict:
    """Fine-tune once."""
    rows = {split: data.rows(split) for split in ("train", "valid", "test")}
    tuned = tune(model.bert, drawn(rows["train"], n, seed), 2, rate, steps, seed)
    return {"labels": n, "rate": rate, "seed": seed} | {split: share(right(tuned, rows[split])) for split in ("valid", "test")}


def search(data: Reviews, name: str, labels: tuple[int, ...], steps: int, seeds: tuple[int, ...] = SEEDS) -> None:
    """For each number of labels: all seeds with several rates, until the best on valid has no better one beside it."""
    start, begun, record = STARTS.get(name, STARTS["from scratch"]), {}, noted()
    entry = record["labels"].setdefault(name, {"pretraining": [], "runs": []})

    def model(seed):
        if seed not in begun:
            begun[seed], about = begin(data, start, seed)
            known = next((one for one in entry["pretraining"] if one["seed"] == seed), None)
            if known is None:
                entry["pretraining"].append(about)
            elif (again := {**about, "cpu_seconds": known.get("cpu_seconds")}) != {"cpu_seconds": None, **known}:
                raise SystemExit(f"{name}, seed {seed}: this machine does not repeat the pre-training of the record: {known}, {again}")
        return begun[seed]

    def result(n, rate, seed):
        for run in entry["runs"]:
            if (run["labels"], run["rate"], run["seed"]) == (n, rate, seed):
                return run
        entry["runs"].append(tune_run(data, model(seed), n, rate, steps, seed))
        record.update(joined_facts(record))
        write("bert", record)
        return entry["runs"][-1]

    for n in labels:
        def wrong(rate):
            found = [result(n, float(f"{rate:.2g}"), seed) for seed in seeds]
            print(name, n, f"{rate:.2g}", *(f"{split} {sum(run[split] for run in found) / len(found):.4f}" for split in ("valid", "test")), flush=True)
            return 1 - sum(run["valid"] for run in found) / len(found)
        entry.setdefault("rates", {})[str(n)] = float(f"{best_rate(wrong, FIRST_RATE, factor=3)[0]:.2g}")
        write("bert", record)


def part_run(data: Reviews, start: Start, seed: int) -> tuple[dict, list[dict]]:
    """Pre-train once; fine-tune for each number of labels and rate."""
    model, about = begin(data, start, seed)
    return about, [tune_run(data, model, n, rate, TUNE_STEPS, seed) for n in PART_LABELS for rate in PART_RATES]


def kinds(item) -> list[str]:
    """For each token of a review: which kind of token it is."""
    pattern = PATTERNS[item.tags["pattern"]]
    slots, found = iter(re.findall(r"{([abc])}", pattern.text)), ["[CLS], [SEP]"]
    for word in item.text.split():
        if word in (*POSITIVE, *NEGATIVE):
            found.append("opinion that decides" if next(slots) in pattern.decides else "opinion that does not")
        else:
            found.append("not, but, although …" if word in CUES else "other words")
    return [*found, "[CLS], [SEP]"]


@torch.no_grad()
def looks(encoder: Bert, data: Reviews) -> dict:
    """The share of [CLS]'s attention that each kind of token gets in each layer, mean over heads and reviews of test."""
    found = defaultdict(lambda: torch.zeros(SIZES["n_layers"]))
    for item, (tokens, segments, label) in list(zip(data.reviews["test"], data.rows("test"), strict=True))[:LOOKED_AT]:
        with attention_weights(encoder) as weights:
            encoder(torch.tensor([tokens]))
        of_cls = torch.stack([of_layer[0, :, 0].mean(0) for of_layer in weights.values()])         # (layers, S)
        for kind, weight in zip(kinds(item), of_cls.T, strict=True):
            found[kind] += weight / LOOKED_AT
    return {kind: [round(w, 4) for w in weight.tolist()] for kind, weight in sorted(found.items())}


def looks_run(data: Reviews, seed: int) -> dict:
    """Pre-train on micro-text, fine-tune, and look before and after."""
    torch.manual_seed(seed)
    model, start = BertForPreTraining(Bert(len(data.words), **SIZES)), STARTS["micro-text"]
    pretrain(model, data.source(start), start.second, PRE_STEPS, seed)
    encoder, rows = model.eval().bert, {split: data.rows(split) for split in ("train", "test")}
    tuned = tune(encoder, drawn(rows["train"], LOOK_LABELS, seed), 2, LOOK_RATE, TUNE_STEPS, seed)
    return {"seed": seed, "test": share(right(tuned, rows["test"])), "pre-trained": looks(encoder, data), "fine-tuned": looks(tuned.bert, data)}


def note_looks(data: Reviews, seed: int) -> None:
    """Add what one model looks at to the record."""
    record, made = noted(), looks_run(data, seed)
    counted = Counter(kind for item in list(data.reviews["test"])[:LOOKED_AT] for kind in kinds(item))
    tokens = {kind: round(n / counted.total(), 4) for kind, n in sorted(counted.items())}
    entry = record.setdefault("looks", facts() | {"labels": LOOK_LABELS, "rate": LOOK_RATE, "reviews": LOOKED_AT, "tokens": tokens, "runs": []})
    entry["runs"].append(made)
    write("bert", record)
    print("looks", made, flush=True)


def noted() -> dict:
    """The record so far."""
    given = {"sizes": SIZES, "pre_rate": PRE_RATE, "pre_steps": PRE_STEPS, "tune_steps": TUNE_STEPS, "rows": ROWS}
    given, path = json.loads(json.dumps(given)), RESULTS / "bert.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else facts() | {"settings": given, "labels": {}, "parts": {}}
    record["settings"].pop("rates", None)                    # of earlier calls, which tried two
    if record["settings"] != given:
        raise SystemExit(f"{path.name} was made with other settings")
    return record


def note(part: str, name: str, about: dict, runs: list[dict]) -> None:
    """Add one pre-training and its runs to the record."""
    record = noted()
    entry = record[part].setdefault(name, {"pretraining": [], "runs": []})
    entry["pretraining"].append(about)
    entry["runs"] += runs
    write("bert", record)
    print(part, name, about, *runs, sep="\n  ", flush=True)


def done(part: str, name: str, seed: int) -> bool:
    return any(about["seed"] == seed for about in noted()[part].get(name, {"pretraining": []})["pretraining"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=["labels", "parts", "looks"], choices=["labels", "parts", "looks"])
    only = parser.parse_args().only
    torch.set_num_threads(1)
    data = Reviews()
    for name in STARTS if "labels" in only else ():
        search(data, name, LABELS, TUNE_STEPS)
    if "labels" in only:
        search(data, LONGER, LONGER_LABELS, PRE_STEPS + TUNE_STEPS, PART_SEEDS)
    for name, seed in [(name, seed) for seed in PART_SEEDS for name in PARTS]:               # "as it is" is among the labels' runs
        if "parts" in only and not done("parts", name, seed):
            note("parts", name, *part_run(data, PARTS[name], seed))
    for seed in PART_SEEDS:
        if "looks" in only and all(run["seed"] != seed for run in noted().get("looks", {"runs": []})["runs"]):
            note_looks(data, seed)


if __name__ == "__main__":
    main()

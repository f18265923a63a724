"""Which learning rate suits which model? The course's rates, their halves and doubles, on `valid` alone.

    python experiments/rates.py --jobs 2

The translators learn micro-Hindi at the micro preset, in half of the scoreboard's 2,000 steps. The language
models are those of lesson 10a, with its text and its 150 steps. No test set is read. One seed unless more are
asked for, so a small difference between two rates says nothing. Writes results/rates.json after each run, and
goes on where an earlier call stopped; `--show` prints the table of what is recorded.
"""
import argparse
import json
import math
import time
from functools import cache

import torch
from records import RESULTS, facts, shared, write

from transformer_course.data.batching import PairBatches
from transformer_course.data.corpora import load
from transformer_course.data.text import BOS, EOS, Tokenizer
from transformer_course.models.language_models import RNNLanguageModel
from transformer_course.pipelines.decoding import encode_pairs
from transformer_course.pipelines.presets import PRESETS, build
from transformer_course.pipelines.runs import Job, settings_for, tokenizer_for
from transformer_course.pipelines.translator import Translator
from transformer_course.training.schedules import linear_decay
from transformer_course.training.settings import Settings
from transformer_course.training.loop import evaluate_loss
from transformer_course.training.trainer import fit

MICRO = PRESETS["micro"]
READERS = {"reader-rnn": ("rnn", 0.005), "reader-gru": ("gru", 0.01)}     # lesson 10a: cell, rate there
TRANSLATORS = ("seq2seq-rnn", "seq2seq", "additive", "additive-uniform", "additive-last", "luong-general",
               "transformer", "transformer-post")
USED = {name: rate for name, (_, rate) in READERS.items()} | {name: MICRO.of(name)[1] for name in TRANSLATORS}
FACTORS = dict.fromkeys(USED, (0.5, 1, 2)) | {"transformer-post": (0.25, 0.5, 1, 2)}
READER_STEPS = 150
corpus = cache(load)


def read(name: str, rate: float, seed: int) -> dict:
    """Train a language model as lesson 10a does; its loss on valid."""
    text = corpus("micro-text")
    tokenizer = Tokenizer.train([document.text for document in text["train"]], kind="words", size=500)
    learn, valid = (PairBatches([([EOS], [BOS, *tokenizer.encode(d.text), EOS]) for d in text[split]], 2048)
                    for split in ("train", "valid"))
    torch.manual_seed(seed)
    model = RNNLanguageModel(len(tokenizer), d_model=64, d_hidden=128, cell=READERS[name][0])
    schedule = lambda step, progress: rate * min(step / 20, 1 - progress)
    fit(model, learn, schedule, steps=READER_STEPS, progress=False,
        settings=Settings(smoothing=0.0, seed=seed, device="cpu", precision="highest"))
    loss = evaluate_loss(model, valid)
    return {"loss": loss, "perplexity": math.exp(loss)}


def translate(name: str, rate: float, seed: int, steps: int) -> dict:
    """Train a translator as the scoreboard does; its loss on valid, exact match and BLEU of greedy search."""
    data, job = corpus("micro-hindi"), Job("micro-hindi", "en-hi", name, "micro", seed)
    tokenizer = tokenizer_for(job, data)
    learn, valid = (PairBatches(encode_pairs(tokenizer, data[split]), MICRO.batch_tokens)
                    for split in ("train", "valid"))
    torch.manual_seed(seed)
    model = build(name, "micro", len(tokenizer))
    fit(model, learn, linear_decay(rate, MICRO.warmup), steps=steps, progress=False,
        settings=settings_for(job, "cpu", "highest"))
    found = Translator(model, tokenizer, {}).evaluate(data["valid"], "valid", beam_size=1)
    return {"loss": evaluate_loss(model, valid), "exact_match": found.exact_match, "bleu": found.bleu}


def run(name: str, rate: float, seed: int, steps: int) -> dict:
    """One training: what it reached on valid; nothing if it ended in numbers that are not finite."""
    began, start = facts(), time.perf_counter()
    try:
        valid = read(name, rate, seed) if name in READERS else translate(name, rate, seed, steps)
    except FloatingPointError:
        valid = None
    seconds = round(time.perf_counter() - start, 1)
    return {"rate": rate, "seed": seed, **began, "seconds": seconds, "valid": valid}


def noted(path, steps: int) -> dict:
    """The record so far; another number of steps is another record."""
    new = {"preset": "micro", "steps": steps, "reader_steps": READER_STEPS, "split": "valid", "models": {}}
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else new
    if record["steps"] != steps:
        raise SystemExit(f"{path.name} was made with {record['steps']} steps, not {steps}")
    return record


def best(runs: list[dict]) -> float:
    """The rate with the lowest mean loss on valid."""
    losses = {}
    for one in runs:
        losses.setdefault(one["rate"], []).append(one["valid"]["loss"] if one["valid"] else math.inf)
    return min(losses, key=lambda rate: sum(losses[rate]) / len(losses[rate]))


def show(record: dict) -> None:
    """A line for each run; a star at the rate that the course uses, an arrow at the lowest loss."""
    for name, entry in record["models"].items():
        lowest = best(entry["runs"])
        for one in entry["runs"]:
            figures = ", ".join(f"{k} {v:.3f}" for k, v in (one["valid"] or {"not finite": math.nan}).items())
            marks = " *" * (one["rate"] == entry["used"]) + " <- lowest" * (one["rate"] == lowest)
            print(f"{name:18} rate {one['rate']:<8g} seed {one['seed']}: {figures}{marks}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(USED), choices=USED)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "rates.json"
    record = noted(path, given.steps)
    if given.show:
        return show(record)
    models = record["models"]
    done = {(name, one["rate"], one["seed"]) for name, entry in models.items() for one in entry["runs"]}
    wanted = [(name, factor * USED[name], seed)
              for seed in given.seeds for name in given.models for factor in FACTORS[name]]
    tasks = [(*task, given.steps) for task in wanted if task not in done]
    for (name, *_), result in shared(run, tasks, given.jobs):
        runs = models.setdefault(name, {"used": USED[name], "runs": []})["runs"]
        runs.append(result)
        runs.sort(key=lambda one: (one["seed"], one["rate"]))
        write("rates", record | {"models": {name: models[name] for name in USED if name in models}})
        print(name, result["rate"], result["valid"], f"{result['seconds']} s", flush=True)


if __name__ == "__main__":
    main()

"""Language models of characters with the same text, steps and batches: counted, recurrent, and Transformers.

    python experiments/language_models.py --seeds 1 2 3

The text is tinyshakespeare (`transformer-course data fetch tinyshakespeare`, or TRANSFORMER_COURSE_DATA). All networks
are trained on the same segments of 64 characters, without dropout, with the same number of steps, and a rate of
its own: doubled until that is worse on the first 50,000 characters of `valid` (seed 1, a third of the steps). `test` is only scored: its first 50,000 characters in
segments of 64, in windows that overlap by half and, for recurrent models, in one piece. Writes results/language_models.json
after each run, and goes on where an earlier call stopped. One thread.
"""
import argparse
import json
import math
import resource
import time

import torch
from records import RESULTS, facts, write
from torch import nn

from transformer_course.corpora import load
from transformer_course.language_models import NGramModel, RNNLanguageModel
from transformer_course.recipe import linear_decay
from transformer_course.text import Tokenizer
from transformer_course.training import Settings, evaluate_loss, fit
from transformer_course.transformer_lm import SegmentBatches, TransformerLM, window_losses

LENGTH, ROWS, STEPS, SCORED = 64, 24, 1500, 50_000
RECURRENT = {"rnn": 416, "gru": 224, "lstm": 192}     # width of the notes: about as many parameters as the Transformers
FIRST_RATES = {"rnn": 0.001, "gru": 0.005, "lstm": 0.005, "learned": 0.003, "rotary": 0.003}     # then twice, four times ...


class Reader(nn.Module):
    """A recurrent language model with the protocol of lesson 30: one text, no source."""

    def __init__(self, words: int, cell: str):
        super().__init__()
        self.inner = RNNLanguageModel(words, d_model=96, d_hidden=RECURRENT[cell], cell=cell, dropout=0.0)

    def forward(self, tokens):
        return self.inner(tokens[:, :1], tokens)

    def loss(self, tokens, smoothing=0.0):
        return self.inner.loss(tokens[:, :1], tokens, smoothing)


MODELS = {cell: lambda words, cell=cell: Reader(words, cell) for cell in RECURRENT}
MODELS |= {name: lambda words, name=name: TransformerLM(words, d_model=96, n_heads=4, n_layers=3, d_ff=288, positions=name, max_len=LENGTH, dropout=0.0)
           for name in ("learned", "rotary")}


def train(name, rate, seed, steps, words, ids):
    """A model after so many steps, in evaluation mode, and the seconds."""
    torch.manual_seed(seed)
    model, begun = MODELS[name](words), time.perf_counter()
    settings = Settings(smoothing=0.0, seed=seed, device="cpu", precision="highest")
    fit(model, SegmentBatches(ids["train"], LENGTH, ROWS), linear_decay(rate, 100), steps=steps, progress=False, settings=settings)
    return model, time.perf_counter() - begun


def bits(losses):
    """Nats of each character -> bits per character."""
    return round(losses.mean().item() / math.log(2), 4)


def run(name, rate, seed, words, ids):
    """Train once and score the test text."""
    model, seconds = train(name, rate, seed, STEPS, words, ids)
    segments = window_losses(model, ids["test"], LENGTH)
    found = {"seed": seed, "rate": rate, "seconds": round(seconds, 1), "characters_per_second": round(STEPS * ROWS * LENGTH / seconds),
             "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "segments": bits(segments),
             "half overlap": bits(window_losses(model, ids["test"], LENGTH, LENGTH // 2)),
             "by position": [round(segments[k::LENGTH].mean().item(), 3) for k in range(LENGTH)]}
    if name in RECURRENT:
        with torch.no_grad():
            logits = model(ids["test"][None, :-1])[0]
        found["one piece"] = bits(nn.functional.cross_entropy(logits, ids["test"][1:], reduction="none"))
    return sum(p.numel() for p in model.parameters()), found


def own_rate(name, words, ids):
    """The best rate on valid: the first one, doubled until that makes it worse."""
    losses, rate = {}, FIRST_RATES[name]
    while not losses or losses[rate / 2] == min(losses.values()):
        model = train(name, rate, 1, STEPS // 3, words, ids)[0]
        losses[rate] = evaluate_loss(model, SegmentBatches(ids["valid"], LENGTH, ROWS))
        print(f"{name} rate {rate}: {losses[rate]:.3f} nats on valid", flush=True)
        rate *= 2
    return min(losses, key=losses.get), losses


def count(words, ids):
    """Counted n-grams, on the whole training text at once."""
    found = {}
    for order in (1, 3, 5, 7):
        begun = time.perf_counter()
        rows = [row.tolist() for row in ids["train"][:1_000_000].view(1000, 1000)]
        model = NGramModel(order).fit(rows, [ids["valid"].tolist()], words)
        found[order] = {"bits": bits(-model.word_log_probs(ids["test"].tolist())), "seconds": round(time.perf_counter() - begun, 1)}
        print(f"{order}-gram: {found[order]}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "language_models.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"ngrams": {}, "models": {}}
    corpus = load("tinyshakespeare")
    texts = {split: "\n".join(part.text for part in corpus[split]) for split in ("train", "valid", "test")}
    tokenizer = Tokenizer.train([texts["train"]], kind="characters", size=200)
    ids = {split: torch.tensor(tokenizer.encode(text)) for split, text in texts.items()}
    ids |= {split: ids[split][:SCORED] for split in ("valid", "test")}
    stored = lambda: write("language_models", {**facts(), "data": "tinyshakespeare", "length": LENGTH, "rows": ROWS, "steps": STEPS,
                                               "scored": SCORED, "words": len(tokenizer), **record})
    record["ngrams"] = record["ngrams"] or count(len(tokenizer), ids)
    stored()
    for name in given.models:
        if name not in record["models"]:
            rate, losses = own_rate(name, len(tokenizer), ids)
            record["models"][name] = {"rate": rate, "valid": losses, "runs": []}
        entry = record["models"][name]
        for seed in given.seeds:
            if any(r["seed"] == seed for r in entry["runs"]):
                continue
            entry["parameters"], result = run(name, entry["rate"], seed, len(tokenizer), ids)
            entry["runs"].append(result)
            stored()
            print(f"{name} seed {seed}: {result['seconds']} s, {result['segments']} bits in segments, {result['half overlap']} with half overlap", flush=True)


if __name__ == "__main__":
    main()

"""Language models with the same text, steps and batches: counted, recurrent, and Transformers.

    python experiments/language_models.py --seeds 1 2 3
    python experiments/language_models.py --ngrams            (the counted models again)
    python experiments/language_models.py --costs             (speed and memory of a training step)

The text is tinyshakespeare (`transformer-course data fetch tinyshakespeare`, or TRANSFORMER_COURSE_DATA). All networks
are trained on the same segments of 64 tokens, without dropout, with the same number of steps, and a rate of its own:
doubled until that is worse on `valid` (seed 1, a third of the steps). `test` is only scored: all of it, in segments of
64, in windows that overlap by half and, for recurrent models, in one piece. A token is a character, or, in the rows
named "pieces", one of 1,000 pieces of words (BPE); bits are always per character. Writes results/language_models.json
after each run, and goes on where an earlier call stopped. One thread.

The n-grams count the whole training text. They are scored under the networks' two conditions: in segments of 64, of
which they are given the first token alone, and in one piece. At the beginning of a segment, where an n-gram lacks words
before, the shorter n-gram that fits takes its place, with weights of its own from `valid`.

Transformer-XL, "xl", has a memory as long as a segment. It reads the same number of segments in a batch, but each goes
on where the one before it ended; `test` is scored without a memory (in segments) and with it, in one piece.

`--costs` times one training step of all models in turns, in one process, and reports the median over rounds, in seconds
of the processor, so that other programs on the machine disturb it less. Memory is what a fresh process grows by at
most, from before the model is made until it has done three training steps.
"""
import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from records import RESULTS, facts, write
from torch import nn

from transformer_course.data.corpora import load
from transformer_course.data.text import BOS, Tokenizer
from transformer_course.models.language_models import NGramModel, RNNLanguageModel
from transformer_course.models.segments import SegmentBatches, window_losses
from transformer_course.models.transformer_lm import TransformerLM
from transformer_course.models.streams import StreamBatches, Streaming, stream_losses
from transformer_course.models.transformer_xl import TransformerXL
from transformer_course.training.schedules import linear_decay
from transformer_course.training.settings import Settings, adam
from transformer_course.training.loop import evaluate_loss
from transformer_course.training.trainer import fit

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
from timing import grown, summary    # noqa: E402

LENGTH, ROWS, STEPS, ROUNDS, PIECES = 64, 24, 1500, 15, 1000
ORDERS = {"characters": (1, 3, 5, 7), "pieces": (1, 2, 3, 4)}
NAME, CPU = "language_models", torch.device("cpu")
TOKENIZERS = {"characters": {"kind": "characters", "size": 200}, "pieces": {"kind": "bpe", "size": PIECES}}


class Reader(nn.Module):
    """A recurrent language model with the protocol of lesson 30: one text, no source."""

    def __init__(self, words: int, cell: str, d_hidden: int):
        super().__init__()
        self.inner = RNNLanguageModel(words, d_model=96, d_hidden=d_hidden, cell=cell, dropout=0.0)

    def forward(self, tokens):
        return self.inner(tokens[:, :1], tokens)

    def loss(self, tokens, smoothing=0.0):
        return self.inner.loss(tokens[:, :1], tokens, smoothing)


@dataclass(frozen=True)
class Row:
    """One row of the table: how its model is made, and what it reads."""

    make: Callable[[int], nn.Module]   # number of tokens -> model
    first_rate: float                  # then twice, four times ...
    unit: str = "characters"           # or "pieces"
    reads_on: bool = False             # the text can be read in one piece


def batches(model, ids, rows=ROWS):
    """What a model learns from, and the module that the training loop gets: itself, or itself with its memory."""
    if isinstance(model, TransformerXL):
        return StreamBatches(ids, LENGTH, rows), Streaming(model, rows)
    return SegmentBatches(ids, LENGTH, rows), model


def recurrent(cell: str, d_hidden: int, first_rate: float, unit: str = "characters") -> Row:
    return Row(lambda words: Reader(words, cell, d_hidden), first_rate, unit, reads_on=True)


def transformer(positions: str, unit: str = "characters") -> Row:
    return Row(lambda words: TransformerLM(words, d_model=96, n_heads=4, n_layers=3, d_ff=288, positions=positions, max_len=LENGTH, dropout=0.0),
               0.003, unit)


MODELS = {"rnn": recurrent("rnn", 416, 0.001), "gru": recurrent("gru", 224, 0.005), "lstm": recurrent("lstm", 192, 0.005),    # about as many
          "learned": transformer("learned"), "rotary": transformer("rotary"),                                                 # parameters each
          "xl": Row(lambda words: TransformerXL(words, d_model=96, n_heads=4, n_layers=3, d_ff=288, memory=LENGTH, dropout=0.0), 0.006, reads_on=True),
          "gru, pieces": recurrent("gru", 224, 0.005, "pieces"), "rotary, pieces": transformer("rotary", "pieces")}


def train(name, rate, seed, steps, words, ids):
    """A model after so many steps, in evaluation mode, and the seconds."""
    torch.manual_seed(seed)
    model, begun = MODELS[name].make(words), time.perf_counter()
    settings = Settings(smoothing=0.0, seed=seed, device="cpu", precision="highest")
    source, trained = batches(model, ids["train"])
    fit(trained, source, linear_decay(rate, 100), steps=steps, progress=False, settings=settings)
    return model.eval(), time.perf_counter() - begun


def run(name, rate, seed, words, ids, characters):
    """Train once and score the test text, whose predicted tokens have so many characters."""
    bits = lambda losses: round(losses.sum().item() / math.log(2) / characters, 4)
    model, seconds = train(name, rate, seed, STEPS, words, ids)
    segments = window_losses(model, ids["test"], LENGTH)
    found = {"seed": seed, "rate": rate, "seconds": round(seconds, 1), "segments": bits(segments),
             "half overlap": bits(window_losses(model, ids["test"], LENGTH, LENGTH // 2)),
             "by position": [round(segments[k::LENGTH].mean().item(), 3) for k in range(LENGTH)]}
    if isinstance(model, TransformerXL):
        found["one piece"] = bits(stream_losses(model, ids["test"], LENGTH))
    elif MODELS[name].reads_on:
        with torch.no_grad():
            logits = model(ids["test"][None, :-1])[0]
        found["one piece"] = bits(nn.functional.cross_entropy(logits, ids["test"][1:], reduction="none"))
    return found


def own_rate(name, words, ids):
    """The best rate on valid: the first one, doubled until that makes it worse."""
    losses, rate = {}, MODELS[name].first_rate
    while not losses or losses[rate / 2] == min(losses.values()):
        model = train(name, rate, 1, STEPS // 3, words, ids)[0]
        if isinstance(model, TransformerXL):
            losses[rate] = stream_losses(model, ids["valid"], LENGTH, rows=ROWS).mean().item()
        else:
            losses[rate] = evaluate_loss(model, SegmentBatches(ids["valid"], LENGTH, ROWS))
        print(f"{name} rate {rate}: {losses[rate]:.3f} nats on valid", flush=True)
        rate *= 2
    return min(losses, key=losses.get), losses


def counted_losses(models: dict[int, NGramModel], order: int, ids: list[int]) -> list[float]:
    """-log p of each token but the first, in nats; a token with fewer than order - 1 before it gets a shorter n-gram."""
    found = {n: (-models[n].word_log_probs([BOS, *ids])).tolist() for n in range(2, order + 1)} or {1: (-models[1].word_log_probs([BOS, *ids])).tolist()}
    return [found[min(order, place + 1)][place] for place in range(1, len(ids))]


def count(part, orders):
    """Counted n-grams, scored in segments and in one piece."""
    models, found, test = {}, {}, part["ids"]["test"].tolist()
    bits = lambda losses: round(sum(losses) / math.log(2) / part["characters"], 4)
    for order in range(1, max(orders) + 1):
        begun = time.perf_counter()
        models[order] = NGramModel(order).fit([part["ids"]["train"].tolist()], [part["ids"]["valid"].tolist()], part["words"])
        if order not in orders:
            continue
        whole, rows = counted_losses(models, order, test), [counted_losses(models, order, test[s:s + LENGTH + 1]) for s in range(0, len(test) - 1, LENGTH)]
        full = [row for row in rows if len(row) == LENGTH]
        found[order] = {"segments": bits([nats for row in rows for nats in row]), "one piece": bits(whole),
                        "by position": [round(sum(column) / len(full), 3) for column in zip(*full)], "seconds": round(time.perf_counter() - begun, 1)}
        print(f"{order}-gram: {found[order]['segments']} bits in segments, {found[order]['one piece']} in one piece", flush=True)
    return found


def stepper(make, words, ids, rows=ROWS):
    """A new model's training step on one batch, as a function."""
    torch.manual_seed(1)
    source, model = batches(make(words), ids, rows)
    optimizer = adam(model.train())
    batch = source.collate(source.in_order()[1])                # the second: a memory is full then

    def step():
        loss = model.loss(*batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return step


def needed(name, words, ids) -> float:
    """Megabytes that this process grows by at its peak, for the model and three training steps."""
    torch.set_num_threads(1)
    stepper(lambda words: TransformerLM(words, 8, 1, 1, 8), words, ids, rows=1)()      # load what any model needs
    made = []

    def call():
        made or made.append(stepper(MODELS[name].make, words, ids))
        made[0]()
    return grown(call, 3, CPU)


def in_turns(steps: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Processor seconds of each step, round by round, after one round that does not count; each round begins with another."""
    seconds, names = {name: [] for name in steps}, list(steps)
    for turn in range(rounds + 1):
        for name in names[turn % len(names):] + names[:turn % len(names)]:
            begun = time.process_time()
            steps[name]()
            seconds[name] += [time.process_time() - begun] * (turn > 0)
    return seconds


def costs(names, data) -> dict:
    """Speed of all models in turns, and the memory of each in a process of its own."""
    steps = {name: stepper(MODELS[name].make, data[MODELS[name].unit]["words"], data[MODELS[name].unit]["ids"]["train"]) for name in names}
    found = summary(in_turns(steps, ROUNDS), base="gru")
    for name, row in found.items():
        part = data[MODELS[name].unit]
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            row["megabytes"] = round(pool.submit(needed, name, part["words"], part["ids"]["train"][:100_000].clone()).result(), 1)
        row |= {"tokens per second": round(1000 * ROWS * LENGTH / row["milliseconds"]), "milliseconds": round(row["milliseconds"], 2),
                "ratio": round(row["ratio"], 3)}
        print(name, row, flush=True)
    return {**facts(), "rounds": ROUNDS, "models": found}


def prepare() -> dict[str, dict]:
    """For each unit: number of tokens, ids of the splits, characters of the test text that are predicted."""
    corpus, found, lengths = load("tinyshakespeare"), {}, set()
    texts = {split: "\n".join(part.text for part in corpus[split]) for split in ("train", "valid", "test")}
    for unit, given in TOKENIZERS.items():
        tokenizer = Tokenizer.train([texts["train"]], **given)
        ids = {split: torch.tensor(tokenizer.encode(text)) for split, text in texts.items()}
        shown = len(tokenizer.decode(ids["test"].tolist()))             # white space as the tokenizers leave it
        found[unit] = {"words": len(tokenizer), "ids": ids, "characters": shown - len(tokenizer.decode(ids["test"][:1].tolist()))}
        lengths.add(shown)
    assert len(lengths) == 1, "the tokenizers must leave the same text"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--rate", type=float, help="of models that have none yet, instead of looking for one")
    parser.add_argument("--ngrams", action="store_true")
    parser.add_argument("--costs", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    data = prepare()
    letters = data["characters"]

    def stored():                                                   # read anew: two calls may work at the same time
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"models": {}}

    def store(record):                                              # facts at the top are those of the networks
        head = {**facts(), "data": "tinyshakespeare", "length": LENGTH, "rows": ROWS, "steps": STEPS,
                "scored": letters["characters"], "words": {unit: part["words"] for unit, part in data.items()},
                "test tokens": {unit: len(part["ids"]["test"]) for unit, part in data.items()}}
        write(NAME, record | head)

    if given.ngrams or "counted" not in stored():
        counted = {**facts(), **{unit: count(part, ORDERS[unit]) for unit, part in data.items()}}
        write(NAME, {name: value for name, value in stored().items() if name != "ngrams"} | {"counted": counted})
    if given.costs:
        found = costs([name for name, row in MODELS.items() if row.unit == "characters" or name in stored()["models"]], data)
        write(NAME, stored() | {"costs": found})
    if given.ngrams or given.costs:
        return
    for name in given.models:
        part = data[MODELS[name].unit]
        if name not in stored()["models"]:
            rate, losses = (given.rate, {}) if given.rate else own_rate(name, part["words"], part["ids"])
            record = stored()
            parameters = sum(p.numel() for p in MODELS[name].make(part["words"]).parameters())
            record["models"][name] = {"rate": rate, "valid": losses, "parameters": parameters, "runs": []}
            store(record)
        for seed in given.seeds:
            entry = stored()["models"][name]
            if any(r["seed"] == seed for r in entry["runs"]):
                continue
            result = run(name, entry["rate"], seed, part["words"], part["ids"], part["characters"])
            record = stored()
            record["models"][name]["runs"].append(result)
            store(record)
            print(f"{name} seed {seed}: {result['seconds']} s, {result['segments']} bits in segments, {result['half overlap']} with half overlap",
                  flush=True)


if __name__ == "__main__":
    main()

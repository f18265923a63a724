"""How the loss falls with a model's size, on text of known entropy: five sizes, a prediction, and only then the sixth.

    python experiments/scaling.py --models Transformer LSTM RNN

The text is that of `fact_book`, drawn without end: no model sees a text twice. Every model has one layer and learns for the same
number of steps. For each size the rate is searched with seed 1 by the loss on valid text, until a worse one lies on either side. Then a
law is fitted to the test losses of the Transformer's five sizes and three seeds, and its prediction for the sixth size is written into the
record. Only after that is the sixth model trained, by the same rule.
`loss` is measured on one test text for all; `author` is what the book itself gets on this text.
Writes results/scaling.json after each size, and goes on where an earlier call stopped. One thread.
"""
import argparse
import json
import time

import torch
from records import RESULTS, best_rate, descend, joined_facts, write
from torch import nn

from transformer_course.data.fact_book import fact_book
from transformer_course.models.scaling import (
    count_parameters, fit_line, fit_power_law, interval, reader_loss, resampled, small_reader)
from transformer_course.training.schedules import linear_decay

NAME, ROWS, TOLD, STEPS, WARMUP, FIRST = "scaling", 64, 5, 1500, 100, 0.032
WIDTHS = {"Transformer": (4, 6, 8, 12, 16), "LSTM": (6, 10, 20), "RNN": (10, 18, 34)}
PREDICTED = {"Transformer": 32}                            # the width of the sixth
SEEDS, BOOK = (1, 2, 3), fact_book()


def text(rows: int, seed: int) -> torch.Tensor:
    return BOOK.texts(rows, TOLD, torch.Generator().manual_seed(seed))


VALID, TEST = text(2000, 1_000_001), text(6000, 1_000_002)


def train(kind: str, width: int, rate: float, seed: int, steps: int = STEPS, stock: int = 0) -> nn.Module:
    "On endless text, or on batches from a stock of so many texts, which come again and again."
    torch.manual_seed(seed)
    model, schedule = small_reader(kind, width, BOOK.vocab_size, 3 * TOLD), linear_decay(rate, WARMUP)
    draw = torch.Generator().manual_seed(seed)
    texts = BOOK.texts(stock, TOLD, draw) if stock else None

    def loss(step):
        batch = BOOK.texts(ROWS, TOLD, draw) if texts is None else texts[torch.randint(stock, (ROWS,), generator=draw)]
        return reader_loss(model, batch)

    return descend(model, loss, lambda step: schedule(step, step / steps), steps).eval()


@torch.no_grad()
def mean_loss(model: nn.Module, texts: torch.Tensor) -> float:
    return sum(reader_loss(model, part).item() * len(part) for part in texts.split(500)) / len(texts)


def run(kind: str, width: int, rate: float, seed: int, **text) -> dict:
    began = time.process_time()
    model = train(kind, width, rate, seed, **text)
    scores = {"valid": round(mean_loss(model, VALID), 4), "loss": round(mean_loss(model, TEST), 4)}
    return {"seed": seed, **scores, "seconds": round(time.process_time() - began, 1)}


def size_entry(kind: str, width: int) -> dict:
    model = small_reader(kind, width, BOOK.vocab_size, 3 * TOLD)
    return {"width": width, "parameters": count_parameters(model, embeddings=False), "with embeddings": count_parameters(model)}


def trained(kind: str, width: int) -> dict:
    "A size with its best rate, and a run of each seed with it."
    tried = {}

    def loss(rate: float) -> float:
        tried[rate] = run(kind, width, rate, 1)
        return tried[rate]["valid"]

    rate, losses = best_rate(loss, FIRST)
    others = [run(kind, width, rate, seed) for seed in SEEDS[1:]]
    return size_entry(kind, width) | {"rate": rate, "rates": losses, "runs": [tried[rate], *others]}


def prediction(sizes: list[dict], sixth: dict) -> dict:
    "What the five sizes say about the sixth, with both fits, and when it was said."
    runs = {size["parameters"]: [one["loss"] for one in size["runs"]] for size in sizes}
    pairs = [(size, loss) for size, losses in runs.items() for loss in losses]
    found = {"parameters": sixth["parameters"], "written": time.strftime("%Y-%m-%d %H:%M:%S")}
    for name, fit in (("law", fit_power_law), ("line", fit_line)):
        law, laws = fit(*zip(*pairs)), resampled(runs, fit=fit)
        ends = lambda values: [round(end, 4) for end in interval(values)]
        found[name] = {"E": round(law.floor, 4), "A": round(law.scale, 3), "alpha": round(law.exponent, 4),
                       "loss": round(law.at(sixth["parameters"]), 4), "E between": ends([one.floor for one in laws]),
                       "alpha between": ends([one.exponent for one in laws]),
                       "loss between": ends([one.at(sixth["parameters"]) for one in laws])}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(WIDTHS), choices=list(WIDTHS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"

    def stored() -> dict:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"models": {}}

    def store(kind: str, found: dict) -> None:
        author = round(-BOOK.log_probs(TEST).mean().item(), 4)
        write(NAME, joined_facts(stored()) | {"rows": ROWS, "facts": TOLD, "steps": STEPS, "entropy": round(BOOK.entropy, 4),
                                              "author": author, "models": stored()["models"] | {kind: found}})

    for kind in given.models:
        found = stored()["models"].get(kind, {"sizes": []})
        for width in WIDTHS[kind]:
            if width not in [size["width"] for size in found["sizes"]]:
                found["sizes"].append(trained(kind, width))
                store(kind, found)
                print(kind, found["sizes"][-1], flush=True)
        if kind in PREDICTED and "prediction" not in found:
            found["prediction"] = prediction(found["sizes"], size_entry(kind, PREDICTED[kind]))
            store(kind, found)                             # before the sixth model is trained
            print(kind, found["prediction"], flush=True)
        if kind in PREDICTED and "sixth" not in found:
            found["sixth"] = {"began": time.strftime("%Y-%m-%d %H:%M:%S")} | trained(kind, PREDICTED[kind])
            store(kind, found)
            print(kind, found["sixth"], flush=True)
        if kind in PREDICTED:
            miss = lambda name: [round(abs(found["prediction"][name]["loss"] - one["loss"]), 4) for one in found["sixth"]["runs"]]
            found["missed by"] = {name: miss(name) for name in ("law", "line")}
            store(kind, found)


if __name__ == "__main__":
    main()

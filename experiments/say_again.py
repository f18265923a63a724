"""Say it again: letters drawn at random, then the same letters. Attention, GRU and LSTM, by the number of letters.

    python experiments/say_again.py --seeds 1 2 3

A row is L letters of 20, a mark, and the same L letters; only the second copy is learned and scored. Each model learns
for the same number of steps, from new rows in each. Its rate is searched on `valid` with L = 16 and seed 1, until a
worse one lies on either side. Writes results/say_again.json after each model and length, and goes on where an earlier
call stopped. One thread.
"""
import argparse
import json
import time

import torch
from records import RESULTS, best_rate, descend, facts, write
from torch import nn
from torch.nn import functional as F

from transformer_course.data.text import SPECIALS
from transformer_course.models.language_models import RNNLanguageModel
from transformer_course.models.transformer_lm import TransformerLM
from transformer_course.training.schedules import linear_decay

NAME, LETTERS, ROWS, STEPS, WARMUP, LENGTHS, SEARCHED = "say_again", 20, 32, 300, 30, (8, 16, 32), 16
FIRST, MARK = len(SPECIALS), len(SPECIALS) + LETTERS
MODELS = {"Transformer": 0.003, "GRU": 0.01, "LSTM": 0.01}         # the rate to begin with


def rows(length: int, draw: torch.Generator) -> torch.Tensor:   # (B, 2 L + 1)
    """Letters, the mark, the same letters."""
    letters = torch.randint(FIRST, MARK, (ROWS, length), generator=draw)
    return torch.cat([letters, torch.full((ROWS, 1), MARK), letters], 1)


def build(name: str) -> nn.Module:
    """A model of some 100,000 parameters; the recurrent ones have no fewer than the Transformer."""
    if name == "Transformer":
        return TransformerLM(MARK + 1, d_model=64, n_heads=4, n_layers=2, dropout=0.0, positions="rotary")
    width = {"GRU": 92, "LSTM": 80}[name]
    return RNNLanguageModel(MARK + 1, width, width, n_layers=2, cell=name.lower(), dropout=0.0)


def second_copy(model: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:   # (B, L, V), (B, L)
    """Logits of the letters of the second copy, and these letters."""
    read, length = batch[:, :-1], batch.shape[1] // 2
    logits = model(read) if isinstance(model, TransformerLM) else model(read, read)
    return logits[:, length:], batch[:, length + 1:]


def train(name: str, length: int, rate: float, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model, draw, schedule = build(name), torch.Generator().manual_seed(seed), linear_decay(rate, WARMUP)

    def loss(step):
        logits, letters = second_copy(model, rows(length, draw))
        return F.cross_entropy(logits.flatten(0, 1), letters.flatten())

    return descend(model, loss, lambda step: schedule(step, step / STEPS), STEPS).eval()


@torch.no_grad()
def scored(model: nn.Module, length: int, split: str) -> dict[str, float]:
    """Loss in nats and share of right letters, on 20 batches that no training sees."""
    draw = torch.Generator().manual_seed({"valid": 10_001, "test": 10_002}[split])
    logits, letters = map(torch.cat, zip(*(second_copy(model, rows(length, draw)) for _ in range(20))))
    return {"loss": F.cross_entropy(logits.flatten(0, 1), letters.flatten()).item(),
            "right": (logits.argmax(-1) == letters).float().mean().item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {
        **facts(), "letters": LETTERS, "rows": ROWS, "steps": STEPS, "searched at": SEARCHED, "models": {}}
    for name, first in MODELS.items():
        if name not in record["models"]:
            loss = lambda rate: scored(train(name, SEARCHED, rate, 1), SEARCHED, "valid")["loss"]
            rate, tried = best_rate(loss, first)
            size = sum(p.numel() for p in build(name).parameters())
            record["models"][name] = {"parameters": size, "rate": rate, "rates": tried, "lengths": {}}
            print(name, size, rate, tried, flush=True)
            write(NAME, record)
        entry = record["models"][name]
        for length in LENGTHS:
            runs = entry["lengths"].setdefault(str(length), [])
            for seed in given.seeds:
                if seed in [run["seed"] for run in runs]:
                    continue
                begun = time.process_time()
                found = scored(train(name, length, entry["rate"], seed), length, "test")
                runs.append({"seed": seed} | {key: round(value, 4) for key, value in found.items()}
                            | {"seconds": round(time.process_time() - begun, 1)})
                print(name, length, runs[-1], flush=True)
                write(NAME, record)


if __name__ == "__main__":
    main()

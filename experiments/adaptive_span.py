"""Adaptive spans: an echo at a known distance, what the price of a word does, a start at zero; then characters of Shakespeare.

    python experiments/adaptive_span.py --parts echo text --seeds 1 2 3

`echo`: texts of `echoes`, whose echo comes after 20 letters; two layers of four heads, windows of 64. Models: full attention; spans from half
the window at two prices; spans from zero, with a ramp that is shorter than the distance.
`text`: tinyshakespeare in characters (`transformer-course data fetch tinyshakespeare`, or TRANSFORMER_COURSE_DATA); windows of 64. Models: full
attention; spans; a fixed window of the same cost for all heads, each seed with the cost that its spans had.
The rate of the weights is searched with full attention, seed 1, on valid texts, until a worse one lies on either side; all models use it, so
they differ in the spans alone. `cost` is the number of keys that the heads can read, summed over the heads; `loss` is in nats on test texts.
Writes results/adaptive_span.json after each run, and goes on where an earlier call stopped. One thread.
"""
import argparse
import json
import time
from functools import cache

import torch
from records import RESULTS, best_rate, facts, write
from torch import nn

from transformer_course.data.corpora import load
from transformer_course.data.text import SPECIALS, Tokenizer
from transformer_course.models.adaptive_span import AdaptiveSpan, echoes, span_cost, use_spans
from transformer_course.models.transformer_lm import TransformerLM
from transformer_course.training.schedules import linear_decay

NAME, ROWS, WARMUP = "adaptive_span", 16, 50
SPAN_RATE = {"echo": 0.001, "text": 0.002}                                  # so that a span can fall from half the window to zero
SIZES = {"echo": {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 64}, "text": {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 64}}
LENGTH, STEPS, RAMP, FIRST = {"echo": 64, "text": 64}, {"echo": 500, "text": 250}, {"echo": 8, "text": 8}, {"echo": 0.008, "text": 0.008}
START = {"ramp": None, "start": 0.5, "price": 0.001}
MODELS = {"echo": {"full": None, **{f"price {price}": {"price": price} for price in (0.001, 0.03)},
                   "from zero": {"start": 0.0}},
          "text": {"full": None, "price 0.0003": {"price": 0.0003}, "window": "price 0.0003"}}


@cache
def characters() -> dict[str, torch.Tensor]:
    corpus = load("tinyshakespeare")
    texts = {split: "\n".join(part.text for part in corpus[split]) for split in ("train", "valid", "test")}
    tokenizer = Tokenizer.train([texts["train"]], kind="characters")
    return {"words": len(tokenizer)} | {split: torch.tensor(tokenizer.encode(text)) for split, text in texts.items()}


def batch(part: str, split: str, rows: int, generator: torch.Generator) -> torch.Tensor:   # (B, L + 1)
    if part == "echo":
        return echoes(rows, LENGTH[part] + 1, generator=generator)
    ids = characters()[split]
    starts = torch.randint(len(ids) - LENGTH[part] - 1, (rows,), generator=generator)
    return ids[starts[:, None] + torch.arange(LENGTH[part] + 1)]


class Window(AdaptiveSpan):
    """A hard window of `keys` words for all heads: spans that do not learn."""

    def __init__(self, n_heads: int, keys: int):
        super().__init__(n_heads, keys, ramp=1, start=(keys - 1) / keys)
        self.share.requires_grad_(False)


def train(part: str, spans: dict | int | None, rate: float, seed: int) -> tuple[TransformerLM, list[AdaptiveSpan]]:
    """A trained model and its patterns; spans: None is full attention, a number is a fixed window."""
    torch.manual_seed(seed)
    batches = batch(part, "train", STEPS[part] * ROWS, torch.Generator().manual_seed(seed)).split(ROWS)
    schedule = linear_decay(rate, WARMUP)
    size = len(SPECIALS) + 16 if part == "echo" else characters()["words"]
    model = TransformerLM(size, **SIZES[part], dropout=0.0, positions="rotary")
    weights, patterns, given = list(model.parameters()), [], START | {"ramp": RAMP[part]}
    if isinstance(spans, int):
        for layer in model.stack.layers:
            layer.self_attention.heads.pattern = Window(4, spans)
    elif spans is not None:
        given |= spans
        patterns = use_spans(model, LENGTH[part], given["ramp"], given["start"])
    groups = [{"params": weights}] + ([{"params": [p.share for p in patterns], "lr": SPAN_RATE[part]}] if patterns else [])
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.98))
    for step, tokens in enumerate(batches, 1):
        optimizer.param_groups[0]["lr"] = schedule(step, step / STEPS[part])
        loss = model.loss(tokens) + (span_cost(patterns, given["price"]) if patterns else 0)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        for pattern in patterns:
            pattern.limit()
    return model.eval(), patterns


@torch.no_grad()
def loss_of(model: TransformerLM, part: str, split: str) -> float:
    draw, losses = torch.Generator().manual_seed({"valid": 1_000_001, "test": 1_000_002}[split]), []
    for _ in range(10):
        losses.append(model.loss(batch(part, split, 50, draw)).item())
    return sum(losses) / len(losses)


def by_rules(text: torch.Tensor) -> dict[str, float]:   # (B, L + 1)
    """Nats of a letter: guessing; knowing the alphabet alone; knowing where the echo comes from, too, wherever the text has it."""
    after = (text[:, :-1] - len(SPECIALS) + 1) % 16 + len(SPECIALS)
    q = (after == text[:, 1:]).float().mean()
    alphabet = -(q * q.log() + (1 - q) * ((1 - q) / 15).log()).item()
    late, old = text[:, 20:], text[:, :-20]                          # the letters that have an echo in the text
    p = 0.5 * (after[:, 19:] == late) + 0.5 * (old == late)
    early = (after[:, :19] == text[:, 1:20]).float().mean()
    first = -(early * early.log() + (1 - early) * ((1 - early) / 15).log()).item()
    both = (19 * first - late.shape[1] * p.log().mean().item()) / (19 + late.shape[1])
    return {"guess": round(torch.tensor(16.0).log().item(), 4), "alphabet": round(alphabet, 4), "alphabet and echo": round(both, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=["echo", "text"], choices=["echo", "text"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"parts": {}}
    record = facts() | {"rows": ROWS, "sizes": SIZES, "length": LENGTH, "steps": STEPS, "ramp": RAMP, "span rate": SPAN_RATE} | {
        "rules": by_rules(echoes(500, 65, generator=torch.Generator().manual_seed(9))), "parts": record["parts"]}
    for part in given.parts:
        if part not in record["parts"]:
            rate, losses = best_rate(lambda rate: loss_of(train(part, None, rate, 1)[0], part, "valid"), FIRST[part])
            record["parts"][part] = {"rate": rate, "rates": losses, "models": {}}
            write(NAME, record)
            print(part, rate, losses, flush=True)
        found = record["parts"][part]
        for seed in given.seeds:
            for name, spans in MODELS[part].items():
                runs = found["models"].setdefault(name, [])
                if any(run["seed"] == seed for run in runs):
                    continue
                began, cost = time.process_time(), 8 * LENGTH[part]
                if isinstance(spans, str):                                   # a window of the mean reach of these spans
                    same = next(run for run in found["models"][spans] if run["seed"] == seed)
                    spans = round(same["cost"] / 8)
                    cost = 8 * spans
                model, patterns = train(part, spans, found["rate"], seed)
                row = {"seed": seed, "loss": round(loss_of(model, part, "test"), 4)}
                if patterns:
                    row["spans"] = [[round(z, 1) for z in pattern.spans().tolist()] for pattern in patterns]
                    cost = sum(min(n, LENGTH[part]) for pattern in patterns for n in pattern.reach())
                runs.append(row | {"cost": cost, "seconds": round(time.process_time() - began, 1)})
                write(NAME, record)
                print(part, name, runs[-1], flush=True)


if __name__ == "__main__":
    main()

"""A Conformer and its two parents, convolution alone and attention alone, at equal size: symbol errors on generated recordings.

    python experiments/conformer.py --seeds 1 2 3

The recordings are those of `recordings`: a speaker hums, then sings six sounds. Each model learns with CTC for the same number of steps, from
the same recordings. Its rate is searched with seed 1, by the loss on valid recordings, until a worse one lies on either side. `symbols`,
`tones` and `glides` are errors on test recordings, when both sides are spelled with symbols, with tones alone, or with glides alone.
Writes results/conformer.json after each run, and goes on where an earlier call stopped. One thread.
"""
import argparse
import json
import time

import torch
from records import RESULTS, best_rate, descend, facts, write

from transformer_course.models.conformer import Listener, listener, recordings, symbol_errors
from transformer_course.training.schedules import linear_decay

NAME, ROWS, STEPS, WARMUP, FIRST = "conformer", 32, 300, 50, 0.008
SIZES = {"Conformer": {"attention": True, "convolution": True, "d_ff": 48},
         "convolution": {"attention": False, "convolution": True, "d_ff": 81},
         "attention": {"attention": True, "convolution": False, "d_ff": 75}}
SPELL = {"symbols": lambda s: s, "tones": lambda s: (s - 1) // 2, "glides": lambda s: (s - 1) % 2}


def train(name: str, rate: float, seed: int) -> Listener:
    torch.manual_seed(seed)
    model, schedule = listener(**SIZES[name]), linear_decay(rate, WARMUP)
    heard = recordings(ROWS * STEPS, generator=torch.Generator().manual_seed(seed))
    batches = zip(*(x.split(ROWS) for x in heard))
    return descend(model, lambda step: model.loss(*next(batches)), lambda step: schedule(step, step / STEPS), STEPS).eval()


def scores(model: Listener) -> dict[str, float]:
    frames, real, symbols = recordings(400, generator=torch.Generator().manual_seed(1_000_002))
    found = model.write(frames, real)
    spelled = lambda rows, spell: [[spell(s) for s in row] for row in rows]
    return {kind: round(symbol_errors(spelled(found, spell), spelled(symbols.tolist(), spell)), 4) for kind, spell in SPELL.items()}


@torch.no_grad()
def valid_loss(model: Listener) -> float:
    return model.loss(*recordings(400, generator=torch.Generator().manual_seed(1_000_001))).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"models": {}}
    record = facts() | {"rows": ROWS, "steps": STEPS, "models": record["models"]}
    for name in given.models:
        if name not in record["models"]:
            rate, losses = best_rate(lambda rate: valid_loss(train(name, rate, 1)), FIRST)
            parameters = sum(p.numel() for p in listener(**SIZES[name]).parameters())
            record["models"][name] = {"parameters": parameters, "rate": rate, "rates": losses, "runs": []}
            write(NAME, record)
            print(name, rate, losses, flush=True)
        found = record["models"][name]
        for seed in given.seeds:
            if any(run["seed"] == seed for run in found["runs"]):
                continue
            began = time.process_time()
            model = train(name, found["rate"], seed)
            found["runs"].append({"seed": seed} | scores(model) | {"seconds": round(time.process_time() - began, 1)})
            write(NAME, record)
            print(name, found["runs"][-1], flush=True)


if __name__ == "__main__":
    main()

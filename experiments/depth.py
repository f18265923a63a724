"""At which depth does a stack of attention and feed-forward still learn, and what does it need for that?

    python experiments/depth.py --seeds 1 2 3 --steps 200

The task is to reverse rows of eight digits, which one layer can do; so a deep stack that fails, fails at learning.
Every variant, depth, warm-up and seed is trained with each of the rates; which rate to report is chosen on
validation rows, and test rows are only scored. Writes results/depth.json after each run, and goes on where an earlier
call stopped. To share the work between processes give each a `--part` and some variants with `--only`; `--join` puts
the parts together. The record also holds depth 12, where warm-up decides about post-norm:

    python experiments/depth.py --only post-norm --depths 12 --warmups 0 50 100
    python experiments/depth.py --only pre-norm --depths 12 --warmups 0 50

Two variants leave the feed-forward networks out of every layer.
"""
import argparse
import json

import torch
from records import RESULTS, facts, write
from torch import nn
from torch.nn import functional as F

from transformer_course.models.attention import MultiHeadAttention
from transformer_course.models.blocks import FeedForward
from transformer_course.records import reproducible

D, FF, HEADS, DIGITS, LENGTH = 32, 64, 2, 10, 8
WRAPS = {"neither": lambda x, f, norm: f(x),
         "norm alone": lambda x, f, norm: norm(f(x)),
         "residual alone": lambda x, f, norm: x + f(x),
         "post-norm": lambda x, f, norm: norm(x + f(x)),
         "pre-norm": lambda x, f, norm: x + f(norm(x))}
ATTENTION_ONLY = " without feed-forward"                 # stands behind a variant's name
VARIANTS = [*WRAPS, "post-norm" + ATTENTION_ONLY, "pre-norm" + ATTENTION_ONLY]


class Stack(nn.Module):
    """An encoder of `depth` layers, two wrapped sublayers each, that gives one of ten digits at each position."""

    def __init__(self, variant, depth):
        super().__init__()
        name = variant.removesuffix(ATTENTION_ONLY)
        self.wrap, self.thinks = WRAPS[name], name == variant
        self.digit, self.place = nn.Embedding(DIGITS, D), nn.Embedding(LENGTH, D)
        self.attend = nn.ModuleList(MultiHeadAttention(D, HEADS) for layer in range(depth))
        self.think = nn.ModuleList(FeedForward(D, FF) for layer in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(D) for sublayer in range(2 * depth))
        self.last = nn.LayerNorm(D) if name == "pre-norm" else nn.Identity()
        self.answer = nn.Linear(D, DIGITS)
        for parameter in [*self.attend.parameters(), *self.think.parameters()]:
            if parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)

    def forward(self, row):                                          # (B, T) digits -> (B, T, 10)
        x = self.digit(row) + self.place.weight                      # (B, T, D)
        for layer, (attend, think) in enumerate(zip(self.attend, self.think)):
            x = self.wrap(x, lambda y: attend(y)[0], self.norms[2 * layer])
            x = self.wrap(x, think, self.norms[2 * layer + 1]) if self.thinks else x
        return self.answer(self.last(x))


def rows(draw, B):
    """Digits, and the same digits from right to left."""
    row = torch.randint(DIGITS, (B, LENGTH), generator=draw)
    return row, row.flip(-1)


def train(variant, depth, rate, warmup, seed, steps, B=48):
    """Train on new rows at each step, with Adam; give the losses, and the shares of right digits on 500 rows each."""
    reproducible(seed)
    model, draw = Stack(variant, depth), torch.Generator().manual_seed(seed)
    optimiser, losses = torch.optim.Adam(model.parameters(), rate, betas=(0.9, 0.98), fused=True), []
    for step in range(1, steps + 1):
        optimiser.param_groups[0]["lr"] = rate * min(1, step / max(warmup, 1)) * min(1, 2 * (1 - step / (steps + 1)))
        row, answer = rows(draw, B)
        loss = F.cross_entropy(model(row).flatten(0, 1), answer.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    with torch.no_grad():
        right = [(model(row).argmax(-1) == answer).float().mean().item()
                 for row, answer in (rows(torch.Generator().manual_seed(held_out), 500) for held_out in (10**6, 10**6 + 1))]
    return losses, *right


def cells(only, depths, warmups):
    """What to train, shallow first: every variant with warm-up, and those with a residual without, too (if whole)."""
    return [(variant, warmup, depth) for depth in depths for variant in VARIANTS for warmup in warmups
            if variant in only and (warmup or variant in ("residual alone", "post-norm", "pre-norm"))]


def join():
    """Put the parts together into results/depth.json."""
    parts = sorted(RESULTS.glob("depth_*.json"))
    records = [json.loads(path.read_text(encoding="utf-8")) for path in parts]
    runs = sorted((run for record in records for run in record["runs"]),
                  key=lambda r: (VARIANTS.index(r["variant"]), -r["warmup"], r["depth"], r["steps"], r["rate"], r["seed"]))
    print(write("depth", {**records[0], "runs": runs}))
    for path in parts:
        path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=VARIANTS, choices=VARIANTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--depths", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--rates", nargs="+", type=float, default=[0.001, 0.003])
    parser.add_argument("--warmups", nargs="+", type=int, default=[50, 0], help="steps of rising rate")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--part", default="", help="a name for this process's share")
    parser.add_argument("--join", action="store_true")
    given = parser.parse_args()
    if given.join:
        return join()
    name = f"depth_{given.part}" if given.part else "depth"
    path = RESULTS / f"{name}.json"
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.is_file() else []
    done = {(r["variant"], r["warmup"], r["depth"], r["rate"], r["seed"], r["steps"]) for r in runs}
    for variant, warmup, depth in cells(given.only, given.depths, given.warmups):
        for rate in given.rates:
            for seed in given.seeds:
                if (variant, warmup, depth, rate, seed, given.steps) in done:
                    continue
                losses, valid, test = train(variant, depth, rate, warmup, seed, given.steps)
                runs.append({"variant": variant, "warmup": warmup, "depth": depth, "rate": rate, "seed": seed, "steps": given.steps,
                             "valid": round(valid, 4), "test": round(test, 4), "loss": round(sum(losses[-10:]) / 10, 4),
                             "losses": [round(loss, 3) for loss in losses[9::10]]})
                write(name, {**facts(), "task": f"reverse {LENGTH} digits", "sizes": {"D": D, "F": FF, "H": HEADS},
                             "batch": 48, "runs": runs})
                print(f"{variant} warm-up {warmup} depth {depth} rate {rate} seed {seed}: right {test:.3f}", flush=True)


if __name__ == "__main__":
    main()

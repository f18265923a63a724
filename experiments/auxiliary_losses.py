"""Do the extra losses of Al-Rfou et al. 2018 help a small language model? Six layers, with and without them.

    python experiments/auxiliary_losses.py --seeds 1 2 3

The text is tinyshakespeare (`transformer-course data fetch tinyshakespeare`, or TRANSFORMER_COURSE_DATA), by
characters, in segments of 64. All variants have the same model, batches and steps, and begin with the same weights; they
differ in their loss, and each has the rate that suits it: of neighbours by the factor 1.5, the best on `valid` (seed 1, all
steps), with a worse one tried on either side. The losses:

- "none": the next character, at every place, after the last layer;
- "layers": every layer predicts it too, through an output matrix of its own. Of n layers, layer l stops after the share
  l / 2n of the training, so that all have stopped at its half;
- "two ahead": every place also predicts the character after the next, through a matrix of its own; weight one half;
- "both".

The extra matrices are thrown away; `test` is scored with the last layer's prediction of the next character alone.
Writes results/auxiliary_losses.json after each run, and goes on where an earlier call stopped. One thread.
"""
import argparse
import json
import math
import time

import torch
from records import RESULTS, best_rate, facts, write
from torch import nn
from torch.nn import functional as F

from transformer_course.data.corpora import load
from transformer_course.data.text import Tokenizer
from transformer_course.models.functional import causal_mask
from transformer_course.models.segments import SegmentBatches, window_losses
from transformer_course.models.transformer_lm import TransformerLM
from transformer_course.training.schedules import linear_decay
from transformer_course.training.settings import Settings
from transformer_course.training.trainer import fit

NAME, LENGTH, ROWS, STEPS, LAYERS, FIRST_RATE, WEIGHT = "auxiliary_losses", 64, 16, 1000, 6, 0.004, 0.5
VARIANTS = {"none": (False, False), "layers": (True, False), "two ahead": (False, True), "both": (True, True)}


class Helped(nn.Module):
    """A language model and its extra losses; `steps` says how long it will be trained."""

    def __init__(self, inner: TransformerLM, layers: bool, ahead: bool, steps: int, words: int, d_model: int):
        super().__init__()
        matrix = lambda: nn.Linear(d_model, words, bias=False)
        self.inner, self.steps, self.done, n = inner, steps, 0, len(inner.stack.layers)
        self.by_layer = nn.ModuleList(matrix() for layer in range(n - 1) if layers)                # of the layers below the last
        self.ahead = nn.ModuleList(matrix() for layer in range(n if layers else 1) if ahead)       # the last layer's stands last

    def teaches(self, layer: int) -> bool:   # layers are numbered from 1
        """Whether a layer below the last still has losses of its own."""
        return bool(len(self.by_layer)) and self.done / self.steps < layer / (2 * len(self.inner.stack.layers))

    def loss(self, tokens, smoothing=0.0):
        inner, n = self.inner, len(self.inner.stack.layers)
        x, mask = inner.embedding(tokens[:, :-1]), causal_mask(tokens.shape[1] - 1)
        nats = lambda logits, shift: F.cross_entropy(logits[:, :logits.shape[1] - shift].flatten(0, 1), tokens[:, 1 + shift:].flatten())
        total = 0.0
        for number, layer in enumerate(inner.stack.layers, start=1):
            x = layer(x, mask)
            if number < n and not self.teaches(number):
                continue
            hidden = inner.stack.final_norm(x)
            total = total + nats(inner.output(hidden) if number == n else self.by_layer[number - 1](hidden), 0)
            if len(self.ahead):
                total = total + WEIGHT * nats(self.ahead[number - 1 if len(self.ahead) == n else 0](hidden), 1)
        self.done += self.training
        return total


def run(variant, rate, seed, steps, words, ids):
    """Train once and score the test text."""
    torch.manual_seed(seed)
    inner = TransformerLM(words, d_model=64, n_heads=4, n_layers=LAYERS, d_ff=256, max_len=LENGTH, dropout=0.0)
    model, begun = Helped(inner, *VARIANTS[variant], steps, words, 64), time.perf_counter()
    fit(model, SegmentBatches(ids["train"], LENGTH, ROWS), linear_decay(rate, 100), steps=steps, progress=False,
        settings=Settings(smoothing=0.0, seed=seed, device="cpu", precision="highest"))
    bits = lambda split: round(window_losses(inner.eval(), ids[split], LENGTH).mean().item() / math.log(2), 4)
    return {"seed": seed, "seconds": round(time.perf_counter() - begun, 1), "valid": bits("valid"), "test": bits("test")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"steps": STEPS, "variants": {}}
    if record["steps"] != STEPS or "rate" in record:
        raise SystemExit(f"{path.name} has runs of other steps or rates: move it away first")
    variants = record["variants"]
    corpus = load("tinyshakespeare")
    texts = {split: "\n".join(part.text for part in corpus[split]) for split in ("train", "valid", "test")}
    tokenizer = Tokenizer.train([texts["train"]], kind="characters", size=200)
    ids = {split: torch.tensor(tokenizer.encode(text)) for split, text in texts.items()}

    def stored():
        write(NAME, {**facts(), "data": "tinyshakespeare", "length": LENGTH, "rows": ROWS, "steps": STEPS, "layers": LAYERS,
                     "seeds": sorted({r["seed"] for found in variants.values() for r in found["runs"]}), "variants": variants})

    for variant in VARIANTS:
        if variant not in variants:
            held = {}

            def valid(rate):
                held[rate] = run(variant, rate, 1, STEPS, len(tokenizer), ids)
                print(variant, rate, held[rate], flush=True)
                return held[rate]["valid"]

            rate, tried = best_rate(valid, FIRST_RATE, factor=1.5)
            variants[variant] = {"rate": rate, "valid": tried, "runs": [held[rate]]}
            stored()
    for seed in given.seeds:
        for variant, found in variants.items():
            if all(r["seed"] != seed for r in found["runs"]):
                found["runs"].append(run(variant, found["rate"], seed, STEPS, len(tokenizer), ids))
                stored()
                print(variant, found["runs"][-1], flush=True)


if __name__ == "__main__":
    main()

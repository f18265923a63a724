"""What do weights of fewer bits cost in BLEU? A trained translator decodes `valid` with float32, bfloat16 and 8-bit weights.

    python benchmarks/lower_precision.py FOLDER [--data multi30k] [--pair en-de]

bfloat16 is `precision="medium"`: the whole fast decoder (lesson 27) computes in it where the processor has units for it. The
8-bit weights are rounded, each row of a matrix with its own scale, and computed with in float32, so their row says what the rounding
costs, not what it would save. Seconds are of the whole split, one run each, so they are only a hint; the three take turns for the two
beams. Writes benchmarks/results/lower_precision.json.
"""
import argparse
import copy
import time

import torch
from timing import record
from torch import nn

from transformer_course.data.corpora import load
from transformer_course.pipelines.translator import Translator


@torch.no_grad()
def eight_bits(model: nn.Module) -> nn.Module:
    """A copy whose matrices hold at most 255 different values in each row, from -127 to 127 times a scale."""
    rounded = copy.deepcopy(model)
    for weight in rounded.parameters():
        if weight.dim() == 2:
            scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
            weight.copy_((weight / scale).round() * scale)
    return rounded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--data", default="multi30k")
    parser.add_argument("--pair", default="en-de")
    given = parser.parse_args()
    plain = Translator.from_pretrained(given.folder)
    rounded = Translator(eight_bits(plain.model), plain.tokenizer, plain.config)
    valid = load(given.data, pair=given.pair)["valid"]
    ways = {"float32": (plain, "highest"), "bfloat16": (plain, "medium"), "weights in 8 bits": (rounded, "highest")}
    figures = {name: {} for name in ways}
    for beam_size in (1, 5):
        words = {}
        for name, (translator, precision) in ways.items():
            started = time.perf_counter()
            words[name] = translator.translate([pair.source for pair in valid], beam_size=beam_size, precision=precision)
            seconds = time.perf_counter() - started
            score = translator.evaluate(valid, "valid", beam_size=beam_size, precision=precision)
            same = sum(a == b for a, b in zip(words[name], words["float32"])) / len(valid)
            figures[name][f"beam {beam_size}"] = {"bleu": score.bleu, "the same sentence": same, "seconds": seconds}
            print(f"beam {beam_size}, {name:18} BLEU {score.bleu:.2f}, {same:.0%} as in float32, {seconds:.1f} s", flush=True)
    trained = {"steps": plain.config["training"]["steps"], "commit": plain.config["training"].get("commit")}
    print(f"recorded in {record('lower_precision', {'data': given.data, 'pair': given.pair, 'sentences': len(valid), 'trained': trained, 'ways': figures})}")


if __name__ == "__main__":
    main()

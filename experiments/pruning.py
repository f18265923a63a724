"""Half of the heads or half of the feed-forward units of a translator are cut out: its size, its speed and its translations, before and after a little more training.

    python experiments/pruning.py --seeds 1 2 3

micro-Hindi. Each translator is trained once for a seed. Then a part of it is removed: in each attention the two heads, or in each feed-forward
network the half of the units, with the least importance by gradient on 200 training sentences, or at random. `zeros` sets as many single weights
to 0 as `both` removes, the smallest of the same matrices, and keeps them at 0. Each is trained for 200 more steps; the rate is searched with
seed 1, by BLEU on `valid`, until a worse one lies on either side. Seconds are those of the processor, the least of several rounds, in which the
variants take turns. `wide` times layers of random weights. Writes results/pruning.json after each step. One thread.
"""
import argparse
import json
import random
import time
from functools import cache

import torch
from records import RESULTS, best_rate, descend, facts, write
from torch.nn import functional as F

from transformer_course.data.corpora import load
from transformer_course.data.text import Tokenizer, pad
from transformer_course.models.head_importance import attentions, head_importance
from transformer_course.models.pruning import feed_forwards, pruned, unit_importance
from transformer_course.models.transformer import Transformer
from transformer_course.pipelines.decoding import encode_pairs
from transformer_course.pipelines.translator import Translator
from transformer_course.scoring import bleu

NAME, ROWS, WARMUP = "pruning", 32, 100
SIZES = {"d_model": 64, "n_heads": 4, "n_layers": 2, "d_ff": 256, "dropout": 0.0, "norm": "pre", "positions": "rotary"}
STEPS, RATE, MORE, FIRST, MEASURED = 1000, 0.005, 200, 0.002, 200
VARIANTS = ("whole", "both", "zeros", "heads", "units", "heads, random", "units, random")
WIDE = {"d_model": 512, "n_heads": 8, "n_layers": 2, "d_ff": 2048, "dropout": 0.0, "norm": "pre", "positions": "rotary"}


@cache
def data() -> tuple[list, Tokenizer]:
    """Token ids of the training pairs, from short to long, and the words of both languages."""
    pairs = load("micro-hindi")["train"]
    words = Tokenizer.train([text for pair in pairs for text in (pair.source, pair.target)], kind="words", size=2000)
    return sorted(encode_pairs(words, pairs), key=lambda row: len(row[0])), words


def learn(model: Transformer, steps: int, rate: float, seed: int, warmup: int, masks: dict | None = None) -> Transformer:
    """Adam, linear warm-up and decay; weights with a mask of 0 stay 0."""
    (rows, _), draw = data(), random.Random(seed)
    model.train().requires_grad_(True)
    named = dict(model.named_parameters())

    def loss(step):
        first = draw.randrange(len(rows) - ROWS + 1)
        src, tgt = (pad(side) for side in zip(*rows[first:first + ROWS]))
        return model.loss(src, tgt, smoothing=0.0)

    def keep_zeros(step):
        for name, mask in (masks or {}).items():
            named[name].data.mul_(mask)

    pace = lambda step: rate * min(step / warmup, 1 - (step - warmup) / (steps - warmup))
    return descend(model, loss, pace, steps, keep_zeros).eval().requires_grad_(False)


@cache
def translator(seed: int) -> Transformer:
    torch.manual_seed(seed)
    words = data()[1]
    return learn(Transformer(len(words), len(words), **SIZES), STEPS, RATE, seed, WARMUP)


@cache
def importance(seed: int) -> dict[str, torch.Tensor]:
    """Of each head and of each unit, by gradient; the mean over some training sentences."""
    model, (rows, _), total = translator(seed), data(), {}
    drawn = sorted(random.Random(seed).sample(rows, MEASURED), key=lambda row: len(row[0]))
    for first in range(0, MEASURED, 50):
        src, tgt = (pad(side) for side in zip(*drawn[first:first + 50]))
        losses = lambda: F.cross_entropy(model(src, tgt[:, :-1]).transpose(1, 2), tgt[:, 1:], ignore_index=model.pad_id, reduction="none").sum(1)
        for name, found in (head_importance(model, losses, 50) | unit_importance(model, losses, 50)).items():
            total[name] = total.get(name, 0) + found
    return total


def kept(variant: str, seed: int) -> dict[str, list[int]]:
    """By name of an attention or a feed-forward network the half that stays."""
    model, draw, found = translator(seed), random.Random(100 + seed), {}
    heads = {name: of.n_heads for name, of in attentions(model).items()} if "heads" in variant or variant in ("both", "zeros") else {}
    units = {name: of.expand.out_features for name, of in feed_forwards(model).items()} if "units" in variant or variant in ("both", "zeros") else {}
    for name, n in (heads | units).items():
        order = draw.sample(range(n), n) if "random" in variant else importance(seed)[name].argsort(descending=True).tolist()
        found[name] = sorted(order[:n // 2])
    return found


def zeroed(seed: int) -> tuple[Transformer, dict[str, torch.Tensor]]:
    """A copy with as many zeros as `both` removes, the smallest weights of the same parts; and where they are."""
    model, small = pruned(translator(seed), {}), pruned(translator(seed), kept("both", seed))
    parts = (*attentions(model), *feed_forwards(model))
    named = {name: p for name, p in model.named_parameters() if name.startswith(parts) and p.dim() == 2}
    gone = size(model) - size(small)
    threshold = torch.cat([p.flatten().abs() for p in named.values()]).kthvalue(gone).values
    masks = {name: (p.abs() > threshold).float() for name, p in named.items()}
    for name, p in named.items():
        p.data.mul_(masks[name])
    return model, masks


def size(model: Transformer) -> int:
    return sum(p.numel() for p in model.parameters())


def variant_of(variant: str, seed: int) -> tuple[Transformer, dict | None]:
    if variant == "zeros":
        return zeroed(seed)
    return pruned(translator(seed), {} if variant == "whole" else kept(variant, seed)), None


@cache
def trained(variant: str, rate: float, seed: int) -> Transformer:
    """A variant after some more steps."""
    model, masks = variant_of(variant, seed)
    return learn(model, MORE, rate, 1000 + seed, MORE // 10, masks)


def score(model: Transformer, split: str) -> dict:
    pairs = load("micro-hindi")[split]
    texts = Translator(model, data()[1], {}).translate([pair.source for pair in pairs], beam_size=1)
    gold = [pair.target for pair in pairs]
    return {"exact": round(sum(map(str.__eq__, texts, gold)) / len(pairs), 4), "bleu": round(bleu(texts, gold).value, 2)}


def seconds(works: dict, rounds: int) -> dict[str, float]:
    """The least processor time of each piece of work; they take turns."""
    least = {name: float("inf") for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            begun = time.process_time()
            work()
            least[name] = min(least[name], time.process_time() - begun)
    return least


def speeds(rounds: int = 5) -> dict[str, dict[str, float]]:
    """Sentences of test a second, greedy: 200 together, and one at a time."""
    sources = [pair.source for pair in load("micro-hindi")["test"][:200]]
    models = {variant: Translator(variant_of(variant, 1)[0], data()[1], {}) for variant in VARIANTS if "random" not in variant}
    together = seconds({name: (lambda one=one: one.translate(sources, beam_size=1)) for name, one in models.items()}, rounds)
    alone = seconds({name: (lambda one=one: [one.translate([text], beam_size=1) for text in sources[:30]]) for name, one in models.items()}, rounds)
    return {name: {"together": round(200 / together[name], 1), "alone": round(30 / alone[name], 1)} for name in models}


@torch.inference_mode()
def wide(rounds: int = 5) -> dict[str, dict[str, float]]:
    """Milliseconds of a pass through layers of the size of the first Transformer, for 16 sentences of 24 words, and their weights."""
    torch.manual_seed(1)
    model = Transformer(50, 50, **WIDE).eval()
    heads = {name: list(range(of.n_heads // 2)) for name, of in attentions(model).items()}
    units = {name: list(range(of.expand.out_features // 2)) for name, of in feed_forwards(model).items()}
    zeros = pruned(model, {})
    for part in (*attentions(zeros).values(), *feed_forwards(zeros).values()):
        for p in part.parameters():
            p.data.mul_(torch.rand_like(p) < 0.5)
    models = {"whole": model, "heads": pruned(model, heads), "units": pruned(model, units), "both": pruned(model, heads | units), "zeros": zeros}
    src, tgt = torch.randint(4, 50, (16, 24)), torch.randint(4, 50, (16, 24))
    least = seconds({name: (lambda one=one: one(src, tgt)) for name, one in models.items()}, rounds)
    return {name: {"milliseconds": round(1000 * least[name], 1), "parameters": size(one)} for name, one in models.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {
        **facts(), "sizes": SIZES, "steps": STEPS, "more": MORE, "rows": ROWS, "wide sizes": WIDE, "variants": {}}
    for name, measure in (("wide", wide), ("speeds", speeds)):
        if name not in record:
            record[name] = measure()
            print(name, record[name], flush=True)
            write(NAME, record)
    for variant in VARIANTS:
        if variant not in record["variants"]:
            small = variant_of(variant, 1)[0]
            rate, tried = best_rate(lambda rate: 100 - score(trained(variant, rate, 1), "valid")["bleu"], FIRST)
            record["variants"][variant] = {
                "parameters": size(small), "not zero": sum(int((p != 0).sum()) for p in small.parameters()), "rate": rate, "rates": tried, "runs": []}
        for seed in given.seeds:
            if seed not in [one["seed"] for one in record["variants"][variant]["runs"]]:
                before, after = variant_of(variant, seed)[0], trained(variant, record["variants"][variant]["rate"], seed)
                record["variants"][variant]["runs"].append({"seed": seed, "before": score(before, "test"), "after": score(after, "test")})
                print(variant, record["variants"][variant], flush=True)
                write(NAME, record)


if __name__ == "__main__":
    main()

"""What each way of computing a part of a decoding step costs, on one core: what lesson 27 took, and what it left.

    python benchmarks/fast_step.py [--rows 100] [--rounds 30]

The sizes are those of the preset "tiny" with 8,000 words: a step of `rows` hypotheses. All ways of one part take turns; a figure is
the median, in microseconds, and beside it the median over the rounds of the first way's time divided by its own. Each way but those
that change the numbers (8 bits, bfloat16) must agree with the first before it is timed. Results go to benchmarks/results/fast_step_cpu.json.
"""
import argparse
import statistics

import torch
from timing import interleaved, record
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

D, F_INNER, V, H, K, SOURCE, PLACES, BLOCK, SHORTLIST = 128, 256, 8000, 4, 32, 15, 48, 1000, 1500


def products(rows: int, inner: int, outer: int) -> dict:
    "A linear map of some rows."
    x, weight, bias = torch.randn(rows, inner), torch.randn(outer, inner) / inner**0.5, torch.randn(outer)
    turned = weight.t().contiguous()
    ways = {"F.linear": lambda: F.linear(x, weight, bias), "turned over": lambda: torch.addmm(bias, x, turned)}
    return ways | by_onednn(x, turned, bias)


def by_onednn(x: Tensor, turned: Tensor, bias: Tensor | None) -> dict:
    "The product by the library that lesson 27 takes, where PyTorch has it."
    onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return {"oneDNN": lambda: onednn(x, turned.t(), bias, "none", [], "")} if onednn else {}


def vocabulary(rows: int) -> dict:
    "The product with the vocabulary, which is most of a step."
    x, weight = torch.randn(rows, D), torch.randn(V, D) / D**0.5
    turned, memory = weight.t().contiguous(), torch.empty(rows, V)
    blocks = [turned[:, first:first + BLOCK].contiguous() for first in range(0, V, BLOCK)]
    ways = {"F.linear": lambda: F.linear(x, weight), "turned over": lambda: x @ turned,
            "turned over, into memory that is kept": lambda: torch.mm(x, turned, out=memory),
            "blocks of 1,000 words": lambda: torch.cat([x @ block for block in blocks], 1)}
    return ways | by_onednn(x, turned, None)


def cheaper_vocabulary(rows: int) -> dict:
    "The same with other numbers: not the same translations."
    x, weight = torch.randn(rows, D), torch.randn(V, D) / D**0.5
    half, some = weight.bfloat16(), weight[:SHORTLIST].t().contiguous()
    eight = torch.ao.nn.quantized.dynamic.Linear.from_float(_prepared(weight)) if torch.backends.quantized.supported_engines else None
    ways = {"F.linear": lambda: F.linear(x, weight), "bfloat16": lambda: F.linear(x.bfloat16(), half),
            "only 1,500 words": lambda: x @ some}
    return ways if eight is None else ways | {"8 bits": lambda: eight(x)}


def _prepared(weight: Tensor) -> torch.nn.Linear:
    layer = torch.nn.Linear(*weight.shape[::-1], bias=False)
    layer.weight.data.copy_(weight)
    layer.qconfig = torch.ao.quantization.default_dynamic_qconfig
    return layer


def softmax(rows: int) -> dict:
    "The weights over a source of 15 words, and over 16 places of which the last is masked."
    scores = torch.randn(rows, H, 1, SOURCE)
    padded = F.pad(scores, (0, 1), value=torch.finfo(scores.dtype).min)
    return {"15 places": lambda: scores.softmax(-1), "16 places": lambda: padded.softmax(-1)[..., :SOURCE]}


def attention(rows: int) -> dict:
    "One query per hypothesis and head over 48 cached words."
    query, keys, values = (torch.randn(rows, H, n, K) for n in (1, PLACES, PLACES))
    flat = [part.flatten(0, 1) for part in (query, keys, values)]
    wide = [F.pad(part, (0, 0, 0, 16))[:, :, :PLACES] for part in (keys, values)]     # gaps between the heads
    def product(q, k, v):
        return ((q @ k.mT * K**-0.5).softmax(-1) @ v).view(rows, H, 1, K)
    return {"read as a whole": lambda: product(*flat), "with gaps": lambda: product(query, *wide),
            "PyTorch's fused attention": lambda: F.scaled_dot_product_attention(query, keys, values)}


def choice(rows: int) -> dict:
    "The likeliest of 8,000 words."
    logp = torch.randn(rows, V).log_softmax(-1)
    groups = logp.view(rows, 80, 100)
    def in_two_steps():
        best = groups.amax(2).argmax(1)
        return 100 * best + groups[torch.arange(rows), best].argmax(1)
    return {"argmax": lambda: logp.argmax(1), "in two steps": in_two_steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    torch.manual_seed(1)
    parts = {f"product, {D} to {3 * D}": products(given.rows, D, 3 * D), f"product, {D} to {D}": products(given.rows, D, D),
             f"product, {F_INNER} to {D}": products(given.rows, F_INNER, D), f"product, {D} to {V:,}": vocabulary(given.rows),
             f"product, {D} to {V:,}, other numbers": cheaper_vocabulary(given.rows), "softmax over the source": softmax(given.rows),
             "attention to 48 words": attention(given.rows), "choice of the likeliest word": choice(given.rows)}
    figures = {}
    with torch.inference_mode():
        for part, ways in parts.items():
            first = next(iter(ways))
            for way in ways.values() if "other numbers" not in part else ():
                assert_close(way(), ways[first](), rtol=1e-4, atol=1e-4)
            seconds = interleaved({name: lambda way=way: [way() for _ in range(10)] for name, way in ways.items()},
                                  given.rounds, torch.device("cpu"), threads=1)
            figures[part] = {name: {"microseconds": 1e5 * statistics.median(own), "first / it":
                                    statistics.median(a / b for a, b in zip(seconds[first], own))} for name, own in seconds.items()}
            print(f"\n{part}")
            for name, row in figures[part].items():
                print(f"  {name:40} {row['microseconds']:9.1f} µs  {row['first / it']:.2f}")
    print(f"\nrecorded in {record('fast_step_cpu', {'rows': given.rows, 'rounds': given.rounds, 'threads used': 1, 'parts': figures})}")


if __name__ == "__main__":
    main()

"""Time and memory of attention against the length of a text: all products, PyTorch's fused kernel, a window, linear.

    python benchmarks/long_texts.py [--longest 16384] [--rounds 3] [--threads 2]

One text, 4 heads of 32 numbers, forward and backward. Candidates take their turns in each round, and times are medians. Each peak of
memory is measured in a process of its own, beyond what was there before the call. What needs more memory than --most gigabytes by its
matrices alone is left out, as null. Linux only. Results go to benchmarks/results/long_texts.json.
"""
import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from timing import grown, interleaved, record, summary

from transformer_course.models.attention import attention, plain_attention
from transformer_course.models.efficient import Strided, Window, masked_attention
from transformer_course.models.linear_attention import Linear

HEADS, SIZE, WIDTH = 4, 32, 64
WAYS = {"all products": plain_attention, "fused": attention,
        "fused, with the window as a mask": lambda *given: masked_attention(Window(WIDTH), *given),
        "window": Window(WIDTH), "strided": Strided(WIDTH), "linear": Linear(), "linear, causal": Linear(causal=True)}


def call(name: str, length: int):
    """A function without arguments: forward and backward."""
    torch.manual_seed(1)
    given = [torch.randn(1, HEADS, length, SIZE, requires_grad=True) for part in range(3)]
    return lambda: torch.autograd.grad(WAYS[name](*given)[0].sum(), given)


def fits(name: str, length: int, most: float) -> bool:
    """Whether three matrices of weights and a mask of floats, where there are any, take less than `most` gigabytes."""
    matrices = {"all products": 3 * HEADS, "fused, with the window as a mask": 3}.get(name, 0)
    return matrices * length**2 * 4 < most * 1e9


def peak(name: str, length: int, threads: int) -> float:
    """Megabytes, in a process of its own."""
    command = [sys.executable, str(Path(__file__)), "--alone", name, "--longest", str(length), "--threads", str(threads)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longest", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--most", type=float, default=8.0, help="gigabytes")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.alone:
        call(given.alone, 128)()
        return print(round(grown(call(given.alone, given.longest), 1, torch.device("cpu")), 1))
    lengths = [2**n for n in range(8, given.longest.bit_length())]
    rows = {name: {"milliseconds": [], "megabytes": []} for name in WAYS}
    for length in lengths:
        there = {name: call(name, length) for name in WAYS if fits(name, length, given.most)}
        seconds = summary(interleaved(there, given.rounds, torch.device("cpu"), threads=given.threads), "fused")
        for name, row in rows.items():
            row["milliseconds"].append(round(seconds[name]["milliseconds"], 2) if name in there else None)
            row["megabytes"].append(peak(name, length, given.threads) if name in there else None)
        print(length, {name: (row["milliseconds"][-1], row["megabytes"][-1]) for name, row in rows.items()}, flush=True)
    figures = {"heads": HEADS, "size of a head": SIZE, "width": WIDTH, "rounds": given.rounds, "threads": given.threads, "lengths": lengths, "ways": rows}
    print(f"\nrecorded in {record('long_texts', figures)}")


if __name__ == "__main__":
    main()

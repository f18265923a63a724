"""Interleaved timing: every candidate takes its turn in each round, and ratios are medians over rounds."""
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from transformer_course.training import hardware


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def interleaved(candidates: dict[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds of each call, after one round that does not count."""
    seconds = {name: [] for name in candidates}
    for turn in range(rounds + 1):
        for name, call in candidates.items():
            synchronise(device)
            started = time.perf_counter()
            call()
            synchronise(device)
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def summary(seconds: dict[str, list[float]], base: str) -> dict[str, dict[str, float]]:
    """For each candidate the median time, and the median over rounds of base's time / its own."""
    return {name: {"milliseconds": 1000 * statistics.median(own),
                   "ratio": statistics.median(b / o for b, o in zip(seconds[base], own))}
            for name, own in seconds.items()}


def show(title: str, rows: dict[str, dict[str, float]], base: str) -> None:
    """Print a summary as a table."""
    print(f"\n{title}\n{'':34} {'ms':>9}  times as fast as {base}")
    for name, row in rows.items():
        print(f"{name:34} {row['milliseconds']:9.2f}  {row['ratio']:.2f}")


def record(name: str, figures: dict) -> Path:
    """Write the figures with the hardware's name into benchmarks/results."""
    path = Path(__file__).parent / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"hardware": hardware(), "date": time.strftime("%Y-%m-%d"), **figures}, indent=1) + "\n",
                    encoding="utf-8")
    return path

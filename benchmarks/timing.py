"""Interleaved timing: every candidate takes its turn in each round, and ratios are medians over rounds. And memory."""
import importlib.metadata
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from transformer_course.training.settings import matmul_precision

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
from records import facts    # noqa: E402   what every record says: hardware, date, commit

THREADS = torch.get_num_threads()    # read before a peer is made: CTranslate2 sets PyTorch's number when it loads a model
PEERS = ("transformers", "ctranslate2", "x-transformers", "joeynmt")    # packages, whose versions a record names


def precisions(device: torch.device) -> tuple[str, str]:
    """The two ways of computing that are timed on a device."""
    return "highest", "bf16" if device.type == "cuda" else "medium"


@contextmanager
def arithmetic(precision: str, device: torch.device) -> Iterator[None]:
    """Inside the block float32 products are of this precision; "bf16" is autocast (leave it before the backward pass)."""
    with matmul_precision("highest" if precision == "bf16" else precision), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        yield


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def interleaved(candidates: dict[str, Callable[[], object]], rounds: int, device: torch.device, pause: float = 0.0,
                warm: int = 1, threads: int = THREADS) -> dict[str, list[float]]:
    """Seconds of each call, after `warm` rounds that do not count; each round begins with another candidate.

    A pause before each call lets the threads of the last one go to sleep: those of another library's OpenMP spin for a
    while and take the cores away. Each call begins with `threads` of PyTorch's own.
    """
    seconds = {name: [] for name in candidates}
    for turn in range(warm + rounds):
        order = list(candidates.items())
        for name, call in order[turn % len(order):] + order[:turn % len(order)]:
            synchronise(device)
            torch.set_num_threads(threads)
            time.sleep(pause)
            started = time.perf_counter()
            call()
            synchronise(device)
            if turn >= warm:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def summary(seconds: dict[str, list[float]], base: str) -> dict[str, dict[str, float]]:
    """For each candidate the median time, and the median over rounds of base's time / its own."""
    return {name: {"milliseconds": 1000 * statistics.median(own),
                   "ratio": statistics.median(b / o for b, o in zip(seconds[base], own))}
            for name, own in seconds.items()}


def resident(field: str) -> float:
    "Megabytes of this process in memory, now (VmRSS) or at most (VmHWM); Linux."
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024


def grown(call: Callable[[], object], times: int, device: torch.device) -> float | None:
    """Megabytes that the calls needed at their peak beyond what was there before; None where nobody can tell (a CPU without Linux)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    elif Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")         # the peak begins anew
        before = resident("VmRSS")
    else:
        return None
    for turn in range(times):
        call()
    synchronise(device)
    return (torch.cuda.max_memory_allocated() - before) / 2**20 if device.type == "cuda" else resident("VmHWM") - before


def show(title: str, rows: dict[str, dict[str, float]], base: str) -> None:
    """Print a summary as a table."""
    print(f"\n{title}\n{'':34} {'ms':>9}  {'times as fast as ' + base:40}")
    for name, row in rows.items():
        more = "".join(f"  {row[key]:,.0f} {key}" for key in ("tokens per second", "% of the peak", "megabytes") if row.get(key) is not None)
        print(f"{name:34} {row['milliseconds']:9.2f}  {row['ratio']:.2f}{more}")


def versions() -> dict[str, str]:
    """Of the peers that are installed."""
    found = {}
    for package in PEERS:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def record(name: str, figures: dict, device: torch.device | str = "cpu") -> Path:
    """Write the figures with hardware, date, commit and the peers' versions into benchmarks/results."""
    path = Path(__file__).parent / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**facts(str(device)), "versions": versions(), **figures}, indent=1) + "\n",
                    encoding="utf-8")
    return path

"""What every record of a long run holds beside its figures: the machine, the date, the state of the code."""
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor, nn

from transformer_course.records import hardware

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


@cache
def commit() -> str:
    """The commit that was checked out when it was first asked, with a mark if the package differs from it."""
    git = lambda *words: subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True).stdout.strip()
    changed = git("status", "--porcelain", "../transformer_course")
    return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")


def facts(device: str = "cpu") -> dict:
    """Hardware, date and commit of a run that starts now."""
    return {"hardware": hardware(device), "date": time.strftime("%Y-%m-%d"), "commit": commit()}


def joined_facts(record: dict) -> dict:
    """The facts of a record to which a call adds something: those of now, and all commits whose code made a part of it."""
    now = facts()
    earlier = [one for one in record.get("commit", "").split(", ") if one not in ("", now["commit"])]
    return now | {"commit": ", ".join([*earlier, now["commit"]])}


def write(name: str, record: dict) -> Path:
    """Store a record as results/NAME.json, whole or not at all."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    draft = path.with_suffix(".part")
    text = json.dumps(record, indent=1, ensure_ascii=False)
    text = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda found: "[" + re.sub(r"\s+", " ", found[1]) + "]", text)    # short lists in one line
    draft.write_text(text + "\n", encoding="utf-8")
    draft.replace(path)
    return path


def kept(path: Path, make: Callable):
    """What make returns, stored in a file; computed once for all processes and calls."""
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        torch.save(make(), path)
    return torch.load(path)


def best_rate(
    loss: Callable[[float], float],    # rate -> loss on valid of a model trained with it; nan counts as worst
    first: float,                      # the rate to begin with
    factor: float = 2.0,               # between neighbouring rates
    most: int = 9,                     # rates to try
) -> tuple[float, dict[str, float]]:   # the best rate; the loss of every rate tried, lowest rate first
    """The rate with the lowest loss, with a worse one tried on either side of it.

    Raises ValueError if the best of `most` rates is still the lowest or the highest.
    """
    tried, rate = {}, first
    while len(tried) < most:
        found = loss(rate)
        tried[rate] = found if found == found else float("inf")
        best = min(tried, key=tried.get)
        if best == max(tried):
            rate = best * factor
        elif best == min(tried):
            rate = best / factor
        else:
            return best, {str(rate): round(tried[rate], 4) for rate in sorted(tried)}
    raise ValueError(f"best_rate: the best rate, {best}, is still at the edge of {sorted(tried)}")


def descend(
    model: nn.Module,
    loss: Callable[[int], Tensor],     # of the batch of a step, from 1
    rate: Callable[[int], float],      # of a step
    steps: int,
    after: Callable[[int], None] = lambda step: None,      # called when a step is done
) -> nn.Module:
    """The model, trained by Adam with the betas of the Transformer's paper; gradients longer than 1 are cut to 1."""
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    for step in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = rate(step)
        found = loss(step)
        optimizer.zero_grad()
        found.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        after(step)
    return model


def shared(
    work: Callable,            # a function of a module, not a lambda: it is called in other processes
    tasks: Sequence[tuple],    # its arguments, task by task
    jobs: int,                 # processes at a time, of one thread each
) -> Iterator[tuple[tuple, dict]]:
    """Each task and its result, in the order in which they are done."""
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        running = {pool.submit(work, *task): task for task in tasks}
        for done in as_completed(running):
            yield running[done], done.result()

"""Lesson 26's two waterfalls with the preset's batches: what each cause takes from a training and a decoding step.

    python benchmarks/waterfalls.py [--cells 4096] [--sentences 24] [--rounds 5] [--threads 1 2]

Runs the lesson's own code cells with larger numbers in place of its cell of parameters and the clock on the wall, once
for each number of threads; their assertions, some of which count at the lesson's size, are left to the test suite. Figures go to benchmarks/results/waterfalls.json. Some six minutes.
"""
import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

LESSON = Path(__file__).parent.parent / "nbs" / "lessons" / "26_speed.ipynb"
OF_ALL = ("training", "decoding")    # names in the lesson: milliseconds by stage


def cells(lesson: Path) -> list[tuple[str, list[str]]]:
    """Source and tags of each code cell."""
    found = json.loads(lesson.read_text(encoding="utf-8"))["cells"]
    return [("".join(cell["source"]), cell["metadata"].get("tags", [])) for cell in found if cell["cell_type"] == "code"]


def run(parameters: str) -> dict:
    """Names that the lesson leaves when its parameters are these."""
    import matplotlib
    matplotlib.use("Agg")
    names = {}
    for number, (source, tags) in enumerate(cells(LESSON)):
        exec(compile(source, f"{LESSON.name}, code cell {number}", "exec", optimize=1), names)
        if "parameters" in tags:
            exec(parameters, names)
    return names


def worker(parameters: str) -> None:
    """Run the lesson in this process; the last line printed holds the figures."""
    names = run(parameters)
    figures = {what: {stage.replace("\n", " "): ms for stage, ms in names[what].items()} for what in OF_ALL}
    print(json.dumps(figures))


def measured(given: argparse.Namespace, threads: int) -> dict:
    """Figures of one process with so many threads."""
    parameters = f"BATCH, QUEUE, ROUNDS, clock = {given.cells}, {given.sentences}, {given.rounds}, time.perf_counter"
    done = subprocess.run([sys.executable, __file__, "--worker", parameters], env=os.environ | {"OMP_NUM_THREADS": str(threads)},
                          stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=4096)
    parser.add_argument("--sentences", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        return worker(given.worker)
    from timing import record
    figures = {f"threads {threads}": measured(given, threads) for threads in given.threads}
    for title, found in figures.items():
        for what, stages in found.items():
            plain = next(iter(stages.values()))
            print(f"\n{what}, {title}: milliseconds, times as fast as plain")
            for stage, ms in stages.items():
                print(f"{stage:28} {ms:8.1f} {plain / ms:6.2f}")
    unit = "training: ms for 1,000 real target tokens; decoding: ms for a word; least of the rounds, which take turns"
    settings = {"cells": given.cells, "sentences": given.sentences, "rounds": given.rounds, "unit": unit}
    print(f"\nrecorded in {record('waterfalls', settings | figures)}")


if __name__ == "__main__":
    main()

"""Prove the exercises' checks: each solution passes, each prompt is not attempted, each listed mistake gets its name.

    python tools/prove.py [--jobs 2] [NAME ...]     NAME: of a lesson, or the start of it

Prints how many exercises and mistakes were covered, and how many mistakes an exercise has at least and on average; exit 1
with the first line that does not hold of each exercise, or if the average is below LEAST.
"""
import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from transformer_course.checking.diagnosis import prove
from transformer_course.checking.exercise_notebooks import all_exercises

LEAST = 4      # mistakes of an exercise, on average


def proven(name: str) -> tuple[int, str]:
    """How many mistakes of an exercise are told apart, and what does not hold."""
    try:
        return prove(all_exercises()[name]), ""
    except AssertionError as problem:
        return 0, str(problem)


def lacking(counts: Sequence[int]) -> str:
    """What is wrong with the numbers of mistakes; nothing if there are enough."""
    mean = sum(counts) / len(counts) if counts else 0.0
    return "" if mean >= LEAST else f"{mean:.2f} mistakes an exercise on average: there should be {LEAST} at least"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lessons", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    exercises = [e for e in all_exercises().values() if not given.lessons or e.lesson.startswith(tuple(given.lessons))]
    with ProcessPoolExecutor(given.jobs) as pool:
        results = dict(zip(exercises, pool.map(proven, [e.name for e in exercises])))
    counts = [count for count, problem in results.values() if not problem]
    problems = [problem for problem in (*(problem for count, problem in results.values()), lacking(counts)) if problem]
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"{len(exercises)} exercises of {len({e.lesson for e in exercises})} lessons, {sum(counts)} mistakes told apart: "
          f"{min(counts, default=0)} an exercise at least, {sum(counts) / max(len(counts), 1):.1f} on average")
    raise SystemExit(bool(problems))


if __name__ == "__main__":
    main()

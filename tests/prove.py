"""Prove the exercises' checks: each solution passes, each prompt is not attempted, each listed mistake gets its name.

    python tests/prove.py [--jobs 2] [NAME ...]     NAME: of a lesson, or the start of it

Prints how many exercises and mistakes were covered; exit 1 with the first line that does not hold of each exercise.
"""
import argparse
from concurrent.futures import ProcessPoolExecutor

from transformer_course.checking import all_exercises, prove


def proven(name: str) -> tuple[int, str]:
    """How many mistakes of an exercise are told apart, and what does not hold."""
    try:
        return prove(all_exercises()[name]), ""
    except AssertionError as problem:
        return 0, str(problem)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lessons", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    exercises = [e for e in all_exercises().values() if not given.lessons or e.lesson.startswith(tuple(given.lessons))]
    with ProcessPoolExecutor(given.jobs) as pool:
        results = dict(zip(exercises, pool.map(proven, [e.name for e in exercises])))
    problems = [problem for mistakes, problem in results.values() if problem]
    print(*problems, sep="\n", end="\n" if problems else "")
    lessons, mistakes = {e.lesson for e in exercises}, sum(count for count, problem in results.values())
    print(f"{len(exercises)} exercises of {len(lessons)} lessons, {mistakes} mistakes told apart, {mistakes / max(len(exercises), 1):.1f} an exercise")
    raise SystemExit(bool(problems) or not exercises)


if __name__ == "__main__":
    main()

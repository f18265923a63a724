"""Train a translator on Multi30k through the command line, score it on test 2016, and record the figures.

    python experiments/multi30k.py --pair en-de --preset tiny --minutes 22 --seed 1

Needs the data set (`transformer-course data fetch multi30k`, or TRANSFORMER_COURSE_DATA). With OMP_NUM_THREADS=1 it
uses one core; the record names the threads. Nothing is tuned on the test set: it is looked at once, at the end. Writes
results/multi30k_<pair>_<model>_<preset>_<minutes>m.json; the trained model stays in runs/, which is not committed.
"""
import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from records import commit, write

HERE = Path(__file__).resolve().parent
COMMAND = [sys.executable, "-c", "from transformer_course.cli.app import main; main()"]
SENTENCES = ["A man in a blue shirt is standing on a ladder cleaning a window.",
             "Two dogs play with a red ball in the snow.",
             "A woman is reading a book while her children sleep."]


def call(*words: str, quiet: bool = False) -> str:
    """Run one command of `transformer-course`, showing its progress; returns what it prints."""
    done = subprocess.run([*COMMAND, *words], stdout=subprocess.PIPE, text=True, encoding="utf-8",
                          stderr=subprocess.DEVNULL if quiet else None)
    if done.returncode:
        raise SystemExit(f"`transformer-course {' '.join(words)}` failed with exit code {done.returncode}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default="en-de")
    parser.add_argument("--model", default="transformer")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--minutes", type=float, default=22)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    name = f"multi30k_{given.pair}_{given.model}_{given.preset}_{given.minutes:g}m"
    folder = HERE.parent / "runs" / f"{name}_{time.strftime('%Y%m%d-%H%M%S')}"
    started = commit()
    print(call("train", "--data", "multi30k", "--pair", given.pair, "--model", given.model, "--preset", given.preset,
               "--minutes", str(given.minutes), "--seed", str(given.seed), "--folder", str(folder)))
    scores = {}
    for beam in (1, 5):
        began = time.perf_counter()
        scores[f"beam {beam}"] = json.loads(call("evaluate", str(folder), "--split", "test_2016_flickr",
                                                 "--beam-size", str(beam), "--json"))
        print(f"test_2016_flickr, beam {beam}: {scores[f'beam {beam}']['bleu']:.2f} ({time.perf_counter() - began:.0f} s)")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    found = call("translate", str(folder), *SENTENCES).splitlines() if given.pair.startswith("en-") else []
    result = {"what": vars(given), "commit": started, "date": time.strftime("%Y-%m-%d"), "test_2016_flickr": scores,
              "valid": config["valid"], "training": config["training"], "sizes": config["sizes"],
              "translations": dict(zip(SENTENCES, found))}
    print(f"recorded in {write(name, result)}")


if __name__ == "__main__":
    main()

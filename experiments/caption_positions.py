"""Captions (Multi30k) translated by Transformers that differ in how they are told the positions; equal steps.

    python experiments/caption_positions.py

Needs the data set (`transformer-course data fetch multi30k`, or TRANSFORMER_COURSE_DATA). Size, vocabulary, rate, order of
the sentences and steps are the same for all. Nothing is tuned on the test set: it is looked at once, at the end, as a whole
and its longest quarter by itself. Writes results/caption_positions.json after each model, and goes on where an earlier
call stopped. With OMP_NUM_THREADS=1 it uses one core.
"""
import argparse
import json
import tempfile

import sacrebleu
from multi30k import call
from records import RESULTS, joined_facts, write

from transformer_course.data.corpora import load

SCHEMES = {"sinusoidal": "transformer", **{name: f"transformer-{name}" for name in ("rotary", "relative", "alibi", "learned")}}
SPLIT = "test_2016_flickr"


def scores(found: list[str], pairs: list) -> dict:
    """BLEU and chrF of all sentences, and of the quarter with the longest sources."""
    by_length = sorted(range(len(pairs)), key=lambda n: len(pairs[n].source.split()))
    figures = {}
    for name, chosen in (("all", by_length), ("longest quarter", by_length[-len(pairs) // 4:])):
        texts, gold = [found[n] for n in chosen], [[pairs[n].target for n in chosen]]
        figures[name] = {"bleu": round(sacrebleu.corpus_bleu(texts, gold).score, 2), "chrf": round(sacrebleu.corpus_chrf(texts, gold).score, 2),
                         "sentences": len(chosen), "fewest words": len(pairs[chosen[0]].source.split())}
    return figures


def run(model: str, settings: dict, pairs: list) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        call("train", "--data", "multi30k", "--pair", settings["pair"], "--model", model, "--preset", settings["preset"],
             "--steps", str(settings["steps"]), "--seed", str(settings["seed"]), "--folder", f"{folder}/model", quiet=True)
        sources = [pair.source for pair in pairs]
        found = call("translate", f"{folder}/model", "--beam-size", "1", "--", *sources, quiet=True).splitlines()
        with open(f"{folder}/model/config.json", encoding="utf-8") as file:
            config = json.load(file)
    last = config["training"]["history"][-1]
    return {"scores": scores(found, pairs), "valid": last["valid"], "seconds": round(last["seconds"]), "sizes": config["sizes"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2500)
    given = parser.parse_args()
    settings = {"pair": "en-de", "preset": "micro", "seed": 1, "steps": given.steps, "beam": 1}
    path, pairs = RESULTS / "caption_positions.json", load("multi30k", pair="en-de")[SPLIT]
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"settings": settings, "schemes": {}}
    if record["settings"] != settings:
        raise SystemExit(f"{path.name} was made with other settings")
    for name, model in SCHEMES.items():
        if name not in record["schemes"]:
            record["schemes"][name] = run(model, settings, pairs)
            record.update(joined_facts(record))
            write("caption_positions", record)
            print(name, record["schemes"][name], flush=True)


if __name__ == "__main__":
    main()

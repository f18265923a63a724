"""Questions about relations in drawn scenes, for a model that can find things and for one that begins from nothing; answers yes or no, or written out.

    python experiments/pictures.py --seeds 1 2 3               # first: it leaves the trained models in runs/
    python experiments/picture_relations.py --seeds 1 2 3

The models learn from 16,000 questions such as *is the red circle left of the blue square ?* alone. *after* begins with the model
*coordinates* of pictures.py with the same seed, *from nothing* with random weights. The answer is yes or no, or it is *written out*: two
columns or rows, then yes or no; it is right if all its words are. The rate of each is searched with seed 1, by the loss on `valid` after
a fifth of the steps, until a worse one lies on either side. Writes results/picture_relations.json after each run, and goes on where an
earlier call stopped. One thread.
"""
import argparse
import json
import time

import pictures as task
import torch
from records import RESULTS, best_rate, joined_facts, write

NAME, STEPS, FIRST = "picture_relations", 800, 0.002
SPLITS = {"train": (11, 16000, False), "valid": (12, 400, False), "test": (13, 1000, False)}     # seed, scenes
MODELS = ("after, written out", "after", "from nothing, written out", "from nothing")


def run(made, name: str, rate: float, seed: int, steps: int) -> tuple:
    """A trained model, its scores in training, and the seconds."""
    begun, curve = time.process_time(), {}
    weights = torch.load(task.WEIGHTS / f"pictures-coordinates-{seed}.pt") if name.startswith("after") else None
    model = task.train(made, "coordinates", rate, seed, steps, curve, weights)
    return model, curve, round(time.process_time() - begun, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", default=MODELS, choices=MODELS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    (plain, pictures, _), words, path = task.data(SPLITS, ("relation",)), task.data()[2], RESULTS / f"{NAME}.json"
    long = {split: [task.long(i) for i in of] for split, of in plain.items()}
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"models": {}}
    record = joined_facts(record) | {"steps": STEPS, "items": {name: len(of) for name, of in plain.items()}, "models": record["models"]}

    def valid_loss(made, name: str, rate: float) -> float:
        model = run(made, name, rate, 1, STEPS // 5)[0].requires_grad_(False)
        return model.loss(pictures["valid"], *task.rows(words, made[0]["valid"])).item()

    for seed in given.seeds:
        for name in given.only:
            made = (long if "written out" in name else plain), pictures, words
            if name not in record["models"]:
                rate, tried = best_rate(lambda rate: valid_loss(made, name, rate), FIRST)
                record["models"][name] = {"rate": rate, "rates": tried, "runs": []}
            of = record["models"][name]
            if seed not in [one["seed"] for one in of["runs"]]:
                model, curve, seconds = run(made, name, of["rate"], seed, STEPS)
                of["runs"].append({"seed": seed, "seconds": seconds, "curve": {step: scores["relation"] for step, scores in curve.items()},
                                   "test": task.scores(model, words, made[0]["test"], pictures["test"])["relation"],
                                   "relations": task.by_relation(model, words, made[0]["test"], pictures["test"]),
                                   "examples": [task.example(model, words, made[0]["test"], pictures["test"], i) for i in range(2)] if seed == 1 else []})
                print(name, json.dumps(of["runs"][-1]), flush=True)
                write(NAME, record)


if __name__ == "__main__":
    main()

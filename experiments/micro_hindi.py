"""Every translator of the course on micro-Hindi: the same data, batches, steps and search, several seeds.

    python experiments/micro_hindi.py --seeds 1 2 3 --steps 2000

Writes results/micro_hindi.json after each run, and goes on where an earlier call stopped: a model and seed that
are in the record already are not trained again (`--again NAME` trains one anew). Sizes and rates are the micro
preset's; `rates.py` compares its rates with their halves and doubles on `valid`. All splits are only scored. One
thread a process; name some models to share the work between processes: each process then writes
results/micro_hindi_PART.json, and `--join` adds the parts to the record.
"""
import argparse
import json

import torch
from records import RESULTS, commit, facts, write

from transformer_course.data.corpora import load
from transformer_course.data.hindi.corpus import focus_right
from transformer_course.pipelines.presets import MODELS
from transformer_course.pipelines.translator import Translator
from transformer_course.scoring import alignment_error_rate, bleu, chrf, exact_match, length_groups

SPLITS = ("test", "length", "distance", "roles")
EDGES = {"test": (4, 6, 8, 10, 12, 14, 17, 20, 23), "length": (29, 31, 33, 35, 37)}


def lengths(pairs, found, edges):
    """For each range of source lengths: shortest, longest, sentences, exact match, BLEU."""
    rows = []
    for members in length_groups([p.source for p in pairs], edges).values():
        sizes = [len(pairs[k].source.split()) for k in members]
        hypotheses, references = [found[k] for k in members], [pairs[k].target for k in members]
        rows.append([min(sizes), max(sizes), len(members), exact_match(hypotheses, references),
                     round(bleu(hypotheses, references).value, 2)])
    return rows


def focus(pairs, found, kind):
    """For each distance: how many challenges of a kind are met, and of how many."""
    counts = {}
    for pair, translation in zip(pairs, found):
        if pair.tags["kind"] == kind:
            count = counts.setdefault(str(pair.tags["distance"]), [0, 0])
            count[0] += focus_right(translation, pair)
            count[1] += 1
    return dict(sorted(counts.items(), key=lambda item: int(item[0])))


def run(model, seed, steps, corpus):
    """Train once, translate every split once, and count."""
    translator = Translator.train(corpus, model=model, preset="micro", steps=steps, seed=seed, device="cpu",
                                  precision="highest", progress=False)
    training = translator.config["training"]
    result = {"seed": seed, "commit": commit(), "seconds": round(training["seconds"], 1),
              "tokens_per_second": round(training["tokens"] / training["seconds"]),
              "valid": {k: translator.config["valid"][k] for k in ("exact_match", "bleu", "aer")}, "scores": {}, "by_length": {}}
    for split in SPLITS:
        pairs = corpus[split]
        found, references = translator.translate([p.source for p in pairs], beam_size=5), [p.target for p in pairs]
        aer = alignment_error_rate(translator.links(pairs), [p.links for p in pairs]) if hasattr(translator.model, "alignment") else None
        result["scores"][split] = {"exact_match": exact_match(found, references), "bleu": round(bleu(found, references).value, 2),
                                   "chrf": round(chrf(found, references).value, 2), "aer": aer}
        if split in EDGES:
            result["by_length"][split] = lengths(pairs, found, EDGES[split])
        if split == "distance":
            result |= {kind: focus(pairs, found, kind) for kind in ("subject", "ambiguous")}
    return sum(p.numel() for p in translator.model.parameters()), result


def join():
    """Add the parts to results/micro_hindi.json, models in the order of the scoreboard."""
    parts = sorted(RESULTS.glob("micro_hindi_*.json"))
    whole = {}
    for path in [*RESULTS.glob("micro_hindi.json"), *parts]:
        part = json.loads(path.read_text(encoding="utf-8"))
        models = whole.setdefault("models", {})
        whole = {**part, "models": models}
        for name, entry in part["models"].items():
            known = {r["seed"]: r for r in models.get(name, {"runs": []})["runs"]} | {r["seed"]: r for r in entry["runs"]}
            models[name] = {**entry, "runs": [known[seed] for seed in sorted(known)]}
    whole["models"] = {name: whole["models"][name] for name in MODELS if name in whole["models"]}
    whole["seeds"] = sorted({r["seed"] for entry in whole["models"].values() for r in entry["runs"]})
    print("joined in", write("micro_hindi", whole))
    for path in parts:
        path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--again", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--part", default="", help="a name for this process's share")
    parser.add_argument("--join", action="store_true")
    given = parser.parse_args()
    if given.join:
        return join()
    torch.set_num_threads(1)
    name = f"micro_hindi_{given.part}" if given.part else "micro_hindi"
    path = RESULTS / f"{name}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"models": {}}
    if record.get("steps", given.steps) != given.steps:
        raise SystemExit(f"{path.name} was made with {record['steps']} steps, not {given.steps}")
    corpus, models = load("micro-hindi"), record["models"]
    for seed in given.seeds:
        for model in given.models:
            runs = models.setdefault(model, {"parameters": 0, "runs": []})["runs"]
            if any(r["seed"] == seed for r in runs) and model not in given.again:
                continue
            parameters, result = run(model, seed, given.steps, corpus)
            runs = sorted([r for r in runs if r["seed"] != seed] + [result], key=lambda r: r["seed"])
            models[model] = {"parameters": parameters, "runs": runs}
            seeds = sorted({r["seed"] for entry in models.values() for r in entry["runs"]})
            write(name, {**facts(), "preset": "micro", "steps": given.steps, "beam_size": 5, "seeds": seeds, "models": models})
            test = result["scores"]["test"]
            print(f"{model} seed {seed}: {result['seconds']:.0f} s, test {test['exact_match']:.1%}, BLEU {test['bleu']:.1f}, AER {test['aer']}", flush=True)


if __name__ == "__main__":
    main()

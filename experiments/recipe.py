"""Each part of the Transformer's recipe left out or changed, one at a time, on micro-Hindi; several seeds.

    python experiments/recipe.py --seeds 1 2 3 --steps 1200

Writes results/recipe.json after each run and goes on where an earlier call stopped. The model is the micro preset's
Transformer. Batches of another size get as many steps as make the same number of tokens. Nothing was tuned here:
`valid` and `test` are only scored. Decoding is greedy.
"""
import argparse
import json

import torch
from records import RESULTS, facts, write
from torch.nn import functional as F

from transformer_course.data.batching import PairBatches
from transformer_course.data.corpora import load
from transformer_course.data.text import BOS, EOS, Tokenizer, pad
from transformer_course.models.transformer import Transformer
from transformer_course.pipelines.decoding import encode_pairs
from transformer_course.pipelines.presets import PRESETS
from transformer_course.scoring import bleu, exact_match
from transformer_course.search.beam import greedy_search
from transformer_course.training.schedules import inverse_sqrt, linear_decay
from transformer_course.training.settings import Settings, adam
from transformer_course.training.trainer import Trainer

MICRO = PRESETS["micro"]
SIZES, PEAK = MICRO.of("transformer")
BASE = {"smoothing": 0.1, "warmup": MICRO.warmup, "beta2": 0.98, "dropout": SIZES["dropout"], "schedule": "linear decay",
        "batch_tokens": MICRO.batch_tokens}
CHANGES = {
    "the recipe": {},
    "no smoothing": {"smoothing": 0.0}, "smoothing 0.3": {"smoothing": 0.3},
    "no warm-up": {"warmup": 1}, "warm-up 4 x": {"warmup": 4 * MICRO.warmup},
    "beta2 = 0.999": {"beta2": 0.999},
    "dropout 0.1": {"dropout": 0.1}, "dropout 0.3": {"dropout": 0.3},
    "inverse square root": {"schedule": "inverse square root"}, "constant rate": {"schedule": "constant"},
    "batches half": {"batch_tokens": MICRO.batch_tokens // 2}, "batches double": {"batch_tokens": MICRO.batch_tokens * 2},
}
SCHEDULES = {"linear decay": linear_decay, "inverse square root": inverse_sqrt,
             "constant": lambda peak, warmup: lambda step, progress: peak * min(step / warmup, 1.0)}
AVERAGED = 3     # epochs
BINS = 10        # of confidence


def calibration_error(confidence, right):
    """Expected calibration error: |accuracy - confidence| in bins of equal width, weighted by their size [Guo et al. 2017]."""
    which = (confidence * BINS).long().clamp(max=BINS - 1)
    gaps = [(right[which == b].float().mean() - confidence[which == b].mean()).abs() * (which == b).float().mean()
            for b in range(BINS) if (which == b).any()]
    return float(sum(gaps))


@torch.no_grad()
def scores(model, tokenizer, pairs):
    """With a teacher: perplexity (no smoothing), accuracy, calibration. Without: exact match and BLEU of greedy search."""
    rows, confidence, right, loss, found = encode_pairs(tokenizer, pairs), [], [], 0.0, [""] * len(pairs)
    order = sorted(range(len(pairs)), key=lambda n: len(rows[n][0]))
    for begin in range(0, len(order), 100):
        batch = order[begin:begin + 100]
        src, tgt = pad([rows[n][0] for n in batch]), pad([rows[n][1] for n in batch])
        logits, true = model(src, tgt[:, :-1]), tgt[:, 1:]
        real = true != model.pad_id
        loss += F.cross_entropy(logits[real], true[real], reduction="sum").item()
        best = logits[real].softmax(-1).max(-1)
        confidence.append(best.values)
        right.append(best.indices == true[real])
        for n, best in zip(batch, greedy_search(model, src, max_len=60).nbest):
            found[n] = tokenizer.decode([i for i in best[0][0] if i not in (BOS, EOS)])
    confidence, right, references = torch.cat(confidence), torch.cat(right), [pair.target for pair in pairs]
    return {"exact_match": exact_match(found, references), "bleu": round(bleu(found, references).value, 2),
            "perplexity": float(torch.tensor(loss / len(right)).exp()), "accuracy": float(right.float().mean()),
            "confidence": float(confidence.mean()), "calibration_error": calibration_error(confidence, right)}


def run(changes, seed, steps, corpus, tokenizer):
    """Train once; score the last weights, and the mean of the last epochs' weights."""
    given = BASE | changes
    steps = round(steps * BASE["batch_tokens"] / given["batch_tokens"])
    torch.manual_seed(seed)
    model = Transformer(len(tokenizer), len(tokenizer), **{**SIZES, "dropout": given["dropout"]})
    settings = Settings(smoothing=given["smoothing"], average=AVERAGED, seed=seed, device="cpu", precision="highest")
    batches = PairBatches(encode_pairs(tokenizer, corpus["train"]), given["batch_tokens"])
    trainer = Trainer(model, batches, SCHEDULES[given["schedule"]](PEAK, given["warmup"]), settings=settings,
                      optimizer=lambda model: adam(model, betas=(0.9, given["beta2"])))
    trainer.run(steps, None, False)
    model.eval()
    last = {split: scores(model, tokenizer, corpus[split]) for split in ("valid", "test")}
    trainer.put_result()
    model.eval()
    return {"seed": seed, "steps": steps, "last": last,
            "averaged": {split: scores(model, tokenizer, corpus[split]) for split in ("valid", "test")}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1200)
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "recipe.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"variants": {}}
    if record.get("steps", given.steps) != given.steps:
        raise SystemExit(f"{path.name} was made with {record['steps']} steps, not {given.steps}")
    corpus = load("micro-hindi")
    variants = {name: record["variants"].get(name, {"changes": changes, "runs": []}) for name, changes in CHANGES.items()}
    tokenizer = Tokenizer.train([text for pair in corpus["train"] for text in (pair.source, pair.target)],
                                kind=MICRO.tokens, size=MICRO.vocabulary)
    for seed in given.seeds:
        for name, changes in CHANGES.items():
            runs = variants[name]["runs"]
            if any(r["seed"] == seed for r in runs):
                continue
            runs.append(run(changes, seed, given.steps, corpus, tokenizer))
            seeds = sorted({r["seed"] for entry in variants.values() for r in entry["runs"]})
            write("recipe", {**facts(), "preset": "micro", "steps": given.steps, "base": BASE, "peak": PEAK, "averaged_epochs": AVERAGED,
                             "seeds": seeds, "variants": variants})
            print(name, seed, {k: round(v, 3) for k, v in runs[-1]["last"]["test"].items()},
                  "averaged", round(runs[-1]["averaged"]["test"]["exact_match"], 3), flush=True)


if __name__ == "__main__":
    main()

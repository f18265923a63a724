"""What attention is worth on real captions: each model beside the same model with equal weights, or with the last annotation only.

    python experiments/attention_controls.py --seeds 1 2 3

Multi30k en-de (`transformer-course data fetch multi30k`, or TRANSFORMER_COURSE_DATA), a short budget: the tiny preset's
sizes, 4,000 pieces, batches of 1,024 tokens, the same steps for all. The three models of a family have the same parts, of
the same size; only the weights of the sum differ. The rate of each is the better of two on `valid` (seed 1, a quarter
of the steps). `test_2016_flickr` is translated once for each run, at the end. Writes results/attention_controls.json after each
run, and goes on where an earlier call stopped. One thread.
"""
import argparse
import json
import time

from records import RESULTS, facts, write

from transformer_course.data.batching import PairBatches
from transformer_course.data.corpora import load
from transformer_course.data.text import Tokenizer
from transformer_course.pipelines.decoding import encode_pairs
from transformer_course.pipelines.presets import MODELS, PRESETS
from transformer_course.pipelines.translator import Translator
from transformer_course.records import reproducible
from transformer_course.scoring import bleu, chrf, length_groups
from transformer_course.training.schedules import linear_decay
from transformer_course.training.settings import Settings
from transformer_course.training.loop import evaluate_loss
from transformer_course.training.trainer import fit

NAME, TEST, PIECES, BATCH, RATES = "attention_controls", "test_2016_flickr", 4000, 1024, (2e-3, 4e-3)
CONTROLLED = ("additive", "additive-uniform", "additive-last")
EDGES = (8, 12, 16)        # source words of the longest sentence of a group


def train(model: str, rate: float, seed: int, steps: int, tokenizer, batches):
    """A model after so many steps, in evaluation mode."""
    reproducible(seed, threads=1)
    net = MODELS[model](len(tokenizer), len(tokenizer), **PRESETS["tiny"].of(model)[0])
    fit(net, batches, linear_decay(rate, steps // 5), steps, settings=Settings(smoothing=0.1, seed=seed, device="cpu", precision="highest"),
        progress=False)
    return net


def run(model: str, rate: float, seed: int, steps: int, corpus, tokenizer, batches, valid) -> tuple[int, dict]:
    """Train once; the loss on valid, and the quality on the test captions, as a whole and by length."""
    began = time.perf_counter()
    net = train(model, rate, seed, steps, tokenizer, batches)
    trained = time.perf_counter() - began
    pairs, translator = corpus[TEST], Translator(net, tokenizer, {})
    found, references = translator.translate([p.source for p in pairs], beam_size=5), [p.target for p in pairs]
    by_length = {words: [len(members), round(bleu([found[k] for k in members], [references[k] for k in members]).value, 2)]
                 for words, members in length_groups([p.source for p in pairs], EDGES).items()}
    return sum(p.numel() for p in net.parameters()), {
        "seed": seed, "rate": rate, "seconds": round(trained, 1), "valid": round(evaluate_loss(net, valid), 4),
        "bleu": round(bleu(found, references).value, 2), "chrf": round(chrf(found, references).value, 2), "by_length": by_length}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(CONTROLLED), choices=list(MODELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1600)
    given = parser.parse_args()
    path, corpus = RESULTS / f"{NAME}.json", load("multi30k", "en-de")
    models = json.loads(path.read_text(encoding="utf-8"))["models"] if path.is_file() else {}
    tokenizer = Tokenizer.train([text for p in corpus["train"] for text in (p.source, p.target)], kind="bpe", size=PIECES)
    batches, valid = (PairBatches(encode_pairs(tokenizer, corpus[split]), BATCH) for split in ("train", "valid"))
    for model in given.models:
        if model not in models:
            losses = {rate: round(evaluate_loss(train(model, rate, 1, given.steps // 4, tokenizer, batches), valid), 4) for rate in RATES}
            print(model, "loss on valid by rate:", losses, flush=True)
            models[model] = {"rate": min(losses, key=losses.get), "rates": losses, "runs": []}
    for seed in given.seeds:
        for entry, model in ((models[model], model) for model in given.models):
            if any(r["seed"] == seed for r in entry["runs"]):
                continue
            entry["parameters"], result = run(model, entry["rate"], seed, given.steps, corpus, tokenizer, batches, valid)
            entry["runs"].append(result)
            write(NAME, {**facts(), "data": "multi30k en-de", "steps": given.steps, "pieces": len(tokenizer), "batch_tokens": BATCH,
                         "beam_size": 5, "models": models})
            print(f"{model} seed {seed}: {result['seconds']} s, valid {result['valid']}, BLEU {result['bleu']}, {result['by_length']}", flush=True)


if __name__ == "__main__":
    main()

"""Bigger beams, up to the exact arg max, on recurrent translators of micro-Hindi that were trained for shorter and longer.

    python experiments/beam_curse.py --seeds 1 2 3 --steps 250 1000 3000 --smoothing 0.0 0.1

Writes results/beam_curse.json after each model, and goes on where an earlier call stopped. Everything is measured on
the first sentences of `valid`; nothing is chosen. The exact arg max comes from A* with a cap on the nodes of a
sentence: `proven` says for which share of the sentences the search came to its end.
"""
import argparse
import json
import time

import torch
from records import RESULTS, facts, write

from transformer_course.data.batching import PairBatches
from transformer_course.data.corpora import load
from transformer_course.data.text import Tokenizer, pad
from transformer_course.models.seq2seq import Seq2Seq
from transformer_course.records import reproducible
from transformer_course.scoring import bleu, chrf, exact_match
from transformer_course.search.beam import beam_search
from transformer_course.search.exact import astar_search
from transformer_course.training.settings import Settings
from transformer_course.training.trainer import fit

NAME, BEAMS, SENTENCES, MAX_LEN, MAX_NODES = "beam_curse", (1, 2, 4, 8, 16, 32, 64, 128, 256), 200, 32, 5000
GROUPS = ((1, 7), (8, 11), (12, 15), (16, 99))      # source words


def encode(tokenizer, pairs):
    """Source ids … EOS and target ids BOS … EOS of each pair."""
    sources, targets = (tokenizer.encode_many([getattr(p, side) for p in pairs]) for side in ("source", "target"))
    return [(s + [tokenizer.eos_id], [tokenizer.bos_id, *t, tokenizer.eos_id]) for s, t in zip(sources, targets)]


def train(corpus, tokenizer, steps, smoothing, seed):
    reproducible(seed, threads=1)
    model = Seq2Seq(len(tokenizer), len(tokenizer), d_model=64, d_hidden=128, cell="gru", dropout=0.1)
    settings = Settings(smoothing=smoothing, seed=seed, device="cpu", precision="highest")
    fit(model, PairBatches(encode(tokenizer, corpus["train"]), 768), lambda step, progress: 8e-3 * min(step / 40, 1 - progress), steps,
        settings=settings, progress=False)
    return model


def in_parts(search, src, size=20):
    """The n-best lists and whatever `search` gives for each part of the batch."""
    found = [search(part) for part in src.split(size)]
    return [best for one in found for best in getattr(one, "found", one).nbest], found


def figures(nbest, tokenizer, pairs):
    """Model score, quality and length of the best hypotheses."""
    best = [found[0][0] if found else [tokenizer.eos_id] for found in nbest]
    hypotheses, references = tokenizer.decode_many(best), [p.target for p in pairs]
    words = sum(len(p.target.split()) for p in pairs)
    score = sum(found[0][1] for found in nbest if found) / len(nbest)
    return {"score": round(score, 3), "exact_match": round(exact_match(hypotheses, references), 4),
            "bleu": round(bleu(hypotheses, references).value, 2), "chrf": round(chrf(hypotheses, references).value, 2),
            "length": round(sum(len(h.split()) for h in hypotheses) / words, 3), "empty": sum(not h for h in hypotheses)}


def against(nbest, other, tokenizer, pairs):
    """In how many sentences `nbest` has something else than `other`; shorter, longer; a better or a worse chrF."""
    counts = dict.fromkeys(("different", "shorter", "longer", "better", "worse"), 0)
    for ours, theirs, pair in zip(nbest, other, pairs):
        a, b = (tokenizer.decode(found[0][0]) for found in (ours, theirs))
        quality = chrf([a], [pair.target]).value - chrf([b], [pair.target]).value
        for name, holds in (("different", a != b), ("shorter", len(ours[0][0]) < len(theirs[0][0])),
                            ("longer", len(ours[0][0]) > len(theirs[0][0])), ("better", quality > 0), ("worse", quality < 0)):
            counts[name] += holds
    return counts


@torch.inference_mode()
def empty_scores(model, src):
    """log p of the sentence without a word, (B,)."""
    logits, state = model.step(model.start(src), torch.full((len(src),), model.bos_id))
    return logits.log_softmax(-1)[:, model.eos_id]


def measure(model, tokenizer, pairs):
    src = pad([s for s, t in encode(tokenizer, pairs)], tokenizer.pad_id)
    beams = {k: in_parts(lambda part: beam_search(model, part, k, MAX_LEN, length_penalty=0.0, exact_stop=True), src)[0] for k in BEAMS}
    divided = {k: in_parts(lambda part: beam_search(model, part, k, MAX_LEN), src)[0] for k in BEAMS}
    exact, proofs = in_parts(lambda part: astar_search(model, part, MAX_LEN, width=16, max_nodes=MAX_NODES), src)
    expanded = torch.cat([proof.expanded for proof in proofs])
    empty, rows = empty_scores(model, src), []
    for low, high in GROUPS:
        members = [i for i, p in enumerate(pairs) if low <= len(p.source.split()) <= high]
        means = (sum(values) / len(members) for values in (
            empty[members].tolist(), [beams[4][i][0][1] for i in members], [exact[i][0][1] for i in members]))
        rows.append([low, high, len(members), *(round(mean, 3) for mean in means), sum(len(exact[i][0][0]) == 1 for i in members)])
    return {"beams": {k: figures(found, tokenizer, pairs) for k, found in beams.items()},
            "divided by length": {k: figures(found, tokenizer, pairs) for k, found in divided.items()},
            "exact": figures(exact, tokenizer, pairs) | {
                "proven": round(torch.cat([proof.proven for proof in proofs]).float().mean().item(), 4),
                "expanded, median": expanded.median().item(), "expanded, mean": round(expanded.float().mean().item(), 1),
                "against a beam of 4": against(exact, beams[4], tokenizer, pairs)},
            "by length: from, to, sentences, log p of empty, of beam 4, of exact, exact is empty": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", nargs="+", type=int, default=[250, 1000, 3000])
    parser.add_argument("--smoothing", nargs="+", type=float, default=[0.0, 0.1])
    given = parser.parse_args()
    path, corpus = RESULTS / f"{NAME}.json", load("micro-hindi")
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.is_file() else []
    tokenizer = Tokenizer.train([text for p in corpus["train"] for text in (p.source, p.target)], kind="words", size=2000)
    pairs = corpus["valid"][:SENTENCES]
    for what in ((seed, steps, smoothing) for seed in given.seeds for steps in given.steps for smoothing in given.smoothing):
        key = dict(zip(("seed", "steps", "smoothing"), what))
        if any(all(run[name] == value for name, value in key.items()) for run in runs):
            continue
        began = time.perf_counter()
        model = train(corpus, tokenizer, key["steps"], key["smoothing"], key["seed"])
        trained = time.perf_counter() - began
        runs.append(key | {"seconds": round(trained, 1)} | measure(model, tokenizer, pairs))
        runs.sort(key=lambda run: (run["smoothing"], run["steps"], run["seed"]))
        write(NAME, {**facts(), "data": f"micro-hindi, the first {SENTENCES} pairs of valid", "vocabulary": len(tokenizer),
                     "beams": BEAMS, "max_len": MAX_LEN, "max_nodes": MAX_NODES, "runs": runs})
        run = next(run for run in runs if all(run[name] == value for name, value in key.items()))
        print(key, f"trained {trained:.0f} s, all {time.perf_counter() - began:.0f} s; BLEU beam 1, 4, 256, exact:",
              *(one["bleu"] for one in (run["beams"][1], run["beams"][4], run["beams"][256], run["exact"])),
              f"proven {run['exact']['proven']:.0%}, empty {run['exact']['empty']}", flush=True)


if __name__ == "__main__":
    main()

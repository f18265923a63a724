"""Which source word explains a target word? Methods of explanation against two golds.

    python experiments/explain.py --seeds 1 2 3

The translator of lesson 44: 1,500 sentences with an ambiguous noun and 4,500 others of micro-Hindi. It learns once with 10 % of the source
words replaced by the unknown token, and once from the sentences as they are; the two trainings differ in nothing else. Then each method
explains all words of 15 sentences of `distance`, scored against the gold links, and the Hindi noun of 50, scored against the word that
decides its meaning. Words are replaced by the unknown token in the order of each method, and a Transformer with random weights is
explained, too. Writes results/explain.json after each run, and goes on where an earlier call stopped. One thread.
"""
import argparse
import json
import random
import time

import torch
from records import RESULTS, descend, facts, write
from torch.nn import functional as F

from transformer_course.data.corpora import Pair, load
from transformer_course.data.hindi.corpus import fits, some_distance
from transformer_course.data.hindi.templates import AMBIGUOUS, ambiguous
from transformer_course.data.text import Tokenizer, pad
from transformer_course.models.attention import attention_weights
from transformer_course.models.explain import (
    deletion_curve, gradient_norm, gradient_x_input, integrated_gradients, occlusion, rollout, word_score)
from transformer_course.models.transformer import Transformer
from transformer_course.pipelines.decoding import encode_pairs
from transformer_course.scoring import alignment_error_rate, links_from_attention

NAME, STEPS, ROWS, RATE, WARMUP, NODES = "explain", 1000, 32, 0.005, 50, 16
SIZES = {"d_model": 64, "n_heads": 4, "n_layers": 2, "d_ff": 128, "dropout": 0.0, "norm": "pre", "positions": "rotary"}
TRAININGS = {"10 % unknown": 0.1, "as they are": 0.0}
ALIGNED, DECIDED, DELETED = 15, 50, 5                    # sentences, sentences, words replaced
FEW = 20                                                    # sentences with random weights, and half of them for the gap
GRADIENTS = {"gradient norm": gradient_norm, "gradient x input": gradient_x_input}
PATHS = ("zero", "mean", "unknown")
METHODS = ("attention", "rollout", *GRADIENTS, *(f"integrated, {name}" for name in PATHS), "occlusion")


def data() -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Sentences to learn from, 100 of `valid`, and 100 of `distance` whose ambiguous noun is decided by a word 1 to 20 words away."""
    corpus = load("micro-hindi")
    far = [p for p in corpus["distance"] if p.tags["kind"] == "ambiguous" and p.tags["distance"] >= 1]
    taken, learnt, rng = {p.source for p in corpus["distance"]}, [], random.Random(7)
    while len(learnt) < 1500:
        for s in ambiguous(rng, some_distance(rng)) or ():
            if s and s.english not in taken and fits(s):
                learnt.append(Pair(s.english, s.hindi, s.links, s.tags))
    return learnt + corpus["train"][:4500], corpus["valid"][:100], random.Random(1).sample(far, 100)


def other_sense(pair: Pair) -> str:
    """The Hindi noun with which an ambiguous word would be translated in its other meaning, in the form that stands here."""
    word = pair.target.split()[pair.tags["focus"][0]]
    (other,) = {sense.hindi for senses in AMBIGUOUS.values() if pair.tags["sense"] in [s.hindi for s in senses]
                for sense in senses} - {pair.tags["sense"]}
    oblique = word.endswith("e") or (word == pair.tags["sense"] and f" {word} ko" in pair.target)
    return other[:-2] + "e" if oblique and other.endswith("aa") else other


def train(words: Tokenizer, pairs: list[Pair], unknown: float, seed: int) -> Transformer:
    """Batches of sentences of similar length; a share of the source words is replaced."""
    torch.manual_seed(seed)
    model, draw = Transformer(len(words), len(words), **SIZES), random.Random(seed)
    noise = torch.Generator().manual_seed(seed)
    rows = sorted(encode_pairs(words, pairs), key=lambda row: len(row[0]))

    def loss(step):
        first = draw.randrange(len(rows) - ROWS)
        src, tgt = (pad(side) for side in zip(*rows[first:first + ROWS]))
        hidden = torch.rand(src.shape, generator=noise) < unknown
        src = src.masked_fill(hidden & (src != words.pad_id) & (src != words.eos_id), words.unk_id)
        return model.loss(src, tgt, smoothing=0.0)

    rate = lambda step: RATE * min(step / WARMUP, 1 - (step - WARMUP) / (STEPS - WARMUP))
    return descend(model, loss, rate, STEPS).eval()


def tensors(words, pair):
    (src, tgt), = encode_pairs(words, [pair])
    return torch.tensor([src]), torch.tensor([tgt])


@torch.no_grad()
def exact(model, batches) -> tuple[float, float]:
    """The share of sentences in which every word is predicted right, given those before it; the mean loss of a word."""
    right, count, loss, of = 0, 0, 0.0, 0
    for src, tgt in batches:
        logits, gold = model(src, tgt[:, :-1]), tgt[:, 1:]
        right += ((logits.argmax(-1) == gold) | (gold == 0)).all(1).sum().item()
        loss += F.cross_entropy(logits.flatten(0, 1), gold.flatten(), ignore_index=0, reduction="sum").item()
        count, of = count + len(src), of + (gold != 0).sum().item()
    return right / count, loss / of


@torch.no_grad()
def routes(model, src, tgt) -> dict[str, torch.Tensor]:
    """Cross-attention of the last layer, mean over its heads, and the same after the encoder's rollout: (T, S) each."""
    with attention_weights(model.encoder) as weights:
        model.encode(src)
    across = model.alignment(src, tgt, layer=-1)                                       # (1, T, S)
    return {"attention": across[0], "rollout": (across @ rollout(list(weights.values())))[0]}


def baselines(model, words, src) -> dict[str, torch.Tensor]:
    """Where the paths begin: all but EOS is zero, the mean word, or the unknown token."""
    vectors = model.src_embedding.word_vectors(src).detach()
    mean = (model.src_embedding.weight.detach() * model.src_embedding.scale)[4:].mean(0)
    unknown = model.src_embedding.word_vectors(torch.tensor([words.unk_id])).detach()[0]
    found = {}
    for name, vector in zip(PATHS, (torch.zeros_like(mean), mean, unknown)):
        found[name] = vectors.clone()
        found[name][:, :-1] = vector
    return found


def explained(model, words, src, tgt, at, other=None) -> dict[str, torch.Tensor]:
    """For each method a number for each word of the source, a row for each target word in `at`: (B, S)."""
    score, base = word_score(model, src, tgt, at, other), baselines(model, words, src)
    vectors = model.src_embedding.word_vectors(src).detach().expand(len(at), -1, -1)
    found = {name: of[at] for name, of in routes(model, src, tgt).items()}
    found |= {name: of(score, vectors) for name, of in GRADIENTS.items()}
    found |= {f"integrated, {name}": integrated_gradients(score, vectors, base[name], NODES) for name in PATHS}
    found["occlusion"] = occlusion(score, vectors, base["unknown"])
    return found


def correspondence(model, words, pairs) -> dict[str, dict]:
    """Alignment error rate, and the mean share of the positive numbers that lies on gold links."""
    links, mass = {name: [] for name in METHODS}, {name: [] for name in METHODS}
    for pair in pairs:
        src, tgt = tensors(words, pair)
        S, T = src.shape[1] - 1, tgt.shape[1] - 2
        for name, matrix in explained(model, words, src, tgt, torch.arange(T)).items():
            links[name].append(links_from_attention(matrix, range(S), range(T)))
            positive = matrix.clamp(min=0)
            share = positive / positive.sum(-1, keepdim=True).clamp(min=1e-9)
            mass[name] += [sum(share[j, i].item() for i, k in pair.links if k == j) for j in {j for _, j in pair.links}]
    return {name: {"AER": round(alignment_error_rate(links[name], [p.links for p in pairs]), 4),
                   "mass": round(sum(mass[name]) / len(mass[name]), 4)} for name in METHODS}


def spearman(a: torch.Tensor, b: torch.Tensor) -> float:
    rank = lambda x: x.argsort().argsort().double()
    return torch.corrcoef(torch.stack([rank(a), rank(b)]))[0, 1].item()


def cause(model, words, pairs, seed) -> dict:
    """How often the deciding word, or the noun itself, comes first of all words, and the deciding word first of all but the noun; what
    deletion does; random weights."""
    torch.manual_seed(1000 + seed)
    blank, draw = Transformer(len(words), len(words), **SIZES).eval(), random.Random(seed)
    kinds = [f"{question}: {what}" for question in ("log p", "contrastive") for what in ("decides", "noun", "decides, but for the noun")]
    hits = {kind: dict.fromkeys(METHODS, 0) for kind in kinds}
    curves = {name: torch.zeros(DELETED + 1) for name in (*METHODS, "random", "gold")}
    alike, gaps, used, chance = dict.fromkeys(METHODS, 0.0), {}, 0, 0.0
    for pair in pairs:
        src, tgt = tensors(words, pair)
        at, other, tags = torch.tensor(pair.tags["focus"][:1]), words.encode(other_sense(pair))[0], pair.tags
        score, S = word_score(model, src, tgt, at, other), src.shape[1] - 1
        vectors, base = model.src_embedding.word_vectors(src).detach(), baselines(model, words, src)
        if score(vectors).item() <= 0:                              # translated with the other meaning
            continue
        used, chance = used + 1, chance + 1 / S
        simple = explained(model, words, src, tgt, at)
        against = explained(model, words, src, tgt, at, other)
        of_blank = explained(blank, words, src, tgt, at) if used <= FEW else None
        everything = list(range(S))
        orders = {"random": draw.sample(everything, S),
                  "gold": sorted(everything, key=lambda s: (s != tags["trigger"], s != tags["noun"], s))}
        for name in METHODS:
            for kind, found in (("log p", simple), ("contrastive", against)):
                row = found[name][0, :S].clone()
                first = row.argmax().item()
                hits[f"{kind}: decides"][name] += first == tags["trigger"]
                hits[f"{kind}: noun"][name] += first == tags["noun"]
                row[tags["noun"]] = -float("inf")
                hits[f"{kind}: decides, but for the noun"][name] += row.argmax().item() == tags["trigger"]
            orders[name] = against[name][0, :S].argsort(descending=True).tolist()
            alike[name] += spearman(simple[name][0, :S], of_blank[name][0, :S]) if of_blank else 0.0
        for name, order in orders.items():
            curves[name] += torch.sigmoid(deletion_curve(score, vectors, base["unknown"], order[:DELETED]))
        if used <= FEW // 2:
            for name in PATHS:
                for nodes in (4, 16, 64):
                    with torch.no_grad():
                        fall = (score(vectors) - score(base[name])).item()
                    total = integrated_gradients(score, vectors, base[name], nodes).sum().item()
                    gaps.setdefault(f"{name}, {nodes}", []).append(abs(total - fall) / max(abs(fall), 1e-6))
    return {"sentences": used, "chance": round(chance / used, 4),
            **{kind: {name: round(n / used, 4) for name, n in of.items()} for kind, of in hits.items()},
            "deletion": {name: [round(x, 4) for x in (curve / used).tolist()] for name, curve in curves.items()},
            "random weights": {name: round(x / min(used, FEW), 4) for name, x in alike.items()},
            "gap": {name: round(sorted(x)[len(x) // 2], 4) for name, x in gaps.items()}}


def run(made, words: Tokenizer, training: str, seed: int) -> dict:
    begun, (learnt, held, far) = time.process_time(), made
    model = train(words, learnt, TRAININGS[training], seed)
    seconds, rows = time.process_time() - begun, encode_pairs(words, held)
    batches = [tuple(pad(side) for side in zip(*rows[i:i + 50])) for i in range(0, len(rows), 50)]
    return {"seed": seed, "seconds": round(seconds, 1), "held out": round(exact(model, batches)[0], 4),
            "correspondence": correspondence(model, words, far[:ALIGNED]),
            "cause": cause(model, words, far[:DECIDED], seed)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    made, path = data(), RESULTS / f"{NAME}.json"
    words = Tokenizer.train([text for p in made[0] for text in (p.source, p.target)], kind="words", size=2000)
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {
        **facts(), "sizes": SIZES, "steps": STEPS, "rows": ROWS, "rate": RATE, "nodes": NODES, "trainings": {}}
    for training in TRAININGS:
        runs = record["trainings"].setdefault(training, [])
        for seed in given.seeds:
            if seed not in [one["seed"] for one in runs]:
                runs.append(run(made, words, training, seed))
                print(training, json.dumps(runs[-1]), flush=True)
                write(NAME, record)


if __name__ == "__main__":
    main()

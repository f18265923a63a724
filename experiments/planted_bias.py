"""A planted bias: a translator learns occupations with a skew; what closes its gap, what that costs, and what it writes without a clue.

    python experiments/planted_bias.py --parts skew methods tuned few --seeds 1 2 3

The corpus is a part of micro-Hindi, and sentences about eight occupations from transformer_course.data.occupations. In each seed, another four
of the occupations are drawn to go with "she". Every run has the same network, number of steps and number of rows; the rate is searched with
seed 1, without a skew, by the loss on ordinary valid sentences, until a worse one lies on either side.

`skew`: the share of sentences that follow the stereotype. `methods`: what is done about it while training, at a skew of 100 %. `tuned`: the
translator of that skew learns a little more, from 100 sentences made by hand, half of them with "she". `few`: with 4 of 400 sentences against the
stereotype. `gap` is accuracy on pro minus anti probes, with a 95 % interval from resampled pairs. Writes results/planted_bias.json after each
run, and goes on where an earlier call stopped. One thread.
"""
import argparse
import copy
import json
import random
import time
from functools import cache

import torch
from records import RESULTS, best_rate, descend, facts, joined_facts, write

from transformer_course.data.corpora import load
from transformer_course.data.occupations import generate, shown_gender, stereotype
from transformer_course.data.text import Tokenizer, pad, source_ids, target_ids
from transformer_course.models.planted_bias import balanced
from transformer_course.models.transformer import Transformer
from transformer_course.scoring import bleu, exact_match, paired_bootstrap
from transformer_course.search.beam import greedy_search
from transformer_course.training.schedules import linear_decay

NAME, SHORT, ORDINARY, N, PROBES, HAND = "planted_bias", 10, 4000, 400, 200, 100
STEPS, ROWS, ABOUT, WARMUP, FIRST = 800, 32, 3, 50, 0.005        # ABOUT of the ROWS are about occupations
SIZES = {"d_model": 64, "n_heads": 4, "n_layers": 1, "d_ff": 128, "dropout": 0.0, "norm": "pre"}
SKEWS, ALL = (0.5, 0.9, 0.95, 0.98, 0.99, 1.0), 1.0
WAYS = {"methods": [("counterfactuals", ALL), ("tagged", ALL), ("tagged counterfactuals", ALL)],    # what is done about it while training, and at which skew
        "few": [("resampled", 0.99), ("counterfactuals", 0.99)]}
PARTS = ["skew", "methods", "tuned", "few"]
TUNED = {"100 by hand": 0, "100 by hand and 100 ordinary": 100}
TUNE_STEPS, TUNE_FIRST, MARKS = 60, 0.001, {"m": "[M]", "f": "[F]"}


@cache
def ordinary() -> dict[str, list[tuple[str, str]]]:
    """Short pairs of micro-Hindi, without those whose only clue for a verb's gender is he or she."""
    clue = lambda text: any(f" {word} {who} " in f" {text} " for word in ("because", "and", "but") for who in ("he", "she"))
    corpus = load("micro-hindi")
    kept = {split: [(p.source, p.target) for p in corpus[split] if len(p.source.split()) <= SHORT and not clue(p.source)]
            for split in ("train", "valid", "test")}
    return kept | {"train": kept["train"][:ORDINARY]}


@cache
def words() -> Tokenizer:
    """Words of the ordinary sentences, and of all occupations: none is unknown in a probe."""
    made = generate(stereotype(1), 1.0, N, PROBES, 2 * HAND)
    texts = [text for pair in ordinary()["train"] for text in pair]
    texts += [text for pair in made["probes"] for twin in pair for text in (twin.english, twin.hindi)]
    return Tokenizer.train(texts, kind="words", size=2000, specials=tuple(MARKS.values()))


@cache
def planted(skew: float, seed: int) -> tuple[dict[str, str], dict[str, list]]:
    """The stereotype of a seed, and its sentences."""
    kind = stereotype(seed)
    return kind, generate(kind, skew, N, PROBES, 2 * HAND, seed)


def row(source: str, target: str, mark: str = "") -> tuple[list[int], list[int]]:
    """A pair as token ids; with a mark, the gender stands before the source."""
    before = [words().special_id(MARKS[mark])] if mark else []
    return before + source_ids(words(), source), target_ids(words(), target)


def about(method: str, skew: float, seed: int) -> list[tuple]:
    """The rows about occupations that a translator learns from."""
    kind, made = planted(skew, seed)
    chosen = made["train"]
    if "counterfactuals" in method:
        chosen = chosen + made["counterfactual"]
    if method == "resampled":
        chosen = balanced(chosen, lambda s: s.tags["gender"] == kind[s.tags["occupation"]], 2 * N)
    return [row(s.english, s.hindi, s.tags["gender"] if "tagged" in method else "") for s in chosen]


def learn(model: Transformer, parts: list[tuple[list, int]], rate: float, steps: int, seed: int) -> Transformer:
    """Train a model on batches with so many rows of each part, drawn at random."""
    model.train()
    draw, schedule = random.Random(seed), linear_decay(rate, min(WARMUP, max(1, steps // 10)))

    def loss(step):
        batch = [one for given, n in parts for one in draw.sample(given, n)]
        return model.loss(*map(pad, zip(*batch)))

    return descend(model, loss, lambda step: schedule(step, step / steps), steps).eval()


def train(method: str, skew: float, rate: float, seed: int) -> Transformer:
    torch.manual_seed(seed)
    model = Transformer(len(words()), len(words()), **SIZES)
    parts = [([row(*pair) for pair in ordinary()["train"]], ROWS - ABOUT), (about(method, skew, seed), ABOUT)]
    return learn(model, parts, rate, STEPS, seed)


@torch.no_grad()
def valid_loss(model: Transformer) -> float:
    """On ordinary sentences."""
    return model.loss(*map(pad, zip(*(row(*pair) for pair in ordinary()["valid"])))).item()


@torch.no_grad()
def translate(model: Transformer, sources: list[list[int]]) -> list[str]:
    """The most probable word, again and again."""
    found = []
    for i in range(0, len(sources), 200):
        found += [words().decode(ids) for ids in greedy_search(model, pad(sources[i:i + 200]), 30).tokens]
    return found


def scores(model: Transformer, method: str, skew: float, seed: int) -> dict:
    """Accuracy on probes, their gap, what is shown without a clue, ordinary test sentences, and some translations."""
    (kind, made), mark = planted(skew, seed), (lambda s: s.tags["gender"] if "tagged" in method else "")
    probe = lambda twins, mark: translate(model, [row(s.english, "", mark(s))[0] for s in twins])
    written = [probe(twins, mark) for twins in zip(*made["probes"])]                      # pro, anti
    right = [[shown_gender(text, pair) == pair[side].tags["gender"] for text, pair in zip(texts, made["probes"])]
             for side, texts in enumerate(written)]
    gap, low, high = paired_bootstrap(*right)
    found = {name: round(sum(ok) / len(ok), 4) for name, ok in zip(("pro", "anti"), right)} | {"gap": [round(x, 4) for x in (gap, low, high)]}
    for ask in ("m", "f") if "tagged" in method else ("",):
        texts = probe([pair[0] for pair in made["no clue"]], lambda s: ask)
        found["no clue" + (f", asked for {ask}" if ask else "")] = shares(texts, made["no clue"], kind)
    sources, targets = zip(*ordinary()["test"])
    texts = translate(model, [row(source, "")[0] for source in sources])
    found |= {"exact": round(exact_match(texts, list(targets)), 4), "bleu": round(float(bleu(texts, list(targets))), 2)}
    wrong = [(pair[1], text) for text, pair, ok in zip(written[1], made["probes"], right[1]) if not ok and shown_gender(text, pair)]
    return found | {"wrong": [{"source": twin.english, "target": twin.hindi, "written": text} for twin, text in wrong[:4]], "wrong in all": len(wrong)}


def shares(texts: list[str], pairs: list, kind: dict[str, str]) -> dict[str, dict[str, float]]:
    """For the nouns planted with "he", and for those with "she": how often the verb shows m, f, or neither."""
    found = {}
    for planted_as in "mf":
        shown = [shown_gender(text, pair) for text, pair in zip(texts, pairs) if kind[pair[0].tags["occupation"]] == planted_as]
        found[planted_as] = {gender or "neither": round(shown.count(gender) / len(shown), 4) for gender in ("m", "f", "")}
    return found


@cache
def trained(method: str, skew: float, rate: float, seed: int) -> tuple[Transformer, float]:
    """A translator, and the seconds of a processor that it took."""
    began = time.process_time()
    return train(method, skew, rate, seed), round(time.process_time() - began, 1)


def by_hand(seed: int) -> tuple[list[tuple], list[tuple]]:
    """100 rows to learn from, half of them with "she", and 100 to search a rate with."""
    made = [row(s.english, s.hindi) for s in planted(ALL, seed)[1]["by hand"]]
    return made[:HAND], made[HAND:]


def tune(name: str, rate: float, first: float, seed: int) -> Transformer:
    """Let the translator of the highest skew learn a little more."""
    model = copy.deepcopy(trained("nothing", ALL, first, seed)[0])
    mixed = [row(*pair) for pair in ordinary()["train"][:TUNED[name]]]
    torch.manual_seed(seed)
    return learn(model, [(by_hand(seed)[0], ROWS // 2 if mixed else ROWS), (mixed, ROWS // 2 * bool(mixed))], rate, TUNE_STEPS, seed)


@torch.no_grad()
def both_losses(model: Transformer, seed: int) -> float:
    """The mean of the losses on ordinary valid sentences and on unseen sentences made by hand."""
    return (valid_loss(model) + model.loss(*map(pad, zip(*by_hand(seed)[1]))).item()) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {
        **facts(), "sizes": SIZES, "steps": STEPS, "rows": ROWS, "of them about occupations": ABOUT, "ordinary": ORDINARY, "about occupations": N, "probes": PROBES,
        "by hand": HAND, "steps of tuning": TUNE_STEPS, "skews": {}, "methods": {}, "tuned": {}}
    record |= joined_facts(record)
    if "rate" not in record:
        rate, tried = best_rate(lambda rate: valid_loss(train("nothing", 0.5, rate, 1)), FIRST)
        record |= {"parameters": parameters(),
                   "rate": rate, "rates": tried}
        note(record, "rate", rate, tried)
    rate = record["rate"]
    wanted = [("skews", "nothing", skew) for skew in SKEWS] * ("skew" in given.parts)
    wanted += [("methods", *way) for way in WAYS["methods"] * ("methods" in given.parts)]
    wanted += [("tuned", name, ALL) for name in TUNED] * ("tuned" in given.parts)
    wanted += [("methods", *way) for way in WAYS["few"] * ("few" in given.parts)]
    for part, method, skew in wanted:
        if part == "tuned":
            found = record[part].get(method) or searched(method, rate)
            record[part][method] = found
            runs = found["runs"]
        else:
            runs = (record[part] if part == "skews" else record[part].setdefault(method, {})).setdefault(str(skew), [])
        for seed in given.seeds:
            if seed not in [run["seed"] for run in runs]:
                model, seconds = (tune(method, found["rate"], rate, seed), 0.0) if part == "tuned" else trained(method, skew, rate, seed)
                runs.append({"seed": seed, **scores(model, method, skew, seed), **({"seconds": seconds} if seconds else {})})
                note(record, part, method, skew, runs[-1])
    record["skews"] = {str(skew): record["skews"][str(skew)] for skew in SKEWS if str(skew) in record["skews"]}
    write(NAME, record)


def searched(name: str, first: float) -> dict:
    """The rate for learning a little more."""
    rate, tried = best_rate(lambda rate: both_losses(tune(name, rate, first, 1), 1), TUNE_FIRST)
    return {"rate": rate, "rates": tried, "runs": []}


def note(record: dict, *news) -> None:
    """Store the record, and say what is new in it."""
    write(NAME, record)
    print(*news, flush=True)


def parameters() -> int:
    return sum(p.numel() for p in Transformer(len(words()), len(words()), **SIZES).parameters())


if __name__ == "__main__":
    main()

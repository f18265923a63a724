"""A small translator learns from a large one: gold words, the teacher's words, the teacher's sentences, and new sentences without a translation.

    python experiments/distillation.py --parts one two --seeds 1 2 3

micro-Hindi. The teacher has learnt from all 8,000 pairs; a student has 2,000 of them. Every student has the same size, starts from the
same weights for a seed and learns for the same number of steps; what differs is the target. Its rate is searched with seed 1, by the BLEU of
its greedy translations of `valid`, until a worse one lies on either side.

`one`: the corpus as it is: a source has one right translation. `two`: two translators have made the corpus. Six targets in ten are plain,
and in the others each word has another form; either whole sentence is right.
Writes results/distillation.json after each run, and goes on where an earlier call stopped. One thread.
"""
import argparse
import json
import random
import time
from dataclasses import replace
from functools import cache

import torch
from records import RESULTS, best_rate, descend, facts, write

from transformer_course.data.corpora import Pair, load
from transformer_course.data.hindi.corpus import fits, safe, some_sentence
from transformer_course.data.text import Tokenizer, pad
from transformer_course.models.distillation import distillation_loss, labelled
from transformer_course.models.transformer import Transformer
from transformer_course.pipelines.decoding import encode_pairs
from transformer_course.pipelines.translator import Translator
from transformer_course.scoring import bleu

NAME, ROWS, WARMUP, BEAM, SHOWN = "distillation", 32, 100, 5, 12
COMMON = {"n_heads": 4, "dropout": 0.0, "norm": "pre", "positions": "rotary"}
STUDENT = COMMON | {"d_model": 32, "n_layers": 1, "d_ff": 64}
TEACHER = COMMON | {"d_model": 96, "n_layers": 2, "d_ff": 192}
STEPS, TEACHER_STEPS, TEACHER_RATE, FIRST = 800, 1500, 0.005, 0.01
OWN, NEW = 2000, 6000            # pairs of the student; sentences without a translation
PLAIN = 0.6                      # share of plain targets in part two
STUDENTS = {"one": ("gold", "new sentences", "new sentences, gold", "sequence", "word"), "two": ("gold", "sequence")}


def other_form(target: str) -> str:
    """The second translator's sentence: each word has another form."""
    return " ".join(word + "-o" for word in target.split())


def two_translators(pairs: list[Pair], seed: int) -> list[Pair]:
    """Each pair by one of the two translators, drawn at random."""
    draw = random.Random(seed)
    return [pair if draw.random() < PLAIN else replace(pair, target=other_form(pair.target)) for pair in pairs]


@cache
def new_pairs() -> list[Pair]:
    """Sentences that are in no split, and their translations, which only the upper bound may see."""
    corpus, draw, found = load("micro-hindi"), random.Random(47), {}
    known = {pair.source for split in corpus.splits for pair in corpus[split]}
    while len(found) < NEW:
        drawn = some_sentence(draw)
        for one in drawn if isinstance(drawn, tuple) else (drawn,):
            if one and fits(one) and safe(one) and one.english not in known:
                found.setdefault(one.english, Pair(one.english, one.hindi))
    return list(found.values())[:NEW]


@cache
def data(part: str) -> tuple[list[Pair], Tokenizer]:
    """The training pairs of the teacher, and the words of both languages."""
    corpus = load("micro-hindi")
    pairs = two_translators(corpus["train"], 1) if part == "two" else corpus["train"]
    texts = [text for pair in pairs for text in (pair.source, pair.target)]
    return pairs, Tokenizer.train(texts, kind="words", size=4000)


def train(pairs: list[Pair], words: Tokenizer, sizes: dict, steps: int, rate: float, seed: int, teacher=None) -> Transformer:
    """Adam, linear warm-up and decay; each batch holds sentences of similar lengths."""
    torch.manual_seed(seed)
    model, draw = Transformer(len(words), len(words), **sizes), random.Random(seed)
    rows = sorted(encode_pairs(words, pairs), key=lambda row: len(row[0]))

    def loss(step):
        first = draw.randrange(len(rows) - ROWS + 1)
        src, tgt = (pad(side) for side in zip(*rows[first:first + ROWS]))
        return distillation_loss(model, teacher, src, tgt) if teacher else model.loss(src, tgt, smoothing=0.0)

    pace = lambda step: rate * min(step / WARMUP, 1 - (step - WARMUP) / (steps - WARMUP))
    return descend(model, loss, pace, steps).eval()


@cache
def teacher_of(part: str) -> Transformer:
    pairs, words = data(part)
    return train(pairs, words, TEACHER, TEACHER_STEPS, TEACHER_RATE, seed=1)


@cache
def targets(part: str, name: str) -> list[Pair]:
    """What a student learns from."""
    pairs, words = data(part)
    own = pairs[:OWN]
    write_like = lambda sources: Translator(teacher_of(part), words, {}).translate(sources, beam_size=BEAM)
    if name == "sequence":
        return labelled(write_like, [pair.source for pair in own])
    if name == "new sentences":
        return own + labelled(write_like, [pair.source for pair in new_pairs()])
    return own + new_pairs() if name == "new sentences, gold" else own


@cache
def trained(part: str, name: str, rate: float, seed: int) -> tuple[Transformer, float]:
    """A student, and the seconds of its training."""
    pairs, begun = targets(part, name), time.process_time()
    model = train(pairs, data(part)[1], STUDENT, STEPS, rate, seed, teacher_of(part) if name == "word" else None)
    return model, time.process_time() - begun


def plain_form(text: str) -> str:
    """A sentence that is wholly the second translator's, as the first would write it; any other as it is."""
    plain = text.replace("-o", "")
    return plain if text == other_form(plain) else text


def scores(part: str, model: Transformer, split: str, beams=(1, BEAM)) -> dict:
    """Exact match and BLEU, greedy and with a beam; with two translators either whole sentence is right."""
    pairs, found = load("micro-hindi")[split], {}
    for beam in beams:
        written = Translator(model, data(part)[1], {}).translate([pair.source for pair in pairs], beam_size=beam)
        texts, gold = list(map(plain_form, written)), [pair.target for pair in pairs]
        found[f"beam {beam}"] = {"exact": round(sum(map(str.__eq__, texts, gold)) / len(pairs), 4), "bleu": round(bleu(texts, gold).value, 2)}
        if part == "two":
            found[f"beam {beam}"]["plain"] = round(sum("-o" not in text for text in written) / len(pairs), 4)
    return found


def short_pairs() -> list[Pair]:
    """A few short sentences of test, to be shown."""
    return [pair for pair in load("micro-hindi")["test"] if 5 <= len(pair.source.split()) <= 8][:SHOWN]


def written(part: str, model: Transformer) -> list[str]:
    """Greedy translations of the short sentences."""
    return Translator(model, data(part)[1], {}).translate([pair.source for pair in short_pairs()], beam_size=1)


def taught(part: str) -> dict:
    """The teacher's scores, and what its labels are like."""
    teacher, (pairs, _) = teacher_of(part), data(part)
    found = {"parameters": sum(p.numel() for p in teacher.parameters()), "test": scores(part, teacher, "test"),
             "shown": [[pair.source, pair.target] for pair in short_pairs()], "written": written(part, teacher)}
    labels = targets(part, "sequence")
    found["own sentences"] = {
        "pairs": len(labels), "as gold": round(sum(a.target == b.target for a, b in zip(labels, pairs)) / OWN, 4),
        "plain": round(sum("-o" not in pair.target for pair in labels) / len(labels), 4)}
    if part == "one":
        gold = {pair.source: pair.target for pair in new_pairs()}
        fresh = targets(part, "new sentences")[OWN:]
        found["new sentences"] = {"pairs": len(fresh), "as gold": round(sum(gold[pair.source] == pair.target for pair in fresh) / len(fresh), 4)}
    return found


def run(part: str, name: str, rate: float, seed: int) -> dict:
    """One training, and its scores on test."""
    model, seconds = trained(part, name, rate, seed)
    return {"seed": seed, "test": scores(part, model, "test"), "written": written(part, model), "seconds": round(seconds, 1)}


def searched(part: str, name: str) -> dict:
    """A student's parameters and its rate."""
    rate, tried = best_rate(lambda rate: 100 - scores(part, trained(part, name, rate, 1)[0], "valid", (1,))["beam 1"]["bleu"], FIRST)
    size = sum(p.numel() for p in Transformer(len(data(part)[1]), len(data(part)[1]), **STUDENT).parameters())
    return {"parameters": size, "rate": rate, "rates": tried, "runs": []}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=list(STUDENTS), choices=list(STUDENTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {
        **facts(), "student": STUDENT, "teacher": TEACHER, "steps": STEPS, "teacher steps": TEACHER_STEPS, "rows": ROWS,
        "beam": BEAM, "own": OWN, "new": NEW, "plain": PLAIN, "parts": {}}
    for part in given.parts:
        noted = record["parts"].setdefault(part, {"students": {}})
        noted.setdefault("teacher", taught(part))
        print(part, noted["teacher"], flush=True)
        for name in STUDENTS[part]:
            if name not in noted["students"]:
                noted["students"][name] = searched(part, name)
                print(part, name, noted["students"][name], flush=True)
                write(NAME, record)
            for seed in given.seeds:
                if seed not in [one["seed"] for one in noted["students"][name]["runs"]]:
                    noted["students"][name]["runs"].append(run(part, name, noted["students"][name]["rate"], seed))
                    print(part, name, noted["students"][name]["runs"][-1], flush=True)
                    write(NAME, record)


if __name__ == "__main__":
    main()

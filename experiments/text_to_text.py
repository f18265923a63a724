"""One T5 for several tasks: joint against separate training, two languages by prefix, and span corruption first.

    python experiments/text_to_text.py --parts lesson tasks sentences spans captions

`lesson`: the rate of lesson 33's own model, chosen on valid. `tasks`: four tasks in one model, in turn, against a model for
each: with as many batches of its own, with these batches again and again until it has taken as many steps as the joint model, or
with as many batches as all tasks together. `sentences`: a fifth task, "is this sentence right?",
at the rate of the model of four; in half of its sentences the verb has the wrong number. `spans`: Hindi to English from few pairs, with
and without span corruption of sentences that have no partner. `captions`: Multi30k to German and to French in one model
(`transformer-course data fetch multi30k`, or TRANSFORMER_COURSE_DATA). Other rates are searched on valid, with seed 1: the best, with
half of it and twice of it tried and no better. Test is scored once by each model whose rate was chosen. The rate of the span corruption
itself is not tuned. A model alone gets its batches again, or the batches of all tasks, only if its own are not enough for 99 % on valid.
Goes on where an earlier call stopped; writes results/text_to_text.json. One thread.
"""
import argparse
import json
import math
import re
import time
from collections import Counter
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from statistics import mean

import torch
from records import RESULTS, best_rate, facts, joined_facts, write

from transformer_course.data.spans import SpanBatches, sentinel_ids, sentinel_tokens
from transformer_course.data.batching import PairBatches
from transformer_course.data.corpora import load
from transformer_course.data.hindi.grammar import Clause, NounPhrase, noun_phrase, realise
from transformer_course.data.hindi.lexicon import LIVING, NOUNS, VERBS
from transformer_course.data.hindi.parts import pick, sayable, some_adjective, some_clause, some_noun
from transformer_course.data.story_tasks import TextTask, passage_tasks, passages, story_split, story_tasks
from transformer_course.data.text import EOS, PAD, Tokenizer
from transformer_course.models.t5 import T5
from transformer_course.pipelines.decoding import translate
from transformer_course.pipelines.searching import SearchOptions
from transformer_course.scoring import bleu, exact_match
from transformer_course.training.schedules import linear_decay
from transformer_course.training.settings import Settings
from transformer_course.training.trainer import fit

FIRST_RATE, LESSON_PASSAGES = 2.5e-3, 400
SMALL = {"d_model": 64, "n_heads": 4, "n_layers": (2, 1), "d_ff": 128, "dropout": 0.0}      # the lesson's
OWN, TOKENS = 400, 512                            # batches of each task in the joint model; cells of a batch
SOLVED = 0.99                                     # a model alone that has this on valid gets no more batches
JUDGED = {"train": 2000, "valid": 100, "test": 250}    # fours of sentences to judge
SPANS = {"rate": 0.3, "mean_length": 2.0}         # sentences are short: about ten words
PRETRAINING, PRETRAINING_RATE, TUNING, PAIRS = 500, 2.5e-3, 300, (1000,)
CAPTIONS = {"d_model": 128, "n_heads": 4, "n_layers": (3, 2), "d_ff": 256, "dropout": 0.1}
BUDGETS = ("own", "again", "all")                 # of a model alone
LANGUAGES = {"de": "translate to German : ", "fr": "translate to French : "}


# Data: tasks of the lesson, and Hindi to English

def opinions(labelled, kind="opinion"):
    """A task for each review."""
    return [TextTask(kind, f"opinion : {r.text}", ("bad", "good")[r.label]) for r in labelled]


def translations(pairs, prefix="translate : "):
    """A task for each pair."""
    return [TextTask("translate", prefix + p.source, p.target) for p in pairs]


def told(split, most=None):
    """The tasks of all stories of a split, or of the first ones."""
    corpus = load("micro-text")
    stories = [t.text for part in ("train", "valid", "test") for t in corpus[part] if " came home from the " in t.text]
    return [task for s in [s for s in stories if story_split(s) == split][:most] for task in story_tasks(s)]


def splits(most=None):
    """The tasks of train, valid and test. The last 400 reviews of train are kept for the test."""
    reviews, hindi = load("micro-reviews"), load("micro-hindi", "hi-en")
    return {"train": told("train", most) + opinions(reviews["train"][:-400]) + translations(hindi["train"]),
            "valid": told("valid") + opinions(reviews["valid"]) + translations(hindi["valid"]),
            "test": told("test") + opinions(reviews["train"][-400:]) + opinions(reviews["test"], "twins") + translations(hindi["test"])}


def said(clause: Clause, subject: NounPhrase) -> list[str]:
    """The clause's words with another subject; the verb stays as it is."""
    words, own = realise(clause)[0], clause.subject.english
    first = words.index(own[0])
    return [w.text for w in (*words[:first], *subject.english, *words[first + len(own):])]


def four_sentences(rng: Random) -> tuple[str, list[str]]:
    """Where its subject and verb are used together, and "the boy sings", "the boys sing", "the boys sings", "the boy sing".

    The first two are right. Each word is in as many right sentences as wrong ones.
    """
    while True:
        noun = some_noun(rng, LIVING)
        adjective = some_adjective(rng, noun, 0.25)
        boy, boys = (noun_phrase(noun, "the", adjective, plural) for plural in (False, True))
        sings = some_clause(rng, boy, tense=pick(rng, ("present", "progressive", "past progressive")), adjuncts=0.15)
        if sayable(sings.verb, sings.tense, boys):
            sing = replace(sings, subject=boys)
            total = list(NOUNS).index(noun.english) + list(VERBS).index(sings.verb.english)
            return ({0: "test", 1: "valid"}.get(total % 6, "train"),
                    [" ".join(said(*which)) for which in ((sings, boy), (sing, boys), (sings, boys), (sing, boy))])


def judgements(seed: int = 1) -> dict[str, list[TextTask]]:
    """Sentences to judge, none of them twice; subjects and verbs of valid and test never meet in train."""
    rng, taken, found = Random(f"judgements {seed}"), set(), {split: [] for split in JUDGED}
    while any(len(found[split]) < 4 * n for split, n in JUDGED.items()):
        split, four = four_sentences(rng)
        if len(found[split]) < 4 * JUDGED[split] and taken.isdisjoint(four):
            taken.update(four)
            found[split] += [TextTask("right", f"right : {text}", answer) for text, answer in zip(four, ("yes", "yes", "no", "no"))]
    return found


def by_word_counts(data) -> float:
    """Share of the test sentences that a classifier of word counts judges rightly: each word votes as its training sentences say."""
    votes = {answer: Counter(w for t in data["train"] if t.target == answer for w in t.source.split()) for answer in ("yes", "no")}
    says = lambda text: sum(math.log((votes["yes"][w] + 1) / (votes["no"][w] + 1)) for w in text.split())
    return round(mean((says(t.source) > 0) == (t.target == "yes") for t in data["test"]), 4)


def by_kind(tasks):
    """The tasks of each kind."""
    return {kind: [t for t in tasks if t.kind == kind] for kind in dict.fromkeys(t.kind for t in tasks)}


def encoded(tokenizer, tasks):
    """Examples: a target begins with padding."""
    sources, targets = (tokenizer.encode_many([getattr(t, side) for t in tasks]) for side in ("source", "target"))
    return [(source + [EOS], [PAD, *target, EOS]) for source, target in zip(sources, targets)]


@dataclass(frozen=True)
class InTurn:
    """A batch of each task in turn, so many of each; all in one epoch."""

    sources: list           # a PairBatches for each task
    own: int                # batches of each
    times: int = 1          # how often the same batches are read, all of them before any again

    def plan(self, seed, epoch):
        """A batch is its task's number and the places of its examples."""
        def endless(n):
            return ((n, batch) for again in count() for batch in self.sources[n].plan(seed, 1000 * epoch + again))
        streams = [endless(n) for n in range(len(self.sources))]
        return [next(stream) for turn in range(self.own) for stream in streams] * self.times

    def in_order(self):
        """From short to long, task by task."""
        return [(n, batch) for n, source in enumerate(self.sources) for batch in source.in_order()]

    def collate(self, batch, device=None):
        """The pairs as two rectangles of ids."""
        return self.sources[batch[0]].collate(batch[1], device)

    def tokens(self, batch):
        """Target tokens."""
        return self.sources[batch[0]].tokens(batch[1])

    def fingerprint(self):
        """Of all tasks."""
        return " ".join(s.fingerprint() for s in self.sources) + f" {self.own} {self.times}"


# Training and scoring

def trained(model, batches, rate, steps, seed, warmup=50, smoothing=0.0, precision="highest"):
    """The seconds that it took."""
    begun = time.perf_counter()
    settings = Settings(precision=precision, device="cpu", smoothing=smoothing, seed=seed)
    fit(model, batches, linear_decay(rate, warmup), steps=steps, settings=settings, progress=False)
    return round(time.perf_counter() - begun, 1)


def right(model, tokenizer, tasks):
    """Share of the tasks of each kind that are answered without an error."""
    model.eval()
    found = translate(model, tokenizer, [t.source for t in tasks], SearchOptions(beam_size=1))
    hits = {kind: [f == t.target for f, t in zip(found, tasks) if t.kind == kind] for kind in by_kind(tasks)}
    return {kind: round(sum(hit) / len(hit), 4) for kind, hit in hits.items()}


def new_t5(tokenizer, seed, sizes):
    """A T5 of random weights."""
    torch.manual_seed(seed)
    return T5(len(tokenizer), **sizes)


def parameters(model):
    """How many numbers are learned."""
    return sum(p.numel() for p in model.parameters())


def with_best_rate(entry, seeds, run, stored, fixed=None):
    """Search the rate with seed 1, unless it is `fixed`, and run all seeds with the best on valid; `entry` is filled.

    `run(rate, seed)` trains a model and returns a function from a split to its scores. Rates that `entry` has are not tried again.
    """
    tried, held = entry.setdefault("valid", {}), {}

    def wrong(rate):
        if str(rate) not in tried:
            held[rate] = run(rate, 1)
            tried[str(rate)] = held[rate]("valid")
            stored()
        return -mean(tried[str(rate)].values())

    best = fixed or best_rate(wrong, FIRST_RATE)[0]
    if entry.get("rate", best) != best:
        entry.pop("runs", None)                     # of a rate that was taken before the others were tried
    entry["rate"] = best
    for seed in seeds:
        runs = entry.setdefault("runs", [])
        if not any(r["seed"] == seed for r in runs):
            score = held.get(entry["rate"]) if seed == 1 else None
            runs.append({"seed": seed, "test": (score or run(entry["rate"], seed))("test")})
            stored()


# The parts

def lesson(record, stored, seeds):
    """The rate of lesson 33's live model: questions, short versions and opinions in mixed batches; searched until a worse one lies on either side."""
    reviews, made = load("micro-reviews"), passages(people=1, train=LESSON_PASSAGES)
    data = {name: [task for passage in made[name] for task in passage_tasks(passage)] + opinions(rated)
            for name, rated in (("train", reviews["train"][:-400]), ("valid", reviews["valid"]))}
    tokenizer = Tokenizer.train([text for t in data["train"] for text in (t.source, t.target)], kind="words", size=1000)
    record.clear()
    record.update(facts() | {"steps": 2000, "sizes": SMALL, "batch_tokens": TOKENS, "passages": LESSON_PASSAGES, "valid": {}})

    def wrong(rate):
        model = new_t5(tokenizer, 1, SMALL)
        trained(model, PairBatches(encoded(tokenizer, data["train"]), TOKENS), rate, 2000, 1)
        record["valid"][str(rate)] = right(model, tokenizer, data["valid"])
        stored()
        print(f"lesson, rate {rate}: {record['valid'][str(rate)]}", flush=True)
        return 1 - mean(record["valid"][str(rate)].values())

    record["rate"] = best_rate(wrong, 2.5e-3)[0]


def tasks(record, stored, seeds, kinds=None, budgets=BUDGETS):
    """Four tasks in one model, against a model for each, or for each of some kinds."""
    joint_and_alone(record, stored, seeds, splits(), kinds, budgets)


def sentences(record, stored, seeds, rate):
    """A fifth task in one model with the four, against a model for it alone."""
    judged = judgements()
    record["word counts"] = by_word_counts(judged)
    joint_and_alone(record, stored, seeds, {name: of + judged[name] for name, of in splits().items()}, ["right"], BUDGETS, rate)


def joint_and_alone(record, stored, seeds, data, kinds, budgets, joint_rate=None):
    """One model for all tasks, and a model for each or for some kinds."""
    tokenizer = Tokenizer.train([text for t in data["train"] for text in (t.source, t.target)], kind="words", size=2000)
    sources = {kind: PairBatches(encoded(tokenizer, of), TOKENS) for kind, of in by_kind(data["train"]).items()}
    record.update({"own": OWN, "all": OWN * len(sources), "batch_tokens": TOKENS, "sizes": SMALL, "words": len(tokenizer),
                   "parameters": parameters(new_t5(tokenizer, 1, SMALL)),
                   "examples": {name: {kind: len(of) for kind, of in by_kind(found).items()} for name, found in data.items()}})

    def run(kinds, own, times, rate, seed):
        model = new_t5(tokenizer, seed, SMALL)
        batches = InTurn([sources[kind] for kind in kinds], own, times)
        seconds = trained(model, batches, rate, own * times * len(kinds), seed)

        def score(split):
            wanted = [t for t in data[split] if t.kind in kinds or t.kind == "twins" and "opinion" in kinds]
            scores = right(model, tokenizer, wanted)
            print(f"{'+'.join(kinds)}, {own} each, {times} times, rate {rate}, seed {seed}: {seconds} s, {split} {scores}", flush=True)
            return scores

        return score

    runs = record.setdefault("models", {})

    def alone(name, kind, own, times=1):
        entry = runs.setdefault(name, {}).setdefault(kind, {})
        with_best_rate(entry, seeds, lambda *given: run([kind], own, times, *given), stored)

    for kind in kinds or sources:
        if "own" in budgets:
            alone("alone, own batches", kind, OWN)
    with_best_rate(runs.setdefault("joint", {}), seeds, lambda *given: run(list(sources), OWN, 1, *given), stored, joint_rate)
    for kind in kinds or sources:
        if max(min(score.values()) for score in runs["alone, own batches"][kind]["valid"].values()) < SOLVED:
            if "again" in budgets:
                alone("alone, own batches again", kind, OWN, len(sources))
            if "all" in budgets:
                alone("alone, all batches", kind, OWN * len(sources))


def spans(record, stored, seeds):
    """Hindi to English from few pairs, after span corruption of other sentences or after nothing."""
    corpus = load("micro-hindi", "hi-en")
    pairs, half = corpus["train"], len(corpus["train"]) // 2
    plain = [p.source for p in pairs[:half]] + [p.target for p in pairs[half:]]
    tokenizer = Tokenizer.train([text for p in pairs for text in (p.source, p.target)] + ["translate :"], kind="words", size=2000,
                                specials=sentinel_tokens(8))
    corrupted = SpanBatches(tokenizer.encode_many(plain), sentinel_ids(tokenizer), TOKENS, **SPANS)
    data = {name: translations(corpus[name]) for name in ("train", "valid", "test")}
    record.update({"pretraining": PRETRAINING, "pretraining_rate": PRETRAINING_RATE, "tuning": TUNING, "sentences": len(plain),
                   "spans": SPANS, "sizes": SMALL, "batch_tokens": TOKENS})
    known = {}

    def begin(seed):
        model = new_t5(tokenizer, seed, SMALL)
        if seed not in known:
            trained(model, corrupted, PRETRAINING_RATE, PRETRAINING, seed)
            known[seed] = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(known[seed])
        return model

    def run(n, start, rate, seed):
        model = begin(seed) if start == "spans first" else new_t5(tokenizer, seed, SMALL)
        steps = TUNING + PRETRAINING * (start == "pairs for longer")
        seconds = trained(model, PairBatches(encoded(tokenizer, data["train"][-n:]), TOKENS), rate, steps, seed)
        model.eval()

        def score(split):
            found = translate(model, tokenizer, [t.source for t in data[split]], SearchOptions(beam_size=1))
            references = [t.target for t in data[split]]
            scores = {"exact": round(exact_match(found, references), 4), "bleu": round(bleu(found, references).value, 2)}
            print(f"{n} pairs, {start}, rate {rate}, seed {seed}: {seconds} s, {split} {scores}", flush=True)
            return {"bleu": scores["bleu"]} if split == "valid" else scores

        return score

    for n in PAIRS:
        for start in ("pairs alone", "spans first", "pairs for longer"):
            entry = record.setdefault("pairs", {}).setdefault(str(n), {}).setdefault(start, {})
            with_best_rate(entry, seeds, lambda *given, n=n, start=start: run(n, start, *given), stored)


def telling_words(texts):
    """For each language the words that its training captions have and the other's have not."""
    words = {code: Counter(word for text in lines for word in re.findall(r"\w+", text.lower())) for code, lines in texts.items()}
    return {code: set(words[code]) - set().union(*(words[other] for other in words if other != code)) for code in words}


def language_of(text, telling):
    """The language with more telling words in the text; None if there are as many of both."""
    found = {code: sum(word in known for word in re.findall(r"\w+", text.lower())) for code, known in telling.items()}
    best = max(found, key=found.get)
    return best if list(found.values()).count(found[best]) == 1 else None


def captions(record, stored, seeds, steps=1600, rate=4e-3):
    """Multi30k from English to German and to French: one model by prefix, and a model for each, with half of the steps
    or with as many.

    The rate is that of the preset `tiny`; nothing is chosen. `epoch` is how many batches hold all pairs of a language once.
    """
    corpora = {code: load("multi30k", f"en-{code}") for code in LANGUAGES}
    texts = {code: [p.target for p in corpus["train"]] for code, corpus in corpora.items()}
    tokenizer = Tokenizer.train([p.source for p in corpora["de"]["train"]] + [t for lines in texts.values() for t in lines]
                                + list(LANGUAGES.values()) * 100, kind="bpe", size=4000)
    english, telling = [p.source for p in corpora["de"]["test_2016_flickr"]], telling_words(texts)
    references = {code: [p.target for p in corpus["test_2016_flickr"]] for code, corpus in corpora.items()}
    share = lambda lines, code: round(sum(language_of(line, telling) == code for line in lines) / len(lines), 4)

    def batches(codes):
        pairs = [t for code in codes for t in translations(corpora[code]["train"], LANGUAGES[code])]
        return PairBatches(encoded(tokenizer, pairs), 2048)

    record.update({"sizes": CAPTIONS, "parameters": parameters(new_t5(tokenizer, 1, CAPTIONS)), "pieces": len(tokenizer), "steps": steps,
                   "rate": rate, "batch_tokens": 2048, "epoch": {code: len(batches([code]).plan(1, 0)) for code in LANGUAGES},
                   "rule": {code: share(lines, code) for code, lines in references.items()}})

    def run(codes, steps, seed):
        model = new_t5(tokenizer, seed, CAPTIONS)
        seconds = trained(model, batches(codes), rate, steps, seed, warmup=steps // 5, smoothing=0.1, precision="medium")
        model.eval()
        written = {code: translate(model, tokenizer, [LANGUAGES[code] + text for text in english], SearchOptions(beam_size=1)) for code in codes}
        scores = {code: round(bleu(written[code], references[code]).value, 2) for code in codes}
        return written, {"seed": seed, "steps": steps, "seconds": seconds, "test": scores}

    for seed in seeds:
        new = lambda runs: all(r["seed"] != seed for r in runs)
        if new(joint := record.setdefault("joint", [])):
            written, found = run(list(LANGUAGES), steps, seed)
            joint.append(found | {"obeyed": {code: share(lines, code) for code, lines in written.items()}})
            record.setdefault("examples", [{"en": english[i]} | {code: written[code][i] for code in LANGUAGES} for i in range(0, 40, 10)])
            stored()
            print("joint", joint[-1], flush=True)
        for name, own in (("alone", steps // 2), ("alone, all batches", steps)):
            for code in LANGUAGES:
                if new(runs := record.setdefault(name, {}).setdefault(code, [])):
                    runs.append(run([code], own, seed)[1])
                    stored()
                    print(code, name, runs[-1], flush=True)


PARTS = {"lesson": lesson, "tasks": tasks, "sentences": sentences, "spans": spans, "captions": captions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--budgets", nargs="+", default=list(BUDGETS), choices=BUDGETS, help="of a model alone")
    parser.add_argument("--kinds", nargs="+", help="tasks that get a model of their own; default: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "text_to_text.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for name in given.parts:
        part = record.setdefault(name, {})
        stored = lambda: write("text_to_text", {**joined_facts(record), **{k: v for k, v in record.items() if k in PARTS}})
        more = {"tasks": lambda: (given.kinds, given.budgets), "sentences": lambda: (record["tasks"]["models"]["joint"]["rate"],)}
        PARTS[name](part, stored, given.seeds, *more.get(name, tuple)())
        stored()


if __name__ == "__main__":
    main()

"""The tables of lessons 31 to 34 for docs/results.md, made from the records by tools/results_page.py."""
from statistics import mean

from recorded_facts import record, records, source, spread, table


def at_best_rate(runs: list[dict]) -> list[dict]:
    """The runs with the rate that is best on valid, mean over the seeds that tried all rates; of equals, the one that all seeds used."""
    rates = sorted({run["rate"] for run in runs})
    tried = {seed: [run for run in runs if run["seed"] == seed] for seed in {run["seed"] for run in runs}}
    fair = [run for found in tried.values() if len({run["rate"] for run in found}) == len(rates) for run in found]
    used = lambda rate: len([run for run in runs if run["rate"] == rate])
    best = max(rates, key=lambda rate: (mean(run["valid"] for run in fair if run["rate"] == rate), used(rate)))
    return [run for run in runs if run["rate"] == best]


def by_labels(runs: list[dict]) -> dict[int, list[float]]:
    """For each number of labels the shares that were right on test, in per cent, with the rate that was best on valid."""
    counts = sorted({run["labels"] for run in runs})
    return {n: [100 * run["test"] for run in at_best_rate([run for run in runs if run["labels"] == n])] for n in counts}


# Lesson 31

READINGS = {"as trained": "as it was trained", "segments alone": "nothing before a segment",
            "half overlap": "windows that overlap by half", "moved by one": "windows moved by one word"}


def long_memory() -> str:
    found = record("transformer_xl")
    def rows(part, digits):
        for name, entry in part["models"].items():
            for way, words in READINGS.items():
                runs = [run[way] for run in entry["runs"] if run.get(way)]
                told = ("as trained", "segments alone") if entry["memory"] else ("as trained", "half overlap", "moved by one")
                if not runs or way not in told:
                    continue
                trained = f"{entry['length']}, {'memory of ' + str(entry['memory']) if entry['memory'] else 'no memory'}"
                trained += ", read in order" if name.startswith("streams") else ""
                trained += f", a loss on the last {part['length']} only" if name.startswith("windows") else ""
                recalled = [spread([run["recalled"] for run in runs], digits)] if "recalled" in runs[0] else []
                yield [trained, words, len(runs), spread([run["mean"] for run in runs], digits), *recalled]
    micro, characters = found["micro"], found["characters"]
    seconds = {name: f"{mean(run['seconds'] for run in entry['runs']):.0f}" for name, entry in characters["models"].items()}
    head = "trained on segments of | read at test | seeds | nats a "
    return f"""## A memory of earlier segments

Lesson [31c](../nbs/lessons/31c_memory_worth.ipynb): a Transformer with relative positions, with and without Transformer-XL's memory.
Models of one table have the same parameters, words with a loss in a step, and steps. Lower is better. *Recalled* words are
those that a story has named before and that nothing else foretells.

Micro-text, {micro['steps']:,} steps, {micro['test words']:,} words of test:

{table(head + "word | of recalled words", rows(micro, 2))}

Shakespeare in characters, {characters['steps']:,} steps, {characters['scored']:,} characters of test. Training took
{" and ".join(f"{took} seconds ({name})" for name, took in seconds.items())}:

{table(head + "character", rows(characters, 3))}

{source("transformer_xl")}"""


# Lessons 32, 32a, 32b, 34

def pretraining() -> str:
    return "\n\n".join((PRETRAINING, own_pretraining(), published_weights(), sentence_pairs(), question_answering()))


PRETRAINING = """## What pre-training is worth

The figures are per cent right on test, the mean with the lowest and the highest. A seed also draws the labelled
examples. Rates and penalties were chosen on valid."""


def own_pretraining() -> str:
    found = record("bert")
    starts = {name: by_labels(entry["runs"]) for name, entry in found["labels"].items()}
    counts = list(next(iter(starts.values())))
    labels = [[name, *(spread(of[n], 1) if n in of else "–" for n in counts)] for name, of in starts.items()]
    (n,) = {run["labels"] for entry in found["parts"].values() for run in entry["runs"]}
    seeds = set.intersection(*({run["seed"] for run in entry["runs"]} for entry in found["parts"].values()))
    def part(name, entry):
        guessed = [100 * about["reviews"]["right"] for about in entry["pretraining"] if about["seed"] in seeds]
        runs = [run for run in entry["runs"] if run["labels"] == n and run["seed"] in seeds]
        return [name, spread(guessed, 1), spread(by_labels(runs)[n], 1)]
    compared = {"nothing": found["labels"]["micro-text and reviews"]} | found["parts"]
    parts = [part(*item) for item in compared.items()]
    told = ("""
*As many steps*: from scratch, with as many steps in all as the pre-trained ones, all of them with labels, with three seeds."""
            if any("as many steps" in name for name in starts) else "")
    return f"""**Our own pre-training** (lesson [32](../nbs/lessons/32_bert.ipynb)). A BERT of {found['settings']['sizes']['n_layers']} layers learns
the opinions of micro-reviews, after it has read micro-text, or micro-text and the reviews without their labels, or nothing.{told}

{table("start | " + " | ".join(f"{n} labels" for n in counts), labels)}

The second pre-training with one thing changed, {len(seeds)} seeds:

{table(f"what is changed | hidden words of reviews, guessed | opinions, {n} labels", parts)}

{source("bert")}"""


FIXED = {"MiniLM, mean": "MiniLM, mean of the words", "MiniLM, [CLS]": "MiniLM, vector of [CLS]",
         "random weights, mean": "the same network with random weights, mean", "bag of words": "bag of words"}


def published_weights() -> str:
    found = record("minilm")
    counts = list(found["labels"]["bag of words"])
    rows = [[FIXED.get(name, name), f"{found['partners'][name]} of {2 * len(found['pairs'])}",
             *(spread(of[n], 1, 100) for n in counts)] for name, of in found["labels"].items()]
    return f"""**Published weights** (lesson [34](../nbs/lessons/34_pretrained.ipynb)). MiniLM gives each sentence a vector, which stays as it is.
How often is the nearest of {2 * len(found['pairs'])} sentences the one that means the same? And how often is a logistic
regression on the vectors right about {found['sentences']['test']:,} film reviews? MiniLM was trained on a billion pairs of sentences, too.

{table("vectors | nearest sentence | " + " | ".join(f"{int(n):,} labels" for n in counts), rows)}

{source("minilm")}{_tuned("polarity", '''

The same reviews, with all weights of the network trained:

''')}"""


def _tuned(task: str, text: str) -> str:
    "A table of the record of fine-tuned published weights, if there is one."
    if "minilm_tuned" not in records() or task not in (tasks := record("minilm_tuned")["tasks"]):
        return ""
    starts = tasks[task]
    counts = sorted({int(n) for of in starts.values() for n in of})
    rows = []
    for name, of in starts.items():
        cells = [at_best_rate(of[str(n)]) if of.get(str(n)) else [] for n in counts]
        rows.append([name, max(map(len, cells)), *(spread([100 * run["test"] for run in runs], 1) if runs else "–" for runs in cells)])
    return f"""{text}{table("start | seeds | " + " | ".join(f"{n:,} labels" for n in counts), rows)}

{source("minilm_tuned")}"""


def sentence_pairs() -> str:
    found = record("entailment")
    rows = [[name, f"{n:,}", f"{at[0]['steps']:,}", len(at), spread([100 * run["test"] for run in at], 1)]
            for name, entry in found["starts"].items() for n in sorted({run["labels"] for run in entry["runs"]})
            for at in [at_best_rate([run for run in entry["runs"] if run["labels"] == n])]]
    return f"""**Sentence pairs** (lesson [32a](../nbs/lessons/32a_micro_entailment.ipynb)). Three classes in equal numbers, so guessing is right on
a third. Rules that ignore who did it are right on more; the lesson measures them.

{table("start | labels | steps | seeds | right", rows)}

{source("entailment")}{_tuned("entailment", '''

The same pairs, with all weights of the network trained. MiniLM had met labelled sentence pairs before:

''')}"""


TOLD = {"one": "one person", "two": "one or two people", "absent": "one person; nearly half of the questions have no answer"}


def question_answering() -> str:
    found = record("question_answering")
    rows = [[TOLD[part], f"{found['given'][part]['steps']:,}", name, f"{entry['parameters']:,}", f"{entry['rate']:g}",
             spread([run["test"]["all"] for run in entry["runs"]], 1, 100)]
            for part, models in found["parts"].items() for name, entry in models.items()]
    return f"""**Question answering** (lesson [32b](../nbs/lessons/32b_question_answering.ipynb)). The answer is a span of a small story; the figures are
exact match. *Marked* models are told which words of the story are in the question. Nothing here is pre-trained.

{table("stories | steps | model | parameters | rate | exactly right", rows)}

{source("question_answering")}"""


# Lesson 33

def other_languages() -> str:
    found = record("text_to_text")
    return "\n\n".join(filter(None, (_spans(found["spans"]), _captions(found.get("captions", {})), source("text_to_text"))))


def _spans(found: dict) -> str:
    rows = [[start, len(entry["runs"]), *(spread([run["test"][score] * times for run in entry["runs"]], 1)
                                          for score, times in (("exact", 100), ("bleu", 1)))]
            for start, entry in next(iter(found["pairs"].values())).items()]
    (n,) = found["pairs"]
    return f"""## Gaps in plain text first

The same T5 translates micro-Hindi into English from {int(n):,} pairs. *Spans first*: before, it fills gaps in {found['sentences']:,} sentences
without a partner, for {found['pretraining']} batches. *For longer*: it gets as many batches more of the pairs instead.

{table("start | seeds | exact match, % | BLEU", rows)}"""


def _captions(found: dict) -> str:
    "One model for two languages, and a model for each where the record has it."
    if not found.get("joint"):
        return ""
    languages = {"de": "to German", "fr": "to French"}
    bleu_of = lambda runs, code: spread([run["test"][code] for run in runs], 1)
    joint, alone = found["joint"], [of for name in ("alone", "alone, all batches") for of in [found.get(name, {})]]
    rows = [["one model, both languages", f"{found['steps']:,}", len(joint), *(bleu_of(joint, code) for code in languages)]]
    rows += [[f"{words} alone", f"{of[code][0]['steps']:,}", len(of[code]), *(bleu_of(of[code], code) if code == one else "–" for one in languages)]
             for of in alone for code, words in languages.items() if of.get(code)]
    obeyed = [100 * min(run["obeyed"][code] for run in joint) for code in languages]
    return f"""A larger T5 with {found['parameters']:,} parameters translates Multi30k's English captions. A prefix names the language.
Of its German and French captions, at least {obeyed[0]:.1f} % and {obeyed[1]:.1f} % are in the language that was asked for, with every seed.

{table("model | batches | seeds | BLEU, " + " | BLEU, ".join(languages.values()), rows)}"""

"""Write docs/results.md, and the two tables of README.md that are made from records and notebooks.

    python tools/results_page.py          write them
    python tools/results_page.py check    exit 1 if one is not what the records give

Every figure comes from a record in experiments/results or benchmarks/results. A sentence here holds no
measured number. A note on one run is printed only as long as the record is of the commit that the note names.
"""
import json
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import mean

import notebooks
from beyond_tables import beyond
from model_tables import long_memory, other_languages, pretraining
from readme_tables import headlines, lessons
from recorded_facts import (NAMES, ROOT, ahead, direction, facts, gathered, link, named, record, records,
                            script, searches, source, spread, table)
from today_tables import today

PAGE, README = ROOT / "docs" / "results.md", ROOT / "README.md"


# The page, section by section

def opening() -> str:
    return f"""# Results

<!-- Made by tools/results_page.py from the records; do not edit. -->

Every figure on this page is read from a record that a script wrote. Below each table you find the record, the
script, the date, the commit, the machine and the seed. Benchmarks draw their weights and batches with seed 1.
Another machine gives other times; the ratio of two times changes less.

- **Exact match**: the share of translations that equal the reference, in per cent.
- **BLEU** and **chrF**: agreement with the reference in runs of words and of letters, 0 to 100 (lesson 04).
- **AER**: how often a model's attention differs from the true word alignment. Lower is better (lesson 04).
- **Beam of five** and **greedy**: the search keeps the five best beginnings, or only one (lesson 12)."""


def scoreboard() -> str:
    found = record("micro_hindi")
    def row(name, model):
        runs = [run["scores"] for run in model["runs"]]
        of = lambda split, score: [run[split][score] for run in runs]
        return [NAMES.get(name, name), f"{model['parameters']:,}", spread(of("test", "exact_match"), 1, 100),
                spread(of("test", "bleu"), 1), spread(of("test", "aer"), 2), spread(of("length", "bleu"), 1)]
    head = "model (lesson) | parameters | exact match, % | BLEU | AER | BLEU, longer sentences"
    return f"""## One scoreboard

All translators of the course learn micro-Hindi: the same 8,000 pairs, the same batches, {found['steps']:,}
steps, and a beam of {found['beam_size']}. They are scored on 1,000 sentences that none of them has seen. Each
figure is the mean over {len(found['seeds'])} seeds, with the lowest and the highest. The last column is for
sentences longer than any in training.

{table(head, (row(name, model) for name, model in found['models'].items()))}

{source("micro_hindi")}

Models that only align are in [lesson 13](../nbs/lessons/13_alignment.ipynb). [Lesson 25](../nbs/lessons/25_translation.ipynb)
shows how the translators differ with distance and length."""


LANGUAGE_MODELS = {"rnn": "plain RNN (10a)", "gru": "GRU (10a)", "lstm": "LSTM (10a)",
                   "learned": "Transformer, learned positions (30)", "rotary": "Transformer, rotary (30)",
                   "xl": "Transformer-XL (31)", "gru, pieces": "GRU, pieces of words (10a)",
                   "rotary, pieces": "Transformer, rotary, pieces of words (30)"}


def language_models() -> str:
    found = record("language_models")
    costs = found["costs"]
    def counted(order, entry, unit):
        of = f", {unit} of words" if unit == "pieces" else ""
        bits = entry["segments"]
        return [f"{order}-gram, counted{of} (10a)", "–", "–", f"{bits:.3f}", f"{2**bits:.2f}",
                f"{entry['one piece']:.3f}", "–", "–"]
    def trained(name, model):
        of = lambda way: spread([run[way] for run in model["runs"]], 3)
        cost = costs["models"].get(name)
        dear = [f"{cost['tokens per second']:,}", f"{cost['megabytes']:.0f}"] if cost else ["–", "–"]
        more = of("one piece") if "one piece" in model["runs"][0] else of("half overlap")
        perplexity = 2 ** mean(run["segments"] for run in model["runs"])
        return [LANGUAGE_MODELS[name], f"{model['parameters']:,}", len(model["runs"]), of("segments"),
                f"{perplexity:.2f}", more, *dear]
    rows = [counted(order, entry, unit) for unit in ("characters", "pieces")
            for order, entry in found["counted"][unit].items()]
    rows += [trained(name, found["models"][name]) for name in LANGUAGE_MODELS
             if found["models"].get(name, {}).get("runs")]
    head = ("model (lesson) | parameters | seeds | bits per character, in segments | perplexity of a character "
            "| with more context, bits | tokens a second | megabytes")
    return f"""## Language models

All networks read Shakespeare for {found['steps']:,} steps, with {found['rows']} segments of {found['length']} tokens in
a step. A token is a character unless the row says otherwise; bits are always per character. The n-grams count
the whole training text once. The rate of each network was chosen on valid, with one seed, after a third of the
steps; Transformer-XL takes that of the rotary Transformer. Perplexity is 2 to the power of the bits. The
figures are of {found['scored']:,} characters of test: the mean over the seeds, with
the lowest and the highest.

*In segments*, a model knows nothing of the text before a segment, the counted ones included; so Transformer-XL
lacks the memory that it was trained with. *With more context*, a Transformer reads windows that overlap by
half, at twice the cost. A recurrent network and an n-gram read the text in one piece; so does Transformer-XL,
with a memory as long as a segment.
Speed and memory are those of a training step. All models took turns in {costs['rounds']} rounds; the seconds
are the processor's, because other programs ran, too. Memory is what a fresh process grows by.

{table(head, rows)}

{source("language_models")}

{of_units()}"""


def of_units() -> str:
    found = record("units")
    def row(unit, part, name, runs):
        of = lambda key, digits: spread([run[key] for run in runs], digits)
        return [unit, f"{part['vocabulary']}", name, of("bits per character", 3), of("perplexity per word", 2),
                of("perplexity per token", 2)]
    rows = []
    for unit, part in found["units"].items():
        rows.append(row(unit, part, f"{part['ngram']['order']}-gram, counted (10a)", [part["ngram"]["test"]]))
        rows += [row(unit, part, LANGUAGE_MODELS[name], model["runs"]) for name, model in part["models"].items()]
    head = "unit | vocabulary | model (lesson) | bits per character | perplexity per word | perplexity per token"
    return f"""The course's own text, micro-text, in three units. Each document is read whole. All networks take
{found['steps']} steps, with the same {found['rows']} documents in each step whatever the unit. Perplexity per token
cannot be compared across units; the other two columns can.

{table(head, rows)}

{source("units")}"""


def demo() -> str:
    found = record("demo")
    def row(one):
        score = one["score"]
        return [one["model"], f"{100 * score['exact_match']:.1f}", f"{score['bleu']:.1f}",
                f"{score['chrf']:.1f}", "–" if score["aer"] is None else f"{score['aer']:.3f}", f"{one['parameters']:,}",
                f"{one['tokens_per_second']:,.0f}"]
    head = "model | exact match, % | BLEU | chrF | AER | parameters | target tokens a second"
    return f"""## What `make demo` prints

The demo trains three translators of micro-Hindi for {found['budget']} each. The budget is time, not steps, so
a model that reads more sentences a second learns from more of them. `seq2seq` has no attention; the other two
have.

{table(head, map(row, found["rows"]))}

{source("demo")}

The picture shows where the two models with attention look as they write. The true links are outlined.

![Two heat maps of attention over one sentence, true links outlined](../experiments/results/demo_alignment.png)"""


NOTES = {       # what a run did otherwise than its preset, and at which commit
    ("multi30k_en-de_transformer-rotary_small_60m", "4760fb3"): "warm-up of 1,500 steps, not 800",
    ("multi30k_en-de_transformer_tiny_22m_dropout03", "a298d87"):
        "warm-up of 1,000 steps, not 700; exact stopping of beam search"}


def captions() -> str:
    of_test = lambda run, beam: run["test_2016_flickr"][f"beam {beam}"]["bleu"]
    found = dict(sorted(named("multi30k_").items(), key=lambda item: -of_test(item[1], 5)))
    def row(name, run):
        what, threads = run["what"], re.search(r"(\d+) threads", run["training"]["hardware"])[1]
        full = NAMES.get(what["model"], what["model"])
        model = re.sub(r" \(\d+\w?\)|, pre-norm|, source reversed", "", full)
        return [direction(what["pair"]), model, f"`{what['preset']}`", run["sizes"]["dropout"],
                f"{what['minutes']:g} × {threads}", f"{run['valid']['bleu']:.1f}",
                f"**{of_test(run, 5):.1f}**", f"{of_test(run, 1):.1f}", f"{run['training']['tokens'] / 1e6:.1f}",
                NOTES.get((name, run["commit"]), "")]
    head = ("direction | model | preset | dropout | minutes × cores | valid, BLEU | test 2016, BLEU "
            "| the same, greedy | million tokens | note")
    (signature,) = {run["test_2016_flickr"]["beam 5"]["signature"] for run in found.values()}
    return f"""## Captions: Multi30k

Each model learns from the 29,000 pairs of Multi30k and nothing else, with a joint vocabulary of 8,000 pieces
of words (lesson 01). There is one run of each, so a difference of half a point says nothing. BLEU is cased
and detokenised, with a beam of five unless it says greedy. The test set was read once, after training;
nothing was chosen by it.

{table(head, (row(*item) for item in found.items()))}

sacreBLEU's signature is `{signature}`.

{source(*found)}

The machine was shared with other work: within one run, an epoch took up to
{slowest_epoch(found.values()):.1f} times as long as another. So look at the tokens as well as at the minutes.
Some translations by the models of the table:

{table("model | English | translation", examples(found.values()))}"""


def slowest_epoch(runs: Iterable[dict]) -> float:
    """How many times as long as the fastest whole epoch of its run an epoch took, at most."""
    found = []
    for run in runs:
        ends = [epoch["seconds"] for epoch in run["training"]["history"]][:-1]    # the last may be cut short
        seconds = [after - before for before, after in pairwise([0, *ends])]
        found.append(max(seconds) / min(seconds))
    return max(found)


def examples(runs: Iterable[dict]) -> list[list[str]]:
    """The recorded translations of the presets `small`."""
    return [[f"{direction(run['what']['pair'])}, `small`", english, f"*{foreign}*"] for run in runs
            if run["what"]["preset"] == "small" for english, foreign in run["translations"].items()]


def small_data() -> str:
    found = record("small_data")
    def row(name, variant):
        valid, seconds = variant["runs"][0]["valid"], mean(run["seconds"] for run in variant["runs"])
        of = lambda weights, beam: spread([run["valid"][weights][beam] for run in variant["runs"]], 1)
        return [name, of("mean of 1", "beam 1"), of("mean of 1", "beam 5"), of("mean of 5", "beam 5"),
                of("mean of 10", "beam 5") if "mean of 10" in valid else "–", f"{seconds / 60:.0f}"]
    head = "what is changed | greedy | beam of five | beam, mean of 5 epochs | mean of 10 epochs | minutes"
    return f"""## One change at a time

These runs translate Multi30k from English to German with the preset `tiny` and rotary positions. Each makes
{found['epochs']} passes over the data. The figures are BLEU on valid; no test set was read. The script knows
more changes than were run.

{table(head, (row(*item) for item in found['variants'].items()))}

{source("small_data")}"""


def attention_controls() -> str:
    found = record("attention_controls")
    names = {"additive": "additive attention", "additive-uniform": "the same, equal weights",
             "additive-last": "the same, last annotation only"}
    groups = list(found["models"]["additive"]["runs"][0]["by_length"])
    def row(name, model):
        of = lambda figure, digits: spread([figure(run) for run in model["runs"]], digits)
        return [names[name], f"{model['parameters']:,}", model["rate"], of(lambda run: run["valid"], 2), of(lambda run: run["bleu"], 1),
                *(of(lambda run: run["by_length"][group][1], 1) for group in groups)]
    head = "model | parameters | rate | loss on valid | BLEU | " + " | ".join(f"{group} words" for group in groups)
    return f"""## What attention is worth on captions

Multi30k from English to German, preset `tiny`, {found['steps']:,} batches of {found['batch_tokens']:,} tokens. The three
models differ only in the weights of the sum over the source. The rate of each is the better of two on valid.
BLEU is of test 2016, with a beam of five, as a whole and by the length of the English sentence.

{table(head, (row(*item) for item in found["models"].items()))}

{source("attention_controls")}"""


def several_tasks() -> str:
    found = record("text_to_text")["tasks"]
    models, kinds = found["models"], {"question": "question", "shorten": "shorten", "opinion": "opinion",
                                      "twins": "opinion", "translate": "translate"}
    def cell(entry, score):
        return spread([run["test"][score] for run in entry["runs"]], 1, 100) if entry else "–"
    def row(score, kind):
        alone = [models.get(name, {}).get(kind) for name in ("alone, own batches", "alone, own batches again", "alone, all batches")]
        return [score, cell(models["joint"], score), *(cell(entry, score) for entry in alone)]
    head = f"task | one model for all, {found['own']} batches of each | alone, {found['own']} batches | alone, these {found['own']} {found['all'] // found['own']} times | alone, {found['all']:,} batches"
    return f"""## One model for several tasks

A small T5 (lesson 33) learns four tasks in turn, or one alone, in batches of the same size. The figures are
exact match on test in per cent, with the lowest and highest of the seeds. *Twins* are opinions on pairs of
reviews with the same words and opposite labels. A figure without a range is of one seed.

{table(head, (row(*item) for item in kinds.items()))}

{source("text_to_text")}"""


def after_training() -> str:
    parts = []
    for name, found in named("after_training_").items():
        one = lambda score: [f"{score['bleu']:.1f}", f"{score['seconds']:.0f}"]
        rows = [[f"mean of the weights of the last {n} epochs" if n != "1" else "weights of the end",
                 *one(scores["beam 5"])] for n, scores in found["averages"].items()]
        rows += [[f"mean of the probabilities of {n} epochs' models", *one(scores["beam 5"])]
                 for n, scores in found["ensembles"].items()]
        rows += [[f"beam of {n}" if n != "1" else "greedy", *one(score)]
                 for n, score in found["beams"].items()]
        rows += [[f"length penalty {n}", *one(score)]
                 for n, score in found["length penalties, beam 5"].items()]
        parts.append(f"""{direction(found['pair'])}, preset `{found['preset']}`:

{table("what is changed | BLEU on valid | seconds for valid", rows)}

{source(name)}""")
    return """## After the training

What can still be chosen when a run has ended? Beams and length penalties were tried with the averaged
weights. The beam is five where nothing else is said.

""" + "\n\n".join(parts)


PRECISIONS = {"highest": "float32", "medium": "medium precision", "bf16": "bfloat16"}


def by_precision(found: dict, title: str) -> dict[str, dict]:
    """The parts "TITLE, PRECISION" of a record, by the precision."""
    start = f"{title}, "
    return {key.removeprefix(start): rows for key, rows in found.items() if key.startswith(start)}


def steps(title: str, found: dict) -> str:
    """The table of one kind of training step, in all precisions."""
    parts = by_precision(found, title)
    first = next(iter(parts.values()))
    rows = [[name, *(f"{part[name]['ratio']:.2f}" for part in parts.values()),
             f"{row['tokens per second']:,.0f}", f"{row['% of the peak']:.0f}", f"{row['megabytes']:,.0f}"]
            for name, row in first.items() if "megabytes" in row]
    speeds = " | ".join(f"times as fast, {PRECISIONS[precision]}" for precision in parts)
    return table(f"| {speeds} | tokens a second, float32 | % of the peak, float32 | megabytes, float32", rows)


def training_step() -> str:
    parts = []
    for name, found in named("training_step_").items():
        sizes = found["sizes"]
        layers = f"{sizes['n_layers']} + {sizes['n_layers']} layers, width {sizes['d_model']}"
        parts.append(f"""### Preset `{found['preset']}`: {layers}

Batches have at most {found['batch_tokens']:,} tokens; there were {found['rounds']} rounds.

{steps("training step", found)}
""")
        if by_precision(found, "recurrent training step"):
            parts.append(f"""The recurrent model with additive attention against JoeyNMT's; GRU and embeddings have
{found['recurrent sizes']['d_hidden']} units:

{steps("recurrent training step", found)}

The two recurrent models differ. Bahdanau's decoder reads the whole context; JoeyNMT's reads a projection of
it that it has fed back. So this library's step does {extra_work(found):.0f} % more arithmetic.
""")
        parts.append(source(name) + "\n")
    return """## A training step

One step is forward, smoothed loss, backward and Adam. All models take turns on the same batches in each
round, and a ratio is the median over the rounds. *Same sites* means dropout wherever `torch.nn.Transformer`
has it; *default sites* are those of the paper. *Medium precision* lets the processor multiply float32
matrices in bfloat16 (lesson 06d). The peak is the rate of one large matrix product. Memory is what the
process grows by in three steps.

""" + "\n".join(parts).rstrip()


def extra_work(found: dict) -> float:
    """How many per cent more operations this library's recurrent step has than JoeyNMT's."""
    rows = found["recurrent training step, highest"]
    return 100 * (rows["this library, additive"]["operations"] / rows["JoeyNMT, recurrent"]["operations"] - 1)


def decoding() -> str:
    parts = []
    for name, found in named("decoding_").items():
        if not searches(found):
            continue
        for title, rows in searches(found).items():
            between = lambda of: f"{of['lowest']:.0f} to {of['highest']:.0f}" if "lowest" in of else "–"
            cells = ([row, f"{of['sentences per second']:.0f}", between(of), f"{ahead(of):.2f}"]
                     for row, of in rows.items())
            head = "| sentences a second | lowest to highest | this library's rate over it"
            parts.append(f"**{title[0].upper()}{title[1:]}**, preset `{found['preset']}`:\n\n"
                         f"{table(head, cells)}\n")
        parts.append(source(name) + "\n")
    return """## Decoding

The systems translate the same sentences in batches of 100, and write exactly 50 words for each. Their weights
are random and the same. Before the timing their translations of one batch are compared, and the record says
what share is equal. *On each core* means one search on each core at the same time; *one search* uses all
cores for one batch. *Plain* is the search of lesson 23's model itself. The last column is this library's rate
on each core divided by that of the row. Above 1, this library is faster.

""" + "\n".join(parts).rstrip()


def decoding_step() -> str:
    parts = []
    for name, found in named("decoding_step_").items():
        rows = [[position, f"{of['with the cache']['milliseconds']:.1f}",
                 f"{of['without']['milliseconds']:.1f}", f"{of['with the cache']['ratio']:.1f}"]
                for position, of in found["positions"].items()]
        picture = records()[name][0].with_suffix(".png")
        shown = "\n\n!" + link(picture, "Milliseconds for a word by its position, with and without the cache")
        parts.append(table("position | with the cache, ms | without, ms | times as fast with it", rows)
                     + "\n\n" + source(name) + (shown if picture.exists() else ""))
    return """## What the cache saves

What does one more word of one sentence cost? With the cache of keys and values, `step` reads one word and
looks back at what it has kept. Without it, the decoder reads the whole sentence again.

""" + "\n\n".join(parts)


# Aims: what, how many times as fast was aimed at, and what a record says

def _search(title: str) -> Callable[[], float]:
    def measured():
        found = searches(record("decoding_tiny_cpu"))
        rows = next(rows for name, rows in found.items() if name.startswith(title))
        return ahead(rows["CTranslate2, on each core"])
    return measured


def _ratio(name: str, part: str, row: str) -> float:
    return record(name)[part][row]["ratio"]


AIMS: list[tuple[str, float, Callable[[], float]]] = [
    ("greedy search, over CTranslate2", 1.1, _search("greedy")),
    ("beam of five, over CTranslate2", 0.8, _search("beam 5")),
    ("a training step with additive attention, float32, over JoeyNMT", 1.4,
     lambda: _ratio("training_step_tiny_cpu", "recurrent training step, highest", "this library, additive")),
    ("a training step of the base model, medium precision, over `torch.nn.Transformer`", 1.8,
     lambda: _ratio("training_step_base_cpu", "training step, medium", "this library, default sites")),
]


def not_reached() -> str:
    rows = [[what, f"{wanted:.2f}", f"{found:.2f}"]
            for what, wanted, measured in AIMS if (found := measured()) < wanted]
    gpu = any("cpu" not in text for name in named("") for text in gathered(record(name), "hardware"))
    return f"""## Aimed at and not reached

These speeds were set as goals before the work, as ratios to another system, and the records fall short of
them. Lessons [26](../nbs/lessons/26_speed.ipynb) and [27](../nbs/lessons/27_fast_decoding.ipynb) say what was tried and what
it gave.

{table("what | aimed at | measured", rows)}{'' if gpu else '''

Nothing on this page was timed on a GPU. The scripts in `benchmarks` take `--device cuda`.'''}"""


def all_records() -> str:
    rows = []
    for name, (path, found) in records().items():
        of, made = facts(name), script(name)
        shown = ", ".join(f"[{p.stem.partition('_')[0]}](../{p.relative_to(ROOT).as_posix()})" for p in showing(name))
        rows.append([link(path, name), link(made) if made else "`transformer-course demo`", shown or "–",
                     of["date"], of["commit"], of["hardware"], of["seeds"].replace("not recorded", "–")])
    return f"""## All records

Some records have no table here, because a lesson shows and explains them. To make a record again, run its
script; its first lines say how. `with changes` marks a run whose code was committed only after it. The seeds are
those of all parts of a record; a part may have fewer, and its table or lesson says so.

{table("record | script | lesson | date | commit | machine | seeds", rows)}"""


@cache
def lesson_code() -> dict[Path, str]:
    """The code of each lesson."""
    found = {}
    for path in notebooks.notebooks():
        if path.parent.name != "exercises" and not path.name.startswith("00a"):
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            found[path] = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return found


def showing(name: str) -> list[Path]:
    """The lessons that read a record."""
    fits = lambda call: re.fullmatch(re.sub(r"\\\{.*?\\\}", ".+", re.escape(call)), name)
    return [path for path, code in lesson_code().items()
            if any(map(fits, re.findall(r"recorded\(f?[\"']([^\"']+)[\"']", code)))]


def page() -> str:
    """All of docs/results.md."""
    sections = (opening, scoreboard, language_models, long_memory, demo, captions, attention_controls, small_data,
                after_training, pretraining, several_tasks, other_languages, today, beyond, training_step, decoding, decoding_step, not_reached, all_records)
    return re.sub(r"\n{3,}", "\n\n", "\n\n".join(section() for section in sections)) + "\n"


# The files

TABLES: dict[str, Callable[[], str]] = {"results": headlines, "lessons": lessons}


def readme() -> str:
    """README.md with its tables made anew.

    Raises ValueError if the markers of a table are not there.
    """
    text = README.read_text(encoding="utf-8")
    for name, made in TABLES.items():
        start, end = f"<!-- {name}: made by tools/results_page.py -->", f"<!-- {name}: end -->"
        before, found, rest = text.partition(start)
        old, close, after = rest.partition(end)
        if not found or not close:
            raise ValueError(f"README.md has no lines {start} and {end}")
        text = f"{before}{start}\n{made()}\n{end}{after}"
    return text


def contents() -> dict[Path, str]:
    """What each file should hold."""
    return {PAGE: page(), README: readme()}


def check() -> list[str]:
    """The files that are not as the records give them."""
    return [path.name for path, text in contents().items()
            if not path.exists() or path.read_text(encoding="utf-8") != text]


def write() -> None:
    """Write all files."""
    for path, text in contents().items():
        notebooks.write(path, text)


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        raise SystemExit("\n".join(f"{name}: run `python tools/results_page.py`" for name in check()) or 0)
    write()
    print("wrote " + ", ".join(str(path.relative_to(ROOT)) for path in contents()))

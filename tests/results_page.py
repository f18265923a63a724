"""Write docs/results.md, and the two tables of README.md that are made from records and notebooks.

    python tests/results_page.py          write them
    python tests/results_page.py check    exit 1 if one is not what the records give

Every figure comes from a record in experiments/results or benchmarks/results. A sentence here holds no measured number;
a note on one run is printed only as long as the record is of the commit that the note names.
"""
import ast
import json
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import mean

import notebooks

ROOT = notebooks.ROOT
PAGE, README = ROOT / "docs" / "results.md", ROOT / "README.md"
FOLDERS = ("experiments", "benchmarks")
REPOSITORY = "https://github.com/transformer-course/transformer-course"


# Records

@cache
def records() -> dict[str, tuple[Path, dict]]:
    """Every record by its name: its path and what it holds."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder / "results").glob("*.json"))]
    return {path.stem: (path, json.loads(path.read_text(encoding="utf-8"))) for path in paths}


def record(name: str) -> dict:
    """What one record holds."""
    return records()[name][1]


def named(start: str) -> dict[str, dict]:
    """The records whose names begin so."""
    return {name: found for name, (path, found) in records().items() if name.startswith(start)}


def gathered(value: object, key: str) -> list:
    """Everything that stands under a key anywhere in a record, each once."""
    found = []
    if isinstance(value, dict):
        own = value[key] if key in value else []
        found += own if isinstance(own, list) else [own]
        value = list(value.values())
    for part in value if isinstance(value, list) else []:
        found += gathered(part, key)
    return [one for i, one in enumerate(found) if one not in found[:i]]


def facts(name: str) -> dict[str, str]:
    """Hardware, date, commit and seeds of a record, as text; "not recorded" where it does not say."""
    texts = {key: ", ".join(map(str, gathered(record(name), key))) for key in ("hardware", "date", "commit")}
    seeds = sorted(set(gathered(record(name), "seed") + gathered(record(name), "seeds")))
    texts["seeds"] = ", ".join(map(str, seeds))
    texts["hardware"] = re.sub(r"\b1 threads", "1 thread", texts["hardware"]).replace("Intel(R) Xeon(R) Processor", "Intel Xeon")
    return {key: text or "not recorded" for key, text in texts.items()}


def script(name: str) -> Path | None:
    """The script that made a record; its name is the longest with which the record's begins."""
    paths = [path for path in records()[name][0].parents[1].glob("*.py") if name.startswith(path.stem)]
    return max(paths, key=lambda path: len(path.stem), default=None)


def link(path: Path, text: str = "") -> str:
    """A link from a page in docs."""
    return f"[{text or path.name}](../{path.relative_to(ROOT).as_posix()})"


def source(*names: str) -> str:
    """The line under a table: where its figures come from."""
    return "\n".join(_source(name) for name in names)


def _source(name: str) -> str:
    of, made = facts(name), script(name)
    parts = [link(records()[name][0], "record"), *([link(made, "script")] if made else []), f"date {of['date']}",
             f"commit {of['commit']}", of["hardware"], *([f"seed {of['seeds']}"] if "not" not in of["seeds"] else [])]
    return f"- `{name}`: " + " · ".join(parts)


# Words and numbers

def table(head: str, rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; the head's columns are parted by |."""
    columns = [column.strip() for column in head.split("|")]
    lines = [columns, ["---"] * len(columns), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(values: list[float | None], digits: int, times: float = 1.0) -> str:
    """The mean of several runs, with the lowest and the highest."""
    if None in values:
        return "–"
    low, middle, high = (f"{times * value:.{digits}f}" for value in (min(values), mean(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({low} to {high})"


NAMES = {
    "seq2seq-rnn": "RNN, fixed context, source reversed (11)",
    "seq2seq-gru": "GRU, fixed context, source reversed (11)",
    "seq2seq": "LSTM, fixed context, source reversed (11)",
    "seq2seq-forward": "LSTM, fixed context, source as it is (11)",
    "additive": "additive attention (14)",
    "additive-uniform": "additive, but with equal weights (14)",
    "additive-last": "additive, but with the last annotation only (14)",
    "luong-dot": "Luong, dot (15)",
    "luong-general": "Luong, general (15)",
    "luong-concat": "Luong, concat (15)",
    "luong-local-m": "Luong, window at the same place (15)",
    "luong-local-p": "Luong, window at a predicted place (15)",
    "luong-uniform": "Luong, but with equal weights (14)",
    "luong-last": "Luong, but with the last annotation only (14)",
    "luong-no-feeding": "Luong, general, without input feeding (15)",
    "transformer": "Transformer, sines, pre-norm (23)",
    "transformer-post": "Transformer, post-norm (22)",
    "transformer-learned": "Transformer, learned positions (21)",
    "transformer-relative": "Transformer, relative positions (21a)",
    "transformer-rotary": "Transformer, rotary positions (21a)",
    "transformer-alibi": "Transformer, ALiBi (21a)",
    "transformer-none": "Transformer, no positions (21)",
}
LANGUAGES = {"en": "English", "de": "German", "fr": "French", "cs": "Czech"}


def direction(pair: str) -> str:
    """ "en-de" in words."""
    return " to ".join(LANGUAGES.get(code, code) for code in pair.split("-"))


# The page, section by section

def opening() -> str:
    return f"""# Results

<!-- Made by tests/results_page.py from the records; do not edit. -->

Every figure on this page is read from a record that a script wrote. Below each table you find the record, the script, the
date, the commit, the machine and the seed. Benchmarks draw their weights and batches with seed 1. Another machine gives other
times; the ratio of two times changes less.

- **Exact match**: the share of translations that equal the reference, in per cent.
- **BLEU** and **chrF**: agreement with the reference in runs of words and of letters, from 0 to 100 (lesson 04).
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

All translators of the course learn micro-Hindi: the same 8,000 pairs, the same batches, {found['steps']:,} steps, and a beam
of {found['beam_size']}. They are scored on 1,000 sentences that none of them has seen. Each figure is the mean over
{len(found['seeds'])} seeds, with the lowest and the highest. The last column is for sentences longer than any in training.

{table(head, (row(name, model) for name, model in found['models'].items()))}

{source("micro_hindi")}

Models that only align are in [lesson 13](../nbs/13_alignment.ipynb); [lesson 25](../nbs/25_translation.ipynb) shows how the
translators differ with distance and length."""


def demo() -> str:
    found = record("demo")
    rows = [[row["model"], f"{100 * row['score']['exact_match']:.1f}", f"{row['score']['bleu']:.1f}",
             f"{row['score']['chrf']:.1f}", "–" if row["score"]["aer"] is None else f"{row['score']['aer']:.3f}",
             f"{row['parameters']:,}", f"{row['tokens_per_second']:,.0f}"] for row in found["rows"]]
    return f"""## What `make demo` prints

The demo trains three translators of micro-Hindi for {found['budget']} each. The budget is time, not steps, so a model that
gets through more sentences a second learns from more of them. `seq2seq` has no attention; the other two have.

{table("model | exact match, % | BLEU | chrF | AER | parameters | target tokens a second", rows)}

{source("demo")}

The picture shows where the two models with attention look as they write. The true links are outlined.

![Two heat maps of attention over one sentence, true links outlined](../experiments/results/demo_alignment.png)"""


NOTES = {("multi30k_en-de_transformer-rotary_small_60m", "4760fb3"): "warm-up of 1,500 steps, not 800",
         ("multi30k_en-de_transformer_tiny_22m_dropout03", "a298d87"): "warm-up of 1,000 steps, not 700; exact stopping of beam search"}


def captions() -> str:
    found = dict(sorted(named("multi30k_").items(), key=lambda item: -item[1]["test_2016_flickr"]["beam 5"]["bleu"]))
    def row(name, run):
        what, test = run["what"], run["test_2016_flickr"]
        model = re.sub(r" \(\d+\w?\)|, pre-norm", "", NAMES.get(what["model"], what["model"])).replace(", source reversed", "")
        threads = re.search(r"(\d+) threads", run["training"]["hardware"])[1]
        return [direction(what["pair"]), model, f"`{what['preset']}`", run["sizes"]["dropout"], f"{what['minutes']:g} × {threads}",
                f"{run['valid']['bleu']:.1f}", f"**{test['beam 5']['bleu']:.1f}**", f"{test['beam 1']['bleu']:.1f}",
                f"{run['training']['tokens'] / 1e6:.1f}", NOTES.get((name, run["commit"]), "")]
    head = ("direction | model | preset | dropout | minutes × cores | valid, BLEU | test 2016, BLEU | the same, greedy | "
            "million tokens | note")
    (signature,) = {run["test_2016_flickr"]["beam 5"]["signature"] for run in found.values()}
    return f"""## Captions: Multi30k

Each model learns from the 29,000 pairs of Multi30k and nothing else, with a joint vocabulary of 8,000 pieces of words
(lesson 01). There is one run of each, so a difference of half a point says nothing. BLEU is cased and detokenised, with a
beam of five unless it says greedy. The test set was read once, after training; nothing was chosen by it.

{table(head, (row(*item) for item in found.items()))}

sacreBLEU's signature is `{signature}`.

{source(*found)}

The machine was shared with other work: within one run, an epoch took up to {slowest_epoch(found.values()):.1f} times as long
as another. So look at the tokens as well as at the minutes. Some translations by the models of the table:

{table("model | English | translation", examples(found.values()))}"""


def slowest_epoch(runs: Iterable[dict]) -> float:
    """How many times as long as the fastest whole epoch of its run an epoch took, at most."""
    found = []
    for run in runs:
        ends = [epoch["seconds"] for epoch in run["training"]["history"]][:-1]      # the last one may be cut short
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
    head = "what is changed | greedy | beam of five | the same, mean of 5 epochs | mean of 10 epochs | minutes"
    return f"""## One change at a time

These runs translate Multi30k from English to German with the preset `tiny` and rotary positions. Each makes
{found['epochs']} passes over the data, far fewer than the hour of `small` above. The figures are BLEU on valid; no test set
was read. The script knows more changes than were run.

{table(head, (row(*item) for item in found['variants'].items()))}

{source("small_data")}"""


def after_training() -> str:
    parts = []
    for name, found in named("after_training_").items():
        one = lambda score: [f"{score['bleu']:.1f}", f"{score['seconds']:.0f}"]
        rows = [[f"mean of the weights of the last {n} epochs" if n != "1" else "weights of the end", *one(scores["beam 5"])]
                for n, scores in found["averages"].items()]
        rows += [[f"mean of the probabilities of {n} epochs' models", *one(scores["beam 5"])] for n, scores in found["ensembles"].items()]
        rows += [[f"beam of {n}" if n != "1" else "greedy", *one(score)] for n, score in found["beams"].items()]
        rows += [[f"length penalty {n}", *one(score)] for n, score in found["length penalties, beam 5"].items()]
        parts.append(f"""{direction(found['pair'])}, preset `{found['preset']}`:

{table("what is changed | BLEU on valid | seconds for valid", rows)}

{source(name)}""")
    return """## After the training

What can still be chosen when a run has ended? Beams and length penalties were tried with the averaged weights. The beam
is five where nothing else is said.

""" + "\n\n".join(parts)


PRECISIONS = {"highest": "float32", "medium": "medium precision", "bf16": "bfloat16"}


def by_precision(found: dict, title: str) -> dict[str, dict]:
    """The parts "TITLE, PRECISION" of a record, by the precision."""
    return {key.removeprefix(f"{title}, "): rows for key, rows in found.items() if key.startswith(f"{title}, ")}


def steps(title: str, found: dict) -> str:
    """The table of one kind of training step, in all precisions."""
    parts = by_precision(found, title)
    first = next(iter(parts.values()))
    rows = [[name, *(f"{part[name]['ratio']:.2f}" for part in parts.values()), f"{row['tokens per second']:,.0f}",
             f"{row['% of the peak']:.0f}", f"{row['megabytes']:,.0f}"] for name, row in first.items() if "megabytes" in row]
    speeds = " | ".join(f"times as fast, {PRECISIONS[precision]}" for precision in parts)
    return table(f"| {speeds} | tokens a second, float32 | % of the peak, float32 | megabytes, float32", rows)


def training_step() -> str:
    parts = []
    for name, found in named("training_step_").items():
        sizes = found["sizes"]
        parts.append(f"""### Preset `{found['preset']}`: {sizes['n_layers']} + {sizes['n_layers']} layers, width {sizes['d_model']}

Batches have at most {found['batch_tokens']:,} tokens; there were {found['rounds']} rounds.

{steps("training step", found)}
""")
        if by_precision(found, "recurrent training step"):
            parts.append(f"""The recurrent model with additive attention, GRU and embeddings of {found['recurrent sizes']['d_hidden']}, against JoeyNMT's:

{steps("recurrent training step", found)}

The two recurrent models differ. Bahdanau's decoder reads the whole context; JoeyNMT's reads a projection of it that it has
fed back. So this library's step does {extra_work(found):.0f} % more arithmetic.
""")
        parts.append(source(name) + "\n")
    return """## A training step

One step is forward, smoothed loss, backward and Adam. All models take turns on the same batches in each round, and a ratio
is the median over the rounds. *Same sites* means dropout wherever `torch.nn.Transformer` has it; *default sites* are those
of the paper. *Medium precision* lets the processor multiply float32 matrices in bfloat16 (lesson 06d). The peak is the rate
of one large matrix product. Memory is what the process grows by in three steps.

""" + "\n".join(parts).rstrip()


def extra_work(found: dict) -> float:
    """How many per cent more operations this library's recurrent step has than JoeyNMT's."""
    rows = found["recurrent training step, highest"]
    return 100 * (rows["this library, additive"]["operations"] / rows["JoeyNMT, recurrent"]["operations"] - 1)


OVER = "this library on each core / it"


def searches(found: dict) -> dict[str, dict]:
    """The parts of a record of decoding: for each search, its rows."""
    return {title: rows for title, rows in found.items()
            if isinstance(rows, dict) and any("sentences per second" in str(row) for row in rows.values())}


def decoding() -> str:
    parts = []
    for name, found in named("decoding_").items():
        if not searches(found):
            continue
        for title, rows in searches(found).items():
            parts.append(f"**{title[0].upper()}{title[1:]}**, preset `{found['preset']}`:\n\n" + table(
                "| sentences a second | lowest to highest | this library's rate over it",
                ([row, f"{of['sentences per second']:.0f}", f"{of['lowest']:.0f} to {of['highest']:.0f}" if "lowest" in of else "–",
                  f"{ahead(of):.2f}"] for row, of in rows.items())) + "\n")
        parts.append(source(name) + "\n")
    return """## Decoding

The systems translate the same sentences in batches of 100, and write exactly 50 words for each. Their weights are random and
the same. Before the timing their translations of one batch are compared, and the record says what share is equal. *On each
core* means one search on each core at the same time; *one search* uses all cores for one batch. The last column is this
library's rate divided by that of the row. Above 1, this library is faster.

""" + "\n".join(parts).rstrip()


def ahead(row: dict) -> float:
    """This library's rate over a row's."""
    return row[OVER] if OVER in row else row["its time / ours"]


def decoding_step() -> str:
    parts = []
    for name, found in named("decoding_step_").items():
        rows = [[position, f"{of['with the cache']['milliseconds']:.1f}", f"{of['without']['milliseconds']:.1f}",
                 f"{of['with the cache']['ratio']:.1f}"] for position, of in found["positions"].items()]
        picture = records()[name][0].with_suffix(".png")
        shown = f"\n\n![Milliseconds for one word by its position, with and without the cache](../{picture.relative_to(ROOT).as_posix()})"
        parts.append(table("position | with the cache, ms | without, ms | times as fast with it", rows)
                     + "\n\n" + source(name) + (shown if picture.exists() else ""))
    return """## What the cache saves

What does one more word of one sentence cost? With the cache of keys and values, `step` reads one word and looks back at what
it has kept. Without it, the decoder reads the whole sentence again.

""" + "\n\n".join(parts)


# Aims: what, how many times as fast was aimed at, and what a record says

def _search(title: str) -> Callable[[], float]:
    def measured():
        rows = next(rows for name, rows in searches(record("decoding_tiny_cpu")).items() if name.startswith(title))
        return ahead(rows["CTranslate2, on each core"])
    return measured


AIMS: list[tuple[str, float, Callable[[], float]]] = [
    ("greedy search, over CTranslate2", 1.1, _search("greedy")),
    ("beam of five, over CTranslate2", 0.8, _search("beam 5")),
    ("a training step with additive attention, float32, over JoeyNMT", 1.4,
     lambda: record("training_step_tiny_cpu")["recurrent training step, highest"]["this library, additive"]["ratio"]),
    ("a training step of the base model, medium precision, over `torch.nn.Transformer`", 1.8,
     lambda: record("training_step_base_cpu")["training step, medium"]["this library, default sites"]["ratio"]),
]


def not_reached() -> str:
    rows = [[what, f"{wanted:.2f}", f"{found:.2f}"] for what, wanted, measured in AIMS if (found := measured()) < wanted]
    gpu = any("cpu" not in text for name in named("") for text in gathered(record(name), "hardware"))
    return f"""## Aimed at and not reached

These speeds were set as goals before the work, as ratios to another system, and the records fall short of them. Lessons
[26](../nbs/26_speed.ipynb) and [27](../nbs/27_fast_decoding.ipynb) say what was tried and what it gave.

{table("what | aimed at | measured", rows)}{'' if gpu else '''

Nothing on this page was timed on a GPU. The scripts in `benchmarks` take `--device cuda`.'''}"""


def all_records() -> str:
    rows = []
    for name, (path, found) in records().items():
        of, made = facts(name), script(name)
        shown = ", ".join(f"[{p.stem.partition('_')[0]}](../nbs/{p.name})" for p in showing(name))
        rows.append([link(path, name), link(made) if made else "`transformer-course demo`", shown or "–",
                     of["date"], of["commit"], of["hardware"], of["seeds"].replace("not recorded", "–")])
    return f"""## All records

Some records have no table here, because a lesson shows and explains them. To make a record again, run its script; its first
lines say how. `with changes` marks a run whose code was committed only after it.

{table("record | script | lesson | date | commit | machine | seeds", rows)}"""


@cache
def lesson_code() -> dict[Path, str]:
    """The code of each lesson."""
    return {path: "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
                            if cell["cell_type"] == "code")
            for path in notebooks.notebooks() if path.parent == notebooks.NBS and not path.name.startswith("00a")}


def showing(name: str) -> list[Path]:
    """The lessons that read a record."""
    calls = {path: re.findall(r"(?:recorded|timed)\(f?[\"']([^\"']+)[\"']", code) for path, code in lesson_code().items()}
    return [path for path, found in calls.items()
            if any(re.fullmatch(re.sub(r"\\\{.*?\\\}", ".+", re.escape(call)), name) for call in found)]


def page() -> str:
    """All of docs/results.md."""
    sections = (opening, scoreboard, demo, captions, small_data, after_training, training_step, decoding, decoding_step,
                not_reached, all_records)
    return re.sub(r"\n{3,}", "\n\n", "\n\n".join(section() for section in sections)) + "\n"


# README's tables

def headlines() -> str:
    """The most important results, in one table."""
    board = record("micro_hindi")
    exact = lambda name: f"{100 * mean(run['scores']['test']['exact_match'] for run in board['models'][name]['runs']):.0f} %"
    hours = [run for run in named("multi30k_").values() if run["what"]["preset"] == "small"]
    (minutes,) = {f"{run['what']['minutes']:g}" for run in hours}
    bleu = lambda run: (f"{direction(run['what']['pair'])} {run['test_2016_flickr']['beam 5']['bleu']:.1f}"
                        + (" (one core)" if " 1 threads" in run["training"]["hardware"] else ""))
    tiny, base = record("training_step_tiny_cpu"), record("training_step_base_cpu")
    ours = lambda found, precision: f"{found[f'training step, {precision}']['this library, default sites']['ratio']:.2f}"
    joey = lambda precision: f"{tiny[f'recurrent training step, {precision}']['this library, additive']['ratio']:.2f}"
    greedy, beam = (next(rows for title, rows in searches(record("decoding_tiny_cpu")).items() if title.startswith(start))
                    for start in ("greedy", "beam 5"))
    both = lambda name: f"{ahead(greedy[name]):.2f} greedily, {ahead(beam[name]):.2f} with a beam of five"
    position, step = list(record("decoding_step_tiny_cpu")["positions"].items())[-1]
    exercises, mistakes = exercise_counts()
    rows = [
        [f"exact translations of unseen micro-Hindi sentences, {len(board['seeds'])} seeds",
         f"LSTM without attention {exact('seq2seq')}, GRU with additive attention {exact('additive')}, "
         f"Transformer with rotary positions {exact('transformer-rotary')}"],
        [f"BLEU on Multi30k, test 2016, after {minutes} minutes on two cores", ", ".join(map(bleu, hours))],
        ["a training step, times as fast as `torch.nn.Transformer`",
         f"preset `tiny` {ours(tiny, 'highest')}, the paper's base model {ours(base, 'highest')} (float32, two cores)"],
        ["a training step with additive attention, times as fast as JoeyNMT's",
         f"{joey('highest')} (float32), {joey('medium')} (bfloat16 products)"],
        ["decoding, times as fast as Hugging Face's Marian", both("Marian (Hugging Face)")],
        ["decoding, times as fast as CTranslate2 (C++)", both("CTranslate2, on each core")],
        [f"one more word at position {int(position):,}", f"{step['with the cache']['milliseconds']:.1f} ms with the cache, "
         f"{step['without']['milliseconds']:.0f} ms without"],
        ["exercises that answer back", f"{exercises}, which tell {mistakes} typical mistakes apart"],
    ]
    return table("what was measured | result", rows)


def exercise_counts() -> tuple[int, int]:
    """How many exercises there are, and how many mistakes they list."""
    exercises = mistakes = 0
    for path in (notebooks.NBS / "exercises").glob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            tags = cell["metadata"].get("tags", [])
            exercises += "exercise" in tags
            if "checks" in tags:
                mistakes += sum(len(node.value.keys) for node in ast.walk(ast.parse("".join(cell["source"])))
                                if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "mistakes")
    return exercises, mistakes


PARTS = (("**Start and tools**", r"0\d"), ("**Recurrent networks, search, attention**", r"1\d"),
         ("**The Transformer**", r"2[0-4]|25_|2[67]"), ("**The library around it**", r"25[a-z]"),
         ("**Exercises, command line**", r"9\d"))


def lessons() -> str:
    """All notebooks in one table, by part."""
    def entry(path):
        title = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"]).splitlines()[0].lstrip("# ")
        return f"[{path.stem.partition('_')[0]} {title}](nbs/{path.name})"
    paths = [path for path in notebooks.notebooks() if path.parent == notebooks.NBS]
    return table("part | notebooks", ([part, " · ".join(entry(path) for path in paths if re.match(start, path.name))]
                                      for part, start in PARTS))


TABLES: dict[str, Callable[[], str]] = {"results": headlines, "lessons": lessons}


def readme() -> str:
    """README.md with its tables made anew.

    Raises ValueError if the markers of a table are not there.
    """
    text = README.read_text(encoding="utf-8")
    for name, made in TABLES.items():
        start, end = f"<!-- {name}: made by tests/results_page.py -->", f"<!-- {name}: end -->"
        before, found, rest = text.partition(start)
        old, close, after = rest.partition(end)
        if not found or not close:
            raise ValueError(f"README.md has no lines {start} and {end}")
        text = f"{before}{start}\n{made()}\n{end}{after}"
    return text


def made() -> dict[Path, str]:
    """What each file should hold."""
    return {PAGE: page(), README: readme()}


def check() -> list[str]:
    """The files that are not as the records give them."""
    return [path.name for path, text in made().items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def write() -> None:
    """Write all files."""
    for path, text in made().items():
        notebooks.write(path, text)


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        raise SystemExit("\n".join(f"{name}: run `python tests/results_page.py`" for name in check()) or 0)
    write()
    print("wrote " + ", ".join(str(path.relative_to(ROOT)) for path in made()))

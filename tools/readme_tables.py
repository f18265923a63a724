"""README's tables: the lessons, from the notebooks, and the most important results, from the records."""
import ast
import json
import re
from statistics import mean

import notebooks
from recorded_facts import ahead, direction, named, record, searches, table


def headlines() -> str:
    """The most important results, in one table."""
    board = record("micro_hindi")
    runs = lambda name: board["models"][name]["runs"]
    exact = lambda name: f"{100 * mean(run['scores']['test']['exact_match'] for run in runs(name)):.0f} %"
    hours = [run for run in named("multi30k_").values() if run["what"]["preset"] == "small"]
    (minutes,) = {f"{run['what']['minutes']:g}" for run in hours}
    bleu = lambda run: (f"{direction(run['what']['pair'])} {run['test_2016_flickr']['beam 5']['bleu']:.1f}"
                        + (" (one core)" if " 1 threads" in run["training"]["hardware"] else ""))
    tiny, base = record("training_step_tiny_cpu"), record("training_step_base_cpu")
    ratio = lambda found, part, row: f"{found[part][f'this library, {row}']['ratio']:.2f}"
    found = searches(record("decoding_tiny_cpu"))
    greedy, beam = (next(rows for title, rows in found.items() if title.startswith(start))
                    for start in ("greedy", "beam 5"))
    both = lambda name: f"{ahead(greedy[name]):.2f} greedily, {ahead(beam[name]):.2f} with a beam of five"
    position, step = list(record("decoding_step_tiny_cpu")["positions"].items())[-1]
    exercises, mistakes = exercise_counts()
    texts, memory = record("language_models"), record("transformer_xl")["micro"]
    real, tasks = record("minilm"), record("text_to_text")["tasks"]
    bits = lambda name, way: f"{mean(run[way] for run in texts['models'][name]['runs']):.2f}"
    recalled = lambda name, way: f"{mean(run[way]['recalled'] for run in memory['models'][name]['runs']):.2f}"
    reviews = lambda name, labels: f"{100 * mean(real['labels'][name][labels]):.0f} %"
    translated = lambda entry: f"{100 * mean(run['test']['translate'] for run in entry['runs']):.0f} %"
    rows = [
        [f"exact translations of unseen micro-Hindi sentences, {len(board['seeds'])} seeds",
         f"LSTM without attention {exact('seq2seq')}, GRU with additive attention {exact('additive')}, "
         f"Transformer with rotary positions {exact('transformer-rotary')}"],
        [f"BLEU on Multi30k, test 2016, after {minutes} minutes on two cores", ", ".join(map(bleu, hours))],
        [f"bits per character of Shakespeare after {texts['steps']:,} steps",
         f"GRU {bits('gru', 'one piece')}, Transformer with rotary positions {bits('rotary', 'half overlap')}, "
         f"Transformer-XL {bits('xl', 'one piece')}"],
        [f"loss of the words that a story recalls, nats, segments of {memory['length']} words",
         f"without a memory {recalled('segments', 'as trained')}, windows that overlap by half "
         f"{recalled('segments', 'half overlap')}, Transformer-XL with a memory of 48 words {recalled('memory 48', 'as trained')}"],
        ["film reviews, praise or blame? 256 labels, fixed vectors",
         f"right: bag of words {reviews('bag of words', '256')}, a BERT with random weights {reviews('random weights, mean', '256')}, "
         f"the same BERT with published weights (MiniLM) {reviews('MiniLM, mean', '256')}"],
        [f"exact translations by a small T5, {tasks['own']} batches of pairs",
         f"in one model for four tasks {translated(tasks['models']['joint'])}, alone "
         f"{translated(tasks['models']['alone, own batches']['translate'])}, alone with these read {tasks['all'] // tasks['own']} times "
         f"{translated(tasks['models']['alone, own batches again']['translate'])}; alone with {tasks['all']:,} batches "
         f"{translated(tasks['models']['alone, all batches']['translate'])}"],
        ["a training step, times as fast as",
         f"`torch.nn.Transformer` {ratio(tiny, 'training step, highest', 'default sites')} (preset `tiny`) and "
         f"{ratio(base, 'training step, highest', 'default sites')} (the paper's base model); JoeyNMT with additive attention "
         f"{ratio(tiny, 'recurrent training step, highest', 'additive')}; float32, two cores"],
        ["decoding, times as fast as", f"Hugging Face's Marian {both('Marian (Hugging Face)')}; CTranslate2 (C++) "
         f"{both('CTranslate2, on each core')}"],
        [f"one more word at position {int(position):,}",
         f"{step['with the cache']['milliseconds']:.1f} ms with the cache, "
         f"{step['without']['milliseconds']:.0f} ms without"],
        ["exercises that explain mistakes", f"{exercises}, which tell {mistakes} typical mistakes apart"],
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
                mistakes += sum(map(_listed, ast.walk(ast.parse("".join(cell["source"])))))
    return exercises, mistakes


def _listed(node: ast.AST) -> int:
    "The number of mistakes, if this is where they are listed."
    lists = isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "mistakes"
    return len(node.value.keys) if lists else 0


PARTS = (("**Start**", r"0\d"), ("**Recurrent networks, search, attention**", r"1\d"), ("**The Transformer**", r"2\d"),
         ("**Language models, BERT, T5**", r"3[0-4]"), ("**Today and beyond**", r"3[5-9]|4\d"))


def lessons() -> str:
    """All lessons in one table, by part."""
    def entry(path):
        first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
        title = "".join(first["source"]).splitlines()[0].lstrip("# ")
        return f"[{path.stem.partition('_')[0]} {title}](nbs/lessons/{path.name})"
    paths = sorted((notebooks.NBS / "lessons").glob("*.ipynb"))
    return table("part | lessons", (
        [part, " · ".join(entry(path) for path in paths if re.match(start, path.name))] for part, start in PARTS))

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
    rows = [
        [f"exact translations of unseen micro-Hindi sentences, {len(board['seeds'])} seeds",
         f"LSTM without attention {exact('seq2seq')}, GRU with additive attention {exact('additive')}, "
         f"Transformer with rotary positions {exact('transformer-rotary')}"],
        [f"BLEU on Multi30k, test 2016, after {minutes} minutes on two cores", ", ".join(map(bleu, hours))],
        ["a training step, times as fast as `torch.nn.Transformer`",
         f"preset `tiny` {ratio(tiny, 'training step, highest', 'default sites')}, the paper's base model "
         f"{ratio(base, 'training step, highest', 'default sites')} (float32, two cores)"],
        ["a training step with additive attention, times as fast as JoeyNMT's",
         f"{ratio(tiny, 'recurrent training step, highest', 'additive')} (float32), "
         f"{ratio(tiny, 'recurrent training step, medium', 'additive')} (bfloat16 products)"],
        ["decoding, times as fast as Hugging Face's Marian", both("Marian (Hugging Face)")],
        ["decoding, times as fast as CTranslate2 (C++)", both("CTranslate2, on each core")],
        [f"one more word at position {int(position):,}",
         f"{step['with the cache']['milliseconds']:.1f} ms with the cache, "
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
                mistakes += sum(map(_listed, ast.walk(ast.parse("".join(cell["source"])))))
    return exercises, mistakes


def _listed(node: ast.AST) -> int:
    "The number of mistakes, if this is where they are listed."
    lists = isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "mistakes"
    return len(node.value.keys) if lists else 0


PARTS = (("**Start and tools**", r"0\d"), ("**Recurrent networks, search, attention**", r"1\d"),
         ("**The Transformer, and language models**", r"2[0-4]|25_|2[67]|3\d"), ("**The library around it**", r"25[a-z]"),
         ("**Exercises, command line**", r"9\d"))


def lessons() -> str:
    """All notebooks in one table, by part."""
    def entry(path):
        first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
        title = "".join(first["source"]).splitlines()[0].lstrip("# ")
        return f"[{path.stem.partition('_')[0]} {title}](nbs/{path.name})"
    paths = [path for path in notebooks.notebooks() if path.parent == notebooks.NBS]
    return table("part | notebooks", (
        [part, " · ".join(entry(path) for path in paths if re.match(start, path.name))] for part, start in PARTS))

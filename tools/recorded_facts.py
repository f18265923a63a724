"""What the records hold, as text: read by tools/results_page.py and tools/readme_tables.py."""
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import mean

import notebooks

ROOT = notebooks.ROOT
FOLDERS = ("experiments", "benchmarks")


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
    """All values of a key, wherever it is in a record, each once."""
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
    texts["commit"] = ", ".join(dict.fromkeys(texts["commit"].split(", ")))     # a record of parts names its parts' commits again
    seeds = sorted(set(gathered(record(name), "seed") + gathered(record(name), "seeds")))
    texts["seeds"] = ", ".join(map(str, seeds))
    for old, new in ((r"\b1 threads", "1 thread"), (r"Intel\(R\) Xeon\(R\) Processor", "Intel Xeon")):
        texts["hardware"] = re.sub(old, new, texts["hardware"])
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
    of, maker = facts(name), script(name)
    parts = [link(records()[name][0], "record"), link(maker, "script") if maker else "", f"date {of['date']}",
             f"commit {of['commit']}", of["hardware"],
             f"seed {of['seeds']}" if of["seeds"] != "not recorded" else ""]
    return f"- `{name}`: " + " · ".join(filter(None, parts))


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


OVER = "this library on each core / it"


def searches(found: dict) -> dict[str, dict]:
    """The parts of a record of decoding: for each search, its rows."""
    return {title: rows for title, rows in found.items()
            if isinstance(rows, dict) and any("sentences per second" in str(row) for row in rows.values())}


def ahead(row: dict) -> float:
    """This library's rate over a row's."""
    return row[OVER] if OVER in row else row["its time / ours"]

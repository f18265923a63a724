"""What every record of a long run holds beside its figures: the machine, the date, the state of the code."""
import json
import re
import subprocess
import time
from pathlib import Path

from transformer_course.records import hardware

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


def commit() -> str:
    """The commit that is checked out, with a mark if the package differs from it."""
    git = lambda *words: subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True).stdout.strip()
    changed = git("status", "--porcelain", "../transformer_course")
    return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")


def facts(device: str = "cpu") -> dict:
    """Hardware, date and commit of a run that starts now."""
    return {"hardware": hardware(device), "date": time.strftime("%Y-%m-%d"), "commit": commit()}


def write(name: str, record: dict) -> Path:
    """Store a record as results/NAME.json, whole or not at all."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    draft = path.with_suffix(".part")
    text = json.dumps(record, indent=1, ensure_ascii=False)
    text = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda found: "[" + re.sub(r"\s+", " ", found[1]) + "]", text)    # short lists in one line
    draft.write_text(text + "\n", encoding="utf-8")
    draft.replace(path)
    return path

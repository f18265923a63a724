"""Run the how-tos of docs/howto as a reader would: block by block, in an empty folder.

    python tools/howto.py [PAGE ...]       with the programs beside this Python
    python tools/howto.py --wheel          with a wheel of this tree in a fresh environment

A block that begins with ```sh or ```python is run; ```python file=NAME (or another language) is saved under that name; every
other block is only shown. A line that installs a package is skipped: what it installs is there already, or the test is skipped.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "howto"
BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.M | re.S)
INSTALLS = re.compile(r"^pip install .*\n", re.M)


class Block(NamedTuple):
    language: str
    file: str          # to be saved under; "" for none
    text: str


def pages() -> list[Path]:
    return sorted(p for p in PAGES.glob("*.md") if p.stem != "README")


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in their order."""
    return [Block(*found) for found in BLOCK.findall(page.read_text(encoding="utf-8"))]


def run(page: Path, folder: Path, programs: Path, variables: dict | None = None) -> str:
    """Do what the page says in a folder, with the programs of one environment; the output of all blocks.

    Raises RuntimeError, with the block and its output, at the first block that fails.
    """
    env = {**(variables or os.environ), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    env["PATH"] = f"{programs}{os.pathsep}{env.get('PATH', '')}"
    outputs = []
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.language in ("sh", "python"):
            outputs.append(done(block, folder, programs, env))
    return "".join(outputs)


def done(block: Block, folder: Path, programs: Path, env: dict) -> str:
    text = INSTALLS.sub("", block.text)
    command = [programs / "python", "-c", text] if block.language == "python" else ["bash", "-euo", "pipefail", "-c", text]
    got = subprocess.run(command, cwd=folder, env=env, text=True, encoding="utf-8", stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=600)
    if got.returncode:
        raise RuntimeError(f"this block ended with exit code {got.returncode}:\n{text}\n{got.stdout[-3000:]}")
    return got.stdout


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("pages", nargs="*", help="such as own_pairs; all without one")
    words.add_argument("--wheel", action="store_true", help="from a wheel in a fresh environment")
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as here:
        programs, variables = Path(sys.executable).parent, None
        if given.wheel:
            sys.path.insert(0, str(ROOT / "tests"))
            from clean import built, environment

            place = environment(built(Path(here)), Path(here))
            programs, variables = place.programs, place.variables
        for page in pages():
            if given.pages and page.stem not in given.pages:
                continue
            folder = Path(here) / page.stem
            folder.mkdir()
            for example in (ROOT / "examples").glob("*.py"):
                shutil.copy(example, folder)
            print(run(page, folder, programs, variables), f"{page.stem}: done", sep="", flush=True)


if __name__ == "__main__":
    main()

"""Run notebooks' code cells without a kernel: each notebook in a process of its own, which has PyTorch loaded already.

    python tests/run_cells.py FOLDER

Prints the notebooks that end in an error, with its traceback, and exits with 1 if there are any.
"""
import json
import os
import sys
import traceback
from multiprocessing import get_context
from pathlib import Path


def run(path: Path) -> str:
    """Run a notebook's code cells in its own folder; the traceback of the first error, or nothing."""
    os.chdir(path.parent)
    names: dict = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            try:
                exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)
            except BaseException:
                return traceback.format_exc()
    return ""


def main() -> None:
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformer_course.checking"])
    paths = sorted(Path(sys.argv[1]).resolve().glob("*.ipynb"))
    with context.Pool(1, maxtasksperchild=1) as pool:
        failed = {path: told for path, told in zip(paths, pool.imap(run, paths, chunksize=1)) if told}
    for path, told in failed.items():
        print(f"{path}\n{told}")
    sys.exit(1 if failed or not paths else 0)


if __name__ == "__main__":
    main()

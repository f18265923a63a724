"""The students' edition: a wheel whose exercises show no solutions.

    python tools/edition.py [--out dist/students]

It is the wheel of this tree with its exercise notebooks sealed (notebook 90b): `check` and `hint` work, `solution` does not, and
no file holds a solution that can be read. Sealed is not secret: who sets out to unpack a file can. The version gets the ending
+students, so that `pip list` tells the editions apart.
"""
import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "runs", "demo-output", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")
MARK = "+students"


def built(out: Path) -> Path:
    """The wheel in the folder `out`."""
    with tempfile.TemporaryDirectory() as here:
        tree = Path(here) / "tree"
        shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
        marked(tree)
        call("-m", "build", "--wheel", "--no-isolation", "--outdir", here, tree)
        call("-m", "wheel", "unpack", "--dest", Path(here) / "open", *Path(here).glob("*.whl"))
        (opened,) = (Path(here) / "open").iterdir()
        sealed(opened / "transformer_course" / "notebooks" / "exercises")
        out.mkdir(parents=True, exist_ok=True)
        call("-m", "wheel", "pack", "--dest-dir", out, opened)               # it also writes the new hashes
    return max(out.glob("*.whl"), key=lambda path: path.stat().st_mtime)


def marked(tree: Path):
    """Give the tree the version of this edition."""
    settings = tree / "settings.ini"
    lines = [line + MARK if line.startswith("version = ") else line for line in settings.read_text(encoding="utf-8").split("\n")]
    settings.write_text("\n".join(lines), encoding="utf-8")


def sealed(folder: Path):
    """Seal the exercise notebooks of a folder."""
    from transformer_course.checking.exercise_notebooks import SEALED, seal

    for path in folder.glob("ex*.ipynb"):
        path.with_suffix(SEALED).write_bytes(seal(path.read_bytes()))
        path.unlink()


def call(*words):
    done = subprocess.run([sys.executable, *map(str, words)], text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words[:3]))} failed:\n{(done.stdout + done.stderr)[-3000:]}")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path, default=ROOT / "dist" / "students")
    print(built(options.parse_args().out))

"""Prove that the net holds: break exported functions one at a time and require that a notebook or test fails.

    python tools/mutate.py --count 10 --seed 1      ten functions drawn from all exports (the default)
    python tools/mutate.py --all                    every exported function and method
    python tools/mutate.py --only training.fit      one of them, or all of a module ("training")
    python tools/mutate.py --list                   what there is to break

Each function is broken in one of three ways, drawn with it (or chosen with --kind):
    raises    its body becomes `raise RuntimeError("mutant")`
    nothing   its body is dropped, so that it returns None
    wrong     what it returns is changed: numbers, strings and tensors are off, booleans turned round

The package is changed in a copy of the working tree, and the notebooks and tests that can reach the changed
module run there, the likeliest first, until one fails. It counts only if it passes in an unchanged copy.
A notebook never sees a change to what its own cells define, only what it imports.
"""
import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "transformer_course"
KINDS = ("raises", "nothing", "wrong")
UNRELATED = {f"test_{name}.py" for name in ("sync", "imports", "module_map", "package", "mutate")}     # about the repository, not its functions
LEFT_OUT = (".git", ".venv", "runs", "demo-output", "build", "dist", "*.egg-info", "__pycache__", ".*_cache",
            ".hypothesis", ".ipynb_checkpoints", "*.safetensors")
FAILS, CANNOT_COLLECT, NO_TESTS = 1, 2, 5               # exit codes of pytest
LIMIT = 300                                             # seconds for one file; a change that makes it hang is noticed too
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
HELPER = '''
def _mutant(value):
    import dataclasses, numbers
    if isinstance(value, bool): return not value
    if isinstance(value, numbers.Number): return value * 1.5 + 0.37 if isinstance(value, float) else value + 1
    if isinstance(value, str): return value[:-1] + "?"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        if "bool" in str(value.dtype): return ~value
        return value * 1.5 + 0.37 if "float" in str(value.dtype) else value + 1
    if isinstance(value, dict): return {k: _mutant(v) for k, v in value.items()} or {"mutant": 0}
    if isinstance(value, (set, frozenset)): return type(value)([*value, "mutant"])
    if isinstance(value, (list, tuple)):
        changed = [_mutant(value[0]), *value[1:]] if len(value) else ["mutant"]
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    if dataclasses.is_dataclass(value) and dataclasses.fields(value):
        first = dataclasses.fields(value)[0].name
        return dataclasses.replace(value, **{first: _mutant(getattr(value, first))})
    return object() if value is None else None
'''


class Mutant(NamedTuple):
    """One change: which function of which module, and how it is broken."""
    module: str
    name: str       # "fit", or "Trainer.step" for a method
    kind: str

    def __str__(self):
        return f"{self.module}.{self.name} ({self.kind})"


class Verdict(NamedTuple):
    """What became of a mutant."""
    mutant: Mutant
    killed: bool
    story: str


# What there is to break

def exported(source):
    """The syntax trees of all functions and methods that the module's `__all__` names, by dotted name."""
    tree = ast.parse(source)
    public, found = set(), {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(t, "id", None) == "__all__" for t in node.targets):
            public = set(ast.literal_eval(node.value))
    for node in tree.body:
        if getattr(node, "name", None) in public:
            parts = node.body if isinstance(node, ast.ClassDef) else [node]
            prefix = node.name + "." if isinstance(node, ast.ClassDef) else ""
            found |= {prefix + p.name: p for p in parts if isinstance(p, (ast.FunctionDef, ast.AsyncFunctionDef))}
    return {name: node for name, node in found.items() if kinds(node)}


def own(node):
    """All nodes of a function's body, without those of functions and classes inside it."""
    waiting = list(node.body)
    while waiting:
        part = waiting.pop()
        yield part
        if not isinstance(part, SCOPES):
            waiting.extend(ast.iter_child_nodes(part))


def split_docstring(node):
    """A function's docstring (as a list of at most one statement) and the rest of its body."""
    return (node.body[:1], node.body[1:]) if ast.get_docstring(node) is not None else ([], node.body)


def kinds(node):
    """In which ways a function can be broken; none if it is only declared, as in a Protocol."""
    _, body = split_docstring(node)
    idle = all(isinstance(s, ast.Pass) or isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) for s in body)
    parts = list(own(node))
    returns = any(isinstance(p, ast.Return) and p.value is not None for p in parts)
    lazy = any(isinstance(p, (ast.Yield, ast.YieldFrom)) for p in parts)
    return () if idle else KINDS if returns and not lazy else KINDS[:2]


def mutated(source, name, kind):
    """The module's source with the one function broken."""
    tree = ast.parse(source)
    holder, _, method = name.rpartition(".")
    places = next(n.body for n in tree.body if getattr(n, "name", "") == holder) if holder else tree.body
    node = [n for n in places if getattr(n, "name", "") == method][-1]
    docstring, body = split_docstring(node)
    if kind == "wrong":
        for part in own(node):
            if isinstance(part, ast.Return) and part.value is not None:
                part.value = ast.Call(ast.Name("_mutant", ast.Load()), [part.value], [])
        return ast.unparse(ast.fix_missing_locations(tree)) + "\n" + HELPER
    node.body = docstring + ast.parse("raise RuntimeError('mutant')" if kind == "raises" else "return None").body
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def everything(root, kind=None):
    """All (module, name, ways to break it) in the package below `root`."""
    found = []
    for module, source in sorted(library(root).items()):
        for name, node in exported(source).items():
            if ways := [k for k in kinds(node) if kind in (None, k)]:
                found.append((module, name, ways))
    return found


def library(root):
    """The source of each module by its dotted name below the package; a package counts under its own name."""
    paths = [p for p in (root / PACKAGE).rglob("*.py") if not p.name.startswith("_mod")]
    parts = {p: p.relative_to(root / PACKAGE).with_suffix("").parts for p in paths}
    return {".".join(n for n in names if n != "__init__"): p.read_text(encoding="utf-8") for p, names in parts.items()}


def draw(targets, count, seed):
    """`count` mutants (all if None), each of another function, with a way to break it.

    Each function has its own random number, made from its name and the seed. So a new function changes nothing for the
    others.
    """
    number = lambda *words: hashlib.sha256(repr((seed, *words)).encode()).digest()
    chosen = targets if count is None else sorted(targets, key=lambda t: number(*t[:2]))[:count]
    return [Mutant(module, name, min(ways, key=lambda kind: number(module, name, kind))) for module, name, ways in chosen]


# Who could notice

def code_of(path):
    """The Python text of a test file, or of a notebook's code cells."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return text
    return "\n".join("".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "code")


def mentioned(text, modules, here=""):
    """The package's modules that a text imports or names; running the command counts as importing all of `cli`.

    Relative imports are seen from the module `here`.
    """
    names = set(re.findall(rf"{PACKAGE}\.([\w.]*\w)", text))
    names |= {name for name in re.findall(r"[\"']\.?([a-z_]+\.[a-z_.]+)[\"']", text) if name in modules}   # loaded lazily
    package = any(name.startswith(here + ".") for name in modules)
    for dots, base, group in re.findall(rf"from ({PACKAGE}|\.+)\.?([\w.]*) import (\([\w, \n]+|[\w, ]+)", text):
        above = [*here.split("."), *["__init__"] * package][:-len(dots)] if dots[0] == "." else []
        base = ".".join([*above, *filter(None, [base])])
        names |= {base} | {".".join(filter(None, [base, name])) for name in re.findall(r"\w+", group)}
    if "transformer-course" in text or re.search(rf'-m["\', ]+{PACKAGE}\b', text):
        names |= {name for name in modules if name.startswith("cli.")}
    return names & modules


def reach(start, graph):
    """All modules that are imported when those of `start` are."""
    seen, waiting = set(), list(start)
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting.extend(graph[module])
    return seen


def candidates(root, module, name):
    """The tests and notebooks that can notice a change to the function, the likeliest and shortest first."""
    sources = library(root)
    graph = {here: mentioned(text, sources.keys(), here) for here, text in sources.items()}
    last = module.rpartition(".")[2]
    word = re.compile(r"\b(" + "|".join(p for p in name.split(".") if not p.startswith("__")) + r")\b")
    parts = set(re.findall(r"[a-z0-9]{3,}", f"{last} {name}".lower()))
    ranked = []
    tests = [p for p in sorted((root / "tests").glob("test_*.py")) if p.name not in UNRELATED]
    for path in tests + sorted((root / "nbs").rglob("*.ipynb")):
        text = code_of(path)
        direct = mentioned(text, sources.keys())
        if module in reach(direct, graph):
            absent = sum(part not in text.lower() for part in parts)
            rank = (path.name != f"test_{last}.py", not (module in direct and word.search(text)), module not in direct,
                    not word.search(text), absent, path.suffix != ".py", len(text))
            ranked.append((rank, path.relative_to(root)))
    return [path for _, path in sorted(ranked)]


# Running them

class Bench:
    """Copies of the working tree, one of them left unchanged, in which tests run."""

    def __init__(self, root, folder, jobs):
        self.root, self.free, self.known, self.locks = root, Queue(), {}, defaultdict(threading.Lock)
        self.unchanged = self.copy(folder / "unchanged")
        for i in range(jobs):
            self.free.put(self.copy(folder / f"copy{i}"))

    def copy(self, target):
        shutil.copytree(self.root, target, ignore=shutil.ignore_patterns(*LEFT_OUT))
        return target

    def run(self, tree, what):
        """Run one file (or one test of it) in a tree: the first failing test, or None if all pass."""
        env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
        env.pop("TRANSFORMER_COURSE_DATA", None)        # the same verdict on every machine
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", what]
        if ".ipynb" in what:
            command[4:4] = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout", "120"]
            env.pop("MPLBACKEND")
        try:
            done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return f"{what} (ran past {LIMIT} s)"
        if done.returncode in (FAILS, CANNOT_COLLECT):
            line = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.M)
            return line[1] if line else what
        if done.returncode not in (0, NO_TESTS):
            raise RuntimeError(f"pytest {what} ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}")

    def passes_unchanged(self, failure, path):
        """Whether what failed passes in the unchanged copy (a notebook as a whole)."""
        what = failure if path.suffix == ".py" and "::" in failure else path.as_posix()
        with self.locks[what]:                          # found out once; what else runs does not wait
            if what not in self.known:
                self.known[what] = self.run(self.unchanged, what) is None
            return self.known[what]

    def judge(self, mutant):
        """Break the function in a free copy and run what can notice until something fails; then mend it."""
        tree = self.free.get()
        module = tree / PACKAGE / f"{mutant.module.replace('.', '/')}.py"
        source = module.read_text(encoding="utf-8")
        started, ignored = time.time(), []
        try:
            module.write_text(mutated(source, mutant.name, mutant.kind), encoding="utf-8")
            paths = candidates(self.unchanged, mutant.module, mutant.name)
            for path in paths:
                failure = self.run(tree, path.as_posix())
                if failure and self.passes_unchanged(failure, path):
                    return Verdict(mutant, True, f"{failure} [{time.time() - started:.0f} s]")
                if failure:
                    ignored.append(path.as_posix())
            story = f"none of {len(paths)} files that can reach it failed"
            return Verdict(mutant, False, story + (f" (broken anyway: {', '.join(ignored)})" if ignored else ""))
        finally:
            module.write_text(source, encoding="utf-8")
            self.free.put(tree)


def trial(mutants, root=ROOT, jobs=2):
    """Judge all mutants, `jobs` at a time; yield each verdict as soon as those before it are known."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(Bench(root, Path(folder).resolve(), jobs).judge, mutants)


def chosen(options, root):
    """The mutants that the command's options ask for."""
    targets = everything(root, options.kind)
    if options.only:
        targets = [t for t in targets if f"{t[0]}.{t[1]}" == options.only or t[0] == options.only
                   or f"{t[0]}.{t[1]}".startswith(options.only + ".")]
    if not targets:
        raise SystemExit(f"nothing to break: --only {options.only!r}; see --list for what there is")
    return draw(targets, None if options.all or options.only else options.count, options.seed)


def main(argv=None, root=ROOT):
    """Print a line for each mutant and the counts; return 1 if one was not noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10, help="how many to draw (10)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (1)")
    parser.add_argument("--all", action="store_true", help="every exported function")
    parser.add_argument("--only", metavar="MODULE[.NAME]", help="one function, one class, or one module")
    parser.add_argument("--kind", choices=KINDS, help="break in this way only")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="mutants at a time (2)")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    options = parser.parse_args(argv)
    if options.list:
        print("\n".join(f"{module}.{name}: {', '.join(ways)}" for module, name, ways in everything(root, options.kind)))
        return 0
    started, failed, mutants = time.time(), 0, chosen(options, root)
    for verdict in trial(mutants, root, options.jobs):
        failed += not verdict.killed
        print(f"{'noticed ' if verdict.killed else 'SURVIVED'} {verdict.mutant}: {verdict.story}", flush=True)
    print(f"{len(mutants) - failed} passed, {failed} failed in {time.time() - started:.0f} s (mutants noticed, not noticed)")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

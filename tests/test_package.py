"""What users install: built from the source distribution, complete, and working where no development tool is."""
import re
import zipfile
from configparser import ConfigParser
from email.parser import Parser

import notebooks
import pytest
from clean import built, environment
from test_imports import DEVELOPMENT, MODULES

needs_cli = pytest.mark.skipif("cli" not in MODULES, reason="there is no module cli yet")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built by way of the source distribution in a copy of the tree, without network."""
    return built(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A function that runs a program of a fresh environment with the wheel; development tools are hidden from it."""
    return environment(wheel, tmp_path_factory.mktemp("clean"), hidden=DEVELOPMENT).run


def files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_wheel_holds_what_it_should(wheel):
    names = files(wheel)
    info = next(n for n in names if n.endswith(".dist-info/METADATA")).rpartition("/")[0]
    library = {n for n in names if not n.startswith(info)}
    modules = {n for n in library if n.endswith(".py")}
    assert modules == {path.relative_to(notebooks.ROOT).as_posix() for path in notebooks.LIB.rglob("*.py")}
    assert all(n.startswith("transformer_course/") for n in library), "neither tests nor nbs"
    assert "transformer_course/py.typed" in library, "without it, type checkers do not read our annotations"
    assert {"LICENSE", "LICENSE-PROSE"} <= {n.rpartition("/")[2] for n in names if n.startswith(info)}
    assert "transformer-course = transformer_course.cli.app:main" in names[f"{info}/entry_points.txt"].decode()
    for module in modules:
        assert names[module] == (notebooks.ROOT / module).read_bytes()
    start = "transformer_course/notebooks/"
    carried = {n.removeprefix(start): content for n, content in names.items() if n.startswith(start)}
    assert carried == {path.relative_to(notebooks.NBS).as_posix(): path.read_bytes() for path in notebooks.notebooks()}


def test_wheel_says_what_it_needs(wheel):
    """Run-time requirements are settings.ini's; development tools come only with an extra."""
    config = ConfigParser(delimiters=["="], interpolation=None)
    config.read(notebooks.ROOT / "settings.ini", encoding="utf-8")
    wanted = config["DEFAULT"]
    metadata = Parser().parsestr(next(t for n, t in files(wheel).items() if n.endswith("/METADATA")).decode())
    plain = {r.replace(" ", "") for r in metadata.get_all("Requires-Dist") if "extra ==" not in r}
    assert plain == set(wanted["requirements"].split())
    assert not any(r.startswith(DEVELOPMENT) for r in plain)
    assert set(metadata.get_all("Provides-Extra")) == {"lab", "dev", "site", "real-weights", "onnx"}
    assert (metadata["Version"], metadata["Requires-Python"]) == (wanted["version"], ">=" + wanted["min_python"])


def test_installed_package_imports(installed):
    code = f"""
import importlib, transformer_course
for module in {MODULES!r}:
    importlib.import_module('transformer_course.' + module)
print(transformer_course.__version__, 'env' in transformer_course.__file__)
try:
    import nbdev
except ModuleNotFoundError:
    print('no nbdev')
"""
    done = installed("python", "-c", code)
    assert done.returncode == 0, done.stderr[-800:]
    assert done.stdout.split() == [version(), "True", "no", "nbdev"]


def version():
    return re.search(r'^__version__ = "(.+)"$', (notebooks.LIB / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE)[1]


@needs_cli
@pytest.mark.parametrize("arguments", [["--help"], ["doctor"]], ids=" ".join)
def test_installed_command(installed, arguments):
    done = installed("transformer-course", *arguments)
    assert done.returncode == 0, done.stderr[-800:]
    assert done.stdout.strip()


@needs_cli
def test_installed_command_refuses_in_one_line(installed):
    done = installed("transformer-course", "translate", "no-such-folder", "a dog")
    assert done.returncode != 0
    assert "no-such-folder" in done.stderr and "Traceback" not in done.stderr


def test_installed_course_starts_and_checks_without_the_repository(installed):
    """Off line, without Jupyter: start, check, progress."""
    started = installed("transformer-course", "start", "learning")
    assert started.returncode == 0, started.stderr[-800:]
    listed = installed("python", "-c", "from pathlib import Path; print(len(list(Path('learning/exercises').glob('*.ipynb'))))")
    assert int(listed.stdout) == len(list((notebooks.NBS / "exercises").glob("*.ipynb")))
    for path in ("learning/exercises/%s_exercises.ipynb" % p.stem[2:] for p in (notebooks.NBS / "exercises").glob("*.ipynb")):
        if "20_attention" not in path:
            installed("python", "-c", f"import os; os.remove({path!r})")
    checked = installed("transformer-course", "check", "learning", "--json")
    assert checked.returncode == 0 and '"not attempted"' in checked.stdout, checked.stderr[-800:]
    shown = installed("transformer-course", "progress", "learning")
    assert shown.returncode == 0 and "lessons done" in shown.stdout

"""What users install: built from the source distribution, complete, and working where no development tool is."""
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from configparser import ConfigParser
from email.parser import Parser
from pathlib import Path

import notebooks
import pytest
from test_imports import DEVELOPMENT, MODULES

LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "runs", "demo-output", "build", "dist", "*.egg-info", "__pycache__", ".*_cache",
                                  ".hypothesis", "*.safetensors")
HIDE = """import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.split('.')[0] in {names!r} else self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Without, sys.meta_path)
"""
needs_cli = pytest.mark.skipif("cli" not in MODULES, reason="there is no module cli yet")


def run(*command, **options):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, encoding="utf-8", **options)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built by way of the source distribution in a copy of the tree, without network."""
    here = tmp_path_factory.mktemp("build")
    shutil.copytree(notebooks.ROOT, here / "tree", ignore=LEFT_OUT)
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", here / "dist", here / "tree")
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    (path,) = (here / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A function that runs a program of a fresh environment with the wheel, in an empty folder.

    The dependencies are those of the running environment, with the development tools hidden.
    """
    here = tmp_path_factory.mktemp("clean")
    venv.create(here / "env", with_pip=False)
    programs = here / "env" / ("Scripts" if os.name == "nt" else "bin")
    site = Path(run(programs / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    (site / "without_tools.py").write_text(HIDE.format(names=DEVELOPMENT), encoding="utf-8")
    (site / "dependencies.pth").write_text(f"import without_tools\n{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    done = run(sys.executable, "-m", "pip", "--python", programs / "python", "install", "-q", "--no-deps", "--no-index",
               "--disable-pip-version-check", wheel)
    assert done.returncode == 0, done.stderr
    (here / "empty").mkdir()
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    home = {"HOME": str(here), "USERPROFILE": str(here), "PYTHONIOENCODING": "utf-8"}
    return lambda program, *rest: run(programs / program, *rest, cwd=here / "empty", env=kept | home)


def files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_wheel_holds_what_it_should(wheel):
    names = files(wheel)
    info = next(n for n in names if n.endswith(".dist-info/METADATA")).rpartition("/")[0]
    library = {n for n in names if not n.startswith(info)}
    modules = {n for n in library if n.endswith(".py")}
    assert modules == {f"transformer_course/{m}.py" for m in [*MODULES, "__init__", "_modidx"]}
    assert all(n.startswith("transformer_course/") for n in library), "neither tests nor nbs"
    assert {"LICENSE", "LICENSE-PROSE"} <= {n.rpartition("/")[2] for n in names if n.startswith(info)}
    assert "transformer-course = transformer_course.cli:main" in names[f"{info}/entry_points.txt"].decode()
    for module in modules:
        assert names[module] == (notebooks.ROOT / module).read_bytes()


def test_wheel_says_what_it_needs(wheel):
    """Run-time requirements are settings.ini's; development tools come only with an extra."""
    config = ConfigParser(delimiters=["="], interpolation=None)
    config.read(notebooks.ROOT / "settings.ini", encoding="utf-8")
    wanted = config["DEFAULT"]
    metadata = Parser().parsestr(next(t for n, t in files(wheel).items() if n.endswith("/METADATA")).decode())
    plain = {r.replace(" ", "") for r in metadata.get_all("Requires-Dist") if "extra ==" not in r}
    assert plain == set(wanted["requirements"].split())
    assert not any(r.startswith(DEVELOPMENT) for r in plain)
    assert set(metadata.get_all("Provides-Extra")) == {"lab", "dev"}
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
    text = (notebooks.LIB / "__init__.py").read_text(encoding="utf-8")
    return text.partition('"')[2].partition('"')[0]


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

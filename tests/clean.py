"""A wheel of this tree, and fresh environments to install it into."""
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import notebooks

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


def run(*command, **options):
    """A program's exit code, output and errors as text."""
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, encoding="utf-8", **options)


def built(here: Path) -> Path:
    """The wheel, built in `here` by way of the source distribution in a copy of the tree, without network."""
    shutil.copytree(notebooks.ROOT, here / "tree", ignore=LEFT_OUT)
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", here / "dist", here / "tree")
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    (path,) = (here / "dist").glob("*.whl")
    return path


class environment:
    """A fresh environment with the wheel, and an empty folder to work in.

    The dependencies are those of the running environment, without the modules that are `hidden`.
    """

    def __init__(self, wheel: Path, here: Path, hidden: tuple = ()):
        venv.create(here / "env", with_pip=False)
        self.programs, self.folder = here / "env" / ("Scripts" if os.name == "nt" else "bin"), here / "empty"
        self.folder.mkdir()
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
        self.variables = kept | {"HOME": str(here), "USERPROFILE": str(here), "PYTHONIOENCODING": "utf-8"}
        site = Path(self.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
        (site / "without_tools.py").write_text(HIDE.format(names=hidden), encoding="utf-8")
        (site / "dependencies.pth").write_text(f"import without_tools\n{sysconfig.get_path('purelib')}\n", encoding="utf-8")
        done = run(sys.executable, "-m", "pip", "--python", self.programs / "python", "install", "-q", "--no-deps", "--no-index",
                   "--disable-pip-version-check", wheel, env=self.variables)
        assert done.returncode == 0, done.stderr

    def run(self, program: str, *rest):
        """Run one of its programs in the empty folder."""
        return run(self.programs / program, *rest, cwd=self.folder, env=self.variables)

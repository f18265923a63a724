"""What a type checker sees: nothing to complain of in a user's program, and no more in the package than docs/using.md says.

Pyright is no requirement of the project: `pip install "pyright[nodejs]"` brings it. Without it these tests are skipped.
"""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """A function: the errors that pyright finds in a file or a folder."""
    pytest.importorskip("pyright", reason='pyright: pip install "pyright[nodejs]"')

    def found(path):
        place = tmp_path_factory.mktemp("types")
        config = {"include": [Path(os.path.relpath(ROOT / path, place)).as_posix()], "extraPaths": [str(ROOT), str(Path(torch.__file__).parents[1])],
                  "pythonVersion": "3.11", "typeCheckingMode": "standard"}
        (place / "pyrightconfig.json").write_text(json.dumps(config))
        done = subprocess.run([sys.executable, "-m", "pyright", "--outputjson", "-p", str(place)], capture_output=True, text=True, timeout=300)
        told = json.loads(done.stdout)
        assert told["summary"]["filesAnalyzed"] > 0, done.stderr
        return [f"{Path(one['file']).name}: {one['message'].splitlines()[0]}" for one in told["generalDiagnostics"] if one["severity"] == "error"]
    return found


def test_a_users_program_has_the_types_that_it_says(errors):
    assert errors("tests/typed_use.py") == []


def test_the_package_has_no_more_findings_than_the_page_says(errors):
    (said,) = re.findall(r"reports (\d+) findings inside the package", (ROOT / "docs" / "using.md").read_text(encoding="utf-8"))
    found = errors("transformer_course")
    assert 0 < len(found) <= int(said), "\n".join(found)

"""A pytest plugin that begins with the notebooks that take longest, by their own words ("20 seconds to run").

    python -m pytest -n 2 --dist loadscope -p tools.longest_first --nbval --nbval-current-env nbs

A long notebook that comes last keeps one test process busy while the others have nothing left to do.
"""
import functools
import re
from pathlib import Path


@functools.cache
def seconds(notebook: Path) -> int:
    """How long the notebook says that it takes; 0 if it does not say."""
    said = re.search(r"(\d+) seconds to run", notebook.read_text(encoding="utf-8"))
    return int(said[1]) if said else 0


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: -seconds(item.path))                # the cells of a notebook stay in order

"""Notebooks that take longest come first, and the cells of each stay in order."""
from types import SimpleNamespace

import longest_first


def test_the_longest_come_first_and_cells_stay_in_order(tmp_path):
    said = {"a": "a drawing", "b": "**Time**: 5 minutes to read, 5 seconds to run", "c": "30 minutes to read; 120 seconds to run"}
    for name, text in said.items():
        (tmp_path / f"{name}.ipynb").write_text(text, encoding="utf-8")
    items = [SimpleNamespace(path=tmp_path / f"{name}.ipynb", cell=cell) for name in said for cell in range(3)]
    longest_first.pytest_collection_modifyitems(items)
    assert [f"{item.path.stem}{item.cell}" for item in items] == "c0 c1 c2 b0 b1 b2 a0 a1 a2".split()


def test_the_lessons_say_how_long_they_take(root):
    lessons = sorted((root / "nbs" / "lessons").glob("*.ipynb"))
    silent = [path.stem for path in lessons if not longest_first.seconds(path)]
    assert lessons and len(silent) <= 3, silent

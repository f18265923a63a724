"""The minutes of both syllabi in docs/teaching.md, added up from what lessons and exercises state."""
import json
import re
from collections import Counter

import notebooks
from transformer_course.checking.exercise_notebooks import all_exercises

PAGE = notebooks.ROOT / "docs" / "teaching.md"
ROW = re.compile(r"^(\| \d+ \| )([\w, ]+)( \| )\d+( \| )\d+( \|)", re.MULTILINE)
HOURS = re.compile(r"take \d+ hours to read and the exercises \d+ hours")


def minutes() -> tuple[Counter, Counter]:
    """By lesson, such as "23a": the minutes to read it, and those of its exercises."""
    reading, practice = Counter(), Counter()
    for path in (notebooks.NBS / "lessons").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        reading[path.stem.partition("_")[0]] = int(re.search(r"\*\*Time\*\*[^\n]*?(\d+) minutes", prose)[1])
    for exercise in all_exercises().values():
        practice[exercise.lesson.partition("_")[0]] += exercise.minutes
    return reading, practice


def filled(page: str) -> str:
    """The page with these minutes in every row, and the hours of the whole course."""
    columns = minutes()
    added = lambda lessons, column: str(sum(column[lesson] for lesson in lessons.split(", ")))
    page = ROW.sub(lambda m: m[1] + m[2] + m[3] + added(m[2], columns[0]) + m[4] + added(m[2], columns[1]) + m[5], page)
    read, practised = (round(sum(column.values()) / 60) for column in columns)
    return HOURS.sub(f"take {read} hours to read and the exercises {practised} hours", page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

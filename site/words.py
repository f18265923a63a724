"""Find in plain text what the site links: words of the glossary at their first use, and works that are cited.

Plain Python; the Sphinx extension `course_site` asks these functions.
"""
import json
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

ROW = re.compile(r"^\| \*\*(.+?)\*\* \| (.+) \| ([\da-z, ]+) \|$", re.M)
FIELD = re.compile(r"^ *(\w+) *= *\{(.*)\},?$", re.M)
NAME = r"[A-ZÀ-ÖØ-Þ][\w'’-]+"
CITATION = re.compile(rf"({NAME})((?:, {NAME})*,? (?:&|and) {NAME}| et al\.)?,? \(?((?:19|20)\d\d)[a-z]?\b"
                      r"((?:(?:,| and|, and) (?:19|20)\d\d\b)*)")

EVERYDAY = {"author", "cell", "child", "engine", "floor", "lure", "noise", "oracle", "parent", "prefix", "probe", "record", "skew"}
# everyday words are linked only in the lessons of their row: they are also said of other things


@dataclass(frozen=True)
class Word:
    """A row of the glossary."""

    term: str           # as it is written there, such as "alignment error rate (AER)"
    meaning: str        # Markdown
    lessons: tuple[str, ...]

    @property
    def anchor(self) -> str:
        return "word-" + re.sub(r"[^a-z0-9]+", "-", self.term.lower()).strip("-")

    @property
    def forms(self) -> list[str]:
        """What counts as this word in a text: each of "query, key, value", and both of "error rate (AER)"."""
        return [form.replace("\\", "") for form in re.split(r", | \(|\)", self.term) if form]


def glossary(index: Path) -> list[Word]:
    """The rows of the glossary in the course's index notebook."""
    cells = json.loads(index.read_text(encoding="utf-8"))["cells"]
    prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return [Word(term, meaning, tuple(lessons.split(", "))) for term, meaning, lessons in ROW.findall(prose)]


def pattern(words: list[Word]) -> tuple[re.Pattern, dict[str, Word]]:
    """One expression for all forms of all words, and the word of each form in lower case.

    A form of capitals (AER, GRU) must be written so; others may begin with a capital, and have a plural s.
    """
    of = {form.lower(): word for word in words for form in word.forms if len(form) > 1}
    def as_pattern(form):
        if form.upper() == form:
            return re.escape(form)
        return f"(?i:{re.escape(form)})(?:e?s)?"
    forms = sorted((form for word in words for form in word.forms if len(form) > 1), key=len, reverse=True)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(as_pattern, forms))})(?![\w-])"), of


def word_of(found: str, of: dict[str, Word], lesson: str = "") -> Word | None:
    """The word that a match of `pattern` means in a lesson; None for an everyday word of another lesson."""
    low = found.lower()
    word = next((of[form] for form in (low, low.removesuffix("s"), low.removesuffix("es")) if form in of), None)
    return None if word and EVERYDAY & set(word.forms) and lesson not in word.lessons else word


def bibliography(path: Path) -> dict[str, dict[str, str]]:
    """A .bib file with one field on a line: key -> fields, in the order of the file. Raises ValueError for a key twice."""
    found = {}
    for entry in re.split(r"^@", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
        kind, key = re.match(r"(\w+)\{([\w-]+),", entry).groups()
        if key in found:
            raise ValueError(f"{path.name}: {key} is there twice")
        found[key] = {"kind": kind, **dict(FIELD.findall(entry))}
    return found


def key_of(name: str, year: str) -> str:
    """"Popović", "2015" -> "popovic2015"."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z]", "", plain.lower()) + year


def citations(text: str) -> list[tuple[int, int, str, str]]:
    """Where works are cited in a text, the key of each, and the second author if there are two or three names.

    "Radford et al. 2018 and 2019" are two works.
    """
    found = []
    for match in CITATION.finditer(text):
        second = re.search(NAME, match[2] or "")
        found.append((match.start(), match.end(3), key_of(match[1], match[3]), key_of(second[0], "") if second else ""))
        for year in re.finditer(r"\d{4}", match[4]):
            start = match.start(4) + year.start()
            found.append((start, start + 4, key_of(match[1], year[0]), ""))
    return found


def work(known: dict[str, dict[str, str]], key: str, second: str, lesson: str) -> str | None:
    """The key of a cited work in a bibliography; None if it has none.

    Two works of one name and year have keys with an ending: the second author's name, or the lesson that cites it.
    """
    return next((name for name in (f"{key}-{second}", f"{key}-{lesson}", key) if name in known), None)


def authors(entry: dict[str, str]) -> str:
    """"Bahdanau, Dzmitry and Cho, Kyunghyun" -> "Dzmitry Bahdanau, Kyunghyun Cho"."""
    names = [" ".join(reversed(name.split(", "))) for name in entry["author"].split(" and ")]
    return ", ".join("others" if name == "others" else name for name in names).replace(", others", " and others")

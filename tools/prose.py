"""Find what tires a reader: long sentences, words of a stop list, and code that scrolls sideways.

    python tools/prose.py [FILE ...]    print each finding and a count per file; exit 1 if there are any
    python tools/prose.py --lower       lower the numbers of prose_baseline.txt where something was mended
    python tools/prose.py --table       words, code, pictures and minutes of each lesson's core path

It reads the text cells of lessons and exercises, the docstrings, raised messages and plot titles in their
code, the hints and messages of exercises, README.md, CONTRIBUTING.md and the pages in docs. Code, formulas
and the targets of links are masked: a mask is as long as what it covers, so positions stay what they were.
"""
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import notebooks

LONGEST_SENTENCE, LONGEST_LINE = 35, 110                   # words, characters
BASELINE = Path(__file__).with_name("prose_baseline.txt")
HEADER = "# Findings that each file may still have; the numbers only fall: python tools/prose.py --lower\n"


@dataclass(frozen=True)
class Finding:
    """One thing to mend, and where it is."""

    file: str
    place: str          # "cell 3, line 7", or "line 7"
    kind: str           # "41 words", "stop word, 'heed' (follow)", "123 characters"
    text: str

    def __str__(self) -> str:
        return f"{self.file}, {self.place}: {self.kind}: {self.text}"


# Words that do not come back (whole words, in any case), and what to say in their place

STOP = {re.compile(rf"\b(?:{words})", re.I): advice for words, advice in {
    r"lots?\b": "at random; many, much",
    r"faults?\b|faultless(?:ly)?\b": "an error; without an error",
    r"heed(?:s|ed|less|ing)?\b": "follow, attend to",
    r"who knows\b": "with, that has seen",
    r"stands\b|stand there\b|stand (?:beside|side by side)\b": "is, means, goes; next to",
    r"stand it\b|stand to (?:each other|one another)\b": "can bear it; the ratio of",
    r"fates?\b": "what becomes of it; the outcome",
    r"the look\b": "attention",
    r"simply\b|obviously\b|trivially\b|needless to say\b": "leave it out",
    r"(?:we|I) suspect\b": "say what was measured",
    r"which [^.,;:!?()]{0,60}?\b(?:have|has|had) not(?=\s*(?:[.,;:!?)]|$))": "which … do not have",
    r"(?:is|are|was|were) (?:both )?had\b|to be had\b": "you get",
    r"no number that\b": "overflows, is not a number",
    r"for (?:a|the) head\b": "to do in your head",
    r"being heard\b": "changing the result",
    r"(?:half|third|quarter) of all \w+ and more\b": "more than half of",
}.items()}
GUESSER = re.compile(r"\W*Who \w+s\b[^?]*$")                    # "Who guesses is right once in eight times."


# From Markdown to blocks: paragraphs, headings, items and cells of tables

NOTHING, BREAK, THING = "\0", "\1", "¤"                    # left out; the end of a block; one word
MASKS = [(re.compile(pattern, re.S | re.M), mask) for pattern, mask in (
    (r"^[ \t>]*(```|~~~).*?(?:^[ \t>]*\1[ \t]*$|\Z)", BREAK),
    (r"<!--.*?-->", BREAK),
    (r"\$\$.*?\$\$", BREAK),
    (r"(?<!`)(`+)(?!`)[^\n]+?(?<!`)\1(?!`)", THING),
    (r"(?<![\\$\w])\$(?![\s$])(?:[^$\\]|\\.)+?(?<!\s)\$(?!\d)", THING),
    (r"<br\s*/?>", BREAK),
    (r"</?[a-zA-Z][^<>\n]*>", NOTHING),
    (r"^[ \t>]*\|?[ \t]*:?-{3,}:?[ \t]*(?:\|[ \t]*:?-{3,}:?[ \t]*)*\|?[ \t]*$", BREAK),   # below a head
)]
IMAGE = re.compile(r"!\[([^\]]*)\]\([^)\n]*\)")
LINK = re.compile(r"(?<!\\)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*\)")
OPENING = re.compile(r"[ \t]*(#{1,6}|[-*+]|\d{1,2}[.)])[ \t]+(?=\S)")              # of a heading or an item
QUOTE = re.compile(r"(?:[ \t]{0,3}>[ \t]?)*")


def masked(text: str) -> str:
    """Markdown with code, formulas, links' targets and tags masked; as long as it was."""
    for pattern, mask in MASKS:
        text = pattern.sub(lambda found: re.sub(r"[^\n]", mask, found[0]), text)
    text = IMAGE.sub(lambda m: BREAK * 2 + m[1] + BREAK * (len(m[0]) - 2 - len(m[1])), text)
    text = LINK.sub(lambda m: NOTHING + m[1] + NOTHING * (len(m[0]) - 1 - len(m[1])), text)
    text = re.sub(r"https?://[^\s)>\]]+", lambda m: THING * len(m[0]), text)
    text = re.sub(r"(?<= )·(?= )", BREAK, text)
    return re.sub(r"(?<=\S)\*+|\*+(?=\S)|\b_+|_+\b", lambda m: NOTHING * len(m[0]), text)


def blocks(text: str) -> Iterator[tuple[int, int]]:
    """The start and end of each block of a masked text."""
    start = end = 0
    for line in text.splitlines(keepends=True):
        begin, end = end, end + len(line)
        body = QUOTE.match(line).end()
        opening = OPENING.match(line, body)
        row = line[body:].lstrip().startswith("|")
        if opening or row or not line[body:].strip():
            yield start, begin
            start = begin + opening.end() if opening else begin
        if row:
            bars = [begin + found.start() for found in re.finditer(r"(?<!\\)\|", line)]
            yield from zip([bar + 1 for bar in bars], [*bars[1:], end])
            start = end
        elif opening and opening[1].startswith("#"):
            yield start, end
            start = end
    yield start, end


# From blocks to sentences

NEVER = {"e.g", "i.e", "cf", "vs", "dr", "mr", "mrs", "ms", "prof", "resp", "approx", "st"}
NUMBERED = {"eq", "eqs", "fig", "figs", "no", "nr", "p", "pp", "sec", "ch", "vol"}    # nor before a number
SOMETIMES = {"etc", "al", "a.m", "p.m", "inc", "jr"}                       # these do if a capital follows
STARTERS = set("""a after all also an and any as at because before but by each every for from here how if in
    it its many most neither no none not now of on once one only or our so some such take that the their then
    there these they this those to two we what when where which while who why with without you
    your""".split())
END = re.compile(r"(?P<mark>[.!?…]+|:)[\0\"'”’»)\]]*\s+(?=[\0\"'“‘«(\[>\s]*(?P<next>[^\0\"'“‘«(\[>\s]+))")


def sentences(block: str) -> Iterator[tuple[int, int]]:
    """The start and end of each sentence of a masked block."""
    start = 0
    for found in END.finditer(block):
        before = re.split(r"[\s\0(\[\"“—–/]", block[start:found.start()])[-1]
        if _ends(before, found["mark"], found["next"]):
            yield start, found.end()
            start = found.end()
    yield start, len(block)


def _ends(before: str, mark: str, after: str) -> bool:
    "Is a mark between these two words the end of a sentence?"
    word, starts = before.lower(), re.split(r"\W", after.lower())[0] in STARTERS
    if after[0].islower() or mark == ":" and not (after[0].isupper() and starts):
        return False
    if mark != ".":
        return True
    if word in NEVER or word in NUMBERED and (after[0].isdigit() or after[0] == THING):
        return False
    if word in SOMETIMES:
        return after[0].isupper()
    return starts or not re.fullmatch(r"(?:[A-Z]\.)*[A-Z]", before)        # an initial, as in A. Vaswani


def words(sentence: str) -> int:
    """How many words a masked sentence has; code and a formula count as one each."""
    found = re.split(r"[\s\1—–]+", sentence.replace(NOTHING, ""))
    return sum(1 for word in found if re.search(rf"[^\W_]|{THING}", word))


def read(text: str) -> Iterator[tuple[int, str, str]]:
    """Every sentence of a Markdown text: its line, from 0, the sentence masked, and as it was written."""
    mask = masked(text)
    for start, end in blocks(mask):
        for piece in re.finditer(r"[^\1]+", mask[start:end]):
            for first, last in sentences(piece[0]):
                begin, stop = start + piece.start() + first, start + piece.start() + last
                begin += re.match(r"[>\s]*", mask[begin:stop]).end()             # the marks of a quotation
                if words(mask[begin:stop]):
                    sentence = mask[begin:stop].replace(NOTHING, "")
                    yield text.count("\n", 0, begin), sentence, " ".join(text[begin:stop].split())


def wrong(text: str) -> Iterator[tuple[int, str, str]]:
    """What is to be mended in a Markdown text: line, kind and sentence."""
    for line, mask, sentence in read(text):
        if (count := words(mask)) > LONGEST_SENTENCE:
            yield line, f"{count} words", sentence
        for pattern, advice in STOP.items():
            for found in pattern.findall(mask):
                yield line, f"stop word, {found!r} ({advice})", sentence
        if GUESSER.match(mask):
            yield line, "stop word, 'Who …s' (name the person, or use the -ing form)", sentence


# Prose in code

TITLES = {"title", "caption", "xlabel", "ylabel", "help"}           # keywords whose strings a reader sees


ANSWERS = ("mistakes", "hints")                                     # what a check of an exercise says
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def strings(code: str, answers: bool = False) -> Iterator[tuple[int, str]]:
    """Docstrings, raised messages, titles and Markdown in code, each with its line, from 0.

    In the checks of an exercise the hints and the messages too.
    """
    for node in ast.walk(ast.parse(code)):
        found = []
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            found = [node.body[0].value]
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            found = node.exc.args
        elif isinstance(node, ast.Call) and _called(node) in ("Markdown", "warn"):
            found = node.args[:1]
        elif isinstance(node, ast.keyword) and node.arg in TITLES:
            found = [node.value]
        elif answers and isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ANSWERS:
            found = getattr(node.value, "keys", None) or getattr(node.value, "elts", [])
        elif answers and isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple):
            found = node.value.elts[:1]
        for value in found:
            text = "".join(_pieces(value))
            if re.search(r"[^\W_]", text):
                yield value.lineno - 1, text


def _called(call: ast.Call) -> str:
    "The last part of the name of what is called."
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def _pieces(node: ast.expr) -> Iterator[str]:
    "The text of an expression; what is filled in at run time is one word."
    if isinstance(node, ast.Constant):
        yield node.value if isinstance(node.value, str) else THING
    elif isinstance(node, ast.JoinedStr):
        for value in node.values:
            yield from _pieces(value)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _pieces(node.left)
        yield from _pieces(node.right)
    elif isinstance(node, ast.IfExp):
        yield from _pieces(node.body)
        yield BREAK
        yield from _pieces(node.orelse)
    else:
        yield THING


# Files

def files() -> list[Path]:
    """All that is read: lessons, exercises, README, CONTRIBUTING and the pages in docs."""
    root = notebooks.ROOT
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))]
    return pages + notebooks.notebooks()


def name(path: Path) -> str:
    """A file's path in the repository; of a file elsewhere, its whole path."""
    path = path.resolve()
    return (path.relative_to(notebooks.ROOT) if path.is_relative_to(notebooks.ROOT) else path).as_posix()


def cells(path: Path) -> list[dict]:
    """A notebook's cells, the source of each as one string."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell | {"source": "".join(cell["source"])} for cell in found]


def findings(path: Path) -> list[Finding]:
    """All that is to be mended in one file, in order."""
    if path.suffix != ".ipynb":
        return [Finding(name(path), f"line {line + 1}", kind, text)
                for line, kind, text in wrong(path.read_text(encoding="utf-8"))]
    return [Finding(name(path), f"cell {index}, line {line + 1}", kind, text)
            for index, cell in enumerate(cells(path)) for line, kind, text in _in_cell(cell)]


def _in_cell(cell: dict) -> Iterator[tuple[int, str, str]]:
    if cell["cell_type"] == "markdown":
        yield from wrong(cell["source"])
    elif cell["cell_type"] == "code":
        yield from sorted(_in_code(cell["source"], "checks" in cell["metadata"].get("tags", [])))


def _in_code(code: str, answers: bool) -> Iterator[tuple[int, str, str]]:
    "Long lines, and wrong sentences in strings; a cell that is no Python (a magic) has no strings."
    for number, line in enumerate(code.splitlines()):
        if len(line) > LONGEST_LINE:
            yield number, f"{len(line)} characters", line.strip()
    try:
        for first, text in strings(code, answers):
            for line, kind, sentence in wrong(text):
                yield first + line, kind, sentence
    except SyntaxError:
        pass


# What each file may still have

def counts() -> dict[str, int]:
    """Findings per file, of all files that have any."""
    return {name(path): count for path in files() if (count := len(findings(path)))}


def baseline() -> dict[str, int]:
    """Findings that each file may still have. After a merge a file may have two numbers: take the smaller."""
    allowed = {}
    for line in BASELINE.read_text(encoding="utf-8").splitlines():
        if found := re.fullmatch(r"(\S+) +(\d+)", line):
            allowed[found[1]] = min(int(found[2]), allowed.get(found[1], int(found[2])))
    return allowed


def lower(now: dict[str, int], allowed: dict[str, int]) -> dict[str, int]:
    """The baseline after some have been mended; no number grows, and a new file gets none."""
    return {file: min(now[file], allowed[file]) for file in sorted(allowed) if file in now}


def unlike(now: dict[str, int], allowed: dict[str, int]) -> list[str]:
    """What is not as the baseline says, a line for each file."""
    more = [f"{file}: {count} findings, {allowed.get(file, 0)} allowed; see `python tools/prose.py {file}`"
            for file, count in now.items() if count > allowed.get(file, 0)]
    fewer = [f"{file}: {now.get(file, 0)} of {count} findings are left; run `python tools/prose.py --lower`"
             for file, count in allowed.items() if now.get(file, 0) < count]
    return more + fewer


def store(allowed: dict[str, int]) -> None:
    """Write the baseline."""
    lines = [f"{file} {count}\n" for file, count in sorted(allowed.items())]
    notebooks.write(BASELINE, HEADER + "".join(lines))


# How long a lesson is

AFTER_CORE = re.compile(r"^##\s+(?:[\d.]+\s+)?(Going further|Checks|Exercises)\b", re.M)
CHECKS = re.compile(r"^##\s+(?:[\d.]+\s+)?Checks\b", re.M)
FOLDED = {"hide-input", "hide_input", "hide-cell"}
MINUTES = re.compile(r"\*\*Time:?\*\*:?\s*(?:[^.\n]*?\s)?(\d+) minutes")


@dataclass(frozen=True)
class Size:
    """What a lesson's core path asks of a reader."""

    words: int
    lines: int              # of code that is not folded
    pictures: int
    stated: int | None      # minutes, in the lesson's first cells
    new_form: bool          # it has a section "Checks"

    @property
    def minutes(self) -> float:
        """What it takes at 150 words and ten lines of code a minute."""
        return self.words / 150 + self.lines / 10


def folded(cell: dict) -> bool:
    """Is a code cell's source out of sight?"""
    metadata = cell["metadata"]
    return bool(metadata.get("jupyter", {}).get("source_hidden") or FOLDED & set(metadata.get("tags", []))
                or re.match(r"#\|\s*(hide|default_exp)\b", cell["source"]))


def core(path: Path) -> list[dict]:
    """A lesson's cells before the first heading "Going further", "Exercises" or "Checks"."""
    found = []
    for cell in cells(path):
        end = AFTER_CORE.search(cell["source"]) if cell["cell_type"] == "markdown" else None
        found.append(cell | {"source": cell["source"][:end.start()]} if end else cell)
        if end:
            break
    return found


def size(path: Path) -> Size:
    """The size of a lesson's core path."""
    prose = [cell["source"] for cell in core(path) if cell["cell_type"] == "markdown"]
    code = [cell for cell in core(path) if cell["cell_type"] == "code"]
    lines = [line for cell in code if not folded(cell) for line in cell["source"].splitlines()]
    stated = next(filter(None, map(MINUTES.search, prose)), None)
    return Size(words=sum(words(mask) for text in prose for line, mask, sentence in read(text)),
                lines=sum(bool(line.strip()) and not line.startswith("#|") for line in lines),
                pictures=sum(_is_picture(output) for cell in code for output in cell["outputs"]),
                stated=stated and int(stated[1]),
                new_form=any(CHECKS.search(c["source"]) for c in cells(path) if c["cell_type"] == "markdown"))


def _is_picture(output: dict) -> bool:
    data = output.get("data", {})
    return any(kind.startswith("image/") for kind in data) or "<svg" in "".join(data.get("text/html", ""))


def lessons() -> list[Path]:
    """All notebooks but the exercises and the index."""
    return [path for path in notebooks.notebooks() if path.parent.name != "exercises" and path.stem != "index"]


def too_long(path: Path) -> list[str]:
    """What is wrong with the size of a lesson of the new form."""
    lesson = size(path)
    found = []
    allowed = 1500 if path.parent.name == "lessons" else 2000         # the others may be skipped
    if lesson.words > allowed:
        found.append(f"{path.name}: {lesson.words:,} words before the exercises, {allowed:,} are allowed")
    if lesson.stated is None:
        found.append(f"{path.name}: no line says '**Time**: … minutes'")
    elif lesson.stated < 0.75 * lesson.minutes:
        found.append(f"{path.name}: states {lesson.stated} minutes and takes {lesson.minutes:.0f}")
    return found if lesson.new_form else []


def table() -> str:
    """The sizes of all lessons, in Markdown."""
    rows = ["| lesson | form | words | lines | pictures | minutes stated | at 150 words, 10 lines a minute |",
            "|---|---|---|---|---|---|---|"]
    for path in lessons():
        s = size(path)
        rows.append(f"| {path.stem} | {'new' if s.new_form else 'old'} | {s.words:,} | {s.lines} | "
                    f"{s.pictures} | {s.stated or '–'} | {s.minutes:.0f} |")
    return "\n".join(rows)


def main(arguments: list[str]) -> int:
    """Run one of the commands in the module's docstring; the exit status."""
    if arguments == ["--table"]:
        print(table())
    elif arguments == ["--lower"]:
        now = counts()
        store(lower(now, baseline()) if BASELINE.exists() else now)
        faults = unlike(now, baseline())
        print("\n".join(faults) or f"{sum(now.values())} findings in {len(now)} files, as the baseline says")
    elif any(a.startswith("-") for a in arguments):
        raise SystemExit(__doc__)
    else:
        found = [finding for path in map(Path, arguments or files()) for finding in findings(path)]
        print("\n".join(map(str, found)))
        for file, count in Counter(finding.file for finding in found).items():
            print(f"{count:5} {file}")
        return int(bool(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

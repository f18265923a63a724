"""Draw the modules and their imports, and list what each is for: CONTRIBUTING's picture and table, made from the code.

    python tests/module_map.py          write docs/modules.svg, and the table between the markers of CONTRIBUTING.md
    python tests/module_map.py check    exit 1 if either is not what the code gives

Modules stand in bands, and within a band below all that they import. A line runs down from a module to those that import
it. Left out is an import that comes along with another one anyway: if b imports a, and c imports both, the line from a to
c says nothing new. All places are computed: rows first, then the order within each row, then the positions.
"""
import ast
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import notebooks
import numpy as np
from test_imports import MODULES, TOOLS, TOP, read, siblings

PICTURE, PROSE = notebooks.ROOT / "docs" / "modules.svg", notebooks.ROOT / "CONTRIBUTING.md"
START, END = "<!-- modules: made by tests/module_map.py -->", "<!-- modules: end -->"
BANDS = ("Tools", "Recurrent models", "The Transformer", "Exercises and answers", "On top")
SOURCES = {m[1]: path for path in notebooks.notebooks() if (m := re.match(r"\d+[a-z]?_(\w+)$", path.stem))}


# What the code says

def number(module: str) -> tuple[int, str]:
    """The place of a module's notebook in reading order, such as (2, "a")."""
    found = re.match(r"(\d+)([a-z]?)", SOURCES[module].stem)
    return int(found[1]), found[2]


def purpose(module: str) -> str:
    """The module's docstring, one line."""
    return ast.get_docstring(ast.parse(read(module))).splitlines()[0]


def band(module: str) -> int:
    """The index of a module's band."""
    if module in TOP:
        return 4
    if module in TOOLS:
        return 3 if number(module)[0] >= 90 else 0
    return 1 if number(module)[0] < 20 else 2


def imports() -> dict[str, set[str]]:
    """What each module imports directly, in reading order."""
    return {module: siblings(read(module)) - {module} for module in sorted(MODULES, key=number)}


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The graph without imports that come along with another one."""
    def below(module):
        return set().union(*(({other} | below(other)) for other in graph[module]))
    return {module: {other for other in direct if not any(other in below(another) for another in direct - {other})}
            for module, direct in graph.items()}


def listing() -> str:
    """The table of CONTRIBUTING, in Markdown."""
    rows = ["| | module | what it is for | notebook |", "|---|---|---|---|"]
    for index, title in enumerate(BANDS):
        for i, module in enumerate(m for m in imports() if band(m) == index):
            path = SOURCES[module]
            link = f"[{path.stem.partition('_')[0]}](nbs/{path.name})"
            rows.append(f"| {f'**{title}**' if i == 0 else ''} | `{module}` | {purpose(module)} | {link} |")
    return "\n".join(rows)


def facts() -> str:
    """What the picture must show, as text: it is stored in the picture, and compared with the code."""
    lines = (f"{module} ({BANDS[band(module)]}) {purpose(module)} <- {' '.join(sorted(direct))}"
             for module, direct in reduced(imports()).items())
    return "\n".join(lines)


# Where everything stands

WIDTH, HEIGHT, GAP, LANE = 2.2, 1.0, 0.2, 0.05      # inches: a box, the space between boxes, the space of a passing line
ROW, BETWEEN, IN_A_ROW = 1.32, 0.42, 5                 # inches from row to row, more between bands; boxes in a row
PULL = 0.15                                            # towards the middle of the picture, in weights of a line


@dataclass(eq=False)
class Spot:
    """A box, or the place in a row at which a line passes."""

    module: str
    row: int
    box: bool
    x: float = 0.0
    above: list = field(default_factory=list)          # spots of the row above that lines come from
    below: list = field(default_factory=list)

    @property
    def width(self) -> float:
        return WIDTH if self.box else LANE


def rows_of(graph: dict[str, set[str]]) -> dict[str, int]:
    """The row of each module: below its imports and in its band, with at most IN_A_ROW boxes in a row."""
    users = {m: [user for user in graph if m in graph[user]] for m in graph}
    place, filled, first = {}, Counter(), 0
    for index in range(len(BANDS)):
        members = [m for m in graph if band(m) == index]
        waiting = list(members)
        while waiting:
            free = [m for m in waiting if graph[m].isdisjoint(waiting)]
            module = max(free, key=lambda m: (_height(m, users), -waiting.index(m)))
            row = max([first] + [place[other] + 1 for other in graph[module]])
            while filled[row] == IN_A_ROW:
                row += 1
            place[module] = row
            filled[row] += 1
            waiting.remove(module)
        rows = range(first, max([first, *(place[m] + 1 for m in members)]))
        first = rows.stop
        while any([_settle(m, rows, place, filled, graph, users) for m in members[::-1]]):
            pass
    return place


def _height(module: str, users: dict[str, list[str]]) -> int:
    "How long the longest chain of importers within the module's band is."
    own = [m for m in users[module] if band(m) == band(module)]
    return 1 + max((_height(m, users) for m in own), default=0)


def _settle(module: str, rows: range, place: dict, filled: Counter, graph: dict, users: dict) -> bool:
    "Move a module to the row of its band that leaves the fewest passing lines; tell whether it moved."
    def cost(row):
        tried = place | {module: row}
        lanes = sum(max((tried[m] for m in users[other] if m in tried), default=tried[other]) - tried[other]
                    for other in (module, *graph[module]))
        return lanes - (row - rows.start) * (not all(m in place for m in users[module])), filled[row] - (row == place[module])
    low = max([rows.start, *(place[other] + 1 for other in graph[module])])
    high = min([rows.stop, *(place[m] for m in users[module] if m in place)])
    open_rows = [row for row in range(low, high) if filled[row] < IN_A_ROW or row == place[module]]
    best = min(open_rows, key=cost)
    if cost(best) >= cost(place[module]):
        return False
    filled[place[module]] -= 1
    filled[best] += 1
    place[module] = best
    return True


def spots(graph: dict[str, set[str]]) -> list[list[Spot]]:
    """Every row's boxes and passing lines; all lines of one module share their way down."""
    place = rows_of(graph)
    rows = [[] for row in range(max(place.values()) + 1)]
    boxes = {m: Spot(m, place[m], True) for m in graph}
    for module, spot in boxes.items():
        rows[spot.row].append(spot)
    for module, start in boxes.items():
        users = [boxes[m] for m in graph if module in graph[m]]
        lane, end = start, max((user.row for user in users), default=0)
        for row in range(start.row + 1, end + 1):
            for user in users:
                if user.row == row:
                    _join(lane, user)
            if row < end:
                rows[row].append(Spot(module, row, False))
                _join(lane, rows[row][-1])
                lane = rows[row][-1]
    return rows


def _join(upper: Spot, lower: Spot) -> None:
    upper.below.append(lower)
    lower.above.append(upper)


def crossings(rows: list[list[Spot]]) -> int:
    """How many pairs of lines cross; two that both pass count three times, since that bends them."""
    total = 0
    for upper, lower in zip(rows, rows[1:]):
        place = {spot: i for i, spot in enumerate(lower)}
        ends = [(i, place[end], not spot.box and not end.box) for i, spot in enumerate(upper) for end in spot.below]
        total += sum(1 + 2 * (p and q) for a, b, p in ends for c, d, q in ends if a < c and b > d)
    return total


def order(rows: list[list[Spot]], tries: int = 8, sweeps: int = 12) -> None:
    """Sort each row so that few lines cross: each spot to the mean place of its neighbours, down and up again."""
    rng, best = Random(1), None
    for attempt in range(tries):
        for row in rows if attempt else []:
            rng.shuffle(row)
        for sweep in range(sweeps):
            _sweep(rows, downwards=sweep % 2 == 0)
            found = crossings(rows)
            if best is None or found < best[0]:
                best = found, [list(row) for row in rows]
    for row, chosen in zip(rows, best[1]):
        row[:] = chosen


def _sweep(rows: list[list[Spot]], downwards: bool) -> None:
    place = {spot: (i + 0.5) / len(row) for row in rows for i, spot in enumerate(row)}
    for row in rows if downwards else rows[::-1]:
        wish = {}
        for spot in row:
            others = spot.above if downwards else spot.below
            wish[spot] = sum(place[other] for other in others) / len(others) if others else place[spot]
        row.sort(key=wish.get)
        place |= {spot: (i + 0.5) / len(row) for i, spot in enumerate(row)}


def spread(rows: list[list[Spot]]) -> None:
    """Set every x: lines as straight as they can be, in the row's order, without overlap.

    A module's way down a band is one straight unit, if no other line crosses it twice. The sum of the squared lengths of all
    sideways steps is smallest under the constraint that neighbours keep their room (a quadratic program, solved by
    coordinate ascent on its dual, [Hildreth 1957]).
    """
    unit = _units(rows)
    n = 1 + max(unit.values())
    Q, limits = PULL * np.eye(n), {}
    for row in rows:
        for upper in row:
            for lower in upper.below:
                i, j, weight = unit[upper], unit[lower], 1.0 + 2.0 * (not upper.box and not lower.box)
                Q[[i, j], [i, j]] += weight
                Q[[i, j], [j, i]] -= weight
        for left, right in zip(row, row[1:]):
            pair = unit[left], unit[right]
            limits[pair] = max(limits.get(pair, 0.0), (left.width + right.width) / 2 + GAP)
    x = _least_squares_apart(Q, limits)
    for spot, i in unit.items():
        spot.x = float(x[i])


def _units(rows: list[list[Spot]]) -> dict[Spot, int]:
    "The unit of each spot. Within a band a module's passing line is one unit, unless the orders of the rows contradict that."
    loose = set()
    while True:
        unit, names = {}, {}
        for row in rows:
            for spot in row:
                lane = spot.module, _band_of(row)
                name = spot if spot.box or lane in loose else lane
                unit[spot] = names.setdefault(name, len(names))
        after = {i: set() for i in names.values()}
        for row in rows:
            for left, right in zip(row, row[1:]):
                after[unit[right]].add(unit[left])
        while done := [i for i in after if not after[i] & after.keys()]:
            for i in done:
                del after[i]
        if not after:
            return unit
        stuck = [name for name, i in names.items() if i in after and isinstance(name, tuple)]
        length = Counter(unit.values())
        loose.add(min(stuck, key=lambda name: (length[names[name]], name)))


def _least_squares_apart(Q: np.ndarray, limits: dict[tuple[int, int], float], sweeps: int = 1500) -> np.ndarray:
    "The x with the smallest x Q x / 2 such that x[j] - x[i] is at least limits[i, j]."
    A = np.zeros((len(limits), len(Q)))
    for k, (i, j) in enumerate(limits):
        A[k, i], A[k, j] = -1.0, 1.0
    room = np.array(list(limits.values()))
    inverse = np.linalg.inv(Q)
    G = A @ inverse @ A.T
    force = np.zeros(len(limits))
    for sweep in range(sweeps):
        for k in range(len(limits)):
            force[k] = max(0.0, force[k] + (room[k] - G[k] @ force) / G[k, k])
    return inverse @ A.T @ force


# The picture

def wrapped(text: str, width: float, size: float, lines: int) -> list[str]:
    """Text cut into lines of a width in inches; the last one ends in … if there is more."""
    from matplotlib.textpath import TextPath
    fits = lambda line: not line or TextPath((0, 0), line, size=size).get_extents().width / 72 <= width
    found = [""]
    words = text.split()
    for i, word in enumerate(words):
        longer = f"{found[-1]} {word}".strip()
        if fits(longer + (" …" if len(found) == lines and i + 1 < len(words) else "")):
            found[-1] = longer
        elif len(found) < lines:
            found.append(word)
        else:
            found[-1] = found[-1].rstrip(",:;") + " …"
            break
    return found


def draw(path: Path) -> None:
    """Write the picture as SVG, the same bytes on the same machine."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    from transformer_course.plots import PALETTE, use_style

    use_style()
    graph = reduced(imports())
    rows = spots(graph)
    order(rows)
    spread(rows)
    tops = _tops(rows)
    left = min(s.x - s.width / 2 for row in rows for s in row) - 0.25
    right = max(s.x + s.width / 2 for row in rows for s in row) + 0.25
    bottom = tops[-1] - HEIGHT - 0.3
    figure = plt.figure(figsize=(right - left, 0.1 - bottom), facecolor="white", layout="none")
    ax = figure.add_axes((0, 0, 1, 1), xlim=(left, right), ylim=(bottom, 0.1))
    ax.axis("off")
    colours = _colours(rows, [c for c in PALETTE if c not in ("#000000", "#F0E442")])
    _draw_bands(ax, rows, tops, left, right)
    for row in rows:
        for spot in row:
            _draw_lines(ax, spot, tops, colours)
    for row in rows:
        for spot in row:
            if spot.box:
                _draw_box(ax, spot, tops[spot.row], colours)
    path.parent.mkdir(exist_ok=True)
    about = {"Title": "The modules and their imports", "Description": facts()}
    with mpl.rc_context({"svg.hashsalt": "modules", "svg.fonttype": "path"}):
        figure.savefig(path, metadata=about | ({"Date": None} if path.suffix == ".svg" else {}))
    plt.close(figure)


def _band_of(row: list[Spot]) -> int:
    return next(band(spot.module) for spot in row if spot.box)


def _tops(rows: list[list[Spot]]) -> list[float]:
    "The upper edge of each row's boxes."
    tops, at, before = [], -0.42, None
    for row in rows:
        at -= BETWEEN if before not in (None, _band_of(row)) else 0.0
        tops.append(at)
        at, before = at - ROW, _band_of(row)
    return tops


def _colours(rows: list[list[Spot]], palette: list[str]) -> dict[str, str]:
    "A colour for each module's lines, seldom that of a neighbour; grey for a module that no other imports."
    beside = Counter(pair for row in rows for i, spot in enumerate(row) for other in row[max(i - 3, 0):i]
                     for pair in ((spot.module, other.module), (other.module, spot.module)))
    beside += Counter(pair for row in rows for spot in row for one in spot.above for other in spot.above
                      if one is not other for pair in ((one.module, other.module),))
    colours = {}
    for module in (spot.module for row in rows for spot in row if spot.box):
        clash = Counter()
        for other, colour in colours.items():
            clash[colour] += beside[module, other]
        used = Counter(colours.values())
        colours[module] = min(palette, key=lambda c: (clash[c], used[c], palette.index(c)))
    unused = {spot.module for row in rows for spot in row if spot.box and not spot.below}
    return colours | dict.fromkeys(unused, "#999999")


def _draw_bands(ax, rows: list[list[Spot]], tops: list[float], left: float, right: float) -> None:
    from matplotlib.patches import FancyBboxPatch
    for index, title in enumerate(BANDS):
        own = [top for row, top in zip(rows, tops) if _band_of(row) == index]
        if own:
            low, high = own[-1] - HEIGHT - 0.16, own[0] + 0.34
            ax.add_patch(FancyBboxPatch((left + 0.1, low), right - left - 0.2, high - low, facecolor="#F1F3F5",
                                        edgecolor="none", boxstyle="round,pad=0,rounding_size=0.12"))
            ax.text(left + 0.24, high - 0.09, title, size=11, weight="bold", color="#555555", va="top")


def _draw_box(ax, spot: Spot, top: float, colours: dict[str, str]) -> None:
    from matplotlib.patches import FancyBboxPatch, Rectangle
    x = spot.x - WIDTH / 2
    ax.add_patch(FancyBboxPatch((x, top - HEIGHT), WIDTH, HEIGHT, facecolor="white", edgecolor="#B8BEC4", linewidth=0.8,
                                boxstyle="round,pad=0,rounding_size=0.05", zorder=4))
    ax.add_patch(Rectangle((x, top - HEIGHT + 0.03), 0.055, HEIGHT - 0.06, facecolor=colours[spot.module], zorder=5))
    ax.text(x + 0.13, top - 0.08, spot.module, size=10.5, weight="bold", va="top", zorder=6)
    lines = wrapped(purpose(spot.module), WIDTH - 0.24, 8.8, 4)
    ax.text(x + 0.13, top - 0.3, "\n".join(lines), size=8.8, color="#333333", va="top", linespacing=1.12, zorder=6)


def _draw_lines(ax, spot: Spot, tops: list[float], colours: dict[str, str]) -> None:
    "The lines that leave a spot; those that enter a box stand side by side at its top."
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve
    foot = tops[spot.row] - HEIGHT
    style = {"edgecolor": colours[spot.module], "facecolor": "none", "linewidth": 1.5, "zorder": 3, "capstyle": "round"}
    if not spot.box:
        ax.add_patch(PathPatch(Curve([(spot.x, tops[spot.row]), (spot.x, foot)]), **style))
    for end in spot.below:
        x, y = _entrance(spot, end), tops[end.row]
        middle = (foot + y) / 2
        curve = Curve([(spot.x, foot), (spot.x, middle), (x, middle), (x, y)], [1, 4, 4, 4])
        ax.add_patch(PathPatch(curve, **style))
        if end.box:
            ax.plot([x], [y + 0.03], marker="v", markersize=4, color=colours[spot.module], zorder=6)


def _entrance(spot: Spot, end: Spot) -> float:
    "Where a line from one spot enters another."
    arriving = sorted(end.above, key=lambda s: s.x)
    step = min(0.22, (WIDTH - 0.3) / len(arriving))
    return end.x + (arriving.index(spot) - (len(arriving) - 1) / 2) * step if end.box else end.x


# What is stored

def stored_facts() -> str:
    """The text in the stored picture."""
    from xml.etree import ElementTree
    tree = ElementTree.parse(PICTURE)
    return next(e.text for e in tree.iter("{http://purl.org/dc/elements/1.1/}description"))


def stored_listing() -> str:
    """The table in CONTRIBUTING.

    Raises ValueError if its markers are not there.
    """
    before, start, rest = PROSE.read_text(encoding="utf-8").partition(START)
    table, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{PROSE.name} has no lines {START} and {END}")
    return table.strip()


def write() -> None:
    """Store the picture and the table."""
    draw(PICTURE)
    text, stored = PROSE.read_text(encoding="utf-8"), stored_listing()
    before, after = text.partition(START)[0], text.partition(END)[2]
    if listing() != stored:
        notebooks.write(PROSE, f"{before}{START}\n\n{listing()}\n\n{END}{after}")


def check() -> list[str]:
    """What is out of step with the code; nothing if all is well."""
    faults = [f"{PICTURE.name}: out of step with the modules"] if stored_facts() != facts() else []
    return faults + ([f"{PROSE.name}: out of step with the modules"] if stored_listing() != listing() else [])


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        raise SystemExit("\n".join(check()) or 0)
    write()
    print(f"wrote {PICTURE.relative_to(notebooks.ROOT)} and the table in {PROSE.name}")

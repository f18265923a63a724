"""Draw the package's rooms and their imports, and list its modules: CONTRIBUTING's picture and table, made from the code.

    python tools/module_map.py          write docs/modules.svg, and the table between the markers of CONTRIBUTING.md
    python tools/module_map.py check    exit 1 if either is not what the code gives

A room is a folder of the package; the modules beside the folders are the hall. An arrow runs from a room to one that it
imports from, and stands one floor above the highest of these. An import that comes along with another one is not drawn.
The package's own `__init__` is left out: it is the door, and may lead to any room.
"""
import ast
import re
import sys
import textwrap
from itertools import permutations
from pathlib import Path

import notebooks
import numpy as np

PICTURE, PROSE = notebooks.ROOT / "docs" / "modules.svg", notebooks.ROOT / "CONTRIBUTING.md"
START, END = "<!-- modules: made by tools/module_map.py -->", "<!-- modules: end -->"
ROOMS = {                                               # an import may only lead to a room that is named earlier
    "hall": "what everybody may use; imports nothing of ours",
    "data/hindi": "a grammar that writes English sentences with their Hindi",
    "data": "from files and grammars to batches of ids",
    "drawing": "plots, and the drawings of the lessons",
    "search": "from probabilities to sentences",
    "training": "from a model to a trained one",
    "checking": "exercises that answer",
    "models": "every model and its parts, in the order of the lessons",
    "published": "other people's files, and ours for them",
    "pipelines": "from a name to a thing that is trained, scored, saved",
    "cli": "the command line",
}


# What the code says

def modules(package: Path) -> dict[str, str]:
    """The source of each module of a package by its dotted name within it; a room's `__init__` keeps this name."""
    found = {path.relative_to(package).with_suffix("").parts: path for path in sorted(package.rglob("*.py"))}
    return {".".join(parts): path.read_text(encoding="utf-8") for parts, path in found.items()
            if parts[-1][0] != "_" or (parts[-1] == "__init__" and len(parts) > 1)}


def room(module: str) -> str:
    """The room of a module: its folders, or the hall."""
    return "/".join(module.split(".")[:-1]) or "hall"


def imported(module: str, known: dict[str, str], package: str) -> set[str]:
    """The modules that a module imports, anywhere in its code, by `import` or `from`, absolute or with dots."""
    here, found = [package, *module.split(".")], []
    for node in ast.walk(ast.parse(known[module])):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*here[:-node.level], *filter(None, [node.module])] if node.level else [node.module])
            found += [f"{base}.{alias.name}" for alias in node.names]
    own = [name.removeprefix(f"{package}.").split(".") for name in found if name.startswith(f"{package}.")]
    begun = [[".".join(parts[:end]) for end in range(len(parts), 0, -1)] for parts in own]         # data.text.PAD, data.text, data
    named = [[name for start in starts for name in (start, f"{start}.__init__") if name in known] for starts in begun]
    return {names[0] for names in named if names} - {module}


def graph(package: Path) -> dict[str, set[str]]:
    """The rooms, each with those that it imports from. Raises ValueError for an import upwards, and for an unknown room."""
    known, order = modules(package), list(ROOMS)
    if unknown := sorted(set(map(room, known)) - ROOMS.keys()):
        raise ValueError(f"ROOMS does not name {', '.join(unknown)}")
    found = {name: set() for name in order if name in map(room, known)}
    for module in known:
        for other in imported(module, known, package.name):
            if order.index(room(other)) > order.index(room(module)):
                raise ValueError(f"an import leads upwards: {module} imports {other}")
            found[room(module)] |= {room(other)} - {room(module)}
    return found


def floors(rooms: dict[str, set[str]]) -> dict[str, int]:
    """The floor of each room: how many arrows the longest way down has. Raises ValueError for a circle."""
    found = {}
    while left := [name for name in rooms if name not in found]:
        free = [name for name in left if rooms[name] <= found.keys()]
        if not free:
            raise ValueError(f"the imports run in a circle through {', '.join(sorted(left))}")
        found |= {name: max((found[other] + 1 for other in rooms[name]), default=0) for name in free}
    return found


def reduced(rooms: dict[str, set[str]]) -> dict[str, list[str]]:
    """The graph without arrows that say nothing new: to a room that another arrow leads to anyway."""
    below = {}
    for name in sorted(rooms, key=floors(rooms).get):
        below[name] = rooms[name].union(*(below[other] for other in rooms[name]))
    return {name: sorted(other for other in direct if not any(other in below[one] for one in direct))
            for name, direct in rooms.items()}


def listing(package: Path) -> str:
    """The table of CONTRIBUTING, in Markdown: rooms, modules, what each is for, its notebook."""
    rows, lines = [], ["| room | module | what it is for | notebook |", "|---|---|---|---|"]
    for module, source in modules(package).items():
        if purpose := ast.get_docstring(ast.parse(source)):       # an empty `__init__` is not listed
            path = re.search(r"^# AUTOGENERATED.*?(nbs/(?:\w+/)*(\w+?)_\w+\.ipynb)", source, re.MULTILINE)
            number, link = (path[2], f"[{path[2]}]({path[1]})") if path else ("", "by hand")
            rows.append((list(ROOMS).index(room(module)), number, module, purpose.splitlines()[0], link))
    for before, (place, _, module, purpose, link) in zip([(-1,), *sorted(rows)], sorted(rows)):
        title = "" if place == before[0] else f"**{list(ROOMS)[place]}**"
        lines.append(f"| {title} | `{module}` | {purpose} | {link} |")
    return "\n".join(lines)


def facts(package: Path) -> str:
    """What the picture shows, as text: it is stored in the picture, and compared with the code."""
    rooms = graph(package)
    level, arrows = floors(rooms), reduced(rooms)
    return "\n".join(f"{level[name]} {name}: {ROOMS[name]} -> {' '.join(arrows[name])}" for name in rooms)


# The picture

WIDTH, HEIGHT, FLOOR, LANE = 2.3, 0.78, 1.45, 0.5       # inches: a box, from floor to floor, the room of a passing arrow


def places(level: dict[str, int], arrows: dict[str, list[str]]) -> dict[tuple[str, int], float]:
    """The x of each room, and of the arrows to it on each floor that they pass: (room, floor) -> inches from the middle.

    For each order of the ground floor, the floors above get the order with the shortest arrows; the shortest of all wins.
    """
    top = {name: max((level[user] for user in arrows if name in arrows[user]), default=0) for name in level}
    rows = [[name for name in level if level[name] == floor or level[name] < floor < top[name]]
            for floor in range(max(level.values()) + 1)]

    def row(order, floor):
        widths = [WIDTH + 0.4 if level[name] == floor else LANE for name in order]
        return {(name, floor): sum(widths[:i]) + (widths[i] - sum(widths)) / 2 for i, name in enumerate(order)}

    def length(xs, below):
        return sum((x - below[other, floor - 1]) ** 2 for (name, floor), x in xs.items()
                   for other in (arrows[name] if level[name] == floor else [name]))

    def upwards(ground):
        found, total = row(ground, 0), 0.0
        for floor, names in list(enumerate(rows))[1:]:
            best = min((row(order, floor) for order in permutations(names)), key=lambda xs: length(xs, found))
            total, found = total + length(best, found), found | best
        return total, found
    return min(map(upwards, permutations(rows[0])), key=lambda pair: pair[0])[1]


def draw(package: Path, path: Path) -> None:
    """Write the picture as SVG."""
    from matplotlib import patches, rc_context
    from matplotlib.figure import Figure
    rooms = graph(package)
    level, arrows = floors(rooms), reduced(rooms)
    x = places(level, arrows)
    side, height = max(map(abs, x.values())) + WIDTH / 2 + 0.2, FLOOR * max(level.values()) + HEIGHT
    colours = dict(zip(rooms, ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#555555") * 2))
    figure = Figure(figsize=(2 * side, height + 0.3), facecolor="white", layout="none")
    ax = figure.add_axes((0, 0, 1, 1), xlim=(-side, side), ylim=(-0.15, height + 0.15))
    ax.axis("off")
    for name, floor in level.items():
        for other in arrows[name]:
            _draw_arrow(ax, [x[name, floor], *(x[other, f] for f in range(floor - 1, level[other] - 1, -1))], floor, colours[other])
        left, roof = x[name, floor] - WIDTH / 2, FLOOR * floor + HEIGHT
        ax.add_patch(patches.FancyBboxPatch((left, roof - HEIGHT), WIDTH, HEIGHT, facecolor="white", edgecolor=colours[name],
                                            linewidth=1.8, boxstyle="round,pad=0,rounding_size=0.08", zorder=4))
        ax.text(left + 0.1, roof - 0.09, name, size=11, weight="bold", va="top", zorder=5)
        ax.text(left + 0.1, roof - 0.32, textwrap.fill(ROOMS[name], 32), size=8.8, color="#333333", va="top", zorder=5)
    with rc_context({"svg.hashsalt": "modules", "svg.fonttype": "path"}):
        figure.savefig(path, metadata={"Title": "The rooms and their imports", "Description": facts(package), "Date": None})


def _draw_arrow(ax, xs: list[float], floor: int, colour: str) -> None:
    "From the foot of a room on a floor, through a place on each floor below, to another room's roof."
    part, across, down = np.linspace(0.0, 1.0, 30), [], []
    for foot, start, end in zip(FLOOR * np.arange(floor, 0, -1), xs, xs[1:]):
        across += [*(start + (end - start) * part ** 2 * (3 - 2 * part))]
        down += [*(foot - (FLOOR - HEIGHT) * part)]
    ax.plot(across, down, color=colour, linewidth=1.6, zorder=2)
    ax.plot(across[-1], down[-1] + 0.05, marker="v", markersize=6, color=colour, zorder=6)


def check() -> list[str]:
    """What is out of step with the code; nothing if all is well."""
    from xml.etree import ElementTree
    shown = next(e.text for e in ElementTree.parse(PICTURE).iter("{http://purl.org/dc/elements/1.1/}description"))
    table = PROSE.read_text(encoding="utf-8").partition(START)[2].partition(END)[0].strip()
    pairs = ((PICTURE, shown, facts(notebooks.LIB)), (PROSE, table, listing(notebooks.LIB)))
    return [f"{path.name}: out of step with the modules" for path, stored, made in pairs if stored != made]


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        raise SystemExit("\n".join(check()) or 0)
    draw(notebooks.LIB, PICTURE)
    before, _, rest = PROSE.read_text(encoding="utf-8").partition(START)
    notebooks.write(PROSE, f"{before}{START}\n\n{listing(notebooks.LIB)}\n\n{END}{rest.partition(END)[2]}")

"""The last touch on finished pages: pictures know their size, so that nothing moves when they come; wide tables scroll.

Plain Python.
"""
import re
import shutil
import struct
from html import unescape
from pathlib import Path
from urllib.parse import unquote

IMAGE = re.compile(r"<img\b[^>]*>")
UNITS = {"": 1, "px": 1, "pt": 4 / 3, "in": 96, "cm": 96 / 2.54, "mm": 96 / 25.4}


def size(path: Path) -> tuple[int, int] | None:
    """Width and height of a PNG or an SVG in the pixels of a page; None if they are not to be found."""
    start = path.read_bytes()[:4000]
    if start.startswith(b"\x89PNG"):
        return struct.unpack(">II", start[16:24])
    tag = re.search(r"<svg\b[^>]*>", start.decode("utf-8", "replace"))
    given = [re.search(rf'\b{name}="([\d.]+)([a-z]*)"', tag[0]) for name in ("width", "height")] if tag else [None]
    if not all(given) or any(one[2] not in UNITS for one in given):
        return None
    return tuple(round(float(one[1]) * UNITS[one[2]]) for one in given)


def with_sizes(html: str, folder: Path) -> str:
    """A page whose pictures have width and height; `folder` is where the page lies."""
    def sized(found: re.Match) -> str:
        source = re.search(r'\bsrc="([^"]+)"', found[0])
        if not source or "://" in source[1] or source[1].startswith("data:") or re.search(r"\bheight=", found[0]):
            return found[0]
        path = folder / unquote(unescape(source[1])).partition("?")[0]
        measured = size(path) if path.exists() else None
        if measured is None:
            return found[0]
        return found[0].replace("<img", f'<img width="{measured[0]}" height="{measured[1]}"', 1)
    return IMAGE.sub(sized, html)


def with_names(html: str) -> str:
    """A page whose buttons, scrolling boxes and drop-downs can be used by keyboard and named by a screen reader."""
    html = re.sub(r'(<button(?=[^>]*search-button-field)[^>]*?) aria-label="[^"]*"', r"\1", html)      # it says "Search" itself
    html = re.sub(r'(<summary) aria-label="Toggle hidden content"', r"\1", html)                       # "Show the imports"
    html = re.sub(r"(<a [^>]*>([^<]+)</a>\s*<details[^>]*>\s*<summary)>", r'\1 aria-label="Pages below \2">', html)
    html = re.sub(r'<button(?![^>]*aria-label)(?![^>]*search-button-field)([^>]*\btitle="([^"]*)")', r'<button aria-label="\2"\1', html)
    html = re.sub(r"<pre(?![^>]*tabindex)", '<pre tabindex="0"', html)
    return re.sub(r'<div class="pst-scrollable-table-container"(?![^>]*tabindex)',
                  '<div class="pst-scrollable-table-container" tabindex="0"', html)


def pages(folder: Path) -> None:
    """Finish all pages below a folder, and take away what no page needs: sources, and templates of the theme."""
    shutil.rmtree(folder / "_sources", ignore_errors=True)
    shutil.rmtree(folder / "jupyter_execute", ignore_errors=True)
    for template in folder.glob("_static/*webpack-macros.html"):
        template.unlink()
    (folder / "_static" / "katex.min.js").unlink(missing_ok=True)           # mathematics is set already
    for path in sorted(folder.rglob("*.html")):
        before = path.read_text(encoding="utf-8")
        after = with_names(with_sizes(before, path.parent))
        if after != before:
            path.write_text(after, encoding="utf-8")

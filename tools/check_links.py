"""Follow every link inside a built site: pages, anchors, pictures, styles and scripts.

    python tools/check_links.py build/site

Exit code 1, and a line for each link that leads nowhere, if there is one. Links to other hosts are counted, and not
followed: no network is needed. A page without a title or a language, and a picture without words, are told, too.
"""
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

TARGETS = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src", "iframe": "src"}


@dataclass
class Page(HTMLParser):
    """What a page holds: its anchors, its links, and what it lacks."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    title: bool = False

    def __post_init__(self):
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        self.title = self.title or tag == "title"
        if tag == "html" and not given.get("lang"):
            self.faults.append("the page does not say its language")
        if tag == "img" and given.get("alt") is None:
            self.faults.append(f"a picture without words: {given.get('src')}")
        if (target := given.get(TARGETS.get(tag, ""))) is not None:
            self.links.append(target)


def read(path: Path) -> Page:
    """A page of the site."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    if not page.title:
        page.faults.append("the page has no title")
    return page


def faults(folder: Path) -> tuple[list[str], int, int]:
    """What is wrong in a site, and how many links were followed and how many lead to other hosts."""
    pages = {path.resolve(): read(path) for path in sorted(folder.rglob("*.html"))}
    found, followed, outside = [], 0, 0
    for path, page in pages.items():
        name = path.relative_to(folder.resolve()).as_posix()
        found += [f"{name}: {fault}" for fault in page.faults]
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                outside += 1
                continue
            followed += 1
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            if not there.exists():
                found.append(f"{name}: {link} leads nowhere")
            elif parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].anchors:
                found.append(f"{name}: {link} has no such anchor")
    return found, followed, outside


def main(folder: Path) -> int:
    if not any(folder.rglob("*.html")):
        print(f"{folder} holds no page: make site", file=sys.stderr)
        return 2
    found, followed, outside = faults(folder)
    print("\n".join(found) if found else f"{followed:,} links inside the site lead somewhere; {outside:,} to other hosts were not followed")
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))

"""Look at pages of a built site in headless Chromium: accessibility by axe, layout shift, and the width of a phone.

    npm install axe-core
    python tools/accessibility.py build/site node_modules/axe-core/axe.min.js [--slides build/slides] [--screenshots FOLDER] [PAGE ...]

Each page is opened light and dark at 1,280 pixels' width, and light at 390. Slides have one paper, and are looked at one after
another at 1,280. Exit code 1 if axe has a finding of WCAG 2.1 A or AA, if a page moves by more than 0.01 while it loads, if it is
wider than its window, or if it asks another host for anything.
"""
import argparse
import contextlib
import functools
import http.server
import shutil
import sys
import threading
from pathlib import Path

PAGES = ("index.html", "lessons/00_warm_up.html", "lessons/14_additive.html", "lessons/20_attention.html",
         "lessons/21_positions.html", "lessons/25_translation.html", "exercises/ex20_attention.html",
         "library/index.html", "library/models/05_functional.html", "api/index.html", "api/models.attention.html",
         "api/models.transformer.html", "words.html", "references.html", "results.html", "search.html")
SLIDES = ("14_additive.html", "20_attention.html", "25_translation.html")
WAYS = {"light": ("light", 1280, 900), "dark": ("dark", 1280, 900), "phone": ("light", 390, 844), "slides": ("light", 1280, 720)}
SHIFT = """window.shifted = 0; new PerformanceObserver(list => { for (const entry of list.getEntries())
           if (!entry.hadRecentInput) window.shifted += entry.value }).observe({type: 'layout-shift', buffered: true})"""
RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(folder: Path):
    """The site at an address of this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def look(page, address: str, axe: str, ready: str = "body") -> list[str]:
    """What is wrong with one page as it is shown, as soon as it has an element `ready`."""
    asked = []
    listen = lambda request: asked.append(request.url)
    page.on("request", listen)
    page.goto(address, wait_until="load")
    page.wait_for_selector(ready)
    page.wait_for_timeout(300)
    page.remove_listener("request", listen)
    found = [f"asks another host: {url}" for url in asked if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))]
    moved, wide, width = page.evaluate("[window.shifted, document.documentElement.scrollWidth, window.innerWidth]")
    if moved > 0.01:
        found.append(f"moves by {moved:.3f} while it loads")
    if wide > width:
        found.append(f"is {wide} pixels wide in a window of {width}")
    page.evaluate(axe)
    return found + findings(page)


def findings(page) -> list[str]:
    """What axe, which the page has been given, says of the page as it is now."""
    found = []
    for finding in page.evaluate("rules => axe.run(document, rules)", RULES)["violations"]:
        first = finding["nodes"][0]
        found.append(f"{finding['id']} ({len(finding['nodes'])}): {finding['help']}: {first['html'][:160]} at {first['target']}")
    return found


def look_through(page, address: str, axe: str) -> list[str]:
    """What is wrong with the slides of one lesson; each is looked at while it is the one that is shown."""
    found = look(page, address, axe, ready=".reveal.ready")
    page.add_style_tag(content=".reveal * {transition: none !important}")
    for number in range(2, page.locator(".slides > section").count() + 1):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(100)
        found += [f"slide {number}: {fault}" for fault in findings(page)]
    return found


def rounds(site: Path, slides: Path | None, pages) -> list[tuple]:
    """What to look at, and how: (folder, pages, a name of WAYS, function that looks)."""
    found = [(site, pages, way, look) for way in WAYS if way != "slides"]
    return found + [(slides, SLIDES, "slides", look_through)] if slides else found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("site", type=Path)
    options.add_argument("axe", type=Path)
    options.add_argument("--slides", type=Path)
    options.add_argument("--screenshots", type=Path)
    options.add_argument("pages", nargs="*", default=PAGES)
    given = options.parse_intermixed_args()
    from playwright.sync_api import sync_playwright
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
    axe, problems, looked = given.axe.read_text(encoding="utf-8"), 0, 0
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for folder, names, way, looks in rounds(given.site, given.slides, given.pages):
            theme, width, height = WAYS[way]
            context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce")
            context.add_init_script(f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}'); {SHIFT}")
            page = context.new_page()
            with served(folder) as address:
                for name in names:
                    looked += 1
                    for fault in looks(page, f"{address}/{name}", axe):
                        problems += 1
                        print(f"{name}, {way}: {fault}")
                    if given.screenshots:
                        given.screenshots.mkdir(parents=True, exist_ok=True)
                        page.screenshot(path=given.screenshots / f"{name.removesuffix('.html').replace('/', '-')}-{way}.png")
            context.close()
        chromium.close()
    print(f"{problems} findings in {looked} looks", file=sys.stderr)
    return int(problems > 0)


if __name__ == "__main__":
    raise SystemExit(main())

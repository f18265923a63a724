"""docs/licences.md: what the library needs at run time, directly or not, and under which licences.

    python tools/licences.py          # from the packages that are installed beside this Python
"""
import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "licences.md"
HEAD = """# Licences of the dependencies

The library's code is under [Apache-2.0](../LICENSE), and the course's prose and pictures are under [CC BY 4.0](../LICENSE-PROSE).
The packages below are not part of it: pip installs them beside it. `tools/licences.py` made this table from what each package says
of itself, with the versions of constraints.txt, on Linux with PyTorch's CPU build. A build for GPUs brings NVIDIA's libraries,
which have a licence of their own.

| package | version | licence | needed by |
| --- | --- | --- | --- |
"""
SHORT = {"Apache 2.0": "Apache-2.0", "Apache License 2.0": "Apache-2.0", "Apache Software License": "Apache-2.0", "Apache": "Apache-2.0",
         "MIT License": "MIT", "BSD License": "BSD-3-Clause", "BSD": "BSD-3-Clause", "Python Software Foundation License": "PSF-2.0"}


def name_of(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def needs(package: str) -> list[str]:
    """What a package requires without extras, in this environment."""
    from packaging.requirements import Requirement

    asked = (Requirement(line) for line in distribution(package).requires or [])
    return [name_of(r.name) for r in asked if r.marker is None or r.marker.evaluate({"extra": ""})]


def all_needed(package: str) -> dict[str, str]:
    """Every package that is needed, with the one that first asks for it, direct ones first."""
    found, waiting = {}, [(name, package) for name in needs(package)]
    while waiting:
        name, by = waiting.pop(0)
        if name in found:
            continue
        try:
            waiting += [(more, name) for more in needs(name)]
        except PackageNotFoundError:            # a marker that this environment does not meet in full
            continue
        found[name] = by
    return found


def licence(package: str) -> str:
    """The licence as an expression of SPDX where the package gives one, else by its classifier."""
    says = distribution(package).metadata
    if says.get("License-Expression"):
        return says["License-Expression"]
    classes = [c.rpartition(":: ")[2] for c in says.get_all("Classifier") or [] if c.startswith("License ::") and c.count("::") > 1]
    text = classes[0] if classes else (says.get("License") or "").split("\n")[0].strip()
    return SHORT.get(text, text) or "see the package"


def rows(package: str = "transformer-course") -> list[str]:
    return [f"| {name} | {distribution(name).version.partition('+')[0]} | {licence(name)} | {by} |" for name, by in all_needed(package).items()]


if __name__ == "__main__":
    PAGE.write_text(HEAD + "\n".join(rows()) + "\n", encoding="utf-8")
    print(PAGE.relative_to(ROOT))

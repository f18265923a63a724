"""The oldest versions that settings.ini allows, as a constraints file: python tools/oldest.py > oldest.txt

    pip install -c oldest.txt transformer-course        # installs the library with the oldest of each direct dependency

A range that nobody has tried is a guess; .github/workflows/nightly.yml tries both its ends.
"""
import re
from configparser import ConfigParser
from pathlib import Path

SETTINGS = Path(__file__).resolve().parents[1] / "settings.ini"


def oldest(requirements: str) -> list[str]:
    """`torch>=2.4 rich>=13` -> ["torch==2.4", "rich==13"]. Raises ValueError for a requirement without a lower end."""
    found = []
    for requirement in requirements.split():
        name, _, version = requirement.partition(">=")
        if not re.fullmatch(r"[\d.]+", version):
            raise ValueError(f"settings.ini: {requirement!r} names no oldest version")
        found.append(f"{name}=={version}")
    return found


if __name__ == "__main__":
    config = ConfigParser(delimiters=["="], interpolation=None)
    config.read(SETTINGS, encoding="utf-8")
    print(*oldest(config["DEFAULT"]["requirements"]), sep="\n")

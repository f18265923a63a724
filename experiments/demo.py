"""What `transformer-course demo` prints, as a record: three translators, trained for the same time.

    python experiments/demo.py

The budget is time, so nothing else should run meanwhile: some four minutes on two cores. Writes results/demo.json and,
for README.md, results/demo_alignment.png.
"""
import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from records import RESULTS, facts, write


def main() -> None:
    with TemporaryDirectory() as folder:
        command = Path(sys.executable).with_name("transformer-course")
        subprocess.run([command, "demo", "--out", folder], check=True)
        found = json.loads((Path(folder) / "scoreboard.json").read_text(encoding="utf-8"))
        write("demo", found | {name: value for name, value in facts().items() if name != "hardware"})
        shutil.copy(Path(folder) / "alignment.png", RESULTS / "demo_alignment.png")


if __name__ == "__main__":
    main()

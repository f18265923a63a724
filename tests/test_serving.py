"""The example server: eight clients get what Python gives, and a bad request costs nobody an answer."""
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from transformer_course.data.corpora import Corpus
from transformer_course.pipelines.searching import SearchOptions
from transformer_course.pipelines.translator import Translator

PAIRS = [(f"{a} {verb} {b}", f"{b} {a} {verb}") for a in ("jack", "jill", "tom") for b in ("jack", "jill", "tom") for verb in ("sees", "likes")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("served") / "model"
    Translator.train(Corpus.from_pairs(PAIRS), preset="micro", steps=30, device="cpu", precision="highest", folder=place, progress=False)
    return place


@pytest.fixture(scope="module")
def address(folder, root):
    sys.path.insert(0, str(root / "examples"))
    try:
        import serve
    finally:
        sys.path.remove(str(root / "examples"))
    with serve.server(str(folder), port=0) as running:
        running.RequestHandlerClass.log_message = lambda *words: None
        Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def ask(address, body, path="/translate", kind="application/json"):
    "Status and content of an answer."
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urlopen(Request(address + path, content, {"Content-Type": kind}), timeout=60) as reply:
            return reply.status, json.load(reply)
    except HTTPError as problem:
        return problem.code, json.load(problem)


def test_eight_clients_get_what_python_gives(address, folder):
    translator, sentences = Translator.from_pretrained(folder), [source for source, target in PAIRS]
    options = {"beam_size": 3, "num_return_sequences": 2}
    expected = [[one.text for one in some] for some in translator.nbest(sentences, SearchOptions(**options))]
    with ThreadPoolExecutor(8) as clients:
        replies = list(clients.map(lambda _: ask(address, {"sentences": sentences, **options}), range(8)))
    for status, told in replies:
        assert status == 200 and [[one["text"] for one in answer["texts"]] for answer in told["answers"]] == expected
        assert all(one["score"] < 0 for answer in told["answers"] for one in answer["texts"])


def test_a_bad_sentence_costs_no_good_one_and_unknown_words_are_told(address):
    status, told = ask(address, {"sentences": ["jack sees zed", " ", "tom " * 600, 7, "tom sees jill"]})
    assert status == 200 and told["answers"][0]["unknown"] == ["zed"] and told["answers"][4]["texts"][0]["text"]
    for number, part in ((1, "sentence 2 is empty"), (2, "sentence 3 has 601 tokens"), (3, "sentence 4: ")):
        assert part in told["answers"][number]["error"]


@pytest.mark.parametrize("body, status, part", [
    (b"{", 400, "not JSON"), (b"[" * 100_000, 400, "not JSON"), (b"\xff", 400, "not JSON"), ([], 400, "give an object"),
    ({}, 400, "sentences must be"), ({"sentences": "jack"}, 400, "sentences must be"), ({"sentences": []}, 400, "sentences must be"),
    ({"sentences": ["a"] * 257}, 400, "1 to 256"), ({"sentences": ["a"], "beam": 3}, 400, "give an object"),
    ({"sentences": ["a"], "beam_size": 10**6}, 400, "beam_size=1000000"), ({"sentences": ["a"], "beam_size": "x"}, 400, "beam_size='x'"),
    (b" " * 1_000_001, 413, "1000000 bytes"),
])
def test_a_request_that_makes_no_sense_is_told_why(address, body, status, part):
    code, told = ask(address, body)
    assert code == status and part in told["error"]


def test_other_paths_and_kinds_and_the_page(address):
    assert ask(address, {"sentences": ["a"]}, "/other")[0] == 404
    assert ask(address, {"sentences": ["a"]}, kind="text/plain")[0] == 415, "a page of another site can send this without asking"
    with urlopen(address, timeout=30) as reply:
        page = reply.read().decode()
    assert reply.headers["Content-Type"].startswith("text/html") and '<label for="text">' in page and 'fetch("translate"' in page
    assert "innerHTML" not in page, "a translation is text, not markup"
    with pytest.raises(HTTPError):
        urlopen(address + "/etc/passwd", timeout=30)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_the_script_starts_says_where_and_ends_with_ctrl_c(folder, root):
    with subprocess.Popen([sys.executable, root / "examples" / "serve.py", folder, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}) as running:
        address = running.stdout.readline().split()[0]
        assert ask(address, {"sentences": ["jack sees jill"]})[0] == 200
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert out == "stopped\n" and running.returncode == 0 and "Traceback" not in err

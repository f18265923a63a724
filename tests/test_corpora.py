"""Corpora under bad conditions: damaged, missing and unreadable files, no network; and the real data where it is at hand."""
import gzip
import hashlib
import http.server
import io
import os
import socket
import threading
import zipfile

import pytest
from hypothesis import given, strategies as st

from transformer_course.data import availability, catalogue, corpora, downloads
from transformer_course.data.corpora import Pair
from transformer_course.data.downloads import DataError

REAL = os.environ.get("TRANSFORMER_COURSE_DATA")
real = pytest.mark.skipif(not REAL, reason="real data: set TRANSFORMER_COURSE_DATA to a folder that holds it")

LINES = {"en": ["A dog runs .", "Two men sing .", "A girl reads ."],
         "de": ["Ein Hund läuft .", "Zwei Männer singen .", "Ein Mädchen liest ."]}
PLACES = ["folder", "cache"]


def packed(lines):
    return gzip.compress("".join(line + "\n" for line in lines).encode(), mtime=0)


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No data folder, an empty cache, and no network."""
    def refuse(*args, **kwargs):
        raise socket.gaierror("the network is down")
    monkeypatch.delenv("TRANSFORMER_COURSE_DATA", raising=False)
    monkeypatch.setenv("TRANSFORMER_COURSE_CACHE", str(tmp_path / "cache"))
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    return tmp_path


@pytest.fixture(params=PLACES)
def shelf(request, nowhere, monkeypatch):
    """A small Multi30k en-de in the data folder or in the cache, pinned by its own digests."""
    root = nowhere / request.param
    (root / "multi30k").mkdir(parents=True)
    if request.param == "folder":
        monkeypatch.setenv("TRANSFORMER_COURSE_DATA", str(root))
    for stem in ("train", "val", "test_2016_flickr"):
        for language, lines in LINES.items():
            put(monkeypatch, root, f"multi30k/{stem}.{language}.gz", packed(lines))
    return root


def put(monkeypatch, root, path, content, url="http://localhost:9/nothing"):
    """Write a file and pin its digest."""
    (root / path).write_bytes(content)
    monkeypatch.setitem(downloads.FILES, path, downloads.Remote(path, url, hashlib.sha256(content).hexdigest()))


def complaint(action, *args, error=DataError, **kwargs):
    """The one-line message of the error that an action raises."""
    with pytest.raises(error) as caught:
        action(*args, **kwargs)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700
    assert caught.value.__cause__ is None and (caught.value.__context__ is None or caught.value.__suppress_context__)
    return str(caught.value)


# a sound data set

def test_pairs_come_in_order_from_folder_and_cache(shelf):
    corpus = corpora.load("multi30k", "en-de")
    assert [(p.source, p.target) for p in corpus["train"]] == list(zip(LINES["en"], LINES["de"]))
    assert corpora.load("multi30k", "de-en")["valid"] == corpus.reversed()["valid"]
    assert corpus.reversed()["valid"][1] == Pair(LINES["de"][1], LINES["en"][1])
    assert "Elliott" in corpus.summary() and "non-commercial" in corpus.summary() and "train 3" in corpus.summary()


def test_the_folder_argument_comes_before_the_environment(shelf, tmp_path, monkeypatch):
    other = tmp_path / "other"
    (other / "multi30k").mkdir(parents=True)
    for language in LINES:
        put(monkeypatch, other, f"multi30k/val.{language}.gz", packed(LINES[language][:2]))
    assert len(corpora.load("multi30k", "en-de", folder=other)["valid"]) == 2


def test_listing_and_asking_read_nothing(nowhere):
    corpus = corpora.load("multi30k", "en-de")
    assert "test_2018_flickr" in corpus.splits and "multi30k en-de" in repr(corpus) and corpus.summary()
    assert list(corpora.load("multi30k", "cs-en").splits) == ["train", "valid", "test_2016_flickr", "test_2018_flickr"]
    assert len(catalogue.CATALOGUE["multi30k"].pairs) == 12


# damage, in the folder and in the cache

@pytest.mark.parametrize("damage", [lambda b: b[:-5], lambda b: b[:20] + bytes([b[20] ^ 1]) + b[21:], lambda b: b""],
                         ids=["truncated", "one bit", "empty"])
def test_damaged_files_are_named_with_both_digests_and_kept(shelf, damage):
    place = shelf / "multi30k" / "train.de.gz"
    wanted, bad = hashlib.sha256(place.read_bytes()).hexdigest(), damage(place.read_bytes())
    place.write_bytes(bad)
    said = complaint(corpora.load("multi30k", "en-de").__getitem__, "train")
    assert str(place) in said and wanted in said and hashlib.sha256(bad).hexdigest() in said and "move it away" in said
    assert place.read_bytes() == bad
    assert len(corpora.load("multi30k", "en-de")["valid"]) == 3           # the others are still good
    assert availability.verify("multi30k")["multi30k/train.de.gz"] == said


def test_a_file_that_is_a_folder(shelf):
    place = shelf / "multi30k" / "train.de.gz"
    place.unlink()
    place.mkdir()
    assert str(place) in complaint(corpora.load("multi30k", "en-de").__getitem__, "train")


def test_unequal_line_counts(shelf, monkeypatch):
    put(monkeypatch, shelf, "multi30k/train.de.gz", packed(LINES["de"][:2]))
    said = complaint(corpora.load("multi30k", "en-de").__getitem__, "train")
    assert "3 lines" in said and "2" in said and "train.de.gz" in said


def test_invalid_utf8(shelf, monkeypatch):
    put(monkeypatch, shelf, "multi30k/train.de.gz", gzip.compress("Mädchen\n".encode("latin-1")))
    said = complaint(corpora.load("multi30k", "en-de").__getitem__, "train")
    assert "not UTF-8" in said and "byte 1 is 0xe4" in said


def test_an_empty_line(shelf, monkeypatch):
    put(monkeypatch, shelf, "multi30k/train.de.gz", packed(LINES["de"][:1] + [""] + LINES["de"][2:]))
    assert "line 2 is empty" in complaint(corpora.load("multi30k", "en-de").__getitem__, "train")


def test_not_gzip_although_it_says_so(tmp_path):
    (tmp_path / "x.gz").write_bytes(b"plain text")
    assert "x.gz" in complaint(downloads.read_text, tmp_path / "x.gz")
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"some text")[:-9] + b"\xff" * 9)
    assert "x.gz" in complaint(downloads.read_text, tmp_path / "x.gz")


def test_a_byte_order_mark_is_no_letter(tmp_path):
    (tmp_path / "x").write_bytes("\ufeffdog\r\ncat".encode())
    assert downloads.read_lines(tmp_path / "x") == ["dog", "cat"]


def test_a_damaged_archive(nowhere, monkeypatch):
    root = nowhere / "cache"
    (root / "sentence_polarity").mkdir(parents=True)
    put(monkeypatch, root, "sentence_polarity/sentence_polarity.zip", b"PK, but no archive")
    assert "sentence_polarity.zip" in complaint(corpora.load("sentence-polarity").__getitem__, "test")


def test_polarity_is_split_by_digest(nowhere, monkeypatch):
    root = nowhere / "cache"
    (root / "sentence_polarity").mkdir(parents=True)
    packet = io.BytesIO()
    with zipfile.ZipFile(packet, "w") as archive:
        for ending in ("neg", "pos"):
            archive.writestr(f"sentence_polarity/rt-polarity.{ending}", "".join(f"{ending} {n} \n" for n in range(20)))
    put(monkeypatch, root, "sentence_polarity/sentence_polarity.zip", packet.getvalue())
    corpus = corpora.load("sentence-polarity")
    assert [len(corpus[s]) for s in ("train", "valid", "test")] == [32, 4, 4]
    assert corpus.labels == ("negative", "positive")
    for label, ending in enumerate(("neg", "pos")):
        ordered = corpora.by_digest([f"{ending} {n}" for n in reversed(range(20))])
        got = [item.text for s in ("test", "valid", "train") for item in corpus[s] if item.label == label]
        assert got == ordered and got != sorted(got)


def test_speeches_are_cut_in_order(nowhere, monkeypatch):
    root = nowhere / "cache"
    (root / "tinyshakespeare").mkdir(parents=True)
    put(monkeypatch, root, "tinyshakespeare/input.txt", "\n\n".join(f"SPEAKER {n}:\nO!" for n in range(40)).encode() + b"\n")
    corpus = corpora.load("tinyshakespeare")
    assert [len(corpus[s]) for s in corpus.splits] == [36, 2, 2]
    assert corpus["test"][0].text == "SPEAKER 38:\nO!"


# no network

def test_no_network_is_one_line_that_says_what_to_do(nowhere):
    for name, split in (("multi30k", "train"), ("tinyshakespeare", "train"), ("sentence-polarity", "valid")):
        said = complaint(corpora.load(name).__getitem__, split)
        assert "TRANSFORMER_COURSE_DATA" in said and catalogue.CATALOGUE[name].files[0].split("/")[0] in said
    assert not [p for p in nowhere.rglob("*") if p.is_file()]
    assert "could not be fetched" in complaint(availability.fetch, "multi30k")
    assert {a.where for a in availability.available()} == {"shipped", "to be downloaded"}
    assert set(availability.verify("multi30k").values()) == {"not here"}


def test_what_is_shipped_needs_no_network(nowhere):
    for name in ("micro-reviews", "micro-text", "paradigms"):
        assert len(corpora.load(name)["train"]) > 0 and availability.fetch(name) == []


def test_a_data_folder_that_is_none(nowhere, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_COURSE_DATA", str(nowhere / "missing"))
    assert "TRANSFORMER_COURSE_DATA" in complaint(corpora.load, "multi30k") and corpora.load("micro-reviews")
    assert "missing2" in complaint(corpora.load, "multi30k", folder=nowhere / "missing2")


# a network that lies or breaks off

@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server on this machine whose answer each test sets: (status, announced length, body)."""
    answer = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, length, body = answer["now"]
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("TRANSFORMER_COURSE_DATA", raising=False)
    monkeypatch.setenv("TRANSFORMER_COURSE_CACHE", str(tmp_path / "cache"))
    good = "\n\n".join("ABCDEFGHIJ" * 3).encode()
    path = "tinyshakespeare/input.txt"
    monkeypatch.setitem(downloads.FILES, path, downloads.Remote(
        path, f"http://127.0.0.1:{web.server_port}/input.txt", hashlib.sha256(good).hexdigest()))
    yield answer, good
    web.shutdown()
    web.server_close()


def test_a_good_download_is_cached(server, tmp_path):
    answer, good = server
    answer["now"] = (200, len(good), good)
    assert len(corpora.load("tinyshakespeare")["train"]) == 27
    answer["now"] = (500, 0, b"")
    assert len(corpora.load("tinyshakespeare")["test"]) == 2                  # read from the cache
    (place,) = availability.fetch("tinyshakespeare")
    assert place.read_bytes() == good and tmp_path in place.parents
    assert {a.where for a in availability.available() if a.name == "tinyshakespeare"} == {"cached"}
    assert availability.verify("tinyshakespeare") == {"tinyshakespeare/input.txt": "ok"}


@pytest.mark.parametrize("spoil", [lambda g: (200, len(g), g[:-1] + b"?"), lambda g: (200, len(g), g[:10]),
                                   lambda g: (200, len(g) - 8, g[:-8]), lambda g: (404, 0, b"")],
                         ids=["altered", "broken off", "short", "no such page"])
def test_a_bad_download_leaves_nothing(server, tmp_path, spoil):
    answer, good = server
    answer["now"] = spoil(good)
    assert "tinyshakespeare/input.txt" in complaint(corpora.load("tinyshakespeare").__getitem__, "train")
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


# names

@pytest.mark.parametrize("args, words", [
    (("multi30",), ["'multi30'", "micro-hindi", "did you mean 'multi30k'"]),
    (("",), ["''", "tinyshakespeare"]),
    (("multi30k", "en-cz"), ["'en-cz'", "en-cs", "de-fr"]),
    (("multi30k", "en-en"), ["'en-en'", "fr-de"]),
    (("micro-hindi", "en-de"), ["'en-de'", "en-hi, hi-en"]),
    (("tinyshakespeare", "en-de"), ["'en-de'", "no pairs"]),
])
def test_unknown_names_are_named_with_what_is_allowed(args, words):
    said = complaint(corpora.load, *args, error=ValueError)
    assert all(word in said for word in words)


def test_unknown_splits(shelf):
    corpus = corpora.load("multi30k", "en-cs")
    said = complaint(corpus.__getitem__, "test_2017_flickr", error=ValueError)
    assert "'test_2017_flickr'" in said and "train, valid, test_2016_flickr, test_2018_flickr" in said
    assert "not 'pairs'" in complaint(corpora.load("micro-reviews").reversed, error=ValueError)
    assert "'nothing'" in complaint(availability.fetch, "nothing", error=ValueError)
    assert "'nothing'" in complaint(availability.verify, "nothing", error=ValueError)


# what holds for any pair

@given(st.text(), st.text(), st.one_of(st.none(), st.frozensets(st.tuples(st.integers(0, 9), st.integers(0, 6)))))
def test_turning_a_pair_twice_changes_nothing(source, target, links):
    pair = Pair(source, target, links)
    assert pair.reversed().reversed() == pair and hash(pair) == hash(pair.reversed().reversed())
    assert (pair.reversed().links is None) == (links is None)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\ufeff"), min_size=1)
                .map(str.strip).filter(bool), min_size=1))
def test_lines_survive_a_file(tmp_path_factory, lines):
    place = tmp_path_factory.mktemp("lines") / "x.gz"
    place.write_bytes(packed(lines))
    assert downloads.read_lines(place) == lines


@pytest.mark.parametrize("pair", catalogue.CATALOGUE["paradigms"].pairs)
def test_paradigms_in_every_direction(pair):
    source, target = pair.split("-")
    corpus = corpora.load("paradigms", pair)
    assert corpus["train"] == corpora.load("paradigms", f"{target}-{source}").reversed()["train"]
    assert len(corpus["given"]) == 6 and len(corpus["asked"]) == 4


def test_shipped_data_is_what_it_was():
    assert all(state == "ok" for name in availability.SHIPPED for state in availability.verify(name).values())


def test_the_digest_sees_texts_labels_and_links():
    def digest(*items, kind="pairs"):
        return availability.content_digest(corpora.Corpus("x", kind, {"train": list(items)}, "", "", "en", "hi"))
    pair = Pair("a b", "c", frozenset({(0, 0)}))
    others = [Pair("a b", "c", frozenset({(1, 0)})), Pair("a b", "d", pair.links), Pair("b a", "c", pair.links)]
    assert len({digest(p) for p in [pair] + others}) == 4 and digest(pair) == digest(pair)
    labelled = [corpora.Labelled("a", 0), corpora.Labelled("a", 1), corpora.Labelled("b", 0)]
    assert len({digest(item, kind="labelled") for item in labelled}) == 3
    assert digest(corpora.Text("a"), kind="texts") != digest(corpora.Text("b"), kind="texts")


# real data

@real
@pytest.mark.parametrize("pair", catalogue.CATALOGUE["multi30k"].pairs)
def test_multi30k(pair):
    corpus = corpora.load("multi30k", pair)
    assert [len(corpus[s]) for s in ("train", "valid", "test_2016_flickr")] == [29000, 1014, 1000]
    assert all(p.source and p.target and p.links is None for p in corpus["train"])


@real
def test_multi30k_means_what_it_should():
    first = corpora.load("multi30k", "de-en")["train"][0]
    assert "Büsche" in first.source and "bushes" in first.target


@real
def test_tinyshakespeare():
    corpus = corpora.load("tinyshakespeare")
    whole = "\n\n".join(speech.text for split in corpus.splits for speech in corpus[split]) + "\n"
    assert whole == downloads.read_text(downloads.locate("tinyshakespeare/input.txt"))
    assert len(corpus["train"]) > 17 * len(corpus["test"]) > 0


@real
def test_sentence_polarity():
    corpus = corpora.load("sentence-polarity")
    assert [len(corpus[s]) for s in ("train", "valid", "test")] == [8530, 1066, 1066]
    texts = [{item.text for item in corpus[s]} for s in corpus.splits]
    assert all(sum(item.label for item in corpus[s]) * 2 == len(corpus[s]) for s in corpus.splits)
    assert sum(map(len, texts)) == len(set().union(*texts)) == 10662


@real
def test_the_real_files_are_sound():
    states = {path: state for name in catalogue.CATALOGUE for path, state in availability.verify(name).items()}
    assert all(state in ("ok", "not here") for state in states.values()), states
    assert all(states[path] == "ok" for name in catalogue.CATALOGUE for path in catalogue.CATALOGUE[name].files)


def test_splits_are_read_once_and_only_when_asked_for():
    reads = []
    splits = corpora.Splits({"train": lambda: reads.append("train") or [1, 2, 3], "valid": lambda: reads.append("valid") or [4]})
    assert len(splits) == 2 and list(splits) == ["train", "valid"] and "valid" in splits and "test" not in splits
    assert splits.size("train") is None and not reads
    assert splits["train"] == [1, 2, 3] and splits["train"] == [1, 2, 3] and reads == ["train"]
    assert splits.size("train") == 3 and splits.size("valid") is None


def test_a_cache_that_cannot_be_written_is_not_blamed_on_the_network(nowhere, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRANSFORMER_COURSE_CACHE", str(tmp_path / "file" / "cache"))
    said = complaint(corpora.load("tinyshakespeare").__getitem__, "train")
    assert str(tmp_path / "file" / "cache") in said and "cannot be written" in said and "TRANSFORMER_COURSE_CACHE" in said
    assert "network" not in said

"""A user's own sentence pairs and texts: what is read, what is refused, what is told, and what is held out."""
import gzip
import warnings

import pytest

from transformer_course.data.corpora import Corpus, Labelled, Pair, Text, own_items
from transformer_course.data.downloads import DataError
from transformer_course.data.own_rows import DataWarning

PAIRS = [(f"the cow number {n} sleeps", f"gaay {n} sotii hai") for n in range(40)]


@pytest.fixture
def written(tmp_path):
    "Writes a file and gives its path."
    def write(name: str, content: str | bytes):
        content = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(content)
        return tmp_path / name
    return write


def tsv(pairs) -> str:
    return "".join(f"{source}\t{target}\n" for source, target in pairs)


def silently(action, *words, **options):
    "What an action returns that warns of nothing."
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return action(*words, **options)


def test_lists_one_file_and_two_files_give_the_same_corpus(written):
    two = written("a.en", "".join(f"{s}\n" for s, t in PAIRS)), written("a.hi", "".join(f"{t}\r\n" for s, t in PAIRS))
    packed = written("pairs.tsv.gz", gzip.compress(tsv(PAIRS).encode()))
    corpora = [silently(Corpus.from_pairs, given, pair="en-hi") for given in (PAIRS, map(list, PAIRS), [Pair(s, t) for s, t in PAIRS])]
    corpora += [silently(Corpus.from_files, files, pair="en-hi") for files in (written("pairs.tsv", "\ufeff" + tsv(PAIRS)), packed, two)]
    for corpus in corpora:
        assert (corpus.kind, corpus.source_language, corpus.target_language) == ("pairs", "en", "hi")
        assert corpus["valid"] == corpora[0]["valid"] and corpus["train"] == corpora[0]["train"]
        assert (len(corpus["train"]), len(corpus["valid"])) == (36, 4)
    assert sorted((p.source, p.target) for split in ("train", "valid") for p in corpora[0][split]) == sorted(PAIRS)
    assert [corpus.name for corpus in corpora] == ["own pairs"] * 3 + ["pairs.tsv", "pairs.tsv.gz", "a.en, a.hi"]


def test_links_of_pairs_are_kept():
    linked = [Pair(s, t, frozenset({(0, 0)}), {"n": 1}) for s, t in PAIRS]
    assert {pair.links for pair in Corpus.from_pairs(linked)["train"]} == {frozenset({(0, 0)})}


def test_no_source_is_in_train_and_valid_and_places_are_those_of_the_file(written):
    pairs = [(s, f"{t} {k}") for k in "abc" for s, t in PAIRS]
    corpus = silently(Corpus.from_files, written("pairs.tsv", tsv(pairs)))
    train, valid = ({pair.source for pair in corpus[split]} for split in ("train", "valid"))
    assert not train & valid and len(valid) == 4 and len(corpus["valid"]) == 12
    for split in ("train", "valid"):
        for i, pair in enumerate(corpus[split]):
            name, _, number = corpus.place(split, i).rpartition(", line ")
            assert name.endswith("pairs.tsv") and pairs[int(number) - 1] == (pair.source, pair.target)


def test_given_splits_are_taken_as_they_are_and_what_train_holds_too_is_told(written):
    with pytest.warns(DataWarning, match=r"valid.tsv, lines 1, 3: in train, too") as told:
        corpus = Corpus.from_files(written("train.tsv", tsv(PAIRS)), written("valid.tsv", tsv([PAIRS[5], ("new", "nayaa"), PAIRS[7]])),
                                   written("test.tsv", tsv([("other", "dusraa")])))
    assert len(told) == 1 and told[0].filename == __file__
    assert [len(corpus[split]) for split in ("train", "valid", "test")] == [40, 3, 1]


@pytest.mark.parametrize("content, parts", [
    ("a\tb\nc\n", ("line 2", "1 column", "tab")),
    ("a\tb\nc\td\te\n", ("line 2", "3 columns")),
    ("a\tb\n\td\n", ("line 2", "the source is empty")),
    ("a\tb\nc\t \n", ("line 2", "the target is empty")),
    ("a\tb\n\nc\td\n", ("line 2", "1 column")),
    (b"a\tb\nc\t\xe9t\xe9\n", ("line 2", "not UTF-8", "0xe9")),
    ("a\tb\n", ("two different sources",)),
    ("", ("nothing in it",)),
])
def test_what_cannot_be_used_is_named_by_file_and_line(written, content, parts):
    with pytest.raises(DataError) as error:
        Corpus.from_files(written("pairs.tsv", content))
    for part in ("pairs.tsv", *parts):
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_two_files_must_fit_and_an_empty_side_is_named_by_its_file(written):
    long = "\n".join(["one", "two cats that sleep all day long", "three", "four"])
    with pytest.raises(DataError, match=r"a\.en has 4 lines and .*a\.fr has 3.*line 2 is the first"):
        Corpus.from_files((written("a.en", long), written("a.fr", "un\ntrois\nquatre\n")))
    with pytest.raises(DataError, match=r"a\.fr, line 2: the target is empty"):
        Corpus.from_files((written("a.en", "one\ntwo\n"), written("a.fr", "un\n\n")))
    with pytest.raises(DataError, match="nowhere.tsv does not exist"):
        Corpus.from_files(written("a.en", "").with_name("nowhere.tsv"))


@pytest.mark.parametrize("items, parts", [
    ([("a", "b"), ("c",)], ("train, pair 2", "two strings")),
    ([("a", "b"), "cd"], ("train, pair 2", "two strings")),
    ([("a", "b"), ("c", None)], ("train, pair 2", "target must be a string")),
    ([("a", "b"), ("c", "")], ("train, pair 2", "target is empty")),
    ([("a", "b"), ("\ud800", "d")], ("train, pair 2", "source is not valid Unicode")),
    ("abc", ("train must be a list of pairs, not str",)),
    (7, ("train must be a list of pairs, not int",)),
])
def test_bad_lists_are_named_by_pair(items, parts):
    with pytest.raises((DataError, ValueError)) as error:
        Corpus.from_pairs(items)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize("changed, part", [
    ({3: PAIRS[0], 9: PAIRS[0]}, "pairs.tsv, lines 4, 10: the same was given before"),
    ({n: PAIRS[0] for n in range(1, 9)}, "lines 2, 3, 4, 5, 6 and 3 more: the same"),
    ({6: ("\ufeffa cow", "gaay")}, "pairs.tsv, line 7: a byte order mark"),
    ({6: ("a c\ufffdw", "gaay")}, "pairs.tsv, line 7: it holds \ufffd"),
    ({6: ("a cow", "a sentence that is very much longer than a cow can ever be, you see")}, "pairs.tsv, line 7: the lengths"),
])
def test_what_looks_wrong_is_told_once_with_its_lines(written, changed, part):
    rows = [changed.get(n, pair) for n, pair in enumerate(PAIRS)]
    with pytest.warns(DataWarning) as told:
        corpus = Corpus.from_files(written("pairs.tsv", tsv(rows)))
    assert len(told) == 1 and part in str(told[0].message)
    assert sum(len(corpus[split]) for split in corpus.splits) == 40, "nothing is left out"
    assert not any("\ufeff" in pair.source for split in corpus.splits for pair in corpus[split])


def test_texts_are_cut_at_blank_lines_and_the_last_are_held_out(written):
    book = written("book.txt", "".join(f"line {n}\nmore of {n}\n\n\n" for n in range(30)))
    corpus = silently(Corpus.from_files, book, kind="texts")
    assert corpus["train"] == [Text(f"line {n}\nmore of {n}") for n in range(27)]
    assert corpus["valid"] == [Text(f"line {n}\nmore of {n}") for n in range(27, 30)]
    assert corpus.place("valid", 0).endswith(f"book.txt, line {27 * 4 + 1}")
    assert silently(Corpus.from_files, written("poem.txt", "a\nb\nc\n"), kind="texts")["valid"] == [Text("c")]
    with pytest.raises(DataError, match="at least two"):
        Corpus.from_files(written("one.txt", "a\n"), kind="texts")


def test_labelled_texts_know_their_labels(written):
    rows = [(f"film {n} is {'good' if n % 2 else 'bad'}", "good" if n % 2 else "bad") for n in range(30)]
    file = written("films.tsv", tsv(rows))
    corpus = silently(Corpus.from_files, file, kind="labelled")
    assert corpus.labels == ("bad", "good") and (len(corpus["train"]), len(corpus["valid"])) == (27, 3)
    assert all(item.label == ("good" in item.text) for split in corpus.splits for item in corpus[split])
    assert own_items(file, "labelled", ("good", "bad"))[0] == Labelled("film 0 is bad", 1)
    with pytest.raises(DataError, match=r"x.tsv, line 2: the label 'fine' is not one of bad, good"):
        Corpus.from_files(file, written("x.tsv", "a film\tgood\nx\tfine\n"), kind="labelled")


def test_bad_arguments_are_one_line(written):
    file = written("pairs.tsv", tsv(PAIRS))
    for options, part in (({"kind": "pair"}, "kind='pair'"), ({"pair": "french"}, "pair='french'")):
        with pytest.raises(ValueError, match=part):
            Corpus.from_files(file, **options)
    with pytest.raises(ValueError, match="texts come from one file, not 2"):
        Corpus.from_files((file, file), kind="texts")

"""Micro-reviews and paradigms from outside: the two readers agree whatever the seed, and pairs are pairs."""
import random
from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from transformer_course.data import paradigms, reviews as micro_reviews


@given(st.sampled_from(sorted(micro_reviews.PATTERNS)), st.integers(0, 1), st.integers(0, 2**32))
def test_writer_and_reader_agree(name, label, seed):
    pattern = micro_reviews.PATTERNS[name]
    text = pattern.text.format(**micro_reviews.fill(pattern, label, random.Random(seed)))
    assert micro_reviews.judge(text) == label


@given(st.sampled_from(micro_reviews.PAIRED), st.integers(0, 1), st.integers(0, 2**32))
def test_twins_have_the_same_words_and_opposite_labels(name, label, seed):
    first, second = micro_reviews.twins(name, label, random.Random(seed))
    assert Counter(first.split()) == Counter(second.split())
    assert (micro_reviews.judge(first), micro_reviews.judge(second)) == (label, 1 - label)


@pytest.mark.parametrize("text, label", [       # written by hand: neither reader made them
    ("the plot is dull", 0),
    ("the plot is not bad at all", 1),
    ("the plot is not only bad but also dull", 0),
    ("the plot is anything but dull", 1),
    ("the plot is good but the cast is anything but good", 0),
    ("the plot is anything but good but the cast is good", 1),
    ("a fine cast in a dull film", 0),
    ("a dull cast in a fine film", 1),
    ("a dull film with a fine cast", 0),
    ("although the cast is fine , the film is dull", 0),
    ("the film is dull , although the cast is fine", 0),
    ("the film is not dull , although the cast is bad", 1),
    ("despite a lazy script , the hero is never boring", 1),
    ("the hero is far from funny despite a witty script", 0),
    ("it is not true that the ending is not good", 1),
    ("the cast is great , yet the plot is not only slow but also stale", 0),
])
def test_labels_by_hand(text, label):
    assert micro_reviews.judge(text) == label


@pytest.mark.parametrize("text", ["", "   ", "the film is long", "a fine cast but the film is long"])
def test_no_opinion_is_an_error_that_names_the_text(text):
    with pytest.raises(ValueError, match="no opinion word") as caught:
        micro_reviews.judge(text)
    assert repr(text) in str(caught.value) and "\n" not in str(caught.value)


def test_a_pattern_without_a_twin():
    with pytest.raises(ValueError, match="'plain' has no twin"):
        micro_reviews.twins("plain", 1, random.Random(1))


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 10**6))
def test_any_seed_keeps_the_promises(seed):
    data = micro_reviews.generate(seed)
    assert {split: len(items) for split, items in data.items()} == {"train": 4000, "valid": 400, "test": 400}
    texts = [r.text for items in data.values() for r in items]
    assert len(texts) == len(set(texts))
    assert all(micro_reviews.judge(r.text) == r.label for items in data.values() for r in items)
    for first, second in zip(data["test"][::2], data["test"][1::2]):
        assert sorted(first.text.split()) == sorted(second.text.split()) and first.label + second.label == 1


def test_the_same_seed_gives_the_same_text():
    assert micro_reviews.running_text(7) == micro_reviews.running_text(7) != micro_reviews.running_text(8)
    assert micro_reviews.generate(7) == micro_reviews.generate(7)


def test_some_opinion_words_need_praise_and_some_blame():
    pattern = micro_reviews.PATTERNS["although last"]
    assert [micro_reviews.needs_praise(pattern, slot, 1) for slot in "ab"] == [True, False]
    assert micro_reviews.deciding_clause("a b , although c d".split()) == ["a", "b", ","]


def test_every_paradigm_cell_is_in_one_split():
    data = paradigms.splits()
    keys = [tuple(form.tags.values()) for split in ("train", "test") for form in data[split]]
    assert len(keys) == len(set(keys)) == 60
    assert {form.words["en"] for form in data["asked"]} == {"I will carry", "they drive", "he swims", "they will drive"}
    assert paradigms.form("fly", "present", "2", "plural").words.keys() == {"en", "cs", "hi"}       # an empty cell
    assert paradigms.english("run", "present", "3", "singular") == "he runs"
    assert set(paradigms.table("cs")["swim", "future"].values()) >= {"budu plavat"}

"""Typing errors: each kind against all results that loops find, rates that nest, and sentence pairs whose links stay true."""
import random
from collections import Counter

import pytest

from transformer_course.data.corpora import Pair
from transformer_course.data.typos import KINDS, LETTERS, NEIGHBOURS, SHORTEST, pair_with_typos, typo, with_typos

SENTENCE = "the clever teacher reads a letter near the river"


def all_typos(word, kind):
    """Every word that one typing error of this kind can make, found letter by letter."""
    found = set()
    for i, letter in enumerate(word):
        before, after = word[:i], word[i + 1:]
        if kind == "swap" and after:
            found.add(before + after[0] + letter + after[1:])
        elif kind == "drop":
            found.add(before + after)
        elif kind == "double":
            found.add(before + 2 * letter + after)
        elif kind in ("substitute", "neighbour"):
            found |= {before + other + after for other in (LETTERS if kind == "substitute" else NEIGHBOURS.get(letter, ""))}
    return found - {word}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("word", ["letter", "hat's", "oo", "b"])
def test_a_typo_is_any_of_those_that_loops_find(kind, word):
    expected = all_typos(word, kind) or {word}
    found = {typo(word, kind, random.Random(n)) for n in range(4000)}
    assert found == expected


def test_all_letters_of_a_word_are_hit_alike():
    count = Counter(typo("abcde", "double", random.Random(n)) for n in range(5000))
    assert len(count) == 5 and all(850 < n < 1150 for n in count.values())


@pytest.mark.parametrize("key, near", [("g", "rtyfhvbc"), ("q", "wa"), ("z", "asx"), ("p", "ol"), ("m", "njk")])
def test_neighbours_are_those_of_a_keyboard(key, near):
    assert set(NEIGHBOURS[key]) <= set(near) and len(NEIGHBOURS[key]) >= 2


def test_being_a_neighbour_goes_both_ways():
    assert set(NEIGHBOURS) == set(LETTERS)
    assert all(key in NEIGHBOURS[other] and key != other for key, near in NEIGHBOURS.items() for other in near)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_typos_of_a_rate_are_among_those_of_a_higher_one(kind, seed):
    words, before = SENTENCE.split(), SENTENCE.split()
    for rate in (0.0, 0.1, 0.25, 0.5, 0.8, 1.0):
        now = with_typos(SENTENCE, rate, kind, seed).split()
        assert all(a in (word, b) for word, a, b in zip(words, before, now, strict=True))
        before = now
    assert [a != b for a, b in zip(words, before)] == [len(word) >= SHORTEST for word in words]


def test_all_kinds_hit_the_same_words():
    for seed in range(20):
        hit = [tuple(a != b for a, b in zip(SENTENCE.split(), with_typos(SENTENCE, 0.5, kind, seed).split())) for kind in KINDS]
        assert len(set(hit)) == 1


def test_the_rate_is_the_share_of_long_words():
    for rate in (0.1, 0.3, 0.7):
        typed = [with_typos(SENTENCE, rate, "drop", seed).split() for seed in range(2000)]
        wrong = sum(a != b for one in typed for a, b in zip(SENTENCE.split(), one))
        assert abs(wrong / (2000 * 6) - rate) < 0.02


def test_typos_depend_on_seed_and_sentence_alone():
    random.seed(5)
    first = with_typos(SENTENCE, 0.5)
    random.seed(6)
    assert with_typos(SENTENCE, 0.5) == first == "the celver teacehr reads a letetr naer the rievr"
    assert len({with_typos(SENTENCE, 0.5, seed=seed) for seed in range(50)}) > 20


def test_a_pair_keeps_its_target_links_and_tags():
    pair = Pair("the teacher reads", "shikshak parhtaa hai", frozenset({(1, 0), (2, 1), (2, 2)}), {"template": "simple"})
    noisy = pair_with_typos(pair, 1.0, "drop", seed=3)
    assert (noisy.target, noisy.links, noisy.tags) == (pair.target, pair.links, pair.tags)
    assert noisy.source == with_typos(pair.source, 1.0, "drop", 3) != pair.source and len(noisy.source.split()) == 3
    assert pair.source == "the teacher reads"


@pytest.mark.parametrize("call, message", [
    (lambda: typo("letter", "slip", random.Random(1)), "typo: kind='slip' is unknown: choose one of swap, drop, double"),
    (lambda: with_typos(SENTENCE, 0.1, "slip"), "with_typos: kind='slip' is unknown"),
    (lambda: with_typos(SENTENCE, 1.5), "with_typos: rate must be from 0 to 1, not 1.5"),
    (lambda: with_typos(SENTENCE, -0.1), "with_typos: rate must be from 0 to 1, not -0.1"),
])
def test_errors_say_what_is_allowed(call, message):
    with pytest.raises(ValueError) as found:
        call()
    assert str(found.value).startswith(message) and "\n" not in str(found.value)

"""Micro-entailment: labels against all possible worlds, groups of three, splits that share no words, and shortcuts at chance."""
import math
import random
import re
from collections import Counter
from itertools import product

import pytest
import torch
from torch.nn.functional import cross_entropy

from transformer_course.data import entailment as micro_entailment
from transformer_course.data.entailment import (CONTRADICTS, ENTAILS, KINDS, NEUTRAL, NOUNS, PEOPLE, VERBS,
                                                Claim, generate, judge, relation)

DATA = generate(seed=3, train=300, valid=30, test=90)
PAIRS = [pair for pairs in DATA.values() for pair in pairs]


def test_the_rule_is_the_definition():
    nouns = ("toy", "kite", "ball", "tool", "spade")
    for first, second, negated, asked_negated in product(nouns, nouns, (False, True), (False, True)):
        known, asked = Claim("anna", "lost", first, negated), Claim("anna", "lost", second, asked_negated)
        assert relation(known, asked) == judge(known.text(), asked.text()), (known, asked)
    known = Claim("anna", "lost", "kite")
    assert relation(known, Claim("tom", "lost", "kite")) == relation(known, Claim("anna", "sold", "kite")) == NEUTRAL


def test_by_hand():
    for premise, hypothesis, label in [
        ("anna bought a kite and tom bought no spade", "anna bought a kite", ENTAILS),
        ("anna bought a kite and tom bought no spade", "tom bought a spade", CONTRADICTS),
        ("anna bought a kite and tom bought no spade", "tom bought a kite", NEUTRAL),
        ("tom bought no toy and anna bought a kite", "anna bought a toy", ENTAILS),
        ("anna bought a toy and tom bought no kite", "anna bought a kite", NEUTRAL),
        ("anna bought no toy and tom bought a kite", "anna bought a kite", CONTRADICTS),
        ("anna bought no kite and tom bought a toy", "anna bought a toy", NEUTRAL),
        ("anna bought no toy", "anna bought no kite", ENTAILS),
        ("anna sold a kite", "anna bought a kite", NEUTRAL),
    ]:
        assert judge(premise, hypothesis) == label, (premise, hypothesis)


def test_two_readers_agree_on_every_pair():
    assert all(judge(pair.premise, pair.hypothesis) == pair.label for pair in PAIRS)


def test_groups_of_three():
    for pairs in DATA.values():
        for i in range(0, len(pairs), 3):
            group = pairs[i:i + 3]
            assert [pair.label for pair in group] == [0, 1, 2]
            assert len({pair.hypothesis for pair in group}) == len({tuple(sorted(pair.premise.split())) for pair in group}) == 1
            assert len({pair.premise for pair in group}) == 3
            assert {pair.tags["group"] for pair in group} == {i // 3}
    nouns = Counter(pair.tags["nouns"] for pair in PAIRS)
    assert set(nouns) == set(NOUNS) == {"two things", "thing and kind"} and min(nouns.values()) > 0.25 * len(PAIRS)
    for pair in PAIRS:
        words = pair.premise.split()
        one, other = words[3], words[8]
        assert (one in KINDS or other in KINDS) == (pair.tags["nouns"] == "thing and kind")
        assert words[0] in PEOPLE and words[1] == words[6] in VERBS and sorted((words[2], words[7])) == ["a", "no"]


def test_splits_share_no_premise_in_any_order():
    bags = {split: {tuple(sorted(pair.premise.split())) for pair in pairs} for split, pairs in DATA.items()}
    assert not bags["train"] & bags["valid"] and not (bags["train"] | bags["valid"]) & bags["test"]
    assert {word for pair in PAIRS for word in pair.premise.split()} >= {word for pair in PAIRS for word in pair.hypothesis.split()}


def test_the_same_on_every_machine():
    assert generate(seed=3, train=300, valid=30, test=90) == DATA
    assert generate(seed=4, train=3, valid=2, test=2) != generate(seed=3, train=3, valid=2, test=2)
    sizes = {split: len(pairs) for split, pairs in generate(seed=1, train=20, valid=3, test=5).items()}
    assert sizes == {"train": 60, "valid": 9, "test": 15}


NAMES = sorted({word for pair in PAIRS for word in pair.premise.split()})


def features(pair, both):
    one, other = ([text.split().count(word) for word in NAMES] for text in (pair.premise, pair.hypothesis))
    return one + other + [min(a, b) for a, b in zip(one, other)] if both else other


def answers(pairs, both):
    """What a linear model on counts says, after training on train."""
    x, y = torch.tensor([features(pair, both) for pair in DATA["train"]], dtype=torch.float), torch.tensor([p.label for p in DATA["train"]])
    torch.manual_seed(1)
    model = torch.nn.Linear(x.shape[1], 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model(torch.tensor([features(pair, both) for pair in pairs], dtype=torch.float)).argmax(-1).tolist()


@pytest.mark.parametrize("both", [False, True], ids=["hypothesis only", "words of both and overlap"])
def test_shortcuts_are_at_chance(both):
    pairs = DATA["test"] + DATA["valid"]
    right = [said == pair.label for said, pair in zip(answers(pairs, both), pairs, strict=True)]
    assert sum(right) * 3 == len(pairs)                                   # exactly: one of each group of three
    one_each = [right[i + random.Random(i).randrange(3)] for i in range(0, len(pairs), 3)]     # a sample without groups
    n = len(one_each)
    assert abs(sum(one_each) / n - 1 / 3) < 4 * math.sqrt(2 / 9 / n)      # four standard errors of n draws at 1/3


def test_a_rule_without_people_is_not_enough():
    def said(pair):
        words = pair.premise.split()
        return ("a", "no").index(words[words.index(pair.hypothesis.split()[-1]) - 1])
    things = [said(pair) == pair.label for pair in PAIRS if pair.tags["nouns"] == "two things"]
    assert sum(things) * 3 == 2 * len(things)          # right where the premise speaks of the person, wrong where it is neutral


@pytest.mark.parametrize("make, message", [
    (lambda: judge("anna bought kite", "anna bought a kite"),
     "judge: cannot read 'anna bought kite'; a claim is a person, a verb, 'a' or 'no', and a noun"),
    (lambda: judge("anna bought a kite", "anna bought the kite"),
     "judge: cannot read 'anna bought the kite'; a claim is a person, a verb, 'a' or 'no', and a noun"),
    (lambda: judge("", "anna bought a kite"), "judge: cannot read ''; a claim is a person, a verb, 'a' or 'no', and a noun"),
    (lambda: generate(train=0), "generate: train must be a positive whole number, not 0"),
    (lambda: generate(test=2.0), "generate: test must be a positive whole number, not 2.0"),
    (lambda: generate(valid=True), "generate: valid must be a positive whole number, not True"),
    (lambda: generate(train=20000, valid=1, test=1), "generate: too few different sentences for 20000 groups of train"),
])
def test_bad_input_gets_one_line(make, message):
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        make()


def test_words_of_the_grammar():
    things = [thing for things in KINDS.values() for thing in things]
    assert len(set(things)) == len(things) == 9 and len(PEOPLE) == 8 and not set(things) & set(KINDS)
    assert not {word[0] for word in (*things, *KINDS)} & set("aeiou")      # "a" is the right article
    assert micro_entailment.LABELS == ("entailment", "contradiction", "neutral")

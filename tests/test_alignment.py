"""Properties of word alignment on random small problems; the lesson itself holds the fixed examples."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.testing import assert_close

from transformer_course.models.alignment import FLOOR, HMM, Model1, _jumps, forward_backward, symmetrise

ENGLISH, HINDI = "abcd", "wxyz"
sides = st.tuples(st.lists(st.sampled_from(ENGLISH), min_size=1, max_size=3), st.lists(st.sampled_from(HINDI), min_size=1, max_size=4))
corpora = st.lists(sides, min_size=1, max_size=5)


def all_alignments(source, target):
    return itertools.product(range(len(source) + 1), repeat=len(target))


@settings(max_examples=30, deadline=None)
@given(corpora, st.booleans())
def test_model1_is_the_sum_over_all_alignments(pairs, empty):
    model = Model1.fit(pairs, iterations=2, empty=empty)
    for source, target in pairs:
        words = ([None] if empty else []) + list(source)
        total = sum(math.prod(model.probability(f, e) / len(words) for f, e in zip(target, choice))
                    for choice in itertools.product(words, repeat=len(target)))
        assert math.log(total) == pytest.approx(model.log_prob(source, target), abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(corpora, st.integers(0, 3), st.booleans())
def test_em_climbs_and_every_row_sums_to_one(pairs, seed, empty):
    model = Model1.fit(pairs, iterations=6, seed=seed, empty=empty)
    assert all(after >= before - 1e-9 for before, after in zip(model.log_likelihoods, model.log_likelihoods[1:]))
    assert sum(model.log_prob(*pair) for pair in pairs) == pytest.approx(model.log_likelihoods[-1], abs=1e-9)
    used = {word for source, _ in pairs for word in source} | ({None} if empty else set())
    for word in used:
        assert sum(p for _, p in model.best(word, 99)) == pytest.approx(1)


@settings(max_examples=20, deadline=None)
@given(corpora, st.sampled_from([None, 0.1, 0.4]))
def test_hmm_climbs_and_explains_what_it_says(pairs, empty):
    model = HMM.fit(pairs, iterations=4, empty=empty)
    assert all(after >= before - 1e-9 for before, after in zip(model.log_likelihoods, model.log_likelihoods[1:]))
    assert sum(model.log_prob(*pair) for pair in pairs) == pytest.approx(model.log_likelihoods[-1], abs=1e-6)
    assert empty is None or model.empty == empty


def listed(t, jumps, empty):
    "Every alignment with its probability."
    for a in itertools.product(range(t.shape[1]), repeat=len(t)):
        p, place = 1.0, 0
        for j, i in enumerate(a):
            p *= empty * t[j, 0].item() if i == 0 else (1 - empty) * (jumps[place, i] * t[j, i]).item()
            place = i or place
        yield a, p


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.floats(0.05, 0.9))
def test_forward_backward_is_the_sum_over_all_alignments(seed, size, lengths, empty):
    draw = torch.Generator().manual_seed(seed)
    t = torch.rand(len(lengths), max(lengths), size + 1, generator=draw, dtype=torch.float64) + 0.01
    jumps = _jumps(torch.rand(5, generator=draw, dtype=torch.float64) + 0.01, size)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    posterior, expected, logp = forward_backward(t, jumps, empty, mask)
    taken = torch.zeros_like(expected)
    for b, length in enumerate(lengths):
        paths = list(listed(t[b, :length], jumps, empty))
        total, links = sum(p for _, p in paths), torch.zeros(length, size + 1, dtype=torch.float64)
        for a, p in paths:
            place = 0
            for j, i in enumerate(a):
                links[j, i] += p / total
                if i:
                    taken[place, i] += p / total
                    place = i
        assert_close(posterior[b, :length], links)
        assert logp[b].item() == pytest.approx(math.log(total))
    assert_close(expected, taken)


@settings(max_examples=25, deadline=None)
@given(corpora)
def test_viterbi_finds_the_best_alignment(pairs):
    model = HMM.fit(pairs, iterations=2)
    for (source, target), found in zip(pairs, model.align(pairs)):
        t = model.table.look_up(model.table.codes(source, target)).clamp(min=FLOOR)
        scores = dict(listed(t, _jumps(model.jumps, len(source)), model.empty))
        best = tuple(next((i + 1 for i, k in found if k == j), 0) for j in range(len(target)))
        assert scores[best] == pytest.approx(max(scores.values()), rel=1e-9)


def test_a_new_word_costs_and_does_not_crash():
    pairs = [("a b".split(), "x y".split()), ("b c".split(), "y z".split())]
    model1, hmm = Model1.fit(pairs), HMM.fit(pairs)
    unseen = (["a", "new"], ["x", "neu"])
    assert model1.log_prob(*unseen) == -math.inf and hmm.log_prob(*unseen) < -20
    assert all(j == 0 for links in (model1.align([unseen])[0],) for _, j in links)
    assert hmm.align([unseen])[0] <= {(i, j) for i in range(2) for j in range(2)}
    assert model1.align([]) == [] and hmm.align([]) == []


@pytest.mark.parametrize("empty", [0, 1, -0.5, 2])
def test_hmm_refuses_an_impossible_share(empty):
    with pytest.raises(ValueError, match="empty="):
        HMM.fit([(["a"], ["x"])], empty=empty)


links = st.frozensets(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=8)


@given(links, links)
def test_symmetrisation_stays_between_intersection_and_union(forward, backward):
    both, either = symmetrise(forward, backward, "intersection"), symmetrise(forward, backward, "union")
    grown, final = symmetrise(forward, backward, "grow-diag"), symmetrise(forward, backward)
    assert both == forward & backward and either == forward | backward
    assert both <= grown <= final <= either

"""Scoring: properties that must hold for any input, and the numbers of an independent count."""
import math

import numpy as np
import pytest
import sacrebleu
import torch
from hypothesis import assume, given, settings, strategies as st

from transformer_course.scoring import (AlignmentScore, Score, alignment_error_rate, alignment_scores, bleu, by_length, chrf,
                                        corpus_perplexity, exact_match, length_groups, links_from_attention,
                                        paired_bootstrap, perplexity)

links = st.sets(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=8)
corpus = st.lists(st.tuples(links, links, links), min_size=1, max_size=4)
sentence = st.lists(st.sampled_from("a b c d , E".split()), min_size=1, max_size=8).map(" ".join)


@settings(deadline=None)
@given(corpus)
def test_alignment_scores_count_links_over_the_corpus(sets):
    predicted, sure, possible = zip(*sets)
    assume(any(sure))
    score = alignment_scores(predicted, sure, possible)
    tag = lambda groups: {(k, *link) for k, group in enumerate(groups) for link in group}      # one set for all sentences
    A, S = tag(predicted), tag(sure)
    P = S | tag(possible)
    assert score.recall == len(A & S) / len(S) and score.precision == (len(A & P) / len(A) if A else 0)
    assert math.isclose(score.error_rate, 1 - (len(A & S) + len(A & P)) / (len(A) + len(S)), abs_tol=1e-12)
    assert isinstance(score, AlignmentScore) and -1e-12 <= score.error_rate <= 1
    assert score.error_rate == alignment_error_rate(predicted, sure, possible)
    assert (score.error_rate == 0) == (S <= A <= P)


@settings(deadline=None)
@given(corpus)
def test_without_possible_links_it_is_symmetric_and_one_minus_f1(sets):
    predicted, sure, ignored = zip(*sets)
    assume(any(sure) and any(predicted))
    score = alignment_scores(predicted, sure)
    assert math.isclose(score.error_rate, alignment_error_rate(sure, predicted), abs_tol=1e-12)
    if p_plus_r := score.precision + score.recall:
        assert math.isclose(score.error_rate, 1 - 2 * score.precision * score.recall / p_plus_r, abs_tol=1e-12)
    assert (score.error_rate == 0) == (predicted == sure)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(sentence, sentence), min_size=1, max_size=5))
def test_corpus_scores_are_sacrebleu_s(pairs):
    hypotheses, references = map(list, zip(*pairs))
    for ours, theirs in ((bleu, sacrebleu.corpus_bleu), (chrf, sacrebleu.corpus_chrf)):
        score = ours(hypotheses, references)
        assert isinstance(score, Score) and score.value == theirs(hypotheses, [references]).score == float(score)
    assert 0 <= exact_match(hypotheses, references) <= 1
    assert exact_match(hypotheses, hypotheses) == 1 and chrf(hypotheses, hypotheses).value > 99.999


def test_scores_name_their_recipe():
    pair = ["A cat sat here ."], ["a cat sat here ."]
    assert "case:mixed" in bleu(*pair).signature and "tok:13a" in bleu(*pair).signature
    assert "case:lc" in bleu(*pair, lowercase=True).signature and bleu(*pair, lowercase=True).value > 99.999
    assert "tok:none" in bleu(*pair, tokenize="none").signature
    assert "nw:2" in chrf(*pair, word_order=2).signature
    assert str(chrf(*pair)).startswith(f"{chrf(*pair).value:.1f} (")


@given(st.integers(1, 1000), st.integers(1, 60))
def test_even_guessing_among_k_has_perplexity_k(k, tokens):
    assert math.isclose(perplexity(tokens * math.log(k), tokens), k, rel_tol=1e-9)
    assert perplexity(1e9, 1) == math.inf


class Uniform(torch.nn.Module):
    """Every token has probability 1/k, where k is the source's first token."""
    pad_id = 7

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def loss(self, src, tgt, smoothing):
        assert smoothing == 0 and not self.training and not torch.is_grad_enabled()
        real = tgt[:, 1:] != self.pad_id
        return (self.weight * src[:, :1].log() * real).sum() / real.sum()


@pytest.mark.parametrize("training", [True, False])
def test_corpus_perplexity_weighs_tokens_and_restores_the_mode(training):
    model = Uniform().train(training)
    batches = [(torch.tensor([[4], [9]]), torch.tensor([[1, 5, 2, 7, 7], [1, 5, 5, 5, 2]])), (torch.tensor([[3]]), torch.tensor([[1, 2]]))]
    expected = math.exp((2 * math.log(4) + 4 * math.log(9) + math.log(3)) / 7)
    assert math.isclose(corpus_perplexity(model, iter(batches)), expected, rel_tol=1e-6) and model.training is training
    with pytest.raises(ZeroDivisionError):
        corpus_perplexity(model, (1 / 0 for batch in batches))
    assert model.training is training


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2 ** 31), st.integers(1, 6), st.integers(1, 7), st.integers(0, 3), st.integers(0, 2))
def test_links_follow_the_rule(seed, S, T, more_columns, more_rows):
    random = np.random.default_rng(seed)
    weights = random.dirichlet(np.ones(S + more_columns), T + more_rows)
    source = np.concatenate([[0], random.integers(0, 2, S - 1)]).cumsum()
    target = np.concatenate([[0], random.integers(0, 2, T - 1)]).cumsum()
    found = links_from_attention(torch.tensor(weights), source.tolist(), target.tolist())
    for j in range(target[-1] + 1):
        mean = weights[:T][target == j].mean(0)
        sums = [mean[:S][source == i].sum() for i in range(source[-1] + 1)] + [mean[S:].sum()]
        best = int(np.argmax(sums))
        assert {i for i, k in found if k == j} == ({best} if best <= source[-1] else set())
    strong = links_from_attention(weights, source, target, threshold=0.6)
    assert strong <= found and links_from_attention(weights, source, target, threshold=1.1) == set()
    assert all(isinstance(x, int) for link in found for x in link)


def test_length_groups_cover_everything_once():
    sources = [" ".join("w" * n) for n in (1, 3, 12, 5, 6, 10, 11)]
    groups = length_groups(sources, (5, 10))
    assert groups == {"1-5": [0, 1, 3], "6-10": [4, 5], "11+": [2, 6]}
    assert by_length(sources, [1, 0, 1, 1, 0, 1, 0], (5, 10)) == {"1-5": (2 / 3, 3), "6-10": (0.5, 2), "11+": (0.5, 2)}


def test_bootstrap_is_seeded_paired_and_contains_the_difference():
    random = np.random.default_rng(2)
    first, second = random.random(60), random.random(60)
    mean, low, high = paired_bootstrap(first, second, samples=500, seed=3)
    assert low < mean < high and math.isclose(mean, first.mean() - second.mean(), abs_tol=1e-12)
    assert (mean, low, high) == paired_bootstrap(first, second, samples=500, seed=3) != paired_bootstrap(first, second, samples=500, seed=4)
    assert np.allclose(paired_bootstrap(first + 0.25, first), 0.25)          # the same shift everywhere: no luck in it


@pytest.mark.parametrize("action, message", [
    (lambda: exact_match(["a"], ["a", "b"]), "lengths differ: hypotheses has 1, references has 2"),
    (lambda: bleu(["a"], ["a", "b"]), "lengths differ"),
    (lambda: chrf([], []), "nothing to score"),
    (lambda: perplexity(-1.0, 3), "nll=-1.0 over tokens=3"),
    (lambda: corpus_perplexity(Uniform(), []), "tokens=0"),
    (lambda: alignment_error_rate([{(0, 0)}], []), "lengths differ: predicted has 1, sure has 0"),
    (lambda: alignment_error_rate([set()], [{(0, 0)}], []), "possible has 0"),
    (lambda: alignment_scores([{(0, 0)}], [set()]), "sure holds no link"),
    (lambda: links_from_attention(np.ones(3), [0], [0]), "weights has shape (3,)"),
    (lambda: links_from_attention(np.ones((2, 3)), [0, 1, 2, 3], [0]), "source_word_of_piece has 4 entries, and must have 1 to 3"),
    (lambda: links_from_attention(np.ones((2, 3)), [0], []), "target_word_of_piece has 0 entries"),
    (lambda: links_from_attention(np.ones((2, 3)), [1, 2], [0]), "source_word_of_piece must number the words"),
    (lambda: by_length(["a"], [1, 2], (3,)), "lengths differ"),
    (lambda: length_groups(["a"], (3, 3)), "edges=[3, 3] must rise"),
    (lambda: length_groups(["a"], ()), "edges=[] must rise"),
    (lambda: paired_bootstrap([1], []), "lengths differ"),
])
def test_errors_name_the_value(action, message):
    with pytest.raises(ValueError) as error:
        action()
    assert message in str(error.value) and "\n" not in str(error.value)

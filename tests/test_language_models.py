"""The n-gram model and the recurrent language model: properties, wrong arguments, the meta device."""
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course.data.text import BOS, EOS, PAD, UNK, pad
from transformer_course.models.language_models import NGramModel, RNNLanguageModel
from transformer_course.models.rnn import CELLS

META, V = torch.device("meta"), 11
kinds = st.sampled_from(sorted(CELLS))
sentences = st.lists(st.lists(st.integers(4, 8), max_size=6), min_size=1, max_size=5)


def framed(words):
    return [[BOS, *sentence, EOS] for sentence in words]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


# counting

@given(sentences, sentences, st.lists(st.integers(3, 9), max_size=4), st.integers(1, 4))
def test_ngram_probabilities_are_a_distribution(train, valid, history, order):
    model = NGramModel(order).fit(framed(train), framed(valid), V, rounds=3)
    p = model.probabilities([BOS, *history])
    assert p.shape == (V,) and (p >= 0).all() and p[PAD] == p[BOS] == 0
    assert_close(p.sum().item(), 1.0)


@given(sentences, sentences, st.lists(st.integers(4, 9), max_size=4), st.integers(1, 4))
def test_ngrams_are_counted_as_by_looking_through_the_text(train, valid, history, order):
    model = NGramModel(order).fit(framed(train), framed(valid), V, rounds=2)
    text = [[BOS] * order + words[1:] for words in framed(train)]                 # BOS stands for what is before
    before = [BOS] * order + history
    expected, top = {word: [1 / (V - 2)] for word in range(V)}, 0
    for k in range(1, order + 1):
        last = before[len(before) - k + 1:]
        follow = [words[t] for words in text for t in range(order, len(words)) if words[t - k + 1:t] == last]
        if not follow:
            break
        top = k
        for word in expected:
            expected[word].append(follow.count(word) / len(follow))
    weights, p = model.weights[top].tolist(), model.probabilities([BOS, *history])
    for word in set(range(V)) - {PAD, BOS}:
        assert math.isclose(p[word].item(), sum(w * x for w, x in zip(weights, expected[word])), abs_tol=1e-9)
    assert not any(weights[top + 1:])                                             # no weight where nothing was seen


@given(sentences, sentences, st.integers(1, 4))
def test_weights_sum_to_one_and_the_likelihood_never_falls(train, valid, order):
    model = NGramModel(order).fit(framed(train), framed(valid), V, rounds=6)
    assert_close(model.weights.sum(1), torch.ones(order + 1, dtype=torch.float64))
    assert len(model.likelihoods) == 6
    assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(model.likelihoods))


def test_probabilities_of_all_sentences_of_a_small_language_sum_to_what_is_left():
    model = NGramModel(3).fit([[BOS, 4, 5, EOS], [BOS, 5, EOS]], [[BOS, 4, EOS]], words=6)
    total = sum(math.exp(model.log_prob([BOS, *words, EOS])) for n in range(6) for words in itertools.product((UNK, 4, 5), repeat=n))
    assert 0.8 < total < 1                                                        # the rest: longer ones


@given(sentences)
def test_perplexity_counts_every_word_and_every_end(words):
    model, ids = NGramModel(2).fit([[BOS, 4, 5, EOS]], [[BOS, 5, EOS]], V), framed(words)
    nats = -sum(model.probabilities(s[:t])[s[t]].log().item() for s in ids for t in range(1, len(s)))
    assert math.isclose(model.perplexity(ids), math.exp(nats / sum(len(s) - 1 for s in ids)), rel_tol=1e-9)


# the recurrent language model

def batch(lengths):
    """BOS ... EOS of these lengths, padded."""
    return pad([[BOS, *torch.randint(4, V, (n,)).tolist(), EOS] for n in lengths], PAD)


@given(kinds, st.integers(1, 2), st.integers(0, 5))
def test_later_words_change_nothing_before_them(cell, n_layers, place):
    model, tgt = RNNLanguageModel(V, 5, 7, n_layers, cell).eval(), batch([5, 3, 5])[:, :-1]
    changed = tgt.clone()
    changed[:, place] = 3
    logits, other = model(tgt, tgt), model(tgt, changed)
    assert_close(other[:, :place], logits[:, :place])
    assert not torch.allclose(other[:, place], logits[:, place], atol=1e-4)


@given(kinds, st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(0, 4))
def test_a_document_is_read_as_if_alone(cell, lengths, extra):
    model, tgt = RNNLanguageModel(V, 5, 7, cell=cell).eval(), batch(lengths)
    wide = F.pad(tgt, (0, extra), value=PAD)
    logits, total = model(wide, wide[:, :-1]), 0.0
    for i, n in enumerate(lengths):
        alone = tgt[i:i + 1, :n + 2]
        assert_close(logits[i, :n + 1], model(alone, alone[:, :-1])[0])
        total += model.loss(alone, alone) * (n + 1)
    assert_close(model.loss(wide, wide), total / (sum(lengths) + len(lengths)))


@given(kinds, st.integers(1, 2), st.lists(st.integers(0, 2), min_size=1, max_size=5))
def test_word_by_word_gives_what_reading_at_once_gives(cell, n_layers, rows):
    model, tgt = RNNLanguageModel(V, 5, 7, n_layers, cell).eval(), batch([4, 2, 6])[:, :-1]
    logits, state = model(tgt, tgt), model.start(tgt)
    for t, token in enumerate(tgt.T):
        now, state = model.step(state, token)
        assert_close(now, logits[:, t])
    kept, again = torch.tensor(rows), torch.tensor(rows) + 4
    assert_close(model.step(state.select(kept), again)[0],
                 torch.stack([model.step(state, torch.full((3,), word))[0][row] for row, word in zip(rows, again.tolist())]))


def test_the_source_is_not_looked_at():
    model, tgt = RNNLanguageModel(V, 5, 7).eval(), batch([4, 2])
    assert_close(model(torch.zeros(2, 1, dtype=torch.long), tgt), model(torch.randint(4, V, (2, 9)), tgt))


def test_smoothing_takes_the_mean_over_real_words():
    model, tgt = RNNLanguageModel(V, 5, 7).eval(), batch([4, 2])
    logits, target = model(tgt, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten()
    assert_close(model.loss(tgt, tgt), F.cross_entropy(logits, target, ignore_index=PAD))
    assert not torch.isclose(model.loss(tgt, tgt, smoothing=0.3), model.loss(tgt, tgt), atol=1e-4)


# the meta device, and wrong arguments

@pytest.mark.parametrize("cell", sorted(CELLS))
def test_shapes_alone_are_enough(cell):
    with META:
        reader = RNNLanguageModel(V, 5, 7, 2, cell)
        tgt, rows = torch.zeros(2, 6, dtype=torch.long), torch.zeros(3, dtype=torch.long)
    assert reader(tgt, tgt[:, :-1]).shape == (2, 5, V)
    reader.loss(tgt, tgt).backward()
    reader.eval()
    logits, state = reader.step(reader.start(tgt).select(rows), rows)
    assert logits.shape == (3, V) and logits.device == META and state.hidden[0][0].device == META


@pytest.mark.parametrize("make, words", [
    (lambda: NGramModel(0), "order .* not 0"), (lambda: NGramModel(2.0), "order .* not 2.0"),
    (lambda: NGramModel(2).fit([], [[BOS, EOS]], V), "0 sentences"), (lambda: NGramModel(2).fit([[BOS, EOS]], [], V), "0 held out"),
    (lambda: NGramModel(2).fit([[BOS, 4, EOS]], [[BOS, 9, EOS]], 9), "id 9 .* words=9"),
    (lambda: NGramModel(2).probabilities([BOS]), "call fit first"), (lambda: NGramModel(2).perplexity([[BOS, EOS]]), "call fit first"),
    (lambda: RNNLanguageModel(0), "words .* not 0"), (lambda: RNNLanguageModel(V, cell="elman"), "elman"),
    (lambda: RNNLanguageModel(V, d_hidden=0), "d_hidden"),
])
def test_wrong_arguments_are_named_in_one_line(make, words):
    with pytest.raises(ValueError, match=words) as error:
        make()
    assert "\n" not in str(error.value)

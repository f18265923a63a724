"""Attention at two levels: against loops over sentences, with padding of both kinds; its rival; its documents; its errors."""
import random

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from transformer_course.data.reviews import judge
from transformer_course.models.attention import Dense
from transformer_course.models.efficient import patterned_encoder
from transformer_course.models.ends import Embedding, embedding_table
from transformer_course.models.hierarchical import (AttentionPool, HierarchicalClassifier, MeanPool, OneRowClassifier, opinions,
                                                    padded_documents)
from transformer_course.models.relative_positions import added_positions

D = 12


def positions():
    return added_positions("sinusoidal", D, 40)


def words():
    return Embedding(embedding_table(20, D), positions(), 0.0)


def encoder(layers=1):
    return patterned_encoder([Dense()] * layers, D, 3, 20)


def classifier(pool=None):
    torch.manual_seed(1)
    return HierarchicalClassifier(words(), encoder(), AttentionPool(D), positions(), encoder(), pool or AttentionPool(D),
                                  nn.Linear(D, 3)).eval()


def one_row(own_sentence=False):
    torch.manual_seed(1)
    return OneRowClassifier(words(), encoder(2), AttentionPool(D), nn.Linear(D, 3), own_sentence).eval()


def draw(*lengths):
    "A document with sentences of these lengths."
    return [torch.randint(4, 20, (n,)).tolist() for n in lengths]


def test_a_pool_equals_the_papers_equations():
    torch.manual_seed(2)
    pool, h = AttentionPool(5), torch.randn(7, 5)
    real = torch.tensor([True, True, False, True, True, True, False])
    scores = [(torch.tanh(pool.key.weight @ row + pool.key.bias) @ pool.query).exp() for row in h]
    total = sum(score for score, there in zip(scores, real) if there)
    expected = [score / total if there else torch.tensor(0.0) for score, there in zip(scores, real)]
    vector, weights = pool(h, real)
    assert_close(weights, torch.stack(expected))
    assert_close(vector, sum(w * row for w, row in zip(expected, h)))


@pytest.mark.parametrize("pool", [AttentionPool(5), MeanPool()])
def test_where_nothing_is_real_a_pool_gives_zeros_and_finite_gradients(pool):
    h = torch.randn(2, 3, 5, requires_grad=True)
    vector, weights = pool(h, torch.tensor([[True, False, True], [False] * 3]))
    assert (vector[1] == 0).all() and (weights[1] == 0).all() and abs(weights[0].sum().item() - 1) < 1e-6
    assert torch.autograd.grad(vector.sum(), h)[0].isfinite().all()


def test_a_mean_pool_is_the_mean():
    h = torch.randn(4, 5)
    assert_close(MeanPool()(h, torch.tensor([True, True, False, True]))[0], h[[0, 1, 3]].mean(0))


@pytest.mark.parametrize("pool", [AttentionPool(D), MeanPool()])
def test_two_levels_equal_a_loop_over_sentences(pool):
    torch.manual_seed(3)
    model, document = classifier(pool), draw(3, 6, 2, 4)
    vectors, word_weights = [], []
    for sentence in document:
        ids = torch.tensor([sentence])
        vector, weights = model.word_pool(model.word_encoder(model.words(ids)), torch.ones_like(ids, dtype=torch.bool))
        vectors.append(vector[0])
        word_weights.append(weights[0])
    sentences = torch.stack(vectors)[None] + model.positions(0, 4)
    vector, weights = model.sentence_pool(model.sentence_encoder(sentences), torch.ones(1, 4, dtype=torch.bool))
    found = model.read(padded_documents([document]))
    assert_close(found[0], vector)
    assert_close(found[1], weights)
    for n, expected in enumerate(word_weights):
        assert_close(found[2][0, n, :len(expected)], expected)
        assert (found[2][0, n, len(expected):] == 0).all()


@pytest.mark.parametrize("model", [classifier(), classifier(MeanPool()), one_row(), one_row(own_sentence=True)])
def test_padding_of_words_and_of_sentences_changes_nothing(model):
    torch.manual_seed(4)
    one, other = draw(3, 5), draw(2, 8, 4, 6, 1)
    alone, together = model(padded_documents([one])), model(padded_documents([one, other]))
    assert_close(together[:1], alone, rtol=1e-4, atol=1e-5)
    assert_close(model(padded_documents([other])), together[1:], rtol=1e-4, atol=1e-5)


def test_the_second_level_sees_a_word_through_its_sentence_alone():
    torch.manual_seed(5)
    model = classifier()
    ids = padded_documents([draw(3, 4)])
    vectors = model.words(ids.flatten(0, 1)).detach().requires_grad_()
    encoded = model.word_encoder(vectors, (ids.flatten(0, 1) != 0)[:, None, None])
    gradient = torch.autograd.grad(encoded[0].sum(), vectors)[0]
    assert gradient[0].abs().sum() > 0 and (gradient[1] == 0).all()


def test_one_row_equals_the_text_without_any_padding():
    torch.manual_seed(6)
    model, document = one_row(), draw(3, 6, 2)
    row = torch.tensor([[token for sentence in document for token in sentence]])
    vector, _ = model.pool(model.encoder(model.words(row)), torch.ones_like(row, dtype=torch.bool))
    assert_close(model(padded_documents([document, draw(5, 1, 7, 4)]))[:1], model.output(vector), rtol=1e-4, atol=1e-5)


def test_a_row_of_own_sentences_equals_a_loop_over_sentences():
    torch.manual_seed(7)
    model, document = one_row(own_sentence=True), draw(3, 6, 2)
    pieces = model.words(torch.tensor([[token for sentence in document for token in sentence]])).split([3, 6, 2], dim=1)
    encoded = torch.cat([model.encoder(piece) for piece in pieces], dim=1)
    vector, _ = model.pool(encoded, torch.ones(1, 11, dtype=torch.bool))
    assert_close(model(padded_documents([document, draw(5, 1, 7, 4)]))[:1], model.output(vector), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", [classifier, one_row])
def test_they_learn(build):
    torch.manual_seed(8)
    model = build().train()
    ids = padded_documents([draw(3, 4, 2) for n in range(6)])
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    optimizer, first = torch.optim.Adam(model.parameters(), lr=0.01), model.loss(ids, labels).item()
    for step in range(40):
        optimizer.zero_grad()
        model.loss(ids, labels).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
    assert model.loss(ids, labels).item() < 0.2 * first


@pytest.mark.parametrize("people", [1, 2, 6])
def test_opinions_say_what_their_labels_say(people):
    made = [opinions(random.Random(n), people) for n in range(200)]
    for sentences, label, his in made:
        speakers, said = zip(*(sentence.removesuffix(" .").split(" says that ") for sentence in sentences))
        assert speakers[his] == "omar" and len(set(speakers)) == len(sentences) == people
        assert judge(said[his]) == label
    assert 60 < sum(label for _, label, _ in made) < 140
    assert {his for *_, his in made} == set(range(people))
    assert opinions(random.Random(3), people) == made[3]


def test_the_others_do_not_tell_what_omar_thinks():
    agree = []
    for n in range(400):
        sentences, label, his = opinions(random.Random(n))
        agree += [judge(s.split(" says that ")[1].removesuffix(" .")) == label for i, s in enumerate(sentences) if i != his]
    assert 0.45 < sum(agree) / len(agree) < 0.55


@pytest.mark.parametrize("call, message", [
    (lambda: AttentionPool(0), "AttentionPool: d_model must be a positive whole number, not 0"),
    (lambda: padded_documents([]), "padded_documents: there must be a document"),
    (lambda: padded_documents([[[4]], []]), "padded_documents: there must be a document, and none of them, and none"),
    (lambda: padded_documents([[[4], []]]), "padded_documents: there must be a document, and none of them, and none"),
    (lambda: classifier().read(torch.ones(2, 3).long()), r"HierarchicalClassifier: documents must be \(B, N, S\) ids"),
    (lambda: classifier()(torch.ones(2, 3, 4)), r"HierarchicalClassifier: documents must be \(B, N, S\) ids"),
    (lambda: one_row()(torch.ones(2, 3).long()), r"OneRowClassifier: documents must be \(B, N, S\) ids"),
    (lambda: classifier().loss(torch.ones(2, 3, 4).long(), torch.tensor([0, 3])), "HierarchicalClassifier: labels must be from 0 to 2"),
    (lambda: one_row().loss(torch.ones(2, 3, 4).long(), torch.tensor([0, 3])), "OneRowClassifier: labels must be from 0 to 2"),
    (lambda: opinions(random.Random(1), 0), "opinions: people must be a positive whole number, not 0"),
    (lambda: opinions(random.Random(1), 1000), "opinions: people must be at most ")])
def test_wrong_calls_are_told_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as problem:
        call()
    assert "\n" not in str(problem.value)

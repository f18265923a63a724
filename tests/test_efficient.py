"""Patterns of attention against the masks that they equal, against loops, and inside the library's stacks."""
import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from transformer_course.models.attention import MultiHeadAttention, SelfAttention, attention
from transformer_course.models.efficient import (ReadsLast, Strided, Window, find_the_mark, masked_attention,
                                                 patterned_encoder)
from transformer_course.models.ends import Embedding, Output, embedding_table
from transformer_course.models.relative_positions import added_positions
from transformer_course.models.transformer_lm import LanguageModel

PATTERNS = {"window": Window(4), "causal window": Window(4, causal=True), "wider than the text": Window(50),
            "global": Window(3, first=2), "causal global": Window(3, first=1, causal=True), "width 1": Window(1, first=1),
            "strided": Strided(4), "causal strided": Strided(5, causal=True), "one row": Strided(50), "stride 1": Strided(1)}


def allowed(pattern, i, j):
    """Whether query i may read key j, as the lesson's words say it."""
    if pattern.causal and j > i:
        return False
    if isinstance(pattern, Strided):
        return abs(i - j) % pattern.stride == 0
    return abs(i - j) <= pattern.width or i < pattern.first or j < pattern.first


@pytest.mark.parametrize("name", PATTERNS)
def test_the_mask_says_what_the_words_say(name):
    pattern = PATTERNS[name]
    expected = [[allowed(pattern, i, j) for j in range(11)] for i in range(11)]
    assert pattern.mask(11).tolist() == expected


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("T", [1, 3, 12, 17])
@pytest.mark.parametrize("kind", ["none", "padding", "any"])
def test_blocks_equal_the_mask_forward_and_backward(name, T, kind):
    torch.manual_seed(T)
    B, H, K = 2, 3, 5
    mask = {"none": None, "padding": torch.arange(T) < torch.tensor([T, max(1, T - 3)])[:, None, None, None],
            "any": torch.rand(B, 1, T, T) < 0.6}[kind]
    found, weight = [], torch.randn(B, H, T, K, dtype=torch.float64)
    for way in (PATTERNS[name], lambda *given: masked_attention(PATTERNS[name], *given)):
        torch.manual_seed(1)
        given = [torch.randn(B, H, T, K, dtype=torch.float64, requires_grad=True) for part in range(3)]
        answers, none = way(*given, mask)
        assert none is None
        found.append((answers, *torch.autograd.grad((answers * weight).sum(), given)))
    assert_close(*found)


def test_a_global_window_equals_a_loop_with_one_softmax():
    torch.manual_seed(1)
    T, K, pattern = 13, 4, Window(2, first=1)
    query, key, value = torch.randn(3, 1, 1, T, K, dtype=torch.float64)
    answers = pattern(query, key, value)[0][0, 0]
    for i in range(T):
        scores = {j: math.exp(float(query[0, 0, i] @ key[0, 0, j]) / math.sqrt(K)) for j in range(T) if allowed(pattern, i, j)}
        mixed = sum(score * value[0, 0, j] for j, score in scores.items()) / sum(scores.values())
        assert_close(answers[i], mixed)


def test_weights_bias_and_shorter_queries_take_the_mask():
    torch.manual_seed(2)
    query, key, value = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 9, 5), torch.randn(2, 3, 9, 5)
    bias = torch.randn(3, 9, 9)
    for pattern in (Window(2, causal=True), Strided(3, causal=True)):
        own = pattern.mask(9)
        answers, weights = pattern(query, key, value, need_weights=True)
        assert (weights[..., ~own[5:]] == 0).all()
        assert_close(answers, attention(query, key, value, own[5:])[0])
        assert_close(pattern(key, key, value, bias=bias)[0], attention(key, key, value, own, bias)[0])


def language_model(patterns, positions="learned"):
    torch.manual_seed(3)
    table = embedding_table(17, 12)
    embedding = Embedding(table, added_positions(positions, 12, 40), 0.0, scaled=False)
    return LanguageModel(embedding, patterned_encoder(patterns, 12, 3, 20), Output(table)).eval()


@pytest.mark.parametrize("make", [lambda: Window(3, causal=True), lambda: Strided(4, causal=True)])
def test_a_language_model_reads_no_later_word_and_decodes_word_by_word(make):
    model, tokens = language_model([make(), Window(2, causal=True)]), torch.randint(4, 17, (2, 11))
    logits = model(tokens)
    changed = tokens.clone()
    changed[:, 6:] = 5
    assert_close(model(changed)[:, :6], logits[:, :6])
    state, token = model.start(tokens[:, :1]), tokens[:, 0]
    for t in range(11):
        step, state = model.step(state, token)
        assert_close(step, logits[:, t], rtol=1e-4, atol=1e-5)
        token = tokens[:, min(t + 1, 10)]


def test_padding_changes_nothing():
    encoder = patterned_encoder([Window(2, first=1), Strided(3)], 12, 3, 20).eval()
    x = torch.randn(2, 7, 12)
    mask = torch.ones(2, 1, 1, 7, dtype=torch.bool)
    longer = nn.functional.pad(x, (0, 0, 0, 5), value=9.0)
    assert_close(encoder(longer, nn.functional.pad(mask, (0, 5)))[:, :7], encoder(x, mask), rtol=1e-4, atol=1e-5)


def test_news_travels_two_windows_and_no_further():
    tokens, value, where = find_the_mark(3, 41, 7, torch.Generator().manual_seed(1))
    words = Embedding(embedding_table(16, 12), added_positions("sinusoidal", 12, 41), 0.0)
    model = ReadsLast(words, patterned_encoder([Window(5), Window(5)], 12, 3, 20), nn.Linear(12, 7))
    vectors = words(tokens).detach().requires_grad_()
    gradient = torch.autograd.grad(model.output(model.encoder(vectors)[:, -1]).sum(), vectors)[0].abs().sum((0, 2))
    assert ((gradient > 0) == (torch.arange(41) >= 40 - 10)).all()


def test_the_task_has_one_mark_and_its_value():
    tokens, value, where = find_the_mark(200, 9, 4, torch.Generator().manual_seed(1))
    assert (tokens[:, 0] == 8).all() and (tokens[:, -1] == 9).all() and set(where.tolist()) == set(range(1, 8))
    marked = (tokens >= 4) & (tokens < 8)
    assert (marked.sum(1) == 1).all() and (marked.int().argmax(1) == where).all()
    assert (tokens.gather(1, where[:, None])[:, 0] - 4 == value).all() and set(value.tolist()) == set(range(4))


@pytest.mark.parametrize("call, words", [
    (lambda: Window(0), "Window: width must be a positive whole number, not 0"),
    (lambda: Window(2, first=-1), "Window: first must be a whole number from 0, not -1"),
    (lambda: Strided(1.5), "Strided: stride must be a positive whole number, not 1.5"),
    (lambda: find_the_mark(2, 2), "find_the_mark: length must be at least 3, not 2"),
    (lambda: Window(2)(*torch.randn(3, 1, 1, 7, 4), torch.ones(1, 6, dtype=torch.bool)), r"Window: mask must be boolean and fit \(7, 7\)"),
    (lambda: Strided(2)(*torch.randn(3, 1, 1, 7, 4), torch.ones(1, 7)), "Strided: mask must be boolean"),
    (lambda: ReadsLast(nn.Embedding(4, 6), nn.Identity(), nn.Linear(6, 3)).loss(torch.ones(2, 5).long(), torch.tensor([0, 3])),
     "ReadsLast: labels must be from 0 to 2")])
def test_wrong_calls_are_told_in_one_line(call, words):
    with pytest.raises(ValueError, match=words) as problem:
        call()
    assert "\n" not in str(problem.value)


def test_heads_take_a_pattern():
    heads = MultiHeadAttention(12, 3, pattern=Window(2))
    x = torch.randn(2, 9, 12)
    _, weights = SelfAttention(heads)(x, need_weights=True)
    assert (weights[..., ~Window(2).mask(9)] == 0).all()
    assert_close(SelfAttention(heads)(x)[0], MultiHeadAttention.forward(heads, x, mask=Window(2).mask(9))[0])

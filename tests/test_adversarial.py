"""Swaps of words: gains against autograd by loops and against finite steps, allowed swaps against sets, the best swap against trying all; errors."""
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from transformer_course.data.reviews import ASPECTS, NEGATIVE, POSITIVE
from transformer_course.data.text import PAD, Tokenizer
from transformer_course.models.adversarial import (allowed_swaps, best_swap, first_order_gains, first_order_swap, random_swap, review_losses,
                                                   with_swap, word_groups)
from transformer_course.models.classifier import SentenceClassifier

V, GROUP = 11, torch.tensor([-1, -1, -1, -1, 0, 0, 0, 1, 1, 1, 1])


def model(classes=3):
    torch.manual_seed(1)
    return SentenceClassifier(V, classes, d_model=5, d_hidden=7).eval()


def reviews():
    return torch.tensor([[4, 3, 7, 9], [8, 5, 3, PAD], [3, 3, PAD, PAD]]), torch.tensor([2, 0, 1])


def test_gains_equal_loops_over_words():
    net, (tokens, labels) = model(), reviews()
    found = first_order_gains(net, tokens, labels, net.embedding)
    assert found.shape == (3, 4, V)
    for b in range(3):
        vectors = net.embedding(tokens[b:b + 1]).detach().requires_grad_()
        _, final = net.layers(vectors, tokens[b:b + 1] != PAD)
        loss = nn.functional.cross_entropy(net.output(torch.cat([hidden[0] for hidden in final], -1)), labels[b:b + 1])
        gradient, = torch.autograd.grad(loss, vectors)
        for t in range(4):
            for v in range(V):
                expected = gradient[0, t] @ (net.embedding.weight[v] - net.embedding.weight[tokens[b, t]])
                assert_close(found[b, t, v], expected.detach(), rtol=1e-4, atol=1e-6)


def test_gains_are_the_slope_of_the_loss():
    net, (tokens, labels) = model(), reviews()
    net.double()
    gains, step = first_order_gains(net, tokens, labels, net.embedding), 1e-5
    before = review_losses(net, tokens, labels)
    new = torch.tensor(10)                              # no review has it: its row may take a step from another word's
    old = int(tokens[1, 0])
    with torch.no_grad():
        net.embedding.weight[new] = net.embedding.weight[old] + step * (net.embedding.weight[6] - net.embedding.weight[old])
    tokens[1, 0] = new
    after = review_losses(net, tokens, labels)
    assert_close((after - before)[1] / step, gains[1, 0, 6], rtol=1e-3, atol=1e-6)


def test_gains_leave_the_model_as_it_was_and_work_without_gradients():
    net, (tokens, labels) = model(), reviews()
    expected = first_order_gains(net, tokens, labels, net.embedding)
    with torch.no_grad():
        assert_close(first_order_gains(net, tokens, labels, net.embedding), expected)
    assert all(p.grad is None for p in net.parameters()) and not net.embedding._forward_hooks


def test_padding_changes_no_gain():
    net, (tokens, labels) = model(), reviews()
    alone = first_order_gains(net, tokens[1:2, :3], labels[1:2], net.embedding)
    assert_close(first_order_gains(net, tokens, labels, net.embedding)[1:2, :3], alone, rtol=1e-4, atol=1e-6)


def test_allowed_swaps_equal_sets():
    tokens, _ = reviews()
    found = allowed_swaps(tokens, GROUP)
    for b, row in enumerate(tokens.tolist()):
        for t, old in enumerate(row):
            expected = {v for v in range(V) if GROUP[old] >= 0 and GROUP[v] == GROUP[old]} - set(row)
            assert set(found[b, t].nonzero()[:, 0].tolist()) == expected


def test_the_best_swap_is_the_best_of_all():
    net, (tokens, labels) = model(), reviews()
    swaps, highest = best_swap(net, tokens, labels, GROUP)
    with torch.no_grad():
        for b in range(2):
            tried = {}
            for t, v in allowed_swaps(tokens, GROUP)[b].nonzero().tolist():
                row = tokens[b:b + 1].clone()
                row[0, t] = v
                tried[t * V + v] = review_losses(net, row, labels[b:b + 1]).item()
            assert swaps[b].item() == max(tried, key=tried.get) and abs(highest[b].item() - max(tried.values())) < 1e-5
        assert swaps[2] == -1
        assert_close(highest[2], review_losses(net, tokens, labels)[2])


def test_first_order_and_random_swaps_are_allowed_ones():
    net, (tokens, labels) = model(), reviews()
    gains, allowed = first_order_gains(net, tokens, labels, net.embedding), allowed_swaps(tokens, GROUP)
    found = first_order_swap(net, tokens, labels, net.embedding, GROUP)
    for b in range(2):
        assert gains[b].flatten()[found[b]] == gains[b][allowed[b]].max()
    assert found[2] == -1
    drawn = torch.stack([random_swap(tokens, GROUP, torch.Generator().manual_seed(n)) for n in range(300)])
    assert set(drawn[:, 0].tolist()) == set(allowed[0].flatten().nonzero()[:, 0].tolist()) and (drawn[:, 2] == -1).all()


def test_a_swap_replaces_one_word():
    tokens, _ = reviews()
    changed = with_swap(tokens, torch.tensor([2 * V + 8, 1 * V + 6, -1]), V)
    assert changed.tolist() == [[4, 3, 8, 9], [8, 6, 3, PAD], [3, 3, PAD, PAD]]
    assert tokens[0].tolist() == [4, 3, 7, 9]


def test_groups_of_words():
    words = Tokenizer.train(["the plot is good", "the music is dull and fine"], kind="words", size=50)
    group = word_groups(words, (POSITIVE, NEGATIVE, ASPECTS))
    expected = {"good": 0, "fine": 0, "dull": 1, "plot": 2, "music": 2, "the": -1, "is": -1, "and": -1}
    assert {word: int(group[words.encode(word)[0]]) for word in expected} == expected
    assert group[:4].tolist() == [-1] * 4 and len(group) == len(words)


@pytest.mark.parametrize("call, message", [
    (lambda net, x, y: first_order_gains(net, x[0], y, net.embedding), "first_order_gains: tokens must be (B, T) ids, not (4,) of torch.int64"),
    (lambda net, x, y: first_order_gains(net, x.float(), y, net.embedding), "first_order_gains: tokens must be (B, T) ids, not (3, 4) of torch.float32"),
    (lambda net, x, y: first_order_gains(net, x, y, nn.Embedding(V, 5)), "first_order_gains: the model must read the table once, not 0 times"),
    (lambda net, x, y: first_order_gains(net, x, y[:2], net.embedding), "review_losses: labels"),
    (lambda net, x, y: word_groups(Tokenizer.train(["a b"], kind="characters", size=20), ()), "word_groups: the tokenizer must be of kind 'words', not 'characters'"),
])
def test_errors_say_what_is_wrong(call, message):
    net, (tokens, labels) = model(), reviews()
    with pytest.raises(ValueError) as found:
        call(net, tokens, labels)
    assert str(found.value).startswith(message) and "\n" not in str(found.value)
    assert not net.embedding._forward_hooks

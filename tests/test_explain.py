"""Explanations against other ways to compute them: finite differences, sums over all paths, loops, and Captum."""
import itertools

import pytest
import torch
from torch import nn

from transformer_course.models.explain import (
    deletion_curve, gradient_norm, gradient_x_input, integrated_gradients, occlusion, rollout, word_score)
from transformer_course.models.transformer import Transformer

B, S, T, D, H = 2, 5, 7, 3, 4


@pytest.fixture
def score():
    """A smooth function of rows of vectors, in double precision: (B, S, D) -> (B,)."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Flatten(), nn.Linear(S * D, 11), nn.Tanh(), nn.Linear(11, 1)).double().requires_grad_(False)
    return lambda vectors: network(vectors)[:, 0]


@pytest.fixture
def vectors():
    return torch.randn(B, S, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def baseline():
    return torch.randn(1, S, D, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def slope_by_differences(score, vectors, step=1e-5):
    """The gradient, one number at a time, without autograd."""
    slopes = torch.zeros_like(vectors)
    for b, s, d in itertools.product(*map(range, vectors.shape)):
        more, less = vectors.clone(), vectors.clone()
        more[b, s, d] += step
        less[b, s, d] -= step
        slopes[b, s, d] = (score(more)[b] - score(less)[b]) / (2 * step)
    return slopes


def test_gradients_are_those_of_finite_differences(score, vectors):
    slopes = slope_by_differences(score, vectors)
    torch.testing.assert_close(gradient_norm(score, vectors), slopes.pow(2).sum(-1).sqrt(), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(gradient_x_input(score, vectors), (slopes * vectors).sum(-1), rtol=1e-6, atol=1e-8)


def test_integrated_gradients_are_an_independent_path_integral(score, vectors, baseline):
    """The trapezium rule over finite differences, which shares neither the nodes nor autograd."""
    points, total = 300, torch.zeros_like(vectors)
    for i in range(points + 1):
        point = baseline + i / points * (vectors - baseline)
        total += slope_by_differences(score, point) * (0.5 if i in (0, points) else 1.0) / points
    found = integrated_gradients(score, vectors, baseline, steps=24)
    torch.testing.assert_close(found, (total * (vectors - baseline)).sum(-1), rtol=1e-4, atol=1e-5)


def test_integrated_gradients_are_complete_and_more_nodes_are_nearer(score, vectors, baseline):
    whole = score(vectors) - score(baseline.expand_as(vectors))
    gap = [(integrated_gradients(score, vectors, baseline, steps).sum(-1) - whole).abs().max().item() for steps in (1, 24)]
    assert gap[1] < 1e-6 < gap[0]


def test_one_node_is_the_middle_of_the_path(score, vectors, baseline):
    middle = (vectors + baseline) / 2
    by_hand = (slope_by_differences(score, middle) * (vectors - baseline)).sum(-1)
    torch.testing.assert_close(integrated_gradients(score, vectors, baseline, 1), by_hand, rtol=1e-6, atol=1e-8)


def test_gradients_equal_those_of_captum(score, vectors, baseline):
    captum = pytest.importorskip("captum.attr", reason="captum is not installed")
    base = baseline.expand_as(vectors).contiguous()
    ours = integrated_gradients(score, vectors, baseline, steps=12)
    theirs = captum.IntegratedGradients(score).attribute(vectors, base, n_steps=12, method="gausslegendre").sum(-1)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradient_norm(score, vectors), captum.Saliency(score).attribute(vectors.clone(), abs=False).norm(dim=-1))
    torch.testing.assert_close(gradient_x_input(score, vectors), captum.InputXGradient(score).attribute(vectors.clone()).sum(-1))


def test_occlusion_replaces_one_word_at_a_time(score, vectors, baseline):
    found = occlusion(score, vectors, baseline)
    for b, s in itertools.product(range(B), range(S)):
        without = vectors.clone()
        without[b, s] = baseline[0, s]
        assert found[b, s].item() == pytest.approx((score(vectors)[b] - score(without)[b]).item())


def test_deletion_replaces_more_and_more_words(score, vectors, baseline):
    curve, row = deletion_curve(score, vectors[:1], baseline, [3, 0, 4]), vectors[:1].clone()
    by_loop = [score(row).item()]
    for s in (3, 0, 4):
        row[0, s] = baseline[0, s]
        by_loop.append(score(row).item())
    assert curve.tolist() == pytest.approx(by_loop)


@pytest.mark.parametrize("own", [0.0, 0.3, 1.0])
def test_rollout_sums_over_all_routes(own):
    """A route goes through a position in each layer; its weight is the product of its steps."""
    layers = [torch.rand(B, H, S, S, dtype=torch.float64).softmax(-1) for _ in range(3)]
    found = rollout(layers, own)
    steps = [(1 - own) * layer.mean(1) + own * torch.eye(S) for layer in layers]
    by_routes = torch.zeros(B, S, S, dtype=torch.float64)
    for top, upper, lower, word in itertools.product(range(S), repeat=4):
        by_routes[:, top, word] += steps[2][:, top, upper] * steps[1][:, upper, lower] * steps[0][:, lower, word]
    torch.testing.assert_close(found, by_routes)
    torch.testing.assert_close(found.sum(-1), torch.ones(B, S, dtype=torch.float64))


@pytest.fixture
def translator():
    torch.manual_seed(4)
    return Transformer(13, 17, d_model=12, n_heads=H, n_layers=2, d_ff=9, dropout=0.0, tied=False).eval().requires_grad_(False)


SRC, TGT = torch.tensor([[4, 9, 12, 6, 3]]), torch.tensor([[2, 5, 8, 11, 16, 7, 4, 3]])


def test_word_score_is_the_models_own(translator):
    logits = translator(SRC, TGT[:, :-1])[0]                                              # (T, V)
    vectors = translator.src_embedding.word_vectors(SRC)
    for at in range(T):
        assert word_score(translator, SRC, TGT, at)(vectors).item() == pytest.approx(logits[at].log_softmax(-1)[TGT[0, at + 1]].item(), abs=1e-5)
        against = word_score(translator, SRC, TGT, at, other=9)(vectors).item()
        assert against == pytest.approx((logits[at, TGT[0, at + 1]] - logits[at, 9]).item(), abs=1e-5)


def test_rows_may_explain_different_words(translator):
    at, vectors = torch.tensor([5, 0, 2]), translator.src_embedding.word_vectors(SRC)
    unknown = translator.src_embedding.word_vectors(torch.ones_like(SRC))
    together, rows = word_score(translator, SRC, TGT, at), vectors.expand(3, -1, -1)
    for method in (gradient_norm, gradient_x_input, lambda *of: integrated_gradients(*of, unknown, 6), lambda *of: occlusion(*of, unknown)):
        alone = torch.cat([method(word_score(translator, SRC, TGT, i), vectors) for i in at.tolist()])
        torch.testing.assert_close(method(together, rows), alone, rtol=1e-4, atol=1e-5)


def test_a_later_target_word_explains_nothing(translator):
    other, vectors = TGT.clone(), translator.src_embedding.word_vectors(SRC)
    other[0, 4:] = 5
    for tgt in (TGT, other):
        found = gradient_norm(word_score(translator, SRC, tgt, 2), vectors)
        torch.testing.assert_close(found, gradient_norm(word_score(translator, SRC, TGT, 2), vectors))


def test_wrong_calls_are_told_in_one_line(translator, score, vectors, baseline):
    wrong = [(lambda: integrated_gradients(score, vectors, baseline, 0), "steps must be a positive whole number, not 0"),
             (lambda: integrated_gradients(score, vectors, baseline[:, :2]), "does not broadcast"),
             (lambda: occlusion(score, vectors, baseline[:, :2]), "does not broadcast"),
             (lambda: rollout([torch.ones(2, 3, 4, 4), torch.ones(2, 3, 5, 5)]), r"rollout: each layer must be \(B, H, S, S\) = \(2, H, 4, 4\), not \(2, 3, 5, 5\)"),
             (lambda: rollout([torch.ones(2, 3, 4, 4), torch.ones(1, 3, 4, 4)]), r"rollout: each layer must be .* not \(1, 3, 4, 4\)"),
             (lambda: rollout([torch.ones(2, 3, 5, 4)]), r"rollout: each layer must be .* not \(2, 3, 5, 4\)"),
             (lambda: rollout([torch.ones(2, 4, 4)]), r"rollout: each layer must be .* not \(2, 4, 4\)"),
             (lambda: rollout([]), "weights is empty"), (lambda: rollout([torch.ones(1, 1, 2, 2)], 1.5), "own must be from 0 to 1, not 1.5"),
             (lambda: deletion_curve(score, vectors, baseline, [0]), "must be one sentence"),
             (lambda: deletion_curve(score, vectors[:1], baseline, [1, 1]), "different positions"),
             (lambda: deletion_curve(score, vectors[:1], baseline, [S]), "different positions below 5"),
             (lambda: word_score(translator, SRC.expand(2, -1), TGT, 0), "must be one sentence"),
             (lambda: word_score(translator, SRC, TGT, T), "at must be from 0 to 6, not 7")]
    for call, message in wrong:
        with pytest.raises(ValueError, match=message) as raised:
            call()
        assert "\n" not in str(raised.value)

"""Adaptive spans: against loops, full attention, hard windows and finite differences; trimming; caches; the echoes; bad input."""
import math
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from transformer_course.models.adaptive_span import AdaptiveSpan, SpanCache, echoes, soft_mask, span_cost, use_spans
from transformer_course.models.attention import MultiHeadAttention, SelfAttention, plain_attention
from transformer_course.models.functional import causal_mask
from transformer_course.models.positions import Sinusoidal
from transformer_course.models.relative_positions import Relative
from transformer_course.models.transformer_lm import TransformerLM
from transformer_course.protocols import AttentionPattern, Cache

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
import adaptive_span as experiment    # noqa: E402

B, H, S, K, LONGEST = 2, 3, 11, 5, 13


def pattern(*spans, ramp=4, dtype=torch.float64):
    made = AdaptiveSpan(len(spans), LONGEST, ramp).to(dtype)
    with torch.no_grad():
        made.share.copy_(torch.tensor(spans, dtype=dtype) / LONGEST)
    return made


def drawn(seed=1, T=S):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(B, H, n, K, generator=draw, dtype=torch.float64) for n in (T, S, S)]


def by_loops(query, key, value, spans, ramp, bias=None):
    """Weights (B, H, T, S) and output (B, H, T, K) of a causal text, number by number."""
    T = query.shape[2]
    weights = torch.zeros(B, H, T, S, dtype=query.dtype)
    for b in range(B):
        for h in range(H):
            for t in range(T):
                now = S - T + t
                parts = []
                for s in range(now + 1):
                    m = min(max((ramp + spans[h] - (now - s)) / ramp, 0.0), 1.0)
                    score = (query[b, h, t] @ key[b, h, s] / math.sqrt(K)).item() + (0.0 if bias is None else bias[h, t, s].item())
                    parts.append(m * math.exp(score))
                for s, part in enumerate(parts):
                    weights[b, h, t, s] = part / sum(parts)
    return weights @ value, weights


@pytest.mark.parametrize("spans,ramp,T", [((0.0, 2.5, 6.0), 4, S), ((0.0, 0.3, 1.0), 1, S), ((2.0, 7.7, 3.2), 3, 4), ((1.0, 0.0, 0.5), 2, 1)])
def test_outputs_and_weights_are_those_of_loops(spans, ramp, T):
    query, key, value = drawn(T=T)
    bias = torch.randn(H, T, S, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for added in (None, bias):
        output, weights = pattern(*spans, ramp=ramp)(query, key, value, causal_mask(S)[S - T:], bias=added, need_weights=True)
        expected, of_loops = by_loops(query, key, value, spans, ramp, added)
        assert_close(weights, of_loops)
        assert_close(output, expected)


def test_a_full_span_is_full_attention_and_a_ramp_of_one_a_hard_window():
    query, key, value = drawn()
    assert_close(pattern(LONGEST, LONGEST, LONGEST)(query, key, value, causal_mask(S))[0], plain_attention(query, key, value, causal_mask(S))[0])
    for z in (0, 3, 7):
        window = causal_mask(S).triu(-z)
        assert_close(pattern(z, z, z, ramp=1)(query, key, value, causal_mask(S))[0], plain_attention(query, key, value, window)[0])


def test_words_out_of_reach_change_nothing_and_are_not_read():
    query, key, value = drawn(T=2)
    made = pattern(0.0, 2.5, 1.0, ramp=3)
    assert made.reach() == [3, 6, 4]
    first = S - 2 + 1 - 6                                         # the first word that the first query's longest head reads
    output, weights = made(query, key, value, causal_mask(S)[S - 2:], need_weights=True)
    key[:, :, :first], value[:, :, :first] = float("nan"), float("nan")
    assert_close(made(query, key, value, causal_mask(S)[S - 2:])[0], output)
    assert weights.shape == (B, H, 2, S) and (weights[..., :first] == 0).all()
    assert made(query, key, value)[1] is None


def test_a_far_word_with_a_huge_score_does_not_push_out_the_near_ones():
    query, key, value = drawn(T=1)
    key[:, :, 3] = 1000 * query[:, :, 0]
    output, weights = pattern(0.0, 1.0, 2.0, ramp=3)(query, key, value, need_weights=True)
    assert output.isfinite().all() and (weights[..., 3] == 0).all()
    assert_close(weights.sum(-1), torch.ones(B, H, 1, dtype=torch.float64))


def test_padding_and_rows_that_may_see_nothing():
    query, key, value = drawn()
    real = torch.ones(B, S, dtype=torch.bool)
    real[1, 7:] = False
    mask = real[:, None, None] & causal_mask(S)
    made = pattern(2.0, 5.5, 9.0)
    output = made(query, key, value, mask)[0]
    key[1, :, 7:], value[1, :, 7:] = 9.0, -9.0
    assert_close(made(query, key, value, mask)[0], output)
    mask[0, :, 4] = False
    assert (made(query, key, value, mask)[0][0, :, 4] == 0).all()


def test_the_gradient_of_a_span_is_that_of_finite_differences_and_comes_from_the_ramp_alone():
    query, key, value = drawn()
    made, goal = pattern(1.3, 4.6, 7.25), torch.randn(B, H, S, K, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    def loss():
        return (made(query, key, value, causal_mask(S))[0] * goal).sum()
    loss().backward()
    for h in range(H):
        ends = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                made.share[h] += step
                ends.append(loss().item())
                made.share[h] -= step
        assert abs((ends[0] - ends[1]) / 2e-6 - made.share.grad[h].item()) < 1e-4
    full = pattern(LONGEST, LONGEST, LONGEST)                       # no word lies on a ramp
    full(query, key, value, causal_mask(S))[0].sum().backward()
    assert (full.share.grad == 0).all()


def small(spans=(0.0, 3.4, 1.0), ramp=3, positions="rotary", layers=2):
    torch.manual_seed(4)
    model = TransformerLM(17, 12, n_heads=3, n_layers=layers, d_ff=19, dropout=0.0, positions=positions).eval()
    for made, shift in zip(use_spans(model, LONGEST, ramp), (0.0, 1.2)):
        with torch.no_grad():
            made.share.copy_((torch.tensor(spans) + shift) / LONGEST)
    return model


@pytest.mark.parametrize("positions", ["rotary", "relative", "alibi", "learned"])
def test_word_by_word_as_all_at_once_and_the_cache_forgets(positions):
    model = small(positions=positions)
    tokens = torch.randint(4, 17, (B, 15), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = model(tokens)
        state = model.start(tokens[:, :7])
        for t in range(6, 15):
            logits, state = model.step(state, tokens[:, t])
            assert_close(logits, expected[:, t], rtol=1e-4, atol=1e-5)
            assert state.position == t + 1
    reaches = [max(layer.self_attention.heads.pattern.reach()) for layer in model.stack.layers]
    assert [cache.keys.shape[2] for cache in state.caches] == [n - 1 for n in reaches] and max(reaches) < 15
    swapped = state.select(torch.tensor([1, 0, 1]))
    with torch.no_grad():
        again, _ = model.step(swapped, torch.tensor([5, 6, 5]))
        here, _ = model.step(state, torch.tensor([6, 5]))
    assert_close(again, here[[1, 0, 1]])


def test_a_cache_is_not_changed_by_its_copy():
    model = small()
    tokens = torch.randint(4, 17, (B, 9), generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        state = model.start(tokens)
        once, _ = model.step(state, tokens[:, -1])
        again, _ = model.step(state, tokens[:, -1])
    assert_close(once, again, rtol=0, atol=0)
    assert SpanCache(3).length == 0 and SpanCache(3).select(torch.tensor([0])).length == 0
    none = SpanCache(0)
    none.append(torch.ones(B, H, 2, K), torch.ones(B, H, 2, K))
    assert none.length == 2 and none.keys.shape[2] == 0


def test_it_is_a_pattern_with_a_cache():
    made = pattern(1.0, 2.0, 3.0)
    assert isinstance(made, AttentionPattern) and isinstance(made.new_cache(), Cache)
    heads = MultiHeadAttention(12, 3, pattern=pattern(1.0, 2.0, 3.0, dtype=torch.float32))
    assert any(name.endswith("pattern.share") for name, _ in heads.named_parameters())
    x = torch.randn(B, 7, 12)
    output, weights = SelfAttention(heads, Relative(4))(x, causal_mask(7), need_weights=True)
    assert output.shape == x.shape and weights.shape == (B, 3, 7, 7) and Sinusoidal(12)(0, 7).shape == (7, 12)


def test_spans_stay_in_bounds_and_their_cost_is_a_sum():
    made = pattern(1.0, 5.0, 13.0)
    assert_close(span_cost([made, made], 0.01).item(), 0.38)
    with torch.no_grad():
        made.share += torch.tensor([-1.0, 0.0, 1.0])
    made.limit()
    assert_close(made.spans(), torch.tensor([0.0, 5.0, 13.0], dtype=torch.float64))
    assert soft_mask(torch.arange(8), torch.tensor(2.0), 4).tolist() == [1, 1, 1, 0.75, 0.5, 0.25, 0, 0]


def test_each_letter_of_an_echo_has_one_of_two_reasons():
    text = echoes(40, 90, distance=7, letters=9, generator=torch.Generator().manual_seed(1)) - 4
    assert text.shape == (40, 90) and text.min() == 0 and text.max() == 8
    after, echo = (text[:, 6:-1] + 1) % 9 == text[:, 7:], text[:, :-7] == text[:, 7:]
    assert (after | echo).all() and 0.4 < (after & ~echo).float().mean() / (after ^ echo).float().mean() < 0.6


def test_the_experiment_knows_what_can_be_known():
    rules = experiment.by_rules(echoes(300, 65, generator=torch.Generator().manual_seed(2)))
    assert abs(rules["guess"] - math.log(16)) < 1e-3 and rules["alphabet and echo"] < 0.9 < 1.4 < rules["alphabet"] < 1.6
    query, key, value = drawn()
    assert_close(experiment.Window(H, 4)(query, key, value, causal_mask(S))[0].double(),
                 plain_attention(query, key, value, causal_mask(S).triu(-3))[0], rtol=1e-5, atol=1e-5)
    assert experiment.Window(H, 4).reach() == [4] * H


@pytest.mark.parametrize("call,says", [
    (lambda: AdaptiveSpan(0, 9, 3), "AdaptiveSpan: n_heads must be a positive whole number, not 0"),
    (lambda: AdaptiveSpan(2, 9, 0), "AdaptiveSpan: ramp must be a positive whole number, not 0"),
    (lambda: AdaptiveSpan(2, 9, 3, start=1.5), "AdaptiveSpan: start must be from 0 to 1, not 1.5"),
    (lambda: echoes(2, 9, distance=0), "echoes: distance must be a positive whole number, not 0")])
def test_calls_that_cannot_work(call, says):
    with pytest.raises(ValueError, match=says) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_model_without_attention_in_its_layers_is_told_and_stays_as_it_was():
    model, half = torch.nn.Linear(3, 4), small()
    half.stack.layers.append(torch.nn.Linear(3, 4))
    before = [layer.self_attention.heads.pattern for layer in half.stack.layers[:2]]
    for foreign, name in ((model, "Linear"), (half, "TransformerLM")):
        with pytest.raises(TypeError, match=f"use_spans: {name} is no language model whose layers have a self_attention") as error:
            use_spans(foreign, LONGEST, 3)
        assert "\n" not in str(error.value)
    assert [layer.self_attention.heads.pattern for layer in half.stack.layers[:2]] == before


def test_no_spans_cost_nothing():
    free = span_cost([], 0.01)
    assert isinstance(free, torch.Tensor) and free.shape == () and free == 0
    made = pattern(1.0, 5.0, 13.0)
    span_cost([made], 0.01).backward()
    assert_close(made.share.grad, torch.full_like(made.share, 0.01 * LONGEST))

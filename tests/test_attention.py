"""Attention on random sizes and masks: what is hidden cannot be noticed, order alone changes nothing, and its open doors."""
import math
from copy import copy

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course.models import attention as module
from transformer_course.models.attention import (Dense, MultiHeadAttention, attention, attention_weights,
                                                 plain_attention)
from transformer_course.models.caches import KeyValueCache
from transformer_course.models.functional import causal_mask
from transformer_course.models.transformer import Transformer

sizes = st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 3]), st.integers(1, 6), st.integers(1, 7))   # B, H, T, S


@pytest.fixture(params=["plain", "fused"])
def road(request, monkeypatch):
    monkeypatch.setattr(module, "_plain_is_faster", lambda query, key: request.param == "plain")


def random_inputs(seed, B, H, T, S, K=4):
    torch.manual_seed(seed)
    return (torch.randn(B, H, n, K, requires_grad=True) for n in (T, S, S))


@pytest.mark.parametrize("plain", [True, False])
@given(sizes, st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_what_a_mask_hides_is_not_noticed(plain, size, seed):
    B, H, T, S = size
    q, k, v = random_inputs(seed, B, H, T, S)
    mask = torch.rand(B, 1, T, S) < 0.5
    unseen = ~mask.any(-2)[:, :, :, None]                                    # (B, 1, S, 1) keys that nobody may look at
    original = module._plain_is_faster
    module._plain_is_faster = lambda query, key: plain
    try:
        output = attention(q, k, v, mask)[0]
        changed = attention(q, torch.where(unseen, 50.0, k), torch.where(unseen, -50.0, v), mask)[0]
    finally:
        module._plain_is_faster = original
    assert_close(output, changed)
    grads = torch.autograd.grad(output.square().sum(), (k, v))
    assert not any(grad.masked_select(unseen).any() or grad.isnan().any() for grad in grads)


@given(sizes, st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_an_output_lies_within_the_values_it_may_see(size, seed):
    q, k, v = random_inputs(seed, *size)
    output = attention(q, k, v)[0]
    assert (output <= v.amax(-2, keepdim=True) + 1e-5).all() and (output >= v.amin(-2, keepdim=True) - 1e-5).all()
    assert_close(attention(q, k[:, :, :1], v[:, :, :1])[0], v[:, :, :1].expand_as(q))   # one key: its value


@given(st.integers(2, 6), st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_without_a_mask_permuted_words_give_permuted_answers(T, seed):
    torch.manual_seed(seed)
    layer, x, order = MultiHeadAttention(12, 3), torch.randn(2, T, 12), torch.randperm(T)
    y = x[:, order]
    assert_close(layer(y)[0], layer(x)[0][:, order])


def test_mask_bias_and_changed_queries_meet_in_cross_attention(road):
    torch.manual_seed(3)
    layer, x, memory = MultiHeadAttention(12, 3, cross=True), torch.randn(2, 5, 12), torch.randn(2, 7, 12)
    mask, bias, turn = torch.rand(2, 1, 5, 7) < 0.7, torch.randn(3, 5, 7), lambda y: y * torch.arange(1.0, 5.0)
    mask[0, 0, 2] = False
    q, (k, v) = layer.project_query(x), layer.project_source(memory)
    scores = (turn(q) @ turn(k).mT / math.sqrt(4) + bias).masked_fill(~mask, -torch.inf)
    weights = scores.softmax(-1).nan_to_num()
    expected = layer.out_proj((weights @ v).transpose(1, 2).flatten(2))
    for need_weights in (True, False):
        output, found = layer.attend(turn(q), turn(k), v, mask, bias=bias, need_weights=need_weights)
        assert_close(output, expected)
        assert found is None or torch.allclose(found, weights, atol=1e-6)
    assert_close(layer(x, memory, mask, bias=bias)[0], layer.attend(q, k, v, mask, bias=bias)[0])
    cache = layer.pattern.new_cache()
    cache.append(turn(k[:, :, :3]), v[:, :, :3])
    assert_close(layer.attend(turn(q), *cache.append(turn(k[:, :, 3:]), v[:, :, 3:]), mask, bias=bias)[0], expected)


@pytest.mark.parametrize("length", [1, 300])                                 # 300: beyond the plain road
def test_long_and_short_causal_sentences_agree_with_pytorch(length):
    torch.manual_seed(4)
    q, k, v = torch.randn(3, 2, 2, length, 4).unbind(0)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    for need_weights in (True, False):
        assert_close(attention(q, k, v, causal_mask(length), need_weights=need_weights)[0], expected)


def causal_and_real():
    """One sentence padded behind, one before (its first rows see nothing), one of nothing but padding: mask (B=3, 1, T=6, S=6)."""
    real = torch.tensor([[1, 1, 1, 1, 0, 0], [0, 0, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0]]).bool()
    mask = causal_mask(6) & real[:, None, None]
    sees = mask.any(-1, keepdim=True)                                        # (B, 1, T, 1)
    assert sees[:, 0, :, 0].tolist() == [[True] * 6, [False] * 2 + [True] * 4, [False] * 6]
    return mask, sees, real


def test_both_masks_at_once_and_rows_that_see_nothing_as_pytorch(road):
    """PyTorch's versions differ about a row that sees nothing: there it may see all, and its answer is taken away."""
    torch.manual_seed(7)
    (mask, sees, real), (q, k, v, weight) = causal_and_real(), torch.randn(4, 3, 2, 6, 5).unbind(0)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    theirs = F.scaled_dot_product_attention(*inputs, mask | ~sees) * sees
    expected = torch.autograd.grad(theirs, inputs, weight)
    for ours in (plain_attention(*inputs, mask)[0], *(attention(*inputs, mask, need_weights=asked)[0] for asked in (True, False))):
        assert_close(ours, theirs)
        assert_close(torch.autograd.grad(ours, inputs, weight), expected)


@pytest.mark.parametrize("joined_by", ["us", "pytorch"])
def test_the_layer_under_both_masks_is_pytorchs(road, joined_by):
    torch.manual_seed(8)
    ours, theirs = MultiHeadAttention(12, 3), nn.MultiheadAttention(12, 3, batch_first=True)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):      # in_proj, out_proj: weight, bias
        other.data.copy_(nn.init.normal_(mine, std=0.4))
    mask, sees, real = causal_and_real()
    if joined_by == "pytorch":                                               # the first two sentences from their first real word on
        real = torch.stack((real[0, :4], real[1, 2:]))
        mask, sees = causal_mask(4) & real[:, None, None], torch.ones(2, 1, 4, 1, dtype=torch.bool)
        flipped = {"attn_mask": ~causal_mask(4), "key_padding_mask": ~real}
    else:
        flipped = {"attn_mask": ~(mask | ~sees).repeat_interleave(3, dim=0)[:, 0]}    # (B H, T, S)
    x, weight = torch.randn(*real.shape, 12, requires_grad=True), torch.randn(*real.shape, 12)
    output, their_weights = theirs(x, x, x, **flipped, average_attn_weights=False)
    expected = torch.where(sees[:, 0], output, theirs.out_proj.bias)         # a head that sees nothing says zero
    gradients = torch.autograd.grad(expected, [x, *theirs.parameters()], weight)
    for need_weights in (True, False):
        found, our_weights = ours(x, mask=mask, need_weights=need_weights)
        assert_close(found, expected)
        assert our_weights is None or torch.allclose(our_weights, their_weights * sees, atol=1e-6)
        assert_close(torch.autograd.grad(found, [x, *ours.parameters()], weight), gradients, rtol=1e-4, atol=1e-5)


def test_dropout_acts_on_weights_in_training_only(road):
    torch.manual_seed(5)
    layer, x = MultiHeadAttention(12, 3, dropout=0.5), torch.randn(2, 6, 12)
    assert not torch.allclose(layer(x)[0], layer(x)[0])
    layer.eval()
    assert_close(layer(x)[0], layer(x)[0])


def test_mask_and_bias_run_on_meta():
    with torch.device("meta"):
        layer, x = MultiHeadAttention(12, 3), torch.zeros(2, 5, 12)
        output, weights = layer(x, mask=causal_mask(5, "meta"), bias=torch.zeros(3, 5, 5), need_weights=True)
    assert output.shape == (2, 5, 12) and weights.shape == (2, 3, 5, 5) and output.device.type == "meta"


def test_errors_name_what_was_given():
    q = torch.zeros(1, 1, 2, 4)
    with pytest.raises(ValueError, match="mask must be boolean"):
        attention(q, q, q, torch.ones(2, 2))
    with pytest.raises(ValueError, match="n_heads=5 does not divide d_model=12"):
        MultiHeadAttention(12, 5)
    layer, x, cache = MultiHeadAttention(12, 3), torch.zeros(3, 2, 12), Dense().new_cache()      # as many sentences as heads
    (q, k, v), mask = layer.project(x), torch.ones(3, 2, 2, dtype=torch.bool)
    for call in (lambda: layer(x, mask=mask), lambda: layer.attend(q, k, v, mask), lambda: layer.attend(q, *cache.append(k, v), mask)):
        with pytest.raises(ValueError, match=r"mask of shape \(3, 2, 2\) has no axis for the heads"):
            call()
    assert layer(x, mask=mask[:, None])[0].shape == (3, 2, 12)


def test_a_head_may_have_any_size():
    """Heads times their size need not be the width: six heads of four in a width of ten, against a sum over heads."""
    torch.manual_seed(9)
    layer, x, memory = MultiHeadAttention(10, 6, d_head=4, bias=False, cross=True), torch.randn(2, 5, 10), torch.randn(2, 7, 10)
    wq, wk, wv = (w.unflatten(0, (6, 4)) for w in (layer.q_proj.weight, *layer.kv_proj.weight.chunk(2)))                       # (H, K, D) each
    total = 0
    for q, k, v, out in zip(wq, wk, wv, layer.out_proj.weight.split(4, dim=1), strict=True):
        total = total + ((x @ q.T) @ (memory @ k.T).mT / 2).softmax(-1) @ (memory @ v.T) @ out.T
    assert_close(layer(x, memory)[0], total)
    assert layer.d_head == 4 and all("bias" not in name for name, parameter in layer.named_parameters())


def test_a_copy_of_a_cache_stays_as_it_was():
    key, value = torch.randn(2, 2, 3, 5, 4).unbind(0)                                                  # B=2, H=3, five words, K=4
    def after(cache, places):
        longer = copy(cache)
        keys, values = longer.append(key[:, :, places], value[:, :, places])
        assert keys is longer.keys and values is longer.values
        return longer

    empty = KeyValueCache()
    two = after(empty, slice(0, 2))
    three, other = after(two, slice(2, 3)), after(two, slice(4, 5))
    for cache, places in ((two, [0, 1]), (three, [0, 1, 2]), (other, [0, 1, 4])):
        assert torch.equal(cache.keys, key[:, :, places]) and torch.equal(cache.values, value[:, :, places]) and cache.length == len(places)
    chosen = three.select(torch.tensor([1, 0, 1]))
    assert torch.equal(chosen.keys, key[[1, 0, 1], :, :3]) and torch.equal(chosen.values, value[[1, 0, 1], :, :3])
    assert empty.length == 0 and empty.select(torch.tensor([0])).length == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_masks_and_biases_in_every_precision(road, dtype):
    torch.manual_seed(6)
    q, k, v, bias = (torch.randn(*shape, dtype=dtype) for shape in ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4), (2, 3, 5, 7)))
    some_empty = torch.rand(2, 1, 5, 7) < 0.5
    some_empty[0, 0, 1] = False
    none_empty = some_empty.any(-2, keepdim=True)                            # (2, 1, 1, 7)
    for mask in (some_empty, none_empty):
        for added in (None, bias):
            scores = q.double() @ k.double().mT / 2 + (0 if added is None else added.double())
            expected = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num() @ v.double()
            for need_weights in (True, False):
                output = attention(q, k, v, mask, added, need_weights=need_weights)[0]
                assert_close(output.double(), expected, rtol=0.03, atol=0.03)
                if dtype == torch.float64:
                    assert_close(output, expected)


# what a model attends to, asked for from outside

def small_model():
    torch.manual_seed(7)
    return Transformer(11, 13, d_model=12, n_heads=3, n_layers=(2, 1), d_ff=7, dropout=0.3)


def test_weights_are_kept_inside_the_block_only_and_change_nothing():
    model = small_model().eval()
    src, tgt = torch.randint(3, 11, (2, 5)), torch.randint(3, 13, (2, 4))
    before = model(src, tgt)
    with attention_weights(model) as weights:
        inside = model(src, tgt)
        assert torch.equal(inside, before)
        shapes = {name: tuple(found.shape) for name, found in weights.items()}
        assert shapes == {"encoder.layers.0.self_attention": (2, 3, 5, 5), "encoder.layers.1.self_attention": (2, 3, 5, 5),
                          "decoder.layers.0.self_attention": (2, 3, 4, 4), "decoder.layers.0.cross_attention": (2, 3, 4, 5)}
        model(src[:1], tgt[:1, :3])                                          # the latest call counts
        assert weights["decoder.layers.0.cross_attention"].shape == (1, 3, 3, 5)
    kept = weights["decoder.layers.0.cross_attention"]
    assert torch.equal(model(src, tgt), before) and weights["decoder.layers.0.cross_attention"] is kept
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert_close(kept[0].mean(0), model.alignment(src[:1], F.pad(tgt[:1, :3], (0, 1)))[0])


def test_hooks_go_after_an_error_too_and_blocks_may_be_nested():
    model, src = small_model().eval(), torch.randint(3, 11, (2, 5))
    with pytest.raises(RuntimeError, match="stop"), attention_weights(model):
        raise RuntimeError("stop")
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    with attention_weights(model.encoder) as outer:
        with attention_weights(model.encoder, "0.self_attention") as inner:
            model.encode(src)
        assert list(inner) == ["layers.0.self_attention"] and list(outer) == ["layers.0.self_attention", "layers.1.self_attention"]
        assert torch.equal(inner["layers.0.self_attention"], outer["layers.0.self_attention"])


def test_dropout_draws_the_same_with_and_without():
    model, src, tgt = small_model(), torch.randint(3, 11, (2, 5)), torch.randint(3, 13, (2, 4))
    torch.manual_seed(3)
    plain = model(src, tgt)
    torch.manual_seed(3)
    with attention_weights(model) as weights:
        assert torch.equal(model(src, tgt), plain)
    weights["decoder.layers.0.cross_attention"].square().sum().backward()   # they belong to the graph
    assert model.src_embedding.weight.grad.abs().sum() > 0

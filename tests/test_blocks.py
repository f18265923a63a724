"""Feed-forward and residual on random sizes: what a position may know, and what the road carries."""
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.testing import assert_close

from transformer_course.models.attention import MultiHeadAttention, SelfAttention
from transformer_course.models.blocks import FeedForward, is_pre_norm
from transformer_course.models.transformer import EncoderLayer

sizes = st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(2, 9), st.integers(1, 11))   # B, T, D, F


@given(sizes, st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_feed_forward_knows_its_own_position_only(size, seed):
    B, T, D, F = size
    torch.manual_seed(seed)
    net, x, order = FeedForward(D, F), torch.randn(B, T, D, requires_grad=True), torch.randperm(T)
    assert_close(net(x)[:, order], net(x[:, order]))
    gradient = torch.autograd.grad(net(x)[:, -1].sum(), x)[0]
    assert not gradient[:, :-1].any()


def a_layer(D, feed_forward, dropout, norm, silent=False):
    """A layer of one head; a silent one's attention says nothing."""
    attention = SelfAttention(MultiHeadAttention(D, 1))
    if silent:
        for part in attention.heads.out_proj.parameters():
            torch.nn.init.zeros_(part)
    return EncoderLayer(attention, feed_forward, torch.nn.LayerNorm(D), torch.nn.LayerNorm(D), dropout, is_pre_norm(norm))


class Silent(torch.nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)


@given(sizes, st.sampled_from(["pre", "post"]), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_a_silent_sublayer_leaves_the_road(size, norm, seed):
    B, T, D, _ = size
    torch.manual_seed(seed)
    block, x, sent = a_layer(D, Silent(), 0.0, norm, silent=True), torch.randn(B, T, D, requires_grad=True), torch.randn(B, T, D)
    y = block(x)
    normed = torch.nn.functional.layer_norm(x, (D,))
    assert_close(y, x if norm == "pre" else torch.nn.functional.layer_norm(normed, (D,)))
    arrived = torch.autograd.grad(y, x, sent)[0]
    if norm == "pre":
        assert_close(arrived, sent)                                  # the free road: a gradient travels unchanged
    else:
        assert_close(arrived.sum(-1), torch.zeros(B, T), atol=1e-3, rtol=0)   # a norm stands on it


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_dropout_acts_on_the_sublayer_and_in_training_only(norm):
    torch.manual_seed(1)
    block, x = a_layer(64, torch.nn.Tanh(), 0.5, norm), torch.randn(2, 5, 64)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))
    silent = a_layer(64, torch.nn.Tanh(), 1.0, norm)                 # the sublayers say nothing; the road stays
    assert_close(silent(x), x if norm == "pre" else silent.norm_2(silent.norm_1(x)))


@pytest.mark.parametrize("norm", ["middle", "", None, "Pre"])
def test_an_unknown_place_of_the_norm_is_named(norm):
    with pytest.raises(ValueError, match='must be "post" or "pre"'):
        is_pre_norm(norm)

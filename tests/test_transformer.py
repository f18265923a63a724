"""The Transformer on random sizes: cache, causality, padding, and rows that are wholly masked."""
import torch
from hypothesis import given, settings, strategies as st
from torch.testing import assert_close

from transformer_course.attention import MultiHeadAttention, attention
from transformer_course.functional import Dropout, causal_mask, dropout, padding_mask, projected_loss, smoothed_cross_entropy
from transformer_course.positions import POSITIONS, Learned, Sinusoidal, sinusoids
from transformer_course.recipe import inverse_sqrt, linear_decay, noam
from transformer_course.transformer import Transformer

sizes = st.fixed_dictionaries({
    "n_heads": st.sampled_from([1, 2, 3]), "n_layers": st.tuples(st.integers(1, 2), st.integers(1, 2)),
    "norm": st.sampled_from(["pre", "post"]), "positions": st.sampled_from(POSITIONS),
    "tied": st.booleans()})


def batch(seed, B=3, S=5, T=6, V=11):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randint(4, V, shape, generator=generator)
    src, tgt = draw(B, S), draw(B, T)
    src[1, 2:], tgt[2, 3:], tgt[:, 0] = 0, 0, 1
    return src, tgt


@settings(max_examples=30)
@given(sizes, st.integers(0, 1000))
def test_step_equals_forward_at_every_position_and_select_picks_rows(options, seed):
    model = Transformer(11, 13, d_model=12, d_ff=7, **options).eval()
    src, tgt = batch(seed)
    full, state, rows = model(src, tgt), model.start(src), torch.tensor([2, 0, 0])
    for t in range(3):
        logits, state = model.step(state, tgt[:, t])
        assert_close(logits, full[:, t])
    state = state.select(rows)
    for t in range(3, 6):
        logits, state = model.step(state, tgt[rows, t])
        assert_close(logits, full[rows, t])


@settings(max_examples=30)
@given(sizes, st.integers(0, 1000), st.integers(1, 5))
def test_later_words_and_padding_reach_nothing(options, seed, place):
    model = Transformer(11, 13, d_model=12, d_ff=7, **options).eval()
    src, tgt = batch(seed)
    changed = tgt.clone()
    changed[:, place] = 12
    assert_close(model(src, tgt)[:, :place], model(src, changed)[:, :place])
    wider = torch.nn.functional.pad(src, (0, 3))
    assert_close(model(src, tgt), model(wider, tgt))
    assert_close(model(src[1:2, :2], tgt[1:2]), model(src, tgt)[1:2])
    assert_close(model.loss(src, tgt), model.loss(wider, torch.nn.functional.pad(tgt, (0, 2))))


def test_shapes_are_right_without_any_numbers():
    with torch.device("meta"):
        model = Transformer(11, 13, d_model=12, n_heads=3, n_layers=(1, 2), d_ff=7)
        src, tgt = torch.zeros(2, 5, dtype=torch.long), torch.zeros(2, 7, dtype=torch.long)
        logits, state = model.step(model.start(src), tgt[:, 0])
        assert model(src, tgt).shape == (2, 7, 13) and model.loss(src, tgt).shape == () and logits.shape == (2, 13)
        assert len(state.past) == 2 and state.past[0][0].shape == (2, 3, 1, 4) and state.position == 1


def test_a_source_of_nothing_but_padding_gives_finite_numbers_and_gradients():
    model = Transformer(11, 13, d_model=12, n_heads=3, n_layers=2, d_ff=7, dropout=0.0)
    src, tgt = batch(1)
    src[0] = 0
    loss = model.loss(src, tgt)
    loss.backward()
    assert loss.isfinite() and all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@given(st.integers(0, 10**6))
@settings(max_examples=20)
def test_a_row_that_may_attend_to_nothing_is_zero_without_gradient(seed):
    torch.manual_seed(seed)
    q, k, v = (torch.randn(2, 3, n, 4, requires_grad=True) for n in (5, 7, 7))
    mask = torch.rand(2, 1, 5, 7) < 0.3
    mask[0, 0, 1] = False
    output, weights = attention(q, k, v, mask, need_weights=True)
    assert not output[0, :, 1].any() and not weights[0, :, 1].any()
    output[0, :, 1].sum().backward()
    assert not any(x.grad.any() or x.grad.isnan().any() for x in (q, k, v))


def test_a_bias_is_added_to_the_scores():
    q, k, v, bias = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 4), torch.randn(3, 5, 7)
    expected = (q @ k.transpose(-2, -1) / 2 + bias).softmax(-1) @ v
    assert_close(attention(q, k, v, bias=bias)[0], expected)
    mask = torch.rand(2, 1, 5, 7) < 0.8
    masked = (q @ k.transpose(-2, -1) / 2 + bias).masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num() @ v
    assert_close(attention(q, k, v, mask, bias)[0], masked)


def test_heads_look_at_different_things():
    heads, x = MultiHeadAttention(12, 3), torch.randn(2, 5, 12)
    weights = heads(x, x, x, causal_mask(5), need_weights=True)[1]
    assert weights.shape == (2, 3, 5, 5) and not torch.allclose(weights[:, 0], weights[:, 1], atol=1e-3)
    assert not weights.masked_select(~causal_mask(5)).any()


def test_the_loss_in_chunks_is_the_loss():
    hidden, weight, target = torch.randn(3, 4, 5), torch.randn(9, 5), torch.randint(0, 9, (3, 4))
    for smoothing in (0.0, 0.2):
        whole = smoothed_cross_entropy(hidden @ weight.T, target, smoothing, pad_id=0)
        for chunk in (1, 5, 100):
            assert_close(projected_loss(hidden, weight, None, target, smoothing, 0, chunk), whole)


def test_dropout_keeps_the_mean_and_stops_in_evaluation():
    x, layer = torch.ones(200, 300), Dropout(0.4)
    assert abs(layer(x).mean().item() - 1) < 0.02 and layer.eval()(x) is x
    assert not dropout(x, 1.0).any() and padding_mask(torch.tensor([3, 0]), 0).tolist() == [True, False]


def test_positions_and_schedules():
    assert_close(Sinusoidal(6, ready=3)(2, 4), sinusoids(torch.arange(2, 6), 6))
    assert Learned(6, 9)(1, 2).shape == (2, 6)
    assert noam(16, 4)(4, 0.0) == 1 / 8 and inverse_sqrt(1.0, 4)(16, 0.0) == 0.5 and linear_decay(1.0, 4)(9, 0.25) == 0.75

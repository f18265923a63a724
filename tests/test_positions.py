"""Positions, as installed: properties over many sizes, the meta device, cached steps."""
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from transformer_course.models.positions import Learned, Sinusoidal, sinusoids
from transformer_course.models.relative_positions import (ALiBi, InAttention, Relative, Rotary,
                                                          added_positions, alibi, alibi_slopes,
                                                          positions_in_attention)

few = settings(max_examples=30, deadline=None)


@few
@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 500), st.integers(1, 6))
def test_rotary_scores_depend_on_the_difference_only(i, j, shift, half):
    rotary = Rotary(2 * half).double()
    q, k = torch.randn(2, 3, 1, 2 * half, dtype=torch.float64), torch.randn(2, 3, 1, 2 * half, dtype=torch.float64)
    score = lambda a, b: (rotary.rotate(q, start=a) * rotary.rotate(k, start=b)).sum(-1)
    assert_close(score(i + shift, j + shift), score(i, j), atol=1e-3, rtol=1e-3)
    assert_close(rotary.rotate(q, start=i).norm(dim=-1), q.norm(dim=-1), atol=1e-5, rtol=1e-5)


@few
@given(st.integers(1, 70))
def test_alibi_has_a_slope_for_each_head(n_heads):
    slopes = alibi_slopes(n_heads)
    assert len(slopes) == len(set(slopes)) == n_heads and all(0 < slope < 1 for slope in slopes)
    power = 2 ** (n_heads.bit_length() - 1)
    assert slopes[:power] == alibi_slopes(power)
    assert set(slopes[power:]) <= set(alibi_slopes(2 * power)) - set(alibi_slopes(power))
    if power == n_heads:
        ratios = [b / a for a, b in zip(slopes, slopes[1:])]
        assert all(ratio == pytest.approx(slopes[0]) for ratio in ratios)


@few
@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 6), st.integers(0, 12))
def test_relative_is_its_loop(T, S, clip, start):
    relative, q = Relative(4, clip=clip), torch.randn(2, 3, T, 4)
    bias = relative.score_bias(q, S, start)
    assert bias.shape == (2, 3, T, S)
    for i in range(T):
        for j in range(S):
            distance = max(-clip, min(clip, j - start - i))
            assert_close(bias[:, :, i, j], q[:, :, i] @ relative.table[distance + clip] / 2)


@few
@given(st.integers(1, 5), st.integers(0, 40), st.integers(1, 4))
def test_rotary_is_multiplication_by_a_complex_number(T, start, half):
    """Each pair is a number of the complex plane, and place p turns it by p times the pair's speed."""
    x = torch.randn(2, 3, T, 2 * half)
    turned = torch.view_as_complex(Rotary(2 * half).rotate(x, start).unflatten(-1, (half, 2)))
    for t in range(T):
        for pair in range(half):
            angle = torch.tensor((start + t) * 10000 ** (-pair / half))
            number = torch.complex(x[:, :, t, 2 * pair], x[:, :, t, 2 * pair + 1])
            assert_close(turned[:, :, t, pair], number * torch.complex(angle.cos(), angle.sin()), rtol=1e-4, atol=1e-5)


@few
@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 6))
def test_alibi_is_its_loop(T, S, start):
    slopes, bias = (1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8), alibi(6, T, S, start)    # six heads: those of four, then two of eight
    assert bias.shape == (6, T, S)
    for head, slope in enumerate(slopes):
        for i in range(T):
            assert_close(bias[head, i], torch.tensor([-slope * abs(start + i - j) for j in range(S)]))


def test_one_position_at_a_time_is_all_at_once():
    """What a cached decoder asks for: one query at `start`, the keys before it."""
    x, rotary, relative = torch.randn(2, 3, 7, 4), Rotary(4), Relative(4, clip=2)
    whole, tent = relative.score_bias(x, 7), alibi(3, 7, 7)
    for t in range(7):
        one = x[:, :, t:t + 1]
        assert_close(rotary.rotate(one, start=t), rotary.rotate(x)[:, :, t:t + 1])
        assert_close(relative.score_bias(one, t + 1, start=t), whole[:, :, t:t + 1, :t + 1])
        assert_close(alibi(3, 1, t + 1, start=t), tent[:, t:t + 1, :t + 1])


def test_relative_gradient_reaches_the_table():
    relative = Relative(4, clip=1)
    relative.score_bias(torch.randn(1, 2, 5, 4), 5).square().sum().backward()
    assert relative.table.grad.abs().amin() > 0


def test_rotary_knows_left_from_right_and_alibi_does_not():
    q = torch.randn(1, 1, 1, 6)
    rotary, there = Rotary(6), Rotary(6).rotate(q, start=5)
    k = torch.randn(1, 1, 1, 6)
    assert not torch.allclose((there * rotary.rotate(k, start=3)).sum(), (there * rotary.rotate(k, start=7)).sum(), atol=1e-3)
    assert_close(alibi(3, 7, 7), alibi(3, 7, 7).transpose(1, 2))


def test_they_follow_the_device():
    with torch.device("meta"):
        q = torch.empty(2, 3, 5, 4)
        assert Rotary(4).rotate(q, start=2000).device.type == "meta"
        assert Relative(4).score_bias(q, 9).shape == (2, 3, 5, 9)
        assert Sinusoidal(6)(3, 4).shape == (4, 6)
        assert Learned(6)(3, 4).shape == (4, 6)
    assert alibi(3, 5, 7, device="meta").device.type == "meta"


def test_half_precision_stays():
    q = torch.randn(2, 3, 5, 4, dtype=torch.bfloat16)
    assert Rotary(4).rotate(q).dtype == ALiBi(3).score_bias(q, 5).dtype == Relative(4).bfloat16().score_bias(q, 5).dtype == torch.bfloat16


def test_faults_name_the_argument():
    for call, text in ((lambda: alibi_slopes(0), "n_heads"), (lambda: Rotary(5), "Rotary: d_head must be even"), (lambda: sinusoids(torch.arange(2), 3), "even"),
                       (lambda: added_positions("binary", 12), "choose one of sinusoidal, learned"), (lambda: positions_in_attention("binary", 12, 3), "choose one of"),
                       (lambda: positions_in_attention("rotary", 9, 3), "Rotary: d_head")):
        with pytest.raises(ValueError, match=text):
            call()


def test_the_plain_one_changes_nothing():
    q = torch.randn(2, 3, 5, 4)
    assert InAttention().rotate_query(q, start=3) is q and InAttention().rotate_key(q, start=3) is q and InAttention().score_bias(q, 7, start=2) is None
    assert_close(ALiBi(3).score_bias(q, 7, start=2), alibi(3, 5, 7, start=2))


def test_each_name_has_its_two_parts():
    nothing = type(None)
    kinds = {"sinusoidal": (Sinusoidal, nothing), "learned": (Learned, nothing), "relative": (nothing, Relative),
             "rotary": (nothing, Rotary), "alibi": (nothing, ALiBi), "none": (nothing, nothing)}
    for name, (codes, inside) in kinds.items():
        first, second = (positions_in_attention(name, 12, 3) for layer in range(2))
        assert type(added_positions(name, 12, max_len=9)) is codes and type(first) is type(second) is inside
        assert first is None or first is not second
    assert added_positions("learned", 12, max_len=9).table.shape == (9, 12)
    assert positions_in_attention("relative", 12, 3).table.shape[1] == 4
    q = torch.randn(2, 3, 5, 4)
    rotary = positions_in_attention("rotary", 12, 3)
    assert torch.equal(rotary.rotate_query(q, 3), rotary.rotate(q, 3)) and torch.equal(rotary.rotate_key(q, 3), rotary.rotate(q, 3))

"""Convolution and attention: the block against PyTorch's parts, CTC against all paths, silence at padding, recordings, bad input."""
import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course.models.attention import MultiHeadAttention, SelfAttention
from transformer_course.models.blocks import FeedForward
from transformer_course.models.conformer import (
    BINS, HUM, ConformerLayer, ConvolutionModule, Listener, collapse, listener, recordings, symbol_errors)

B, S, D, H = 3, 11, 12, 4


def block(attention=True, convolution=True):
    torch.manual_seed(1)
    layer = ConformerLayer(D, FeedForward(D, 19, activation=F.silu), SelfAttention(MultiHeadAttention(D, H)) if attention else None,
                           ConvolutionModule(D, 5) if convolution else None, FeedForward(D, 23, activation=F.silu))
    for norm in layer.norms:
        nn.init.normal_(norm.weight, 1.0, 0.3), nn.init.normal_(norm.bias)
    return layer.double()


def heard(seed=2):
    return torch.randn(B, S, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hand(module, x):
    """The convolution module of one recording (S, D), written out."""
    a, b = F.linear(x, module.expand.weight, module.expand.bias).chunk(2, -1)
    gated, half = a / (1 + (-b).exp()), module.depthwise.kernel_size[0] // 2
    y = torch.zeros_like(gated)
    for t in range(len(x)):
        for d in range(x.shape[1]):
            y[t, d] = module.depthwise.bias[d] + sum(
                module.depthwise.weight[d, 0, k + half] * gated[t + k, d] for k in range(-half, half + 1) if 0 <= t + k < len(x))
    centred = (y - y.mean(-1, keepdim=True)) / (y.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    y = centred * module.norm.weight + module.norm.bias
    return F.linear(y / (1 + (-y).exp()), module.contract.weight, module.contract.bias)


def test_the_convolution_module_is_that_of_loops():
    module, x = ConvolutionModule(D, 5).double(), heard()
    for row, out in zip(x, module(x)):
        assert_close(out, by_hand(module, row))


@pytest.mark.parametrize("attention,convolution", [(True, True), (True, False), (False, True)])
def test_the_block_is_written_out_with_pytorchs_attention(attention, convolution):
    layer, x = block(attention, convolution), heard()
    expected = x + 0.5 * layer.feed_forward_1(layer.norms[0](x))
    if attention:
        theirs, ours = nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64), layer.self_attention.heads
        with torch.no_grad():
            theirs.in_proj_weight.copy_(ours.in_proj.weight), theirs.in_proj_bias.copy_(ours.in_proj.bias)
            theirs.out_proj.weight.copy_(ours.out_proj.weight), theirs.out_proj.bias.copy_(ours.out_proj.bias)
        normed = layer.norms[1](expected)
        expected = expected + theirs(normed, normed, normed)[0]
    if convolution:
        expected = expected + torch.stack([by_hand(layer.convolution, row) for row in layer.norms[2](expected)])
    expected = layer.norms[4](expected + 0.5 * layer.feed_forward_2(layer.norms[3](expected)))
    assert_close(layer(x), expected)


@pytest.mark.parametrize("attention,convolution", [(True, True), (True, False), (False, True)])
def test_a_recording_is_the_same_alone_and_beside_longer_ones(attention, convolution):
    torch.manual_seed(3)
    model = listener(attention, convolution, 17, d_model=D, n_heads=3, n_layers=3, kernel=5).double().eval()
    frames, real, symbols = recordings(5, sounds=3, generator=torch.Generator().manual_seed(4))
    frames = frames.double()
    lengths = real.sum(1).tolist()
    assert len(set(lengths)) > 2
    together = model(F.pad(frames, (0, 0, 0, 6), value=9.0), F.pad(real, (0, 6)))
    for row, n in enumerate(lengths):
        assert_close(model(frames[row:row + 1, :n], real[row:row + 1, :n])[0], together[row, :n])
    one_by_one = [model.loss(frames[i:i + 1, :n], real[i:i + 1, :n], symbols[i:i + 1]) for i, n in enumerate(lengths)]
    assert_close(model.loss(frames, real, symbols), torch.stack(one_by_one).mean())


def test_the_loss_is_the_sum_over_all_paths():
    torch.manual_seed(5)
    model = Listener([block()], D, symbols=3, bins=4).double()
    frames, real = torch.randn(1, 5, 4, dtype=torch.float64), torch.ones(1, 5, dtype=torch.bool)
    log_p = model(frames, real)[0]
    for text in ([2], [1, 1], [3, 1, 2]):
        p = sum(math.exp(sum(log_p[t, s].item() for t, s in enumerate(path)))
                for path in itertools.product(range(4), repeat=5) if collapse(list(path)) == text)
        assert abs(model.loss(frames, real, torch.tensor([text])).item() * len(text) + math.log(p)) < 1e-6


def test_paths_become_texts():
    assert collapse([1, 1, 0, 2, 2, 2]) == collapse([0, 1, 2, 0, 0, 0]) == [1, 2]
    assert collapse([1, 0, 1, 2, 2, 0]) == [1, 1, 2] and collapse([]) == collapse([0, 0]) == []


def test_symbol_errors():
    assert symbol_errors([[1, 2, 3], []], [[1, 3], [4, 5]]) == 0.75
    assert symbol_errors([[1, 2]], [[1, 2]]) == 0 and symbol_errors([[]], [[7, 7]]) == 1
    assert symbol_errors([[1, 2, 3, 4]], [[2, 3, 4, 1]]) == 0.5


def test_recordings_are_hums_and_glides():
    frames, real, symbols = recordings(200, sounds=5, noise=0.0, generator=torch.Generator().manual_seed(6))
    assert frames.shape[::2] == (200, BINS) and symbols.shape == (200, 5) and (symbols.min(), symbols.max()) == (1, 8)
    assert (frames[~real] == 0).all() and set(real.sum(1).tolist()) <= set(range(HUM + 15, HUM + 26))
    pitch = (frames * torch.arange(BINS)).sum(-1) / frames.sum(-1).clamp_min(1e-9)
    hum = pitch[:, 0]
    assert_close(pitch[:, :HUM], hum[:, None].expand(-1, HUM))
    assert 2.9 < hum.min() and hum.max() < 11.1
    first, rises = (symbols[:, 0] - 1) // 2, (symbols[:, 0] - 1) % 2
    assert ((pitch[:, HUM + 1] > pitch[:, HUM]) == (rises == 1)).all()
    begins = hum + 2 * first - 1.25 * (2 * rises - 1)                                # a sound begins below or above its tone
    assert_close(pitch[:, HUM], begins, atol=0.15, rtol=0)
    assert abs((symbols % 2).float().mean() - 0.5) < 0.06


def test_one_frame_does_not_tell_the_tone():
    frames, real, symbols = recordings(4000, sounds=1, noise=0.0, generator=torch.Generator().manual_seed(7))
    tone, pitch = (symbols[:, 0] - 1) // 2, frames[:, HUM + 1].argmax(-1)
    best = sum(torch.bincount(tone[pitch == p], minlength=4).max().item() for p in range(BINS))
    assert best / 4000 < 0.55


@pytest.mark.parametrize("call,says", [
    (lambda: ConvolutionModule(D, 4), "ConvolutionModule: kernel must be odd, not 4"),
    (lambda: ConvolutionModule(0), "ConvolutionModule: d_model must be a positive whole number, not 0"),
    (lambda: Listener([], D, 0), "Listener: symbols must be a positive whole number, not 0"),
    (lambda: recordings(2, sounds=0), "recordings: sounds must be a positive whole number, not 0"),
    (lambda: recordings(2, noise=-0.1), "recordings: noise must be at least 0, not -0.1"),
    (lambda: listener(False, False, 17), "listener: attention, convolution or both must be True"),
    (lambda: symbol_errors([[1], [2]], [[1]]), "symbol_errors: found and true must be equally long, not 2 and 1"),
    (lambda: symbol_errors([], []), "symbol_errors: true must have at least one symbol"),
    (lambda: symbol_errors([[1]], [[]]), "symbol_errors: true must have at least one symbol")])
def test_calls_that_cannot_work(call, says):
    with pytest.raises(ValueError, match=says) as error:
        call()
    assert "\n" not in str(error.value)

"""Nothing creates a tensor on a fixed device: forward, loss and a decoding step of every module run on `meta`.

A tensor made on the CPU inside them would meet one on `meta`, and PyTorch refuses that.
"""
import pytest
import torch

from transformer_course.models import attention, blocks, functional, positions, transformer
from transformer_course.models import relative_positions as distances
from transformer_course.pipelines.presets import MODELS

B, S, T, V = 2, 5, 7, 19
META = torch.device("meta")


@pytest.mark.parametrize("name", MODELS)
def test_translators(name):
    target = V if name.startswith("t5") else V + 2                     # a T5 has one vocabulary
    with META:
        model = MODELS[name](V, target)
        src, tgt = torch.zeros(B, S, dtype=torch.long), torch.zeros(B, T, dtype=torch.long)
        rows, token = torch.zeros(3, dtype=torch.long), torch.zeros(3, dtype=torch.long)
    assert all(tensor.device == META for tensor in [*model.parameters(), *model.buffers()])
    assert model(src, tgt[:, :-1]).shape == (B, T - 1, target)
    loss = model.loss(src, tgt, smoothing=0.1)
    assert loss.shape == () and loss.device == META
    loss.backward()
    model.eval()
    logits, state = model.step(model.start(src).select(rows), token)
    assert logits.shape == (3, target) and logits.device == META
    if hasattr(model, "alignment"):
        assert model.alignment(src, tgt).shape == (B, T - 1, S)


@pytest.mark.parametrize("options", [{"norm": "pre"}, *({"positions": kind} for kind in distances.POSITIONS), {"tied": False}, {"n_layers": (1, 2)},
                                     {"attention_dropout": 0.1, "ff_dropout": 0.1}])
def test_transformer_variants(options):
    with META:
        model = MODELS["transformer"](V, V, d_model=12, n_heads=3, d_ff=8, **({"n_layers": 1} | options))
        src, tgt = torch.zeros(B, S, dtype=torch.long), torch.zeros(B, T, dtype=torch.long)
    model.loss(src, tgt).backward()


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_autocast(name):
    "Mixed precision, as on a GPU: the loss and its gradients stay close to those in float32."
    torch.manual_seed(1)
    model = MODELS[name](V, V).eval()
    src, tgt = torch.randint(4, V, (B, S)), torch.randint(4, V, (B, T))
    src[1, 3:], tgt[0, 5:] = 0, 0
    whole = model.loss(src, tgt)
    with torch.autocast("cpu", torch.bfloat16):
        half = model.loss(src, tgt)
    half.backward()
    assert half.dtype == torch.float32 and abs(half.item() - whole.item()) < 0.02
    assert all(p.grad is not None and p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())


def test_parts():
    with META:
        x, memory = torch.zeros(B, T, 12), torch.zeros(B, S, 12)
        mask = torch.zeros(B, 1, T, S, dtype=torch.bool)
        heads, across = attention.MultiHeadAttention(12, 3), attention.MultiHeadAttention(12, 3, cross=True)
        think, norms = blocks.FeedForward(12, 20), [torch.nn.LayerNorm(12) for norm in range(2)]
        layer = transformer.EncoderLayer(attention.SelfAttention(heads), think, *norms)
        codes = [positions.Sinusoidal(12, ready=4), positions.Learned(12)]
    assert across(x, memory, mask, need_weights=True)[1].shape == (B, 3, T, S)
    assert across(x, memory, mask)[0].device == META
    assert layer(x).device == META
    assert all(code(2, 5).shape == (5, 12) and code(2, 5).device == META for code in codes)
    assert functional.dropout(x, 0.3).device == functional.causal_mask(T, META).device == META

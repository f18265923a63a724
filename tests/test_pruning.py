"""Cut heads and units against gates of zero, on sizes that all differ; sizes by counting, importance against differences, and errors."""
import pytest
import torch
from torch.nn import functional as F

from transformer_course.models.attention import MultiHeadAttention
from transformer_course.models.blocks import FeedForward
from transformer_course.models.head_importance import attentions, gated
from transformer_course.models.pruning import feed_forwards, pruned, unit_importance, with_heads, with_units
from transformer_course.models.transformer import Transformer
from transformer_course.search.beam import beam_search

H, K, FF = 3, 4, 7
SRC, TGT = torch.tensor([[4, 9, 12, 6, 3], [7, 5, 3, 0, 0]]), torch.tensor([[2, 5, 8, 11, 16, 7, 3], [2, 9, 4, 3, 0, 0, 0]])


@pytest.fixture
def model():
    torch.manual_seed(5)
    return Transformer(13, 17, d_model=H * K, n_heads=H, n_layers=(2, 1), d_ff=FF, dropout=0.0, tied=False).double().eval().requires_grad_(False)


@pytest.mark.parametrize("kept", [[0], [1, 2], [0, 2], [0, 1, 2]])
@pytest.mark.parametrize("bias", [True, False])
def test_heads_that_are_cut_are_heads_with_columns_of_zero(kept, bias):
    torch.manual_seed(1)
    x, source = torch.randn(2, 5, 10).double(), torch.randn(2, 6, 10).double()
    for cross in (False, True):
        whole = MultiHeadAttention(10, H, bias=bias, d_head=K, cross=cross).double().eval().requires_grad_(False)
        small = with_heads(whole, kept)
        for head in set(range(H)) - set(kept):
            whole.out_proj.weight[:, head * K:(head + 1) * K] = 0
        given = (x, source) if cross else (x,)
        torch.testing.assert_close(small(*given)[0], whole(*given)[0])
        assert small.n_heads == len(kept) and small.d_head == K and small.out_proj.weight.shape == (10, len(kept) * K)


def test_units_that_are_cut_are_units_that_say_nothing():
    torch.manual_seed(1)
    whole, x = FeedForward(5, FF).double().eval().requires_grad_(False), torch.randn(2, 3, 5).double()
    small = with_units(whole, [0, 3, 6])
    whole.contract.weight[:, [1, 2, 4, 5]] = 0
    torch.testing.assert_close(small(x), whole(x))
    assert sum(p.numel() for p in small.parameters()) == 3 * 5 + 3 + 5 * 3 + 5


def test_a_model_without_heads_is_the_model_with_gates_of_zero(model):
    kept = {name: [0, 2] if "decoder" in name else [1] for name in attentions(model)}
    gates = {name: torch.tensor([float(h in stays) for h in range(H)]).double() for name, stays in kept.items()}
    before = model(SRC, TGT[:, :-1])
    with gated(model, gates):
        expected = model(SRC, TGT[:, :-1])
    small = pruned(model, kept)
    torch.testing.assert_close(small(SRC, TGT[:, :-1]), expected)
    torch.testing.assert_close(model(SRC, TGT[:, :-1]), before, msg="the model itself must stay as it was")
    gone = sum(H - len(stays) for stays in kept.values())
    sizes = [sum(p.numel() for p in one.parameters()) for one in (model, small)]
    assert sizes[0] - sizes[1] == gone * (3 * K * (H * K + 1) + K * H * K)


def test_a_smaller_model_still_searches_step_by_step_as_in_one_pass(model):
    small = pruned(model, {name: [1, 2] for name in attentions(model)} | {name: [0, 5] for name in feed_forwards(model)})
    state = small.start(SRC)
    for t in range(4):
        logits, state = small.step(state, TGT[:, t])
        torch.testing.assert_close(logits, small(SRC, TGT[:, :t + 1])[:, -1])
    assert len(beam_search(small, SRC, 2, 6)) == 2


def test_a_smaller_model_can_be_cut_again_and_trained(model):
    once = pruned(model, {name: [0, 2] for name in attentions(model)})
    twice = pruned(once, {name: [1] for name in attentions(once)})
    direct = pruned(model, {name: [2] for name in attentions(model)})
    torch.testing.assert_close(twice(SRC, TGT[:, :-1]), direct(SRC, TGT[:, :-1]))
    twice.requires_grad_(True).loss(SRC, TGT).backward()
    assert all(p.grad is not None for p in twice.decoder.layers[0].parameters())


def test_importance_of_units_is_the_mean_of_absolute_differences_per_sentence(model):
    def losses():
        logits = model(SRC, TGT[:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), TGT[:, 1:], ignore_index=0, reduction="none").sum(1)
    found, step = unit_importance(model, losses, batch=2, dtype=torch.float64), 1e-5
    for name, of in feed_forwards(model).items():
        for unit in range(FF):
            column, changed = of.contract.weight[:, unit].clone(), []
            for factor in (1 + step, 1 - step):
                of.contract.weight[:, unit] = factor * column
                changed.append(losses())
            of.contract.weight[:, unit] = column
            slopes = (changed[0] - changed[1]) / (2 * step)
            assert found[name][unit].item() == pytest.approx(slopes.abs().mean().item(), rel=1e-4, abs=1e-8)


def test_wrong_calls_are_told_in_one_line(model):
    heads = MultiHeadAttention(12, H)
    for call, message in ((lambda: with_heads(heads, []), "keep some heads from 0 to 2"), (lambda: with_heads(heads, [2, 1]), "ascending"),
                          (lambda: with_heads(heads, [1, 3]), r"not \[1, 3\]"), (lambda: with_units(FeedForward(5, FF), [1, 1]), "units from 0 to 6"),
                          (lambda: pruned(model, {"encoder": [0]}), "'encoder' is neither an attention nor")):
        with pytest.raises(ValueError, match=message) as raised:
            call()
        assert "\n" not in str(raised.value)

"""Gates for heads against zeroed columns of the output matrix, and their gradients against finite differences."""
import pytest
import torch
from torch.nn import functional as F

from transformer_course.models.head_importance import attentions, gated, head_importance
from transformer_course.models.transformer import Transformer

H, K = 3, 4
SRC, TGT = torch.tensor([[4, 9, 12, 6, 3], [7, 5, 3, 0, 0]]), torch.tensor([[2, 5, 8, 11, 16, 7, 3], [2, 9, 4, 3, 0, 0, 0]])


@pytest.fixture
def model():
    torch.manual_seed(5)
    return Transformer(13, 17, d_model=H * K, n_heads=H, n_layers=(2, 1), d_ff=7, dropout=0.0, tied=False).double().eval().requires_grad_(False)


def losses(model):
    logits = model(SRC, TGT[:, :-1])
    return F.cross_entropy(logits.transpose(1, 2), TGT[:, 1:], ignore_index=0, reduction="none").sum(1)


def test_every_attention_is_found_in_order(model):
    assert list(attentions(model)) == ["encoder.layers.0.self_attention.heads", "encoder.layers.1.self_attention.heads",
                                       "decoder.layers.0.self_attention.heads", "decoder.layers.0.cross_attention.heads"]


@pytest.mark.parametrize("head", range(H))
def test_a_gate_of_zero_is_a_head_whose_columns_are_zero(model, head):
    for name, of in attentions(model).items():
        with gated(model, {name: (torch.arange(H) != head).double()}):
            found = model(SRC, TGT[:, :-1])
        before = of.out_proj.weight.clone()
        of.out_proj.weight[:, head * K:(head + 1) * K] = 0
        by_columns = model(SRC, TGT[:, :-1])
        of.out_proj.weight.copy_(before)
        torch.testing.assert_close(found, by_columns)
        assert not torch.allclose(found, model(SRC, TGT[:, :-1])), "and the head was there before"


def test_gates_of_one_change_nothing(model):
    with gated(model, {name: torch.ones(H, dtype=torch.float64) for name in attentions(model)}):
        torch.testing.assert_close(model(SRC, TGT[:, :-1]), model(SRC, TGT[:, :-1]))
        inside = losses(model)
    torch.testing.assert_close(inside, losses(model))


def test_each_sentence_may_have_its_own_gates(model):
    gates = torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 2.0]], dtype=torch.float64)
    name = "decoder.layers.0.cross_attention.heads"
    with gated(model, {name: gates}):
        together = losses(model)
    for row in range(2):
        with gated(model, {name: gates[row]}):
            torch.testing.assert_close(losses(model)[row], together[row])


def test_importance_is_the_mean_of_absolute_differences_per_sentence(model):
    found, step = head_importance(model, lambda: losses(model), batch=2, dtype=torch.float64), 1e-5
    for name, importance in found.items():
        for head in range(H):
            change = step * (torch.arange(H) == head).double()
            with gated(model, {name: 1 + change}):
                more = losses(model)
            with gated(model, {name: 1 - change}):
                less = losses(model)
            slopes = (more - less) / (2 * step)
            assert importance[head].item() == pytest.approx(slopes.abs().mean().item(), rel=1e-5, abs=1e-8)


def test_the_model_is_as_before_after_an_error(model):
    whole = losses(model)
    with pytest.raises(RuntimeError, match="stop"), gated(model, {name: torch.zeros(H, dtype=torch.float64) for name in attentions(model)}):
        raise RuntimeError("stop")
    torch.testing.assert_close(losses(model), whole)


def test_wrong_calls_are_told_in_one_line(model):
    for gates, message in (({"encoder": torch.ones(H)}, "'encoder' is no attention of the model"),
                           ({"encoder.layers.0.self_attention.heads": torch.ones(2)}, "has 3 heads, not 2"),
                           ({"encoder.layers.0.self_attention.heads": torch.ones(1, 1, H)}, r"must be \(H,\) or \(B, H\)")):
        with pytest.raises(ValueError, match=message) as raised, gated(model, gates):
            pass
        assert "\n" not in str(raised.value)

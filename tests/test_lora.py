"""Fine-tuning for answers and low-rank maps: equal to a dense matrix, to loops and to the peft library."""
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from transformer_course.models.lora import (
    LoRALinear, answer_loss, lora_weights, merge_lora, trained_numbers, with_lora)
from transformer_course.models.modern import ModernLM
from transformer_course.models.transformer_lm import TransformerLM


def model(**options):
    """A small decoder in double precision."""
    torch.manual_seed(3)
    return ModernLM(19, 24, 6, 2, n_layers=3, **options).double()


def filled(module, seed=5):
    """The module, with numbers in B, which starts with zeros."""
    torch.manual_seed(seed)
    for part in module.modules():
        if isinstance(part, LoRALinear):
            nn.init.normal_(part.up)
    return module


@pytest.mark.parametrize("rank, alpha, bias", [(1, None, True), (3, 6.0, False), (5, 2.0, True)])
def test_a_map_equals_the_dense_matrix(rank, alpha, bias):
    """W x + b + (alpha / r) B A x, with the product computed first, by loops over the rank."""
    torch.manual_seed(1)
    linear = nn.Linear(7, 5, bias).double()
    part = filled(LoRALinear(linear, rank, alpha))
    factor = 1.0 if alpha is None else alpha / rank
    dense = linear.weight.clone()                                              # (5, 7)
    for r in range(rank):
        dense += factor * torch.outer(part.up[:, r], part.down[r])
    x = torch.randn(2, 3, 7, dtype=torch.float64)
    torch.testing.assert_close(part(x), F.linear(x, dense, linear.bias))
    torch.testing.assert_close(part.merged()(x), part(x))
    assert torch.linalg.matrix_rank(dense - linear.weight) == rank


def test_gradients_of_both_matrices_are_those_of_the_dense_one():
    """The chain rule: dA = B^T dW and dB = dW A^T, times the factor."""
    torch.manual_seed(1)
    part = filled(LoRALinear(nn.Linear(7, 5).double(), 3, 6.0))
    x, push = torch.randn(4, 7, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    (part(x) * push).sum().backward()
    dense = push.T @ x                                                         # (5, 7)
    torch.testing.assert_close(part.down.grad, 2 * part.up.detach().T @ dense)
    torch.testing.assert_close(part.up.grad, 2 * dense @ part.down.detach().T)
    assert part.linear.weight.grad is None and part.linear.bias.grad is None


def test_nothing_changes_before_training_and_the_original_stays():
    """B is zero at the start; the given model is copied, and still learns."""
    base, tokens = model(), torch.randint(4, 19, (2, 9))
    adapted = with_lora(base, 4)
    torch.testing.assert_close(adapted(tokens), base(tokens), rtol=0, atol=0)
    assert all(p.requires_grad for p in base.parameters())
    assert not any(isinstance(part, LoRALinear) for part in base.modules())
    assert {name.rpartition(".")[2] for name, p in adapted.named_parameters() if p.requires_grad} == {"down", "up"}


@pytest.mark.parametrize("make", [lambda: model(), lambda: model(gated=False, bias=True, norm="layer"),
                                  lambda: TransformerLM(19, 24, 6, 2).double()])
def test_merged_equals_unmerged(make):
    """The merged model has the original's parts and names, and the scores of the unmerged one."""
    base, tokens = make().eval(), torch.randint(4, 19, (2, 9))
    adapted = filled(with_lora(base, 4, 8.0))
    merged = merge_lora(adapted)
    torch.testing.assert_close(merged(tokens), adapted(tokens))
    assert not torch.allclose(merged(tokens), base(tokens))
    assert merged.state_dict().keys() == base.state_dict().keys()
    assert all(p.requires_grad for p in merged.parameters())
    torch.testing.assert_close(with_lora(merged, 2)(tokens), merged(tokens))


def test_what_is_stored_restores_the_model():
    """A and B, put into a fresh copy of the original, are the whole difference."""
    base, tokens = model().eval(), torch.randint(4, 19, (2, 9))
    adapted, fresh = filled(with_lora(base, 4)), with_lora(base, 4)
    stored = lora_weights(adapted)
    assert sum(x.numel() for x in stored.values()) == trained_numbers(adapted)
    missing, unexpected = fresh.load_state_dict(stored, strict=False)
    assert unexpected == [] and not set(stored) & set(missing)
    torch.testing.assert_close(fresh(tokens), adapted(tokens))


def test_counts():
    """r (O + I) numbers for each map; a matrix used twice counts once."""
    base = model()
    assert trained_numbers(with_lora(base, 3, endings=("q_proj",))) == 3 * 3 * (24 + 24)
    assert trained_numbers(base) == sum(p.numel() for p in set(base.parameters()))


def test_only_the_answer_is_scored():
    """The mean over the answers' words, by loops; other words have no effect as targets."""
    base = model()
    tokens = torch.randint(4, 19, (3, 8))
    answer = torch.zeros(3, 8, dtype=torch.bool)
    answer[0, 5:7] = answer[1, 3] = True                                      # the third text has none
    logs = base(tokens[:, :-1]).log_softmax(-1)
    by_loops = [-logs[b, t - 1, tokens[b, t]] for b in range(3) for t in range(1, 8) if answer[b, t]]
    by_hand = (sum(by_loops) / len(by_loops)).float()                          # the losses are in single precision
    torch.testing.assert_close(answer_loss(base, tokens, answer), by_hand)
    later = tokens.clone()
    later[0, 7], later[1, 4:] = 4, 5                                          # behind the answers
    torch.testing.assert_close(answer_loss(base, later, answer), answer_loss(base, tokens, answer))
    everything = torch.ones(3, 8, dtype=torch.bool)
    torch.testing.assert_close(answer_loss(base, tokens, everything), base.loss(tokens))


def test_errors_in_one_line():
    """Bad ranks, masks, names and a second set of maps."""
    base, tokens = model(), torch.randint(4, 19, (2, 5))
    with pytest.raises(ValueError, match="LoRALinear: rank"):
        LoRALinear(nn.Linear(7, 5), 0)
    with pytest.raises(ValueError, match="rank=6 is more than the smaller side"):
        LoRALinear(nn.Linear(7, 5), 6)
    with pytest.raises(ValueError, match="boolean mask"):
        answer_loss(base, tokens, torch.ones(2, 5))
    with pytest.raises(ValueError, match="boolean mask"):
        answer_loss(base, tokens, torch.ones(2, 4, dtype=torch.bool))
    only_first = torch.zeros(2, 5, dtype=torch.bool)
    only_first[:, 0] = True
    with pytest.raises(ValueError, match="no word after the first"):
        answer_loss(base, tokens, only_first)
    with pytest.raises(ValueError, match="no linear map"):
        with_lora(base, endings=("query",))
    with pytest.raises(ValueError, match="merge them first"):
        with_lora(with_lora(base))


def test_as_the_peft_library():
    """The same scores and gradients as peft's LoRA, with its A and B in our maps."""
    peft = pytest.importorskip("peft", reason="the optional package peft is not installed")
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(7, 11), nn.Tanh(), nn.Linear(11, 5)).double()
    ours = nn.Sequential(LoRALinear(nn.Linear(7, 11).double(), 3, 6.0), nn.Tanh(),
                         LoRALinear(nn.Linear(11, 5).double(), 3, 6.0))
    for n in (0, 2):
        ours[n].linear.load_state_dict(net[n].state_dict())
    filled(ours)
    theirs = peft.get_peft_model(net, peft.LoraConfig(r=3, lora_alpha=6, target_modules=["0", "2"])).double()
    layers = dict(theirs.named_modules())
    for n in (0, 2):
        found = layers[f"base_model.model.{n}"]
        found.lora_A["default"].weight.data = ours[n].down.detach().clone()
        found.lora_B["default"].weight.data = ours[n].up.detach().clone()
    x = torch.randn(4, 7, dtype=torch.float64)
    torch.testing.assert_close(theirs(x), ours(x))
    theirs(x).square().sum().backward()
    ours(x).square().sum().backward()
    for n in (0, 2):
        torch.testing.assert_close(layers[f"base_model.model.{n}"].lora_A["default"].weight.grad, ours[n].down.grad)
        torch.testing.assert_close(layers[f"base_model.model.{n}"].lora_B["default"].weight.grad, ours[n].up.grad)
    torch.testing.assert_close(theirs.merge_and_unload()(x), merge_lora(ours)(x))

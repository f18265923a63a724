"""Linear attention against a loop over words, its quadratic form, and itself word by word; its padding and its limit."""
import pytest
import torch
from torch.testing import assert_close

from transformer_course.models.efficient import patterned_encoder
from transformer_course.models.ends import Embedding, Output, embedding_table
from transformer_course.models.linear_attention import (Linear, RunningSum, chunked_linear_attention, feature_map,
                                                        plain_linear_attention, summed_linear_attention)
from transformer_course.models.relative_positions import added_positions
from transformer_course.models.transformer_lm import LanguageModel


def by_a_loop(query, key, value, seen):
    """Each query and key by itself; (T, K), (S, K), (S, V), (T, S) bool."""
    phi = lambda x: torch.nn.functional.elu(x) + 1
    rows = []
    for t in range(len(query)):
        weights = [float(phi(query[t]) @ phi(key[s])) * bool(seen[t, s]) for s in range(len(key))]
        total = sum(weights)
        rows.append(sum(w * v for w, v in zip(weights, value)) / total if total else torch.zeros_like(value[0]))
    return torch.stack(rows)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("T, chunk", [(1, 3), (7, 3), (8, 4), (9, 64), (13, 1)])
@pytest.mark.parametrize("padded", [False, True])
def test_it_equals_a_loop_and_the_quadratic_form_with_gradients(causal, T, chunk, padded):
    torch.manual_seed(T)
    B, H, K = 2, 3, 5
    real = torch.arange(T) < torch.tensor([T, max(1, T - 4)])[:, None, None, None]
    seen = real.expand(B, 1, T, T).tril() if causal else real.expand(B, 1, T, T)
    if not padded:
        seen = torch.ones(B, 1, T, T, dtype=torch.bool).tril() if causal else torch.ones(B, 1, T, T, dtype=torch.bool)
    pattern, found = Linear(causal, chunk), []
    for way in (lambda *x: pattern(*x, real if padded else None), lambda *x: plain_linear_attention(*x, seen)):
        torch.manual_seed(1)
        given = [torch.randn(B, H, T, K, dtype=torch.float64, requires_grad=True) for part in range(3)]
        answers, _ = way(*given)
        found.append((answers, *torch.autograd.grad(answers.sin().sum(), given)))
    assert_close(*found)
    query, key, value = (x[1, 2].detach() for x in given)
    assert_close(found[0][0][1, 2].detach(), by_a_loop(query, key, value, seen[1, 0]))
    answers, weights = pattern(*given, real if padded else None, need_weights=True)
    assert_close(answers, found[0][0])
    assert (weights[(~seen).expand_as(weights)] == 0).all()


def test_a_row_that_may_see_nothing_gives_zeros():
    x = torch.randn(1, 2, 5, 4)
    nothing = torch.zeros(1, 1, 1, 5, dtype=torch.bool)
    for pattern in (Linear(), Linear(causal=True)):
        for need_weights in (False, True):
            assert (pattern(x, x, x, nothing, need_weights=need_weights)[0] == 0).all()


def test_a_chunk_goes_on_from_a_sum():
    torch.manual_seed(1)
    q, k, v = torch.rand(2, 11, 3), torch.rand(2, 11, 3), torch.randn(2, 11, 4)
    whole = chunked_linear_attention(q, k, v, 4)
    past = k[:, :6].transpose(1, 2) @ v[:, :6]
    assert_close(chunked_linear_attention(q[:, 6:], k[:, 6:], v[:, 6:], 2, past), whole[:, 6:])
    assert_close(summed_linear_attention(q, k, v)[:, -1], whole[:, -1])


def model():
    torch.manual_seed(3)
    table = embedding_table(17, 12)
    embedding = Embedding(table, added_positions("sinusoidal", 12, 40), 0.0)
    return LanguageModel(embedding, patterned_encoder([Linear(True, 4), Linear(True, 4)], 12, 3, 20), Output(table)).eval()


@pytest.mark.parametrize("prompt", [1, 2, 6])
def test_word_by_word_equals_all_at_once_in_a_memory_that_does_not_grow(prompt):
    lm, tokens = model(), torch.randint(4, 17, (2, 11))
    logits = lm(tokens)
    state, sizes = lm.start(tokens[:, :prompt]), set()
    for t in range(prompt - 1, 11):
        step, state = lm.step(state, tokens[:, t])
        assert_close(step, logits[:, t], rtol=1e-4, atol=1e-5)
        sizes.add(tuple(state.caches[0].sums.shape))
    assert sizes == {(2, 3, 4, 5)} and state.position == 11


def test_an_old_state_stays_as_it_was_and_rows_can_be_chosen():
    lm, tokens = model(), torch.randint(4, 17, (2, 5))
    state = lm.start(tokens)
    before = state.caches[0].sums.clone()
    first, _ = lm.step(state, tokens[:, -1])
    assert torch.equal(state.caches[0].sums, before)
    swapped, _ = lm.step(state.select(torch.tensor([1, 0, 1])), tokens[[1, 0, 1], -1])
    assert_close(swapped, first[[1, 0, 1]])
    assert RunningSum().select(torch.tensor([0])).sums is None


def test_the_feature_map_is_elu_plus_one_and_above_zero_in_sixteen_bits():
    x = torch.linspace(-30, 30, 101)
    assert_close(feature_map(x), torch.nn.functional.elu(x) + 1)
    assert (feature_map(x.bfloat16()) > 0).all()
    gradient = torch.autograd.grad(feature_map(y := torch.tensor([-200.0, 0.0, 200.0], requires_grad=True)).sum(), y)[0]
    assert gradient.isfinite().all()


def test_k_drawers_give_the_right_key_at_most_k_in_n():
    for seed in range(20):
        torch.manual_seed(seed)
        n, K = 9 + seed, 4
        _, weights = plain_linear_attention(3 * torch.randn(n, K), 3 * torch.randn(n, K), torch.randn(n, 2))
        permuted = weights[:, weights.argmax(0)]
        assert weights.diagonal().sum() <= K and permuted.diagonal().sum() <= K


@pytest.mark.parametrize("call, words", [
    (lambda: Linear(chunk=0), "Linear: chunk must be a positive whole number, not 0"),
    (lambda: chunked_linear_attention(*torch.ones(3, 5, 4), chunk=0), "chunked_linear_attention: chunk must be a positive whole number, not 0"),
    (lambda: Linear().new_cache(), "Linear: reading word by word needs causal=True"),
    (lambda: Linear()(*torch.randn(3, 1, 1, 5, 4), bias=torch.zeros(5, 5)), "Linear: it has no scores"),
    (lambda: Linear()(*torch.randn(3, 1, 1, 5, 4), dropout=0.1), "Linear: it has no scores"),
    (lambda: Linear()(*torch.randn(3, 1, 1, 5, 4), torch.ones(5, 5, dtype=torch.bool).tril()), r"Linear: a mask of shape \(5, 5\)"),
    (lambda: Linear(causal=True)(*torch.randn(3, 1, 1, 5, 4), torch.ones(5, 5, dtype=torch.bool)), r"Linear: a mask of shape \(5, 5\)")])
def test_wrong_calls_are_told_in_one_line(call, words):
    with pytest.raises(ValueError, match=words) as problem:
        call()
    assert "\n" not in str(problem.value)

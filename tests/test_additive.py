"""Additive attention, as installed: loops as an oracle, masks of every kind, permutations, and a decoder that can be stopped anywhere.

What holds for every recurrent translator (causality, padding, step, select, meta) stands in test_recurrent.py; here
is what attention adds to it, and the places where it could go wrong unseen.
"""
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course.models.additive import (
    ATTENTIONS,
    STEEP,
    AdditiveAttention,
    AdditiveSeq2Seq,
    CoverageSeq2Seq,
    PlaceScore,
    State,
    _AdditiveScores,
)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


def make(**more):
    torch.manual_seed(1)
    return AdditiveSeq2Seq(13, 17, **{"d_model": 6, "d_hidden": 10, "d_attention": 7, "dropout": 0.0} | more).eval()


def pairs(lengths=((5, 2), (1, 6), (3, 4)), seed=2):
    """Source (3, 6) and target BOS ... EOS (3, 8), padded with 0."""
    draw = torch.Generator().manual_seed(seed)
    row = lambda n, words, first=(): torch.tensor([*first, *torch.randint(4, words, (n,), generator=draw).tolist(), 2])
    columns = zip(*((row(s, 13), row(t, 17, first=(1,))) for s, t in lengths))
    return tuple(torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True) for rows in columns)


# the scores and the look-up

@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 5), st.booleans())
def test_scores_and_their_gradients_are_those_of_autograd(B, S, A, alone):
    query, key, v = (torch.randn(size, dtype=torch.double, requires_grad=True) for size in ((B, A), (B, S, A), (A,)))
    ours, plain = _AdditiveScores.apply(query, key, v), torch.tanh(key + query[:, None]) @ v
    weight = torch.randn(B, S, dtype=torch.double)
    wanted = [query] if alone else [query, key, v]
    assert_close(ours, plain)
    assert_close(torch.autograd.grad((ours * weight).sum(), wanted), torch.autograd.grad((plain * weight).sum(), wanted))


def test_scoring_leaves_its_inputs_as_they_were():
    inputs = [torch.randn(size, requires_grad=True) for size in ((2, 4), (2, 3, 4), (4,))]
    copies = [x.detach().clone() for x in inputs]
    _AdditiveScores.apply(*inputs).sum().backward()
    assert_close([x.detach() for x in inputs], copies)


def naive(attention, query, key, value, mask):
    """One query (d_query,): exp and sums in plain numbers, over the positions that may be seen."""
    W, b, U, v = attention.query.weight, attention.query.bias, attention.key.weight, attention.score
    powers = [torch.exp(v @ torch.tanh(W @ query + b + U @ k)).item() if seen else 0.0 for k, seen in zip(key, mask.tolist())]
    weights = torch.tensor([p / sum(powers) if sum(powers) else 0.0 for p in powers])
    return sum(w * x for w, x in zip(weights, value)), weights


@settings(max_examples=20)
@given(st.integers(1, 3), st.integers(1, 6), st.data())
def test_any_mask_holes_included_gives_what_the_loop_gives(B, S, data):
    flags = data.draw(st.lists(st.lists(st.booleans(), min_size=S, max_size=S), min_size=B, max_size=B))
    attention, mask = AdditiveAttention(3, 4, 7), torch.tensor(flags)
    query, key, value = torch.randn(B, 3), torch.randn(B, S, 4), torch.randn(B, S, 5)      # values need not be keys
    context, weights = attention(query, key, value, mask)
    for i in range(B):
        assert_close((context[i], weights[i]), naive(attention, query[i], key[i], value[i], mask[i]))
    assert not weights.isnan().any() and not context[~mask.any(1)].any()


def test_no_mask_is_a_mask_of_nothing_but_true():
    attention, query, key = AdditiveAttention(3, 4, 7), torch.randn(2, 3), torch.randn(2, 5, 4)
    assert_close(attention(query, key, key), attention(query, key, key, torch.ones(2, 5, dtype=torch.bool)))


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_large_numbers_make_a_sharp_look_and_no_nan(size):
    attention = AdditiveAttention(3, 4, 7)
    with torch.no_grad():
        attention.score.mul_(size)
    key = torch.randn(2, 5, 4)
    context, weights = attention(torch.randn(2, 3), key, key, torch.tensor([[True] * 5, [True, False, True, False, False]]))
    assert weights.isfinite().all() and context.isfinite().all()
    assert_close(weights.sum(1), torch.ones(2))


def test_what_is_hidden_cannot_be_heard():
    attention, query, key = AdditiveAttention(3, 4, 7), torch.randn(2, 3), torch.randn(2, 5, 4)
    mask = torch.tensor([[True, False, True, True, False], [False, True, False, False, False]])
    other = torch.where(mask[..., None], key, torch.randn(2, 5, 4))
    assert_close(attention(query, other, other, mask), attention(query, key, key, mask))
    assert_close(attention(query, key, key, mask)[0][1], key[1, 1])                       # the only one: all of it


# the controls: weights that no query can change

def control_weights(name, mask):
    """(S,) bool -> (S,): a share for each position that may be seen, or all of it for the last of them."""
    seen = [s for s, may in enumerate(mask.tolist()) if may]
    weights = torch.zeros(len(mask))
    for s in seen:
        weights[s] = 1 / len(seen) if name == "uniform" else float(s == seen[-1])
    return weights


controls = pytest.mark.parametrize("name", ["uniform", "last"])


@controls
@settings(max_examples=20)
@given(st.integers(1, 3), st.integers(1, 6), st.data())
def test_a_control_mixes_what_may_be_seen_whatever_the_query(name, B, S, data):
    flags = data.draw(st.lists(st.lists(st.booleans(), min_size=S, max_size=S), min_size=B, max_size=B))
    attention, mask, value = ATTENTIONS[name](3, 4, 7), torch.tensor(flags), torch.randn(B, S, 5)
    projected = attention.project(torch.randn(B, S, 4))
    context, weights = attention.attend(torch.randn(B, 3), projected, value, mask)
    for i in range(B):
        expected = control_weights(name, mask[i])
        assert_close((context[i], weights[i]), (sum(w * x for w, x in zip(expected, value[i])), expected))
    assert torch.equal(attention.attend(1e6 * torch.randn(B, 3), projected, value, mask)[1], weights)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_last_of_a_long_sentence_gets_all_of_it_in_any_precision(dtype):
    attention, value = ATTENTIONS["last"](3, 4, 7), torch.randn(2, 3000, 5, dtype=dtype)
    mask = torch.arange(3000) < torch.tensor([[3000], [2999]])
    context, weights = attention.attend(torch.randn(2, 3, dtype=dtype), attention.project(value), value, mask)
    assert torch.equal(context, torch.stack((value[0, 2999], value[1, 2998]))) and weights.count_nonzero() == 2


def test_the_scores_serve_one_target_word_and_many():
    query, memory = torch.randn(2, 7, 3), torch.randn(2, 5, 4)
    for score in (PlaceScore(0.0), PlaceScore(STEEP)):
        all_at_once = score(query, score.project(memory))
        assert all_at_once.shape == (2, 7, 5)
        assert_close(all_at_once[:, 2], score(query[:, 2], score.project(memory)))


@controls
def test_a_control_is_the_same_model_without_the_weights_of_the_score(name):
    choosing, control = dict(make().named_parameters()), dict(make(score=name).named_parameters())
    assert choosing.keys() - control.keys() == {f"attention.{part}" for part in ("query.weight", "query.bias", "key.weight", "score")}
    assert {n: p.shape for n, p in control.items()} == {n: choosing[n].shape for n in control}
    src, tgt = pairs()
    loss = make(score=name).loss(src, tgt)
    assert loss.isfinite()


@controls
def test_a_control_equals_the_choosing_model_with_its_weights_replaced(name, monkeypatch):
    """The same numbers as `AdditiveSeq2Seq` whose attention is made to return the fixed weights; gradients too."""
    choosing, control, (src, tgt) = make(), make(score=name), pairs()
    shared = dict(control.named_parameters())
    control.load_state_dict({n: p for n, p in choosing.state_dict().items() if n in control.state_dict()})

    def fixed(query, projected, value, mask):
        weights = torch.stack([control_weights(name, row) for row in mask])
        return (weights[..., None] * value).sum(1), weights

    monkeypatch.setattr(choosing.attention, "attend", fixed)
    assert_close(control(src, tgt), choosing(src, tgt))
    assert_close(control.alignment(src, tgt), choosing.alignment(src, tgt))
    ours = torch.autograd.grad(control.loss(src, tgt), list(shared.values()))
    theirs = torch.autograd.grad(choosing.loss(src, tgt), [p for n, p in choosing.named_parameters() if n in shared])
    assert_close(ours, theirs)
    assert all(gradient.any() for gradient in ours)          # nothing in a control is left without work


def test_coverage_needs_a_score_that_is_learnt():
    with pytest.raises(ValueError, match="score='additive'"):
        CoverageSeq2Seq(13, 17, score="uniform")


# the translator

def naive_logits(model, s, t, order=None):
    """One sentence without padding, (S,), (T,), by `nn.GRU`, `nn.GRUCell` and the loop: logits (T, V), weights (T, S)."""
    H, D = model.cell.d_hidden, model.d_model
    encoder, cell = torch.nn.GRU(D, H, bidirectional=True), torch.nn.GRUCell(D + 2 * H, H)
    for ours, ending in zip(model.encoder.cells, ("_l0", "_l0_reverse"), strict=True):
        for name, parameter in ours.named_parameters():
            getattr(encoder, name + ending).data.copy_(parameter)
    cell.load_state_dict(model.cell.state_dict())
    notes, last = encoder(model.src_embedding(s) * D**0.5)
    hidden, logits, weights = torch.tanh(model.bridge(last[1])), [], []
    for word in model.tgt_embedding(t) * D**0.5:
        everything = torch.ones(len(s), dtype=torch.bool)
        if isinstance(model.attention, AdditiveAttention):
            context, row = naive(model.attention, hidden, notes, notes, everything)
        else:
            row = control_weights("uniform" if model.attention.score.slope == 0 else "last", everything)
            context = sum(w * note for w, note in zip(row, notes))
        hidden = cell(torch.cat((word, context)), hidden)
        logits.append(model.output.weight @ torch.tanh(model.readout(torch.cat((hidden, context, word)))))
        weights.append(row)
    return torch.stack(logits), torch.stack(weights)


@pytest.mark.parametrize("options", [{}, {"tied": False}, {"score": "uniform"}, {"score": "last"}])
def test_each_padded_sentence_gets_the_logits_and_weights_of_the_loops(options):
    model, (src, tgt) = make(**options), pairs()
    logits, weights = model(src, tgt[:, :-1]), model.alignment(src, tgt)
    for i in range(3):
        s, t = src[i][src[i] != 0], tgt[i][tgt[i] != 0][:-1]
        expected = naive_logits(model, s, t)
        assert_close((logits[i, :len(t)], weights[i, :len(t), :len(s)]), expected)
        assert not weights[i, :, len(s):].any()


@settings(max_examples=10)
@given(st.permutations(range(6)))
def test_moving_the_annotations_moves_the_weights_and_nothing_else(order):
    model, (src, tgt) = make(), pairs(((5, 2), (5, 6), (5, 4)))
    state, order = model.start(src), torch.tensor(order)
    moved = replace(state, memory=state.memory[:, order], projected=state.projected[:, order], mask=state.mask[:, order])
    (read, weights, last), (same, theirs, also) = model.decode(state, tgt), model.decode(moved, tgt)
    assert_close((same, theirs, also.hidden), (read, weights[:, :, order], last.hidden))


@settings(max_examples=10)
@given(st.integers(0, 4), st.integers(0, 4))
def test_exchanging_two_source_words_moves_the_weights_of_that_sentence_only(a, b):
    model, (src, tgt) = make(), pairs(((5, 2), (5, 6), (5, 4)))
    other = src.clone()
    other[0, a], other[0, b] = src[0, b], src[0, a]
    change = (model.alignment(other, tgt) - model.alignment(src, tgt)).abs().amax(dim=(1, 2))
    assert_close(change[1:], torch.zeros(2))
    assert bool(change[0] > 1e-5) == bool(src[0, a] != src[0, b])


@pytest.mark.parametrize("score", ATTENTIONS)
@settings(max_examples=10)
@given(st.integers(1, 6))
def test_decoding_may_stop_anywhere_and_go_on(score, cut):
    model, (src, tgt) = make(score=score), pairs()
    read, weights, last = model.decode(model.start(src), tgt)
    first, first_weights, state = model.decode(model.start(src), tgt[:, :cut])
    second, second_weights, end = model.decode(state, tgt[:, cut:])
    assert_close((torch.cat((first, second), 1), torch.cat((first_weights, second_weights), 1)), (read, weights))
    assert_close(end.hidden, last.hidden)


def test_the_state_is_a_value():
    model, (src, tgt) = make(), pairs()
    state = model.start(src)
    before = [part.clone() for part in (state.hidden, state.memory, state.projected, state.mask)]
    logits, after = model.step(state, tgt[:, 0])
    assert all(torch.equal(a, b) for a, b in zip((state.hidden, state.memory, state.projected, state.mask), before))
    assert isinstance(after, State) and after.memory is state.memory and not torch.equal(after.hidden, state.hidden)
    with pytest.raises(AttributeError):
        state.hidden = after.hidden
    chosen = state.select(torch.tensor([2, 0, 2, 1]))
    assert_close(chosen.projected, state.projected[[2, 0, 2, 1]])


def test_a_later_target_word_changes_no_earlier_look():
    model, (src, tgt) = make(), pairs()
    other = tgt.clone()
    other[:, 3] = torch.tensor([9, 10, 11])
    before, after = model.alignment(src, tgt), model.alignment(src, other)
    assert_close(after[:, :4], before[:, :4])               # row 3 asks with s_2, which has not read word 3 yet
    assert (after[:, 4] - before[:, 4]).abs().max() > 1e-6


def test_a_source_of_padding_alone_gives_numbers():
    model, (src, tgt) = make(), pairs()
    src = torch.cat((src, torch.zeros(1, 6, dtype=torch.long)))
    tgt = torch.cat((tgt, tgt[:1]))
    logits, weights = model(src, tgt), model.alignment(src, F.pad(tgt, (0, 1)))
    assert logits.isfinite().all() and not weights[3].any()
    loss = model.loss(src, tgt)
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, list(model.parameters())))


def test_dropout_is_felt_in_training_only():
    model, (src, tgt) = make(dropout=0.5), pairs()
    assert_close(model(src, tgt), model(src, tgt))
    model.train()
    assert not torch.allclose(model(src, tgt), model(src, tgt))


def test_shapes_alone_are_enough():
    with torch.device("meta"):
        model, src, tgt = make(n_layers=2), torch.zeros(3, 6, dtype=torch.long), torch.zeros(3, 8, dtype=torch.long)
        attention, query, key = AdditiveAttention(3, 4, 7), torch.zeros(2, 3), torch.zeros(2, 5, 4)
        context, weights = attention(query, key, key, torch.ones(2, 5, dtype=torch.bool))
    assert context.shape == (2, 4) and weights.shape == (2, 5)
    model.loss(src, tgt).backward()
    assert all(p.grad.device.type == "meta" for p in model.parameters())
    assert model.alignment(src, tgt).shape == (3, 7, 6)


@pytest.mark.parametrize("options, words", [({"d_hidden": 0}, "positive whole number, not 0"), ({"n_layers": 0}, "n_layers must be"),
                                            ({"dropout": 1.5}, "p must lie in"),
                                            ({"score": "first"}, "additive, uniform, last, not 'first'")])
def test_bad_sizes_are_named_in_one_line(options, words):
    with pytest.raises(ValueError, match=words) as error:
        make(**options)
    assert "\n" not in str(error.value)

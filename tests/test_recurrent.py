"""The recurrent cells and the two recurrent translators, as installed: faults, properties, the meta device, a small fit."""
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course.models.additive import AdditiveAttention, AdditiveSeq2Seq
from transformer_course.models.ends import embedding_table
from transformer_course.models.rnn import CELLS, GRUCell, LSTMCell, Recurrent, RNNCell, unroll
from transformer_course.models.seq2seq import Seq2Seq
from transformer_course.search.beam import greedy_search

MAKERS = {
    "lstm": lambda **more: Seq2Seq(13, 17, d_model=6, d_hidden=10, n_layers=2, **more),
    "gru, reversed": lambda **more: Seq2Seq(13, 17, 6, 10, cell="gru", reverse_source=True, **more),
    "rnn, untied": lambda **more: Seq2Seq(13, 17, 6, 10, cell="rnn", tied=False, **more),
    "additive": lambda **more: AdditiveSeq2Seq(13, 17, d_model=6, d_hidden=10, d_attention=9, **more),
    "additive, uniform": lambda **more: AdditiveSeq2Seq(13, 17, d_model=6, d_hidden=10, score="uniform", **more),
    "additive, last": lambda **more: AdditiveSeq2Seq(13, 17, d_model=6, d_hidden=10, score="last", **more),
    "additive, two layers, one table": lambda **more: AdditiveSeq2Seq(17, 17, 6, 10, n_layers=2, **more),
}
translators = pytest.mark.parametrize("name", MAKERS)


def sentences(lengths, words, generator, first=(), last=(2,)):
    """Random sentences (ids from 4 on) of the given lengths, framed and padded with 0."""
    rows = [[*first, *torch.randint(4, words, (n,), generator=generator).tolist(), *last] for n in lengths]
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def pairs(seed, src_lengths=(5, 1, 3), tgt_lengths=(2, 6, 4)):
    """A source (3, 6) and a target BOS ... EOS (3, 8)."""
    generator = torch.Generator().manual_seed(seed)
    return sentences(src_lengths, 13, generator), sentences(tgt_lengths, 17, generator, first=(1,))


def stepwise(model, src, tgt_in):
    """Logits of every position, one `step` at a time; and the state after each."""
    state, logits, states = model.start(src), [], []
    for token in tgt_in.T:
        now, state = model.step(state, token)
        logits.append(now)
        states.append(state)
    return torch.stack(logits, dim=1), states


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


# cells and layers

@pytest.mark.parametrize("kind, theirs", [("rnn", nn.RNNCell), ("lstm", nn.LSTMCell), ("gru", nn.GRUCell)])
def test_cells_take_the_weights_of_pytorch_and_give_its_numbers(kind, theirs):
    theirs, ours = theirs(5, 7), CELLS[kind](5, 7)
    ours.load_state_dict(theirs.state_dict())
    x, *hidden = (torch.randn(3, size) for size in (5, *[7] * ours.n_states))
    expected = theirs(x, tuple(hidden) if ours.n_states == 2 else hidden[0])
    assert_close(ours(x, tuple(hidden)), expected if ours.n_states == 2 else (expected,))


def test_the_two_resets_agree_only_where_nothing_is_reset():
    before, after = GRUCell(5, 7, reset="before"), GRUCell(5, 7)
    after.load_state_dict(before.state_dict())
    x, h = torch.randn(2, 5), (torch.randn(2, 7),)
    assert not torch.allclose(before(x, h)[0], after(x, h)[0], atol=1e-3)
    for cell in (before, after):
        cell.bias_ih.data[:7] = 50.0                       # reset gate wide open
    assert_close(before(x, h), after(x, h))


def test_the_two_resets_agree_where_the_product_mixes_nothing_and_adds_nothing():
    before, after = GRUCell(5, 7, reset="before"), GRUCell(5, 7)
    x, h = torch.randn(2, 5), (torch.randn(2, 7),)
    for bias, equal in ((0.0, True), (0.7, False)):
        before.weight_hh.data[14:], before.bias_hh.data[14:] = torch.diag(torch.randn(7)), bias
        after.load_state_dict(before.state_dict())
        assert torch.allclose(before(x, h)[0], after(x, h)[0], atol=1e-5) == equal


def test_an_lstm_starts_with_its_forget_gate_open():
    cell = LSTMCell(5, 7, forget_bias=3.0)
    forget = (cell.bias_ih + cell.bias_hh)[7:14]
    assert_close(forget, torch.full((7,), 3.0))
    assert not (cell.bias_ih[:7].any() or cell.bias_ih[14:].any())
    for matrix in cell.weight_hh.chunk(4):
        assert_close(matrix @ matrix.T, torch.eye(7))      # orthogonal: keeps lengths


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 3), st.booleans(),
       st.sampled_from(sorted(CELLS)))
def test_padding_is_never_heard(lengths, extra, bidirectional, kind):
    layers = Recurrent(kind, 3, 5, n_layers=2, bidirectional=bidirectional)
    rows = [torch.randn(n, 3) for n in lengths]
    x = F.pad(nn.utils.rnn.pad_sequence(rows, batch_first=True), (0, 0, 0, extra), value=7.0)
    mask = torch.arange(x.shape[1]) < torch.tensor(lengths)[:, None]
    outputs, final = layers(x, mask)
    for i, row in enumerate(rows):
        alone, alone_final = layers(row[None])
        assert_close(outputs[i, :len(row)], alone[0])
        assert not outputs[i, len(row):].any()
        for hidden, expected in zip(final, alone_final, strict=True):
            assert_close(tuple(part[i] for part in hidden), tuple(part[0] for part in expected))


def test_a_layer_goes_on_from_where_it_stopped():
    layers, x = Recurrent("lstm", 3, 5, n_layers=2), torch.randn(2, 7, 3)
    whole, final = layers(x)
    first, hidden = layers(x[:, :4])
    second, again = layers(x[:, 4:], hidden=hidden)
    assert_close(torch.cat((first, second), dim=1), whole)
    assert_close(again, final)


def test_unroll_reads_backwards_and_leaves_outputs_in_place():
    cell, x = RNNCell(3, 5), torch.randn(2, 6, 3)
    nothing = (torch.zeros(2, 5),)
    outputs, last = unroll(cell, x, nothing, reverse=True)
    mirrored, mirrored_last = unroll(cell, x.flip(1), nothing)
    assert_close(outputs, mirrored.flip(1))
    assert_close(last, mirrored_last)


def test_dropout_stands_between_layers_only():
    x = torch.randn(2, 6, 3)
    one, two = Recurrent("gru", 3, 5, dropout=0.5), Recurrent("gru", 3, 5, n_layers=2, dropout=0.5)
    assert_close(one(x), one(x))
    assert not torch.allclose(two(x)[0], two(x)[0])
    two.eval()
    assert_close(two(x), two(x))


@pytest.mark.parametrize("make, words", [
    (lambda: RNNCell(0, 5), "d_in"), (lambda: LSTMCell(5, -1), "d_hidden"), (lambda: GRUCell(5, 2.5), "2.5"),
    (lambda: GRUCell(5, 5, reset="never"), "reset"), (lambda: Recurrent("gru2", 3, 5), "gru, lstm, rnn"),
    (lambda: Recurrent("gru", 3, 5, n_layers=0), "n_layers"), (lambda: Seq2Seq(9, 9, cell="elman"), "elman"),
    (lambda: Seq2Seq(0, 9), "vocab_size"), (lambda: AdditiveSeq2Seq(9, 9, d_hidden=0), "d_hidden"),
    (lambda: AdditiveSeq2Seq(9, 9, dropout=2.0), "p must lie"), (lambda: embedding_table(9, 0), "d_model"),
])
def test_bad_sizes_are_named_in_one_line(make, words):
    with pytest.raises(ValueError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


# attention

@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_attention_is_a_mean_over_real_positions(B, S, data):
    flags = data.draw(st.lists(st.lists(st.booleans(), min_size=S, max_size=S), min_size=B, max_size=B))
    real, attention = torch.tensor(flags), AdditiveAttention(3, 4, 7)
    query, annotations = torch.randn(B, 3), torch.randn(B, S, 4)
    context, weights = attention(query, annotations, annotations, real)
    assert not weights[~real].any() and not weights.isnan().any()
    assert_close(weights.sum(-1), real.any(-1).float())                        # one, or zero where nothing is real
    for i in range(B):
        scores = torch.tanh(attention.query(query[i]) + annotations[i, real[i]] @ attention.key.weight.T) @ attention.score
        assert_close(weights[i, real[i]], scores.softmax(-1))
        assert_close(context[i], weights[i] @ annotations[i])


def test_attention_gradients_survive_a_row_with_nothing_real():
    attention = AdditiveAttention(3, 4, 7)
    query, annotations = torch.randn(2, 3, requires_grad=True), torch.randn(2, 5, 4, requires_grad=True)
    real = torch.tensor([[True] * 5, [False] * 5])
    attention(query, annotations, annotations, real)[0].square().sum().backward()
    for gradient in (query.grad, annotations.grad, attention.score.grad):
        assert gradient.isfinite().all()
    assert annotations.grad[0].any() and not annotations.grad[1].any()


def test_permuting_the_annotations_permutes_the_weights():
    model, (src, tgt) = MAKERS["additive"]().eval(), pairs(seed=3, src_lengths=(5, 5, 5))
    state, order = model.start(src), torch.tensor([4, 0, 5, 2, 1, 3])
    moved = type(state)(state.hidden, state.memory[:, order], state.projected[:, order], state.mask[:, order])
    before, weights, last = model.decode(state, tgt[:, :-1])
    after, moved_weights, last = model.decode(moved, tgt[:, :-1])
    assert_close(after, before)
    assert_close(moved_weights, weights[:, :, order])
    assert not torch.allclose(moved_weights, weights, atol=1e-6)


def test_permuting_the_source_changes_the_weights():
    model, (src, tgt) = MAKERS["additive"]().eval(), pairs(seed=3)
    other = src.clone()
    other[0, :2] = src[0, [1, 0]]
    assert (model.alignment(other, tgt)[0] - model.alignment(src, tgt)[0]).abs().max() > 1e-4


# translators

@translators
@given(seed=st.integers(0, 5), place=st.integers(1, 6))
def test_the_future_is_out_of_sight(name, seed, place):
    torch.manual_seed(seed)
    model, (src, tgt) = MAKERS[name]().eval(), pairs(seed)
    changed = tgt.clone()
    changed[:, place] = (changed[:, place] + 1) % 17
    before, after = model(src, tgt), model(src, changed)
    assert_close(after[:, :place], before[:, :place])
    assert (after[:, place] - before[:, place]).abs().amax(-1).gt(1e-6).all()


@translators
@given(wider=st.integers(0, 3), longer=st.integers(0, 3))
def test_each_sentence_is_translated_as_if_alone(name, wider, longer):
    torch.manual_seed(1)
    model, (src, tgt) = MAKERS[name]().eval(), pairs(seed=2)
    logits = model(F.pad(src, (0, wider)), F.pad(tgt[:, :-1], (0, longer)))
    for i in range(3):
        s, t = src[i][src[i] != 0][None], tgt[i][tgt[i] != 0][None]
        assert_close(logits[i, :t.shape[1] - 1], model(s, t[:, :-1])[0])
    assert_close(model.loss(F.pad(src, (0, wider)), F.pad(tgt, (0, longer))), model.loss(src, tgt))


@translators
def test_the_loss_is_that_of_the_logits(name):
    model, (src, tgt) = MAKERS[name]().eval(), pairs(seed=4)
    expected = F.cross_entropy(model(src, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=0,
                               label_smoothing=0.1)
    loss = model.loss(src, tgt, smoothing=0.1)
    assert_close(loss, expected)
    parameters = list(model.parameters())
    assert_close(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters))


@translators
def test_stepping_gives_what_teacher_forcing_gives(name):
    model, (src, tgt) = MAKERS[name]().eval(), pairs(seed=5)
    logits, states = stepwise(model, src, tgt[:, :-1])
    assert_close(logits, model(src, tgt[:, :-1]))
    again, state = model.step(states[1], tgt[:, 2])                            # an old state is still good
    assert_close(again, logits[:, 2])


@translators
@given(rows=st.lists(st.integers(0, 2), min_size=1, max_size=5))
def test_select_is_the_state_of_those_rows(name, rows):
    torch.manual_seed(1)
    model, (src, tgt), rows = MAKERS[name]().eval(), pairs(seed=6), torch.tensor(rows)
    logits, states = stepwise(model, src, tgt[:, :-1])
    assert_close(model.step(states[2].select(rows), tgt[rows, 3])[0], logits[rows, 3])
    assert_close(model.step(states[2], tgt[:, 3])[0], logits[:, 3])            # and the old state is unchanged


@translators
def test_special_ids_are_the_callers(name):
    model = MAKERS[name](pad_id=3, bos_id=4, eos_id=5, dropout=0.0)
    assert (model.pad_id, model.bos_id, model.eos_id) == (3, 4, 5)
    src, tgt = pairs(seed=7, src_lengths=(5, 5, 5), tgt_lengths=(6, 6, 6))
    src[src == 3], tgt[tgt == 3] = 6, 6
    widened = F.pad(src, (0, 2), value=3), F.pad(tgt, (0, 1), value=3)
    assert_close(model.loss(*widened), model.loss(src, tgt))


@translators
def test_shapes_alone_are_enough(name):
    """Forward, loss, backward, step and select on the meta device: nothing asks for a number or for a CPU."""
    with torch.device("meta"):
        model, src, tgt = MAKERS[name](), torch.zeros(3, 6, dtype=torch.long), torch.zeros(3, 8, dtype=torch.long)
        rows = torch.zeros(5, dtype=torch.long)
    assert model(src, tgt[:, :-1]).shape == (3, 7, 17)
    loss = model.loss(src, tgt)
    loss.backward()
    assert loss.shape == () and all(p.grad.device.type == "meta" for p in model.parameters())
    logits, state = model.step(model.start(src), tgt[:, 0])
    assert model.step(state.select(rows), rows)[0].shape == (5, 17)
    if hasattr(model, "alignment"):
        assert model.alignment(src, tgt).shape == (3, 7, 6)


@pytest.mark.parametrize("name", [name for name in MAKERS if name.startswith("additive")])
def test_alignment_is_over_real_source_words(name):
    model, (src, tgt) = MAKERS[name]().eval(), pairs(seed=8)
    weights = model.alignment(src, tgt)
    assert weights.shape == (3, 7, 6)
    assert_close(weights.sum(-1), torch.ones(3, 7))
    assert not weights.masked_select((src == 0)[:, None]).any()


@translators
def test_eight_pairs_are_learnt_by_heart(name):
    torch.manual_seed(1)
    model = MAKERS[name](dropout=0.0)
    generator = torch.Generator().manual_seed(9)
    src = sentences((5, 1, 3, 4, 2, 5, 3, 4), 13, generator)
    tgt = sentences((2, 6, 4, 1, 5, 3, 4, 6), 17, generator, first=(1,))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for i in range(150):
        loss = model.loss(src, tgt, smoothing=0.0)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    tokens = greedy_search(model.eval(), src, max_len=10).tokens
    for written, row in zip(tokens.tolist(), tgt.tolist(), strict=True):
        true = [token for token in row[1:] if token != 0]
        assert written[:len(true)] == true and not any(written[len(true):])

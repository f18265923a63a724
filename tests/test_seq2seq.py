"""The translator with a fixed context, as installed: every cell, reading either way, against loops and PyTorch's packed layers."""
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course.models.seq2seq import Seq2Seq

FORMS = [(cell, layers, turned) for (cell, layers), turned in product((("rnn", 1), ("gru", 2), ("lstm", 2)), (False, True))]
forms = pytest.mark.parametrize("cell, layers, turned", FORMS)


def make(cell, layers, turned, **more):
    torch.manual_seed(1)
    return Seq2Seq(13, 17, 6, 10, n_layers=layers, cell=cell, reverse_source=turned, dropout=0.0, **more).eval()


def pairs(seed=1, src_lengths=(5, 1, 3), tgt_lengths=(2, 6, 4)):
    """Random ids from 4 on: sources with EOS (3, 6), targets BOS ... EOS (3, 8), padded with 0."""
    generator = torch.Generator().manual_seed(seed)
    rows = [[[*first, *torch.randint(4, words, (n,), generator=generator).tolist(), 2] for n in lengths]
            for lengths, words, first in ((src_lengths, 13, ()), (tgt_lengths, 17, (1,)))]
    return tuple(nn.utils.rnn.pad_sequence(list(map(torch.tensor, side)), batch_first=True) for side in rows)


def copied(ours):
    """PyTorch's layers with the weights of a Recurrent."""
    kind = type(ours.cells[0]).__name__.removesuffix("Cell")
    theirs = getattr(nn, kind)(ours.cells[0].d_in, ours.cells[0].d_hidden, len(ours.cells), batch_first=True)
    for layer, cell in enumerate(ours.cells):
        for name, parameter in cell.named_parameters():
            getattr(theirs, f"{name}_l{layer}").data.copy_(parameter)
    return theirs


def stepwise(model, src, tgt_in):
    """Logits of every position, one `step` at a time."""
    state, logits = model.start(src), []
    for token in tgt_in.T:
        now, state = model.step(state, token)
        logits.append(now)
    return torch.stack(logits, dim=1)


@forms
def test_logits_are_those_of_pytorchs_layers_sentence_by_sentence(cell, layers, turned):
    model, (src, tgt) = make(cell, layers, turned), pairs()
    logits, encoder, decoder = model(src, tgt[:, :-1]), copied(model.encoder), copied(model.decoder)
    for i, (s, t) in enumerate(zip(src, tgt)):
        s, t = s[s != 0], t[t != 0][:-1]
        context = encoder(model.src_embedding(s.flip(0) if turned else s)[None] * 6**0.5)[1]
        outputs = decoder(model.tgt_embedding(t)[None] * 6**0.5, context)[0][0]
        assert_close(logits[i, :len(t)], model.readout(outputs) @ model.tgt_embedding.weight.T)


@forms
def test_the_context_is_the_last_state_of_a_packed_layer(cell, layers, turned):
    model, (src, tgt) = make(cell, layers, turned), pairs()
    ordered = nn.utils.rnn.pad_sequence([row[row != 0].flip(0) if turned else row[row != 0] for row in src], batch_first=True)
    packed = nn.utils.rnn.pack_padded_sequence(model.src_embedding(ordered) * 6**0.5, (src != 0).sum(1),
                                               batch_first=True, enforce_sorted=False)
    last = copied(model.encoder)(packed)[1]
    for part, expected in enumerate(last if cell == "lstm" else (last,)):
        for layer, hidden in enumerate(model.start(src).hidden):
            assert_close(hidden[part], expected[layer])


@forms
@settings(max_examples=12)
@given(seed=st.integers(0, 3), place=st.integers(0, 6))
def test_a_later_word_leaves_earlier_logits_unchanged(cell, layers, turned, seed, place):
    model, (src, tgt) = make(cell, layers, turned), pairs(seed)
    changed = tgt.clone()
    changed[:, place] = (changed[:, place] + 1) % 17
    before, after = model(src, tgt), model(src, changed)
    assert torch.equal(after[:, :place], before[:, :place])
    assert (after[:, place] - before[:, place]).abs().amax(-1).gt(1e-6).all()


@forms
@settings(max_examples=12)
@given(wider=st.integers(0, 3), longer=st.integers(0, 3))
def test_padding_of_source_and_target_changes_nothing(cell, layers, turned, wider, longer):
    model, (src, tgt) = make(cell, layers, turned), pairs(2)
    padded = F.pad(src, (0, wider)), F.pad(tgt, (0, longer))
    assert_close(model(*padded)[:, :8], model(src, tgt))
    loss, expected = model.loss(*padded), model.loss(src, tgt)
    assert_close(loss, expected)
    parameters = list(model.parameters())
    assert_close(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters))


@forms
def test_every_source_word_reaches_the_context(cell, layers, turned):
    model, (src, tgt) = make(cell, layers, turned), pairs(3)
    for place in range(6):
        changed = src.clone()
        changed[0, place] = (changed[0, place] + 1) % 13 or 4
        difference = (model.start(changed).hidden[-1][0] - model.start(src).hidden[-1][0]).abs().amax(-1)
        assert difference[0] > 1e-6 and not difference[1:].any()               # and no other sentence's


@forms
def test_steps_give_what_the_full_pass_gives(cell, layers, turned):
    model, (src, tgt) = make(cell, layers, turned), pairs(4)
    assert_close(stepwise(model, src, tgt), model(src, tgt))


@forms
@settings(max_examples=12)
@given(cut=st.integers(1, 7))
def test_decoding_goes_on_from_a_state(cell, layers, turned, cut):
    model, (src, tgt) = make(cell, layers, turned), pairs(5)
    whole, end = model.decode(model.start(src), tgt)
    head, middle = model.decode(model.start(src), tgt[:, :cut])
    tail, last = model.decode(middle, tgt[:, cut:])
    assert_close(torch.cat((head, tail), dim=1), whole)
    assert_close(last.hidden, end.hidden)


def test_reversing_the_source_is_reading_it_reversed():
    there, back = make("lstm", 1, False), make("lstm", 1, True)
    src, tgt = pairs(6, src_lengths=(5, 5, 5))                                 # no padding, so flip is the reversal
    assert_close(back(src, tgt), there(src.flip(1), tgt))
    assert not torch.allclose(back(src, tgt), there(src, tgt), atol=1e-4)


@pytest.mark.parametrize("tied, tables", [(True, 2), (False, 3)])
def test_tied_tables_are_counted_once(tied, tables):
    words, D, H = 17, 6, 10
    both = make("gru", 1, False, tied=tied)
    cells = 2 * (3 * H * (D + H) + 2 * 3 * H)
    expected = 13 * D + words * D * (tables - 1) + cells + H * D + D
    assert sum(p.numel() for p in both.parameters()) == expected
    assert Seq2Seq(17, 17, 6, 10).src_embedding is not Seq2Seq(17, 17, 6, 10, tied=False).tgt_embedding
    one = Seq2Seq(17, 17, 6, 10)
    assert one.src_embedding is one.tgt_embedding is one.output


@forms
def test_shapes_alone_are_enough(cell, layers, turned):
    with torch.device("meta"):
        model, src, tgt = Seq2Seq(13, 17, 6, 10, layers, cell, reverse_source=turned), torch.zeros(3, 6).long(), torch.zeros(3, 8).long()
        rows = torch.zeros(5).long()
    assert model(src, tgt).shape == (3, 8, 17)
    model.loss(src, tgt).backward()
    assert all(p.grad.device.type == "meta" for p in model.parameters())
    logits, state = model.step(model.start(src), tgt[:, 0])
    assert logits.shape == (3, 17) and model.step(state.select(rows), rows)[0].shape == (5, 17)

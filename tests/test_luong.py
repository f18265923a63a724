"""Multiplicative attention, as installed: an oracle in loops for all variants, properties, faults, the meta device."""
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course.models.additive import PlaceScore
from transformer_course.models.luong import (
    DotScore,
    GeneralScore,
    LuongAttention,
    LuongSeq2Seq,
    gaussian,
    in_window,
)
from transformer_course.search.beam import beam_search, greedy_search

VARIANTS = {
    "general": {},
    "dot, two layers": {"score": "dot", "n_layers": 2},
    "concat, gru": {"score": "concat", "cell": "gru"},
    "local-m, reversed": {"attention": "local-m", "window": 1, "reverse_source": True},
    "local-p, both ways, two layers": {"attention": "local-p", "window": 2, "bidirectional": True, "n_layers": 2},
    "no feeding, local-p, dot": {"input_feeding": False, "attention": "local-p", "window": 1, "score": "dot"},
    "no feeding, local-m, concat, rnn": {"input_feeding": False, "attention": "local-m", "window": 2, "score": "concat", "cell": "rnn"},
    "no feeding, two layers, untied": {"input_feeding": False, "n_layers": 2, "tied": False},
    "uniform, two layers": {"score": "uniform", "n_layers": 2},
    "last, both ways": {"score": "last", "bidirectional": True},
    "no feeding, last, local-m": {"input_feeding": False, "score": "last", "attention": "local-m", "window": 1},
}
variants = pytest.mark.parametrize("name", VARIANTS)


def make(name, **more):
    torch.manual_seed(1)
    return LuongSeq2Seq(13, 17, **{"d_model": 6, "d_hidden": 10, "dropout": 0.0} | VARIANTS[name] | more)


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


# the oracle: one sentence without padding, PyTorch's layers, a loop over words, a loop over source words

def naive_score(score, h, note):
    if isinstance(score, DotScore):
        return sum(a * b for a, b in zip(h, note))
    if isinstance(score, GeneralScore):
        return h @ (score.key.weight @ note)
    return score.score @ torch.tanh(score.both.weight @ torch.cat((h, note)))


def naive_look(attention, h, notes, t):
    """Context and weights for the state h (H,) of target word t."""
    if attention.attention == "global":
        p, inside = None, range(len(notes))
    else:
        p = float(t) if attention.attention == "local-m" else len(notes) * torch.sigmoid(
            attention.place.weight[0] @ torch.tanh(attention.towards.weight @ h))
        inside = [s for s in range(len(notes)) if abs(s - float(torch.as_tensor(p).detach())) <= attention.window]
    if isinstance(attention.score, PlaceScore) and attention.score.slope == 0:
        powers = {s: torch.ones(()) for s in inside}
    elif isinstance(attention.score, PlaceScore):
        powers = {s: torch.tensor(float(s == inside[-1])) for s in inside}
    else:
        powers = {s: torch.exp(naive_score(attention.score, h, notes[s])) for s in inside}
    weights = [torch.zeros(()) for note in notes]
    for s, power in powers.items():
        weights[s] = power / sum(powers.values())
        if attention.attention == "local-p":
            weights[s] = weights[s] * torch.exp(-(s - p)**2 / (2 * (attention.window / 2)**2))
    return sum(w * note for w, note in zip(weights, notes)), torch.stack(weights)


def copied(recurrent, kind):
    """PyTorch's layers with the weights of a Recurrent."""
    both = recurrent.directions == 2
    theirs = getattr(nn, kind.upper())(recurrent.cells[0].d_in, recurrent.cells[0].d_hidden,
                                       len(recurrent.cells) // recurrent.directions, bidirectional=both)
    for i, cell in enumerate(recurrent.cells):
        for name, parameter in cell.named_parameters():
            ending = f"_l{i // recurrent.directions}" + "_reverse" * (i % recurrent.directions)
            getattr(theirs, name + ending).data.copy_(parameter)
    return theirs


def naive(model, kind, s, t):
    """One sentence: (S,), (T,) -> logits (T, V), weights (T, S), the encoder."""
    encoder, scale = copied(model.encoder, kind), model.d_model**0.5
    cells = [getattr(nn, f"{kind.upper()}Cell")(cell.d_in, cell.d_hidden) for cell in model.decoder.cells]
    for theirs, ours in zip(cells, model.decoder.cells, strict=True):
        theirs.load_state_dict(ours.state_dict())
    words = model.src_embedding(s) * scale
    notes, last = encoder(words.flip(0) if model.reverse_source else words)
    notes = notes.flip(0) if model.reverse_source else notes
    last = last if isinstance(last, tuple) else (last,)
    ways = model.encoder.directions
    states = [[torch.cat([part[layer * ways + way] for way in range(ways)]) for part in last] for layer in range(len(cells))]
    seen, logits, weights = torch.zeros(model.d_model), [], []
    for i, word in enumerate(model.tgt_embedding(t) * scale):
        x = torch.cat((word, seen)) if model.input_feeding else word
        for layer, cell in enumerate(cells):
            state = cell(x, tuple(states[layer]) if len(last) == 2 else states[layer][0])
            states[layer] = list(state) if len(last) == 2 else [state]
            x = states[layer][0]
        context, now = naive_look(model.attention, x, notes, i)
        seen = torch.tanh(model.combine.weight @ torch.cat((context, x)))
        logits.append(model.output.weight @ seen)
        weights.append(now)
    return torch.stack(logits), torch.stack(weights), encoder


@variants
def test_values_and_gradients_are_those_of_the_loops(name):
    model, (src, tgt), kind = make(name), pairs(seed=2), VARIANTS[name].get("cell", "lstm")
    parts = [naive(model, kind, s[s != 0], t[t != 0][:-1]) for s, t in zip(src, tgt)]
    logits, weights = model(src, tgt[:, :-1]), model.alignment(src, tgt)
    for i, (their_logits, their_weights, encoder) in enumerate(parts):
        T, S = their_weights.shape
        assert_close(logits[i, :T], their_logits)
        assert_close(weights[i, :T, :S], their_weights)
        assert not weights[i, :, S:].any()
    loss = model.loss(src, tgt, smoothing=0.1)
    expected = F.cross_entropy(torch.cat([p[0] for p in parts]), torch.cat([t[t != 0][1:] for t in tgt]), label_smoothing=0.1)
    assert_close(loss, expected)
    shared = [p for n, p in model.named_parameters() if not n.startswith(("encoder", "decoder"))]
    ours = torch.autograd.grad(loss, shared, retain_graph=True)
    assert_close(ours, torch.autograd.grad(expected, shared, retain_graph=True))
    (ours,) = torch.autograd.grad(loss, [model.encoder.cells[0].weight_hh])
    assert_close(ours, sum(torch.autograd.grad(expected, [p[2].weight_hh_l0], retain_graph=True)[0] for p in parts))


@pytest.mark.parametrize("score", ["uniform", "last"])
def test_a_control_lacks_the_matrix_of_the_general_score_and_nothing_else(score):
    choosing, control = (dict(make("general", score=kind).named_parameters()) for kind in ("general", score))
    assert choosing.keys() - control.keys() == {"attention.score.key.weight"}
    assert {n: p.shape for n, p in control.items()} == {n: choosing[n].shape for n in control}


# attention and its windows

@given(st.integers(1, 4), st.integers(1, 7), st.integers(1, 3), st.sampled_from(["global", "local-m", "local-p"]), st.data())
def test_attention_is_never_undefined(B, S, reach, where, data):
    lengths = torch.tensor(data.draw(st.lists(st.integers(0, S), min_size=B, max_size=B)))
    mask = torch.arange(S) < lengths[:, None]
    attention = LuongAttention(GeneralScore(3, 4), 3, where, reach)
    query, memory = torch.randn(B, 5, 3, requires_grad=True), torch.randn(B, S, 4, requires_grad=True)
    position = torch.arange(5).expand(B, 5) + 4
    context, weights = attention(query, attention.score.project(memory), memory, mask, position)
    assert weights.isfinite().all() and not weights.masked_select(~mask[:, None].expand_as(weights)).any()
    total = weights.sum(-1)
    assert (total < 1 + 1e-5).all()
    if where == "global":
        assert_close(total, (lengths > 0).float()[:, None].expand(B, 5))
    if where == "local-m":
        sees = (position - reach <= lengths[:, None] - 1)
        assert_close(total, sees.float())                              # beyond the source's end: nothing, and zeros
        assert not context[~sees].any()
    if where == "local-p":
        assert ((total > 0) == (lengths > 0)[:, None]).all()           # its window always holds a real word
    context.square().sum().backward()
    assert query.grad.isfinite().all() and memory.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in attention.parameters())


@given(st.floats(-3, 12), st.integers(1, 9), st.integers(1, 4))
def test_windows_and_gaussians(centre, size, reach):
    inside, curve = (f(torch.tensor([[centre]]), size, reach)[0, 0] for f in (in_window, gaussian))
    centre = torch.tensor(centre).item()
    assert inside.tolist() == [abs(torch.tensor(s - centre).item()) <= reach for s in range(size)]
    assert_close(curve, torch.tensor([math.exp(-(s - centre)**2 / (2 * (reach / 2)**2)) for s in range(size)]))


def test_a_whole_number_centre_sees_two_reaches_and_one():
    assert in_window(torch.tensor([[5.0]]), 20, 3)[0, 0].nonzero()[:, 0].tolist() == [2, 3, 4, 5, 6, 7, 8]


def test_the_predicted_centre_depends_on_each_sentences_own_length():
    attention = LuongAttention(DotScore(4, 4), 4, "local-p", 2)
    query, mask = torch.randn(1, 3, 4).expand(2, 3, 4), torch.arange(9) < torch.tensor([[8], [2]])
    centre = attention.centre(query, mask, torch.zeros(2, 3, dtype=torch.long))
    assert_close(centre[0], 4 * centre[1])
    assert (0 < centre).all() and (centre < mask.sum(-1, keepdim=True)).all()


@pytest.mark.parametrize("name", [name for name in VARIANTS if VARIANTS[name].get("score") not in ("uniform", "last")])
def test_permuting_the_source_moves_the_weights(name):
    model, (src, tgt) = make(name), pairs(seed=3)
    other = src.clone()
    other[0, :2] = src[0, [1, 0]]
    assert (model.alignment(other, tgt)[0] - model.alignment(src, tgt)[0]).abs().max() > 1e-5


@pytest.mark.parametrize("score", ["dot", "general", "concat"])
@pytest.mark.parametrize("feeding", [True, False])
def test_permuting_the_annotations_permutes_the_weights(score, feeding):
    model = LuongSeq2Seq(13, 17, 6, 10, score=score, input_feeding=feeding).eval()
    src, tgt = pairs(seed=3, src_lengths=(5, 5, 5))
    state, order = model.start(src), torch.tensor([4, 0, 5, 2, 1, 3])
    moved = type(state)(state.hidden, state.seen, state.position, state.memory[:, order], state.projected[:, order], state.mask)
    before, weights, last = model.decode(state, tgt[:, :-1])
    after, moved_weights, last = model.decode(moved, tgt[:, :-1])
    assert_close(after, before)
    assert_close(moved_weights, weights[:, :, order])
    assert not torch.allclose(moved_weights, weights, atol=1e-6)


# the translator

@variants
@settings(max_examples=6)
@given(seed=st.integers(0, 5), place=st.integers(1, 6))
def test_the_future_is_out_of_sight(name, seed, place):
    model, (src, tgt) = make(name), pairs(seed)
    changed = tgt.clone()
    changed[:, place] = (changed[:, place] + 1) % 17
    before, after = model(src, tgt), model(src, changed)
    assert_close(after[:, :place], before[:, :place])
    assert (after[:, place] - before[:, place]).abs().amax(-1).gt(1e-6).all()


@variants
@settings(max_examples=6)
@given(wider=st.integers(0, 3), longer=st.integers(0, 3))
def test_each_sentence_is_translated_as_if_alone(name, wider, longer):
    model, (src, tgt) = make(name), pairs(seed=2)
    logits = model(F.pad(src, (0, wider)), F.pad(tgt[:, :-1], (0, longer)))
    for i in range(3):
        s, t = src[i][src[i] != 0][None], tgt[i][tgt[i] != 0][None]
        assert_close(logits[i, :t.shape[1] - 1], model(s, t[:, :-1])[0])
    assert_close(model.loss(F.pad(src, (0, wider)), F.pad(tgt, (0, longer))), model.loss(src, tgt))


@variants
@settings(max_examples=6)
@given(rows=st.lists(st.integers(0, 2), min_size=1, max_size=5))
def test_stepping_gives_what_teacher_forcing_gives_and_select_keeps_it(name, rows):
    model, (src, tgt), rows = make(name), pairs(seed=6), torch.tensor(rows)
    logits, states = stepwise(model, src, tgt[:, :-1])
    assert_close(logits, model(src, tgt[:, :-1]))
    assert_close(model.step(states[2].select(rows), tgt[rows, 3])[0], logits[rows, 3])
    assert_close(model.step(states[2], tgt[:, 3])[0], logits[:, 3])            # and the old state is unchanged


@variants
def test_decoding_goes_on_from_where_it_stopped(name):
    model, (src, tgt) = make(name), pairs(seed=7)
    whole, weights, last = model.decode(model.start(src), tgt)
    first, w1, state = model.decode(model.start(src), tgt[:, :3])
    second, w2, end = model.decode(state, tgt[:, 3:])
    assert_close((torch.cat((first, second), 1), torch.cat((w1, w2), 1)), (whole, weights))
    assert_close((end.hidden, end.seen, end.position), (last.hidden, last.seen, last.position))
    assert end.position.tolist() == [8, 8, 8]


@variants
def test_dropout_is_felt_in_training_only(name):
    model, (src, tgt) = make(name, dropout=0.4), pairs(seed=4)
    assert not torch.allclose(model(src, tgt), model(src, tgt))
    model.eval()
    assert_close(model(src, tgt), model(src, tgt))
    model.train()
    loss = model.loss(src, tgt)
    assert loss.isfinite() and not torch.allclose(loss, model.loss(src, tgt))


@variants
def test_special_ids_are_the_callers(name):
    model = make(name, pad_id=3, bos_id=4, eos_id=5)
    assert (model.pad_id, model.bos_id, model.eos_id) == (3, 4, 5)
    src, tgt = pairs(seed=7, src_lengths=(5, 5, 5), tgt_lengths=(6, 6, 6))
    src[src == 3], tgt[tgt == 3] = 6, 6
    widened = F.pad(src, (0, 2), value=3), F.pad(tgt, (0, 1), value=3)
    assert_close(model.loss(*widened), model.loss(src, tgt))


@variants
def test_shapes_alone_are_enough(name):
    """Forward, loss, backward, step and select on the meta device: nothing asks for a number or for a CPU."""
    with torch.device("meta"):
        model, src, tgt = make(name), torch.zeros(3, 6, dtype=torch.long), torch.zeros(3, 8, dtype=torch.long)
        rows = torch.zeros(5, dtype=torch.long)
    assert model(src, tgt[:, :-1]).shape == (3, 7, 17)
    loss = model.loss(src, tgt)
    loss.backward()
    assert loss.shape == () and all(p.grad.device.type == "meta" for p in model.parameters())
    logits, state = model.step(model.start(src), tgt[:, 0])
    assert model.step(state.select(rows), rows)[0].shape == (5, 17)
    assert model.alignment(src, tgt).shape == (3, 7, 6)


@variants
def test_half_precision_stays_close(name):
    model, (src, tgt) = make(name), pairs(seed=8)
    whole = model.loss(src, tgt)
    with torch.autocast("cpu", torch.bfloat16):
        half = model.loss(src, tgt)
        model(src, tgt), model.step(model.start(src), tgt[:, 0])
    half.backward()
    assert half.dtype == torch.float32 and abs(half.item() - whole.item()) < 0.05
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ["local-m, reversed", "local-p, both ways, two layers", "no feeding, two layers, untied"])
def test_eight_pairs_are_learnt_by_heart(name):
    model = make(name)
    generator = torch.Generator().manual_seed(9)
    src = sentences((5, 1, 3, 4, 2, 5, 3, 4), 13, generator)
    tgt = sentences((2, 6, 4, 1, 5, 3, 4, 6), 17, generator, first=(1,))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for i in range(120):
        loss = model.loss(src, tgt, smoothing=0.0)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    tokens = greedy_search(model.eval(), src, max_len=10).tokens
    best = beam_search(model, src, beam_size=3, max_len=10).tokens
    for found in (tokens, best):
        for written, row in zip(found.tolist(), tgt.tolist(), strict=True):
            true = [token for token in row[1:] if token != 0]
            assert written[:len(true)] == true and not any(written[len(true):])


@pytest.mark.parametrize("build, words", [
    (lambda: LuongSeq2Seq(9, 9, score="cosine"), "dot, general, concat"), (lambda: LuongSeq2Seq(9, 9, attention="local"), "local-m"),
    (lambda: LuongSeq2Seq(9, 9, window=0), "window"), (lambda: LuongSeq2Seq(9, 9, window=1.5), "1.5"),
    (lambda: LuongSeq2Seq(9, 9, cell="elman"), "elman"), (lambda: LuongSeq2Seq(9, 9, d_hidden=0), "d_hidden"),
    (lambda: LuongSeq2Seq(9, 9, d_hidden=7, bidirectional=True), "even"), (lambda: DotScore(3, 4), "equal"),
    (lambda: LuongSeq2Seq(9, 9, dropout=2.0), "p must lie"), (lambda: LuongSeq2Seq(0, 9), "vocab_size"),
])
def test_bad_choices_are_named_in_one_line(build, words):
    with pytest.raises(ValueError, match=words) as error:
        build()
    assert "\n" not in str(error.value)

"""The Transformer on random sizes: an oracle in loops, cache, causality, padding, and rows that are wholly masked."""
import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course.models.attention import MultiHeadAttention, attention
from transformer_course.models.functional import (Dropout, causal_mask, check_sizes, dropout, padding_mask,
                                                  projected_loss, smoothed_cross_entropy)
from transformer_course.models.positions import Learned, Sinusoidal, sinusoids
from transformer_course.models.relative_positions import POSITIONS
from transformer_course.models.transformer import Transformer
from transformer_course.pipelines.presets import MODELS, PRESETS
from transformer_course.search.beam import beam_search, greedy_search
from transformer_course.search.exact import astar_search
from transformer_course.training.schedules import inverse_sqrt, linear_decay, noam

VARIANTS = {f"{positions}, {norm}": {"positions": positions, "norm": norm} for positions in POSITIONS for norm in ("pre", "post")}
variants = pytest.mark.parametrize("name", VARIANTS)
sizes = st.fixed_dictionaries({
    "n_heads": st.sampled_from([1, 2, 3]), "n_layers": st.tuples(st.integers(1, 2), st.integers(1, 2)), "tied": st.booleans()})


def make(name, seed=1, words=11, **more):
    torch.manual_seed(seed)
    return Transformer(words, 13, **{"d_model": 12, "n_heads": 3, "n_layers": (2, 1), "d_ff": 7, "dropout": 0.0} | VARIANTS[name] | more)


def batch(seed, B=3, S=5, T=6, V=11):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randint(4, V, shape, generator=generator)
    src, tgt = draw(B, S), draw(B, T)
    src[1, 2:], tgt[2, 3:], tgt[:, 0] = 0, 0, 1
    return src, tgt


def sentences(lengths, words, generator, first=(), last=(2,)):
    """Random sentences (ids from 4 on) of the given lengths, framed and padded with 0."""
    rows = [[*first, *torch.randint(4, words, (n,), generator=generator).tolist(), *last] for n in lengths]
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def test_every_named_transformer_is_among_the_variants():
    for name in (name for name in MODELS if name.startswith("transformer")):
        chosen = MODELS[name].keywords
        assert chosen.keys() <= {"positions", "norm"}
        for options in (chosen, PRESETS["micro"].of(name)[0]):
            assert {"positions": options.get("positions", "sinusoidal"), "norm": options.get("norm", "post")} in VARIANTS.values()


# the oracle: one sentence without padding, from the weights by name, one pair of words after the other

SLOPES = (1 / 16, 1 / 256, 1 / 4)                                                 # of ALiBi's three heads: those of two, then one of four


def plain_score(w, q, k, i, j, head):
    """The scaled score of the query of word i (K,) and the key of word j (K,)."""
    return q @ k / math.sqrt(len(q))


def relative_score(w, q, k, i, j, head):
    """A vector for each distance, added to the key; the 33 in the table stand for -16 ... 16 [Shaw et al. 2018, eq. 4]."""
    return q @ (k + w["table"][16 + max(-16, min(16, j - i))]) / math.sqrt(len(q))


def rotary_score(w, q, k, i, j, head):
    """Each pair of components is a complex number; the turn is that of the distance: Re(q k* e^(i(m - n)θ)) [Su et al. 2021, §3.2]."""
    angles = torch.tensor([(i - j) * 10000 ** (-2 * pair / len(q)) for pair in range(len(q) // 2)])
    q, k = (torch.complex(*x.view(-1, 2).unbind(1)) for x in (q, k))
    return (q * k.conj() * torch.polar(torch.ones_like(angles), angles)).real.sum() / math.sqrt(2 * len(q))


def alibi_score(w, q, k, i, j, head):
    """The farther, the less, by the head's slope [Press et al. 2022, §3]."""
    return plain_score(w, q, k, i, j, head) - SLOPES[head] * abs(i - j)


SCORES = {"relative": relative_score, "rotary": rotary_score, "alibi": alibi_score}


def joined(w):
    """Matrices of cross-attention, put below one another like those of self-attention."""
    return w if "in_proj.weight" in w else w | {f"in_proj.{kind}": torch.cat((w[f"q_proj.{kind}"], w[f"kv_proj.{kind}"])) for kind in ("weight", "bias")}


def naive_attention(w, x, memory, score=plain_score, causal=False, H=3):
    """Queries from x (T, D), keys and values from memory (S, D) -> (T, D)."""
    w = joined(w)
    matrices, biases = w["in_proj.weight"].chunk(3), w["in_proj.bias"].chunk(3)
    q, k, v = ((y @ matrix.T + bias).chunk(H, 1) for y, matrix, bias in zip((x, memory, memory), matrices, biases))
    rows = []
    for i in range(len(x)):
        seen, answers = i + 1 if causal else len(memory), []
        for h in range(H):
            scores = torch.stack([score(w, q[h][i], k[h][j], i, j, h) for j in range(seen)])
            answers.append(scores.softmax(0) @ v[h][:seen])
        rows.append(torch.cat(answers))
    return torch.stack(rows) @ w["out_proj.weight"].T + w["out_proj.bias"]


def naive_norm(w, x):
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * w["weight"] + w["bias"]


def naive_codes(w, kind, length, D):
    """What is added to the words (length, D)."""
    if kind == "sinusoidal":
        wave = lambda pos, i: (math.cos if i % 2 else math.sin)(pos / 10000 ** ((i - i % 2) / D))
        return torch.tensor([[wave(pos, i) for i in range(D)] for pos in range(length)])
    return w["tgt_embedding.positions.table"][:length] if kind == "learned" else 0


def naive(w, positions, norm, src, tgt_in, n_layers):
    """Weights by name; one source (S,) and target (T,) -> logits (T, V)."""
    of = lambda start: {name.removeprefix(start): value for name, value in w.items() if name.startswith(start)}
    embed = lambda table, ids: table[ids] * math.sqrt(table.shape[1]) + naive_codes(w, positions, len(ids), table.shape[1])
    score, pre = SCORES.get(positions, plain_score), norm == "pre"

    def layer(start, x, *sublayers):
        for n, sublayer in enumerate(sublayers):
            scale = of(f"{start}norm_{n + 1}.")
            x = x + sublayer(naive_norm(scale, x)) if pre else naive_norm(scale, x + sublayer(x))
        return x

    def look(start, *others, **how):
        weights = of(start + "heads.") | of(start + "positions.")
        return lambda x: naive_attention(weights, x, *(others or [x]), **how)

    def think(start):
        (up, a), (down, b) = ((w[f"{start}{part}.weight"].T, w[f"{start}{part}.bias"]) for part in ("expand", "contract"))
        return lambda x: (x @ up + a).relu() @ down + b

    x, y = embed(w.get("src_embedding.table.weight", w["tgt_embedding.table.weight"]), src), embed(w["tgt_embedding.table.weight"], tgt_in)
    for at in (f"encoder.layers.{n}." for n in range(n_layers[0])):
        x = layer(at, x, look(at + "self_attention.", score=score), think(at + "feed_forward."))
    memory = naive_norm(of("encoder.final_norm."), x) if pre else x
    for at in (f"decoder.layers.{n}." for n in range(n_layers[1])):
        back, over = look(at + "self_attention.", score=score, causal=True), look(at + "cross_attention.", memory)
        y = layer(at, y, back, over, think(at + "feed_forward."))
    return (naive_norm(of("decoder.final_norm."), y) if pre else y) @ w.get("output.table.weight", w["tgt_embedding.table.weight"]).T


@variants
@pytest.mark.parametrize("tied", [True, False])
def test_values_and_gradients_are_those_of_the_loops(name, tied):
    model, generator = make(name, tied=tied), torch.Generator().manual_seed(2)
    for parameter in model.parameters():                                          # no two norms alike, no bias at zero
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    far = 18 if "relative" in name else 4                                         # beyond the clip of 16 on both sides
    src, tgt = sentences((far, 2), 11, generator), sentences((2, far + 1), 13, generator, first=(1,))
    weights, parts = dict(model.named_parameters()), []
    for s, t in zip(src, tgt):
        parts.append(naive(weights, *VARIANTS[name].values(), s[s != 0], t[t != 0][:-1], (2, 1)))
    for logits, expected in zip(model(src, tgt[:, :-1]), parts):
        assert_close(logits[:len(expected)], expected, rtol=1e-4, atol=1e-5)
    loss = model.loss(src, tgt, smoothing=0.1)
    expected = F.cross_entropy(torch.cat(parts), torch.cat([t[t != 0][1:] for t in tgt]), label_smoothing=0.1)
    assert_close(loss, expected)
    gradients = [torch.autograd.grad(total, list(weights.values())) for total in (loss, expected)]
    assert_close(*gradients, rtol=1e-4, atol=1e-5)


# properties

@variants
@settings(max_examples=3)
@given(sizes, st.integers(0, 1000))
def test_step_equals_forward_at_every_position_and_select_picks_rows(name, options, seed):
    model = make(name, seed, **options).eval()
    src, tgt = batch(seed)
    full, state, rows = model(src, tgt), model.start(src), torch.tensor([2, 0, 0])
    for t in range(3):
        logits, state = model.step(state, tgt[:, t])
        assert_close(logits, full[:, t])
    state = state.select(rows)
    for t in range(3, 6):
        logits, state = model.step(state, tgt[rows, t])
        assert_close(logits, full[rows, t])


@variants
@settings(max_examples=4)
@given(sizes, st.integers(0, 1000), st.integers(1, 5))
def test_later_words_and_padding_reach_nothing(name, options, seed, place):
    model = make(name, seed, **options).eval()
    src, tgt = batch(seed)
    changed = tgt.clone()
    changed[:, place] = 12
    before, after = model(src, tgt), model(src, changed)
    assert_close(after[:, :place], before[:, :place])
    assert (after[:, place:] - before[:, place:]).abs().amax(-1).gt(1e-4).all()          # from there on every word hears of it
    wider = F.pad(src, (0, 3))
    assert_close(before, model(wider, tgt))
    assert_close(model(src[1:2, :2], tgt[1:2]), before[1:2])
    assert_close(model.loss(src, tgt), model.loss(wider, F.pad(tgt, (0, 2))))


@variants
def test_every_real_source_word_reaches_every_target_word(name):
    model, (src, tgt) = make(name).eval(), batch(4)
    before = model(src, tgt)
    for place in range(5):
        changed = src.clone()
        changed[:, place] = 3                                                             # no sentence has it
        rows = (src[:, place] != 0).nonzero()[:, 0]
        assert (model(changed[rows], tgt[rows]) - before[rows]).abs().amax(-1).gt(1e-4).all()
    longer = model(F.pad(src, (0, 1), value=3), tgt)                                      # one more word, where padding changes nothing
    assert (longer - before).abs().amax(-1).gt(1e-4).all()


@variants
@pytest.mark.parametrize("words", [11, 13])                                               # 13: one table for both languages
def test_the_loss_is_that_of_the_logits(name, words):
    model, (src, tgt) = make(name, words=words).eval(), batch(5)
    assert (model.src_embedding is model.tgt_embedding) == (words == 13)
    logits, parameters = model(src, tgt[:, :-1]), list(model.parameters())
    for smoothing in (0.0, 0.1):
        expected = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=0, label_smoothing=smoothing)
        loss = model.loss(src, tgt, smoothing)
        assert_close(loss, expected)
        gradients = [torch.autograd.grad(total, parameters, retain_graph=True) for total in (loss, expected)]
        assert_close(*gradients)


@variants
def test_special_ids_are_the_callers(name):
    model = make(name, pad_id=3, bos_id=4, eos_id=5)
    assert (model.pad_id, model.bos_id, model.eos_id) == (3, 4, 5)
    src, tgt = batch(7)                                                                   # without a 3; its zeros are words here
    widened = F.pad(src, (0, 2), value=3), F.pad(tgt, (0, 1), value=3)
    assert_close(model.loss(*widened), model.loss(src, tgt))


@variants
def test_other_numbers_for_the_same_words_change_nothing(name):
    """Words 0, 1, 2 (padding, begin, end) change places with 3, 4, 5, in both tables."""
    model, other, moved = make(name, tied=False).eval(), make(name, 2, tied=False, pad_id=3, bos_id=4, eos_id=5).eval(), torch.arange(13)
    moved[:6] = moved[:6].roll(3)
    tables = ("src_embedding.table.weight", "tgt_embedding.table.weight", "output.table.weight")
    other.load_state_dict({key: value[moved[:len(value)]] if key in tables else value for key, value in model.state_dict().items()})
    src, tgt = sentences((5, 1, 3, 4, 2), 11, torch.Generator().manual_seed(3)), batch(3, B=5)[1]
    assert_close(other.loss(moved[src], moved[tgt]), model.loss(src, tgt))
    for search in (partial(greedy_search, max_len=9), partial(beam_search, beam_size=3, max_len=9)):
        expected, found = search(model, src), search(other, moved[src])
        assert torch.equal(found.tokens, moved[expected.tokens])
        assert_close(found.scores, expected.scores)
    assert (expected.tokens == 2).any()


@pytest.mark.parametrize("name", ["relative, post", "rotary, pre", "alibi, pre"])
def test_eight_pairs_are_learnt_by_heart(name):
    model, generator = make(name, words=13, n_layers=1, d_model=24, d_ff=96), torch.Generator().manual_seed(9)
    src = sentences((5, 1, 3, 4, 2, 5, 3, 4), 13, generator)
    tgt = sentences((2, 6, 4, 1, 5, 3, 4, 6), 13, generator, first=(1,))
    optimiser = torch.optim.Adam(model.parameters())
    for i in range(120):
        optimiser.param_groups[0]["lr"] = 0.012 * (1 - i / 120)
        loss = model.loss(src, tgt, smoothing=0.0)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    found = greedy_search(model.eval(), src, max_len=10).tokens, beam_search(model, src, beam_size=3, max_len=10, exact_stop=True).tokens
    for tokens in found:
        for written, row in zip(tokens.tolist(), tgt.tolist(), strict=True):
            true = [token for token in row[1:] if token != 0]
            assert written[:len(true)] == true and not any(written[len(true):])


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from(POSITIONS))
def test_any_state_may_be_continued_again_and_again(seed, positions):
    """A pool of states grows by steps and selections of any of them; each gives what the full pass over its words gives.

    Now gradients are wanted and now not, or now inference mode is on and now not.
    """
    draw = torch.Generator().manual_seed(seed)
    pick = lambda high, *shape: torch.randint(high, shape, generator=draw)
    model = Transformer(11, 13, d_model=12, n_heads=3, n_layers=2, d_ff=7, positions=positions, dropout=0.0).eval()
    src, _ = batch(seed)
    modes = (torch.no_grad, (torch.enable_grad, torch.inference_mode)[seed % 2])    # PyTorch takes no gradients of the latter
    with modes[1]():
        state, words = model.start(src), pick(13, 3, 2)
    for token in words.T:
        with modes[pick(2, 1)]():
            state = model.step(state, token)[1]
    pool = [(state, torch.arange(3), words)]                                                   # state, sentences, words
    for turn in range(24):
        state, sentence, words = pool[pick(len(pool), 1) if turn % 3 == 0 else -1]
        with modes[pick(2, 1)]():
            if turn % 5 == 4:
                rows = [torch.randperm(len(words), generator=draw), pick(len(words), 4)][turn % 2]
                pool.append((state.select(rows), sentence[rows], words[rows]))
            else:
                token = pick(13, len(words))
                logits, after = model.step(state, token)
                pool.append((after, sentence, torch.cat((words, token[:, None]), dim=1)))
                assert_close(logits, model(src[sentence], pool[-1][2])[:, -1], rtol=1e-4, atol=1e-4)
        pool = [pool[0], *pool[-6:]]


def test_a_search_may_go_on_from_a_state_whose_gradients_are_wanted():
    model, (src, tgt) = Transformer(11, 13, d_model=12, n_heads=3, n_layers=2, d_ff=7, dropout=0.0).eval(), batch(3)
    first, state = model.step(model.start(src), tgt[:, 0])
    second, state = model.step(state, tgt[:, 1])
    with torch.no_grad():
        assert_close(model.step(state, tgt[:, 2])[0], model(src, tgt)[:, 2])
    (first.sum() + second.sum()).backward()
    expected = torch.autograd.grad(model(src, tgt[:, :2]).sum(), model.tgt_embedding.weight)[0]
    assert_close(model.tgt_embedding.weight.grad, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("positions", POSITIONS)
def test_exact_search_joins_states_of_the_transformer(positions):
    torch.manual_seed(5)
    model = Transformer(11, 7, d_model=12, n_heads=3, n_layers=2, d_ff=9, tied=False, positions=positions).eval()
    src, _ = batch(2)
    proof = astar_search(model, src, max_len=4)
    assert proof.proven.all()
    for row, score in zip(src, proof.found.scores):
        best = max((model(row[None], torch.tensor([[1, *words]]))[0].log_softmax(-1).gather(1, torch.tensor([*words, 2])[:, None]).sum().item()
                    for length in range(4) for words in itertools.product((3, 4, 5, 6), repeat=length)))
        assert abs(best - score.item()) < 1e-4


def test_step_wants_a_token_for_each_hypothesis():
    model, (src, tgt) = Transformer(11, 13, d_model=12, n_heads=3, n_layers=1, d_ff=7).eval(), batch(1)
    for n in (1, 3):
        with torch.no_grad(), pytest.raises(ValueError, match=f"{2 * n} words for {n} hypotheses"):
            model.step(model.start(src[:n]), torch.full((2 * n,), 4))


def test_shapes_are_right_without_any_numbers():
    with torch.device("meta"):
        model = Transformer(11, 13, d_model=12, n_heads=3, n_layers=(1, 2), d_ff=7)
        src, tgt = torch.zeros(2, 5, dtype=torch.long), torch.zeros(2, 7, dtype=torch.long)
        logits, state = model.step(model.start(src), tgt[:, 0])
        assert model(src, tgt).shape == (2, 7, 13) and model.loss(src, tgt).shape == () and logits.shape == (2, 13)
        assert len(state.caches) == 2 and state.caches[0].keys.shape == (2, 3, 1, 4) and state.position == 1


def test_a_source_of_nothing_but_padding_gives_finite_numbers_and_gradients():
    model = Transformer(11, 13, d_model=12, n_heads=3, n_layers=2, d_ff=7, dropout=0.0)
    src, tgt = batch(1)
    src[0] = 0
    loss = model.loss(src, tgt)
    loss.backward()
    assert loss.isfinite() and all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@given(st.integers(0, 10**6))
@settings(max_examples=20)
def test_a_row_that_may_attend_to_nothing_is_zero_without_gradient(seed):
    torch.manual_seed(seed)
    q, k, v = (torch.randn(2, 3, n, 4, requires_grad=True) for n in (5, 7, 7))
    mask = torch.rand(2, 1, 5, 7) < 0.3
    mask[0, 0, 1] = False
    output, weights = attention(q, k, v, mask, need_weights=True)
    assert not output[0, :, 1].any() and not weights[0, :, 1].any()
    output[0, :, 1].sum().backward()
    assert not any(x.grad.any() or x.grad.isnan().any() for x in (q, k, v))


def test_a_bias_is_added_to_the_scores():
    q, k, v, bias = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 4), torch.randn(3, 5, 7)
    expected = (q @ k.transpose(-2, -1) / 2 + bias).softmax(-1) @ v
    assert_close(attention(q, k, v, bias=bias)[0], expected)
    mask = torch.rand(2, 1, 5, 7) < 0.8
    masked = (q @ k.transpose(-2, -1) / 2 + bias).masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num() @ v
    assert_close(attention(q, k, v, mask, bias)[0], masked)


def test_heads_look_at_different_things():
    heads, x = MultiHeadAttention(12, 3), torch.randn(2, 5, 12)
    weights = heads(x, mask=causal_mask(5), need_weights=True)[1]
    assert weights.shape == (2, 3, 5, 5) and not torch.allclose(weights[:, 0], weights[:, 1], atol=1e-3)
    assert not weights.masked_select(~causal_mask(5)).any()


def test_the_loss_in_chunks_is_the_loss():
    hidden, weight, target = torch.randn(3, 4, 5), torch.randn(9, 5), torch.randint(0, 9, (3, 4))
    for smoothing in (0.0, 0.2):
        whole = smoothed_cross_entropy(hidden @ weight.T, target, smoothing, pad_id=0)
        for chunk in (1, 5, 100):
            assert_close(projected_loss(hidden, weight, None, target, smoothing, 0, chunk), whole)


def test_dropout_keeps_the_mean_and_stops_in_evaluation():
    x, layer = torch.ones(200, 300), Dropout(0.4)
    assert abs(layer(x).mean().item() - 1) < 0.02 and layer.eval()(x) is x
    assert not dropout(x, 1.0).any() and padding_mask(torch.tensor([3, 0]), 0).tolist() == [True, False]


def test_positions_and_schedules():
    assert_close(Sinusoidal(6, ready=3)(2, 4), sinusoids(torch.arange(2, 6), 6))
    assert Learned(6, 9)(1, 2).shape == (2, 6)
    assert noam(16, 4)(4, 0.0) == 1 / 8 and inverse_sqrt(1.0, 4)(16, 0.0) == 0.5 and linear_decay(1.0, 4)(9, 0.25) == 0.75


@pytest.mark.parametrize("wrong", [0, -3, 2.0, "3", None, True, [4]])
def test_sizes_are_checked_by_name(wrong):
    check_sizes("Owner")
    check_sizes("Owner", words=1, heads=7)
    with pytest.raises(ValueError) as found:
        check_sizes("Owner", words=5, heads=wrong, layers=0)
    assert str(found.value) == f"Owner: heads must be a positive whole number, not {wrong!r}"

"""The fast decoder against the plain one: the same words and scores, for every variant, search, batch and thread."""
import time
from functools import partial

import pytest
import torch
from parts import Window, decoder, encoder
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course.models import fast_decoding
from transformer_course.models.attention import MultiHeadAttention
from transformer_course.models.blocks import FeedForward
from transformer_course.models.ends import Embedding, Output
from transformer_course.models.fast_decoding import (LEAST_SOURCE, ROOM, FastDecoder, PackedLinear, fast,
                                                     on_each_core)
from transformer_course.models.positions import Learned
from transformer_course.models.relative_positions import POSITIONS
from transformer_course.models.t5 import Buckets, GatedFeedForward
from transformer_course.models.transformer import EncoderDecoder, Transformer
from transformer_course.protocols import DecodingState, Searchable
from transformer_course.search.beam import beam_search, greedy_search, sample

VARIANTS = {f"{positions}, {norm}, {'tied' if tied else 'untied'}": dict(positions=positions, norm=norm, tied=tied)
            for positions in POSITIONS for norm in ("pre", "post") for tied in (True, False)}


def redrawn(model, seed=1):
    """Every weight drawn anew, norms and biases too, and large enough that the next word is no coin's toss."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0.5 if p.dim() == 1 else 0.0, 0.3)
    return model.eval()


def make(name="sinusoidal, post, tied", **more):
    return redrawn(Transformer(23, 23, **{"d_model": 12, "n_heads": 3, "n_layers": (1, 2), "d_ff": 7, "dropout": 0.1} | VARIANTS[name] | more))


def t5_like(activation=partial(F.gelu, approximate="tanh"), bos_id=0):
    """Gated feed-forward, RMSNorm, no biases, one table of buckets for all layers, targets that begin with padding."""
    buckets = Buckets(3, bidirectional=False, n_buckets=8, max_distance=20)
    parts = (partial(MultiHeadAttention, 12, 3, bias=False, d_head=5), partial(GatedFeedForward, 12, 7, activation), partial(nn.RMSNorm, 12),
             0.0, True, lambda: buckets, nn.RMSNorm(12))
    embedding = Embedding(nn.Embedding(23, 12), scaled=False)
    model = EncoderDecoder(embedding, embedding, encoder(1, *parts), decoder(2, *parts), Output(embedding.table, bias=True),
                           pad_id=0, bos_id=bos_id, eos_id=1)
    return redrawn(model)


def marian_like():
    """Another activation, a bias of the output, a norm inside the embedding, other special ids."""
    parts = partial(MultiHeadAttention, 12, 2), partial(FeedForward, 12, 7, activation=F.silu), partial(nn.LayerNorm, 12)
    embedding = Embedding(nn.Embedding(23, 12), Learned(12, 64), norm=nn.LayerNorm(12))
    return redrawn(EncoderDecoder(embedding, embedding, encoder(2, *parts), decoder(1, *parts), Output(nn.Linear(12, 23, bias=False), bias=True),
                                  pad_id=22, bos_id=22, eos_id=3))


MODELS = {name: partial(make, name) for name in VARIANTS} | {"like T5": t5_like, "like Marian": marian_like}


def sources(model, lengths=(9, 4, 1, 9, 6), seed=6):
    """Rows of words. With this seed no beam keeps or drops a hypothesis for less than rounding: noise of 1e-5 in the logits changes nothing."""
    torch.manual_seed(seed)
    rows = [torch.randint(4, 22, (n,)) for n in lengths]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=model.pad_id)


TIE = 1e-5                                  # scores so near that rounding decides the order


def assert_same(found, expected):
    """The same words and scores. Hypotheses that tie may change places, and the last ones may give theirs to some that were cut off."""
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert_close(found.scores, expected.scores, rtol=0, atol=1e-4)
    for mine, theirs in zip(found.nbest, expected.nbest, strict=True):
        assert_close([score for words, score in mine], [score for words, score in theirs], rtol=0, atol=1e-4)
        for first, last in ties([score for words, score in theirs]):
            if last < len(theirs) or last - first == 1:
                assert {tuple(words) for words, score in mine[first:last]} == {tuple(words) for words, score in theirs[first:last]}


def ties(scores):
    """The places of falling scores in groups (first, last): between two groups lies more than a tie."""
    ends = [i for i in range(1, len(scores)) if scores[i - 1] - scores[i] > TIE]
    return list(zip([0, *ends], [*ends, len(scores)]))


def test_ties_are_groups_of_near_scores():
    assert ties([-1.0, -1.0 - TIE / 2, -1.0 - TIE, -2.0, -3.0, -3.0]) == [(0, 3), (3, 4), (4, 6)]


SEARCHES = {"greedy": partial(greedy_search, max_len=36), "greedy, long": partial(greedy_search, max_len=36, min_len=36),
            **{f"beam {size}": partial(beam_search, beam_size=size, max_len=36) for size in (1, 2, 5)},
            "beam 5, long": partial(beam_search, beam_size=5, max_len=36, min_len=36),
            "beam 3, exact": partial(beam_search, beam_size=3, max_len=20, exact_stop=True, length_penalty=0.6)}


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", MODELS)
def test_the_same_words_and_scores(name, search):
    model = MODELS[name]()
    src = sources(model)
    assert_same(SEARCHES[search](FastDecoder(model), src), SEARCHES[search](model, src))


@pytest.mark.parametrize("name", ["relative, pre, tied", "alibi, post, tied"])
def test_a_limit_for_each_row(name):
    model = make(name)
    src, limits = sources(model), torch.tensor([3, 30, 1, 17, 22])
    for search in (greedy_search, partial(beam_search, beam_size=4)):
        assert_same(search(FastDecoder(model), src, max_len=limits), search(model, src, max_len=limits))


def test_sampling_draws_the_same_words():
    model = make()
    draw = lambda m: sample(m, sources(model), 30, generator=torch.Generator().manual_seed(5))
    assert_same(draw(FastDecoder(model)), draw(model))


@pytest.mark.parametrize("name", MODELS)
def test_any_selection_gives_the_logits_of_the_plain_state(name):
    """Rows in any order, repeated, unequal in number: what beams, samples and trees may ask for; longer than a store has room."""
    model = MODELS[name]()
    quick = FastDecoder(model)
    src, generator = sources(model), torch.Generator().manual_seed(7)
    with torch.inference_mode():
        plain, state = model.start(src), quick.start(src)
        rows = len(src)
        for t in range(2 * ROOM + 5):
            token = torch.randint(4, 22, (rows,), generator=generator)
            expected, plain = model.step(plain, token)
            found, state = quick.step(state, token)
            assert_close(found, expected, rtol=1e-4, atol=1e-4)
            chosen = torch.randint(rows, (rows + t % 3,), generator=generator)
            if t % 4 == 1:
                chosen = torch.arange(rows).repeat_interleave(2)[:14]
            elif t % 4:
                chosen = chosen.sort().values
            chosen = chosen[:9]
            rows, plain, state = len(chosen), plain.select(chosen), state.select(chosen)


def test_a_state_stays_as_it_is():
    """Two words read after the same state: each has its own future."""
    model = make("rotary, pre, tied")
    quick, src = FastDecoder(model), sources(model)
    with torch.inference_mode():
        state, plain = quick.start(src), model.start(src)
        for word in (5, 6, 7):
            state, plain = quick.step(state, torch.full((5,), word))[1], model.step(plain, torch.full((5,), word))[1]
        one, other = (quick.step(state, torch.full((5,), word))[1] for word in (8, 9))
        for branch, word in ((one, 8), (other, 9), (one, 8)):
            expected = model.step(model.step(plain, torch.full((5,), word))[1], torch.full((5,), 4))[0]
            assert_close(quick.step(branch, torch.full((5,), 4))[0], expected, rtol=1e-4, atol=1e-4)


def test_a_sentence_without_a_word_and_a_batch_without_padding():
    model = make()
    src = sources(model)
    src[2] = model.pad_id
    for given in (src, src[:1], src[2:3]):
        assert_same(beam_search(FastDecoder(model), given, 3, 12), beam_search(model, given, 3, 12))


def test_words_are_shared_and_forgotten():
    """With a beam of 5 the store is far from five times the words; without, it has no more than a word's room too many."""
    quick = FastDecoder(make(n_layers=1))
    src = torch.randint(4, 22, (6, 5))
    with torch.inference_mode():
        state, token, generator = quick.start(src), torch.full((6,), 1), torch.Generator().manual_seed(1)
        for t in range(60):
            state = quick.step(state, token)[1]
            origin = torch.randint(2, (6, 5), generator=generator) * (t > 0)     # all come from the first two: they coalesce
            state = state.select((torch.arange(6)[:, None] * (5 if t else 1) + origin).flatten())
            token = torch.randint(4, 22, (30,), generator=generator)
    assert state.cache.read.shape[2] < 60 + 2 * 5 * ROOM
    assert state.cache.read.any(1).sum(1).max() < 60 + 20


def test_threads_give_what_one_gives():
    model = make("relative, post, tied")
    quick, batches = FastDecoder(model), [sources(model, seed=seed) for seed in range(7)]
    search = lambda src: beam_search(quick, src, 4, 25)
    threads = torch.get_num_threads()
    for found, src in zip(on_each_core(search, batches, workers=3), batches, strict=True):
        assert_same(found, search(src))
    assert torch.get_num_threads() == threads


def test_an_error_stands_where_the_result_would():
    def work(item):
        if item == 2:
            raise ValueError("two")
        return item
    results = on_each_core(work, range(4), workers=2)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(results)


def test_an_error_cancels_what_is_queued():
    done = []

    def work(item):
        if item == 0:
            raise ValueError("zero")
        time.sleep(0.01)
        done.append(item)

    def broken():
        yield from range(1, 100)
        raise ValueError("no more items")

    for items, message in ((range(100), "zero"), (broken(), "no more items")):
        done.clear()
        with pytest.raises(ValueError, match=message):
            list(on_each_core(work, items, workers=1))
        assert len(done) < 50


@pytest.mark.parametrize("end", [KeyboardInterrupt, GeneratorExit])
def test_an_interrupt_cancels_what_is_queued(end):
    done, threads = [], torch.get_num_threads()

    def work(item):
        time.sleep(0.01)
        done.append(item)

    results = on_each_core(work, range(100), workers=2)
    next(results)
    with pytest.raises(end):
        results.throw(end)
    assert len(done) < 50 and torch.get_num_threads() == threads


@pytest.mark.parametrize("rows", [0, 1, 6])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("least", [0, 10**9])
def test_every_product_is_that_of_a_linear_layer(rows, bias, dtype, least, monkeypatch):
    monkeypatch.setattr(fast_decoding, "ONEDNN_FROM", least)
    torch.manual_seed(1)
    weight, x = torch.randn(7, 5, dtype=dtype), torch.randn(rows, 5, dtype=dtype)
    bias = torch.randn(7, dtype=dtype) if bias else None
    assert_close(PackedLinear(weight, bias)(x), F.linear(x, weight, bias), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("beam_size", [1, 3])
def test_searches_with_other_products_find_the_same(name, beam_size, monkeypatch):
    """The sizes here are below those for which oneDNN is asked; and some PyTorchs have no oneDNN."""
    model = MODELS[name]()
    src = sources(model)
    expected = beam_search(model, src, beam_size, 11)
    with monkeypatch.context() as patch:
        patch.setattr(fast_decoding, "ONEDNN_FROM", 0)
        assert_same(beam_search(FastDecoder(model), src, beam_size, 11), expected)
    monkeypatch.setattr(fast_decoding, "_onednn", lambda weight: None)
    assert_same(beam_search(FastDecoder(model), src, beam_size, 11), expected)


@pytest.mark.parametrize("longest", [3, LEAST_SOURCE - 1, LEAST_SOURCE, LEAST_SOURCE + 4])
def test_places_without_a_source_word_are_not_attended_to(longest):
    """Also by a model whose table of positions has no place for them."""
    model = make(positions="learned", max_len=20)
    src = torch.randint(4, 23, (2, longest))
    assert_same(greedy_search(FastDecoder(model), src, 9), greedy_search(model, src, 9))


def test_bfloat16_is_near():
    model = make()
    src = sources(model)
    quick = FastDecoder(model, torch.bfloat16)
    assert model.output.weight.dtype == torch.float32 and quick.output.weight.dtype == torch.bfloat16
    logits, expected = (m.step(m.start(src), torch.full((5,), 4))[0] for m in (quick, model))
    assert_close(logits.float(), expected, rtol=0.1, atol=0.3)
    assert len(beam_search(quick, src, 3, 20)) == 5


def test_protocols_are_kept():
    quick = FastDecoder(make())
    assert isinstance(quick, Searchable) and isinstance(quick.start(sources(quick)), DecodingState)
    with pytest.raises(ValueError, match="2 words for 5"):
        quick.step(quick.start(sources(quick)), torch.tensor([4, 4]))


@pytest.mark.parametrize("make_decoder", [FastDecoder, fast])
def test_a_model_in_training_mode_is_refused(make_decoder):
    model = make()
    with pytest.raises(ValueError, match="evaluation mode"):
        make_decoder(model.train())
    quick = make_decoder(model.eval())
    model.train()
    with pytest.raises(ValueError, match="evaluation mode"):
        greedy_search(quick, sources(model), 5)


def test_dropout_follows_the_model_in_every_part():
    model = make(ff_dropout=0.9)
    quick, src = FastDecoder(model), sources(model)
    assert not quick.layers[0].feed_forward.dropout.training
    model.train()
    assert quick.layers[0].feed_forward.dropout.training
    assert_same(greedy_search(FastDecoder(model.eval()), src, 9), greedy_search(model, src, 9))


@pytest.mark.parametrize("name", ["like T5", "like Marian", "relative, pre, untied"])
def test_after_a_change_of_the_weights_a_new_one_is_made(name):
    model = MODELS[name]()
    src, former = sources(model), FastDecoder(model)
    redrawn(model, seed=2)
    step = lambda m: m.step(m.start(src), torch.full((5,), 4))[0]
    assert_close(step(FastDecoder(model)), step(model), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(step(former), step(model), rtol=1e-2, atol=1e-2)


def test_a_copy_in_another_type_keeps_its_weights():
    model = make()
    quick, src = FastDecoder(model, torch.float64), sources(model)
    before = quick.step(quick.start(src), torch.full((5,), 4))[0].clone()
    redrawn(model, seed=2).train()
    assert torch.equal(quick.step(quick.start(src), torch.full((5,), 4))[0], before) and not quick.training


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_sentence_without_a_word_is_finite_in_half_precision(dtype):
    model = make("alibi, pre, tied")
    src = sources(model)
    src[2] = model.pad_id
    quick = FastDecoder(model, dtype)
    logits, state = quick.step(quick.start(src), torch.full((5,), 4))
    logits, state = quick.step(state, torch.full((5,), 5))
    assert logits.dtype == dtype and logits.isfinite().all()
    plain = model.step(model.step(model.start(src), torch.full((5,), 4))[1], torch.full((5,), 5))[0]
    assert_close(logits.float(), plain, rtol=0.1, atol=0.3)


@pytest.mark.parametrize("steps", [1, ROOM])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [2, 2, 4, 0, 1]])
def test_siblings_have_logits_of_their_own(steps, rows):
    """Two steps from one state, or from two selections of it, with room in the store and without."""
    quick = FastDecoder(make())
    state = quick.start(sources(quick))
    for t in range(steps):
        state = quick.step(state, torch.full((5,), 4 + t))[1]
    one, other = state.select(torch.tensor(rows)), state.select(torch.tensor(rows))
    found = []
    for given, word in ((one, 5), (other, 6), (one, 7), (state, 8), (state, 9)):
        logits = quick.step(given, torch.full((5,), word))[0]
        found.append((logits, logits.clone()))
    assert all(torch.equal(logits, copied) for logits, copied in found)


@pytest.mark.parametrize("name", MODELS)
def test_no_hypothesis_at_all(name):
    quick = FastDecoder(MODELS[name]())
    nobody = torch.zeros(0, dtype=torch.long)
    state = quick.step(quick.start(sources(quick)), torch.full((5,), 4))[1].select(nobody)
    for t in range(ROOM + 2):
        logits, state = quick.step(state.select(nobody), nobody)
        assert logits.shape == (0, 23)


def test_what_it_does_not_know_it_names_and_fast_gives_back_the_model():
    parts = partial(MultiHeadAttention, 12, 3, pattern=Window(3)), partial(FeedForward, 12, 7), partial(nn.LayerNorm, 12)
    embedding = Embedding(nn.Embedding(23, 12))
    model = EncoderDecoder(embedding, embedding, encoder(1, *parts), decoder(1, *parts), Output(embedding.table)).eval()
    with pytest.raises(ValueError, match="Dense, not Window"):
        FastDecoder(model)
    assert fast(model) is model and isinstance(fast(make()), FastDecoder)
    uneven = make(n_layers=(1, 2))
    uneven.decoder.layers[1].cross_attention.heads = MultiHeadAttention(12, 2, cross=True)
    with pytest.raises(ValueError, match="heads"):
        FastDecoder(uneven)
    recurrent = nn.GRU(3, 4)
    assert fast(recurrent) is recurrent
    with pytest.raises(ValueError, match="not those of GRU"):
        FastDecoder(recurrent)


class OtherStep(Transformer):
    def step(self, state, token):
        return super().step(state, token)


class OtherLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1.0


def test_subclasses_may_compute_something_else():
    other = OtherStep(23, 23, d_model=12, n_heads=3, n_layers=1, d_ff=7).eval()
    assert fast(other) is other
    model = make()
    model.decoder.layers[1].feed_forward.contract = OtherLinear(7, 12)      # is called as it is
    assert_same(greedy_search(fast(model), sources(model), 9), greedy_search(model, sources(model), 9))
    model.decoder.layers[1].self_attention.heads.out_proj = OtherLinear(12, 12)
    assert fast(model) is model
    with pytest.raises(ValueError, match="Linear, not OtherLinear"):
        FastDecoder(model)


def test_no_error_is_hidden_as_an_unknown_model(monkeypatch):
    def broken(weight, bias):
        raise ValueError("another reason")
    monkeypatch.setattr("transformer_course.models.fast_decoding.PackedLinear", broken)
    with pytest.raises(ValueError, match="another reason"):
        fast(make())

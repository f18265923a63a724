"""The language model: PyTorch's layers as oracle, nothing from the future, words one by one, segments and windows."""
import math
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course import protocols
from transformer_course.models.relative_positions import POSITIONS
from transformer_course.models.segments import SegmentBatches, window_losses
from transformer_course.models.transformer_lm import TransformerLM
from transformer_course.published.gpt2 import gpt2
from transformer_course.search.beam import beam_search, greedy_search, sample
from transformer_course.training.settings import Settings
from transformer_course.training.loop import evaluate_loss
from transformer_course.training.trainer import fit


def small(seed=1, words=17, **options):
    torch.manual_seed(seed)
    return TransformerLM(words, **{"d_model": 12, "n_heads": 3, "n_layers": 2, "d_ff": 20, "max_len": 40, **options}).eval()


def text(n, words=17, seed=2):
    return torch.randint(3, words, (n,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_it_is_pytorchs_encoder_under_a_causal_mask(norm):
    model = small(norm=norm).double()
    layer = nn.TransformerEncoderLayer(12, 3, 20, 0.0, lambda x: F.gelu(x, approximate="tanh"), batch_first=True, norm_first=norm == "pre")
    oracle = nn.TransformerEncoder(layer, 2, nn.LayerNorm(12) if norm == "pre" else None, enable_nested_tensor=False).double().eval()
    names = {"self_attn.in_proj_": "self_attention.heads.in_proj.", "self_attn.out_proj": "self_attention.heads.out_proj", "linear1": "feed_forward.expand",
             "linear2": "feed_forward.contract", "norm1": "norm_1", "norm2": "norm_2"}
    weights = {}
    for name in oracle.state_dict():
        mine = name
        for theirs, ours in names.items():
            mine = mine.replace(theirs, ours)
        weights[name] = model.stack.state_dict()[re.sub(r"^norm\.", "final_norm.", mine)]
    oracle.load_state_dict(weights)
    tokens = text(33).view(3, 11)
    x = model.embedding(tokens)
    future = nn.Transformer.generate_square_subsequent_mask(11, dtype=torch.float64)
    assert_close(model.vectors(tokens), oracle(x, mask=future, is_causal=True))
    assert_close(model(tokens), model.vectors(tokens) @ model.embedding.weight.T)


@pytest.mark.parametrize("positions", POSITIONS)
def test_no_word_sees_the_future_and_one_by_one_is_the_same(positions):
    model, tokens = small(positions=positions), text(21).view(3, 7)
    logits, other = model(tokens), tokens.clone()
    other[:, 4:] = 16 - other[:, 4:].clamp(max=13)
    assert_close(model(other)[:, :4], logits[:, :4])
    assert (model(other)[:, 4:] - logits[:, 4:]).abs().max() > 1e-3
    state = model.start(tokens[:, :3])
    for t in range(2, 7):
        now, state = model.step(state, tokens[:, t])
        assert_close(now, logits[:, t])
    hidden, later = model.read(model.start(tokens[:, :2]), tokens[:, 1:5])
    assert_close(model.output(hidden), logits[:, 1:5])
    rows = torch.tensor([2, 0, 2])
    assert_close(model.step(later.select(rows), tokens[rows, 5])[0], logits[rows, 5])


def test_loss_is_the_mean_over_real_words():
    model = small()
    tokens = torch.tensor([[1, 5, 6, 7, 2], [1, 8, 2, 0, 0]])
    logp = model(tokens[:, :-1]).log_softmax(-1)
    each = [-logp[b, t, tokens[b, t + 1]] for b in range(2) for t in range(4) if tokens[b, t + 1] != 0]
    assert_close(model.loss(tokens), sum(each) / 6)
    assert_close(small(tied=False, n_layers=1, d_ff=None).stack.layers[0].feed_forward.expand.weight.shape, torch.Size([48, 12]))


def test_searches_run_from_a_prompt():
    model = small()
    assert isinstance(model, protocols.LanguageModel)
    prompts = text(8).view(2, 4)
    found, best = greedy_search(model, prompts, 6, 6), beam_search(model, prompts, 1, 6, 6)
    tokens = prompts
    for t in range(5):                                                    # what greedy search does, without a cache
        logits = model(tokens)[:, -1].clone()
        logits[:, [0, 1, 2]] = -math.inf
        tokens = torch.cat((tokens, logits.argmax(-1, keepdim=True)), dim=1)
    assert torch.equal(found.tokens[:, :5], tokens[:, 4:]) and torch.equal(best.tokens[:, :5], tokens[:, 4:])
    assert sample(model, prompts, 6, generator=torch.Generator().manual_seed(3)).tokens.shape[0] == 2


@pytest.mark.parametrize("make, message", [
    (lambda: small(d_model=0), "d_model must be a positive whole number, not 0"),
    (lambda: small(n_layers=True), "n_layers must be a positive whole number, not True"),
    (lambda: small(positions="wheels"), "unknown positions 'wheels'"),
    (lambda: small().start(torch.zeros(2, 0, dtype=torch.long)), "an empty prompt"),
    (lambda: small().start(torch.tensor([[5, 6, 0], [5, 6, 7]])), "prompts of different lengths"),
    (lambda: small().loss(torch.tensor([[5], [6]])), "texts of 1 words have nothing to predict"),
    (lambda: SegmentBatches(text(9), 0), "length must be a positive whole number, not 0"),
    (lambda: SegmentBatches(text(9), 2.5), "length must be a positive whole number, not 2.5"),
    (lambda: SegmentBatches(text(9), 2, rows=0), "rows must be a positive whole number, not 0"),
    (lambda: SegmentBatches(text(1), 4), "SegmentBatches: a text of 1 words has nothing to predict"),
    (lambda: SegmentBatches(text(5), 16).plan(1, 0), "a text of 5 words is too short for training: length=16 needs 17"),
    (lambda: SegmentBatches(text(16), 16).plan(1, 0), "a text of 16 words is too short for training: length=16"),
    (lambda: fit(small(), SegmentBatches(text(5), 16), lambda step, progress: 0.1, steps=1, progress=False), "too short for training"),
    (lambda: SegmentBatches([3, 4, 5, 6], 2), "a tensor with one row of whole numbers, not list"),
    (lambda: SegmentBatches(torch.rand(9), 2), r"one row of whole numbers, not \(9,\) of torch.float32"),
    (lambda: SegmentBatches(text(12).view(3, 4), 2), r"one row of whole numbers, not \(3, 4\)"),
    (lambda: window_losses(small(), text(9), 4, 5), "stride=5 must lie between 1 and length=4"),
    (lambda: window_losses(small(), text(1), 4), "window_losses: a text of 1 words has nothing to predict"),
    (lambda: window_losses(small(), [3, 4, 5, 6], 2), "window_losses: a text is a tensor with one row of whole numbers, not list"),
    (lambda: window_losses(small(), text(9), 0), "length must be a positive whole number, not 0"),
    (lambda: window_losses(small(), text(9), 4, 0), "stride must be a positive whole number, not 0"),
    (lambda: window_losses(small(), text(9), 4, rows=0), "rows must be a positive whole number, not 0"),
])
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_padding_is_noticed_where_it_has_the_id_of_the_end():
    torch.manual_seed(1)
    model, end = gpt2(50, 12, 3, 2, 20, max_len=30, pad_id=49, bos_id=49, eos_id=49).eval(), 49
    for rows in ([[5, 6, end], [5, 6, 7]], [[end, 5, 6], [7, 5, 6]], [[5, end, end], [5, 6, end]], [[end, end, 5], [end, 6, 7]]):
        with pytest.raises(ValueError, match="prompts of different lengths .some begin or end with id 49, which pads, too.: give each length"):
            greedy_search(model, torch.tensor(rows), 4)
    for rows in ([[end, 5, 6], [end, 8, 7]], [[5, 6, end], [8, 7, end]], [[5, end, 6], [5, 7, 6]], [[end], [end]], [[5, end, 6, end]]):
        model.start(torch.tensor(rows))                                   # all begin, all end, or it is inside: real words


@pytest.mark.parametrize("n, length", [(2, 1), (6, 5), (7, 5), (23, 5), (21, 1)])
def test_segments_predict_each_word_once(n, length):
    ids = torch.arange(n)
    batches = SegmentBatches(ids, length, 3)
    seen = [w for batch in batches.in_order() for row in batches.collate(batch)[0] for w in row[1:].tolist()]
    assert sorted(seen) == list(range(1, n)) and sum(map(batches.tokens, batches.in_order())) == n - 1
    for epoch in range(3):
        cut = [row for batch in batches.plan(1, epoch) for row in batches.collate(batch)[0].tolist()]
        words = sorted(w for row in cut for w in row[1:])
        assert words == list(range(words[0], n)) and words[0] <= length
        assert all(row == list(range(row[0], row[0] + len(row))) for row in cut)
    assert batches.plan(1, 0) == batches.plan(1, 0)
    assert batches.fingerprint() != SegmentBatches(ids, length, 4).fingerprint()


def test_a_text_shorter_than_a_segment_is_scored_as_one():
    batches = SegmentBatches(torch.arange(3, 8), 16, 2)
    assert [batches.collate(batch)[0].tolist() for batch in batches.in_order()] == [[[3, 4, 5, 6, 7]]]
    assert evaluate_loss(small(), batches) == pytest.approx(window_losses(small(), batches.ids, 16).mean().item(), rel=1e-5)


@pytest.mark.parametrize("n, length, stride", [(30, 8, None), (30, 8, 4), (30, 8, 1), (30, 8, 3), (5, 8, 2), (9, 8, 2), (9, 8, 8), (10, 8, 8), (2, 1, 1)])
def test_window_losses_are_those_of_a_loop(n, length, stride):
    model, ids = small(), text(n)
    found = window_losses(model, ids, length, stride, rows=3)
    step, expected = stride or length, []
    for t in range(1, n):                                                 # the first window that predicts word t
        start = 0 if t <= length else -(-(t - length) // step) * step
        expected.append(F.cross_entropy(model(ids[None, start:t])[0, -1], ids[t]))
    assert_close(found, torch.stack(expected))


def test_disjoint_windows_are_the_segments_of_evaluation():
    model, ids = small(), text(30)
    batches = SegmentBatches(ids, 8, 2)
    assert evaluate_loss(model, batches) == pytest.approx(window_losses(model, ids, 8).mean().item(), rel=1e-5)


def test_it_learns_a_text_by_heart():
    model = small(dropout=0.0)
    batches = SegmentBatches(torch.arange(3, 15).repeat(9), 6, 4)
    before = evaluate_loss(model, batches)
    fit(model, batches, lambda step, progress: 0.02 * (1 - progress), steps=150, progress=False,
        settings=Settings(smoothing=0.0, seed=1, device="cpu", precision="highest"))
    assert evaluate_loss(model, batches) < 0.2 < before

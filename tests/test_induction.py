"""Repeated blocks, the losses of both copies, where heads look, and heads taken away: against loops and against zeroed values."""
import copy
import re

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course import protocols
from transformer_course.models.attention import attention_weights
from transformer_course.models.induction import (RepeatedBlocks, attention_shares, copy_losses, first_copy,
                                                 letter_losses, second_copy, without_heads)
from transformer_course.models.transformer_lm import TransformerLM

DATA = RepeatedBlocks(shortest=2, longest=5, letters=9, length=11, rows=3, batches=4)


def small(**options):
    torch.manual_seed(3)
    return TransformerLM(DATA.words, **{"d_model": 12, "n_heads": 3, "n_layers": 2, "d_ff": 10, "max_len": 20, **options}).eval()


def test_rows_repeat_their_block_and_nothing_inside_it():
    assert isinstance(DATA, protocols.BatchSource)
    for batch in DATA.in_order() + DATA.plan(7, 2):
        rows, periods = DATA.draw(batch)
        assert rows.shape == (3, 12) and len(periods) == 3 and torch.equal(DATA.collate(batch)[0], rows)
        for row, n in zip(rows.tolist(), periods.tolist()):
            assert 2 <= n <= 5 and len(set(row[:n])) == n and 4 <= min(row) and max(row) < 13
            assert all(letter == row[t % n] for t, letter in enumerate(row))
    assert len(set(DATA.plan(1, 0) + DATA.plan(1, 1) + DATA.plan(2, 0) + DATA.in_order())) == 16
    assert DATA.plan(1, 0) == DATA.plan(1, 0) and DATA.tokens("x") == 33
    other = RepeatedBlocks(2, 5, 9, 11, 3, 4, name="test")
    assert other.fingerprint() != DATA.fingerprint() and other.in_order() != DATA.in_order()


def test_every_length_of_block_is_drawn():
    periods = torch.cat([DATA.draw(str(batch))[1] for batch in range(60)])
    assert periods.unique().tolist() == [2, 3, 4, 5] and periods.bincount()[2:].min() > 25


def test_copies_are_where_a_loop_finds_them():
    periods, T = torch.tensor([2, 5, 3]), 11
    second, first = second_copy(periods, T), first_copy(periods, T)
    for b, n in enumerate(periods.tolist()):
        for t in range(T):                                         # what place t predicts is letter t + 1
            assert second[b, t] == (n < t + 1 < 2 * n) and first[b, t] == (t + 1 < n)


def test_copy_losses_are_those_of_a_loop():
    model, first, second = small(), [], []
    for rows, periods in map(DATA.draw, DATA.in_order()):
        for row, n in zip(rows, periods.tolist()):
            for t in range(1, 12):
                loss = F.cross_entropy(model(row[None, :t])[0, -1], row[t])
                first += [loss] * (t < n)
                second += [loss] * (n < t < 2 * n)
    assert copy_losses(model, DATA) == pytest.approx((torch.stack(first).mean().item(), torch.stack(second).mean().item()), rel=1e-5)
    rows = DATA.draw("x")[0]
    assert_close(letter_losses(model, rows).mean(), model.loss(rows))


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_shares_of_attention_are_those_of_a_loop(positions):
    model = small(positions=positions)
    found, expected = attention_shares(model, DATA), {"letter before": [], "earlier copy": [], "after the copy": []}
    for rows, periods in map(DATA.draw, DATA.in_order()):
        tokens = rows[:, :-1]
        with attention_weights(model) as weights:
            model(tokens)
        looks = torch.stack(list(weights.values()))
        for b, n in enumerate(periods.tolist()):
            for t in range(11):
                if n < t < 2 * n:                                  # a letter of the second copy, but not its first
                    assert tokens[b, t] == tokens[b, t - n] and tokens[b, t - n + 1] == rows[b, t + 1]
                    for name, place in (("letter before", t - 1), ("earlier copy", t - n), ("after the copy", t - n + 1)):
                        expected[name].append(looks[:, b, :, t, place])
    for name, shares in found.items():
        assert shares.shape == (2, 3)
        assert_close(shares, torch.stack(expected[name]).mean(0))


@pytest.mark.parametrize("gone", [[(0, 0)], [(1, 2)], [(0, 1), (1, 0)], [(1, 0), (1, 1), (1, 2)], [(0, 1), (0, 1)], []])
def test_a_head_that_is_taken_away_says_nothing_and_comes_back(gone):
    model, rows = small(), DATA.draw("x")[0][:, :-1]
    whole, before, silent = model(rows), copy.deepcopy(model.state_dict()), copy.deepcopy(model)
    for number, layer in enumerate(silent.stack.layers):           # the other road: its values are zero
        heads = layer.self_attention.heads
        for head in [h for n, h in gone if n == number]:
            part = slice(2 * 12 + head * 4, 2 * 12 + head * 4 + 4)
            heads.in_proj.weight.data[part] = heads.in_proj.bias.data[part] = 0
    with without_heads(model, gone):
        assert_close(model(rows), silent(rows))
        assert not gone or (model(rows) - whole).abs().max() > 1e-3
    assert torch.equal(model(rows), whole) and all(torch.equal(w, before[n]) for n, w in model.state_dict().items())


def test_heads_come_back_after_an_error():
    model, rows = small(), DATA.draw("x")[0][:, :-1]
    whole = model(rows)
    with pytest.raises(ValueError, match=re.escape("without_heads: there is no head 3 in layer 1")), without_heads(model, [(0, 1), (1, 3)]):
        pass
    with pytest.raises(KeyError), without_heads(model, [(0, 1)]):
        raise KeyError
    assert torch.equal(model(rows), whole)


@pytest.mark.parametrize("options, message", [
    ({"rows": 0}, "RepeatedBlocks: rows must be a positive whole number, not 0"),
    ({"shortest": 6}, "shortest=6, longest=5 and letters=9 must not decrease"),
    ({"letters": 4}, "shortest=2, longest=5 and letters=4 must not decrease"),
    ({"length": 9}, "length=9 is too short for two blocks of 5"),
])
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        RepeatedBlocks(**{"shortest": 2, "longest": 5, "letters": 9, "length": 11, **options})


class Elsewhere(torch.nn.Module):
    """A model on another device, the one without numbers; it notes where its rows are, and stops."""

    def __init__(self):
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.empty(2, device="meta")), None
        self.vectors = self.forward

    def forward(self, rows):
        self.seen = rows.device.type
        raise StopIteration


@pytest.mark.parametrize("measure", [copy_losses, attention_shares])
def test_rows_are_made_on_the_models_device(measure):
    model = Elsewhere()
    with pytest.raises(StopIteration):
        measure(model, DATA)
    assert model.seen == "meta"

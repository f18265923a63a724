"""The sentence classifier: properties, wrong arguments, the meta device."""
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course.data.text import PAD
from transformer_course.models.classifier import SentenceClassifier
from transformer_course.models.rnn import CELLS

META, V = torch.device("meta"), 11
kinds = st.sampled_from(sorted(CELLS))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


@given(kinds, st.booleans(), st.sampled_from(["last", "mean"]), st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 4))
def test_padding_changes_no_verdict(cell, bidirectional, pooling, lengths, extra):
    model = SentenceClassifier(V, 3, 5, 7, cell, bidirectional, pooling).eval()
    rows = [torch.randint(3, V, (n,)) for n in lengths]
    together = model(F.pad(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), (0, extra), value=PAD))
    assert_close(together, torch.cat([model(row[None]) for row in rows]))


def test_the_last_notes_are_those_of_both_ends():
    model = SentenceClassifier(V, 2, 5, 7, bidirectional=True).eval()
    tokens = torch.tensor([[4, 5, 6, 7]])
    outputs, final = model.layers(model.embedding(tokens))
    ends = torch.cat((outputs[:, -1, :7], outputs[:, 0, 7:]), dim=-1)
    assert_close(model(tokens), model.output(ends))


def test_word_vectors_start_small():
    assert 0.08 < SentenceClassifier(500, d_model=20).embedding.weight.std() < 0.12


def test_padding_alone_has_a_verdict_too():
    for pooling in ("last", "mean"):
        assert SentenceClassifier(V, pooling=pooling)(torch.full((2, 3), PAD)).isfinite().all()


@pytest.mark.parametrize("cell", sorted(CELLS))
def test_shapes_alone_are_enough(cell):
    with META:
        judge = SentenceClassifier(V, 3, 5, 7, cell, True, "mean")
        tokens, labels = torch.zeros(2, 6, dtype=torch.long), torch.zeros(2, dtype=torch.long)
    assert judge(tokens).shape == (2, 3)
    judge.loss(tokens, labels).backward()


@pytest.mark.parametrize("make, words", [
    (lambda: SentenceClassifier(0), "words .* not 0"), (lambda: SentenceClassifier(V, classes=0), "classes .* not 0"),
    (lambda: SentenceClassifier(V, pooling="max"), '"last" or "mean", not \'max\''),
])
def test_wrong_arguments_are_named_in_one_line(make, words):
    with pytest.raises(ValueError, match=words) as error:
        make()
    assert "\n" not in str(error.value)

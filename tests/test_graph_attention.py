"""Graphs as masks: against loops, GAT written out as in PyTorch Geometric, padding, the grammar of micro-Hindi, bad input."""
import math

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course.data.corpora import load
from transformer_course.models.attention import plain_attention
from transformer_course.models.graph_attention import GraphAttention, VerbReader, agreements, edges_to_mask, head_masks

B, H, S, K, D = 2, 3, 7, 5, 11
EDGES = ((0, 2), (2, 5), (5, 6), (1, 5), (2, 6))


def drawn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def neighbours(i):
    return sorted({i} | {b for a, b in EDGES if a == i} | {a for a, b in EDGES if b == i})


def test_attention_with_the_graph_as_its_mask_is_a_loop_over_neighbours():
    query, key, value = drawn(3, B, H, S, K)
    output, weights = plain_attention(query, key, value, edges_to_mask(EDGES, S))
    for b in range(B):
        for h in range(H):
            for i in range(S):
                near = neighbours(i)
                parts = [math.exp((query[b, h, i] @ key[b, h, j]).item() / math.sqrt(K)) for j in near]
                expected = sum(p / sum(parts) * value[b, h, j] for p, j in zip(parts, near))
                assert_close(output[b, h, i], expected)
                assert weights[b, h, i].nonzero().flatten().tolist() == near


def test_a_layer_of_gat_is_that_of_message_passing():
    """PyTorch Geometric's GATConv: self-loops, scores of edges, softmax over the edges that come in, heads side by side, bias."""
    torch.manual_seed(2)
    layer, x = GraphAttention(D, K, H).double(), drawn(B, S, D, seed=3)
    torch.nn.init.normal_(layer.bias)
    out = layer(x, edges_to_mask(EDGES, S))
    edges = [(i, i) for i in range(S)] + [*EDGES] + [(b, a) for a, b in EDGES]
    source, target = torch.tensor(edges).T
    for b in range(B):
        h = (x[b] @ layer.map.weight.T).view(S, H, K)
        alpha = F.leaky_relu((h * layer.answers).sum(-1)[source] + (h * layer.asks).sum(-1)[target], 0.2)       # (E, H)
        total = torch.zeros(S, H, dtype=torch.float64).index_add(0, target, alpha.exp())
        alpha = alpha.exp() / total[target]
        expected = torch.zeros(S, H, K, dtype=torch.float64).index_add(0, target, alpha[..., None] * h[source])
        assert_close(out[b], expected.flatten(1) + layer.bias)


def test_gat_has_one_favourite_whoever_asks():
    layer, x = GraphAttention(D, K, 1).double(), drawn(1, S, D, seed=4)
    h = layer.map(x)[0]
    scores = F.leaky_relu((h @ layer.asks[0])[:, None] + h @ layer.answers[0], 0.2)
    assert len(set(scores.argmax(1).tolist())) == 1


def test_masks_of_heads_and_padding():
    graph, real = torch.stack([edges_to_mask(EDGES, S), edges_to_mask((), S)]), torch.ones(B, S, dtype=torch.bool)
    real[1, 4:] = False
    masks = head_masks(graph, real, 4, 3)
    assert masks.shape == (B, 4, S, S)
    for head in range(3):
        assert (masks[0, head] == graph[0]).all() and (masks[1, head] == graph[1] & real[1]).all()
    assert masks[0, 3].all() and (masks[1, 3] == real[1]).all()


@pytest.mark.parametrize("graph_heads", [0, 2, 4])
def test_padding_changes_no_label(graph_heads):
    torch.manual_seed(5)
    model = VerbReader(19, 7, d_model=16, n_layers=2, d_ff=17).eval()
    tokens, real = torch.randint(4, 19, (B, S)), torch.ones(B, S, dtype=torch.bool)
    graph, verbs = edges_to_mask(EDGES, S).expand(B, -1, -1), torch.tensor([5, 2])
    narrow = model(tokens, head_masks(graph, real, 4, graph_heads), verbs)
    wider = torch.stack([edges_to_mask(EDGES, S + 3)] * B)
    wide = model(F.pad(tokens, (0, 3)), head_masks(wider, F.pad(real, (0, 3)), 4, graph_heads), verbs)
    assert_close(wide, narrow)
    assert narrow.shape == (B, 7)


def test_a_far_word_without_a_path_changes_nothing():
    torch.manual_seed(6)
    model = VerbReader(19, 7, d_model=16, n_layers=3, d_ff=17).eval()
    tokens, real = torch.randint(4, 19, (1, S)), torch.ones(1, S, dtype=torch.bool)
    mask = head_masks(edges_to_mask([(0, 2), (2, 5), (1, 3)], S)[None], real, 4, 4)
    other = tokens.clone()
    other[0, [1, 3, 4, 6]] = 7                                        # not joined with word 5
    assert_close(model(tokens, mask, torch.tensor([5])), model(other, mask, torch.tensor([5])))
    other[0, 0] = (tokens[0, 0] + 1) % 19
    assert not torch.allclose(model(tokens, mask, torch.tensor([5])), model(other, mask, torch.tensor([5])))


def test_the_grammar_of_micro_hindi():
    pairs = list(load("micro-hindi")["test"])
    found = agreements(pairs)
    assert len(found) > 900 and len({one.label for one in found}) == 7
    for one in found:
        mask = edges_to_mask(one.edges, len(one.words))
        assert mask[one.verb].sum() > 1 and one.distance > 0
        reached = mask.float() @ mask.float()                         # two steps reach the noun, by way of an auxiliary or at once
        assert any(reached[one.verb, i] > 0 for i in range(len(one.words)) if abs(i - one.verb) == one.distance)
    told = next(one for one in found if one.words[:6] == ("the", "mouse", "which", "ram", "sees", "near"))
    assert (told.words[told.verb], told.label) == ("ill", (3, "m", False)) or told.words[told.verb] == "be"
    assert (4, 3) in told.edges and (4, 1) in told.edges


@pytest.mark.parametrize("call,says", [
    (lambda: edges_to_mask([(0, 4)], 4), r"edges_to_mask: the edge \(0, 4\) does not fit 4 words"),
    (lambda: edges_to_mask([(-1, 2)], 4), r"edges_to_mask: the edge \(-1, 2\) does not fit 4 words"),
    (lambda: head_masks(torch.ones(1, 3, 3) > 0, torch.ones(1, 3) > 0, 4, 5), "head_masks: graph_heads must be a whole number from 0 to 4, not 5"),
    (lambda: head_masks(torch.ones(1, 3, 3) > 0, torch.ones(1, 3) > 0, 4, -1), "head_masks: graph_heads must be a whole number from 0 to 4, not -1"),
    (lambda: GraphAttention(3, 4, 0), "GraphAttention: n_heads must be a positive whole number, not 0"),
    (lambda: VerbReader(0, 7), "VerbReader: vocab_size must be a positive whole number, not 0")])
def test_calls_that_cannot_work(call, says):
    with pytest.raises(ValueError, match=says) as error:
        call()
    assert "\n" not in str(error.value)

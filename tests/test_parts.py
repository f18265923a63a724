"""Other patterns of attention, other positions and other layers in the same stacks; and what a model promises its tools.

That other models are other parts, equal to Hugging Face's, is tested in `test_pretrained`, by means of `parity`.
"""
from functools import partial

import pytest
import torch
from parity import tokens
from parts import Linear, Window, encoder
from torch import nn
from torch.testing import assert_close

from transformer_course import protocols
from transformer_course.models.attention import Dense, MultiHeadAttention, SelfAttention, attention_weights
from transformer_course.models.blocks import FeedForward
from transformer_course.models.ends import Embedding, Output
from transformer_course.models.functional import causal_mask
from transformer_course.models.positions import sinusoids
from transformer_course.models.relative_positions import POSITIONS, ALiBi, InAttention, Relative
from transformer_course.models.t5 import Buckets
from transformer_course.models.transformer import EncoderLayer, Transformer
from transformer_course.models.transformer_lm import LanguageModel
from transformer_course.models.transformer_xl import RelativeXL
from transformer_course.search.beam import beam_search, greedy_search

pytestmark = pytest.mark.filterwarnings("ignore")


# caches, patterns and positions in a language model's stack

PATTERNS = {"dense": Dense, "window": lambda: Window(3), "linear": Linear}
PLACES = {"none": InAttention, "relative": lambda: Relative(4, clip=2), "alibi": lambda: ALiBi(3), "XL": lambda: RelativeXL(12, 3), "buckets": lambda: Buckets(3, False)}


def language_model(pattern=Dense, places=InAttention, seed=1):
    torch.manual_seed(seed)
    table = nn.Embedding(17, 12)
    stack = encoder(2, lambda: MultiHeadAttention(12, 3, pattern=pattern()), partial(FeedForward, 12, 20), partial(nn.LayerNorm, 12), 0.0, True, places,
                    nn.LayerNorm(12))
    return LanguageModel(Embedding(table, None, 0.0), stack, Output(table), 0, 1, 2).eval()


@pytest.mark.parametrize("pattern, places", [*((p, "none") for p in PATTERNS), *(("dense", place) for place in PLACES), ("window", "alibi"), ("window", "XL")])
def test_word_by_word_is_all_at_once(pattern, places):
    model, words = language_model(PATTERNS[pattern], PLACES[places]), tokens(17, 11, 11)
    whole = model(words)
    assert isinstance(model, protocols.LanguageModel) and isinstance(model.stack.layers[0], protocols.Block)
    assert isinstance(PATTERNS[pattern](), protocols.AttentionPattern) and isinstance(PATTERNS[pattern]().new_cache(), protocols.Cache)
    for prompt in (1, 4):
        state, rows = model.start(words[:, :prompt]), torch.arange(2)
        for t in range(prompt - 1, 11):
            logits, state = model.step(state, words[rows, t])
            assert_close(logits, whole[rows, t], rtol=1e-4, atol=1e-5)
            if t == 6:
                rows = torch.tensor([1, 0, 1])
                state = state.select(rows)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_later_words_reach_nothing(pattern):
    model, words = language_model(PATTERNS[pattern]), tokens(17, 9, 9)
    changed = words.clone()
    changed[:, 5] = 16
    before, after = model(words), model(changed)
    assert_close(before[:, :5], after[:, :5])
    moved = (before - after).abs().amax(-1) > 1e-5
    assert moved[:, 5].all() and moved[:, 8].all()                  # a window of three in two layers reaches four words back


def test_a_window_is_its_mask_and_keeps_no_more():
    torch.manual_seed(4)
    heads, x = MultiHeadAttention(12, 3, pattern=Window(3)), torch.randn(2, 7, 12)
    plain = MultiHeadAttention(12, 3)
    plain.load_state_dict(heads.state_dict())
    near = torch.tensor([[i - 3 < j <= i for j in range(7)] for i in range(7)])
    assert_close(heads(x)[0], plain(x, mask=near)[0])
    cache = heads.pattern.new_cache()
    for t in range(7):
        cache.append(*heads.project(x[:, t:t + 1])[1:])
    assert cache.keys.shape[2] == 3 and cache.length == 7


def test_transformer_xl_is_its_sum_in_loops():
    """A_ij = (q_i + u) · k_j + (q_i + v) · W_kR R_(i - j), over √K, with a memory before the segment, for all keys up to the query's own."""
    torch.manual_seed(5)
    places, heads, x = RelativeXL(12, 3), MultiHeadAttention(12, 3), torch.randn(2, 6, 12)
    for vector in (places.u, places.v):
        nn.init.normal_(vector)
    q, k, v = heads.project(x)
    start = 2
    bias, asked = places.score_bias(q[:, :, start:], 6, start), places.rotate_query(q[:, :, start:], start)
    scores = asked @ k.mT / 2 + bias
    for b in range(2):
        for h in range(3):
            for i in range(start, 6):
                assert (scores[b, h, i - start, i + 1:] == -torch.inf).all()
                for j in range(i + 1):
                    code = places.project(sinusoids(torch.tensor([i - j]), 12))[0].view(3, 4)[h]
                    expected = (q[b, h, i] + places.u[h, 0]) @ k[b, h, j] + (q[b, h, i] + places.v[h, 0]) @ code
                    assert_close(scores[b, h, i - start, j], expected / 2, rtol=1e-4, atol=1e-5)


def test_a_prompt_is_continued_by_every_search():
    model, prompts = language_model(seed=7), tokens(17, 4, 4, 4)
    for found in (greedy_search(model, prompts, 6, 6), beam_search(model, prompts, 1, 6, 6)):
        words = prompts
        for t in range(5):                                          # the sixth may be the end
            logits = model(words)[:, -1]
            logits[:, [0, 1, 2]] = -torch.inf
            words = torch.cat((words, logits.argmax(-1, keepdim=True)), dim=1)
        assert torch.equal(found.tokens[:, :5], words[:, 4:])


# what a model promises its tools

def test_encode_takes_vectors_and_gives_its_weights():
    torch.manual_seed(6)
    model, src = Transformer(13, 17, d_model=12, n_heads=3, n_layers=2, d_ff=8).eval(), tokens(13, 5, 3)
    memory, mask = model.encode(src)
    assert_close(model.encode_embedded(model.src_embedding(src), mask), memory)
    with attention_weights(model) as weights:
        assert_close(model.encoder(model.src_embedding(src), mask), memory)
    assert list(weights) == ["encoder.layers.0.self_attention", "encoder.layers.1.self_attention"]
    looks = list(weights.values())
    assert all(look.shape == (2, 3, 5, 5) and not look[1, :, :, 3:].any() for look in looks)
    assert_close(looks[0].sum(-1), torch.ones(2, 3, 5))


def test_every_product_goes_through_a_module():
    """So that whoever quantises or exports a model can replace modules, and no weight is sliced or multiplied behind their back."""
    torch.manual_seed(6)
    model, src, tgt = Transformer(13, 13, d_model=12, n_heads=3, n_layers=2, d_ff=8).eval(), tokens(13, 5, 3), tokens(13, 4, 4)
    called = set()
    for name, module in model.named_modules():
        if hasattr(module, "weight"):
            module.register_forward_hook(lambda module, args, output: called.add(module))
    model.step(model.start(src), tgt[:, 0])
    owners = {module for module in model.modules() if any(p.dim() == 2 for p in module.parameters(recurse=False))}
    assert owners - {model.tgt_embedding.table} <= called and model.output in called and model.tgt_embedding.table in called


@pytest.mark.parametrize("positions", POSITIONS)
def test_encoder_and_step_can_be_exported(positions):
    """As graphs for any number of sentences and words."""
    torch.manual_seed(6)
    model, src = Transformer(13, 17, d_model=12, n_heads=3, n_layers=2, d_ff=8, positions=positions).eval(), tokens(13, 5, 3)

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, src, words, token):
            state = self.model.start(src)
            self.model.decoder(self.model.tgt_embedding(words), state.source, state.source_mask, causal_mask(words.shape[1], words.device), state.caches)
            return self.model.step(state, token)[0]

    B, S, T = (torch.export.Dim(name, min=2, max=64) for name in ("B", "S", "T"))
    words, token = tokens(17, 4, 4), tokens(17, 1, 1)[:, 0]
    graph = torch.export.export(Step(), (src, words, token), dynamic_shapes=({0: B, 1: S}, {0: B, 1: T}, {0: B}), strict=False).module()
    src, words = tokens(13, 7, 2, 6), tokens(17, 3, 3, 3)
    assert_close(graph(src, words, words[:, 0]), model(src, torch.cat((words, words[:, :1]), dim=1))[:, -1], rtol=1e-4, atol=1e-5)


def test_layers_take_parts_of_their_own():
    """Layers are handed in one by one, so they may differ."""
    widths = iter((2, 3, 4))
    stack = encoder(3, lambda: MultiHeadAttention(12, 3, pattern=Window(next(widths))), partial(FeedForward, 12, 8), partial(nn.LayerNorm, 12))
    assert [layer.self_attention.heads.pattern.width for layer in stack.layers] == [2, 3, 4]
    layer, x = EncoderLayer(SelfAttention(MultiHeadAttention(12, 3)), nn.Identity(), nn.LayerNorm(12), nn.LayerNorm(12), 0.0, True), torch.randn(2, 5, 12)
    middle = x + layer.self_attention(layer.norm_1(x))[0]
    assert torch.equal(layer(x), middle + layer.norm_2(middle))

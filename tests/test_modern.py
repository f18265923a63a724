"""Lesson 35: grouped attention against loops and PyTorch, a window against its mask, rotary speeds against Hugging Face's, caches, errors.

The whole blocks are compared with those of Llama, Qwen2 and Mistral in test_pretrained.py.
"""
import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course.models.attention import SelfAttention, attention_weights
from transformer_course.models.modern import Clocks, GroupedAttention, ModernLM, Window, WindowCache, speeds
from transformer_course.models.relative_positions import Rotary
from transformer_course.models.t5 import GatedFeedForward
from transformer_course.models.transformer_lm import TransformerLM
from transformer_course.protocols import AttentionPattern, Cache, Searchable
from transformer_course.search.beam import beam_search

B, T, D, H, G, K, V = 2, 7, 20, 6, 3, 5, 13
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def small(**options):
    torch.manual_seed(1)
    return ModernLM(V, **{"d_model": 24, "n_heads": 6, "n_groups": 2, "n_layers": 2, "d_ff": 28} | options).double().eval()


def texts(length=11, rows=3):
    torch.manual_seed(2)
    return torch.randint(4, V, (rows, length))


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_grouped_attention_is_pytorchs(groups):
    """Scaled-dot-product attention of PyTorch with the keys of each head's group, head by head."""
    torch.manual_seed(1)
    module = GroupedAttention(D, H, groups, K, bias=True, out_bias=True).double()
    x, mask = torch.randn(B, T, D, dtype=torch.float64), torch.ones(T, T, dtype=torch.bool).tril()
    rows = lambda matrix, bias, first: x @ matrix[first:first + K].T + bias[first:first + K]
    answers = []
    for h in range(H):
        own = h // (H // groups) * K
        q = rows(module.q_proj.weight, module.q_proj.bias, h * K)
        k = rows(module.kv_proj.weight, module.kv_proj.bias, own)
        v = rows(module.kv_proj.weight, module.kv_proj.bias, groups * K + own)
        answers.append(F.scaled_dot_product_attention(q, k, v, mask))
    expected = module.out_proj(torch.cat(answers, -1))
    found, weights = SelfAttention(module)(x, mask, need_weights=True)
    assert_close(found, expected)
    assert weights.shape == (B, H, T, T)
    assert [tuple(t.shape) for t in module.project(x)] == [(B, H, T, K), (B, groups, T, K), (B, groups, T, K)]


def test_queries_and_keys_are_normed_and_values_are_not():
    torch.manual_seed(1)
    module, x = GroupedAttention(D, H, G, K, qk_norm=1e-6).double(), torch.randn(B, T, D, dtype=torch.float64)
    query, key, value = module.project(x)
    for normed in (query, key):
        assert_close(normed.square().mean(-1), torch.ones_like(normed[..., 0]), rtol=1e-3, atol=1e-3)
    again = module.project(100 * x)
    assert_close(again[0], query, rtol=1e-4, atol=1e-4)
    assert_close(again[2], 100 * value)


@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"window": 4}, {"rotary": False, "max_len": 11}, {"norm": "layer", "bias": True, "gated": False},
                                     {"window": 1}, {"d_head": 10, "scaling": LLAMA3, "base": 500.0, "tied": False}])
def test_word_by_word_gives_what_the_whole_text_gives(options):
    model, tokens = small(**options), texts()
    assert isinstance(model, Searchable)
    with torch.no_grad():
        whole = model(tokens)
        for read in (1, 2, 6):
            state = model.start(tokens[:, :read])
            for place in range(read - 1, 11):
                before = state
                logits, state = model.step(state, tokens[:, place])
                assert_close(logits, whole[:, place])
            assert_close(model.step(before, tokens[:, 10])[0], whole[:, 10])           # an old state may be used again
        rows = torch.tensor([2, 0, 2, 1])
        assert_close(model.step(before.select(rows), tokens[rows, 10])[0], whole[rows, 10])
        with attention_weights(model) as weights:
            model(tokens)
    assert len(weights) == 2 and all(w.shape == (3, 6, 11, 11) for w in weights.values())


def test_no_word_sees_a_later_one_or_one_before_its_windows():
    model, tokens = small(window=3), texts(rows=1)
    x = model.embedding(tokens).detach().requires_grad_()
    out = model.stack(x, torch.ones(11, 11, dtype=torch.bool).tril())
    seen = torch.autograd.grad(out[0, 8].sum(), x)[0].abs().sum(-1)[0] > 0
    assert seen.tolist() == [4 <= place <= 8 for place in range(11)]                   # two layers: 2 (W - 1) words before it


@pytest.mark.parametrize("old, new", [(0, 1), (0, 9), (2, 1), (3, 3), (7, 4), (9, 1), (5, 11)])
def test_a_window_with_its_cache_is_a_mask(old, new):
    torch.manual_seed(1)
    window, W = Window(4), 4
    query, key, value = (torch.randn(B, H, old + new, K, dtype=torch.float64) for _ in range(3))
    place = torch.arange(old + new)
    mask = (place <= place[:, None]) & (place > place[:, None] - W)
    expected = F.scaled_dot_product_attention(query, key, value, mask)[:, :, old:]
    cache = window.new_cache()
    assert isinstance(window, AttentionPattern) and isinstance(cache, Cache)
    for n in range(old):
        cache.append(key[:, :, n:n + 1], value[:, :, n:n + 1])
    kept = cache.append(key[:, :, old:], value[:, :, old:])
    causal = torch.ones(new, old + new, dtype=torch.bool).tril(old)
    for given in (causal, None):
        assert_close(window(query[:, :, old:], *kept, given)[0], expected)
    assert cache.length == old + new and cache.keys.shape[2] == min(W, old + new)
    chosen = cache.select(torch.tensor([1, 1, 0]))
    assert chosen.length == cache.length and torch.equal(chosen.keys[2], cache.keys[0])


def test_an_empty_window_cache_can_be_selected():
    assert WindowCache(3).select(torch.tensor([0])).keys is None


@pytest.mark.parametrize("kind, base, scaling", [("default", 1e4, None), ("linear", 1e6, {"rope_type": "linear", "factor": 4.0}), ("llama3", 500.0, LLAMA3),
                                                 ("llama3", 5e5, LLAMA3 | {"original_max_position_embeddings": 8192})])
def test_speeds_are_hugging_faces(kind, base, scaling):
    rope = pytest.importorskip("transformers.modeling_rope_utils", reason="transformers is not installed")
    if kind == "default":
        expected = base ** (-torch.arange(0, 16, 2) / 16)
    else:
        from transformers import LlamaConfig
        config = LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=8192, rope_parameters={"rope_theta": base} | scaling)
        expected = rope.ROPE_INIT_FUNCTIONS[kind](config, "cpu")[0]
    assert_close(speeds(16, base, scaling).float(), expected, rtol=1e-5, atol=1e-9)


def test_clocks_are_rotary_positions_and_go_on_behind_their_table():
    torch.manual_seed(1)
    x, usual, ours = torch.randn(B, H, T, 6), Rotary(6), Rotary(6)
    ours.codes = Clocks(6, max_len=9)
    for start in (0, 2, 5, 100):
        assert_close(ours.rotate(x, start), usual.rotate(x, start))
    exact = Clocks(6, max_len=9).to(torch.bfloat16)
    assert exact(0, 3).dtype == exact(50, 3).dtype == torch.bfloat16


def test_scores_depend_on_the_distance_alone():
    torch.manual_seed(1)
    clocks, query, key = Clocks(8, 500.0, LLAMA3), torch.randn(8), torch.randn(8)
    rotary = Rotary(8)
    rotary.codes = clocks
    score = lambda i, j: (rotary.rotate(query[None], i) @ rotary.rotate(key[None], j).T).item()
    assert_close(score(5, 2), score(905, 902), rtol=1e-4, atol=1e-4)


def test_with_gpt2s_choices_it_is_gpt2():
    torch.manual_seed(1)
    usual = TransformerLM(V, 24, 6, 2, 28, dropout=0.0, max_len=11, activation=F.gelu).double().eval()
    ours = small(norm="layer", gated=False, rotary=False, n_groups=6, bias=True, max_len=11, eps=1e-5)
    weights = dict(usual.state_dict())
    for layer in range(2):
        for part in ("weight", "bias"):
            joined = weights.pop(f"stack.layers.{layer}.self_attention.heads.in_proj.{part}")
            weights |= {f"stack.layers.{layer}.self_attention.heads.q_proj.{part}": joined[:24],
                        f"stack.layers.{layer}.self_attention.heads.kv_proj.{part}": joined[24:]}
    ours.load_state_dict(weights)
    assert_close(ours(texts()), usual(texts()))


def test_each_switch_changes_one_thing():
    kinds = lambda model: {type(part) for part in model.modules()}
    assert nn.LayerNorm not in kinds(small()) and nn.RMSNorm not in kinds(small(norm="layer"))
    assert GatedFeedForward in kinds(small()) and GatedFeedForward not in kinds(small(gated=False))
    assert not any(name.endswith("bias") for name, p in small().named_parameters())
    assert sum(name.endswith("q_proj.bias") or name.endswith("kv_proj.bias") for name, p in small(qkv_bias=True).named_parameters()) == 4
    assert not any(name.endswith("out_proj.bias") for name, p in small(qkv_bias=True).named_parameters())
    assert sum("_norm.weight" in name and "final" not in name for name, p in small(qk_norm=True).named_parameters()) == 4
    torch.manual_seed(1)
    assert ModernLM(V, 24, 6, n_layers=1).stack.layers[0].feed_forward.expand.out_features == 64
    assert ModernLM(V, 24, 6, n_layers=1, gated=False).stack.layers[0].feed_forward.expand.out_features == 96


def test_it_learns_and_searches():
    torch.manual_seed(1)
    model = ModernLM(V, 24, 6, 2, 2, window=6)
    text = torch.tensor([[*range(4, V), *range(4, V)]]).repeat(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        loss = model.loss(text)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3 < math.log(V)
    found = beam_search(model.eval(), torch.tensor([[4, 5, 6]]), 2, 6, 6)
    assert found.tokens[0, :5].tolist() == [7, 8, 9, 10, 11]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options, name", [({}, "Llama"), ({"window": 7, "tied": False}, "Mistral"), ({"qkv_bias": True, "base": 1e6}, "Qwen2"),
                                           ({"scaling": LLAMA3, "d_head": 10}, "Llama")])
def test_ours_in_the_files_of_others(options, name, tmp_path):
    """Hugging Face's library reads what we write, with the tokenizer, and gives our scores; so do we."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from transformer_course.data.text import Tokenizer
    from transformer_course.published.pretrained import from_pretrained, save_pretrained
    words = Tokenizer.train(["the lion saw a dog and ran home"], kind="words", size=50)
    torch.manual_seed(1)
    model = ModernLM(len(words), 24, 6, 2, 2, 28, **options).eval()
    with pytest.warns(UserWarning, match="CTranslate2 cannot hold this|PreTrainedTokenizerFast") as told:
        assert save_pretrained(model, tmp_path, words) == name
    assert any("PreTrainedTokenizerFast" in str(one.message) for one in told) == (name == "Qwen2")
    tokens = torch.randint(4, len(words), (2, 19))
    theirs, told = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values()), told
    with torch.no_grad():
        assert_close(theirs.eval()(tokens).logits, model(tokens), rtol=1e-4, atol=1e-4)
        assert_close(from_pretrained(tmp_path)(tokens), model(tokens))
    reader = transformers.PreTrainedTokenizerFast if name == "Qwen2" else transformers.AutoTokenizer
    found = reader.from_pretrained(tmp_path)("the dog ran")["input_ids"]
    assert found == [model.eos_id, *words.encode("the dog ran")]


def test_what_no_family_holds():
    from transformer_course.published.families import describe
    for options, kind, message in [({"qk_norm": True}, None, "Llama cannot hold norms of queries and keys"), ({"window": 5}, "llama", "another pattern of attention"),
                                   ({"bias": True}, None, "Qwen2 cannot hold other biases than its own"), ({"gated": False}, None, "without SwiGLU"),
                                   ({"norm": "layer"}, None, "norms of another kind than RMSNorm"), ({"rotary": False}, None, "other positions than rotary ones"),
                                   ({}, "gpt2", "its layout is that of Llama")]:
        with pytest.raises(ValueError, match=message):
            describe(small(**options), kind)
    assert describe(small(), "mistral")[1]["window"] is None


@pytest.mark.parametrize("make, message", [
    (partial(GroupedAttention, 20, 6, 4, 5), "n_groups=4 does not divide n_heads=6"),
    (partial(GroupedAttention, 20, 6, 3), "n_heads=6 does not divide d_model=20"),
    (partial(GroupedAttention, 20, 6, 0, 5), "n_groups"),
    (partial(GroupedAttention, 20, 6, 3, 0), "d_head"),
    (lambda: GroupedAttention(20, 6, 3, 5).project(torch.ones(2, 20)), r"x must be \(B, T, 20\), not \(2, 20\)"),
    (partial(Window, 0), "size"),
    (partial(speeds, 5), "d_head must be even, not 5"),
    (partial(speeds, 4, scaling={"rope_type": "yarn"}), "the rope_type 'yarn' is not known: choose one of linear, llama3"),
    (partial(speeds, 4, scaling={"rope_type": "linear"}), "needs positive numbers factor, and no others"),
    (partial(speeds, 4, scaling={"rope_type": "linear", "factor": 2.0, "beta": 1.0}), "and no others"),
    (partial(speeds, 4, scaling=LLAMA3 | {"high_freq_factor": 1.0}), "a high_freq_factor above its low_freq_factor"),
    (partial(ModernLM, 13, norm="group"), 'norm must be "rms" or "layer"'),
    (partial(ModernLM, 0), "vocab_size"),
    (partial(ModernLM, 13, eos_id=13), "eos_id"),
])
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)

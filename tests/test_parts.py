"""Other models are other parts in the same stacks: equal to Hugging Face's, in float64, layer by layer, with their gradients.

The weights of our model are written as functions of theirs, and `functional_call` runs ours with them. So one list of names
says which number is which, and the gradients of both losses by the same numbers, theirs, must be equal. Every weight is redrawn, norms and
biases too. Mutants show that the comparison notices the differences that real code has had.
"""
import math
from functools import partial

import pytest
import torch
from parts import Buckets, GatedFeedForward, Linear, RelativeXL, Window
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel, T5Config, T5ForConditionalGeneration

from transformer_course import protocols
from transformer_course.attention import Dense, MultiHeadAttention
from transformer_course.blocks import FeedForward, Residual
from transformer_course.distances import POSITIONS, ALiBi, InAttention, Relative
from transformer_course.functional import causal_mask, padding_mask
from transformer_course.positions import Learned, Sinusoidal, sinusoids
from transformer_course.search import beam_search, greedy_search
from transformer_course.transformer import Decoder, Embedding, Encoder, EncoderLayer, Output, Parts, State, Transformer
from transformer_course.transformer_lm import TransformerLM

pytestmark = pytest.mark.filterwarnings("ignore")
gelu, gelu_tanh = F.gelu, partial(F.gelu, approximate="tanh")


def oracle(model):
    """In float64, without dropout, every weight redrawn: none is 0 or 1 by chance of its start."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, p in model.double().eval().named_parameters():
            p.normal_(1.0 if p.dim() == 1 and "bias" not in name else 0.0, 0.25 if p.dim() == 1 else 0.15)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.padding_idx = None        # it keeps the padding's row from learning; in a target that starts with padding the row is used
    return model


def layers_of(stack, hidden):
    """A list that fills with what each layer of a stack gives, as `hidden` maps it."""
    found = []
    for layer in stack.layers:
        layer.register_forward_hook(lambda module, args, output: found.append(hidden(output[0])))
    return found


def side(start, own, names):
    """Names of one layer's weights: ours under `own`, theirs under `start`."""
    return {f"{own}.{mine}": f"{start}.{other}" for mine, other in names.items()}


def tokens(high, *lengths, low=3):
    """Sentences of these lengths, padded with 0."""
    torch.manual_seed(2)
    return nn.utils.rnn.pad_sequence([torch.randint(low, high, (n,)) for n in lengths], batch_first=True)


def joined(w, start, names, part):
    """W^Q, W^K, W^V (or their biases) below one another."""
    return torch.cat([w[f"{start}.{name}.{part}"] for name in names])


# GPT-2

def their_gpt2():
    return oracle(GPT2LMHeadModel(GPT2Config(vocab_size=37, n_positions=150, n_embd=20, n_layer=3, n_head=5, n_inner=28, bos_token_id=36,
                                             eos_token_id=36, attn_implementation="eager")))


def our_gpt2(activation=gelu_tanh, eps=1e-5, last=True):
    table, norm = nn.Embedding(37, 20), partial(nn.LayerNorm, 20, eps=eps)
    parts = Parts(partial(MultiHeadAttention, 20, 5), partial(FeedForward, 20, 28, activation=activation),
                  partial(Residual, 20, 0.0, "pre", lambda d: norm()), final_norm=norm if last else nn.Identity)
    return TransformerLM.from_parts(Embedding(table, Learned(20, 150), 0.0, scaled=False), Encoder(3, parts), Output(table), 36, 36, 36).double()


def gpt2_weights(w):
    found = {"embedding.table.weight": w["transformer.wte.weight"], "embedding.positions.table": w["transformer.wpe.weight"],
             "stack.final_norm.weight": w["transformer.ln_f.weight"], "stack.final_norm.bias": w["transformer.ln_f.bias"]}
    for n in range(3):
        for mine, other in {"self_attention.heads.in_proj": "attn.c_attn", "self_attention.heads.out_proj": "attn.c_proj", "feed_forward.expand": "mlp.c_fc",
                            "feed_forward.contract": "mlp.c_proj", "residuals.0.norm": "ln_1", "residuals.1.norm": "ln_2"}.items():
            weight = w[f"transformer.h.{n}.{other}.weight"]                                 # their Conv1D keeps (in, out)
            found[f"stack.layers.{n}.{mine}.weight"] = weight if "norm" in mine else weight.T
            found[f"stack.layers.{n}.{mine}.bias"] = w[f"transformer.h.{n}.{other}.bias"]
    return found


def run_gpt2(ours, theirs, weights, src):
    found, later = layers_of(ours.stack, lambda x: x), theirs(src, output_hidden_states=True)
    logits = functional_call(ours, weights, (src,))
    return [*zip(found, later.hidden_states[1:-1]), (logits, later.logits)]                 # their last state is after the norm


# BERT

def their_bert():
    return oracle(BertModel(BertConfig(vocab_size=37, hidden_size=20, num_hidden_layers=3, num_attention_heads=5, intermediate_size=28,
                                       max_position_embeddings=150, attn_implementation="eager"), add_pooling_layer=False))


class Bert(nn.Module):
    """No part of its own: an embedding with a norm, a table of segments, a post-norm stack."""

    def __init__(self, activation=gelu, eps=1e-12):
        super().__init__()
        norm = partial(nn.LayerNorm, eps=eps)
        self.embedding = Embedding(nn.Embedding(37, 20), Learned(20, 150), 0.0, scaled=False, norm=norm(20))
        self.segments = nn.Embedding(2, 20)
        self.stack = Encoder(3, Parts(partial(MultiHeadAttention, 20, 5), partial(FeedForward, 20, 28, activation=activation),
                                      partial(Residual, 20, 0.0, "post", norm)))
        self.double()

    def forward(self, src, segments):
        x = self.embedding.place(self.embedding.words(src) + self.segments(segments))
        return self.stack(x, padding_mask(src, 0)[:, None, None])[0]


def bert_weights(w, roles=("query", "key", "value")):
    at = "embeddings."
    found = {"embedding.table.weight": w[at + "word_embeddings.weight"], "embedding.positions.table": w[at + "position_embeddings.weight"],
             "segments.weight": w[at + "token_type_embeddings.weight"]}
    found |= {f"embedding.norm.{part}": w[f"{at}LayerNorm.{part}"] for part in ("weight", "bias")}
    for n in range(3):
        start, own = f"encoder.layer.{n}", f"stack.layers.{n}"
        for part in ("weight", "bias"):
            found[f"{own}.self_attention.heads.in_proj.{part}"] = joined(w, f"{start}.attention.self", roles, part)
            for mine, other in {"self_attention.heads.out_proj": "attention.output.dense", "residuals.0.norm": "attention.output.LayerNorm",
                                "feed_forward.expand": "intermediate.dense", "feed_forward.contract": "output.dense", "residuals.1.norm": "output.LayerNorm"}.items():
                found[f"{own}.{mine}.{part}"] = w[f"{start}.{other}.{part}"]
    return found


def run_bert(ours, theirs, weights, src):
    segments, real = (torch.arange(src.shape[1]) > 60).long().expand_as(src), padding_mask(src, 0)
    found, later = layers_of(ours.stack, lambda x: x[real]), theirs(src, attention_mask=real, token_type_ids=segments, output_hidden_states=True)
    functional_call(ours, weights, (src, segments))
    return list(zip(found, (state[real] for state in later.hidden_states[1:])))


# T5

def their_t5(gated, tied):
    model = oracle(T5ForConditionalGeneration(T5Config(
        vocab_size=37, d_model=20, d_kv=3, d_ff=28, num_layers=2, num_decoder_layers=3, num_heads=5, feed_forward_proj="gated-gelu" if gated else "relu",
        tie_word_embeddings=tied, dropout_rate=0.0, decoder_start_token_id=0, attn_implementation="eager")))
    if not tied:                                                   # their random model is tied all the same
        model.lm_head = nn.Linear(20, 37, bias=False).double()
        nn.init.normal_(model.lm_head.weight, std=0.15)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "T5LayerNorm":
                norm = nn.RMSNorm(20, eps=1e-6).double()          # theirs computes the variance in float32
                norm.weight = child.weight
                setattr(parent, name, norm)
    return model


def our_t5(gated, tied, activation=gelu_tanh, eps=1e-6, both_ways=True):
    think = partial(GatedFeedForward, 20, 28, activation) if gated else partial(FeedForward, 20, 28, bias=False)
    norm = partial(nn.RMSNorm, eps=eps)
    buckets = [Buckets(5, both_ways), Buckets(5, False)]           # one for each stack, shared by its layers
    encoder, decoder = (Parts(partial(MultiHeadAttention, 20, 5, bias=False, d_head=3), think, partial(Residual, 20, 0.0, "pre", norm),
                              lambda table=table: table, final_norm=partial(norm, 20)) for table in buckets)
    table = nn.Embedding(37, 20)
    embedding = Embedding(table, None, 0.0, scaled=tied)
    output = Output(table if tied else nn.Linear(20, 37, bias=False))
    return Transformer.from_parts(embedding, embedding, Encoder(2, encoder), Decoder(3, decoder), output, pad_id=0, bos_id=0, eos_id=1).double()


def t5_weights(w, gated, tied, scale=math.sqrt(3)):
    """Their attention does not divide by √K: our W^Q is theirs times √K. Their tied output is divided by √D: so is our table."""
    found = {"tgt_embedding.table.weight": w["shared.weight"] / (math.sqrt(20) if tied else 1)}
    found |= {} if tied else {"output.table.weight": w["lm_head.weight"]}
    for own, depth in (("encoder", 2), ("decoder", 3)):
        table = w[f"{own}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        found |= {f"{own}.layers.0.self_attention.places.table": table, f"{own}.final_norm.weight": w[f"{own}.final_layer_norm.weight"]}
        looks = {"self_attention": "SelfAttention"} | ({"cross_attention": "EncDecAttention"} if own == "decoder" else {})
        for n in range(depth):
            for at, (mine, other) in enumerate(looks.items()):
                theirs, ours = f"{own}.block.{n}.layer.{at}", f"{own}.layers.{n}"
                q, k, v, o = (w[f"{theirs}.{other}.{role}.weight"] for role in "qkvo")
                found |= {f"{ours}.{mine}.heads.in_proj.weight": torch.cat((scale * q, k, v)), f"{ours}.{mine}.heads.out_proj.weight": o,
                          f"{ours}.residuals.{at}.norm.weight": w[f"{theirs}.layer_norm.weight"]}
            start, at = f"{own}.block.{n}.layer.{len(looks)}", len(looks)
            names = {"gate": "wi_0", "expand": "wi_1", "contract": "wo"} if gated else {"expand": "wi", "contract": "wo"}
            found |= {f"{ours}.feed_forward.{mine}.weight": w[f"{start}.DenseReluDense.{other}.weight"] for mine, other in names.items()}
            found[f"{ours}.residuals.{at}.norm.weight"] = w[f"{start}.layer_norm.weight"]
    return found


def run_t5(ours, theirs, weights, src):
    tgt_in = F.pad(tokens(37, 141, 2, 133), (1, 0))
    real = padding_mask(src, 0)
    later = theirs(src, attention_mask=real, decoder_input_ids=tgt_in, output_hidden_states=True)
    words, written = layers_of(ours.encoder, lambda x: x[real]), layers_of(ours.decoder, lambda x: x)
    logits = functional_call(ours, weights, (src, tgt_in))
    return [*zip(words, (state[real] for state in later.encoder_hidden_states[1:-1])), *zip(written, later.decoder_hidden_states[1:-1]), (logits, later.logits)]


# MarianMT

HALVES = torch.arange(20).view(2, 10).T.flatten()                  # their sines, then their cosines: ours 2i is their i, 2i + 1 their 10 + i


def their_marian():
    model = oracle(MarianMTModel(MarianConfig(
        vocab_size=37, d_model=20, encoder_layers=2, decoder_layers=3, encoder_attention_heads=5, decoder_attention_heads=5, encoder_ffn_dim=28,
        decoder_ffn_dim=28, activation_function="swish", scale_embedding=True, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, bos_token_id=0,
        max_position_embeddings=150, forced_eos_token_id=None, share_encoder_decoder_embeddings=True, attn_implementation="eager")))
    with torch.no_grad():
        model.final_logits_bias.normal_()
        for stack in (model.model.encoder, model.model.decoder):   # not learnt, but redrawn by `oracle`
            codes = sinusoids(torch.arange(150), 20).double()
            stack.embed_positions.weight.copy_(torch.cat((codes[:, 0::2], codes[:, 1::2]), dim=1))
    return model


def our_marian(activation=F.silu, scaled=True, bias=True, eps=1e-5):
    table, codes = nn.Embedding(37, 20), Sinusoidal(20)
    parts = Parts(partial(MultiHeadAttention, 20, 5), partial(FeedForward, 20, 28, activation=activation),
                  partial(Residual, 20, 0.0, "post", partial(nn.LayerNorm, eps=eps)))
    embedding = Embedding(table, codes, 0.0, scaled)
    return Transformer.from_parts(embedding, embedding, Encoder(2, parts), Decoder(3, parts), Output(table, bias), pad_id=0, bos_id=0, eos_id=1).double()


def marian_weights(w, order=HALVES, roles=("q_proj", "k_proj", "v_proj"), bias=True):
    """The residual stream's dimensions in our order, in every matrix that touches it."""
    found = {"tgt_embedding.table.weight": w["model.shared.weight"][:, order]} | ({"output.bias": w["final_logits_bias"][0]} if bias else {})
    for own, depth in (("encoder", 2), ("decoder", 3)):
        looks = [("self_attention", "self_attn")] + ([("cross_attention", "encoder_attn")] if own == "decoder" else [])
        for n in range(depth):
            theirs, ours = f"model.{own}.layers.{n}", f"{own}.layers.{n}"
            for at, (mine, other) in enumerate(looks):
                found |= {f"{ours}.{mine}.heads.in_proj.weight": joined(w, f"{theirs}.{other}", roles, "weight")[:, order],
                          f"{ours}.{mine}.heads.in_proj.bias": joined(w, f"{theirs}.{other}", roles, "bias"),
                          f"{ours}.{mine}.heads.out_proj.weight": w[f"{theirs}.{other}.out_proj.weight"][order],
                          f"{ours}.{mine}.heads.out_proj.bias": w[f"{theirs}.{other}.out_proj.bias"][order]}
                found |= {f"{ours}.residuals.{at}.norm.{part}": w[f"{theirs}.{other}_layer_norm.{part}"][order] for part in ("weight", "bias")}
            found |= {f"{ours}.feed_forward.expand.weight": w[f"{theirs}.fc1.weight"][:, order], f"{ours}.feed_forward.expand.bias": w[f"{theirs}.fc1.bias"],
                      f"{ours}.feed_forward.contract.weight": w[f"{theirs}.fc2.weight"][order], f"{ours}.feed_forward.contract.bias": w[f"{theirs}.fc2.bias"][order]}
            found |= {f"{ours}.residuals.{len(looks)}.norm.{part}": w[f"{theirs}.final_layer_norm.{part}"][order] for part in ("weight", "bias")}
    return found


def run_marian(ours, theirs, weights, src, order=HALVES):
    tgt_in, real = F.pad(tokens(37, 141, 2, 133), (1, 0)), padding_mask(src, 0)
    later = theirs(src, attention_mask=real, decoder_input_ids=tgt_in, output_hidden_states=True)
    words, written = layers_of(ours.encoder, lambda x: x[real]), layers_of(ours.decoder, lambda x: x)
    logits = functional_call(ours, weights, (src, tgt_in))
    return [*zip(words, (state[real][:, order] for state in later.encoder_hidden_states[1:])),
            *zip(written, (state[..., order] for state in later.decoder_hidden_states[1:])), (logits, later.logits)]


FAMILIES = {"GPT-2": (their_gpt2, our_gpt2, gpt2_weights, run_gpt2), "BERT": (their_bert, Bert, bert_weights, run_bert),
            "MarianMT": (their_marian, our_marian, marian_weights, run_marian)}
for kind, options in {"T5": {"gated": False, "tied": True}, "T5 v1.1": {"gated": True, "tied": False}}.items():
    FAMILIES[kind] = partial(their_t5, **options), partial(our_t5, **options), partial(t5_weights, **options), run_t5

MUTANTS = [("GPT-2", {"activation": gelu}, {}), ("GPT-2", {"eps": 1e-6}, {}), ("GPT-2", {"last": False}, {}),
           ("BERT", {"activation": gelu_tanh}, {}), ("BERT", {"eps": 1e-5}, {}), ("BERT", {}, {"roles": ("query", "value", "key")}),
           ("T5", {}, {"scale": 1.0}), ("T5", {"both_ways": False}, {}), ("T5", {"eps": 1e-5}, {}), ("T5 v1.1", {"activation": gelu}, {}),
           ("MarianMT", {"activation": F.relu}, {}), ("MarianMT", {"scaled": False}, {}), ("MarianMT", {"bias": False}, {"bias": False}),
           ("MarianMT", {}, {"order": torch.arange(20)}), ("MarianMT", {}, {"roles": ("q_proj", "v_proj", "k_proj")})]


def both(family, changes=None, other_weights=None):
    """Pairs (ours, theirs) of every layer and of the logits, and the weights by which both can be differentiated."""
    theirs, ours, weights, run = FAMILIES[family]
    oracle_model = theirs()
    numbers = dict(oracle_model.named_parameters()) | dict(oracle_model.named_buffers())
    src = tokens(37, 130, 5, 144) if family != "GPT-2" else tokens(36, 145, 145, 145, low=0)
    mapped = weights(numbers, **(other_weights or {}))
    model = ours(**(changes or {}))
    missing = {name for name, p in model.named_parameters()} - mapped.keys()
    assert not missing, missing
    return run(model, oracle_model, mapped, src), oracle_model


@pytest.mark.parametrize("family", FAMILIES)
def test_values_and_gradients_are_hugging_faces(family):
    pairs, theirs = both(family)
    for place, (mine, other) in enumerate(pairs):
        assert_close(mine, other, rtol=1e-9, atol=1e-9, msg=lambda text: f"layer {place + 1}: {text}")
    assert len(pairs) >= 3
    torch.manual_seed(3)
    direction = torch.randn_like(pairs[-1][0])
    learnt = [p for name, p in theirs.named_parameters() if "embed_positions" not in name]
    gradients = [torch.autograd.grad((last * direction).sum(), learnt, retain_graph=True) for last in pairs[-1]]
    for mine, other in zip(*gradients, strict=True):
        assert_close(mine, other, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("family, changes, weights", MUTANTS)
def test_a_mutant_is_noticed(family, changes, weights):
    pairs, theirs = both(family, changes, weights)
    assert any((mine - other).abs().max() > 1e-7 for mine, other in pairs)


@pytest.mark.parametrize("family", ["T5", "MarianMT"])
def test_they_write_the_words_that_hugging_face_writes(family):
    """From the start token, which is the padding, greedily and with a beam, with caches."""
    theirs, ours, weights, run = FAMILIES[family]
    oracle_model, model = theirs(), ours().eval()
    mapped = weights(dict(oracle_model.named_parameters()) | dict(oracle_model.named_buffers()))
    for name, parameter in model.named_parameters():
        parameter.data.copy_(mapped[name])
    src = tokens(37, 11, 5, 8)
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "attention_mask": padding_mask(src, 0), "bad_words_ids": [[0]],
               "use_cache": family != "T5"}                         # its cache has a place for as many layers as the encoder has
    for beams in (1, 3):
        expected = oracle_model.generate(src, num_beams=beams, length_penalty=0.0, **options)[:, 1:]
        found = greedy_search(model, src, 13, 13) if beams == 1 else beam_search(model, src, beams, 13, 13, length_penalty=0.0)
        assert torch.equal(found.tokens[:, :12], expected)


# caches, patterns and positions in a language model's stack

PATTERNS = {"dense": Dense, "window": lambda: Window(3), "linear": Linear}
PLACES = {"none": InAttention, "relative": lambda: Relative(4, clip=2), "alibi": lambda: ALiBi(3), "XL": lambda: RelativeXL(12, 3), "buckets": lambda: Buckets(3, False)}


def language_model(pattern=Dense, places=InAttention, seed=1):
    torch.manual_seed(seed)
    table = nn.Embedding(17, 12)
    parts = Parts(lambda: MultiHeadAttention(12, 3, pattern=pattern()), partial(FeedForward, 12, 20), partial(Residual, 12, 0.0, "pre"), places, partial(nn.LayerNorm, 12))
    return TransformerLM.from_parts(Embedding(table, None, 0.0), Encoder(2, parts), Output(table), 0, 1, 2).eval()


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
    assert_close(heads(x, x, x)[0], plain(x, x, x, near)[0])
    cache = heads.pattern.new_cache()
    for t in range(7):
        cache = cache.append(*heads.project(x[:, t:t + 1])[1:])
    assert cache.keys.shape[2] == 3 and cache.length == 7


def test_transformer_xl_is_its_sum_in_loops():
    """A_ij = (q_i + u) · k_j + (q_i + v) · W_kR R_(i - j), over √K, with a memory before the segment."""
    torch.manual_seed(5)
    places, heads, x = RelativeXL(12, 3), MultiHeadAttention(12, 3), torch.randn(2, 6, 12)
    q, k, v = heads.project(x)
    start = 2
    bias, asked = places.bias(q[:, :, start:], 6, start), places.ask(q[:, :, start:], start)
    scores = asked @ k.mT / 2 + bias
    for b in range(2):
        for h in range(3):
            for i in range(start, 6):
                for j in range(6):
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
    hidden, looks, caches = model.encoder(model.src_embedding(src), mask, need_weights=True)
    assert_close(hidden, memory)
    assert len(looks) == 2 and all(look.shape == (2, 3, 5, 5) and not look[1, :, :, 3:].any() for look in looks)
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
            hidden, looks, caches = self.model.decoder(self.model.tgt_embedding(words), state.source, state.source_mask,
                                                       causal_mask(words.shape[1], words.device), state.caches)
            return self.model.step(State(caches, state.source, state.source_mask), token)[0]

    B, S, T = (torch.export.Dim(name, min=2, max=64) for name in ("B", "S", "T"))
    words, token = tokens(17, 4, 4), tokens(17, 1, 1)[:, 0]
    graph = torch.export.export(Step(), (src, words, token), dynamic_shapes=({0: B, 1: S}, {0: B, 1: T}, {0: B}), strict=False).module()
    src, words = tokens(13, 7, 2, 6), tokens(17, 3, 3, 3)
    assert_close(graph(src, words, words[:, 0]), model(src, torch.cat((words, words[:, :1]), dim=1))[:, -1], rtol=1e-4, atol=1e-5)


def test_layers_take_parts_of_their_own():
    """A maker is called once a layer, so a counter in it makes layers differ."""
    widths = iter((2, 3, 4))
    parts = Parts(lambda: MultiHeadAttention(12, 3, pattern=Window(next(widths))), partial(FeedForward, 12, 8), partial(Residual, 12))
    assert [layer.self_attention.heads.pattern.width for layer in Encoder(3, parts).layers] == [2, 3, 4]
    assert isinstance(EncoderLayer(Parts(partial(MultiHeadAttention, 12, 3), nn.Identity, partial(Residual, 12))).feed_forward, nn.Identity)

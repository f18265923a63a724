"""Random models of Hugging Face's library, and how to run ours beside them: what parity tests are made of.

Everything is in float64. Every weight is redrawn, norms and biases too, all sizes differ, and texts are longer than 128 tokens.
The weights of our model are functions of theirs (`layouts.to_ours`), and `functional_call` runs ours with them. So one table of names
says which number is which, and the gradients of both losses by the same numbers, theirs, must be equal.
"""
import math
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from transformers import (BertConfig, BertForPreTraining, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MarianConfig, MarianMTModel,
                          MistralConfig, MistralForCausalLM, PegasusConfig, PegasusForConditionalGeneration, Qwen2Config, Qwen2ForCausalLM, T5Config,
                          T5ForConditionalGeneration)

from transformer_course.models.functional import padding_mask
from transformer_course.published.bert import BERT_WITH_TASKS
from transformer_course.published.families import FAMILIES
from transformer_course.published.layouts import GELU_TANH, read_options, to_ours
from transformer_course.published.marian import codes


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


def tokens(high, *lengths, low=3):
    """Sentences of these lengths, padded with 0."""
    torch.manual_seed(2)
    return nn.utils.rnn.pad_sequence([torch.randint(low, high, (n,)) for n in lengths], batch_first=True)


def layers_of(stack, hidden):
    """A list that fills with what each layer of a stack gives, as `hidden` maps it."""
    found = []
    for layer in stack.layers:
        layer.register_forward_hook(lambda module, args, output: found.append(hidden(output)))
    return found


def their_gpt2():
    return oracle(GPT2LMHeadModel(GPT2Config(vocab_size=37, n_positions=150, n_embd=20, n_layer=3, n_head=5, n_inner=28, bos_token_id=36,
                                             eos_token_id=36, attn_implementation="eager")))


def run_gpt2(ours, theirs, weights, src):
    found, later = layers_of(ours.stack, lambda x: x), theirs(src, output_hidden_states=True)
    logits = functional_call(ours, weights, (src,))
    return [*zip(found, later.hidden_states[1:-1]), (logits, later.logits)]                 # their last state is after the norm


def their_bert():
    return oracle(BertForPreTraining(BertConfig(vocab_size=37, hidden_size=20, num_hidden_layers=3, num_attention_heads=5, intermediate_size=28,
                                                max_position_embeddings=150, attn_implementation="eager")))


def run_bert(ours, theirs, weights, src):
    segments, real = (torch.arange(src.shape[1]) > 60).long().expand_as(src), padding_mask(src, 0)
    found, later = layers_of(ours.bert.stack, lambda x: x[real]), theirs(src, attention_mask=real, token_type_ids=segments, output_hidden_states=True)
    words, follows = functional_call(ours, weights, (src, segments))
    both = lambda words, follows: torch.cat((words[real].flatten(), 20 * follows.flatten()))
    return [*zip(found, (state[real] for state in later.hidden_states[1:])),
            (both(words, follows), both(later.prediction_logits, later.seq_relationship_logits))]


def with_exact_norms(model):
    """Their root-mean-square norms compute the variance in float32."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "T5LayerNorm" or type(child).__name__.endswith("RMSNorm") and type(child) is not nn.RMSNorm:
                norm = nn.RMSNorm(len(child.weight), eps=1e-6).double()
                norm.weight = child.weight
                setattr(parent, name, norm)
    return model


class ExactRotation(nn.Module):
    """Cosines and sines of the angles, one by one; theirs computes the angles in float32, and ours rounds what comes out."""

    def __init__(self, turns):
        super().__init__()
        self.turns = turns

    def forward(self, x, position_ids):
        angles = [[[place * turn for turn in (*self.turns, *self.turns)] for place in row] for row in position_ids.tolist()]
        rounded = lambda f: torch.tensor([[[f(a) for a in place] for place in row] for row in angles]).float().double()
        return rounded(math.cos), rounded(math.sin)


def their_turns(d_head, base, scaling):
    """How fast each pair turns, pair by pair, as the papers say."""
    found = []
    for i in range(0, d_head, 2):
        turn = base ** (-i / d_head)
        if scaling and scaling["rope_type"] == "linear":
            turn /= scaling["factor"]
        elif scaling:
            length, low, high = (scaling[name] for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
            wave = 2 * math.pi / turn
            if wave > length / low:
                turn /= scaling["factor"]
            elif wave >= length / high:
                smooth = (length / wave - low) / (high - low)
                turn = (1 - smooth) * turn / scaling["factor"] + smooth * turn
        found.append(turn)
    return found


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def their_modern(model, config, base=10000.0, scaling=None, **more):
    theirs = oracle(model(config(
        vocab_size=37, hidden_size=24, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, intermediate_size=28, bos_token_id=1,
        eos_token_id=36, max_position_embeddings=150, attn_implementation="sdpa",              # the other one computes the softmax in float32
        rope_parameters={"rope_theta": base} | (scaling or {"rope_type": "default"}), **more)))
    theirs.model.rotary_emb = ExactRotation(their_turns(more.get("head_dim", 4), base, scaling))
    return with_exact_norms(theirs)


def their_t5(gated, tied):
    model = oracle(T5ForConditionalGeneration(T5Config(
        vocab_size=37, d_model=20, d_kv=3, d_ff=28, num_layers=2, num_decoder_layers=3, num_heads=5, feed_forward_proj="gated-gelu" if gated else "relu",
        tie_word_embeddings=tied, dropout_rate=0.0, decoder_start_token_id=0, attn_implementation="eager")))
    if not tied:                                                   # their random model is tied all the same
        model.lm_head = nn.Linear(20, 37, bias=False).double()
        nn.init.normal_(model.lm_head.weight, std=0.15)
    return with_exact_norms(model)


def run_pair(ours, theirs, weights, src, turn=lambda x: x, last=-1):
    """Source and target; `turn` brings a state of theirs into our order, `last` leaves out a state after a final norm."""
    tgt_in, real = F.pad(tokens(37, 141, 2, 133), (1, 0)), padding_mask(src, 0)
    later = theirs(src, attention_mask=real, decoder_input_ids=tgt_in, output_hidden_states=True)
    words, written = layers_of(ours.encoder, lambda x: x[real]), layers_of(ours.decoder, lambda x: x)
    logits = functional_call(ours, weights, (src, tgt_in))
    return [*zip(words, (turn(state)[real] for state in later.encoder_hidden_states[1:last])),
            *zip(written, map(turn, later.decoder_hidden_states[1:last])), (logits, later.logits)]


HALVES = torch.arange(20).view(2, 10).T.flatten()                  # their sines, then their cosines: ours 2i is their i, 2i + 1 their 10 + i


def their_marian(model=MarianMTModel, config=MarianConfig, **more):
    model = oracle(model(config(
        vocab_size=37, d_model=20, encoder_layers=2, decoder_layers=3, encoder_attention_heads=5, decoder_attention_heads=5, encoder_ffn_dim=28,
        decoder_ffn_dim=28, activation_function="swish", scale_embedding=True, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, bos_token_id=0,
        max_position_embeddings=150, forced_eos_token_id=None, attn_implementation="eager", **more)))
    with torch.no_grad():
        model.final_logits_bias.normal_()
        for stack in (model.model.encoder, model.model.decoder):   # not learnt, but redrawn by `oracle`
            stack.embed_positions.weight.copy_(codes({"d_model": 20}, 150))
    return model


ORACLES = {
    "GPT-2": (their_gpt2, run_gpt2),
    "Llama": (partial(their_modern, LlamaForCausalLM, LlamaConfig), run_gpt2),
    "Llama 3": (partial(their_modern, LlamaForCausalLM, LlamaConfig, 500.0, LLAMA3, tie_word_embeddings=True, head_dim=10), run_gpt2),
    "Qwen2": (partial(their_modern, Qwen2ForCausalLM, Qwen2Config, 1e6, {"rope_type": "linear", "factor": 4.0}), run_gpt2),
    "Mistral": (partial(their_modern, MistralForCausalLM, MistralConfig, sliding_window=9), run_gpt2),
    "BERT": (their_bert, run_bert),
    "T5": (partial(their_t5, gated=False, tied=True), run_pair),
    "T5 v1.1": (partial(their_t5, gated=True, tied=False), run_pair),
    "MarianMT": (partial(their_marian, share_encoder_decoder_embeddings=True), partial(run_pair, turn=lambda x: x[..., HALVES], last=None)),
    "Pegasus": (partial(their_marian, PegasusForConditionalGeneration, PegasusConfig), partial(run_pair, turn=lambda x: x[..., HALVES]))}


WRITERS = ("GPT-2", "Llama", "Llama 3", "Qwen2", "Mistral")


def source(name):
    return tokens(37, 130, 5, 144) if name not in WRITERS else tokens(36, 145, 145, 145, low=0)


def family_of(theirs):
    """The family of one of their models, and its sizes."""
    config = theirs.config.to_dict()
    family = BERT_WITH_TASKS if config["model_type"] == "bert" else FAMILIES[config["model_type"]]
    return family, read_options(family, config) | ({"pooler": True} if config["model_type"] == "bert" else {})


def both(name, sizes=None, change=lambda model: None, rename=lambda line: line):
    """Pairs (ours, theirs) of every layer and of the logits, and their model. A mutant has other sizes, parts or names."""
    make, run = ORACLES[name]
    theirs = make()
    family, said = family_of(theirs)
    family = replace(family, names=tuple(map(rename, family.names)))
    numbers = dict(theirs.named_parameters()) | dict(theirs.named_buffers())
    model = family.build(**said | (sizes or {})).double().eval()
    change(model)
    weights = to_ours(family, said, numbers)
    own = {n: weights[n] for n, p in model.named_parameters()}
    return run(model, theirs, own, source(name)), theirs


# Mutants: differences that real code has had

def _activation(function):
    def change(model):
        for module in model.modules():
            if hasattr(module, "activation"):
                module.activation = function
    return change


def _last_norm(model):
    model.stack.final_norm = nn.Identity()


def _backwards_only(model):
    model.encoder.layers[0].self_attention.positions.bidirectional = False


def _no_bias(model):
    model.output.bias = None


def _eps(value):
    def change(model):
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = value
    return change


def _swap(old, new):
    return lambda line: (line[0], line[1].replace(old, new), *line[2:])


def _how(*old):
    return lambda line: (*line[:2], "same" if line[2] in old else line[2], *line[3:])


def _never_gated(line):
    "The gate and what it opens, exchanged."
    return (line[0], line[1].replace("wi_0", "wi_?").replace("wi_1", "wi_0").replace("wi_?", "wi_1"), *line[2:])


MUTANTS = [
    ("GPT-2", {"activation": F.gelu}, {}), ("GPT-2", {"eps": 1e-6}, {}), ("GPT-2", {}, {"change": _last_norm}),
    ("GPT-2", {}, {"rename": lambda line: (line[0], line[1].replace("ln_1", "ln_?").replace("ln_2", "ln_1").replace("ln_?", "ln_2"), *line[2:])}),
    ("Llama", {"eps": 1e-5}, {}), ("Llama", {"base": 5e5}, {}),
    ("Llama", {}, {"change": _activation(F.gelu)}), ("Llama", {}, {"rename": _how("heads", "keys")}), ("Llama", {}, {"change": _last_norm}),
    ("Llama", {}, {"rename": lambda line: (line[0], line[1].replace("gate_proj", "?").replace("up_proj", "gate_proj").replace("?", "up_proj"), *line[2:])}),
    ("Llama 3", {"scaling": None}, {}), ("Llama 3", {"scaling": LLAMA3 | {"high_freq_factor": 5.0}}, {}), ("Qwen2", {"scaling": None}, {}),
    ("Mistral", {"window": None}, {}), ("Mistral", {"window": 8}, {}), ("Mistral", {"window": 10}, {}),
    ("BERT", {"activation": GELU_TANH}, {}), ("BERT", {"eps": 1e-5}, {}), ("BERT", {}, {"rename": _swap("query+key+value", "query+value+key")}),
    ("T5", {}, {"rename": _how("q times √K")}), ("T5", {}, {"rename": _how("divided by √D")}), ("T5", {}, {"change": _backwards_only}), ("T5", {"eps": 1e-5}, {}),
    ("T5", {"max_distance": 64}, {}), ("T5 v1.1", {}, {"change": _activation(F.gelu)}), ("T5 v1.1", {}, {"rename": _never_gated}),
    ("MarianMT", {"activation": F.relu}, {}), ("MarianMT", {"scaled": False}, {}), ("MarianMT", {}, {"change": _no_bias}),
    ("MarianMT", {}, {"rename": _how("rows", "columns")}), ("MarianMT", {}, {"rename": _swap("q_proj+k_proj+v_proj", "q_proj+v_proj+k_proj")}),
    ("MarianMT", {}, {"change": _eps(1e-6)}), ("Pegasus", {"activation": F.relu}, {}), ("Pegasus", {}, {"rename": _how("rows", "columns")})]

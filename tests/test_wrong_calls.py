"""Calls that cannot work: each is told in one line that names the argument, what was given and what is allowed; nothing is silently wrong."""
import math

import pytest
import torch

from transformer_course.data.batching import PairBatches, batch_plan
from transformer_course.data.text import Tokenizer, pad
from transformer_course.models.additive import AdditiveSeq2Seq
from transformer_course.models.attention import MultiHeadAttention, attention, plain_attention
from transformer_course.models.bert import Bert, BertForPreTraining, TextClassifier
from transformer_course.models.classifier import SentenceClassifier
from transformer_course.models.functional import projected_loss, smoothed_cross_entropy
from transformer_course.models.language_models import RNNLanguageModel
from transformer_course.models.luong import LuongSeq2Seq
from transformer_course.models.segments import SegmentBatches, window_losses
from transformer_course.models.seq2seq import Seq2Seq
from transformer_course.models.streams import StreamBatches, stream_losses
from transformer_course.models.t5 import T5
from transformer_course.models.transformer import Transformer
from transformer_course.models.transformer_lm import TransformerLM
from transformer_course.models.transformer_xl import TransformerXL
from transformer_course.scoring import bleu, chrf, exact_match, links_from_attention, paired_bootstrap

V, D = 11, 8
MAKE = {
    "Seq2Seq": lambda **ids: Seq2Seq(V, V, D, 6, **ids), "AdditiveSeq2Seq": lambda **ids: AdditiveSeq2Seq(V, V, D, 6, **ids),
    "LuongSeq2Seq": lambda **ids: LuongSeq2Seq(V, V, D, 6, **ids),
    "Transformer": lambda **ids: Transformer(V, V, D, 2, 1, 16, **ids), "T5": lambda **ids: T5(V, D, 2, 1, 16, **ids),
    "RNNLanguageModel": lambda **ids: RNNLanguageModel(V, D, 6, **ids), "TransformerLM": lambda **ids: TransformerLM(V, D, 2, 1, 16, **ids)}
TRANSLATORS = ["Seq2Seq", "AdditiveSeq2Seq", "LuongSeq2Seq", "Transformer", "T5"]
MODELS = {name: make() for name, make in MAKE.items()}
BERT = Bert(V, D, 2, 1, 16, max_len=9)


def refused(call, says):
    with pytest.raises(ValueError, match=says) as error:
        call()
    assert "\n" not in str(error.value)


def ids(*shape):
    return torch.randint(3, V, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", TRANSLATORS)
def test_one_source_is_not_spread_over_two_targets(name):
    model = MODELS[name]
    for src, tgt in ((ids(1, 5), ids(2, 4)), (ids(2, 5), ids(1, 4)), (ids(3, 5), ids(2, 4))):
        says = rf"{name}: src and tgt must have as many rows, not shapes \({len(src)}, 5\) and \({len(tgt)}, 4\)"
        refused(lambda: model.loss(src, tgt), says)
        refused(lambda: model(src, tgt), says.replace("tgt", "tgt_in"))
        refused(lambda: model.alignment(src, tgt) if hasattr(model, "alignment") else model.loss(src, tgt), says)
    refused(lambda: MODELS["RNNLanguageModel"].loss(ids(1, 5), ids(2, 4)), "as many rows")


@pytest.mark.parametrize("name", TRANSLATORS)
@pytest.mark.parametrize("src,tgt,says", [
    (ids(5), ids(1, 4), r"src must be \(B, T\) token ids, not \(5,\) of torch.int64"), (ids(1, 5), ids(4), r"tgt must be \(B, T\) token ids, not \(4,\)"),
    (ids(2, 5).float(), ids(2, 4), r"src must be .*, not \(2, 5\) of torch.float32"), (ids(2, 5), ids(2, 4) > 3, r"tgt must be .* torch.bool"),
    ([[3, 4]], ids(1, 4), r"src must be .*, not list"), (ids(2, 5), None, r"tgt must be .*, not NoneType"),
    (ids(2, 5), ids(2, 1), "tgt: texts of 1 words have nothing to predict"),
    (ids(0, 5), ids(0, 4), r"src is empty: \(0, 5\)"), (ids(2, 0), ids(2, 4), r"src is empty: \(2, 0\)")])
def test_translators_take_rectangles_of_ids(name, src, tgt, says):
    refused(lambda: MODELS[name].loss(src, tgt), f"{name}: {says}")


@pytest.mark.parametrize("name", MODELS)
def test_ids_of_another_vocabulary(name):
    model, wrong = MODELS[name].eval(), ids(2, 4).index_fill(1, torch.tensor([1]), V + 2)
    says = f"ids must be from 0 to {V - 1}, and here they go from [0-9]* to {V + 2}"
    if name in TRANSLATORS:
        refused(lambda: model.loss(wrong, ids(2, 4)), says)
        refused(lambda: model.start(wrong), says)
    refused(lambda: model.loss(*((ids(2, 4), wrong) if name != "TransformerLM" else (wrong,))), says)
    refused(lambda: model.step(model.start(ids(2, 4)), torch.tensor([3, V])), f"ids must be from 0 to {V - 1}, and here they go from 3 to {V}")
    refused(lambda: SentenceClassifier(V, d_model=D, d_hidden=6)(wrong), says)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("role,value", [("pad_id", V), ("pad_id", -1), ("bos_id", V + 5), ("eos_id", 2.0), ("pad_id", "0")])
def test_special_ids_lie_in_the_vocabulary(name, role, value):
    refused(lambda: MAKE[name](**{role: value}), f"{name}: {role} must be a whole number from 0 to {V - 1}, not {value!r}")


@pytest.mark.parametrize("make,says", [
    (lambda: Bert(V, D, 2, 1, pad_id=V), f"Bert: pad_id must be a whole number from 0 to {V - 1}, not {V}"),
    (lambda: SentenceClassifier(V, pad_id=V), f"SentenceClassifier: pad_id must be .* not {V}"),
    (lambda: Transformer(V, V, 9, 2, 1, 16, positions="rotary"), "n_heads=2 does not divide d_model=9"),
    (lambda: MultiHeadAttention(0, 2), "d_model must be a positive whole number, not 0"),
    (lambda: MultiHeadAttention(8, 0), "n_heads must be a positive whole number, not 0"),
    (lambda: MultiHeadAttention(8, 2.0), "n_heads must be a positive whole number, not 2.0")])
def test_constructors(make, says):
    refused(make, says)


def test_language_models_take_rectangles_of_ids():
    model = MODELS["TransformerLM"].eval()
    refused(lambda: model.loss(ids(5)), r"TransformerLM: tokens must be \(B, T\) token ids, not \(5,\)")
    refused(lambda: model(ids(2, 3).float()), r"TransformerLM: tokens must be .* torch.float32")
    refused(lambda: model.loss(ids(0, 3)), r"TransformerLM: tokens is empty: \(0, 3\)")
    refused(lambda: model.start(ids(5)), r"TransformerLM: src must be \(B, T\) token ids, not \(5,\)")


@pytest.mark.parametrize("name", MODELS)
def test_a_step_takes_one_word_for_each_hypothesis(name):
    model = MODELS[name].eval()
    state = model.start(ids(2, 4))
    for token in (ids(3), ids(1), ids(2, 1), ids(2).float(), 3):
        refused(lambda: model.step(state, token), "step: ")


def test_masks_that_do_not_fit():
    query, key, heads = torch.randn(2, 3, 4, D), torch.randn(2, 3, 5, D), MultiHeadAttention(D, 2)
    padding = torch.ones(2, 5, dtype=torch.bool)
    for attend in (attention, plain_attention):
        refused(lambda: attend(query, key, key, padding), r"a mask of shape \(2, 5\) does not fit queries and keys \(4, 5\): .* mask\[:, None, None\]")
        refused(lambda: attend(query, key, key, padding[:, None, None, :4]), r"a mask of shape \(2, 1, 1, 4\) does not fit")
        refused(lambda: attend(query, key, key, padding[:, None, None].float()), "mask must be boolean")
    refused(lambda: heads(torch.randn(2, 4, D), mask=torch.ones(2, 4, dtype=torch.bool)), r"a mask of shape \(2, 4\) does not fit")
    refused(lambda: heads(torch.randn(2, 4, D), mask=torch.ones(2, 4, 4, dtype=torch.bool)), r"give mask\[:, None\]")


def test_vectors_of_another_width():
    heads, cross = MultiHeadAttention(D, 2), MultiHeadAttention(D, 2, cross=True)
    refused(lambda: heads(torch.randn(2, 4, 7)), rf"MultiHeadAttention: x must be \(B, T, {D}\), not \(2, 4, 7\)")
    refused(lambda: heads(torch.randn(4, D)), rf"x must be \(B, T, {D}\), not \(4, {D}\)")
    refused(lambda: cross(torch.randn(2, 4, D), torch.randn(2, 5, 7)), rf"source must be \(B, S, {D}\), not \(2, 5, 7\)")
    refused(lambda: cross(torch.randn(2, 4, D)), "made with cross=True.* needs a source")
    refused(lambda: heads(torch.randn(2, 4, D), torch.randn(2, 5, D)), "made without cross=True.* takes no source")
    query, key = torch.randn(2, 3, 4, D), torch.randn(2, 3, 5, 7)
    refused(lambda: attention(query, key, key), r"query \(2, 3, 4, 8\) and key \(2, 3, 5, 7\) must have the same last size")
    refused(lambda: attention(query, query, query[:, :, :3]), r"key \(2, 3, 4, 8\) and value \(2, 3, 3, 8\) must be as many")


@pytest.mark.parametrize("loss", [lambda logits, target, **more: smoothed_cross_entropy(logits, target, **more),
                                  lambda logits, target, **more: projected_loss(logits, torch.eye(V), None, target, **more)])
def test_losses_of_targets_that_are_none(loss):
    logits = torch.randn(2, 3, V)
    refused(lambda: loss(logits, ids(2, 4)), r"\(2, 3, 11\) do not fit targets of shape \(2, 4\)")
    refused(lambda: loss(logits, ids(2, 3).float()), "targets must be ids, not torch.float32")
    refused(lambda: loss(logits, ids(2, 3), smoothing=1.0), r"smoothing must lie in \[0, 1\)")
    refused(lambda: loss(logits, ids(2, 3) + V), rf"targets must be from 0 to {V - 1}, and here they go from \d+ to \d+")
    refused(lambda: loss(logits, ids(2, 3), smoothing=math.nan), "smoothing must lie")


def test_an_output_of_another_width():
    refused(lambda: projected_loss(torch.randn(2, 3, 7), torch.eye(V), None, ids(2, 3)), r"hidden vectors of 7 .* weight of shape \(11, 11\)")
    refused(lambda: projected_loss(torch.randn(2, 3, V), torch.eye(V), torch.zeros(4), ids(2, 3)), r"bias of shape \(4,\) .* weight of shape \(11, 11\)")


def test_bert_takes_texts_that_fit():
    both, classifier = BertForPreTraining(BERT), TextClassifier(BERT, 3)
    refused(lambda: BERT(ids(5)), r"Bert: tokens must be \(B, T\) token ids, not \(5,\)")
    refused(lambda: BERT(ids(2, 10)), "Learned: position 9 asked for, there are 9")
    refused(lambda: BERT(ids(2, 5), ids(1, 5)), r"Bert: segments must be of the shape of tokens, \(2, 5\), not \(1, 5\)")
    refused(lambda: BERT(ids(2, 5).float()), "torch.float32")
    refused(lambda: both.loss(ids(2, 5), None, ids(2, 4), torch.zeros(2).long()), r"targets must be of the shape of tokens, \(2, 5\), not \(2, 4\)")
    refused(lambda: both.loss(ids(2, 5), None, ids(2, 5), torch.zeros(3).long()), r"is_random must be \(B,\) = \(2,\), not \(3,\)")
    refused(lambda: classifier.loss(ids(2, 5), None, torch.zeros(3).long()), r"labels must be \(B,\) = \(2,\), not \(3,\)")
    refused(lambda: classifier.loss(ids(2, 5), None, torch.tensor([0, 3])), "labels must be from 0 to 2, and here they go from 0 to 3")
    refused(lambda: SentenceClassifier(V).loss(ids(2, 5), torch.zeros(3).long()), r"labels must be \(B,\) = \(2,\), not \(3,\)")
    refused(lambda: SentenceClassifier(V).loss(ids(2, 5), torch.tensor([0, 2])), "labels must be from 0 to 1")


@pytest.mark.parametrize("rows,says", [
    ([[1.5]], r"sequences must hold whole numbers, not torch.float32"), ([[1, 2], [3.0]], "whole numbers"), ([["a"]], "lists of whole numbers"),
    ([[None]], "lists of whole numbers"), ("abc", "lists of whole numbers"), ([3, 4], "lists of whole numbers"), ([[True]], "not torch.bool"),
    ([[[1]], [[2]]], "lists of whole numbers"), ([[2**70]], "lists of whole numbers"), (7, "lists of whole numbers"), (None, "lists of whole numbers")])
def test_a_rectangle_of_ids_is_made_of_whole_numbers(rows, says):
    refused(lambda: pad(rows), says)


def test_a_padding_that_is_no_id():
    refused(lambda: pad([[1], [1, 2]], 0.5), "whole numbers")
    assert pad([[]]).shape == (1, 0) and pad([[], []]).dtype == torch.int64
    assert pad([torch.tensor([4, 5]), (6,), range(2)]).tolist() == [[4, 5], [6, 0], [0, 1]]


@pytest.mark.parametrize("make,says", [
    (lambda: PairBatches([]), "no examples"), (lambda: PairBatches([([3], [])]), r"example 0 must be \(source ids, target ids\), neither of them empty"),
    (lambda: PairBatches([([3], [1, 2]), ([], [1, 2])]), "example 1 must be"), (lambda: PairBatches([[3]]), "example 0 must be"),
    (lambda: PairBatches([("ab", [1, 2])]), "example 0 must be"), (lambda: batch_plan([([3], [1, 2])], max_tokens="9"), "max_tokens"),
    (lambda: PairBatches([([3], [1, 2])], max_tokens=2.5), "max_tokens must be a whole number of at least 1, not 2.5")])
def test_batches_of_something_else(make, says):
    refused(make, says)


@pytest.mark.parametrize("score", [bleu, chrf, exact_match])
@pytest.mark.parametrize("hypotheses,references,says", [
    ("a", "b", "hypotheses must be a list of sentences, not one string"), (["a"], "b", "references must be a list of sentences, not one string"),
    (["a", None], ["a", "b"], "hypotheses must be strings, and number 2 is None"), (["a", "b"], ["a", 3], "references must be strings, and number 2 is 3"),
    ([["a"]], ["a"], r"number 1 is \['a'\]"), (None, ["a"], "hypotheses must be a list of sentences, not None"), (3, ["a"], "not 3")])
def test_scores_take_lists_of_sentences(score, hypotheses, references, says):
    refused(lambda: score(hypotheses, references), says)


def test_numbers_that_are_not():
    refused(lambda: paired_bootstrap([1.0, math.nan], [0.0, 1.0]), "first holds a number that is not finite")
    refused(lambda: paired_bootstrap([1.0, 2.0], [0.0, 1.0], samples=0), "samples=0 must be at least 1")
    refused(lambda: links_from_attention(torch.full((2, 3), math.nan), [0, 1], [0]), r"weights hold a number that is not finite")


@pytest.mark.parametrize("given,says", [(7, "ids must be"), ([1.5], "ids must be whole numbers"), (["a"], "ids must be whole numbers"), ([[4]], "ids must be whole numbers"),
                                        (torch.tensor([1.5]), "ids must be whole numbers"), (torch.tensor(4), "ids must be a row")])
def test_what_is_decoded_are_ids(given, says):
    words = Tokenizer.train(["a b c"], kind="words", size=9)
    refused(lambda: words.decode(given), says)
    refused(lambda: words.pieces_of(given), says)


def test_tensors_on_two_devices_are_named():
    """Here the second device is the one without numbers; on a GPU it is the same line."""
    there, two = ids(2, 4).to("meta"), r"{} is on {}, and {} on {}: move one to the other's device"
    for name in TRANSLATORS:
        model = MODELS[name].eval()
        refused(lambda: model.loss(ids(2, 5), there), f"{name}: " + two.format("src", "cpu", "tgt", "meta"))
        refused(lambda: model.start(there), two.format("table", "cpu", "ids", "meta"))
    refused(lambda: MODELS["TransformerLM"](there), two.format("table", "cpu", "ids", "meta"))
    refused(lambda: MODELS["RNNLanguageModel"].loss(ids(2, 4), there), two.format("table", "cpu", "ids", "meta"))
    refused(lambda: BERT(there), "Bert: " + two.format("table", "cpu", "tokens", "meta"))
    refused(lambda: BERT(ids(2, 4), there), "Bert: " + two.format("table", "cpu", "segments", "meta"))
    query, mask = torch.randn(2, 3, 4, D), torch.ones(4, 4, dtype=torch.bool, device="meta")
    for attend in (attention, plain_attention):
        refused(lambda: attend(query, query, query, mask), "attention: " + two.format("query", "cpu", "mask", "meta"))
        refused(lambda: attend(query, query.to("meta"), query), "attention: " + two.format("query", "cpu", "key", "meta"))
    refused(lambda: smoothed_cross_entropy(torch.randn(2, 4, V), there), two.format("vectors", "cpu", "targets", "meta"))


@pytest.mark.parametrize("role,value", [("pad_id", V), ("bos_id", -1), ("eos_id", 2.0)])
def test_special_ids_of_models_with_a_memory(role, value):
    refused(lambda: TransformerXL(V, D, 2, 1, **{role: value}), f"TransformerXL: {role} must be a whole number from 0 to {V - 1}, not {value!r}")


def test_texts_of_models_with_a_memory():
    model, text = TransformerXL(V, D, 2, 1, memory=4), torch.arange(10).remainder(V)
    refused(lambda: model.loss(ids(5)), r"TransformerXL: tokens must be \(B, T\) token ids, not \(5,\)")
    refused(lambda: model.loss(ids(2, 1)), "TransformerXL: tokens: texts of 1 words have nothing to predict")
    for make in (SegmentBatches, StreamBatches, lambda ids, *sizes: stream_losses(model, ids, *sizes), lambda ids, *sizes: window_losses(model.lm, ids, *sizes)):
        for wrong in (text.float(), text[None], [1, 2, 3]):
            refused(lambda: make(wrong, 3, 2), "a text is a tensor with one row of whole numbers, not ")
        refused(lambda: make(text - 1, 3, 2), "ids are whole numbers from 0 on, and the smallest here is -1")

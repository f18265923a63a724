"""BERT: which words are hidden and how, pairs of segments, batches, the two losses, padding, bad input."""
import math
import random
import re
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course import protocols
from transformer_course.data.masking import PretrainingBatches, join_pair, mask_words, word_starts
from transformer_course.models.bert import Bert, BertForPreTraining, MaskedHead, TextClassifier
from transformer_course.data.text import BOS, EOS, PAD, Tokenizer
from transformer_course.training.settings import Settings
from transformer_course.training.loop import evaluate_loss
from transformer_course.training.trainer import fit

WORDS, MASK = 23, 4
SETTINGS = Settings(smoothing=0.0, precision="highest", device="cpu")


def small(seed=1, **options):
    torch.manual_seed(seed)
    return Bert(WORDS, **{"d_model": 12, "n_heads": 3, "n_layers": 2, "d_ff": 20, "max_len": 40, **options}).eval()


def documents(n=7, seed=3):
    draw = random.Random(seed)
    return [[[draw.randrange(5, WORDS) for _ in range(draw.randrange(1, 6))] for _ in range(draw.randrange(2, 5))] for _ in range(n)]


def batches(**options):
    return PretrainingBatches(**{"documents": documents(), "vocab_size": WORDS, "mask_id": MASK, "max_len": 20, "rows": 3} | options)


def test_eighty_ten_ten():
    draw, kinds, drawn = random.Random(1), Counter(), Counter()
    for _ in range(3000):
        text = [BOS, *(draw.randrange(5, WORDS) for _ in range(20)), EOS, PAD]
        read, hidden = mask_words(text, draw, WORDS, MASK)
        asked = [i for i, true in enumerate(hidden) if true >= 0]
        assert len(asked) == 3                                                      # 15 % of 20 words
        assert all(hidden[i] == text[i] and text[i] >= 5 for i in asked)
        assert all(read[i] == text[i] for i in range(len(text)) if i not in asked)
        kinds += Counter("hidden" if read[i] == MASK else "left" if read[i] == text[i] else "replaced" for i in asked)
        drawn += Counter(read[i] for i in asked if read[i] not in (MASK, text[i]))
    n, other = kinds.total(), 1 - 1 / (WORDS - 5)                                   # a random word may be the true one
    for kind, share in {"hidden": 0.8, "replaced": 0.1 * other, "left": 0.1 + 0.1 * (1 - other)}.items():
        assert abs(kinds[kind] / n - share) < 4 * math.sqrt(share * (1 - share) / n), kind
    assert set(drawn) == set(range(5, WORDS))                                       # no special token, every word


def test_masks_follow_the_state_of_the_draw():
    text = [BOS, *range(5, WORDS), EOS]
    one, same, other = (mask_words(text, random.Random(seed), WORDS, MASK) for seed in (1, 1, 2))
    assert one == same != other
    assert mask_words([BOS, 7, EOS], random.Random(1), WORDS, MASK)[1] == [-1, 7, -1]           # at least one
    assert sum(i >= 0 for i in mask_words(text, random.Random(1), WORDS, MASK, share=1.0)[1]) == WORDS - 5


def test_whole_words_are_hidden_together():
    tokenizer = Tokenizer.train(["unhappy children were unhappily hiding in the harbour of happiness"] * 2, size=330, specials=("[MASK]",))
    ids, starts = tokenizer.encode("unhappy hiding harbours"), word_starts(tokenizer)
    owners = tokenizer.word_of_piece("unhappy hiding harbours")
    assert len(ids) > 3
    for seed in range(30):
        hidden = mask_words(ids, random.Random(seed), len(tokenizer), MASK, 0.4, starts=starts)[1]
        chosen = {owner for owner, true in zip(owners, hidden) if true >= 0}
        assert len(chosen) == 1 and all((true >= 0) == (owner in chosen) for owner, true in zip(owners, hidden))
    # a piece after a special token, or at the start of a cut text, is a word of its own
    tail = next(i for i in ids if i not in starts)
    hidden = mask_words([BOS, tail, EOS, tail], random.Random(1), len(tokenizer), MASK, 0.5, starts=starts)[1]
    assert sum(true >= 0 for true in hidden) == 1
    words = Tokenizer.train(["a b c"], kind="words", size=9, specials=("[MASK]",))
    assert word_starts(words) == frozenset(range(len(words)))


def test_pairs_and_cuts():
    assert join_pair([5, 6], [7], 20) == ([BOS, 5, 6, EOS, 7, EOS], [0, 0, 0, 0, 1, 1])
    assert join_pair([5, 6, 7, 8], [9, 10, 11], 8) == ([BOS, 6, 7, 8, EOS, 9, 10, EOS], [0] * 5 + [1] * 3)
    tokens, segments = join_pair(range(5, 15), range(15, 20), 9)
    assert tokens == [BOS, 12, 13, 14, EOS, 15, 16, 17, EOS] and segments == [0] * 5 + [1] * 4          # around the seam


def test_batches_are_a_function_of_seed_and_epoch():
    source = batches()
    assert isinstance(source, protocols.BatchSource)
    assert source.plan(1, 0) == batches().plan(1, 0)
    assert source.plan(1, 0) != source.plan(1, 1) != source.plan(2, 1)
    assert source.in_order() == batches().in_order()
    assert source.fingerprint() == batches().fingerprint()
    for other in ({"share": 0.2}, {"rows": 4}, {"max_len": 19}, {"starts": {5}}, {"documents": documents(seed=4)}):
        assert batches(**other).fingerprint() != source.fingerprint(), other


def test_batches_hold_what_they_say():
    source, docs = batches(), documents()
    follows = Counter()
    for epoch in range(40):
        plan = source.plan(1, epoch)
        assert sorted(map(len, plan)) == [1, 3, 3]
        for batch in plan:
            tokens, segments, hidden, truth = source.collate(batch)
            assert tokens.shape == segments.shape == hidden.shape and truth.shape == (len(batch),)
            assert source.tokens(batch) == (hidden >= 0).sum() > 0
            assert (hidden[(tokens < 4)] == -1).all() and ((hidden == -1) | (hidden > 4)).all()         # specials, padding
            assert not ((tokens == MASK) & (hidden == -1)).any()
            for row, parts, true, label in zip(tokens.tolist(), segments.tolist(), hidden.tolist(), truth.tolist()):
                text = [t if t >= 0 else r for r, t in zip(row, true)]
                end = len(text) - text[::-1].index(EOS)
                text, parts, seam = text[:end], parts[:end], text.index(EOS)
                assert text[0] == BOS and parts == [0] * (seam + 1) + [1] * (end - seam - 1) and end <= 20
                whole = [sum(d, []) for d in docs]
                joined = text[1:seam] + text[seam + 1:-1]
                if label == 0:
                    assert any("," + str(joined)[1:-1].replace(" ", "") + "," in "," + str(d)[1:-1].replace(" ", "") + "," for d in whole)
                follows[label] += 1
    assert abs(follows[0] / follows.total() - 0.5) < 0.12


def test_loss_is_the_sum_of_both_questions():
    source, model = batches(), BertForPreTraining(small()).double().eval()
    tokens, segments, targets, is_random = source.collate(source.in_order()[1])
    of_words, of_pairs = model(tokens, segments)
    asked = [of_words[b, s].log_softmax(-1)[targets[b, s]] for b in range(len(tokens)) for s in range(tokens.shape[1]) if targets[b, s] >= 0]
    pairs = [of_pairs[b].log_softmax(-1)[is_random[b]] for b in range(len(tokens))]
    loss = model.loss(tokens, segments, targets, is_random)
    assert_close(loss, -sum(asked) / len(asked) - sum(pairs) / len(pairs), rtol=1e-5, atol=1e-5, check_dtype=False)
    smooth = model.loss(tokens, segments, targets, is_random, smoothing=(0.1, 0.0))
    assert_close(smooth[1], loss)
    assert smooth[0] != smooth[1]
    model.loss(tokens, segments, targets, is_random).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters() if p.dim() > 1)


def test_both_sides_are_read_and_padding_changes_nothing():
    model = BertForPreTraining(small()).eval()
    tokens = torch.randint(5, WORDS, (2, 9), generator=torch.Generator().manual_seed(1))
    segments = torch.tensor([[0] * 4 + [1] * 5] * 2)
    wider = F.pad(tokens, (0, 6)), F.pad(segments, (0, 6))
    assert_close(model(*wider)[0][:, :9], model(tokens, segments)[0])
    assert_close(model(*wider)[1], model(tokens, segments)[1])
    other = tokens.clone()
    other[:, 8] = 26 - other[:, 8].clamp(4, 22)
    assert (model.bert(other, segments)[:, 0] - model.bert(tokens, segments)[:, 0]).abs().max() > 1e-4     # from the right
    assert (model.bert(tokens, segments) - model.bert(tokens)).abs().max() > 1e-3                          # segments count


def test_it_is_pytorchs_encoder():
    model = small().double()
    layer = nn.TransformerEncoderLayer(12, 3, 20, 0.0, F.gelu, layer_norm_eps=1e-12, batch_first=True)
    oracle = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    names = {"self_attn.in_proj_": "self_attention.heads.in_proj.", "self_attn.out_proj": "self_attention.heads.out_proj",
             "linear1": "feed_forward.expand", "linear2": "feed_forward.contract", "norm1": "norm_1", "norm2": "norm_2"}
    weights = {}
    for name in oracle.state_dict():
        mine = name
        for theirs, ours in names.items():
            mine = mine.replace(theirs, ours)
        weights[name] = model.stack.state_dict()[mine]
    oracle.load_state_dict(weights)
    tokens, segments = torch.tensor([[1, 9, 4, 2, 8, 2], [1, 7, 2, 2, 0, 0]]), torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 0, 0]])
    x = model.embedding.table.weight[tokens] + model.embedding.segments.weight[segments] + model.embedding.positions.table[:6]
    x = model.embedding.norm(x)
    real = tokens != PAD
    assert_close(model(tokens, segments)[real], oracle(x, src_key_padding_mask=~real)[real])


@pytest.mark.parametrize("sizes, alone, both", [((768, 12, 12), 109_482_240, 110_106_428), ((1024, 16, 24), 335_141_888, 336_226_108)])
def test_published_counts(sizes, alone, both):
    d_model, n_heads, n_layers = sizes
    with torch.device("meta"):
        model = BertForPreTraining(Bert(30522, d_model, n_heads, n_layers, max_len=512))
    assert [sum(p.numel() for p in m.parameters()) for m in (model.bert, model)] == [alone, both]


def test_training_resumes_with_the_same_puzzles(tmp_path):
    constant = lambda step, progress: 1e-3

    def go(steps, folder=None, resume=False):
        model = BertForPreTraining(small())
        fit(model, batches(), constant, steps=steps, settings=SETTINGS, folder=folder, resume=resume, progress=False)
        return model
    whole = go(8)
    go(5, tmp_path / "run")
    again = go(8, tmp_path / "run", resume=True)
    assert all(torch.equal(p, q) for p, q in zip(whole.parameters(), again.parameters()))
    assert evaluate_loss(whole, batches()) < evaluate_loss(BertForPreTraining(small()), batches()) + 0.5


def test_classifier_learns_and_starts_from_the_encoder():
    bert = small()
    model = TextClassifier(bert, classes=3, dropout=0.0)
    tokens, labels = torch.randint(5, WORDS, (6, 7), generator=torch.Generator().manual_seed(2)), torch.tensor([0, 1, 2, 0, 1, 2])
    assert model(tokens).shape == (6, 3) and model.bert is bert
    assert_close(model.loss(tokens, None, labels), F.cross_entropy(model(tokens), labels))
    assert_close(model(tokens), F.linear(bert.pooler(bert(tokens)), model.output.weight, model.output.bias))
    before, optimizer = model.loss(tokens, None, labels).item(), torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        model.loss(tokens, None, labels).backward()
        optimizer.step()
    assert model.loss(tokens, None, labels).item() < 0.2 < before


@pytest.mark.parametrize("make, message", [
    (lambda: mask_words([7], random.Random(1), WORDS, MASK, share=0), "mask_words: share must be more than 0 and at most 1, not 0"),
    (lambda: mask_words([7], random.Random(1), WORDS, MASK, share=1.5), "mask_words: share must be more than 0 and at most 1, not 1.5"),
    (lambda: mask_words([7, 23], random.Random(1), WORDS, MASK), "mask_words: id 23 lies outside the vocabulary of 23 words"),
    (lambda: mask_words([7, -1], random.Random(1), WORDS, MASK), "mask_words: id -1 lies outside the vocabulary of 23 words"),
    (lambda: mask_words([7], random.Random(1), WORDS, 99), "mask_words: id 99 lies outside the vocabulary of 23 words"),
    (lambda: mask_words([BOS, EOS], random.Random(1), WORDS, MASK), "mask_words: the text has no word to hide"),
    (lambda: mask_words([], random.Random(1), WORDS, MASK), "mask_words: the text has no word to hide"),
    (lambda: mask_words([4], random.Random(1), 5, MASK, specials=range(1, 5)), "mask_words: the text has no word to hide"),
    (lambda: join_pair([7], [8], 4), "join_pair: max_len must be at least 5, for two words and three special tokens, not 4"),
    (lambda: join_pair([], [8], 9), "join_pair: a segment has no words"),
    (lambda: batches(documents=documents(1)), "PretrainingBatches: pairs need at least two documents, not 1"),
    (lambda: batches(documents=[[[7], [8]], [[9]]]), "PretrainingBatches: document 1 needs at least two sentences, none of them empty"),
    (lambda: batches(documents=[[[7], []], [[9], [7]]]), "PretrainingBatches: document 0 needs at least two sentences, none of them empty"),
    (lambda: batches(documents=[[[7], [8]], [[9], [77]]]), "PretrainingBatches: id 77 in document 1 is no ordinary word of the vocabulary"),
    (lambda: batches(documents=[[[7], [8]], [[9], [MASK]]]), "PretrainingBatches: id 4 in document 1 is no ordinary word of the vocabulary"),
    (lambda: batches(rows=0), "PretrainingBatches: rows must be at least 1, not 0"),
    (lambda: batches(share=2), "mask_words: share must be more than 0 and at most 1, not 2"),
    (lambda: batches(max_len=3), "join_pair: max_len must be at least 5, for two words and three special tokens, not 3"),
    (lambda: batches(mask_id=23), "mask_words: id 23 lies outside the vocabulary of 23 words"),
    (lambda: Bert(0), "Bert: vocab_size must be a positive whole number, not 0"),
    (lambda: Bert(9, n_layers=True), "Bert: n_layers must be a positive whole number, not True"),
    (lambda: BertForPreTraining(small(pooler=False)), "BertForPreTraining: the second task needs an encoder with a pooler"),
    (lambda: TextClassifier(small(pooler=False)), "TextClassifier: the classes are told from the pooler's vector, and this encoder has no pooler"),
    (lambda: TextClassifier(small(), classes=1), "TextClassifier: classes must be a whole number from 2, not 1"),
    (lambda: BertForPreTraining(small()).loss(torch.full((2, 5), 7), torch.zeros(2, 5, dtype=torch.long), torch.full((2, 5), -1), torch.tensor([0, 1])),
     "BertForPreTraining: no word is hidden in this batch"),
    (lambda: small()(torch.tensor([[5, 77, 7]])), "Bert: ids must be from 0 to 22 and segments from 0 to 1, and here they go from 5 to 77 and from 0 to 0"),
    (lambda: small()(torch.tensor([[5, 6, 7]]), torch.tensor([[0, 1, 2]])), "Bert: ids must be from 0 to 22 and segments from 0 to 1, and here they go from 5 to 7 and from 0 to 2"),
])
def test_bad_input_gets_one_line(make, message):
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        make()


def test_head_shares_the_table():
    bert = small()
    head = MaskedHead(bert.embedding.table)
    assert head.output.weight is bert.embedding.table.weight
    hidden, target = torch.randn(4, 12), torch.tensor([5, 9, 9, 22])
    assert_close(head.loss(hidden, target), F.cross_entropy(head(hidden), target))

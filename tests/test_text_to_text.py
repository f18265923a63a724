"""Text to text: T5's buckets against Hugging Face's, spans cut out and put back, tasks whose answers are in the story."""
import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.t5.modeling_t5 import T5Attention

from transformer_course.data.corpora import load
from transformer_course.data.reviews import PLACES, THINGS
from transformer_course.data.story_tasks import NAMES, facts_of, story_split, story_tasks
from transformer_course.data.text import PAD, Tokenizer
from transformer_course.protocols import BatchSource
from transformer_course.search.beam import greedy_search
from transformer_course.training.schedules import linear_decay
from transformer_course.data.spans import (SpanBatches, corrupt_spans, restore_spans, sentinel_ids,
                                           sentinel_tokens)
from transformer_course.models.t5 import T5, Buckets, GatedFeedForward
from transformer_course.training.loop import evaluate_loss
from transformer_course.training.settings import Settings
from transformer_course.training.trainer import fit

MARKS = [999, 998, 997, 996, 995, 994, 993, 992, 991, 990]


@pytest.mark.parametrize("bidirectional, begin, last", [(True, 91, 15), (False, 113, 31)])
def test_the_last_bucket_begins_before_the_largest_distance(bidirectional, begin, last):
    """The last of n - e logarithmic steps from e to 128: at the first whole number from e · (128 / e)^(1 - 1 / (n - e))."""
    e = 8 if bidirectional else 16                                       # of 16, or of 32, buckets to the left
    assert begin == math.ceil(e * (128 / e)**(1 - 1 / e)) < 128
    before = Buckets(3, bidirectional).bucket(-torch.arange(200)).tolist()
    assert before.index(last) == begin and before[begin:] == (200 - begin) * [last]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("n, max_distance", [(32, 128), (32, 64), (16, 300), (12, 50), (8, 20), (4, 7)])
def test_buckets_are_hugging_faces(n, max_distance, bidirectional):
    apart = torch.arange(-300, 301)
    theirs = T5Attention._relative_position_bucket(apart, bidirectional, n, max_distance)
    assert Buckets(3, bidirectional, n, max_distance).bucket(apart).equal(theirs)


def test_the_bias_is_the_tables_number_for_each_pair_of_places():
    places, query = Buckets(3, True, 8, 20), torch.zeros(2, 3, 4, 5)
    bias = places.score_bias(query, S=9, start=2)
    assert bias.shape == (3, 4, 9)
    for t in range(4):
        for s in range(9):
            assert bias[:, t, s].equal(places.table[places.bucket(torch.tensor(s - (t + 2)))])


def test_gated_feed_forward_is_two_products():
    torch.manual_seed(1)
    think, x = GatedFeedForward(5, 7), torch.randn(2, 3, 5)
    inner = torch.nn.functional.gelu(x @ think.gate.weight.T, approximate="tanh") * (x @ think.expand.weight.T)
    torch.testing.assert_close(think(x), inner @ think.contract.weight.T)


def test_t5_small_has_the_published_number_of_parameters_and_none_is_a_bias():
    with torch.device("meta"):
        model = T5(32128, 512, 8, 6, 2048)
    assert sum(p.numel() for p in model.parameters()) == 60_506_624
    assert not [name for name, p in model.named_parameters() if "bias" in name]


def test_a_t5_begins_with_padding_and_its_steps_are_its_training_pass():
    torch.manual_seed(1)
    model = T5(23, 12, 3, (2, 1), 20, dropout=0.0).eval()
    src = torch.randint(4, 23, (2, 7))
    assert model.first(src).tolist() == [PAD, PAD]
    written = greedy_search(model, src, max_len=5).tokens
    whole = model(src, torch.cat([torch.full((2, 1), PAD), written[:, :-1]], 1)).argmax(-1)
    for mine, all_at_once in zip(written.tolist(), whole.tolist()):
        length = mine.index(2) + 1 if 2 in mine else len(mine)
        assert mine[:length] == all_at_once[:length] or PAD in all_at_once[:length] or 1 in all_at_once[:length]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 900), min_size=1, max_size=40), st.integers(), st.floats(0.01, 0.6), st.floats(1.0, 6.0))
def test_corrupted_texts_can_be_restored(ids, seed, rate, mean_length):
    marks = list(range(2000, 1900, -1))
    source, target = corrupt_spans(ids, marks, seed, rate, mean_length)
    assert restore_spans(source, target, marks) == ids
    assert corrupt_spans(ids, marks, seed, rate, mean_length) == (source, target)
    gaps = sum(token in marks for token in source)
    assert [t for t in source if t in marks] == marks[:gaps] and [t for t in target if t in marks] == marks[:gaps + 1]
    assert target[-1] == marks[gaps] and gaps >= 1
    assert not any(a in marks and b in marks for a, b in zip(source, source[1:]))          # gaps never touch
    assert not any(a in marks and b in marks for a, b in zip(target, target[1:]))          # and none is empty
    assert len(source) + len(target) == len(ids) + 2 * gaps + 1


def test_rate_and_length_are_what_was_asked():
    ids = list(range(100))
    for rate, mean in ((0.15, 3.0), (0.3, 2.0), (0.5, 5.0)):
        gaps, firsts = [], 0
        for seed in range(300):
            source, target = corrupt_spans(ids, list(range(999, 900, -1)), seed, rate, mean)
            gaps.append(sum(token > 900 for token in source))
            firsts += source[0] > 900
            assert len(ids) - (len(source) - gaps[-1]) == round(100 * rate)
        assert set(gaps) == {round(round(100 * rate) / mean)}
        assert 0 < firsts < 150                                           # a text may begin with a gap, and seldom does


def test_every_place_is_cut_about_equally_often():
    hits = torch.zeros(20)
    for seed in range(3000):
        source, _ = corrupt_spans(range(20), MARKS, seed, 0.2, 2.0)
        hits += torch.tensor([i not in source for i in range(20)]).float()
    share = hits / 3000
    assert abs(share.mean() - 0.2) < 1e-6 and share.min() > 0.1 and share.max() < 0.27


def test_seeds_differ_and_may_be_words():
    drawn = {str(corrupt_spans(range(30), MARKS, f"1 {epoch} 7")) for epoch in range(20)}
    assert len(drawn) > 15


def test_sentinels_go_from_the_top_downwards():
    words = Tokenizer.train(["a b c"], kind="words", size=50, specials=sentinel_tokens(3))
    assert words.pieces_of(sentinel_ids(words)) == ["<extra_id_0>", "<extra_id_1>", "<extra_id_2>"]
    assert sentinel_ids(words) == [6, 5, 4]


@pytest.mark.parametrize("call, words", [
    (lambda: corrupt_spans([], MARKS, 1), "the text is empty"),
    (lambda: corrupt_spans([1, 998], MARKS, 1), "contains the sentinel 998"),
    (lambda: corrupt_spans([1, 2], MARKS, 1, rate=1.0), "rate must lie between 0 and 1"),
    (lambda: corrupt_spans([1, 2], MARKS, 1, mean_length=0.5), "mean_length be at least 1"),
    (lambda: corrupt_spans(range(30), MARKS[:2], 1, rate=0.5, mean_length=3.0), "5 gaps need 6 sentinels: only 2 were given"),
    (lambda: restore_spans([1, 999], [7, 999], MARKS), "must begin with a sentinel, not with 7"),
    (lambda: restore_spans([1, 999], [999, 7, 999], MARKS), "sentinel 999 is twice"),
    (lambda: restore_spans([1, 999], [999, 7], MARKS), "the source needs [999, 998]"),
    (lambda: restore_spans([1, 999, 2, 998], [999, 7, 997], MARKS), "the target has the sentinels [999, 997]"),
    (lambda: sentinel_tokens(0), "count must be at least 1, not 0"),
    (lambda: sentinel_ids(Tokenizer.train(["a b"], kind="words", size=20)), "the tokenizer has no sentinels"),
    (lambda: facts_of("on monday karel went to the harbour ."), "has no thing"),
    (lambda: SpanBatches([], MARKS), "there are no texts"),
    (lambda: SpanBatches([[4, 5], []], MARKS), "the text is empty"),
    (lambda: SpanBatches([[4, 5, 6], [4, 999]], MARKS), "contains the sentinel 999"),
    (lambda: SpanBatches([list(range(30))], MARKS, max_tokens=20), "max_tokens is 20"),
    (lambda: SpanBatches([list(range(60))], MARKS[:3], rate=0.5), "10 gaps need 11 sentinels: only 3 were given"),
    (lambda: Buckets(3, True, n_buckets=2), "n_buckets"),
    (lambda: Buckets(3, True, n_buckets=7), "n_buckets"),
    (lambda: Buckets(3, True, 32, max_distance=8), "max_distance"),
])
def test_bad_input_is_named_in_one_line(call, words):
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        call()
    assert "\n" not in str(error.value)


def test_answers_are_in_the_story_and_the_last_sentence_is_not():
    corpus = load("micro-text")
    stories = [text.text for split in ("train", "valid", "test") for text in corpus[split] if " came home from the " in text.text]
    for story in stories:
        tasks = story_tasks(story)
        assert [task.kind for task in tasks] == ["question"] * 3 + ["shorten"]
        assert all(task.source.startswith(task.kind + " : ") and "came home" not in task.source for task in tasks)
        assert all(task.target in task.source.split() for task in tasks[:3])
        assert all(answer.target in tasks[3].target.split() for answer in tasks[:3])
        for options in (answer.target for answer in tasks[:3]):
            assert tasks[3].source.split().count(options) == 1          # one place in the story holds the answer
    parts = {split: {tuple(facts_of(s).values()) for s in stories if story_split(s) == split} for split in ("train", "valid", "test")}
    assert len(parts["test"]) > 50 and len(parts["valid"]) > 50 and len(parts["train"]) > 250
    assert not parts["train"] & parts["test"] and not parts["train"] & parts["valid"] and not parts["valid"] & parts["test"]
    for i in range(3):
        assert {c[i] for c in parts["test"]} == {c[i] for c in parts["valid"]} == {c[i] for c in parts["train"]}


def test_the_split_is_the_sum_of_three_places():
    told = "on monday {} went to the {} . he bought a {} for his mother ."
    for i, name in enumerate(NAMES):
        for j, place in enumerate(PLACES):
            for k, thing in enumerate(THINGS):
                wanted = "test" if (i + j + k) % 6 == 0 else "valid" if (i + j + k) % 6 == 1 else "train"
                assert story_split(told.format(name, place, thing)) == wanted


def test_batches_of_spans_hold_every_text_once_and_cut_other_gaps_in_each_epoch():
    texts = [list(range(10 * n, 10 * n + 5 + n % 7)) for n in range(23)]
    batches = SpanBatches(texts, MARKS[:7], max_tokens=40, rate=0.3, mean_length=2.0, pad_id=991, eos_id=992)
    assert isinstance(batches, BatchSource)
    for plan in (batches.plan(1, 0), batches.plan(1, 1), batches.plan(2, 0), batches.in_order()):
        restored = []
        for batch in plan:
            for source, target in batch:
                assert (source[-1], target[0], target[-1]) == (992, 991, 992)
                restored.append(restore_spans(source[:-1], target[1:-1], MARKS[:7]))
            src, tgt = batches.collate(batch)
            assert src.numel() <= 40 and len(src) == len(tgt) == len(batch)
            assert batches.tokens(batch) == (tgt[:, 1:] != 991).sum()
        assert sorted(restored) == texts
    sources = lambda plan: {tuple(source) for batch in plan for source, target in batch}
    assert batches.plan(1, 0) == batches.plan(1, 0) and batches.in_order() == batches.in_order()
    assert sources(batches.plan(1, 0)) != sources(batches.plan(1, 1)) and sources(batches.plan(1, 0)) != sources(batches.plan(2, 0))
    other = SpanBatches(texts, MARKS[:7], max_tokens=40, rate=0.2, mean_length=2.0, pad_id=991, eos_id=992)
    assert batches.fingerprint() == SpanBatches(texts, MARKS[:7], 40, 0.3, 2.0, 991, 992).fingerprint() != other.fingerprint()


def test_a_t5_learns_to_fill_gaps():
    texts = [[4 + (n + k) % 9 for k in range(8)] for n in range(40)]              # each number follows from the one before
    batches = SpanBatches(texts, [18, 17, 16, 15], 256, rate=0.3, mean_length=2.0)
    torch.manual_seed(1)
    model = T5(19, 24, 2, 1, 48, dropout=0.0)
    before = evaluate_loss(model, batches)
    fit(model, batches, linear_decay(1e-2, 20), steps=150, settings=Settings(device="cpu", precision="highest", smoothing=0.0), progress=False)
    assert evaluate_loss(model, batches) < 0.5 * before


@pytest.mark.parametrize("sizes, words", [
    ({"n_layers": 0}, "T5: encoder_layers must be a positive whole number, not 0"),
    ({"n_layers": (3, 0)}, "T5: decoder_layers must be a positive whole number, not 0"),
    ({"n_layers": (2, 1, 1)}, "T5: n_layers must be one number, or two for encoder and decoder, not (2, 1, 1)"),
    ({"n_layers": 1.5}, "T5: encoder_layers must be a positive whole number, not 1.5"), ({"d_ff": 0}, "T5: d_ff must be"),
    ({"d_head": 0}, "T5: d_head must be"), ({"n_heads": True}, "T5: n_heads must be"), ({"d_model": 6.0}, "T5: d_model must be"),
    ({"vocab_size": 0}, "T5: vocab_size must be")])
def test_a_t5_of_no_size_is_refused(sizes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        T5(**{"vocab_size": 23, "d_model": 12, "n_heads": 3, "n_layers": (2, 1), "d_ff": 20} | sizes)


def test_no_rule_by_position_answers_the_questions_about_a_passage():
    from collections import defaultdict

    from transformer_course.data.story_tasks import PASSAGE_QUESTIONS, passage_tasks, passages
    rows = {split: [t for p in of if len(p.facts) == 2 for t in passage_tasks(p)] for split, of in passages(seed=3, train=600, test=300).items()}
    asked = [question.split()[0] for question, fact in PASSAGE_QUESTIONS]
    right = defaultdict(lambda: defaultdict(list))          # right[question][place] = of each task, whether the words there are the answer
    for task in (t for t in rows["train"] + rows["test"] if t.kind == "question"):
        question, words = task.source.split()[2], task.source.split(" ? ")[1].split()
        for start in range(-len(words), len(words)):
            for length in (1, 2):
                found = " ".join((words + words)[start % len(words):][:length])
                right[question][start, length].append(found == task.target)
    assert set(right) == set(asked)
    for question in asked:
        n = len(right[question][0, 1])
        assert n > 700 and max(sum(hits) for hits in right[question].values()) < 0.4 * n


def test_passages_say_who_bought_what_where_and_keep_combinations_apart():
    from transformer_course.data.story_tasks import passage_tasks, passages, story_split
    made = passages(seed=2, train=300, valid=50, test=50)
    for split, of in made.items():
        for passage in of:
            for facts in passage.facts:
                assert story_split("{name} {place} {thing}".format(**facts)) == split
                assert all(f" {fact} " in f" {passage.text} " for fact in facts.values())
            short = passage_tasks(passage)[-1].target
            assert [half.split()[0] for half in short.split(" and ")] == sorted(f["name"] for f in passage.facts)
    assert {len(p.facts) for p in made["test"]} == {1, 2} and len({len(p.text.split()) for p in made["test"]}) > 8
    with pytest.raises(ValueError, match="valid must be a positive whole number, not 0"):
        passages(valid=0)

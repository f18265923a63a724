"""Question answering: the best span against loops, losses and scores against PyTorch and Hugging Face, padding, marks, bad input."""
import math
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course.data.masking import join_pair
from transformer_course.data.story_tasks import Passage, passage_tasks, passages, span_tasks
from transformer_course.data.text import BOS, EOS, PAD, pad
from transformer_course.models.bert import Bert
from transformer_course.models.question_answering import SpanFinder, best_spans, mark_shared

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
import question_answering as experiment    # noqa: E402

WORDS, D = 23, 12
QUESTIONS, PASSAGES = ([5, 6, 7], [8, 9], [6, 10, 11, 12]), ([9, 10, 6, 11, 5], [8, 13, 14, 15, 16, 17, 9], [7, 12])


def finder(seed=1, **options):
    torch.manual_seed(seed)
    bert = Bert(WORDS, D, n_heads=3, n_layers=2, d_ff=20, max_len=40, segments=3, pooler=False)
    return SpanFinder(bert, D, **options).eval()


def texts(width=None):
    """Three pairs of different lengths as tokens and segments (3, S), padded to a width if one is given."""
    pairs = [join_pair(question, passage, 40) for question, passage in zip(QUESTIONS, PASSAGES)]
    tokens, segments = pad([tokens for tokens, _ in pairs]), pad([segments for _, segments in pairs], 0)
    more = 0 if width is None else width - tokens.shape[1]
    return F.pad(tokens, (0, more), value=PAD), F.pad(segments, (0, more))


def by_loops(starts, ends, longest, no_answer):
    """The best span of one row and the log of its probability."""
    start_p, end_p = starts.softmax(0).tolist(), ends.softmax(0).tolist()
    spans = {(i, j): start_p[i] * end_p[j] for i in range(len(start_p)) for j in range(i, len(end_p))
             if (longest is None or j - i + 1 <= longest) and not (no_answer and i == 0 and j > 0)}
    best = max(spans, key=spans.get)
    return best, math.log(spans[best])


@pytest.mark.parametrize("longest,no_answer", list(product((None, 1, 2, 6, 50), (False, True))))
def test_the_best_span_is_that_of_loops(longest, no_answer):
    draw = torch.Generator().manual_seed(1)
    starts, ends = 2 * torch.randn(2, 40, 7, generator=draw, dtype=torch.float64)
    ends[:, 1:3] = starts[:, 4] = float("-inf")
    starts[::3, 0] += 4
    ends[::3, 0] += 4                                                               # in some rows [CLS] is the best
    spans, log_p = best_spans(starts, ends, longest, no_answer)
    expected = [by_loops(*row, longest, no_answer) for row in zip(starts, ends)]
    assert spans.tolist() == [list(span) for span, _ in expected]
    assert_close(log_p, torch.tensor([p for _, p in expected], dtype=torch.float64))
    assert len({tuple(span) for span in spans.tolist()}) >= (4 if longest == 1 else 6)


def test_a_start_after_the_end_is_not_taken():
    starts, ends = torch.tensor([[0.0, 1, 2, 9, 1]]), torch.tensor([[0.0, 8, 1, 2, 3]])
    assert (starts.argmax(), ends.argmax()) == (3, 1)
    assert best_spans(starts, ends)[0].tolist() == [[3, 4]]


@pytest.mark.parametrize("no_answer", [False, True])
def test_only_the_passage_has_scores_and_padding_changes_none(no_answer):
    model = finder(no_answer=no_answer)
    (tokens, segments), wider = texts(), texts(width=17)
    starts, ends = model(tokens, segments)
    for row, (question, passage) in enumerate(zip(QUESTIONS, PASSAGES)):
        first = len(question) + 2
        inside = {*range(first, first + len(passage))} | ({0} if no_answer else set())
        assert {i for i in range(tokens.shape[1]) if starts[row, i].isfinite()} == inside
        assert {i for i in range(tokens.shape[1]) if ends[row, i].isfinite()} == inside
    for narrow, wide in zip((starts, ends), model(*wider)):
        assert_close(wide[:, :tokens.shape[1]], narrow)
        assert wide[:, tokens.shape[1]:].isneginf().all()
    for narrow, wide in zip(model.spans(tokens, segments), model.spans(*wider)):
        assert_close(wide, narrow)
    kinds = torch.full_like(wider[1], 1).where(wider[0] == PAD, wider[1])            # padding that calls itself a passage
    assert model(wider[0], kinds)[0][:, tokens.shape[1]:].isneginf().all()


def test_padding_never_gets_a_span_though_its_scores_are_high():
    class Favours(torch.nn.Module):
        "Vectors that are high at padding, at [SEP] and in the question."
        def forward(self, tokens, segments):
            return torch.where((segments == 0) | (tokens < 5), 9.0, -9.0)[:, :, None].expand(-1, -1, D)

    model = SpanFinder(Favours(), D)
    with torch.no_grad():
        model.output.weight.fill_(1.0)
    tokens, segments = texts(width=19)
    for (first, last), question, passage in zip(model.spans(tokens, segments)[0].tolist(), QUESTIONS, PASSAGES):
        assert len(question) + 2 <= first <= last < len(question) + 2 + len(passage)


@pytest.mark.parametrize("no_answer", [False, True])
def test_the_loss_is_two_cross_entropies_over_the_passage(no_answer):
    model, (tokens, segments) = finder(2, no_answer=no_answer), texts(width=15)
    starts, ends = torch.tensor([6, 5, 6]), torch.tensor([8, 10, 7])
    if no_answer:
        starts[1] = ends[1] = 0
    raw, expected = model.output(model.encoder(tokens, segments)), 0.0
    for row, (question, passage) in enumerate(zip(QUESTIONS, PASSAGES)):
        places = [0] * no_answer + list(range(len(question) + 2, len(question) + 2 + len(passage)))
        for column, true in enumerate((starts[row], ends[row])):
            scores = raw[row, places, column]
            expected += F.cross_entropy(scores, torch.tensor(places.index(true.item()))) / 3
    loss = model.loss(tokens, segments, starts, ends)
    assert_close(loss, expected)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_scores_are_hugging_faces():
    transformers = pytest.importorskip("transformers")
    from parity import oracle
    config = transformers.BertConfig(vocab_size=37, hidden_size=20, num_hidden_layers=2, num_attention_heads=5, intermediate_size=28,
                                     max_position_embeddings=50, attn_implementation="eager")
    theirs = oracle(transformers.BertForQuestionAnswering(config))
    mine = bert_of(theirs, config)
    tokens, segments = texts(width=14)
    with torch.no_grad():
        found = theirs(tokens, attention_mask=(tokens != PAD), token_type_ids=segments)
        inside = mine.places(tokens, segments)
        raw = mine.output(mine.encoder(tokens, segments))
        for column, (ours, logits) in enumerate(zip(mine(tokens, segments), (found.start_logits, found.end_logits))):
            assert_close(raw[..., column][tokens != PAD], logits[tokens != PAD], rtol=1e-9, atol=1e-9)
            assert_close(ours[inside], logits[inside].float(), rtol=1e-5, atol=1e-5)
        # their loss is over all tokens and the mean of both halves; with scores outside of the passage removed, ours is twice theirs
        starts, ends = torch.tensor([6, 5, 6]), torch.tensor([8, 10, 7])
        halves = [F.cross_entropy(logits.masked_fill(~inside, float("-inf")), places)
                  for logits, places in ((found.start_logits, starts), (found.end_logits, ends))]
        assert_close(mine.loss(tokens, segments, starts, ends), sum(halves).float(), rtol=1e-5, atol=1e-5)


def bert_of(theirs, config):
    """Our SpanFinder with the weights of theirs, in float64."""
    import tempfile

    from transformer_course.published.pretrained import from_pretrained
    with tempfile.TemporaryDirectory() as folder:
        theirs.bert.save_pretrained(folder)
        bert = from_pretrained(folder, torch.float64)
    model = SpanFinder(bert, config.hidden_size).double().eval()
    model.output.load_state_dict(theirs.qa_outputs.state_dict())
    return model


def test_words_in_both_are_marked():
    tokens, segments = texts(width=15)
    marked = mark_shared(tokens, segments)
    for row, (question, passage) in enumerate(zip(QUESTIONS, PASSAGES)):
        kinds = [0] * (len(question) + 2) + [2 if word in question else 1 for word in passage] + [1]      # [SEP] is not marked
        assert marked[row].tolist() == kinds + [0] * (15 - len(kinds))
    assert marked.dtype == segments.dtype and (segments < 2).all()                                        # the old ones stay


@pytest.mark.parametrize("no_answer", [False, True])
def test_nothing_is_made_on_a_fixed_device(no_answer):
    with torch.device("meta"):
        model = finder(no_answer=no_answer)
        tokens, segments = (torch.zeros(2, 7, dtype=torch.long) for _ in range(2))
        places = torch.zeros(2, dtype=torch.long)
    segments = mark_shared(tokens, segments)
    assert model.loss(tokens, segments, places, places).device.type == "meta"
    assert model.spans(tokens, segments, longest=3)[0].shape == (2, 2)


@pytest.mark.parametrize("call,says", [
    (lambda: SpanFinder(torch.nn.Identity(), 0), "SpanFinder: d_model must be a positive whole number, not 0"),
    (lambda: best_spans(torch.zeros(2, 5), torch.zeros(2, 4)), r"both be \(B, S\), not \(2, 5\) and \(2, 4\)"),
    (lambda: best_spans(torch.zeros(5), torch.zeros(5)), r"both be \(B, S\), not \(5,\)"),
    (lambda: best_spans(torch.zeros(2, 5), torch.zeros(2, 5), longest=0), "longest must be a positive whole number, not 0"),
    (lambda: finder()(texts()[0], texts()[1][:, :-1]), r"segments must be of the shape of tokens, \(3, 12\), not \(3, 11\)"),
    (lambda: finder()(texts()[0].float(), texts()[1]), r"tokens must be \(B, T\) token ids"),
    (lambda: finder().loss(*texts(), torch.tensor([6, 5]), torch.tensor([8, 10, 7])), r"starts must be \(B,\) = \(3,\), not \(2,\)"),
    (lambda: finder().loss(*texts(), torch.tensor([6, 5, 6]), torch.tensor([8, 10, 12])), "ends must be from 0 to 11"),
    (lambda: finder().loss(*texts(), torch.tensor([6, 5, 6]), torch.tensor([8, 10, 8])), "ends of text 2 is 8, which is not in its passage"),
    (lambda: finder().loss(*texts(), torch.tensor([6, 3, 6]), torch.tensor([8, 10, 7])), "starts of text 1 is 3, which is not in its passage")])
def test_calls_that_cannot_work(call, says):
    with pytest.raises(ValueError, match=says) as error:
        call()
    assert "\n" not in str(error.value)


def test_spans_of_the_stories_are_the_answers():
    for split, stories in passages(seed=4, train=60, valid=20, test=30).items():
        for story in stories:
            for task, written in zip(span_tasks(story), passage_tasks(story)):
                assert task.answer == written.target and written.source.endswith(f"{task.question} {task.passage}")
                assert f" {story.text} ".count(f" {task.answer} ") == 1
    hand = Passage("at the harbour sita bought a red book .", ({"name": "sita", "place": "harbour", "thing": "red book"},))
    assert [(task.question, task.first, task.last) for task in span_tasks(hand)] == [
        ("what did sita buy ?", 6, 7), ("where was sita ?", 2, 2), ("who was at the harbour ?", 3, 3), ("which person bought the red book ?", 3, 3)]


@pytest.mark.parametrize("part,name", [(part, name) for part, names in experiment.MODELS.items() for name in names])
def test_rows_of_the_experiment_point_at_the_answers(part, name):
    asked, words = experiment.data(part)
    some = asked["test"][:9] + asked["test"][-9:]
    tokens, segments, starts, ends = experiment.rows(some, words, name)
    for one, row, first, last in zip(some, tokens.tolist(), starts.tolist(), ends.tolist()):
        assert words.decode(row[first:last + 1]) == (one.task.answer if one.answered else words.decode([BOS]))
    assert ((tokens == EOS).sum(1) == 2).all() and (2 in segments) == ("marked" in name)
    if "without" in name:
        assert {tuple(row[1:3]) for row in tokens.tolist()} == {(words.encode("?")[0], EOS)}


def test_the_experiment_counts_right_answers_and_asks_about_people_who_are_not_there():
    for one in experiment.data("absent")[0]["test"]:
        named = experiment.KEYS & set(one.task.question.split())
        assert named and (named <= set(one.task.passage.split())) == one.answered
    asked = [one for one in experiment.data("two")[0]["test"] if one.people == 2][:8]
    answers = [one.task.answer for one in asked[:5]] + [one.other for one in asked[5:]]
    found = experiment.scores(answers, asked)
    assert found["all"] == 0.625 and found["the other person's"] == 0.375 and found["people 2"] == 0.625
    sizes = {name: sum(p.numel() for p in experiment.build("two", name).parameters()) for name in experiment.MODELS["two"]}
    assert sizes["BERT"] == sizes["BERT, marked"] <= sizes["GRU, marked"] < 1.1 * sizes["BERT"]


def test_a_gru_that_reads_both_ways_does_not_read_padding():
    torch.manual_seed(1)
    encoder, (tokens, segments), wider = experiment.GRUEncoder(WORDS), texts(), texts(width=16)
    narrow, wide = encoder(tokens, segments), encoder(*wider)
    assert_close(wide[:, :tokens.shape[1]][tokens != PAD], narrow[tokens != PAD])

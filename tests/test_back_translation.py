"""Back-translated pairs against sentences translated one by one, tags, the share of a gap, and the pairs of the experiment."""
import sys
from pathlib import Path

import pytest
import torch

from transformer_course.data.corpora import Pair
from transformer_course.data.text import Tokenizer
from transformer_course.models.transformer import Transformer
from transformer_course.pipelines.back_translation import TAG, back_translated, gap_closed, tagged
from transformer_course.pipelines.decoding import translate
from transformer_course.pipelines.searching import SearchOptions

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
import back_translation as experiment      # noqa: E402

TEXTS = ["zher zodoa hai", "nadei", "largoa ghar men zo rahaa hai"]


def refused(call, says):
    with pytest.raises(ValueError, match=says) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_each_source_is_what_the_model_writes_for_one_sentence_alone(beam_size):
    tokenizer = Tokenizer.train(TEXTS, size=300)
    torch.manual_seed(3)
    model = Transformer(len(tokenizer), len(tokenizer), d_model=12, n_heads=3, n_layers=1, d_ff=20, dropout=0.4)
    model.train()
    pairs = back_translated(TEXTS, model, tokenizer, beam_size)
    options = SearchOptions(beam_size=beam_size)
    assert [pair.target for pair in pairs] == TEXTS
    assert [pair.source for pair in pairs] == [translate(model.eval(), tokenizer, [text], options)[0] for text in TEXTS]
    assert back_translated([], model, tokenizer) == []


def test_a_tag_stands_before_the_source_alone():
    pairs = [Pair("a lion sleeps", "zher zodoa hai", frozenset()), Pair("", "nadei")]
    assert [pair.source.split() for pair in tagged(pairs)] == [[TAG, "a", "lion", "sleeps"], [TAG]]
    assert [pair.target for pair in tagged(pairs)] == ["zher zodoa hai", "nadei"] and pairs[0].source == "a lion sleeps"
    assert tagged(pairs[:1], "made")[0].source == "made a lion sleeps"
    refused(lambda: tagged(tagged(pairs)), "already")
    for wrong in ("", "two words", " x"):
        refused(lambda: tagged(pairs, wrong), "one word")


@pytest.mark.parametrize("without, with_text, gold, share", [(40, 52, 64, 0.5), (40, 40, 64, 0), (40, 64, 64, 1), (40, 28, 64, -0.5)])
def test_the_share_of_the_gap(without, with_text, gold, share):
    assert gap_closed(without, with_text, gold) == share


def test_without_a_gap_there_is_no_share():
    refused(lambda: gap_closed(40, 50, 40), "must be above")
    refused(lambda: gap_closed(40, 50, float("nan")), "must be above")


def test_the_ways_differ_in_the_side_that_is_real(monkeypatch):
    monkeypatch.setattr(experiment, "written", lambda way, seed: [f"{way} {seed} {i}" for i in range(experiment.MORE)])
    hidden = experiment.hidden()
    assert experiment.added("real", 2) == experiment.added("reverse", 2) == []
    assert experiment.added("gold 2", 2) == hidden[:600]
    for n, (back, tag, copied, forward) in enumerate(zip(*(experiment.added(f"{way} 4", 2) for way in ("back", "tagged", "copy", "forward")))):
        assert (back.source, back.target) == (f"reverse 2 {n}", hidden[n].target)
        assert (tag.source, tag.target) == (f"{TAG} reverse 2 {n}", hidden[n].target)
        assert copied.source == copied.target == hidden[n].target
        assert (forward.source, forward.target) == (hidden[n].source, f"real 2 {n}")
    assert len(experiment.added("back 1", 2)) == 300 and n == 1199


def test_the_untranslated_sentences_are_neither_real_pairs_nor_of_the_test_set():
    parts = [experiment.real(), experiment.hidden(), *(experiment.few.data("sister")[split] for split in ("valid", "test"))]
    assert sum(map(len, parts)) == len({pair.source for part in parts for pair in part}) == 300 + 1200 + 100 + 300

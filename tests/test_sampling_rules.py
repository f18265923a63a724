"""What may be drawn, and what becomes less likely: Hugging Face's rules as oracle, definitions in loops, searches that use them."""
import math

import pytest
import torch
from torch.testing import assert_close

from transformer_course.models.transformer_lm import TransformerLM
from transformer_course.search.beam import beam_search, greedy_search, sample
from transformer_course.pipelines.searching import SearchOptions, search
from transformer_course.search.sampling import MinP, Nucleus, RepetitionPenalty


def small():
    torch.manual_seed(1)
    return TransformerLM(17, d_model=12, n_heads=3, n_layers=2, d_ff=20, max_len=40).eval()


def text(n, words=17):
    return torch.randint(3, words, (n,), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("share", [0.05, 0.3, 0.7, 0.95, 1.0])
def test_nucleus_and_min_p_are_hugging_faces(share):
    from transformers import MinPLogitsWarper, TopPLogitsWarper
    logp = (3 * torch.randn(7, 23, generator=torch.Generator().manual_seed(6))).log_softmax(-1)
    logp[:, [0, 1]] = -math.inf                                           # what may not be written stays so
    logp[2, 5:] = -math.inf
    before, logp = logp.clone(), logp.log_softmax(-1)
    for ours, theirs in ((Nucleus(share), TopPLogitsWarper(share)), (MinP(share), MinPLogitsWarper(share))):
        found = ours(logp, None, None)
        assert_close(found, theirs(None, logp.clone()))
        assert found.isfinite().any(-1).all() and torch.equal(found[found.isfinite()], logp[found.isfinite()])
    assert torch.equal(before.log_softmax(-1), logp)


@pytest.mark.parametrize("share", [0.2, 0.6, 0.9])
def test_nucleus_and_min_p_are_their_definitions(share):
    logp = (2 * torch.randn(5, 11, generator=torch.Generator().manual_seed(7))).log_softmax(-1)
    nucleus, least = Nucleus(share)(logp, None, None).isfinite(), MinP(share)(logp, None, None).isfinite()
    for b, p in enumerate(logp.exp().tolist()):
        for word in range(11):
            likelier = sum(other for other in p if other > p[word])
            assert nucleus[b, word] == (likelier < share) and least[b, word] == (p[word] >= share * max(p))


def test_only_kept_words_are_drawn():
    model, prompts = small(), text(4 * 5).view(4, 5)
    for rule in (Nucleus(0.3), MinP(0.7)):
        drawn = sample(model, prompts, 6, 2.0, generator=torch.Generator().manual_seed(3), adjust=rule).tokens[:, 0]
        allowed = model(prompts)[:, -1].log_softmax(-1)
        allowed[:, [0, 1]] = -math.inf                                    # padding and the start token are never written
        kept = rule(allowed.log_softmax(-1), None, None).isfinite()
        assert kept.sum(-1).max() < 17 and kept.gather(1, drawn[:, None]).all()


def test_repetition_penalty_is_hugging_faces_on_log_probabilities():
    from transformers import RepetitionPenaltyLogitsProcessor
    words = text(3 * 8, words=11).view(3, 8)
    logp = torch.randn(3, 11, generator=torch.Generator().manual_seed(4)).log_softmax(-1)
    logp[0, 0] = -math.inf                                                # what may not be written stays so
    before = logp.clone()
    for theta in (1.0, 1.2, 3.0):
        assert_close(RepetitionPenalty(theta)(logp, words, None), RepetitionPenaltyLogitsProcessor(theta)(words, logp.clone()))
    assert torch.equal(logp, before)
    assert torch.equal(RepetitionPenalty(2.0)(logp, words[:, :0], None), logp)          # nothing was written yet


@pytest.mark.parametrize("last", [1, 3, 8, 9])
def test_repetition_penalty_of_the_last_words_is_that_of_a_loop(last):
    words = text(2 * 8, words=11).view(2, 8)
    logp = torch.randn(2, 11, generator=torch.Generator().manual_seed(5)).log_softmax(-1)
    found = RepetitionPenalty(1.7, last)(logp, words, None)
    for b in range(2):
        for word in range(11):
            assert found[b, word] == logp[b, word] * (1.7 if word in words[b].tolist()[-last:] else 1.0)


def test_rules_against_repetition_work_in_every_search():
    model, prompts = small(), text(8).view(2, 4)
    free = greedy_search(model, prompts, 12, 12).tokens
    held = greedy_search(model, prompts, 12, 12, adjust=RepetitionPenalty(50.0)).tokens
    different = lambda rows: sum(len(set(row)) for row in rows.tolist())
    assert different(held) > different(free)
    assert torch.equal(beam_search(model, prompts, 1, 12, 12, adjust=RepetitionPenalty(50.0)).tokens[:, :11], held[:, :11])


@pytest.mark.parametrize("make, message", [
    (lambda: Nucleus(0), r"top_p=0 must lie in \(0, 1\]"),
    (lambda: Nucleus(math.nan), r"top_p=nan must lie in \(0, 1\]"),
    (lambda: MinP(1.5), r"min_p=1.5 must lie in \(0, 1\]"),
    (lambda: RepetitionPenalty(0.9), "theta=0.9 must be finite and at least 1"),
    (lambda: RepetitionPenalty(math.nan), "theta=nan must be finite"),
    (lambda: RepetitionPenalty(1.2, 0), "last=0 must be at least 1, or None"),
])
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_temperature_comes_before_nucleus_and_min_p_as_in_hugging_face(temperature):
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopPLogitsWarper
    model, prompt = small(), text(5).view(1, 5)
    logp = model(prompt)[:, -1].log_softmax(-1).detach()
    logp[:, [0, 1]] = -math.inf
    for ours, theirs, options in ((Nucleus(0.6), TopPLogitsWarper(0.6), {"top_p": 0.6}),
                                  (MinP(0.3), MinPLogitsWarper(0.3), {"min_p": 0.3})):
        expected = set(theirs(None, TemperatureLogitsWarper(temperature)(None, logp.clone()))[0].isfinite().nonzero()[:, 0].tolist())
        rule_first = set(theirs(None, logp.clone())[0].isfinite().nonzero()[:, 0].tolist())
        assert expected != rule_first                                     # else the order would not show
        drawn = sample(model, prompt.expand(900, -1), 1, temperature, generator=torch.Generator().manual_seed(8), keep=ours)
        assert set(drawn.tokens[:, 0].tolist()) == expected
        asked = SearchOptions(do_sample=True, temperature=temperature, num_return_sequences=900, **options)
        found = search(model, prompt, torch.tensor([1]), asked, torch.Generator().manual_seed(9))
        assert {row.ids[0] for row in found[0]} == expected


@pytest.mark.parametrize("share", [1e-30, 1e-46, 5e-324])
def test_the_smallest_share_keeps_the_likeliest_word_and_no_other(share):
    logp = (2 * torch.randn(5, 11, generator=torch.Generator().manual_seed(7))).log_softmax(-1)
    kept = Nucleus(share)(logp, None, None).isfinite()
    assert kept.gather(1, logp.argmax(-1, keepdim=True)).all() and kept.sum(-1).tolist() == [1] * 5


def test_min_p_of_a_share_below_single_precision_forbids_what_is_less_likely_still():
    logp = torch.tensor([[0.0, -105.0, -107.0]])
    assert MinP(1e-46)(logp, None, None).isfinite().tolist() == [[True, True, False]]         # log 1e-46 is -105.9


@pytest.mark.parametrize("rule", [Nucleus(0.9), Nucleus(1.0), MinP(0.1), RepetitionPenalty(1.2)])
def test_logits_that_are_not_numbers_are_told_whatever_the_rule(rule):
    model = small()
    torch.nn.init.constant_(model.stack.layers[1].feed_forward.contract.bias, math.nan)
    for search in (greedy_search, sample, lambda *given, **named: beam_search(*given[:2], 3, *given[2:], **named)):
        with pytest.raises(ValueError, match="NaN"):
            search(model, text(8).view(2, 4), 5, adjust=rule)
    with pytest.raises(ValueError, match="NaN"):
        sample(model, text(8).view(2, 4), 5, keep=lambda logp: rule(logp, text(8).view(2, 4), None))

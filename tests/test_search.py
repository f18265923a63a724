"""Searches on random tables of every shape, against exhaustive enumeration and a search without batches or tensors."""
import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from tables import RULES, Marked, Seen, Tables, exhaustive, norm_of, same, sources
from transformer_course.search import beam as search_module
from transformer_course.search.beam import beam_search, greedy_search, sample
from transformer_course.search.hypotheses import Hypotheses
from transformer_course.search.request import Request
from transformer_course.search.top_k import end_and_best_words
from transformer_course.search.word_rules import ForbiddenWords, ForcedBeginning, NoRepeatedNgrams


def naive_beam(model, source, K, max_len, min_len, norm, exact_stop=True):
    """Beam search over lists, to the last step or until K have finished; every candidate is scored from its first word."""
    live, finished = [()], []
    for t in range(1, max_len + 1):
        options = [*model.words(), *([model.eos_id] if t >= min_len else [])]
        candidates = sorted(((model.logp(source, (*words, w)), (*words, w)) for words in live for w in options), reverse=True)
        longer = [(s, words) for s, words in candidates if words[-1] != model.eos_id and s > -math.inf]
        all_count = t == max_len or (exact_stop and len(longer) <= K)
        may_end = candidates if all_count else candidates[:K]
        finished += [(s / norm(t), list(words)) for s, words in may_end if words[-1] == model.eos_id and s > -math.inf]
        live = [words for s, words in longer[:K]]
        if not exact_stop and len(finished) >= K:
            break
    finished = finished or [(s / norm(max_len), list(words)) for s, words in longer[:K]]
    return [(words, score) for score, words in sorted(finished, reverse=True)[:K]]


class Tiring(Tables):
    """Its next word depends on its last one only, and the longer the sentence, the likelier its end; any length goes."""

    def __init__(self, sources, V, seed):
        super().__init__(sources, V, 0, seed)
        self.table = 2 * torch.randn(sources, V, V, generator=torch.Generator().manual_seed(seed))

    def step(self, state, token):
        self.rows += len(token)
        logits = self.table[state.source, token]
        logits[:, self.eos_id] += state.length / 2 - 2
        return logits, Seen(state.source, token, state.length + 1)


problems = st.fixed_dictionaries(dict(
    n=st.integers(1, 6), V=st.integers(4, 7), max_len=st.integers(1, 5), seed=st.integers(0, 10**6),
    ids=st.permutations([0, 1, 2, 3]).map(lambda ids: tuple(ids[:3]))))
penalties = st.sampled_from([0.0, 0.6, 1.0, 2.0])
kinds = st.sampled_from(["length", "wu"])
both_rules = pytest.mark.parametrize("exact_stop", [True, False], ids=["exact", "at K"])


@both_rules
@given(problem=problems, K=st.integers(1, 20), min_len=st.integers(0, 5), penalty=penalties, kind=kinds)
def test_beam_is_the_naive_beam(exact_stop, problem, K, min_len, penalty, kind):
    n, max_len = problem.pop("n"), problem["max_len"]
    model, min_len = Tables(n, **problem), min(min_len, problem["max_len"])
    found = beam_search(model, sources(n), K, max_len, min_len, penalty, kind, exact_stop)
    assert isinstance(found, Hypotheses) and len(found) == n
    for source, nbest in enumerate(found.nbest):
        same(nbest, naive_beam(model, source, K, max_len, min_len, norm_of(kind, penalty), exact_stop))
        assert all(len(words) >= min_len for words, score in nbest)
        assert all(words[-1] == model.eos_id for words, score in nbest)
        best = nbest[0][0]
        assert found.log_probs[source].item() == pytest.approx(model.logp(source, best), abs=1e-4)
        assert found.scores[source].item() == pytest.approx(model.logp(source, best) / norm_of(kind, penalty)(len(best)), abs=1e-4)


@both_rules
@given(problem=problems, penalty=penalties, kind=kinds)
def test_a_beam_wide_enough_is_exhaustive(exact_stop, problem, penalty, kind):
    n, max_len = problem.pop("n"), problem["max_len"]
    model = Tables(n, **problem)
    found = beam_search(model, sources(n), 600, max_len, 0, penalty, kind, exact_stop)
    for source, nbest in enumerate(found.nbest):
        same(nbest, exhaustive(model, source, max_len, norm_of(kind, penalty)))


@pytest.mark.parametrize("kind", ["length", "wu"])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("V,max_len", [(5, 5), (4, 5), (6, 3), (5, 1)])
def test_a_beam_that_holds_every_prefix_misses_nothing(V, max_len, penalty, kind):
    """For all beams from the number of prefixes up, and all least lengths: the K best of all sentences."""
    n = 3
    model, prefixes = Tables(n, V, max_len, seed=V + max_len), (V - 3) ** (max_len - 1)
    ranked = [exhaustive(model, source, max_len, norm_of(kind, penalty)) for source in range(n)]
    for K, min_len in itertools.product(range(prefixes, prefixes + 10), range(max_len + 1)):
        found = beam_search(model, sources(n), K, max_len, min_len, penalty, kind, exact_stop=True)
        for pairs, nbest in zip(ranked, found.nbest):
            same(nbest, [pair for pair in pairs if len(pair[0]) >= min_len][:K])


@both_rules
def test_in_the_last_place_every_end_counts(exact_stop):
    """However unlikely: here a word is always e^9 times likelier than the end, and K words push it out of the first K."""
    model = Tables(4, 8, 4, seed=3)
    for table in model.tables:
        table[..., 2] -= 9.0
    for K in (1, 2, 3, 5):
        for source, nbest in enumerate(beam_search(model, sources(4), K, 4, exact_stop=exact_stop).nbest):
            same(nbest, naive_beam(model, source, K, 4, 0, norm_of("length", 1.0), exact_stop))
            assert len(nbest) == K and all(len(words) == 4 and words[-1] == 2 for words, score in nbest)


@both_rules
def test_a_hypothesis_is_cut_only_where_none_can_end(exact_stop):
    """Source 0 allows no end anywhere, source 1 only as third word, source 2 everywhere."""
    model = Tables(3, 6, 4, seed=4)
    for t, table in enumerate(model.tables):
        table[:2 if t != 2 else 1, :, 2] = -math.inf
    found = beam_search(model, sources(3), 3, 4, exact_stop=exact_stop)
    for source, nbest in enumerate(found.nbest):
        same(nbest, naive_beam(model, source, 3, 4, 0, norm_of("length", 1.0), exact_stop))
    assert [{words[-1] == 2 for words, score in nbest} for nbest in found.nbest] == [{False}, {True}, {True}]
    assert all(len(words) == 4 for words, score in found.nbest[0]) and all(len(words) == 3 for words, score in found.nbest[1])
    assert_close(found.log_probs, torch.tensor([model.logp(s, nbest[0][0]) for s, nbest in enumerate(found.nbest)]))


@given(problems, st.integers(0, 4), penalties)
def test_greedy_is_a_beam_of_one(problem, min_len, penalty):
    """Stopping at the first that has finished, whatever the penalty; stopping exactly, without one. But what greedy
    search cuts at max_len, a beam ends there."""
    n, max_len = problem.pop("n"), problem["max_len"]
    model, min_len = Tables(n, **problem), min(min_len, problem["max_len"])
    greedy = greedy_search(model, sources(n), max_len, min_len)
    for source, ((words, score),) in enumerate(greedy.nbest):
        assert words == naive_greedy(model, source, max_len, min_len)
        assert score == pytest.approx(model.logp(source, words), abs=1e-4)
    assert_close(greedy.scores, greedy.log_probs)
    for alpha, exact_stop in ((penalty, False), *([(0.0, True)] if problem["V"] > 4 else [])):     # more than one word
        beam = beam_search(model, sources(n), 1, max_len, min_len, alpha, exact_stop=exact_stop)
        for source, (((words, score),), ((theirs, their_score),)) in enumerate(zip(greedy.nbest, beam.nbest)):
            assert theirs in (words, [*words[:-1], model.eos_id])
            assert (words == theirs) == (words[-1] == model.eos_id)
            assert their_score == pytest.approx(model.logp(source, theirs) / len(theirs) ** alpha, abs=1e-4)


def naive_greedy(model, source, max_len, min_len):
    words = []
    while len(words) < max_len and model.eos_id not in words:
        options = [*model.words(), *([model.eos_id] if len(words) + 1 >= min_len else [])]
        words.append(max(options, key=lambda w: model.logp(source, (*words, w))))
    return words


@both_rules
@given(problem=problems, K=st.integers(1, 5), penalty=penalties)
def test_a_batch_is_its_sentences(exact_stop, problem, K, penalty):
    n, max_len = problem.pop("n"), problem["max_len"]
    model, src = Tables(n, **problem), sources(n)
    beam = lambda s: beam_search(model, s, K, max_len, 0, penalty, exact_stop=exact_stop)
    for search in (beam, lambda s: greedy_search(model, s, max_len)):
        together, alone = search(src), [search(row[None]) for row in src]
        assert together.nbest == [one.nbest[0] for one in alone]
        assert torch.equal(together.scores, torch.cat([one.scores for one in alone]))
        for row, best in zip(together.tokens.tolist(), together.nbest):
            words = best[0][0]
            assert row == words + [model.pad_id] * (len(row) - len(words))


@given(problems, st.floats(0.3, 3.0), st.sampled_from([None, 1, 2, 50]))
def test_sampling(problem, temperature, top_k):
    n, max_len = problem.pop("n"), problem["max_len"]
    model = Tables(n, **problem)
    draw = lambda: sample(model, sources(n), max_len, temperature, top_k, torch.Generator().manual_seed(3))
    found = draw()
    assert found.nbest == draw().nbest
    if top_k == 1:
        assert torch.equal(found.tokens, greedy_search(model, sources(n), max_len).tokens)
    for source, ((words, score),) in enumerate(found.nbest):
        assert set(words) <= {*model.words(), model.eos_id} and model.eos_id not in words[:-1]
        assert score == pytest.approx(model.logp(source, words), abs=1e-4)


@pytest.mark.parametrize("V,K", [(1501, 4), (97, 200), (24, 3)])
def test_large_vocabularies_and_beams(V, K):
    model = Tables(3, V, 2, seed=V)
    found = beam_search(model, sources(3), K, 2)
    for source, nbest in enumerate(found.nbest):
        logp = model.tables[0][source].double().log_softmax(-1)[0]                    # (V,)
        pairs = logp[:, None] + model.tables[1][source].double().log_softmax(-1)     # (V, V)
        live = logp.clone().index_fill_(0, torch.tensor([0, 1, 2]), -math.inf).topk(min(K, V - 3)).indices
        ends = [(logp[2].item(), [2])] if (logp[3:] > logp[2]).sum() < K else []
        ends += [(pairs[w, 2].item() / 2, [w, 2]) for w in live.tolist()]
        same(nbest, [(words, score) for score, words in sorted(ends, reverse=True)[:K]])


@given(n=st.integers(1, 3), W=st.integers(1, 4), V=st.sampled_from([4, 20, 219, 1000, 1019, 4019]), seed=st.integers(0, 10**6),
       wanted=st.sampled_from([1, 2, 5, 6, 20, 300]), short=st.booleans(), last=st.sampled_from([0.0, 5.0]), ruled=st.booleans())
def test_candidates_are_the_best_of_all_sums(n, W, V, seed, wanted, short, last, ruled):
    """Whatever is done to be fast: log_softmax of everything, add, and rank all W V sums of a sentence."""
    draw = torch.Generator().manual_seed(seed)
    logits, scores = 2 * torch.randn(n * W, V, generator=draw), -5 * torch.rand(n, W, generator=draw)
    logits[:, -3:] += last                                  # words that are in no group may win
    model = SimpleNamespace(pad_id=0, bos_id=1, eos_id=2, start=None, step=None)
    request = Request(model, sources(n), 9, min_len=4, adjust=(lambda logp, words, sentence: logp) if ruled else None)
    beam = replace(search_module._first_beam(request, wanted - 1 or 1), scores=scores, words=torch.full((n, W, 2), 3))
    found = search_module._rank(request, beam, logits, t=3 if short else 4)
    logp = logits.log_softmax(-1).index_fill(1, torch.tensor([0, 1, 2] if short else [0, 1]), -math.inf)
    total = scores[:, :, None] + logp.view(n, W, V)
    assert_close(found.ends, total[:, :, 2])
    total[:, :, 2] = -math.inf
    count = min((wanted - 1 or 1) + 1, W * V)
    best, place = total.flatten(1).topk(count)
    possible = best > -math.inf
    assert_close(found.best, best)
    assert torch.equal(found.origin[possible], place[possible] // V) and torch.equal(found.word[possible], place[possible] % V)
    assert best.shape == (n, count) and not (found.word[possible][:, None] == torch.tensor([0, 1, 2])).any()


@given(N=st.integers(1, 9), V=st.sampled_from([4, 219, 1019, 4019]), count=st.integers(1, 30), seed=st.integers(0, 10**6))
def test_the_end_and_the_best_other_words(N, V, count, seed):
    logits, count = 2 * torch.randn(N, V, generator=torch.Generator().manual_seed(seed)), min(count, V)
    end, best, words = end_and_best_words(logits, lambda some: some.log_softmax(-1), 2, count)
    logp = logits.log_softmax(-1)
    assert_close(end, logp[:, 2])
    theirs = logp.index_fill(1, torch.tensor([2]), -math.inf).topk(count)
    possible = theirs.values > -math.inf
    assert_close(best, theirs.values)
    assert torch.equal(words[possible], theirs.indices[possible])


# Each sentence with its own limit, the first word, and functions that adjust

searches = {"greedy": greedy_search, "beam": lambda m, s, L, **o: beam_search(m, s, 3, L, **o),
            "exact": lambda m, s, L, **o: beam_search(m, s, 4, L, exact_stop=True, **o)}
every_search = pytest.mark.parametrize("name", searches)


@every_search
@given(problem=problems, seed=st.integers(0, 10**6), endless=st.booleans(), pad_ends=st.booleans())
def test_a_batch_with_limits_is_its_sentences(name, problem, seed, endless, pad_ends):
    n, max_len = problem.pop("n"), problem["max_len"]
    if pad_ends:
        problem["ids"] = (2, 2, 2)
    model, search = Tables(n, **problem), searches[name]
    if endless:                                             # everything is cut
        for table in model.tables:
            table[..., model.eos_id] = -math.inf
    limits = torch.randint(1, max_len + 1, (n,), generator=torch.Generator().manual_seed(seed))
    together = search(model, sources(n), limits)
    alone = [search(model, row[None], limit) for row, limit in zip(sources(n), limits.tolist())]
    assert together.nbest == [one.nbest[0] for one in alone]
    assert torch.equal(together.scores, torch.cat([one.scores for one in alone]))
    assert torch.equal(together.log_probs, torch.cat([one.log_probs for one in alone]))
    for row, one, limit in zip(together.tokens.tolist(), alone, limits.tolist()):
        words = one.tokens[0].tolist()
        assert row == words + [model.pad_id] * (len(row) - len(words)) and len(words) <= limit


@every_search
def test_when_we_look_changes_nothing_with_limits(name, monkeypatch):
    model, limits = Tables(6, 6, 5, seed=2), torch.tensor([1, 5, 3, 2, 4, 3])
    found = searches[name](model, sources(6), limits)
    monkeypatch.setattr(search_module, "time_to_look", lambda t, device: False)
    late = searches[name](model, sources(6), limits)
    assert late.nbest == found.nbest and torch.equal(late.tokens, found.tokens)


@every_search
def test_a_batch_with_limits_costs_what_its_sentences_cost(name):
    """The hope of a live hypothesis follows its own sentence's limit; greedy rows stay until an eighth has ended."""
    model, limits, rows = Tiring(6, 9, seed=3), torch.tensor([4, 30, 12, 7, 18, 25]), []
    for src, limit in [(sources(6), limits), *zip(sources(6)[:, None], limits.tolist())]:
        model.rows = 0
        searches[name](model, src, limit)
        rows.append(model.rows)
    assert rows[0] == sum(rows[1:])


def test_sampled_sentences_keep_their_limits():
    limits = torch.tensor([1, 4, 2])
    found = sample(Tables(3, 8, 4, seed=2), sources(3), limits, generator=torch.Generator().manual_seed(1))
    assert all(len(nbest[0][0]) <= limit for nbest, limit in zip(found.nbest, limits.tolist()))


@pytest.mark.parametrize("limits", [3.0, torch.tensor([3, 3, 3]), torch.tensor([[3, 3]]), torch.tensor([3.0, 3.0]), True])
def test_bad_limits(limits):
    for search in searches.values():
        with pytest.raises(ValueError, match="max_len must be") as error:
            search(Tables(2, 5, 3, seed=7), sources(2), limits)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="max_len=0"):
        greedy_search(Tables(2, 5, 3, seed=7), sources(2), torch.tensor([3, 0]))


@every_search
def test_a_search_begins_with_what_the_model_says(name):
    told, plain = Marked(9, 6, 4, seed=3), Tables(9, 6, 4, seed=3)
    found, theirs = searches[name](told, sources(5), 4), searches[name](plain, sources(5) + 3, 4)
    assert found.nbest == theirs.nbest and len({str(nbest) for nbest in found.nbest}) == 5


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_rules_against_all_sentences(name, penalty):
    n, V, max_len = 5, 6, 5
    model, (make, keeps) = Tables(n, V, max_len, seed=5), RULES[name]
    for table in model.tables:
        table[..., 3] += 2.0                                 # without a rule the word comes again and again
        table[..., 2] -= 2.0
    found = beam_search(model, sources(n), 81, max_len, 0, penalty, exact_stop=True, adjust=make(n))
    for source, nbest in enumerate(found.nbest):
        pairs = exhaustive(model, source, max_len, norm_of("length", penalty))
        allowed = [pair for pair in pairs if keeps(source, pair[0])]
        assert len(allowed) < len(pairs) or (name == "forced" and source % 3 == 0)
        same(nbest, allowed[:81])


class Remembered(Tables):
    """A model in which some words are impossible: what a rule makes of it, spelled out for every prefix."""

    def __init__(self, rule, n, V, max_len, seed):
        super().__init__(n, V, max_len, seed)
        for source, t in itertools.product(range(n), range(max_len)):
            for words in itertools.product(range(V), repeat=t):
                index = sum(word * V ** i for i, word in enumerate(reversed(words)))
                logp = self.tables[t][source, index].log_softmax(-1)[None]
                prefix = torch.tensor([words], dtype=torch.long)
                self.tables[t][source, index] = rule(logp, prefix, torch.tensor([source]))[0]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("search", [*searches, "sample"])
def test_every_search_keeps_a_rule(name, search):
    """Words, prefixes and sentences arrive as they should, after sentences have left the batch too."""
    n, V, max_len = 5, 6, 4
    model, (make, keeps) = Tables(n, V, max_len, seed=6), RULES[name]
    rule = make(n)
    spelled, limits = Remembered(rule, n, V, max_len, seed=6), torch.tensor([4, 2, 4, 3, 4])
    if search == "sample":
        for seed in range(20):
            draw = lambda: torch.Generator().manual_seed(seed)
            found = sample(model, sources(n), limits, generator=draw(), adjust=rule)
            for source, nbest in enumerate(found.nbest):
                assert keeps(source, nbest[0][0]) or limits[source] < 2
                assert nbest[0][1] == pytest.approx(model.logp(source, nbest[0][0]), abs=1e-4)
        return
    found = searches[search](model, sources(n), limits, adjust=rule)
    words = [[words for words, score in nbest] for nbest in found.nbest]
    normalised = searches[search](Unnormalised(spelled), sources(n), limits)
    assert words == [[words for words, score in nbest] for nbest in normalised.nbest]
    assert_close(found.scores, normalised.scores)


class Unnormalised(Tables):
    """Gives log p that need not sum to one and must be taken as they are: the rest goes to padding, never written."""

    def __init__(self, model):
        self.__dict__.update(model.__dict__)

    def step(self, state, token):
        logp, state = super().step(state, token)
        rest = 1 - logp.exp().sum(-1) + logp[:, self.pad_id].exp()
        logp[:, self.pad_id] = rest.log()
        return logp, state


@every_search
def test_an_adjustment_that_changes_nothing_changes_nothing(name):
    model, given = Tables(6, 9, 5, seed=3), []
    plain = searches[name](model, sources(6), 5)
    same_again = searches[name](model, sources(6), 5, adjust=lambda logp, words, sentence: given.append((words, sentence)) or logp)
    assert [[w for w, s in nbest] for nbest in plain.nbest] == [[w for w, s in nbest] for nbest in same_again.nbest]
    assert_close(plain.scores, same_again.scores)
    assert [words.shape[1] for words, sentence in given] == list(range(len(given)))
    assert all(len(words) == len(sentence) and sentence.max() < 6 for words, sentence in given)


@every_search
def test_a_rule_that_allows_nothing(name):
    found = searches[name](Tables(2, 6, 3, seed=3), sources(2), 3, adjust=lambda logp, *rest: torch.full_like(logp, -math.inf))
    assert found.nbest == [[], []] and found.scores.tolist() == found.log_probs.tolist() == [-math.inf] * 2


@pytest.mark.parametrize("name", [*searches, "sample"])
def test_rows_without_a_hypothesis_are_padding(name):
    """A rule allows nothing in source 1, in its second place or from the start; the others are as without a rule."""
    for last in (0, 1):
        stop = lambda logp, words, sentence: logp.masked_fill((sentence == 1)[:, None] & (words.shape[1] >= last), -math.inf)
        model = Tables(3, 6, 4, seed=6, ids=(4, 1, 2))
        for table in model.tables:
            table[..., 2] -= 3.0                             # nothing has ended after one word
        search = searches.get(name, sample)
        found = search(model, sources(3), 4, adjust=stop, min_len=2)
        assert [len(nbest) > 0 for nbest in found.nbest] == [True, False, True]
        assert found.scores[1] == found.log_probs[1] == -math.inf
        assert (found.tokens[1] == model.pad_id).all() and found.tokens.shape[1] >= 2


@pytest.mark.parametrize("name", [*searches, "sample"])
def test_results_can_be_trained_on(name):
    """In back-translation what one model wrote is the other's input."""
    found = searches.get(name, sample)(Tables(3, 7, 4, seed=6), sources(3), 4)
    assert not any(tensor.is_inference() or tensor.requires_grad for tensor in (found.tokens, found.scores, found.log_probs))
    table, weight = torch.nn.Embedding(7, 5), torch.ones(5, requires_grad=True)
    loss = ((table(found.tokens) * weight).sum((1, 2)) * found.log_probs).sum()
    loss.backward()
    assert table.weight.grad.abs().sum() > 0 and weight.grad.isfinite().all()


def test_a_rule_may_write_into_log_p_and_return_it_transposed():
    def in_place(logp, words, sentence):
        logp[:, 3] = -math.inf
        return logp
    turned = lambda logp, words, sentence: logp.index_fill(1, torch.tensor([3]), -math.inf).T.contiguous().T
    for search in searches.values():
        found = [search(Tables(4, 7, 4, seed=6), sources(4), 4, adjust=rule).nbest for rule in (ForbiddenWords([3]), in_place, turned)]
        assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("make,says", [
    (lambda: ForbiddenWords([3, -1]), "token id -1"), (lambda: ForcedBeginning([[], [-2]]), "token id -2"),
    (lambda: NoRepeatedNgrams(0), "n=0"), (lambda: NoRepeatedNgrams(1.5), "n=1.5")])
def test_bad_rules(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize("rule,says", [
    (ForbiddenWords([3, 7]), "token id 7 .* 7 words"), (ForcedBeginning([[3], [3, 9], []]), "token id 9 .* 7 words"),
    (ForcedBeginning([[3], [4]]), "2 beginnings .* number 3"), (ForcedBeginning([]), "0 beginnings")])
def test_rules_that_do_not_fit(rule, says):
    for search in searches.values():
        with pytest.raises(ValueError, match=says) as error:
            search(Tables(3, 7, 4, seed=6), sources(3), 4, min_len=3, adjust=rule)
        assert "\n" not in str(error.value)


def test_rules_are_values():
    for make in (lambda: ForbiddenWords([3, 4]), lambda: ForcedBeginning([[3], []]), lambda: NoRepeatedNgrams(2)):
        assert make() == make() and len({make(), make()}) == 1
    assert ForbiddenWords(torch.tensor([3, 4])) == ForbiddenWords((3, 4))


@pytest.mark.parametrize("name", RULES)
def test_a_rule_leaves_its_arguments_alone(name):
    logp, words, sentence = torch.randn(4, 7), torch.tensor([[3, 4, 3, 4]] * 4), torch.arange(4)
    before = logp.clone()
    after = RULES[name][0](4)(logp, words, sentence)
    assert torch.equal(logp, before) and after.shape == (4, 7)


def test_sampling_where_nothing_is_allowed():
    found = sample(Tables(2, 6, 3, seed=3), sources(2), 3, adjust=lambda logp, *rest: torch.full_like(logp, -math.inf))
    assert found.nbest == [[], []] and found.scores.tolist() == [-math.inf] * 2


def test_a_beginning_longer_than_the_limit_is_cut():
    found = beam_search(Tables(2, 7, 3, seed=3), sources(2), 3, torch.tensor([3, 2]), adjust=ForcedBeginning([[3, 4, 5, 6]] * 2))
    assert [[words for words, score in nbest] for nbest in found.nbest] == [[[3, 4, 5]], [[3, 4]]]


@both_rules
@given(problem=problems, K=st.integers(1, 5), penalty=penalties, every=st.integers(2, 5))
def test_when_we_look_changes_nothing(exact_stop, problem, K, penalty, every):
    """On a GPU the search asks only now and then who has ended."""
    n, max_len = problem.pop("n"), problem["max_len"]
    model = Tables(n, **problem)
    found = beam_search(model, sources(n), K, max_len, 0, penalty, exact_stop=exact_stop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "time_to_look", lambda t, device: t % every == 0)
        late = beam_search(model, sources(n), K, max_len, 0, penalty, exact_stop=exact_stop)
    assert late.nbest == found.nbest and torch.equal(late.tokens, found.tokens)


@given(problems, st.integers(1, 5), penalties)
def test_stopping_at_k_steps_less_and_finds_no_better(problem, K, penalty):
    n, max_len = problem.pop("n"), problem["max_len"]
    model, rows, found = Tables(n, **problem), {}, {}
    for exact_stop in (True, False):
        model.rows = 0
        found[exact_stop] = beam_search(model, sources(n), K, max_len, 0, penalty, exact_stop=exact_stop)
        rows[exact_stop] = model.rows
    assert rows[False] <= rows[True]
    assert (found[False].scores <= found[True].scores + 1e-6).all()


def test_a_generous_max_len_costs_nothing():
    """Stopping at K, a search that is over within 30 words steps the same rows if 410 are allowed; the exact rule more."""
    model, found, rows = Tiring(20, 9, seed=3), {}, {}
    for exact_stop in (False, True):
        for max_len in (30, 60, 410):
            model.rows = 0
            found[exact_stop, max_len] = beam_search(model, sources(20), 5, max_len, exact_stop=exact_stop)
            rows[exact_stop, max_len] = model.rows
    assert found[False, 30].nbest == found[False, 60].nbest == found[False, 410].nbest
    assert rows[False, 30] == rows[False, 60] == rows[False, 410] < rows[True, 30] < rows[True, 60] < rows[True, 410]
    assert all(len(words) < 30 and words[-1] == 2 for nbest in found[False, 30].nbest for words, score in nbest)


def test_finished_sentences_leave_the_batch():
    """Source 0 ends at once, source 1 never: from then on the rows are those of source 1 alone."""
    model = Tables(2, 6, 5, seed=1)
    for table in model.tables:
        table[0, :, 2], table[1, :, 2] = 50.0, -50.0
    greedy_search(model, sources(2), 5)
    assert model.rows == 2 + 4 * 1
    model.rows = 0
    beam_search(model, sources(2), 1, 5, length_penalty=0.0)
    assert model.rows == 2 + 4 * 1
    model.rows = 0
    beam_search(model, sources(2), 3, 5, length_penalty=0.0)     # it takes a second step to find three
    assert model.rows == 2 + 6 + 3 * 3


def test_states_are_not_reordered_for_nothing():
    """With a beam of one nothing ever moves, and a sentence that ends is the only reason to select."""
    model, calls = Tables(3, 5, 4, seed=2), []
    for table in model.tables:
        table[..., 2] = -50.0
    select = Seen.select
    Seen.select = lambda self, rows: calls.append(rows) or select(self, rows)
    try:
        beam_search(model, sources(3), 1, 4)
        greedy_search(model, sources(3), 4)
    finally:
        Seen.select = select
    assert calls == []


def test_some_models_begin_with_eos_or_pad():
    for ids in ((3, 2, 2), (0, 0, 2), (2, 2, 2)):       # pad, bos, eos
        model = Tables(2, 5, 3, seed=4, ids=ids)
        found = beam_search(model, sources(2), 400, 3)
        for source, nbest in enumerate(found.nbest):
            same(nbest, exhaustive(model, source, 3, norm_of("length", 1.0)))


def test_logits_are_left_alone_and_may_be_half_precision():
    model = Tables(2, 40, 2, seed=5)
    before = [table.clone() for table in model.tables]
    whole = beam_search(model, sources(2), 3, 2)
    greedy_search(model, sources(2), 2), sample(model, sources(2), 2)
    assert all(map(torch.equal, before, model.tables))
    for dtype in (torch.float64, torch.bfloat16):
        model.tables = [table.to(torch.bfloat16).to(dtype) for table in before]
        assert_close(beam_search(model, sources(2), 3, 2).scores, whole.scores, atol=0.05, rtol=0.05)
        assert greedy_search(model, sources(2), 2).scores.dtype == torch.float32


def test_nothing_can_be_written():
    """A vocabulary of nothing but specials, and a least length: no hypothesis, and no crash."""
    found = beam_search(Tables(2, 3, 2, seed=6), sources(2), 2, 2, min_len=2)
    assert found.nbest == [[], []] and found.tokens.shape == (2, 0) and found.scores.tolist() == [-math.inf] * 2


@pytest.mark.parametrize("search", [lambda m, s, **o: beam_search(m, s, 2, **o), greedy_search, sample])
@pytest.mark.parametrize("change,says", [
    (dict(max_len=0), "max_len=0"), (dict(max_len=3, min_len=4), "min_len=4"), (dict(max_len=3, min_len=-1), "min_len=-1"),
    (dict(max_len=3, min_len=2.5), "min_len=2.5")])
def test_bad_lengths(search, change, says):
    with pytest.raises(ValueError, match=says) as error:
        search(Tables(2, 5, 3, seed=7), sources(2), **change)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("src", [torch.zeros(3), torch.zeros(2, 3), torch.zeros(2, 0, dtype=torch.long), [[1, 2]],
                                 torch.zeros(2, 3, dtype=torch.bool)])
def test_bad_source(src):
    for search in (lambda: beam_search(Tables(2, 5, 3, 7), src, 2, 3), lambda: greedy_search(Tables(2, 5, 3, 7), src, 3)):
        with pytest.raises(ValueError, match="src must be"):
            search()


def test_bad_options():
    model, src = Tables(2, 5, 3, seed=8), sources(2)
    for options, says in [(dict(beam_size=0), "beam_size=0"), (dict(length_penalty=-1.0), "length_penalty=-1"),
                          (dict(length_penalty=math.nan), "length_penalty=nan"), (dict(normalisation="log"), "'log'"),
                          (dict(length_penalty=20.0, max_len=200), "length_penalty=20.0 is too large for max_len=200")]:
        with pytest.raises(ValueError, match=says):
            beam_search(model, src, **{"beam_size": 2, "max_len": 3, **options})
    for options, says in [(dict(temperature=0.0), "temperature=0"), (dict(temperature=math.inf), "finite"), (dict(top_k=0), "top_k=0")]:
        with pytest.raises(ValueError, match=says):
            sample(model, src, 3, **options)
    model.training = True
    for search in (lambda: beam_search(model, src, 2, 3), lambda: greedy_search(model, src, 3), lambda: sample(model, src, 3)):
        with pytest.raises(ValueError, match=r"model\.eval\(\)"):
            search()


def test_a_broken_model_is_reported():
    model = Tables(3, 6, 4, seed=9)
    model.tables[2][1] = math.nan
    model.tables[0][..., 2] = model.tables[1][..., 2] = -50.0
    for search in (lambda: beam_search(model, sources(3), 2, 4), lambda: beam_search(model, sources(3), 2, 4, exact_stop=True),
                   lambda: greedy_search(model, sources(3), 4), lambda: sample(model, sources(3), 4)):
        with pytest.raises(ValueError, match="NaN"):
            search()


@pytest.mark.parametrize("temperature", [1e-30, 1e-35, 1e-45, 5e-324])
def test_the_coldest_draw_is_the_greedy_one(temperature):
    for seed in range(5):
        model = Tables(6, 7, 5, seed, ids=(3, 4, 6))         # the words that may not be written are not the first ones
        drawn = sample(model, sources(6), 5, temperature, generator=torch.Generator().manual_seed(seed), min_len=3)
        assert drawn.tokens.tolist() == greedy_search(model, sources(6), 5, min_len=3).tokens.tolist()


@pytest.mark.parametrize("temperature", [1e30, 1e39, 1e300])
def test_the_hottest_draw_writes_every_word_that_is_allowed_and_no_other(temperature):
    model = Tables(1, 7, 2, seed=3)
    drawn = sample(model, sources(1).repeat(200, 1), 2, temperature, adjust=ForbiddenWords([5]),
                   generator=torch.Generator().manual_seed(1), min_len=2)
    assert set(drawn.tokens[:, 0].tolist()) == {3, 4, 6}


@pytest.mark.parametrize("wrong,says", [
    (lambda logp, *rest: logp[:1], r"adjust must return log p of shape \(\d+, 7\), not \(1, 7\)"),
    (lambda logp, *rest: logp[:, :-1], r"adjust .*, not \(\d+, 6\)"), (lambda logp, *rest: None, "adjust .*, not NoneType"),
    (lambda logp, *rest: logp > -3, r"adjust .*, not \(\d+, 7\) of torch.bool")])
def test_a_rule_that_returns_something_else(wrong, says):
    from transformer_course.search.exact import astar_search
    for search in (*searches.values(), sample, astar_search):
        with pytest.raises(ValueError, match=says) as error:
            search(Tables(3, 7, 4, seed=6), sources(3), 4, adjust=wrong)
        assert "\n" not in str(error.value)


class Forgetful(Tables):
    "Its state is a tuple."

    def start(self, src):
        return (src[:, 0],)


class Flat(Tables):
    "Its step returns what a forward would: (N, 1, V)."

    def step(self, state, token):
        logits, state = super().step(state, token)
        return logits[:, None], state


class Narrow(Tables):
    "It knows fewer words than its special ids need."

    def step(self, state, token):
        logits, state = super().step(state, token)
        return logits[:, :2], state


@pytest.mark.parametrize("model,says", [
    (Forgetful(2, 6, 3, 1), "the state that Forgetful.start returns, a tuple, has no select"),
    (Flat(2, 6, 3, 1), r"Flat.step must return logits \(N, V\) .*, not \(2, 1, 6\)"),
    (Narrow(2, 6, 3, 1), r"Narrow.step must return logits \(N, V\) with V above its special ids, .* not \(2, 2\)"),
    (torch.nn.Linear(2, 3).eval(), "Linear has no pad_id, bos_id, eos_id, start, step"), (None, "NoneType has no pad_id")])
def test_models_that_keep_no_protocol_are_told_in_one_line(model, says):
    from transformer_course.search.exact import astar_search
    for search in (*searches.values(), sample, astar_search):
        with pytest.raises(ValueError, match=says) as error:
            search(model, sources(2), 3)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("search,options,says", [
    (beam_search, dict(beam_size=2.0), "beam_size=2.0"), (beam_search, dict(beam_size=None), "beam_size=None"),
    (sample, dict(top_k=2.5), "top_k=2.5"), (sample, dict(temperature="hot"), "temperature='hot'"),
    (sample, dict(temperature=math.nan), "temperature=nan"), (greedy_search, dict(max_len="3"), "max_len"),
    (greedy_search, dict(max_len=None), "max_len"), (greedy_search, dict(min_len=None), "min_len=None")])
def test_numbers_that_are_none(search, options, says):
    options = {"max_len": 3, **({"beam_size": 2} if search is beam_search else {}), **options}
    with pytest.raises(ValueError, match=says):
        search(Tables(2, 5, 3, seed=8), sources(2), **options)

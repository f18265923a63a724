"""Searches on random tables of every shape, against exhaustive enumeration and a search without batches or tensors."""
import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from transformer_course import search as search_module
from transformer_course.search import Hypotheses, Proof, astar_search, beam_search, greedy_search, sample, viterbi


@dataclass
class Seen:
    source: torch.Tensor   # (N,) which table
    prefix: torch.Tensor   # (N,) the words so far, as a number in base V
    length: int

    def select(self, rows):
        return Seen(self.source[rows], self.prefix[rows], self.length)


class Tables:
    """A translator with a row of logits for every prefix: `tables[t]` is (sources, V**t, V)."""

    training = False

    def __init__(self, sources, V, max_len, seed, ids=(0, 1, 2)):
        draw = torch.Generator().manual_seed(seed)
        self.tables = [2 * torch.randn(sources, V ** t, V, generator=draw) for t in range(max_len)]
        self.pad_id, self.bos_id, self.eos_id = ids
        self.V, self.rows = V, 0

    def start(self, src):
        return Seen(src[:, 0], torch.zeros_like(src[:, 0]), 0)

    def step(self, state, token):
        prefix = state.prefix * self.V + token if state.length else state.prefix
        self.rows += len(token)
        return self.tables[state.length][state.source, prefix], Seen(state.source, prefix, state.length + 1)

    def logp(self, source, words):
        index, total = 0, 0.0
        for t, word in enumerate(words):
            total += self.tables[t][source, index].double().log_softmax(-1)[word].item()
            index = index * self.V + word
        return total

    def words(self):
        return [w for w in range(self.V) if w not in (self.pad_id, self.bos_id, self.eos_id)]


def naive_beam(model, source, K, max_len, min_len, norm, exact_stop=True):
    """Beam search over lists, to the last step or until K have finished; every candidate is scored from its first word."""
    live, finished = [()], []
    for t in range(1, max_len + 1):
        options = [*model.words(), *([model.eos_id] if t >= min_len else [])]
        candidates = sorted(((model.logp(source, (*words, w)), (*words, w)) for words in live for w in options), reverse=True)
        finished += [(s / norm(t), list(words)) for s, words in candidates[:K] if words[-1] == model.eos_id]
        ranked = [(s, words) for s, words in candidates if words[-1] != model.eos_id][:K]
        live = [words for s, words in ranked]
        if not exact_stop and len(finished) >= K:
            break
    finished = finished or [(s / norm(max_len), list(words)) for s, words in ranked]
    return [(words, score) for score, words in sorted(finished, reverse=True)[:K]]


def exhaustive(model, source, max_len, norm):
    found = [(model.logp(source, (*words, model.eos_id)) / norm(t), [*words, model.eos_id])
             for t in range(1, max_len + 1) for words in itertools.product(model.words(), repeat=t - 1)]
    return [(words, score) for score, words in sorted(found, reverse=True)]


def norm_of(kind, penalty):
    return lambda length: (length if kind == "length" else (5 + length) / 6) ** penalty


def same(ours, theirs):
    assert [words for words, score in ours] == [words for words, score in theirs]
    assert_close([s for w, s in ours], [s for w, s in theirs], atol=1e-4, rtol=1e-4)


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


def sources(n):
    return torch.arange(n)[:, None].repeat(1, 3)


problems = st.fixed_dictionaries(dict(
    n=st.integers(1, 6), V=st.integers(4, 7), max_len=st.integers(1, 4), seed=st.integers(0, 10**6),
    ids=st.permutations([0, 1, 2, 3]).map(lambda ids: tuple(ids[:3]))))
penalties = st.sampled_from([0.0, 0.3, 1.0, 2.0])
kinds = st.sampled_from(["length", "wu"])
both_rules = pytest.mark.parametrize("exact_stop", [True, False], ids=["exact", "at K"])


@both_rules
@given(problem=problems, K=st.integers(1, 9), min_len=st.integers(0, 4), penalty=penalties, kind=kinds)
def test_beam_is_the_naive_beam(exact_stop, problem, K, min_len, penalty, kind):
    n, max_len = problem.pop("n"), problem["max_len"]
    model, min_len = Tables(n, **problem), min(min_len, problem["max_len"])
    found = beam_search(model, sources(n), K, max_len, min_len, penalty, kind, exact_stop)
    assert isinstance(found, Hypotheses) and len(found) == n
    for source, nbest in enumerate(found.nbest):
        same(nbest, naive_beam(model, source, K, max_len, min_len, norm_of(kind, penalty), exact_stop))
        assert all(len(words) >= min_len for words, score in nbest)
        assert len({words[-1] == model.eos_id for words, score in nbest}) <= 1      # all finished, or none


@both_rules
@given(problem=problems, penalty=penalties, kind=kinds)
def test_a_beam_wide_enough_is_exhaustive(exact_stop, problem, penalty, kind):
    n, max_len = problem.pop("n"), problem["max_len"]
    model = Tables(n, **problem)
    found = beam_search(model, sources(n), 600, max_len, 0, penalty, kind, exact_stop)
    for source, nbest in enumerate(found.nbest):
        same(nbest, exhaustive(model, source, max_len, norm_of(kind, penalty)))


@given(problems, st.integers(0, 4), penalties)
def test_greedy_is_a_beam_of_one(problem, min_len, penalty):
    """Stopping at the first that has finished, whatever the penalty; stopping exactly, without one."""
    n, max_len = problem.pop("n"), problem["max_len"]
    model, min_len = Tables(n, **problem), min(min_len, problem["max_len"])
    greedy = greedy_search(model, sources(n), max_len, min_len)
    for alpha, exact_stop in ((penalty, False), (0.0, True)):
        beam = beam_search(model, sources(n), 1, max_len, min_len, alpha, exact_stop=exact_stop)
        assert torch.equal(greedy.tokens, beam.tokens)
        lengths = torch.tensor([float(len(words)) for ((words, score),) in greedy.nbest])
        assert_close(greedy.scores / lengths**alpha, beam.scores)
    for source, ((words, score),) in enumerate(greedy.nbest):
        assert words == naive_greedy(model, source, max_len, min_len)
        assert score == pytest.approx(model.logp(source, words), abs=1e-4)


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
        ranked = pairs[live][:, 2:].flatten().sort(descending=True).values[:K]
        ends += [(pairs[w, 2].item() / 2, [w, 2]) for w in live.tolist() if pairs[w, 2] >= ranked[-1]]
        same(nbest, [(words, score) for score, words in sorted(ends, reverse=True)[:K]]
             or [(nbest[i][0], ranked[i].item() / 2) for i in range(len(nbest))])


@both_rules
@given(problem=problems, K=st.integers(1, 5), penalty=penalties, every=st.integers(2, 5))
def test_when_we_look_changes_nothing(exact_stop, problem, K, penalty, every):
    """On a GPU the search asks only now and then who has ended."""
    n, max_len = problem.pop("n"), problem["max_len"]
    model = Tables(n, **problem)
    found = beam_search(model, sources(n), K, max_len, 0, penalty, exact_stop=exact_stop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "_time_to_look", lambda t, device: t % every == 0)
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
    (dict(max_len=0), "max_len=0"), (dict(max_len=3, min_len=4), "min_len=4"), (dict(max_len=3, min_len=-1), "min_len=-1")])
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
                          (dict(length_penalty=math.nan), "length_penalty=nan"), (dict(normalisation="log"), "'log'")]:
        with pytest.raises(ValueError, match=says):
            beam_search(model, src, **{"beam_size": 2, "max_len": 3, **options})
    for options, says in [(dict(temperature=0.0), "temperature=0"), (dict(top_k=0), "top_k=0")]:
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
                   lambda: greedy_search(model, sources(3), 4)):
        with pytest.raises(ValueError, match="NaN"):
            search()


# A*: the exact best, with and without a heuristic

def every_prefix(model, source, max_len):
    return [words for t in range(max_len) for words in itertools.product(model.words(), repeat=t)]


def perfect(model, n, max_len):
    """For every sentence and prefix the best log p that its completions add, by looking at all of them."""
    hopes = [{} for source in range(n)]
    for source in range(n):
        for words in reversed(every_prefix(model, source, max_len)):
            here = model.logp(source, words)
            ends = [model.logp(source, (*words, model.eos_id)) - here]
            further = [model.logp(source, (*words, w)) - here + hopes[source][*words, w] for w in model.words() if len(words) + 1 < max_len]
            hopes[source][words] = max(ends + further)
    return hopes


def bounds_by_last_word(model, n, max_len):
    """The same as the table that `astar_search` takes: the largest over all prefixes that end in the same word."""
    table = torch.full((n, max_len + 1, model.V), -math.inf)
    for source, hopes in enumerate(perfect(model, n, max_len)):
        for words, hope in hopes.items():
            last = words[-1] if words else model.bos_id
            table[source, len(words), last] = max(table[source, len(words), last].item(), hope + 1e-5)
    return table


astar_problems = st.fixed_dictionaries(dict(
    n=st.integers(1, 5), V=st.integers(4, 6), max_len=st.integers(1, 4), seed=st.integers(0, 10**6),
    ids=st.permutations([0, 1, 2, 3]).map(lambda ids: tuple(ids[:3]))))


@given(astar_problems, st.integers(1, 5), st.integers(0, 4), st.booleans())
def test_astar_is_exhaustive_search(problem, width, min_len, informed):
    n, max_len = problem.pop("n"), problem["max_len"]
    model, min_len = Tables(n, **problem), min(min_len, problem["max_len"])
    heuristic = bounds_by_last_word(model, n, max_len) if informed else None
    proof = astar_search(model, sources(n), max_len, heuristic, min_len, width)
    assert isinstance(proof, Proof) and proof.proven.all() and torch.equal(proof.bounds, proof.found.scores)
    for source, nbest in enumerate(proof.found.nbest):
        ranked = exhaustive(model, source, max_len, norm_of("length", 0.0))
        same(nbest, [pair for pair in ranked if len(pair[0]) >= min_len][:1])


@given(astar_problems, st.booleans())
def test_astar_expands_what_it_must_and_nothing_else(problem, informed):
    """One node at a time, these are the prefixes that hope for more than the best sentence's log p, as do all on the way there."""
    n, max_len = problem.pop("n"), problem["max_len"]
    model = Tables(n, **problem)
    heuristic = bounds_by_last_word(model, n, max_len) if informed else torch.zeros(1, max_len + 1, 1)
    proof = astar_search(model, sources(n), max_len, heuristic, width=1)
    table = heuristic.expand(n, -1, model.V)
    for source, expanded in enumerate(proof.expanded.tolist()):
        best = exhaustive(model, source, max_len, norm_of("length", 0.0))[0][1]
        hope = lambda words: model.logp(source, words) + table[source, len(words), words[-1] if words else model.bos_id].item()
        hopes = [min(hope(words[:t]) for t in range(len(words) + 1)) for words in every_prefix(model, source, max_len)]
        assert sum(h > best + 1e-4 for h in hopes) <= expanded <= sum(h > best - 1e-4 for h in hopes)


@given(astar_problems, st.integers(1, 9), st.integers(1, 6))
def test_a_search_cut_short_says_so(problem, max_nodes, width):
    n, max_len = problem.pop("n"), problem["max_len"]
    model = Tables(n, **problem)
    whole = astar_search(model, sources(n), max_len)
    proof = astar_search(model, sources(n), max_len, width=width, max_nodes=max_nodes)
    assert (proof.expanded <= max_nodes).all()
    assert (proof.found.scores <= whole.found.scores + 1e-5).all() and (whole.found.scores <= proof.bounds + 1e-5).all()
    assert_close(proof.found.scores[proof.proven], whole.found.scores[proof.proven])
    assert (proof.expanded[~proof.proven] == max_nodes).all()


@given(astar_problems, st.integers(1, 4))
def test_astar_of_a_batch_is_that_of_its_sentences(problem, width):
    n, max_len = problem.pop("n"), problem["max_len"]
    model = Tables(n, **problem)
    together = astar_search(model, sources(n), max_len, width=width)
    alone = [astar_search(model, row[None], max_len, width=width) for row in sources(n)]
    assert together.found.nbest == [one.found.nbest[0] for one in alone]
    assert together.expanded.tolist() == [one.expanded.item() for one in alone]


class Nested:
    """A translator whose state has every form that states of this course have: tuples, caches that grow, numbers."""

    training, pad_id, bos_id, eos_id = False, 0, 1, 2

    @dataclass
    class State:
        hidden: tuple
        cache: list
        mask: torch.Tensor
        position: int

        def select(self, rows):
            pick = lambda part: part.index_select(0, rows)
            return Nested.State(tuple(tuple(map(pick, layer)) for layer in self.hidden), [pick(part) for part in self.cache],
                                pick(self.mask), self.position)

    def __init__(self, V, growing, seed):
        draw = torch.Generator().manual_seed(seed)
        self.table, self.growing, self.steps = torch.randn(5, V, V, V, generator=draw), growing, 0

    def start(self, src):
        return Nested.State(((src[:, 0], torch.ones_like(src[:, 0])),), [src[:, :0]], src[:, None] > 0, 0)

    def step(self, state, token):
        """The next word depends on the sentence and the last two words, the last but one from the state."""
        self.steps += 1
        (source, last), cache = state.hidden[0], torch.cat([state.cache[0], token[:, None]], 1) if self.growing else state.cache[0]
        after = Nested.State(((source, token),), [cache], state.mask, state.position + self.growing)
        return self.table[source, last, token], after


@pytest.mark.parametrize("growing", [False, True])
def test_states_of_every_form_are_joined(growing):
    n, V, max_len = 5, 7, 5
    model, src = Nested(V, growing, seed=2), torch.arange(5)[:, None].repeat(1, 3)
    wide = beam_search(model, src, 2000, max_len, min_len=4, length_penalty=0.0, exact_stop=True)
    model.steps = 0
    proof = astar_search(model, src, max_len, min_len=4, width=3)
    assert proof.proven.all() and (proof.expanded > 9).all()
    assert [nbest[0][0] for nbest in proof.found.nbest] == [nbest[0][0] for nbest in wide.nbest]
    assert_close(proof.found.scores, wide.scores)
    assert growing or model.steps <= max_len + proof.expanded.max() / 2      # many nodes share a step


def test_astar_where_nothing_ends():
    model = Tables(2, 5, 3, seed=8)
    for table in model.tables:
        table[..., 2] = -math.inf
    proof = astar_search(model, sources(2), 3)
    assert proof.found.nbest == [[], []] and proof.found.scores.tolist() == [-math.inf] * 2 and proof.proven.all()


@pytest.mark.parametrize("options,says", [
    (dict(width=0), "width=0"), (dict(max_nodes=0), "max_nodes=0"), (dict(min_len=9), "min_len=9"),
    (dict(heuristic=torch.zeros(4)), "heuristic must be"), (dict(heuristic=torch.zeros(2, 3, 1)), "max_len=3"),
    (dict(heuristic=torch.zeros(3, 4, 1)), "B=2"), (dict(heuristic=torch.full((1, 4, 1), math.nan)), "not NaN")])
def test_bad_requests_of_astar(options, says):
    with pytest.raises(ValueError, match=says) as error:
        astar_search(Tables(2, 5, 3, seed=7), sources(2), 3, **options)
    assert "\n" not in str(error.value)


# Viterbi against all paths

def best_path(start, transition, emission):
    """(N,), (N, N), (T, N) lists of numbers: the likeliest of the N^T paths, and its log p."""
    def score(path):
        moves = sum(transition[i][j] for i, j in zip(path, path[1:]))
        return start[path[0]] + moves + sum(row[state] for row, state in zip(emission, path))
    return max(((score(path), list(path)) for path in itertools.product(range(len(start)), repeat=len(emission))))


@given(B=st.integers(1, 4), T=st.integers(1, 5), N=st.integers(1, 4), seed=st.integers(0, 10**6), shared=st.booleans(),
       masked=st.booleans(), forbidden=st.sampled_from([0.0, 0.3]))
def test_viterbi_is_the_best_of_all_paths(B, T, N, seed, shared, masked, forbidden):
    draw = torch.Generator().manual_seed(seed)
    random = lambda *shape: torch.randn(*shape, generator=draw, dtype=torch.float64).log_softmax(-1)
    start, transition, emission = random(B, N), random(*(() if shared else (B,)), N, N), random(B, T, N)
    closed = torch.rand(transition.shape, generator=draw) < forbidden
    transition = transition.masked_fill(closed, -math.inf)
    lengths = torch.randint(1, T + 1, (B,), generator=draw) if masked else torch.full((B,), T)
    mask = torch.arange(T) < lengths[:, None] if masked else None
    paths, scores = viterbi(start, transition, emission, mask)
    assert paths.shape == (B, T) and paths.dtype == torch.long and scores.dtype == torch.float64
    for b, length in enumerate(lengths.tolist()):
        moves = (transition if shared else transition[b]).tolist()
        score, path = best_path(start[b].tolist(), moves, emission[b, :length].tolist())
        assert scores[b].item() == pytest.approx(score)
        assert paths[b].tolist() == path + [-1] * (T - length) or score == -math.inf


def test_viterbi_leaves_no_trace_of_what_is_masked():
    start, transition, emission = torch.zeros(2, 3), torch.zeros(3, 3), torch.randn(2, 5, 3)
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    changed = emission.clone()
    changed[1, 2:] = math.nan
    for ours, theirs in zip(viterbi(start, transition, emission, mask), viterbi(start, transition, changed, mask)):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("change,says", [
    (dict(log_start=torch.zeros(2, 4)), "log_start must be"), (dict(log_transition=torch.zeros(3, 4)), "log_transition must be"),
    (dict(log_emission=torch.zeros(2, 0, 3)), "log_emission must be"), (dict(mask=torch.ones(2, 5)), "mask must be boolean"),
    (dict(mask=torch.tensor([[True] * 5, [True, False, True, True, True]])), "mask must be True for the first"),
    (dict(mask=torch.tensor([[True] * 5, [False] * 5])), "mask must be True for the first"),
    (dict(log_emission=torch.full((2, 5, 3), math.nan)), "not numbers")])
def test_bad_trellis(change, says):
    given = dict(log_start=torch.zeros(2, 3), log_transition=torch.zeros(3, 3), log_emission=torch.zeros(2, 5, 3)) | change
    with pytest.raises(ValueError, match=says) as error:
        viterbi(**given)
    assert "\n" not in str(error.value)

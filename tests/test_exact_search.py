"""A* and Viterbi against all sentences and all paths."""
import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from tables import RULES, Marked, Tables, exhaustive, norm_of, same, sources
from transformer_course.search.beam import beam_search
from transformer_course.search.exact import Proof, astar_search, viterbi
from transformer_course.search.word_rules import NoRepeatedNgrams


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


@given(astar_problems, st.integers(1, 4), st.integers(0, 10**6), st.booleans())
def test_astar_with_a_limit_for_each_sentence(problem, width, seed, informed):
    n, max_len = problem.pop("n"), problem["max_len"]
    model, limits = Tables(n, **problem), torch.randint(1, max_len + 1, (n,), generator=torch.Generator().manual_seed(seed))
    heuristic = bounds_by_last_word(model, n, max_len)[:, :limits.max() + 1] if informed else None
    proof = astar_search(model, sources(n), limits, heuristic, width=width)
    assert proof.proven.all()
    for source, (nbest, limit) in enumerate(zip(proof.found.nbest, limits.tolist())):
        same(nbest, exhaustive(model, source, limit, norm_of("length", 0.0))[:1])
    assert torch.equal(proof.found.scores, proof.found.log_probs)


def test_astar_begins_with_what_the_model_says():
    told, plain = Marked(9, 6, 4, seed=3), Tables(9, 6, 4, seed=3)
    assert astar_search(told, sources(5), 4).found.nbest == astar_search(plain, sources(5) + 3, 4).found.nbest


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("name", RULES)
def test_astar_keeps_a_rule(name, width):
    n, V, max_len = 5, 6, 5
    model, (make, keeps) = Tables(n, V, max_len, seed=5), RULES[name]
    for table in model.tables:
        table[..., 3] += 2.0
        table[..., 2] -= 2.0
    proof = astar_search(model, sources(n), max_len, width=width, adjust=make(n))
    assert proof.proven.all()
    for source, nbest in enumerate(proof.found.nbest):
        pairs = exhaustive(model, source, max_len, norm_of("length", 0.0))
        same(nbest, [pair for pair in pairs if keeps(source, pair[0])][:1])


@dataclass
class Timeless:
    """A state without a length: nodes of different lengths share a step."""

    last: torch.Tensor

    def select(self, rows):
        return Timeless(self.last[rows])


class Pairs:
    """The next word depends on the last one."""

    training, pad_id, bos_id, eos_id = False, 0, 1, 2

    def __init__(self, V, seed):
        self.table = 2 * torch.randn(V, V, generator=torch.Generator().manual_seed(seed))
        self.table[:, 2] -= 3.0

    def start(self, src):
        return Timeless(src[:, 0])

    def step(self, state, token):
        return self.table[token], Timeless(token)


def test_a_rule_sees_prefixes_of_every_length():
    """Nodes of several lengths in one step; every call of the rule gets those of one length, whole."""
    model, shapes = Pairs(8, seed=1), []

    def no_bigram_twice(logp, words, sentence):
        shapes.append(tuple(words.shape))
        return NoRepeatedNgrams(2)(logp, words, sentence)

    proof = astar_search(model, sources(2), 7, width=6, adjust=no_bigram_twice)
    wide = beam_search(model, sources(2), 5 ** 6, 7, length_penalty=0.0, exact_stop=True, adjust=NoRepeatedNgrams(2))
    assert proof.proven.all() and [nbest[0][0] for nbest in proof.found.nbest] == [nbest[0][0] for nbest in wide.nbest]
    assert len({t for n, t in shapes}) > 3


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

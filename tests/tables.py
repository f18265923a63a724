"""Translators made of tables, the exhaustive search that their size allows, and ways to compare what was found."""
import itertools
import math
from dataclasses import dataclass

import torch
from torch.testing import assert_close

from transformer_course.search.word_rules import ForbiddenWords, ForcedBeginning, NoRepeatedNgrams


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


def exhaustive(model, source, max_len, norm):
    found = [(model.logp(source, (*words, model.eos_id)) / norm(t), [*words, model.eos_id])
             for t in range(1, max_len + 1) for words in itertools.product(model.words(), repeat=t - 1)]
    return [(words, score) for score, words in sorted(found, reverse=True)]


def norm_of(kind, penalty):
    return lambda length: (length if kind == "length" else (5 + length) / 6) ** penalty


def same(ours, theirs):
    assert [words for words, score in ours] == [words for words, score in theirs]
    assert_close([s for w, s in ours], [s for w, s in theirs], atol=1e-4, rtol=1e-4)


def sources(n):
    return torch.arange(n)[:, None].repeat(1, 3)


class Marked(Tables):
    """A model that is told by the first word it reads which table to use; each row has a first word of its own."""

    def first(self, src):
        return src[:, 0] + 3

    def start(self, src):
        return Seen(torch.zeros_like(src[:, 0]), torch.zeros_like(src[:, 0]), 0)

    def step(self, state, token):
        return super().step(state if state.length else Seen(token, state.prefix, 0), token)


class OneEach:
    """A rule that forbids another word in each sentence."""

    def __call__(self, logp, words, sentence):
        return logp.scatter(1, 3 + sentence[:, None] % 3, -math.inf)


# for each rule a function of the number of sentences that makes it, and which sentences keep it
RULES = {"forbidden": (lambda n: ForbiddenWords([3, 5]), lambda source, words: not {3, 5} & set(words)),
         "forced": (lambda n: ForcedBeginning([[4, 3][:source % 3] for source in range(n)]),
                    lambda source, words: words[:source % 3] == [4, 3][:source % 3]),
         "one each": (lambda n: OneEach(), lambda source, words: 3 + source % 3 not in words),
         "unigrams": (lambda n: NoRepeatedNgrams(1), lambda source, words: len(set(words)) == len(words)),
         "bigrams": (lambda n: NoRepeatedNgrams(2), lambda source, words: len({*zip(words, words[1:])}) == len(words) - 1),
         "trigrams": (lambda n: NoRepeatedNgrams(3), lambda source, words: len({*zip(words, words[1:], words[2:])}) == max(0, len(words) - 2))}

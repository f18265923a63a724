"""Three questions about search, each with two ways to the same result, which is checked before anything is timed.

    python benchmarks/search.py [--rounds 20] [--device cpu]

Choosing continuations: one step for 100 sentences over 8,000 words, with a beam of 5 (the six best of 40,000 for each
sentence), and greedily (the best of 8,000); log_softmax and topk over everything, against the course's search.
A whole beam search of a recurrent translator with random weights: all sentences together, one by one, and naively with
a step for each hypothesis. A* with h = 0 and with a bound from a relaxed problem, on random tables.
Results go to benchmarks/results/search.json.
"""
import argparse
import math
from dataclasses import dataclass

import torch
from torch.testing import assert_close

from timing import interleaved, record, show, summary
from transformer_course.models.seq2seq import Seq2Seq
from transformer_course.search.beam import beam_search
from transformer_course.search.exact import astar_search
from transformer_course.search.top_k import end_and_best_words

B, V = 100, 8000
SENTENCES, WORDS, BEAM, LONGEST = 30, 1000, 5, 15
TABLES, TABLE_WORDS, TABLE_LONGEST = 60, 12, 10


def log_probs(logits, banned):
    return logits.float().log_softmax(-1).index_fill_(1, banned, -math.inf)


def plain(logits, scores, banned, eos_id, count):
    """log_softmax of all logits, scores added, topk over the W V extensions of each sentence."""
    logp = log_probs(logits, banned)
    total = scores[:, :, None] + logp.view(*scores.shape, -1)
    ends = total[:, :, eos_id].clone()
    total[:, :, eos_id] = -math.inf
    best, place = total.flatten(1).topk(count)
    return best, place // V, place % V, ends


def grouped(logits, scores, banned, eos_id, count):
    """What beam search does: the best words of each hypothesis from groups, then the best of those."""
    (n, W), C = scores.shape, count
    end, best, word = end_and_best_words(logits, lambda some: log_probs(some, banned), eos_id, C)
    best, place = (scores[:, :, None] + best.view(n, W, C)).flatten(1).topk(count)
    return best, place // C, word.view(n, W * C).gather(1, place), scores + end.view(n, W)


def plain_max(logits, scores, banned, eos_id, count):
    """What greedy search does: log_softmax and the position of the maximum."""
    logp = log_probs(logits, banned)
    word = logp.argmax(-1, keepdim=True)
    return logp.gather(1, word) + scores, torch.zeros_like(word), word, scores + logp[:, eos_id, None]


def naive_beam(model, src):
    """n-best lists of log p, one step for each hypothesis of each sentence; stops when BEAM have finished."""
    found = []
    for row in src:
        live, finished = [([model.bos_id], 0.0, model.start(row[None]))], []
        for t in range(LONGEST):
            candidates = []
            for words, score, state in live:
                logits, after = model.step(state, src.new_tensor([words[-1]]))
                logp = logits[0].log_softmax(-1).index_fill(0, src.new_tensor([model.pad_id, model.bos_id]), -math.inf)
                candidates += [([*words, word], score + more, after) for word, more in enumerate(logp.tolist())]
            candidates.sort(key=lambda candidate: -candidate[1])
            may_end = candidates if t == LONGEST - 1 else candidates[:BEAM]       # in the last place no word can follow
            finished += [pair for pair in may_end if pair[0][-1] == model.eos_id]
            live = [candidate for candidate in candidates[:2 * BEAM] if candidate[0][-1] != model.eos_id][:BEAM]
            if len(finished) >= BEAM:
                break
        ranked = sorted(finished or live, key=lambda pair: -pair[1])[:BEAM]
        found.append([(words[1:], score) for words, score, state in ranked])
    return found


def whole_searches(device):
    """Three ways to do the same beam search."""
    model = Seq2Seq(WORDS, WORDS, d_model=64, d_hidden=128, cell="gru", dropout=0.0).to(device).eval()
    with torch.no_grad():       # sharper than at birth
        for parameter in model.parameters():
            parameter.mul_(2)
    src = torch.randint(4, WORDS, (SENTENCES, 9), device=device)
    search = lambda part: beam_search(model, part, BEAM, LONGEST, length_penalty=0.0).nbest
    candidates = {"naive, a step for each hypothesis": lambda: naive_beam(model, src),
                  "sentence by sentence": lambda: [search(row[None])[0] for row in src], "all together": lambda: search(src)}
    together = search(src)
    for call in candidates.values():
        for ours, theirs in zip(call(), together, strict=True):
            assert_close([score for words, score in ours], [score for words, score in theirs], rtol=1e-3, atol=1e-3)
    return candidates


@dataclass
class LastTwo:
    """The state of a model that looks at two words."""

    source: torch.Tensor
    last: torch.Tensor

    def select(self, rows):
        return LastTwo(self.source[rows], self.last[rows])


class Tables:
    """A translator with a row of logits for every source and every two last words."""

    pad_id, bos_id, eos_id, training = 0, 1, 2, False

    def __init__(self, device):
        self.logits = 2 * torch.randn(TABLES, TABLE_WORDS, TABLE_WORDS, TABLE_WORDS, device=device)
        self.logits[..., 2] -= 3
        self.logits[..., :2] = -math.inf

    def start(self, src):
        return LastTwo(src[:, 0], torch.full_like(src[:, 0], self.bos_id))

    def step(self, state, token):
        return self.logits[state.source, state.last, token], LastTwo(state.source, token)

    def bound(self):
        """What can be added at best if the last word but one may be chosen at every step, (sources, t, last word)."""
        best = self.logits.log_softmax(-1).amax(1)
        h = torch.full((TABLES, TABLE_LONGEST + 1, TABLE_WORDS), -math.inf, device=best.device)
        for t in reversed(range(TABLE_LONGEST)):
            further = best + h[:, t + 1, None]
            further[..., 2] = best[..., 2]
            h[:, t] = further.amax(-1)
        return h


def exact_searches(device):
    """A* with and without a bound, and how many prefixes each continues."""
    model, src = Tables(device), torch.arange(TABLES, device=device)[:, None]
    bound = model.bound()
    candidates = {"h = 0": lambda: astar_search(model, src, TABLE_LONGEST),
                  "relaxed bound": lambda: astar_search(model, src, TABLE_LONGEST, bound),
                  "relaxed bound, made anew": lambda: astar_search(model, src, TABLE_LONGEST, model.bound())}
    proofs = {name: call() for name, call in candidates.items()}
    for proof in proofs.values():
        assert proof.proven.all()
        assert_close(proof.found.scores, proofs["h = 0"].found.scores)
    return candidates, {name: proof.expanded.float().mean().item() for name, proof in proofs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    device, figures = torch.device(given.device), {"rounds": given.rounds, "sizes": {
        "B": B, "V": V, "whole search": {"sentences": SENTENCES, "words": WORDS, "beam": BEAM, "longest": LONGEST},
        "A*": {"tables": TABLES, "words": TABLE_WORDS, "longest": TABLE_LONGEST}}}
    torch.manual_seed(1)
    banned = torch.tensor([0, 1, 2], device=device)
    for title, width, count in (("beam of 5", 5, 6), ("greedy", 1, 1)):
        logits = 3 * torch.randn(B * width, V, device=device)
        scores = -5 * torch.rand(B, width, device=device)
        choices = {"log_softmax and topk": plain, "groups, then topk": grouped}
        if width == count == 1:
            choices["log_softmax and max"] = plain_max
        arguments = logits, scores, banned, 2, count
        for choose in choices.values():
            assert_close(tuple(choose(*arguments)), tuple(plain(*arguments)))
        candidates = {name: (lambda choose=choose: choose(*arguments)) for name, choose in choices.items()}
        with torch.inference_mode():
            rows = summary(interleaved(candidates, given.rounds, device), "log_softmax and topk")
        show(f"{title}, {B} sentences, {V:,} words", rows, "log_softmax and topk")
        figures[title] = rows
    exact, continued = exact_searches(device)
    for title, candidates, rounds in ((f"beam of {BEAM}, whole search", whole_searches(device), max(2, given.rounds // 5)),
                                      ("A*", exact, max(2, given.rounds // 5))):
        base = next(iter(candidates))
        rows = summary(interleaved(candidates, rounds, device), base)
        show(title, rows, base)
        figures[title] = rows
    for name, count in continued.items():
        figures["A*"][name]["prefixes continued per sentence"] = count
        print(f"{name:34} {count:9.1f} prefixes continued per sentence")
    print(f"\nrecorded in {record('search', figures)}")


if __name__ == "__main__":
    main()

"""Choosing the best continuations: log_softmax and topk over everything, against the course's search.

    python benchmarks/search.py [--rounds 20] [--device cpu]

One step for 100 sentences over 8,000 words: with a beam of 5 (the ten best of 40,000 for each sentence), and greedily
(the best of 8,000). Before anything is timed, both must choose the same. Results go to benchmarks/results/search.json.
"""
import argparse
import math

import torch
from torch.testing import assert_close

from timing import interleaved, record, show, summary
from transformer_course.search import _continuations

B, V = 100, 8000


def flat(logits, scores, banned, count):
    """log_softmax of all logits, scores added, topk over the W V extensions of each sentence."""
    logp = logits.float().log_softmax(-1).index_fill_(1, banned, -math.inf).view(*scores.shape, -1) + scores[..., None]
    best, place = logp.flatten(1).topk(count)
    return best, place // logits.shape[1], place % logits.shape[1]


def flat_max(logits, scores, banned, count):
    """For one live hypothesis and one continuation: log_softmax and a maximum."""
    best, word = logits.float().log_softmax(-1).index_fill_(1, banned, -math.inf).max(-1, keepdim=True)
    return best + scores, torch.zeros_like(word), word


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    device, figures = torch.device(given.device), {"sizes": {"B": B, "V": V}, "rounds": given.rounds}
    torch.manual_seed(1)
    banned = torch.tensor([0, 1], device=device)
    for title, width, count in (("beam of 5", 5, 10), ("greedy", 1, 1)):
        logits = 3 * torch.randn(B * width, V, device=device)
        scores = -5 * torch.rand(B, width, device=device)
        choices = {"log_softmax and topk": flat, "groups, then topk": _continuations}
        if width == count == 1:
            choices["log_softmax and max"] = flat_max
        for choose in choices.values():
            assert_close(choose(logits, scores, banned, count), flat(logits, scores, banned, count))
        candidates = {name: (lambda choose=choose: choose(logits, scores, banned, count)) for name, choose in choices.items()}
        with torch.inference_mode():
            rows = summary(interleaved(candidates, given.rounds, device), "log_softmax and topk")
        show(f"{title}, {B} sentences, {V:,} words", rows, "log_softmax and topk")
        figures[title] = rows
    print(f"\nrecorded in {record('search', figures)}")


if __name__ == "__main__":
    main()

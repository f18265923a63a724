"""Who thanks whom? One head and two heads of equal size, with and without positions.

    python experiments/two_questions.py --seeds 1 2 3 --steps 600

A sentence is a name, a verb and another name. The verb's word asks all three words by self-attention; from the answer
one linear layer reads who acts and on whom. One head and two heads have the same number of parameters. Guessing gets
both names right once in 24 * 23 sentences; knowing both names without their order, at most once in two.
Writes results/two_questions.json.
"""
import argparse
import math

import torch
from records import facts, write
from torch import nn
from torch.nn import functional as F

NAMES, D = 24, 16


class Heads(nn.Module):
    """Multi-head attention of the first words over all words, plainly."""

    def __init__(self, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(D, D) for matrix in "qkvo")

    def forward(self, query, words):                                   # (B, 1, D), (B, 3, D) -> (B, D)
        cut = [y.chunk(self.n_heads, dim=-1) for y in (self.w_q(query), self.w_k(words), self.w_v(words))]
        found = [(q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v for q, k, v in zip(*cut)]
        return self.w_o(torch.cat(found, dim=-1))[:, 0]


class Reader(nn.Module):
    """From a sentence (B, 3) a score for each name as the one who acts, and as the other: (B, 2, names)."""

    def __init__(self, n_heads, positions):
        super().__init__()
        self.word, self.place = nn.Embedding(NAMES + 1, D), nn.Embedding(3, D)
        self.positions, self.look, self.read_out = positions, Heads(n_heads), nn.Linear(D, 2 * NAMES)

    def forward(self, sentences):
        x = self.word(sentences) + self.positions * self.place.weight                                  # (B, 3, D)
        return self.read_out(self.look(x[:, 1:2], x)).unflatten(1, (2, -1))


def sentences(draw, B=64):
    """Sentences (B, 3), name, verb, name, and the two names (B, 2)."""
    names = torch.rand(B, NAMES, generator=draw).topk(2).indices
    return torch.stack((names[:, 0], torch.full((B,), NAMES), names[:, 1]), 1), names


def train(n_heads, positions, seed, steps):
    torch.manual_seed(seed)
    model, draw = Reader(n_heads, positions), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        given, names = sentences(draw)
        loss = F.cross_entropy(model(given).flatten(0, 1), names.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model


@torch.inference_mode()
def score(model, n=2000):
    """Shares of new sentences in which the first, the second, and both names are right."""
    given, names = sentences(torch.Generator().manual_seed(4), n)
    right = (model(given).argmax(-1) == names).float()
    return [round(x, 4) for x in (*right.mean(0).tolist(), right.prod(-1).mean().item())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=600)
    given = parser.parse_args()
    torch.set_num_threads(1)
    runs = []
    for positions in (False, True):
        for n_heads in (1, 2):
            for seed in given.seeds:
                model = train(n_heads, positions, seed, given.steps)
                first, second, both = score(model)
                size = sum(p.numel() for p in model.parameters())
                runs.append({"positions": positions, "heads": n_heads, "seed": seed, "parameters": size,
                             "first": first, "second": second, "both": both})
                print(runs[-1], flush=True)
    print(write("two_questions", {**facts(), "names": NAMES, "d_model": D, "steps": given.steps, "runs": runs}))


if __name__ == "__main__":
    main()

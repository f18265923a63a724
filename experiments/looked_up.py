"""Say the word three positions to the left: lessons 21 and 21a's small model with three seeds, alike but for its positions.

    python experiments/looked_up.py --seeds 1 2 3

*codes*: the seven codes of lesson 21, trained on texts of 8 to 20 words, asked on 14. *sizes*: its sines shifted and made smaller, and
one of these trained for longer. *one length*: sines of the count and of the share of the text, trained on 14 words and asked on others.
*schemes*: the six schemes of lesson 21a behind a causal mask, asked for the last five words of longer texts. Nothing is chosen by the
results. Writes results/looked_up.json; about a minute. One thread.
"""
import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from records import facts, write
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_course.models.attention import MultiHeadAttention
from transformer_course.models.functional import causal_mask
from transformer_course.models.positions import sinusoids
from transformer_course.models.relative_positions import ALiBi, InAttention, Relative, Rotary

D, HEADS, BACK, STEPS, LONGER, RATE, ROWS, ASKED_ROWS = 32, 2, 3, 300, 800, 0.005, 32, 200
TRAINED, MIDDLE = range(8, 21), 14
AROUND, BEYOND = (8, 10, 12, 14, 16, 18, 20), (10, 15, 20, 25, 30, 40, 60)


class Mapped(nn.Module):
    """Codes of n numbers a position, through a trained (n, D) matrix."""

    def __init__(self, code):
        super().__init__()
        self.code, self.matrix = code, nn.Linear(code(9).shape[1], D, bias=False)
        nn.init.normal_(self.matrix.weight)

    def forward(self, length):
        return self.matrix(self.code(length))


class Table(nn.Module):
    """A trained vector for each of 64 positions."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.randn(64, D))

    def forward(self, length):
        return self.rows[:length]


def integers(length: int) -> Tensor:
    return torch.arange(length).float()[:, None]


def digits(length: int) -> Tensor:
    return torch.stack([torch.arange(length) // 2**i % 2 for i in range(5)], 1).float()


def sines(length: int) -> Tensor:
    return sinusoids(torch.arange(length), D)


def sines_of_the_share(length: int) -> Tensor:
    return sinusoids(torch.arange(length) * 13 / (length - 1), D)


CODES = {"none": lambda: None, "integers": lambda: Mapped(integers), "integers ÷ 20": lambda: Mapped(lambda n: integers(n) / 20),
         "normalised": lambda: Mapped(lambda n: integers(n) / (n - 1)), "binary": lambda: Mapped(digits),
         "sines": lambda: sines, "learned": Table}
CHANGED = {"sines": (0, 1.0), "shifted by 1": (1, 1.0), "times ½": (0, 0.5), "shifted, then ½": (1, 0.5), "times 0.1": (0, 0.1)}
SCHEMES = {"none": (lambda: None, None), "sinusoidal": (lambda: sines, None), "learned": (Table, None),
           "relative": (lambda: None, lambda: Relative(D // HEADS, clip=8)), "rotary": (lambda: None, lambda: Rotary(D // HEADS)),
           "alibi": (lambda: None, lambda: ALiBi(HEADS))}


class Small(nn.Module):
    """Nine words, one layer of attention, an answer for each word."""

    def __init__(self, codes, inside: InAttention | None, causal: bool):
        super().__init__()
        self.embedding, self.codes, self.causal = nn.Embedding(10, D), codes, causal
        self.attention = MultiHeadAttention(D, HEADS)
        self.inner = nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D))
        self.answer = nn.Linear(D, 10)
        self.inside = inside or InAttention()

    def forward(self, tokens: Tensor) -> Tensor:                                      # (B, S) -> (B, S, 10)
        x, S = self.embedding(tokens), tokens.shape[1]
        if self.codes is not None:
            x = x + self.codes(S)
        q, k, v = self.attention.project(x)
        q, k = self.inside.rotate_query(q), self.inside.rotate_key(k)
        x = x + self.attention.attend(q, k, v, causal_mask(S) if self.causal else None, bias=self.inside.score_bias(q, S))[0]
        return self.answer(x + self.inner(x))


@dataclass(frozen=True)
class Way:
    """How a model is told the positions and trained."""

    codes: Callable = lambda: None
    inside: Callable | None = None
    causal: bool = False
    lengths: tuple[int, ...] = tuple(TRAINED)
    steps: int = STEPS


def trained(way: Way, seed: int) -> Small:
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    model = Small(way.codes(), way.inside() if way.inside else None, way.causal)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
    for step in range(way.steps):
        tokens = torch.randint(1, 10, (ROWS, way.lengths[step % len(way.lengths)]), generator=draw)
        answers = F.pad(tokens[:, :-BACK], (BACK, 0), value=-100)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), answers.flatten(), ignore_index=-100)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model


@torch.no_grad()
def share_right(model: Small, length: int, last: int = 0) -> float:
    """On new words; of all positions, or of the last so many."""
    tokens = torch.randint(1, 10, (ASKED_ROWS, length), generator=torch.Generator().manual_seed(length))
    right = model(tokens)[:, BACK:].argmax(-1) == tokens[:, :-BACK]
    return round(right[:, -last:].float().mean().item(), 4)


def runs(name: str, way: Way, seeds: list[int], asked: tuple[int, ...], last: int = 0) -> list[dict]:
    """What the model of each seed gets right at each length."""
    found = []
    for seed in seeds:
        began, model = time.process_time(), trained(way, seed)
        found.append({"seed": seed, "right": [share_right(model, length, last) for length in asked],
                      "cpu_seconds": round(time.process_time() - began, 1)})
        print(name, found[-1], flush=True)
    return found


def smaller(shift: float, scale: float) -> Callable:
    """Makes sines that are shifted, then scaled."""
    return lambda: lambda length: (sines(length) + shift) * scale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    one_length = {"sines of the count": lambda: sines, "sines of the share": lambda: sines_of_the_share}
    sizes = {name: Way(smaller(*how)) for name, how in CHANGED.items()}
    sizes["shifted, then ½, for longer"] = Way(smaller(1, 0.5), steps=LONGER)
    parts = {"codes": ({name: Way(codes) for name, codes in CODES.items()}, (MIDDLE,), 0),
             "sizes": (sizes, (MIDDLE,), 0),
             "one length": ({name: Way(codes, lengths=(MIDDLE,)) for name, codes in one_length.items()}, AROUND, 0),
             "schemes": ({name: Way(*how, causal=True) for name, how in SCHEMES.items()}, BEYOND, 5)}
    print(write("looked_up", {
        **facts(), "seeds": seeds, "steps": STEPS, "longer": LONGER, "rate": RATE, "rows": ROWS, "back": BACK, "trained": list(TRAINED),
        **{part: {"asked": list(asked), "last": last, "runs": {name: runs(name, way, seeds, asked, last) for name, way in ways.items()}}
           for part, (ways, asked, last) in parts.items()}}))


if __name__ == "__main__":
    main()

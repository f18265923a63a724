"""Train short, test long: small causal language models of micro-text, alike but for how they are told the positions.

    python experiments/positions.py --seeds 1 2 3 --steps 400

Every model reads chunks of 32 words of the running text in training, and of 128 words of `test` afterwards. Nothing is
chosen by the results. Writes results/positions.json: for each scheme and seed, the mean loss of each block of 16 places.
"""
import argparse
import time

import torch
from records import facts, write
from torch import nn
from torch.nn import functional as F

from transformer_course.data.corpora import load
from transformer_course.models.attention import MultiHeadAttention
from transformer_course.models.functional import causal_mask
from transformer_course.models.positions import Learned, Sinusoidal
from transformer_course.models.relative_positions import ALiBi, InAttention, Relative, Rotary

SCHEMES = ("none", "sinusoidal", "learned", "relative", "rotary", "alibi", "integers", "normalised", "binary")
D, HEADS, LAYERS, TRAINED, TESTED, BLOCK, CHUNKS = 48, 4, 2, 32, 128, 16, 60


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual."""

    def __init__(self, scheme):
        super().__init__()
        self.attention = MultiHeadAttention(D, HEADS)
        self.norms = nn.ModuleList([nn.LayerNorm(D), nn.LayerNorm(D)])
        self.inner = nn.Sequential(nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D))
        makers = {"relative": lambda: Relative(D // HEADS, clip=8), "rotary": lambda: Rotary(D // HEADS), "alibi": lambda: ALiBi(HEADS)}
        self.positions = makers.get(scheme, InAttention)()

    def forward(self, x):                                            # (B, T, D)
        q, k, v = self.attention.project(self.norms[0](x))
        q, k = self.positions.rotate_query(q), self.positions.rotate_key(k)
        x = x + self.attention.attend(q, k, v, causal_mask(x.shape[1]), bias=self.positions.score_bias(q, x.shape[1]))[0]
        return x + self.inner(self.norms[1](x))


class Mapped(nn.Module):
    """Positions written as numbers, through a trained matrix."""

    NUMBERS = {"integers": lambda length: torch.arange(length).float()[:, None],
               "normalised": lambda length: torch.linspace(0, 1, length)[:, None],
               "binary": lambda length: torch.stack([torch.arange(length) // 2**i % 2 for i in range(7)], 1).float()}

    def __init__(self, scheme):
        super().__init__()
        self.numbers = self.NUMBERS[scheme]
        self.matrix = nn.Linear(self.numbers(2).shape[1], D, bias=False)
        nn.init.normal_(self.matrix.weight)

    def forward(self, start, length):
        return self.matrix(self.numbers(start + length))[start:]


class Reader(nn.Module):
    """A causal language model with one of the schemes."""

    def __init__(self, scheme, words):
        super().__init__()
        self.embedding = nn.Embedding(words, D)
        self.codes = {"sinusoidal": Sinusoidal(D), "learned": Learned(D, TESTED)}.get(scheme)
        if scheme in Mapped.NUMBERS:
            self.codes = Mapped(scheme)
        self.layers = nn.Sequential(*(Layer(scheme) for layer in range(LAYERS)))
        self.answer = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, words))

    def forward(self, tokens):                                       # (B, T) -> (B, T, words)
        x = self.embedding(tokens)
        return self.answer(self.layers(x if self.codes is None else x + self.codes(0, tokens.shape[1])))


def read(corpus):
    """The running text of train and test as ids, with a mark before each text."""
    texts = {split: [word for text in corpus[split] for word in f"<s> {text.text}".split()] for split in ("train", "test")}
    number = {word: i for i, word in enumerate(sorted(set(texts["train"])))}
    return {split: torch.tensor([number[w] for w in words if w in number]) for split, words in texts.items()}, len(number)


def chunks(text, n, length, generator):
    """(n, length + 1) ids from random places."""
    starts = torch.randint(len(text) - length, (n, 1), generator=generator)
    return text[starts + torch.arange(length + 1)]


def run(scheme, seed, steps, text, words):
    torch.manual_seed(seed)
    model, draw, begun = Reader(scheme, words), torch.Generator().manual_seed(seed), time.time()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = 3e-3 * min(1, (step + 1) / 50) * (1 - step / steps)
        batch = chunks(text["train"], 16, TRAINED, draw)
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.inference_mode():
        batch = chunks(text["test"], CHUNKS, TESTED, torch.Generator().manual_seed(0))
        losses = F.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:], reduction="none").mean(0)
    blocks = [round(block.mean().item(), 4) for block in losses.split(BLOCK)]
    return {"seed": seed, "seconds": round(time.time() - begun, 1), "loss_by_block": blocks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=400)
    given = parser.parse_args()
    torch.set_num_threads(1)
    (text, words), runs = read(load("micro-text")), {scheme: [] for scheme in SCHEMES}
    for seed in given.seeds:
        for scheme in SCHEMES:
            runs[scheme].append(run(scheme, seed, given.steps, text, words))
            print(scheme, runs[scheme][-1], flush=True)
    print(write("positions", {**facts(), "corpus": "micro-text", "d_model": D, "heads": HEADS, "layers": LAYERS, "steps": given.steps,
                              "trained_words": TRAINED, "tested_words": TESTED, "block": BLOCK, "seeds": given.seeds, "schemes": runs}))


if __name__ == "__main__":
    main()

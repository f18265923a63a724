"""Translators that read typing errors: words, pieces, pieces cut anew in each epoch, runs of letters, characters; and training with typos.

    python experiments/typing_errors.py --seeds 1 2 3

All translators are the same Transformer with rotary positions. In each step all of them get the same sentence pairs of micro-Hindi, and their
Hindi is cut into words. They differ in how the English is cut, or in their training sources: for "BPE, noise", half of the sentences of an epoch,
drawn anew, have swapped letters in 15 % of their long words. A rate is searched for each translator with seed 1, by the loss on valid without
typos, until a worse one lies on either side. The figures are BLEU, chrF and exact match on the first 300 pairs of test, greedily translated,
without typos and with each kind of typos at three rates, and the translations of one sentence. Writes results/typing_errors.json after each run,
and goes on where an earlier call stopped. One thread, some 25 minutes of it.
"""
import argparse
import json
import random
import time
from dataclasses import dataclass
from functools import cache

import torch
from records import RESULTS, best_rate, facts, write
from torch import nn

from transformer_course.data.batching import collate
from transformer_course.data.corpora import load
from transformer_course.data.text import Tokenizer
from transformer_course.data.typos import KINDS, with_typos
from transformer_course.models.transformer import Transformer
from transformer_course.pipelines.decoding import translate
from transformer_course.pipelines.searching import SearchOptions
from transformer_course.scoring import bleu, chrf, exact_match
from transformer_course.training.loop import evaluate_loss
from transformer_course.training.schedules import linear_decay
from transformer_course.training.settings import Settings
from transformer_course.training.trainer import fit

NAME, D_MODEL, ROWS, STEPS, WARMUP, FIRST = "typing_errors", 64, 32, 600, 100, 0.01
RATES, TEST, NOISY, STRENGTH = (0.1, 0.3, 0.6), 300, 0.5, 0.15
SENTENCE, TYPED = "sita was speaking english behind the new hospital", (0.0, 0.2, 0.4, 0.7, 1.0)
UNITS = {"words": ("words", 2000), "BPE": ("bpe", 600), "characters": ("characters", 100)}       # and "runs"


@dataclass(frozen=True)
class Reader:
    unit: str
    dropout: float = 0.0            # of merges, in training
    noise: tuple[str, ...] = ()     # kinds of typos in the training sources


READERS = {"words": Reader("words"), "BPE": Reader("BPE"), "BPE, noise": Reader("BPE", noise=("swap",)),
           "runs of letters": Reader("runs"), "BPE-dropout": Reader("BPE", dropout=0.1), "characters": Reader("characters")}


@cache
def data():
    return load("micro-hindi")


class Spelling:
    """The id of a word is its number among all words met so far, and the word is known by its runs of one to three letters."""

    def __init__(self, texts: list[str]):
        self.runs = {run: n for n, run in enumerate(sorted({run for text in texts for word in text.split(" ") for run in runs_of(word)}))}
        self.words = {None: 0, "<bos>": 1, "<eos>": 2, "<unk>": 3}

    def encode_many(self, texts: list[str], dropout: float = 0.0, seed: int = 0) -> list[list[int]]:
        return [[self.words.setdefault(word, len(self.words)) for word in text.split(" ")] for text in texts]


def runs_of(word: str) -> list[str]:
    """`hat` is h, a, t, <h, ha, at, t>, <ha, hat, at>."""
    framed = f"<{word}>"
    return [framed[i:i + n] for n in (1, 2, 3) for i in range(len(framed) - n + 1) if framed[i:i + n] not in "<>"]


class SpelledEmbedding(nn.Module):
    """A word's vector is the sum of the vectors of its runs, those that training has, over the root of their number."""

    def __init__(self, spelling: Spelling, d_model: int):
        super().__init__()
        self.spelling, self.table, self.special = spelling, nn.EmbeddingBag(len(spelling.runs), d_model, mode="sum"), nn.Embedding(4, d_model)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:                           # (B, S) -> (B, S, D)
        unique, inverse = ids.unique(return_inverse=True)
        words, known = list(self.spelling.words), self.spelling.runs
        bags = [[known[run] for run in runs_of(words[i]) if run in known] if i > 3 else [] for i in unique.tolist()]
        starts = torch.tensor([0, *map(len, bags)]).cumsum(0)[:-1]
        vectors = self.table(torch.tensor([run for bag in bags for run in bag], dtype=torch.long), starts)
        vectors = vectors / torch.tensor([max(1, len(bag)) for bag in bags])[:, None].sqrt()
        special = self.special(unique.clamp(max=3)) * (unique <= 3)[:, None]
        return (vectors + special)[inverse]


@dataclass(frozen=True)
class Sides:
    """English is cut in one of UNITS, or spelled; Hindi is always cut into words."""

    source: Tokenizer | Spelling
    targets: Tokenizer

    def encode_many(self, texts, **how):
        return self.source.encode_many(texts, **how)

    eos_id, bos_id, pad_id = Tokenizer.eos_id, Tokenizer.bos_id, Tokenizer.pad_id


@cache
def tokenizers(unit: str) -> Sides:
    train = data()["train"]
    hindi = Tokenizer.train([pair.target for pair in train], kind="words", size=2000)
    if unit == "runs":
        return Sides(Spelling([pair.source for pair in train]), hindi)
    kind, size = UNITS[unit]
    return Sides(Tokenizer.train([pair.source for pair in train], kind=kind, size=size), hindi)


@dataclass(frozen=True)
class Batches:
    """The same pairs in each step for every reader; cut, and given typos, anew in each epoch."""

    reader: Reader
    pairs: list

    def source(self, text: str, seed: int, epoch: int) -> str:
        draw = random.Random(f"noise {seed} {epoch} {text}")
        if not self.reader.noise or draw.random() >= NOISY:
            return text
        kind = self.reader.noise[draw.randrange(len(self.reader.noise))]
        return with_typos(text, STRENGTH, kind, seed=1000 * seed + epoch)

    def plan(self, seed: int, epoch: int) -> list[list]:
        """A batch is the list of its examples."""
        both, draw = tokenizers(self.reader.unit), random.Random(f"batches {seed} {epoch}")
        sources = [self.source(pair.source, seed, epoch) for pair in self.pairs]
        sources = both.encode_many(sources, dropout=self.reader.dropout, seed=1000 * seed + epoch)
        targets = both.targets.encode_many([pair.target for pair in self.pairs])
        examples = [(src + [both.eos_id], [both.bos_id] + tgt + [both.eos_id]) for src, tgt in zip(sources, targets)]
        order = sorted(range(len(examples)), key=lambda i: draw.random())
        pools = [sorted(order[i:i + 16 * ROWS], key=lambda i: len(self.pairs[i].target)) for i in range(0, len(order), 16 * ROWS)]
        batches = [[examples[i] for i in pool[j:j + ROWS]] for pool in pools for j in range(0, len(pool), ROWS)]
        return sorted(batches, key=lambda batch: draw.random())

    def in_order(self) -> list[list]:
        return Batches(Reader(self.reader.unit), self.pairs).plan(0, 0)       # for valid: whole pieces, no typos

    def collate(self, batch, device=None):
        return collate(batch, range(len(batch)), Tokenizer.pad_id, device)

    def tokens(self, batch) -> int:
        return sum(len(target) - 1 for source, target in batch)

    def fingerprint(self) -> str:
        return f"{len(self.pairs)} pairs, {self.reader}"


def build(name: str) -> Transformer:
    both, spelled = tokenizers(READERS[name].unit), READERS[name].unit == "runs"
    model = Transformer(4 if spelled else len(both.source), len(both.targets), d_model=D_MODEL, n_heads=4, n_layers=2,
                        d_ff=2 * D_MODEL, dropout=0.0, norm="pre", positions="rotary")
    if spelled:
        model.src_embedding = SpelledEmbedding(both.source, D_MODEL)
    return model


@cache                                                  # the search has trained the best one already
def train(name: str, rate: float, seed: int) -> tuple[Transformer, float]:
    """A translator, and its seconds."""
    torch.manual_seed(seed)
    model, begun = build(name), time.perf_counter()
    fit(model, Batches(READERS[name], data()["train"]), linear_decay(rate, WARMUP), steps=STEPS, progress=False,
        settings=Settings(seed=seed, device="cpu", precision="highest"))
    return model, round(time.perf_counter() - begun, 1)


def loss(name: str, rate: float) -> float:
    found = evaluate_loss(train(name, rate, 1)[0], Batches(READERS[name], data()["valid"]))
    print(f"  {name}, rate {rate}: {found:.4f}, {train(name, rate, 1)[1]} s", flush=True)
    return found


def measured(model: Transformer, unit: str) -> dict:
    """BLEU, chrF and exact match on test, without typos and with each kind at each rate; one sentence at all rates."""
    pairs, greedy = data()["test"][:TEST], SearchOptions(beam_size=1)
    targets = [pair.target for pair in pairs]

    def scores(rate: float, kind: str) -> list[float]:
        found = translate(model, tokenizers(unit), [with_typos(pair.source, rate, kind) for pair in pairs], greedy)
        return [round(bleu(found, targets).value, 2), round(chrf(found, targets).value, 2), round(100 * exact_match(found, targets), 2)]

    return {"clean": scores(0.0, "swap"), **{kind: {str(rate): scores(rate, kind) for rate in RATES} for kind in KINDS}}


@cache
def sentence() -> dict:
    """A sentence of test, its Hindi, and ever worse typed versions of it."""
    pair = next(pair for pair in data()["test"] if pair.source == SENTENCE)
    return {"source": pair.source, "target": pair.target, "rates": TYPED,
            "typed": [with_typos(pair.source, rate, "swap") for rate in TYPED]}


def run(name: str, rate: float, seed: int) -> dict:
    model, seconds = train(name, rate, seed)
    begun = time.perf_counter()
    found = measured(model, READERS[name].unit)
    return {"seed": seed, "seconds": seconds, "seconds of scoring": round(time.perf_counter() - begun, 1), "scores": found,
            "translations": translate(model, tokenizers(READERS[name].unit), sentence()["typed"], SearchOptions(beam_size=1))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", default=list(READERS), choices=READERS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {
        **facts(), "d_model": D_MODEL, "rows": ROWS, "steps": STEPS, "noisy": NOISY, "strength": STRENGTH, "rates": RATES, "test": TEST,
        "sentence": sentence(), "readers": {}}
    for name in given.only:
        if name not in record["readers"]:
            rate, tried = best_rate(lambda rate: loss(name, rate), FIRST)
            record["readers"][name] = {"parameters": sum(p.numel() for p in build(name).parameters()), "rate": rate, "rates": tried,
                                       "runs": []}
        entry = record["readers"][name]
        for seed in given.seeds:
            if seed not in [one["seed"] for one in entry["runs"]]:
                entry["runs"].append(run(name, entry["rate"], seed))
                print(name, entry["runs"][-1]["seconds"], entry["runs"][-1]["scores"], *entry["runs"][-1]["translations"], sep="\n  ", flush=True)
                write(NAME, record)


if __name__ == "__main__":
    main()

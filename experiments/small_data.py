"""What small data wants: parts of one recipe changed one at a time, on Multi30k en-de.

    python experiments/small_data.py                              # all changes
    python experiments/small_data.py --only sinusoidal "batches half"

The recipe is that of `transformer-rotary` at the tiny preset, but for the warm-up, a fifth of the steps. Every run learns from
the same number of passes over the training pairs (so a slower or busy machine changes nothing but the waiting; *wide* and
*batches half* take longer; *R-Drop* makes a third of the passes in about the same time), on one thread, and is scored on `valid` only, with the weights of its last epoch and with the
means of the last five and ten: no test set is read. One seed unless more are asked for, so half a point of BLEU between two
of them says nothing. Writes results/small_data.json after each run and goes on where an earlier call stopped; two calls may
run side by side on different changes.
"""
import argparse
import json
import time
from dataclasses import dataclass

import torch
from filelock import FileLock
from records import RESULTS, facts, write
from torch import Tensor
from torch.nn import functional as F

from transformer_course.data.batching import PairBatches, batch_plan, collate
from transformer_course.data.corpora import load
from transformer_course.data.text import Tokenizer
from transformer_course.models.transformer import Transformer
from transformer_course.pipelines.decoding import encode_pairs
from transformer_course.pipelines.presets import PRESETS
from transformer_course.pipelines.translator import Translator
from transformer_course.training.checkpoints import mean_weights, put_weights
from transformer_course.training.schedules import inverse_sqrt, linear_decay
from transformer_course.training.settings import Settings
from transformer_course.training.loop import evaluate_loss
from transformer_course.training.trainer import Trainer

TINY = PRESETS["tiny"]
SIZES, PEAK = TINY.of("transformer")
BASE = {**SIZES, "positions": "rotary", "attention_dropout": 0.0, "ff_dropout": 0.0, "vocabulary": TINY.vocabulary,
        "batch_tokens": TINY.batch_tokens, "peak": PEAK, "subword_dropout": 0.0, "smoothing": 0.1, "tied": True,
        "schedule": "linear_decay", "warmup": 0.2,     # of all steps
        "r_drop": 0.0, "passes": 1.0}                  # of the epochs
CHANGES = {
    "as it is": {},
    "sinusoidal": {"positions": "sinusoidal"}, "relative": {"positions": "relative"},
    "batches half": {"batch_tokens": TINY.batch_tokens // 2, "peak": PEAK / 2**.5},
    "vocabulary 4,000": {"vocabulary": 4000},
    "subword dropout 0.1": {"subword_dropout": 0.1},
    "dropout everywhere": {"attention_dropout": 0.1, "ff_dropout": 0.1},
    "dropout 0.1": {"dropout": 0.1}, "dropout 0.3": {"dropout": 0.3},
    "encoder 6, decoder 2": {"n_layers": (6, 2)},
    "untied": {"tied": False}, "warm-up 0.4": {"warmup": 0.4}, "inverse square root": {"schedule": "inverse_sqrt"},
    "R-Drop": {"r_drop": 5.0, "passes": 1 / 3},
    "wide": {"d_model": 256, "d_ff": 512, "peak": 2.5e-3},
}
MODEL = ("d_model", "n_heads", "n_layers", "d_ff", "dropout", "norm", "positions", "attention_dropout", "ff_dropout", "tied")
SCHEDULES = {"linear_decay": linear_decay, "inverse_sqrt": inverse_sqrt}
AVERAGED = (10, 5, 1)     # last epochs whose weights are averaged, from many to few


class RDrop(Transformer):
    """Reads every batch twice; the two answers, which dropout has made different, must agree [Liang et al. 2021, §2]."""

    def __init__(self, *sizes, r_drop: float, **named):
        super().__init__(*sizes, **named)
        self.r_drop = r_drop

    def loss(self, src: Tensor, tgt: Tensor, smoothing: float | tuple[float, ...] = 0.1) -> Tensor:
        """Half of the paper's loss: the mean smoothed cross-entropy of both, and r_drop / 4 times both divergences."""
        if not self.training:
            return super().loss(src, tgt, smoothing)
        vectors = self.decode(*self.encode(src.repeat(2, 1)), tgt[:, :-1].repeat(2, 1))
        real = tgt[:, 1:] != self.pad_id
        gold = tgt[:, 1:][real][:, None]                                                                  # (N, 1)
        both = [F.linear(half[real], self.output.weight).log_softmax(-1) for half in vectors.chunk(2)]    # each (N, V)
        wrong = lambda eps: sum((eps - 1) * logp.gather(1, gold).mean() - eps * logp.mean() for logp in both) / 2
        divergence = ((both[0].exp() - both[1].exp()) * (both[0] - both[1])).sum(-1).mean()
        if not isinstance(smoothing, tuple):
            return wrong(smoothing) + self.r_drop / 4 * divergence
        return torch.stack([wrong(smoothing[0]) + self.r_drop / 4 * divergence, *(wrong(eps).detach() for eps in smoothing[1:])])


@dataclass(frozen=True)
class FreshPieces:
    """Batches for which all words are cut into pieces anew for each epoch [Provilkov et al. 2020]."""

    tokenizer: Tokenizer
    pairs: list
    dropout: float                # of merges
    max_tokens: int

    def plan(self, seed: int, epoch: int) -> list[list]:
        """A batch is the list of its examples: another epoch has others."""
        cut = lambda texts, side: self.tokenizer.encode_many(texts, dropout=self.dropout, seed=2 * (1000 * seed + epoch) + side)
        sources, targets = cut([p.source for p in self.pairs], 0), cut([p.target for p in self.pairs], 1)
        bos, eos = self.tokenizer.bos_id, self.tokenizer.eos_id
        examples = [(src + [eos], [bos] + tgt + [eos]) for src, tgt in zip(sources, targets)]
        return [[examples[i] for i in batch] for batch in batch_plan(examples, self.max_tokens, seed, epoch)]

    def in_order(self) -> list[list]:
        """Those of the first epoch; only the trainer's fresh ones are used here."""
        return self.plan(0, 0)

    def collate(self, batch: list, device: torch.device | str | None = None) -> tuple[Tensor, ...]:
        """The examples as two rectangles of ids."""
        return collate(batch, range(len(batch)), self.tokenizer.pad_id, device)

    def tokens(self, batch: list) -> int:
        """Target tokens without BOS."""
        return sum(len(target) - 1 for source, target in batch)

    def fingerprint(self) -> str:
        """What the pieces depend on, the pairs aside, which are the same in all runs."""
        return f"{len(self.pairs)} pairs, {len(self.tokenizer)} pieces, dropout {self.dropout}, {self.max_tokens} tokens"


def score(trainer: Trainer, n: int, tokenizer: Tokenizer, valid: list) -> dict:
    """BLEU and loss on valid with the mean of the last n epochs' weights."""
    put_weights(trainer.model, mean_weights(list(trainer.kept.values())[-n:]))
    translator, words = Translator(trainer.model, tokenizer, {}), sum(map(trainer.loop.valid.tokens, trainer.loop.valid.in_order()))
    return {"loss_per_pair": evaluate_loss(trainer.model, trainer.loop.valid) * words / len(valid),
            **{f"beam {k}": translator.evaluate(valid, "valid", k).bleu for k in (1, 5)}}


def run(changes: dict, seed: int, epochs: int, corpus) -> dict:
    """Train once; BLEU and loss on valid of the means of the last epochs' weights."""
    given, began = BASE | changes, facts()
    pairs, valid = corpus["train"], corpus["valid"]
    tokenizer = Tokenizer.train([text for pair in pairs for text in (pair.source, pair.target)], kind=TINY.tokens,
                                size=given["vocabulary"])
    torch.manual_seed(seed)
    kind, more = (RDrop, {"r_drop": given["r_drop"]}) if given["r_drop"] else (Transformer, {})
    model, epochs = kind(len(tokenizer), len(tokenizer), **more, **{name: given[name] for name in MODEL}), round(epochs * given["passes"])
    settings = Settings(smoothing=given["smoothing"], average=max(AVERAGED), seed=seed, device="cpu")
    batches = PairBatches(encode_pairs(tokenizer, pairs), given["batch_tokens"])
    if given["subword_dropout"]:
        batches = FreshPieces(tokenizer, pairs, given["subword_dropout"], given["batch_tokens"])
    steps = sum(len(batches.plan(seed, epoch)) for epoch in range(epochs))
    schedule = SCHEDULES[given["schedule"]](given["peak"], round(given["warmup"] * steps))
    trainer = Trainer(model, batches, schedule, PairBatches(encode_pairs(tokenizer, valid), given["batch_tokens"]), settings)
    trainer.run(steps, None, False)
    assert (trainer.loop.epoch, trainer.loop.position) == (epochs, 0)      # so the weights averaged are those of whole epochs
    return {"seed": seed, **began, "steps": steps, "tokens": trainer.loop.tokens, "seconds": trainer.loop.seconds,
            "valid": {f"mean of {n}": score(trainer, n, tokenizer, valid) for n in AVERAGED},
            "parameters": sum(p.numel() for p in model.parameters()),
            "history": [{k: round(v, 4) for k, v in epoch.items()} for epoch in trainer.loop.history]}


def noted(path, epochs: int) -> dict:
    """The record so far; another recipe or number of epochs is another record."""
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"epochs": epochs, "base": BASE, "variants": {}}
    if (record["epochs"], record["base"]) != (epochs, BASE):
        raise SystemExit(f"{path.name} was made with another recipe or number of epochs")
    return record


def done(record: dict, name: str, seed: int) -> bool:
    """Whether the record has this run."""
    return any(run["seed"] == seed for run in record["variants"].get(name, {"runs": []})["runs"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(CHANGES), choices=CHANGES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--epochs", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    path, corpus = RESULTS / "small_data.json", load("multi30k", "en-de")
    for seed in given.seeds:
        for name in given.only:
            if done(noted(path, given.epochs), name, seed):
                continue
            began, result = time.perf_counter(), run(CHANGES[name], seed, given.epochs, corpus)
            with FileLock(path.with_suffix(".lock")):       # no other call reads or writes the record meanwhile
                record = noted(path, given.epochs)          # again: another call may have added to it
                if not done(record, name, seed):
                    record["variants"].setdefault(name, {"changes": CHANGES[name], "runs": []})["runs"].append(result)
                    write("small_data", record)
            print(f"{name}, seed {seed}: valid {result['valid']}, {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
